/* Shared by the attention kernels: the shape of a call, and how a call is cut into launches.
 * Letters: B batch, T positions, H heads, KV key heads, D head size. */
#ifndef DT_KERNELS_CUDA_ATTENTION_CUH
#define DT_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/attention.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/dropout.h"

#include <atomic>
#include <math.h>

namespace
{

struct shape {
    int64_t positions, capacity, q_row, kv_row, out_row; /* rows: elements between positions */
    int heads, kv_heads, head_size;
    float scale;
    bool causal;
    /* what attention_plain.cu alone reads */
    int64_t queries, window;
    float softcap, kept; /* kept: by what dropout multiplies */
    bool drops;
    uint32_t limit;
    uint64_t seed, site;
    const int64_t *samples;
    const int32_t *segments;
};

struct shape shape_of(const struct dt_attention_shape *args)
{
    const struct dt_attention_shape x = dt_attention_filled(args);
    struct shape s;
    s.positions = x.keys;
    s.capacity = x.key_capacity;
    s.q_row = x.q_stride;
    s.kv_row = x.kv_stride;
    s.out_row = x.out_stride;
    s.heads = (int)x.heads;
    s.kv_heads = (int)x.kv_heads;
    s.head_size = (int)x.head_size;
    s.scale = (float)x.scale;
    s.causal = x.causal;
    s.queries = x.queries;
    s.window = x.window;
    s.softcap = (float)x.softcap;
    s.kept = (float)(1.0 / (1.0 - x.dropout));
    s.drops = x.dropout > 0.0;
    s.limit = dt_dropout_limit(x.dropout);
    s.seed = x.seed;
    s.site = x.site;
    s.samples = x.samples;
    s.segments = x.segments;
    return s;
}

/* Asks the runtime to let the kernel have that much dynamic shared memory. On failure the runtime's
 * error stays for dt_cuda_end. One call per process is enough, since a process has one GPU. */
template <auto KERNEL> bool allow(size_t bytes)
{
    static std::atomic<size_t> allowed{48 << 10};
    if (bytes <= allowed.load(std::memory_order_relaxed)) {
        return true;
    }
    /* without it a smaller size could be set after a larger one; a mutex would need libstdc++ */
    static std::atomic_flag taken = ATOMIC_FLAG_INIT;
    while (taken.test_and_set(std::memory_order_acquire)) {
    }
    bool may = bytes <= allowed.load(std::memory_order_relaxed) ||
               cudaFuncSetAttribute((const void *)KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
                   cudaSuccess;
    if (may && bytes > allowed.load(std::memory_order_relaxed)) {
        allowed.store(bytes, std::memory_order_relaxed);
    }
    taken.clear(std::memory_order_release);
    return may;
}

/* Sequences per launch: limited by the grid, and for backward by the room for delta. */
int64_t batch_part(int64_t batch, size_t bytes_each)
{
    int64_t most = bytes_each > 0 ? (int64_t)(DT_CUDA_WORK_BYTES / bytes_each) : 65535;
    most = most < 65535 ? most : 65535;
    return batch < most ? batch : most;
}

template <typename T> T *moved(T *p, int64_t elements, size_t size)
{
    return p != nullptr ? (T *)((uintptr_t)p + (size_t)elements * size) : nullptr;
}

/* The arguments of both passes for `n` batch entries from entry `b` on. */
template <typename A> A part_of(const A *a, int64_t b, int64_t n)
{
    const struct dt_attention_shape s = dt_attention_filled(&a->shape);
    size_t size = dt_dtype_size(s.type);
    int64_t q = b * s.queries * s.q_stride, kv = b * s.key_capacity * s.kv_stride;
    A part = *a;
    part.shape.batch = n;
    part.shape.segments = moved(s.segments, b * s.keys, sizeof *s.segments);
    part.shape.samples = moved(s.samples, b, sizeof *s.samples);
    part.q = moved(a->q, q, size);
    part.k = moved(a->k, kv, size);
    part.v = moved(a->v, kv, size);
    part.out = moved(a->out, b * s.queries * s.out_stride, size);
    part.lse = moved(a->lse, b * s.heads * s.queries, sizeof(float));
    return part;
}

/* Calls go(part) for parts of the batch, each of which fits one launch. */
template <typename F> void forward_parts(const struct dt_attention_args *a, F go)
{
    for (int64_t b = 0, n; b < a->shape.batch; b += n) {
        n = batch_part(a->shape.batch - b, 0);
        struct dt_attention_args part = part_of(a, b, n);
        go(&part);
    }
}

/* The same for backward: one float per sequence, head and position must fit a stream's work
 * memory. */
template <typename F> void backward_parts(const struct dt_attention_backward_args *a, F go)
{
    const struct dt_attention_shape s = dt_attention_filled(&a->shape);
    size_t size = dt_dtype_size(s.type);
    for (int64_t b = 0, n; b < s.batch; b += n) {
        n = batch_part(s.batch - b, (size_t)(s.queries * s.heads) * sizeof(float));
        struct dt_attention_backward_args part = part_of(a, b, n);
        int64_t kv = b * s.key_capacity * s.kv_stride;
        part.dq = moved(a->dq, b * s.queries * s.q_stride, size);
        part.dk = moved(a->dk, kv, size);
        part.dv = moved(a->dv, kv, size);
        part.dout = moved(a->dout, b * s.queries * s.out_stride, size);
        go(&part);
    }
}

} // namespace

#endif
