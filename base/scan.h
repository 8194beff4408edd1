/* A strict check of a JSON text before cJSON parses it: limits, grammar, UTF-8, numbers, duplicate
 * keys, and the place of each value. cJSON alone accepts too much and does not keep positions. */
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

/* Lines and columns count from 1. A column is a character, not a byte. */
struct dt_scan_place {
    uint32_t line, column;         /* of the value */
    uint32_t key_line, key_column; /* of its key; in arrays and at the top those of the value */
};

struct dt_scan {
    /* one per value in text order: an object or array comes before its members */
    struct dt_scan_place *places;
    size_t count, capacity;
};

/* Checks `text` (not NUL-terminated) and fills `out` (may be null). Errors read
 * `where:line:column: cause`. Refused are: more than DT_SCAN_BYTES, nesting deeper than
 * DT_SCAN_DEPTH, invalid UTF-8, NUL, a byte order mark, comments, trailing text, duplicate keys,
 * lone surrogates, numbers outside a double's range (1e999), and integers beyond 2^53. The
 * caller clears `out`, also after errors. */
int dt_scan(const char *text, size_t size, const char *where, struct dt_scan *out, struct dt_error *err);
void dt_scan_clear(struct dt_scan *s);

/* Scans a record of a user's data, one line of a .jsonl file. The string under `key` of its
 * outermost object goes to `out` (initialised; it contains no NUL). Grammar, UTF-8 and limits are
 * those of dt_scan, but there may be any number of values, and numbers of any size: they are not used. Invalid escapes
 * (\u0000, half of a surrogate pair) are allowed outside that string. */
enum dt_scan_found {
    DT_SCAN_NONE, /* no such key, or no string under it */
    DT_SCAN_FOUND,
    DT_SCAN_NO_TEXT, /* the string has an invalid escape; `out` holds U+FFFD in its place */
};
int dt_scan_record(const char *text, size_t size, const char *where, const char *key, struct dt_text *out,
                   enum dt_scan_found *found, struct dt_error *err);

/* Relaxed JSON, which programs write by hand: appends the text with a space for each character of a
 * comment, of one line or of several, and for each comma before a closing bracket, so that places stay the
 * same. What remains is for dt_scan to judge. */
void dt_scan_relax(const char *text, size_t size, struct dt_text *out);

struct cJSON;
/* dt_scan, then cJSON. Returns the tree (free it with cJSON_Delete), or null. `out` may be null. */
struct cJSON *dt_scan_parse(const char *text, size_t size, const char *where, struct dt_scan *out,
                            struct dt_error *err);

/* Gives each number of a tree that this text was read into the characters that it is written with, as valuestring: 1 is
 * not 1.0 to everybody. The tree may be null. */
void dt_scan_numbers(struct cJSON *tree, const char *text, size_t size);

/* The same as dt_scan_parse for a JSON text from elsewhere, of which only some values are used: numbers may have any
 * size. A number beyond a double's range is infinite in the tree. */
struct cJSON *dt_scan_parse_others(const char *text, size_t size, const char *where, struct dt_error *err);

/* The same with other limits of bytes and values. */
struct dt_scan_limits {
    size_t bytes, values;
};
struct cJSON *dt_scan_parse_large(const char *text, size_t size, const char *where, const struct dt_scan_limits *limits,
                                  struct dt_error *err);

/* Returns the members of the object `text`, one per call, exactly as written. The text must be
 * valid: checked by dt_scan, or printed by cJSON. *at: 0 at first, then as the last call left it.
 * key: without quotes, with escapes not decoded. False: there are no more members. */
struct dt_scan_span {
    const char *at;
    size_t size;
};
bool dt_scan_member(const char *text, size_t size, size_t *at, struct dt_scan_span *key, struct dt_scan_span *value);

/* An upper bound of the number of values in a text that was not checked: counts separators, and the
 * beginnings of arrays and objects, outside of strings. */
size_t dt_scan_most_values(const char *text, size_t size);

#endif
