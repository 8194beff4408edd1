/* LayerNorm forward (with the residual sum) and backward. Rows are cut into blocks. The sums for
 * gamma and beta add blocks of rows in order, so they have the same bits with any number of
 * threads. With one thread, both parts of backward use a block while it is in the cache. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define ROW_BLOCK 32
#define COLUMNS 64

INLINE void forward_row(const struct dt_layernorm_args *a, int64_t row, enum dt_dtype type)
{
    int64_t cols = a->col_count, at = row * cols;
    const void *x = a->residual, *branch = a->branch, *gamma = a->gamma, *beta = a->beta;
    void *y = a->y;
    vec total = {0};
    if (branch != NULL || a->residual_out != NULL) {
        void *sum = a->residual_out != NULL ? a->residual_out : y;
        for (int64_t j = 0; j < cols; j += VEC) {
            vec v = vec_get(x, at + j, cols - j, type);
            v = branch != NULL ? vec_rounded(v + vec_get(branch, at + j, cols - j, type), type) : v;
            vec_put(sum, at + j, v, cols - j, type);
            total += v;
        }
        x = sum;
    } else {
        for (int64_t j = 0; j < cols; j += VEC) {
            total += vec_get(x, at + j, cols - j, type);
        }
    }
    float mean = vec_sum(total) / (float)cols;
    vec squares = {0};
    int64_t j = 0;
    for (; j + VEC <= cols; j += VEC) {
        vec d = vec_get(x, at + j, VEC, type) - mean;
        squares = vec_fma(d, d, squares);
    }
    if (j < cols) {
        vec d = vec_get(x, at + j, cols - j, type) - mean;
        d = vec_pick(vec_index() < (int32_t)(cols - j), d, vec_all(0));
        squares = vec_fma(d, d, squares);
    }
    float rstd = 1.0F / sqrtf(vec_sum(squares) / (float)cols + (float)a->eps);
    for (j = 0; j < cols; j += VEC) {
        vec h = (vec_get(x, at + j, cols - j, type) - mean) * rstd;
        vec_put(y, at + j, vec_fma(h, vec_get(gamma, j, cols - j, type), vec_get(beta, j, cols - j, type)), cols - j,
                type);
    }
    ((float *)a->mean)[row] = mean;
    ((float *)a->rstd)[row] = rstd;
}

static void layernorm_part(void *context, int64_t part)
{
    const struct dt_layernorm_args *a = context;
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        if (a->type == DT_BF16) {
            forward_row(a, row, DT_BF16);
        } else {
            forward_row(a, row, DT_F32);
        }
    }
}

static int layernorm_now(struct dt_pool *pool, struct dt_layernorm_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), layernorm_part, a);
    return 0;
}
DT_ISA_KERNEL(layernorm)

/* dx = rstd (g - mean(g) - h mean(g h)) + dresidual; g = dy gamma, h = (x - mean) rstd */
INLINE void backward_row(const struct dt_layernorm_backward_args *a, int64_t row, enum dt_dtype type)
{
    int64_t cols = a->col_count, at = row * cols;
    const void *dy = a->dy, *x = a->x, *gamma = a->gamma, *above = a->dresidual;
    void *dx = a->dx;
    float mean = ((const float *)a->mean)[row], rstd = ((const float *)a->rstd)[row];
    vec sum = {0}, dot = {0};
    for (int64_t j = 0; j < cols; j += VEC) {
        /* lanes behind the end are 0 */
        vec g = vec_get(dy, at + j, cols - j, type) * vec_get(gamma, j, cols - j, type);
        sum += g;
        dot = vec_fma(g, (vec_get(x, at + j, cols - j, type) - mean) * rstd, dot);
    }
    float m = vec_sum(sum) / (float)cols, d = vec_sum(dot) / (float)cols;
    for (int64_t j = 0; j < cols; j += VEC) {
        vec g = vec_get(dy, at + j, cols - j, type) * vec_get(gamma, j, cols - j, type);
        vec h = (vec_get(x, at + j, cols - j, type) - mean) * rstd;
        vec v = vec_fma(h, vec_all(-d), g - m);
        v = above != NULL ? vec_fma(v, vec_all(rstd), vec_get(above, at + j, cols - j, type)) : v * rstd;
        vec_put(dx, at + j, v, cols - j, type);
    }
}

struct backward {
    const struct dt_layernorm_backward_args *args;
    /* the gradients themselves, or floats that are rounded to them at the end */
    float *dgamma, *dbeta;
};

/* Adds rows [begin, end), one block, to columns [from, to) of dgamma and dbeta. */
INLINE void add_columns(const struct backward *c, int64_t begin, int64_t end, int64_t from, int64_t to,
                        enum dt_dtype type)
{
    const struct dt_layernorm_backward_args *a = c->args;
    int64_t cols = a->col_count;
    const float *mean = a->mean, *rstd = a->rstd;
    for (int64_t j = from; j < to; j += 2 * VEC) {
        vec g[2] = {{0}}, b[2] = {{0}};
        for (int64_t r = begin; r < end; r++) {
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                int64_t at = j + v * VEC;
                if (at < to) {
                    vec y = vec_get(a->dy, r * cols + at, to - at, type);
                    g[v] = vec_fma(y, (vec_get(a->x, r * cols + at, to - at, type) - mean[r]) * rstd[r], g[v]);
                    b[v] += y;
                }
            }
        }
        for (int v = 0; v < 2; v++) {
            int64_t at = j + v * VEC;
            if (at < to) {
                bool first = begin == 0 && !a->accumulate;
                vec_store_n(c->dgamma + at, first ? g[v] : vec_load_n(c->dgamma + at, to - at) + g[v], to - at);
                vec_store_n(c->dbeta + at, first ? b[v] : vec_load_n(c->dbeta + at, to - at) + b[v], to - at);
            }
        }
    }
}

static void backward_rows_part(void *context, int64_t part)
{
    const struct dt_layernorm_backward_args *a = ((const struct backward *)context)->args;
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        if (a->type == DT_BF16) {
            backward_row(a, row, DT_BF16);
        } else {
            backward_row(a, row, DT_F32);
        }
    }
}

static void backward_columns(const struct backward *c, int64_t begin, int64_t from, int64_t to)
{
    int64_t end = min64(c->args->row_count, begin + ROW_BLOCK);
    if (c->args->type == DT_BF16) {
        add_columns(c, begin, end, from, to, DT_BF16);
    } else {
        add_columns(c, begin, end, from, to, DT_F32);
    }
}

static void backward_columns_part(void *context, int64_t part)
{
    const struct backward *c = context;
    for (int64_t row = 0; row < c->args->row_count; row += ROW_BLOCK) {
        backward_columns(c, row, part * COLUMNS, min64(c->args->col_count, (part + 1) * COLUMNS));
    }
}

static void backward_parts(struct dt_pool *pool, struct backward *c)
{
    const struct dt_layernorm_backward_args *a = c->args;
    /* compute dgamma and dbeta first, because dx may overwrite dy */
    if (a->dgamma != NULL && dt_pool_size(pool) > 1) {
        dt_pool_run(pool, parts_of(a->col_count, COLUMNS), backward_columns_part, c);
    }
    if (a->dgamma == NULL || dt_pool_size(pool) > 1) {
        dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), backward_rows_part, c);
        return;
    }
    for (int64_t part = 0; part < parts_of(a->row_count, ROW_BLOCK); part++) {
        backward_columns(c, part * ROW_BLOCK, 0, a->col_count);
        backward_rows_part(c, part);
    }
}

static int layernorm_backward_now(struct dt_pool *pool, struct dt_layernorm_backward_args *a, struct dt_error *err)
{
    (void)err;
    struct backward c = {a, a->dgamma, a->dbeta};
    bool rounded = a->dgamma != NULL && a->type == DT_BF16 && a->grad_type == DT_BF16;
    if (rounded) {
        c.dgamma = dt_cpu_work(DT_WORK_KERNEL, (size_t)(2 * a->col_count) * sizeof(float));
        c.dbeta = c.dgamma + a->col_count;
        vec_fetch(c.dgamma, a->dgamma, 0, a->accumulate ? a->col_count : 0, DT_BF16);
        vec_fetch(c.dbeta, a->dbeta, 0, a->accumulate ? a->col_count : 0, DT_BF16);
    }
    backward_parts(pool, &c);
    if (rounded && a->row_count > 0) {
        vec_keep(a->dgamma, 0, c.dgamma, a->col_count, DT_BF16);
        vec_keep(a->dbeta, 0, c.dbeta, a->col_count, DT_BF16);
    }
    return 0;
}
DT_ISA_KERNEL(layernorm_backward)
