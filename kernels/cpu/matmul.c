/* The row `matmul`: slices of rows that the pool's threads take one by one; each is computed in one thread by oneDNN, or by our
 * own plain product. oneDNN (Debian's build runs on OpenMP) is told to use one thread. One thread alone takes the whole: 5 % less
 * time for wide products, and both libraries sum an element in an order that rows do not change (test_kernels compares the bits). */
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
            quad t0 = __builtin_shuffle(r0, r1, (quad_index){0, 4, 1, 5}), t1 = __builtin_shuffle(r0, r1, (quad_index){2, 6, 3, 7});
            quad t2 = __builtin_shuffle(r2, r3, (quad_index){0, 4, 1, 5}), t3 = __builtin_shuffle(r2, r3, (quad_index){2, 6, 3, 7});
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
static void use_one_thread(void)
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

/* The library's product of a transposed and a plain matrix loses a fifth of its speed: such an `a` is turned over first. */
void dt_gemm_onednn(const struct dt_gemm *g)
{
    use_one_thread();
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
    dnnl_sgemm('N', turned_b ? 'T' : 'N', g->m, g->n, g->k, 1.0F, a, lda, g->b, turned_b ? g->b_col : g->b_row, beta, g->c, g->ldc);
}

/* ---- the row ---- */

struct slices {
    struct dt_gemm whole;
    int64_t rows;
    void (*gemm)(const struct dt_gemm *g);
};

static void one_slice(void *context, int64_t part)
{
    const struct slices *x = context;
    struct dt_gemm g = x->whole;
    int64_t begin = part * x->rows;
    g.m = g.m - begin < x->rows ? g.m - begin : x->rows;
    g.a += begin * g.a_row;
    g.c += begin * g.ldc;
    x->gemm(&g);
}

static int matmul_now(struct dt_stream *s, const struct dt_matmul_args *a, void (*gemm)(const struct dt_gemm *g), struct dt_error *err)
{
    if (a->type != DT_F32) {
        return dt_fail(err, DT_INTERNAL, "matmul: type %s is not made", dt_dtype_name(a->type));
    }
    int64_t lda = a->lda != 0 ? a->lda : a->a_transposed ? a->m : a->k;
    int64_t ldb = a->ldb != 0 ? a->ldb : a->b_transposed ? a->k : a->n;
    struct slices x = {.gemm = gemm};
    x.whole = (struct dt_gemm){.c = a->c,
                               .a = a->a,
                               .b = a->b,
                               .bias = a->bias,
                               .m = a->m,
                               .n = a->n,
                               .k = a->k,
                               .a_row = a->a_transposed ? 1 : lda,
                               .a_col = a->a_transposed ? lda : 1,
                               .b_row = a->b_transposed ? 1 : ldb,
                               .b_col = a->b_transposed ? ldb : 1,
                               .ldc = a->ldc != 0 ? a->ldc : a->n,
                               .accumulate = a->accumulate};
    if (a->m <= 0 || a->n <= 0) {
        return 0;
    }
    bool whole = dt_pool_size(dt_cpu_pool(s)) == 1 && !a->a_transposed; /* turned over slice by slice it stays in the cache */
    int64_t count = whole ? 1 : (a->m + SLICE_ROWS - 1) / SLICE_ROWS;
    x.rows = ((a->m + count - 1) / count + 63) / 64 * 64;
    dt_pool_run(dt_cpu_pool(s), (a->m + x.rows - 1) / x.rows, one_slice, &x);
    return 0;
}

static int run_onednn(struct dt_stream *s, void *args, struct dt_error *err)
{
    return matmul_now(s, args, dt_gemm_onednn, err);
}

static int run_plain(struct dt_stream *s, void *args, struct dt_error *err)
{
    return matmul_now(s, args, dt_gemm_plain, err);
}

void dt_matmul_onednn(struct dt_stream *s, const struct dt_matmul_args *a)
{
    dt_stream_call(s, run_onednn, a, sizeof *a);
}

void dt_matmul_plain(struct dt_stream *s, const struct dt_matmul_args *a)
{
    dt_stream_call(s, run_plain, a, sizeof *a);
}
