/* DeepSpeed's train_batch_size: the number that it leaves out of the others is derived, for the ranks that there are. */
#include "worker/job/batch.h"
#include "worker/job/dialects/deepspeed.h"

#include <cjson/cJSON.h>
#include <math.h>

static bool is_count(const cJSON *value, double most)
{
    return cJSON_IsNumber(value) && value->valuedouble >= 1 && value->valuedouble <= most &&
           value->valuedouble == floor(value->valuedouble);
}

/* *wrong: the value is none that a job may have, which is said where it is read. */
static struct batch_number factor(const struct dialect_use *u, const char *key, bool *wrong)
{
    const cJSON *value = dt_config_value(u->c, key);
    bool open = dialect_is_auto(value), given = value != NULL && !open;
    *wrong |= given && !is_count(value, 65536);
    return (struct batch_number){.name = given ? dt_config_name(u->c, key) : key,
                                 .source = given ? dt_config_source(u->c, key) : NULL,
                                 .value = given && is_count(value, 65536) ? (int64_t)value->valuedouble : 1,
                                 .given = given,
                                 .is_auto = open};
}

void deepspeed_keep(struct dialect_use *u, const char *path, const char *key, const cJSON *value)
{
    dialect_give(u, path, key, cJSON_Duplicate(value, true));
    dt_config_pass(u->c, key);
}

void deepspeed_batch(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    (void)r;
    static const char micro[] = "training.batch_size_per_gpu", steps[] = "training.gradient_accumulation_steps";
    bool wrong = false;
    if (!is_count(value, 1e15)) {
        dialect_wrong(u, path, "a whole number of at least 1");
        return;
    }
    if (cJSON_IsObject(dt_config_value(u->c, steps))) {
        dt_config_problem(u->c, path, "the batch changes with %s (%s); remove one of them", dt_config_name(u->c, steps),
                          dt_config_source(u->c, steps));
        return;
    }
    if (u->converts) {
        deepspeed_keep(u, path, "train_batch_size", value);
        return;
    }
    struct batch_identity b = {.all = {.name = path, .value = (int64_t)value->valuedouble, .given = true},
                               .micro = factor(u, micro, &wrong),
                               .steps = factor(u, steps, &wrong),
                               .ranks = u->world,
                               .sample = 1};
    struct dt_text why;
    dt_text_init(&why);
    if (!wrong && batch_solve(&b, &why) != 0) {
        dt_config_problem(u->c, path, "%s", dt_text_str(&why));
    } else if (!wrong) {
        if (!b.micro.given) {
            dialect_give(u, path, micro, cJSON_CreateNumber((double)b.micro.value));
        }
        if (!b.steps.given) {
            dialect_give(u, path, steps, cJSON_CreateNumber((double)b.steps.value));
        }
    }
    dt_text_clear(&why);
}
