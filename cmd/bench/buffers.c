/* The device and the buffers that benchmarks of kernels work on. One block of random numbers is
 * drawn, and copied as often as a buffer needs. */
#include "cmd/bench/buffers.h"

#include "kernels/timer.h"

#include <stdio.h>
#include <string.h>

enum { BLOCK = 1 << 20 };

bool bench_ok(struct bench *b, int rc, const struct dt_error *err)
{
    if (rc != 0 && !b->failed) {
        (void)fprintf(stderr, "bench %s: %s\n", b->name, err->text);
    }
    b->failed = b->failed || rc != 0;
    return !b->failed;
}

const char *bench_dtype_name(enum dt_dtype type)
{
    return type == DT_F32 ? "fp32" : "bf16";
}

bool bench_wants(const char *dtype, enum dt_dtype type)
{
    return *dtype == '\0' || strcmp(dtype, bench_dtype_name(type)) == 0;
}

int bench_check_dtype(const char *dtype, struct dt_error *err)
{
    bool known = bench_wants(dtype, DT_F32) || bench_wants(dtype, DT_BF16);
    return known ? 0 : dt_fail(err, DT_INVALID, "--dtype: %s: must be fp32 or bf16", dtype);
}

int bench_check_device(const struct dt_device *d, const char *name, struct dt_error *err)
{
    bool one = d->kernels == dt_kernels_twin(DT_F32) || d->kernels == dt_kernels_twin(DT_F64);
    return one ? dt_fail(err, DT_INVALID, "--device: %s: its kernels know one type, and here are two; use cpu or cuda",
                         name)
               : 0;
}

void *bench_allocate(struct bench *b, enum dt_memory kind, size_t size_bytes)
{
    struct dt_error err = {0};
    void *p = NULL;
    return bench_ok(b, dt_device_alloc(b->d, kind, size_bytes, &p, &err), &err) ? p : NULL;
}

void bench_open_random(struct bench *b)
{
    b->random = bench_allocate(b, DT_MEMORY_PINNED, BLOCK * sizeof(float));
    b->numbers = bench_allocate(b, DT_MEMORY_PINNED, BLOCK * sizeof(int32_t));
    b->staging = bench_allocate(b, DT_MEMORY_DEVICE, BLOCK * sizeof(float));
    uint64_t state = 88172645463325252ULL;
    for (int i = 0; i < BLOCK && !b->failed; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b->random[i] = ((float)(state >> 41) + 0.5F) / 8388608.0F;
    }
}

void bench_close_random(struct bench *b)
{
    dt_timer_close(b->timer);
    b->timer = NULL;
    dt_device_free(b->d, DT_MEMORY_DEVICE, b->staging, BLOCK * sizeof(float));
    dt_device_free(b->d, DT_MEMORY_PINNED, b->random, BLOCK * sizeof(float));
    dt_device_free(b->d, DT_MEMORY_PINNED, b->numbers, BLOCK * sizeof(int32_t));
}

static int64_t block_at(int64_t i, int64_t count)
{
    return count - i < BLOCK ? count - i : BLOCK;
}

void bench_fill_random(struct bench *b, void *to, int64_t count, enum dt_dtype type)
{
    for (int64_t i = 0; i < count && !b->failed; i += BLOCK) {
        int64_t n = block_at(i, count);
        dt_stream_copy(b->s, b->staging, b->random, (size_t)n * sizeof(float));
        b->k->cast(b->s,
                   &(struct dt_cast_args){(char *)to + (size_t)i * dt_dtype_size(type), b->staging, n, type, DT_F32});
    }
}

void *bench_buffer(struct bench *b, int at, int64_t count, enum dt_dtype type)
{
    if (b->buffers[at].p != NULL || b->failed) {
        return b->buffers[at].p;
    }
    size_t size_bytes = (size_t)count * dt_dtype_size(type);
    void *p = bench_allocate(b, DT_MEMORY_DEVICE, size_bytes);
    b->buffers[at].p = p;
    b->buffers[at].size_bytes = size_bytes;
    if (p != NULL && (type == DT_F32 || type == DT_BF16)) {
        bench_fill_random(b, p, count, type);
    } else if (p != NULL) {
        b->k->fill(b->s, &(struct dt_fill_args){p, count, 0, type});
    }
    return p;
}

int32_t *bench_ids(struct bench *b, int at, int64_t count, int64_t limit)
{
    bool made = b->buffers[at].p != NULL;
    int32_t *p = bench_buffer(b, at, count, DT_I32);
    for (int64_t i = 0; i < BLOCK && !made; i++) {
        b->numbers[i] = (int32_t)((double)b->random[i] * (double)limit);
    }
    for (int64_t i = 0; i < count && p != NULL && !made; i += BLOCK) {
        dt_stream_copy(b->s, p + i, b->numbers, (size_t)block_at(i, count) * sizeof *p);
    }
    return p;
}

void bench_clear(struct bench *b)
{
    b->by = NULL;
    for (int i = 0; i < BENCH_BUFFERS; i++) {
        dt_device_free(b->d, DT_MEMORY_DEVICE, b->buffers[i].p, b->buffers[i].size_bytes);
        b->buffers[i].p = NULL;
        b->buffers[i].size_bytes = 0;
    }
}
