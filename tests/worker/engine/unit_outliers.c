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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_deviations), cmocka_unit_test(test_median),
                                       cmocka_unit_test(test_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
