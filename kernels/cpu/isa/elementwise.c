/* scale, add, activations, column sums. Elements are cut into parts of fixed length; a tail does what full vectors do. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define PART 32768   /* elements of one part */
#define COLUMNS 64   /* columns of one part of a column sum */
#define ROW_BLOCK 32 /* rows that are summed before they join the total */
#define GELU_SCALE 0.79788456080286535588F
#define GELU_CUBIC 0.044715F

/* ---- scale, add ---- */

struct scaling {
    float *x;
    int64_t count;
    float factor;
};

static void scale_part(void *context, int64_t part)
{
    const struct scaling *c = context;
    int64_t end = min64(c->count, (part + 1) * PART);
    for (int64_t i = part * PART; i < end; i++) {
        c->x[i] *= c->factor;
    }
}

static int scale_now(struct dt_pool *pool, struct dt_scale_args *a, struct dt_error *err)
{
    (void)err;
    double factor = a->factor * (a->device_factor != NULL ? *a->device_factor : 1.0);
    struct scaling c = {a->x, a->count, (float)factor};
    if (c.factor != 1.0F) {
        dt_pool_run(pool, parts_of(a->count, PART), scale_part, &c);
    }
    return 0;
}
DT_ISA_KERNEL(scale)

static void add_part(void *context, int64_t part)
{
    const struct dt_add_args *a = context;
    int64_t end = min64(a->count, (part + 1) * PART);
    float *out = a->out;
    const float *x = a->a, *y = a->b;
    for (int64_t i = part * PART; i < end; i++) {
        out[i] = x[i] + y[i];
    }
}

static int add_now(struct dt_pool *pool, struct dt_add_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->count, PART), add_part, a);
    return 0;
}
DT_ISA_KERNEL(add)

/* ---- activations ---- */

/* gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form with one exponential. */
INLINE vec gelu_sigmoid(vec x)
{
    vec u = x * vec_fma(x * x, vec_all(2 * GELU_SCALE * GELU_CUBIC), vec_all(2 * GELU_SCALE));
    return vec_sigmoid(u);
}

INLINE vec value(enum dt_activation kind, vec x)
{
    switch (kind) {
    case DT_ACT_GELU:
        return x * gelu_sigmoid(x);
    case DT_ACT_RELU:
        return vec_pick(x > 0, x, vec_all(0));
    default:
        return 2.0F * vec_sigmoid(2.0F * x) - 1.0F;
    }
}

INLINE vec slope(enum dt_activation kind, vec x)
{
    vec s, t;
    switch (kind) {
    case DT_ACT_GELU:
        s = gelu_sigmoid(x);
        t = vec_fma(x * x, vec_all(6 * GELU_SCALE * GELU_CUBIC), vec_all(2 * GELU_SCALE)); /* (2 u)' */
        return vec_fma(x * t, s * (1.0F - s), s);
    case DT_ACT_RELU:
        return vec_pick(x > 0, vec_all(1), vec_all(0));
    default:
        t = 2.0F * vec_sigmoid(2.0F * x) - 1.0F;
        return 1.0F - t * t;
    }
}

INLINE void activate(enum dt_activation kind, float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC) {
        vec_store_n(y + i, value(kind, vec_load_n(x + i, n - i)), n - i);
    }
}

INLINE void activate_backward(enum dt_activation kind, float *dx, const float *dy, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += VEC) {
        vec_store_n(dx + i, vec_load_n(dy + i, n - i) * slope(kind, vec_load_n(x + i, n - i)), n - i);
    }
}

static void activation_part(void *context, int64_t part)
{
    const struct dt_activation_args *a = context;
    float *y = (float *)a->y + part * PART;
    const float *x = (const float *)a->x + part * PART;
    int64_t n = min64(PART, a->count - part * PART);
    switch (a->kind) {
    case DT_ACT_GELU:
        activate(DT_ACT_GELU, y, x, n);
        break;
    case DT_ACT_RELU:
        activate(DT_ACT_RELU, y, x, n);
        break;
    case DT_ACT_TANH:
        activate(DT_ACT_TANH, y, x, n);
        break;
    }
}

static int activation_now(struct dt_pool *pool, struct dt_activation_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->count, PART), activation_part, a);
    return 0;
}
DT_ISA_KERNEL(activation)

static void activation_backward_part(void *context, int64_t part)
{
    const struct dt_activation_backward_args *a = context;
    float *dx = (float *)a->dx + part * PART;
    const float *dy = (const float *)a->dy + part * PART, *x = (const float *)a->x + part * PART;
    int64_t n = min64(PART, a->count - part * PART);
    switch (a->kind) {
    case DT_ACT_GELU:
        activate_backward(DT_ACT_GELU, dx, dy, x, n);
        break;
    case DT_ACT_RELU:
        activate_backward(DT_ACT_RELU, dx, dy, x, n);
        break;
    case DT_ACT_TANH:
        activate_backward(DT_ACT_TANH, dx, dy, x, n);
        break;
    }
}

static int activation_backward_now(struct dt_pool *pool, struct dt_activation_backward_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->count, PART), activation_backward_part, a);
    return 0;
}
DT_ISA_KERNEL(activation_backward)

/* ---- column sums ---- */

/* One vector of columns: rows are summed in blocks, the blocks in order. */
INLINE vec column_total(const float *x, int64_t stride, int64_t rows, int64_t n, vec total)
{
    for (int64_t i = 0; i < rows; i += ROW_BLOCK) {
        vec sum = {0};
        for (int64_t r = i; r < min64(rows, i + ROW_BLOCK); r++) {
            sum += vec_load_n(x + r * stride, n);
        }
        total += sum;
    }
    return total;
}

static void column_sum_part(void *context, int64_t part)
{
    const struct dt_column_sum_args *a = context;
    float *out = a->out;
    const float *x = a->x;
    int64_t cols = a->col_count, end = min64(cols, (part + 1) * COLUMNS);
    if (end - part * COLUMNS == COLUMNS) { /* whole cache lines, all columns of the part at once */
        vec total[COLUMNS / VEC];
        for (int v = 0; v < COLUMNS / VEC; v++) {
            total[v] = a->accumulate ? vec_load(out + part * COLUMNS + v * VEC) : (vec){0};
        }
        for (int64_t i = 0; i < a->row_count; i += ROW_BLOCK) {
            vec sum[COLUMNS / VEC] = {{0}};
            for (int64_t r = i; r < min64(a->row_count, i + ROW_BLOCK); r++) {
                const float *row = x + r * cols + part * COLUMNS;
#pragma GCC unroll 16
                for (int v = 0; v < COLUMNS / VEC; v++) {
                    sum[v] += vec_load(row + v * VEC);
                }
            }
            for (int v = 0; v < COLUMNS / VEC; v++) {
                total[v] += sum[v];
            }
        }
        for (int v = 0; v < COLUMNS / VEC; v++) {
            vec_store(out + part * COLUMNS + v * VEC, total[v]);
        }
        return;
    }
    for (int64_t j = part * COLUMNS; j < end; j += VEC) {
        vec before = a->accumulate ? vec_load_n(out + j, end - j) : (vec){0};
        vec_store_n(out + j, column_total(x + j, cols, a->row_count, end - j, before), end - j);
    }
}

static int column_sum_now(struct dt_pool *pool, struct dt_column_sum_args *a, struct dt_error *err)
{
    (void)err;
    dt_pool_run(pool, parts_of(a->col_count, COLUMNS), column_sum_part, a);
    return 0;
}
DT_ISA_KERNEL(column_sum)
