/* The members of a JSON object exactly as written. A text can be passed on with a few values
 * changed and everything else unchanged: numbers of any size, the order of keys, white space. */
#include "base/scan.h"

#include <string.h>

static size_t skip_space(const char *text, size_t size, size_t at)
{
    while (at < size && strchr(" \t\r\n", text[at]) != NULL && text[at] != '\0') {
        at++;
    }
    return at;
}

/* The position after the string whose opening quote is at `at`. */
static size_t skip_string(const char *text, size_t size, size_t at)
{
    for (at++; at < size && text[at] != '"'; at++) {
        at += text[at] == '\\';
    }
    return at < size ? at + 1 : size;
}

static size_t skip_value(const char *text, size_t size, size_t at)
{
    int depth = 0;
    while (at < size) {
        char c = text[at];
        if (depth == 0 && strchr(",} \t\r\n", c) != NULL) {
            return at;
        }
        at = c == '"' ? skip_string(text, size, at) : at + 1;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (depth == 0 && (c == '"' || c == '}' || c == ']')) {
            return at;
        }
    }
    return size;
}

bool dt_scan_member(const char *text, size_t size, size_t *at, struct dt_scan_span *key, struct dt_scan_span *value)
{
    size_t p = skip_space(text, size, *at);
    p = p < size && (text[p] == '{' || text[p] == ',') ? skip_space(text, size, p + 1) : size;
    if (p >= size || text[p] != '"') {
        return false;
    }
    size_t end = skip_string(text, size, p);
    if (end < p + 2) {
        return false;
    }
    *key = (struct dt_scan_span){text + p + 1, end - p - 2};
    p = skip_space(text, size, end);
    p = p < size && text[p] == ':' ? skip_space(text, size, p + 1) : size;
    end = skip_value(text, size, p);
    *value = (struct dt_scan_span){text + p, end - p};
    *at = end;
    return value->size > 0;
}

size_t dt_scan_most_values(const char *text, size_t size)
{
    size_t count = 1;
    bool string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (string && c == '\\') {
            i++;
        } else if (c == '"') {
            string = !string;
        } else if (!string) {
            count += c == ',' || c == '[' || c == '{';
        }
    }
    return count;
}
