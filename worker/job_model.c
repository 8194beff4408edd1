/* config.json of a Hugging Face folder -> struct job_model. A dimension that stands in both files must agree. */
#include "worker/job_model.h"

#include "base/config_value.h"
#include "base/file.h"
#include "base/scan.h"
#include "worker/job_fields.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES = 1 << 20 };

static cJSON *read_json(const char *path, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    cJSON *tree = dt_file_read(path, CONFIG_BYTES, &text, err) == 0 ? dt_scan_parse(dt_text_str(&text), text.size, path, NULL, err) : NULL;
    dt_text_clear(&text);
    if (tree != NULL && !cJSON_IsObject(tree)) {
        (void)dt_fail(err, DT_INVALID, "%s: not an object", path);
        cJSON_Delete(tree);
        tree = NULL;
    }
    return tree;
}

/* What the model would need and we do not have: null when there is nothing. */
static const char *unsupported(const cJSON *tree)
{
    static const struct {
        const char *key;
        bool only;
    } flags[] = {
        {"scale_attn_weights", true}, {"scale_attn_by_inverse_layer_idx", false}, {"add_cross_attention", false}, {"tie_word_embeddings", true}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        const cJSON *v = cJSON_GetObjectItemCaseSensitive(tree, flags[i].key);
        if (cJSON_IsBool(v) && cJSON_IsTrue(v) != flags[i].only) {
            return flags[i].key;
        }
    }
    const char *gelu = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "activation_function"));
    return gelu != NULL && strcmp(gelu, "gelu_new") != 0 && strcmp(gelu, "gelu_pytorch_tanh") != 0 ? "activation_function" : NULL;
}

/* One dimension of the folder's file into the job. */
static int take(struct job *job, struct dt_config *c, const struct dt_field *f, const cJSON *tree, const char *file)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(tree, f->key);
    struct job_model loaded;
    char *path = dt_arena_printf(&job->arena, "model.%s", f->key);
    if (v == NULL) { /* older files leave out what has its default */
        return 0;
    }
    if (!dt_value_parse(f->rule, v, &job->arena, (char *)&loaded + f->offset)) {
        struct dt_text t;
        dt_text_init(&t);
        dt_value_show(v, &t);
        dt_text_puts(&t, "; expected ");
        dt_value_expected(f->rule, &t);
        dt_config_problem(c, "model.load", "%s: %s is %s", file, f->key, dt_text_str(&t));
        dt_text_clear(&t);
        return 1;
    }
    struct dt_text ours, theirs;
    dt_text_init(&ours);
    dt_text_init(&theirs);
    dt_config_format(f, &job->model, &ours);
    dt_config_format(f, &loaded, &theirs);
    bool differs = strcmp(dt_text_str(&ours), dt_text_str(&theirs)) != 0;
    int bad = 0;
    if (differs && dt_config_where(c, path) != NULL) {
        dt_config_problem(c, path, "is %s, but %s says %s; remove it here", dt_text_str(&ours), file, dt_text_str(&theirs));
        bad = 1;
    } else if (dt_config_where(c, path) == NULL) {
        size_t size = f->rule->type == DT_RULE_NUMBER ? sizeof(double) : sizeof(int64_t);
        memcpy((char *)&job->model + f->offset, (char *)&loaded + f->offset, size);
        dt_config_derived(c, path, file);
    }
    dt_text_clear(&ours);
    dt_text_clear(&theirs);
    return bad;
}

static int load(struct job *job, struct dt_config *c)
{
    const char *file = dt_arena_printf(&job->arena, "%s/config.json", job->model.load);
    struct dt_error err = {0};
    int bad = 0;
    cJSON *tree = read_json(file, &err);
    if (tree == NULL) {
        dt_config_problem(c, "model.load", "%s", err.text);
        return 1;
    }
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "model_type"));
    const char *without = unsupported(tree);
    if (type == NULL || strcmp(type, "gpt2") != 0) {
        dt_config_problem(c, "model.load", "%s: model_type is %.60s; gpt2 is what there is", file, type != NULL ? type : "missing");
        bad++;
    } else if (without != NULL) {
        dt_config_problem(c, "model.load", "%s: this value of %s is not there yet", file, without);
        bad++;
    } else {
        for (const struct job_section *s = job_sections; s->name != NULL; s++) {
            for (const struct dt_field *f = s->fields; strcmp(s->name, "model") == 0 && f->key != NULL; f++) {
                bad += f->rule->type == DT_RULE_INTEGER || f->rule->type == DT_RULE_NUMBER ? take(job, c, f, tree, file) : 0;
            }
        }
        if (job->model.name == NULL) {
            job->model.name = "gpt2";
            dt_config_derived(c, "model.name", file);
        }
    }
    cJSON_Delete(tree);
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
