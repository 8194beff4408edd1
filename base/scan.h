/* A strict look at a JSON text before cJSON reads it: limits, grammar, UTF-8, numbers, duplicate
 * keys, and where each value stands. cJSON alone accepts too much and forgets positions. */
#ifndef DT_BASE_SCAN_H
#define DT_BASE_SCAN_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DT_SCAN_BYTES ((size_t)16 << 20) /* largest text */
#define DT_SCAN_DEPTH 64                 /* deepest nesting of arrays and objects */
#define DT_SCAN_VALUES ((size_t)200000)  /* most values in one text */

/* lines and columns count from 1; a column is a character, not a byte */
struct dt_scan_place {
    uint32_t line, column;         /* of the value */
    uint32_t key_line, key_column; /* of its key; those of the value in an array and at the top */
};

struct dt_scan {
    struct dt_scan_place *places; /* one per value, in the order of the text: an object or array
                                   * comes before what it holds */
    size_t count, capacity;
};

/* Checks `text` (not NUL-terminated) and fills in `out` (may be null). Refused, with
 * `where:line:column: cause`: more than DT_SCAN_BYTES, deeper than DT_SCAN_DEPTH, invalid UTF-8,
 * NUL, a byte order mark, comments, trailing text, duplicate keys, lone surrogates, numbers that
 * a double does not hold (1e999) and integers beyond 2^53. The caller clears `out`, also after
 * errors. */
int dt_scan(const char *text, size_t size, const char *where, struct dt_scan *out, struct dt_error *err);
void dt_scan_clear(struct dt_scan *s);

/* A record of somebody's data, one line of a .jsonl: the string under `key` of its outermost
 * object goes to `out` (initialised; no NUL in it). Grammar, UTF-8 and limits as in dt_scan;
 * numbers may be of any size, since nobody keeps them, and escapes that no text has (\u0000,
 * half of a surrogate pair) do no harm outside that string. */
enum dt_scan_found {
    DT_SCAN_NONE, /* no such key, or no string under it */
    DT_SCAN_FOUND,
    DT_SCAN_NO_TEXT, /* the string has such an escape; `out` holds U+FFFD in its place */
};
int dt_scan_record(const char *text, size_t size, const char *where, const char *key, struct dt_text *out,
                   enum dt_scan_found *found, struct dt_error *err);

struct cJSON;
/* dt_scan, then cJSON: the tree (cJSON_Delete frees it), or null. `out` may be null. */
struct cJSON *dt_scan_parse(const char *text, size_t size, const char *where, struct dt_scan *out,
                            struct dt_error *err);

/* The same of a JSON text of others, of which we read some values only: numbers may be of any
 * size. A number beyond a double's is infinite in the tree. */
struct cJSON *dt_scan_parse_others(const char *text, size_t size, const char *where, struct dt_error *err);

/* The members of the object that `text` is (checked before: by dt_scan, or it came out of
 * cJSON), one after the other, as they are written. *at: 0, then as it was left. key: without
 * its quotes, escapes as they stand. False: there is no further one. */
struct dt_scan_span {
    const char *at;
    size_t size;
};
bool dt_scan_member(const char *text, size_t size, size_t *at, struct dt_scan_span *key, struct dt_scan_span *value);

#endif
