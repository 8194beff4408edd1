/* covers: base/gpu */
/* Words for NVML's numbers, and which GPUs CUDA_VISIBLE_DEVICES lets a program see. */
#include "base/gpu/gpu_visible.h"
#include "base/gpu/nvml.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void reasons(void **state)
{
    (void)state;
    char text[160], little[8];
    assert_string_equal(dt_nvml_throttle_text(-1, false, text, sizeof text), "");
    /* idle, chosen clocks, a display */
    assert_string_equal(dt_nvml_throttle_text(0x103, false, text, sizeof text), "");
    assert_string_equal(dt_nvml_throttle_text(0x24, false, text, sizeof text), "power limit, heat");
    assert_string_equal(dt_nvml_throttle_text(0x24, true, text, sizeof text), "heat");
    assert_string_equal(dt_nvml_throttle_text(0xff, false, little, sizeof little), "power l");
}

static void xids(void **state)
{
    (void)state;
    char bus[32];
    assert_string_equal(dt_nvml_xid_text(79), "fell off the bus");
    assert_null(dt_nvml_xid_text(4711));
    assert_true(dt_nvml_xid_ends_gpu(79) && dt_nvml_xid_ends_gpu(48) && !dt_nvml_xid_ends_gpu(31) &&
                !dt_nvml_xid_ends_gpu(4711));
    assert_int_equal(
        dt_nvml_xid_of_line("4,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=7, GPU has fallen off the bus.\n", bus), 79);
    assert_string_equal(bus, "0000:3b:00.0");
    assert_int_equal(dt_nvml_xid_of_line("NVRM: Xid (PCI:000a:C1:1f): 31, pid=1", bus), 31);
    assert_string_equal(bus, "000a:c1:1f.0");
    static const char *const none[] = {"",
                                       "NVRM: Xid",
                                       "NVRM: Xid (PCI:0000:3b:00): ",
                                       "NVRM: Xid (PCI:0000:3b): 5",
                                       "Xid (PCI:0000:3b:00): 79",
                                       "NVRM: Xid (PCI:0000:3b:00): -3",
                                       "NVRM: GPU at PCI:0000:3b:00: GPU-1"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        assert_int_equal(dt_nvml_xid_of_line(none[i], bus), 0);
    }
}

static void all_values_have_names(void **state)
{
    (void)state;
    for (int i = 0; i < DT_NVML_VALUE_COUNT; i++) {
        assert_non_null(dt_nvml_value_name((enum dt_nvml_value)i));
        for (int k = 0; k < i; k++) {
            assert_string_not_equal(dt_nvml_value_name((enum dt_nvml_value)i),
                                    dt_nvml_value_name((enum dt_nvml_value)k));
        }
    }
}

static const char *const uuids[] = {"GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44"};

static void visible_are(const char *text, const char *expected, const char *problem)
{
    struct dt_gpu_visible v;
    char seen[256] = "";
    dt_gpu_visible(text, uuids, 4, &v);
    for (int i = 0; i < v.count; i++) {
        (void)snprintf(seen + strlen(seen), sizeof seen - strlen(seen), "%s%d", i > 0 ? "," : "", v.gpu[i]);
    }
    assert_string_equal(seen, expected);
    assert_string_equal(v.problem, problem);
}

static void visible(void **state)
{
    (void)state;
    visible_are(NULL, "0,1,2,3", "");
    visible_are("", "", "");
    visible_are("3,1", "3,1", "");
    visible_are(" 2, 0", "2,0", "");
    visible_are("1gpu,2", "1,2", "");
    visible_are("0,7,1", "0", "7 is no GPU of this host, which has 0 to 3");
    visible_are("4", "", "4 is no GPU of this host, which has 0 to 3");
    visible_are("-1", "", "-1 is no GPU");
    visible_are("0,-1,2", "0", "-1 is no GPU");
    visible_are("none", "", "none is no GPU");
    visible_are("0,,2", "0", "an empty entry is no GPU");
    visible_are("0,1,0", "", "0 is named twice, then none is seen");
    visible_are("99999999999999999999", "", "99999999999999999999 is no GPU of this host, which has 0 to 3");
    visible_are("GPU-bb33,GPU-aa11", "2,0", "");
    visible_are("GPU-c", "3", "");
    visible_are("GPU-aa", "", "GPU-aa is the beginning of several GPUs of this host");
    visible_are("GPU-dd,GPU-cc44", "", "GPU-dd is no GPU of this host");
    visible_are("GPU-aa11,2", "0", "2 does not begin with GPU- as those before it");
    visible_are("GPU-aa11,GPU-aa1", "", "GPU-aa1 is named twice, then none is seen");
    visible_are("MIG-1,MIG-2", "-1,-1", "");
    visible_are("MIG-1,MIG-1", "", "MIG-1 is named twice, then none is seen");
}

static void visible_on_an_unknown_host(void **state)
{
    (void)state;
    struct dt_gpu_visible v;
    char many[4 * DT_GPU_VISIBLE_MAX * 2] = "";
    dt_gpu_visible("5,17", NULL, -1, &v);
    assert_int_equal(v.count, 2);
    dt_gpu_visible(NULL, NULL, -1, &v);
    assert_int_equal(v.count, 0);
    for (int i = 0; i < DT_GPU_VISIBLE_MAX + 9; i++) {
        (void)snprintf(many + strlen(many), sizeof many - strlen(many), "%d,", i);
    }
    dt_gpu_visible(many, NULL, -1, &v);
    assert_int_equal(v.count, DT_GPU_VISIBLE_MAX);
    struct dt_gpu_visible none;
    dt_gpu_visible("0", NULL, 0, &none);
    assert_int_equal(none.count, 0);
    assert_string_equal(none.problem, "0 is no GPU");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasons),
        cmocka_unit_test(xids),
        cmocka_unit_test(all_values_have_names),
        cmocka_unit_test(visible),
        cmocka_unit_test(visible_on_an_unknown_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
