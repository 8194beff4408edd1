/* Hugging Face's lr_scheduler_type with lr_scheduler_kwargs: which schedule of ours it is. */
#include "worker/job/dialects/transformers.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <strings.h>

/* A word at a key of the dialect; "" for what is no word. */
static const char *word_at(const struct dialect_use *u, const char *key)
{
    const char *word = cJSON_GetStringValue(dt_config_value(u->c, dialect_path(u, key)));
    return word != NULL ? word : "";
}

static bool is_type(const struct dialect_use *u, const char *type)
{
    return strcasecmp(word_at(u, "lr_scheduler_type"), type) == 0 || strcasecmp(word_at(u, "lr_scheduler"), type) == 0;
}

/* The rate that shares are of: the job's, or Transformers' default. */
static double rate_of(const struct dialect_use *u)
{
    double rate = 5e-5;
    (void)dt_config_number(dt_config_value(u->c, "training.learning_rate"), &rate);
    return rate;
}

/* The shapes of warm-up and fall that warmup_stable_decay has there. */
static const char *stable_type(struct dialect_use *u, const char *path)
{
    const char *fall = word_at(u, "lr_scheduler_kwargs.decay_type"),
               *rise = word_at(u, "lr_scheduler_kwargs.warmup_type");
    if (*rise != 0 && strcmp(rise, "linear") != 0) {
        dt_config_problem(u->c, dialect_path(u, "lr_scheduler_kwargs.warmup_type"),
                          "is %.40s: a warm-up is a line here; write linear", rise);
    }
    if (*fall != 0 && strcmp(fall, "cosine") != 0 && strcmp(fall, "linear") != 0) {
        dt_config_problem(u->c, dialect_path(u, "lr_scheduler_kwargs.decay_type"),
                          "is %.40s: there are cosine and linear; write one of them", fall);
    }
    if (!dialect_says(u, "lr_scheduler_kwargs.num_decay_steps") &&
        dt_config_value(u->c, "training.decay_ratio") == NULL) {
        dt_config_problem(
            u->c, path,
            "warmup_stable_decay needs lr_scheduler_kwargs.num_decay_steps, as in Transformers; add it, or "
            "training.decay_ratio to the job");
    }
    return strcmp(fall, "linear") == 0 ? "warmup_stable_decay_linear" : "warmup_stable_decay";
}

void transformers_schedule(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    static const char names[] =
        "linear=linear|cosine=cosine|constant=constant|constant_with_warmup=constant_with_warmup|polynomial=polynomial|"
        "inverse_sqrt=inverse_sqrt|cosine_with_min_lr=cosine|cosine_with_restarts=cosine_with_restarts|"
        "reduce_lr_on_plateau=reduce_lr_on_plateau|cosine_warmup_with_min_lr=!its warm-up begins above 0; write "
        "cosine_with_min_lr|greedy=!the rate follows no schedule; write reduce_lr_on_plateau|*=!there are linear, "
        "cosine, "
        "cosine_with_min_lr, cosine_with_restarts, constant, constant_with_warmup, polynomial, inverse_sqrt, "
        "warmup_stable_decay and reduce_lr_on_plateau; write one of them";
    const struct dialect_rule words = WORDS(r->from, r->to, names);
    const char *type = cJSON_IsString(value) ? value->valuestring : "";
    if (strcasecmp(type, "warmup_stable_decay") == 0) {
        dialect_give(u, path, r->to, cJSON_CreateString(stable_type(u, path)));
        return;
    }
    if (strcasecmp(type, "cosine_with_min_lr") == 0 && !dialect_says(u, "lr_scheduler_kwargs.min_lr") &&
        !dialect_says(u, "lr_scheduler_kwargs.min_lr_rate") && dt_config_value(u->c, "training.min_lr_ratio") == NULL) {
        dt_config_problem(
            u->c, path,
            "cosine_with_min_lr needs min_lr or min_lr_rate in lr_scheduler_kwargs, as in Transformers; add "
            "one, or write cosine");
        return;
    }
    dialect_words(u, &words, path, value);
    if (strcasecmp(type, "polynomial") == 0 && !dialect_says(u, "lr_scheduler_kwargs.lr_end") &&
        dt_config_value(u->c, "training.min_lr_ratio") == NULL && rate_of(u) > 1e-7) {
        dialect_give(u, path, "training.min_lr_ratio", cJSON_CreateNumber(1e-7 / rate_of(u))); /* its default */
    }
}

/* Below 1 warmup_steps is a share of all steps. Transformers passes over a warm-up where the schedule has none. */
void transformers_warmup(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (!transformers_number(u, path, value, &number)) {
        return;
    }
    bool share = number > 0 && number < 1 && strcmp(r->from, "warmup_steps") == 0;
    if (number > 0 && (is_type(u, "constant") || is_type(u, "reduce_lr_on_plateau"))) {
        dialect_inert(u, path, "this lr_scheduler_type has no warm-up in Transformers, either");
    } else {
        dialect_give(u, path, share ? "training.warmup_ratio" : r->to, cJSON_CreateNumber(number));
    }
}

/* The least rate as a number; ours is a share, but of a plateau. */
void transformers_least(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double least = 0, rate = rate_of(u);
    if (!transformers_number(u, path, value, &least)) {
        return;
    }
    if (is_type(u, "reduce_lr_on_plateau")) {
        dialect_give(u, path, "scheduler.min_lr", cJSON_CreateNumber(least));
    } else if (least < 0 || rate <= 0 || least > rate) {
        dt_config_problem(u->c, path, "must lie between 0 and the learning rate, %g", rate);
    } else {
        dialect_give(u, path, r->to, cJSON_CreateNumber(least / rate));
    }
}

/* Waves: half a one, but of cosine_with_restarts. */
void transformers_cycles(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    double number = 0;
    if (is_type(u, "cosine_with_restarts")) {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    } else if (!dt_config_number(value, &number) || number != 0.5) {
        dt_config_problem(u->c, path,
                          "falls as half a wave, 0.5; write that, or lr_scheduler_type cosine_with_restarts");
    }
}

bool transformers_has_plateau(const struct dialect_use *u)
{
    return is_type(u, "reduce_lr_on_plateau");
}

void transformers_no_stable(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    (void)value;
    dt_config_problem(u->c, path, "the rate stays for what warm-up and num_decay_steps leave; remove it");
}
