/* Products on the GPU: one plan per shape, made when the shape is first seen (a run's first step) and never again. A plan is cublasLt's descriptors
 * and one of its algorithms: the one that the plan file names, otherwise the library's first proposal; shapes that the library refuses (and all of them where
 * it is not installed) run our own kernel.
 *
 * Why no timing at the start of a run: another algorithm sums in another order, so two starts that measure differently would not end with the same
 * weights. Measuring belongs in a program of its own, which writes the file that later runs read; there is none yet. */
#ifndef DT_KERNELS_CUDA_MATMUL_H
#define DT_KERNELS_CUDA_MATMUL_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a plan depends on. Whether it adds to c is no part of it: both ways sum alike. */
struct dt_matmul_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t a_transposed, b_transposed, bias;
    uint8_t type, c_type;                          /* enum dt_dtype */
    uint8_t a_alignment, b_alignment, c_alignment; /* bytes, 2 to 16: of the pointers and of rows */
};

struct dt_matmul_algo { /* cublasLtMatmulAlgo_t, as the plan file keeps it */
    uint64_t words[8];
    int64_t workspace_bytes;
};

struct dt_matmul_key dt_matmul_key_of(const struct dt_matmul_args *a);

/* matmul_plain.cu: any shape and layout; c (m, n) in F32 or BF16. */
void dt_cuda_matmul_plain(const struct dt_cuda_launch *l, const struct dt_matmul_args *a);
/* matmul.c: device.c calls it when a device is closed: forgets its plans. */
void dt_cuda_matmul_close(struct dt_device *d);

/* matmul_file.c: the plan file of one device. `of` names device, driver and library: a file of another one does not count. */
struct dt_matmul_file;
/* Reads $DTRUN_CACHE, $XDG_CACHE_HOME/dtrun or ~/.cache/dtrun/matmul-HASH.plans; an empty one when there is none. A damaged or foreign file is said in one
 * line and counts as none. Never null. */
struct dt_matmul_file *dt_matmul_file_open(const char *of);
const struct dt_matmul_algo *dt_matmul_file_find(const struct dt_matmul_file *f, const struct dt_matmul_key *key); /* or null */
void dt_matmul_file_put(struct dt_matmul_file *f, const struct dt_matmul_key *key, const struct dt_matmul_algo *algo);
/* Writes it whole, under a passing name first. */
int dt_matmul_file_save(const struct dt_matmul_file *f, struct dt_error *err);
void dt_matmul_file_close(struct dt_matmul_file *f);

#ifdef __cplusplus
}
#endif
#endif
