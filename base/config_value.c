/* Single values: read by a rule, shown in messages, written as JSON. */
#include "base/config_own.h"
#include "base/config_value.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LARGEST_INTEGER 9007199254740992.0 /* 2^53: larger whole numbers are not exact */

static bool in_range(const struct dt_rule *rule, double v)
{
    return (rule->open_min ? v > rule->min : v >= rule->min) && (rule->open_max ? v < rule->max : v <= rule->max);
}

static bool integer_of(const struct dt_rule *rule, const cJSON *value, int64_t *out)
{
    if (!cJSON_IsNumber(value) || value->valuedouble != floor(value->valuedouble) ||
        fabs(value->valuedouble) > LARGEST_INTEGER || !in_range(rule, value->valuedouble)) {
        return false;
    }
    *out = (int64_t)value->valuedouble;
    return true;
}

/* The index of `word` in "a|b|c", or -1. */
static int choice_of(const char *choices, const char *word, const char **at, size_t *size)
{
    int index = 0;
    for (const char *p = choices; *word != 0 && *p != 0; index++) {
        size_t n = strcspn(p, "|");
        if (strlen(word) == n && strncasecmp(p, word, n) == 0) {
            *at = p;
            *size = n;
            return index;
        }
        p += n + (p[n] == '|');
    }
    return -1;
}

bool dt_value_is_later(const struct dt_rule *rule, const cJSON *value)
{
    const char *at = NULL;
    size_t size = 0;
    return rule->later != NULL && cJSON_IsString(value) && choice_of(rule->later, value->valuestring, &at, &size) >= 0;
}

const char *dt_value_nearest(const struct dt_rule *rule, const cJSON *value, struct dt_arena *arena)
{
    enum { MOST = 64 };
    const char *names[MOST];
    int count = 0;
    for (const char *p = rule->choices; cJSON_IsString(value) && *p != 0 && count < MOST;) {
        size_t n = strcspn(p, "|");
        names[count++] = dt_arena_printf(arena, "%.*s", (int)n, p);
        p += n + (p[n] == '|');
    }
    char *word = dt_arena_strdup(arena, cJSON_IsString(value) ? value->valuestring : "");
    for (char *c = word; *c != 0; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    return dt_text_nearest(word, names, (size_t)count);
}

#define DT_WEIGHT_MAX 1e9

static bool parse_null(const struct dt_rule *rule, void *out)
{
    switch (rule->type) {
    case DT_RULE_INTEGER:
        *(int64_t *)out = rule->null_value;
        return true;
    case DT_RULE_NUMBER:
        *(double *)out = rule->null_value;
        return true;
    case DT_RULE_STRING:
    case DT_RULE_CHOICE:
    case DT_RULE_NAMES:
    case DT_RULE_OBJECTS:
        *(const char **)out = NULL;
        return true;
    case DT_RULE_ENUM:
        *(int *)out = rule->null_value;
        return true;
    case DT_RULE_PAIR:
        ((int64_t *)out)[0] = ((int64_t *)out)[1] = rule->null_value;
        return true;
    case DT_RULE_KINDS:
        ((struct dt_kinds *)out)->count = 0;
        return true;
    case DT_RULE_STRINGS:
        ((struct dt_strings *)out)->count = 0;
        return true;
    case DT_RULE_SOURCES:
        *(struct dt_sources *)out = (struct dt_sources){0};
        return true;
    case DT_RULE_SETS:
        *(struct dt_sets *)out = (struct dt_sets){0};
        return true;
    case DT_RULE_NUMBERS:
        ((struct dt_numbers *)out)->count = 0;
        return true;
    case DT_RULE_INTEGERS:
        ((struct dt_integers *)out)->count = 0;
        return true;
    case DT_RULE_BOOL:
        break;
    }
    return false;
}

/* Appends the names of "a, b" to *names. False: a name is empty. */
static bool add_names(const char *text, struct dt_text *names)
{
    for (const char *p = text;; p++) {
        p += strspn(p, " ");
        size_t size = strcspn(p, ", ");
        dt_text_puts(names, names->size > 0 ? "," : "");
        dt_text_add(names, p, size);
        p += size + strspn(p + size, " ");
        if (size == 0 || *p != ',') {
            return size > 0 && *p == 0;
        }
    }
}

static bool parse_names(const cJSON *value, struct dt_arena *arena, const char **out)
{
    struct dt_text names;
    dt_text_init(&names);
    bool good = cJSON_IsArray(value) || (cJSON_IsString(value) && add_names(value->valuestring, &names));
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : NULL; good && v != NULL; v = v->next) {
        good = cJSON_IsString(v) && add_names(v->valuestring, &names);
    }
    if (good) {
        *out = names.size > 0 ? dt_arena_strdup(arena, names.data) : NULL;
    }
    dt_text_clear(&names);
    return good;
}

static bool parse_kinds(const struct dt_rule *rule, const cJSON *value, struct dt_kinds *out)
{
    struct dt_kinds kinds = {.count = 0};
    if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) > DT_KINDS_MAX) {
        return false;
    }
    for (const cJSON *v = value->child; v != NULL; v = v->next) {
        char digit[2] = {0};
        if (cJSON_IsNumber(v) && (v->valuedouble == 0 || v->valuedouble == 1)) {
            digit[0] = v->valuedouble == 0 ? '0' : '1';
        }
        const char *at = NULL;
        size_t size = 0;
        int index = choice_of(rule->choices, cJSON_IsString(v) ? v->valuestring : digit, &at, &size);
        if (index < 0) {
            return false;
        }
        kinds.of[kinds.count++] = (uint8_t)index;
    }
    *out = kinds;
    return true;
}

static bool parse_integers(const struct dt_rule *rule, const cJSON *value, struct dt_integers *out)
{
    struct dt_integers list = {.count = 0};
    bool good = cJSON_IsArray(value) && cJSON_GetArraySize(value) >= 1 && cJSON_GetArraySize(value) <= DT_INTEGERS_MAX;
    for (const cJSON *v = good ? value->child : NULL; good && v != NULL; v = v->next) {
        good = integer_of(rule, v, &list.of[list.count++]);
    }
    if (good) {
        *out = list;
    }
    return good;
}

static bool parse_numbers(const struct dt_rule *rule, const cJSON *value, struct dt_numbers *out)
{
    struct dt_numbers list = {.count = 0};
    int count = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    bool good = count >= 1 && count <= DT_NUMBERS_MAX;
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : value; good && list.count < count; v = v->next) {
        good = cJSON_IsNumber(v) && in_range(rule, v->valuedouble) &&
               (!rule->whole || v->valuedouble == floor(v->valuedouble));
        list.of[list.count++] = v->valuedouble;
    }
    if (good) {
        *out = list;
    }
    return good;
}

static bool parse_strings(const cJSON *value, struct dt_arena *arena, struct dt_strings *out)
{
    bool list = cJSON_IsArray(value);
    int count = list ? cJSON_GetArraySize(value) : 1;
    if (count < 1 || count > DT_STRINGS_MAX) {
        return false;
    }
    const char **of = dt_arena_alloc(arena, (size_t)count * sizeof *of);
    const cJSON *v = list ? value->child : value;
    for (int i = 0; i < count; i++, v = v->next) {
        if (!cJSON_IsString(v) || v->valuestring[0] == 0) {
            return false;
        }
        of[i] = dt_arena_strdup(arena, v->valuestring);
    }
    *out = (struct dt_strings){count, of};
    return true;
}

struct dt_sources dt_source_alone(struct dt_arena *arena, const char *path)
{
    struct dt_source *of = dt_arena_alloc(arena, sizeof *of);
    *of = (struct dt_source){dt_arena_strdup(arena, path), 1};
    return (struct dt_sources){of->path, 1, of};
}

/* One of a list: an object with a path and a weight. */
static bool parse_source(const cJSON *value, struct dt_arena *arena, struct dt_source *out)
{
    const cJSON *path = cJSON_GetObjectItemCaseSensitive(value, "path"),
                *weight = cJSON_GetObjectItemCaseSensitive(value, "weight");
    if (!cJSON_IsObject(value) || cJSON_GetArraySize(value) != 2 || !cJSON_IsString(path) ||
        path->valuestring[0] == 0 || !cJSON_IsNumber(weight) || !(weight->valuedouble > 0) ||
        !(weight->valuedouble <= DT_WEIGHT_MAX)) {
        return false;
    }
    *out = (struct dt_source){dt_arena_strdup(arena, path->valuestring), weight->valuedouble};
    return true;
}

static bool parse_sources(const cJSON *value, struct dt_arena *arena, struct dt_sources *out)
{
    if (cJSON_IsString(value) && value->valuestring[0] != 0) {
        *out = dt_source_alone(arena, value->valuestring);
        return true;
    }
    int count = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 0;
    if (count < 1 || count > DT_SOURCES_MAX) {
        return false;
    }
    struct dt_source *of = dt_arena_alloc(arena, (size_t)count * sizeof *of);
    const cJSON *v = value->child;
    const char *words = "";
    for (int i = 0; i < count; i++, v = v->next) {
        if (!parse_source(v, arena, &of[i])) {
            return false;
        }
        words = dt_arena_printf(arena, "%s%s%s", words, i > 0 ? ", " : "", of[i].path);
    }
    *out = (struct dt_sources){words, count, of};
    return true;
}

static bool parse_objects(const cJSON *value, struct dt_arena *arena, void *out)
{
    const cJSON *x;
    if (!cJSON_IsArray(value) || value->child == NULL) {
        return false;
    }
    cJSON_ArrayForEach(x, value)
    {
        if (!cJSON_IsObject(x)) {
            return false;
        }
    }
    char *text = cJSON_PrintUnformatted(value);
    *(const char **)out = text != NULL ? dt_arena_strdup(arena, text) : NULL;
    cJSON_free(text);
    return *(const char **)out != NULL;
}

bool dt_value_parse(const struct dt_rule *rule, const cJSON *value, struct dt_arena *arena, void *out)
{
    if (cJSON_IsNull(value)) {
        return rule->null && parse_null(rule, out);
    }
    const char *at = NULL;
    size_t size = 0;
    switch (rule->type) {
    case DT_RULE_BOOL:
        if (!cJSON_IsBool(value)) {
            return false;
        }
        *(bool *)out = cJSON_IsTrue(value);
        return true;
    case DT_RULE_INTEGER:
        return integer_of(rule, value, out);
    case DT_RULE_NUMBER:
        if (!cJSON_IsNumber(value) || !in_range(rule, value->valuedouble)) {
            return false;
        }
        *(double *)out = value->valuedouble;
        return true;
    case DT_RULE_STRING:
        if (!cJSON_IsString(value) || value->valuestring[0] == 0) {
            return false;
        }
        *(const char **)out = dt_arena_strdup(arena, value->valuestring);
        return true;
    case DT_RULE_CHOICE: {
        char digits[16];
        const char *word = cJSON_GetStringValue(value);
        if (cJSON_IsNumber(value)) { /* a choice may be digits: 16 */
            (void)snprintf(digits, sizeof digits, "%g", value->valuedouble);
            word = digits;
        }
        if (word == NULL || choice_of(rule->choices, word, &at, &size) < 0) {
            return false;
        }
        *(const char **)out = dt_arena_printf(arena, "%.*s", (int)size, at);
        return true;
    }
    case DT_RULE_ENUM: {
        const char *word = cJSON_IsBool(value) ? cJSON_IsTrue(value) ? "true" : "false" : cJSON_GetStringValue(value);
        int index = word != NULL ? choice_of(rule->choices, word, &at, &size) : -1;
        if (index < 0) {
            return false;
        }
        *(int *)out = index;
        return true;
    }
    case DT_RULE_NAMES:
        return parse_names(value, arena, out);
    case DT_RULE_KINDS:
        return parse_kinds(rule, value, out);
    case DT_RULE_STRINGS:
        return parse_strings(value, arena, out);
    case DT_RULE_SOURCES:
        return parse_sources(value, arena, out);
    case DT_RULE_SETS:
        return config_parse_sets(value, arena, out);
    case DT_RULE_OBJECTS:
        return parse_objects(value, arena, out);
    case DT_RULE_NUMBERS:
        return parse_numbers(rule, value, out);
    case DT_RULE_INTEGERS:
        return parse_integers(rule, value, out);
    case DT_RULE_PAIR: {
        int64_t pair[2];
        if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) != 2 || !integer_of(rule, value->child, &pair[0]) ||
            !integer_of(rule, value->child->next, &pair[1])) {
            return false;
        }
        memcpy(out, pair, sizeof pair);
        return true;
    }
    }
    return false;
}

/* The shortest decimal that reads back as the same double. */
void config_add_double(double v, struct dt_text *out)
{
    char buffer[40];
    if (v == floor(v) && fabs(v) < 1e15) {
        dt_text_printf(out, "%.0f", v + 0.0);
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        (void)snprintf(buffer, sizeof buffer, "%.*g", digits, v);
        if (strtod(buffer, NULL) == v) {
            break;
        }
    }
    dt_text_puts(out, buffer);
}

/* True for a list of words and numbers alone, few enough for a line. */
static bool is_short(const cJSON *list)
{
    size_t size = 0;
    for (const cJSON *v = list->child; v != NULL; v = v->next) {
        size += cJSON_IsString(v) ? strlen(v->valuestring) + 4 : 10;
        if (cJSON_IsObject(v) || cJSON_IsArray(v) || size > 60) {
            return false;
        }
    }
    return true;
}

void dt_value_show(const cJSON *value, struct dt_text *out)
{
    if (cJSON_IsArray(value) && is_short(value)) {
        dt_text_puts(out, "[");
        for (const cJSON *v = value->child; v != NULL; v = v->next) {
            dt_value_show(v, out);
            dt_text_puts(out, v->next != NULL ? ", " : "");
        }
        dt_text_puts(out, "]");
    } else if (cJSON_IsObject(value) || cJSON_IsArray(value)) {
        dt_text_puts(out, cJSON_IsObject(value) ? "an object" : "a list");
    } else if (cJSON_IsString(value)) {
        size_t size = strlen(value->valuestring);
        dt_text_json(out, value->valuestring, size > 60 ? 60 : size);
        dt_text_puts(out, size > 60 ? "..." : "");
    } else if (cJSON_IsNumber(value)) {
        config_add_double(value->valuedouble, out);
    } else {
        dt_text_puts(out, cJSON_IsNull(value) ? "null" : cJSON_IsTrue(value) ? "true" : "false");
    }
}

static void add_range(const struct dt_rule *rule, struct dt_text *out)
{
    dt_text_puts(out, rule->open_min ? " above " : " from ");
    config_add_double(rule->min, out);
    dt_text_puts(out, rule->open_max ? " and below " : rule->open_min ? " and at most " : " to ");
    config_add_double(rule->max, out);
}

void dt_value_expected(const struct dt_rule *rule, struct dt_text *out)
{
    switch (rule->type) {
    case DT_RULE_BOOL:
        dt_text_puts(out, "true or false");
        break;
    case DT_RULE_INTEGER:
        dt_text_puts(out, "a whole number");
        add_range(rule, out);
        break;
    case DT_RULE_NUMBER:
        dt_text_puts(out, "a number");
        add_range(rule, out);
        break;
    case DT_RULE_STRING:
        dt_text_puts(out, "a string that is not empty");
        break;
    case DT_RULE_NAMES:
        dt_text_puts(out, "a list of names");
        break;
    case DT_RULE_OBJECTS:
        dt_text_puts(out, "a list of objects {...}");
        break;
    case DT_RULE_STRINGS:
        dt_text_puts(out, "a string that is not empty, or a list of such strings");
        break;
    case DT_RULE_SOURCES:
        dt_text_puts(out, "a path, or a list of {\"path\": PATH, \"weight\": NUMBER} with weights above 0");
        break;
    case DT_RULE_SETS:
        dt_text_puts(out, "a path, a list of paths, or {\"NAME\": PATHS, ...} with names of letters, digits, _ and -");
        break;
    case DT_RULE_NUMBERS:
        dt_text_printf(out, "a %snumber or a list of up to %d,", rule->whole ? "whole " : "", DT_NUMBERS_MAX);
        add_range(rule, out);
        break;
    case DT_RULE_KINDS:
        dt_text_puts(out, "a list of ");
        for (const char *p = rule->choices; *p != 0; p++) {
            dt_text_printf(out, *p == '|' ? " and " : "%c", *p);
        }
        break;
    case DT_RULE_INTEGERS:
        dt_text_printf(out, "a list of 1 to %d whole numbers", DT_INTEGERS_MAX);
        add_range(rule, out);
        break;
    case DT_RULE_PAIR:
        dt_text_puts(out, "a list of two whole numbers");
        add_range(rule, out);
        break;
    case DT_RULE_CHOICE:
    case DT_RULE_ENUM:
        dt_text_puts(out, strchr(rule->choices, '|') != NULL ? "one of: " : "");
        for (const char *p = rule->choices; *p != 0; p++) {
            dt_text_printf(out, *p == '|' ? ", " : "%c", *p);
        }
        break;
    }
    if (rule->null) {
        dt_text_puts(out, ", or null");
    }
}

/* Appends the choice that begins at p as JSON. */
void config_add_choice(const char *p, struct dt_text *out)
{
    size_t size = strcspn(p, "|");
    bool literal = (size == 4 && strncmp(p, "true", size) == 0) || (size == 5 && strncmp(p, "false", size) == 0) ||
                   (size == 1 && (*p == '0' || *p == '1'));
    if (literal) {
        dt_text_printf(out, "%.*s", (int)size, p);
    } else {
        dt_text_json(out, p, size);
    }
}

static int choice_count(const struct dt_rule *rule)
{
    int count = 1;
    for (const char *p = rule->choices; *p != 0; p++) {
        count += *p == '|';
    }
    return count;
}

static bool is_null(const struct dt_rule *rule, const void *in)
{
    switch (rule->type) {
    case DT_RULE_INTEGER: /* a null that stands for one of the rule's own values is written as that value */
        return rule->null && rule->null_value < rule->min && *(const int64_t *)in == rule->null_value;
    case DT_RULE_PAIR:
        return rule->null && ((const int64_t *)in)[0] == rule->null_value &&
               ((const int64_t *)in)[1] == rule->null_value;
    case DT_RULE_STRING:
    case DT_RULE_CHOICE:
    case DT_RULE_NAMES:
    case DT_RULE_OBJECTS:
        return *(const char *const *)in == NULL;
    case DT_RULE_KINDS:
        return ((const struct dt_kinds *)in)->count == 0;
    case DT_RULE_STRINGS:
        return ((const struct dt_strings *)in)->count == 0;
    case DT_RULE_SOURCES:
        return ((const struct dt_sources *)in)->count == 0;
    case DT_RULE_SETS:
        return ((const struct dt_sets *)in)->count == 0;
    case DT_RULE_NUMBERS:
        return ((const struct dt_numbers *)in)->count == 0;
    case DT_RULE_INTEGERS:
        return rule->null && ((const struct dt_integers *)in)->count == 0;
    case DT_RULE_NUMBER:
        return rule->null && rule->null_value < rule->min && *(const double *)in == rule->null_value;
    case DT_RULE_ENUM:
        return rule->null && (*(const int *)in < 0 || *(const int *)in >= choice_count(rule));
    case DT_RULE_BOOL:
        break;
    }
    return false;
}

static void format_names(const char *names, struct dt_text *out)
{
    dt_text_puts(out, "[");
    for (const char *p = names; *p != 0;) {
        size_t n = strcspn(p, ",");
        dt_text_puts(out, p == names ? "" : ", ");
        dt_text_json(out, p, n);
        p += n + (p[n] == ',');
    }
    dt_text_puts(out, "]");
}

/* Choice number `index`. */
static const char *choice_at(const struct dt_rule *rule, int index)
{
    const char *p = rule->choices;
    for (; index > 0; index--) {
        p += strcspn(p, "|") + 1;
    }
    return p;
}

static void format_kinds(const struct dt_rule *rule, const struct dt_kinds *kinds, struct dt_text *out)
{
    for (int i = 0; i < kinds->count; i++) {
        dt_text_puts(out, i == 0 ? "[" : ", ");
        config_add_choice(choice_at(rule, kinds->of[i]), out);
    }
    dt_text_puts(out, "]");
}

size_t dt_config_size(const struct dt_rule *rule)
{
    switch (rule->type) {
    case DT_RULE_BOOL:
        return sizeof(bool);
    case DT_RULE_INTEGER:
        return sizeof(int64_t);
    case DT_RULE_NUMBER:
        return sizeof(double);
    case DT_RULE_ENUM:
        return sizeof(int);
    case DT_RULE_PAIR:
        return 2 * sizeof(int64_t);
    case DT_RULE_KINDS:
        return sizeof(struct dt_kinds);
    case DT_RULE_STRINGS:
        return sizeof(struct dt_strings);
    case DT_RULE_SOURCES:
        return sizeof(struct dt_sources);
    case DT_RULE_SETS:
        return sizeof(struct dt_sets);
    case DT_RULE_NUMBERS:
        return sizeof(struct dt_numbers);
    case DT_RULE_INTEGERS:
        return sizeof(struct dt_integers);
    case DT_RULE_STRING:
    case DT_RULE_CHOICE:
    case DT_RULE_NAMES:
    case DT_RULE_OBJECTS:
        break;
    }
    return sizeof(char *);
}

static void format_strings(const struct dt_strings *list, struct dt_text *out)
{
    for (int i = 0; i < list->count; i++) {
        dt_text_puts(out, i > 0 ? ", " : "[");
        dt_text_json(out, list->of[i], strlen(list->of[i]));
    }
    dt_text_puts(out, "]");
}

static void format_sources(const struct dt_sources *list, struct dt_text *out)
{
    for (int i = 0; i < list->count && list->count > 1; i++) {
        dt_text_puts(out, i > 0 ? ", {\"path\": " : "[{\"path\": ");
        dt_text_json(out, list->of[i].path, strlen(list->of[i].path));
        dt_text_puts(out, ", \"weight\": ");
        config_add_double(list->of[i].weight, out);
        dt_text_puts(out, "}");
    }
    if (list->count == 1) {
        dt_text_json(out, list->words, strlen(list->words));
    } else {
        dt_text_puts(out, "]");
    }
}

static void format_numbers(const struct dt_numbers *list, struct dt_text *out)
{
    for (int i = 0; i < list->count; i++) {
        dt_text_puts(out, list->count == 1 ? "" : i > 0 ? ", " : "[");
        config_add_double(list->of[i], out);
    }
    dt_text_puts(out, list->count > 1 ? "]" : "");
}

static void format_integers(const struct dt_integers *list, struct dt_text *out)
{
    for (int64_t i = 0; i < list->count; i++) {
        dt_text_printf(out, "%s%" PRId64, i > 0 ? ", " : "[", list->of[i]);
    }
    dt_text_puts(out, list->count > 0 ? "]" : "[]");
}

void dt_config_format(const struct dt_field *field, const void *in, struct dt_text *out)
{
    const struct dt_rule *rule = field->rule;
    in = (const char *)in + field->offset;
    if (is_null(rule, in)) {
        dt_text_puts(out, "null");
        return;
    }
    switch (rule->type) {
    case DT_RULE_BOOL:
        dt_text_puts(out, *(const bool *)in ? "true" : "false");
        break;
    case DT_RULE_INTEGER:
        dt_text_printf(out, "%" PRId64, *(const int64_t *)in);
        break;
    case DT_RULE_NUMBER:
        config_add_double(*(const double *)in, out);
        break;
    case DT_RULE_STRING:
    case DT_RULE_CHOICE:
        dt_text_json(out, *(const char *const *)in, strlen(*(const char *const *)in));
        break;
    case DT_RULE_NAMES:
        format_names(*(const char *const *)in, out);
        break;
    case DT_RULE_OBJECTS:
        dt_text_puts(out, *(const char *const *)in);
        break;
    case DT_RULE_PAIR:
        dt_text_printf(out, "[%" PRId64 ", %" PRId64 "]", ((const int64_t *)in)[0], ((const int64_t *)in)[1]);
        break;
    case DT_RULE_ENUM:
        config_add_choice(choice_at(rule, *(const int *)in), out);
        break;
    case DT_RULE_INTEGERS:
        format_integers(in, out);
        break;
    case DT_RULE_KINDS:
        format_kinds(rule, in, out);
        break;
    case DT_RULE_STRINGS:
        format_strings(in, out);
        break;
    case DT_RULE_SOURCES:
        format_sources(in, out);
        break;
    case DT_RULE_SETS:
        config_format_sets(in, out);
        break;
    case DT_RULE_NUMBERS:
        format_numbers(in, out);
        break;
    }
}
