/* covers: worker/run/sampling.c */
/* The choice of an id: what each setting keeps, with which likelihood, and which id a number draws, as
 * computed once beside Transformers (tests/golden/finetune/evaluation.json). */
#include "tests/lib/golden.h"

#include "worker/run/sampling.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { IDS_MOST = 32 };

static double number(const cJSON *object, const char *key, double fallback)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, key);
    return value != NULL ? value->valuedouble : fallback;
}

static struct sampling settings_of(const cJSON *json)
{
    return (struct sampling){.repetition_penalty = number(json, "repetition_penalty", 1),
                             .temperature = number(json, "temperature", 1),
                             .top_k = (int64_t)number(json, "top_k", 0),
                             .top_p = number(json, "top_p", 1),
                             .min_p = number(json, "min_p", 0),
                             .do_sample = true};
}

static int64_t read_floats(const cJSON *array, float *out)
{
    int64_t count = 0;
    const cJSON *x;
    cJSON_ArrayForEach(x, array)
    {
        assert_true(count < IDS_MOST);
        out[count++] = (float)x->valuedouble;
    }
    return count;
}

static void check_case(const cJSON *json)
{
    float logits[IDS_MOST], seen_numbers[IDS_MOST];
    uint64_t keys[IDS_MOST];
    int32_t seen[IDS_MOST];
    struct sampling s = settings_of(json);
    const cJSON *kept = cJSON_GetObjectItemCaseSensitive(json, "kept"),
                *likely = cJSON_GetObjectItemCaseSensitive(json, "probabilities"), *draw;
    int64_t count = read_floats(cJSON_GetObjectItemCaseSensitive(json, "logits"), logits),
            seen_count = read_floats(cJSON_GetObjectItemCaseSensitive(json, "seen"), seen_numbers);
    for (int64_t i = 0; i < seen_count; i++) {
        seen[i] = (int32_t)seen_numbers[i];
    }
    int64_t n = sampling_keep(&s, logits, count, seen, seen_count, keys);
    assert_int_equal(n, cJSON_GetArraySize(kept));
    const uint64_t *left = keys + count - n;
    double total = 0;
    for (int64_t i = 0; i < n; i++) {
        total += exp((double)sampling_logit(left[i]));
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t id = sampling_id(left[i]);
        double p = exp((double)sampling_logit(left[i])) / total;
        assert_true(fabs(p - cJSON_GetArrayItem(likely, id)->valuedouble) <= 1e-6);
        assert_true(cJSON_GetArrayItem(likely, id)->valuedouble > 0);
    }
    cJSON_ArrayForEach(draw, cJSON_GetObjectItemCaseSensitive(json, "draws"))
    {
        double u = cJSON_GetArrayItem(draw, 0)->valuedouble;
        assert_int_equal(sampling_draw(left, n, u), cJSON_GetArrayItem(draw, 1)->valueint);
    }
}

static void test_golden(void **state)
{
    (void)state;
    cJSON *json = golden_json("tests/golden/finetune/evaluation.json");
    const cJSON *one;
    int count = 0;
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(json, "samplers"))
    {
        check_case(one);
        count++;
    }
    assert_int_equal(count, 12);
    cJSON_Delete(json);
}

/* The likeliest id, the lowest one of equals, after the penalty; what is no number is never chosen. */
static void test_greedy(void **state)
{
    (void)state;
    uint64_t keys[4];
    struct sampling s = {.repetition_penalty = 1, .temperature = 1, .top_p = 1};
    float ties[] = {1, 3, 3, -2};
    assert_int_equal(sampling_keep(&s, ties, 4, NULL, 0, keys), 1);
    assert_int_equal(sampling_id(keys[3]), 1);
    s.do_sample = true;
    s.temperature = 0;
    s.repetition_penalty = 2;
    float seen_once[] = {1, 3, 2.5F, -2};
    assert_int_equal(sampling_keep(&s, seen_once, 4, (int32_t[]){1, 1, 3}, 3, keys), 1);
    assert_int_equal(sampling_id(keys[3]), 2);
    assert_true(seen_once[1] == 1.5F && seen_once[3] == -4);
    float broken[] = {NAN, -INFINITY, NAN, NAN};
    assert_int_equal(sampling_keep(&s, broken, 4, NULL, 0, keys), 1);
    assert_int_equal(sampling_id(keys[3]), 1);
    float none[] = {NAN, NAN, NAN, NAN};
    assert_int_equal(sampling_keep(&s, none, 4, NULL, 0, keys), 0);
    s.temperature = 1;
    float few[] = {NAN, -INFINITY, 5, INFINITY};
    assert_int_equal(sampling_keep(&s, few, 4, NULL, 0, keys), 1);
    assert_int_equal(sampling_id(keys[3]), 2);
}

/* The number is a function of seed, row and position, spread evenly, and each of the three matters. */
static void test_uniform(void **state)
{
    (void)state;
    int parts[10] = {0};
    for (int i = 0; i < 10000; i++) {
        double u = sampling_uniform(7, i / 100, i % 100);
        assert_true(u >= 0 && u < 1);
        parts[(int)(u * 10)]++;
    }
    for (int i = 0; i < 10; i++) {
        assert_true(parts[i] > 850 && parts[i] < 1150);
    }
    double u = sampling_uniform(1, 2, 3);
    assert_true(u == sampling_uniform(1, 2, 3));
    assert_true(u != sampling_uniform(2, 2, 3) && u != sampling_uniform(1, 3, 3) && u != sampling_uniform(1, 2, 4));
    assert_true(sampling_uniform(1, 2, 3) != sampling_uniform(1, 3, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_uniform),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
