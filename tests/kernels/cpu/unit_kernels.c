/* covers: kernels/cpu kernels/kernels.h kernels/stochastic.h kernels/exact.h kernels/normal.h kernels/convolution.c kernels/matmul_parts.c */
/* Kernels: every CPU kernel on every instruction set of this machine against the double twin (in
 * BF16: against the twin for that, which is compared with the double one), over ragged shapes;
 * the same bits with 1, 2 and 3 threads; the twin's backward kernels against finite differences;
 * exactness where it is promised. run: timeout 400 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/device.h"
#include "kernels/exact.h"
#include "kernels/kernels.h"
#include "kernels/stochastic.h"
#include "tests/lib/kernel_cases.h"

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

static const char *const isas[] = {"plain", "avx2", "avx512"};

static void check_shape(const struct kernel_case *c, const int64_t *n, const struct case_mode *m)
{
    case_reference(c, n, m);
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        const struct dt_kernels *k = dt_kernels_cpu_named(isas[i]);
        void *first[CASE_BUFFERS] = {0};
        for (int threads = 1; threads <= 3 && k != NULL; threads++) {
            char who[64];
            (void)snprintf(who, sizeof who, "%s with %d threads:", isas[i], threads);
            case_reset_typed(m);
            case_run_host(c, n, m, "cpu", threads, k);
            case_compare(c, n, m, who, 1);
            for (int b = 0; b < CASE_BUFFERS && case_buf[b].count > 0; b++) {
                size_t size = (size_t)case_buf[b].count * dt_dtype_size(case_type_in(m, &case_buf[b]));
                if (first[b] == NULL) {
                    first[b] = malloc(size + 1);
                    memcpy(first[b], case_buf[b].x, size);
                } else if (memcmp(first[b], case_buf[b].x, size) != 0) {
                    fail_msg("%s %s %s: %d threads give other bits", isas[i], c->name, m->name, threads);
                }
            }
        }
        for (int b = 0; b < CASE_BUFFERS; b++) {
            free(first[b]);
        }
    }
    case_clear();
}

/* ---- each row of kernels/rows.def has a case ---- */

#define KERNEL(name, types)                                                                                            \
    static bool called_##name;                                                                                         \
    static void note_##name(struct dt_stream *s, const struct dt_##name##_args *a)                                     \
    {                                                                                                                  \
        called_##name = true;                                                                                          \
        dt_kernels_twin(DT_F64)->name(s, a);                                                                           \
    }
#include "kernels/rows.def"

static void test_every_kernel_has_a_case(void **unused)
{
    (void)unused;
    static const struct dt_kernels noting = {
#define KERNEL(row, types) .row = note_##row,
#include "kernels/rows.def"
    };
    for (size_t i = 0; i < kernel_case_count; i++) {
        const struct kernel_case *c = &kernel_cases[i];
        c->make(c->shapes[0]);
        case_reset_typed(&case_modes[0]);
        case_reset_double(&case_modes[0]);
        case_run_host(c, c->shapes[0], &case_modes[0], "twin64", 1, &noting);
        case_clear();
    }
    called_norm_sum = true;       /* test_norm */
    enum { any, flows, masters }; /* any: has no twin to be compared with; test_cast and the like */
#define KERNEL(name, types)                                                                                            \
    if (types != any && !called_##name) {                                                                              \
        fail_msg("%s: no case of kernel_cases.c calls it", #name);                                                     \
    }
#include "kernels/rows.def"
}

static void test_against_twin(void **unused)
{
    (void)unused;
    for (size_t c = 0; c < kernel_case_count; c++) {
        for (int i = 0; i < CASE_SHAPES && kernel_cases[c].shapes[i][0] != 0; i++) {
            for (size_t m = 0; m < CASE_MODES; m++) {
                check_shape(&kernel_cases[c], kernel_cases[c].shapes[i], &case_modes[m]);
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
static double difference(const struct case_run *r, void (*forward)(const struct case_run *r), double *x,
                         const double *out, const double *w, int64_t count)
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

static void forward_attention(const struct case_run *r)
{
    const struct dt_attention_args a = case_attention(r);
    r->k->attention(r->s, &a);
}

/* With queries of 0 and values that name their key, a row of out is 1 / n for the n keys that the
 * query sees. */
static void check_what_is_seen(struct dt_stream *s, const struct dt_kernels *k, const struct dt_attention_shape *x)
{
    enum { T = 9 };
    double q[T * T] = {0}, v[T * T] = {0}, out[T * T];
    const struct dt_attention_args a = {.shape = *x, .out = out, .q = q, .k = q, .v = v};
    for (int j = 0; j < T; j++) {
        v[j * T + j] = 1;
    }
    k->attention(s, &a);
    for (int64_t i = 0; i < x->queries; i++) {
        bool sees[T];
        int64_t at = T - x->queries + i;
        int count = 0;
        for (int64_t j = 0; j < T; j++) {
            sees[j] = (!x->causal || j <= at) && (x->window == 0 || llabs(at - j) < x->window) &&
                      (x->segments == NULL ||
                       (x->segments[j] >= 0 && x->segments[j] == (x->segments[at] < 0 ? 0 : x->segments[at])));
            count += sees[j];
        }
        for (int64_t j = 0; j < T; j++) {
            assert_true(fabs(out[i * T + j] - (sees[j] ? 1.0 / count : 0)) < 1e-12);
        }
    }
}

static void test_what_attention_sees(void **unused)
{
    (void)unused;
    static const int32_t segments[][9] = {
        {-1, -1, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, -1, 0, 0, -1, -1}, {0, 0, 1, 1, 1, 2, 3, 3, -1}};
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "twin64", 1, &s);
    for (int64_t c = 0; c < 2 * 11 * 4 * 9; c++) {
        struct dt_attention_shape x = {.batch = 1, .keys = 9, .heads = 1, .head_size = 9, .type = DT_F64};
        x.q_stride = x.kv_stride = 9;
        x.causal = c % 2 != 0;
        x.window = c / 2 % 11;
        x.segments = c / 22 % 4 < 3 ? segments[c / 22 % 4] : NULL;
        x.queries = c / 88 + 1;
        check_what_is_seen(s, d.kernels, &x);
    }
    case_close(&d, s);
}

static void forward_activation(const struct case_run *r)
{
    r->k->activation(r->s, &(struct dt_activation_args){case_buf[2].d, case_buf[0].d, r->n[0],
                                                        (enum dt_activation)r->n[1], r->type});
}

static void forward_entropy(const struct case_run *r)
{
    double sum[64];
    memcpy(case_buf[2].d, case_buf[0].d, (size_t)case_buf[0].count * sizeof(double));
    r->k->cross_entropy(r->s, &(struct dt_cross_entropy_args){.logits = case_buf[2].d,
                                                              .targets = case_side.ids,
                                                              .row_loss = sum,
                                                              .row_count = r->n[0],
                                                              .col_count = r->n[1],
                                                              .type = DT_F64});
    case_buf[3].d[0] = 0;
    for (int64_t i = 0; i < r->n[0]; i++) {
        case_buf[3].d[0] += sum[i];
    }
}

static void test_differences(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "twin64", 1, &s);
    int64_t attention[][CASE_SHAPE] = {
        {2, 5, 2, 3, 0, CASE_CAUSAL},
        {1, 4, 4, 2, 2, 0},
        {2, 9, 4, 3, 2, CASE_EVERYTHING | CASE_WINDOW(4) | CASE_SEGMENTS(2)},
        {1, 9, 2, 3, 1, CASE_SOFTCAP | CASE_DROPOUT | CASE_WINDOW(3) | CASE_SEGMENTS(4)}};
    for (size_t c = 0; c < sizeof attention / sizeof attention[0]; c++) {
        struct case_run r = {.s = s, .k = d.kernels, .type = DT_F64, .n = attention[c], .grad = DT_F64};
        case_seed(5);
        case_make_attention(r.n);
        case_reset_double(&case_modes[0]);
        memset(case_buf[4].d, 0, (size_t)case_buf[4].count * sizeof(double)); /* between the rows, too */
        case_run_attention(&r);
        for (int64_t i = 0; i < case_buf[0].count; i++) {
            double expect =
                difference(&r, forward_attention, &case_buf[0].d[i], case_buf[1].d, case_buf[3].d, case_buf[1].count);
            assert_true(fabs(expect - case_buf[4].d[i]) < 1e-8);
        }
        case_clear();
    }
    for (int64_t kind = DT_ACT_GELU; kind <= DT_ACT_SILU; kind++) {
        int64_t n[CASE_SHAPE] = {50, kind};
        struct case_run r = {.s = s, .k = d.kernels, .type = DT_F64, .n = n, .grad = DT_F64};
        case_make_elements(n);
        case_reset_double(&case_modes[0]);
        double w[50];
        memcpy(w, case_buf[1].d, sizeof w);
        case_run_activation(&r);
        for (int64_t i = 0; i < 50; i++) {
            assert_true(fabs(difference(&r, forward_activation, &case_buf[0].d[i], case_buf[2].d, w, 50) -
                             case_buf[1].d[i]) < 1e-8);
        }
        case_clear();
    }
    int64_t norm[CASE_SHAPE] = {4, 7, 0};
    struct case_run r = {.s = s, .k = d.kernels, .type = DT_F64, .n = norm, .grad = DT_F64};
    case_make_layernorm(norm);
    case_reset_double(&case_modes[0]);
    memset(case_buf[8].d, 0, 7 * sizeof(double));
    case_run_layernorm_backward(&r);
    double dx[28], above[28], w[28];
    memcpy(dx, case_buf[0].d, sizeof dx);
    memcpy(above, case_buf[4].d, sizeof above); /* what was added: the residual's values stand in
                                                 * for it */
    memcpy(w, case_buf[5].d, sizeof w);         /* dy, and at once the branch, which stays as it
                                                 * is */
    for (int64_t i = 0; i < 28; i++) {
        assert_true(fabs(difference(&r, case_run_layernorm, &case_buf[4].d[i], case_buf[0].d, w, 28) + above[i] -
                         dx[i]) < 1e-7);
    }
    for (int64_t j = 0; j < 7; j++) {
        assert_true(fabs(difference(&r, case_run_layernorm, &case_buf[6].d[j], case_buf[0].d, w, 28) -
                         case_buf[8].d[j]) < 1e-8);
        assert_true(fabs(difference(&r, case_run_layernorm, &case_buf[7].d[j], case_buf[0].d, w, 28) -
                         case_buf[9].d[j]) < 1e-8);
    }
    case_clear();
    int64_t loss[CASE_SHAPE] = {6, 9, 1};
    struct case_run e = {.s = s, .k = d.kernels, .type = DT_F64, .n = loss, .grad = DT_F64};
    case_make_entropy(loss);
    case_make(2, 54, 1, 0);
    case_make(3, 1, 1, 0);
    case_reset_double(&case_modes[0]);
    case_run_entropy(&e);
    double grad[54];
    memcpy(grad, case_buf[0].d, sizeof grad);
    case_reset_double(&case_modes[0]);
    double one = 1;
    for (int64_t i = 0; i < 54; i++) {
        assert_true(fabs(difference(&e, forward_entropy, &case_buf[0].d[i], case_buf[3].d, &one, 1) * 0.25 - grad[i]) <
                    1e-8);
    }
    case_clear();
    case_close(&d, s);
}

/* Compares count elements of an input's gradient with differences of sum(out * w), within 1e-7. */
static void check_gradient(const struct case_run *r, void (*forward)(const struct case_run *r), int in, int64_t first,
                           int out, const double *w, const double *gradient, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double *x = &case_buf[in].d[first + i];
        double expect = difference(r, forward, x, case_buf[out].d, w, case_buf[out].count);
        if (!(fabs(expect - gradient[i]) < 1e-7)) {
            fail_msg("buffer %d [%lld]: %.9g, by differences %.9g", in, (long long)(first + i), gradient[i], expect);
        }
    }
}

/* The norm of rows (n[2] is 0) with its branch, and of heads whose weight counts from 1. */
static void test_rmsnorm_differences(void **unused)
{
    (void)unused;
    enum { Y, SUM, DY, RESIDUAL = 4, BRANCH, WEIGHT, ABOVE, DWEIGHT, VALUES = 60 };
    static const int64_t shapes[2][CASE_SHAPE] = {{4, 7}, {6, 5, 3, 2, 4, 1}};
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "twin64", 1, &s);
    for (int c = 0; c < 2; c++) {
        const int64_t *n = shapes[c];
        struct case_run r = {.s = s, .k = d.kernels, .type = DT_F64, .n = n, .grad = DT_F64};
        bool heads = n[2] != 0;
        case_seed(6);
        case_make_rmsnorm(n);
        case_reset_double(&case_modes[0]);
        int64_t count = case_buf[Y].count;
        double above[VALUES] = {0}, dy[VALUES], dx[VALUES], of_x[VALUES], dweight[VALUES];
        assert_true(count <= VALUES && case_buf[RESIDUAL].count <= VALUES);
        for (int64_t i = 0; i < count && heads; i++) { /* what lies between positions has no gradient */
            case_buf[DY].d[i] *= i % (n[2] * n[1] + n[4]) < n[2] * n[1];
            case_buf[Y].d[i] = 0;
        }
        memcpy(dy, case_buf[DY].d, (size_t)count * sizeof *dy);
        memset(case_buf[DWEIGHT].d, 0, (size_t)n[1] * sizeof(double));
        if (!heads) {
            memcpy(above, case_buf[ABOVE].d, (size_t)count * sizeof *above);
        }
        case_run_rmsnorm_backward(&r);
        memcpy(dweight, case_buf[DWEIGHT].d, (size_t)n[1] * sizeof *dweight);
        for (int64_t i = 0; i < count; i++) {
            dx[i] = case_buf[heads ? Y : ABOVE].d[i] - above[i];
        }
        for (int64_t i = 0; i < case_buf[RESIDUAL].count; i++) {
            int64_t position = i / (n[1] * (heads ? n[2] : 1) + n[3]), at = i % (n[1] * (heads ? n[2] : 1) + n[3]);
            bool between = heads && at >= n[1] * n[2];
            of_x[i] = between ? 0 : dx[position * (n[1] * (heads ? n[2] : 1) + n[4]) + at];
        }
        memset(case_buf[Y].d, 0, (size_t)count * sizeof(double));
        check_gradient(&r, case_run_rmsnorm, RESIDUAL, 0, Y, dy, of_x, case_buf[RESIDUAL].count);
        check_gradient(&r, case_run_rmsnorm, WEIGHT, 0, Y, dy, dweight, n[1]);
        for (int64_t i = 0; i < count && !heads; i++) {
            dx[i] *= 0.75; /* branch_scale */
        }
        check_gradient(&r, case_run_rmsnorm, BRANCH, 0, Y, dy, dx, heads ? 0 : count);
        case_clear();
    }
    case_close(&d, s);
}

static void test_gate_differences(void **unused)
{
    (void)unused;
    enum { IN, GRADIENTS, Y, DY, AGAIN, ROWS = 4, COLS = 6, LD = 2 * COLS + 2 };
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "twin64", 1, &s);
    for (int64_t kind = DT_ACT_GELU; kind <= DT_ACT_SILU; kind++) {
        int64_t n[CASE_SHAPE] = {ROWS, COLS, 3, kind};
        struct case_run r = {.s = s, .k = d.kernels, .type = DT_F64, .n = n, .grad = DT_F64};
        case_seed(7);
        case_make_gate(n);
        case_reset_double(&case_modes[0]);
        case_run_gate(&r);
        double dy[ROWS * COLS], grads[ROWS * LD];
        memcpy(dy, case_buf[DY].d, sizeof dy);
        memcpy(grads, case_buf[GRADIENTS].d, sizeof grads);
        assert_memory_equal(case_buf[AGAIN].d, case_buf[Y].d, sizeof dy);
        for (int64_t row = 0; row < ROWS; row++) {
            check_gradient(&r, case_run_gate, IN, row * LD, Y, dy, grads + row * LD, 2 * COLS);
        }
        case_clear();
    }
    case_close(&d, s);
}

/* A turn keeps lengths, and its backward, which is its transpose, is the turn back: that gives the
 * same values again, by positions of rows and by ids. */
static void test_rope_turns_back(void **unused)
{
    (void)unused;
    enum { X, TABLE, ROWS = 9, HEADS = 2, HEAD = 7, WIDTH = 6 };
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "twin64", 1, &s);
    for (int64_t ids = 0; ids < 4; ids += 2) {
        int64_t n[CASE_SHAPE] = {ROWS, HEADS, HEAD, WIDTH, 1, ids};
        struct case_run r = {.s = s, .k = d.kernels, .type = DT_F64, .n = n, .grad = DT_F64};
        case_seed(8);
        case_make_rope(n);
        case_reset_double(&case_modes[0]);
        for (int64_t i = 0; i < case_buf[TABLE].count; i++) {
            double angle = (double)(i / WIDTH) / (1 + (double)(i % (WIDTH / 2)));
            case_buf[TABLE].d[i] = i % WIDTH < WIDTH / 2 ? cos(angle) : sin(angle);
        }
        double before[ROWS * (HEADS * HEAD + 1)];
        memcpy(before, case_buf[X].d, sizeof before);
        case_run_rope(&r);
        /* row 1 is at position 3, or at that of its id; pair 0 turns by the position itself */
        int64_t position = ids != 0 ? case_side.ids[1] : 3, at = HEADS * HEAD + 1;
        double c = cos((double)position), sine = sin((double)position);
        assert_true(fabs(case_buf[X].d[at] - (before[at] * c - before[at + 3] * sine)) < 1e-14);
        assert_true(fabs(case_buf[X].d[at + 3] - (before[at + 3] * c + before[at] * sine)) < 1e-14);
        n[5] |= 1;
        case_run_rope(&r);
        for (int64_t i = 0; i < case_buf[X].count; i++) {
            assert_true(fabs(case_buf[X].d[i] - before[i]) < 1e-14);
        }
        case_clear();
    }
    case_close(&d, s);
}

/* The largest error of y in units in the last place of a BF16 or F32 number of its size; values
 * below 1e-30 do not count. */
static double worst_ulps(const double *expect, const void *y, int64_t count, enum dt_dtype type)
{
    double worst = 0;
    for (int64_t i = 0; i < count; i++) {
        double got;
        dt_cpu_cast(&(struct dt_cast_args){&got, (const char *)y + (size_t)i * dt_dtype_size(type), 1, DT_F64, type});
        int exponent;
        (void)frexp(expect[i], &exponent);
        double ulps = fabs(got - expect[i]) / ldexp(1, exponent - (type == DT_BF16 ? 8 : 24));
        worst = fabs(expect[i]) > 1e-30 && !(ulps <= worst) ? ulps : worst;
    }
    return worst;
}

/* GELU by erf and SiLU keep their relative accuracy where they are nearly 0: to 8 places in F32,
 * to one place in BF16. */
static void test_activation_accuracy(void **unused)
{
    (void)unused;
    enum { COUNT = 20001 };
    static float x[COUNT], y[COUNT];
    static double wide[COUNT], expect[COUNT];
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    for (int i = 0; i < COUNT; i++) {
        wide[i] = 11.0 * (i - COUNT / 2) / (COUNT / 2.0);
    }
    for (int kind = DT_ACT_GELU_ERF; kind <= DT_ACT_SILU; kind++) {
        for (int t = 0; t < 2; t++) {
            enum dt_dtype type = t == 0 ? DT_F32 : DT_BF16;
            dt_cpu_cast(&(struct dt_cast_args){x, wide, COUNT, type, DT_F64});
            dt_cpu_cast(&(struct dt_cast_args){expect, x, COUNT, DT_F64, type});
            struct dt_activation_args a = {expect, expect, COUNT, (enum dt_activation)kind, DT_F64};
            dt_kernels_twin(DT_F64)->activation(s, &a);
            for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
                const struct dt_kernels *k = dt_kernels_cpu_named(isas[i]);
                if (k == NULL) {
                    continue;
                }
                k->activation(s, &(struct dt_activation_args){y, x, COUNT, (enum dt_activation)kind, type});
                double worst = worst_ulps(expect, y, COUNT, type), most = t == 1 ? 1 : 8;
                if (!(worst <= most)) {
                    fail_msg("%s: activation %d in %s is off by %g places", isas[i], kind, dt_dtype_name(type), worst);
                }
            }
        }
    }
    case_close(&d, s);
}

enum { HALVES = 65536 + 5, RESULTS = 6 }; /* each BF16, and a tail */

/* Activations, gates and their backward of x; other: of the same shape. */
static void run_activations(const struct dt_kernels *k, struct dt_stream *s, void *const *out, const void *x,
                            const void *other, enum dt_activation kind, enum dt_dtype type)
{
    k->activation(s, &(struct dt_activation_args){out[0], x, HALVES, kind, type});
    k->activation_backward(s, &(struct dt_activation_backward_args){
                                  .dx = out[1], .dy = other, .x = x, .count = HALVES, .kind = kind, .type = type});
    k->gate(s,
            &(struct dt_gate_args){
                .y = out[2], .gate = x, .up = other, .row_count = 1, .col_count = HALVES, .kind = kind, .type = type});
    k->gate_backward(s, &(struct dt_gate_backward_args){.dgate = out[3],
                                                        .dup = out[4],
                                                        .y = out[5],
                                                        .dy = other,
                                                        .gate = x,
                                                        .up = other,
                                                        .row_count = 1,
                                                        .col_count = HALVES,
                                                        .kind = kind,
                                                        .type = type});
}

/* In BF16 each of the 2^16 inputs gives the bits that it gives in F32, rounded once. */
static void test_activations_of_all_halves(void **unused)
{
    (void)unused;
    static uint16_t half[HALVES], half_other[HALVES], got[RESULTS][HALVES], expect[HALVES];
    static float x[HALVES], other[HALVES], wide[RESULTS][HALVES];
    void *halves[RESULTS], *floats[RESULTS];
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    for (int i = 0; i < HALVES; i++) {
        half[i] = (uint16_t)i;
        half_other[i] = (uint16_t)(0x3f00 + i % 0x101); /* 0.5 to 2 */
    }
    for (int r = 0; r < RESULTS; r++) {
        halves[r] = got[r];
        floats[r] = wide[r];
    }
    for (int i = 0; i < 5 * 3; i++) {
        const struct dt_kernels *k = dt_kernels_cpu_named(isas[i % 3]);
        enum dt_activation kind = (enum dt_activation)(i / 3);
        if (k == NULL) {
            continue;
        }
        k->cast(s, &(struct dt_cast_args){x, half, HALVES, DT_F32, DT_BF16});
        k->cast(s, &(struct dt_cast_args){other, half_other, HALVES, DT_F32, DT_BF16});
        run_activations(k, s, floats, x, other, kind, DT_F32);
        run_activations(k, s, halves, half, half_other, kind, DT_BF16);
        for (int r = 0; r < RESULTS; r++) {
            k->cast(s, &(struct dt_cast_args){expect, wide[r], HALVES, DT_BF16, DT_F32});
            for (int j = 0; j < HALVES; j++) {
                if (got[r][j] != expect[j]) {
                    fail_msg("%s: activation %d, result %d of %04x is %04x, not %04x", k->name, (int)kind, r,
                             (unsigned)half[j], (unsigned)got[r][j], (unsigned)expect[j]);
                }
            }
        }
    }
    case_close(&d, s);
}

/* ---- exactness ---- */

/* AdamW of one slice. */
static void adamw(const struct dt_kernels *k, struct dt_stream *s, const struct dt_update_args *all,
                  const struct dt_update_slice *slice)
{
    struct dt_update_args a = *all;
    a.slices = slice;
    a.slice_count = 1;
    k->adamw_many(s, &a);
}

/* AdamW of 1 to 67 elements at every offset of a vector gives each element the bits it has in
 * the whole. */
static void test_adamw_offsets(void **unused)
{
    (void)unused;
    enum { TOTAL = 96 };
    static float w[TOTAL], m[TOTAL], v[TOTAL], g[TOTAL], whole[3][TOTAL], part[3][TOTAL];
    case_seed(77);
    for (int i = 0; i < TOTAL; i++) {
        w[i] = (float)case_uniform();
        m[i] = (float)case_uniform();
        v[i] = (float)(case_uniform() + 1.0);
        g[i] = (float)case_uniform();
    }
    for (size_t isa = 0; isa < sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = dt_kernels_cpu_named(isas[isa]);
        if (k == NULL) {
            continue;
        }
        struct dt_device d;
        struct dt_stream *s = NULL;
        case_open(&d, "cpu", 1, &s);
        const struct dt_update_args a = {.step = 3,
                                         .lr = 1e-2,
                                         .grad_scale = 1.0 / 3,
                                         .numbers = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
                                         .type = DT_F32};
        for (int length = 0; length <= 67; length++) {
            for (int offset = 0; offset < 16; offset++) {
                bool all = length == 0;
                float(*to)[TOTAL] = all ? whole : part;
                memcpy(to[0], w, sizeof w);
                memcpy(to[1], m, sizeof m);
                memcpy(to[2], v, sizeof v);
                int from = all ? 0 : offset;
                adamw(k, s, &a,
                      &(struct dt_update_slice){.w = to[0] + from,
                                                .state = {to[1] + from, to[2] + from},
                                                .grad = g + from,
                                                .count = all ? TOTAL : length,
                                                .weight_decay = 0.1});
                for (int i = 0; i < TOTAL && !all; i++) {
                    bool touched = i >= offset && i < offset + length;
                    assert_true(part[0][i] == (touched ? whole[0][i] : w[i]));
                    assert_true(part[1][i] == (touched ? whole[1][i] : m[i]));
                    assert_true(part[2][i] == (touched ? whole[2][i] : v[i]));
                }
            }
        }
        case_close(&d, s);
    }
}

/* ---- stochastic rounding ---- */

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* The random bits are part of what a run is: other ones would change it where it goes on. */
static void test_random_bits(void **unused)
{
    (void)unused;
    uint32_t x = 1;
    DT_SCRAMBLE(x);
    assert_int_equal(x, 0x06d3fa73U);
    x = dt_stochastic_counter(42, 7, 3, 5);
    assert_int_equal(x, dt_stochastic_counter(42, 7, 3, 0) + 5);
    assert_int_equal(x, 0x7017364fU);
    assert_true(x != dt_stochastic_counter(43, 7, 3, 5) && x != dt_stochastic_counter(42, 8, 3, 5) &&
                x != dt_stochastic_counter(42, 7, 4, 5));
}

/* AdamW's moments in BF16 where each operation is exact: then the instruction sets and the twin
 * round the same values, and the bits are those of the formula; in a piece at any place as in
 * the whole. Zeros, as of padding, stay; what is not finite stays what it is. */
static void test_stochastic_moments(void **unused)
{
    (void)unused;
    enum { TOTAL = 96, INFINITE = 90, NAN_AT, ZERO };
    static float w[TOTAL], g[TOTAL], w_now[TOTAL];
    static uint16_t m[TOTAL], v[TOTAL], expect[2][TOTAL], got[2][TOTAL];
    const struct dt_update_args a = {.step = 3,
                                     .lr = 1e-2,
                                     .grad_scale = 1,
                                     .numbers = {.beta1 = 0.5, .beta2 = 0.5, .eps = 1e-8},
                                     .seed = 42,
                                     .type = DT_F32,
                                     .state_type = DT_BF16};
    int rounded_up = 0;
    case_seed(78);
    for (int i = 0; i < TOTAL; i++) {
        /* what BF16 holds */
        float old[2] = {0.5F + (float)(int)(64 * case_uniform()) / 256, 0.5F + (float)(int)(64 * case_uniform()) / 256};
        g[i] = 0.5F + (float)(int)(256 * case_uniform()) / 1024;
        g[i] = i == NAN_AT ? NAN : g[i];
        if (i == INFINITE) {
            old[0] = old[1] = INFINITY;
        }
        if (i == ZERO) {
            g[i] = old[0] = old[1] = 0;
        }
        m[i] = (uint16_t)(bits_of(old[0]) >> 16);
        v[i] = (uint16_t)(bits_of(old[1]) >> 16);
        uint32_t random = dt_stochastic_counter(42, 3, 2, i);
        DT_SCRAMBLE(random);
        uint32_t exact[2] = {bits_of((old[0] + g[i]) / 2), bits_of((old[1] + g[i] * g[i]) / 2)};
        expect[0][i] = (uint16_t)((exact[0] + (random & 0xffff)) >> 16);
        expect[1][i] = (uint16_t)((exact[1] + (random >> 16)) >> 16);
        rounded_up += expect[0][i] != exact[0] >> 16;
    }
    assert_in_range(rounded_up, TOTAL / 4, TOTAL * 3 / 4);
    assert_true(expect[0][INFINITE] == 0x7f80 && expect[1][INFINITE] == 0x7f80 && expect[0][ZERO] == 0 &&
                expect[1][ZERO] == 0);
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    for (size_t isa = 0; isa <= sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = isa == 0 ? dt_kernels_twin(DT_F32) : dt_kernels_cpu_named(isas[isa - 1]);
        for (int at = 0; at < 68 * 17 && k != NULL; at++) {
            int first = at % 17, count = first == 16 ? TOTAL : at / 17;
            first = first == 16 ? 0 : first;
            memcpy(w_now, w, sizeof w);
            memcpy(got[0], m, sizeof m);
            memcpy(got[1], v, sizeof v);
            adamw(k, s, &a,
                  &(struct dt_update_slice){.w = w_now + first,
                                            .state = {got[0] + first, got[1] + first},
                                            .grad = g + first,
                                            .count = count,
                                            .unit = 2,
                                            .first = first});
            for (int i = 0; i < TOTAL; i++) {
                bool touched = i >= first && i < first + count, nan = touched && i == NAN_AT;
                for (int x = 0; x < 2; x++) {
                    uint16_t old = x == 0 ? m[i] : v[i];
                    assert_true(nan ? (got[x][i] & 0x7fff) > 0x7f80 : got[x][i] == (touched ? expect[x][i] : old));
                }
            }
        }
    }
    case_close(&d, s);
}

/* Many roundings are unbiased: over the steps of an element, over the elements of a step, over
 * all; and those of the two moments have nothing to do with each other. A rounding goes up with
 * probability p, so the share of n that do is off by sqrt(p (1 - p) / n) <= 1 / (2 sqrt(n)) as a
 * rule. Of 2 * 2048 shares none is six times as far off, but by a chance of 1e-5. */
static void test_stochastic_is_unbiased(void **unused)
{
    (void)unused;
    enum { COUNT = 2048, STEPS = 1024 };
    static float w[COUNT], g[COUNT];
    static uint16_t m[COUNT], v[COUNT];
    static int up_m[COUNT], up_v[COUNT];
    static const double shares[] = {0.5, 0.125, 0.9375};
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    for (size_t p = 0; p < sizeof shares / sizeof shares[0]; p++) {
        int64_t all_m = 0, all_v = 0, both = 0;
        memset(up_m, 0, sizeof up_m);
        memset(up_v, 0, sizeof up_v);
        for (int step = 1; step <= STEPS; step++) {
            int in_step = 0;
            for (int i = 0; i < COUNT; i++) {
                m[i] = v[i] = 0x3f80;                   /* 1; the next value is 1 + 2^-7 */
                g[i] = 1 + (float)(shares[p] * 0x1p-6); /* beta 0.5: m is 1 + share * 2^-7, and v
                                                         * about as much */
            }
            adamw(dt_kernels_cpu_named("plain"), s,
                  &(struct dt_update_args){.step = step,
                                           .grad_scale = 1,
                                           .numbers = {.beta1 = 0.5, .beta2 = 0.75, .eps = 1},
                                           .seed = 1,
                                           .type = DT_F32,
                                           .state_type = DT_BF16},
                  &(struct dt_update_slice){.w = w, .state = {m, v}, .grad = g, .count = COUNT});
            for (int i = 0; i < COUNT; i++) {
                assert_true((m[i] == 0x3f80 || m[i] == 0x3f81) && (v[i] == 0x3f80 || v[i] == 0x3f81));
                in_step += m[i] & 1;
                up_m[i] += m[i] & 1;
                up_v[i] += v[i] & 1;
                both += m[i] & v[i] & 1;
            }
            all_m += in_step;
            assert_true(fabs((double)in_step / COUNT - shares[p]) <= 3 / sqrt(COUNT));
        }
        double gi = (double)g[0], share_v = (gi * gi - 1) / 4 * 0x1p7, n = (double)COUNT * STEPS;
        for (int i = 0; i < COUNT; i++) {
            all_v += up_v[i];
            assert_true(fabs((double)up_m[i] / STEPS - shares[p]) <= 3 / sqrt(STEPS));
            assert_true(fabs((double)up_v[i] / STEPS - share_v) <= 3 / sqrt(STEPS));
        }
        assert_true(fabs((double)all_m / n - shares[p]) <= 3 / sqrt(n) &&
                    fabs((double)all_v / n - share_v) <= 3 / sqrt(n));
        assert_true(fabs((double)both / n - shares[p] * share_v) <= 3 / sqrt(n));
    }
    case_close(&d, s);
}

/* A second moment with beta2 0.999 gets from 0 to the square of a steady gradient, which
 * rounding to the nearest would not let it: at a third of it, what a step adds is less than half
 * a unit of its last place. An element is off by its last place over two, 2^-8 of it at most, in
 * each of the last 500 steps or so: by 2^-8 * sqrt(500) = 0.09; the mean of 4096 by 0.0014, and
 * six times that is 0.0084. */
static void test_stochastic_second_moment(void **unused)
{
    (void)unused;
    enum { COUNT = 4096, STEPS = 5000 };
    static float w[COUNT], g[COUNT];
    static uint16_t m[COUNT], v[COUNT];
    double sum = 0;
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    memset(v, 0, sizeof v);
    for (int i = 0; i < COUNT; i++) {
        g[i] = 1.5F;
    }
    for (int step = 1; step <= STEPS; step++) {
        adamw(d.kernels, s,
              &(struct dt_update_args){.step = step,
                                       .grad_scale = 1,
                                       .numbers = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1},
                                       .seed = 9,
                                       .type = DT_F32,
                                       .state_type = DT_BF16},
              &(struct dt_update_slice){.w = w, .state = {m, v}, .grad = g, .count = COUNT});
    }
    for (int i = 0; i < COUNT; i++) {
        sum += (double)float_of((uint32_t)v[i] << 16);
    }
    double expect = 2.25 * (1 - pow(0.999, STEPS));
    assert_true(fabs(sum / COUNT - expect) <= 0.0084 * expect);
    case_close(&d, s);
}

static void test_norm(void **unused)
{
    (void)unused;
    enum { TOTAL = 100003 };
    float *x = malloc(TOTAL * sizeof(float));
    case_seed(9);
    long double expect = 0;
    for (int i = 0; i < TOTAL; i++) {
        x[i] = (float)case_uniform();
        expect += (long double)x[i] * (long double)x[i];
    }
    int64_t first[DT_EXACT_LIMBS] = {0};
    for (size_t isa = 0; isa <= sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = isa == 0 ? dt_kernels_twin(DT_F32) : dt_kernels_cpu_named(isas[isa - 1]);
        for (int threads = 1; threads <= 3 && k != NULL; threads++) {
            struct dt_device d;
            struct dt_stream *s = NULL;
            case_open(&d, "cpu", threads, &s);
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
            k->norm_finish(s, &(struct dt_norm_finish_args){.norm = &norm,
                                                            .clip = &clip,
                                                            .factor = &factor,
                                                            .nonfinite = &nonfinite,
                                                            .limbs = limbs,
                                                            .scale = 0.5,
                                                            .max_norm = 1.0});
            assert_true(fabs(norm - 0.5 * sqrt((double)expect)) < 1e-10);
            assert_true(fabs(clip - 1.0 / (norm + 1e-6)) < 1e-15);
            assert_true(factor == 0.5 * clip);
            assert_int_equal(nonfinite, 0);
            float bad = INFINITY;
            k->norm_sum(s, &(struct dt_norm_sum_args){limbs, &bad, 1, DT_F32});
            k->norm_finish(s, &(struct dt_norm_finish_args){.norm = &norm,
                                                            .clip = &clip,
                                                            .factor = &factor,
                                                            .nonfinite = &nonfinite,
                                                            .limbs = limbs,
                                                            .scale = 0.5,
                                                            .max_norm = 1.0});
            assert_true(isinf(norm) && clip == 0 && nonfinite == 1);
            case_close(&d, s);
        }
    }
    free(x);
}

/* Squares of BF16 are the same sums as those of the floats they are, on every instruction set,
 * in any slices. */
static void test_norm_of_halves(void **unused)
{
    (void)unused;
    enum { TOTAL = 70003, CUT = 64 * 31 };
    static float x[TOTAL];
    static uint16_t half[TOTAL];
    for (int i = 0; i < TOTAL; i++) {
        x[i] = (float)case_uniform();
    }
    dt_cpu_cast(&(struct dt_cast_args){half, x, TOTAL, DT_BF16, DT_F32});
    dt_cpu_cast(&(struct dt_cast_args){x, half, TOTAL, DT_F32, DT_BF16});
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 2, &s);
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
    case_close(&d, s);
}

/* What vectors store as BF16 is what a cast makes of it: to the nearest even, a nan stays one,
 * subnormals and infinities are not lost. */
static void test_rounding(void **unused)
{
    (void)unused;
    enum { COUNT = 999 };
    static const uint32_t corners[] = {0x7f800001, 0xff800001, 0x7fc00000, 0x7f800000, 0xff800000,
                                       0x7f7fffff, 0x00000001, 0x80000001, 0x00018000, 0x00008000,
                                       0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff};
    static float w[COUNT], after[COUNT], zero[COUNT], moments[2][COUNT];
    static uint16_t got[COUNT], expect[COUNT];
    for (int i = 0; i < COUNT; i++) {
        uint32_t bits = corners[i % (int)(sizeof corners / sizeof corners[0])];
        memcpy(&w[i], &bits, sizeof bits);
        if (i > 500) {
            w[i] = (float)case_uniform();
        }
    }
    dt_cpu_cast(&(struct dt_cast_args){expect, w, COUNT, DT_BF16, DT_F32});
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    for (size_t isa = 0; isa <= sizeof isas / sizeof isas[0]; isa++) {
        const struct dt_kernels *k = isa == 0 ? dt_kernels_twin(DT_BF16) : dt_kernels_cpu_named(isas[isa - 1]);
        for (int offset = 0; offset < 17 && k != NULL; offset++) {
            int64_t count = COUNT - offset;
            memcpy(after, w, sizeof w);
            memset(got, 0xab, sizeof got);
            memset(moments, 0, sizeof moments);
            adamw(k, s, &(struct dt_update_args){.step = 1, .grad_scale = 1, .numbers = {.eps = 1}},
                  &(struct dt_update_slice){.w = after + offset,
                                            .state = {moments[0], moments[1]},
                                            .w_low = got + offset,
                                            .grad = zero,
                                            .count = count});
            for (int i = offset; i < COUNT; i++) {
                bool nan = w[i] != w[i];
                assert_true(nan ? (got[i] & 0x7f80) == 0x7f80 && (got[i] & 0x7f) != 0 : got[i] == expect[i]);
            }
        }
    }
    case_close(&d, s);
}

extern const struct dt_cpu_half dt_cpu_half_plain, dt_cpu_half_avx2, dt_cpu_half_avx512;

/* Casts and sums for collectives: each instruction set gives the bits of one float operation per
 * element, rounded once, also in place and in tails. */
static void test_halves(void **unused)
{
    (void)unused;
    enum { COUNT = 131 };
    const struct dt_cpu_half *const all[] = {&dt_cpu_half_plain, &dt_cpu_half_avx2, &dt_cpu_half_avx512};
    float x[COUNT], y[COUNT], sum[COUNT], wide[COUNT + 1];
    uint16_t a[COUNT], b[COUNT], expect[COUNT], out[COUNT + 1];
    for (int i = 0; i < COUNT; i++) {
        x[i] = (float)(case_uniform() * exp(9 * case_uniform()));
        y[i] = (float)case_uniform();
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

/* Losses: divided or not, in any slicing the same bits; what is not finite is counted; below
 * zero is zero. */
static void test_exact_sum(void **unused)
{
    (void)unused;
    const double x[] = {1.5, 0.1, 7e-9, -1e-17, 3.25, 9};
    const int64_t divisors[] = {3, 1, 7, 1, 0, 2};
    const struct dt_kernels *k = dt_kernels_twin(DT_F32);
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    int64_t limbs[2][DT_EXACT_LIMBS] = {0}, bad[2] = {0}, denominator = 4, none = 0;
    k->exact_sum(s, &(struct dt_exact_sum_args){
                        .limbs = limbs[0], .bad_count = &bad[0], .x = x, .divisors = divisors, .count = 6});
    k->exact_sum(s, &(struct dt_exact_sum_args){
                        .limbs = limbs[1], .bad_count = &bad[1], .x = x + 2, .divisors = divisors + 2, .count = 4});
    k->exact_sum(s, &(struct dt_exact_sum_args){
                        .limbs = limbs[1], .bad_count = &bad[1], .x = x, .divisors = divisors, .count = 2});
    assert_memory_equal(limbs[0], limbs[1], sizeof limbs[0]);
    assert_true(fabs(dt_exact_get(limbs[0]) - (0.5 + 0.1 + 1e-9 + 4.5)) < 1e-12);
    double norm = 0, factor = 1;
    k->norm_finish(s,
                   &(struct dt_norm_finish_args){
                       .norm = &norm, .factor = &factor, .limbs = limbs[0], .denominator = &denominator, .scale = 0.5});
    assert_true(factor == 0.125 && norm == sqrt(dt_exact_get(limbs[0])) * 0.125);
    k->norm_finish(
        s, &(struct dt_norm_finish_args){.factor = &factor, .limbs = limbs[0], .denominator = &none, .scale = 99});
    assert_true(factor == 0 && bad[0] == 0);
    const double wrong[] = {NAN, 1, INFINITY};
    k->exact_sum(s, &(struct dt_exact_sum_args){.limbs = limbs[0], .bad_count = &bad[0], .x = wrong, .count = 3});
    assert_int_equal(bad[0], 2);
    assert_false(dt_exact_finite(limbs[0]));
    case_close(&d, s);
}

/* The tree: ((0+1)+(2+3))+4 and so on, whatever the block. */
static void test_sum_slices(void **unused)
{
    (void)unused;
    enum { COUNT = 2500, MOST = 9 };
    static float x[MOST][COUNT], out[COUNT];
    case_seed(3);
    for (int p = 0; p < MOST; p++) {
        for (int i = 0; i < COUNT; i++) {
            x[p][i] = (float)(case_uniform() * exp(3 * case_uniform()));
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
        case_open(&d, names[i], 1, &s);
        float logits[4] = {0};
        double loss[2];
        int32_t targets[2] = {1, 2};
        d.kernels->cross_entropy(
            s, &(struct dt_cross_entropy_args){
                   .logits = logits, .targets = targets, .row_loss = loss, .row_count = 2, .col_count = 2});
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

/* Products of the sizes that models have: the number of threads cuts them differently, and no
 * bit may know. */
static void check_threads(int64_t m, int64_t n, int64_t k, bool a_transposed, bool b_transposed, enum dt_dtype type,
                          enum dt_dtype c_type)
{
    size_t size = dt_dtype_size(type);
    float *x = malloc((size_t)(m * k + k * n) * sizeof *x);
    char *a = malloc((size_t)(m * k + k * n) * size);
    float *c = malloc((size_t)(m * n) * sizeof *c), *first = malloc((size_t)(m * n) * sizeof *first);
    for (int64_t j = 0; j < m * k + k * n; j++) {
        x[j] = (float)case_uniform();
    }
    dt_cpu_cast(&(struct dt_cast_args){a, x, m * k + k * n, type, DT_F32});
    for (int threads = 1; threads <= 5; threads++) {
        struct dt_device d;
        struct dt_stream *s = NULL;
        case_open(&d, "cpu", threads, &s);
        d.kernels->matmul(s, &(struct dt_matmul_args){.c = threads == 1 ? first : c,
                                                      .a = a,
                                                      .b = a + (size_t)(m * k) * size,
                                                      .m = m,
                                                      .n = n,
                                                      .k = k,
                                                      .a_transposed = a_transposed,
                                                      .b_transposed = b_transposed,
                                                      .type = type,
                                                      .c_type = c_type});
        case_close(&d, s);
        if (threads > 1 && memcmp(c, first, (size_t)(m * n) * dt_dtype_size(c_type)) != 0) {
            fail_msg("%s %lld x %lld x %lld: %d threads give other bits than one", dt_dtype_name(type), (long long)m,
                     (long long)n, (long long)k, threads);
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
    } sizes[] = {{1024, 1152, 384, false, false}, {1024, 384, 1536, false, false}, {1024, 384, 1152, false, true},
                 {384, 1152, 1024, true, false},  {1000, 65, 384, false, true},    {777, 130, 4096, false, false},
                 {4096, 64, 32, false, false},    {513, 384, 65, false, false},    {16, 768, 3072, false, false},
                 {1, 50257, 64, false, true}};
    static const enum dt_dtype types[][2] = {{DT_F32, DT_F32}, {DT_BF16, DT_F32}, {DT_BF16, DT_BF16}};
    for (size_t i = 0; i < 3 * sizeof sizes / sizeof sizes[0]; i++) {
        check_threads(sizes[i / 3].m, sizes[i / 3].n, sizes[i / 3].k, sizes[i / 3].a_transposed,
                      sizes[i / 3].b_transposed, types[i % 3][0], types[i % 3][1]);
    }
}

/* Our own products: the first rows of c have the same bits whether c has few rows or many. */
static void check_few_rows(const struct dt_kernels *kernels, int threads, int64_t n, int64_t k, bool a_transposed,
                           bool b_transposed)
{
    enum { MANY = 70 };
    float *x = malloc((size_t)(MANY * k + k * n + n) * sizeof *x), *bias = x + MANY * k + k * n;
    float *many = malloc((size_t)(MANY * n) * sizeof *many), *few = malloc((size_t)(MANY * n) * sizeof *few);
    static const int64_t rows[] = {MANY, 1, 2, 3, 5, 8, 9};
    for (int64_t j = 0; j < MANY * k + k * n + n; j++) {
        x[j] = (float)case_uniform();
    }
    for (int how = 0; how < 3; how++) {
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
            struct dt_device d;
            struct dt_stream *s = NULL;
            float *c = r == 0 ? many : few;
            for (int64_t j = 0; j < MANY * n; j++) {
                c[j] = (float)(j % 7);
            }
            case_open(&d, "cpu", threads, &s);
            kernels->matmul(s, &(struct dt_matmul_args){.c = c,
                                                        .a = x,
                                                        .b = x + MANY * k,
                                                        .bias = how == 1 ? bias : NULL,
                                                        .m = rows[r],
                                                        .n = n,
                                                        .k = k,
                                                        .lda = a_transposed ? MANY : 0,
                                                        .a_transposed = a_transposed,
                                                        .b_transposed = b_transposed,
                                                        .accumulate = how == 2,
                                                        .type = DT_F32,
                                                        .c_type = DT_F32});
            case_close(&d, s);
            if (memcmp(c, many, (size_t)(rows[r] * n) * sizeof *c) != 0) {
                fail_msg("%s: %lld rows of a product with n %lld, k %lld, transposed %d %d: other bits than of %d rows",
                         kernels->name, (long long)rows[r], (long long)n, (long long)k, a_transposed, b_transposed,
                         MANY);
            }
        }
    }
    free(x);
    free(many);
    free(few);
}

static void test_few_rows_of_products(void **unused)
{
    (void)unused;
    static const int64_t sizes[][2] = {{1, 1}, {7, 7}, {24, 192}, {1030, 200}, {2050, 3}, {65, 500}, {33, 769}};
    for (size_t i = 0; i < 2; i++) { /* the product of AVX-512 is oneDNN's */
        const struct dt_kernels *kernels = dt_kernels_cpu_named(isas[i]);
        for (size_t j = 0; kernels != NULL && j < 4 * (sizeof sizes / sizeof sizes[0]); j++) {
            check_few_rows(kernels, 1 + (int)(j % 3), sizes[j / 4][0], sizes[j / 4][1], (j & 1) != 0, (j & 2) != 0);
        }
    }
}

/* Element (i, j) of a product of large matrices, summed in double. */
static double element(const struct dt_matmul_args *p, int64_t i, int64_t j)
{
    const float *a = p->a, *b = p->b, *bias = p->bias;
    double sum = bias != NULL ? (double)bias[j] : 0;
    for (int64_t l = 0; l < p->k; l++) {
        sum += (double)a[p->a_transposed ? l * p->m + i : i * p->k + l] *
               (double)b[p->b_transposed ? j * p->k + l : l * p->n + j];
    }
    return sum;
}

/* Our own product where b is packed in several pieces, or each panel for one use, and c has gaps. Some
 * elements are compared with sums in double, and the first rows with a product of these rows alone. */
static void check_large(const struct dt_kernels *kernels, int64_t m, int64_t n, int64_t k, int how)
{
    enum { GAP = 3, ALONE = 9, SAMPLES = 200 };
    int64_t ldc = n + GAP, count = m * k + k * n + n;
    float *x = malloc((size_t)count * sizeof *x), *c = malloc((size_t)(m * ldc) * sizeof *c),
          *alone = malloc((size_t)(ALONE * ldc) * sizeof *alone);
    for (int64_t j = 0; j < count; j++) {
        x[j] = (float)case_uniform();
    }
    for (int64_t j = 0; j < m * ldc; j++) {
        c[j] = (float)(j % 7);
    }
    memcpy(alone, c, (size_t)(ALONE * ldc) * sizeof *c);
    struct dt_matmul_args p = {.c = c,
                               .a = x,
                               .b = x + m * k,
                               .bias = (how & 4) != 0 ? x + m * k + k * n : NULL,
                               .m = m,
                               .n = n,
                               .k = k,
                               .lda = (how & 1) != 0 ? m : k,
                               .ldc = ldc,
                               .a_transposed = (how & 1) != 0,
                               .b_transposed = (how & 2) != 0,
                               .accumulate = (how & 4) == 0,
                               .type = DT_F32,
                               .c_type = DT_F32},
                          few = p;
    few.c = alone;
    few.m = ALONE;
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1 + how % 2, &s);
    kernels->matmul(s, &p);
    kernels->matmul(s, &few);
    case_close(&d, s);
    assert_memory_equal(c, alone, (size_t)(ALONE * ldc) * sizeof *c);
    for (int i = 0; i < SAMPLES; i++) {
        int64_t row = i == 0 ? m - 1 : (int64_t)((case_uniform() + 1) / 2 * (double)m),
                col = i < 2 ? n - 1 : (int64_t)((case_uniform() + 1) / 2 * (double)n);
        double expected = element(&p, row, col) + (p.accumulate ? (double)((row * ldc + col) % 7) : 0);
        if (!(fabs((double)c[row * ldc + col] - expected) < 1e-6 * (double)k)) {
            fail_msg("%s: %lld x %lld x %lld, how %d: element (%lld, %lld) is %g, expected %g", kernels->name,
                     (long long)m, (long long)n, (long long)k, how, (long long)row, (long long)col,
                     (double)c[row * ldc + col], expected);
        }
    }
    for (int64_t i = 0; i < m * GAP; i++) {
        int64_t at = i / GAP * ldc + n + i % GAP;
        assert_true(c[at] == (float)(at % 7));
    }
    free(x);
    free(c);
    free(alone);
}

static void test_large_products(void **unused)
{
    (void)unused;
    static const int64_t sizes[][3] = {{261, 1031, 2099}, {255, 1100, 1030}, {600, 97, 515}, {514, 2101, 259}};
    for (size_t i = 0; i < 2; i++) { /* the product of AVX-512 is oneDNN's */
        const struct dt_kernels *kernels = dt_kernels_cpu_named(isas[i]);
        for (int how = 0; kernels != NULL && how < 8; how++) {
            for (size_t j = 0; j < sizeof sizes / sizeof sizes[0]; j++) {
                check_large(kernels, sizes[j][0], sizes[j][1], sizes[j][2], how);
            }
        }
    }
}

/* ---- both ways of BF16 products: chosen once per process, so processes of their own ---- */

static void test_products(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < kernel_case_count; i++) {
        const struct kernel_case *c = &kernel_cases[i];
        bool is = strcmp(c->name, "matmul") == 0 || strcmp(c->name, "attention") == 0;
        for (int k = 0; is && k < CASE_SHAPES && c->shapes[k][0] != 0; k++) {
            check_shape(c, c->shapes[k], &case_modes[1]);
            check_shape(c, c->shapes[k], &case_modes[2]);
        }
    }
}

/* A product by dot products of BF16, and its element (i, j) in double. */
struct dots {
    struct dt_gemm_half g;
    float *c, *before;
    uint16_t *a, *b, *bias, *low, *low_before;
};

static uint16_t *random_halves(size_t count)
{
    uint16_t *x = malloc(count * sizeof *x);
    assert_non_null(x);
    for (size_t i = 0; i < count; i++) {
        x[i] = dt_to_bf16((float)(rand() % 2001 - 1000) / 1000);
    }
    return x;
}

static double product_at(const struct dots *d, int64_t i, int64_t j)
{
    const struct dt_gemm_half *g = &d->g;
    double sum = g->bias != NULL ? (double)dt_from_bf16(g->bias[j]) : 0;
    for (int64_t l = 0; l < g->k; l++) {
        sum += (double)dt_from_bf16(g->a[i * g->a_row + l * g->a_col]) *
               (double)dt_from_bf16(g->b[l * g->b_row + j * g->b_col]);
    }
    if (g->accumulate) {
        sum += g->c_is_f32 ? (double)d->before[i * g->ldc + j] : (double)dt_from_bf16(d->low_before[i * g->ldc + j]);
    }
    return sum;
}

/* Both layouts of a and b by the bits of `how`, and bias, accumulate, the type of c. */
static void check_dots(int64_t m, int64_t n, int64_t k, unsigned how)
{
    int64_t some = m * n > 100000 ? 97 : 1; /* compares each 97th column of a large c */
    bool a_turned = how & 1, b_turned = how & 2;
    int64_t lda = (a_turned ? m : k) + (how & 32 ? 3 : 0), ldb = (b_turned ? k : n) + (how & 32 ? 1 : 0), ldc = n + 2;
    struct dots d = {.a = random_halves((size_t)(lda * (a_turned ? k : m))),
                     .b = random_halves((size_t)(ldb * (b_turned ? n : k))),
                     .bias = random_halves((size_t)n),
                     .low = random_halves((size_t)(m * ldc)),
                     .low_before = malloc((size_t)(m * ldc) * 2),
                     .c = malloc((size_t)(m * ldc) * 4),
                     .before = malloc((size_t)(m * ldc) * 4)};
    memcpy(d.low_before, d.low, (size_t)(m * ldc) * 2);
    for (int64_t i = 0; i < m * ldc; i++) {
        d.c[i] = d.before[i] = dt_from_bf16(d.low[i]);
    }
    d.g = (struct dt_gemm_half){.a = d.a,
                                .b = d.b,
                                .bias = how & 4 ? d.bias : NULL,
                                .c = how & 16 ? (void *)d.c : (void *)d.low,
                                .m = m,
                                .n = n,
                                .k = k,
                                .a_row = a_turned ? 1 : lda,
                                .a_col = a_turned ? lda : 1,
                                .b_row = b_turned ? 1 : ldb,
                                .b_col = b_turned ? ldb : 1,
                                .ldc = ldc,
                                .accumulate = how & 8,
                                .c_is_f32 = how & 16,
                                .type = DT_BF16};
    dt_gemm_dots(&d.g);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = i % some; j < ldc; j += some) {
            double x = how & 16 ? (double)d.c[i * ldc + j] : (double)dt_from_bf16(d.low[i * ldc + j]);
            double y = j < n      ? product_at(&d, i, j)
                       : how & 16 ? (double)d.before[i * ldc + j]
                                  : (double)dt_from_bf16(d.low_before[i * ldc + j]); /* columns behind the last stay */
            double bound = j >= n ? 0 : how & 16 ? 1e-6 * (double)(k + 10) : fabs(y) / 250 + 1e-6 * (double)(k + 10);
            if (!(fabs(x - y) <= bound)) {
                fail_msg("(%d, %d, %d) %u: [%d, %d] is %g, not %g", (int)m, (int)n, (int)k, how, (int)i, (int)j, x, y);
            }
        }
    }
    if (m > 1 && n > 1) { /* a part of c has the same bits */
        struct dt_gemm_half part = d.g;
        float alone[1] = {d.before[(m - 1) * ldc + n - 1]};
        uint16_t low_alone[1] = {d.low_before[(m - 1) * ldc + n - 1]};
        part.a += (m - 1) * part.a_row;
        part.b += (n - 1) * part.b_col;
        part.bias = part.bias != NULL ? part.bias + n - 1 : NULL;
        part.m = part.n = 1;
        part.c = how & 16 ? (void *)alone : (void *)low_alone;
        dt_gemm_dots(&part);
        if (how & 16) {
            assert_memory_equal(alone, d.c + (m - 1) * ldc + n - 1, sizeof alone);
        } else {
            assert_memory_equal(low_alone, d.low + (m - 1) * ldc + n - 1, sizeof low_alone);
        }
    }
    free(d.a);
    free(d.b);
    free(d.bias);
    free(d.low);
    free(d.low_before);
    free(d.c);
    free(d.before);
}

static void test_dot_products(void **unused)
{
    (void)unused;
    static const int64_t shapes[][3] = {{1, 1, 1},   {9, 47, 2},   {8, 48, 7},   {13, 33, 64},   {300, 5, 3},
                                        {3, 100, 5}, {5, 49, 768}, {7, 20, 769}, {20, 50, 1701}, {260, 3, 1540}};
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0] && dt_gemm_has_dots(); s++) {
        for (unsigned how = 0; how < 64; how++) {
            check_dots(shapes[s][0], shapes[s][1], shapes[s][2], how);
        }
    }
    for (unsigned how = 0; how < 4 && dt_gemm_has_dots(); how++) { /* parts of columns and of k are packed at a time */
        check_dots(300, 2100, 1600, how | (how & 1 ? 12 : 0));
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
    case_open(&d, "cpu", 1, &s);
    dt_kernels_cpu_named("avx2")->matmul(
        s, &(struct dt_matmul_args){
               .c = x, .a = x + 1, .b = x + 2, .m = 1, .n = 1, .k = 1, .type = DT_BF16, .c_type = DT_BF16});
    assert_true(dt_stream_failed(s, &err));
    assert_int_equal(err.status, DT_INVALID);
    assert_string_equal(err.text, "DTRUN_BF16=abacus: not known; use onednn, dots or f32");
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

static void test_all_ways(void **unused)
{
    (void)unused;
    assert_int_equal(run_self("f32"), 0);
    assert_int_equal(run_self("onednn"), 0);
    if (dt_gemm_has_dots()) {
        assert_int_equal(run_self("dots"), 0);
    }
    assert_int_equal(run_self("abacus"), 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const struct CMUnitTest way[] = {cmocka_unit_test(test_products), cmocka_unit_test(test_threads_of_products)};
        const struct CMUnitTest unknown[] = {cmocka_unit_test(test_unknown_way)};
        return strcmp(argv[1], "abacus") == 0 ? cmocka_run_group_tests(unknown, NULL, NULL)
                                              : cmocka_run_group_tests(way, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_of_products),
        cmocka_unit_test(test_few_rows_of_products),
        cmocka_unit_test(test_large_products),
        cmocka_unit_test(test_every_kernel_has_a_case),
        cmocka_unit_test(test_against_twin),
        cmocka_unit_test(test_what_attention_sees),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_rmsnorm_differences),
        cmocka_unit_test(test_gate_differences),
        cmocka_unit_test(test_rope_turns_back),
        cmocka_unit_test(test_activation_accuracy),
        cmocka_unit_test(test_activations_of_all_halves),
        cmocka_unit_test(test_adamw_offsets),
        cmocka_unit_test(test_random_bits),
        cmocka_unit_test(test_stochastic_moments),
        cmocka_unit_test(test_stochastic_is_unbiased),
        cmocka_unit_test(test_stochastic_second_moment),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_norm_of_halves),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_all_ways),
        cmocka_unit_test(test_dot_products),
        cmocka_unit_test(test_exact_sum),
        cmocka_unit_test(test_sum_slices),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
