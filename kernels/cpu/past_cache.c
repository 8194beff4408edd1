/* See the header. SSE2 is there on every x86-64; other processors copy as usual. */
#include "kernels/cpu/past_cache.h"

#include "kernels/cpu/half.h"

#include <string.h>

/* Without vectors. */
static void widen(float *to, const char *from, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint16_t h;
        memcpy(&h, from + 2 * i, sizeof h);
        to[i] = dt_from_bf16(h);
    }
}

#if defined(__x86_64__)
#include <emmintrin.h>

enum { LINE = 64, QUAD = 16 };

/* Bytes, at most `size`, from `to` to the next cache line. */
static size_t to_line(const void *to, size_t size)
{
    size_t rest = -(uintptr_t)to % LINE;
    return rest < size ? rest : size;
}

static __m128i load(const char *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

static void store(char *to, __m128i x)
{
    _mm_stream_si128((__m128i *)(void *)to, x);
}

void dt_copy_past_cache(void *to, const void *from, size_t size_bytes)
{
    char *out = to;
    const char *in = from;
    size_t at = to_line(out, size_bytes);
    memcpy(out, in, at);
    for (; at + LINE <= size_bytes; at += LINE) {
        __m128i a = load(in + at), b = load(in + at + QUAD), c = load(in + at + 2 * QUAD), d = load(in + at + 3 * QUAD);
        store(out + at, a);
        store(out + at + QUAD, b);
        store(out + at + 2 * QUAD, c);
        store(out + at + 3 * QUAD, d);
    }
    memcpy(out + at, in + at, size_bytes - at);
    _mm_sfence(); /* other threads may read it from here on */
}

void dt_widen_past_cache(float *to, const void *from, int64_t count)
{
    const char *in = from;
    const __m128i zero = _mm_setzero_si128();
    int64_t step = LINE / (int64_t)sizeof(float),
            i = (int64_t)(to_line(to, (size_t)count * sizeof(float)) / sizeof(float));
    widen(to, in, i);
    for (; i + step <= count; i += step) { /* a BF16 is the upper half of its float */
        __m128i a = load(in + 2 * i), b = load(in + 2 * i + QUAD);
        char *out = (char *)(to + i);
        store(out, _mm_unpacklo_epi16(zero, a));
        store(out + QUAD, _mm_unpackhi_epi16(zero, a));
        store(out + 2 * QUAD, _mm_unpacklo_epi16(zero, b));
        store(out + 3 * QUAD, _mm_unpackhi_epi16(zero, b));
    }
    widen(to + i, in + 2 * i, count - i);
    _mm_sfence();
}
#else
void dt_copy_past_cache(void *to, const void *from, size_t size_bytes)
{
    memcpy(to, from, size_bytes);
}

void dt_widen_past_cache(float *to, const void *from, int64_t count)
{
    widen(to, from, count);
}
#endif
