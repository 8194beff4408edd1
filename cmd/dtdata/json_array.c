/* See the header. */
#include "cmd/dtdata/json_array.h"

struct json_array json_array_resume(void)
{
    return (struct json_array){.at = ARRAY_INSIDE, .comma = true};
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* A byte of a byte order mark, which whoever reads lines takes away. */
static bool is_mark(char c)
{
    return c == '\xef' || c == '\xbb' || c == '\xbf';
}

/* A byte of an element, or the comma or bracket behind it. */
static int take(struct json_array *a, char *c, const char *path, struct dt_error *err)
{
    if (a->in_string) {
        a->in_string = a->escaped || *c != '"';
        a->escaped = !a->escaped && *c == '\\';
        return 0;
    }
    if (is_space(*c)) {
        *c = *c == '\n' ? ' ' : *c;
        return 0;
    }
    if (a->depth == 0 && (*c == ',' || *c == ']')) {
        if (!a->element && (*c == ',' || a->comma)) {
            return dt_fail(err, DT_INVALID, "%s: an element of the array is empty: a comma too many", path);
        }
        a->at = *c == ']' ? ARRAY_BEHIND : ARRAY_INSIDE;
        a->comma = true;
        a->element = false;
        *c = *c == ',' ? '\n' : ' ';
        return 0;
    }
    a->element = true;
    a->in_string = *c == '"';
    a->depth += *c == '{' || *c == '[' ? 1 : (*c == '}' || *c == ']') && a->depth > 0 ? -1 : 0;
    return 0;
}

int json_array_lines(struct json_array *a, char *text, size_t size, const char *path, struct dt_error *err)
{
    for (size_t i = 0; i < size; i++) {
        char *c = &text[i];
        if (a->at == ARRAY_INSIDE) {
            if (take(a, c, path, err) != 0) {
                return -1;
            }
        } else if (is_space(*c)) {
            *c = *c == '\n' ? ' ' : *c;
        } else if (a->at == ARRAY_BEFORE && *c == '[') {
            a->at = ARRAY_INSIDE;
            *c = ' ';
        } else if (a->at == ARRAY_BEHIND) {
            return dt_fail(err, DT_INVALID,
                           "%s: something stands behind the array; is it one object per line? Then say "
                           "the format jsonl",
                           path);
        } else if (!is_mark(*c)) {
            return dt_fail(err, DT_INVALID,
                           "%s: no JSON array of objects; with one object per line say the format jsonl", path);
        }
    }
    return 0;
}

int json_array_end(const struct json_array *a, const char *path, struct dt_error *err)
{
    return a->at == ARRAY_BEHIND ? 0
                                 : dt_fail(err, DT_INVALID, "%s: the JSON array %s", path,
                                           a->at == ARRAY_BEFORE ? "is missing: the file is empty"
                                                                 : "does not end: the file is cut short");
}
