/* LayerNorm forward (with the residual sum) and backward. Rows are cut into blocks; the sums of gamma and beta go over blocks
 * of rows in order, so with one thread both happen while a block is in the cache, and with several the bits are the same. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define ROW_BLOCK 32
#define COLUMNS 64

static void forward_row(const struct dt_layernorm_args *a, int64_t row)
{
    int64_t cols = a->col_count;
    const float *x = (const float *)a->residual + row * cols, *gamma = a->gamma, *beta = a->beta;
    float *y = (float *)a->y + row * cols;
    vec total = {0};
    if (a->branch != NULL || a->residual_out != NULL) {
        const float *branch = a->branch != NULL ? (const float *)a->branch + row * cols : NULL;
        float *sum = a->residual_out != NULL ? (float *)a->residual_out + row * cols : y;
        for (int64_t j = 0; j < cols; j += VEC) {
            vec v = vec_load_n(x + j, cols - j);
            v = branch != NULL ? v + vec_load_n(branch + j, cols - j) : v;
            vec_store_n(sum + j, v, cols - j);
            total += v;
        }
        x = sum;
    } else {
        for (int64_t j = 0; j < cols; j += VEC) {
            total += vec_load_n(x + j, cols - j);
        }
    }
    float mean = vec_sum(total) / (float)cols;
    vec squares = {0};
    int64_t j = 0;
    for (; j + VEC <= cols; j += VEC) {
        vec d = vec_load(x + j) - mean;
        squares = vec_fma(d, d, squares);
    }
    if (j < cols) {
        vec d = vec_load_n(x + j, cols - j) - mean;
        d = vec_pick(vec_index() < (int32_t)(cols - j), d, vec_all(0));
        squares = vec_fma(d, d, squares);
    }
    float rstd = 1.0F / sqrtf(vec_sum(squares) / (float)cols + (float)a->eps);
    for (j = 0; j < cols; j += VEC) {
        vec h = (vec_load_n(x + j, cols - j) - mean) * rstd;
        vec_store_n(y + j, vec_fma(h, vec_load_n(gamma + j, cols - j), vec_load_n(beta + j, cols - j)), cols - j);
    }
    ((float *)a->mean)[row] = mean;
    ((float *)a->rstd)[row] = rstd;
}

static void layernorm_part(void *context, int64_t part)
{
    const struct dt_layernorm_args *a = context;
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        forward_row(a, row);
    }
}

static int layernorm_now(struct dt_pool *pool, struct dt_layernorm_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), layernorm_part, a);
    return 0;
}
DT_ISA_KERNEL(layernorm)

/* dx = rstd (g - mean(g) - h mean(g h)) + what came from above; g = dy gamma, h = (x - mean) rstd */
static void backward_row(const struct dt_layernorm_backward_args *a, int64_t row)
{
    int64_t cols = a->col_count;
    const float *dy = (const float *)a->dy + row * cols, *x = (const float *)a->x + row * cols, *gamma = a->gamma;
    const float *above = a->dresidual != NULL ? (const float *)a->dresidual + row * cols : NULL;
    float *dx = (float *)a->dx + row * cols;
    float mean = ((const float *)a->mean)[row], rstd = ((const float *)a->rstd)[row];
    vec sum = {0}, dot = {0};
    for (int64_t j = 0; j < cols; j += VEC) {
        vec g = vec_load_n(dy + j, cols - j) * vec_load_n(gamma + j, cols - j); /* 0 behind the end */
        sum += g;
        dot = vec_fma(g, (vec_load_n(x + j, cols - j) - mean) * rstd, dot);
    }
    float m = vec_sum(sum) / (float)cols, d = vec_sum(dot) / (float)cols;
    for (int64_t j = 0; j < cols; j += VEC) {
        vec g = vec_load_n(dy + j, cols - j) * vec_load_n(gamma + j, cols - j);
        vec h = (vec_load_n(x + j, cols - j) - mean) * rstd;
        vec v = vec_fma(h, vec_all(-d), g - m);
        v = above != NULL ? vec_fma(v, vec_all(rstd), vec_load_n(above + j, cols - j)) : v * rstd;
        vec_store_n(dx + j, v, cols - j);
    }
}

/* Adds rows [begin, end), one block, to columns [from, to) of dgamma and dbeta. */
static void add_columns(const struct dt_layernorm_backward_args *a, int64_t begin, int64_t end, int64_t from, int64_t to)
{
    int64_t cols = a->col_count;
    const float *mean = a->mean, *rstd = a->rstd;
    float *dgamma = a->dgamma, *dbeta = a->dbeta;
    for (int64_t j = from; j < to; j += 2 * VEC) {
        vec g[2] = {{0}}, b[2] = {{0}};
        for (int64_t r = begin; r < end; r++) {
            const float *dy = (const float *)a->dy + r * cols, *x = (const float *)a->x + r * cols;
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                int64_t at = j + v * VEC;
                if (at < to) {
                    vec y = vec_load_n(dy + at, to - at);
                    g[v] = vec_fma(y, (vec_load_n(x + at, to - at) - mean[r]) * rstd[r], g[v]);
                    b[v] += y;
                }
            }
        }
        for (int v = 0; v < 2; v++) {
            int64_t at = j + v * VEC;
            if (at < to) {
                bool first = begin == 0 && !a->accumulate;
                vec_store_n(dgamma + at, first ? g[v] : vec_load_n(dgamma + at, to - at) + g[v], to - at);
                vec_store_n(dbeta + at, first ? b[v] : vec_load_n(dbeta + at, to - at) + b[v], to - at);
            }
        }
    }
}

static void backward_rows_part(void *context, int64_t part)
{
    const struct dt_layernorm_backward_args *a = context;
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        backward_row(a, row);
    }
}

static void backward_columns_part(void *context, int64_t part)
{
    const struct dt_layernorm_backward_args *a = context;
    for (int64_t row = 0; row < a->row_count; row += ROW_BLOCK) {
        add_columns(a, row, min64(a->row_count, row + ROW_BLOCK), part * COLUMNS, min64(a->col_count, (part + 1) * COLUMNS));
    }
}

static int layernorm_backward_now(struct dt_pool *pool, struct dt_layernorm_backward_args *a, struct dt_error *err)
{
    (void)err;
    /* dgamma and dbeta first: dx may lie over dy */
    if (a->dgamma != NULL && dt_pool_size(pool) > 1) {
        dt_pool_run(pool, parts_of(a->col_count, COLUMNS), backward_columns_part, a);
    }
    if (a->dgamma == NULL || dt_pool_size(pool) > 1) {
        dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), backward_rows_part, a);
        return 0;
    }
    for (int64_t part = 0; part < parts_of(a->row_count, ROW_BLOCK); part++) {
        add_columns(a, part * ROW_BLOCK, min64(a->row_count, (part + 1) * ROW_BLOCK), 0, a->col_count);
        backward_rows_part(a, part);
    }
    return 0;
}
DT_ISA_KERNEL(layernorm_backward)
