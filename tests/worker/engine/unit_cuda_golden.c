/* covers: worker/engine kernels/cuda kernels/device.c */
/* run: computes */
/* Twenty steps of a small GPT-2 on the device "cuda", on the software GPU or a real one, against
 * PyTorch's numbers: in fp32 weights, too, in bf16 and fp16 losses and norms. One rank: several have its
 * bits or stay near (tests/worker/run/story_softgpu.py, story_gpus.py). run: nosan: numbers are the
 * same in all builds; unit_cuda_train.c is the loop of steps there run: timeout 300 */
#include "tests/lib/folder.h"
#include "tests/lib/golden_train.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static int setup(void **state)
{
    return golden_train_setup(state) == 0 ? setenv("DTRUN_CACHE", folder, 1) : -1;
}

extern uint64_t softgpu_launch_count __attribute__((weak)); /* not on a real GPU */

/* A run takes the software GPU ten seconds: there each type has one of the four, `only`; with
 * DTRUN_ALL=1 every other one. */
static void check_runs(int only, enum dt_dtype type)
{
    for (int run = 0; run < GOLDEN_RUNS; run++) {
        if (&softgpu_launch_count == NULL || run == only || (getenv("DTRUN_ALL") != NULL && run % 2 == only % 2)) {
            golden_train_check(run, 1, run < 2 ? "single_device" : "full_shard", "cuda", type);
        }
    }
}

static void test_fp32(void **state)
{
    (void)state;
    check_runs(2, DT_F32);
}

static void test_bf16(void **state)
{
    (void)state;
    check_runs(1, DT_BF16);
}

static void test_f16(void **state)
{
    (void)state;
    check_runs(3, DT_F16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32), cmocka_unit_test(test_bf16),
                                       cmocka_unit_test(test_f16)};
    return cmocka_run_group_tests(tests, setup, golden_train_teardown);
}
