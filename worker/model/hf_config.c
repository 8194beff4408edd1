/* config.json of Hugging Face folders. What differs between models is in their model_ops. JSON is read
 * strictly and with a size limit. */
#include "worker/model/hf_config.h"

#include "base/file.h"
#include "base/scan.h"
#include "worker/model/refused.h"

#include <cjson/cJSON.h>
#include <stdlib.h>

enum { CONFIG_MAX = 4 << 20 };

int hf_read_json(const char *path, size_t max_bytes, cJSON **out, struct dt_text *as_written, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    cJSON *json = NULL;
    if (dt_file_read_own(path, max_bytes, &text, err) == 0) {
        json = dt_scan_parse_others(dt_text_str(&text), text.size, path, err);
    }
    if (as_written != NULL) {
        dt_text_add(as_written, dt_text_str(&text), text.size);
    }
    dt_text_clear(&text);
    if (json != NULL && !cJSON_IsObject(json)) {
        (void)dt_fail(err, DT_INVALID, "%s: not a JSON object", path);
        cJSON_Delete(json);
        json = NULL;
    }
    *out = json;
    return json != NULL ? 0 : -1;
}

int hf_config(const char *folder, const struct model_ops **ops, struct model_sizes *sizes, struct dt_text *as_written,
              struct dt_error *err)
{
    char *path = dt_format("%s/config.json", folder);
    cJSON *json = NULL;
    struct dt_text text;
    dt_text_init(&text);
    int rc = hf_read_json(path, CONFIG_MAX, &json, &text, err);
    size_t most = text.size / HF_CONFIG_VALUE_BYTES + HF_CONFIG_SHORT_VALUES;
    if (rc == 0 && dt_scan_most_values(text.data, text.size) > most) {
        rc = dt_fail(err, DT_INVALID,
                     "%s: more values than a checkpoint keeps in so much text; remove what the model does not need",
                     path);
    }
    if (rc == 0) {
        const cJSON *type = cJSON_GetObjectItemCaseSensitive(json, "model_type");
        *ops = cJSON_IsString(type) ? model_find(type->valuestring) : NULL;
        rc = *ops == NULL                                            ? refused_model(json, err)
             : refused_config(json, err) != 0                        ? -1
             : model_read_config(*ops, json, sizes->bytes, err) != 0 ? -1
                                                                     : 0;
        rc = rc != 0 ? dt_wrap(err, "%s", path) : 0;
    }
    if (as_written != NULL) {
        dt_text_add(as_written, dt_text_str(&text), text.size);
    }
    dt_text_clear(&text);
    cJSON_Delete(json);
    free(path);
    return rc;
}
