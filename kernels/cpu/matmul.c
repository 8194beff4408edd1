/* The row `matmul`: slices of rows that the pool's threads take one by one; each is computed in
 * one thread by oneDNN, or by our own plain product. oneDNN (Debian's build runs on OpenMP) is
 * told to use one thread. One thread alone takes the whole where an element's sum has an order
 * that rows do not change (test_kernels compares the bits): 5 % less time for wide products. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

#include <dlfcn.h>
#include <dnnl.h>
#include <string.h>

#define SLICE_ROWS 256 /* at most */

/* ---- transposing ---- */

typedef float quad __attribute__((vector_size(16)));
typedef int32_t quad_index __attribute__((vector_size(16)));

static inline quad quad_load(const float *p)
{
    quad q;
    memcpy(&q, p, sizeof q);
    return q;
}

static inline void quad_store(float *p, quad q)
{
    memcpy(p, &q, sizeof q);
}

void dt_transpose(float *to, int64_t step, const float *from, int64_t row, int64_t count, int64_t length)
{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        int64_t l = 0;
        for (; l + 4 <= length; l += 4) {
            quad r0 = quad_load(from + i * row + l), r1 = quad_load(from + (i + 1) * row + l);
            quad r2 = quad_load(from + (i + 2) * row + l), r3 = quad_load(from + (i + 3) * row + l);
            quad t0 = __builtin_shuffle(r0, r1, (quad_index){0, 4, 1, 5}),
                 t1 = __builtin_shuffle(r0, r1, (quad_index){2, 6, 3, 7});
            quad t2 = __builtin_shuffle(r2, r3, (quad_index){0, 4, 1, 5}),
                 t3 = __builtin_shuffle(r2, r3, (quad_index){2, 6, 3, 7});
            quad_store(to + l * step + i, __builtin_shuffle(t0, t2, (quad_index){0, 1, 4, 5}));
            quad_store(to + (l + 1) * step + i, __builtin_shuffle(t0, t2, (quad_index){2, 3, 6, 7}));
            quad_store(to + (l + 2) * step + i, __builtin_shuffle(t1, t3, (quad_index){0, 1, 4, 5}));
            quad_store(to + (l + 3) * step + i, __builtin_shuffle(t1, t3, (quad_index){2, 3, 6, 7}));
        }
        for (; l < length; l++) {
            for (int64_t j = i; j < i + 4; j++) {
                to[l * step + j] = from[j * row + l];
            }
        }
    }
    for (; i < count; i++) {
        for (int64_t l = 0; l < length; l++) {
            to[l * step + i] = from[i * row + l];
        }
    }
}

/* ---- one product ---- */

/* The OpenMP library keeps its thread count per thread. */
void dt_gemm_one_thread(void)
{
    static __thread bool done;
    if (done) {
        return;
    }
    done = true;
    void *symbol = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void (*set)(int) = NULL;
    memcpy(&set, &symbol, sizeof set);
    if (set != NULL) {
        set(1);
    }
}

/* The library's product of a transposed and a plain matrix loses a fifth of its speed: such an
 * `a` is turned over first. */
void dt_gemm_onednn(const struct dt_gemm *g)
{
    dt_gemm_one_thread();
    const float *a = g->a;
    int64_t lda = g->a_row;
    if (g->a_col != 1) {
        float *turned = dt_cpu_work(DT_WORK_TRANSPOSE, (size_t)(g->m * g->k) * sizeof(float));
        dt_transpose(turned, g->k, a, g->a_col, g->k, g->m);
        a = turned;
        lda = g->k;
    }
    for (int64_t i = 0; g->bias != NULL && i < g->m; i++) {
        memcpy(g->c + i * g->ldc, g->bias, (size_t)g->n * sizeof(float));
    }
    bool turned_b = g->b_col != 1;
    float beta = g->accumulate || g->bias != NULL ? 1.0F : 0.0F;
    dnnl_sgemm('N', turned_b ? 'T' : 'N', g->m, g->n, g->k, 1.0F, a, lda, g->b, turned_b ? g->b_col : g->b_row, beta,
               g->c, g->ldc);
}

/* ---- the row ---- */

/* What computes a product in one thread. */
struct engine {
    void (*f32)(const struct dt_gemm *g);
    void (*bf16)(const struct dt_gemm_bf16 *g);
    bool rows_change_bits; /* of F32; for BF16 they always may */
};

/* The library's kernels for AVX2 do not sum a matrix of many rows as they do its slices. */
static bool library_rows_change_bits(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) != dnnl_cpu_isa_avx512_core;
}

struct slices {
    const struct dt_matmul_args *args;
    const struct engine *engine;
    int64_t rows, a_row, a_col, b_row, b_col, ldc;
};

static void one_slice(void *context, int64_t part)
{
    const struct slices *x = context;
    const struct dt_matmul_args *a = x->args;
    int64_t begin = part * x->rows, m = a->m - begin < x->rows ? a->m - begin : x->rows;
    if (a->type == DT_F32) {
        x->engine->f32(&(struct dt_gemm){.c = (float *)a->c + begin * x->ldc,
                                         .a = (const float *)a->a + begin * x->a_row,
                                         .b = a->b,
                                         .bias = a->bias,
                                         .m = m,
                                         .n = a->n,
                                         .k = a->k,
                                         .a_row = x->a_row,
                                         .a_col = x->a_col,
                                         .b_row = x->b_row,
                                         .b_col = x->b_col,
                                         .ldc = x->ldc,
                                         .accumulate = a->accumulate});
        return;
    }
    x->engine->bf16(&(struct dt_gemm_bf16){.c = (char *)a->c + (size_t)(begin * x->ldc) * dt_dtype_size(a->c_type),
                                           .a = (const uint16_t *)a->a + begin * x->a_row,
                                           .b = a->b,
                                           .bias = a->bias,
                                           .m = m,
                                           .n = a->n,
                                           .k = a->k,
                                           .a_row = x->a_row,
                                           .a_col = x->a_col,
                                           .b_row = x->b_row,
                                           .b_col = x->b_col,
                                           .ldc = x->ldc,
                                           .accumulate = a->accumulate,
                                           .c_is_f32 = a->c_type == DT_F32});
}

static int matmul_now(struct dt_stream *s, const struct dt_matmul_args *a, const struct engine *engine,
                      struct dt_error *err)
{
    bool half = a->type == DT_BF16;
    if (a->type != DT_F32 && !(half && (a->c_type == DT_F32 || a->c_type == DT_BF16))) {
        return dt_fail(err, DT_INTERNAL, "matmul: type %s is not made", dt_dtype_name(half ? a->c_type : a->type));
    }
    int64_t lda = a->lda != 0 ? a->lda : a->a_transposed ? a->m : a->k;
    int64_t ldb = a->ldb != 0 ? a->ldb : a->b_transposed ? a->k : a->n;
    struct slices x = {.args = a,
                       .engine = engine,
                       .a_row = a->a_transposed ? 1 : lda,
                       .a_col = a->a_transposed ? lda : 1,
                       .b_row = a->b_transposed ? 1 : ldb,
                       .b_col = a->b_transposed ? ldb : 1,
                       .ldc = a->ldc != 0 ? a->ldc : a->n};
    if (a->m <= 0 || a->n <= 0) {
        return 0;
    }
    /* Turned over slice by slice it stays in the cache. */
    bool whole = dt_pool_size(dt_cpu_pool(s)) == 1 && !a->a_transposed && !half && !engine->rows_change_bits;
    int64_t most = half && a->a_transposed ? SLICE_ROWS / 2 : SLICE_ROWS, count = whole ? 1 : (a->m + most - 1) / most;
    x.rows = ((a->m + count - 1) / count + 63) / 64 * 64;
    dt_pool_run(dt_cpu_pool(s), (a->m + x.rows - 1) / x.rows, one_slice, &x);
    return 0;
}

static int run_onednn(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct dt_matmul_args *a = args;
    if (a->type == DT_BF16 && dt_gemm_bf16_choose(err) != 0) {
        return -1;
    }
    return matmul_now(s, a, &(struct engine){dt_gemm_onednn, dt_gemm_bf16_onednn, library_rows_change_bits()}, err);
}

static int run_plain(struct dt_stream *s, void *args, struct dt_error *err)
{
    return matmul_now(s, args, &(struct engine){dt_gemm_plain, dt_gemm_bf16_plain, false}, err);
}

void dt_matmul_onednn(struct dt_stream *s, const struct dt_matmul_args *a)
{
    dt_stream_call(s, run_onednn, a, sizeof *a);
}

void dt_matmul_own(struct dt_stream *s, const struct dt_matmul_args *a)
{
    dt_stream_call(s, run_plain, a, sizeof *a);
}
