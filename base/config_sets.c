/* The values of DT_RULE_SETS: files, or several sets of them that have names. */
#include "base/config_own.h"
#include "base/config_value.h"
#include "base/scan.h"

#include <cjson/cJSON.h>
#include <string.h>

static const char name_letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";

/* A name becomes a part of other names. */
static bool good_name(const char *name)
{
    size_t size = strlen(name);
    return size > 0 && size <= DT_SET_NAME_MAX && strspn(name, name_letters) == size;
}

struct dt_sets dt_set_alone(struct dt_arena *arena, const char *path)
{
    struct dt_set *of = dt_arena_alloc(arena, sizeof *of);
    *of = (struct dt_set){.from = dt_source_alone(arena, path)};
    return (struct dt_sets){1, of};
}

/* The fault of a path, or of a list of paths; null: none. */
static const char *paths_fault(const cJSON *value, struct dt_arena *arena)
{
    int count = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1, number = 1;
    if (count < 1 || count > DT_SOURCES_MAX) {
        return dt_arena_printf(arena, "has %d paths; 1 to %d are right", count, DT_SOURCES_MAX);
    }
    for (const cJSON *v = cJSON_IsArray(value) ? value->child : value; v != NULL && number <= count; v = v->next) {
        if (!cJSON_IsString(v) || v->valuestring[0] == 0) {
            const char *shown = config_shown(v, arena);
            return cJSON_IsArray(value) ? dt_arena_printf(arena, "entry %d is %s", number, shown)
                                        : dt_arena_printf(arena, "is %s", shown);
        }
        number++;
    }
    return NULL;
}

static bool parse_paths(const cJSON *value, struct dt_arena *arena, struct dt_sources *out)
{
    if (paths_fault(value, arena) != NULL) {
        return false;
    }
    int count = cJSON_IsArray(value) ? cJSON_GetArraySize(value) : 1;
    struct dt_source *of = dt_arena_alloc(arena, (size_t)count * sizeof *of);
    const cJSON *v = cJSON_IsArray(value) ? value->child : value;
    const char *words = "";
    for (int i = 0; i < count; i++, v = v->next) {
        of[i] = (struct dt_source){.path = dt_arena_strdup(arena, v->valuestring), .weight = 1};
        words = i == 0 ? of[i].path : dt_arena_printf(arena, "%s, %s", words, of[i].path);
    }
    *out = (struct dt_sources){words, count, of};
    return true;
}

const char *config_sets_fault(const cJSON *value, struct dt_arena *arena)
{
    const char *fault = NULL;
    if (!cJSON_IsObject(value)) {
        return cJSON_IsArray(value) ? paths_fault(value, arena) : NULL;
    }
    int count = cJSON_GetArraySize(value);
    if (count < 1 || count > DT_SETS_MAX) {
        return dt_arena_printf(arena, "has %d sets; 1 to %d are right", count, DT_SETS_MAX);
    }
    for (const cJSON *v = value->child; v != NULL && fault == NULL; v = v->next) {
        if (!good_name(v->string)) {
            const char *quote = v->string[0] == '"' ? "" : "\""; /* as in a path of the job's keys, it may have them */
            return dt_arena_printf(arena, "%s%s%s is no name of a set", quote, v->string, quote);
        }
        fault = paths_fault(v, arena);
        fault = fault != NULL ? dt_arena_printf(arena, "%s: %s", v->string, fault) : NULL;
    }
    return fault;
}

bool config_parse_sets(const cJSON *value, struct dt_arena *arena, struct dt_sets *out)
{
    int count = cJSON_IsObject(value) ? cJSON_GetArraySize(value) : 1;
    if (count < 1 || count > DT_SETS_MAX) {
        return false;
    }
    struct dt_set *of = dt_arena_alloc(arena, (size_t)count * sizeof *of);
    const cJSON *v = cJSON_IsObject(value) ? value->child : value;
    for (int i = 0; i < count; i++, v = v->next) {
        if (!parse_paths(v, arena, &of[i].from) || (cJSON_IsObject(value) && !good_name(v->string))) {
            return false;
        }
        of[i].name = cJSON_IsObject(value) ? dt_arena_strdup(arena, v->string) : NULL;
    }
    *out = (struct dt_sets){count, of};
    return true;
}

void config_format_sets(const struct dt_sets *sets, struct dt_text *out)
{
    bool named = sets->of[0].name != NULL;
    dt_text_puts(out, named ? "{" : "");
    for (int i = 0; i < sets->count; i++) {
        const struct dt_sources *from = &sets->of[i].from;
        if (named) {
            dt_text_printf(out, "%s\"%s\": ", i > 0 ? ", " : "", sets->of[i].name);
        }
        for (int k = 0; k < from->count; k++) {
            dt_text_puts(out, from->count == 1 ? "" : k == 0 ? "[" : ", ");
            dt_text_json(out, from->of[k].path, strlen(from->of[k].path));
        }
        dt_text_puts(out, from->count == 1 ? "" : "]");
    }
    dt_text_puts(out, named ? "}" : "");
}

void config_schema_sets(const struct dt_rule *rule, struct dt_text *out)
{
    const char *items = "\"minLength\": 1, \"minItems\": 1, \"maxItems\": %d, "
                        "\"items\": {\"type\": \"string\", \"minLength\": 1}";
    dt_text_printf(out, "\"type\": [\"array\", \"string\", \"object\"%s], ", rule->null ? ", \"null\"" : "");
    dt_text_printf(out, items, DT_SOURCES_MAX);
    dt_text_printf(out,
                   ", \"minProperties\": 1, \"maxProperties\": %d, \"propertyNames\": {\"pattern\": "
                   "\"^[a-zA-Z0-9_-]{1,%d}$\"}, \"additionalProperties\": {\"type\": [\"array\", \"string\"], ",
                   DT_SETS_MAX, DT_SET_NAME_MAX);
    dt_text_printf(out, items, DT_SOURCES_MAX);
    dt_text_puts(out, "}");
}
