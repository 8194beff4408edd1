/* What the files of the row `matmul` share: a shape's plan, and all plans of a device. */
#ifndef DT_KERNELS_CUDA_MATMUL_PLAN_H
#define DT_KERNELS_CUDA_MATMUL_PLAN_H

#include "kernels/cuda/lt.h"
#include "kernels/cuda/matmul.h"

struct matmul_plan {
    struct matmul_plan *next; /* in its bucket */
    struct dt_matmul_key key;
    bool plain; /* not by the library: by our own kernel, or product and epilogue separately */
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

#define MATMUL_BUCKETS 256

/* Plans of one device; its streams may be driven by several threads. */
struct matmul_cache {
    struct matmul_cache *next;
    struct dt_device *device;
    const struct dt_lt *lt;  /* null: not here */
    cublasLtHandle_t handle; /* null: it could not be started, and nothing is computed: another
                              * start would have other bits */
    struct dt_plan_file *file;
    int sm_count; /* multiprocessors; 0: the device does not say */
    struct matmul_plan *buckets[MATMUL_BUCKETS];
};

/* matmul_plan.c */
/* Can the library do a product with its epilogue? Otherwise it runs after the product. */
bool matmul_epilogue_fits(const struct dt_matmul_args *a);
/* Can the library take it at all? */
bool matmul_fits(const struct matmul_cache *c, const struct dt_matmul_key *key);
/* A plan with its descriptors but without an algorithm; null when the library refuses them. */
struct matmul_plan *matmul_plan_describe(const struct matmul_cache *c, const struct dt_matmul_key *key);
/* The library's proposals, the one that it takes for the best first. Returns how many, at most
 * `most`. */
int matmul_plan_propose(const struct matmul_cache *c, const struct matmul_plan *p, cublasLtMatmulHeuristicResult_t *out,
                        int most);
/* The plan that a product runs with: of the file, or the first proposal, or our own kernel. With
 * an epilogue beyond the bias: of the file, or separately. */
struct matmul_plan *matmul_plan_make(const struct matmul_cache *c, const struct dt_matmul_key *key);
void matmul_plan_free(const struct matmul_cache *c, struct matmul_plan *p);

/* matmul.c */
/* The cache of a device, made when it is first asked for, with its lock held until
 * matmul_cache_leave. */
struct matmul_cache *matmul_cache_enter(struct dt_device *d);
void matmul_cache_leave(void);
/* Forgets the plans that were made, not the file: no product may be on its way. */
void matmul_cache_forget(struct matmul_cache *c);
cublasStatus_t matmul_run(const struct matmul_cache *c, const struct matmul_plan *p, const struct dt_cuda_launch *l,
                          const struct dt_matmul_args *a);

#endif
