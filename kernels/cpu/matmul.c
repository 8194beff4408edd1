/* The row `matmul`. The rows of c are cut into slices, which the pool's threads take one by one.
 * One thread computes a slice, by our own product, in BF16 also by oneDNN. A thread that works alone
 * takes many rows as one slice, which saves 5 % of wide products, and several take two slices each. Slices
 * of oneDNN are short, since its bits may depend on the number of rows, and so are those that are converted
 * to floats. If there are fewer slices than threads, our own product cuts the columns. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

#include <string.h>

#define SLICE_ROWS 256  /* most rows of a slice */
#define ALONE_ROWS 1024 /* of dot products by a thread that works alone; floats of them wait for the end of k */

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

/* ---- the row ---- */

struct slices {
    const struct dt_matmul_args *args;
    const struct dt_gemm_engine *engine;
    int64_t rows, cols, columns; /* of a slice; number of slices beside each other */
    int64_t a_row, a_col, b_row, b_col, ldc;
};

static int64_t at_most(int64_t x, int64_t most)
{
    return x < most ? x : most;
}

static void one_slice(void *context, int64_t part)
{
    const struct slices *x = context;
    const struct dt_matmul_args *a = x->args;
    int64_t begin = part / x->columns * x->rows, m = at_most(a->m - begin, x->rows);
    int64_t left = part % x->columns * x->cols, n = at_most(a->n - left, x->cols);
    size_t size = dt_dtype_size(a->type);
    const void *b = (const char *)a->b + (size_t)(left * x->b_col) * size,
               *bias = a->bias != NULL ? (const char *)a->bias + (size_t)left * size : NULL;
    if (a->type == DT_F32) {
        x->engine->f32(&(struct dt_gemm){.c = (float *)a->c + begin * x->ldc + left,
                                         .a = (const float *)a->a + begin * x->a_row,
                                         .b = b,
                                         .bias = bias,
                                         .m = m,
                                         .n = n,
                                         .k = a->k,
                                         .a_row = x->a_row,
                                         .a_col = x->a_col,
                                         .b_row = x->b_row,
                                         .b_col = x->b_col,
                                         .ldc = x->ldc,
                                         .accumulate = a->accumulate});
        return;
    }
    x->engine->half(
        &(struct dt_gemm_half){.few = a->m <= DT_FEW_ROWS,
                               .c = (char *)a->c + (size_t)(begin * x->ldc + left) * dt_dtype_size(a->c_type),
                               .a = (const uint16_t *)a->a + begin * x->a_row,
                               .b = b,
                               .bias = bias,
                               .m = m,
                               .n = n,
                               .k = a->k,
                               .a_row = x->a_row,
                               .a_col = x->a_col,
                               .b_row = x->b_row,
                               .b_col = x->b_col,
                               .ldc = x->ldc,
                               .accumulate = a->accumulate,
                               .c_is_f32 = a->c_type == DT_F32,
                               .type = a->type},
        x->engine->f32);
}

struct call {
    struct dt_matmul_args args;
    const struct dt_gemm_engine *engine;
};

/* True if an element's bits do not depend on the number of columns: those of our own products. */
static bool columns_keep_bits(const struct dt_matmul_args *a, const struct dt_bf16_ways *ways)
{
    bool own = ways == NULL || !(ways->onednn || (ways->dots && a->m <= DT_FEW_ROWS));
    return a->type != DT_BF16 || own;
}

static int run(struct dt_stream *s, void *args, struct dt_error *err)
{
    const struct call *call = args;
    const struct dt_matmul_args *a = &call->args;
    const struct dt_gemm_engine *e = call->engine;
    bool half = dt_dtype_half(a->type);
    if (a->type != DT_F32 && !(half && (a->c_type == DT_F32 || a->c_type == a->type))) {
        return dt_fail(err, DT_INTERNAL, "matmul: type %s is not made", dt_dtype_name(half ? a->c_type : a->type));
    }
    const struct dt_bf16_ways *ways = NULL;
    if (a->type == DT_BF16 && e->half == dt_gemm_bf16_faster && (ways = dt_bf16_ways(e->f32, err)) == NULL) {
        return -1;
    }
    int64_t lda = a->lda != 0 ? a->lda : a->a_transposed ? a->m : a->k;
    int64_t ldb = a->ldb != 0 ? a->ldb : a->b_transposed ? a->k : a->n;
    struct slices x = {.args = a,
                       .engine = e,
                       .a_row = a->a_transposed ? 1 : lda,
                       .a_col = a->a_transposed ? lda : 1,
                       .b_row = a->b_transposed ? 1 : ldb,
                       .b_col = a->b_transposed ? ldb : 1,
                       .ldc = a->ldc != 0 ? a->ldc : a->n};
    if (a->m <= 0 || a->n <= 0) {
        return 0;
    }
    bool dots = ways != NULL && ways->dots && !ways->onednn;
    int64_t threads = dt_pool_size(dt_cpu_pool(s)),
            most = half && !dots && a->a_transposed ? SLICE_ROWS / 2 : SLICE_ROWS;
    if (threads == 1 && (!half || dots)) {
        most = half ? ALONE_ROWS : a->m;
    }
    int64_t count = (a->m + most - 1) / most;
    if (!half && count > 2 * threads) { /* each slice packs b anew */
        count = 2 * threads;
    }
    x.rows = ((a->m + count - 1) / count + 63) / 64 * 64;
    count = (a->m + x.rows - 1) / x.rows;
    int64_t beside = count < threads && columns_keep_bits(a, ways) ? threads : 1;
    x.cols = ((a->n + beside - 1) / beside + 63) / 64 * 64;
    x.columns = (a->n + x.cols - 1) / x.cols;
    dt_pool_run(dt_cpu_pool(s), count * x.columns, one_slice, &x);
    return 0;
}

void dt_matmul_by(struct dt_stream *s, const struct dt_matmul_args *a, const struct dt_gemm_engine *e)
{
    const struct call call = {*a, e};
    dt_stream_call(s, run, &call, sizeof call);
}
