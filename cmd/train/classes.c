/* See the header. */
#include "cmd/train/classes.h"

#include "base/file.h"
#include "cmd/dtdata/labels.h"
#include "worker/data/rows.h"
#include "worker/data/safetensors.h"
#include "worker/job/folder.h"
#include "worker/model/hf_config.h"
#include "worker/run/model_source.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* True if the folder's head is that of the job, and so its classes are. */
static bool same_head(const struct job_model *m, const struct model_sizes *loaded)
{
    bool same = true;
    for (const char *const *key = m->ops->head_keys; key != NULL && *key != NULL; key++) {
        bool decides = strcmp(*key, "num_labels") == 0 || strcmp(*key, "task") == 0;
        same = same && (!decides || model_same(m->ops, *key, m->sizes.bytes, loaded->bytes));
    }
    return same;
}

/* config.json of model.load, or of what the run has kept of it; null: there is none with the job's head. */
static int read_folder(const struct job *job, cJSON **config, struct dt_error *err)
{
    const struct model_ops *ops;
    struct model_sizes sizes;
    struct dt_text text;
    char *kept = dt_format("%s/" ORIGIN_FOLDER, job->checkpointing.checkpoint_dir);
    const char *load = job->model.load;
    int rc = 0;
    dt_text_init(&text);
    if (load != NULL) {
        rc = hf_config(dt_file_exists(load) ? load : kept, &ops, &sizes, &text, err);
        *config = rc == 0 && same_head(&job->model, &sizes) ? cJSON_Parse(dt_text_str(&text)) : NULL;
    }
    dt_text_clear(&text);
    free(kept);
    return rc;
}

static int read_checkpoint(const char *path, cJSON **config, struct dt_error *err)
{
    struct model_source s;
    int rc = model_source_open(&s, path, NULL, err);
    *config = s.config;
    s.config = NULL;
    model_source_close(&s);
    return rc;
}

/* The names of id2label, by number; those at the end that are LABEL_ and the number count as none. */
static void take_names(struct job *job, const cJSON *id2label)
{
    struct job_model *m = &job->model;
    int count = cJSON_GetArraySize(id2label), given = 0;
    const char **names = dt_arena_alloc(&job->arena, (size_t)count * sizeof *names + 1);
    const cJSON *name;
    cJSON_ArrayForEach(name, id2label)
    {
        long long k;
        if (cJSON_IsString(name) && dt_parse_int64(name->string, &k) && k >= 0 && k < count && names[k] == NULL) {
            names[k] = dt_arena_strdup(&job->arena, name->valuestring);
            given++;
        }
    }
    m->classes = names;
    m->class_count = given == count ? count : 0;
    for (bool none = true; m->class_count > 0 && none;) {
        char number[32];
        (void)snprintf(number, sizeof number, "LABEL_%d", m->class_count - 1);
        none = strcmp(names[m->class_count - 1], number) == 0;
        m->class_count -= none;
    }
}

int train_find_classes(struct job *job, const char *checkpoint, struct dt_error *err)
{
    cJSON *config = NULL;
    if (job->model.ops->put_head == NULL || (!job->evaluates && job->data.label_key == NULL)) {
        return 0;
    }
    int rc = checkpoint != NULL ? read_checkpoint(checkpoint, &config, err) : read_folder(job, &config, err);
    if (rc == 0) {
        take_names(job, cJSON_GetObjectItemCaseSensitive(config, "id2label"));
    }
    cJSON_Delete(config);
    return rc;
}

int train_compare_classes(const struct job *job, const char *shards, enum data_classes *out, struct dt_error *err)
{
    struct data_files files;
    struct st_file *f = NULL;
    if (data_files_open(&files, shards, true, err) != 0) {
        return -1;
    }
    int rc = st_open(&f, files.paths[0], err), count = 0, first;
    const char *text = rc == 0 ? st_metadata(f, "label_names") : NULL;
    cJSON *list = text != NULL ? cJSON_Parse(text) : NULL;
    const char **names = dt_alloc((size_t)cJSON_GetArraySize(list) * sizeof *names + 1);
    const cJSON *name;
    cJSON_ArrayForEach(name, list)
    {
        names[count++] = cJSON_IsString(name) ? name->valuestring : "";
    }
    *out = data_compare_classes(&job->model, names, count, &first);
    free(names);
    cJSON_Delete(list);
    st_close(f);
    data_files_close(&files);
    return rc;
}

const char *train_join_classes(struct job *job)
{
    const struct job_model *m = &job->model;
    struct dt_text all;
    struct labels l = {0};
    struct dt_error ignored;
    dt_text_init(&all);
    for (int i = 0; i < m->class_count; i++) {
        dt_text_puts(&all, i > 0 ? "," : "[");
        dt_text_json(&all, m->classes[i], strlen(m->classes[i]));
    }
    dt_text_puts(&all, "]");
    bool good = labels_parse(&l, dt_text_str(&all), &ignored) == 0 && l.count == (size_t)m->class_count;
    const char *joined = good ? dt_arena_strdup(&job->arena, dt_text_str(&all)) : NULL;
    labels_clear(&l);
    dt_text_clear(&all);
    return joined;
}
