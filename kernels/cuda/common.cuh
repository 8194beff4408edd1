/* One spelling of CUDA for nvcc and for the software GPU (tests/softgpu), which runs the same
 * files on a CPU. The only #ifdef between the two is in this file.
 *
 *   DT_LAUNCH((k<1>), grid, block, shared_bytes, stream, args...);
 *                                     the kernel in parentheses, so that template commas pass
 *   DT_SHARED(float, part, [8][64]);  shared memory of the block; scalars as [1]; aligned to 16
 *   DT_SHARED_DYNAMIC(dt_bf16, row);  dt_bf16 *row: the launch's shared_bytes; aligned to 16
 *   dt_mma_bf16, dt_ldmatrix_x4, dt_cp_async16, dt_cp_commit, dt_cp_wait, dt_store16, dt_exp2,
 *   dt_max
 *
 * Rules for kernels:
 * - No thread returns before the last barrier of its block.
 * - All lanes of a mask reach the same warp operation on the same line, and the block has these
 *   lanes.
 * - Shuffles do not order memory accesses; __syncwarp does.
 * - dt_cp_wait<0> comes before the end.
 * - Pointer arguments are device memory, pinned memory, or null.
 * - bf16 arithmetic goes through float.
 * - No printf, assert, malloc, constant symbols, cooperative groups or __activemask.
 * - More than 48 KiB of dynamic shared memory needs cudaFuncSetAttribute. */
#ifndef DT_KERNELS_CUDA_COMMON_CUH
#define DT_KERNELS_CUDA_COMMON_CUH

#ifdef DT_SOFTGPU
#include "tests/softgpu/shim.h"
#define DT_PLACE , SOFTGPU_PLACE /* the caller's line */
#else
#define DT_PLACE
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda.h"

typedef __nv_bfloat16 dt_bf16;
typedef __nv_bfloat162 dt_bf162;

template <typename T> static inline dim3 dt_dim3(T x)
{
    return dim3((unsigned)x);
}
static inline dim3 dt_dim3(dim3 x)
{
    return x;
}

/* Registers, before main, each kernel that a DT_LAUNCH names. Opening the device loads them all
 * (table.c). */
template <auto KERNEL> struct dt_known {
    static const bool yes;
};
template <auto KERNEL> const bool dt_known<KERNEL>::yes = dt_cuda_kernel_known((const void *)KERNEL);

#ifndef DT_SOFTGPU

#define DT_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                      \
    do {                                                                                                               \
        (void)dt_known<(kernel)>::yes;                                                                                 \
        (kernel)<<<dt_dim3(grid), dt_dim3(block), (size_t)(shared_bytes), stream>>>(__VA_ARGS__);                      \
    } while (0)
#define DT_SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define DT_SHARED_DYNAMIC(type, name)                                                                                  \
    extern __shared__ __align__(128) unsigned char dt_shared_dynamic[];                                                \
    type *name = reinterpret_cast<type *>(dt_shared_dynamic)

#else

#define DT_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                      \
    do {                                                                                                               \
        (void)dt_known<(kernel)>::yes;                                                                                 \
        softgpu_launch_kernel(#kernel, kernel, dt_dim3(grid), dt_dim3(block), (size_t)(shared_bytes), stream,          \
                              ##__VA_ARGS__);                                                                          \
    } while (0)
#define DT_SHARED(type, name, dims)                                                                                    \
    static const char name##_key = 0;                                                                                  \
    auto &name = *reinterpret_cast<type(*) dims>(softgpu_shared(&name##_key, sizeof(type dims)))
#define DT_SHARED_DYNAMIC(type, name) type *name = reinterpret_cast<type *>(softgpu_shared_dynamic(128))

#endif

/* c (16 x 8, fp32) += a (16 x 16, row) b (16 x 8, col), one warp. With lane = 4 g + t: a0..a3
 * hold rows g, g+8, g, g+8 at columns 2t, 2t+1 (a0, a1) and 2t+8, 2t+9 (a2, a3); b0, b1 rows 2t,
 * 2t+1 and 2t+8, 2t+9 of column g; c0, c1 row g, c2, c3 row g+8, columns 2t, 2t+1. */
static __device__ __forceinline__ void dt_mma_bf16(float *c, const uint32_t *a, const uint32_t *b DT_PLACE);

/* Loads four 8 x 8 matrices of 16-bit elements from shared memory. Lanes 8i..8i+7 give the rows of
 * matrix i (16 bytes, 16-byte aligned). r[i] of lane 4g+t gets its row g, elements 2t and 2t+1;
 * with TRANS elements [2t][g] and [2t+1][g]. */
template <bool TRANS> static __device__ __forceinline__ void dt_ldmatrix_x4(uint32_t *r, const void *row DT_PLACE);

/* Copies 16 bytes from global to shared memory, both 16-byte aligned, bypassing the registers. They
 * have arrived after the dt_cp_wait that covers their commit, and for other threads after a
 * barrier. With source_bytes (0 to 16), the rest becomes zero and is not read. */
static __device__ __forceinline__ void dt_cp_async16(void *shared, const void *global);
static __device__ __forceinline__ void dt_cp_async16_zero(void *shared, const void *global, int source_bytes);
static __device__ __forceinline__ void dt_cp_commit();
/* Waits until at most PENDING of this thread's committed groups are still loading. */
template <int PENDING> static __device__ __forceinline__ void dt_cp_wait();

/* Stores 16 bytes to global memory, 16-byte aligned, by one instruction. (In some loops the compiler
 * makes four of an assignment.) */
static __device__ __forceinline__ void dt_store16(void *global, uint4 x);

/* 2^x in one instruction, to 2 ulp. Results below 2^-126 are 0; 2^-infinity is 0. */
static __device__ __forceinline__ float dt_exp2(float x);

/* The greater of each of two bf16. Of a NaN and a number, the number. */
static __device__ __forceinline__ uint32_t dt_max(uint32_t a, uint32_t b);

#ifndef DT_SOFTGPU

static __device__ __forceinline__ void dt_mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

template <bool TRANS> static __device__ __forceinline__ void dt_ldmatrix_x4(uint32_t *r, const void *row)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(row);
    if (TRANS) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(address)
                     : "memory");
    }
}

static __device__ __forceinline__ void dt_cp_async16(void *shared, const void *global)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(__cvta_generic_to_global(global))
                 : "memory");
}

static __device__ __forceinline__ void dt_cp_async16_zero(void *shared, const void *global, int source_bytes)
{
    uint32_t address = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(__cvta_generic_to_global(global)),
                 "r"(source_bytes)
                 : "memory");
}

static __device__ __forceinline__ void dt_cp_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING> static __device__ __forceinline__ void dt_cp_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ void dt_store16(void *global, uint4 x)
{
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(global)), "r"(x.x), "r"(x.y),
                 "r"(x.z), "r"(x.w)
                 : "memory");
}

static __device__ __forceinline__ float dt_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t dt_max(uint32_t a, uint32_t b)
{
    uint32_t y;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}

#else

/* The host's versions. The last lane that arrives computes a warp operation, from the operands of
 * all lanes. */

struct softgpu_mma {
    uint32_t a[4], b[2];
    float c[4];
};

static inline float softgpu_bf16_half(uint32_t pair, int half)
{
    return softgpu_bits<float>(half != 0 ? pair & 0xffff0000u : pair << 16);
}

static void softgpu_mma_all(struct softgpu_group *g)
{
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const softgpu_mma *in = (const softgpu_mma *)g->in[lane];
        int row = lane >> 2, t = lane & 3;
        for (int half = 0; half < 2; half++) {
            a[row][2 * t + half] = softgpu_bf16_half(in->a[0], half);
            a[row + 8][2 * t + half] = softgpu_bf16_half(in->a[1], half);
            a[row][2 * t + 8 + half] = softgpu_bf16_half(in->a[2], half);
            a[row + 8][2 * t + 8 + half] = softgpu_bf16_half(in->a[3], half);
            b[2 * t + half][row] = softgpu_bf16_half(in->b[0], half);
            b[2 * t + 8 + half][row] = softgpu_bf16_half(in->b[1], half);
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const softgpu_mma *in = (const softgpu_mma *)g->in[lane];
        for (int i = 0; i < 4; i++) {
            int m = (lane >> 2) + (i >> 1) * 8, n = 2 * (lane & 3) + (i & 1);
            float sum = 0.0f;
            for (int k = 0; k < 16; k++) {
                sum += a[m][k] * b[k][n];
            }
            ((float *)g->out[lane])[i] = in->c[i] + sum;
        }
    }
}

static inline void dt_mma_bf16(float *c, const uint32_t *a, const uint32_t *b, const char *file, int line)
{
    softgpu_mma in = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}, {c[0], c[1], c[2], c[3]}};
    softgpu_collect(0xffffffffu, "dt_mma_bf16", file, line, &in, c, softgpu_mma_all);
}

template <bool TRANS> static void softgpu_ldmatrix_all(struct softgpu_group *g)
{
    for (int lane = 0; lane < 32; lane++) {
        uint32_t *out = (uint32_t *)g->out[lane];
        int row = lane >> 2, t = lane & 3;
        for (int i = 0; i < 4; i++) {
            uint16_t low, high;
            if (TRANS) {
                low = ((const uint16_t *)g->in[8 * i + 2 * t])[row];
                high = ((const uint16_t *)g->in[8 * i + 2 * t + 1])[row];
            } else {
                low = ((const uint16_t *)g->in[8 * i + row])[2 * t];
                high = ((const uint16_t *)g->in[8 * i + row])[2 * t + 1];
            }
            out[i] = low | (uint32_t)high << 16;
        }
    }
}

template <bool TRANS> static inline void dt_ldmatrix_x4(uint32_t *r, const void *row, const char *file, int line)
{
    softgpu_check_shared(row, 16, "dt_ldmatrix_x4");
    /* each lane reads its own row, so that a sanitizer blames the right one */
    uint4 own = *(const uint4 *)row;
    softgpu_collect(0xffffffffu, "dt_ldmatrix_x4", file, line, &own, r, softgpu_ldmatrix_all<TRANS>);
}

/* The copy is made by the wait. Until then the destination is NaN. */
static inline void dt_cp_async16_zero(void *shared, const void *global, int source_bytes)
{
    softgpu_check_shared(shared, 16, "dt_cp_async16");
    softgpu_copy_begin(shared, global, source_bytes);
    *(uint4 *)shared = make_uint4(~0u, ~0u, ~0u, ~0u);
}

static inline void dt_cp_async16(void *shared, const void *global)
{
    dt_cp_async16_zero(shared, global, 16);
}

static inline void dt_cp_commit()
{
    softgpu_copy_commit();
}

template <int PENDING> static inline void dt_cp_wait()
{
    struct softgpu_copy c;
    while (softgpu_copy_next(PENDING, &c)) {
        uint4 x = make_uint4(0, 0, 0, 0);
        if (c.source_bytes == 16) {
            x = *(const uint4 *)c.src;
        } else {
            for (int i = 0; i < c.source_bytes; i++) {
                ((unsigned char *)&x)[i] = ((const unsigned char *)c.src)[i];
            }
        }
        *(uint4 *)c.dst = x;
    }
}

static inline void dt_store16(void *global, uint4 x)
{
    *(uint4 *)global = x;
}

static inline float dt_exp2(float x)
{
    float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
}

static inline uint32_t dt_max(uint32_t a, uint32_t b)
{
    float low = fmaxf(softgpu_bf16_half(a, 0), softgpu_bf16_half(b, 0));
    float high = fmaxf(softgpu_bf16_half(a, 1), softgpu_bf16_half(b, 1));
    return softgpu_bits<uint32_t>(low) >> 16 | (softgpu_bits<uint32_t>(high) & 0xffff0000u);
}

#endif
#endif
