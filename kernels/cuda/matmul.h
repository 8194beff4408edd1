/* Products on the GPU: one plan per shape, made when the shape is first seen and never again. A
 * plan is cublasLt's descriptors and one of its algorithms: the one that the plan file names,
 * otherwise the library's first proposal; shapes that the library refuses (and all of them where
 * it is not installed) run our own kernel.
 *
 * Measuring (matmul_tune.c, through dt_device_plans) comes before a run's first product and
 * fills the plan file. Another algorithm sums in another order, so
 *  - what was chosen once stays: no line of the file is ever replaced, and where nothing can be
 *    kept nothing is measured;
 *  - all ranks of a run compute with rank 0's choice;
 *  - `deterministic` goes without file and measuring: the first proposal is a function of
 *    device, driver and library.
 * A product that runs beside a collective (busy_sms) has a plan of its own, for the
 * multiprocessors that this leaves: the library is told their number, when it proposes and when
 * it computes. It is measured with that number but without the collective, so an algorithm that
 * does not heed it is timed on all of them. An epilogue beyond the bias is cublasLt's only where
 * it was measured to be faster than the product and our own kernel after it; the file keeps the
 * other outcome, too. */
#ifndef DT_KERNELS_CUDA_MATMUL_H
#define DT_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 0 and 1: row `matmul`. The plan file has these numbers. */
enum dt_matmul_ending {
    DT_MATMUL_PLAIN,
    DT_MATMUL_BIAS,
    DT_MATMUL_GELU,
    DT_MATMUL_GELU_BACKWARD,
    DT_MATMUL_BIAS_BACKWARD
};

/* What a plan depends on. Whether it adds to c is no part of it: both ways sum alike. */
struct dt_matmul_key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t busy_sms; /* multiprocessors that the plan leaves to others */
    uint8_t a_transposed, b_transposed;
    uint8_t epilogue;                              /* enum dt_matmul_ending */
    uint8_t type, c_type;                          /* enum dt_dtype */
    uint8_t a_alignment, b_alignment, c_alignment; /* bytes, 2 to 16: of the pointers and of rows */
};

struct dt_matmul_algo { /* cublasLtMatmulAlgo_t, as the plan file keeps it; zeros: epilogue and
                         * product separately are faster */
    uint64_t words[8];
    int64_t workspace_bytes;
};

struct dt_matmul_key dt_matmul_key_of(const struct dt_matmul_args *a);

/* matmul_plain.cu: any shape and layout; c (m, n) in F32 or BF16. */
void dt_cuda_matmul_plain(const struct dt_cuda_launch *l, const struct dt_matmul_args *a);
/* matmul.c: device.c calls it when a device is closed: forgets its plans. */
void dt_cuda_matmul_close(struct dt_device *d);

/* matmul_random.cu: values in (-1, 1), of F32 or BF16; for measuring: products of zeros take
 * less power, and less time */
void dt_cuda_random(const struct dt_cuda_launch *l, void *x, int64_t count, enum dt_dtype type);
/* matmul_tune.c */
extern const struct dt_device_plans dt_cuda_plans;

/* matmul_file.c: the plan file of products: struct dt_matmul_key and dt_matmul_algo */
extern const struct dt_plan_kind dt_matmul_plans;

#ifdef __cplusplus
}
#endif
#endif
