/* Softmax cross entropy, loss and gradient in place; embeddings. A part is one row, or a stripe of
 * columns. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/pool.h"

#define STRIPE 256     /* columns of one part of an embedding's gradient */
#define SMALL_TABLE 64 /* rows of a table that stays in the cache: its parts may be narrower */
#define SMALL_STRIPE 64
#define ROW_BLOCK 16 /* rows of one part of the other kernels */

/* ---- cross entropy ---- */

/* A row's softmax is over z = factor * element. The elements are the logits, or, with a cap,
 * their hyperbolic tangents. */
struct softmax {
    float factor, max; /* max: of z */
};

/* Returns the sum of e^(z - max), z = factor * x. With `keep` the row is overwritten by these terms. */
INLINE float exp_terms(float *x, int64_t n, float factor, float max, bool keep)
{
    vec sum = {0};
    for (int64_t j = 0; j < n; j += VEC) {
        vec e = vec_exp(vec_load_n(x + j, n - j) * factor - max);
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

/* Functions of their own: inlined into entropy_row, the plain one is slower. */
static __attribute__((noinline)) float row_exp(float *x, int64_t n, float max, bool keep)
{
    return exp_terms(x, n, 1.0F, max, keep);
}

static __attribute__((noinline)) float row_exp_scaled(float *x, int64_t n, float factor, float max, bool keep)
{
    return exp_terms(x, n, factor, max, keep);
}

INLINE vec cap_tangent(vec x, float factor)
{
    return 2.0F * vec_sigmoid(2.0F * (x * factor)) - 1.0F;
}

/* The gradient of a row of tangents in place: scale * e^(z - max) * dz/dlogit; the target's is less by
 * scale * `part` * dz/dlogit. */
static void capped_gradient(float *x, int64_t n, const struct softmax *z, float scale, int32_t target, float part)
{
    float t = x[target], slope = 1.0F - t * t;
    for (int64_t j = 0; j < n; j += VEC) {
        vec tangent = vec_load_n(x + j, n - j);
        vec e = vec_exp(tangent * z->factor - z->max) * scale;
        vec_store_n(x + j, e * (1.0F - tangent * tangent), n - j);
    }
    x[target] -= part * slope;
}

/* The row's logits become factor * x. */
INLINE void store_gradient(const struct dt_cross_entropy_args *a, int64_t at, const float *x, int64_t n, float factor,
                           enum dt_dtype type)
{
    void *to = a->logits;
    for (int64_t j = 0; j < n; j += VEC) {
        vec_put(to, at + j, vec_load_n(x + j, n - j) * factor, n - j, type);
    }
}

/* BF16 logits are first converted to floats in work memory. Their gradient is rounded once when it
 * is stored. */
static void entropy_row(const struct dt_cross_entropy_args *a, int64_t row)
{
    int64_t n = a->col_count, at = row * (a->ld != 0 ? a->ld : n);
    int32_t target = a->targets[row];
    bool capped = a->softcap > 0;
    double scale = a->scale != 0 ? a->scale : 1.0;
    if (target == DT_IGNORE_INDEX) {
        a->row_loss[row] = 0;
        if (a->with_grad) {
            size_t size = dt_dtype_size(a->type);
            memset((char *)a->logits + (size_t)at * size, 0, (size_t)n * size);
        }
        return;
    }
    bool copied = DT_IS_HALF(a->type) || (capped && !a->with_grad);
    float *x = copied ? dt_cpu_work(DT_WORK_KERNEL, (size_t)n * sizeof(float)) : (float *)a->logits + at;
    if (DT_IS_HALF(a->type)) {
        vec_fetch(x, a->logits, at, n, DT_HALF);
    } else if (copied) {
        memcpy(x, (const float *)a->logits + at, (size_t)n * sizeof(float));
    }
    float max = vec_max_of(x, n);
    if (a->correct_count != NULL) {
        int64_t first = 0;
        while (first < n - 1 && x[first] != max) {
            first++;
        }
        __atomic_fetch_add(a->correct_count, first == target, __ATOMIC_RELAXED);
    }
    if (capped) {
        float inner = (float)(scale / a->softcap);
        for (int64_t j = 0; j < n; j += VEC) {
            vec_store_n(x + j, cap_tangent(vec_load_n(x + j, n - j), inner), n - j);
        }
        max = cap_tangent(vec_all(max), inner)[0];
    }
    const struct softmax z = {.factor = (float)(capped ? a->softcap : scale),
                              .max = max * (float)(capped ? a->softcap : scale)};
    float at_target = x[target] * z.factor;
    bool keep = a->with_grad && !capped;
    float sum = z.factor == 1.0F ? row_exp(x, n, z.max, keep) : row_exp_scaled(x, n, z.factor, z.max, keep);
    a->row_loss[row] = log((double)sum) + ((double)z.max - (double)at_target);
    if (!a->with_grad) {
        return;
    }
    double grad_scale = a->grad_scale * scale;
    float factor = (float)(grad_scale / (double)sum);
    if (capped) {
        capped_gradient(x, n, &z, factor, target, (float)grad_scale);
        factor = 1.0F;
    }
    float own = x[target] * factor - (capped ? 0.0F : (float)grad_scale);
    if (DT_IS_HALF(a->type)) {
        store_gradient(a, at, x, n, factor, DT_HALF);
        vec_put(a->logits, at + target, vec_all(own), 1, DT_HALF);
    } else if (!capped) {
        store_gradient(a, at, x, n, factor, DT_F32);
        x[target] = own;
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

INLINE void embed_row(const struct dt_embedding_args *a, int64_t row, enum dt_dtype type, bool positions, bool types)
{
    int64_t cols = a->col_count, token = a->ids[row] * cols, position = 0, kind = 0;
    const float scale = (float)(a->scale != 0 ? a->scale : 1.0);
    if (positions) {
        position = a->position_ids != NULL ? a->position_ids[row] : a->first_position + row % a->position_count;
    }
    if (types && a->type_ids != NULL) {
        kind = a->type_ids[row];
    }
    for (int64_t j = 0; j < cols; j += VEC) {
        vec x = vec_get(a->tokens, token + j, cols - j, type) * scale;
        if (types) {
            x += vec_get(a->types, kind * cols + j, cols - j, type);
        }
        if (positions) {
            x += vec_get(a->positions, position * cols + j, cols - j, type);
        }
        vec_put(a->out, row * cols + j, x, cols - j, type);
    }
}

/* Calls embed_row with constants that say which tables there are. */
INLINE void embed_typed(const struct dt_embedding_args *a, int64_t row, enum dt_dtype type)
{
    if (a->types != NULL) {
        a->positions != NULL ? embed_row(a, row, type, true, true) : embed_row(a, row, type, false, true);
    } else {
        a->positions != NULL ? embed_row(a, row, type, true, false) : embed_row(a, row, type, false, false);
    }
}

static void embedding_part(void *context, int64_t part)
{
    const struct dt_embedding_args *a = context;
    size_t size = (size_t)a->col_count * dt_dtype_size(a->type);
    bool copies = a->positions == NULL && a->types == NULL && (a->scale == 0 || a->scale == 1);
    for (int64_t row = part * ROW_BLOCK; row < min64(a->row_count, (part + 1) * ROW_BLOCK); row++) {
        if (copies) {
            memcpy((char *)a->out + (size_t)row * size, (const char *)a->tokens + (size_t)a->ids[row] * size, size);
        } else if (DT_IS_HALF(a->type)) {
            embed_typed(a, row, DT_HALF);
        } else {
            embed_typed(a, row, DT_F32);
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
    int64_t stripe;              /* columns of one part */
    float scale;
};

static bool skipped(const struct dt_embedding_backward_args *a, int64_t id)
{
    return a->skips && id == a->skipped_id;
}

/* For a table in F32: each row is added in place. */
INLINE void add_rows(const struct embedding_backward *c, int64_t from, int64_t n, enum dt_dtype type)
{
    const struct dt_embedding_backward_args *a = c->args;
    int64_t cols = a->col_count;
    const float scale = c->scale;
    float *table = (float *)a->dtokens + from;
    for (int64_t id = 0; id < a->vocab_count && !a->accumulate; id++) {
        memset(table + id * cols, 0, (size_t)n * sizeof(float));
    }
    for (int64_t row = 0; row < a->row_count; row++) {
        float *to = table + a->ids[row] * cols;
        if (skipped(a, a->ids[row])) {
            continue;
        }
        for (int64_t j = 0; j < n; j += VEC) {
            vec dy = vec_get(a->dy, row * cols + from + j, n - j, type);
            vec_store_n(to + j, vec_load_n(to + j, n - j) + dy * scale, n - j);
        }
    }
}

enum { ID_BLOCK = 8 }; /* vectors that are summed in one walk over an id's rows: no cache line is read twice */

/* For a table in BF16: the rows of an id are summed in registers and rounded once. Columns [from,
 * from + n), at most ID_BLOCK vectors. */
INLINE void add_id(const struct embedding_backward *c, int64_t id, int64_t from, int64_t n)
{
    const struct dt_embedding_backward_args *a = c->args;
    int64_t cols = a->col_count;
    vec sum[ID_BLOCK] = {{0}};
    for (int v = 0; v < ID_BLOCK && a->accumulate; v++) {
        if (v * VEC < n) {
            sum[v] = vec_get(a->dtokens, id * cols + from + v * VEC, n - v * VEC, DT_HALF);
        }
    }
    for (int64_t row = skipped(a, id) ? -1 : c->first[id]; row >= 0; row = c->next[row]) {
#pragma GCC unroll 8
        for (int v = 0; v < ID_BLOCK; v++) {
            if (v * VEC < n) {
                sum[v] += vec_get(a->dy, row * cols + from + v * VEC, n - v * VEC, DT_HALF) * c->scale;
            }
        }
    }
    for (int v = 0; v < ID_BLOCK; v++) {
        if (v * VEC < n) {
            vec_put(a->dtokens, id * cols + from + v * VEC, sum[v], n - v * VEC, DT_HALF);
        }
    }
}

static void add_ids(const struct embedding_backward *c, int64_t from, int64_t n)
{
    for (int64_t id = 0; id < c->args->vocab_count; id++) {
        if (c->first[id] < 0 && c->args->accumulate) {
            continue;
        }
        for (int64_t j = 0; j < n; j += ID_BLOCK * VEC) {
            if (n - j >= ID_BLOCK * VEC) {
                add_id(c, id, from + j, ID_BLOCK * VEC);
            } else {
                add_id(c, id, from + j, n - j);
            }
        }
    }
}

static void embedding_backward_part(void *context, int64_t part)
{
    const struct embedding_backward *c = context;
    int64_t from = part * c->stripe, n = min64(c->args->col_count - from, c->stripe);
    if (c->first != NULL) {
        add_ids(c, from, n);
    } else if (DT_IS_HALF(c->args->type)) {
        add_rows(c, from, n, DT_HALF);
    } else {
        add_rows(c, from, n, DT_F32);
    }
}

static int embedding_backward_now(struct dt_pool *pool, struct dt_embedding_backward_args *a, struct dt_error *err)
{
    (void)err;
    struct embedding_backward c = {.args = a,
                                   .stripe = a->vocab_count <= SMALL_TABLE ? SMALL_STRIPE : STRIPE,
                                   .scale = (float)(a->scale != 0 ? a->scale : 1.0)};
    if (DT_IS_HALF(a->type) && a->grad_type == DT_HALF) {
        int64_t *next = dt_cpu_work(DT_WORK_KERNEL, (size_t)(a->row_count + a->vocab_count) * sizeof(int64_t));
        dt_plain_rows_of_ids(a->ids, a->row_count, a->vocab_count, next, next + a->row_count);
        c.next = next;
        c.first = next + a->row_count;
    }
    dt_pool_run(pool, parts_of(a->col_count, c.stripe), embedding_backward_part, &c);
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
    if (!DT_IS_HALF(a->type)) {
        position_rows(a, begin, end, DT_F32, DT_F32);
    } else if (a->grad_type == DT_HALF) {
        position_rows(a, begin, end, DT_HALF, DT_HALF);
    } else {
        position_rows(a, begin, end, DT_HALF, DT_F32);
    }
}

static int position_backward_now(struct dt_pool *pool, struct dt_position_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->table_count, ROW_BLOCK), position_part, a);
    return 0;
}
DT_ISA_KERNEL(position_backward)
