/* covers: worker/engine/class_counts.c */
/* Accuracy and F1 as scikit-learn computed them once (tests/golden/finetune/evaluation.json); equal
 * logits, the five likeliest, and types. */
#include "tests/lib/golden.h"

#include "base/file.h"
#include "kernels/cpu/half.h"
#include "worker/engine/class_counts.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 16 };

static double number(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key)->valuedouble;
}

/* Each sample is a batch of its own: counts add up. */
static void check_case(const cJSON *json)
{
    const cJSON *gold = cJSON_GetObjectItemCaseSensitive(json, "gold"),
                *pred = cJSON_GetObjectItemCaseSensitive(json, "pred"),
                *f1 = cJSON_GetObjectItemCaseSensitive(json, "f1");
    struct class_counts c;
    double got[MOST];
    class_counts_open(&c, (int64_t)number(json, "classes"), false);
    memset(c.n, 0, (size_t)class_counts_size(&c) * sizeof *c.n);
    for (int i = 0; i < cJSON_GetArraySize(gold); i++) {
        float logits[2 * MOST] = {0};
        int32_t targets[2] = {-100, cJSON_GetArrayItem(gold, i)->valueint};
        logits[c.classes + cJSON_GetArrayItem(pred, i)->valueint] = 1;
        class_counts_add(&c, logits, DT_F32, targets, 2);
    }
    struct class_report r = class_counts_report(&c, got);
    assert_true(fabs(r.accuracy - number(json, "accuracy")) <= 1e-12);
    assert_true(fabs(r.f1_macro - number(json, "f1_macro")) <= 1e-12);
    for (int64_t k = 0; k < c.classes; k++) {
        assert_true(fabs(r.f1[k] - cJSON_GetArrayItem(f1, (int)k)->valuedouble) <= 1e-12);
    }
    assert_true(isnan(r.top5));
    class_counts_close(&c);
}

static void test_golden(void **state)
{
    (void)state;
    cJSON *json = golden_json("tests/golden/finetune/evaluation.json");
    const cJSON *one;
    int count = 0;
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(json, "classification"))
    {
        check_case(one);
        count++;
    }
    assert_int_equal(count, 3);
    cJSON_Delete(json);
}

/* The lowest of equally likely classes is named, and stands before the others among the five. */
static void test_ties_and_types(void **state)
{
    (void)state;
    struct class_counts c;
    double f1[7];
    const float floats[7] = {0, 2, 2, 2, 2, 2, 1};
    double doubles[7];
    uint16_t halves[7];
    for (int i = 0; i < 7; i++) {
        doubles[i] = floats[i];
        halves[i] = dt_to_bf16(floats[i]);
    }
    const void *logits[] = {floats, doubles, halves};
    const enum dt_dtype types[] = {DT_F32, DT_F64, DT_BF16};
    class_counts_open(&c, 7, false);
    for (int i = 0; i < 3; i++) {
        memset(c.n, 0, (size_t)class_counts_size(&c) * sizeof *c.n);
        for (int32_t gold = 0; gold < 7; gold++) {
            class_counts_add(&c, logits[i], types[i], &gold, 1);
        }
        struct class_report r = class_counts_report(&c, f1);
        assert_true(r.accuracy == 1.0 / 7 && r.top5 == 5.0 / 7);
        assert_true(f1[1] == 2.0 / 8 && f1[0] == 0 && r.f1_macro == 2.0 / 8 / 7);
    }
    memset(c.n, 0, (size_t)class_counts_size(&c) * sizeof *c.n);
    struct class_report none = class_counts_report(&c, f1);
    assert_true(isnan(none.accuracy) && isnan(none.f1_macro) && isnan(none.top5));
    class_counts_close(&c);
}

/* Several classes of a sample: scikit-learn's f1_score and accuracy_score of these rows, of which one has no target. */
static void test_several(void **state)
{
    (void)state;
    static const float logits[6][3] = {{1, -1, 2}, {-1, -2, 3}, {2, 0, -1}, {-3, 1, 1}, {9, 9, 9}, {-1, -1, -1}};
    static const float targets[6][3] = {{1, 0, 1}, {1, 0, 1}, {1, 1, 0}, {0, 1, 0}, {NAN, NAN, NAN}, {0, 0, 0}};
    struct class_counts c;
    double f1[3];
    class_counts_open(&c, 3, true);
    memset(c.n, 0, (size_t)class_counts_size(&c) * sizeof *c.n);
    for (int i = 0; i < 6; i++) {
        class_counts_add_several(&c, logits[i], DT_F32, targets[i], DT_F32, 1);
    }
    struct class_report r = class_counts_report(&c, f1);
    assert_true(fabs(f1[0] - 0.8) < 1e-12 && fabs(f1[1] - 2.0 / 3) < 1e-12 && fabs(f1[2] - 0.8) < 1e-12);
    assert_true(fabs(r.f1_macro - (1.6 + 2.0 / 3) / 3) < 1e-12 && fabs(r.f1_micro - 10.0 / 13) < 1e-12);
    assert_true(fabs(r.accuracy - 0.4) < 1e-12 && isnan(r.top5));
    class_counts_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_ties_and_types),
        cmocka_unit_test(test_several),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
