/* Shared by the attention kernels: the shape of a call, and how a call is cut into launches.
 * Letters: B batch, T positions, H heads, KV key heads, D head size; rows of qkv are (H + 2 KV) D
 * long. */
#ifndef DT_KERNELS_CUDA_ATTENTION_CUH
#define DT_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/attention.h"
#include "kernels/cuda/vector.cuh"

#include <atomic>
#include <math.h>

namespace
{

struct shape {
    int64_t positions, row; /* row: number of elements of a row of qkv */
    int heads, kv_heads, head_size;
    float scale;
    bool causal;
};

/* args: dt_attention_args or those of its backward */
template <typename A> struct shape shape_of(const A *a)
{
    struct shape s;
    s.positions = a->positions;
    s.heads = (int)a->heads;
    s.kv_heads = (int)(a->kv_heads != 0 ? a->kv_heads : a->heads);
    s.head_size = (int)a->head_size;
    s.row = (s.heads + 2 * s.kv_heads) * a->head_size;
    s.scale = (float)(a->scale != 0.0 ? a->scale : 1.0 / sqrt((double)a->head_size));
    s.causal = a->causal;
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

/* Calls go(part) for parts of the batch, each of which fits one launch. */
template <typename F> void forward_parts(const struct dt_attention_args *a, const struct shape &s, F go)
{
    size_t size = dt_dtype_size(a->type);
    for (int64_t b = 0, n; b < a->batch; b += n) {
        struct dt_attention_args part = *a;
        part.batch = n = batch_part(a->batch - b, 0);
        part.qkv = (const char *)a->qkv + (size_t)(b * s.positions * s.row) * size;
        part.out = (char *)a->out + (size_t)(b * s.positions * s.heads * s.head_size) * size;
        part.lse = (float *)a->lse + b * s.heads * s.positions;
        go(&part);
    }
}

/* The same for backward: one float per sequence, head and position must fit a stream's work
 * memory. */
template <typename F> void backward_parts(const struct dt_attention_backward_args *a, const struct shape &s, F go)
{
    size_t size = dt_dtype_size(a->type);
    for (int64_t b = 0, n; b < a->batch; b += n) {
        struct dt_attention_backward_args part = *a;
        size_t qkv = (size_t)(b * s.positions * s.row) * size,
               out = (size_t)(b * s.positions * s.heads * s.head_size) * size;
        part.batch = n = batch_part(a->batch - b, (size_t)(s.positions * s.heads) * sizeof(float));
        part.qkv = (const char *)a->qkv + qkv;
        part.dqkv = (char *)a->dqkv + qkv;
        part.out = (const char *)a->out + out;
        part.dout = (const char *)a->dout + out;
        part.lse = (const float *)a->lse + b * s.heads * s.positions;
        go(&part);
    }
}

} // namespace

#endif
