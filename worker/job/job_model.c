/* config.json of a Hugging Face folder -> struct job_model. A dimension that stands in both
 * files must agree. */
#include "worker/job/job_model.h"

#include "base/config_value.h"
#include "base/file.h"
#include "worker/checkpoints/hf.h"
#include "worker/job/job_fields.h"
#include "worker/checkpoints/origin.h"

#include <string.h>

/* One dimension of the folder's file into the job. */
static int take(struct job *job, struct dt_config *c, const struct dt_field *f, const struct job_model *loaded,
                const char *file)
{
    char *path = dt_arena_printf(&job->arena, "model.%s", f->key);
    struct dt_text ours, theirs;
    dt_text_init(&ours);
    dt_text_init(&theirs);
    dt_config_format(f, &job->model, &ours);
    dt_config_format(f, loaded, &theirs);
    bool differs = strcmp(dt_text_str(&ours), dt_text_str(&theirs)) != 0;
    int bad = 0;
    if (differs && dt_config_where(c, path) != NULL) {
        dt_config_problem(c, path, "is %s, but %s says %s; remove it here", dt_text_str(&ours), file,
                          dt_text_str(&theirs));
        bad = 1;
    } else if (dt_config_where(c, path) == NULL) {
        size_t size = f->rule->type == DT_RULE_NUMBER ? sizeof(double) : sizeof(int64_t);
        memcpy((char *)&job->model + f->offset, (const char *)loaded + f->offset, size);
        dt_config_derived(c, path, file);
    }
    dt_text_clear(&ours);
    dt_text_clear(&theirs);
    return bad;
}

/* The folder to read. Where it is gone, a run that goes on has kept what it needs of it; whoever
 * begins anew will miss the weights. */
static const char *folder_of(const struct job *job, struct dt_arena *arena)
{
    const char *kept = dt_arena_printf(arena, "%s/" ORIGIN_FOLDER, job->checkpointing.checkpoint_dir);
    bool goes_on = !job->fresh && strcmp(job->checkpointing.resume, "never") != 0;
    return goes_on && !dt_file_exists(job->model.load) && dt_file_exists(kept) ? kept : job->model.load;
}

static int load(struct job *job, struct dt_config *c)
{
    const char *folder = folder_of(job, &job->arena), *file = dt_arena_printf(&job->arena, "%s/config.json", folder);
    struct dt_error err = {0};
    struct model_spec spec = {0};
    int bad = 0;
    if (hf_config(folder, &spec, NULL, &err) != 0) {
        dt_config_problem(c, "model.load", "%s", err.text);
        return 1;
    }
    const struct job_model loaded = {.n_layer = spec.layers,
                                     .n_head = spec.heads,
                                     .n_embd = spec.channels,
                                     .n_positions = spec.positions,
                                     .vocab_size = spec.vocabulary,
                                     .n_inner = spec.inner == 4 * spec.channels ? 0 : spec.inner,
                                     .layer_norm_epsilon = spec.norm_epsilon,
                                     .initializer_range = spec.init_std,
                                     .attn_pdrop = spec.attn_pdrop,
                                     .embd_pdrop = spec.embd_pdrop,
                                     .resid_pdrop = spec.resid_pdrop};
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        for (const struct dt_field *f = s->fields; strcmp(s->name, "model") == 0 && f->key != NULL; f++) {
            bad += f->rule->type == DT_RULE_INTEGER || f->rule->type == DT_RULE_NUMBER ? take(job, c, f, &loaded, file)
                                                                                       : 0;
        }
    }
    if (job->model.name == NULL) {
        job->model.name = spec.name;
        dt_config_derived(c, "model.name", file);
    }
    return bad;
}

int job_model_load(struct job *job, struct dt_config *c)
{
    if (job->model.load != NULL) {
        return load(job, c);
    }
    if (job->model.name == NULL && dt_config_where(c, "model.name") == NULL) {
        dt_config_problem(c, "model.name", "missing; give model.name (gpt2) or model.load (a Hugging Face folder)");
        return 1;
    }
    return 0;
}
