/* Shared by the files of the row `matmul`: the plan of a shape, and all plans of a device. */
#ifndef DT_KERNELS_CUDA_MATMUL_PLAN_H
#define DT_KERNELS_CUDA_MATMUL_PLAN_H

#include "kernels/cuda/lt.h"
#include "kernels/cuda/matmul.h"

struct matmul_plan {
    struct matmul_plan *next; /* the next plan of its bucket */
    struct dt_matmul_key key;
    /* not by one call of the library: by our own kernel, or product and epilogue one after the
     * other */
    bool plain;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

#define MATMUL_BUCKETS 256

/* The plans of one device. Several threads may drive its streams. */
struct matmul_cache {
    struct matmul_cache *next;
    struct dt_device *device;
    const struct dt_lt *lt; /* null: not installed */
    /* null: cublasLt could not be started. Then nothing is computed, since another start would have
     * other bits. */
    cublasLtHandle_t handle;
    struct dt_plan_file *file;
    int sm_count; /* multiprocessors; 0: unknown */
    struct matmul_plan *buckets[MATMUL_BUCKETS];
};

/* matmul_plan.c */
/* True if the library can compute the product with its epilogue. Otherwise the epilogue runs after
 * the product. */
bool matmul_epilogue_fits(const struct dt_matmul_args *a);
bool matmul_has_aux(const struct dt_matmul_key *key);
/* True if the library can take the shape. */
bool matmul_fits(const struct matmul_cache *c, const struct dt_matmul_key *key);
/* Makes a plan with descriptors but without an algorithm. Null: the library refuses them. */
struct matmul_plan *matmul_plan_describe(const struct matmul_cache *c, const struct dt_matmul_key *key);
/* The library's proposals, best first by its own estimate. Returns their number, at most `most`. */
int matmul_plan_propose(const struct matmul_cache *c, const struct matmul_plan *p, cublasLtMatmulHeuristicResult_t *out,
                        int most);
/* Makes the plan that a product runs with: by the file, else the first proposal, else our own
 * kernel. With an epilogue beyond the bias: by the file, else one after the other. */
struct matmul_plan *matmul_plan_make(const struct matmul_cache *c, const struct dt_matmul_key *key);
void matmul_plan_free(const struct matmul_cache *c, struct matmul_plan *p);

/* matmul.c */
/* Returns the cache of a device, with its lock held until matmul_cache_leave. The first call makes
 * it. */
struct matmul_cache *matmul_cache_enter(struct dt_device *d);
void matmul_cache_leave(void);
/* Frees the plans, but keeps the file. No product may be running. */
void matmul_cache_forget(struct matmul_cache *c);
/* DT_MATMUL_ALIGNMENT, or what the environment says */
uint32_t matmul_alignment_most(void);
cublasStatus_t matmul_run(const struct matmul_cache *c, const struct matmul_plan *p, const struct dt_cuda_launch *l,
                          const struct dt_matmul_args *a);
/* The gradient of a bias as DT_MATMUL_GELU_ALONE_BACKWARD leaves it: the sum over the rows of c. */
void matmul_sum_columns(struct dt_stream *s, const struct dt_matmul_args *a);

#endif
