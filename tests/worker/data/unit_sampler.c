/* covers: worker/data/data.c */
/* The order of samples: a permutation for every count, another one per seed and epoch, spread
 * evenly. */
#include "worker/data/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void check_permutation(int64_t count, uint64_t seed, int64_t epoch)
{
    struct sampler s = {.sample_count = count, .seed = seed, .shuffle = true};
    unsigned char *seen = calloc((size_t)count, 1);
    assert_non_null(seen);
    for (int64_t i = 0; i < count; i++) {
        int64_t at = sampler_at(&s, epoch, i);
        assert_in_range(at, 0, count - 1);
        assert_int_equal(seen[at], 0);
        seen[at] = 1;
    }
    free(seen);
}

static void test_permutation(void **state)
{
    (void)state;
    for (int64_t count = 1; count < 300; count++) {
        check_permutation(count, 42, count % 5);
    }
    static const int64_t counts[] = {1023, 1024, 1025, 4096, 4097, 65536, 100003};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        check_permutation(counts[i], 7 + i, (int64_t)i);
    }
}

static void test_identity(void **state)
{
    (void)state;
    struct sampler s = {.sample_count = 100, .seed = 1};
    for (int64_t i = 0; i < 100; i++) {
        assert_int_equal(sampler_at(&s, 3, i), i);
    }
}

static void test_large(void **state)
{
    (void)state;
    struct sampler s = {.sample_count = (int64_t)1 << 40, .seed = 9, .shuffle = true};
    for (int64_t i = 0; i < 1000; i++) {
        assert_in_range(sampler_at(&s, 0, i * 1000003), 0, s.sample_count - 1);
    }
    s.sample_count = ((int64_t)1 << 40) + 1; /* the worst case of cycle walking */
    for (int64_t i = 0; i < 1000; i++) {
        assert_in_range(sampler_at(&s, 0, i), 0, s.sample_count - 1);
    }
}

/* How many positions two orders have in common; about one for independent permutations. */
static int common(const struct sampler *a, int64_t epoch_a, const struct sampler *b, int64_t epoch_b)
{
    int same = 0;
    for (int64_t i = 0; i < a->sample_count; i++) {
        same += sampler_at(a, epoch_a, i) == sampler_at(b, epoch_b, i);
    }
    return same;
}

static void test_orders_differ(void **state)
{
    (void)state;
    struct sampler a = {.sample_count = 1000, .seed = 1, .shuffle = true}, b = a, plain = a;
    b.seed = 2;
    plain.shuffle = false;
    assert_int_equal(common(&a, 0, &a, 0), 1000);
    assert_in_range(common(&a, 0, &a, 1), 0, 10);
    assert_in_range(common(&a, 0, &b, 0), 0, 10);
    assert_in_range(common(&a, 1, &b, 0), 0, 10);
    assert_in_range(common(&a, 0, &plain, 0), 0, 10);
}

/* Over many epochs each sample comes first about equally often: chi-squared with 15 degrees of
 * freedom. The seeds are fixed, so the outcome is too. */
static void test_uniform(void **state)
{
    (void)state;
    for (int64_t position = 0; position < 16; position += 5) {
        struct sampler s = {.sample_count = 16, .seed = 3, .shuffle = true};
        int counts[16] = {0};
        enum { EPOCHS = 16000 };
        for (int64_t epoch = 0; epoch < EPOCHS; epoch++) {
            counts[sampler_at(&s, epoch, position)]++;
        }
        double chi = 0;
        for (int i = 0; i < 16; i++) {
            double d = counts[i] - EPOCHS / 16.0;
            chi += d * d / (EPOCHS / 16.0);
        }
        assert_true(chi < 45); /* p about 1e-4 */
    }
}

/* The order is part of the checkpoint: it must not change from version to version. */
static void test_fixed(void **state)
{
    (void)state;
    struct sampler s = {.sample_count = 10, .seed = 42, .shuffle = true};
    char text[11] = "";
    for (int64_t i = 0; i < 10; i++) {
        text[i] = (char)('0' + sampler_at(&s, 0, i));
    }
    assert_string_equal(text, "1364207598");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutation),   cmocka_unit_test(test_identity), cmocka_unit_test(test_large),
        cmocka_unit_test(test_orders_differ), cmocka_unit_test(test_uniform),  cmocka_unit_test(test_fixed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
