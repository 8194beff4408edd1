/* covers: kernels/exact.c */
/* The exact accumulator: any slicing and order gives the same bits, and the value is the
 * correctly rounded sum. */
#include "kernels/exact.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t state = 88172645463325252ULL;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static double random_value(int range)
{
    return ldexp((double)(next() >> 11), (int)(next() % (uint64_t)(2 * range)) - range - 53);
}

static void test_order_and_slices(void **unused)
{
    (void)unused;
    enum { COUNT = 1000 };
    static double x[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[i] = random_value(200);
    }
    int64_t whole[DT_EXACT_LIMBS] = {0};
    for (int i = 0; i < COUNT; i++) {
        dt_exact_add(whole, x[i]);
    }
    for (int slices = 2; slices <= 8; slices++) {
        int64_t sum[DT_EXACT_LIMBS] = {0};
        for (int s = slices - 1; s >= 0; s--) {
            int64_t part[DT_EXACT_LIMBS] = {0};
            for (int i = COUNT - 1; i >= 0; i--) {
                if (i % slices == s) {
                    dt_exact_add(part, x[i]);
                }
            }
            dt_exact_merge(sum, part);
        }
        assert_memory_equal(sum, whole, sizeof whole);
        assert_true(dt_exact_get(sum) == dt_exact_get(whole));
    }
}

static void test_value(void **unused)
{
    (void)unused;
    int64_t limbs[DT_EXACT_LIMBS] = {0};
    assert_true(dt_exact_get(limbs) == 0);
    dt_exact_add(limbs, 0x1p100);
    for (int i = 0; i < 3; i++) {
        dt_exact_add(limbs, 0x1p46); /* below half of the last bit (2^47) alone, 1.5 of it
                                      * together */
    }
    assert_true(dt_exact_get(limbs) == 0x1p100 + 0x1p48);
    /* a tie goes to even, one bit far below decides otherwise */
    int64_t tie[DT_EXACT_LIMBS] = {0};
    dt_exact_add(tie, 0x1p53);
    dt_exact_add(tie, 1.0);
    assert_true(dt_exact_get(tie) == 0x1p53);
    dt_exact_add(tie, 0x1p-200);
    assert_true(dt_exact_get(tie) == 0x1p53 + 2);
    /* sums of integers are exact */
    int64_t many[DT_EXACT_LIMBS] = {0};
    for (int i = 1; i <= 100000; i++) {
        dt_exact_add(many, (double)i);
    }
    assert_true(dt_exact_get(many) == 5000050000.0);
}

static void test_against_long_double(void **unused)
{
    (void)unused;
    for (int round = 0; round < 200; round++) {
        int64_t limbs[DT_EXACT_LIMBS] = {0};
        long double sum = 0;
        for (int i = 0; i < 50; i++) {
            double v = (double)(float)random_value(5); /* 24 bits within 2^10: exact in a long
                                                        * double */
            dt_exact_add(limbs, v);
            sum += (long double)v;
        }
        assert_true(dt_exact_get(limbs) == (double)sum);
    }
}

static void test_not_finite(void **unused)
{
    (void)unused;
    int64_t limbs[DT_EXACT_LIMBS] = {0};
    dt_exact_add(limbs, 1.0);
    assert_true(dt_exact_finite(limbs));
    dt_exact_add(limbs, INFINITY);
    assert_false(dt_exact_finite(limbs));
    assert_true(isinf(dt_exact_get(limbs)));
    int64_t other[DT_EXACT_LIMBS] = {0};
    dt_exact_add(other, NAN);
    dt_exact_merge(limbs, other);
    assert_true(isnan(dt_exact_get(limbs)));
    int64_t large[DT_EXACT_LIMBS] = {0};
    dt_exact_add(large, 0x1p1000);
    assert_false(dt_exact_finite(large));
    int64_t squares[DT_EXACT_LIMBS] = {0};
    dt_exact_add(squares, 64.0 * 3.4028234e38 * 3.4028234e38); /* a block of the largest floats
                                                                * fits */
    dt_exact_add(squares, 0x1p-298);                           /* and so does the smallest */
    assert_true(dt_exact_finite(squares));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_slices),
        cmocka_unit_test(test_value),
        cmocka_unit_test(test_against_long_double),
        cmocka_unit_test(test_not_finite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
