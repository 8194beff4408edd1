/* Members of an object and numbers of a tree, exactly as the JSON text writes them. So a text can be passed on with a
 * few values changed and everything else unchanged: numbers of any size, the order of keys, white space. */
#include "base/scan.h"

#include <cjson/cJSON.h>
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

/* The position after white space and comments. */
static size_t skip_comments(const char *text, size_t size, size_t at)
{
    for (;;) {
        at = skip_space(text, size, at);
        bool line = at < size && (text[at] == '#' || (text[at] == '/' && at + 1 < size && text[at + 1] == '/'));
        if (!line && (at + 1 >= size || text[at] != '/' || text[at + 1] != '*')) {
            return at;
        }
        const char *end = line ? memchr(text + at, '\n', size - at) : memmem(text + at + 2, size - at - 2, "*/", 2);
        if (end == NULL) {
            return line ? size : at;
        }
        at = (size_t)(end - text) + (line ? 0 : 2);
    }
}

void dt_scan_relax(const char *text, size_t size, struct dt_text *out)
{
    for (size_t at = 0; at < size;) {
        size_t end = at + 1;
        bool blank = false;
        if (text[at] == '"') {
            end = skip_string(text, size, at);
        } else if ((text[at] == '/' || text[at] == '#') && (end = skip_comments(text, size, at)) > at) {
            blank = true;
        } else if (text[at] == ',') {
            size_t next = skip_comments(text, size, at + 1);
            blank = next < size && (text[next] == '}' || text[next] == ']');
            end = at + 1;
        } else {
            end = at + 1;
        }
        if (!blank) {
            dt_text_add(out, text + at, end - at);
        }
        for (; blank && at < end; at++) {
            if (text[at] == '\n') {
                dt_text_puts(out, "\n");
            } else if (((unsigned char)text[at] & 0xc0) != 0x80) { /* one for a character of several bytes */
                dt_text_puts(out, " ");
            }
        }
        at = end;
    }
}

/* Values and numbers come in one order. */
static size_t name_numbers(cJSON *value, const char *text, size_t size, size_t at)
{
    for (cJSON *v = value; v != NULL; v = v->next) {
        if (cJSON_IsArray(v) || cJSON_IsObject(v)) {
            at = name_numbers(v->child, text, size, at);
        } else if (cJSON_IsNumber(v)) {
            while (at < size && text[at] != '-' && (text[at] < '0' || text[at] > '9')) {
                at = text[at] == '"' ? skip_string(text, size, at) : at + 1;
            }
            size_t end = at;
            while (end < size && strchr("+-.eE0123456789", text[end]) != NULL && text[end] != '\0') {
                end++;
            }
            v->valuestring = dt_format("%.*s", (int)(end - at), text + at); /* freed by cJSON */
            at = end;
        }
    }
    return at;
}

void dt_scan_numbers(cJSON *tree, const char *text, size_t size)
{
    (void)name_numbers(tree, text, size, 0);
}
