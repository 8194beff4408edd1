/* Vectors of the instruction set that a file is compiled for: width, fused multiply-add, and names
 * made unique per set. */
#ifndef DT_KERNELS_CPU_ISA_VEC_H
#define DT_KERNELS_CPU_ISA_VEC_H

#include "base/dtype.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define DT_ISA_JOIN2(name, isa) name##_##isa
#define DT_ISA_JOIN(name, isa) DT_ISA_JOIN2(name, isa)
/* Files are compiled twice for each set: for F32 and BF16, and, with DT_FOR_F16, for F16. DT_HALF is the 16-bit
 * type of the copy. What its callers take for granted costs nothing: a copy for F16 has no code for F32 where the
 * type of a call decides (DT_IS_HALF). */
#define ISA_BASE(name) DT_ISA_JOIN(name, DT_ISA)
#define ISA_F16(name) DT_ISA_JOIN(ISA_BASE(name), f16)
#ifdef DT_FOR_F16
#define ISA(name) ISA_F16(name)
#define DT_HALF DT_F16
#define DT_IS_HALF(type) (true || (type) == DT_F16)
#else
#define ISA(name) ISA_BASE(name)
#define DT_HALF DT_BF16
#define DT_IS_HALF(type) ((type) == DT_BF16)
#endif
#define DT_ISA_TEXT2(isa) #isa
#define DT_ISA_TEXT(isa) DT_ISA_TEXT2(isa)
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define VEC 16
typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(__AVX2__)
#define VEC 8
typedef float vec __attribute__((vector_size(32)));
typedef int32_t ivec __attribute__((vector_size(32)));
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
#else
#define VEC 4
typedef float vec __attribute__((vector_size(16)));
typedef int32_t ivec __attribute__((vector_size(16)));
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return a * b + c; /* rounds twice: without the instruction a true fma is far too slow */
}
#endif

INLINE vec vec_load(const float *p)
{
    vec v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void vec_store(float *p, vec v)
{
    memcpy(p, &v, sizeof v);
}

/* The first n elements, n <= VEC, and zeros behind them. Tails go through the same operations as
 * full vectors, so no result depends on its position. */
INLINE vec vec_load_n(const float *p, int64_t n)
{
    if (n >= VEC) {
        return vec_load(p);
    }
#if defined(__AVX512F__)
    return (vec)_mm512_maskz_loadu_ps((__mmask16)((1U << n) - 1), p);
#else
    vec v = {0};
    memcpy(&v, p, (size_t)n * sizeof(float));
    return v;
#endif
}

INLINE void vec_store_n(float *p, vec v, int64_t n)
{
    if (n >= VEC) {
        vec_store(p, v);
        return;
    }
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1U << n) - 1), (__m512)v);
#else
    float last[VEC]; /* v itself stays in a register */
    vec_store(last, v);
    memcpy(p, last, (size_t)n * sizeof(float));
#endif
}

/* Lane by lane: mask (all ones or zeros, as comparisons give) ? a : b */
INLINE vec vec_pick(ivec mask, vec a, vec b)
{
#if defined(__AVX2__) && !defined(__AVX512F__)
    return (vec)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
#endif
}

/* a > b ? a : b, thus b where one of them is a nan */
INLINE vec vec_max(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vec)_mm_max_ps((__m128)a, (__m128)b);
#else
    return vec_pick(a > b, a, b);
#endif
}

/* a < b ? a : b, thus b where one of them is a nan */
INLINE vec vec_min(vec a, vec b)
{
#if defined(__AVX512F__)
    return (vec)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__)
    return (vec)_mm_min_ps((__m128)a, (__m128)b);
#else
    return vec_pick(a < b, a, b);
#endif
}

/* ---- 16 bits in memory, float in registers ---- */

typedef uint16_t hvec __attribute__((vector_size(2 * VEC)));
typedef uint32_t uvec __attribute__((vector_size(4 * VEC)));

INLINE vec vec_of_f16(hvec h)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps((__m256i)h);
#elif defined(__AVX2__)
    return (vec)_mm256_cvtph_ps((__m128i)h);
#else
    uvec bits = __builtin_convertvector(h, uvec), rest = (bits & 0x7fff) << 13;
    vec finite = (vec)rest * 0x1p112F; /* exact, also where the F16 is subnormal */
    uvec top = (uvec)vec_pick((ivec)(rest >= 0x0f800000), (vec)(rest | 0x7f800000), finite);
    return (vec)(top | (bits & 0x8000) << 16);
#endif
}

/* Rounds to the nearest even; every nan becomes the same nan. */
INLINE hvec vec_to_f16(vec v)
{
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    __m256i h = _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return (hvec)_mm256_mask_mov_epi16(h, nan, _mm256_set1_epi16(0x7e00));
#elif defined(__AVX2__)
    v = vec_pick(v == v, v, (vec)((uvec){0} + 0x7fc00000));
    return (hvec)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    uvec bits = (uvec)v, rest = bits & 0x7fffffff;
    uvec rounded = (rest + 0xfff + (rest >> 13 & 1) - (112U << 23)) >> 13;
    /* below 2^-14: adding 0.5 leaves the rounded bits of the subnormal at the end */
    uvec small = (uvec)((vec)rest + 0.5F) - 0x3f000000;
    rounded = (uvec)vec_pick((ivec)(rest < 0x38800000), (vec)small, (vec)rounded);
    rounded = (uvec)vec_pick((ivec)(rest >= 0x477ff000), (vec)((uvec){0} + 0x7c00), (vec)rounded);
    uvec h = (uvec)vec_pick(v == v, (vec)(rounded | (bits >> 16 & 0x8000)), (vec)((uvec){0} + 0x7e00));
    return __builtin_convertvector(h, hvec);
#endif
}

INLINE vec vec_of_bf16(hvec h)
{
#if defined(__AVX512F__)
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)h), 16);
#elif defined(__AVX2__)
    return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32((__m128i)h), 16);
#else
    return (vec)(__builtin_convertvector(h, uvec) << 16);
#endif
}

/* Rounds to the nearest even; every nan becomes the same nan. The upper half of each lane is the
 * BF16. */
INLINE uvec vec_bf16_bits(vec v)
{
    uvec bits = (uvec)v;
    uvec rounded = bits + 0x7fff + (bits >> 16 & 1);
#if defined(__AVX512F__)
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    return (uvec)_mm512_mask_mov_epi32((__m512i)rounded, nan, _mm512_set1_epi32(0x7fc00000));
#else
    return (uvec)vec_pick(v == v, (vec)rounded, (vec)((uvec){0} + 0x7fc00000));
#endif
}

INLINE hvec vec_to_bf16(vec v)
{
#ifdef DT_DOTS
    return (hvec)_mm512_cvtneps_pbh((__m512)v); /* subnormals become 0 */
#else
    uvec upper = vec_bf16_bits(v) >> 16;
#if defined(__AVX512F__)
    return (hvec)_mm512_cvtepi32_epi16((__m512i)upper);
#elif defined(__AVX2__)
    return (hvec)_mm_packus_epi32(_mm256_castsi256_si128((__m256i)upper), _mm256_extracti128_si256((__m256i)upper, 1));
#else
    return __builtin_convertvector(upper, hvec);
#endif
#endif
}

/* Floats from the 16-bit type `type`. Functions that take `type` are inlined with a constant. */
INLINE vec vec_of_16(hvec h, enum dt_dtype type)
{
    return type == DT_F16 ? vec_of_f16(h) : vec_of_bf16(h);
}

INLINE hvec vec_to_16(vec v, enum dt_dtype type)
{
    return type == DT_F16 ? vec_to_f16(v) : vec_to_bf16(v);
}

INLINE vec vec_load_16_n(const uint16_t *p, int64_t n, enum dt_dtype type)
{
    if (n >= VEC) {
        hvec h;
        memcpy(&h, p, sizeof h);
        return vec_of_16(h, type);
    }
#if defined(__AVX512F__)
    hvec last = (hvec)_mm256_maskz_loadu_epi16((__mmask16)((1U << n) - 1), p);
#else
    hvec last = {0};
    memcpy(&last, p, (size_t)n * sizeof(uint16_t));
#endif
    return vec_of_16(last, type);
}

INLINE void vec_store_16_n(uint16_t *p, vec v, int64_t n, enum dt_dtype type)
{
    hvec h = vec_to_16(v, type);
    if (n >= VEC) {
        memcpy(p, &h, sizeof h);
        return;
    }
#if defined(__AVX512F__)
    _mm256_mask_storeu_epi16(p, (__mmask16)((1U << n) - 1), (__m256i)h);
#else
    uint16_t last[VEC]; /* h itself stays in a register */
    memcpy(last, &h, sizeof h);
    memcpy(p, last, (size_t)n * sizeof(uint16_t));
#endif
}

INLINE vec vec_load_half_n(const uint16_t *p, int64_t n)
{
    return vec_load_16_n(p, n, DT_HALF);
}

INLINE void vec_store_half_n(uint16_t *p, vec v, int64_t n)
{
    vec_store_16_n(p, v, n, DT_HALF);
}

/* Elements i to i + n (at most VEC) of a tensor of F32, BF16 or F16. */
INLINE vec vec_get(const void *x, int64_t i, int64_t n, enum dt_dtype type)
{
    return dt_dtype_half(type) ? vec_load_16_n((const uint16_t *)x + i, n, type) : vec_load_n((const float *)x + i, n);
}

INLINE void vec_put(void *x, int64_t i, vec v, int64_t n, enum dt_dtype type)
{
    if (dt_dtype_half(type)) {
        vec_store_16_n((uint16_t *)x + i, v, n, type);
    } else {
        vec_store_n((float *)x + i, v, n);
    }
}

/* The value after storing it as `type` and loading it again. */
INLINE vec vec_rounded(vec v, enum dt_dtype type)
{
    return type == DT_BF16 ? (vec)(vec_bf16_bits(v) & 0xffff0000) : type == DT_F16 ? vec_of_f16(vec_to_f16(v)) : v;
}

/* Rounds stochastically to BF16: adds `random` (below 2^16 each) to the bits that are cut off. A
 * nan stays a nan. */
INLINE vec vec_stochastic(vec v, uvec random)
{
    return vec_pick(v == v, (vec)(((uvec)v + random) & 0xffff0000), v);
}

/* Copy between a tensor and floats in work memory. */
INLINE void vec_fetch(float *to, const void *x, int64_t at, int64_t n, enum dt_dtype type)
{
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + VEC <= n; i += VEC) {
        vec_store(to + i, vec_get(x, at + i, VEC, type));
    }
    if (i < n) {
        vec_store_n(to + i, vec_get(x, at + i, n - i, type), n - i);
    }
}

/* n elements as floats: a tensor of F32 itself, or `room` with the elements of a tensor of 16 bits. */
INLINE const float *vec_floats(float *room, const void *x, int64_t at, int64_t n, enum dt_dtype type)
{
    if (!dt_dtype_half(type)) {
        return (const float *)x + at;
    }
    vec_fetch(room, x, at, n, type);
    return room;
}

INLINE void vec_keep(void *x, int64_t at, const float *from, int64_t n, enum dt_dtype type)
{
    int64_t i = 0;
#pragma GCC unroll 4
    for (; i + VEC <= n; i += VEC) {
        vec_put(x, at + i, vec_load(from + i), VEC, type);
    }
    if (i < n) {
        vec_put(x, at + i, vec_load_n(from + i, n - i), n - i, type);
    }
}

INLINE vec vec_all(float x)
{
    return x - (vec){0};
}

/* 0, 1, 2, ... */
INLINE ivec vec_index(void)
{
    ivec i = {0};
    for (int l = 0; l < VEC; l++) {
        i[l] = l;
    }
    return i;
}

INLINE float vec_sum(vec v)
{
    float x[VEC];
    vec_store(x, v);
    for (int n = VEC / 2; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            x[i] += x[i + n];
        }
    }
    return x[0];
}

INLINE float vec_top(vec v)
{
    float x[VEC], top;
    vec_store(x, v);
    top = x[0];
    for (int i = 1; i < VEC; i++) {
        top = x[i] > top ? x[i] : top;
    }
    return top;
}

INLINE vec vec_sqrt(vec v)
{
#if defined(__AVX512F__)
    return (vec)_mm512_sqrt_ps((__m512)v);
#elif defined(__AVX2__)
    return (vec)_mm256_sqrt_ps((__m256)v);
#elif defined(__SSE2__)
    return (vec)_mm_sqrt_ps((__m128)v);
#else
    for (int i = 0; i < VEC; i++) {
        v[i] = sqrtf(v[i]);
    }
    return v;
#endif
}

/* The largest of n > 0 values. */
INLINE float vec_max_of(const float *x, int64_t n)
{
    vec top = vec_all(x[0]);
    int64_t j = 0;
    for (; j + VEC <= n; j += VEC) {
        top = vec_max(vec_load(x + j), top);
    }
    float max = vec_top(top);
    for (; j < n; j++) {
        max = x[j] > max ? x[j] : max;
    }
    return max;
}

/* e^x to about 1 ulp: x = n ln 2 + r, a polynomial of degree 6 in r, and n added to the exponent.
 * Below -87.3 the result is about 1e-38; above 88.3 it is 2e38. A nan stays a nan. */
INLINE vec vec_exp(vec x)
{
    const vec magic = vec_all(0x1.8p23F); /* adding it rounds x to an integer */
    vec y = vec_min(vec_all(88.3F), vec_max(vec_all(-87.3F), x));
    vec n = vec_fma(y, vec_all(1.44269504088896341F), magic) - magic;
    vec r = vec_fma(n, vec_all(-0.693359375F), y);
    r = vec_fma(n, vec_all(2.12194440e-4F), r);
    vec p = vec_fma(r, vec_all(1.0F / 720), vec_all(1.0F / 120));
    p = vec_fma(p, r, vec_all(1.0F / 24));
    p = vec_fma(p, r, vec_all(1.0F / 6));
    p = vec_fma(p, r, vec_all(0.5F));
    p = vec_fma(p, r, vec_all(1.0F));
    p = vec_fma(p, r, vec_all(1.0F));
    ivec power = (__builtin_convertvector(n, ivec) + 127) << 23;
    return p * (vec)power;
}

/* 1 / (1 + e^-x) */
INLINE vec vec_sigmoid(vec x)
{
    return 1.0F / (1.0F + vec_exp(-x));
}

#endif
