/* Members of the parts of tokenizer.json. */
#include "worker/data/tokenizers/parts.h"

#include <math.h>

int part_bool(const cJSON *part, const char *key, int fallback, bool *out, struct dt_error *err)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(part, key);
    if (m == NULL && fallback >= 0) {
        *out = fallback != 0;
        return 0;
    }
    if (!cJSON_IsBool(m)) {
        return dt_fail(err, DT_INVALID, "%s: %s; must be true or false", key,
                       m == NULL ? "missing" : "not a truth value");
    }
    *out = cJSON_IsTrue(m);
    return 0;
}

int part_integer(const cJSON *part, const char *key, int64_t fallback, int64_t most, int64_t *out, struct dt_error *err)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(part, key);
    if ((m == NULL || cJSON_IsNull(m)) && fallback >= 0) {
        *out = fallback;
        return 0;
    }
    double n = cJSON_IsNumber(m) ? m->valuedouble : -1;
    if (!(n >= 0 && n <= (double)most) || floor(n) != n) {
        return dt_fail(err, DT_INVALID, "%s: %s; must be a whole number from 0 to %lld", key,
                       m == NULL ? "missing" : "not one that can be used", (long long)most);
    }
    *out = (int64_t)n;
    return 0;
}

int part_text(const cJSON *part, const char *key, const char *fallback, const char **out, struct dt_error *err)
{
    const cJSON *m = cJSON_GetObjectItemCaseSensitive(part, key);
    if (m != NULL && !cJSON_IsNull(m) && !cJSON_IsString(m)) {
        return dt_fail(err, DT_INVALID, "%s: not a text", key);
    }
    *out = cJSON_IsString(m) ? m->valuestring : fallback;
    return 0;
}

const char *part_type(const cJSON *part, struct dt_error *err)
{
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(part, "type");
    if (!cJSON_IsObject(part) || !cJSON_IsString(type)) {
        (void)dt_fail(err, DT_INVALID, "type: missing; a part is an object with a type");
        return NULL;
    }
    return type->valuestring;
}
