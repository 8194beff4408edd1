/* Softmax cross entropy, loss and gradient in place; embeddings. A part is one row, or a stripe of
 * columns. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/pool.h"

#define STRIPE 256   /* columns of one part of an embedding's gradient */
#define ROW_BLOCK 16 /* rows of one part of the other kernels */

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

/* Returns the sum of e^(x - max). With `keep` the row is overwritten by these terms. */
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

/* BF16 logits are first converted to floats in work memory. Their gradient is rounded once when it
 * is stored. */
static void entropy_row(const struct dt_cross_entropy_args *a, int64_t row)
{
    int64_t n = a->col_count, at = row * (a->ld != 0 ? a->ld : n);
    int32_t target = a->targets[row];
    bool half = a->type == DT_BF16;
    if (target == DT_IGNORE_INDEX) {
        a->row_loss[row] = 0;
        if (a->with_grad) {
            size_t size = dt_dtype_size(a->type);
            memset((char *)a->logits + (size_t)at * size, 0, (size_t)n * size);
        }
        return;
    }
    float *x = half ? dt_cpu_work(DT_WORK_KERNEL, (size_t)n * sizeof(float)) : (float *)a->logits + at;
    if (half) {
        vec_fetch(x, a->logits, at, n, DT_BF16);
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
    if (half) {
        vec_keep(a->logits, at, x, n, DT_BF16);
    }
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

INLINE void embed_row(const struct dt_embedding_args *a, int64_t row, enum dt_dtype type)
{
    int64_t cols = a->col_count, token = a->ids[row] * cols, position = row % a->position_count * cols;
    for (int64_t j = 0; j < cols; j += VEC) {
        vec_put(a->out, row * cols + j,
                vec_get(a->tokens, token + j, cols - j, type) + vec_get(a->positions, position + j, cols - j, type),
                cols - j, type);
    }
}

static void embedding_part(void *context, int64_t part)
{
    const struct dt_embedding_args *a = context;
    size_t size = (size_t)a->col_count * dt_dtype_size(a->type);
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        if (a->positions == NULL) {
            memcpy((char *)a->out + (size_t)row * size, (const char *)a->tokens + (size_t)a->ids[row] * size, size);
        } else if (a->type == DT_BF16) {
            embed_row(a, row, DT_BF16);
        } else {
            embed_row(a, row, DT_F32);
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

struct embedding_backward {
    const struct dt_embedding_backward_args *args;
    const int64_t *next, *first; /* for a table in BF16: rows of each id */
};

/* For a table in F32: each row is added in place. */
INLINE void add_rows(const struct dt_embedding_backward_args *a, int64_t from, int64_t n, enum dt_dtype type)
{
    int64_t cols = a->col_count;
    float *table = (float *)a->dtokens + from;
    for (int64_t id = 0; id < a->vocab_count && !a->accumulate; id++) {
        memset(table + id * cols, 0, (size_t)n * sizeof(float));
    }
    for (int64_t row = 0; row < a->row_count; row++) {
        float *to = table + a->ids[row] * cols;
        for (int64_t j = 0; j < n; j += VEC) {
            vec_store_n(to + j, vec_load_n(to + j, n - j) + vec_get(a->dy, row * cols + from + j, n - j, type), n - j);
        }
    }
}

/* For a table in BF16: the rows of an id are summed in registers and rounded once. */
static void add_ids(const struct embedding_backward *c, int64_t from, int64_t n)
{
    const struct dt_embedding_backward_args *a = c->args;
    int64_t cols = a->col_count;
    for (int64_t id = 0; id < a->vocab_count; id++) {
        if (c->first[id] < 0 && a->accumulate) {
            continue;
        }
        for (int64_t j = from; j < from + n; j += VEC) {
            int64_t left = from + n - j;
            vec sum = a->accumulate ? vec_get(a->dtokens, id * cols + j, left, DT_BF16) : (vec){0};
            for (int64_t row = c->first[id]; row >= 0; row = c->next[row]) {
                sum += vec_get(a->dy, row * cols + j, left, DT_BF16);
            }
            vec_put(a->dtokens, id * cols + j, sum, left, DT_BF16);
        }
    }
}

static void embedding_backward_part(void *context, int64_t part)
{
    const struct embedding_backward *c = context;
    int64_t from = part * STRIPE, n = min64(c->args->col_count - from, STRIPE);
    if (c->first != NULL) {
        add_ids(c, from, n);
    } else if (c->args->type == DT_BF16) {
        add_rows(c->args, from, n, DT_BF16);
    } else {
        add_rows(c->args, from, n, DT_F32);
    }
}

static int embedding_backward_now(struct dt_pool *pool, struct dt_embedding_backward_args *a, struct dt_error *err)
{
    (void)err;
    struct embedding_backward c = {.args = a};
    if (a->type == DT_BF16 && a->grad_type == DT_BF16) {
        int64_t *next = dt_cpu_work(DT_WORK_KERNEL, (size_t)(a->row_count + a->vocab_count) * sizeof(int64_t));
        dt_plain_rows_of_ids(a->ids, a->row_count, a->vocab_count, next, next + a->row_count);
        c.next = next;
        c.first = next + a->row_count;
    }
    dt_pool_run(pool, parts_of(a->col_count, STRIPE), embedding_backward_part, &c);
    return 0;
}
DT_ISA_KERNEL(embedding_backward)

INLINE void position_rows(const struct dt_position_backward_args *a, int64_t begin, int64_t end, enum dt_dtype type,
                          enum dt_dtype grad)
{
    int64_t cols = a->col_count;
    for (int64_t t = begin; t < end; t++) {
        for (int64_t j = 0; j < cols; j += VEC) {
            vec sum = {0};
            for (int64_t row = t; row < a->row_count && t < a->position_count; row += a->position_count) {
                sum += vec_get(a->dy, row * cols + j, cols - j, type);
            }
            vec_put(a->dpositions, t * cols + j,
                    a->accumulate ? vec_get(a->dpositions, t * cols + j, cols - j, grad) + sum : sum, cols - j, grad);
        }
    }
}

static void position_part(void *context, int64_t part)
{
    const struct dt_position_backward_args *a = context;
    int64_t begin = part * ROW_BLOCK, end = min64(a->table_count, begin + ROW_BLOCK);
    if (a->type != DT_BF16) {
        position_rows(a, begin, end, DT_F32, DT_F32);
    } else if (a->grad_type == DT_BF16) {
        position_rows(a, begin, end, DT_BF16, DT_BF16);
    } else {
        position_rows(a, begin, end, DT_BF16, DT_F32);
    }
}

static int position_backward_now(struct dt_pool *pool, struct dt_position_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->table_count, ROW_BLOCK), position_part, a);
    return 0;
}
DT_ISA_KERNEL(position_backward)
