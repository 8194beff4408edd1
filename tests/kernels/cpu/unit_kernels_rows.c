/* covers: kernels/cpu kernels/kernels.h kernels/dropout.h */
/* Gradients of dropout, of the embedding's tables, of capped losses, of means and single rows, as
 * finite differences of the double twin; and the mask of dropout: how many it drops, that elements,
 * sites, samples and seeds do not depend on each other, and the same on every rank. */
#include "kernels/dropout.h"
#include "kernels/kernels.h"
#include "tests/lib/kernel_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- differences ---- */

struct twin {
    struct dt_device d;
    struct dt_stream *s;
    struct case_run r;
};

static void twin_open(struct twin *t, const int64_t *n)
{
    case_open(&t->d, "twin64", 1, &t->s);
    t->r = (struct case_run){.s = t->s, .k = t->d.kernels, .type = DT_F64, .n = n, .grad = DT_F64};
    case_seed(11);
}

static void twin_close(struct twin *t)
{
    case_close(&t->d, t->s);
    case_clear();
}

/* Compares grad (count) with the change of sum(out * w), out computed by run(r), by each x. */
static void check_gradient(const struct case_run *r, void (*run)(const struct case_run *r), double *x, int64_t count,
                           const double *grad, const double *out, const double *w, int64_t out_count)
{
    const double h = 1e-5;
    for (int64_t i = 0; i < count; i++) {
        double before = x[i], change[2];
        for (int side = 0; side < 2; side++) {
            x[i] = side == 0 ? before - h : before + h;
            run(r);
            change[side] = 0;
            for (int64_t j = 0; j < out_count; j++) {
                change[side] += out[j] * w[j];
            }
        }
        x[i] = before;
        double expect = (change[1] - change[0]) / (2 * h);
        if (!(fabs(expect - grad[i]) < 1e-7)) {
            fail_msg("gradient %lld is %.9g, not %.9g", (long long)i, grad[i], expect);
        }
    }
}

static double *copy_of(const double *x, int64_t count)
{
    double *to = malloc((size_t)count * sizeof *to);
    memcpy(to, x, (size_t)count * sizeof *to);
    return to;
}

/* The gradient of dropout is dropout of the gradient. */
static void test_dropout(void **unused)
{
    (void)unused;
    const int64_t n[CASE_SHAPE] = {6, 2, 5, 400};
    struct twin t;
    twin_open(&t, n);
    case_make_dropout(n);
    case_reset_double(&case_modes[0]);
    double *w = copy_of(case_buf[2].d, 30);
    memcpy(case_buf[0].d, w, 30 * sizeof *w);
    case_run_dropout(&t.r);
    double *grad = copy_of(case_buf[1].d, 30);
    check_gradient(&t.r, case_run_dropout, case_buf[0].d, 30, grad, case_buf[1].d, w, 30);
    free(w);
    free(grad);
    twin_close(&t);
}

static void test_tables(void **unused)
{
    (void)unused;
    static const int64_t shapes[2][CASE_SHAPE] = {{12, 4, 3, 5, 2, 0}, {12, 4, 3, 5, 2, 2}};
    for (int i = 0; i < 2; i++) {
        const int64_t *n = shapes[i];
        struct twin t;
        twin_open(&t, n);
        case_make_tables(n);
        case_reset_double(&case_modes[0]);
        case_run_tables(&t.r);
        double *tokens = copy_of(case_buf[4].d, n[3] * n[2]), *positions = copy_of(case_buf[5].d, (n[1] + 3) * n[2]);
        double *types = copy_of(case_buf[7].d, n[4] * n[2]), *out = case_buf[0].d, *dy = case_buf[3].d;
        int64_t skipped = n[3] / 2;
        for (int64_t j = 0; j < n[2]; j++) {
            assert_true(tokens[skipped * n[2] + j] == 0);
        }
        for (int64_t id = 0; id < n[3]; id++) {
            if (id != skipped) {
                check_gradient(&t.r, case_run_tables, case_buf[1].d + id * n[2], n[2], tokens + id * n[2], out, dy,
                               n[0] * n[2]);
            }
        }
        if (i == 0) { /* types by id */
            check_gradient(&t.r, case_run_tables, case_buf[6].d, n[4] * n[2], types, out, dy, n[0] * n[2]);
        } else { /* positions by id */
            check_gradient(&t.r, case_run_tables, case_buf[2].d, (n[1] + 3) * n[2], positions, out, dy, n[0] * n[2]);
        }
        free(tokens);
        free(positions);
        free(types);
        twin_close(&t);
    }
}

static double losses[64];

static void run_losses(const struct case_run *r)
{
    r->k->cross_entropy(r->s, &(struct dt_cross_entropy_args){.logits = case_buf[0].d,
                                                              .targets = case_side.ids,
                                                              .row_loss = losses,
                                                              .row_count = r->n[0],
                                                              .col_count = r->n[1],
                                                              .scale = (double)r->n[4] / 100,
                                                              .softcap = (double)r->n[5],
                                                              .type = DT_F64});
}

static void test_losses(void **unused)
{
    (void)unused;
    static const int64_t shapes[3][CASE_SHAPE] = {{6, 9, 1, 0, 40, 0}, {6, 9, 1, 0, 0, 3}, {6, 9, 1, 0, 150, 5}};
    double quarter[6] = {0.25, 0.25, 0.25, 0.25, 0.25, 0.25};
    for (int i = 0; i < 3; i++) {
        struct twin t;
        twin_open(&t, shapes[i]);
        case_make_entropy(shapes[i]);
        case_reset_double(&case_modes[0]);
        case_run_entropy(&t.r);
        double *grad = copy_of(case_buf[0].d, 54);
        case_reset_double(&case_modes[0]);
        check_gradient(&t.r, run_losses, case_buf[0].d, 54, grad, losses, quarter, 6);
        free(grad);
        twin_close(&t);
    }
}

static void run_label_losses(const struct case_run *r)
{
    r->k->label_loss(r->s, &(struct dt_label_loss_args){.logits = case_buf[0].d,
                                                        .labels = case_side.labels,
                                                        .row_loss = losses,
                                                        .row_count = r->n[0],
                                                        .col_count = r->n[1],
                                                        .kind = (enum dt_loss)r->n[3],
                                                        .type = DT_F64});
}

static void test_label_losses(void **unused)
{
    (void)unused;
    double quarter[6] = {0.25, 0.25, 0.25, 0.25, 0.25, 0.25};
    for (int64_t kind = DT_LOSS_SQUARED; kind <= DT_LOSS_BINARY; kind++) {
        const int64_t n[CASE_SHAPE] = {6, 5, 1, kind};
        struct twin t;
        twin_open(&t, n);
        case_make_labels(n);
        case_reset_double(&case_modes[0]);
        case_run_labels(&t.r);
        double *grad = copy_of(case_buf[0].d, 30);
        for (int64_t j = 0; j < 5; j++) {
            assert_true(grad[3 * 5 + j] == 0); /* the row without a target */
        }
        case_reset_double(&case_modes[0]);
        check_gradient(&t.r, run_label_losses, case_buf[0].d, 30, grad, losses, quarter, 6);
        free(grad);
        twin_close(&t);
    }
}

/* mse_loss and binary_cross_entropy_with_logits of PyTorch 2.15 in double. */
static void test_label_losses_of_pytorch(void **unused)
{
    (void)unused;
    const float labels[2][3] = {{1.5F, -1, 0.75F}, {1, 0, 1}};
    const double loss[2] = {2.75, 0.21301545563695415};
    const double grad[2][3] = {{-0.6666666666666666, -0.6666666666666666, 1.6666666666666665},
                               {-0.1258468895993818, 0.03973430734070585, -0.012442295781376456}};
    for (int kind = 0; kind < 2; kind++) {
        struct twin t;
        twin_open(&t, NULL);
        double z[3] = {0.5, -2, 3.25}, row = 0, sum = 1;
        t.r.k->label_loss(t.r.s, &(struct dt_label_loss_args){.logits = z,
                                                              .labels = labels[kind],
                                                              .row_loss = &row,
                                                              .loss_sum = &sum,
                                                              .row_count = 1,
                                                              .col_count = 3,
                                                              .grad_scale = 1,
                                                              .kind = (enum dt_loss)kind,
                                                              .with_grad = true,
                                                              .type = DT_F64});
        assert_true(fabs(row - loss[kind]) < 1e-15 && sum == 1 + row);
        for (int j = 0; j < 3; j++) {
            assert_true(fabs(z[j] - grad[kind][j]) < 1e-15);
        }
        twin_close(&t);
    }
}

static void test_means(void **unused)
{
    (void)unused;
    for (int64_t masks = 0; masks < 2; masks++) {
        const int64_t n[CASE_SHAPE] = {3, 4, 5, masks};
        struct twin t;
        twin_open(&t, n);
        case_make_mean(n);
        case_reset_double(&case_modes[0]);
        case_run_mean(&t.r);
        double *grad = copy_of(case_buf[2].d, 60);
        check_gradient(&t.r, case_run_mean, case_buf[1].d, 60, grad, case_buf[0].d, case_buf[3].d, 15);
        free(grad);
        twin_close(&t);
    }
}

static void test_taken_rows(void **unused)
{
    (void)unused;
    for (int64_t by_number = 0; by_number < 2; by_number++) {
        const int64_t n[CASE_SHAPE] = {5, 3, 4, by_number};
        struct twin t;
        twin_open(&t, n);
        case_make_take(n);
        case_reset_double(&case_modes[0]);
        case_run_take(&t.r);
        double *grad = copy_of(case_buf[2].d, 60);
        check_gradient(&t.r, case_run_take, case_buf[1].d, 60, grad, case_buf[0].d, case_buf[3].d, 20);
        free(grad);
        twin_close(&t);
    }
}

/* ---- the mask ---- */

/* The random bits are part of what a run is: other ones would change it where it goes on. */
static void test_mask_stays(void **unused)
{
    (void)unused;
    assert_true(dt_dropout_key(42, 7, 5) == 0x38083d6f19e27cb1U);
    assert_true(dt_dropout_row_key(dt_dropout_key(42, 7, 5), 3, 9) == 0xbe28e44ecb4b6577U);
    assert_int_equal(dt_dropout_limit(0.1), 429496729U);
    assert_int_equal(dt_dropout_limit(0), 0);
    uint32_t kept = 0;
    for (int i = 0; i < 32; i++) {
        kept |= (uint32_t)dt_dropout_keeps(dt_dropout_key(42, 7, 5), i, dt_dropout_limit(0.5)) << i;
    }
    assert_int_equal(kept, 0xe2a8f1abU);
}

enum { SAMPLES = 16, ROWS = 64, COLS = 1024, SIZE = SAMPLES * ROWS * COLS };

/* Masks of SAMPLES samples of (ROWS, COLS), from number `first` on: 1 is dropped. */
static unsigned char *make_mask(double rate, uint64_t seed, uint64_t site, int64_t first)
{
    float *ones = malloc(SIZE * sizeof *ones);
    unsigned char *mask = malloc(SIZE);
    int64_t samples[SAMPLES];
    struct dt_device d;
    struct dt_stream *s = NULL;
    case_open(&d, "cpu", 1, &s);
    for (int i = 0; i < SIZE; i++) {
        ones[i] = 1;
    }
    for (int i = 0; i < SAMPLES; i++) {
        samples[i] = first + i;
    }
    d.kernels->dropout(s, &(struct dt_dropout_args){.x = ones,
                                                    .in = ones,
                                                    .samples = samples,
                                                    .row_count = SAMPLES * ROWS,
                                                    .rows_per_sample = ROWS,
                                                    .col_count = COLS,
                                                    .rate = rate,
                                                    .seed = seed,
                                                    .site = site,
                                                    .type = DT_F32});
    case_close(&d, s);
    for (int i = 0; i < SIZE; i++) {
        assert_true(ones[i] == 0 || ones[i] == (float)(1 / (1 - rate)));
        mask[i] = ones[i] == 0;
    }
    free(ones);
    return mask;
}

/* `found` of `count` independent events of probability p: within 4.5 standard deviations. */
static void expect_share(const char *what, double found, double count, double p)
{
    double off = (found - count * p) / sqrt(count * p * (1 - p));
    if (!(fabs(off) < 4.5)) {
        fail_msg("%s: %.0f of %.0f, off by %.1f standard deviations", what, found, count, off);
    }
}

/* Fails unless a[i] and b[i + step] are dropped together as often as independent elements are. */
static void expect_independent(const char *what, const unsigned char *a, const unsigned char *b, int64_t step,
                               double rate)
{
    int64_t both = 0;
    for (int64_t i = 0; i + step < SIZE; i++) {
        both += a[i] & b[i + step];
    }
    expect_share(what, (double)both, (double)(SIZE - step), rate * rate);
}

static void test_mask_is_random(void **unused)
{
    (void)unused;
    static const double rates[] = {0.1, 0.5, 0.003};
    static const int64_t steps[] = {1, 2, 3, 4, 8, 16, 64, COLS, COLS + 1, ROWS * COLS};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        double p = rates[i];
        unsigned char *mask = make_mask(p, 42, 7, 1000), *site = make_mask(p, 42, 8, 1000);
        unsigned char *seed = make_mask(p, 43, 7, 1000), *later = make_mask(p, 42, 7, 1000 + SAMPLES);
        int64_t dropped = 0, columns[COLS] = {0}, rows[SIZE / COLS] = {0};
        for (int64_t j = 0; j < SIZE; j++) {
            dropped += mask[j];
            columns[j % COLS] += mask[j];
            rows[j / COLS] += mask[j];
        }
        expect_share("all", (double)dropped, SIZE, p);
        for (int r = 0; r < SIZE / COLS && p > 0.01; r++) {
            expect_share("a row", (double)rows[r], COLS, p);
        }
        for (int c = 0; c < COLS && p > 0.01; c++) {
            expect_share("a column", (double)columns[c], SAMPLES * ROWS, p);
        }
        for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
            expect_independent("neighbours", mask, mask, steps[k], p);
        }
        expect_independent("sites", mask, site, 0, p);
        expect_independent("seeds", mask, seed, 0, p);
        expect_independent("samples", mask, later, 0, p);
        free(mask);
        free(site);
        free(seed);
        free(later);
    }
}

/* A rank with some of the samples, in an order of its own, has each sample's mask. */
static void test_mask_of_a_rank(void **unused)
{
    (void)unused;
    unsigned char *all = make_mask(0.2, 42, 7, 1000), *part = make_mask(0.2, 42, 7, 1005);
    assert_memory_equal(all + (size_t)5 * ROWS * COLS, part, (size_t)(SAMPLES - 5) * ROWS * COLS);
    free(all);
    free(part);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_losses),
        cmocka_unit_test(test_label_losses),
        cmocka_unit_test(test_label_losses_of_pytorch),
        cmocka_unit_test(test_means),
        cmocka_unit_test(test_taken_rows),
        cmocka_unit_test(test_mask_stays),
        cmocka_unit_test(test_mask_is_random),
        cmocka_unit_test(test_mask_of_a_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
