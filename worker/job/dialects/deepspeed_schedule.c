/* DeepSpeed's block `scheduler`: which schedule of ours it is. Its numbers have the same names in our
 * section `scheduler`. */
#include "worker/job/dialects/deepspeed.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

static const struct type {
    const char *theirs, *ours;
    bool warms_up;
} types[] = {{"WarmupLR", "warmuplr", true},
             {"WarmupDecayLR", "warmupdecaylr", true},
             {"WarmupCosineLR", "warmupcosinelr", true},
             {"LRRangeTest", "lrrangetest", false},
             {"OneCycle", "onecycle", false}};

static const struct type *type_of(const cJSON *value)
{
    for (size_t i = 0; cJSON_IsString(value) && i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(types[i].theirs, value->valuestring) == 0) {
            return &types[i];
        }
    }
    return NULL;
}

/* A default of DeepSpeed's that is not ours, unless the job says the value. */
static void default_to(struct dialect_use *u, const char *path, const char *ours, double value)
{
    const cJSON *said = dt_config_value(u->c, ours);
    if (said == NULL || dialect_is_auto(said)) {
        dialect_give(u, path, ours, cJSON_CreateNumber(value));
    }
}

#define MOST "scheduler.params.warmup_max_lr"

/* The scheduler sets the optimizer's rate where it has one of its own: WarmupDecayLR always, WarmupLR where
 * it is given. */
void deepspeed_rate(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *type = cJSON_GetStringValue(dt_config_value(u->c, dialect_path(u, "scheduler.type")));
    const cJSON *most = dt_config_value(u->c, dialect_path(u, MOST));
    bool decays = type != NULL && strcmp(type, "WarmupDecayLR") == 0,
         warms = type != NULL && strcmp(type, "WarmupLR") == 0;
    if ((decays || warms) && dialect_says(u, MOST)) {
        if (!cJSON_Compare(most, value, true)) {
            dialect_inert(u, path, "the scheduler sets warmup_max_lr");
        }
    } else if (decays && most == NULL) {
        dialect_inert(u, path, "WarmupDecayLR sets its warmup_max_lr, 0.001 where that is not given");
    } else {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
}

/* The other schedulers take the optimizer's rate, or have rates of their own. */
void deepspeed_most(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const char *type = cJSON_GetStringValue(dt_config_value(u->c, dialect_path(u, "scheduler.type")));
    if (type != NULL && strcmp(type, "WarmupDecayLR") != 0 && strcmp(type, "WarmupLR") != 0) {
        dt_config_problem(u->c, path, "belongs to WarmupLR and WarmupDecayLR; remove it");
        return;
    }
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
}

/* The warm-up is logarithmic unless warmup_type says otherwise. */
void deepspeed_scheduler(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const struct type *type = type_of(value);
    if (type == NULL) {
        const char *word = cJSON_GetStringValue(dt_config_value(u->c, path));
        dt_config_problem(u->c, path,
                          "%.60s: there are WarmupLR, WarmupDecayLR, WarmupCosineLR, LRRangeTest and OneCycle; write "
                          "one of them, or remove the block and write training.lr_scheduler_type",
                          word != NULL ? word : "no name");
        dt_config_pass(u->c, dialect_path(u, "scheduler.params")); /* its numbers go with it */
        return;
    }
    bool decays = strcmp(type->ours, "warmupdecaylr") == 0, falls = strcmp(type->ours, "warmupcosinelr") == 0;
    const cJSON *rise = dt_config_value(u->c, dialect_path(u, "scheduler.params.warmup_type"));
    if (decays && dt_config_value(u->c, dialect_path(u, MOST)) == NULL) {
        default_to(u, path, "training.learning_rate", 0.001);
    }
    bool linear = type->warms_up && cJSON_IsString(rise) && strcmp(rise->valuestring, "linear") == 0;
    dialect_give(u, path, r->to,
                 cJSON_CreateString(dt_arena_printf(u->arena, "%s%s", type->ours, linear ? "_linear" : "")));
    if (type->warms_up && dt_config_value(u->c, dialect_path(u, "scheduler.params.warmup_num_steps")) == NULL) {
        default_to(u, path, "training.warmup_steps", 1000);
    }
    if (falls && !dialect_says(u, "scheduler.params.cos_min_ratio")) {
        default_to(u, path, "training.min_lr_ratio", 0.0001);
    }
}

/* The other schedulers know no such number. */
void deepspeed_least(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *type = dt_config_value(u->c, dialect_path(u, "scheduler.type"));
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "WarmupCosineLR") != 0) {
        dt_config_problem(u->c, path, "belongs to WarmupCosineLR; remove it");
        return;
    }
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
}

/* Here a schedule ends where the run does. */
void deepspeed_total_steps(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    const cJSON *epochs = dt_config_value(u->c, "training.num_epochs"), *steps = dt_config_value(u->c, r->to);
    if (cJSON_IsNumber(epochs) && epochs->valuedouble > 0 && steps == NULL) {
        dt_config_problem(u->c, path,
                          "the schedule ends with the run, which training.num_epochs (%s) says; write \"auto\"",
                          dt_config_source(u->c, "training.num_epochs"));
        return;
    }
    dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
}
