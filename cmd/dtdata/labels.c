/* See the header. */
#include "cmd/dtdata/labels.h"

#include "base/scan.h"

#include <cjson/cJSON.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct label_order {
    const char *name;
    size_t class_number;
};

static int compare(const char *a, size_t a_size, const char *b, size_t b_size)
{
    int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
    return order != 0 ? order : a_size < b_size ? -1 : a_size > b_size;
}

/* The place of a name in the order, or where it would stand; *found: it is there. */
static size_t place_of(const struct labels *l, const char *name, size_t size, bool *found)
{
    size_t low = 0, high = l->count;
    *found = false;
    while (low < high && !*found) {
        size_t middle = low + (high - low) / 2;
        int order = compare(name, size, l->order[middle].name, strlen(l->order[middle].name));
        *found = order == 0;
        low = order > 0 ? middle + 1 : *found ? middle : low;
        high = order < 0 ? middle : high;
    }
    return low;
}

/* Adds a name behind the others; *found: it is there already. */
static void insert(struct labels *l, const char *name, size_t size, bool *found)
{
    size_t place = place_of(l, name, size, found);
    if (*found) {
        return;
    }
    if (l->count == l->capacity) {
        l->capacity = l->capacity == 0 ? 16 : 2 * l->capacity;
        l->names = dt_realloc(l->names, l->capacity * sizeof *l->names);
        l->order = dt_realloc(l->order, l->capacity * sizeof *l->order);
    }
    memmove(l->order + place + 1, l->order + place, (l->count - place) * sizeof *l->order);
    l->names[l->count] = dt_format("%.*s", (int)size, name);
    l->order[place] = (struct label_order){l->names[l->count], l->count};
    l->count++;
    l->json_bytes += size + 4; /* quotes, a comma, a space */
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)name[i];
        l->json_bytes += c < ' ' || c == 127 ? 5 : c == '"' || c == '\\' ? 1 : 0;
    }
}

/* ["a, b", "c"], for names with commas. */
static int parse_array(struct labels *l, const char *names, struct dt_error *err)
{
    cJSON *list = cJSON_Parse(names);
    const cJSON *name;
    int result = cJSON_GetArraySize(list) > 0 ? 0 : dt_fail(err, DT_INVALID, "--labels %s: no array of names", names);
    cJSON_ArrayForEach(name, list)
    {
        const char *text = cJSON_GetStringValue(name);
        bool found = false;
        if (result == 0 && (text == NULL || *text == 0)) {
            result = dt_fail(err, DT_INVALID, "--labels %s: a name is empty, or no string", names);
        } else if (result == 0) {
            insert(l, text, strlen(text), &found);
            result = found ? dt_fail(err, DT_INVALID, "--labels %s: %s stands there twice", names, text) : 0;
        }
    }
    cJSON_Delete(list);
    return result;
}

int labels_parse(struct labels *l, const char *names, struct dt_error *err)
{
    l->given = true;
    if (*names == '[') {
        return parse_array(l, names, err);
    }
    for (const char *at = names;; at++) {
        size_t size = strcspn(at, ",");
        bool found = false;
        if (size == 0) {
            return dt_fail(err, DT_INVALID, "--labels %s: a name is empty", names);
        }
        insert(l, at, size, &found);
        if (found) {
            return dt_fail(err, DT_INVALID, "--labels %s: %.*s stands there twice", names, (int)size, at);
        }
        at += size;
        if (*at == 0) {
            return 0;
        }
    }
}

static int check_name(const char *name, size_t size, struct dt_error *err)
{
    if (size > LABEL_BYTES) {
        return dt_fail(err, DT_INVALID, "the label has %zu bytes, of %d at most; name the key or column of the labels",
                       size, LABEL_BYTES);
    }
    return size > 0 && memchr(name, 0, size) == NULL ? 0 : dt_fail(err, DT_INVALID, "the label is empty");
}

int labels_add(struct labels *l, const char *name, size_t size, struct dt_error *err)
{
    bool found = false;
    if (check_name(name, size, err) != 0) {
        return -1;
    }
    insert(l, name, size, &found);
    if (l->json_bytes > LABELS_BYTES) {
        return dt_fail(err, DT_INVALID,
                       "the names of %zu different labels are too long together; name the key or column of the labels",
                       l->count);
    }
    return l->count <= LABELS_MOST
               ? 0
               : dt_fail(err, DT_INVALID, "more than %d different labels; numbers are labels of --regression",
                         LABELS_MOST);
}

/* True if the names are 0, 1, ... n - 1. */
static bool are_numbers(const struct labels *l)
{
    bool found = l->count > 0;
    for (size_t k = 0; k < l->count && found; k++) {
        char name[32];
        int size = snprintf(name, sizeof name, "%zu", k);
        (void)place_of(l, name, (size_t)size, &found);
    }
    return found;
}

/* Adds the numbers below `classes` that no row has, if all names are such numbers. */
static void fill_numbers(struct labels *l, int64_t classes)
{
    bool numbers = l->count > 0 && (int64_t)l->count < classes, found;
    for (size_t i = 0; i < l->count && numbers; i++) {
        char name[32];
        long long k = 0;
        numbers = dt_parse_int64(l->order[i].name, &k) && k >= 0 && k < classes;
        (void)snprintf(name, sizeof name, "%lld", k);
        numbers = numbers && strcmp(name, l->order[i].name) == 0; /* and not 01 */
    }
    for (int64_t k = 0; k < classes && numbers; k++) {
        char name[32];
        int size = snprintf(name, sizeof name, "%" PRId64, k);
        insert(l, name, (size_t)size, &found);
    }
}

void labels_end(struct labels *l, int64_t classes)
{
    fill_numbers(l, classes < LABELS_MOST ? classes : LABELS_MOST);
    bool numbers = are_numbers(l);
    for (size_t i = 0; i < l->count; i++) {
        size_t k = numbers ? (size_t)strtoul(l->order[i].name, NULL, 10) : i;
        l->order[i].class_number = k;
    }
    for (size_t i = 0; i < l->count; i++) {
        /* names are owned by the list */
        l->names[l->order[i].class_number] = (char *)(uintptr_t)l->order[i].name;
    }
}

int labels_value(const struct labels *l, const char *name, size_t size, double *out, struct dt_error *err)
{
    if (check_name(name, size, err) != 0) {
        return -1;
    }
    if (l->numbers) {
        char *copy = dt_format("%.*s", (int)size, name);
        bool number = dt_parse_double(copy, out);
        free(copy);
        return !number ? dt_fail(err, DT_INVALID, "the label %.*s is no number", (int)size, name)
               : fabs(*out) > (double)FLT_MAX
                   ? dt_fail(err, DT_INVALID, "the label %.*s is beyond the numbers of fp32", (int)size, name)
                   : 0;
    }
    bool found = false;
    size_t place = place_of(l, name, size, &found);
    if (!found) {
        struct dt_text all;
        dt_text_init(&all);
        struct dt_list list = {.text = &all, .most = 10};
        for (size_t k = 0; k < l->count; k++) {
            dt_list_add(&list, "%s", l->names[k]);
        }
        (void)dt_fail(err, DT_INVALID, "the label %.*s is none of %s", (int)(size < 100 ? size : 100), name,
                      dt_text_str(&all));
        dt_text_clear(&all);
        return -1;
    }
    *out = (double)l->order[place].class_number;
    return 0;
}

void labels_json(const struct labels *l, struct dt_text *out)
{
    dt_text_puts(out, "[");
    for (size_t k = 0; k < l->count; k++) {
        dt_text_puts(out, k > 0 ? ", " : "");
        dt_text_json(out, l->names[k], strlen(l->names[k]));
    }
    dt_text_puts(out, "]");
}

void labels_clear(struct labels *l)
{
    for (size_t k = 0; k < l->count; k++) {
        free(l->names[k]);
    }
    free(l->names);
    free(l->order);
    *l = (struct labels){0};
}
