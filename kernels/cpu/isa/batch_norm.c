/* Batch norm in steps. Sums over rows are F32 within blocks of ROWS rows, and then F64 over the blocks
 * in order, so they depend on the shape alone. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/moments.h"

#include <math.h>

#define ROWS 128       /* of a block */
enum { TOGETHER = 4 }; /* vectors of columns that are read row by row */

/* A call, and two sums of each block and column: (blocks, 2, cols). */
struct blocks {
    const void *args;
    float *sums;
    int64_t rows, cols;
};

static struct blocks blocks_of(const void *args, int64_t rows, int64_t cols)
{
    size_t sums = (size_t)(parts_of(rows, ROWS) * 2 * cols);
    return (struct blocks){args, dt_cpu_work(DT_WORK_KERNEL, sums * sizeof(float) + 64), rows, cols};
}

/* ---- moments ---- */

/* Moments of `vectors` vectors of columns from c on; the columns of a row that share a cache line are read
 * together. */
INLINE void moments_of_columns(const struct blocks *k, const void *x, int64_t part, int64_t c, int vectors,
                               enum dt_dtype type)
{
    int64_t C = k->cols, begin = part * ROWS, end = min64(k->rows, begin + ROWS);
    float *to = k->sums + part * 2 * C + c;
    const vec count = vec_all((float)(end - begin));
    vec mean[TOGETHER] = {0}, squares[TOGETHER] = {0};
    for (int64_t i = begin; i < end; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            mean[v] += vec_get(x, i * C + c + v * VEC, C - c - v * VEC, type);
        }
    }
    for (int v = 0; v < vectors; v++) {
        mean[v] /= count;
    }
    for (int64_t i = begin; i < end; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            vec d = vec_get(x, i * C + c + v * VEC, C - c - v * VEC, type) - mean[v];
            squares[v] = vec_fma(d, d, squares[v]);
        }
    }
    for (int v = 0; v < vectors; v++) {
        vec_store_n(to + v * VEC, mean[v], C - c - v * VEC);
        vec_store_n(to + C + v * VEC, squares[v], C - c - v * VEC);
    }
}

INLINE void moments_of(const struct blocks *k, const void *x, int64_t part, enum dt_dtype type)
{
    int64_t c = 0;
    for (; c + TOGETHER * VEC <= k->cols; c += TOGETHER * VEC) {
        moments_of_columns(k, x, part, c, TOGETHER, type);
    }
    for (; c < k->cols; c += VEC) {
        moments_of_columns(k, x, part, c, 1, type);
    }
}

static void moments_part(void *context, int64_t part)
{
    const struct blocks *k = context;
    const struct dt_batch_moments_args *a = k->args;
    if (DT_IS_HALF(a->type)) {
        moments_of(k, a->x, part, DT_HALF);
    } else {
        moments_of(k, a->x, part, DT_F32);
    }
}

static int batch_moments_now(struct dt_pool *pool, struct dt_batch_moments_args *a, struct dt_error *err)
{
    (void)err;
    struct blocks k = blocks_of(a, a->row_count, a->col_count);
    int64_t parts = parts_of(k.rows, ROWS), C = k.cols;
    float *moments = a->moments;
    dt_pool_run(pool, parts, moments_part, &k);
    for (int64_t c = 0; c < C; c++) {
        double mean = 0, squares = 0, rows = 0;
        for (int64_t p = 0; p < parts; p++) {
            const float *from = k.sums + p * 2 * C + c;
            dt_moments_add(&mean, &squares, &rows, from[0], from[C], (double)min64(ROWS, k.rows - p * ROWS));
        }
        moments[c] = (float)mean;
        moments[C + c] = (float)squares;
    }
    moments[2 * C] = (float)k.rows;
    return 0;
}
DT_ISA_KERNEL(batch_moments)

/* Takes the running values as the statistics. */
static void take_running(const struct dt_batch_merge_args *a)
{
    float *statistics = a->statistics;
    const float *mean = a->running_mean, *var = a->running_var;
    for (int64_t c = 0; c < a->col_count; c++) {
        statistics[c] = mean[c];
        statistics[a->col_count + c] = (float)(1.0 / sqrt((double)var[c] + a->eps));
    }
    statistics[2 * a->col_count] = 0;
}

static void move_running(float *running, double momentum, double batch)
{
    *running = (float)((1 - momentum) * (double)*running + momentum * batch);
}

static int batch_merge_now(struct dt_pool *pool, struct dt_batch_merge_args *a, struct dt_error *err)
{
    (void)pool;
    (void)err;
    int64_t C = a->col_count;
    float *statistics = a->statistics, *running_mean = a->running_mean, *running_var = a->running_var;
    double rows = 0;
    if (a->moments == NULL) {
        take_running(a);
        return 0;
    }
    for (int64_t c = 0; c < C; c++) {
        double mean = 0, squares = 0;
        rows = 0;
        for (int64_t p = 0; p < a->parts; p++) {
            const float *part = (const float *)a->moments + p * (2 * C + 1);
            dt_moments_add(&mean, &squares, &rows, part[c], part[C + c], part[2 * C]);
        }
        statistics[c] = (float)mean;
        statistics[C + c] = (float)(1.0 / sqrt((rows > 0 ? squares / rows : 0) + a->eps));
        if (running_mean != NULL && rows > 0) {
            move_running(&running_mean[c], a->momentum, mean);
            move_running(&running_var[c], a->momentum, squares / (rows > 1 ? rows - 1 : 1));
        }
    }
    statistics[2 * C] = (float)rows;
    if (running_mean != NULL && rows > 0) {
        *(float *)a->tracked += 1;
    }
    return 0;
}
DT_ISA_KERNEL(batch_merge)

/* ---- the norm ---- */

INLINE void norm_rows(const struct dt_batch_norm_args *a, int64_t begin, int64_t end, enum dt_dtype type)
{
    int64_t C = a->col_count;
    const float *mean = a->statistics, *rstd = mean + C;
    const void *x = a->x, *gamma = a->gamma, *beta = a->beta, *residual = a->residual;
    void *y = a->y;
    bool relu = a->relu;
    for (int64_t i = begin; i < end; i++) {
        for (int64_t c = 0; c < C; c += VEC) {
            int64_t n = C - c;
            vec factor = vec_load_n(rstd + c, n) * vec_get(gamma, c, n, type);
            vec v =
                vec_fma(vec_get(x, i * C + c, n, type) - vec_load_n(mean + c, n), factor, vec_get(beta, c, n, type));
            if (residual != NULL) {
                v += vec_get(residual, i * C + c, n, type);
            }
            vec_put(y, i * C + c, relu ? vec_pick(v < 0, vec_all(0), v) : v, n, type);
        }
    }
}

static void norm_part(void *context, int64_t part)
{
    const struct dt_batch_norm_args *a = context;
    int64_t begin = part * ROWS, end = min64(a->row_count, begin + ROWS);
    if (DT_IS_HALF(a->type)) {
        norm_rows(a, begin, end, DT_HALF);
    } else {
        norm_rows(a, begin, end, DT_F32);
    }
}

static int batch_norm_now(struct dt_pool *pool, struct dt_batch_norm_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count, ROWS), norm_part, a);
    return 0;
}
DT_ISA_KERNEL(batch_norm)

/* ---- its gradients ---- */

/* Sums for the gradients, of columns as above. */
INLINE void sums_of_columns(const struct blocks *k, const struct dt_batch_norm_sums_args *a, int64_t part, int64_t c,
                            int vectors, enum dt_dtype type)
{
    int64_t C = k->cols, begin = part * ROWS, end = min64(k->rows, begin + ROWS);
    const float *mean = a->statistics;
    const void *dy = a->dy, *y = a->y, *x = a->x;
    void *dz = a->dz;
    float *to = k->sums + part * 2 * C + c;
    vec m[TOGETHER], sum[TOGETHER] = {0}, product[TOGETHER] = {0};
    for (int v = 0; v < vectors; v++) {
        m[v] = vec_load_n(mean + c + v * VEC, C - c - v * VEC);
    }
    for (int64_t i = begin; i < end; i++) {
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            int64_t at = i * C + c + v * VEC, n = C - c - v * VEC;
            vec d = vec_get(dy, at, n, type);
            if (y != NULL) {
                d = vec_pick(vec_get(y, at, n, type) > 0, d, vec_all(0));
                vec_put(dz, at, d, n, type);
            }
            sum[v] += d;
            product[v] = vec_fma(d, vec_get(x, at, n, type) - m[v], product[v]);
        }
    }
    for (int v = 0; v < vectors; v++) {
        vec_store_n(to + v * VEC, sum[v], C - c - v * VEC);
        vec_store_n(to + C + v * VEC, product[v], C - c - v * VEC);
    }
}

INLINE void sums_of(const struct blocks *k, const struct dt_batch_norm_sums_args *a, int64_t part, enum dt_dtype type)
{
    int64_t c = 0;
    for (; c + TOGETHER * VEC <= k->cols; c += TOGETHER * VEC) {
        sums_of_columns(k, a, part, c, TOGETHER, type);
    }
    for (; c < k->cols; c += VEC) {
        sums_of_columns(k, a, part, c, 1, type);
    }
}

static void sums_part(void *context, int64_t part)
{
    const struct blocks *k = context;
    const struct dt_batch_norm_sums_args *a = k->args;
    if (DT_IS_HALF(a->type)) {
        sums_of(k, a, part, DT_HALF);
    } else {
        sums_of(k, a, part, DT_F32);
    }
}

/* gradient = [gradient +] value, of type `type`; may be null. */
INLINE void put_gradient(void *gradient, int64_t c, double value, bool accumulate, enum dt_dtype type)
{
    if (gradient != NULL) {
        vec before = accumulate ? vec_get(gradient, c, 1, type) : vec_all(0);
        vec_put(gradient, c, vec_all((float)((double)before[0] + value)), 1, type);
    }
}

static int batch_norm_sums_now(struct dt_pool *pool, struct dt_batch_norm_sums_args *a, struct dt_error *err)
{
    (void)err;
    struct blocks k = blocks_of(a, a->row_count, a->col_count);
    int64_t parts = parts_of(k.rows, ROWS), C = k.cols;
    const float *rstd = (const float *)a->statistics + C;
    enum dt_dtype type = DT_IS_HALF(a->type) ? a->grad_type : a->type;
    float *sums = a->sums;
    dt_pool_run(pool, parts, sums_part, &k);
    for (int64_t c = 0; c < C; c++) {
        double sum = 0, product = 0;
        for (int64_t p = 0; p < parts; p++) {
            sum += k.sums[p * 2 * C + c];
            product += k.sums[p * 2 * C + C + c];
        }
        sums[c] = (float)sum;
        sums[C + c] = (float)product;
        put_gradient(a->dgamma, c, product * (double)rstd[c], a->accumulate, type);
        put_gradient(a->dbeta, c, sum, a->accumulate, type);
    }
    return 0;
}
DT_ISA_KERNEL(batch_norm_sums)

INLINE void back_rows(const struct dt_batch_norm_backward_args *a, int64_t begin, int64_t end, enum dt_dtype type)
{
    int64_t C = a->col_count;
    const float *mean = a->statistics, *rstd = mean + C, *sums = a->sums;
    const void *dz = a->dz, *x = a->x, *gamma = a->gamma;
    void *dx = a->dx;
    const vec share = vec_all(1.0F / (mean[2 * C] > 0 ? mean[2 * C] : 1));
    for (int64_t i = begin; i < end; i++) {
        for (int64_t c = 0; c < C; c += VEC) {
            int64_t n = C - c;
            vec s = vec_load_n(rstd + c, n), d = vec_get(x, i * C + c, n, type) - vec_load_n(mean + c, n);
            vec through = vec_load_n(sums + c, n) + d * s * s * vec_load_n(sums + C + c, n);
            vec v = vec_get(gamma, c, n, type) * s * vec_fma(-through, share, vec_get(dz, i * C + c, n, type));
            vec_put(dx, i * C + c, v, n, type);
        }
    }
}

static void back_part(void *context, int64_t part)
{
    const struct dt_batch_norm_backward_args *a = context;
    int64_t begin = part * ROWS, end = min64(a->row_count, begin + ROWS);
    if (DT_IS_HALF(a->type)) {
        back_rows(a, begin, end, DT_HALF);
    } else {
        back_rows(a, begin, end, DT_F32);
    }
}

static int batch_norm_backward_now(struct dt_pool *pool, struct dt_batch_norm_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count, ROWS), back_part, a);
    return 0;
}
DT_ISA_KERNEL(batch_norm_backward)
