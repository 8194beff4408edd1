/* covers: worker/engine/choice_scores.c */
/* Equal scores, scores that are no numbers, texts of no size, and items that are known in part. */
#include "worker/engine/choice_scores.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static struct data_choice_item items[] = {{0, 3, 1}, {3, 2, 0}};
static struct data_choice_size sizes[] = {{1, 2}, {1, 1}, {4, 4}, {0, 0}, {1, 1}};
static const struct data_choices choices = {2, items, sizes};
static const struct data_source source = {.choices = &choices, .sample_count = 5};

/* Two ranks add batches of two rows of two positions; their integers add up. */
static struct choice_report report(const double loss[5][2], int64_t known)
{
    struct choice_scores all, rank;
    choice_scores_open(&all, &source);
    for (int r = 0; r < 2; r++) {
        choice_scores_open(&rank, &source);
        for (int64_t first = 0; first < 8; first += 4) {
            double rows[2][2] = {{0}};
            for (int64_t i = 0; i < 2; i++) {
                int64_t sample = first + i * 2 + r;
                rows[i][0] = sample < 5 ? loss[sample][0] : 99;
                rows[i][1] = sample < 5 ? loss[sample][1] : 99;
            }
            choice_scores_add(&rank, rows[0], 2, 2, first, r, 2);
        }
        for (int i = 0; i < 5; i++) {
            all.n[i] += rank.n[i];
        }
        choice_scores_close(&rank);
    }
    struct choice_report result = choice_scores_report(&all, known);
    choice_scores_close(&all);
    return result;
}

static void test_shares(void **state)
{
    (void)state;
    /* scores -2, -3, -4 over 1, 1, 4 characters and 2, 1, 4 bytes; then -1, -2 */
    const double loss[5][2] = {{1, 1}, {3, 0}, {0, 4}, {1, 0}, {0, 2}};
    struct choice_report r = report(loss, 8);
    assert_int_equal(r.items, 2);
    assert_true(r.accuracy == 0.5 && r.by_characters == 0 && r.by_bytes == 0);
    r = report(loss, 4);
    assert_int_equal(r.items, 1);
    assert_true(r.accuracy == 0);
    r = report(loss, 2);
    assert_int_equal(r.items, 0);
    assert_true(isnan(r.accuracy) && isnan(r.by_characters) && isnan(r.by_bytes));
}

static void test_equal_scores(void **state)
{
    (void)state;
    const double equal[5][2] = {{2, 1}, {1, 2}, {3, 0}, {1, 0}, {1, 0}}, broken[5][2] = {{NAN, 0}, {1, 1}, {1, 1}};
    struct choice_report r = report(equal, 5);
    assert_true(r.accuracy == 0.5); /* the first of each: wrong, right */
    r = report(broken, 5);
    assert_true(r.items == 2 && r.accuracy == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares), cmocka_unit_test(test_equal_scores)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
