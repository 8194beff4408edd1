/* Single values, read by a rule. config_format.c shows them in messages and writes them as JSON. */
#include "base/config_own.h"
#include "base/config_value.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <math.h>
#include <stdint.h>
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
    *of = (struct dt_source){.path = dt_arena_strdup(arena, path), .weight = 1};
    return (struct dt_sources){of->path, 1, of};
}

const char *config_shown(const cJSON *value, struct dt_arena *arena)
{
    struct dt_text shown;
    dt_text_init(&shown);
    dt_value_show(value, &shown);
    const char *text = dt_arena_strdup(arena, dt_text_str(&shown));
    dt_text_clear(&shown);
    return text;
}

/* The fault of one entry of a list, which must be an object with a path and a weight; null: none. The text is in the
 * arena. */
static const char *source_fault(const cJSON *value, struct dt_arena *arena)
{
    const cJSON *path = cJSON_GetObjectItemCaseSensitive(value, "path"),
                *weight = cJSON_GetObjectItemCaseSensitive(value, "weight"), *bad = NULL;
    const char *key = NULL;
    if (!cJSON_IsObject(value)) {
        bad = value;
    } else if (path == NULL || weight == NULL) {
        return path == NULL ? "has no path" : "has no weight";
    } else if (!cJSON_IsString(path) || path->valuestring[0] == 0) {
        key = "path";
        bad = path;
    } else if (!cJSON_IsNumber(weight) || !(weight->valuedouble > 0) || !(weight->valuedouble <= DT_WEIGHT_MAX)) {
        key = "weight";
        bad = weight;
    }
    for (const cJSON *v = bad == NULL ? value->child : NULL; v != NULL; v = v->next) {
        if (v != path && v != weight) {
            return dt_arena_printf(arena, "has \"%s\", which is neither path nor weight", v->string);
        }
    }
    if (bad == NULL) {
        return NULL;
    }
    return dt_arena_printf(arena, "%s%sis %s", key != NULL ? key : "", key != NULL ? " " : "",
                           config_shown(bad, arena));
}

const char *dt_value_fault(const struct dt_rule *rule, const cJSON *value, struct dt_arena *arena)
{
    if (rule->type == DT_RULE_SETS) {
        return config_sets_fault(value, arena);
    }
    if (rule->type != DT_RULE_SOURCES || !cJSON_IsArray(value)) {
        return NULL;
    }
    int count = cJSON_GetArraySize(value), number = 1;
    if (count > DT_SOURCES_MAX) {
        return dt_arena_printf(arena, "has %d entries, and %d are the most", count, DT_SOURCES_MAX);
    }
    for (const cJSON *v = value->child; v != NULL; v = v->next, number++) {
        const char *fault = source_fault(v, arena),
                   *path = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(v, "path"));
        if (fault != NULL && path != NULL && *path != 0) {
            return dt_arena_printf(arena, "entry %d (%s): %s", number, path, fault);
        }
        if (fault != NULL) {
            return dt_arena_printf(arena, "entry %d: %s", number, fault);
        }
    }
    return NULL;
}

static bool parse_source(const cJSON *value, struct dt_arena *arena, struct dt_source *out)
{
    if (source_fault(value, arena) != NULL) {
        return false;
    }
    *out =
        (struct dt_source){.path = dt_arena_strdup(arena, cJSON_GetObjectItemCaseSensitive(value, "path")->valuestring),
                           .weight = cJSON_GetObjectItemCaseSensitive(value, "weight")->valuedouble};
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
