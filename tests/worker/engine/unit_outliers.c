/* covers: worker/engine/outliers.c */
/* Which steps stand out, as llm.c's detector and by the median. */
#include "worker/engine/outliers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* llm.c's outlier_detector.h: sums that go along. NaN until the window is full. */
enum { WINDOW = 8 };
struct detector {
    double buffer[WINDOW], sum, squares;
    int count, index;
};

static double llmc_update(struct detector *d, double value)
{
    if (d->count < WINDOW) {
        d->buffer[d->count++] = value;
        d->sum += value;
        d->squares += value * value;
        return NAN;
    }
    double old = d->buffer[d->index];
    d->sum += value - old;
    d->squares += value * value - old * old;
    d->buffer[d->index] = value;
    d->index = (d->index + 1) % WINDOW;
    double mean = d->sum / WINDOW, deviation = sqrt(d->squares / WINDOW - mean * mean);
    return deviation == 0 ? 0 : (value - mean) / deviation;
}

static void test_deviations(void **state)
{
    (void)state;
    for (int of_norm = 0; of_norm < 2; of_norm++) {
        struct dt_arena arena;
        struct outliers o;
        struct detector d = {0};
        int found = 0;
        dt_arena_init(&arena);
        outliers_open(&o,
                      &(struct job_training){
                          .skip_loss_z = of_norm ? 0 : 2, .skip_grad_z = of_norm ? 2 : 0, .guard_window = WINDOW},
                      &arena);
        for (int i = 0; i < 100; i++) {
            double x = 3 + sin(i) + (i % 23 == 5 ? 6 : 0), score, z = llmc_update(&d, x);
            enum outlier got = outliers_judge(&o, of_norm ? 3 : x, of_norm ? x : 3, &score);
            assert_int_equal(got, z > 2 ? of_norm ? OUTLIER_GRAD_Z : OUTLIER_LOSS_Z : OUTLIER_NONE);
            assert_true(got == OUTLIER_NONE || fabs(score - z) < 1e-9);
            found += got != OUTLIER_NONE;
        }
        assert_int_equal(found, 4); /* the first one fell into the window that was not full */
        dt_arena_clear(&arena);
    }
}

static void test_median(void **state)
{
    (void)state;
    struct dt_arena arena;
    struct outliers o;
    double score;
    dt_arena_init(&arena);
    outliers_open(&o, &(struct job_training){.guard_factor = 2, .guard_window = 4}, &arena);
    const double first[] = {1, 100, 2, 3};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(outliers_judge(&o, first[i], 1, &score), OUTLIER_NONE);
    }
    assert_int_equal(outliers_judge(&o, 5.0, 1, &score), OUTLIER_NONE);      /* twice 2.5, and not above it */
    assert_int_equal(outliers_judge(&o, 9, 1, &score), OUTLIER_LOSS_MEDIAN); /* 100, 2, 3, 5 */
    assert_float_equal(score, 9 / 4.0, 1e-12);
    for (int i = 0; i < 3; i++) { /* a loss that stays there is one that passes */
        (void)outliers_judge(&o, 9, 1, &score);
    }
    assert_int_equal(outliers_judge(&o, 9, 1, &score), OUTLIER_NONE);
    dt_arena_clear(&arena);
}

/* Of losses that are all alike none stands out, and nothing is judged unless it is asked for. */
static void test_nothing(void **state)
{
    (void)state;
    struct dt_arena arena;
    struct outliers o;
    double score;
    dt_arena_init(&arena);
    outliers_open(&o, &(struct job_training){.guard_window = 4}, &arena);
    assert_int_equal(o.window, 0);
    outliers_open(&o, &(struct job_training){.skip_loss_z = 1, .skip_grad_z = 1, .guard_window = 2}, &arena);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(outliers_judge(&o, 0.1, 0.1, &score), OUTLIER_NONE);
    }
    dt_arena_clear(&arena);
}

/* After a checkpoint at any step all later ones are judged as if there had been none, bit by bit. */
static void test_going_on(void **state)
{
    (void)state;
    const struct job_training job = {.skip_grad_z = 1.5, .guard_factor = 1.8, .guard_window = 5};
    for (int at = 0; at < 14; at++) {
        struct dt_arena arena;
        struct outliers whole, before, after;
        double score = 0, again = 0;
        int found = 0;
        dt_arena_init(&arena);
        outliers_open(&whole, &job, &arena);
        outliers_open(&before, &job, &arena);
        outliers_open(&after, &job, &arena);
        for (int i = 0; i < 40; i++) {
            double loss = 3 + sin(i) + (i % 7 == 5 ? 4 : 0), norm = 1 + cos(i) + (i % 11 == 8 ? 5 : 0);
            if (i == at) {
                const struct outlier_steps kept = outliers_steps(&before);
                assert_int_equal(kept.kept, at < 5 ? at : 5);
                outliers_resume(&after, &kept);
            }
            enum outlier expected = outliers_judge(&whole, loss, norm, &score),
                         got = outliers_judge(i < at ? &before : &after, loss, norm, &again);
            assert_int_equal(got, expected);
            assert_true(score == again);
            found += got != OUTLIER_NONE;
        }
        assert_true(found > 8);
        dt_arena_clear(&arena);
    }
}

/* Going on with another window: the newest steps fill it, or it has to become full. */
static void test_going_on_with_another_window(void **state)
{
    (void)state;
    struct dt_arena arena;
    struct outliers six, four, eight, none;
    double score;
    dt_arena_init(&arena);
    outliers_open(&six, &(struct job_training){.guard_factor = 2, .guard_window = 6}, &arena);
    outliers_open(&four, &(struct job_training){.guard_factor = 2, .guard_window = 4}, &arena);
    outliers_open(&eight, &(struct job_training){.guard_factor = 2, .guard_window = 8}, &arena);
    outliers_open(&none, &(struct job_training){.guard_window = 4}, &arena);
    for (int i = 1; i <= 9; i++) { /* it has 4 to 9 */
        (void)outliers_judge(&six, i, 1, &score);
    }
    const struct outlier_steps kept = outliers_steps(&six);
    outliers_resume(&four, &kept);
    outliers_resume(&eight, &kept);
    outliers_resume(&none, &kept);
    assert_int_equal(none.count, 0);
    assert_int_equal(outliers_judge(&four, 22.5, 1, &score), OUTLIER_LOSS_MEDIAN); /* 6, 7, 8, 9 */
    assert_true(score == 3);
    assert_int_equal(outliers_judge(&eight, 6, 1, &score), OUTLIER_NONE);
    assert_int_equal(outliers_judge(&eight, 99, 1, &score), OUTLIER_NONE);
    assert_int_equal(outliers_judge(&eight, 19.5, 1, &score), OUTLIER_LOSS_MEDIAN); /* 4 to 9, 6, 99 */
    assert_true(score == 3);
    dt_arena_clear(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_deviations), cmocka_unit_test(test_median),
                                       cmocka_unit_test(test_nothing), cmocka_unit_test(test_going_on),
                                       cmocka_unit_test(test_going_on_with_another_window)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
