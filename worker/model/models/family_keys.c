/* See the header. */
#include "worker/model/models/family_keys.h"

#include "base/text.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>

enum dt_activation family_activation(int choice)
{
    static const enum dt_activation kinds_of[] = {DT_ACT_SILU, DT_ACT_GELU_ERF, DT_ACT_GELU, DT_ACT_GELU, DT_ACT_RELU};
    return kinds_of[choice];
}

void family_set(cJSON *config, const char *key, cJSON *value)
{
    cJSON_DeleteItemFromObjectCaseSensitive(config, key);
    cJSON_AddItemToObject(config, key, value);
}

void family_count_labels(cJSON *config)
{
    const cJSON *names = cJSON_GetObjectItemCaseSensitive(config, "id2label");
    if (cJSON_IsObject(names)) {
        family_set(config, "num_labels", cJSON_CreateNumber(cJSON_GetArraySize(names)));
    }
}

void family_put_labels(int64_t count, void (*put)(void *to, const char *key, const char *json), void *to)
{
    struct dt_text names, numbers;
    dt_text_init(&names);
    dt_text_init(&numbers);
    for (int64_t i = 0; i < count; i++) {
        dt_text_printf(&names, "%s\n    \"%" PRId64 "\": \"LABEL_%" PRId64 "\"", i > 0 ? "," : "{", i, i);
        dt_text_printf(&numbers, "%s\n    \"LABEL_%" PRId64 "\": %" PRId64, i > 0 ? "," : "{", i, i);
    }
    dt_text_puts(&names, "\n  }");
    dt_text_puts(&numbers, "\n  }");
    put(to, "id2label", dt_text_str(&names));
    put(to, "label2id", dt_text_str(&numbers));
    dt_text_clear(&names);
    dt_text_clear(&numbers);
}

void family_put_id(const char *key, int64_t id, void (*put)(void *to, const char *key, const char *json), void *to)
{
    char number[32];
    (void)snprintf(number, sizeof number, "%" PRId64, id);
    put(to, key, id >= 0 ? number : "null");
}
