/* The pre-scan of JSON: whatever it accepts, cJSON must read, with as many values as places were
 * noted; each place lies in the text. */
#include "driver.h"

#include "base/scan.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static size_t count_values(const cJSON *v)
{
    size_t count = 1;
    for (const cJSON *child = v->child; child != NULL; child = child->next) {
        count += count_values(child);
    }
    return count;
}

/* What the strict look accepts is a record, too, with the string that cJSON finds; a record's
 * text never holds a NUL. */
static void look_as_record(const uint8_t *data, size_t size, const cJSON *tree)
{
    enum dt_scan_found found;
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    int rc = dt_scan_record((const char *)data, size, "f", "a", &text, &found, &err);
    const char *wanted =
        cJSON_IsObject(tree) ? cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(tree, "a")) : NULL;
    bool same = rc == 0 && found == (wanted != NULL ? DT_SCAN_FOUND : DT_SCAN_NONE) &&
                (wanted == NULL || strcmp(wanted, dt_text_str(&text)) == 0);
    if ((tree != NULL && !same) || memchr(dt_text_str(&text), 0, text.size) != NULL) {
        abort();
    }
    dt_text_clear(&text);
}

/* The members as they are written are those that cJSON has, and each value is one by itself. */
static void look_at_members(const uint8_t *data, size_t size, const cJSON *tree)
{
    const cJSON *child = cJSON_IsObject(tree) ? tree->child : NULL;
    struct dt_scan_span key, value;
    for (size_t at = 0; dt_scan_member((const char *)data, size, &at, &key, &value);
         child = child != NULL ? child->next : NULL) {
        if (key.at < (const char *)data || value.at + value.size > (const char *)data + size) {
            abort();
        }
        cJSON *alone = tree != NULL ? cJSON_ParseWithLength(value.at, value.size) : NULL;
        if (tree != NULL && (child == NULL || alone == NULL || !cJSON_Compare(alone, child, true))) {
            abort();
        }
        cJSON_Delete(alone);
    }
    if (child != NULL) {
        abort();
    }
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct dt_scan scan = {0};
    struct dt_error err = {0};
    cJSON *tree = dt_scan_parse((const char *)data, size, "f", &scan, &err);
    if (tree == NULL) {
        if (err.status != DT_INVALID || strncmp(err.text, "f:", 2) != 0 || strstr(err.text, "not readable") != NULL) {
            abort();
        }
    } else {
        if (count_values(tree) != scan.count) {
            abort();
        }
        for (size_t i = 0; i < scan.count; i++) {
            if (scan.places[i].line == 0 || scan.places[i].column == 0 || scan.places[i].line > size ||
                scan.places[i].column > size) {
                abort();
            }
        }
    }
    look_as_record(data, size, tree);
    look_at_members(data, size, tree);
    cJSON_Delete(tree);
    dt_scan_clear(&scan);
    return 0;
}
