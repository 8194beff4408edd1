/* Softmax cross entropy, loss and gradient in place; embeddings. One part is one row, or a stripe of columns. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/pool.h"

#define STRIPE 256   /* columns of one part of an embedding's gradient */
#define ROW_BLOCK 16 /* rows of one part elsewhere */

/* ---- cross entropy ---- */

static float row_max(const float *x, int64_t n)
{
    vec top = vec_all(x[0]);
    int64_t j = 0;
    for (; j + VEC <= n; j += VEC) {
        top = vec_max(vec_load(x + j), top);
    }
    float max = vec_top(top);
    for (; j < n; j++) {
        max = x[j] > max ? x[j] : max;
    }
    return max;
}

/* Sum of e^(x - max); with `keep` the row becomes these terms. */
static float row_exp(float *x, int64_t n, float max, bool keep)
{
    vec sum = {0};
    for (int64_t j = 0; j < n; j += VEC) {
        vec e = vec_exp(vec_load_n(x + j, n - j) - max);
        if (n - j < VEC) {
            e = vec_pick(vec_index() < (int32_t)(n - j), e, vec_all(0));
        }
        sum += e;
        if (keep) {
            vec_store_n(x + j, e, n - j);
        }
    }
    return vec_sum(sum);
}

static void entropy_row(const struct dt_cross_entropy_args *a, int64_t row)
{
    int64_t n = a->col_count;
    float *x = (float *)a->logits + row * n;
    int32_t target = a->targets[row];
    if (target == DT_IGNORE_INDEX) {
        a->row_loss[row] = 0;
        if (a->with_grad) {
            memset(x, 0, (size_t)n * sizeof(float));
        }
        return;
    }
    float max = row_max(x, n), at_target = x[target];
    if (a->correct_count != NULL) {
        int64_t first = 0;
        while (first < n - 1 && x[first] != max) {
            first++;
        }
        __atomic_fetch_add(a->correct_count, first == target, __ATOMIC_RELAXED);
    }
    float sum = row_exp(x, n, max, a->with_grad);
    a->row_loss[row] = log((double)sum) + ((double)max - (double)at_target);
    if (!a->with_grad) {
        return;
    }
    float factor = (float)(a->grad_scale / (double)sum), scale = (float)a->grad_scale;
    for (int64_t j = 0; j < n; j++) {
        x[j] *= factor;
    }
    x[target] -= scale;
}

static void entropy_part(void *context, int64_t part)
{
    const struct dt_cross_entropy_args *a = context;
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        entropy_row(a, row);
    }
}

static int cross_entropy_now(struct dt_pool *pool, struct dt_cross_entropy_args *a, struct dt_error *err)
{
    if (dt_plain_check_targets(a, err) != 0) {
        return -1;
    }
    dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), entropy_part, a);
    dt_plain_sum_losses(a);
    return 0;
}
DT_ISA_KERNEL(cross_entropy)

/* ---- embeddings ---- */

static void embedding_part(void *context, int64_t part)
{
    const struct dt_embedding_args *a = context;
    int64_t cols = a->col_count;
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        float *out = (float *)a->out + row * cols;
        const float *token = (const float *)a->tokens + a->ids[row] * cols;
        if (a->positions == NULL) {
            memcpy(out, token, (size_t)cols * sizeof(float));
            continue;
        }
        const float *position = (const float *)a->positions + row % a->position_count * cols;
        for (int64_t j = 0; j < cols; j++) {
            out[j] = token[j] + position[j];
        }
    }
}

static int embedding_now(struct dt_pool *pool, struct dt_embedding_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->row_count, ROW_BLOCK), embedding_part, a);
    return 0;
}
DT_ISA_KERNEL(embedding)

static void embedding_backward_part(void *context, int64_t part)
{
    const struct dt_embedding_backward_args *a = context;
    int64_t cols = a->col_count, from = part * STRIPE, n = min64(cols - from, STRIPE);
    float *table = (float *)a->dtokens + from;
    const float *dy = (const float *)a->dy + from;
    for (int64_t id = 0; id < a->vocab_count && !a->accumulate; id++) {
        memset(table + id * cols, 0, (size_t)n * sizeof(float));
    }
    for (int64_t row = 0; row < a->row_count; row++) {
        float *to = table + a->ids[row] * cols;
        const float *g = dy + row * cols;
        for (int64_t j = 0; j < n; j++) {
            to[j] += g[j];
        }
    }
}

static int embedding_backward_now(struct dt_pool *pool, struct dt_embedding_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->col_count, STRIPE), embedding_backward_part, a);
    return 0;
}
DT_ISA_KERNEL(embedding_backward)

static void position_part(void *context, int64_t part)
{
    const struct dt_position_backward_args *a = context;
    int64_t cols = a->col_count;
    for (int64_t t = part * ROW_BLOCK; t < min64(a->table_count, (part + 1) * ROW_BLOCK); t++) {
        float *out = (float *)a->dpositions + t * cols;
        for (int64_t j = 0; j < cols; j += VEC) {
            vec sum = {0};
            for (int64_t row = t; row < a->row_count && t < a->position_count; row += a->position_count) {
                sum += vec_load_n((const float *)a->dy + row * cols + j, cols - j);
            }
            vec_store_n(out + j, a->accumulate ? vec_load_n(out + j, cols - j) + sum : sum, cols - j);
        }
    }
}

static int position_backward_now(struct dt_pool *pool, struct dt_position_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->table_count, ROW_BLOCK), position_part, a);
    return 0;
}
DT_ISA_KERNEL(position_backward)
