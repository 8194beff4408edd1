/* Single values: shown in messages, and written as JSON. config_value.c reads them. */
#include "base/config_own.h"
#include "base/config_value.h"
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

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
        dt_text_puts(out, "a path, or a list of {\"path\": PATH, \"weight\": NUMBER} with weights above 0, up to 1e9");
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
