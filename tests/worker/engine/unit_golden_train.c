/* covers: worker/engine worker/model */
/* Twenty steps of a small GPT-2 against PyTorch's numbers: every strategy row in fp32 on 1, 2
 * and 4 ranks, in bf16 and fp16, and in fp64. */
#include "tests/lib/golden_train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_bf16(void **state)
{
    (void)state;
    static const char *const some[] = {"ddp", "full_shard"};
    for (int run = 0; run < GOLDEN_RUNS; run++) {
        golden_train_check(run, 2, some[run % 2], "cpu", DT_BF16);
    }
}

static void test_fp16(void **state)
{
    (void)state;
    static const char *const some[] = {"zero2", "ddp"};
    for (int run = 0; run < GOLDEN_RUNS; run++) {
        golden_train_check(run, 2, some[run % 2], "cpu", DT_F16);
    }
}

static const char *const rows[] = {"ddp",   "zero0",      "no_shard",      "zero1",        "zero2",
                                   "zero3", "full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2"};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static void test_every_row(void **state)
{
    (void)state;
    for (int i = 0; i < ROW_COUNT; i++) { /* the four runs in turn; rows equal each other at each
                                           * size: unit_equivalence.c */
        golden_train_check(i % GOLDEN_RUNS, i % 3 == 2 ? 4 : 2, rows[i], "cpu", DT_F32);
    }
}

static void test_one_rank(void **state)
{
    (void)state;
    for (int run = 0; run < GOLDEN_RUNS; run++) {
        golden_train_check(run, 1, "single_device", "cpu", DT_F32);
    }
}

static void test_double(void **state)
{
    (void)state;
    golden_train_check(0, 1, "single_device", "twin64", DT_F64);
    golden_train_check(2, 2, "zero3", "twin64", DT_F64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_rank), cmocka_unit_test(test_every_row),
                                       cmocka_unit_test(test_double), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_fp16)};
    return cmocka_run_group_tests(tests, golden_train_setup, golden_train_teardown);
}
