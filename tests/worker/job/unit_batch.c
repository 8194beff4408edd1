/* covers: worker/job/batch.c worker/job/elasticity.c */
/* The batch of a step: what is derived of what, and DeepSpeed's elastic batches. */
#include "worker/job/batch.h"
#include "worker/job/elasticity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Every row of DeepSpeed's table: 0 is "not given". */
static void test_derives(void **state)
{
    (void)state;
    static const struct {
        int64_t all, micro, steps, ranks, sample, got[3]; /* got[0] 0: refused */
        const char *why;
    } cases[] = {
        {24, 2, 3, 4, 1, {24, 2, 3}, NULL},
        {24, 2, 0, 4, 1, {24, 2, 3}, NULL},
        {24, 0, 3, 4, 1, {24, 2, 3}, NULL},
        {0, 2, 3, 4, 1, {24, 2, 3}, NULL},
        {24, 0, 0, 4, 1, {24, 6, 1}, NULL},
        {0, 6, 0, 4, 1, {24, 6, 1}, NULL},
        {524288, 8, 0, 4, 1024, {524288, 8, 16}, NULL},
        {10,
         0,
         0,
         4,
         1,
         {0},
         "10 != 2 * 1 * 4: m 2 (auto, derived), s 1 (derived), 4 ranks; write 8 or 12, or remove one of them"},
        {3, 0, 0, 4, 1, {0}, "3 is less than 4: 4 ranks; write 4, or start 3 ranks"},
        {8,
         2,
         0,
         6,
         1,
         {0},
         "8 is less than 2 * 6: m 2 (here), 6 ranks; write 12, start 4 ranks, or remove one of them"},
        {700,
         0,
         3,
         2,
         128,
         {0},
         "700 is less than 3 * 2 * 128: s 3 (here), 2 ranks, 128 tokens a sample; write 768, or remove one of them"},
        {10, 2, 3, 1, 1, {0}, "10 != 2 * 3 * 1: m 2 (here), s 3 (here), 1 rank; write 6, or remove one of them"},
        {24,
         2,
         3,
         3,
         1,
         {0},
         "24 != 2 * 3 * 3: m 2 (here), s 3 (here), 3 ranks; write 18, start 4 ranks, or remove one of them"},
        {524288,
         8,
         0,
         3,
         1024,
         {0},
         "524288 != 8 * 21 * 3 * 1024: m 8 (here), s 21 (derived), 3 ranks, 1024 tokens a sample; write 516096 or "
         "540672, or remove one "
         "of them"},
        {1000,
         0,
         0,
         1,
         128,
         {0},
         "1000 != 7 * 1 * 1 * 128: m 7 (auto, derived), s 1 (derived), 1 rank, 128 tokens a sample; write 896 or 1024, "
         "or remove one of them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct batch_identity b = {
            .all = {"all", "here", cases[i].all > 0 ? cases[i].all : 1, cases[i].all > 0, false},
            .micro = {"m", "here", cases[i].micro > 0 ? cases[i].micro : 1, cases[i].micro > 0, cases[i].micro == 0},
            .steps = {"s", "here", cases[i].steps > 0 ? cases[i].steps : 1, cases[i].steps > 0, false},
            .ranks = cases[i].ranks,
            .sample = cases[i].sample};
        struct dt_text why;
        dt_text_init(&why);
        assert_int_equal(batch_solve(&b, &why), cases[i].why != NULL ? -1 : 0);
        if (cases[i].why != NULL) {
            assert_string_equal(dt_text_str(&why), cases[i].why);
        } else {
            assert_int_equal(b.all.value, cases[i].got[0]);
            assert_int_equal(b.micro.value, cases[i].got[1]);
            assert_int_equal(b.steps.value, cases[i].got[2]);
        }
        dt_text_clear(&why);
    }
}

/* Values of DeepSpeed's compute_elastic_config. */
static void test_elastic(void **state)
{
    (void)state;
    static const struct {
        struct elastic_config c;
        int64_t ranks, batch, count, micro, valid[24];
    } cases[] = {
        {{10000, {8, 12, 16, 17}, 4, 32, 1500, true, 0.1, 1, 1}, 64, 9792, 23, 17, {32,  34,  36,  48,  51,  64,
                                                                                    68,  72,  96,  102, 136, 144,
                                                                                    153, 192, 204, 272, 288, 306,
                                                                                    408, 576, 612, 816, 1224}},
        {{2000, {2, 4, 6}, 3, 1, 10000, true, 0.1, 1, 1}, 7, 1680, 32, 6, {1, 2, 3, 4, 5, 6, 7, 8}},
        {{24, {2, 3}, 2, 1, 24, true, 0.1, 1, 1}, 4, 24, 7, 3, {1, 2, 3, 4, 6, 8, 12}},
        {{24, {2, 3}, 2, 1, 24, true, 0.1, 1, 1}, 5, 24, 7, 0, {1, 2, 3, 4, 6, 8, 12}},
        {{64, {2, 4}, 2, 1, 64, true, 0.2, 4, 1}, 8, 64, 4, 4, {4, 8, 16, 32}},
        {{64, {2, 4}, 2, 1, 64, true, 0.2, 4, 1}, 20, 40, 1, 2, {20}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct elastic_batch b;
        struct dt_error err = {0};
        assert_int_equal(elastic_solve(&cases[i].c, cases[i].ranks, &b, &err), 0);
        assert_int_equal(b.batch, cases[i].batch);
        assert_int_equal(b.count, cases[i].count);
        assert_int_equal(b.micro, cases[i].micro);
        for (int k = 0; k < 24 && k < b.count && cases[i].valid[k] != 0; k++) {
            assert_int_equal(b.ranks[k], cases[i].valid[k]);
        }
        for (int64_t k = 0; k < b.count; k++) { /* each of them can share the batch */
            struct elastic_batch one;
            assert_int_equal(elastic_solve(&cases[i].c, b.ranks[k], &one, &err), 0);
            assert_true(one.micro > 0 && one.batch % (one.micro * b.ranks[k]) == 0);
            assert_int_equal(one.batch, b.batch);
            free(one.ranks);
        }
        free(b.ranks);
    }
}

static void test_no_batch(void **state)
{
    (void)state;
    struct elastic_batch b;
    struct dt_error err = {0};
    const struct elastic_config large = {.max_batch = 10,
                                         .micro = {2, 11},
                                         .micro_count = 2,
                                         .min_gpus = 1,
                                         .max_gpus = 9,
                                         .version = 0.1,
                                         .gpus_per_node = 1,
                                         .model_size = 1},
                                few = {.max_batch = 10,
                                       .micro = {2},
                                       .micro_count = 1,
                                       .min_gpus = 6,
                                       .max_gpus = 9,
                                       .version = 0.1,
                                       .gpus_per_node = 1,
                                       .model_size = 1};
    assert_int_equal(elastic_solve(&large, 1, &b, &err), -1);
    assert_string_equal(err.text, "micro_batch_sizes: 11 is more than max_train_batch_size 10; lower it");
    assert_int_equal(elastic_solve(&few, 6, &b, &err), -1);
    assert_string_equal(err.text, "no batch up to max_train_batch_size 10 runs on 6 to 9 ranks");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_derives), cmocka_unit_test(test_elastic),
                                       cmocka_unit_test(test_no_batch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
