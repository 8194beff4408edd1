/* cublasLt for tests: the functions that kernels/cuda uses, under their own names, on the software
 * GPU's streams. Wrong use gives an error status or ends the process, so it finds misuse that the
 * library might forgive: operands that are not aligned as promised, leading dimensions that do not
 * fit, a workspace that is too small, memory that is not the device's, an algorithm that was
 * proposed for another number of multiprocessors. Sums go over k in fp32, in vectors of eight: an
 * order of its own, like the real library's. Epilogues see sums before rounding.
 *
 * SOFTGPU_LT_LOG names a file that gets a line for each product: "product NT 64 96 32 sms 3". It
 * shows both operands' transposes (N, T), m, n and k as given to the library, and the requested
 * number of multiprocessors (0: all). With SOFTGPU_LT_NONE=1 there is no algorithm for any
 * product. */
#include "tests/softgpu/executor.h"
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/sanitize.h"

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <math.h>
#include <new>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace
{

/* Three algorithms, each with its own order of sums. SOFTGPU_LT_FAST=1|2|3 makes the two others
 * slow. SOFTGPU_LT_EPILOGUE=fast makes all products slow whose epilogue is at most a bias,
 * SOFTGPU_LT_EPILOGUE=slow those with a larger epilogue, SOFTGPU_LT_EPILOGUE=alone all but those with
 * GELU's gradient and no sum, SOFTGPU_LT_EPILOGUE=sums all without a sum for a bias. */
#if defined(SOFTGPU_TSAN) || defined(__SANITIZE_ADDRESS__) /* under sanitizers everything is slow */
enum { PROPOSALS = 3, SLOW_US = 50000, SLOW_EPILOGUE_US = 100000 };
#else
enum { PROPOSALS = 3, SLOW_US = 3000, SLOW_EPILOGUE_US = 6000 };
#endif
const size_t workspaces[PROPOSALS] = {0, (size_t)1 << 20, (size_t)4 << 20};

struct description {
    bool tf32; /* operands of F32 are rounded to it */
    cublasOperation_t first, second;
    cublasLtEpilogue_t epilogue;
    void *bias, *aux;
    int bias_type, aux_type; /* -1: the result's type */
    int64_t aux_ld;
    int32_t sm_target; /* 0: all */
};
struct layout {
    cudaDataType type;
    uint64_t rows, cols;
    int64_t ld;
};
struct preference {
    uint64_t workspace;
    uint32_t schemes, alignment[4];
};

size_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

bool is_type(cudaDataType type)
{
    return type == CUDA_R_32F || type == CUDA_R_16BF || type == CUDA_R_16F;
}

float get(const void *p, cudaDataType type, int64_t i)
{
    if (type == CUDA_R_32F) {
        return ((const float *)p)[i];
    }
    return type == CUDA_R_16F ? __half2float(((const __half *)p)[i]) : __bfloat162float(((const __nv_bfloat16 *)p)[i]);
}

void put(void *p, cudaDataType type, int64_t i, float x)
{
    if (type == CUDA_R_32F) {
        ((float *)p)[i] = x;
    } else if (type == CUDA_R_16F) {
        ((__half *)p)[i] = __float2half(x);
    } else {
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16(x);
    }
}

/* Column-major: op(a) is (m, k), op(b) is (k, n), d is (m, n). */
struct work {
    void *d;
    const void *a, *b, *c;
    void *bias, *aux;
    cublasLtEpilogue_t epilogue;
    cudaDataType a_type, b_type, d_type, bias_type;
    int64_t m, n, k, lda, ldb, ldc, ldd, aux_ld;
    bool a_transposed, b_transposed, tf32;
    float alpha, beta;
    void *workspace;
    size_t workspace_bytes;
    int algorithm;
};

typedef float vec __attribute__((vector_size(32)));

float dot(const float *x, const float *y, int64_t padded, int algorithm)
{
    vec sum = {};
    for (int64_t l = 0; l < padded; l += 8) {
        vec a, b;
        int64_t at = algorithm == 2 ? padded - 8 - l : l;
        memcpy(&a, x + at, sizeof a);
        memcpy(&b, y + at, sizeof b);
        sum += a * b;
    }
    if (algorithm == 3) {
        return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
    }
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7]));
}

/* To 10 bits of fraction, halfway cases away from zero (cvt.rna.tf32.f32). */
float tf32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x1000U) & ~(uint32_t)0x1fff;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rows of op(x) as fp32, each padded with zeros to a multiple of 8. */
float *unpack(const void *x, cudaDataType type, int64_t rows, int64_t k, int64_t row_step, int64_t k_step,
              int64_t padded, bool rounded)
{
    float *out = (float *)calloc((size_t)(rows * padded) + 8, sizeof(float));
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t l = 0; l < k; l++) {
            float one = get(x, type, i * row_step + l * k_step);
            out[i * padded + l] = rounded ? tf32(one) : one;
        }
    }
    return out;
}

/* Whether the epilogue is more than a bias. */
bool is_more(cublasLtEpilogue_t e)
{
    return e != CUBLASLT_EPILOGUE_DEFAULT && e != CUBLASLT_EPILOGUE_BIAS;
}

bool has_bias(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_BIAS || e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

bool has_bias_gradient(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_DGELU_BGRAD || e == CUBLASLT_EPILOGUE_BGRADA || e == CUBLASLT_EPILOGUE_BGRADB;
}

bool is_gelu_backward(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_DGELU_BGRAD || e == CUBLASLT_EPILOGUE_DGELU;
}

bool has_aux(cublasLtEpilogue_t e)
{
    return e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || is_gelu_backward(e);
}

/* The thread sanitizer does not watch the loops, which would take a hundred times as long. So the
 * columns they touch are reported to it. */
void tell_sanitizer(const work *w)
{
    size_t in = size_of(w->a_type), out = size_of(w->d_type);
    int64_t a_rows = w->a_transposed ? w->k : w->m, a_cols = w->a_transposed ? w->m : w->k;
    int64_t b_rows = w->b_transposed ? w->n : w->k, b_cols = w->b_transposed ? w->k : w->n;
    for (int64_t j = 0; j < a_cols; j++) {
        tsan_reads((const char *)w->a + (size_t)(j * w->lda) * in, (size_t)a_rows * in);
    }
    for (int64_t j = 0; j < b_cols; j++) {
        tsan_reads((const char *)w->b + (size_t)(j * w->ldb) * in, (size_t)b_rows * in);
    }
    for (int64_t j = 0; j < w->n; j++) {
        if (w->beta != 0.0f) {
            tsan_reads((const char *)w->c + (size_t)(j * w->ldc) * out, (size_t)w->m * out);
        }
        tsan_writes((char *)w->d + (size_t)(j * w->ldd) * out, (size_t)w->m * out);
    }
    for (int64_t j = 0; has_aux(w->epilogue) && j < w->n; j++) {
        char *column = (char *)w->aux + (size_t)(j * w->aux_ld) * out;
        if (is_gelu_backward(w->epilogue)) {
            tsan_reads(column, (size_t)w->m * out);
        } else {
            tsan_writes(column, (size_t)w->m * out);
        }
    }
    if (has_bias(w->epilogue)) {
        tsan_reads(w->bias, (size_t)w->m * size_of(w->bias_type));
    } else if (has_bias_gradient(w->epilogue)) {
        tsan_writes(w->bias, (size_t)(w->epilogue == CUBLASLT_EPILOGUE_BGRADB ? w->n : w->m) * size_of(w->bias_type));
    }
}

/* The tanh form and its derivative. */
float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

float gelu_slope(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
}

bool is_slow(cublasLtEpilogue_t e, const char *wanted)
{
    return strcmp(wanted, "alone") == 0  ? e != CUBLASLT_EPILOGUE_DGELU
           : strcmp(wanted, "sums") == 0 ? !has_bias_gradient(e)
                                         : is_more(e) == (strcmp(wanted, "slow") == 0);
}

void wait_as_asked(const work *w)
{
    const char *fast = getenv("SOFTGPU_LT_FAST"), *epilogues = getenv("SOFTGPU_LT_EPILOGUE");
    if (fast != nullptr && atoi(fast) != w->algorithm) {
        usleep(SLOW_US);
    }
    if (epilogues != nullptr && is_slow(w->epilogue, epilogues)) {
        usleep(SLOW_EPILOGUE_US);
    }
}

/* Sums one operand's rows over k. */
void put_bias_gradient(const work *w, const float *rows, int64_t count, int64_t padded)
{
    for (int64_t i = 0; i < count; i++) {
        float sum = 0;
        for (int64_t l = 0; l < w->k; l++) {
            sum += rows[i * padded + l];
        }
        put(w->bias, w->bias_type, i, sum);
    }
}

void run(void *argument)
{
    const work *w = (const work *)argument;
    tell_sanitizer(w);
    int64_t padded = (w->k + 7) / 8 * 8;
    wait_as_asked(w);
    if (w->workspace_bytes > 0) {
        memset(w->workspace, 0xa5, w->workspace_bytes); /* destroys whatever a program kept there */
    }
    float *a = unpack(w->a, w->a_type, w->m, w->k, w->a_transposed ? w->lda : 1, w->a_transposed ? 1 : w->lda, padded,
                      w->tf32);
    float *b = unpack(w->b, w->b_type, w->n, w->k, w->b_transposed ? 1 : w->ldb, w->b_transposed ? w->ldb : 1, padded,
                      w->tf32);
    float *sums = (float *)calloc((size_t)w->m, sizeof(float));
    for (int64_t j = 0; j < w->n; j++) {
        for (int64_t i = 0; i < w->m; i++) {
            float x = w->alpha * dot(a + i * padded, b + j * padded, padded, w->algorithm);
            x += has_bias(w->epilogue) ? get(w->bias, w->bias_type, i) : 0.0f;
            /* if beta is 0, c is not read */
            x += w->beta != 0.0f ? w->beta * get(w->c, w->d_type, j * w->ldc + i) : 0.0f;
            if (w->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
                put(w->aux, w->d_type, j * w->aux_ld + i, x);
                x = gelu(x);
            } else if (is_gelu_backward(w->epilogue)) {
                x *= gelu_slope(get(w->aux, w->d_type, j * w->aux_ld + i));
                sums[i] += x;
            }
            put(w->d, w->d_type, j * w->ldd + i, x);
        }
    }
    for (int64_t i = 0; i < w->m && w->epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD; i++) {
        put(w->bias, w->bias_type, i, sums[i]);
    }
    if (w->epilogue == CUBLASLT_EPILOGUE_BGRADA) {
        put_bias_gradient(w, a, w->m, padded);
    } else if (w->epilogue == CUBLASLT_EPILOGUE_BGRADB) {
        put_bias_gradient(w, b, w->n, padded);
    }
    free(sums);
    free(a);
    free(b);
}

void forget(void *argument)
{
    delete (work *)argument;
}

bool on_device(const void *p, size_t alignment, const char *what)
{
    softgpu_check_pointer("cublasLtMatmul", 0, p);
    if (p == nullptr || (uintptr_t)p % alignment != 0) {
        softgpu_die("cublasLtMatmul: %s at %p is not aligned to %zu bytes", what, p, alignment);
    }
    return true;
}

/* The largest power of two, up to 256, that divides an address. The library counts null as the best
 * alignment. */
uint64_t alignment_of(const void *p)
{
    uint64_t bits = (uint64_t)(uintptr_t)p | 256;
    return bits & -bits;
}

/* As in cublasLt.h: vectors and the auxiliary matrix have the result's type, and that matrix has a
 * leading dimension that is a multiple of 8. */
bool epilogue_fits(const description *p, const layout *d)
{
    if (!is_more(p->epilogue)) {
        return true;
    }
    return (has_bias(p->epilogue) || has_bias_gradient(p->epilogue) || has_aux(p->epilogue)) &&
           (p->bias_type < 0 || p->bias_type == (int)d->type) &&
           (!has_aux(p->epilogue) ||
            (p->aux_ld % 8 == 0 && p->aux_ld >= (int64_t)d->rows && (p->aux_type < 0 || p->aux_type == (int)d->type)));
}

/* Checks that a description and its three layouts fit together, and fills in the sizes. */
bool sizes(const description *p, const layout *a, const layout *b, const layout *c, const layout *d, work *w)
{
    bool ta = p->first == CUBLAS_OP_T, tb = p->second == CUBLAS_OP_T;
    w->m = (int64_t)(ta ? a->cols : a->rows);
    w->k = (int64_t)(ta ? a->rows : a->cols);
    w->n = (int64_t)(tb ? b->rows : b->cols);
    return w->k == (int64_t)(tb ? b->cols : b->rows) && w->m == (int64_t)d->rows && w->n == (int64_t)d->cols &&
           c->rows == d->rows && c->cols == d->cols && c->type == d->type && a->ld >= (int64_t)a->rows &&
           b->ld >= (int64_t)b->rows && c->ld >= (int64_t)c->rows && d->ld >= (int64_t)d->rows && is_type(a->type) &&
           a->type == b->type && is_type(d->type) && !(a->type == CUDA_R_32F && d->type != CUDA_R_32F) && w->m > 0 &&
           w->n > 0 && w->k > 0 && epilogue_fits(p, d);
}

template <typename T> bool take(T *to, const void *from, size_t size)
{
    if (size != sizeof *to) {
        return false;
    }
    memcpy(to, from, size);
    return true;
}

/* Sets how many multiprocessors a product may use. Setting none means all. */
bool take_target(int32_t *to, const void *from, size_t size)
{
    int device = 0, all = 0;
    int32_t value = 0;
    bool known = cudaGetDevice(&device) == cudaSuccess &&
                 cudaDeviceGetAttribute(&all, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    if (!known || !take(&value, from, size) || value < 1 || value > all) {
        return false;
    }
    *to = value;
    return true;
}

/* Writes with one call, because several processes share the file. */
void note(const description *p, const work *w)
{
    const char *path = getenv("SOFTGPU_LT_LOG");
    int fd = path != nullptr ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        char line[160];
        int size =
            snprintf(line, sizeof line, "product %c%c %lld %lld %lld sms %d\n", w->a_transposed ? 'T' : 'N',
                     w->b_transposed ? 'T' : 'N', (long long)w->m, (long long)w->n, (long long)w->k, (int)p->sm_target);
        if (write(fd, line, (size_t)size) != size) {
            softgpu_die("SOFTGPU_LT_LOG=%s: cannot be written", path);
        }
        (void)close(fd);
    }
}

cublasStatus_t status(bool good)
{
    return good ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

} // namespace

extern "C" {

/* calls in this process, for tests that count */
uint64_t softgpu_lt_products, softgpu_lt_proposals, softgpu_lt_epilogues;
/* number of kernel launches when a product was last described */
uint64_t softgpu_lt_described_at;
extern uint64_t softgpu_launch_count;

size_t cublasLtGetVersion(void)
{
    return 130100;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = (cublasLtHandle_t)malloc(1);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    softgpu_setup("cublasLtMatmulDescCreate");
    softgpu_lt_described_at = softgpu_launch_count;
    description *p = new description();
    p->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    p->tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    p->bias_type = p->aux_type = -1;
    *out = (cublasLtMatmulDesc_t)p;
    return status((compute == CUBLAS_COMPUTE_32F || p->tf32) && scale == CUDA_R_32F);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t p)
{
    delete (description *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t size)
{
    description *p = (description *)to;
    switch (what) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return status(take(&p->first, value, size));
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return status(take(&p->second, value, size));
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return status(take(&p->epilogue, value, size));
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return status(take(&p->bias, value, size));
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return status(take(&p->bias_type, value, size));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return status(take(&p->aux, value, size));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return status(take(&p->aux_ld, value, size));
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
        return status(take(&p->aux_type, value, size));
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return status(take_target(&p->sm_target, value, size));
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    softgpu_setup("cublasLtMatrixLayoutCreate");
    *out = (cublasLtMatrixLayout_t) new layout{type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t p)
{
    delete (layout *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    softgpu_setup("cublasLtMatmulPreferenceCreate");
    *out = (cublasLtMatmulPreference_t) new preference{0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    delete (preference *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t what, const void *value,
                                                    size_t size)
{
    preference *p = (preference *)to;
    switch (what) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return status(take(&p->workspace, value, size));
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return status(take(&p->schemes, value, size));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return status(take(&p->alignment[0], value, size));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return status(take(&p->alignment[1], value, size));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return status(take(&p->alignment[2], value, size));
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return status(take(&p->alignment[3], value, size));
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

/* An algorithm: its number, and the multiprocessors and alignments for which it was proposed.
 * Alignments of matrices are those promised; alignments of an epilogue's memory are those in the
 * description. The project forbids split sums in place, so a preference that allows them is
 * refused. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t out[], int *count)
{
    const preference *p = (const preference *)wish;
    work w;
    *count = 0;
    softgpu_setup("cublasLtMatmulAlgoGetHeuristic");
    (void)__atomic_add_fetch(&softgpu_lt_proposals, 1, __ATOMIC_RELAXED);
    if (handle == nullptr || most < 1 || (p->schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (!sizes((const description *)product, (const layout *)a, (const layout *)b, (const layout *)c, (const layout *)d,
               &w)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    for (int i = 0; i < 4; i++) {
        size_t least = size_of(i < 2 ? ((const layout *)a)->type : ((const layout *)d)->type);
        if (p->alignment[i] < least) {
            return CUBLAS_STATUS_NOT_SUPPORTED;
        }
    }
    for (int i = PROPOSALS - 1; i >= 0 && *count < most && softgpu_setting("SOFTGPU_LT_NONE", 0) == 0; i--) {
        if (workspaces[i] > p->workspace) {
            continue;
        }
        cublasLtMatmulHeuristicResult_t *r = &out[(*count)++];
        memset(r, 0, sizeof *r);
        r->algo.data[0] = (uint64_t)i + 1;
        for (int k = 0; k < 4; k++) {
            r->algo.data[1 + k] = p->alignment[k];
        }
        r->algo.data[5] = alignment_of(((const description *)product)->bias);
        r->algo.data[6] = alignment_of(((const description *)product)->aux);
        r->algo.data[7] = (uint64_t)((const description *)product)->sm_target;
        r->workspaceSize = workspaces[i];
        r->state = CUBLAS_STATUS_SUCCESS;
    }
    return *count > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *out)
{
    work w;
    softgpu_setup("cublasLtMatmulAlgoCheck");
    memset(out, 0, sizeof *out);
    if (handle == nullptr || algo->data[0] < 1 || algo->data[0] > PROPOSALS ||
        !sizes((const description *)product, (const layout *)a, (const layout *)b, (const layout *)c, (const layout *)d,
               &w)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    out->algo = *algo;
    out->workspaceSize = workspaces[algo->data[0] - 1];
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t product, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl, const void *beta,
                              const void *c, cublasLtMatrixLayout_t cl, void *d, cublasLtMatrixLayout_t dl,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,
                              cudaStream_t stream)
{
    const description *p = (const description *)product;
    const layout *la = (const layout *)al, *lb = (const layout *)bl, *lc = (const layout *)cl, *ld = (const layout *)dl;
    work *w = new work();
    if (handle == nullptr || algo == nullptr || algo->data[0] < 1 || algo->data[0] > PROPOSALS ||
        !sizes(p, la, lb, lc, ld, w)) {
        delete w;
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (workspace_bytes < workspaces[algo->data[0] - 1]) {
        softgpu_die("cublasLtMatmul: a workspace of %zu bytes for an algorithm that needs %zu", workspace_bytes,
                    workspaces[algo->data[0] - 1]);
    }
    if (algo->data[7] != (uint64_t)p->sm_target) {
        softgpu_die("cublasLtMatmul: told of %d multiprocessors, with an algorithm that was proposed for %d (0: all)",
                    (int)p->sm_target, (int)algo->data[7]);
    }
    on_device(a, (size_t)algo->data[1], "a");
    on_device(b, (size_t)algo->data[2], "b");
    on_device(c, (size_t)algo->data[3], "c");
    on_device(d, (size_t)algo->data[4], "d");
    if (has_bias(p->epilogue) || has_bias_gradient(p->epilogue)) {
        on_device(p->bias, (size_t)algo->data[5], "the bias or its gradient");
    }
    if (has_aux(p->epilogue)) {
        on_device(p->aux, (size_t)algo->data[6], "the auxiliary matrix");
    }
    if (workspace_bytes > 0) {
        on_device(workspace, 256, "the workspace");
    }
    w->d = d;
    w->a = a;
    w->b = b;
    w->c = c;
    w->bias = p->bias;
    w->aux = p->aux;
    w->aux_ld = p->aux_ld;
    w->epilogue = p->epilogue;
    w->a_type = la->type;
    w->b_type = lb->type;
    w->d_type = ld->type;
    w->bias_type = p->bias_type >= 0 ? (cudaDataType)p->bias_type : ld->type;
    w->lda = la->ld;
    w->ldb = lb->ld;
    w->ldc = lc->ld;
    w->ldd = ld->ld;
    w->a_transposed = p->first == CUBLAS_OP_T;
    w->b_transposed = p->second == CUBLAS_OP_T;
    w->tf32 = p->tf32 && la->type == CUDA_R_32F;
    w->alpha = *(const float *)alpha;
    w->beta = *(const float *)beta;
    w->workspace = workspace;
    w->workspace_bytes = workspace_bytes;
    w->algorithm = (int)algo->data[0];
    note(p, w);
    (void)__atomic_add_fetch(&softgpu_lt_products, 1, __ATOMIC_RELAXED);
    (void)__atomic_add_fetch(&softgpu_lt_epilogues, is_more(p->epilogue) ? 1 : 0, __ATOMIC_RELAXED);
    return softgpu_put_work(stream, "cublasLtMatmul", run, w, forget) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                                     : CUBLAS_STATUS_EXECUTION_FAILED;
}

} /* extern "C" */
