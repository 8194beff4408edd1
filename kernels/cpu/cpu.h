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
    bool accumulate, c_is_f32, few; /* few: the whole product has at most DT_FEW_ROWS rows */
    enum dt_dtype type;             /* BF16 or F16 */
};
#define DT_FEW_ROWS 8
/* onednn.c: BF16 by oneDNN, in the calling thread. False: oneDNN has no such product here, and nothing
 * was computed. The number of rows may change an element's bits. */
bool dt_onednn_gemm_bf16(const struct dt_gemm_half *g);
/* True if this CPU has products of BF16 tiles (AMX) that oneDNN uses. */
bool dt_onednn_has_amx(void);
/* table.c: true if this CPU has dot products of BF16 (AVX512-BF16), and kernels of AVX-512 are those to use. */
bool dt_gemm_has_dots(void);
/* isa/gemm.c with DT_DOTS: BF16 by dot products of pairs, in the calling thread. k is above 0. An element's bits do
 * not depend on m and n. */
void dt_gemm_dots(const struct dt_gemm_half *g);
/* As ISA_BASE(dt_gemm_pack) and dt_gemm_packed. Panels have a word for each pair of elements of k: `to` holds
 * DT_PACKED(n) * ((k + 1) / 2) words, and stride counts words. c is F32. Where a is transposed, a_col is not 1, it is
 * what dt_round_pairs_dots makes. A product that begins at a later row of b begins at an even one; of an odd number
 * of rows, it meets the next row with zeros. */
void dt_gemm_pack_dots(float *to, const uint16_t *b, int64_t row, int64_t col, int64_t n, int64_t k);
void dt_gemm_packed_dots(const struct dt_gemm_half *g, const float *packed, int64_t stride);
/* Rounds n floats to BF16; `to` may be `from`. Subnormals become 0. */
void dt_round_dots(void *to, const float *from, int64_t n);
/* The same of a row of probabilities. Returns by what their sum is to be multiplied, so that it stays: otherwise
 * all of a query's output has an error in common, which attention's backward takes for a gradient. */
float dt_round_row_dots(void *to, const float *from, int64_t n);
/* Rounds (rows, n) floats to BF16, transposed and packed: groups of 8 columns, (rows + 1) / 2 steps of each, 8 words
 * of two rows in a step. `to` holds (n + 7) / 8 groups. */
void dt_round_pairs_dots(void *to, const float *from, int64_t rows, int64_t n);
typedef void dt_gemm_f32(const struct dt_gemm *g);
/* matmul_half.c: block by block as floats, by an F32 product; or in BF16 by what is fast on this CPU: oneDNN with
 * AMX, dot products, or floats. F16 is always computed as floats. */
void dt_gemm_half_floats(const struct dt_gemm_half *g, dt_gemm_f32 *f32);
void dt_gemm_bf16_faster(const struct dt_gemm_half *g, dt_gemm_f32 *f32);
/* How BF16 is computed here. */
struct dt_bf16_ways {
    bool dots, onednn; /* neither: as floats; products take oneDNN if both are set */
};
/* Chooses once: by DTRUN_BF16=onednn|dots|f32, otherwise by what the CPU has, unless f32 is clearly faster. Null,
 * and DT_INVALID: DTRUN_BF16 has another value, or names what this CPU lacks. */
const struct dt_bf16_ways *dt_bf16_ways(dt_gemm_f32 *f32, struct dt_error *err);
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
