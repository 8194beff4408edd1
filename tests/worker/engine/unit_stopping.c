/* covers: worker/engine/stopping.c */
/* Lightning's EarlyStopping and the list of its ModelCheckpoint: ties, NaN, infinities, both modes, runs that go
 * on. */
#include "worker/engine/stopping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct job_stopping settings(int mode)
{
    return (struct job_stopping){.monitor = "val_loss",
                                 .mode = mode,
                                 .patience = 3,
                                 .stopping_threshold = JOB_NO_THRESHOLD,
                                 .divergence_threshold = JOB_NO_THRESHOLD,
                                 .check_finite = true};
}

/* Judges values at steps 10, 20, ...; the step of the first reason, 0: there was none. */
static int64_t run(struct stopper *s, const struct job_stopping *j, const double *values, int count)
{
    for (int i = 0; i < count; i++) {
        stopper_check(s, j, s->checks > 0 ? s->step + 10 : 10, values[i]);
        if (s->reason != STOP_NOT) {
            return s->step;
        }
    }
    return 0;
}

#define RUN(j, ...)                                                                                                    \
    run(&(struct stopper){.checks = 0}, j, (const double[]){__VA_ARGS__},                                              \
        sizeof(const double[]){__VA_ARGS__} / sizeof(double))

static void test_patience(void **state)
{
    (void)state;
    struct job_stopping j = settings(MODE_MIN);
    assert_int_equal(RUN(&j, 3, 2, 2, 2, 2, 1), 50); /* equal is not better */
    assert_int_equal(RUN(&j, 3, 2, 3, 3, 1.9, 3, 3), 0);
    j.min_delta = 0.5;
    assert_int_equal(RUN(&j, 3, 2.6, 2.6, 2.5, 2.4), 40); /* 2.5 is no 0.5 better than 3 */
    assert_int_equal(RUN(&j, 3, 2.6, 2.6, 2.4, 2.4, 2.4, 2.4), 70);
    j.compare_with_best = true; /* as EarlyStoppingCallback's early_stopping_threshold */
    assert_int_equal(RUN(&j, 3, 2.6, 2.6, 2.4, 2.4), 40);
    assert_int_equal(RUN(&j, 3, 2.6, 2.2, 1.6, 1.5, 1.5, 1.5), 70);
    assert_int_equal(RUN(&j, 1.603, 1.498, 1.411, 1.343), 40);
    j = settings(MODE_MAX);
    assert_int_equal(RUN(&j, -3, -2, -2.5, -2, -2.5), 50);
    j.patience = 0; /* the first that is not better ends it */
    assert_int_equal(RUN(&j, 1, 2, 2), 30);
}

static void test_what_ends_at_once(void **state)
{
    (void)state;
    struct stopper s = {.checks = 0};
    struct job_stopping j = settings(MODE_MIN);
    assert_int_equal(run(&s, &j, (const double[]){3, NAN}, 2), 20);
    assert_int_equal(s.reason, STOP_NOT_FINITE);
    assert_true(s.best == 3);
    s = (struct stopper){.checks = 0};
    assert_int_equal(run(&s, &j, (const double[]){-INFINITY}, 1), 10);
    assert_int_equal(s.reason, STOP_NOT_FINITE);
    j.check_finite = false;
    assert_int_equal(RUN(&j, NAN, NAN, NAN), 30); /* as bad as none */
    assert_int_equal(RUN(&j, NAN, 5, NAN, 4, NAN, NAN), 0);
    j.stopping_threshold = 2;
    s = (struct stopper){.checks = 0};
    assert_int_equal(run(&s, &j, (const double[]){3, 2, 1.5}, 3), 30); /* better than, not equal */
    assert_int_equal(s.reason, STOP_REACHED);
    j.divergence_threshold = 10;
    s = (struct stopper){.checks = 0};
    assert_int_equal(run(&s, &j, (const double[]){10, 10.5}, 2), 20);
    assert_int_equal(s.reason, STOP_DIVERGED);
    j.mode = MODE_MAX; /* above the goal, and so not below what diverges */
    s = (struct stopper){.checks = 0};
    assert_int_equal(run(&s, &j, (const double[]){3}, 1), 10);
    assert_int_equal(s.reason, STOP_REACHED);
}

static void test_a_run_that_goes_on(void **state)
{
    (void)state;
    struct stopper s = {.checks = 0};
    struct job_stopping j = settings(MODE_MIN);
    assert_int_equal(run(&s, &j, (const double[]){1, 2, 2}, 3), 0);
    stopper_check(&s, &j, s.step, 2); /* the same evaluation again */
    assert_int_equal(s.bad, 2);
    assert_int_equal(run(&s, &j, (const double[]){2}, 1), 40);
    struct stopper kept = s;
    stopper_resume(&s, &j);
    assert_int_equal(s.reason, STOP_PATIENCE);
    j.patience = 4;
    stopper_resume(&s, &j); /* it has more patience now */
    assert_int_equal(s.reason, STOP_NOT);
    assert_int_equal(run(&s, &j, (const double[]){2}, 1), 50);
    j.monitor = NULL;
    stopper_resume(&kept, &j);
    assert_int_equal(kept.reason, STOP_NOT);
}

/* Each reason stands as long as the key that gave it would give it again. */
static void test_edited_keys(void **state)
{
    (void)state;
    struct job_stopping j = settings(MODE_MIN), other;
    struct stopper s = {.checks = 0};
    j.stopping_threshold = 2;
    j.divergence_threshold = 10;
    assert_int_equal(run(&s, &j, (const double[]){3, 1.5}, 2), 20);
    stopper_check(&s, &j, 30, 2.5); /* training.min_steps lets it go on */
    const struct {
        double goal, limit;
        enum stop_reason reason;
    } goals[] = {
        {2, 10, STOP_REACHED}, {1.75, 10, STOP_REACHED}, {1.5, 10, STOP_NOT}, {JOB_NO_THRESHOLD, 10, STOP_NOT}};
    for (size_t i = 0; i < sizeof goals / sizeof goals[0]; i++) {
        struct stopper x = s;
        other = j;
        other.stopping_threshold = goals[i].goal;
        stopper_resume(&x, &other);
        assert_int_equal(x.reason, goals[i].reason);
    }
    /* a checkpoint that did not keep the value: the reason stands while there is a threshold */
    for (int i = 0; i < 2; i++) {
        struct stopper x = s;
        x.value = NAN;
        x.reason = i == 0 ? STOP_REACHED : STOP_DIVERGED;
        stopper_resume(&x, &j);
        assert_int_equal(x.reason, i == 0 ? STOP_REACHED : STOP_DIVERGED);
        other = j;
        other.stopping_threshold = other.divergence_threshold = JOB_NO_THRESHOLD;
        stopper_resume(&x, &other);
        assert_int_equal(x.reason, STOP_NOT);
    }
    s = (struct stopper){.checks = 0};
    assert_int_equal(run(&s, &j, (const double[]){3, 12}, 2), 20);
    other = j;
    other.patience = 1000;
    stopper_resume(&s, &other);
    assert_int_equal(s.reason, STOP_DIVERGED);
    other.divergence_threshold = 13;
    stopper_resume(&s, &other);
    assert_int_equal(s.reason, STOP_NOT);
    s = (struct stopper){.checks = 0};
    assert_int_equal(run(&s, &j, (const double[]){3, NAN}, 2), 20);
    stopper_resume(&s, &other);
    assert_int_equal(s.reason, STOP_NOT_FINITE);
    other.check_finite = false;
    stopper_resume(&s, &other);
    assert_int_equal(s.reason, STOP_NOT);
}

/* The values that are left of steps 1, 2, ...: "2 4 ". */
static const char *kept(int64_t k, int mode, const double *values, int count)
{
    static char out[128];
    struct best_list l = {.count = 0};
    for (int i = 0; i < count; i++) {
        if (best_wants(&l, k, mode, i + 1, values[i])) {
            best_add(&l, i + 1, values[i]);
            best_trim(&l, k, mode);
            assert_true(best_has(&l, i + 1)); /* what is saved is kept */
        }
    }
    out[0] = 0;
    for (int i = 0; i < l.count; i++) {
        (void)snprintf(out + strlen(out), sizeof out - strlen(out), "%d ", (int)l.item[i].step);
    }
    return out;
}

#define KEPT(k, mode, ...)                                                                                             \
    kept(k, mode, (const double[]){__VA_ARGS__}, sizeof(const double[]){__VA_ARGS__} / sizeof(double))

static void test_the_best(void **state)
{
    (void)state;
    assert_string_equal(KEPT(2, MODE_MIN, 3, 1, 2, 5, 0), "2 5 ");
    assert_string_equal(KEPT(2, MODE_MAX, 3, 1, 2, 5, 0), "1 4 ");
    assert_string_equal(KEPT(1, MODE_MIN, 2, 2, 2), "1 ");   /* a tie does not replace */
    assert_string_equal(KEPT(2, MODE_MIN, 2, 2, 1), "2 3 "); /* of equal ones the first goes, as Lightning's */
    assert_string_equal(KEPT(2, MODE_MIN, NAN, NAN, NAN), "1 2 ");
    assert_string_equal(KEPT(2, MODE_MIN, NAN, 5, 6), "2 3 "); /* NaN is worst */
    assert_string_equal(KEPT(2, MODE_MAX, NAN, -INFINITY, 1), "2 3 ");
    assert_string_equal(KEPT(0, MODE_MIN, 1, 2), "");
    struct best_list l = {.count = 0};
    assert_int_equal(best_first(&l, MODE_MIN), -1);
    for (int i = 0; i <= BEST_MAX + 3; i++) { /* never more than there is room for */
        best_add(&l, i, -(double)(i % 7));
    }
    assert_int_equal(l.count, BEST_MAX + 1);
    assert_int_equal(best_first(&l, MODE_MIN), 6);
    assert_int_equal(best_first(&l, MODE_MAX), 0);
    best_remove(&l, 6);
    assert_int_equal(best_first(&l, MODE_MIN), 13);
    assert_false(best_wants(&l, BEST_MAX, MODE_MIN, 13, -100)); /* it is there */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_patience), cmocka_unit_test(test_what_ends_at_once),
                                       cmocka_unit_test(test_a_run_that_goes_on), cmocka_unit_test(test_edited_keys),
                                       cmocka_unit_test(test_the_best)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
