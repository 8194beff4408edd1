/* Replaces nvcc's language for .cu files: thread indices, barriers, warp operations, shared memory,
 * launches, intrinsics. The toolkit's own headers are used as host C++; this file adds what they
 * leave to the compiler. Only kernels/cuda/common.cuh includes it. Each operation remembers the
 * line of its caller, so that threads that meet at different lines are reported. */
#ifndef DT_TESTS_SOFTGPU_SHIM_H
#define DT_TESTS_SOFTGPU_SHIM_H

#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "tests/softgpu/executor.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __launch_bounds__
#define __launch_bounds__(...)
/* These words would compile here, but with another meaning. */
#undef __shared__
#define __shared__ use_DT_SHARED
#undef __constant__
#define __constant__ no_constant_symbols_in_kernels
#undef __managed__
#define __managed__ no_managed_symbols_in_kernels

#define threadIdx softgpu_thread_index
#define blockIdx softgpu_block_index
#define blockDim softgpu_block_size
#define gridDim softgpu_grid_size
#define warpSize 32

#define SOFTGPU_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

/* ---- barriers ---- */

static inline void __syncthreads(SOFTGPU_PLACE)
{
    softgpu_barrier(file, line, 0);
}
static inline int __syncthreads_or(int x, SOFTGPU_PLACE)
{
    return softgpu_barrier(file, line, x) > 0;
}
static inline int __syncthreads_count(int x, SOFTGPU_PLACE)
{
    return softgpu_barrier(file, line, x);
}
static inline void __threadfence()
{
    softgpu_fence();
}
static inline void __threadfence_block()
{
    softgpu_fence();
}
static inline void __threadfence_system()
{
    softgpu_fence();
}
[[noreturn]] static inline void __trap(SOFTGPU_PLACE)
{
    softgpu_die("__trap() at %s:%d", file, line);
}

/* ---- warp operations: the last lane that arrives computes for all ---- */

static inline void __syncwarp(unsigned mask = 0xffffffffu, SOFTGPU_PLACE)
{
    softgpu_collect(mask, "__syncwarp", file, line, nullptr, nullptr, nullptr);
}

template <typename T> struct softgpu_shuffle {
    T value;
    int source;
};
template <typename T> static void softgpu_shuffle_all(struct softgpu_group *g)
{
    static_assert(std::is_trivially_copyable<T>::value && sizeof(T) <= 16,
                  "a shuffle moves plain values of up to 16 bytes");
    for (int lane = 0; lane < 32; lane++) {
        if (!(g->mask >> lane & 1)) {
            continue;
        }
        int source = ((const softgpu_shuffle<T> *)g->in[lane])->source;
        if (!(g->mask >> source & 1)) {
            softgpu_die("%s at %s:%d: lane %d reads lane %d, which is not in mask %#x", g->operation, g->file, g->line,
                        lane, source, g->mask);
        }
        *(T *)g->out[lane] = ((const softgpu_shuffle<T> *)g->in[source])->value;
    }
}
template <typename T>
static inline T softgpu_shuffle_from(unsigned mask, T value, int source, const char *operation, const char *file,
                                     int line)
{
    softgpu_shuffle<T> in = {value, source};
    T out;
    softgpu_collect(mask, operation, file, line, &in, &out, softgpu_shuffle_all<T>);
    return out;
}
static inline int softgpu_lane()
{
    return softgpu_linear_index() & 31;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32, SOFTGPU_PLACE)
{
    int base = softgpu_lane() & ~(width - 1);
    return softgpu_shuffle_from(mask, value, base + (source & (width - 1)), "__shfl_sync", file, line);
}
template <typename T>
static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, SOFTGPU_PLACE)
{
    int lane = softgpu_lane(), base = lane & ~(width - 1);
    int source = lane - (int)delta;
    return softgpu_shuffle_from(mask, value, source < base ? lane : source, "__shfl_up_sync", file, line);
}
template <typename T>
static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, SOFTGPU_PLACE)
{
    int lane = softgpu_lane(), end = (lane & ~(width - 1)) + width;
    int source = lane + (int)delta;
    return softgpu_shuffle_from(mask, value, source >= end ? lane : source, "__shfl_down_sync", file, line);
}
template <typename T>
static inline T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32, SOFTGPU_PLACE)
{
    int lane = softgpu_lane(), end = (lane & ~(width - 1)) + width;
    int source = lane ^ lane_mask;
    return softgpu_shuffle_from(mask, value, source >= end ? lane : source, "__shfl_xor_sync", file, line);
}

/* Votes and integer reductions: each lane gets fold(values of the lanes in the mask). */
template <typename T, T (*FOLD)(T, T)> static void softgpu_fold_all(struct softgpu_group *g)
{
    T sum = T();
    bool first = true;
    for (int lane = 0; lane < 32; lane++) {
        if (g->mask >> lane & 1) {
            T x = *(const T *)g->in[lane];
            sum = first ? x : FOLD(sum, x);
            first = false;
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        if (g->mask >> lane & 1) {
            *(T *)g->out[lane] = sum;
        }
    }
}
template <typename T, T (*FOLD)(T, T)>
static inline T softgpu_fold(unsigned mask, T x, const char *operation, const char *file, int line)
{
    T out;
    softgpu_collect(mask, operation, file, line, &x, &out, softgpu_fold_all<T, FOLD>);
    return out;
}
template <typename T> static inline T softgpu_add(T a, T b)
{
    return a + b;
}
template <typename T> static inline T softgpu_min(T a, T b)
{
    return b < a ? b : a;
}
template <typename T> static inline T softgpu_max(T a, T b)
{
    return a < b ? b : a;
}
template <typename T> static inline T softgpu_or(T a, T b)
{
    return a | b;
}
template <typename T> static inline T softgpu_and(T a, T b)
{
    return a & b;
}
static inline unsigned __ballot_sync(unsigned mask, int x, SOFTGPU_PLACE)
{
    return softgpu_fold<unsigned, softgpu_or<unsigned>>(mask, x ? 1u << softgpu_lane() : 0u, "__ballot_sync", file,
                                                        line);
}
static inline int __any_sync(unsigned mask, int x, SOFTGPU_PLACE)
{
    return (int)softgpu_fold<unsigned, softgpu_or<unsigned>>(mask, x != 0, "__any_sync", file, line);
}
static inline int __all_sync(unsigned mask, int x, SOFTGPU_PLACE)
{
    return (int)softgpu_fold<unsigned, softgpu_and<unsigned>>(mask, x != 0, "__all_sync", file, line);
}
static inline int __reduce_add_sync(unsigned mask, int x, SOFTGPU_PLACE)
{
    return (int)softgpu_fold<unsigned, softgpu_add<unsigned>>(mask, (unsigned)x, "__reduce_add_sync", file, line);
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned x, SOFTGPU_PLACE)
{
    return softgpu_fold<unsigned, softgpu_add<unsigned>>(mask, x, "__reduce_add_sync", file, line);
}
template <typename T> static inline T __reduce_min_sync(unsigned mask, T x, SOFTGPU_PLACE)
{
    static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value,
                  "__reduce_min_sync: int or unsigned");
    return softgpu_fold<T, softgpu_min<T>>(mask, x, "__reduce_min_sync", file, line);
}
template <typename T> static inline T __reduce_max_sync(unsigned mask, T x, SOFTGPU_PLACE)
{
    static_assert(std::is_same<T, int>::value || std::is_same<T, unsigned>::value,
                  "__reduce_max_sync: int or unsigned");
    return softgpu_fold<T, softgpu_max<T>>(mask, x, "__reduce_max_sync", file, line);
}
static inline unsigned __reduce_or_sync(unsigned mask, unsigned x, SOFTGPU_PLACE)
{
    return softgpu_fold<unsigned, softgpu_or<unsigned>>(mask, x, "__reduce_or_sync", file, line);
}

/* ---- launches ---- */

template <typename T> static inline void softgpu_check_argument(const char *kernel, int index, const T &x)
{
    if constexpr (std::is_pointer<T>::value) {
        softgpu_check_pointer(kernel, index, (const void *)x);
    }
}
template <typename... P> struct softgpu_call {
    void (*kernel)(P...);
    std::tuple<P...> arguments;

    static void run(const void *call)
    {
        const softgpu_call *c = (const softgpu_call *)call;
        std::apply(c->kernel, c->arguments);
    }
};
template <typename... P, typename... A>
static void softgpu_launch_kernel(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes,
                                  cudaStream_t stream, A &&...arguments)
{
    static_assert(sizeof...(P) == sizeof...(A), "DT_LAUNCH: the kernel takes another number of arguments");
    static_assert((std::is_trivially_copyable<P>::value && ...), "DT_LAUNCH: arguments are plain values");
    softgpu_call<P...> c = {kernel, std::tuple<P...>(static_cast<P>(arguments)...)};
    static_assert(sizeof(std::tuple<P...>) <= 4096, "DT_LAUNCH: more than 4 KiB of arguments");
    int index = 0;
    std::apply([&](const auto &...x) { (softgpu_check_argument(name, index++, x), ...); }, c.arguments);
    softgpu_launch(name, (const void *)kernel, softgpu_call<P...>::run, &c, sizeof c, grid, block, shared_bytes,
                   stream);
}

/* ---- memory ---- */

template <typename T> static inline T __ldg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcs(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldca(const T *p)
{
    return *p;
}
template <typename T> static inline T __ldcv(const T *p)
{
    return *p;
}
template <typename T> static inline void __stcs(T *p, T x)
{
    *p = x;
}
template <typename T> static inline void __stcg(T *p, T x)
{
    *p = x;
}
template <typename T> static inline void __stwt(T *p, T x)
{
    *p = x;
}

/* Atomics must be real, because streams run on threads of their own. */
template <typename T> static inline T softgpu_atomic(T *p, T x, T (*change)(T, T))
{
    T old, next;
    __atomic_load(p, &old, __ATOMIC_RELAXED);
    do {
        next = change(old, x);
    } while (!__atomic_compare_exchange(p, &old, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return old;
}
#define SOFTGPU_ATOMIC(name, type, change)                                                                             \
    static inline type name(type *p, type x)                                                                           \
    {                                                                                                                  \
        return softgpu_atomic<type>(p, x, change<type>);                                                               \
    }
template <typename T> static inline T softgpu_sub(T a, T b)
{
    return a - b;
}
template <typename T> static inline T softgpu_take(T, T b)
{
    return b;
}
SOFTGPU_ATOMIC(atomicAdd, int, softgpu_add)
SOFTGPU_ATOMIC(atomicAdd, unsigned, softgpu_add)
SOFTGPU_ATOMIC(atomicAdd, unsigned long long, softgpu_add)
SOFTGPU_ATOMIC(atomicAdd, float, softgpu_add)
SOFTGPU_ATOMIC(atomicAdd, double, softgpu_add)
SOFTGPU_ATOMIC(atomicSub, int, softgpu_sub)
SOFTGPU_ATOMIC(atomicSub, unsigned, softgpu_sub)
SOFTGPU_ATOMIC(atomicMax, int, softgpu_max)
SOFTGPU_ATOMIC(atomicMax, unsigned, softgpu_max)
SOFTGPU_ATOMIC(atomicMax, unsigned long long, softgpu_max)
SOFTGPU_ATOMIC(atomicMin, int, softgpu_min)
SOFTGPU_ATOMIC(atomicMin, unsigned, softgpu_min)
SOFTGPU_ATOMIC(atomicMin, unsigned long long, softgpu_min)
SOFTGPU_ATOMIC(atomicOr, int, softgpu_or)
SOFTGPU_ATOMIC(atomicOr, unsigned, softgpu_or)
SOFTGPU_ATOMIC(atomicAnd, int, softgpu_and)
SOFTGPU_ATOMIC(atomicAnd, unsigned, softgpu_and)
SOFTGPU_ATOMIC(atomicExch, int, softgpu_take)
SOFTGPU_ATOMIC(atomicExch, unsigned, softgpu_take)
SOFTGPU_ATOMIC(atomicExch, unsigned long long, softgpu_take)
template <typename T> static inline T atomicCAS(T *p, T compare, T x)
{
    __atomic_compare_exchange(p, &compare, &x, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}

#include "tests/softgpu/intrinsics.h"

#endif
