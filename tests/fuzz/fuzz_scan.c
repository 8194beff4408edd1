/* The pre-scan of JSON: whatever it accepts, cJSON must read, with as many values as places were noted; each place lies in the text. */
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
            if (scan.places[i].line == 0 || scan.places[i].column == 0 || scan.places[i].line > size || scan.places[i].column > size) {
                abort();
            }
        }
    }
    cJSON_Delete(tree);
    dt_scan_clear(&scan);
    return 0;
}
