/* See the header. */
#include "worker/model/models/family_keys.h"

#include <cjson/cJSON.h>

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
