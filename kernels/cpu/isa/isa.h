/* Shared by the files that are compiled once per instruction set: the rows of their table, and
 * products of tiles. */
#ifndef DT_KERNELS_CPU_ISA_ISA_H
#define DT_KERNELS_CPU_ISA_ISA_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa/vec.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

extern const struct dt_cpu_half ISA(dt_cpu_half);

/* Runs in the calling thread. An element's bits do not depend on m and n. */
void ISA_BASE(dt_gemm)(const struct dt_gemm *g);
/* gemm_few.c: the same for at most DT_FEW_ROWS rows, with blocks of `step` of k. */
void ISA_BASE(dt_gemm_few)(const struct dt_gemm *g, int64_t step);

/* For products that share b: dt_gemm_pack packs it once, all k rows as one block, into `to`, which
 * holds DT_PACKED(n) * k floats. A product may use fewer columns (from the first on) and fewer rows
 * than were packed; stride is the k of the packing. */
#define DT_PACKED(n) (((n) + 47) / 48 * 48)
/* Columns of a panel. Panel p begins at p * DT_PANEL * stride, and its row l at l * DT_PANEL from
 * there, so that a product may also begin at a later panel or at a later row. */
#define DT_PANEL ((VEC > 4 ? 3 : 2) * VEC)
void ISA_BASE(dt_gemm_pack)(float *to, const float *b, int64_t row, int64_t col, int64_t n, int64_t k);
void ISA_BASE(dt_gemm_packed)(const struct dt_gemm *g, const float *packed, int64_t stride);

/* The rows of the kernels that exist once per instruction set. */
#define DECLARE_any(name)
#define DECLARE_flows(name)                                                                                            \
    void ISA_BASE(dt_##name)(struct dt_stream * s, const struct dt_##name##_args *a);                                  \
    void ISA_F16(dt_##name)(struct dt_stream * s, const struct dt_##name##_args *a);
#define DECLARE_masters(name) DECLARE_flows(name)
#define KERNEL(name, types) DECLARE_##types(name)
#include "kernels/rows.def"
#define CONVOLUTION(name)                                                                                              \
    bool ISA_BASE(dt_##name)(struct dt_stream * s, const struct dt_##name##_args *a);                                  \
    bool ISA_F16(dt_##name)(struct dt_stream * s, const struct dt_##name##_args *a);
#include "kernels/convolutions.def"

/* Defines the row of a kernel. It enqueues run_<kernel>, which refuses types that <kernel>_now does
 * not take. */
#define DT_ISA_KERNEL(kernel) DT_ISA_KERNEL_OF(kernel, a->type)
/* In the copy for F32 and BF16, calls of F16 go to the other copy. */
#ifdef DT_FOR_F16
#define DT_ISA_TAKES(type) ((type) == DT_F16)
#define DT_ISA_ELSEWHERE(kernel, type)
#else
#define DT_ISA_TAKES(type) ((type) == DT_F32 || (type) == DT_BF16)
#define DT_ISA_ELSEWHERE(kernel, type)                                                                                 \
    if ((type) == DT_F16) {                                                                                            \
        ISA_F16(dt_##kernel)(s, a);                                                                                    \
        return;                                                                                                        \
    }
#endif
#define DT_ISA_KERNEL_OF(kernel, type_of_args)                                                                         \
    static int run_##kernel(struct dt_stream *s, void *args, struct dt_error *err)                                     \
    {                                                                                                                  \
        struct dt_##kernel##_args *a = args;                                                                           \
        if (!DT_ISA_TAKES(type_of_args)) {                                                                             \
            return dt_fail(err, DT_INTERNAL, #kernel ": type %s is not made", dt_dtype_name(type_of_args));            \
        }                                                                                                              \
        return kernel##_now(dt_cpu_pool(s), a, err);                                                                   \
    }                                                                                                                  \
    void ISA(dt_##kernel)(struct dt_stream * s, const struct dt_##kernel##_args *a)                                    \
    {                                                                                                                  \
        DT_ISA_ELSEWHERE(kernel, type_of_args)                                                                         \
        dt_stream_call(s, run_##kernel, a, sizeof *a);                                                                 \
    }

INLINE int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

INLINE int64_t parts_of(int64_t count, int64_t part)
{
    return (count + part - 1) / part;
}

#endif
