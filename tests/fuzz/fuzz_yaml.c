/* YAML: whatever is read has as many places as values, each in the text, and is JSON that reads back
 * as the same tree. */
#include "driver.h"

#include "base/yaml.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 5000 };

static size_t count_values(const cJSON *v)
{
    size_t count = 1;
    for (const cJSON *child = cJSON_IsArray(v) || cJSON_IsObject(v) ? v->child : NULL; child != NULL;
         child = child->next) {
        count += count_values(child);
    }
    return count;
}

int dt_fuzz(const uint8_t *data, size_t size)
{
    struct dt_scan scan = {0};
    struct dt_error err = {0};
    cJSON *tree = dt_yaml_parse((const char *)data, size, "f", MOST, &scan, &err);
    if (tree == NULL && (err.text[0] == 0 || strlen(err.text) >= sizeof err.text)) {
        abort(); /* a refusal has a reason */
    }
    if (tree != NULL) {
        char *printed = cJSON_PrintUnformatted(tree);
        cJSON *again = dt_scan_parse(printed, strlen(printed), "again", NULL, &err);
        if (again == NULL || !cJSON_Compare(tree, again, true) || scan.count != count_values(tree)) {
            abort();
        }
        for (size_t i = 0; i < scan.count; i++) {
            if (scan.places[i].line < 1 || scan.places[i].line > size + 1 || scan.places[i].column < 1) {
                abort();
            }
        }
        cJSON_Delete(again);
        free(printed);
        cJSON_Delete(tree);
    }
    dt_scan_clear(&scan);
    return 0;
}
