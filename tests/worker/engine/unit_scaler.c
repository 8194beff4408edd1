/* covers: worker/engine/scaler.c */
/* The loss scale after each step, against traces of torch.amp.GradScaler and of DeepSpeed. */
#include "worker/engine/scaler.h"

#include "base/file.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static cJSON *golden(void)
{
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    assert_int_equal(dt_file_read("tests/golden/numbers/scaler.json", 1 << 20, &text, &err), 0);
    cJSON *root = cJSON_Parse(dt_text_str(&text));
    assert_non_null(root);
    dt_text_clear(&text);
    return root;
}

static double number(const cJSON *row, const char *key)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(row, key);
    assert_non_null(x);
    return cJSON_IsBool(x) ? cJSON_IsTrue(x) : x->valuedouble;
}

static double at(const cJSON *row, const char *key, int i)
{
    const cJSON *x = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(row, key), i);
    assert_non_null(x);
    return x->valuedouble;
}

static int length(const cJSON *row, const char *key)
{
    return cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(row, key));
}

static void test_torch(void **unused)
{
    (void)unused;
    cJSON *root = golden(), *row;
    const struct scaler_row *torch = scaler_find("torch");
    int rows = 0, ended = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(root, "torch.amp.GradScaler"))
    {
        struct scaler_settings s = {.growth_factor = number(row, "growth_factor"),
                                    .backoff_factor = number(row, "backoff_factor"),
                                    .growth_interval = (int64_t)number(row, "growth_interval"),
                                    .hysteresis = 2,
                                    .min_loss_scale = -1};
        struct scaler_state x = scaler_begin(&s);
        x.scale = number(row, "init_scale");
        for (int i = 0; i < length(row, "overflow"); i++) {
            double expected = at(row, "scale_after", i);
            if (!scaler_judge(torch, &s, &x, at(row, "overflow", i) != 0)) {
                assert_true(expected == 0); /* theirs goes on with nothing */
                ended++;
                break;
            }
            assert_true((float)x.scale == (float)expected);
            assert_int_equal(x.good, (int)at(row, "growth_tracker_after", i));
        }
        rows++;
    }
    assert_int_equal(rows, 6);
    assert_int_equal(ended, 1);
    cJSON_Delete(root);
}

static void test_deepspeed(void **unused)
{
    (void)unused;
    cJSON *root = golden(), *row;
    const struct scaler_row *deepspeed = scaler_find("deepspeed");
    int rows = 0;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(root, "deepspeed"))
    {
        struct scaler_settings s = {.loss_scale_window = (int64_t)number(row, "loss_scale_window"),
                                    .hysteresis = (int64_t)number(row, "hysteresis"),
                                    .consecutive_hysteresis = number(row, "consecutive_hysteresis") != 0,
                                    .min_loss_scale = number(row, "min_loss_scale")};
        struct scaler_state x = scaler_begin(&s);
        x.scale = number(row, "initial_scale");
        const cJSON *fatal = cJSON_GetObjectItemCaseSensitive(row, "fatal");
        int end = cJSON_IsNumber(fatal) ? fatal->valueint : -1, skipped = 0;
        for (int i = 0; i < length(row, "overflow"); i++) {
            bool overflow = at(row, "overflow", i) != 0, goes_on = scaler_judge(deepspeed, &s, &x, overflow);
            skipped += overflow;
            assert_int_equal(goes_on, i != end);
            if (!goes_on) {
                break;
            }
            const cJSON *after =
                cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(row, "scale_and_hysteresis_after"), i);
            assert_true(x.scale == cJSON_GetArrayItem(after, 0)->valuedouble);
            assert_int_equal(x.hysteresis, cJSON_GetArrayItem(after, 1)->valueint);
        }
        assert_int_equal(x.skipped, skipped);
        rows++;
    }
    assert_int_equal(rows, 8);
    cJSON_Delete(root);
}

/* The traces of the specification: 1 is an overflow. */
static void test_deepspeed_by_hand(void **unused)
{
    (void)unused;
    static const struct {
        int64_t window;
        bool consecutive;
        const char *steps;
        double scale[12];
    } rows[] = {{3, false, "110010000001", {16, 8, 8, 8, 4, 4, 4, 4, 8, 8, 8, 8}},
                {3, false, "000000000", {16, 16, 16, 32, 32, 32, 64, 64, 64}},
                {100, true, "101011", {16, 16, 16, 16, 16, 8}},
                {100, false, "101011", {16, 16, 8, 8, 4, 2}}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        struct scaler_settings s = {.initial_scale_power = 4,
                                    .loss_scale_window = rows[r].window,
                                    .hysteresis = 2,
                                    .consecutive_hysteresis = rows[r].consecutive,
                                    .min_loss_scale = -1};
        struct scaler_state x = scaler_begin(&s);
        for (int i = 0; rows[r].steps[i] != 0; i++) {
            assert_true(scaler_judge(scaler_find("deepspeed"), &s, &x, rows[r].steps[i] == '1'));
            assert_true(x.scale == rows[r].scale[i]);
        }
    }
}

static void test_a_scale_that_stays(void **unused)
{
    (void)unused;
    for (int i = 0; i < 2; i++) {
        struct scaler_settings s = {
            .loss_scale = 24, .initial_scale_power = 16, .growth_interval = 1, .hysteresis = 1, .min_loss_scale = 24};
        struct scaler_state x = scaler_begin(&s);
        for (int step = 0; step < 5; step++) {
            assert_true(scaler_judge(scaler_find(i == 0 ? "torch" : "deepspeed"), &s, &x, step < 3));
            assert_true(x.scale == 24);
        }
        assert_int_equal(x.skipped, 3);
    }
    assert_null(scaler_find("adam"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_torch), cmocka_unit_test(test_deepspeed),
                                       cmocka_unit_test(test_deepspeed_by_hand),
                                       cmocka_unit_test(test_a_scale_that_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
