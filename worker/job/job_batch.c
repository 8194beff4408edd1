/* What spans keys of the batch and the length of a run: tokens instead of samples and steps, and an
 * accumulation that changes over epochs. */
#include "worker/job/batch.h"
#include "worker/job/dialects/dialect.h"
#include "worker/job/job_fields.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_KEY "training.gradient_accumulation_steps"
#define SCHEDULE_KEY "training.accumulation_schedule"
#define MICRO_KEY "training.batch_size_per_gpu"
#define ALL_KEY "training.train_batch_tokens"
#define TOKENS_KEY "training.max_tokens"

enum { FACTOR_MAX = 65536, EPOCH_MAX = 1000000, PAIRS_MAX = DT_INTEGERS_MAX / 2 };

int64_t job_accumulation(const struct job_training *t, int64_t epoch)
{
    const struct dt_integers *s = &t->accumulation_schedule;
    int64_t factor = s->count > 0 ? 1 : t->gradient_accumulation_steps;
    for (int64_t i = 0; i + 1 < s->count && s->of[i] <= epoch; i += 2) {
        factor = s->of[i + 1];
    }
    return factor;
}

int64_t job_accumulation_end(const struct job_training *t, int64_t epoch)
{
    const struct dt_integers *s = &t->accumulation_schedule;
    int64_t i = 0;
    while (i < s->count && s->of[i] <= epoch) {
        i += 2;
    }
    return i < s->count ? s->of[i] : INT64_MAX;
}

void job_set_samples(struct job_training *t, int64_t sequence_length)
{
    t->max_samples = t->max_tokens > 0 ? (t->max_tokens - 1) / sequence_length + 1 : 0;
}

/* ---- an object of epochs instead of a number ---- */

static int by_epoch(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Pairs of epoch and factor, by epoch, the first of epoch 0. False: the object is no such schedule. */
static bool read_pairs(const cJSON *object, struct dt_integers *out)
{
    *out = (struct dt_integers){0};
    for (const cJSON *v = object->child; v != NULL; v = v->next) {
        char *end = NULL;
        long epoch = strtol(v->string, &end, 10);
        if (*v->string < '0' || *v->string > '9' || *end != 0 || epoch > EPOCH_MAX || !cJSON_IsNumber(v) ||
            !(v->valuedouble >= 1 && v->valuedouble <= FACTOR_MAX) || v->valuedouble != floor(v->valuedouble) ||
            out->count + 2 > DT_INTEGERS_MAX) {
            return false;
        }
        out->of[out->count++] = epoch;
        out->of[out->count++] = (int64_t)v->valuedouble;
    }
    qsort(out->of, (size_t)out->count / 2, 2 * sizeof *out->of, by_epoch);
    bool from_0 = out->count > 0 && out->of[0] == 0;
    if (!from_0 && out->count < DT_INTEGERS_MAX) {
        memmove(&out->of[2], out->of, (size_t)out->count * sizeof *out->of);
        out->of[0] = 0;
        out->of[1] = 1;
        out->count += 2;
        from_0 = true;
    }
    return from_0;
}

/* Epochs ascend from 0. */
static bool is_schedule(const struct dt_integers *s)
{
    bool good = s->count % 2 == 0 && s->of[0] == 0;
    for (int64_t i = 0; i < s->count; i += 2) {
        good = good && (i == 0 || s->of[i] > s->of[i - 2]) && s->of[i + 1] >= 1 && s->of[i + 1] <= FACTOR_MAX;
    }
    return good;
}

void job_read_accumulation(struct dt_config *c)
{
    const cJSON *value = dt_config_value(c, STEPS_KEY);
    struct dt_integers pairs;
    if (!cJSON_IsObject(value)) {
        return;
    }
    if (!read_pairs(value, &pairs) || !is_schedule(&pairs)) {
        dt_config_problem(
            c, STEPS_KEY,
            "give a number, or an object of epochs and numbers such as {\"0\": 1, \"4\": 2}: epochs from 0, "
            "each once, numbers from 1 to %d, at most %d of them",
            FACTOR_MAX, PAIRS_MAX);
        dt_config_pass(c, STEPS_KEY);
        dt_config_move(c, STEPS_KEY, STEPS_KEY, cJSON_CreateNumber(1));
        return;
    }
    cJSON *list = cJSON_CreateArray();
    double most = 1;
    for (int64_t i = 0; i < pairs.count; i++) {
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)pairs.of[i]));
        most = i % 2 == 1 ? fmax(most, (double)pairs.of[i]) : most;
    }
    dt_config_move(c, STEPS_KEY, SCHEDULE_KEY, list);
    dt_config_move(c, STEPS_KEY, STEPS_KEY, cJSON_CreateNumber(most));
}

/* ---- checks ---- */

static void check_schedule(struct job *job, struct dt_config *c)
{
    struct job_training *t = &job->training;
    const struct dt_integers *s = &t->accumulation_schedule;
    int64_t most = 0;
    if (s->count == 0) {
        return;
    }
    if (!is_schedule(s)) {
        dt_config_problem(c, SCHEDULE_KEY,
                          "give pairs of an epoch and its " STEPS_KEY ", epochs in order from 0: [0, 1, 4, 2]");
        return;
    }
    for (int64_t i = 1; i < s->count; i += 2) {
        most = s->of[i] > most ? s->of[i] : most;
    }
    if (dt_config_where(c, STEPS_KEY) == NULL) {
        t->gradient_accumulation_steps = most;
        dt_config_derived(c, STEPS_KEY, SCHEDULE_KEY);
    } else if (t->gradient_accumulation_steps != most) {
        dt_config_problem(c, STEPS_KEY, "is %" PRId64 ", and the most of " SCHEDULE_KEY " is %" PRId64 "; remove one",
                          t->gradient_accumulation_steps, most);
    }
    if (t->partial_accumulation == PARTIAL_CARRY) {
        dt_config_problem(c, "training.partial_accumulation",
                          "carry takes a step over the end of an epoch, where " SCHEDULE_KEY
                          " may change it; write step "
                          "or drop");
    }
}

/* Numbers of batches, or shares: 1.0 is all, and 1 is one. */
static void check_limits(struct job *job, struct dt_config *c)
{
    struct job_training *t = &job->training;
    static const char *const keys[] = {"training.limit_train_batches", "training.overfit_batches",
                                       "training.eval_batches"};
    bool overfits = false;
    double *const values[] = {&t->limit_train_batches, &t->overfit_batches, &t->eval_batches};
    for (int i = 0; i < 3; i++) {
        const cJSON *said = dt_config_given(c, keys[i]);
        bool share = *values[i] == 1 && said != NULL && said->valuestring != NULL && strpbrk(said->valuestring, ".eE");
        if (*values[i] > 1 && *values[i] != floor(*values[i])) {
            dt_config_problem(c, keys[i], "is %g; give a whole number of batches, or a share below 1", *values[i]);
        }
        overfits |= i == 1 && *values[i] > 0;
        if (share && i == 1) { /* all batches in one order: what data.shuffle is for */
            dt_config_problem(c, keys[i], "1.0 trains on all batches, in one order; write data.shuffle false instead");
        }
        *values[i] = !share ? *values[i] : i == 0 ? -1 : 0;
    }
    if (overfits) { /* as in Lightning, whatever the job says */
        job->data.shuffle = false;
        dt_config_derived(c, "data.shuffle", keys[1]);
    }
    if (t->overfit_batches > 0) {
        t->limit_train_batches = -1;
        t->eval_batches = t->fast_dev_run > 0 ? t->eval_batches : 0;
    }
}

static struct batch_number number(const struct dt_config *c, const char *key, int64_t value)
{
    const cJSON *said = dt_config_value(c, key);
    bool open = dialect_is_auto(said), given = said != NULL && !open;
    return (struct batch_number){.name = given ? dt_config_name(c, key) : key,
                                 .source = dt_config_source(c, key),
                                 .value = given ? value : 1,
                                 .given = given,
                                 .is_auto = open};
}

/* training.train_batch_tokens gives what is missing of the batch. */
static void check_batch_tokens(struct job *job, struct dt_config *c, int ranks)
{
    struct job_training *t = &job->training;
    if (t->accumulation_schedule.count > 0) {
        dt_config_problem(c, ALL_KEY, "the batch changes with " SCHEDULE_KEY " (%s); remove one of them",
                          dt_config_source(c, SCHEDULE_KEY));
        return;
    }
    struct batch_identity b = {.all = {.name = ALL_KEY, .value = t->train_batch_tokens, .given = true},
                               .micro = number(c, MICRO_KEY, t->batch_size_per_gpu),
                               .steps = number(c, STEPS_KEY, t->gradient_accumulation_steps),
                               .ranks = ranks > 0 ? ranks : 1,
                               .sample = job->data.sequence_length};
    struct dt_text why;
    dt_text_init(&why);
    if (batch_solve(&b, &why) != 0) {
        dt_config_problem(c, ALL_KEY, "%s", dt_text_str(&why));
    } else if (b.micro.value > FACTOR_MAX || b.steps.value > FACTOR_MAX) {
        dt_config_problem(c, ALL_KEY, "%" PRId64 " samples in %" PRId64 " micro-steps; at most %d of each",
                          b.micro.value, b.steps.value, FACTOR_MAX);
    } else {
        t->batch_size_per_gpu = b.micro.value;
        t->gradient_accumulation_steps = b.steps.value;
        dt_config_derived(c, MICRO_KEY, ALL_KEY);
        dt_config_derived(c, STEPS_KEY, ALL_KEY);
    }
    dt_text_clear(&why);
}

void job_check_batch(struct job *job, struct dt_config *c, int ranks)
{
    struct job_training *t = &job->training;
    bool tokens = job->model.ops->positions != NULL;
    const char *const keys[] = {TOKENS_KEY, ALL_KEY};
    const int64_t values[] = {t->max_tokens, t->train_batch_tokens};
    check_schedule(job, c);
    check_limits(job, c);
    for (int i = 0; i < 2; i++) {
        if (values[i] > 0 && !tokens) {
            dt_config_problem(c, keys[i], "samples of %s are no sequences of tokens; remove it", job->model.ops->name);
        }
    }
    if (t->max_tokens > 0 && t->max_steps > 0) {
        dt_config_problem(c, TOKENS_KEY, "training.max_steps (%s) says the length, too; remove one of them",
                          dt_config_source(c, "training.max_steps"));
    }
    if (t->train_batch_tokens > 0 && tokens) {
        check_batch_tokens(job, c, ranks);
    }
    job_set_samples(t, job->data.sequence_length);
}
