/* optimizer.groups: which tensors have a rate, a decay and other numbers of their own. */
#include "worker/job/job_fields.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stddef.h>
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

/* Does the optimizer, or its rest unless the group names one, have this number? */
static bool has_number(const struct job *job, const struct job_group *g, size_t offset)
{
    const struct optimizer_row *row = g->row != NULL ? g->row : job->optimizer.row;
    for (; row != NULL; row = g->row != NULL ? NULL : optimizer_rest(row)) {
        for (const struct dt_field *f = row->fields; f->key != NULL; f++) {
            if (f->offset == offset) {
                return true;
            }
        }
    }
    return false;
}

/* False after a problem. */
static bool read_numbers(struct job *job, struct dt_config *c, int number, const cJSON *object, struct job_group *out)
{
    const cJSON *betas = cJSON_GetObjectItemCaseSensitive(object, "betas"), *second = cJSON_GetArrayItem(betas, 1);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(object, "optimizer");
    const struct optimizer_row *row = job->optimizer.row, *rest = optimizer_rest(row);
    const char *key = NULL;
    if (name != NULL) {
        const char *word = cJSON_IsString(name) ? name->valuestring : "";
        out->row = strcmp(word, row->name) == 0 ? row : rest != NULL && strcmp(word, rest->name) == 0 ? rest : NULL;
        if (out->row == NULL) {
            dt_config_problem(c, path, "group %d: optimizer is %s%s%s here (optimizer.name, %s)", number, row->name,
                              rest != NULL ? " or " : "", rest != NULL ? rest->name : "",
                              dt_config_source(c, "optimizer.name"));
            return false;
        }
    }
    if (betas != NULL) {
        const cJSON *first = cJSON_GetArrayItem(betas, 0);
        bool good =
            cJSON_IsArray(betas) && cJSON_GetArraySize(betas) == 2 && cJSON_IsNumber(first) && cJSON_IsNumber(second);
        out->beta1 = good ? first->valuedouble : -1;
        out->beta2 = good ? second->valuedouble : -1;
        if (!(out->beta1 >= 0 && out->beta1 < 1 && out->beta2 >= 0 && out->beta2 < 1)) {
            dt_config_problem(c, path, "group %d: betas are two numbers from 0 to below 1", number);
            return false;
        }
        out->own_betas = true;
        key = has_number(job, out, offsetof(struct dt_update_numbers, beta2)) ? key : "betas";
    }
    if (!read_number(c, number, object, "eps", &out->eps) ||
        !read_number(c, number, object, "momentum", &out->momentum)) {
        return false;
    }
    if (cJSON_HasObjectItem(object, "eps")) {
        key = has_number(job, out, offsetof(struct dt_update_numbers, eps)) ? key : "eps";
        if (out->eps == 0 || (rest != NULL && out->row == NULL)) {
            dt_config_problem(c, path, "group %d: eps %s", number,
                              out->eps == 0 ? "must be above 0" : "needs the group's optimizer; name that, too");
            return false;
        }
    }
    if (cJSON_HasObjectItem(object, "momentum")) {
        key = has_number(job, out, offsetof(struct dt_update_numbers, momentum)) ? key : "momentum";
        if (key == NULL && (out->momentum == 0 || out->momentum >= 1 || job->optimizer.numbers.momentum == 0)) {
            dt_config_problem(c, path, "group %d: momentum lies between 0 and 1, as optimizer.momentum must", number);
            return false;
        }
    }
    if (key != NULL) {
        dt_config_problem(c, path, "group %d: %s has no %s (optimizer.name, %s); remove it", number,
                          out->row != NULL ? out->row->name : row->name, key, dt_config_source(c, "optimizer.name"));
        return false;
    }
    return true;
}

static bool read_group(struct job *job, struct dt_config *c, int number, const cJSON *object, struct job_group *out)
{
    static const char *const keys[] = {"params", "learning_rate", "lr_scale", "weight_decay",
                                       "betas",  "eps",           "momentum", "optimizer"};
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
                              "lr_scale, weight_decay, betas, eps, momentum, optimizer",
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
        !read_number(c, number, object, "weight_decay", &out->weight_decay) ||
        !read_numbers(job, c, number, object, out)) {
        return false;
    }
    if (!isnan(rate) && (!isnan(scale) || job->training.learning_rate == 0)) {
        dt_config_problem(c, path, "group %d: learning_rate %s; %s", number,
                          isnan(scale) ? "is reached by the schedule of training.learning_rate, which is 0"
                                       : "and lr_scale are two rates",
                          isnan(scale) ? "give that one" : "give one of them");
        return false;
    }
    out->own_rate = !isnan(rate);
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
