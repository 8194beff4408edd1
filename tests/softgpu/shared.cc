/* The block's shared memory: arrays in an arena, with gaps of at least 64 bytes that no thread may
 * write. Memory never written is 0xff. */
#include "tests/softgpu/shared.h"

#include "tests/softgpu/executor.h"
#include "tests/softgpu/sanitize.h"

#include <string.h>
#include <sys/mman.h>

namespace
{

enum { ARRAYS_MAX = 64, ALIGN = 128, GAP = 64, GAP_BYTE = 0xa5 };
const size_t ARENA_BYTES = (size_t)512 << 10;

struct array {
    const void *key;
    unsigned char *begin;
    size_t size_bytes;
};

struct arena {
    unsigned char *memory;
    size_t used, static_bytes, dynamic_bytes;
    int count;
    struct array arrays[ARRAYS_MAX];
};

__thread struct arena own;
const char dynamic_key = 0;

/* Loops over words, because the thread sanitizer intercepts memset. */
void fill(unsigned char *p, size_t n, unsigned char byte)
{
    for (size_t i = 0; i < n; i++) {
        ((volatile unsigned char *)p)[i] = byte;
    }
}

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

unsigned char *hand_out(const void *key, size_t size_bytes)
{
    struct arena *a = &own;
    size_t begin = round_up(a->used + GAP, ALIGN), end = begin + size_bytes;
    if (a->count == ARRAYS_MAX || end + GAP > ARENA_BYTES) {
        softgpu_die("more shared memory than a block has");
    }
    unsigned char *p = a->memory + begin;
    asan_unpoison(p, size_bytes);
#ifndef SOFTGPU_ASAN
    fill(a->memory + a->used, begin - a->used, GAP_BYTE);
    fill(a->memory + end, GAP, GAP_BYTE);
#endif
    fill(p, size_bytes, 0xff);
    msan_poison(p, size_bytes);
    a->arrays[a->count++] = {key, p, size_bytes};
    a->used = end;
    return p;
}

} // namespace

void shared_open(void)
{
    void *p = mmap(nullptr, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        softgpu_die("no memory for shared memory");
    }
    own = {};
    own.memory = (unsigned char *)p;
}

void shared_close(void)
{
    asan_unpoison(own.memory, ARENA_BYTES);
    munmap(own.memory, ARENA_BYTES);
    own = {};
}

bool shared_begin(size_t dynamic_bytes)
{
    struct arena *a = &own;
    bool anew = false;
#ifdef SOFTGPU_TSAN
    if (a->used > 0) { /* forgets earlier accesses: those of another block are no race */
        mmap(a->memory, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
        anew = true;
    }
#endif
#ifdef SOFTGPU_ASAN
    asan_poison(a->memory, ARENA_BYTES);
#endif
    a->used = a->static_bytes = 0;
    a->count = 0;
    a->dynamic_bytes = dynamic_bytes;
    if (dynamic_bytes > 0) {
        hand_out(&dynamic_key, dynamic_bytes);
    }
    return anew;
}

void shared_end(void)
{
#ifndef SOFTGPU_ASAN
    struct arena *a = &own;
    const unsigned char *at = a->memory;
    for (int i = 0; i <= a->count; i++) {
        const unsigned char *end = i < a->count ? a->arrays[i].begin : a->memory + a->used + GAP;
        for (; a->count > 0 && at < end; at++) {
            if (*at != GAP_BYTE) {
                softgpu_die("wrote %ld bytes %s an array in shared memory of %zu bytes",
                            i > 0 ? (long)(at - a->arrays[i - 1].begin - a->arrays[i - 1].size_bytes)
                                  : (long)(end - at),
                            i > 0 ? "past" : "before", a->arrays[i > 0 ? i - 1 : 0].size_bytes);
            }
        }
        at = i < a->count ? end + a->arrays[i].size_bytes : end;
    }
#endif
}

void *softgpu_shared(const void *key, size_t size_bytes)
{
    struct arena *a = &own;
    for (int i = 0; i < a->count; i++) {
        if (a->arrays[i].key == key) {
            return a->arrays[i].begin;
        }
    }
    a->static_bytes += round_up(size_bytes, 16);
    if (a->static_bytes > SHARED_STATIC_MAX || a->static_bytes + a->dynamic_bytes > SHARED_MAX) {
        softgpu_die("%zu bytes of DT_SHARED and %zu dynamic ones are more than a block has", a->static_bytes,
                    a->dynamic_bytes);
    }
    return hand_out(key, size_bytes);
}

void *softgpu_shared_dynamic(size_t align_bytes)
{
    static_assert(ALIGN >= 128, "as common.cuh promises");
    (void)align_bytes;
    if (own.dynamic_bytes == 0) {
        softgpu_die("DT_SHARED_DYNAMIC, but the launch gives no shared memory");
    }
    return own.arrays[0].begin;
}

void softgpu_check_shared(const void *p, size_t size_bytes, const char *operation)
{
    const unsigned char *begin = (const unsigned char *)p;
    if ((uintptr_t)p % 16 != 0) {
        softgpu_die("%s: shared memory that is not aligned to 16 bytes", operation);
    }
    for (int i = 0; i < own.count; i++) {
        const struct array *x = &own.arrays[i];
        if (begin >= x->begin && begin + size_bytes <= x->begin + x->size_bytes) {
            return;
        }
    }
    softgpu_die("%s: not in the block's shared memory", operation);
}
