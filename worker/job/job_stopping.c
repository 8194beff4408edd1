/* When a run is evaluated and when it ends: the section early_stopping, what is monitored, trials. */
#include "worker/job/job.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(member) offsetof(struct job_stopping, member)
static const struct dt_rule string_or_null = {.type = DT_RULE_STRING, .null = true};
static const struct dt_rule mode = {.type = DT_RULE_ENUM, .choices = "auto|min|max"};
static const struct dt_rule patience = {.type = DT_RULE_INTEGER, .min = 0, .max = 1000000};
static const struct dt_rule delta = {.type = DT_RULE_NUMBER, .max = 1e30};
static const struct dt_rule threshold = {
    .type = DT_RULE_NUMBER, .min = -2e9, .max = 1e30, .null = true, .null_value = (int)JOB_NO_THRESHOLD};
static const struct dt_rule boolean = {.type = DT_RULE_BOOL};
const struct dt_field job_stopping_fields[] = {
    {"monitor", "null", "by which value of evaluations a run ends early; null: by none", AT(monitor), &string_or_null},
    {"mode", "\"auto\"", "which value is better; auto: min of a loss, otherwise max", AT(mode), &mode},
    {"patience", "3", "evaluations without a better value before it ends", AT(patience), &patience},
    {"min_delta", "0", "by how much a value must be better", AT(min_delta), &delta},
    {"compare_with_best", "false",
     "min_delta counts from the best value, as in Transformers; false: from the last that was better by it, as in "
     "Lightning",
     AT(compare_with_best), &boolean},
    {"stopping_threshold", "null", "it ends when the value is better than this", AT(stopping_threshold), &threshold},
    {"divergence_threshold", "null", "it ends when the value is worse than this", AT(divergence_threshold), &threshold},
    {"check_finite", "true", "it ends when the value is not finite", AT(check_finite), &boolean},
    {0},
};
#undef AT

static bool is_value(const char *name)
{
    size_t size = strlen(name);
    for (const char *p = JOB_MONITORS; *p != 0; p += strcspn(p, "|"), p += *p == '|') {
        if (strcspn(p, "|") == size && strncmp(p, name, size) == 0) {
            return true;
        }
    }
    return false;
}

int job_monitor(const struct job *job, const char *monitor, const char **value)
{
    if (strncmp(monitor, "val_", 4) != 0) {
        return -1;
    }
    *value = monitor + 4;
    if (is_value(*value)) {
        return 0;
    }
    for (int i = 0; i < job->data.val.count; i++) {
        const char *set = job->data.val.of[i].name;
        size_t size = set != NULL ? strlen(set) : 0;
        if (size > 0 && strncmp(monitor + 4, set, size) == 0 && monitor[4 + size] == '_' &&
            is_value(monitor + 4 + size + 1)) {
            *value = monitor + 4 + size + 1;
            return i;
        }
    }
    return -1;
}

static bool is_evaluated(const struct job *job)
{
    const struct job_training *t = &job->training;
    return job->data.val.count > 0 && (t->eval_every_n_steps > 0 || t->eval_every_n_epochs > 0);
}

/* Checks a monitor and its mode. */
static void check_monitor(struct job *job, struct dt_config *c, const char *key, const char *monitor, int *better)
{
    const char *value = NULL;
    if (job_monitor(job, monitor, &value) < 0) {
        dt_config_problem(c, key,
                          "%s is no value of an evaluation; there are val_loss, val_accuracy, val_f1_macro and "
                          "val_pearson, and of a named set of data.val val_NAME_loss, ...",
                          monitor);
        return;
    }
    if (!is_evaluated(job)) {
        dt_config_problem(c, key, "looks at evaluations; give %s",
                          job->data.val.count == 0 ? "data.val"
                                                   : "training.eval_every_n_steps or training.eval_every_n_epochs");
    }
    if (*better == MODE_AUTO) {
        *better = strcmp(value, "loss") == 0 ? MODE_MIN : MODE_MAX;
    }
}

/* "DD:HH:MM:SS", or fewer parts of its end. Below 0: it is none of these. */
static double parse_time(const char *text)
{
    static const double of[] = {86400, 3600, 60, 1};
    double parts[4], seconds = 0;
    int count = 0;
    for (const char *p = text;; p++) {
        char *end;
        if (count == 4 || *p < '0' || *p > '9') {
            return -1;
        }
        parts[count++] = (double)strtoul(p, &end, 10);
        if (*end == 0) {
            break;
        }
        if (*end != ':') {
            return -1;
        }
        p = end;
    }
    for (int i = 0; i < count; i++) {
        seconds += parts[i] * of[4 - count + i];
    }
    return seconds > 0 && seconds <= 31536000.0 * 10 ? seconds : -1;
}

void job_read_stopping(struct dt_config *c)
{
    static const char trial[] = "training.fast_dev_run", time[] = "training.max_time";
    const cJSON *said = dt_config_value(c, trial), *most = dt_config_value(c, time);
    char text[32];
    if (cJSON_IsBool(said)) { /* as Lightning has it */
        dt_config_move(c, trial, trial, cJSON_CreateNumber(cJSON_IsTrue(said)));
    }
    if (cJSON_IsNumber(most)) { /* seconds, as the string of one number */
        (void)snprintf(text, sizeof text, "%.17g", most->valuedouble);
        dt_config_move(c, time, time, cJSON_CreateString(text));
    }
}

void job_make_trial(struct job *job)
{
    struct job_training *t = &job->training;
    if (t->fast_dev_run > 0) {
        t->max_steps = t->fast_dev_run;
        t->max_tokens = 0;
        t->num_epochs = 0;
        t->epoch_limit = 0;
        t->eval_batches = (double)t->fast_dev_run;
        t->num_sanity_val_steps = t->min_steps = 0;
        t->min_epochs = 0;
        job->stopping.monitor = NULL;
        job->checkpointing.save_top_k = 0;
    }
}

void job_check_stopping(struct job *job, struct dt_config *c)
{
    struct job_checkpointing *s = &job->checkpointing;
    struct job_training *t = &job->training;
    bool by_clock = s->save_every_n_seconds > 0;
    if ((s->save_every_n_epochs > 0 || by_clock) && dt_config_where(c, "checkpointing.save_every_n_steps") == NULL) {
        s->save_every_n_steps = 0;
        dt_config_derived(c, "checkpointing.save_every_n_steps",
                          by_clock ? "checkpointing.save_every_n_seconds" : "checkpointing.save_every_n_epochs");
    }
    if (t->eval_every_n_epochs > 0 && job->data.val.count == 0) {
        dt_config_problem(c, "training.eval_every_n_epochs", "there is nothing to evaluate on; give data.val");
    }
    if (t->eval_every_n_epochs > 0 && t->eval_every_n_steps > 0) {
        dt_config_problem(c, "training.eval_every_n_epochs",
                          "training.eval_every_n_steps says the same (%s); remove one",
                          dt_config_source(c, "training.eval_every_n_steps"));
    }
    if (t->num_sanity_val_steps != 0 && job->data.val.count == 0) {
        dt_config_problem(c, "training.num_sanity_val_steps", "there is nothing to evaluate on; give data.val");
    }
    if (job->stopping.monitor != NULL) {
        check_monitor(job, c, "early_stopping.monitor", job->stopping.monitor, &job->stopping.mode);
    }
    if (s->save_top_k > 0) {
        check_monitor(job, c, s->monitor != NULL ? "checkpointing.monitor" : "checkpointing.save_top_k",
                      s->monitor != NULL ? s->monitor : "val_loss", &s->mode);
    }
    t->max_time_s = t->max_time != NULL ? parse_time(t->max_time) : 0;
    if (t->max_time_s < 0) {
        dt_config_problem(c, "training.max_time", "%s is no time; write \"DD:HH:MM:SS\", or fewer numbers of its end",
                          t->max_time);
    }
}

static bool same_monitor(const cJSON *saved, const char *section, const cJSON *now)
{
    const cJSON *was = cJSON_GetObjectItemCaseSensitive(saved, section),
                *is = cJSON_GetObjectItemCaseSensitive(now, section);
    static const char *const keys[] = {"monitor", "mode"};
    for (int i = 0; i < 2; i++) {
        if (!cJSON_Compare(cJSON_GetObjectItemCaseSensitive(was, keys[i]),
                           cJSON_GetObjectItemCaseSensitive(is, keys[i]), true)) {
            return false;
        }
    }
    return true;
}

void job_same_monitors(const struct job *job, const char *saved, bool *stopping, bool *best)
{
    cJSON *was = cJSON_Parse(saved != NULL ? saved : ""), *is = cJSON_Parse(job->text != NULL ? job->text : "");
    if (was != NULL && is != NULL) {
        *stopping = same_monitor(was, "early_stopping", is);
        *best = same_monitor(was, "checkpointing", is);
    }
    cJSON_Delete(is);
    cJSON_Delete(was);
}
