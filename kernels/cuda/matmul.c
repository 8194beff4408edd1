/* The rows `matmul` and `matmul_epilogue`. They find or make the plan of a shape, and run it with
 * cublasLt. Our row-major matrices are the library's column-major ones transposed. So we ask for
 * c^T = op(b)^T op(a)^T: our b is its first operand, and a bias along our columns is one along its
 * rows. */
#include "kernels/cuda/matmul_plan.h"

#include "base/log.h"
#include "base/text.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct matmul_cache *caches;

/* read when a device's first plan is made */
static _Atomic uint32_t alignment_most = DT_MATMUL_ALIGNMENT;

static void read_alignment(void)
{
    const char *given = getenv("DTRUN_MATMUL_ALIGNMENT");
    long n = given != NULL ? strtol(given, NULL, 10) : DT_MATMUL_ALIGNMENT;
    bool good = n >= DT_MATMUL_ALIGNMENT_LEAST && n <= DT_MATMUL_ALIGNMENT_MOST && (n & (n - 1)) == 0;
    if (!good) {
        dt_log(DT_LOG_WARN, "matmul", "DTRUN_MATMUL_ALIGNMENT=%s: not a power of two from 16 to 256; %d is taken",
               given, (int)DT_MATMUL_ALIGNMENT);
    }
    alignment_most = good ? (uint32_t)n : DT_MATMUL_ALIGNMENT;
}

uint32_t matmul_alignment_most(void)
{
    return alignment_most;
}

/* The library knows the distance between rows by itself. */
static uint16_t alignment(uintptr_t at)
{
    uint64_t bits = (uint64_t)at | alignment_most;
    return (uint16_t)(bits & -bits);
}

static enum dt_matmul_ending ending_of(const struct dt_matmul_args *a)
{
    switch (a->epilogue) {
    case DT_EPILOGUE_GELU:
        return DT_MATMUL_GELU;
    case DT_EPILOGUE_GELU_BACKWARD:
        return a->accumulate || a->grad_type != a->c_type ? DT_MATMUL_GELU_ALONE_BACKWARD : DT_MATMUL_GELU_BACKWARD;
    case DT_EPILOGUE_BIAS_BACKWARD:
        return DT_MATMUL_BIAS_BACKWARD;
    case DT_EPILOGUE_BIAS_BACKWARD_A:
        return DT_MATMUL_BIAS_BACKWARD_A;
    case DT_EPILOGUE_NONE:
        return a->bias != NULL ? DT_MATMUL_BIAS : DT_MATMUL_PLAIN;
    }
    return DT_MATMUL_PLAIN;
}

struct dt_matmul_key dt_matmul_key_of(const struct dt_matmul_args *a, bool tf32)
{
    struct dt_matmul_key key;
    memset(&key, 0, sizeof key); /* keys are compared and hashed as bytes */
    enum dt_dtype c_type = dt_dtype_half(a->type) ? a->c_type : a->type;
    key.m = a->m;
    key.n = a->n;
    key.k = a->k;
    key.lda = a->lda != 0 ? a->lda : a->a_transposed ? a->m : a->k;
    key.ldb = a->ldb != 0 ? a->ldb : a->b_transposed ? a->k : a->n;
    key.ldc = a->ldc != 0 ? a->ldc : a->n;
    key.busy_sms = a->busy_sms;
    key.a_transposed = a->a_transposed;
    key.b_transposed = a->b_transposed;
    key.epilogue = (uint8_t)ending_of(a);
    key.type = (uint8_t)a->type;
    key.c_type = (uint8_t)c_type;
    key.tf32 = a->type == DT_F32 && tf32;
    key.a_alignment = alignment((uintptr_t)a->a);
    key.b_alignment = alignment((uintptr_t)a->b);
    key.c_alignment = alignment((uintptr_t)a->c);
    key.vector_alignment = alignment((uintptr_t)a->bias | (uintptr_t)a->aux | (uintptr_t)a->bias_gradient);
    return key;
}

/* ---- finding a plan ---- */

static struct matmul_cache *open_cache(struct dt_device *d)
{
    struct matmul_cache *c = dt_alloc(sizeof *c);
    struct dt_error err = {0};
    read_alignment();
    c->device = d;
    c->lt = dt_lt_load(&err);
    if (c->lt != NULL && c->lt->cublasLtCreate(&c->handle) != CUBLAS_STATUS_SUCCESS) {
        c->handle = NULL;
    }
    if (c->lt == NULL) {
        dt_log(DT_LOG_WARN, "matmul", "%s; products run on a slower kernel of our own", err.text);
    }
    if (cudaDeviceGetAttribute(&c->sm_count, cudaDevAttrMultiProcessorCount, d->options.index) != cudaSuccess) {
        (void)cudaGetLastError();
        c->sm_count = 0;
    }
    char *of =
        dt_plan_file_device(d->options.index, "cublasLt", c->lt != NULL ? c->lt->cublasLtGetVersion() : (size_t)0);
    c->file = dt_plan_file_open(&dt_matmul_plans, of);
    free(of);
    c->next = caches;
    caches = c;
    return c;
}

struct matmul_cache *matmul_cache_enter(struct dt_device *d)
{
    (void)pthread_mutex_lock(&lock);
    struct matmul_cache *c = caches;
    while (c != NULL && c->device != d) {
        c = c->next;
    }
    return c != NULL ? c : open_cache(d);
}

void matmul_cache_leave(void)
{
    (void)pthread_mutex_unlock(&lock);
}

void matmul_cache_forget(struct matmul_cache *c)
{
    for (int i = 0; i < MATMUL_BUCKETS; i++) {
        for (struct matmul_plan *p = c->buckets[i], *next; p != NULL; p = next) {
            next = p->next;
            matmul_plan_free(c, p);
        }
        c->buckets[i] = NULL;
    }
}

static const struct matmul_plan *find_key(struct matmul_cache *c, const struct dt_matmul_key *key)
{
    size_t bucket = XXH3_64bits(key, sizeof *key) % MATMUL_BUCKETS;
    struct matmul_plan *p = c->buckets[bucket];
    while (p != NULL && memcmp(&p->key, key, sizeof *key) != 0) {
        p = p->next;
    }
    if (p == NULL) {
        p = matmul_plan_make(c, key);
        p->next = c->buckets[bucket];
        c->buckets[bucket] = p;
    }
    return p;
}

/* The plan for a, made if it is new. *out_cache: the cache that holds it. */
static const struct matmul_plan *find(struct dt_device *d, const struct dt_matmul_args *a,
                                      const struct matmul_cache **out_cache)
{
    struct matmul_cache *c = matmul_cache_enter(d);
    struct dt_matmul_key key = dt_matmul_key_of(a, d->options.tf32);
    const struct matmul_plan *p = find_key(c, &key);
    if (p->plain && key.epilogue == DT_MATMUL_GELU_BACKWARD) {
        key.epilogue = DT_MATMUL_GELU_ALONE_BACKWARD;
        p = find_key(c, &key);
    }
    matmul_cache_leave();
    *out_cache = c;
    return p;
}

void dt_cuda_matmul_close(struct dt_device *d)
{
    (void)pthread_mutex_lock(&lock);
    for (struct matmul_cache **at = &caches; *at != NULL;) {
        struct matmul_cache *c = *at;
        if (c->device != d) {
            at = &c->next;
            continue;
        }
        *at = c->next;
        matmul_cache_forget(c);
        dt_plan_file_close(c->file);
        if (c->handle != NULL) {
            (void)c->lt->cublasLtDestroy(c->handle);
        }
        free(c);
    }
    (void)pthread_mutex_unlock(&lock);
}

/* ---- the row ---- */

static cublasStatus_t point(const struct matmul_cache *c, const struct matmul_plan *p,
                            cublasLtMatmulDescAttributes_t what, const void *to)
{
    return to == NULL ? CUBLAS_STATUS_SUCCESS : c->lt->cublasLtMatmulDescSetAttribute(p->product, what, &to, sizeof to);
}

cublasStatus_t matmul_run(const struct matmul_cache *c, const struct matmul_plan *p, const struct dt_cuda_launch *l,
                          const struct dt_matmul_args *a)
{
    const float one = 1, beta = a->accumulate && p->key.epilogue != DT_MATMUL_GELU_ALONE_BACKWARD ? 1 : 0;
    const void *bias = p->key.epilogue <= DT_MATMUL_GELU                  ? a->bias
                       : p->key.epilogue == DT_MATMUL_GELU_ALONE_BACKWARD ? NULL
                                                                          : a->bias_gradient;
    /* an epilogue sets pointers in the plan, which the thread of another stream may be about to
     * use */
    bool points = p->key.epilogue != DT_MATMUL_PLAIN;
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (points) {
        (void)pthread_mutex_lock(&lock);
        status = point(c, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
        status =
            status == CUBLAS_STATUS_SUCCESS ? point(c, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, a->aux) : status;
    }
    if (status == CUBLAS_STATUS_SUCCESS) {
        status = c->lt->cublasLtMatmul(c->handle, p->product, &one, a->b, p->b, a->a, p->a, &beta, a->c, p->c, a->c,
                                       p->c, &p->algo, l->work, p->workspace_bytes, (cudaStream_t)l->native);
    }
    if (points) {
        (void)pthread_mutex_unlock(&lock);
    }
    return status;
}

static void multiply(struct dt_stream *s, const struct matmul_cache *c, const struct matmul_plan *p,
                     const struct dt_cuda_launch *l, const struct dt_matmul_args *a)
{
    cublasStatus_t status = matmul_run(c, p, l, a);
    struct dt_error why;
    if (status != CUBLAS_STATUS_SUCCESS && dt_cuda_broken(s, "matmul", &why)) {
        dt_stream_fail(s, why.status, "%s", why.text);
        return;
    }
    if (status != CUBLAS_STATUS_SUCCESS) {
        dt_stream_fail(s, DT_IO, "matmul: cublasLt refuses (%lld, %lld, %lld) with status %d", (long long)a->m,
                       (long long)a->n, (long long)a->k, (int)status);
        return;
    }
    dt_cuda_end(s, "matmul");
}

void dt_cuda_matmul(struct dt_stream *s, const struct dt_matmul_args *a)
{
    struct dt_cuda_launch l;
    const struct matmul_cache *c = NULL;
    if (a->m <= 0 || a->n <= 0 || !dt_cuda_begin(s, &l)) {
        return;
    }
    if (a->type != DT_F32 && !dt_dtype_half(a->type)) {
        dt_stream_fail(s, DT_INVALID, "matmul: %s is not computed on the GPU", dt_dtype_name(a->type));
        return;
    }
    /* the library may read 16 bytes at once */
    if ((uintptr_t)a->bias % DT_MATMUL_ALIGNMENT_LEAST != 0) {
        dt_cuda_matmul_plain(&l, a);
        dt_cuda_end(s, "matmul");
        return;
    }
    const struct matmul_plan *p = find(s->device, a, &c);
    if (c->lt != NULL && c->handle == NULL) {
        dt_stream_fail(s, DT_IO, "cublasLt: cannot be started on this device; is its memory taken?");
        return;
    }
    if (p->plain) {
        dt_cuda_matmul_plain(&l, a);
        dt_cuda_end(s, "matmul");
    } else {
        multiply(s, c, p, &l, a);
    }
}

void matmul_sum_columns(struct dt_stream *s, const struct dt_matmul_args *a)
{
    dt_kernels_cuda.column_sum(s, &(struct dt_column_sum_args){.out = a->bias_gradient,
                                                               .x = a->c,
                                                               .row_count = a->m,
                                                               .col_count = a->n,
                                                               .accumulate = a->accumulate,
                                                               .type = a->c_type,
                                                               .grad_type = a->grad_type});
}

bool dt_cuda_matmul_epilogue(struct dt_stream *s, const struct dt_matmul_args *a)
{
    struct dt_cuda_launch l;
    const struct matmul_cache *c = NULL;
    if (!matmul_epilogue_fits(a) || !dt_cuda_begin(s, &l)) {
        return false;
    }
    const struct matmul_plan *p = find(s->device, a, &c);
    if (p->plain) {
        return false;
    }
    multiply(s, c, p, &l, a);
    if (p->key.epilogue == DT_MATMUL_GELU_ALONE_BACKWARD) {
        matmul_sum_columns(s, a);
    }
    return true;
}
