/* Used by all CUDA kernels: 16-byte accesses of any element type, conversions, sums over a warp and
 * a block, and the loop over elements. Arithmetic is fp32 (fp64 for fp64) without contraction.
 * Kernels call fmaf where they want it, like those of the CPU. */
#ifndef DT_KERNELS_CUDA_VECTOR_CUH
#define DT_KERNELS_CUDA_VECTOR_CUH

#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#define DT_FN static __device__ __forceinline__
#define DT_METHOD __device__ __forceinline__

typedef dt_bf16 bf16;
typedef __half f16;

/* ---- one element ---- */

/* The type of sums of T. */
template <typename T> struct wide_of {
    typedef float type;
};
template <> struct wide_of<double> {
    typedef double type;
};
template <> struct wide_of<int64_t> {
    typedef int64_t type;
};
template <> struct wide_of<int32_t> {
    typedef int32_t type;
};

template <typename T> DT_FN typename wide_of<T>::type widen(T x)
{
    return x;
}
template <> DT_METHOD float widen<bf16>(bf16 x)
{
    return __bfloat162float(x);
}
template <> DT_METHOD float widen<f16>(f16 x)
{
    return __half2float(x);
}

template <typename T> DT_FN T narrow(typename wide_of<T>::type x)
{
    return x;
}
template <> DT_METHOD bf16 narrow<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> DT_METHOD f16 narrow<f16>(float x)
{
    return __float2half_rn(x);
}

/* x, rounded to the type */
template <typename T> DT_FN float rounded(float x)
{
    return widen<T>(narrow<T>(x));
}

/* ---- several ---- */

template <int BYTES> struct chunk_of;
template <> struct chunk_of<16> {
    typedef uint4 type;
};
template <> struct chunk_of<8> {
    typedef uint2 type;
};
template <> struct chunk_of<4> {
    typedef uint32_t type;
};
template <> struct chunk_of<2> {
    typedef uint16_t type;
};
template <> struct chunk_of<1> {
    typedef uint8_t type;
};

/* W elements between memory and registers. BF16 is converted in pairs: by a shift and a mask in one
 * direction, by one instruction in the other. */
template <typename T, int W> DT_FN void unpack(typename wide_of<T>::type (&x)[W], const void *from)
{
    T t[W];
    memcpy(t, from, sizeof t);
#pragma unroll
    for (int i = 0; i < W; i++) {
        x[i] = widen<T>(t[i]);
    }
}
template <typename T, int W> DT_FN void pack_up(void *to, const typename wide_of<T>::type (&x)[W])
{
    T t[W];
#pragma unroll
    for (int i = 0; i < W; i++) {
        t[i] = narrow<T>(x[i]);
    }
    memcpy(to, t, sizeof t);
}
template <int W> struct pairs {
    static DT_METHOD void get(float (&x)[W], const void *from)
    {
        uint32_t t[W / 2];
        memcpy(t, from, sizeof t);
#pragma unroll
        for (int i = 0; i < W / 2; i++) {
            x[2 * i] = __uint_as_float(t[i] << 16);
            x[2 * i + 1] = __uint_as_float(t[i] & 0xffff0000U);
        }
    }
    static DT_METHOD void set(void *to, const float (&x)[W])
    {
        dt_bf162 t[W / 2];
#pragma unroll
        for (int i = 0; i < W / 2; i++) {
            t[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
        }
        memcpy(to, t, sizeof t);
    }
};
template <> DT_METHOD void unpack<bf16, 8>(float (&x)[8], const void *from)
{
    pairs<8>::get(x, from);
}
template <> DT_METHOD void unpack<bf16, 4>(float (&x)[4], const void *from)
{
    pairs<4>::get(x, from);
}
template <> DT_METHOD void pack_up<bf16, 8>(void *to, const float (&x)[8])
{
    pairs<8>::set(to, x);
}
template <> DT_METHOD void pack_up<bf16, 4>(void *to, const float (&x)[4])
{
    pairs<4>::set(to, x);
}

/* W elements in their memory type, read and written in pieces of up to 16 bytes. The address is a
 * multiple of a piece. */
template <typename T, int W> struct pack {
    typedef typename wide_of<T>::type wide;
    enum { BYTES = (int)sizeof(T) * W, PIECE = BYTES < 16 ? BYTES : 16, COUNT = BYTES / PIECE };
    typedef typename chunk_of<PIECE>::type chunk;
    chunk c[COUNT];

    DT_METHOD void load(const T *p)
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            c[i] = ((const chunk *)p)[i];
        }
    }
    DT_METHOD void store(T *p) const
    {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            ((chunk *)p)[i] = c[i];
        }
    }
    /* To global memory, in pieces of 16 bytes where the compiler would make smaller ones. */
    DT_METHOD void store_global(T *p) const
    {
        if constexpr (PIECE == 16) {
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                dt_store16((chunk *)p + i, c[i]);
            }
        } else {
            store(p);
        }
    }
    DT_METHOD void clear()
    {
        memset(c, 0, sizeof c);
    }
    DT_METHOD void get(wide (&x)[W]) const
    {
        unpack<T, W>(x, c);
    }
    DT_METHOD void set(const wide (&x)[W])
    {
        pack_up<T, W>(c, x);
    }
};

/* True if pieces of 16 bytes can be read from p, and from each row after it. */
static inline bool aligned16(const void *p)
{
    return ((uintptr_t)p & 15) == 0;
}

/* The greatest of the values of many packs, or -infinity. NaNs are left out. */
template <typename T, int W> struct greatest {
    float top;
    DT_METHOD void clear()
    {
        top = -INFINITY;
    }
    DT_METHOD void add(const pack<T, W> &p)
    {
        float x[W];
        p.get(x);
#pragma unroll
        for (int k = 0; k < W; k++) {
            top = fmaxf(top, x[k]);
        }
    }
    DT_METHOD float value() const
    {
        return top;
    }
};
/* bf16 in pairs, as they lie in memory */
template <> struct greatest<bf16, 8> {
    uint32_t top;
    DT_METHOD void clear()
    {
        top = 0xff80ff80U; /* -infinity, twice */
    }
    DT_METHOD void add(const pack<bf16, 8> &p)
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            top = dt_max(top, ((const uint32_t *)p.c)[k]);
        }
    }
    DT_METHOD float value() const
    {
        return fmaxf(__uint_as_float(top << 16), __uint_as_float(top & 0xffff0000U));
    }
};

/* ---- over a warp, over a block ---- */

#define DT_WARP 0xffffffffU

/* Sums over groups of LANES lanes, in all of the warp's groups at once. */
template <int LANES, typename T> DT_FN T lanes_sum(T x)
{
#pragma unroll
    for (int o = LANES / 2; o > 0; o >>= 1) {
        x += __shfl_xor_sync(DT_WARP, x, o);
    }
    return x;
}

template <typename T> DT_FN T warp_sum(T x)
{
    return lanes_sum<32>(x);
}

DT_FN float warp_max(float x)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        x = fmaxf(x, __shfl_xor_sync(DT_WARP, x, o));
    }
    return x;
}

DT_FN int warp_min(int x)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
        int y = __shfl_xor_sync(DT_WARP, x, o);
        x = y < x ? y : x;
    }
    return x;
}

/* Returns the sum over LANES threads, the same bits in each. `part` is shared memory for LANES / 32
 * floats, which no thread may still be reading. Callers alternate between two of them, so one
 * barrier is enough. Groups of 32 lanes or fewer need none. */
template <int LANES> DT_FN float group_sum(float x, float *part)
{
    x = lanes_sum<(LANES < 32 ? LANES : 32)>(x);
    if (LANES <= 32) {
        return x;
    }
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float sum = part[0];
#pragma unroll
    for (int i = 1; i < LANES / 32; i++) {
        sum += part[i];
    }
    return sum;
}

template <int LANES> DT_FN float group_max(float x, float *part)
{
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = x;
    }
    __syncthreads();
    float top = part[0];
#pragma unroll
    for (int i = 1; i < LANES / 32; i++) {
        top = fmaxf(top, part[i]);
    }
    return top;
}

template <int LANES> DT_FN int group_min(int x, int *part)
{
    x = warp_min(x);
    if (threadIdx.x % 32 == 0) {
        part[threadIdx.x / 32] = x;
    }
    __syncthreads();
    int least = part[0];
#pragma unroll
    for (int i = 1; i < LANES / 32; i++) {
        least = part[i] < least ? part[i] : least;
    }
    return least;
}

/* ---- functions ---- */

static const float LOG2_E = 1.4426950408889634F;

/* e^x: to 2 ulp for fp32; for bf16 as exact as bf16 needs, in two instructions */
template <typename T> DT_FN float exponential(float x)
{
    return expf(x);
}
template <> DT_METHOD float exponential<bf16>(float x)
{
    return dt_exp2(x * LOG2_E);
}

/* e^(x - origin) for many x and one origin, in two instructions for bf16 as well. exact(): the origin
 * that was used, which a rounded product makes a little different from the one that was given. */
template <typename T> struct exponentials {
    float origin;
    DT_METHOD void from(float x)
    {
        origin = x;
    }
    DT_METHOD float of(float x) const
    {
        return expf(x - origin);
    }
    DT_METHOD double exact() const
    {
        return (double)origin;
    }
};
template <> struct exponentials<bf16> {
    float shift;
    DT_METHOD void from(float x)
    {
        shift = x * LOG2_E;
    }
    DT_METHOD float of(float x) const
    {
        return dt_exp2(fmaf(x, LOG2_E, -shift));
    }
    DT_METHOD double exact() const
    {
        return (double)shift / (double)LOG2_E;
    }
};

/* ---- the loop over elements ---- */

/* F is what happens to W elements from i on. It has two steps, so that all loads of a thread are
 * issued before the first is used:
 *   begin()               once per thread; false: nothing to do
 *   load<W>(held, i)      held: F::template held<W>
 *   finish<W>(held, i)
 * `vectors` times W elements go by vectors, and the rest up to count one by one. */
template <typename F, int W, int UNROLL>
__global__ void __launch_bounds__(256) over_elements(F f, int64_t count, int64_t vectors)
{
    if (!f.begin()) {
        return;
    }
    const int64_t tile = 256 * UNROLL;
    for (int64_t t = blockIdx.x * tile + threadIdx.x; t < vectors; t += gridDim.x * tile) {
        typename F::template held<W> h[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (t + u * 256 < vectors) {
                f.template load<W>(h[u], (t + u * 256) * W);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (t + u * 256 < vectors) {
                f.template finish<W>(h[u], (t + u * 256) * W);
            }
        }
    }
    for (int64_t i = vectors * W + blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256) {
        typename F::template held<1> h;
        f.template load<1>(h, i);
        f.template finish<1>(h, i);
    }
}

static inline int64_t parts_of(int64_t count, int64_t part)
{
    return (count + part - 1) / part;
}

/* Number of blocks of a kernel that walks over its work: one per piece of work, at most `per_sm`
 * for each multiprocessor. If blocks do not depend on each other, per_sm is several times what fits
 * at once, and the device balances the load. */
static inline unsigned walkers(const struct dt_cuda_launch *l, int64_t work, int per_sm)
{
    int64_t most = (int64_t)l->sm_count * per_sm;
    return (unsigned)(work < 1 ? 1 : work < most ? work : most);
}

template <int W, int UNROLL, typename F>
static void launch_elements(const struct dt_cuda_launch *l, const F &f, int64_t count, bool aligned)
{
    int64_t vectors = aligned ? count / W : 0;
    if (count > 0) {
        unsigned grid = walkers(l, parts_of(aligned ? parts_of(count, W) : count, 256 * UNROLL), 64);
        DT_LAUNCH((over_elements<F, W, UNROLL>), grid, 256, 0, (cudaStream_t)l->native, f, count, vectors);
    }
}

/* ---- types of calls ---- */

template <typename T> struct of_type {
    typedef T type;
};

/* Calls f(of_type<T>()), T as the type says. False for a type that kernels do not take. */
template <typename F> static bool for_type(enum dt_dtype type, const F &f)
{
    switch (type) {
    case DT_F32:
        f(of_type<float>());
        return true;
    case DT_BF16:
        f(of_type<bf16>());
        return true;
    case DT_F16:
        f(of_type<f16>());
        return true;
    default:
        return false;
    }
}

/* True if calls of this type may keep their sums, which are gradients of weights, in `sums`. Calls of type
 * F32 do not read `sums`. */
static inline bool sums_fit(enum dt_dtype type, enum dt_dtype sums)
{
    return type == DT_F32 || sums == DT_F32 || sums == type;
}

/* The row of a kernel: calls name<T>(launch, a), T as the type says. empty: nothing is to be done, or the
 * stream has failed. */
#define DT_CUDA_ROW(name, empty)                                                                                       \
    extern "C" void dt_cuda_##name(struct dt_stream *s, const struct dt_##name##_args *a)                              \
    {                                                                                                                  \
        struct dt_cuda_launch l;                                                                                       \
        if ((empty) || !dt_cuda_begin(s, &l)) {                                                                        \
            return;                                                                                                    \
        }                                                                                                              \
        if (!for_type(a->type, [&](auto t) { name<typename decltype(t)::type>(&l, a); })) {                            \
            dt_stream_fail(s, DT_INTERNAL, #name ": type %s is not made", dt_dtype_name(a->type));                     \
        }                                                                                                              \
        dt_cuda_end(s, #name);                                                                                         \
    }

/* The same of a kernel whose call keeps sums in a type of its own: calls name<T>(launch, a, type of the sums). */
#define DT_CUDA_SUMS_ROW(name, sums, empty)                                                                            \
    extern "C" void dt_cuda_##name(struct dt_stream *s, const struct dt_##name##_args *a)                              \
    {                                                                                                                  \
        struct dt_cuda_launch l;                                                                                       \
        if ((empty) || !dt_cuda_begin(s, &l)) {                                                                        \
            return;                                                                                                    \
        }                                                                                                              \
        enum dt_dtype kept = a->type == DT_F32 ? DT_F32 : (sums);                                                      \
        if (!sums_fit(a->type, kept) ||                                                                                \
            !for_type(a->type, [&](auto t) { name<typename decltype(t)::type>(&l, a, kept); })) {                      \
            dt_stream_fail(s, DT_INTERNAL, #name ": types %s, %s are not made", dt_dtype_name(a->type),                \
                           dt_dtype_name(kept));                                                                       \
        }                                                                                                              \
        dt_cuda_end(s, #name);                                                                                         \
    }

#endif
