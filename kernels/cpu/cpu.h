/* What the files of the CPU backend share: device ops, the pool behind a stream, per-thread work
 * memory. */
#ifndef DT_KERNELS_CPU_CPU_H
#define DT_KERNELS_CPU_CPU_H

#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

extern const struct dt_device_ops dt_cpu_device_ops;
extern const struct dt_device_sharing dt_cpu_sharing; /* share.c */

struct dt_pool;
/* The pool of the stream's device; null when kernels run in one thread. */
struct dt_pool *dt_cpu_pool(struct dt_stream *s);

/* Memory of the calling thread for one kernel call, 64-byte aligned, not cleared; grows and is
 * kept. Slots are independent. */
enum dt_work { DT_WORK_KERNEL, DT_WORK_MATMUL, DT_WORK_TRANSPOSE, DT_WORK_COUNT };
void *dt_cpu_work(enum dt_work slot, size_t size_bytes);

/* c (m, n) = a b [+ bias] [+ c], F32. Element (i, l) of a lies at a[i * a_row + l * a_col]; one
 * of both strides is 1; b alike. */
struct dt_gemm {
    float *c;
    const float *a, *b, *bias; /* bias null: none */
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    bool accumulate;
};
/* The same of BF16, its element (i, l) found alike; c is F32 or BF16. Sums are F32 and rounded
 * once. */
struct dt_gemm_bf16 {
    void *c;
    const uint16_t *a, *b, *bias;
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    bool accumulate, c_is_f32;
};
/* By oneDNN in the calling thread. For BF16 by what is faster on this CPU: its product for that,
 * or the one for F32 on converted blocks. */
void dt_gemm_bf16_onednn(const struct dt_gemm_bf16 *g);
/* Decides that, once: as DTRUN_BF16=onednn|f32 says, otherwise by measuring. DT_INVALID for
 * another word. */
int dt_gemm_bf16_choose(struct dt_error *err);
void dt_gemm_onednn(const struct dt_gemm *g);
/* Our own (kernels/cpu/isa/gemm.c) without special instructions; no cut of m and n changes a
 * bit. */
void dt_gemm_plain(const struct dt_gemm *g);
void dt_gemm_bf16_plain(const struct dt_gemm_bf16 *g);
/* Tells the OpenMP library that oneDNN runs on to use one thread for the calling one. */
void dt_gemm_one_thread(void);
/* The row `matmul` on top of one of these. */
void dt_matmul_onednn(struct dt_stream *s, const struct dt_matmul_args *a);
void dt_matmul_own(struct dt_stream *s, const struct dt_matmul_args *a);
/* to[l * step + i] = from[i * row + l] for i < count, l < length. */
void dt_transpose(float *to, int64_t step, const float *from, int64_t row, int64_t count, int64_t length);

#endif
