/* Applies the rules of dialects, and finds values that have two owners. */
#include "worker/job/dialects/dialect.h"

#include "base/config_value.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const struct dialect *const dialects[] = {&dialect_fsdp, &dialect_deepspeed, NULL};

/* ---- words of ours that mean the same ---- */

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

const char *dialect_strategy(const char *name, struct dt_arena *arena)
{
    char *plain = dt_arena_strdup(arena, name);
    for (char *p = plain; *p != 0; p++) {
        *p = (char)tolower((unsigned char)*p);
    }
    const char *stage = strstr(plain, "_stage_");
    return stage != NULL                 ? dt_arena_printf(arena, "zero%s", stage + 7)
           : starts_with(plain, "fsdp_") ? plain + 5
                                         : plain;
}

const char *dialect_precision(const char *name, enum dt_dtype *compute, enum dt_dtype *masters)
{
    static const struct {
        const char *name, *plain;
        enum dt_dtype compute, masters;
    } rows[] = {{"32-true", "32-true", DT_F32, DT_F32},       {"bf16-mixed", "bf16-mixed", DT_BF16, DT_F32},
                {"bf16", "bf16-mixed", DT_BF16, DT_F32},      {"16-mixed", "16-mixed", DT_F16, DT_F32},
                {"16", "16-mixed", DT_F16, DT_F32},           {"fp16", "16-mixed", DT_F16, DT_F32},
                {"bf16-true", "bf16-true", DT_BF16, DT_BF16}, {"16-true", "16-true", DT_F16, DT_F16},
                {"64-true", "64-true", DT_F64, DT_F64},       {"64", "64-true", DT_F64, DT_F64}};
    size_t at = sizeof rows / sizeof rows[0];
    while (--at > 0 && strcasecmp(rows[at].name, name) != 0) {
    }
    *compute = rows[at].compute;
    *masters = rows[at].masters;
    return rows[at].plain;
}

enum dt_dtype dialect_element(const char *name)
{
    return strcasecmp(name, "bf16") == 0 || strcasecmp(name, "bfloat16") == 0  ? DT_BF16
           : strcasecmp(name, "fp16") == 0 || strcasecmp(name, "float16") == 0 ? DT_F16
                                                                               : DT_F32;
}

static const char *plain_precision(const char *name, struct dt_arena *arena)
{
    enum dt_dtype compute, masters;
    (void)arena;
    return dialect_precision(name, &compute, &masters);
}

static const struct spelling {
    const char *key;
    const char *(*plain)(const char *word, struct dt_arena *arena);
} spellings[] = {{"training.strategy", dialect_strategy}, {"training.precision", plain_precision}};

/* A string, or the digits of a number, which stand for a word of training.precision; null: neither. */
static const char *word_of(const struct dialect_use *u, const cJSON *x)
{
    return cJSON_IsNumber(x) ? dt_arena_printf(u->arena, "%g", x->valuedouble) : cJSON_GetStringValue(x);
}

static bool same(const struct dialect_use *u, const char *key, const cJSON *a, const cJSON *b)
{
    const char *x = word_of(u, a), *y = word_of(u, b);
    if (x == NULL || y == NULL || (cJSON_IsNumber(a) && cJSON_IsNumber(b))) {
        return cJSON_Compare(a, b, true);
    }
    for (size_t i = 0; i < sizeof spellings / sizeof spellings[0]; i++) {
        if (strcmp(spellings[i].key, key) == 0) {
            x = spellings[i].plain(x, u->arena);
            y = spellings[i].plain(y, u->arena);
        }
    }
    return strcasecmp(x, y) == 0;
}

/* True for a value of ours that leaves the choice to the dialect. */
static bool leaves_open(const struct dialect *d, const cJSON *ours)
{
    return dialect_is_auto(ours) || (cJSON_IsString(ours) && strcasecmp(ours->valuestring, d->family) == 0);
}

/* ---- one key ---- */

bool dialect_is_auto(const cJSON *value)
{
    return cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0;
}

const char *dialect_path(const struct dialect_use *u, const char *key)
{
    return dt_arena_printf(u->arena, "%s%s", u->prefix, key);
}

bool dialect_says(const struct dialect_use *u, const char *key)
{
    const cJSON *value = dt_config_value(u->c, dialect_path(u, key));
    return value != NULL && !dialect_is_auto(value);
}

void dialect_give(struct dialect_use *u, const char *path, const char *to, cJSON *value)
{
    const cJSON *ours = dt_config_value(u->c, to);
    if (ours == NULL || leaves_open(u->dialect, ours) || same(u, to, ours, value)) {
        dt_config_move(u->c, path, to, value);
        return;
    }
    struct dt_text is, other;
    dt_text_init(&is);
    dt_text_init(&other);
    dt_value_show(dt_config_value(u->c, path), &is);
    dt_value_show(dt_config_given(u->c, to), &other);
    dt_config_problem(u->c, path, "is %s, but %s is %s (%s); say it in one place", dt_text_str(&is),
                      dt_config_name(u->c, to), dt_text_str(&other), dt_config_source(u->c, to));
    dt_text_clear(&is);
    dt_text_clear(&other);
    dt_config_pass(u->c, path);
    cJSON_Delete(value);
}

static bool word_is(const cJSON *value, const char *word, size_t size, struct dt_arena *arena)
{
    const char *text = dt_arena_printf(arena, "%.*s", (int)size, word);
    char *end = NULL;
    return cJSON_IsBool(value)     ? strcmp(text, cJSON_IsTrue(value) ? "true" : "false") == 0
           : cJSON_IsNumber(value) ? strtod(text, &end) == value->valuedouble && *text != 0 && *end == 0
                                   : cJSON_IsString(value) && strcasecmp(text, value->valuestring) == 0;
}

/* What stands behind the word of a value, in the arena; null when the list does not have it.
 * `names`: all words that are taken. */
static const char *translate(const struct dialect_use *u, const char *words, const cJSON *value, struct dt_text *names)
{
    const char *found = NULL;
    for (const char *p = words; *p != 0;) {
        size_t word = strcspn(p, "="), rest = strcspn(p + word + 1, "|");
        bool refused = p[word + 1] == '!';
        if (found == NULL && (word_is(value, p, word, u->arena) || (word == 1 && *p == '*'))) {
            found = dt_arena_printf(u->arena, "%.*s", (int)rest, p + word + 1);
        }
        if (!refused) {
            dt_text_printf(names, "%s%.*s", names->size > 0 ? ", " : "", (int)word, p);
        }
        p += word + 1 + rest;
        p += *p == '|';
    }
    return found;
}

static void use_words(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    struct dt_text names, is;
    dt_text_init(&names);
    dt_text_init(&is);
    dt_value_show(value, &is);
    const char *ours = translate(u, r->text, value, &names);
    if (ours == NULL) {
        dt_config_problem(u->c, path, "is %s; give one of: %s", dt_text_str(&is), dt_text_str(&names));
    } else if (*ours == '!') {
        dt_config_problem(u->c, path, "is %s: %s", dt_text_str(&is), ours + 1);
    } else if (*ours != 0) {
        dialect_give(u, path, r->to, cJSON_CreateString(ours));
    }
    dt_config_pass(u->c, path);
    dt_text_clear(&names);
    dt_text_clear(&is);
}

/* An offload to nowhere is off as well. */
static bool is_off(const cJSON *value)
{
    const cJSON *device = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "device") : NULL;
    return dt_config_off(value) || (cJSON_IsString(device) && strcmp(device->valuestring, "none") == 0);
}

static void apply(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (r->how == DIALECT_REFUSE) {
        if (!is_off(value)) {
            dt_config_problem(u->c, path, "%s", r->text);
        }
    } else if (r->how == DIALECT_INERT) {
        dt_text_printf(u->inert, "%s%s", u->inert->size > 0 ? ", " : "", dt_config_name(u->c, path));
    } else if (dialect_is_auto(value)) {
        dt_config_pass(u->c, path);
    } else if (r->how == DIALECT_FUNCTION) {
        r->fn(u, r, path, value);
    } else if (r->how == DIALECT_WORDS) {
        use_words(u, r, path, value);
    } else {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
    dt_config_pass(u->c, path);
}

/* The section is theirs: it holds one of their keys. Ours may have the same name. */
static bool has_key_of(const struct dialect_use *u, const char *from, size_t section_bytes)
{
    for (const struct dialect_rule *r = u->dialect->rules; r->from != NULL; r++) {
        if (strncmp(r->from, from, section_bytes) == 0 && r->from[section_bytes] == '.' &&
            dt_config_where(u->c, dialect_path(u, r->from)) != NULL) {
            return true;
        }
    }
    return false;
}

/* Their default, where the section of the key is given without it. A key without a section is of the
 * dialect's own. */
static void fall_back(struct dialect_use *u, const struct dialect_rule *r)
{
    size_t size = strchr(r->from, '.') != NULL ? strcspn(r->from, ".") : 0;
    const char *section = size > 0               ? dt_arena_printf(u->arena, "%s%.*s", u->prefix, (int)size, r->from)
                          : u->prefix[0] != '\0' ? u->dialect->section
                                                 : NULL;
    const cJSON *ours = dt_config_value(u->c, r->to);
    bool theirs = u->prefix[0] != '\0' || has_key_of(u, r->from, size);
    if (theirs && section != NULL && dt_config_value(u->c, section) != NULL &&
        (ours == NULL || dialect_is_auto(ours))) {
        dt_config_move(u->c, section, r->to, cJSON_Parse(r->fallback));
    }
}

/* ---- all keys ---- */

/* The keys at one place: at the top of the job, or in the dialect's section. */
static void apply_at(struct dialect_use *u)
{
    for (const struct dialect_rule *r = u->dialect->rules; r->from != NULL; r++) {
        const char *path = dialect_path(u, r->from);
        if (r->how != DIALECT_REFUSE) {
            dt_config_known(u->c, path);
        }
        if (dt_config_where(u->c, path) == NULL) {
            dt_config_pass(u->c, path);
        } else {
            apply(u, r, path, dt_config_value(u->c, path));
        }
    }
    for (const struct dialect_rule *r = u->dialect->rules; r->from != NULL; r++) {
        if (r->fallback != NULL && dt_config_value(u->c, dialect_path(u, r->from)) == NULL) {
            fall_back(u, r);
        }
    }
}

void dialects_apply(struct dt_config *c, struct dt_arena *arena, int world, struct dt_text *inert)
{
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        struct dialect_use u = {.c = c, .arena = arena, .dialect = *d, .prefix = "", .world = world, .inert = inert};
        apply_at(&u);
        if ((*d)->section != NULL) {
            u.prefix = dt_arena_printf(arena, "%s.", (*d)->section);
            apply_at(&u);
        }
    }
}

int dialects_include(struct dt_config *c, struct dt_error *err)
{
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        if ((*d)->section != NULL && dt_config_include(c, (*d)->section, err) != 0) {
            return dt_wrap(err, "%s: %s", dt_config_where(c, (*d)->section), (*d)->section);
        }
    }
    return 0;
}
