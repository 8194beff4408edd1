#include "tests/lib/kernel_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Short names for the cases below. */
#define make_of case_make_of
#define at(r, b) case_at(r, b)
#define side(r) case_side_of(r)

static uint64_t state = 1; /* from 0 it would never leave 0 */

void case_seed(uint64_t seed)
{
    state = seed;
}

double case_uniform(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(int64_t)(state >> 41) / 4194304.0 - 1.0;
}

struct case_buffer case_buf[CASE_BUFFERS];
struct case_side case_side;
const struct case_mode case_modes[CASE_MODES] = {{"F32", DT_F32, DT_F32},
                                                 {"BF16", DT_BF16, DT_BF16},
                                                 {"BF16, sums F32", DT_BF16, DT_F32},
                                                 {"F16", DT_F16, DT_F16},
                                                 {"F16, sums F32", DT_F16, DT_F32}};

/* Of copies of masters. */
static enum dt_dtype case_low(enum dt_dtype type)
{
    return type == DT_F16 ? DT_F16 : DT_BF16;
}

enum dt_dtype case_type_in(const struct case_mode *m, const struct case_buffer *b)
{
    return b->kind == FLOWS  ? m->type
           : b->kind == GRAD ? m->grad
           : b->kind == STAT ? DT_F32
           : b->kind == LOW  ? case_low(m->type)
                             : DT_BF16;
}

void case_make_of(enum case_kind kind, int at, int64_t count, double scale, double shift)
{
    struct case_buffer *b = &case_buf[at];
    b->count = count;
    b->kind = kind;
    b->made = malloc((size_t)(count + 1) * sizeof(double));
    b->d = malloc((size_t)(count + 1) * sizeof(double));
    b->x = malloc((size_t)(count + 1) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        b->made[i] = (double)(float)(shift + scale * case_uniform());
    }
}

void case_make(int at, int64_t count, double scale, double shift)
{
    make_of(FLOWS, at, count, scale, shift);
}

void case_make_ids(int32_t *ids, int64_t count, int64_t limit)
{
    assert_true(count <= CASE_ROWS);
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (int32_t)((case_uniform() + 1) / 2 * (double)limit);
    }
}

static void reset_side(void)
{
    case_side.half = 0.5;
    case_side.clip = 0.75;
    case_side.skips = 1;
    memset(case_side.losses, 0xff, sizeof case_side.losses);
    case_side.loss_sum = 0.5;
    case_side.valid = 10;
    case_side.correct = 0;
}

void case_reset_typed(const struct case_mode *m)
{
    reset_side();
    for (int b = 0; b < CASE_BUFFERS; b++) {
        if (case_buf[b].count > 0) {
            dt_cpu_cast(&(struct dt_cast_args){case_buf[b].x, case_buf[b].made, case_buf[b].count,
                                               case_type_in(m, &case_buf[b]), DT_F64});
        }
    }
}

void case_reset_double(const struct case_mode *m)
{
    case_reset_typed(m);
    for (int b = 0; b < CASE_BUFFERS; b++) {
        if (case_buf[b].count > 0) {
            dt_cpu_cast(&(struct dt_cast_args){case_buf[b].d, case_buf[b].x, case_buf[b].count, DT_F64,
                                               case_type_in(m, &case_buf[b])});
        }
    }
}

void case_clear(void)
{
    for (int b = 0; b < CASE_BUFFERS; b++) {
        free(case_buf[b].made);
        free(case_buf[b].d);
        free(case_buf[b].x);
        case_buf[b] = (struct case_buffer){0};
    }
}

void *case_at(const struct case_run *r, int b)
{
    return r->on != NULL ? r->on[b] : r->type == DT_F64 ? (void *)case_buf[b].d : case_buf[b].x;
}

struct case_side *case_side_of(const struct case_run *r)
{
    return r->side != NULL ? r->side : &case_side;
}

/* The type of optimizers' masters. */
static enum dt_dtype real_of(const struct case_run *r)
{
    return r->type == DT_F64 ? DT_F64 : DT_F32;
}

void case_open(struct dt_device *d, const char *name, int threads, struct dt_stream **s)
{
    struct dt_device_options o = {.thread_count = threads, .streams = DT_STREAMS_INLINE};
    struct dt_error err = {0};
    if (dt_device_open(d, name, &o, &err) != 0 || dt_stream_open(d, 0, s, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

void case_close(struct dt_device *d, struct dt_stream *s)
{
    struct dt_error err = {0};
    if (dt_stream_failed(s, &err)) {
        fail_msg("%s", err.text);
    }
    dt_stream_close(s);
    dt_device_close(d);
}

void case_run_host(const struct kernel_case *c, const int64_t *n, const struct case_mode *m, const char *device,
                   int threads, const struct dt_kernels *k)
{
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, device, threads, &s);
    bool in_double = strcmp(device, "twin64") == 0;
    struct case_run r = {.s = s,
                         .k = k != NULL ? k : d.kernels,
                         .type = in_double ? DT_F64 : m->type,
                         .n = n,
                         .grad = in_double ? DT_F64 : m->grad};
    c->run(&r);
    case_close(&d, s);
    if (c->after != NULL) {
        c->after(&r);
    }
}

double case_element(const struct case_buffer *b, const struct case_mode *m, int64_t i)
{
    double x;
    size_t size = dt_dtype_size(case_type_in(m, b));
    dt_cpu_cast(&(struct dt_cast_args){&x, (const char *)b->x + (size_t)i * size, 1, DT_F64, case_type_in(m, b)});
    return x;
}

/* F16 has three more bits than BF16. */
static double half_bound(const struct kernel_case *c, enum dt_dtype type)
{
    return type == DT_BF16 ? c->half : type == DT_F16 ? fmax(c->half / 8, c->bound) : c->bound;
}

void case_compare(const struct kernel_case *c, const int64_t *n, const struct case_mode *m, const char *who,
                  double slack)
{
    for (int b = 0; b < CASE_BUFFERS; b++) {
        enum dt_dtype type = case_type_in(m, &case_buf[b]);
        double bound = slack * half_bound(c, type);
        for (int64_t i = 0; i < case_buf[b].count; i++) {
            double x = case_element(&case_buf[b], m, i), e = fabs(x - case_buf[b].d[i]) / (1 + fabs(case_buf[b].d[i]));
            if (!(e <= bound)) { /* also true for a NaN */
                fail_msg("%s %s %s (%lld, %lld, %lld, %lld): buffer %d [%lld] is %.9g, not %.9g: off by %g, bound %g",
                         who, c->name, m->name, (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3], b,
                         (long long)i, x, case_buf[b].d[i], e, bound);
            }
        }
    }
}

/* Error of the twin of 16 bits against the double twin. Rounding between two kernels of a case counts,
 * too. */
#define TWIN_SLACK 6

void case_reference(const struct kernel_case *c, const int64_t *n, const struct case_mode *m)
{
    case_seed(88172645463325252ULL);
    c->make(n);
    case_reset_double(m);
    case_run_host(c, n, m, "twin64", 1, NULL);
    if (dt_dtype_half(m->type)) {
        case_reset_typed(m);
        case_run_host(c, n, m, "cpu", 1, dt_kernels_twin(m->type));
        struct kernel_case rough = *c;
        rough.bound = half_bound(c, m->type);
        case_compare(&rough, n, m, "twin16", TWIN_SLACK);
        for (int b = 0; b < CASE_BUFFERS; b++) {
            for (int64_t i = 0; i < case_buf[b].count; i++) {
                case_buf[b].d[i] = case_element(&case_buf[b], m, i);
            }
        }
    }
}

/* ---- the cases; n is the shape ---- */

void case_make_elements(const int64_t *n)
{
    case_make(0, n[0], 6, 0);
    case_make(1, n[0], 3, 0);
    case_make(2, n[0], 1, 0);
    make_of(STAT, 3, n[0], 1, 0);
    case_make(4, n[0], 1, 0);
    case_make(5, n[0], 1, 0);
}

void case_run_elements(const struct case_run *r)
{
    r->k->add(r->s, &(struct dt_add_args){at(r, 2), at(r, 0), at(r, 1), r->n[0], r->type, r->type});
    r->k->scale(r->s, &(struct dt_scale_args){.x = at(r, 2), .count = r->n[0], .factor = 0.3, .type = r->type});
    r->k->scale(r->s,
                &(struct dt_scale_args){
                    .x = at(r, 2), .count = r->n[0], .factor = 1, .device_factor = &side(r)->half, .type = r->type});
    /* a sum in F32 of parts that flow */
    r->k->add(r->s, &(struct dt_add_args){at(r, 3), at(r, 3), at(r, 0), r->n[0], real_of(r), r->type});
    r->k->scale(r->s, &(struct dt_scale_args){.x = at(r, 3), .count = r->n[0], .factor = 0.1, .type = real_of(r)});
    /* from another tensor; by 1, too */
    r->k->scale(
        r->s, &(struct dt_scale_args){.x = at(r, 4), .in = at(r, 0), .count = r->n[0], .factor = 0.7, .type = r->type});
    r->k->scale(r->s,
                &(struct dt_scale_args){.x = at(r, 5), .in = at(r, 1), .count = r->n[0], .factor = 1, .type = r->type});
}

void case_run_activation(const struct case_run *r)
{
    enum dt_activation kind = (enum dt_activation)r->n[1];
    r->k->activation(r->s, &(struct dt_activation_args){at(r, 2), at(r, 0), r->n[0], kind, r->type});
    r->k->activation_backward(
        r->s, &(struct dt_activation_backward_args){
                  .dx = at(r, 1), .dy = at(r, 1), .x = at(r, 0), .count = r->n[0], .kind = kind, .type = r->type});
}

/* rows, cols, accumulate, kind */
static void case_make_slanting(const int64_t *n)
{
    case_make(0, n[0] * n[1], 1, 0);
    case_make(1, n[0] * n[1], 3, 0);
    make_of(GRAD, 2, n[1], 1, 0);
}

static void case_run_slanting(const struct case_run *r)
{
    r->k->activation_backward(r->s, &(struct dt_activation_backward_args){.dx = at(r, 0),
                                                                          .dy = at(r, 0),
                                                                          .x = at(r, 1),
                                                                          .count = r->n[0] * r->n[1],
                                                                          .kind = (enum dt_activation)r->n[3],
                                                                          .type = r->type,
                                                                          .dbias = at(r, 2),
                                                                          .col_count = r->n[1],
                                                                          .accumulate = r->n[2] != 0,
                                                                          .grad_type = r->grad});
}

/* m, n, k, transposed (bit 0 a, bit 1 b), accumulate, extra leading dimension */
void case_make_matmul(const int64_t *n)
{
    int64_t m = n[0], cols = n[1], k = n[2], extra = n[5];
    make_of(GRAD, 0, m * (cols + extra), 1, 0);
    case_make(1, (n[3] & 1) != 0 ? k * (m + extra) : m * (k + extra), 1, 0);
    case_make(2, (n[3] & 2) != 0 ? cols * (k + extra) : k * (cols + extra), 1, 0);
    case_make(3, cols, 1, 0);
}

void case_run_matmul(const struct case_run *r)
{
    const int64_t *n = r->n;
    bool ta = (n[3] & 1) != 0, tb = (n[3] & 2) != 0;
    int64_t extra = n[5];
    r->k->matmul(r->s, &(struct dt_matmul_args){.c = at(r, 0),
                                                .a = at(r, 1),
                                                .b = at(r, 2),
                                                .bias = n[4] != 0 ? NULL : at(r, 3),
                                                .m = n[0],
                                                .n = n[1],
                                                .k = n[2],
                                                .a_transposed = ta,
                                                .b_transposed = tb,
                                                .lda = extra != 0 ? (ta ? n[0] : n[2]) + extra : 0,
                                                .ldb = extra != 0 ? (tb ? n[2] : n[1]) + extra : 0,
                                                .ldc = extra != 0 ? n[1] + extra : 0,
                                                .accumulate = n[4] != 0,
                                                .type = r->type,
                                                .c_type = r->grad});
}

/* rows, cols, accumulate */
void case_make_column_sum(const int64_t *n)
{
    make_of(GRAD, 0, n[1], 1, 0);
    case_make(1, n[0] * n[1], 1, 0);
}

void case_run_column_sum(const struct case_run *r)
{
    r->k->column_sum(
        r->s, &(struct dt_column_sum_args){at(r, 0), at(r, 1), r->n[0], r->n[1], r->n[2] != 0, r->type, r->grad});
}

/* rows, cols, accumulate (and without a branch, gradient from above), without beta */
void case_make_layernorm(const int64_t *n)
{
    int64_t rows = n[0], cols = n[1];
    case_make(0, rows * cols, 1, 0);    /* y, then dx */
    case_make(1, rows * cols, 1, 0);    /* sum */
    make_of(STAT, 2, rows, 1, 0);       /* mean */
    make_of(STAT, 3, rows, 1, 0);       /* rstd */
    case_make(4, rows * cols, 2, 0.25); /* residual, then gradient from above */
    case_make(5, rows * cols, 1, 0);    /* branch, then dy */
    case_make(6, cols, 1, 1);           /* gamma */
    case_make(7, cols, 1, 0);           /* beta */
    make_of(GRAD, 8, cols, 1, 0);       /* dgamma */
    make_of(GRAD, 9, cols, 1, 0);       /* dbeta */
}

void case_run_layernorm(const struct case_run *r)
{
    bool full = r->n[2] == 0;
    r->k->layernorm(r->s, &(struct dt_layernorm_args){.y = at(r, 0),
                                                      .residual_out = full ? at(r, 1) : NULL,
                                                      .mean = at(r, 2),
                                                      .rstd = at(r, 3),
                                                      .residual = at(r, 4),
                                                      .branch = full ? at(r, 5) : NULL,
                                                      .gamma = at(r, 6),
                                                      .beta = r->n[3] != 0 ? NULL : at(r, 7),
                                                      .row_count = r->n[0],
                                                      .col_count = r->n[1],
                                                      .eps = 1e-5,
                                                      .type = r->type});
}

void case_run_layernorm_backward(const struct case_run *r)
{
    case_run_layernorm(r);
    bool full = r->n[2] == 0;
    r->k->layernorm_backward(r->s, &(struct dt_layernorm_backward_args){.dx = at(r, 0),
                                                                        .dgamma = at(r, 8),
                                                                        .dbeta = r->n[3] != 0 ? NULL : at(r, 9),
                                                                        .dy = at(r, 5),
                                                                        .x = full ? at(r, 1) : at(r, 4),
                                                                        .gamma = at(r, 6),
                                                                        .mean = at(r, 2),
                                                                        .rstd = at(r, 3),
                                                                        .dresidual = full ? at(r, 4) : NULL,
                                                                        .row_count = r->n[0],
                                                                        .col_count = r->n[1],
                                                                        .accumulate = !full,
                                                                        .type = r->type,
                                                                        .grad_type = r->grad});
}

/* rows, T, C, V, accumulate */
void case_make_embedding(const int64_t *n)
{
    case_make(0, n[0] * n[2], 1, 0);
    case_make(1, n[3] * n[2], 1, 0);       /* tokens */
    case_make(2, (n[1] + 3) * n[2], 1, 0); /* positions: a table with rows to spare */
    case_make(3, n[0] * n[2], 1, 0);       /* dy */
    make_of(GRAD, 4, n[3] * n[2], 1, 0);
    make_of(GRAD, 5, (n[1] + 3) * n[2], 1, 0);
    case_make_ids(case_side.ids, n[0], n[3]);
}

void case_run_embedding(const struct case_run *r)
{
    const int64_t *n = r->n;
    r->k->embedding(r->s, &(struct dt_embedding_args){.out = at(r, 0),
                                                      .tokens = at(r, 1),
                                                      .positions = n[4] != 0 ? NULL : at(r, 2),
                                                      .ids = side(r)->ids,
                                                      .row_count = n[0],
                                                      .position_count = n[1],
                                                      .col_count = n[2],
                                                      .type = r->type});
    r->k->embedding_backward(r->s, &(struct dt_embedding_backward_args){.dtokens = at(r, 4),
                                                                        .dy = at(r, 3),
                                                                        .ids = side(r)->ids,
                                                                        .row_count = n[0],
                                                                        .vocab_count = n[3],
                                                                        .col_count = n[2],
                                                                        .accumulate = n[4] != 0,
                                                                        .type = r->type,
                                                                        .grad_type = r->grad});
    r->k->position_backward(r->s, &(struct dt_position_backward_args){at(r, 5), at(r, 3), n[0], n[1], n[1] + 3, n[2],
                                                                      n[4] != 0, r->type, r->grad});
}

/* rows, V, with gradient, elements between two rows; those are large, and no kernel may take them
 * for logits. Then the percentage of the scale, and the cap; 0: none */
void case_make_entropy(const int64_t *n)
{
    case_make(0, n[0] * (n[1] + n[3]), 4, 0);
    for (int64_t i = 0; i < case_buf[0].count; i++) {
        case_buf[0].made[i] = i % (n[1] + n[3]) < n[1] ? case_buf[0].made[i] : 64;
    }
    make_of(STAT, 1, n[0] + 3, 1, 0); /* losses, their sum, counts */
    case_make_ids(case_side.ids, n[0], n[1]);
    for (int64_t i = 2; i < n[0]; i += 5) {
        case_side.ids[i] = DT_IGNORE_INDEX;
    }
}

void case_run_entropy(const struct case_run *r)
{
    const int64_t *n = r->n;
    r->k->cross_entropy(r->s, &(struct dt_cross_entropy_args){.logits = at(r, 0),
                                                              .targets = side(r)->ids,
                                                              .row_loss = side(r)->losses,
                                                              .loss_sum = &side(r)->loss_sum,
                                                              .valid_count = &side(r)->valid,
                                                              .correct_count = &side(r)->correct,
                                                              .row_count = n[0],
                                                              .col_count = n[1],
                                                              .ld = n[3] != 0 ? n[1] + n[3] : 0,
                                                              .grad_scale = 0.25,
                                                              .scale = (double)n[4] / 100,
                                                              .softcap = (double)n[5],
                                                              .with_grad = n[2] != 0,
                                                              .type = r->type});
}

/* Losses, their sum and the counts go to a buffer, to be compared. */
static void after_losses(const struct case_run *r)
{
    int64_t rows = r->n[0];
    for (int64_t i = 0; i < rows + 3; i++) {
        double x = i < rows        ? case_side.losses[i]
                   : i == rows     ? case_side.loss_sum
                   : i == rows + 1 ? (double)case_side.valid
                                   : (double)case_side.correct;
        if (r->type == DT_F64) {
            case_buf[1].d[i] = x;
        } else {
            ((float *)case_buf[1].x)[i] = (float)x;
        }
    }
}

static void after_entropy(const struct case_run *r)
{
    int64_t rows = r->n[0], ld = r->n[1] + r->n[3];
    for (int64_t i = 0; i < rows * ld; i++) { /* the gaps between rows may now hold anything */
        if (i % ld >= r->n[1]) {
            size_t size = dt_dtype_size(r->type);
            memset(r->type == DT_F64 ? (char *)&case_buf[0].d[i] : (char *)case_buf[0].x + (size_t)i * size, 0, size);
        }
    }
    after_losses(r);
}

/* m and v of AdamW */
static void make_moments(int64_t count, bool half)
{
    make_of(half ? COPY : STAT, 1, count, 0.1, 0);
    make_of(half ? COPY : STAT, 2, count, 0.1, 0.11);
}

static enum dt_dtype moment_of(const struct case_run *r, bool half)
{
    return half && r->type != DT_F64 ? DT_BF16 : real_of(r);
}

static const struct dt_update_numbers numbers = {
    .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9, .dampening = 0.25, .lr_decay = 0.5, .initial = 0.1};

static struct dt_update_args update_args(const struct case_run *r, const struct dt_update_slice *slices, int64_t count,
                                         int64_t step, bool half)
{
    return (struct dt_update_args){.slices = slices,
                                   .slice_count = (int)count,
                                   .clip = &side(r)->clip,
                                   .skip = &side(r)->goes,
                                   .step = step,
                                   .lr = 1e-3,
                                   .grad_scale = 0.5,
                                   .numbers = numbers,
                                   .seed = 42,
                                   .type = real_of(r),
                                   .grad_type = r->grad,
                                   .state_type = moment_of(r, half),
                                   .low_type = case_low(r->type)};
}

/* count, step, kind of sgd, state in BF16 */
void case_make_optimizer(const int64_t *n)
{
    make_of(STAT, 0, n[0], 1, 0); /* w */
    make_moments(n[0], n[3] != 0);
    make_of(GRAD, 3, n[0], 1, 0); /* grad */
    make_of(STAT, 4, n[0], 1, 0); /* w of sgd */
    /* momentum buffer of sgd */
    make_of(n[3] != 0 ? COPY : STAT, 5, n[0], 1, 0);
    make_of(LOW, 6, n[0], 1, 0); /* w of adamw in BF16 */
    make_of(LOW, 7, n[0], 1, 0); /* w of sgd */
}

void case_run_optimizer(const struct case_run *r)
{
    const int64_t *n = r->n;
    bool in_double = r->type == DT_F64, half = n[3] != 0;
    struct dt_update_slice adamw = {.w = at(r, 0),
                                    .state = {at(r, 1), at(r, 2)},
                                    .w_low = in_double ? NULL : at(r, 6),
                                    .grad = at(r, 3),
                                    .count = n[0],
                                    .weight_decay = 0.1,
                                    .unit = 3,
                                    .first = 1001};
    struct dt_update_slice sgd = {.w = at(r, 4),
                                  .state = {n[2] != 0 ? at(r, 5) : NULL},
                                  .w_low = in_double ? NULL : at(r, 7),
                                  .grad = at(r, 3),
                                  .count = n[0],
                                  .weight_decay = 0.01,
                                  .unit = 3,
                                  .first = 1001};
    struct dt_update_args a = update_args(r, &adamw, 1, n[1], half), b = update_args(r, &sgd, 1, n[1], half);
    b.clip = NULL;
    b.lr = 0.1;
    b.numbers.nesterov = n[2] == 2;
    b.numbers.dampening = n[2] == 3 ? 0.25 : 0;
    r->k->adamw_many(r->s, &a);
    r->k->sgd_many(r->s, &b);
    a.skip = b.skip = &side(r)->skips; /* changes nothing */
    r->k->adamw_many(r->s, &a);
    r->k->sgd_many(r->s, &b);
    memset(&adamw, 0xff, sizeof adamw); /* they were read */
    memset(&sgd, 0xff, sizeof sgd);
}

static void after_optimizer(const struct case_run *r)
{
    for (int64_t i = 0; i < r->n[0] && r->type == DT_F64; i++) {
        case_buf[6].d[i] = case_buf[0].d[i];
        case_buf[7].d[i] = case_buf[4].d[i];
    }
}

/* elements, slices, kind, 1 for BF16 states and 2 for weights without masters; units of seven slices. Kind 0: slices of at least 64
 * elements without gaps, with changing decay, as in a model's units; 1: with gaps of 64 elements;
 * 2: odd lengths; 3: three decays. */
enum { MANY_SLICES = 640, HALF_STATES = 1, NO_MASTERS = 2 };

static void case_make_many(const int64_t *n)
{
    make_of(n[3] & NO_MASTERS ? FLOWS : STAT, 0, n[0], 1, 0); /* w */
    make_moments(n[0], n[3] & HALF_STATES);
    make_of(GRAD, 3, n[0], 1, 0); /* grad */
    make_of(LOW, 6, n[0], 1, 0);  /* w in BF16 */
}

/* Lion takes the sign of a sum, which rounding must not turn: its state, of both signs, is larger than
 * what the gradient adds. */
static void case_make_lion(const int64_t *n)
{
    case_make_many(n);
    for (int64_t i = 0; i < n[0]; i++) {
        double x = case_buf[2].made[i];
        case_buf[1].made[i] = i % 3 == 0 ? -x : x;
    }
}

/* Adagrad's state is a sum of squares; number 4 of n: step 1, which does not read it. */
static void case_make_adagrad(const int64_t *n)
{
    case_make_many(n);
    memcpy(case_buf[1].made, case_buf[2].made, (size_t)n[0] * sizeof(double));
}

static char *element(const struct case_run *r, int at_buffer, int64_t i, enum dt_dtype type)
{
    return (char *)at(r, at_buffer) + (size_t)i * dt_dtype_size(type);
}

typedef void update_fn(struct dt_stream *s, const struct dt_update_args *a);

static void run_many(const struct case_run *r, update_fn *update, int states, int64_t step, bool nesterov)
{
    struct dt_update_slice each[MANY_SLICES];
    const int64_t *n = r->n;
    bool masters = !(n[3] & NO_MASTERS);
    enum dt_dtype real = masters ? real_of(r) : r->type, grad = r->type == DT_F64 ? DT_F64 : r->grad,
                  moment = moment_of(r, n[3] & HALF_STATES);
    int64_t part = n[0] / n[1] / 64 * 64, first = 0, unit_first = 0;
    for (int64_t i = 0; i < n[1]; i++) {
        int64_t end =
            i + 1 == n[1] ? n[0] : first + part + (i % 5 - 2) * (part >= 256 ? 64 : 0) - (n[2] == 2 ? i % 7 : 0);
        unit_first = i % 7 == 0 ? first : unit_first;
        each[i] =
            (struct dt_update_slice){.w = element(r, 0, first, real),
                                     .w_low = r->type == DT_F64 || !masters ? NULL : element(r, 6, first, DT_BF16),
                                     .grad = element(r, 3, first, grad),
                                     .count = end - first - (n[2] == 1 ? 64 : 0),
                                     .weight_decay = i % 2 == 0                ? 0
                                                     : n[2] == 3 && i % 3 == 0 ? 10
                                                                               : 30,
                                     .unit = i / 7,
                                     .first = first - unit_first};
        for (int k = 0; k < states; k++) {
            each[i].state[k] = element(r, k < 2 ? 1 + k : 4, first, moment);
        }
        first = end;
    }
    struct dt_update_args a = update_args(r, each, n[1], step, n[3] & HALF_STATES);
    a.type = real;
    a.numbers.nesterov = nesterov;
    a.numbers.beta1 = update == r->k->lion_many ? 0.99 : a.numbers.beta1;
    a.numbers.uncorrected = states == 3 && n[4] != 0;
    update(r->s, &a);
    a.skip = &side(r)->skips; /* changes nothing */
    update(r->s, &a);
    memset(each, 0xff, sizeof each); /* the kernel has read it */
}

static void run_adamw_many(const struct case_run *r)
{
    run_many(r, r->k->adamw_many, 2, 3, false);
}

static void run_adam_many(const struct case_run *r)
{
    run_many(r, r->k->adam_many, 2, 3, false);
}

/* A third state, which is above the second one or below it; number 4 of n: Adam, uncorrected. */
static void case_make_amsgrad(const int64_t *n)
{
    case_make_many(n);
    make_of(n[3] != 0 ? COPY : STAT, 4, n[0], 0.1, 0.11);
}

static void run_amsgrad(const struct case_run *r)
{
    run_many(r, r->n[4] != 0 ? r->k->adam_many : r->k->adamw_many, 3, 3, false);
}

static void run_sgd_many(const struct case_run *r)
{
    run_many(r, r->k->sgd_many, r->n[4] != 0, 3, r->n[4] == 2);
}

static void run_lion_many(const struct case_run *r)
{
    run_many(r, r->k->lion_many, 1, 3, false);
}

static void run_adagrad_many(const struct case_run *r)
{
    run_many(r, r->k->adagrad_many, 1, r->n[4] != 0 ? 1 : 3, false);
}

/* u in place of the gradient, and w as it was. */
static void run_lamb_many(const struct case_run *r)
{
    run_many(r, r->k->lamb_many, 2, 3, false);
}

static void run_muon_many(const struct case_run *r)
{
    run_many(r, r->k->muon_many, 1, 3, r->n[4] != 0);
}

static void after_many(const struct case_run *r)
{
    if (r->n[3] & NO_MASTERS) {
        return;
    }
    for (int64_t i = 0; i < r->n[0] && r->type == DT_F64 && r->n[2] != 1; i++) {
        case_buf[6].d[i] = case_buf[0].d[i];
    }
    int64_t part = r->n[0] / r->n[1] / 64 * 64, first = 0; /* gaps of the copy stay as they were */
    for (int64_t s = 0; s < r->n[1] && r->type == DT_F64 && r->n[2] == 1; s++) {
        int64_t end = s + 1 == r->n[1] ? r->n[0] : first + part + (s % 5 - 2) * (part >= 256 ? 64 : 0);
        memcpy(case_buf[6].d + first, case_buf[0].d + first, (size_t)(end - 64 - first) * sizeof(double));
        first = end;
    }
}

/* the last place of a BF16: both sides round once, so a value half-way between two may round to
 * either */
#define ULP 0x1p-7

const struct kernel_case kernel_cases[] = {
    {"add, scale", case_make_elements, case_run_elements, NULL, 1e-6, ULP, {{1}, {17}, {70001}}},
    {"activation",
     case_make_elements,
     case_run_activation,
     NULL,
     4e-6,
     ULP,
     {{1, 0}, {33, 0}, {40007, 0}, {1003, 1}, {1003, 2}, {1003, 3}, {1003, 4}}},
    {"matmul",
     case_make_matmul,
     case_run_matmul,
     NULL,
     2e-5,
     ULP,
     {{1, 1, 1, 0, 0, 0},
      {7, 65, 33, 0, 0, 0},
      {300, 50, 70, 1, 1, 0},
      {129, 77, 40, 2, 0, 5},
      {66, 131, 600, 1, 0, 3},
      {520, 9, 11, 3, 1, 0},
      {64, 48, 16, 2, 1, 0},
      {65, 600, 1030, 3, 1, 3},
      {700, 400, 450, 0, 0, 0},
      {1, 40, 33, 1, 0, 0},
      {1, 65, 9, 1, 1, 0},
      {1, 1, 33, 3, 0, 0},
      {50, 40, 1, 2, 0, 0},
      {9, 65, 1, 3, 1, 0},
      {50, 1, 33, 2, 0, 0}}},
    {"column_sum",
     case_make_column_sum,
     case_run_column_sum,
     NULL,
     1e-5,
     ULP,
     {{1, 1, 0}, {33, 65, 1}, {100, 200, 0}, {31, 64, 1}}},
    {"activation_backward with bias",
     case_make_slanting,
     case_run_slanting,
     NULL,
     1e-5,
     ULP,
     {{1, 1, 0, 0}, {33, 65, 1, 0}, {100, 200, 0, 1}, {70, 264, 0, 0}, {9, 64, 1, 2}, {9, 70, 0, 3}, {9, 64, 1, 4}}},
    {"layernorm",
     case_make_layernorm,
     case_run_layernorm,
     NULL,
     2e-5,
     ULP,
     {{1, 2, 0}, {5, 37, 0}, {70, 64, 1}, {33, 384, 0}, {6, 50, 0, 1}}},
    {"layernorm_backward",
     case_make_layernorm,
     case_run_layernorm_backward,
     NULL,
     2e-5,
     ULP,
     {{1, 5, 0}, {5, 37, 0}, {70, 64, 1}, {33, 390, 0}, {65, 131, 1}, {65, 70, 0, 1}, {9, 64, 1, 1}}},
    {"rmsnorm",
     case_make_rmsnorm,
     case_run_rmsnorm,
     NULL,
     2e-5,
     ULP,
     {{1, 2},
      {5, 37, 0, 0, 0, 1},
      {66, 40, 0, 0, 0, 2},
      {33, 384},
      {70, 64, 2, 8, 16, 1},
      {36, 20, 3, 5, 7},
      {600, 64, 4, 64, 0, 1},
      {24, 130, 8, 0, 0, 2}}},
    {"rmsnorm_backward",
     case_make_rmsnorm,
     case_run_rmsnorm_backward,
     NULL,
     2e-5,
     ULP,
     {{1, 5},
      {5, 37, 0, 0, 0, 1},
      {66, 40, 0, 0, 0, 2},
      {130, 520, 0, 0, 0, 3},
      {70, 64, 2, 8, 16, 1},
      {36, 20, 3, 5, 7},
      {600, 64, 4, 64, 0, 1},
      {24, 130, 8, 0, 0, 2},
      {35, 256, 5, 0, 8, 3}}},
    {"gate",
     case_make_gate,
     case_run_gate,
     NULL,
     4e-6,
     ULP,
     {{1, 1, 0, 4},
      {5, 37, 0, 4},
      {3, 1100, 1, 4, 1},
      {40, 900, 9, 3},
      {7, 64, 1, 3, 1},
      {9, 64, 65, 0, 2},
      {6, 33, 4, 0, 1},
      {6, 48, 1, 1, 1},
      {6, 48, 0, 2}}},
    {"rope",
     case_make_rope,
     case_run_rope,
     NULL,
     2e-6,
     ULP,
     {{1, 1, 2, 2},
      {33, 2, 64, 64},
      {20, 3, 37, 36, 5, 1},
      {300, 4, 128, 128, 64, 2},
      {17, 2, 80, 32, 16, 3},
      {9, 3, 15, 6, 1, 2},
      {11, 5, 24, 24, 8, 1}}},
    {"attention",
     case_make_attention,
     case_run_attention,
     case_after_attention,
     2e-5,
     ULP,
     {{1, 1, 1, 1, 0, CASE_CAUSAL},
      {2, 5, 3, 8, 0, CASE_CAUSAL},
      {1, 64, 2, 16, 0, CASE_CAUSAL},
      {1, 130, 2, 20, 0, CASE_CAUSAL},
      {2, 70, 4, 8, 2, CASE_CAUSAL},
      {1, 291, 2, 12, 0, 0},
      {1, 33, 4, 4, 1, 0},
      {1, 70, 6, 80, 2, CASE_CAUSAL | CASE_STRIDES},
      {1, 35, 2, 256, 1, CASE_STRIDES},
      {1, 150, 1, 10, 0, CASE_CAUSAL | CASE_WINDOW(5)},
      {2, 40, 2, 8, 0, CASE_CAUSAL | CASE_WINDOW(1)},
      {1, 150, 2, 8, 0, CASE_WINDOW(40)},
      {1, 37, 2, 8, 0, CASE_CAUSAL | CASE_WINDOW(37)},
      {1, 37, 2, 8, 0, CASE_WINDOW(99)},
      {2, 75, 2, 64, 0, CASE_CAUSAL | CASE_SOFTCAP},
      {2, 61, 2, 10, 0, CASE_CAUSAL | CASE_DROPOUT},
      {2, 75, 2, 8, 0, CASE_SEGMENTS(1)},
      {2, 75, 2, 8, 0, CASE_CAUSAL | CASE_SEGMENTS(2)},
      {2, 75, 2, 8, 0, CASE_SEGMENTS(3)},
      {2, 150, 2, 8, 0, CASE_CAUSAL | CASE_SEGMENTS(4)},
      {2, 20, 1, 8, 0, CASE_SEGMENTS(5)},
      {2, 70, 6, 10, 2, CASE_EVERYTHING | CASE_WINDOW(9) | CASE_SEGMENTS(2)},
      {2, 130, 6, 64, 2, CASE_EVERYTHING | CASE_WINDOW(30) | CASE_SEGMENTS(1)},
      {2, 150, 2, 128, 1, CASE_EVERYTHING | CASE_WINDOW(60) | CASE_SEGMENTS(4)},
      {2, 70, 6, 1, 3, CASE_EVERYTHING | CASE_SEGMENTS(3)},
      {2, 65, 6, 64, 2, CASE_CAUSAL | CASE_QUERIES(1)},
      {2, 70, 4, 20, 0, CASE_CAUSAL | CASE_QUERIES(3)},
      {2, 70, 6, 80, 2, CASE_CAUSAL | CASE_WINDOW(20) | CASE_SEGMENTS(2) | CASE_SOFTCAP | CASE_QUERIES(2)},
      {2, 130, 6, 20, 2, CASE_CAUSAL | CASE_STRIDES | CASE_QUERIES(50)},
      {2, 130, 2, 8, 0, CASE_EVERYTHING | CASE_WINDOW(20) | CASE_SEGMENTS(4) | CASE_QUERIES(40)}}},
    {"embedding",
     case_make_embedding,
     case_run_embedding,
     NULL,
     1e-6,
     ULP,
     {{1, 1, 1, 1, 0}, {60, 20, 37, 11, 0}, {64, 16, 300, 7, 1}}},
    {"cross_entropy",
     case_make_entropy,
     case_run_entropy,
     after_entropy,
     5e-6,
     ULP,
     {{1, 1, 1}, {7, 65, 1}, {40, 1000, 1}, {33, 17, 0}, {9, 65, 1, 63}, {5, 33, 0, 3}, {5, 33, 1, 7}}},
    {"cross_entropy with scale and cap",
     case_make_entropy,
     case_run_entropy,
     after_entropy,
     1e-5,
     ULP,
     {{1, 1, 1, 0, 50, 0},
      {7, 65, 1, 0, 30, 0},
      {40, 1000, 1, 0, 0, 3},
      {33, 17, 0, 0, 0, 2},
      {9, 65, 1, 63, 150, 5},
      {5, 33, 0, 3, 50, 30},
      {5, 33, 1, 7, 200, 30},
      {5, 36, 0, 0, 70, 0}}},
    {"dropout",
     case_make_dropout,
     case_run_dropout,
     NULL,
     1e-6,
     ULP,
     {{1, 1, 1, 500},
      {12, 4, 37, 100},
      {7, 1, 64, 900},
      {6, 3, 1000, 250},
      {4, 2, 20000, 100},
      {5, 2, 33, 0},
      {9, 4, 24, 300}}},
    {"embedding with all tables",
     case_make_tables,
     case_run_tables,
     NULL,
     1e-5,
     ULP,
     {{1, 1, 1, 1, 1, 0},
      {60, 20, 37, 11, 3, 2},
      {64, 16, 300, 7, 2, 3},
      {90, 30, 144, 50, 4, 6},
      {60, 15, 8, 9, 2, 1}}},
    {"embedding of few rows",
     case_make_tables,
     case_run_tables,
     NULL,
     5e-5,
     ULP,
     {{600, 60, 40, 2, 1, 2}, {1500, 100, 37, 3, 2, 3}, {2100, 300, 136, 8, 5, 0}, {3000, 250, 300, 1, 7, 1}}},
    {"masked_mean",
     case_make_mean,
     case_run_mean,
     NULL,
     4e-6,
     ULP,
     {{1, 1, 1, 0}, {3, 20, 37, 1}, {4, 70, 64, 0}, {5, 33, 200, 1}, {2, 130, 72, 1}}},
    {"take_rows",
     case_make_take,
     case_run_take,
     NULL,
     0,
     0,
     {{1, 1, 1, 0}, {5, 7, 37, 0}, {40, 3, 64, 1}, {70, 1, 8, 1}, {33, 2, 300, 0}}},
    {"unfold, fold",
     case_make_windows,
     case_run_windows,
     NULL,
     2e-6,
     ULP,
     {{1, 1, 1, 1, 110, 0},
      {2, 9, 7, 5, 311, 0},
      {1, 8, 11, 37, 321, 2},
      {3, 7, 7, 3, 723, 1},
      {2, 6, 5, 64, 120, 2},
      {2, 11, 9, 3, 311, 1},
      {1, 5, 6, 20, 522, 2}}},
    {"convolution", /* the first seven, and the last, are Winograd's */
     case_make_convolution,
     case_run_convolution,
     NULL,
     2e-5,
     ULP,
     {{1, 1, 1, 16, 311, 16 << 8},
      {2, 8, 8, 24, 311, 40 << 8},
      {3, 7, 5, 37, 311, 50 << 8 | 2},
      {20, 5, 6, 130, 311, 20 << 8 | 2},
      {1, 6, 9, 300, 311, 270 << 8},
      {2, 24, 26, 16, 311, 64 << 8},
      {3, 29, 27, 20, 311, 24 << 8 | 2},
      {2, 7, 7, 3, 311, 16 << 8 | 1},
      {3, 9, 8, 20, 321, 24 << 8 | 2 << 4 | 2},
      {3, 9, 9, 3, 723, 18 << 8 | 2 << 4 | 1},
      {4, 6, 6, 40, 120, 24 << 8 | 3 << 4},
      {3, 5, 6, 33, 110, 17 << 8 | 2},
      {2, 7, 7, 8, 311, 24 << 8},
      {2, 5, 6, 20, 522, 6 << 8},
      {70, 4, 4, 64, 311, 48 << 8}}},
    {"max_pool",
     case_make_pool,
     case_run_pool,
     NULL,
     1e-6,
     ULP,
     {{1, 1, 1, 1, 321, 0},
      {2, 9, 7, 5, 321, 0},
      {3, 12, 16, 37, 321, 0},
      {2, 6, 6, 64, 220, 0},
      {1, 7, 5, 20, 311, 0}}},
    {"batch_norm",
     case_make_batch_norm,
     case_run_batch_norm,
     NULL,
     2e-5,
     ULP,
     {{2, 1, 1, 0},
      {7, 5, 2, 1},
      {130, 37, 1, 2},
      {300, 64, 3, 1 | 16},
      {129, 20, 2, 1 | 2 | 4 | 16},
      {1000, 17, 1, 4},
      {260, 33, 1, 1 | 8},
      {600, 40, 4, 1 | 32}}},
    {"label_loss",
     case_make_labels,
     case_run_labels,
     after_losses,
     1e-5,
     ULP,
     {{1, 1, 1, DT_LOSS_SQUARED},
      {9, 3, 1, DT_LOSS_SQUARED},
      {40, 37, 1, DT_LOSS_BINARY},
      {33, 1, 0, DT_LOSS_BINARY},
      {4, 1030, 1, DT_LOSS_BINARY},
      {70, 100, 0, DT_LOSS_SQUARED}}},
    {"optimizers",
     case_make_optimizer,
     case_run_optimizer,
     after_optimizer,
     2e-6,
     ULP,
     {{1, 1, 0, 0},
      {67, 5, 1, 0},
      {33000, 1, 2, 0},
      {100, 1000, 2, 0},
      {1, 1, 0, 1},
      {67, 5, 1, 1},
      {33000, 1, 2, 1},
      {100, 1000, 2, 1},
      {99, 7, 3, 1}}},
    {"adamw_many",
     case_make_many,
     run_adamw_many,
     after_many,
     2e-6,
     ULP,
     {{64, 1, 0, 0},
      {9000, 5, 0, 0},
      {40000, 600, 0, 0},
      {10000, 60, 1, 0},
      {9001, 20, 2, 0},
      {20000, 40, 3, 0},
      {131, 2, 0, 0}}},
    {"adamw_many with BF16 moments",
     case_make_many,
     run_adamw_many,
     after_many,
     2e-6,
     ULP,
     {{64, 1, 0, 1},
      {9000, 5, 0, 1},
      {40000, 600, 0, 1},
      {10000, 60, 1, 1},
      {9001, 20, 2, 1},
      {20000, 40, 3, 1},
      {131, 2, 0, 1}}},
    {"adamw_many without masters",
     case_make_many,
     run_adamw_many,
     after_many,
     2e-6,
     ULP,
     {{64, 1, 0, 2}, {9000, 5, 0, 3}, {40000, 600, 0, 2}, {10000, 60, 1, 3}, {9001, 20, 2, 2}, {20000, 40, 3, 3}}},
    {"adam_many",
     case_make_many,
     run_adam_many,
     after_many,
     2e-6,
     ULP,
     {{64, 1, 0, 0}, {9000, 5, 0, 1}, {40000, 600, 0, 0}, {10000, 60, 1, 1}, {9001, 20, 2, 0}, {20000, 40, 3, 1}}},
    {"sgd_many",
     case_make_many,
     run_sgd_many,
     after_many,
     2e-6,
     ULP,
     {{64, 1, 0, 0, 0},
      {9000, 5, 0, 0, 1},
      {40000, 600, 0, 1, 2},
      {10000, 60, 1, 0, 0},
      {9001, 20, 2, 1, 1},
      {20000, 40, 3, 0, 2},
      {3, 3, 0, 0, 1}}},
    {"lion_many",
     case_make_lion,
     run_lion_many,
     after_many,
     2e-6,
     ULP,
     {{64, 1, 0, 0}, {9000, 5, 0, 1}, {40000, 600, 0, 0}, {10000, 60, 1, 1}, {9001, 20, 2, 0}, {20000, 40, 3, 1}}},
    {"adagrad_many",
     case_make_adagrad,
     run_adagrad_many,
     after_many,
     2e-6,
     ULP,
     {{64, 1, 0, 0, 1},
      {9000, 5, 0, 1, 1},
      {40000, 600, 0, 0, 0},
      {10000, 60, 1, 1, 0},
      {9001, 20, 2, 0, 0},
      {20000, 40, 3, 1, 0}}},
    {"lamb_many",
     case_make_many,
     run_lamb_many,
     NULL,
     1e-5,
     ULP,
     {{64, 1, 0, 0}, {9000, 5, 0, 1}, {40000, 600, 0, 0}, {10000, 60, 1, 1}, {9001, 20, 2, 0}, {20000, 40, 3, 1}}},
    {"amsgrad",
     case_make_amsgrad,
     run_amsgrad,
     after_many,
     1e-5,
     ULP,
     {{64, 1, 0, 0, 0},
      {9000, 5, 0, 1, 1},
      {40000, 600, 0, 0, 1},
      {10000, 60, 1, 1, 0},
      {9001, 20, 2, 0, 0},
      {20000, 40, 3, 1, 0}}},
    {"muon_many",
     case_make_many,
     run_muon_many,
     NULL,
     1e-5,
     ULP,
     {{64, 1, 0, 0, 0}, {9000, 5, 0, 1, 1}, {40000, 600, 0, 0, 1}, {10000, 60, 1, 1, 0}, {9001, 20, 2, 0, 1}}},
};
const size_t kernel_case_count = sizeof kernel_cases / sizeof kernel_cases[0];
