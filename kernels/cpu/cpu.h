/* Shared by the files of the CPU backend: device ops, the pool behind a stream, per-thread work
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
enum dt_work { DT_WORK_KERNEL, DT_WORK_MATMUL, DT_WORK_ROWS, DT_WORK_COUNT };
void *dt_cpu_work(enum dt_work slot, size_t size_bytes);

/* One slice of an optimizer's call. */
struct dt_update_call {
    enum dt_update {
        DT_UPDATE_ADAMW,
        DT_UPDATE_ADAM,
        DT_UPDATE_SGD,
        DT_UPDATE_LION,
        DT_UPDATE_ADAGRAD,
        DT_UPDATE_LAMB,
        DT_UPDATE_MUON
    } kind;
    struct dt_update_args all;
    struct dt_update_slice slice;
};
/* Enqueues run(copy of a struct dt_update_call) for each slice. */
static inline void dt_update_each(struct dt_stream *s, dt_stream_fn *run, enum dt_update kind,
                                  const struct dt_update_args *a)
{
    for (int i = 0; i < a->slice_count; i++) {
        dt_stream_call(s, run, &(struct dt_update_call){kind, *a, a->slices[i]}, sizeof(struct dt_update_call));
    }
}

/* c (m, n) = a b [+ bias] [+ c], F32. Element (i, l) of a is a[i * a_row + l * a_col]; one of the
 * two strides is 1. b has the same form. */
struct dt_gemm {
    float *c;
    const float *a, *b, *bias; /* null: no bias */
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    bool accumulate;
};
/* The same for matrices of BF16 or F16, with the same strides; c is F32 or of their type. Sums are F32 and
 * rounded once. */
struct dt_gemm_half {
    void *c;
    const uint16_t *a, *b, *bias;
    int64_t m, n, k, a_row, a_col, b_row, b_col, ldc;
    bool accumulate, c_is_f32;
    enum dt_dtype type; /* BF16 or F16 */
};
/* onednn.c: BF16 by oneDNN, in the calling thread. False: oneDNN has no such product here, and nothing
 * was computed. The number of rows may change an element's bits. */
bool dt_onednn_gemm_bf16(const struct dt_gemm_half *g);
/* True if this CPU has dot products of BF16 that oneDNN uses. */
bool dt_onednn_has_bf16(void);
typedef void dt_gemm_f32(const struct dt_gemm *g);
/* matmul_half.c: block by block as floats, by an F32 product; or by oneDNN's BF16 product where that
 * is faster on this CPU. F16 is always computed as floats. */
void dt_gemm_half_floats(const struct dt_gemm_half *g, dt_gemm_f32 *f32);
void dt_gemm_bf16_faster(const struct dt_gemm_half *g, dt_gemm_f32 *f32);
/* Chooses between the two once: by DTRUN_BF16=onednn|f32, otherwise by measuring. DT_INVALID:
 * DTRUN_BF16 has another value. */
int dt_gemm_bf16_choose(dt_gemm_f32 *f32, struct dt_error *err);
/* After the choice: true if dt_gemm_bf16_faster computes by oneDNN. */
bool dt_gemm_bf16_is_onednn(void);
/* Our own product (kernels/cpu/isa/gemm.c) for any CPU, in the calling thread. An element's bits do
 * not depend on m and n. */
void dt_gemm_plain(const struct dt_gemm *g);
/* The functions that compute a product in one thread. */
struct dt_gemm_engine {
    dt_gemm_f32 *f32;
    void (*half)(const struct dt_gemm_half *g, dt_gemm_f32 *f32);
};
/* matmul.c: the row `matmul` by an engine, which must live until the product is computed. */
void dt_matmul_by(struct dt_stream *s, const struct dt_matmul_args *a, const struct dt_gemm_engine *e);
/* to[l * step + i] = from[i * row + l] for i < count, l < length. */
void dt_transpose(float *to, int64_t step, const float *from, int64_t row, int64_t count, int64_t length);

#endif
