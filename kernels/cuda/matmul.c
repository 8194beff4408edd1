/* The row `matmul`: finds the plan of a shape, or makes it, and gives it to cublasLt. Row-major matrices are the library's column-major ones
 * transposed, so it is asked for c^T = op(b)^T op(a)^T: our b is its first operand, and a bias along our columns lies along its rows. */
#include "kernels/cuda/matmul.h"

#include "base/log.h"
#include "base/text.h"
#include "kernels/cuda/lt.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BUCKETS = 256 };

struct plan {
    struct plan *next; /* in its bucket */
    struct dt_matmul_key key;
    bool plain;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t algo;
    size_t workspace_bytes;
};

/* Plans of one device; its streams may be driven by several threads. */
struct cache {
    struct cache *next;
    struct dt_device *device;
    const struct dt_lt *lt;  /* null: not here */
    cublasLtHandle_t handle; /* null: it could not be started, and nothing is computed: another start would have other bits */
    struct dt_matmul_file *file;
    struct plan *buckets[BUCKETS];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cache *caches;

static uint8_t alignment(const void *p, int64_t ld, size_t size)
{
    uint64_t bits = (uint64_t)(uintptr_t)p | (uint64_t)ld * size | 16;
    return (uint8_t)(bits & -bits);
}

struct dt_matmul_key dt_matmul_key_of(const struct dt_matmul_args *a)
{
    struct dt_matmul_key key;
    memset(&key, 0, sizeof key); /* it is compared and hashed whole */
    enum dt_dtype c_type = a->type == DT_BF16 ? a->c_type : a->type;
    key.m = a->m;
    key.n = a->n;
    key.k = a->k;
    key.lda = a->lda != 0 ? a->lda : a->a_transposed ? a->m : a->k;
    key.ldb = a->ldb != 0 ? a->ldb : a->b_transposed ? a->k : a->n;
    key.ldc = a->ldc != 0 ? a->ldc : a->n;
    key.a_transposed = a->a_transposed;
    key.b_transposed = a->b_transposed;
    key.bias = a->bias != NULL;
    key.type = (uint8_t)a->type;
    key.c_type = (uint8_t)c_type;
    key.a_alignment = alignment(a->a, key.lda, dt_dtype_size(a->type));
    key.b_alignment = alignment(a->b, key.ldb, dt_dtype_size(a->type));
    key.c_alignment = alignment(a->c, key.ldc, dt_dtype_size(c_type));
    return key;
}

static cudaDataType type_of(uint8_t type)
{
    return type == DT_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* ---- making a plan ---- */

static bool set(const struct cache *c, cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const void *value, size_t size)
{
    return c->lt->cublasLtMatmulDescSetAttribute(d, what, value, size) == CUBLAS_STATUS_SUCCESS;
}

static bool describe(const struct cache *c, struct plan *p)
{
    const struct dt_matmul_key *k = &p->key;
    const struct dt_lt *lt = c->lt;
    cublasOperation_t first = k->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, second = k->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = k->bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    cudaDataType bias_type = type_of(k->type);
    uint64_t b_rows = (uint64_t)(k->b_transposed ? k->k : k->n), b_cols = (uint64_t)(k->b_transposed ? k->n : k->k);
    uint64_t a_rows = (uint64_t)(k->a_transposed ? k->m : k->k), a_cols = (uint64_t)(k->a_transposed ? k->k : k->m);
    return lt->cublasLtMatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           set(c, p->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) &&
           set(c, p->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) &&
           set(c, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue) &&
           (!k->bias || set(c, p->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type)) &&
           lt->cublasLtMatrixLayoutCreate(&p->b, type_of(k->type), b_rows, b_cols, k->ldb) == CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatrixLayoutCreate(&p->a, type_of(k->type), a_rows, a_cols, k->lda) == CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatrixLayoutCreate(&p->c, type_of(k->c_type), (uint64_t)k->n, (uint64_t)k->m, k->ldc) == CUBLAS_STATUS_SUCCESS;
}

/* The library's first proposal. Of a product cut along k it may add the parts in fp32 only: adding in place has no fixed order, and adding in the type of the
 * result would round each part. */
static bool propose(const struct cache *c, struct plan *p)
{
    const struct dt_lt *lt = c->lt;
    cublasLtMatmulPreference_t wish = NULL;
    cublasLtMatmulHeuristicResult_t found;
    uint64_t workspace = DT_CUDA_WORK_BYTES;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t a = p->key.a_alignment, b = p->key.b_alignment, out = p->key.c_alignment;
    int count = 0;
    const struct {
        cublasLtMatmulPreferenceAttributes_t what;
        const void *value;
        size_t size;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof out},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof out},
    };
    bool good = lt->cublasLtMatmulPreferenceCreate(&wish) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; good && i < sizeof wishes / sizeof wishes[0]; i++) {
        good = lt->cublasLtMatmulPreferenceSetAttribute(wish, wishes[i].what, wishes[i].value, wishes[i].size) == CUBLAS_STATUS_SUCCESS;
    }
    good = good &&
           lt->cublasLtMatmulAlgoGetHeuristic(c->handle, p->product, p->b, p->a, p->c, p->c, wish, 1, &found, &count) == CUBLAS_STATUS_SUCCESS &&
           count > 0;
    if (good) {
        p->algo = found.algo;
        p->workspace_bytes = found.workspaceSize;
    }
    if (wish != NULL) {
        (void)lt->cublasLtMatmulPreferenceDestroy(wish);
    }
    return good;
}

/* What the file says counts when the library still takes it. */
static bool remembered(const struct cache *c, struct plan *p)
{
    const struct dt_matmul_algo *known = dt_matmul_file_find(c->file, &p->key);
    cublasLtMatmulHeuristicResult_t checked;
    if (known == NULL) {
        return false;
    }
    _Static_assert(sizeof p->algo == sizeof known->words, "an algorithm is eight words");
    memcpy(&p->algo, known->words, sizeof p->algo);
    if (c->lt->cublasLtMatmulAlgoCheck(c->handle, p->product, p->b, p->a, p->c, p->c, &p->algo, &checked) != CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > DT_CUDA_WORK_BYTES) {
        return false;
    }
    p->workspace_bytes = checked.workspaceSize;
    return true;
}

static void free_plan(const struct cache *c, struct plan *p)
{
    if (c->lt != NULL) {
        const cublasLtMatrixLayout_t layouts[] = {p->a, p->b, p->c};
        for (size_t i = 0; i < 3; i++) {
            if (layouts[i] != NULL) {
                (void)c->lt->cublasLtMatrixLayoutDestroy(layouts[i]);
            }
        }
        if (p->product != NULL) {
            (void)c->lt->cublasLtMatmulDescDestroy(p->product);
        }
    }
    free(p);
}

static bool fits_the_library(const struct dt_matmul_key *k)
{
    return k->m <= INT32_MAX && k->n <= INT32_MAX && k->k <= INT32_MAX && k->k > 0 && k->a_alignment >= dt_dtype_size((enum dt_dtype)k->type);
}

static struct plan *make_plan(const struct cache *c, const struct dt_matmul_key *key)
{
    struct plan *p = dt_alloc(sizeof *p);
    p->key = *key;
    p->plain = c->handle == NULL || !fits_the_library(key) || !describe(c, p) || (!remembered(c, p) && !propose(c, p));
    return p;
}

/* ---- finding it ---- */

static struct cache *open_cache(struct dt_device *d)
{
    struct cache *c = dt_alloc(sizeof *c);
    struct dt_error err = {0};
    struct cudaDeviceProp device;
    int driver = 0;
    c->device = d;
    c->lt = dt_lt_load(&err);
    if (c->lt != NULL && c->lt->cublasLtCreate(&c->handle) != CUBLAS_STATUS_SUCCESS) {
        c->handle = NULL;
    }
    if (c->lt == NULL) {
        dt_log(DT_LOG_WARN, "matmul", "%s; products run on a slower kernel of our own", err.text);
    }
    if (cudaGetDeviceProperties(&device, d->options.index) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess) {
        (void)cudaGetLastError();
        memset(&device, 0, sizeof device);
    }
    char *of = dt_format("%s, driver %d, cublasLt %zu", device.name, driver, c->lt != NULL ? c->lt->cublasLtGetVersion() : (size_t)0);
    c->file = dt_matmul_file_open(of);
    free(of);
    c->next = caches;
    caches = c;
    return c;
}

/* The plan for a; made if it is new. *out_cache: whose it is. */
static const struct plan *find(struct dt_device *d, const struct dt_matmul_args *a, const struct cache **out_cache)
{
    struct dt_matmul_key key = dt_matmul_key_of(a);
    size_t bucket = XXH3_64bits(&key, sizeof key) % BUCKETS;
    (void)pthread_mutex_lock(&lock);
    struct cache *c = caches;
    while (c != NULL && c->device != d) {
        c = c->next;
    }
    c = c != NULL ? c : open_cache(d);
    struct plan *p = c->buckets[bucket];
    while (p != NULL && memcmp(&p->key, &key, sizeof key) != 0) {
        p = p->next;
    }
    if (p == NULL) {
        p = make_plan(c, &key);
        p->next = c->buckets[bucket];
        c->buckets[bucket] = p;
    }
    (void)pthread_mutex_unlock(&lock);
    *out_cache = c;
    return p;
}

void dt_cuda_matmul_close(struct dt_device *d)
{
    (void)pthread_mutex_lock(&lock);
    for (struct cache **at = &caches; *at != NULL;) {
        struct cache *c = *at;
        if (c->device != d) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        for (int i = 0; i < BUCKETS; i++) {
            for (struct plan *p = c->buckets[i], *next; p != NULL; p = next) {
                next = p->next;
                free_plan(c, p);
            }
        }
        dt_matmul_file_close(c->file);
        if (c->handle != NULL) {
            (void)c->lt->cublasLtDestroy(c->handle);
        }
        free(c);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- the row ---- */

static cublasStatus_t run(const struct cache *c, const struct plan *p, const struct dt_cuda_launch *l, const struct dt_matmul_args *a)
{
    const float one = 1, beta = a->accumulate ? 1 : 0;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (a->bias != NULL) { /* it is part of the plan, which another stream's thread may be about to use */
        (void)pthread_mutex_lock(&lock);
        status = c->lt->cublasLtMatmulDescSetAttribute(p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &a->bias, sizeof a->bias);
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = c->lt->cublasLtMatmul(c->handle, p->product, &one, a->b, p->b, a->a, p->a, &beta, a->c, p->c, a->c, p->c, &p->algo, l->work,
                                       p->workspace_bytes, (cudaStream_t)l->native);
    }
    if (a->bias != NULL) {
        (void)pthread_mutex_unlock(&lock);
    }
    return status;
}

void dt_cuda_matmul(struct dt_stream *s, const struct dt_matmul_args *a)
{
    struct dt_cuda_launch l;
    const struct cache *c = NULL;
    if (a->m <= 0 || a->n <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->type != DT_F32 && a->type != DT_BF16) {
        dt_stream_fail(s, DT_INVALID, "matmul: %s is not computed on the GPU", dt_dtype_name(a->type));
        return;
    }
    const struct plan *p = find(s->device, a, &c);
    if (c->lt != NULL && c->handle == NULL) {
        dt_stream_fail(s, DT_IO, "cublasLt: cannot be started on this device; is its memory taken?");
        return;
    }
    if (p->plain) {
        dt_cuda_matmul_plain(&l, a);
    } else {
        cublasStatus_t status = run(c, p, &l, a);
        if (status != CUBLAS_STATUS_SUCCESS) {
            dt_stream_fail(s, DT_IO, "matmul: cublasLt refuses (%lld, %lld, %lld) with status %d", (long long)a->m, (long long)a->n, (long long)a->k,
                           (int)status);
            return;
        }
    }
    dt_cuda_end(s, "matmul");
}
