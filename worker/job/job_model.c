/* Which model, and its keys: from the job, or config.json of a Hugging Face folder. A dimension that stands in both
 * files must agree. */
#include "worker/job/job_model.h"

#include "base/config_value.h"
#include "base/file.h"
#include "worker/job/folder.h"
#include "worker/job/job_fields.h"
#include "worker/model/hf_config.h"
#include "worker/model/presets.h"

#include <stdio.h>
#include <string.h>

/* Takes a key of the folder's file that the job does not give. */
static void take(struct job *job, struct dt_config *c, const struct dt_field *f, const struct model_sizes *loaded,
                 const char *file)
{
    const char *path = dt_arena_printf(&job->arena, "model.%s", f->key);
    if (!dt_config_taken(c, path)) { /* null is a value, such as no id for padding */
        memcpy(job->model.sizes.bytes + f->offset, loaded->bytes + f->offset, dt_config_size(f->rule));
        dt_config_derived(c, path, file);
    }
}

/* Returns 1 and notes the problem if the job gives a key another meaning than the folder's file; the
 * head may be another one, and dropout. */
static int compare(const struct job *job, struct dt_config *c, const struct dt_field *f,
                   const struct model_sizes *loaded, const char *file)
{
    if (model_chooses(job->model.ops, f->key) || model_drops(job->model.ops, f->key) ||
        model_same(job->model.ops, f->key, job->model.sizes.bytes, loaded->bytes)) {
        return 0;
    }
    char path[128];
    struct dt_text ours, theirs;
    (void)snprintf(path, sizeof path, "model.%s", f->key);
    dt_text_init(&ours);
    dt_text_init(&theirs);
    dt_config_format(f, job->model.sizes.bytes, &ours);
    dt_config_format(f, loaded, &theirs);
    dt_config_problem(c, path, "is %s, but %s says %s; remove it here", dt_text_str(&ours), file, dt_text_str(&theirs));
    dt_text_clear(&ours);
    dt_text_clear(&theirs);
    return 1;
}

/* The folder to read. Where it is gone, a run that goes on has kept what it needs of it; whoever
 * begins anew will miss the weights. */
static const char *folder_of(const struct job *job, struct dt_arena *arena)
{
    const char *kept = dt_arena_printf(arena, "%s/" ORIGIN_FOLDER, job->checkpointing.checkpoint_dir);
    bool goes_on = !job->fresh && strcmp(job->checkpointing.resume, "never") != 0;
    return goes_on && !dt_file_exists(job->model.load) && dt_file_exists(kept) ? kept : job->model.load;
}

/* The model's own keys of the section. Without a model, those of the first one are known, so that
 * only what is wrong is said. */
static int read_sizes(struct job *job, struct dt_config *c, const struct model_ops *ops)
{
    job->model.ops = ops != NULL ? ops : model_at(0);
    return dt_config_read(c, "model", job->model.ops->fields, job->model.sizes.bytes);
}

/* The model, or the preset's family, that the job names; null if it names none. */
static const struct model_ops *named_model(const struct job *job)
{
    const char *name = job->model.name;
    const struct preset *preset = name != NULL ? preset_find(name) : NULL;
    return preset != NULL ? model_find(preset->family) : name != NULL ? model_find(name) : NULL;
}

static int load(struct job *job, const struct job_arguments *args, struct dt_config *c)
{
    const char *folder = folder_of(job, &job->arena), *file = dt_arena_printf(&job->arena, "%s/config.json", folder);
    const struct model_ops *ops = NULL, *named = named_model(job);
    struct dt_error err = {0};
    struct model_sizes loaded;
    if (hf_config(folder, &ops, &loaded, NULL, &err) != 0) {
        dt_config_problem(c, "model.load", "%s", err.text);
        (void)read_sizes(job, c, named != NULL ? named : ops);
        return 1;
    }
    if (args->look != NULL) {
        (void)args->look(folder, ops, loaded.bytes);
    }
    int bad = read_sizes(job, c, ops);
    if (named != NULL && named != ops) {
        dt_config_problem(c, "model.name", "is %s, but %s says %s; remove it here", named->name, file, ops->name);
        return bad + 1;
    }
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        take(job, c, f, &loaded, file);
    }
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        bad += compare(job, c, f, &loaded, file);
    }
    if (job->model.name == NULL) {
        dt_config_derived(c, "model.name", file);
    }
    job->model.name = ops->name;
    return bad;
}

/* A preset is its family with other defaults. */
static int take_preset(struct job *job, struct dt_config *c, const struct preset *p)
{
    const struct model_ops *ops = model_find(p->family);
    struct model_sizes sizes;
    struct dt_error err = {0};
    int bad = read_sizes(job, c, ops);
    if (preset_sizes(p, sizes.bytes, &err) != 0) {
        dt_config_problem(c, "model.name", "%s", err.text);
        return bad + 1;
    }
    for (const struct dt_field *f = ops->fields; f->key != NULL; f++) {
        char *path = dt_arena_printf(&job->arena, "model.%s", f->key);
        if (!dt_config_taken(c, path)) {
            memcpy(job->model.sizes.bytes + f->offset, sizes.bytes + f->offset, dt_config_size(f->rule));
            dt_config_derived(c, path, p->name);
        }
    }
    job->model.name = ops->name;
    return bad;
}

int job_model_load(struct job *job, const struct job_arguments *args, struct dt_config *c)
{
    if (job->model.load != NULL) {
        return load(job, args, c);
    }
    const struct preset *preset = job->model.name != NULL ? preset_find(job->model.name) : NULL;
    if (preset != NULL) {
        return take_preset(job, c, preset);
    }
    int bad = read_sizes(job, c, job->model.name != NULL ? model_find(job->model.name) : NULL);
    if (job->model.name == NULL && dt_config_where(c, "model.name") == NULL) {
        struct dt_text names;
        dt_text_init(&names);
        model_list(&names);
        dt_config_problem(c, "model.name", "missing; give model.name (%s) or model.load (a Hugging Face folder)",
                          dt_text_str(&names));
        dt_text_clear(&names);
        bad++;
    }
    return bad;
}
