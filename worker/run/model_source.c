/* See the header. */
#include "worker/run/model_source.h"

#include "base/file.h"
#include "worker/checkpoints/hf.h"
#include "worker/job/folder.h"
#include "worker/job/job.h"
#include "worker/model/model.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { CONFIG_MAX = 1 << 20, GENERATION_MAX = 1 << 20 };

static bool has_file(const char *folder, const char *name)
{
    char *path = dt_format("%s/%s", folder, name);
    bool found = dt_file_exists(path);
    free(path);
    return found;
}

/* Where the tokenizer is. named: data.tokenizer, which may be a name alone; folder: the files beside the
 * weights. Null: not given. */
static void find_tokenizer(struct model_source *s, const char *named, const char *folder)
{
    struct stat st;
    if (named != NULL && stat(named, &st) == 0 && (!S_ISDIR(st.st_mode) || has_file(named, "tokenizer.json"))) {
        s->tokenizer = dt_strdup(named);
    } else if (folder != NULL && has_file(folder, "tokenizer.json")) {
        s->tokenizer = dt_strdup(folder);
    }
}

/* generation_config.json of a folder, if it is there. */
static int read_generation(struct model_source *s, const char *folder, struct dt_error *err)
{
    char *path = dt_format("%s/generation_config.json", folder);
    int rc = dt_file_exists(path) ? hf_read_json(path, GENERATION_MAX, &s->generation, NULL, err) : 0;
    free(path);
    return rc;
}

static int open_folder(struct model_source *s, const char *path, struct dt_text *notes, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int rc = hf_config(path, &s->model, &s->sizes, &text, err);
    s->path = dt_strdup(path);
    s->config = rc == 0 ? cJSON_ParseWithLength(dt_text_str(&text), text.size) : NULL;
    dt_text_clear(&text);
    if (rc != 0) {
        return -1;
    }
    if (hf_untie(path, s->model, s->sizes.bytes) && notes != NULL) {
        dt_text_printf(notes, "%s: %s differs from %s, though config.json says %s true: both are used", path,
                       s->model->tied.head, s->model->tied.table, s->model->tied.key);
    }
    find_tokenizer(s, NULL, path);
    return read_generation(s, path, err);
}

/* The model is that of the checkpoint's config.json, its length that of the job that trained it. */
static int open_checkpoint(struct model_source *s, struct dt_error *err)
{
    if (checkpoint_open(&s->checkpoint, s->path, err) != 0) {
        return -1;
    }
    const struct checkpoint_state *state = checkpoint_get_state(s->checkpoint);
    s->config = cJSON_Parse(state->model_config);
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(s->config, "model_type");
    s->model = cJSON_IsString(name) ? model_find(name->valuestring) : NULL;
    if (s->model == NULL) {
        return dt_fail(err, DT_INVALID, "%s: the checkpoint names no model that can be run", s->path);
    }
    if (model_read_config(s->model, s->config, s->sizes.bytes, err) != 0) {
        return dt_wrap(err, "%s", s->path);
    }
    cJSON *job = cJSON_Parse(state->job);
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(job, "data"),
                *t = cJSON_GetObjectItemCaseSensitive(data, "sequence_length"),
                *tokenizer = cJSON_GetObjectItemCaseSensitive(data, "tokenizer");
    s->trained_length = cJSON_IsNumber(t) && t->valuedouble >= 1 ? (int64_t)t->valuedouble : 0;
    char *origin = checkpoint_origin(s->path);
    find_tokenizer(s, cJSON_GetStringValue(tokenizer), origin);
    cJSON_Delete(job);
    int rc = read_generation(s, origin, err);
    free(origin);
    return rc;
}

int model_source_open(struct model_source *s, const char *path, struct dt_text *notes, struct dt_error *err)
{
    struct stat st;
    *s = (struct model_source){0};
    if (stat(path, &st) != 0) {
        return dt_fail(err, DT_NOT_FOUND, "%s: no such folder", path);
    }
    if (!S_ISDIR(st.st_mode)) {
        return dt_fail(err, DT_NOT_FOUND, "%s: is a file; give the folder of a checkpoint, of a run or of a model",
                       path);
    }
    if (!has_file(path, "manifest.json") && has_file(path, "config.json")) {
        return open_folder(s, path, notes, err);
    }
    if (has_file(path, "manifest.json")) {
        s->path = dt_strdup(path);
        return open_checkpoint(s, err);
    }
    char *below = dt_format("%s/checkpoints", path);
    if (checkpoint_find(dt_file_exists(below) ? below : path, &s->path, notes, err) != 0) {
        s->path = NULL;
    }
    free(below);
    return s->path != NULL ? open_checkpoint(s, err) : -1;
}

/* The folder that a run of the job begins with, or the one that it has kept; null: there is none. The caller
 * frees it. */
static char *folder_of(const struct job *job)
{
    bool goes_on = !job->fresh && strcmp(job->checkpointing.resume, "never") != 0;
    char *kept = dt_format("%s/" ORIGIN_FOLDER, job->checkpointing.checkpoint_dir);
    if (job->model.load != NULL && dt_file_exists(job->model.load)) {
        free(kept);
        return dt_strdup(job->model.load);
    }
    if (!goes_on || !has_file(kept, "config.json")) { /* a tokenizer alone may be kept */
        free(kept);
        return NULL;
    }
    return kept;
}

int model_source_of_job(struct model_source *s, const struct job *job, struct dt_error *err)
{
    *s = (struct model_source){.model = job->model.ops, .sizes = job->model.sizes};
    char *folder = folder_of(job);
    struct dt_text text;
    dt_text_init(&text);
    int rc = 0;
    find_tokenizer(s, job->data.tokenizer, folder);
    if (folder != NULL) {
        char *path = dt_format("%s/config.json", folder);
        rc = hf_read_json(path, CONFIG_MAX, &s->config, NULL, err) == 0 ? read_generation(s, folder, err) : -1;
        free(path);
    } else {
        model_write_config(job->model.ops, job->model.sizes.bytes, &text);
        s->config = cJSON_Parse(dt_text_str(&text));
    }
    dt_text_clear(&text);
    free(folder);
    return rc;
}

void model_source_close(struct model_source *s)
{
    checkpoint_close(s->checkpoint);
    cJSON_Delete(s->config);
    cJSON_Delete(s->generation);
    free(s->path);
    free(s->tokenizer);
    *s = (struct model_source){0};
}

static int read_checkpoint(struct checkpoint *c, const struct chain *chain, char *const *units, float *buffers,
                           struct dt_error *err)
{
    for (int i = 0; i < chain->tensor_count; i++) {
        const struct tensor *t = &chain->tensors[i];
        float *at = (t->unit >= 0 ? (float *)(void *)units[t->unit] : buffers) + t->offset;
        if (checkpoint_read(c, "weight", t->name, t->numel, 0, t->numel, at, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int read_folder(const char *path, const struct chain *chain, char *const *units, float *buffers,
                       struct dt_error *err)
{
    struct hf *hf = NULL;
    int rc = hf_open(&hf, path, chain, err);
    for (int u = 0; u < chain->unit_count && rc == 0; u++) {
        rc = hf_read_unit(hf, u, 0, chain->units[u].numel, DT_F32, units[u], err);
    }
    rc = rc == 0 && chain->buffer_count > 0 ? hf_read_unit(hf, -1, 0, chain->buffer_count, DT_F32, buffers, err) : rc;
    hf_close(hf);
    return rc;
}

static void make_values(const struct chain *chain, char *const *units)
{
    for (int u = 0; u < chain->unit_count; u++) {
        init_unit(chain, u, 0, 0, chain->units[u].numel, DT_F32, units[u]);
    }
}

int model_source_read(const struct model_source *s, const struct chain *chain, char *const *units, float *buffers,
                      struct dt_error *err)
{
    init_unit(chain, -1, 0, 0, chain_buffers(chain), DT_F32, buffers);
    if (s->path == NULL) {
        make_values(chain, units);
        return 0;
    }
    return s->checkpoint != NULL ? read_checkpoint(s->checkpoint, chain, units, buffers, err)
                                 : read_folder(s->path, chain, units, buffers, err);
}
