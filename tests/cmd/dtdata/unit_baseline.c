/* covers: cmd/dtdata/baseline.c */
/* Bits per byte of gzip and of n-gram models, on texts whose entropy is known. */
#include "cmd/dtdata/baseline.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 200000 };
static uint8_t text[2 * SIZE];

static void uniform_bytes_need_their_entropy(void **state)
{
    (void)state;
    struct dt_error err;
    uint64_t x = 1;
    for (int i = 0; i < 2 * SIZE; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        text[i] = (uint8_t)('a' + (x >> 62)); /* 4 letters: 2 bits */
    }
    for (int order = 1; order <= 4; order++) {
        double bits;
        assert_int_equal(baseline_ngram(text, SIZE, text + SIZE, SIZE, order, &bits, &err), 0);
        assert_true(fabs(bits - 2.0) < 0.01);
    }
    double bits;
    assert_int_equal(baseline_gzip(text, SIZE, &bits, &err), 0);
    assert_true(bits > 2.0 && bits < 2.5);
}

/* A text with period 3 is known from one byte of context on, but not without. */
static void context_helps_where_it_tells(void **state)
{
    (void)state;
    struct dt_error err;
    double bits;
    for (int i = 0; i < 2 * SIZE; i++) {
        text[i] = (uint8_t)("abc"[i % 3]);
    }
    assert_int_equal(baseline_ngram(text, SIZE, text + SIZE, SIZE, 1, &bits, &err), 0);
    assert_true(fabs(bits - log2(3)) < 0.01);
    assert_int_equal(baseline_ngram(text, SIZE, text + SIZE, SIZE, 2, &bits, &err), 0);
    assert_true(bits < 0.01);
    assert_int_equal(baseline_gzip(text, SIZE, &bits, &err), 0);
    assert_true(bits < 0.05);
}

static void unseen_bytes_are_possible(void **state)
{
    (void)state;
    struct dt_error err;
    double bits;
    assert_int_equal(baseline_ngram((const uint8_t *)"aaaa", 4, (const uint8_t *)"z", 1, 4, &bits, &err), 0);
    assert_true(isfinite(bits) && bits > 8);
    assert_int_equal(baseline_ngram(NULL, 0, (const uint8_t *)"z", 1, 4, &bits, &err), 0);
    assert_true(bits == 8);
    assert_int_equal(baseline_ngram(NULL, 0, NULL, 0, 4, &bits, &err), -1);
    assert_int_equal(baseline_gzip(NULL, 0, &bits, &err), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_bytes_need_their_entropy),
        cmocka_unit_test(context_helps_where_it_tells),
        cmocka_unit_test(unseen_bytes_are_possible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
