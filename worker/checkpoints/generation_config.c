/* generation_config.json of an exported model that writes text, where its run began with no folder. */
#include "worker/checkpoints/checkpoint_export.h"

#include "base/file.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

/* Appends a member of config.json as it is there: an id, or a list of them. Null and others are left out. */
static void add_ids(struct dt_text *out, const cJSON *config, const char *key)
{
    const cJSON *ids = cJSON_GetObjectItemCaseSensitive(config, key);
    if (!cJSON_IsNumber(ids) && !cJSON_IsArray(ids)) {
        return;
    }
    char *text = cJSON_PrintUnformatted(ids);
    dt_text_printf(out, ",\n  \"%s\": %s", key, text);
    cJSON_free(text);
}

int export_write_generation(const char *folder, const char *config, struct dt_error *err)
{
    cJSON *json = cJSON_Parse(config);
    const cJSON *class = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(json, "architectures"), 0);
    const char *name = cJSON_IsString(class) ? class->valuestring : "";
    int rc = 0;
    if (dt_text_ends_with(name, "ForCausalLM") || dt_text_ends_with(name, "LMHeadModel")) {
        struct dt_text text;
        char *path = dt_format("%s/generation_config.json", folder);
        dt_text_init(&text);
        dt_text_puts(&text, "{\n  \"_from_model_config\": true");
        add_ids(&text, json, "bos_token_id");
        add_ids(&text, json, "eos_token_id");
        add_ids(&text, json, "pad_token_id");
        dt_text_puts(&text, "\n}\n");
        rc = dt_file_write(path, dt_text_str(&text), text.size, err);
        dt_text_clear(&text);
        free(path);
    }
    cJSON_Delete(json);
    return rc;
}
