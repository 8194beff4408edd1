/* covers: worker/run/generate.c worker/run/generate_settings.c worker/run/model_source.c worker/model/blocks/packed.c */
/* Generation against Transformers, and against itself: the same ids with and without a cache, in a batch
 * and alone, for gpt2 and all families of decoders. */
#include "tests/lib/golden.h"

#include "base/file.h"
#include "worker/run/prompt.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY "tests/golden/finetune/tiny"
static const struct job_generation nothing = {-1, -1, -1, -1, -1, -1, -1, 42, {0}, {0}};

static struct model_source open_source(const char *path)
{
    struct model_source s;
    struct dt_error err;
    if (model_source_open(&s, path, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
    return s;
}

static struct generate_options settings(const struct model_source *s, const struct job_generation *job)
{
    struct generate_options o;
    struct dt_error err;
    if (generate_settings(s, job, &o, NULL, &err) != 0) {
        fail_msg("%s", err.text);
    }
    o.threads = 2;
    return o;
}

static void run(const struct model_source *s, const struct generate_options *o, struct prompts *p)
{
    struct dt_error err;
    if (generate_rows(s, o, p->rows, p->count, &err) != 0) {
        fail_msg("%s: %s", s->path, err.text);
    }
}

static void test_transformers(void **state)
{
    (void)state;
    struct model_source s = open_source(TINY);
    struct dt_error err;
    cJSON *json = golden_json("tests/golden/finetune/evaluation.json");
    const cJSON *one;
    int count = 0;
    cJSON_ArrayForEach(one, cJSON_GetObjectItemCaseSensitive(json, "greedy"))
    {
        const cJSON *penalty = cJSON_GetObjectItemCaseSensitive(one, "repetition_penalty");
        struct job_generation job = nothing;
        struct prompts p = {0};
        struct dt_text given, got, wanted;
        struct dt_text *all[] = {&given, &got, &wanted};
        for (int i = 0; i < 3; i++) {
            dt_text_init(all[i]);
        }
        for (int k = 0; k < 2; k++) {
            const cJSON *ids = cJSON_GetObjectItemCaseSensitive(one, k == 0 ? "ids" : "out"), *id;
            struct dt_text *to = k == 0 ? &given : &wanted;
            cJSON_ArrayForEach(id, ids)
            {
                dt_text_printf(to, "%s%d", to->size > 0 ? "," : "", id->valueint);
            }
        }
        job.do_sample = 0;
        job.repetition_penalty = penalty != NULL ? penalty->valuedouble : -1;
        job.max_new_tokens = cJSON_GetObjectItemCaseSensitive(one, "new")->valueint;
        struct generate_options o = settings(&s, &job);
        assert_int_equal(prompts_add_ids(&p, dt_text_str(&given), &err), 0);
        run(&s, &o, &p);
        prompt_show_ids(p.rows[0].ids + p.rows[0].prompt_count, p.rows[0].count - p.rows[0].prompt_count, &got);
        assert_string_equal(dt_text_str(&got), dt_text_str(&wanted));
        for (int i = 0; i < 3; i++) {
            dt_text_clear(all[i]);
        }
        prompts_clear(&p);
        count++;
    }
    assert_int_equal(count, 2);
    cJSON_Delete(json);
    model_source_close(&s);
}

enum { ROWS = 34 }; /* so many that prompts are computed in pieces of 16 */

/* Prompts of 1 to 29 ids. */
static struct prompts prompts_of(int64_t vocabulary)
{
    struct prompts p = {0};
    struct dt_error err;
    for (int i = 0; i < ROWS; i++) {
        struct dt_text ids;
        dt_text_init(&ids);
        for (int k = 0; k <= i * 7 % 29; k++) {
            dt_text_printf(&ids, "%lld ", (long long)((i * 31 + k * 17 + k * k) % vocabulary));
        }
        assert_int_equal(prompts_add_ids(&p, dt_text_str(&ids), &err), 0);
        dt_text_clear(&ids);
    }
    return p;
}

static void check_same(const struct model_source *s, const struct prompts *a, const struct prompts *b, const char *how)
{
    for (int64_t i = 0; i < a->count; i++) {
        const struct generate_row *x = &a->rows[i], *y = &b->rows[i];
        if (x->count != y->count || x->end != y->end ||
            memcmp(x->ids, y->ids, (size_t)x->count * sizeof *x->ids) != 0) {
            struct dt_text one, other;
            dt_text_init(&one);
            dt_text_init(&other);
            prompt_show_ids(x->ids, x->count, &one);
            prompt_show_ids(y->ids, y->count, &other);
            fail_msg("%s, row %lld, %s: %s and %s", s->path, (long long)i, how, dt_text_str(&one), dt_text_str(&other));
        }
    }
}

/* All ways give the ids of the first: no cache. */
static void check_ways(const struct model_source *s, struct generate_options o)
{
    static const struct {
        int64_t batch_size;
        const char *name;
    } ways[] = {{ROWS, "all rows together"}, {5, "five rows together"}, {1, "one row alone"}};
    int64_t vocabulary, positions;
    struct dt_error err;
    assert_int_equal(generate_limits(s, &vocabulary, &positions, &err), 0);
    struct prompts plain = prompts_of(vocabulary);
    o.recomputes = true;
    run(s, &o, &plain);
    o.recomputes = false;
    for (int i = 0; i < 3; i++) {
        struct prompts p = prompts_of(vocabulary);
        o.batch_size = ways[i].batch_size;
        run(s, &o, &p);
        check_same(s, &plain, &p, ways[i].name);
        prompts_clear(&p);
    }
    prompts_clear(&plain);
}

static const char *const families[] = {"gpt2",        "llama",   "llama3_tied", "qwen2", "qwen3",   "mistral", "gemma2",
                                       "gemma3_text", "smollm3", "phi3",        "olmo2", "granite", "mha-gpt"};

static void test_families(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        char *path = dt_format("tests/golden/models/%s/hf", families[i]);
        struct model_source s = open_source(path);
        struct job_generation job = nothing;
        job.max_new_tokens = 24;
        job.temperature = 1;
        struct generate_options o = settings(&s, &job);
        check_ways(&s, o);
        o.sampling.do_sample = false;
        o.sampling.repetition_penalty = 1.1;
        o.window = 13; /* rows that forget */
        check_ways(&s, o);
        model_source_close(&s);
        free(path);
    }
}

/* Another seed gives other ids, and rows with the same prompt differ. */
static void test_seeds(void **state)
{
    (void)state;
    struct model_source s = open_source(TINY);
    struct job_generation job = nothing;
    struct prompts all[2] = {{0}, {0}};
    struct dt_error err;
    job.temperature = 1.5;
    job.top_p = 1;
    job.max_new_tokens = 16;
    for (int k = 0; k < 2; k++) {
        job.seed = 7 + k;
        struct generate_options o = settings(&s, &job);
        o.stop_count = 0;
        assert_int_equal(prompts_add_ids(&all[k], "5,6,7", &err), 0);
        assert_int_equal(prompts_add_ids(&all[k], "5,6,7", &err), 0);
        run(&s, &o, &all[k]);
    }
    size_t bytes = 16 * sizeof(int32_t);
    assert_memory_not_equal(all[0].rows[0].ids + 3, all[0].rows[1].ids + 3, bytes);
    assert_memory_not_equal(all[0].rows[0].ids + 3, all[1].rows[0].ids + 3, bytes);
    prompts_clear(&all[0]);
    prompts_clear(&all[1]);
    model_source_close(&s);
}

/* A row ends behind a stop id, at the number of new ids, and where the positions do; the others go on. */
static void test_ends(void **state)
{
    (void)state;
    struct model_source s = open_source(TINY);
    struct job_generation job = nothing;
    struct prompts p = {0}, q = {0};
    struct dt_error err;
    job.do_sample = 0;
    job.max_new_tokens = 1000;
    struct generate_options o = settings(&s, &job);
    o.stop_count = 0;
    assert_int_equal(prompts_add_ids(&p, "546,289,65,80", &err), 0);
    assert_int_equal(prompts_add_ids(&p, "40,297", &err), 0);
    run(&s, &o, &p);
    assert_int_equal(p.rows[0].count, 128);
    assert_int_equal(p.rows[1].count, 128);
    assert_int_equal(p.rows[0].end, GENERATE_POSITIONS);
    /* the third new id of row 0 */
    o.stops[o.stop_count++] = p.rows[0].ids[6];
    o.max_new_tokens = 5;
    assert_int_equal(prompts_add_ids(&q, "546,289,65,80", &err), 0);
    assert_int_equal(prompts_add_ids(&q, "40,297", &err), 0);
    run(&s, &o, &q);
    assert_true(q.rows[0].count <= 7 && q.rows[0].ids[q.rows[0].count - 1] == o.stops[0]);
    assert_int_equal(q.rows[0].end, GENERATE_STOPPED);
    assert_int_equal(q.rows[1].count, 7);
    assert_int_equal(q.rows[1].end, GENERATE_LENGTH);
    assert_memory_equal(q.rows[1].ids, p.rows[1].ids, 7 * sizeof(int32_t));
    prompts_clear(&p);
    prompts_clear(&q);
    model_source_close(&s);
}

static void refuses(const char *path, const char *ids, const char *cause)
{
    struct model_source s = open_source(path);
    struct generate_options o = settings(&s, &nothing);
    struct prompts p = {0};
    struct dt_error err = {.status = DT_OK};
    int rc = prompts_add_ids(&p, ids, &err);
    rc = rc == 0 ? generate_rows(&s, &o, p.rows, p.count, &err) : rc;
    if (rc != -1 || strstr(err.text, cause) == NULL) {
        fail_msg("%s: rc %d: %s", ids, rc, err.text);
    }
    prompts_clear(&p);
    model_source_close(&s);
}

static void test_refused(void **state)
{
    (void)state;
    refuses(TINY, "", "prompt 1 is empty");
    refuses(TINY, "5,672", "prompt 1 has id 672; the model knows 0 to 671");
    refuses(TINY, "5,-1", "-1: is no id");
    refuses(TINY, "5,a", "a: is no id");
    refuses(TINY, "5;6", "5;6: is no id");
    refuses(TINY, "99999999999", "99999999999: is no id");
    refuses(TINY, "@tests/golden/nothing", "tests/golden/nothing");
    refuses("tests/golden/models/bert/hf", "5", "the model is a bert, which writes no text");
    struct dt_text ids;
    dt_text_init(&ids);
    for (int i = 0; i < 129; i++) {
        dt_text_puts(&ids, "1 ");
    }
    refuses(TINY, dt_text_str(&ids), "prompt 1 has 129 ids, and the model 128 positions");
    dt_text_clear(&ids);
    struct model_source s;
    struct dt_error err;
    assert_int_equal(model_source_open(&s, "tests/golden/nothing", NULL, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    model_source_close(&s);
}

/* The job's keys come first, then those of generation_config.json, then defaults. */
static void test_settings(void **state)
{
    (void)state;
    struct model_source s = open_source(TINY), plain = open_source("tests/golden/models/llama/hf");
    struct job_generation job = nothing;
    struct generate_options o = settings(&s, &job);
    assert_true(o.sampling.do_sample && o.sampling.temperature == 0.7 && o.sampling.top_p == 0.9);
    assert_true(o.sampling.top_k == 0 && o.sampling.min_p == 0 && o.sampling.repetition_penalty == 1);
    assert_true(o.max_new_tokens == 256 && o.seed == 42);
    assert_true(o.stop_count == 2 && o.stops[0] == 641 && o.stops[1] == 0);
    job.temperature = 0;
    job.top_k = 5;
    job.seed = 3;
    o = settings(&s, &job);
    assert_true(o.sampling.temperature == 0 && o.sampling.top_k == 5 && o.sampling.top_p == 0.9 && o.seed == 3);
    o = settings(&plain, &nothing);
    assert_true(!o.sampling.do_sample && o.sampling.temperature == 1 && o.sampling.top_p == 1);
    o = settings(&plain, &job);
    assert_true(o.sampling.do_sample && o.sampling.top_k == 5);
    job.do_sample = 0;
    o = settings(&plain, &job);
    assert_false(o.sampling.do_sample);
    model_source_close(&s);
    model_source_close(&plain);
}

static void expect_ignored(const char *config, bool draws, const char *wanted)
{
    struct model_source s = {.path = (char *)(uintptr_t) "folder", .generation = cJSON_Parse(config)};
    struct job_generation job = nothing;
    struct generate_options o;
    struct dt_text ignored;
    struct dt_error err;
    dt_text_init(&ignored);
    job.do_sample = draws;
    assert_non_null(s.generation);
    assert_int_equal(generate_settings(&s, &job, &o, &ignored, &err), 0);
    assert_string_equal(dt_text_str(&ignored), wanted);
    dt_text_clear(&ignored);
    cJSON_Delete(s.generation);
}

/* Keys that would change the ids are named; those that have no effect are not. */
static void test_ignored(void **state)
{
    (void)state;
    expect_ignored("{\"num_beams\": 4, \"no_repeat_ngram_size\": 3, \"typical_p\": 0.9}", true,
                   "num_beams, no_repeat_ngram_size, typical_p");
    expect_ignored("{\"num_beams\": 4, \"typical_p\": 0.9, \"bad_words_ids\": [[5]]}", false,
                   "num_beams, bad_words_ids");
    expect_ignored("{\"num_beams\": 1, \"typical_p\": 1.0, \"bad_words_ids\": [], \"min_length\": 0, "
                   "\"suppress_tokens\": null, \"guidance_scale\": 1, \"pad_token_id\": 3, \"max_length\": 20}",
                   true, "");
    expect_ignored("{\"forced_eos_token_id\": 0, \"guidance_scale\": 1.5}", true,
                   "guidance_scale, forced_eos_token_id");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transformers), cmocka_unit_test(test_families), cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_ends),         cmocka_unit_test(test_refused),  cmocka_unit_test(test_settings),
        cmocka_unit_test(test_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
