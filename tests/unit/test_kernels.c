/* Kernels: every CPU kernel on every instruction set of this machine against the double twin (in BF16: against the twin for that, which is
 * compared with the double one), over ragged shapes; the same bits with 1, 2 and 3 threads; the twin's backward kernels against finite differences; exactness where it is promised. */
#include "kernels/device.h"
#include "kernels/exact.h"
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define BUFFERS 10
#define SHAPE 6
#define SHAPES 9
static const char *const isas[] = {"plain", "avx2", "avx512"};

static uint64_t state;

static double uniform(void) /* in (-1, 1), exact in a float */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(int64_t)(state >> 41) / 4194304.0 - 1.0;
}

/* What an element is for decides its type: what flows has the run's type, sums that live on the run's grad type, statistics and
 * masters are F32 and the copies of masters BF16. In a run in double all are F64. */
enum kind { FLOWS, GRAD, STAT, COPY };

/* One buffer in three copies: as it was made, in the types of a run, in double. */
struct buffer {
    double *made, *d;
    void *x;
    int64_t count;
    enum kind kind;
};

static struct buffer buf[BUFFERS];
static int32_t ids[4096];

/* The types of a run. */
struct mode {
    const char *name;
    enum dt_dtype type, grad;
};
static const struct mode modes[] = {{"F32", DT_F32, DT_F32}, {"BF16", DT_BF16, DT_BF16}, {"BF16, sums F32", DT_BF16, DT_F32}};

static enum dt_dtype type_in(const struct mode *m, const struct buffer *b)
{
    return b->kind == FLOWS ? m->type : b->kind == GRAD ? m->grad : b->kind == STAT ? DT_F32 : DT_BF16;
}

static void make_of(enum kind kind, int at, int64_t count, double scale, double shift)
{
    struct buffer *b = &buf[at];
    b->count = count;
    b->kind = kind;
    b->made = malloc((size_t)(count + 1) * sizeof(double));
    b->d = malloc((size_t)(count + 1) * sizeof(double));
    b->x = malloc((size_t)(count + 1) * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        b->made[i] = (double)(float)(shift + scale * uniform());
    }
}

static void make(int at, int64_t count, double scale, double shift)
{
    make_of(FLOWS, at, count, scale, shift);
}

static void make_ids(int64_t count, int64_t limit)
{
    for (int64_t i = 0; i < count; i++) {
        ids[i] = (int32_t)((uniform() + 1) / 2 * (double)limit);
    }
}

/* As made, rounded to the mode's types; the doubles are what they are then. */
static void reset_typed(const struct mode *m)
{
    for (int b = 0; b < BUFFERS; b++) {
        if (buf[b].count > 0) {
            dt_cpu_cast(&(struct dt_cast_args){buf[b].x, buf[b].made, buf[b].count, type_in(m, &buf[b]), DT_F64});
        }
    }
}

static void reset_double(const struct mode *m)
{
    reset_typed(m);
    for (int b = 0; b < BUFFERS; b++) {
        if (buf[b].count > 0) {
            dt_cpu_cast(&(struct dt_cast_args){buf[b].d, buf[b].x, buf[b].count, DT_F64, type_in(m, &buf[b])});
        }
    }
}

static void reset(void)
{
    reset_double(&modes[0]);
}

static void clear(void)
{
    for (int b = 0; b < BUFFERS; b++) {
        free(buf[b].made);
        free(buf[b].d);
        free(buf[b].x);
        buf[b] = (struct buffer){0};
    }
}

/* What a case's run works with: the typed or the double copies. */
struct run {
    struct dt_stream *s;
    const struct dt_kernels *k;
    enum dt_dtype type;
    const int64_t *n;
    enum dt_dtype grad;
};

static void *at(const struct run *r, int b)
{
    return r->type == DT_F64 ? (void *)buf[b].d : buf[b].x;
}

/* The type of optimizers' masters. */
static enum dt_dtype real_of(const struct run *r)
{
    return r->type == DT_F64 ? DT_F64 : DT_F32;
}

struct kernel_case {
    const char *name;
    void (*make)(const int64_t *n);
    void (*run)(const struct run *r);
    double bound; /* of |float - double| / (1 + |double|) */
    double half;  /* the same of BF16 elements */
    int64_t shapes[SHAPES][SHAPE];
};

static void open_device(struct dt_device *d, const char *name, int threads, struct dt_stream **s)
{
    struct dt_device_options o = {.thread_count = threads, .streams = DT_STREAMS_INLINE};
    struct dt_error err = {0};
    if (dt_device_open(d, name, &o, &err) != 0 || dt_stream_open(d, 0, s, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void close_device(struct dt_device *d, struct dt_stream *s)
{
    struct dt_error err = {0};
    if (dt_stream_failed(s, &err)) {
        fail_msg("%s", err.text);
    }
    dt_stream_close(s);
    dt_device_close(d);
}

/* Runs a case with the kernels k (or the device's own) on typed or double copies. */
static void run_case(const struct kernel_case *c, const int64_t *n, const struct mode *m, const char *device, int threads, const struct dt_kernels *k)
{
    struct dt_device d;
    struct dt_stream *s = NULL;
    open_device(&d, device, threads, &s);
    bool in_double = strcmp(device, "twin64") == 0;
    c->run(&(struct run){s, k != NULL ? k : d.kernels, in_double ? DT_F64 : m->type, n, in_double ? DT_F64 : m->grad});
    close_device(&d, s);
}

static double element(const struct buffer *b, const struct mode *m, int64_t i)
{
    double x;
    size_t size = dt_dtype_size(type_in(m, b));
    dt_cpu_cast(&(struct dt_cast_args){&x, (const char *)b->x + (size_t)i * size, 1, DT_F64, type_in(m, b)});
    return x;
}

/* Compares the typed copies with the double ones: floats to c->bound, BF16 to c->half, both times `slack`. */
static void compare(const struct kernel_case *c, const int64_t *n, const struct mode *m, const char *who, int threads, double slack)
{
    for (int b = 0; b < BUFFERS; b++) {
        double bound = slack * (type_in(m, &buf[b]) == DT_BF16 ? c->half : c->bound);
        for (int64_t i = 0; i < buf[b].count; i++) {
            double x = element(&buf[b], m, i), e = fabs(x - buf[b].d[i]) / (1 + fabs(buf[b].d[i]));
            if (!(e <= bound)) {
                fail_msg("%s %s %s (%lld, %lld, %lld, %lld) with %d threads: buffer %d [%lld] is %.9g, not %.9g: off by %g, bound %g", who, c->name,
                         m->name, (long long)n[0], (long long)n[1], (long long)n[2], (long long)n[3], threads, b, (long long)i, x, buf[b].d[i], e,
                         bound);
            }
        }
    }
}

/* Errors of the twin for BF16 against the one for double: what is rounded between two of a case's kernels counts, too. */
#define TWIN_SLACK 6

/* The reference for a mode in the double copies: by the double twin; for BF16 by its own, once that has been compared. */
static void make_reference(const struct kernel_case *c, const int64_t *n, const struct mode *m)
{
    reset_double(m);
    run_case(c, n, m, "twin64", 1, NULL);
    if (m->type == DT_BF16) {
        reset_typed(m);
        run_case(c, n, m, "cpu", 1, dt_kernels_twin(DT_BF16));
        struct kernel_case rough = *c;
        rough.bound = c->half;
        compare(&rough, n, m, "twin16", 1, TWIN_SLACK);
        for (int b = 0; b < BUFFERS; b++) {
            for (int64_t i = 0; i < buf[b].count; i++) {
                buf[b].d[i] = element(&buf[b], m, i);
            }
        }
    }
}

static void check_shape(const struct kernel_case *c, const int64_t *n, const struct mode *m)
{
    state = 88172645463325252ULL;
    c->make(n);
    make_reference(c, n, m);
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        const struct dt_kernels *k = dt_kernels_cpu_named(isas[i]);
        void *first[BUFFERS] = {0};
        for (int threads = 1; threads <= 3 && k != NULL; threads++) {
            reset_typed(m);
            run_case(c, n, m, "cpu", threads, k);
            compare(c, n, m, isas[i], threads, 1);
            for (int b = 0; b < BUFFERS && buf[b].count > 0; b++) {
                size_t size = (size_t)buf[b].count * dt_dtype_size(type_in(m, &buf[b]));
                if (first[b] == NULL) {
                    first[b] = malloc(size + 1);
                    memcpy(first[b], buf[b].x, size);
                } else if (memcmp(first[b], buf[b].x, size) != 0) {
                    fail_msg("%s %s %s: %d threads give other bits", isas[i], c->name, m->name, threads);
                }
            }
        }
        for (int b = 0; b < BUFFERS; b++) {
            free(first[b]);
        }
    }
    clear();
}

/* ---- the cases; n is the shape ---- */

static void make_elements(const int64_t *n)
{
    make(0, n[0], 6, 0);
    make(1, n[0], 3, 0);
    make(2, n[0], 1, 0);
    make_of(STAT, 3, n[0], 1, 0);
}

static void run_elements(const struct run *r)
{
    r->k->add(r->s, &(struct dt_add_args){at(r, 2), at(r, 0), at(r, 1), r->n[0], r->type, r->type});
    r->k->scale(r->s, &(struct dt_scale_args){.x = at(r, 2), .count = r->n[0], .factor = 0.3, .type = r->type});
    double half = 0.5;
    r->k->scale(r->s, &(struct dt_scale_args){.x = at(r, 2), .count = r->n[0], .factor = 1, .device_factor = &half, .type = r->type});
    r->k->add(r->s, &(struct dt_add_args){at(r, 3), at(r, 3), at(r, 0), r->n[0], real_of(r), r->type}); /* a sum in F32 of parts that flow */
    r->k->scale(r->s, &(struct dt_scale_args){.x = at(r, 3), .count = r->n[0], .factor = 0.1, .type = real_of(r)});
}

static void run_activation(const struct run *r)
{
    enum dt_activation kind = (enum dt_activation)r->n[1];
    r->k->activation(r->s, &(struct dt_activation_args){at(r, 2), at(r, 0), r->n[0], kind, r->type});
    r->k->activation_backward(r->s, &(struct dt_activation_backward_args){at(r, 1), at(r, 1), at(r, 0), r->n[0], kind, r->type});
}

/* m, n, k, transposed (bit 0 a, bit 1 b), accumulate, extra leading dimension */
static void make_matmul(const int64_t *n)
{
    int64_t m = n[0], cols = n[1], k = n[2], extra = n[5];
    make_of(GRAD, 0, m * (cols + extra), 1, 0);
    make(1, (n[3] & 1) != 0 ? k * (m + extra) : m * (k + extra), 1, 0);
    make(2, (n[3] & 2) != 0 ? cols * (k + extra) : k * (cols + extra), 1, 0);
    make(3, cols, 1, 0);
}

static void run_matmul(const struct run *r)
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
static void make_column_sum(const int64_t *n)
{
    make_of(GRAD, 0, n[1], 1, 0);
    make(1, n[0] * n[1], 1, 0);
}

static void run_column_sum(const struct run *r)
{
    r->k->column_sum(r->s, &(struct dt_column_sum_args){at(r, 0), at(r, 1), r->n[0], r->n[1], r->n[2] != 0, r->type, r->grad});
}

/* rows, cols, accumulate (and without a branch, gradient from above) */
static void make_layernorm(const int64_t *n)
{
    int64_t rows = n[0], cols = n[1];
    make(0, rows * cols, 1, 0);    /* y, then dx */
    make(1, rows * cols, 1, 0);    /* sum */
    make_of(STAT, 2, rows, 1, 0);  /* mean */
    make_of(STAT, 3, rows, 1, 0);  /* rstd */
    make(4, rows * cols, 2, 0.25); /* residual, then gradient from above */
    make(5, rows * cols, 1, 0);    /* branch, then dy */
    make(6, cols, 1, 1);           /* gamma */
    make(7, cols, 1, 0);           /* beta */
    make_of(GRAD, 8, cols, 1, 0);  /* dgamma */
    make_of(GRAD, 9, cols, 1, 0);  /* dbeta */
}

static void run_layernorm(const struct run *r)
{
    bool full = r->n[2] == 0;
    r->k->layernorm(r->s, &(struct dt_layernorm_args){.y = at(r, 0),
                                                      .residual_out = full ? at(r, 1) : NULL,
                                                      .mean = at(r, 2),
                                                      .rstd = at(r, 3),
                                                      .residual = at(r, 4),
                                                      .branch = full ? at(r, 5) : NULL,
                                                      .gamma = at(r, 6),
                                                      .beta = at(r, 7),
                                                      .row_count = r->n[0],
                                                      .col_count = r->n[1],
                                                      .eps = 1e-5,
                                                      .type = r->type});
}

static void run_layernorm_backward(const struct run *r)
{
    run_layernorm(r);
    bool full = r->n[2] == 0;
    r->k->layernorm_backward(r->s, &(struct dt_layernorm_backward_args){.dx = at(r, 0),
                                                                        .dgamma = at(r, 8),
                                                                        .dbeta = at(r, 9),
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

/* B, T, H, D, KV, causal */
static void make_attention(const int64_t *n)
{
    int64_t kv = n[4] != 0 ? n[4] : n[2], rows = n[0] * n[1];
    make(0, rows * (n[2] + 2 * kv) * n[3], 1.5, 0); /* qkv */
    make(1, rows * n[2] * n[3], 1, 0);              /* out */
    make_of(STAT, 2, rows * n[2], 1, 0);            /* lse */
    make(3, rows * n[2] * n[3], 1, 0);              /* dout */
    make(4, rows * (n[2] + 2 * kv) * n[3], 1, 0);   /* dqkv */
}

static void run_attention(const struct run *r)
{
    const int64_t *n = r->n;
    r->k->attention(r->s, &(struct dt_attention_args){.out = at(r, 1),
                                                      .lse = at(r, 2),
                                                      .qkv = at(r, 0),
                                                      .batch = n[0],
                                                      .positions = n[1],
                                                      .heads = n[2],
                                                      .head_size = n[3],
                                                      .kv_heads = n[4],
                                                      .causal = n[5] != 0,
                                                      .type = r->type});
    r->k->attention_backward(r->s, &(struct dt_attention_backward_args){.dqkv = at(r, 4),
                                                                        .dout = at(r, 3),
                                                                        .out = at(r, 1),
                                                                        .qkv = at(r, 0),
                                                                        .lse = at(r, 2),
                                                                        .batch = n[0],
                                                                        .positions = n[1],
                                                                        .heads = n[2],
                                                                        .head_size = n[3],
                                                                        .kv_heads = n[4],
                                                                        .causal = n[5] != 0,
                                                                        .type = r->type});
}

/* rows, T, C, V, accumulate */
static void make_embedding(const int64_t *n)
{
    make(0, n[0] * n[2], 1, 0);
    make(1, n[3] * n[2], 1, 0);       /* tokens */
    make(2, (n[1] + 3) * n[2], 1, 0); /* positions: a table with rows to spare */
    make(3, n[0] * n[2], 1, 0);       /* dy */
    make_of(GRAD, 4, n[3] * n[2], 1, 0);
    make_of(GRAD, 5, (n[1] + 3) * n[2], 1, 0);
    make_ids(n[0], n[3]);
}

static void run_embedding(const struct run *r)
{
    const int64_t *n = r->n;
    r->k->embedding(r->s, &(struct dt_embedding_args){at(r, 0), at(r, 1), n[4] != 0 ? NULL : at(r, 2), ids, n[0], n[1], n[2], r->type});
    r->k->embedding_backward(r->s, &(struct dt_embedding_backward_args){at(r, 4), at(r, 3), ids, n[0], n[3], n[2], n[4] != 0, r->type, r->grad});
    r->k->position_backward(r->s, &(struct dt_position_backward_args){at(r, 5), at(r, 3), n[0], n[1], n[1] + 3, n[2], n[4] != 0, r->type, r->grad});
}

/* rows, V, with gradient */
static void make_entropy(const int64_t *n)
{
    make(0, n[0] * n[1], 4, 0);
    make_of(STAT, 1, n[0] + 3, 1, 0); /* losses, their sum, counts */
    make_ids(n[0], n[1]);
    for (int64_t i = 2; i < n[0]; i += 5) {
        ids[i] = DT_IGNORE_INDEX;
    }
}

static void run_entropy(const struct run *r)
{
    const int64_t *n = r->n;
    double *losses = malloc((size_t)(n[0] + 3) * sizeof(double));
    int64_t valid = 10, correct = 0;
    losses[n[0]] = 0.5;
    r->k->cross_entropy(r->s, &(struct dt_cross_entropy_args){.logits = at(r, 0),
                                                              .targets = ids,
                                                              .row_loss = losses,
                                                              .loss_sum = losses + n[0],
                                                              .valid_count = &valid,
                                                              .correct_count = &correct,
                                                              .row_count = n[0],
                                                              .col_count = n[1],
                                                              .grad_scale = 0.25,
                                                              .with_grad = n[2] != 0,
                                                              .type = r->type});
    losses[n[0] + 1] = (double)valid;
    losses[n[0] + 2] = (double)correct;
    for (int64_t i = 0; i < n[0] + 3; i++) {
        if (r->type == DT_F64) {
            buf[1].d[i] = losses[i];
        } else {
            ((float *)buf[1].x)[i] = (float)losses[i];
        }
    }
    free(losses);
}

/* count, step, kind of sgd */
static void make_optimizer(const int64_t *n)
{
    make_of(STAT, 0, n[0], 1, 0);   /* w */
    make_of(STAT, 1, n[0], 0.1, 0); /* m */
    make_of(STAT, 2, n[0], 0.1, 0.11);
    make_of(GRAD, 3, n[0], 1, 0); /* grad */
    make_of(STAT, 4, n[0], 1, 0); /* w of sgd */
    make_of(STAT, 5, n[0], 1, 0); /* its buffer */
    make_of(COPY, 6, n[0], 1, 0); /* w of adamw in BF16 */
    make_of(COPY, 7, n[0], 1, 0); /* w of sgd */
}

static void run_optimizer(const struct run *r)
{
    const int64_t *n = r->n;
    double clip = 0.75;
    bool in_double = r->type == DT_F64;
    r->k->adamw(r->s, &(struct dt_adamw_args){.w = at(r, 0),
                                              .m = at(r, 1),
                                              .v = at(r, 2),
                                              .w_bf16 = in_double ? NULL : at(r, 6),
                                              .grad = at(r, 3),
                                              .clip = &clip,
                                              .count = n[0],
                                              .step = n[1],
                                              .lr = 1e-3,
                                              .beta1 = 0.9,
                                              .beta2 = 0.95,
                                              .eps = 1e-8,
                                              .weight_decay = 0.1,
                                              .grad_scale = 0.5,
                                              .type = real_of(r),
                                              .grad_type = r->grad});
    r->k->sgd(r->s, &(struct dt_sgd_args){.w = at(r, 4),
                                          .momentum_buffer = n[2] != 0 ? at(r, 5) : NULL,
                                          .w_bf16 = in_double ? NULL : at(r, 7),
                                          .grad = at(r, 3),
                                          .clip = NULL,
                                          .count = n[0],
                                          .step = n[1],
                                          .lr = 0.1,
                                          .momentum = 0.9,
                                          .weight_decay = 0.01,
                                          .grad_scale = 0.5,
                                          .nesterov = n[2] == 2,
                                          .type = real_of(r),
                                          .grad_type = r->grad});
    for (int64_t i = 0; i < n[0] && in_double; i++) {
        buf[6].d[i] = buf[0].d[i];
        buf[7].d[i] = buf[4].d[i];
    }
}

#define ULP 0x1p-7 /* the last place of a BF16: both sides round once, so a value halfway between two may fall to either */

static const struct kernel_case cases[] = {
    {"add, scale", make_elements, run_elements, 1e-6, ULP, {{1}, {17}, {70001}}},
    {"activation", make_elements, run_activation, 4e-6, ULP, {{1, 0}, {33, 0}, {40007, 0}, {1003, 1}, {1003, 2}}},
    {"matmul",
     make_matmul,
     run_matmul,
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
      {700, 400, 450, 0, 0, 0}}},
    {"column_sum", make_column_sum, run_column_sum, 1e-5, ULP, {{1, 1, 0}, {33, 65, 1}, {100, 200, 0}, {31, 64, 1}}},
    {"layernorm", make_layernorm, run_layernorm, 2e-5, ULP, {{1, 2, 0}, {5, 37, 0}, {70, 64, 1}, {33, 384, 0}}},
    {"layernorm_backward", make_layernorm, run_layernorm_backward, 2e-5, ULP, {{1, 5, 0}, {5, 37, 0}, {70, 64, 1}, {33, 390, 0}, {65, 131, 1}}},
    {"attention",
     make_attention,
     run_attention,
     2e-5,
     ULP,
     {{1, 1, 1, 1, 0, 1},
      {2, 5, 3, 8, 0, 1},
      {1, 64, 2, 16, 0, 1},
      {1, 130, 2, 20, 0, 1},
      {2, 70, 4, 8, 2, 1},
      {1, 67, 2, 12, 0, 0},
      {1, 33, 4, 4, 1, 0}}},
    {"embedding", make_embedding, run_embedding, 1e-6, ULP, {{1, 1, 1, 1, 0}, {60, 20, 37, 11, 0}, {64, 16, 300, 7, 1}}},
    {"cross_entropy", make_entropy, run_entropy, 5e-6, ULP, {{1, 1, 1}, {7, 65, 1}, {40, 1000, 1}, {33, 17, 0}}},
    {"optimizers", make_optimizer, run_optimizer, 2e-6, ULP, {{1, 1, 0}, {67, 5, 1}, {33000, 1, 2}, {100, 1000, 2}}},
};

static void test_against_twin(void **unused)
{
    (void)unused;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        for (int i = 0; i < SHAPES && cases[c].shapes[i][0] != 0; i++) {
            for (size_t m = 0; m < sizeof modes / sizeof modes[0]; m++) {
                check_shape(&cases[c], cases[c].shapes[i], &modes[m]);
            }
        }
    }
}

/* ---- the twin against finite differences ---- */

static double dot(const double *x, const double *y, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i] * y[i];
    }
    return sum;
}

/* Change of sum(out * w) by input x[i], out computed by forward(r), by central differences. */
static double difference(const struct run *r, void (*forward)(const struct run *r), double *x, const double *out, const double *w, int64_t count)
{
    const double h = 1e-5;
    double before = *x;
    *x = before + h;
    forward(r);
    double up = dot(out, w, count);
    *x = before - h;
    forward(r);
    double down = dot(out, w, count);
    *x = before;
    return (up - down) / (2 * h);
}

static void forward_attention(const struct run *r)
{
    const int64_t *n = r->n;
    r->k->attention(r->s, &(struct dt_attention_args){.out = at(r, 1),
                                                      .lse = at(r, 2),
                                                      .qkv = at(r, 0),
                                                      .batch = n[0],
                                                      .positions = n[1],
                                                      .heads = n[2],
                                                      .head_size = n[3],
                                                      .kv_heads = n[4],
                                                      .causal = n[5] != 0,
                                                      .type = r->type});
}

static void forward_activation(const struct run *r)
{
    r->k->activation(r->s, &(struct dt_activation_args){at(r, 2), at(r, 0), r->n[0], (enum dt_activation)r->n[1], r->type});
}

static void forward_entropy(const struct run *r)
{
    double sum[64];
    memcpy(buf[2].d, buf[0].d, (size_t)buf[0].count * sizeof(double));
    r->k->cross_entropy(r->s, &(struct dt_cross_entropy_args){
                                  .logits = buf[2].d, .targets = ids, .row_loss = sum, .row_count = r->n[0], .col_count = r->n[1], .type = DT_F64});
    buf[3].d[0] = 0;
    for (int64_t i = 0; i < r->n[0]; i++) {
        buf[3].d[0] += sum[i];
    }
}

static void test_differences(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_stream *s = NULL;
    open_device(&d, "twin64", 1, &s);
    int64_t attention[2][SHAPE] = {{2, 5, 2, 3, 0, 1}, {1, 4, 4, 2, 2, 0}};
    for (int c = 0; c < 2; c++) {
        struct run r = {s, d.kernels, DT_F64, attention[c], DT_F64};
        state = 5;
        make_attention(r.n);
        reset();
        run_attention(&r);
        for (int64_t i = 0; i < buf[0].count; i++) {
            double expect = difference(&r, forward_attention, &buf[0].d[i], buf[1].d, buf[3].d, buf[1].count);
            assert_true(fabs(expect - buf[4].d[i]) < 1e-8);
        }
        clear();
    }
    for (int64_t kind = 0; kind < 3; kind++) {
        int64_t n[SHAPE] = {50, kind};
        struct run r = {s, d.kernels, DT_F64, n, DT_F64};
        make_elements(n);
        reset();
        double w[50];
        memcpy(w, buf[1].d, sizeof w);
        run_activation(&r);
        for (int64_t i = 0; i < 50; i++) {
            assert_true(fabs(difference(&r, forward_activation, &buf[0].d[i], buf[2].d, w, 50) - buf[1].d[i]) < 1e-8);
        }
        clear();
    }
    int64_t norm[SHAPE] = {4, 7, 0};
    struct run r = {s, d.kernels, DT_F64, norm, DT_F64};
    make_layernorm(norm);
    reset();
    memset(buf[8].d, 0, 7 * sizeof(double));
    run_layernorm_backward(&r);
    double dx[28], above[28], w[28];
    memcpy(dx, buf[0].d, sizeof dx);
    memcpy(above, buf[4].d, sizeof above); /* what was added: the residual's values stand in for it */
    memcpy(w, buf[5].d, sizeof w);         /* dy, and at once the branch, which stays as it is */
    for (int64_t i = 0; i < 28; i++) {
        assert_true(fabs(difference(&r, run_layernorm, &buf[4].d[i], buf[0].d, w, 28) + above[i] - dx[i]) < 1e-7);
    }
    for (int64_t j = 0; j < 7; j++) {
        assert_true(fabs(difference(&r, run_layernorm, &buf[6].d[j], buf[0].d, w, 28) - buf[8].d[j]) < 1e-8);
        assert_true(fabs(difference(&r, run_layernorm, &buf[7].d[j], buf[0].d, w, 28) - buf[9].d[j]) < 1e-8);
    }
    clear();
    int64_t loss[SHAPE] = {6, 9, 1};
    struct run e = {s, d.kernels, DT_F64, loss, DT_F64};
    make_entropy(loss);
    make(2, 54, 1, 0);
    make(3, 1, 1, 0);
    reset();
    run_entropy(&e);
    double grad[54];
    memcpy(grad, buf[0].d, sizeof grad);
    reset();
    double one = 1;
    for (int64_t i = 0; i < 54; i++) {
        assert_true(fabs(difference(&e, forward_entropy, &buf[0].d[i], buf[3].d, &one, 1) * 0.25 - grad[i]) < 1e-8);
    }
    clear();
    close_device(&d, s);
}

/* ---- exactness ---- */

/* AdamW of 1 to 67 elements at every offset of a vector gives each element the bits it has in the whole. */
static void test_adamw_offsets(void **unused)
{
    (void)unused;
    enum { TOTAL = 96 };
    static float w[TOTAL], m[TOTAL], v[TOTAL], g[TOTAL], whole[3][TOTAL], part[3][TOTAL];
    state = 77;
    for (int i = 0; i < TOTAL; i++) {
        w[i] = (float)uniform();
        m[i] = (float)uniform();
        v[i] = (float)(uniform() + 1.0);
        g[i] = (float)uniform();
    }
    for (size_t isa = 0; isa < sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = dt_kernels_cpu_named(isas[isa]);
        if (k == NULL) {
            continue;
        }
        struct dt_device d;
        struct dt_stream *s = NULL;
        open_device(&d, "cpu", 1, &s);
        struct dt_adamw_args a = {
            .step = 3, .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 1.0 / 3, .type = DT_F32};
        for (int length = 0; length <= 67; length++) {
            for (int offset = 0; offset < 16; offset++) {
                struct dt_adamw_args b = a;
                bool all = length == 0;
                float(*to)[TOTAL] = all ? whole : part;
                memcpy(to[0], w, sizeof w);
                memcpy(to[1], m, sizeof m);
                memcpy(to[2], v, sizeof v);
                int from = all ? 0 : offset;
                b.w = to[0] + from;
                b.m = to[1] + from;
                b.v = to[2] + from;
                b.grad = g + from;
                b.count = all ? TOTAL : length;
                k->adamw(s, &b);
                for (int i = 0; i < TOTAL && !all; i++) {
                    bool touched = i >= offset && i < offset + length;
                    assert_true(part[0][i] == (touched ? whole[0][i] : w[i]));
                    assert_true(part[1][i] == (touched ? whole[1][i] : m[i]));
                    assert_true(part[2][i] == (touched ? whole[2][i] : v[i]));
                }
            }
        }
        close_device(&d, s);
    }
}

static void test_norm(void **unused)
{
    (void)unused;
    enum { TOTAL = 100003 };
    float *x = malloc(TOTAL * sizeof(float));
    state = 9;
    long double expect = 0;
    for (int i = 0; i < TOTAL; i++) {
        x[i] = (float)uniform();
        expect += (long double)x[i] * (long double)x[i];
    }
    int64_t first[DT_EXACT_LIMBS] = {0};
    for (size_t isa = 0; isa <= sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = isa == 0 ? dt_kernels_twin(DT_F32) : dt_kernels_cpu_named(isas[isa - 1]);
        for (int threads = 1; threads <= 3 && k != NULL; threads++) {
            struct dt_device d;
            struct dt_stream *s = NULL;
            open_device(&d, "cpu", threads, &s);
            int64_t limbs[DT_EXACT_LIMBS] = {0};
            int64_t cut = threads * 64 * 97;
            k->norm_sum(s, &(struct dt_norm_sum_args){limbs, x + cut, TOTAL - cut, DT_F32});
            k->norm_sum(s, &(struct dt_norm_sum_args){limbs, x, cut, DT_F32});
            if (isa == 0 && threads == 1) {
                memcpy(first, limbs, sizeof first);
            }
            assert_memory_equal(limbs, first, sizeof first);
            double norm = 0, clip = 0, factor = 0;
            int32_t nonfinite = 1;
            k->norm_finish(
                s, &(struct dt_norm_finish_args){
                       .norm = &norm, .clip = &clip, .factor = &factor, .nonfinite = &nonfinite, .limbs = limbs, .scale = 0.5, .max_norm = 1.0});
            assert_true(fabs(norm - 0.5 * sqrt((double)expect)) < 1e-10);
            assert_true(fabs(clip - 1.0 / (norm + 1e-6)) < 1e-15);
            assert_true(factor == 0.5 * clip);
            assert_int_equal(nonfinite, 0);
            float bad = INFINITY;
            k->norm_sum(s, &(struct dt_norm_sum_args){limbs, &bad, 1, DT_F32});
            k->norm_finish(
                s, &(struct dt_norm_finish_args){
                       .norm = &norm, .clip = &clip, .factor = &factor, .nonfinite = &nonfinite, .limbs = limbs, .scale = 0.5, .max_norm = 1.0});
            assert_true(isinf(norm) && clip == 0 && nonfinite == 1);
            close_device(&d, s);
        }
    }
    free(x);
}

/* Squares of BF16 are the same sums as those of the floats they are, on every instruction set, in any slices. */
static void test_norm_of_halves(void **unused)
{
    (void)unused;
    enum { TOTAL = 70003, CUT = 64 * 31 };
    static float x[TOTAL];
    static uint16_t half[TOTAL];
    for (int i = 0; i < TOTAL; i++) {
        x[i] = (float)uniform();
    }
    dt_cpu_cast(&(struct dt_cast_args){half, x, TOTAL, DT_BF16, DT_F32});
    dt_cpu_cast(&(struct dt_cast_args){x, half, TOTAL, DT_F32, DT_BF16});
    struct dt_device d;
    struct dt_stream *s = NULL;
    open_device(&d, "cpu", 2, &s);
    int64_t expect[DT_EXACT_LIMBS] = {0};
    dt_kernels_twin(DT_F32)->norm_sum(s, &(struct dt_norm_sum_args){expect, x, TOTAL, DT_F32});
    for (size_t isa = 0; isa <= sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = isa == 0 ? dt_kernels_twin(DT_BF16) : dt_kernels_cpu_named(isas[isa - 1]);
        int64_t limbs[DT_EXACT_LIMBS] = {0};
        if (k != NULL) {
            k->norm_sum(s, &(struct dt_norm_sum_args){limbs, half + CUT, TOTAL - CUT, DT_BF16});
            k->norm_sum(s, &(struct dt_norm_sum_args){limbs, half, CUT, DT_BF16});
            assert_memory_equal(limbs, expect, sizeof expect);
        }
    }
    close_device(&d, s);
}

/* What vectors store as BF16 is what a cast makes of it: to the nearest even, a nan stays one, subnormals and infinities are not lost. */
static void test_rounding(void **unused)
{
    (void)unused;
    enum { COUNT = 999 };
    static const uint32_t corners[] = {0x7f800001, 0xff800001, 0x7fc00000, 0x7f800000, 0xff800000, 0x7f7fffff, 0x00000001,
                                       0x80000001, 0x00018000, 0x00008000, 0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff};
    static float w[COUNT], after[COUNT], zero[COUNT], moments[2][COUNT];
    static uint16_t got[COUNT], expect[COUNT];
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits = corners[i % (int)(sizeof corners / sizeof corners[0])];
        memcpy(&w[i], &bits, sizeof bits);
        if (i > 500) {
            w[i] = (float)uniform();
        }
    }
    dt_cpu_cast(&(struct dt_cast_args){expect, w, COUNT, DT_BF16, DT_F32});
    struct dt_device d;
    struct dt_stream *s = NULL;
    open_device(&d, "cpu", 1, &s);
    for (size_t isa = 0; isa <= sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = isa == 0 ? dt_kernels_twin(DT_BF16) : dt_kernels_cpu_named(isas[isa - 1]);
        for (int offset = 0; offset < 17 && k != NULL; offset++) {
            int64_t count = COUNT - offset;
            memcpy(after, w, sizeof w);
            memset(got, 0xab, sizeof got);
            memset(moments, 0, sizeof moments);
            k->adamw(s, &(struct dt_adamw_args){.w = after + offset,
                                                .m = moments[0],
                                                .v = moments[1],
                                                .w_bf16 = got + offset,
                                                .grad = zero,
                                                .count = count,
                                                .step = 1,
                                                .eps = 1,
                                                .grad_scale = 1});
            for (int i = offset; i < COUNT; i++) {
                bool nan = w[i] != w[i];
                assert_true(nan ? (got[i] & 0x7f80) == 0x7f80 && (got[i] & 0x7f) != 0 : got[i] == expect[i]);
            }
        }
    }
    close_device(&d, s);
}

extern const struct dt_cpu_half dt_cpu_half_plain, dt_cpu_half_avx2, dt_cpu_half_avx512;

/* Casts and sums for collectives: each instruction set gives the bits of one float operation per element, rounded once, also in place and in tails. */
static void test_halves(void **unused)
{
    (void)unused;
    enum { COUNT = 131 };
    const struct dt_cpu_half *const all[] = {&dt_cpu_half_plain, &dt_cpu_half_avx2, &dt_cpu_half_avx512};
    float x[COUNT], y[COUNT], sum[COUNT], wide[COUNT + 1];
    uint16_t a[COUNT], b[COUNT], expect[COUNT], out[COUNT + 1];
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(uniform() * exp(9 * uniform()));
        y[i] = (float)uniform();
    }
    for (int i = 0; i < COUNT; i++) {
        double d[2] = {(double)x[i], (double)y[i]};
        uint16_t h[2];
        dt_cpu_cast(&(struct dt_cast_args){h, d, 2, DT_BF16, DT_F64});
        a[i] = h[0];
        b[i] = h[1];
        dt_cpu_cast(&(struct dt_cast_args){d, h, 2, DT_F64, DT_BF16});
        sum[i] = (float)d[0] + (float)d[1];
        d[0] = (double)sum[i];
        dt_cpu_cast(&(struct dt_cast_args){&expect[i], d, 1, DT_BF16, DT_F64});
    }
    for (size_t isa = 0; isa < sizeof isas / sizeof isas[0]; isa++) {
        for (int count = 0; count <= COUNT && dt_kernels_cpu_named(isas[isa]) != NULL; count++) {
            const struct dt_cpu_half *k = all[isa];
            memset(wide, 0x5a, sizeof wide);
            k->add_wide(wide, a, b, count);
            assert_memory_equal(wide, sum, (size_t)count * sizeof *wide);
            memset(out, 0x5a, sizeof out);
            k->narrow(out, wide, count);
            assert_memory_equal(out, expect, (size_t)count * sizeof *out);
            k->widen(wide, out, count);
            k->narrow(out, wide, count);
            assert_memory_equal(out, expect, (size_t)count * sizeof *out);
            memcpy(out, a, sizeof a);
            out[count] = 0x5a5a;
            k->add(out, out, b, count);
            assert_memory_equal(out, expect, (size_t)count * sizeof *out);
            assert_int_equal(out[count], 0x5a5a);
        }
    }
}

/* Losses: divided or not, in any slicing the same bits; what is not finite is counted; below zero is zero. */
static void test_exact_sum(void **unused)
{
    (void)unused;
    const double x[] = {1.5, 0.1, 7e-9, -1e-17, 3.25, 9};
    const int64_t divisors[] = {3, 1, 7, 1, 0, 2};
    const struct dt_kernels *k = dt_kernels_twin(DT_F32);
    struct dt_device d;
    struct dt_stream *s = NULL;
    open_device(&d, "cpu", 1, &s);
    int64_t limbs[2][DT_EXACT_LIMBS] = {0}, bad[2] = {0}, denominator = 4, none = 0;
    k->exact_sum(s, &(struct dt_exact_sum_args){.limbs = limbs[0], .bad_count = &bad[0], .x = x, .divisors = divisors, .count = 6});
    k->exact_sum(s, &(struct dt_exact_sum_args){.limbs = limbs[1], .bad_count = &bad[1], .x = x + 2, .divisors = divisors + 2, .count = 4});
    k->exact_sum(s, &(struct dt_exact_sum_args){.limbs = limbs[1], .bad_count = &bad[1], .x = x, .divisors = divisors, .count = 2});
    assert_memory_equal(limbs[0], limbs[1], sizeof limbs[0]);
    assert_true(fabs(dt_exact_get(limbs[0]) - (0.5 + 0.1 + 1e-9 + 4.5)) < 1e-12);
    double norm = 0, factor = 1;
    k->norm_finish(s, &(struct dt_norm_finish_args){.norm = &norm, .factor = &factor, .limbs = limbs[0], .denominator = &denominator, .scale = 99});
    assert_true(factor == 0.25 && norm == sqrt(dt_exact_get(limbs[0])) * 0.25);
    k->norm_finish(s, &(struct dt_norm_finish_args){.factor = &factor, .limbs = limbs[0], .denominator = &none, .scale = 99});
    assert_true(factor == 0 && bad[0] == 0);
    const double wrong[] = {NAN, 1, INFINITY};
    k->exact_sum(s, &(struct dt_exact_sum_args){.limbs = limbs[0], .bad_count = &bad[0], .x = wrong, .count = 3});
    assert_int_equal(bad[0], 2);
    assert_false(dt_exact_finite(limbs[0]));
    close_device(&d, s);
}

/* The tree: ((0+1)+(2+3))+4 and so on, whatever the block. */
static void test_sum_slices(void **unused)
{
    (void)unused;
    enum { COUNT = 2500, MOST = 9 };
    static float x[MOST][COUNT], out[COUNT];
    state = 3;
    for (int p = 0; p < MOST; p++) {
        for (int i = 0; i < COUNT; i++) {
            x[p][i] = (float)(uniform() * exp(3 * uniform()));
        }
    }
    const void *in[MOST];
    for (int p = 0; p < MOST; p++) {
        in[p] = x[p];
    }
    for (int count = 1; count <= MOST; count++) {
        dt_cpu_sum_slices(&(struct dt_sum_slices_args){out, in, count, DT_OP_SUM, COUNT, DT_F32});
        for (int i = 0; i < COUNT; i++) {
            float level[MOST];
            int n = count;
            for (int p = 0; p < n; p++) {
                level[p] = x[p][i];
            }
            for (; n > 1; n = (n + 1) / 2) {
                for (int p = 0; p < n / 2; p++) {
                    level[p] = level[2 * p] + level[2 * p + 1];
                }
                if (n % 2 == 1) {
                    level[n / 2] = level[n - 1];
                }
            }
            assert_true(out[i] == level[0]);
        }
        dt_cpu_sum_slices(&(struct dt_sum_slices_args){out, in, count, DT_OP_MAX, COUNT, DT_F32});
        for (int i = 0; i < COUNT; i++) {
            for (int p = 0; p < count; p++) {
                assert_true(out[i] >= x[p][i]);
            }
        }
    }
    int64_t a[3] = {1, INT64_MAX - 5, -7}, b[3] = {2, 5, 7}, sum[3];
    const void *integers[2] = {a, b};
    dt_cpu_sum_slices(&(struct dt_sum_slices_args){sum, integers, 2, DT_OP_SUM, 3, DT_I64});
    assert_true(sum[0] == 3 && sum[1] == INT64_MAX && sum[2] == 0);
}

/* All 65536 halves come back; rounding goes to the nearest even, also from double. */
static void test_cast(void **unused)
{
    (void)unused;
    enum { COUNT = 65536 };
    static uint16_t half[COUNT], back[COUNT];
    static double wide[COUNT];
    enum dt_dtype types[2] = {DT_BF16, DT_F16};
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < COUNT; i++) {
            half[i] = (uint16_t)i;
        }
        dt_cpu_cast(&(struct dt_cast_args){wide, half, COUNT, DT_F64, types[t]});
        dt_cpu_cast(&(struct dt_cast_args){back, wide, COUNT, types[t], DT_F64});
        for (int i = 0; i < COUNT; i++) {
            assert_true(isnan(wide[i]) || back[i] == half[i]);
        }
        for (int i = 1; i + 1 < (types[t] == DT_BF16 ? 0x7f80 : 0x7c00); i++) {
            double middle = (wide[i] + wide[i + 1]) / 2;
            double ask[3] = {middle, nextafter(middle, 0), nextafter(middle, INFINITY)};
            uint16_t got[3];
            dt_cpu_cast(&(struct dt_cast_args){got, ask, 3, types[t], DT_F64});
            assert_int_equal(got[0], i % 2 == 0 ? i : i + 1);
            assert_int_equal(got[1], i);
            assert_int_equal(got[2], i + 1);
        }
    }
    assert_true(wide[0x3c00] == 1.0 && wide[0xc000] == -2.0 && wide[1] == 0x1p-24 && isinf(wide[0x7c00]));
    uint16_t tokens[3] = {0, 7, 65535};
    int32_t wider[3];
    dt_cpu_cast(&(struct dt_cast_args){wider, tokens, 3, DT_I32, DT_U16});
    assert_true(wider[0] == 0 && wider[1] == 7 && wider[2] == 65535);
}

static void test_errors(void **unused)
{
    (void)unused;
    const char *names[] = {"cpu", "twin32"};
    for (int i = 0; i < 2; i++) {
        struct dt_device d;
        struct dt_stream *s = NULL;
        open_device(&d, names[i], 1, &s);
        float logits[4] = {0};
        double loss[2];
        int32_t targets[2] = {1, 2};
        d.kernels->cross_entropy(
            s, &(struct dt_cross_entropy_args){.logits = logits, .targets = targets, .row_loss = loss, .row_count = 2, .col_count = 2});
        struct dt_error err = {0};
        assert_true(dt_stream_failed(s, &err));
        assert_int_equal(err.status, DT_INVALID);
        dt_stream_close(s);
        dt_device_close(&d);
    }
    setenv("DTRUN_CPU", "abacus", 1);
    struct dt_error err = {0};
    assert_null(dt_kernels_cpu(&err));
    assert_int_equal(err.status, DT_INVALID);
    setenv("DTRUN_CPU", "plain", 1);
    assert_string_equal(dt_kernels_cpu(&err)->name, "plain");
    unsetenv("DTRUN_CPU");
}

/* Products of the sizes that models have: the number of threads cuts them differently, and no bit may know. */
static void check_threads(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, enum dt_dtype type)
{
    size_t size = dt_dtype_size(type);
    float *x = malloc((size_t)(m * k + k * n) * sizeof *x);
    char *a = malloc((size_t)(m * k + k * n) * size);
    float *c = malloc((size_t)(m * n) * sizeof *c), *first = malloc((size_t)(m * n) * sizeof *first);
    for (int64_t j = 0; j < m * k + k * n; j++) {
        x[j] = (float)uniform();
    }
    dt_cpu_cast(&(struct dt_cast_args){a, x, m * k + k * n, type, DT_F32});
    for (int threads = 1; threads <= 5; threads++) {
        struct dt_device d;
        struct dt_stream *s = NULL;
        open_device(&d, "cpu", threads, &s);
        d.kernels->matmul(s, &(struct dt_matmul_args){.c = threads == 1 ? first : c,
                                                      .a = a,
                                                      .b = a + (size_t)(m * k) * size,
                                                      .m = m,
                                                      .n = n,
                                                      .k = k,
                                                      .a_transposed = a_transposed,
                                                      .b_transposed = b_transposed,
                                                      .type = type,
                                                      .c_type = DT_F32});
        close_device(&d, s);
        if (threads > 1 && memcmp(c, first, (size_t)(m * n) * sizeof *c) != 0) {
            fail_msg("%s %lld x %lld x %lld: %d threads give other bits than one", dt_dtype_name(type), (long long)m, (long long)n, (long long)k,
                     threads);
        }
    }
    free(x);
    free(a);
    free(c);
    free(first);
}

static void test_threads_of_products(void **unused)
{
    (void)unused;
    static const struct {
        int64_t m, n, k;
        bool a_transposed, b_transposed;
    } sizes[] = {{1024, 1152, 384, false, false}, {1024, 384, 1536, false, false}, {1024, 384, 1152, false, true}, {384, 1152, 1024, true, false},
                 {1000, 65, 384, false, true},    {777, 130, 4096, false, false},  {4096, 64, 32, false, false},   {513, 384, 65, false, false},
                 {16, 768, 3072, false, false},   {1, 50257, 64, false, true}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        check_threads(sizes[i].m, sizes[i].n, sizes[i].k, sizes[i].a_transposed, sizes[i].b_transposed, DT_F32);
        check_threads(sizes[i].m, sizes[i].n, sizes[i].k, sizes[i].a_transposed, sizes[i].b_transposed, DT_BF16);
    }
}

/* ---- both ways of BF16 products: chosen once per process, so processes of their own ---- */

static void test_products(void **unused)
{
    (void)unused;
    assert_string_equal(cases[2].name, "matmul");
    for (int i = 0; i < SHAPES && cases[2].shapes[i][0] != 0; i++) {
        check_shape(&cases[2], cases[2].shapes[i], &modes[1]);
        check_shape(&cases[2], cases[2].shapes[i], &modes[2]);
    }
}

static void test_unknown_way(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_stream *s = NULL;
    struct dt_error err = {0};
    uint16_t x[3] = {0};
    if (dt_kernels_cpu_named("avx2") == NULL) {
        return; /* the plain table has one way only */
    }
    open_device(&d, "cpu", 1, &s);
    dt_kernels_cpu_named("avx2")->matmul(
        s, &(struct dt_matmul_args){.c = x, .a = x + 1, .b = x + 2, .m = 1, .n = 1, .k = 1, .type = DT_BF16, .c_type = DT_BF16});
    assert_true(dt_stream_failed(s, &err));
    assert_int_equal(err.status, DT_INVALID);
    assert_string_equal(err.text, "DTRUN_BF16=abacus: not known; use onednn or f32");
    dt_stream_close(s);
    dt_device_close(&d);
}

static int run_self(const char *way)
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        setenv("DTRUN_BF16", way, 1);
        execl("/proc/self/exe", "test_kernels", way, (char *)NULL);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_both_ways(void **unused)
{
    (void)unused;
    assert_int_equal(run_self("f32"), 0);
    assert_int_equal(run_self("onednn"), 0);
    assert_int_equal(run_self("abacus"), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const struct CMUnitTest way[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_threads_of_products)};
        const struct CMUnitTest unknown[] = {cmocka_unit_test(test_unknown_way)};
        return strcmp(argv[1], "abacus") == 0 ? cmocka_run_group_tests(unknown, NULL, NULL) : cmocka_run_group_tests(way, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_of_products),
        cmocka_unit_test(test_against_twin),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_adamw_offsets),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_norm_of_halves),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_both_ways),
        cmocka_unit_test(test_exact_sum),
        cmocka_unit_test(test_sum_slices),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
