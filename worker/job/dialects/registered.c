#include "worker/job/dialects/registered.h"

#include "worker/job/job_fields.h"

#include <cjson/cJSON.h>
#include <string.h>
#include <strings.h>

#define SECTION "strategies"
enum { DEPTH_MAX = 8 }; /* of strategies upon each other */

static const cJSON *all(const struct dt_config *c)
{
    const cJSON *value = dt_config_value(c, SECTION);
    return cJSON_IsObject(value) ? value->child : NULL;
}

/* The name as it is registered, or null. */
static const char *find(const struct dt_config *c, const char *name)
{
    for (const cJSON *v = all(c); v != NULL; v = v->next) {
        if (strcasecmp(v->string, name) == 0) {
            return v->string;
        }
    }
    return NULL;
}

static const char *base_of(const struct dialect_use *u, const char *name)
{
    const cJSON *base = dt_config_value(u->c, dt_arena_printf(u->arena, SECTION ".%s.base", name));
    return cJSON_IsString(base) ? base->valuestring : NULL;
}

/* Sections whose keys say how it is trained, not what. */
static const struct job_section *section_of(const char *name)
{
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        bool what = s == &job_sections[JOB_TOP] || s == &job_sections[JOB_MODEL] || s == &job_sections[JOB_DATA];
        if (!what && strcmp(s->name, name) == 0) {
            return s;
        }
    }
    return NULL;
}

static bool has_field(const struct job_section *s, const char *key)
{
    for (const struct dt_field *f = s->fields; f->key != NULL; f++) {
        if (strcmp(f->key, key) == 0) {
            return strcmp(s->name, "training") != 0 || strcmp(key, "strategy") != 0;
        }
    }
    for (int i = 0; job_other_fields(s, i) != NULL; i++) {
        for (const struct dt_field *f = job_other_fields(s, i); f->key != NULL; f++) {
            if (strcmp(f->key, key) == 0) {
                return true;
            }
        }
    }
    return false;
}

static bool is_builtin(const char *name)
{
    for (const struct dt_field *f = job_sections[JOB_TRAINING].fields; f->key != NULL; f++) {
        for (const char *p = strcmp(f->key, "strategy") == 0 ? f->rule->choices : ""; *p != 0; p += *p == '|') {
            size_t size = strcspn(p, "|");
            if (strlen(name) == size && strncasecmp(p, name, size) == 0) {
                return true;
            }
            p += size;
        }
    }
    return false;
}

static void check_options(struct dialect_use *u, const char *path, const cJSON *object)
{
    for (const cJSON *v = object->child; v != NULL; v = v->next) {
        const char *key = dt_arena_printf(u->arena, "%s.%s", path, v->string);
        const struct job_section *s = section_of(v->string);
        bool text = strcmp(v->string, "base") == 0 || strcmp(v->string, "description") == 0;
        if (text && !cJSON_IsString(v)) {
            dt_config_problem(u->c, key, "give a string");
        } else if (!text && (s == NULL || !cJSON_IsObject(v))) {
            dt_config_problem(u->c, key,
                              "there are base, description, and sections of the job that say how it is trained, such "
                              "as \"fsdp\": { \"forward_prefetch\": true }");
        }
        for (const cJSON *o = s != NULL && cJSON_IsObject(v) ? v->child : NULL; o != NULL; o = o->next) {
            if (!has_field(s, o->string)) {
                dt_config_problem(u->c, dt_arena_printf(u->arena, "%s.%s", key, o->string),
                                  "%s has no such key for a strategy", s->name);
            }
        }
    }
}

/* chosen: the base is training.strategy, which is read as every key. */
static void check(struct dialect_use *u, const cJSON *one, bool chosen)
{
    const char *path = dt_arena_printf(u->arena, SECTION ".%s", one->string), *base = base_of(u, one->string);
    if (!cJSON_IsObject(one)) {
        dt_config_problem(u->c, path, "give an object, { \"base\": \"zero2\", \"description\": \"...\", ... }");
        return;
    }
    if (is_builtin(one->string)) {
        dt_config_problem(u->c, path, "is the name of a strategy that is there; take another one");
    }
    check_options(u, path, one);
    if (base == NULL) {
        dt_config_problem(u->c, path, "has no base; add the strategy that it is, \"base\": \"zero2\"");
    } else if (!chosen && !is_builtin(base) && find(u->c, base) == NULL) {
        dt_config_problem(u->c, dt_arena_printf(u->arena, "%s.base", path),
                          "is %.60s: neither a strategy nor registered here; see train --list-strategies", base);
    }
}

/* Gives the options of one to the job; a strategy upon it said others before. */
static void give_options(struct dialect_use *u, const char *name)
{
    const cJSON *one = NULL;
    for (const cJSON *v = all(u->c); v != NULL; v = v->next) {
        one = strcmp(v->string, name) == 0 ? v : one;
    }
    for (const cJSON *v = cJSON_IsObject(one) ? one->child : NULL; v != NULL; v = v->next) {
        const struct job_section *s = section_of(v->string);
        for (const cJSON *o = s != NULL && cJSON_IsObject(v) ? v->child : NULL; o != NULL; o = o->next) {
            const char *to = dt_arena_printf(u->arena, "%s.%s", s->name, o->string),
                       *from = dt_arena_printf(u->arena, SECTION ".%s.%s", name, to);
            bool overridden = strncmp(dt_config_name(u->c, to), SECTION ".", sizeof SECTION) == 0;
            if (!overridden && has_field(s, o->string) && dt_config_value(u->c, from) != NULL) {
                dialect_give(u, from, to, cJSON_Duplicate(dt_config_value(u->c, from), true));
            }
        }
    }
}

void registered_apply(struct dialect_use *u)
{
    const cJSON *wanted = dt_config_value(u->c, "training.strategy"), *section = dt_config_value(u->c, SECTION);
    dt_config_known(u->c, SECTION ".NAME");
    if (section != NULL && !cJSON_IsObject(section)) {
        return; /* which was said */
    }
    const char *name = cJSON_IsString(wanted) ? find(u->c, wanted->valuestring) : NULL, *last = name;
    for (int depth = 0; name != NULL; depth++) {
        if (depth == DEPTH_MAX) {
            dt_config_problem(u->c, dt_arena_printf(u->arena, SECTION ".%s.base", name),
                              "more than %d strategies upon each other, or a circle", DEPTH_MAX);
            dt_config_move(u->c, "training.strategy", "training.strategy", cJSON_CreateString("auto"));
            last = NULL;
            break;
        }
        give_options(u, name);
        last = name;
        const char *base = base_of(u, name);
        name = base != NULL ? find(u->c, base) : NULL;
    }
    if (last != NULL && base_of(u, last) != NULL) {
        dt_config_move(u->c, dt_arena_printf(u->arena, SECTION ".%s.base", last), "training.strategy", NULL);
    }
    for (const cJSON *v = all(u->c); v != NULL; v = v->next) {
        check(u, v, last != NULL && strcmp(v->string, last) == 0);
    }
    dt_config_pass(u->c, SECTION);
    wanted = dt_config_value(u->c, "training.strategy");
    if (cJSON_IsString(wanted) && (strncasecmp(wanted->valuestring, "ddp_spawn", 9) == 0 ||
                                   strncasecmp(wanted->valuestring, "ddp_fork", 8) == 0 ||
                                   strncasecmp(wanted->valuestring, "ddp_notebook", 12) == 0)) {
        dialect_inert(u, "training.strategy", "ddp; dtrun starts the ranks, not an interpreter");
    }
}

const char *const *registered_names(const struct dt_config *c, struct dt_arena *arena)
{
    size_t count = 0;
    for (const cJSON *v = all(c); v != NULL; v = v->next) {
        count++;
    }
    const char **names = dt_arena_alloc(arena, (count + 1) * sizeof *names);
    count = 0;
    for (const cJSON *v = all(c); v != NULL; v = v->next) {
        names[count++] = dt_arena_strdup(arena, v->string);
    }
    names[count] = NULL;
    return names;
}

void registered_list(const struct dt_config *c, struct dt_text *out)
{
    for (const cJSON *v = all(c); v != NULL; v = v->next) {
        const cJSON *base = cJSON_GetObjectItemCaseSensitive(v, "base"),
                    *text = cJSON_GetObjectItemCaseSensitive(v, "description");
        dt_text_printf(out, "%s\n    %s%s%s\n", v->string, cJSON_IsString(base) ? base->valuestring : "no base",
                       cJSON_IsString(text) ? ": " : "", cJSON_IsString(text) ? text->valuestring : "");
    }
}
