/* A JSON array as lines: one record of .jsonl for each of its elements. Bytes keep their places, so a place in the lines
 * is that place in the file. */
#ifndef DT_CMD_DTDATA_JSON_ARRAY_H
#define DT_CMD_DTDATA_JSON_ARRAY_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_array {
    enum { ARRAY_BEFORE, ARRAY_INSIDE, ARRAY_BEHIND } at;
    int64_t depth;           /* open brackets of the element */
    bool in_string, escaped; /* inside of the element */
    bool element, comma;     /* something of the element was seen; a comma stands before it */
};

/* The state behind a comma of the array, where a line begins. */
struct json_array json_array_resume(void);
/* The next part of the file: brackets of the array and line breaks between values become spaces, commas of the array
 * line breaks. What an element holds is not looked at. DT_INVALID: no array, an empty element, or something behind
 * it. */
int json_array_lines(struct json_array *a, char *text, size_t size, const char *path, struct dt_error *err);
/* At the end of the file. DT_INVALID: the array is cut short. */
int json_array_end(const struct json_array *a, const char *path, struct dt_error *err);

#endif
