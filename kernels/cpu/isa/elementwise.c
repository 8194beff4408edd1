/* scale, add, activations, column sums. Elements are cut into parts of fixed length. A tail is
 * computed by the same vector operations as full vectors. */
#include "kernels/cpu/isa/activation.h"
#include "kernels/cpu/pool.h"

#define PART 32768   /* elements of one part */
#define BLOCK 1024   /* elements that stay in the L1 cache */
#define COLUMNS 64   /* columns of one part of a column sum */
#define ROW_BLOCK 32 /* rows that are summed before their sum is added to the total */

/* ---- scale, add; pointers are copied out of the arguments, since the compiler must assume that a
 * store changes the struct ---- */

struct scaling {
    const struct dt_scale_args *args;
    const void *in;
    float factor;
};

INLINE void scale_typed(const struct scaling *c, int64_t begin, int64_t end, enum dt_dtype type)
{
    void *x = c->args->x;
    const void *in = c->in;
    const vec factor = vec_all(c->factor);
    for (int64_t i = begin; i < end; i += VEC) {
        vec_put(x, i, vec_get(in, i, end - i, type) * factor, end - i, type);
    }
}

static void scale_part(void *context, int64_t part)
{
    const struct scaling *c = context;
    int64_t begin = part * PART, end = min64(c->args->count, begin + PART);
    if (DT_IS_HALF(c->args->type)) {
        scale_typed(c, begin, end, DT_HALF);
    } else {
        scale_typed(c, begin, end, DT_F32);
    }
}

static int scale_now(struct dt_pool *pool, struct dt_scale_args *a, struct dt_error *err)
{
    (void)err;
    double factor = a->factor * (a->device_factor != NULL ? *a->device_factor : 1.0);
    struct scaling c = {a, a->in != NULL ? a->in : a->x, (float)factor};
    if (c.factor != 1.0F || c.in != a->x) {
        dt_pool_run(pool, parts_of(a->count, PART), scale_part, &c);
    }
    return 0;
}
DT_ISA_KERNEL(scale)

INLINE void add_typed(const struct dt_add_args *a, int64_t begin, int64_t end, enum dt_dtype type, enum dt_dtype b_type)
{
    void *out = a->out;
    const void *x = a->a, *y = a->b;
    for (int64_t i = begin; i < end; i += VEC) {
        vec_put(out, i, vec_get(x, i, end - i, type) + vec_get(y, i, end - i, b_type), end - i, type);
    }
}

static void add_part(void *context, int64_t part)
{
    const struct dt_add_args *a = context;
    int64_t begin = part * PART, end = min64(a->count, begin + PART);
    if (a->type == DT_HALF) {
        add_typed(a, begin, end, DT_HALF, DT_HALF);
    } else if (a->b_type == DT_HALF) {
        add_typed(a, begin, end, DT_F32, DT_HALF);
    } else {
        add_typed(a, begin, end, DT_F32, DT_F32);
    }
}

static int add_now(struct dt_pool *pool, struct dt_add_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->count, PART), add_part, a);
    return 0;
}
DT_ISA_KERNEL_OF(add, (a->type == DT_F32 && a->b_type == DT_F16 ? DT_F16 : a->type))

/* ---- activations ---- */

INLINE void activate_by_table(const struct dt_activation_args *a, int64_t begin, int64_t end, enum dt_activation kind)
{
    const uint16_t *t = table_of(kind, DT_HALF)->rounded, *x = a->x;
    uint16_t *y = a->y;
    int64_t i = begin;
    for (; i + 8 <= end; i += 8) {
        const uint16_t *at = x + i;
        uint16_t eight __attribute__((vector_size(16))) = {t[at[0]], t[at[1]], t[at[2]], t[at[3]],
                                                           t[at[4]], t[at[5]], t[at[6]], t[at[7]]};
        memcpy(y + i, &eight, sizeof eight);
    }
    for (; i < end; i++) {
        y[i] = t[x[i]];
    }
}

/* BF16 is converted to floats block by block. One loop with the conversions inside takes a third
 * longer, because fewer elements are in flight. */
INLINE void activate(const struct dt_activation_args *a, int64_t begin, int64_t end, enum dt_activation kind,
                     enum dt_dtype type)
{
    float room[BLOCK];
    if (has_table(kind, type)) {
        activate_by_table(a, begin, end, kind);
        return;
    }
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t n = min64(BLOCK, end - at);
        float *y = type == DT_HALF ? room : (float *)a->y + at;
        const float *x = type == DT_HALF ? room : (const float *)a->x + at;
        if (type == DT_HALF) {
            vec_fetch(room, a->x, at, n, type);
        }
        for (int64_t i = 0; i < n; i += VEC) {
            vec_store_n(y + i, activation_value(kind, vec_load_n(x + i, n - i)), n - i);
        }
        if (type == DT_HALF) {
            vec_keep(a->y, at, room, n, type);
        }
    }
}

INLINE void activate_backward_by_table(const struct dt_activation_backward_args *a, int64_t begin, int64_t end,
                                       enum dt_activation kind)
{
    const struct activation_table *table = table_of(kind, DT_HALF);
    const uint16_t *x = a->x, *dy = a->dy;
    uint16_t *dx = a->dx;
    for (int64_t i = begin; i < end; i += VEC) {
        vec value, slope;
        look_up(table, x + i, end - i, &value, &slope);
        vec_store_half_n(dx + i, vec_load_half_n(dy + i, end - i) * slope, end - i);
    }
}

INLINE void activate_backward(const struct dt_activation_backward_args *a, int64_t begin, int64_t end,
                              enum dt_activation kind, enum dt_dtype type)
{
    float room[2][BLOCK];
    if (has_table(kind, type)) {
        activate_backward_by_table(a, begin, end, kind);
        return;
    }
    for (int64_t at = begin; at < end; at += BLOCK) {
        int64_t n = min64(BLOCK, end - at);
        float *dx = type == DT_HALF ? room[0] : (float *)a->dx + at;
        const float *dy = type == DT_HALF ? room[0] : (const float *)a->dy + at,
                    *x = type == DT_HALF ? room[1] : (const float *)a->x + at;
        if (type == DT_HALF) {
            vec_fetch(room[0], a->dy, at, n, type);
            vec_fetch(room[1], a->x, at, n, type);
        }
        for (int64_t i = 0; i < n; i += VEC) {
            vec_store_n(dx + i, vec_load_n(dy + i, n - i) * activation_slope(kind, vec_load_n(x + i, n - i)), n - i);
        }
        if (type == DT_HALF) {
            vec_keep(a->dx, at, room[0], n, type);
        }
    }
}

static void activation_part(void *context, int64_t part)
{
    const struct dt_activation_args *a = context;
    int64_t begin = part * PART, end = min64(a->count, begin + PART);
    DT_FOR_KIND_AND_TYPE(activate)
}

static int activation_now(struct dt_pool *pool, struct dt_activation_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->count, PART), activation_part, a);
    return 0;
}
DT_ISA_KERNEL(activation)

/* ---- column sums ---- */

/* Columns [from, from + n), at most COLUMNS. Rows are summed in blocks, and the blocks in order. */
INLINE void sum_columns(const struct dt_column_sum_args *a, int64_t from, int64_t n, enum dt_dtype type,
                        enum dt_dtype grad)
{
    int64_t cols = a->col_count;
    vec total[COLUMNS / VEC];
    for (int v = 0; v < COLUMNS / VEC; v++) {
        int64_t left = n - v * VEC;
        total[v] = a->accumulate && left > 0 ? vec_get(a->out, from + v * VEC, left, grad) : (vec){0};
    }
    for (int64_t i = 0; i < a->row_count; i += ROW_BLOCK) {
        vec sum[COLUMNS / VEC] = {{0}};
        for (int64_t r = i; r < min64(a->row_count, i + ROW_BLOCK); r++) {
#pragma GCC unroll 16
            for (int v = 0; v < COLUMNS / VEC; v++) {
                if (v * VEC < n) {
                    sum[v] += vec_get(a->x, r * cols + from + v * VEC, n - v * VEC, type);
                }
            }
        }
        for (int v = 0; v < COLUMNS / VEC; v++) {
            total[v] += sum[v];
        }
    }
    for (int v = 0; v * VEC < n; v++) {
        vec_put(a->out, from + v * VEC, total[v], n - v * VEC, grad);
    }
}

static void column_sum_part(void *context, int64_t part)
{
    const struct dt_column_sum_args *a = context;
    int64_t from = part * COLUMNS, n = min64(COLUMNS, a->col_count - from);
    bool half = DT_IS_HALF(a->type), half_grad = half && a->grad_type == DT_HALF;
    if (n == COLUMNS) { /* whole cache lines, so take all columns of the part at once */
        half_grad ? sum_columns(a, from, COLUMNS, DT_HALF, DT_HALF)
        : half    ? sum_columns(a, from, COLUMNS, DT_HALF, DT_F32)
                  : sum_columns(a, from, COLUMNS, DT_F32, DT_F32);
    } else {
        half_grad ? sum_columns(a, from, n, DT_HALF, DT_HALF)
        : half    ? sum_columns(a, from, n, DT_HALF, DT_F32)
                  : sum_columns(a, from, n, DT_F32, DT_F32);
    }
}

static int column_sum_now(struct dt_pool *pool, struct dt_column_sum_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->col_count, COLUMNS), column_sum_part, a);
    return 0;
}
DT_ISA_KERNEL(column_sum)

/* ---- the gradient of an activation, with the sums of its columns ---- */

static void activation_backward_part(void *context, int64_t part)
{
    const struct dt_activation_backward_args *a = context;
    int64_t begin = part * PART, end = min64(a->count, begin + PART);
    DT_FOR_KIND_AND_TYPE(activate_backward)
}

static int activation_backward_now(struct dt_pool *pool, struct dt_activation_backward_args *a, struct dt_error *err)
{
    dt_pool_run(pool, parts_of(a->count, PART), activation_backward_part, a);
    return a->dbias == NULL ? 0
                            : column_sum_now(pool,
                                             &(struct dt_column_sum_args){.out = a->dbias,
                                                                          .x = a->dx,
                                                                          .row_count = a->count / a->col_count,
                                                                          .col_count = a->col_count,
                                                                          .accumulate = a->accumulate,
                                                                          .type = a->type,
                                                                          .grad_type = a->grad_type},
                                             err);
}
DT_ISA_KERNEL(activation_backward)
