/* Products on the GPU: one plan per shape, made when the shape first occurs. A plan is
 * cublasLt's descriptors and one of its algorithms: the one in the plan file, otherwise the
 * library's first proposal. Shapes that the library refuses run our own kernel, and so do all
 * shapes if the library is not installed.
 *
 * Measuring (matmul_tune.c, through dt_device_plans) comes before a run's first product and
 * fills the plan file. Another algorithm sums in another order, so
 *  - a choice is final: no line of the file is ever replaced, and if plans cannot be kept,
 *    nothing is
 *    measured;
 *  - all ranks of a run compute with rank 0's choice;
 *  - `deterministic` uses neither file nor measurements: the first proposal is a function of
 *    device,
 *    driver and library.
 * A product that runs beside a collective (busy_sms) has a plan of its own, for the
 * multiprocessors that are left. The library gets their number when it proposes and when it
 * computes. It is measured with that number but without the collective, so an algorithm that
 * ignores the number is timed on all multiprocessors. cublasLt computes an epilogue beyond the
 * bias only if that was measured to be faster than the product followed by our own kernel. The
 * file keeps the other outcome, too.
 *
 * The gradient of GELU with a sum for a bias has three ways: all in the library, GELU's gradient in
 * the library and the sum by our kernel, or both by our kernel. The second is an ending of its own.
 * It is measured against the third, and the first against the faster of them. */
#ifndef DT_KERNELS_CUDA_MATMUL_H
#define DT_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/plan_file.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Alignment in bytes up to which plans differ: that of the smallest pieces of which memory is made,
 * tensors of BF16 units (model/chain.c). With a larger one equal layers might differ, and each shape
 * would be measured for each. DTRUN_MATMUL_ALIGNMENT: another power of two, 16 to 256, for comparisons. */
enum { DT_MATMUL_ALIGNMENT = 128, DT_MATMUL_ALIGNMENT_LEAST = 16, DT_MATMUL_ALIGNMENT_MOST = 256 };

/* Plain and bias belong to row `matmul`. These numbers are in the plan file, so do not change
 * them. */
enum dt_matmul_ending {
    DT_MATMUL_PLAIN,
    DT_MATMUL_BIAS,
    DT_MATMUL_GELU,
    DT_MATMUL_GELU_BACKWARD,
    DT_MATMUL_BIAS_BACKWARD,
    DT_MATMUL_BIAS_BACKWARD_A,
    DT_MATMUL_GELU_ALONE_BACKWARD /* with our own kernel after it for the sum */
};

/* Everything that a plan depends on. Adding to c is not part of it: sums are the same with and
 * without. */
struct dt_matmul_key {
    int64_t m, n, k, lda, ldb, ldc;
    int64_t busy_sms; /* multiprocessors that the plan leaves to other work */
    /* alignment of the pointers in bytes; what exceeds DT_MATMUL_ALIGNMENT counts as that.
     * vector_alignment: the least of those of bias, aux and bias_gradient */
    uint16_t a_alignment, b_alignment, c_alignment, vector_alignment;
    uint8_t a_transposed, b_transposed;
    uint8_t epilogue;     /* enum dt_matmul_ending */
    uint8_t type, c_type; /* enum dt_dtype */
    uint8_t tf32;         /* operands of F32 are rounded to TF32 */
};

/* a cublasLtMatmulAlgo_t, as the plan file keeps it; zeros: product and epilogue one after the
 * other are faster */
struct dt_matmul_algo {
    uint64_t words[8];
    int64_t workspace_bytes;
};

/* tf32: as struct dt_device_options */
struct dt_matmul_key dt_matmul_key_of(const struct dt_matmul_args *a, bool tf32);

/* matmul_plain.cu: any shape and layout; c (m, n) in F32 or in the type of a and b. */
void dt_cuda_matmul_plain(const struct dt_cuda_launch *l, const struct dt_matmul_args *a);
/* matmul.c: device.c calls it when a device is closed: frees its plans. */
void dt_cuda_matmul_close(struct dt_device *d);

/* matmul_random.cu: random values in (-1, 1), F32, BF16 or F16, for measuring: products of zeros take
 * less power, and so less time */
void dt_cuda_random(const struct dt_cuda_launch *l, void *x, int64_t count, enum dt_dtype type);
/* matmul_tune.c */
extern const struct dt_device_plans dt_cuda_plans;

/* matmul_file.c: the plan file of products: struct dt_matmul_key and dt_matmul_algo */
extern const struct dt_plan_kind dt_matmul_plans;

#ifdef __cplusplus
}
#endif
#endif
