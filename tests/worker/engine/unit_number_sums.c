/* covers: worker/engine/number_sums.c */
/* Pearson's correlation against the formula in long double, and the same bits however the rows are cut into
 * batches and ranks. */
#include "worker/engine/number_sums.h"

#include "kernels/cpu/half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 37, COLUMNS = 3, VALUES = ROWS * COLUMNS };

static float predictions[VALUES], targets[VALUES];

/* Columns of small values, of values far from 0, and of values of different signs. */
static int make(void **state)
{
    (void)state;
    uint64_t x = 1;
    for (int i = 0; i < VALUES; i++) {
        x = x * 6364136223846793005ULL + 1442695040888963407ULL;
        float u = (float)(x >> 40) * 0x1p-24F, v = (float)(x >> 20 & 0xfffff) * 0x1p-20F;
        float shift = i % COLUMNS == 1 ? 40 : -0.5F;
        predictions[i] = u + shift;
        targets[i] = 0.7F * u + 0.3F * v + shift;
    }
    return 0;
}

/* The textbook's formula: deviations from the means. */
static double formula(int columns_from, int column, int skipped)
{
    long double n = 0, mx = 0, my = 0, xy = 0, xx = 0, yy = 0;
    for (int pass = 0; pass < 2; pass++) {
        n = 0;
        for (int r = 0; r < ROWS; r++) {
            int i = r * columns_from + column;
            if (r == skipped) {
                continue;
            }
            n++;
            if (pass == 0) {
                mx += predictions[i];
                my += targets[i];
            } else {
                xy += (predictions[i] - mx) * (targets[i] - my);
                xx += (predictions[i] - mx) * (predictions[i] - mx);
                yy += (targets[i] - my) * (targets[i] - my);
            }
        }
        if (pass == 0) {
            mx /= n;
            my /= n;
        }
    }
    return (double)(xy / sqrtl(xx * yy));
}

static void test_formula(void **state)
{
    (void)state;
    struct number_sums s;
    double mean = 0;
    number_sums_open(&s, COLUMNS);
    number_sums_add(&s, predictions, DT_F32, targets, DT_F32, ROWS);
    for (int c = 0; c < COLUMNS; c++) {
        mean += formula(COLUMNS, c, -1) / COLUMNS;
    }
    assert_true(fabs(number_sums_pearson(&s) - mean) < 1e-9);
    assert_true(mean > 0.5 && mean < 0.99);
    number_sums_close(&s);
}

/* Ranks in reverse, each with batches of its own: integers add up to the same bits. */
static void test_order(void **state)
{
    (void)state;
    struct number_sums whole, part, sum;
    number_sums_open(&whole, COLUMNS);
    number_sums_open(&sum, COLUMNS);
    number_sums_add(&whole, predictions, DT_F32, targets, DT_F32, ROWS);
    for (int rank = 2; rank >= 0; rank--) {
        number_sums_open(&part, COLUMNS);
        for (int r = ROWS - 1; r >= 0; r--) {
            if (r % 3 == rank) {
                number_sums_add(&part, &predictions[r * COLUMNS], DT_F32, &targets[r * COLUMNS], DT_F32, 1);
            }
        }
        for (int64_t i = 0; i < number_sums_size(&part); i++) {
            sum.n[i] += part.n[i];
        }
        number_sums_close(&part);
    }
    double a = number_sums_pearson(&whole), b = number_sums_pearson(&sum);
    assert_memory_equal(&a, &b, sizeof a);
    number_sums_close(&whole);
    number_sums_close(&sum);
}

/* Rows without a target do not count; predictions may be BF16 or F64. */
static void test_types(void **state)
{
    (void)state;
    struct number_sums s;
    uint16_t half[ROWS];
    double wide[ROWS];
    float kept = targets[4], before[ROWS];
    memcpy(before, predictions, sizeof before);
    for (int i = 0; i < ROWS; i++) {
        half[i] = dt_to_bf16(predictions[i]);
        predictions[i] = dt_from_bf16(half[i]);
        wide[i] = predictions[i];
    }
    targets[4] = NAN;
    for (int k = 0; k < 2; k++) {
        number_sums_open(&s, 1);
        number_sums_add(&s, k == 0 ? (const void *)half : wide, k == 0 ? DT_BF16 : DT_F64, targets, DT_F32, ROWS);
        assert_true(fabs(number_sums_pearson(&s) - formula(1, 0, 4)) < 1e-9);
        number_sums_close(&s);
    }
    targets[4] = kept;
    memcpy(predictions, before, sizeof before);
}

/* A side that does not vary, no row, and a prediction that is no number have no correlation; a line has 1. */
static void test_ends(void **state)
{
    (void)state;
    static const float x[] = {0.1F, 0.2F, 0.4F}, down[] = {-1, -2, -4}, same[] = {0.1F, 0.1F, 0.1F},
                       bad[] = {1, NAN, 2}, large[] = {1, INFINITY, 2};
    static const struct {
        const float *x, *y;
        int rows;
        double r;
    } cases[] = {{x, x, 3, 1},      {x, down, 3, -1},  {x, same, 3, NAN}, {same, x, 3, NAN},
                 {x, down, 0, NAN}, {x, down, 1, NAN}, {bad, x, 3, NAN},  {large, x, 3, NAN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct number_sums s;
        number_sums_open(&s, 1);
        number_sums_add(&s, cases[i].x, DT_F32, cases[i].y, DT_F32, cases[i].rows);
        double r = number_sums_pearson(&s);
        assert_true(isnan(cases[i].r) ? isnan(r) : fabs(r - cases[i].r) < 1e-7 && fabs(r) <= 1);
        number_sums_close(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, make, NULL);
}
