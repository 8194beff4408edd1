/* covers: kernels/peak.c */
/* What GPUs could do at most: as their data sheets say, by their names as the driver gives them;
 * others by multiprocessors and clock. */
#include "kernels/peak.h"

#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

static void is(const char *name, int major, int minor, int sm_count, double mhz, double bf16, double fp32)
{
    double found[2] = {dt_peak_flops(name, major, minor, sm_count, mhz * 1e6, DT_BF16) / 1e12,
                       dt_peak_flops(name, major, minor, sm_count, mhz * 1e6, DT_F32) / 1e12};
    if (found[0] < bf16 * 0.995 || found[0] > bf16 * 1.005 || found[1] < fp32 * 0.995 || found[1] > fp32 * 1.005) {
        fail_msg("%s: %g and %g TFLOP/s, not %g and %g", name, found[0], found[1], bf16, fp32);
    }
}

static void test_names(void **state)
{
    (void)state;
    is("NVIDIA H100 80GB HBM3", 9, 0, 132, 1980, 989.4, 66.9);
    is("NVIDIA H100 PCIe", 9, 0, 114, 1755, 756.5, 51.2);
    is("NVIDIA H100 NVL", 9, 0, 132, 1785, 835.5, 60);
    is("NVIDIA H200", 9, 0, 132, 1980, 989.4, 66.9);
    is("NVIDIA GH200 480GB", 9, 0, 132, 1980, 989.4, 66.9);
    is("NVIDIA A100-SXM4-80GB", 8, 0, 108, 1410, 312, 19.5);
    is("NVIDIA A100-PCIE-40GB", 8, 0, 108, 1410, 312, 19.5);
    is("NVIDIA L40S", 8, 9, 142, 2520, 362, 91.6);
    is("NVIDIA L4", 8, 9, 58, 2040, 121, 30.3);
    is("NVIDIA GeForce RTX 4090", 8, 9, 128, 2520, 165.2, 82.6);
}

static void test_a_part_has_its_share(void **state)
{
    (void)state;
    is("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9, 0, 16, 1980, 989.4 * 16 / 132, 66.9 * 16 / 132);
}

static void test_others_by_their_multiprocessors(void **state)
{
    (void)state;
    is("NVIDIA H101", 9, 0, 100, 1000, 409.6, 25.6);
    is("NVIDIA RTX A6000", 8, 6, 84, 1800, 154.8, 38.7);
    is("NVIDIA GeForce RTX 3060", 8, 6, 28, 1777, 25.5, 12.7);
    is("NVIDIA RTX PRO 6000 Blackwell Server Edition", 12, 0, 188, 2617, 503.8, 126);
    is("one that comes later", 19, 0, 200, 2000, 0, 0);
    assert_true(dt_peak_flops("NVIDIA H100 PCIe", 9, 0, 114, 1e9, DT_I64) <= 0);
}

/* A sheet by its name as people write it; of a driver's name the rates are the same. */
static void test_sheets(void **state)
{
    (void)state;
    struct dt_gpu_sheet a, b;
    struct dt_text names;
    dt_text_init(&names);
    assert_true(dt_gpu_sheet("h100", &a, NULL));
    assert_string_equal(a.name, "H100");
    assert_true(a.bf16_flops > 989e12 && a.bf16_flops < 990e12 && a.memory_bytes > 84e9 && a.memory_bytes < 86e9);
    assert_true(dt_gpu_sheet("A100-40gb", &a, NULL) && dt_gpu_sheet("a100", &b, NULL));
    assert_true(a.memory_bytes < 0.51 * b.memory_bytes);
    assert_true(dt_gpu_sheet("rtx4090", &a, NULL));
    assert_string_equal(a.name, "RTX 4090");
    assert_true(dt_gpu_sheet("L4", &a, NULL) && dt_gpu_sheet("L40", &b, NULL) && a.bf16_flops < b.bf16_flops);
    assert_false(dt_gpu_sheet("h1000", &a, &names));
    assert_false(dt_gpu_sheet("", &a, NULL));
    assert_non_null(strstr(dt_text_str(&names), "B200, H200 NVL, H200, "));
    dt_text_clear(&names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_a_part_has_its_share),
                                       cmocka_unit_test(test_sheets),
                                       cmocka_unit_test(test_others_by_their_multiprocessors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
