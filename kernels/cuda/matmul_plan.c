/* Makes a plan: descriptors, the library's proposals, the choice in the plan file. Our row-major
 * matrices are the library's column-major ones transposed. So we ask for c^T = op(b)^T op(a)^T: our
 * b is its first operand, and a bias along our columns, or its gradient, is one along its rows. */
#include "kernels/cuda/matmul_plan.h"

#include "base/log.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static cudaDataType type_of(uint8_t type)
{
    return type == DT_BF16 ? CUDA_R_16BF : type == DT_F16 ? CUDA_R_16F : CUDA_R_32F;
}

static bool set(const struct matmul_cache *c, cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                const void *value, size_t size)
{
    return c->lt->cublasLtMatmulDescSetAttribute(d, what, value, size) == CUBLAS_STATUS_SUCCESS;
}

bool matmul_has_aux(const struct dt_matmul_key *k)
{
    return k->epilogue == DT_MATMUL_GELU || k->epilogue == DT_MATMUL_GELU_BACKWARD ||
           k->epilogue == DT_MATMUL_GELU_ALONE_BACKWARD;
}

static const cublasLtEpilogue_t epilogues[] = {
    [DT_MATMUL_PLAIN] = CUBLASLT_EPILOGUE_DEFAULT,          [DT_MATMUL_BIAS] = CUBLASLT_EPILOGUE_BIAS,
    [DT_MATMUL_GELU] = CUBLASLT_EPILOGUE_GELU_AUX_BIAS,     [DT_MATMUL_GELU_BACKWARD] = CUBLASLT_EPILOGUE_DGELU_BGRAD,
    [DT_MATMUL_BIAS_BACKWARD] = CUBLASLT_EPILOGUE_BGRADA, /* the library's first operand is our b */
    [DT_MATMUL_BIAS_BACKWARD_A] = CUBLASLT_EPILOGUE_BGRADB, [DT_MATMUL_GELU_ALONE_BACKWARD] = CUBLASLT_EPILOGUE_DGELU,
};

/* The library proposes by the alignment of the pointers that it is shown. The real ones are set
 * before each run. */
static bool describe_epilogue(const struct matmul_cache *c, const struct matmul_plan *p)
{
    const struct dt_matmul_key *k = &p->key;
    const void *aligned = (const void *)((uintptr_t)1 << 40 | k->vector_alignment);
    cudaDataType bias_type = type_of(k->epilogue >= DT_MATMUL_BIAS_BACKWARD ? k->c_type : k->type);
    bool vector = k->epilogue != DT_MATMUL_PLAIN && k->epilogue != DT_MATMUL_GELU_ALONE_BACKWARD;
    return set(c, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogues[k->epilogue], sizeof epilogues[0]) &&
           (!vector || (set(c, p->product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type) &&
                        set(c, p->product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &aligned, sizeof aligned))) &&
           (!matmul_has_aux(k) ||
            (set(c, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->n, sizeof k->n) &&
             set(c, p->product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aligned, sizeof aligned)));
}

/* Beside a collective: tells the library how many multiprocessors are left. A collective that may
 * take them all leaves none to plan for. */
static bool describe_room(const struct matmul_cache *c, const struct matmul_plan *p)
{
    int32_t left = (int32_t)(c->sm_count - p->key.busy_sms);
    return p->key.busy_sms <= 0 || left < 1 ||
           set(c, p->product, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET, &left, sizeof left);
}

static bool describe(const struct matmul_cache *c, struct matmul_plan *p)
{
    const struct dt_matmul_key *k = &p->key;
    const struct dt_lt *lt = c->lt;
    cublasOperation_t first = k->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                      second = k->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint64_t b_rows = (uint64_t)(k->b_transposed ? k->k : k->n), b_cols = (uint64_t)(k->b_transposed ? k->n : k->k);
    uint64_t a_rows = (uint64_t)(k->a_transposed ? k->m : k->k), a_cols = (uint64_t)(k->a_transposed ? k->k : k->m);
    cublasComputeType_t compute = k->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    return lt->cublasLtMatmulDescCreate(&p->product, compute, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           set(c, p->product, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first) &&
           set(c, p->product, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second) && describe_epilogue(c, p) &&
           describe_room(c, p) &&
           lt->cublasLtMatrixLayoutCreate(&p->b, type_of(k->type), b_rows, b_cols, k->ldb) == CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatrixLayoutCreate(&p->a, type_of(k->type), a_rows, a_cols, k->lda) == CUBLAS_STATUS_SUCCESS &&
           lt->cublasLtMatrixLayoutCreate(&p->c, type_of(k->c_type), (uint64_t)k->n, (uint64_t)k->m, k->ldc) ==
               CUBLAS_STATUS_SUCCESS;
}

/* If the library cuts a product along k, it may add the parts in fp32 only. Adding in place has no
 * fixed order, and adding in the type of the result would round each part. */
int matmul_plan_propose(const struct matmul_cache *c, const struct matmul_plan *p, cublasLtMatmulHeuristicResult_t *out,
                        int most)
{
    const struct dt_lt *lt = c->lt;
    cublasLtMatmulPreference_t wish = NULL;
    uint64_t workspace = DT_CUDA_WORK_BYTES;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t a = p->key.a_alignment, b = p->key.b_alignment, result = p->key.c_alignment;
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
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result, sizeof result},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result, sizeof result},
    };
    bool good = lt->cublasLtMatmulPreferenceCreate(&wish) == CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; good && i < sizeof wishes / sizeof wishes[0]; i++) {
        good = lt->cublasLtMatmulPreferenceSetAttribute(wish, wishes[i].what, wishes[i].value, wishes[i].size) ==
               CUBLAS_STATUS_SUCCESS;
    }
    good = good && lt->cublasLtMatmulAlgoGetHeuristic(c->handle, p->product, p->b, p->a, p->c, p->c, wish, most, out,
                                                      &count) == CUBLAS_STATUS_SUCCESS;
    if (wish != NULL) {
        (void)lt->cublasLtMatmulPreferenceDestroy(wish);
    }
    return good ? count : 0;
}

static bool is_separate(const struct dt_matmul_algo *a)
{
    static const struct dt_matmul_algo none;
    return memcmp(a, &none, sizeof none) == 0;
}

/* Takes the algorithm from the file, if the library still accepts it. */
static bool remembered(const struct matmul_cache *c, struct matmul_plan *p)
{
    const struct dt_matmul_algo *known = dt_plan_file_find(c->file, &p->key);
    cublasLtMatmulHeuristicResult_t checked;
    if (known == NULL || is_separate(known)) {
        return false;
    }
    _Static_assert(sizeof p->algo == sizeof known->words, "an algorithm is eight words");
    memcpy(&p->algo, known->words, sizeof p->algo);
    if (c->lt->cublasLtMatmulAlgoCheck(c->handle, p->product, p->b, p->a, p->c, p->c, &p->algo, &checked) !=
            CUBLAS_STATUS_SUCCESS ||
        checked.workspaceSize > DT_CUDA_WORK_BYTES) {
        dt_log(DT_LOG_WARN, "matmul",
               "cublasLt refuses the algorithm that was measured for %" PRId64 " x %" PRId64 " x %" PRId64
               "; its first proposal is taken",
               p->key.m, p->key.n, p->key.k);
        return false;
    }
    p->workspace_bytes = checked.workspaceSize;
    return true;
}

void matmul_plan_free(const struct matmul_cache *c, struct matmul_plan *p)
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

/* The library requires that gradients of biases have the type of the result, and that rows of aux
 * are multiples of 8 elements. It adds nothing to them; GELU's gradient can leave that to our own
 * kernel. */
bool matmul_epilogue_fits(const struct dt_matmul_args *a)
{
    uintptr_t vectors = (uintptr_t)a->bias | (uintptr_t)a->aux | (uintptr_t)a->bias_gradient;
    if (!dt_dtype_half(a->type) || (a->accumulate && a->epilogue != DT_EPILOGUE_GELU_BACKWARD) || a->m <= 0 ||
        a->n <= 0 || vectors % DT_MATMUL_ALIGNMENT_LEAST != 0) {
        return false;
    }
    switch (a->epilogue) {
    case DT_EPILOGUE_GELU:
    case DT_EPILOGUE_GELU_BACKWARD:
        return a->n % 8 == 0;
    case DT_EPILOGUE_BIAS_BACKWARD:
    case DT_EPILOGUE_BIAS_BACKWARD_A:
        return a->grad_type == a->c_type;
    case DT_EPILOGUE_NONE:
        return false;
    }
    return false;
}

bool matmul_fits(const struct matmul_cache *c, const struct dt_matmul_key *k)
{
    if (k->epilogue == DT_MATMUL_BIAS && dt_dtype_half((enum dt_dtype)k->type) &&
        k->c_type == DT_F32) { /* the bias would have to be F32, too (cuBLAS, cublasLtMatmul's
                                * table of types) */
        return false;
    }
    return c->handle != NULL && k->epilogue < sizeof epilogues / sizeof epilogues[0] && k->m <= INT32_MAX &&
           k->n <= INT32_MAX && k->k <= INT32_MAX && k->k > 0 &&
           k->a_alignment >= dt_dtype_size((enum dt_dtype)k->type);
}

struct matmul_plan *matmul_plan_describe(const struct matmul_cache *c, const struct dt_matmul_key *key)
{
    struct matmul_plan *p = dt_alloc(sizeof *p);
    p->key = *key;
    if (!describe(c, p)) {
        matmul_plan_free(c, p);
        return NULL;
    }
    return p;
}

/* Warns, because our own kernel is tens of times slower and has other bits. If only the epilogue is
 * unsupported, the product still runs in the library. */
static void warn_about_plain(const struct matmul_cache *c, const struct dt_matmul_key *k)
{
    if (c->handle != NULL && k->k > 0 && k->epilogue <= DT_MATMUL_BIAS) {
        dt_log(DT_LOG_WARN, "matmul",
               "cublasLt takes no product of %s of %" PRId64 " x %" PRId64 " x %" PRId64
               "; it runs on a slower kernel of our own",
               dt_dtype_name((enum dt_dtype)k->type), k->m, k->n, k->k);
    }
}

struct matmul_plan *matmul_plan_make(const struct matmul_cache *c, const struct dt_matmul_key *key)
{
    cublasLtMatmulHeuristicResult_t found;
    struct matmul_plan *p = matmul_fits(c, key) ? matmul_plan_describe(c, key) : NULL;
    if (p != NULL && !remembered(c, p)) {
        if (key->epilogue <= DT_MATMUL_BIAS && matmul_plan_propose(c, p, &found, 1) > 0 &&
            found.state == CUBLAS_STATUS_SUCCESS) {
            p->algo = found.algo;
            p->workspace_bytes = found.workspaceSize;
        } else {
            matmul_plan_free(c, p);
            p = NULL;
        }
    }
    if (p == NULL) {
        warn_about_plain(c, key);
        p = dt_alloc(sizeof *p);
        p->key = *key;
        p->plain = true;
    }
    return p;
}
