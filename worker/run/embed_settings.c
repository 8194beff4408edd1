/* Settings of the sentence-transformers library, from its files beside a model's weights. */
#include "worker/run/embed.h"

#include "base/file.h"
#include "base/scan.h"
#include "worker/checkpoints/hf.h"
#include "worker/model/model.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 16 << 20, BATCH_SIZE = 32 };

const char *const pooling_names[POOLED_KINDS + 1] = {[POOLED_CLS] = "cls",
                                                     [POOLED_MAX] = "max",
                                                     [POOLED_MEAN] = "mean",
                                                     [POOLED_ROOT] = "mean_sqrt_len_tokens",
                                                     [POOLED_WEIGHTED] = "weightedmean",
                                                     [POOLED_LAST] = "lasttoken"};

/* The folder whose files count: of a checkpoint, what its run has kept. The caller frees it. */
static char *folder_of(const struct model_source *s)
{
    return s->checkpoint != NULL ? checkpoint_origin(s->path) : dt_strdup(s->path);
}

/* *out: the file's object or array; null: there is no such file. `inside`: a folder in `folder`, or "". */
static int read_json(const char *folder, const char *inside, const char *name, cJSON **out, struct dt_error *err)
{
    char *path = dt_format("%s/%s%s%s", folder, inside, *inside != 0 ? "/" : "", name);
    struct dt_text text;
    int rc = 0;
    *out = NULL;
    dt_text_init(&text);
    if (dt_file_exists(path)) {
        rc = dt_file_read_own(path, FILE_MAX, &text, err);
        *out = rc == 0 ? dt_scan_parse_others(dt_text_str(&text), text.size, path, err) : NULL;
        rc = *out != NULL ? 0 : -1;
    }
    dt_text_clear(&text);
    free(path);
    return rc;
}

/* Keys of a pooling module: a flag for each kind, or one name in newer files. */
static int read_pooling(const cJSON *json, struct embed_options *out, struct dt_error *err)
{
    static const char *const flags[POOLED_KINDS] = {[POOLED_CLS] = "pooling_mode_cls_token",
                                                    [POOLED_MAX] = "pooling_mode_max_tokens",
                                                    [POOLED_MEAN] = "pooling_mode_mean_tokens",
                                                    [POOLED_ROOT] = "pooling_mode_mean_sqrt_len_tokens",
                                                    [POOLED_WEIGHTED] = "pooling_mode_weightedmean_tokens",
                                                    [POOLED_LAST] = "pooling_mode_lasttoken"};
    const char *mode = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "pooling_mode"));
    bool any = false;
    for (int i = 0; i < POOLED_KINDS; i++) {
        out->pools[i] = mode != NULL ? strcmp(mode, pooling_names[i]) == 0
                                     : cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(json, flags[i]));
        any = any || out->pools[i];
    }
    return any ? 0
               : dt_fail(err, DT_INVALID,
                         "config.json: pooling_mode: none of those that are computed; give --pooling cls, "
                         "max, mean, mean_sqrt_len_tokens, weightedmean or lasttoken");
}

/* The modules behind the model. */
static int read_modules(const char *folder, const cJSON *modules, struct embed_options *out, struct dt_error *err)
{
    const cJSON *module;
    cJSON_ArrayForEach(module, modules)
    {
        const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(module, "type")),
                   *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(module, "path"));
        const char *name = type != NULL ? strrchr(type, '.') : NULL;
        name = name != NULL ? name + 1 : type != NULL ? type : "";
        if (strcmp(name, "Pooling") == 0) {
            cJSON *json = NULL;
            bool plain = path != NULL && *path != 0 && *path != '.' && strchr(path, '/') == NULL;
            if (!plain || read_json(folder, path, "config.json", &json, err) != 0) {
                return plain ? -1
                             : dt_fail(err, DT_INVALID, "%s/modules.json: path: must be a folder beside it", folder);
            }
            /* an exported folder may lack it: the mean, which the library takes where it has no flags, too */
            int rc = json != NULL ? read_pooling(json, out, err) : 0;
            rc = rc == 0 ? 0 : dt_wrap(err, "%s/%s", folder, path);
            cJSON_Delete(json);
            if (rc != 0) {
                return rc;
            }
        } else if (strcmp(name, "Normalize") == 0) {
            out->normalize = true;
        } else if (strcmp(name, "Transformer") != 0 && strcmp(name, "Dropout") != 0) {
            return dt_fail(err, DT_INVALID,
                           "%s/modules.json: module %.60s is not computed, only Transformer, Pooling, Normalize and "
                           "Dropout; without that file, vectors are the mean (or give --pooling)",
                           folder, name);
        }
    }
    return 0;
}

/* A whole number from 1 on under `key`; otherwise `missing`. */
static int64_t number_of(const cJSON *json, const char *key, int64_t missing)
{
    const cJSON *n = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNumber(n) && n->valuedouble >= 1 && n->valuedouble < 1e9 ? (int64_t)n->valuedouble : missing;
}

/* The library's longest text: max_seq_length; otherwise what the tokenizer's config says, which may be 1e30 and
 * means none (0) then. */
static int read_length(const char *folder, struct embed_options *out, struct dt_error *err)
{
    cJSON *own = NULL, *tokenizer = NULL;
    int rc = read_json(folder, "", "sentence_bert_config.json", &own, err);
    rc = rc == 0 ? read_json(folder, "", "tokenizer_config.json", &tokenizer, err) : rc;
    if (rc == 0 && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(own, "do_lower_case"))) {
        rc = dt_fail(err, DT_INVALID,
                     "%s/sentence_bert_config.json: do_lower_case true is not computed; a Lowercase normalizer of "
                     "tokenizer.json is, set it to false then",
                     folder);
    }
    out->max_length = number_of(own, "max_seq_length", number_of(tokenizer, "model_max_length", 0));
    cJSON_Delete(own);
    cJSON_Delete(tokenizer);
    return rc;
}

/* The text before each text, if the folder has a default one. */
static int read_prompt(const char *folder, struct embed_options *out, struct dt_error *err)
{
    cJSON *json = NULL;
    int rc = read_json(folder, "", "config_sentence_transformers.json", &json, err);
    const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "default_prompt_name")),
               *prompt = name == NULL ? NULL
                                      : cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(
                                            cJSON_GetObjectItemCaseSensitive(json, "prompts"), name));
    out->prompt = prompt != NULL ? dt_strdup(prompt) : NULL;
    cJSON_Delete(json);
    return rc;
}

int embed_settings(const struct model_source *source, bool reads_modules, struct embed_options *out,
                   struct dt_error *err)
{
    char *folder = folder_of(source);
    cJSON *modules = NULL;
    *out = (struct embed_options){.pools = {[POOLED_MEAN] = true}, .batch_size = BATCH_SIZE};
    int rc = read_json(folder, "", "modules.json", &modules, err);
    out->strips = modules != NULL;
    rc = rc == 0 && reads_modules ? read_modules(folder, modules, out, err) : rc;
    rc = rc == 0 ? read_length(folder, out, err) : rc;
    rc = rc == 0 ? read_prompt(folder, out, err) : rc;
    cJSON_Delete(modules);
    free(folder);
    return rc;
}

void embed_options_clear(struct embed_options *o)
{
    free(o->prompt);
    o->prompt = NULL;
}
