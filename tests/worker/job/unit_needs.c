/* covers: worker/job/job_needs.c */
/* Keys that count only beside another one: each row of the table is tried with each of its keys. A key whose other
 * one is not there is said or refused, unless its value is the default; beside that one it counts, and nothing is
 * said. Sections that are details of one thing have all their keys in the table. */
#include "base/file.h"
#include "tests/lib/folder.h"
#include "worker/job/job.h"
#include "worker/job/job_fields.h"
#include "worker/job/job_needs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SETTINGS_MAX = 24 };

struct settings {
    int count;
    char of[SETTINGS_MAX][160];
};

/* Values where those that other_value finds do not fit their key. */
static const char *const values[][2] = {
    {"offload.block_size", "8192"},
    {"offload.portion", "4096"},
    {"transforms.scale", "[0.1, 0.9]"},
    {"transforms.ratio", "[0.5, 2]"},
    {"checkpointing.monitor", "val_accuracy"},
    {"training.collectives", "peer"},
    {"training.num_epochs", "2"},
};

/* "a=1 b=2" */
static void add(struct settings *s, const char *text)
{
    while (*text != 0) {
        size_t size = strcspn(text, " ");
        assert_in_range(s->count, 0, SETTINGS_MAX - 1);
        (void)snprintf(s->of[s->count++], sizeof s->of[0], "%.*s", (int)size, text);
        text += size + strspn(text + size, " ");
    }
}

static void give(struct settings *s, const char *section, const struct dt_field *f, const char *value)
{
    assert_in_range(s->count, 0, SETTINGS_MAX - 1);
    (void)snprintf(s->of[s->count++], sizeof s->of[0], "%s.%s=%s", section, f->key, value);
}

/* A value of a key that is not its default. */
static const char *other_value(const char *section, const struct dt_field *f)
{
    static char text[64];
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", section, f->key);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (strcmp(values[i][0], key) == 0) {
            return values[i][1];
        }
    }
    double number = strcmp(f->fallback, "null") == 0 ? f->rule->min : strtod(f->fallback, NULL);
    switch (f->rule->type) {
    case DT_RULE_BOOL:
        return strcmp(f->fallback, "true") == 0 ? "false" : "true";
    case DT_RULE_INTEGER:
        (void)snprintf(text, sizeof text, "%.0f", number < f->rule->max ? number + 1 : number - 1);
        return text;
    case DT_RULE_NUMBER:
        (void)snprintf(text, sizeof text, "%g", number + 0.25 <= f->rule->max ? number + 0.25 : number - 0.25);
        return text;
    case DT_RULE_ENUM:
    case DT_RULE_CHOICE: {
        const char *p = f->rule->choices;
        bool first = strncmp(p, f->fallback + 1, strcspn(p, "|")) == 0 || strncmp(p, f->fallback, strcspn(p, "|")) == 0;
        p += first ? strcspn(p, "|") + 1 : 0;
        (void)snprintf(text, sizeof text, "%.*s", (int)strcspn(p, "|"), p);
        return text;
    }
    default:
        return "here";
    }
}

/* The lines about a job with these settings: its idle keys, or its problems. */
static char *said(const struct settings *s)
{
    const char *set[SETTINGS_MAX];
    char path[sizeof folder + 16];
    struct job job;
    struct dt_text problems;
    struct dt_error err = {0};
    static const char text[] = "{\"model\": {\"name\": \"gpt2\"}, \"data\": {\"train\": \"x\", \"val\": null}}";
    (void)snprintf(path, sizeof path, "%s/job.json", folder);
    assert_int_equal(dt_file_write(path, text, strlen(text), &err), 0);
    for (int i = 0; i < s->count; i++) {
        set[i] = s->of[i];
    }
    dt_text_init(&problems);
    char *out;
    if (job_open(&job, &(struct job_arguments){.path = path, .set = set, .set_count = s->count}, &problems, &err) ==
        0) {
        out = strdup(job.idle_keys != NULL ? job.idle_keys : "");
        job_close(&job);
    } else {
        out = strdup(dt_text_str(&problems));
    }
    dt_text_clear(&problems);
    return out;
}

/* The key is among those that are named. */
static bool names(const char *text, const char *key)
{
    size_t size = strlen(key);
    for (const char *p = strstr(text, key); p != NULL; p = strstr(p + 1, key)) {
        if (strchr(",: ", p[size]) != NULL && (p == text || p[-1] == ' ')) {
            return true;
        }
    }
    return false;
}

static void check(const struct job_need *n, const struct job_section *s, const struct dt_field *f)
{
    struct settings base = {0}, with = {0}, without, plain;
    char key[96];
    (void)snprintf(key, sizeof key, "%s.%s", s->name, f->key);
    for (int i = 0; job_need_at(i) != NULL; i++) {
        const struct job_need *other = job_need_at(i);
        if (job_need_has(other, s->name, f->key)) {
            add(&with, other->beside);
            add(&base, other == n ? n->without : other < n ? other->beside : ""); /* the first one is said */
        }
    }
    without = plain = base;
    give(&without, s->name, f, other_value(s->name, f));
    give(&plain, s->name, f, f->fallback);
    give(&with, s->name, f, other_value(s->name, f));
    char *idle = said(&without), *quiet = said(&plain), *counts = said(&with);
    if (!names(idle, key) || strstr(idle, n->text) == NULL || (strstr(idle, "goes with") == NULL) != n->refused) {
        fail_msg("%s without %s: \"%s\"", without.of[without.count - 1], n->text, idle);
    }
    if (names(quiet, key)) {
        fail_msg("%s, the default: \"%s\"", plain.of[plain.count - 1], quiet);
    }
    if (names(counts, key) || strstr(counts, "job.json") != NULL || strstr(counts, "--set") != NULL) {
        fail_msg("%s beside \"%s\": \"%s\"", with.of[with.count - 1], n->beside, counts);
    }
    free(counts);
    free(quiet);
    free(idle);
}

static void test_each_row(void **state)
{
    int pairs = 0;
    (void)state;
    for (int i = 0; job_need_at(i) != NULL; i++) {
        const struct job_need *n = job_need_at(i);
        int found = 0;
        for (const struct job_section *s = job_sections; s->name != NULL; s++) {
            for (const struct dt_field *f = s->fields; f->key != NULL; f++) {
                bool earlier = false; /* of two rows for all of a section, or one key and all, each has its own keys */
                for (int k = 0; k < i; k++) {
                    earlier |= n->keys == NULL && job_need_has(job_need_at(k), s->name, f->key);
                }
                if (job_need_has(n, s->name, f->key)) {
                    found++;
                    if (!earlier) {
                        check(n, s, f);
                        pairs++;
                    }
                }
            }
        }
        int listed = 1;
        for (const char *p = n->keys; p != NULL && *p != 0; p++) {
            listed += *p == '|';
        }
        if (n->keys != NULL ? found != listed : found == 0) {
            fail_msg("%s: %s: %d of %d keys are there", n->section, n->keys, found, listed);
        }
    }
    assert_in_range(pairs, 80, 1000);
}

/* A new key of these sections needs a row. */
static void test_sections_of_details(void **state)
{
    static const char *const free_keys[] = {"early_stopping.monitor", "offload.optimizer", "offload.parameters",
                                            "offload.activations", "activation_checkpointing.enabled",
                                            /* for all strategies, or refused by the strategy's own check */
                                            "fsdp.auto_wrap_policy", "fsdp.device_mesh", "fsdp.limit_all_gathers"};
    static const int sections[] = {JOB_POWER_SGD, JOB_LOCAL_SGD, JOB_FSDP,    JOB_SCALING,
                                   JOB_RECOMPUTE, JOB_OFFLOAD,   JOB_STOPPING};
    (void)state;
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
        const struct job_section *s = &job_sections[sections[i]];
        for (const struct dt_field *f = s->fields; f->key != NULL; f++) {
            char key[96];
            bool known = false;
            (void)snprintf(key, sizeof key, "%s.%s", s->name, f->key);
            for (size_t k = 0; k < sizeof free_keys / sizeof free_keys[0]; k++) {
                known |= strcmp(free_keys[k], key) == 0;
            }
            for (int k = 0; job_need_at(k) != NULL; k++) {
                known |= job_need_has(job_need_at(k), s->name, f->key);
            }
            if (!known) {
                fail_msg("%s: beside what does it count? Give it a row in job_needs.c", key);
            }
        }
    }
}

static void test_words(void **state)
{
    struct settings s = {0};
    (void)state;
    add(&s, "power_sgd.warm_start=false power_sgd.random_seed=3 checkpointing.skip_when_saving=true");
    char *text = said(&s);
    assert_string_equal(text, "power_sgd.warm_start, power_sgd.random_seed (goes with ddp.comm_hook power_sgd or "
                              "batched_power_sgd); checkpointing.skip_when_saving (goes with "
                              "checkpointing.asynchronous true)");
    free(text);
    /* where gradients rest is a matter of accumulate_sync, too */
    static const struct {
        const char *strategy, *sync;
        int steps;
        bool whole;
    } rests[] = {{"zero2", "boundary", 2, true},
                 {"zero3", "boundary", 2, true},
                 {"zero2", "auto", 2, false},
                 {"ddp", "every_micro_step", 2, false},
                 {"zero1", "every_micro_step", 2, false},
                 {"ddp", "every_micro_step", 1, true},
                 {"zero1", "auto", 2, true}};
    for (size_t i = 0; i < sizeof rests / sizeof rests[0]; i++) {
        char all[256];
        (void)snprintf(all, sizeof all,
                       "ddp.bucket_cap_mb=7 fsdp.overlap_comm=false training.strategy=%s training.accumulate_sync=%s "
                       "training.gradient_accumulation_steps=%d",
                       rests[i].strategy, rests[i].sync, rests[i].steps);
        s.count = 0;
        add(&s, all);
        text = said(&s);
        if (names(text, "ddp.bucket_cap_mb") == rests[i].whole || names(text, "fsdp.overlap_comm") != rests[i].whole) {
            fail_msg("%s: \"%s\"", all, text);
        }
        free(text);
    }
    /* a trial has switched off what it has no use for */
    s.count = 0;
    add(&s, "training.fast_dev_run=2 early_stopping.patience=2 checkpointing.load_best_model_at_end=true");
    text = said(&s);
    assert_string_equal(text, "");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_row),
        cmocka_unit_test(test_sections_of_details),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
