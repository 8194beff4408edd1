/* optimizer.groups: which tensors have a rate and a decay of their own. */
#include "worker/job/job_fields.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

enum { PARAMS_MAX = 64 };

static const char path[] = "optimizer.groups";

/* Copies a name, or a list of them. False: there is none, or something else among them. */
static bool read_params(struct job *job, const cJSON *value, struct dt_strings *out)
{
    int count = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    if (value == NULL || count < 1 || count > PARAMS_MAX) {
        return false;
    }
    const char **names = dt_arena_alloc(&job->arena, (size_t)count * sizeof *names);
    for (int i = 0; i < count; i++) {
        const cJSON *x = cJSON_IsArray(value) ? cJSON_GetArrayItem(value, i) : value;
        if (!cJSON_IsString(x) || *x->valuestring == 0) {
            return false;
        }
        names[i] = dt_arena_strdup(&job->arena, x->valuestring);
    }
    *out = (struct dt_strings){count, names};
    return true;
}

/* False after a problem. A number that is not there leaves *out. */
static bool read_number(struct dt_config *c, int group, const cJSON *object, const char *key, double *out)
{
    const cJSON *x = cJSON_GetObjectItemCaseSensitive(object, key);
    if (x == NULL) {
        return true;
    }
    if (!cJSON_IsNumber(x) || !(x->valuedouble >= 0) || x->valuedouble > 1e30) {
        dt_config_problem(c, path, "group %d: %s is no number from 0 on", group, key);
        return false;
    }
    *out = x->valuedouble;
    return true;
}

static bool read_group(struct job *job, struct dt_config *c, int number, const cJSON *object, struct job_group *out)
{
    static const char *const keys[] = {"params", "learning_rate", "lr_scale", "weight_decay"};
    const cJSON *x;
    double rate = NAN, scale = NAN;
    *out = (struct job_group){.lr_scale = 1, .weight_decay = NAN};
    cJSON_ArrayForEach(x, object)
    {
        bool known = false;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            known = known || strcmp(keys[i], x->string) == 0;
        }
        if (!known) {
            dt_config_problem(c, path,
                              "group %d: %.40s is no key of a group; it has params, learning_rate or "
                              "lr_scale, weight_decay",
                              number, x->string);
            return false;
        }
    }
    if (!read_params(job, cJSON_GetObjectItemCaseSensitive(object, "params"), &out->params)) {
        dt_config_problem(c, path, "group %d: give params: a name of tensors as *.bias, or a list of up to %d", number,
                          PARAMS_MAX);
        return false;
    }
    if (!read_number(c, number, object, "learning_rate", &rate) ||
        !read_number(c, number, object, "lr_scale", &scale) ||
        !read_number(c, number, object, "weight_decay", &out->weight_decay)) {
        return false;
    }
    if (!isnan(rate) && (!isnan(scale) || job->training.learning_rate == 0)) {
        dt_config_problem(c, path, "group %d: learning_rate %s; %s", number,
                          isnan(scale) ? "is reached by the schedule of training.learning_rate, which is 0"
                                       : "and lr_scale are two rates",
                          isnan(scale) ? "give that one" : "give one of them");
        return false;
    }
    out->lr_scale = !isnan(rate) ? rate / job->training.learning_rate : !isnan(scale) ? scale : 1;
    return true;
}

void job_read_groups(struct job *job, struct dt_config *c)
{
    struct job_optimizer *o = &job->optimizer;
    cJSON *list = o->groups_text != NULL ? cJSON_Parse(o->groups_text) : NULL;
    int count = cJSON_GetArraySize(list);
    if (count > JOB_GROUPS_MAX) {
        dt_config_problem(c, path, "has %d groups; give %d at most", count, JOB_GROUPS_MAX);
        count = 0;
    }
    for (int i = 0; i < count && read_group(job, c, i + 1, cJSON_GetArrayItem(list, i), &o->groups[i]); i++) {
        o->group_count = i + 1;
    }
    cJSON_Delete(list);
}
