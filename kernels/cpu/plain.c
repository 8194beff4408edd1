/* fill, cast, sum_slices, norm_finish, exact_sum and label_loss for every type; parts of
 * cross_entropy and embedding_backward. Memory bounds their speed, so plain loops that the compiler
 * vectorises are enough; the losses of label_loss are few. */
#include "kernels/cpu/plain.h"

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/exact.h"

#include <math.h>
#include <string.h>

#define BLOCK 1024 /* elements: buffers of a few KB stay in the L1 cache */

/* ---- fill ---- */

#define FILL(T, value)                                                                                                 \
    for (int64_t i = 0; i < a->count; i++) {                                                                           \
        ((T *)a->x)[i] = (T)(value);                                                                                   \
    }

static int run_fill(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    const struct dt_fill_args *a = args;
    if (a->value == 0 && !signbit(a->value)) {
        memset(a->x, 0, (size_t)a->count * dt_dtype_size(a->type));
        return 0;
    }
    switch (a->type) {
    case DT_F32:
        FILL(float, a->value) break;
    case DT_F64:
        FILL(double, a->value) break;
    case DT_BF16:
        FILL(uint16_t, dt_to_bf16((float)a->value)) break;
    case DT_F16:
        FILL(uint16_t, dt_to_f16((float)a->value)) break;
    case DT_I64:
        /* atomic, because the host may read the value meanwhile, to see how far a stream has
         * come */
        for (int64_t i = 0; i < a->count; i++) {
            __atomic_store_n(&((int64_t *)a->x)[i], (int64_t)a->value, __ATOMIC_RELAXED);
        }
        break;
    case DT_I32:
        FILL(int32_t, a->value) break;
    case DT_U16:
        FILL(uint16_t, a->value) break;
    case DT_U8:
        FILL(uint8_t, a->value) break;
    default:
        return dt_fail(err, DT_INTERNAL, "fill: type %d", (int)a->type);
    }
    return 0;
}

void dt_plain_fill(struct dt_stream *s, const struct dt_fill_args *a)
{
    dt_stream_call(s, run_fill, a, sizeof *a);
}

/* ---- cast ---- */

/* Casts between floats go through double, which holds every source exactly. 16-bit targets are
 * rounded once from there. */
static void load_double(double *to, const void *from, int64_t at, int64_t n, enum dt_dtype type)
{
#define LOAD(T, expression)                                                                                            \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        T x = ((const T *)from)[at + i];                                                                               \
        to[i] = (double)(expression);                                                                                  \
    }                                                                                                                  \
    break;
    switch (type) {
    case DT_F32:
        LOAD(float, x)
    case DT_F64:
        LOAD(double, x)
    case DT_BF16:
        LOAD(uint16_t, dt_from_bf16(x))
    case DT_F16:
        LOAD(uint16_t, dt_from_f16(x))
    default:
        break;
    }
#undef LOAD
}

static void store_double(void *to, const double *from, int64_t at, int64_t n, enum dt_dtype type)
{
#define STORE(T, expression)                                                                                           \
    for (int64_t i = 0; i < n; i++) {                                                                                  \
        double x = from[i];                                                                                            \
        ((T *)to)[at + i] = (T)(expression);                                                                           \
    }                                                                                                                  \
    break;
    switch (type) {
    case DT_F32:
        STORE(float, x)
    case DT_F64:
        STORE(double, x)
    case DT_BF16:
        STORE(uint16_t, dt_to_bf16(dt_narrow_to_odd(x)))
    case DT_F16:
        STORE(uint16_t, dt_to_f16(dt_narrow_to_odd(x)))
    default:
        break;
    }
#undef STORE
}

static bool is_float(enum dt_dtype type)
{
    return type == DT_F32 || type == DT_F64 || type == DT_BF16 || type == DT_F16;
}

static int64_t load_integer(const void *x, int64_t i, enum dt_dtype type)
{
    switch (type) {
    case DT_I64:
        return ((const int64_t *)x)[i];
    case DT_I32:
        return ((const int32_t *)x)[i];
    case DT_U16:
        return ((const uint16_t *)x)[i];
    default:
        return ((const uint8_t *)x)[i];
    }
}

static int cast_now(const struct dt_cast_args *a, struct dt_error *err)
{
    if (a->out_type == a->in_type) {
        memmove(a->out, a->in, (size_t)a->count * dt_dtype_size(a->in_type));
        return 0;
    }
    if (dt_dtype_half(a->out_type) && a->in_type == DT_F32) {
        dt_cpu_half(a->out_type)->narrow(a->out, a->in, a->count);
        return 0;
    }
    if (a->out_type == DT_F32 && dt_dtype_half(a->in_type)) {
        dt_cpu_half(a->in_type)->widen(a->out, a->in, a->count);
        return 0;
    }
    if (is_float(a->out_type) && is_float(a->in_type)) {
        double block[BLOCK];
        for (int64_t i = 0; i < a->count; i += BLOCK) {
            int64_t n = a->count - i < BLOCK ? a->count - i : BLOCK;
            load_double(block, a->in, i, n, a->in_type);
            store_double(a->out, block, i, n, a->out_type);
        }
        return 0;
    }
    if (!is_float(a->in_type) && (a->out_type == DT_I64 || a->out_type == DT_I32)) {
        for (int64_t i = 0; i < a->count; i++) {
            int64_t x = load_integer(a->in, i, a->in_type);
            if (a->out_type == DT_I64) {
                ((int64_t *)a->out)[i] = x;
            } else {
                ((int32_t *)a->out)[i] = (int32_t)x;
            }
        }
        return 0;
    }
    return dt_fail(err, DT_INTERNAL, "cast: %s to %s is not made", dt_dtype_name(a->in_type),
                   dt_dtype_name(a->out_type));
}

static int run_cast(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    return cast_now(args, err);
}

void dt_plain_cast(struct dt_stream *s, const struct dt_cast_args *a)
{
    dt_stream_call(s, run_cast, a, sizeof *a);
}

void dt_cpu_cast(const struct dt_cast_args *a)
{
    cast_now(a, NULL);
}

/* ---- sum_slices: the canonical tree, block by block ---- */

/* Adds neighbours among the `count` rows of `rows`, BLOCK apart, in place: one level of the tree.
 * An odd last row moves up. */
#define TREE(T, name, JOIN)                                                                                            \
    static void name(T(*rows)[BLOCK], int count, int64_t n)                                                            \
    {                                                                                                                  \
        while (count > 1) {                                                                                            \
            for (int i = 0; i + 1 < count; i += 2) {                                                                   \
                const T *x = rows[i], *y = rows[i + 1];                                                                \
                T *to = rows[i / 2];                                                                                   \
                for (int64_t j = 0; j < n; j++) {                                                                      \
                    to[j] = JOIN(x[j], y[j]);                                                                          \
                }                                                                                                      \
            }                                                                                                          \
            if (count % 2 == 1) {                                                                                      \
                memcpy(rows[count / 2], rows[count - 1], (size_t)n * sizeof(T));                                       \
            }                                                                                                          \
            count = (count + 1) / 2;                                                                                   \
        }                                                                                                              \
    }
#define SUM(x, y) ((x) + (y))
#define SUM_I64(x, y) ((int64_t)((uint64_t)(x) + (uint64_t)(y))) /* wraps around, as on GPUs */
/* keeps a nan: takes y when x < y or y is nan */
#define MAX(x, y) ((x) > (y) || (x) != (x) ? (x) : (y))
#define MIN(x, y) ((x) < (y) || (x) != (x) ? (x) : (y))
TREE(float, sum_f32, SUM)
TREE(float, max_f32, MAX)
TREE(float, min_f32, MIN)
TREE(double, sum_f64, SUM)
TREE(double, max_f64, MAX)
TREE(double, min_f64, MIN)
TREE(int64_t, sum_i64, SUM_I64)
TREE(int64_t, max_i64, MAX)
TREE(int64_t, min_i64, MIN)

static void tree_f32(enum dt_op op, float (*rows)[BLOCK], int count, int64_t n)
{
    (op == DT_OP_SUM ? sum_f32 : op == DT_OP_MAX ? max_f32 : min_f32)(rows, count, n);
}

static void tree_f64(enum dt_op op, double (*rows)[BLOCK], int count, int64_t n)
{
    (op == DT_OP_SUM ? sum_f64 : op == DT_OP_MAX ? max_f64 : min_f64)(rows, count, n);
}

static void tree_i64(enum dt_op op, int64_t (*rows)[BLOCK], int count, int64_t n)
{
    (op == DT_OP_SUM ? sum_i64 : op == DT_OP_MAX ? max_i64 : min_i64)(rows, count, n);
}

/* The common case: two or four float buffers are summed without copies. */
static bool sum_few_f32(const struct dt_sum_slices_args *a)
{
    if (a->type != DT_F32 || a->op != DT_OP_SUM || (a->in_count != 2 && a->in_count != 4)) {
        return false;
    }
    float *out = a->out;
    const float *p = a->in[0], *q = a->in[1];
    if (a->in_count == 2) {
        for (int64_t i = 0; i < a->count; i++) {
            out[i] = p[i] + q[i];
        }
        return true;
    }
    const float *r = a->in[2], *s = a->in[3];
    for (int64_t i = 0; i < a->count; i++) {
        out[i] = (p[i] + q[i]) + (r[i] + s[i]);
    }
    return true;
}

static void sum_block(const struct dt_sum_slices_args *a, void *rows, int64_t at, int64_t n)
{
    for (int r = 0; r < a->in_count; r++) {
        for (int64_t i = 0; i < n; i++) {
            switch (a->type) {
            case DT_F32:
                ((float(*)[BLOCK])rows)[r][i] = ((const float *)a->in[r])[at + i];
                break;
            case DT_BF16:
                ((float(*)[BLOCK])rows)[r][i] = dt_from_bf16(((const uint16_t *)a->in[r])[at + i]);
                break;
            case DT_F16:
                ((float(*)[BLOCK])rows)[r][i] = dt_from_f16(((const uint16_t *)a->in[r])[at + i]);
                break;
            case DT_F64:
                ((double(*)[BLOCK])rows)[r][i] = ((const double *)a->in[r])[at + i];
                break;
            default:
                ((int64_t(*)[BLOCK])rows)[r][i] = load_integer(a->in[r], at + i, a->type);
                break;
            }
        }
    }
    if (a->type == DT_F64) {
        tree_f64(a->op, rows, a->in_count, n);
    } else if (is_float(a->type)) {
        tree_f32(a->op, rows, a->in_count, n);
    } else {
        tree_i64(a->op, rows, a->in_count, n);
    }
    for (int64_t i = 0; i < n; i++) {
        switch (a->type) {
        case DT_F32:
            ((float *)a->out)[at + i] = ((float *)rows)[i];
            break;
        case DT_BF16:
            ((uint16_t *)a->out)[at + i] = dt_to_bf16(((float *)rows)[i]);
            break;
        case DT_F16:
            ((uint16_t *)a->out)[at + i] = dt_to_f16(((float *)rows)[i]);
            break;
        case DT_F64:
            ((double *)a->out)[at + i] = ((double *)rows)[i];
            break;
        case DT_I64:
            ((int64_t *)a->out)[at + i] = ((int64_t *)rows)[i];
            break;
        case DT_I32:
            ((int32_t *)a->out)[at + i] = (int32_t)((int64_t *)rows)[i];
            break;
        case DT_U16:
            ((uint16_t *)a->out)[at + i] = (uint16_t)((int64_t *)rows)[i];
            break;
        default:
            ((uint8_t *)a->out)[at + i] = (uint8_t)((int64_t *)rows)[i];
            break;
        }
    }
}

void dt_cpu_sum_slices(const struct dt_sum_slices_args *a)
{
    if (sum_few_f32(a)) {
        return;
    }
    void *rows = dt_cpu_work(DT_WORK_KERNEL, (size_t)a->in_count * BLOCK * sizeof(double));
    for (int64_t at = 0; at < a->count; at += BLOCK) {
        sum_block(a, rows, at, a->count - at < BLOCK ? a->count - at : BLOCK);
    }
}

static int run_sum_slices(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    dt_cpu_sum_slices(args);
    return 0;
}

void dt_plain_sum_slices(struct dt_stream *s, const struct dt_sum_slices_args *a)
{
    dt_stream_call(s, run_sum_slices, a, sizeof *a);
}

/* ---- norm_finish ---- */

static int run_norm_finish(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    const struct dt_norm_finish_args *a = args;
    double scale = a->denominator == NULL ? a->scale : *a->denominator > 0 ? a->scale / (double)*a->denominator : 0.0;
    double norm = sqrt(dt_exact_get(a->limbs)) * scale;
    bool finite = dt_exact_finite(a->limbs);
    double clip = a->max_norm > 0 ? a->max_norm / (norm + 1e-6) : 1.0;
    clip = !finite ? 0.0 : clip < 1.0 ? clip : 1.0;
    if (a->norm != NULL) {
        *a->norm = norm;
    }
    if (a->clip != NULL) {
        *a->clip = clip;
    }
    if (a->factor != NULL) {
        *a->factor = scale * clip;
    }
    if (a->nonfinite != NULL) {
        *a->nonfinite = !finite;
    }
    return 0;
}

void dt_plain_norm_finish(struct dt_stream *s, const struct dt_norm_finish_args *a)
{
    dt_stream_call(s, run_norm_finish, a, sizeof *a);
}

/* ---- trust_ratio ---- */

static int run_trust_ratio(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    const struct dt_trust_ratio_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        const int64_t *limbs = a->limbs + 2 * i * DT_EXACT_LIMBS;
        double w = sqrt(dt_exact_get(limbs)), u = sqrt(dt_exact_get(limbs + DT_EXACT_LIMBS)), ratio = w / u;
        ratio = ratio < a->min_coeff ? a->min_coeff : ratio > a->max_coeff ? a->max_coeff : ratio;
        a->ratio[i] = w > 0 && u > 0 ? ratio : 1;
    }
    return 0;
}

void dt_plain_trust_ratio(struct dt_stream *s, const struct dt_trust_ratio_args *a)
{
    dt_stream_call(s, run_trust_ratio, a, sizeof *a);
}

/* ---- exact_sum ---- */

static int run_exact_sum(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    const struct dt_exact_sum_args *a = args;
    for (int64_t i = 0; i < a->count; i++) {
        double x = a->divisors == NULL ? a->x[i] : a->divisors[i] != 0 ? a->x[i] / (double)a->divisors[i] : 0.0;
        if (!isfinite(x)) {
            (*a->bad_count)++;
        }
        dt_exact_add(a->limbs, x < 0 ? 0 : x);
    }
    return 0;
}

void dt_plain_exact_sum(struct dt_stream *s, const struct dt_exact_sum_args *a)
{
    dt_stream_call(s, run_exact_sum, a, sizeof *a);
}

/* ---- cross_entropy ---- */

int dt_plain_check_targets(const struct dt_cross_entropy_args *a, struct dt_error *err)
{
    for (int64_t i = 0; i < a->row_count; i++) {
        int32_t t = a->targets[i];
        if (t != DT_IGNORE_INDEX && (t < 0 || t >= a->col_count)) {
            return dt_fail(err, DT_INVALID, "loss: row %lld: target %d is outside of 0..%lld", (long long)i, (int)t,
                           (long long)a->col_count - 1);
        }
    }
    return 0;
}

void dt_plain_sum_losses(const struct dt_cross_entropy_args *a)
{
    double sum = a->loss_sum != NULL ? *a->loss_sum : 0;
    int64_t valid = 0;
    for (int64_t i = 0; i < a->row_count; i++) {
        valid += a->targets[i] != DT_IGNORE_INDEX;
        sum += a->row_loss[i];
    }
    if (a->loss_sum != NULL) {
        *a->loss_sum = sum;
    }
    if (a->valid_count != NULL) {
        *a->valid_count += valid;
    }
}

/* ---- label_loss ---- */

/* An element's loss. z becomes its derivative. */
static double label_loss(enum dt_loss kind, double *z, double y)
{
    double x = *z, loss = 0;
    switch (kind) {
    case DT_LOSS_SQUARED:
        *z = 2 * (x - y);
        loss = (x - y) * (x - y);
        break;
    case DT_LOSS_BINARY:
        *z = 1 / (1 + exp(-x)) - y;
        loss = fmax(x, 0) - x * y + log1p(exp(-fabs(x)));
        break;
    }
    return loss;
}

static int run_label_loss(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    (void)err;
    const struct dt_label_loss_args *a = args;
    for (int64_t row = 0; row < a->row_count; row++) {
        const float *y = a->labels + row * a->col_count;
        bool target = !isnan(y[0]);
        double sum = 0;
        for (int64_t j = 0; j < a->col_count; j += BLOCK) {
            int64_t n = a->col_count - j < BLOCK ? a->col_count - j : BLOCK;
            double z[BLOCK];
            load_double(z, a->logits, row * a->col_count + j, n, a->type);
            for (int64_t k = 0; k < n; k++) {
                double loss = label_loss(a->kind, &z[k], (double)y[j + k]);
                sum += target ? loss : 0;
                z[k] = target ? z[k] * a->grad_scale / (double)a->col_count : 0;
            }
            if (a->with_grad) {
                store_double(a->logits, z, row * a->col_count + j, n, a->type);
            }
        }
        a->row_loss[row] = sum / (double)a->col_count;
        if (a->loss_sum != NULL) {
            *a->loss_sum += a->row_loss[row];
        }
    }
    return 0;
}

void dt_plain_label_loss(struct dt_stream *s, const struct dt_label_loss_args *a)
{
    dt_stream_call(s, run_label_loss, a, sizeof *a);
}

/* ---- embedding_backward ---- */

void dt_plain_rows_of_ids(const int32_t *ids, int64_t row_count, int64_t vocab_count, int64_t *next, int64_t *first)
{
    for (int64_t id = 0; id < vocab_count; id++) {
        first[id] = -1;
    }
    for (int64_t row = row_count - 1; row >= 0; row--) {
        next[row] = first[ids[row]];
        first[ids[row]] = row;
    }
}
