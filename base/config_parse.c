/* Files of a configuration: read, and parsed to a tree, JSON or YAML by their name. */
#include "base/config_own.h"
#include "base/file.h"
#include "base/scan.h"
#include "base/yaml.h"

enum { FILE_BYTES = 4 << 20, VALUES_MAX = 20000 };

int config_read_file(const char *path, bool relaxed, struct dt_text *text, struct dt_error *err)
{
    if (!relaxed || dt_yaml_is_name(path)) {
        return dt_file_read(path, FILE_BYTES, text, err);
    }
    struct dt_text raw;
    dt_text_init(&raw);
    int result = dt_file_read(path, FILE_BYTES, &raw, err);
    if (result == 0) {
        dt_scan_relax(dt_text_str(&raw), raw.size, text);
    }
    dt_text_clear(&raw);
    return result;
}

cJSON *config_parse(const char *file, const char *text, size_t size, struct dt_scan *scan, struct dt_error *err)
{
    if (dt_yaml_is_name(file)) {
        return dt_yaml_parse(text, size, file, VALUES_MAX, scan, err);
    }
    if (dt_scan(text, size, file, scan, err) != 0) {
        return NULL;
    }
    if (scan->count > VALUES_MAX) { /* before memory is spent on them */
        (void)dt_fail(err, DT_INVALID, "%s: %zu values; a configuration has at most %d", file, scan->count, VALUES_MAX);
        return NULL;
    }
    cJSON *tree = cJSON_ParseWithLength(text, size);
    dt_scan_numbers(tree, text, size);
    return tree;
}
