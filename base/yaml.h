/* YAML 1.1 as PyYAML's safe loader reads it, into the tree and the places that dt_scan gives of JSON. */
#ifndef DT_BASE_YAML_H
#define DT_BASE_YAML_H

#include "base/scan.h"

struct cJSON;
/* Reads a text of one document. `out` (initialised, may be null) gets a place for each value in the
 * tree's order; the caller clears it, also after errors. Returns the tree (free it with
 * cJSON_Delete), or null. Errors read `where:line:column: cause`.
 *
 * Plain words are as PyYAML has them: yes, no, on, off are booleans, 10_000 and 0x10 numbers, ~ and
 * nothing null, 2e-5 (which lacks a point) a string. A number's valuestring is what was written (1.0,
 * not 1), for those whose readers tell them apart. A byte order mark of UTF-8 is passed over. Aliases
 * and merge keys (<<) are followed, as long as all values together, with those that merges leave out,
 * are at most `most`: a text that multiplies itself is refused. Refused as well: tags, several
 * documents, a key given twice (both lines are named), keys that are lists or objects, nesting deeper
 * than DT_SCAN_DEPTH, numbers that are not finite or beyond 2^53, NUL, what is not UTF-8, and more than
 * DT_SCAN_BYTES. */
struct cJSON *dt_yaml_parse(const char *text, size_t size, const char *where, size_t most, struct dt_scan *out,
                            struct dt_error *err);

/* True for a path that ends in .yaml or .yml. */
bool dt_yaml_is_name(const char *path);

#endif
