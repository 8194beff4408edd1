/* Files of other systems: whose a file is, by its keys, and how it becomes a section of a job. */
#include "worker/job/dialects/dialect.h"

#include <cjson/cJSON.h>
#include <string.h>

/* A file that cannot be read says nothing, and its system's defaults are not those of the job then. */
static void forget(struct dt_config *c, const char *place)
{
    dt_config_move(c, place, place, cJSON_CreateNull());
    dt_config_pass(c, place);
}

void dialects_include(struct dt_config *c)
{
    struct dt_error err;
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        for (const char *const *place = (*d)->places; *place != NULL; place++) {
            if (**place != 0 && dt_config_include(c, *place, &err) != 0) {
                dt_config_problem(c, *place, "%s", err.text);
                forget(c, *place);
            }
        }
    }
}

/* True when a key of "a|b.c" is given. */
static bool has_mark(const struct dt_config *c, const char *marks, struct dt_arena *arena)
{
    for (const char *p = marks; *p != 0; p += *p == '|') {
        size_t size = strcspn(p, "|");
        const char *mark = dt_arena_printf(arena, "%.*s", (int)size, p);
        if (dt_config_value(c, mark) != NULL) {
            return true;
        }
        p += size;
    }
    return false;
}

#define OURS                                                                                                           \
    "training|checkpointing|export|generation|strategies|transforms|data.train|model.name|model.load|optimizer.name|"  \
    "logging.log_every_n_steps"

/* gpt-neox's own keys, with "-" or "_" alike; DeepSpeed's stand among them. */
static bool is_neox(const struct dt_config *c)
{
    static const char *const names[][2] = {{"num_layers", "num-layers"},
                                           {"hidden_size", "hidden-size"},
                                           {"pipe_parallel_size", "pipe-parallel-size"},
                                           {"train_iters", "train-iters"}};
    int count = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        count += dt_config_value(c, names[i][0]) != NULL || dt_config_value(c, names[i][1]) != NULL;
    }
    return count >= 2;
}

static const struct dialect *recognise(const struct dt_config *c, struct dt_arena *arena)
{
    if (has_mark(c, OURS, arena)) {
        return NULL;
    }
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        if ((*d)->marks != NULL && has_mark(c, (*d)->marks, arena)) {
            return *d;
        }
    }
    return NULL;
}

/* The dialect of a file, null for one of ours. 0 or -1. */
static int look_at(const char *path, bool converts, struct dt_config **c, const struct dialect **d,
                   struct dt_arena *arena, struct dt_error *err)
{
    *d = NULL;
    struct dt_error as_json;
    if (dt_config_open(c, path, arena, &as_json) != 0) {
        if (dt_config_open_relaxed(c, path, arena, err) != 0) { /* wrong even where comments are allowed */
            *c = NULL;
            return -1;
        }
        if (recognise(*c, arena) == NULL && !is_neox(*c)) {
            (void)dt_config_close(*c, NULL, NULL);
            *c = NULL;
            *err = as_json;
            return -1;
        }
    }
    *d = recognise(*c, arena);
    if (is_neox(*c) && !has_mark(*c, OURS, arena)) {
        *d = &dialect_neox;
    }
    if (*d == &dialect_neox && !converts) {
        (void)dt_config_close(*c, NULL, NULL);
        *c = NULL;
        return dt_fail(err, DT_INVALID, "%s: a gpt-neox file; take over its DeepSpeed part with train --convert", path);
    }
    return 0;
}

int dialects_open(struct dt_config **c, const char *path, bool converts, struct dt_arena *arena, struct dt_error *err)
{
    const struct dialect *d = NULL;
    int result = look_at(path, converts, c, &d, arena, err);
    if (result == 0 && d != NULL) {
        (void)dt_config_close(*c, NULL, NULL);
        *c = NULL;
        result = dt_config_open_text(c, path, "{}", 2, arena, err);
        result = result == 0 ? dt_config_include_file(*c, d->section, path, err) : result;
    }
    return result;
}

int dialects_add(struct dt_config *c, const char *path, struct dt_arena *arena, struct dt_error *err)
{
    const struct dialect *d = NULL;
    struct dt_config *other = NULL;
    if (look_at(path, false, &other, &d, arena, err) != 0) {
        return -1;
    }
    (void)dt_config_close(other, NULL, NULL);
    if (d == NULL) {
        return dt_fail(
            err, DT_INVALID,
            "%s: beside a job file --config takes a file of DeepSpeed, Hugging Face, accelerate or Lightning", path);
    }
    const char *already = dt_config_where(c, d->section);
    if (already != NULL) {
        return dt_fail(err, DT_INVALID, "%s: a file of %s, whose keys stand in %s already; give them in one file", path,
                       d->name, already);
    }
    return dt_config_include_file(c, d->section, path, err);
}
