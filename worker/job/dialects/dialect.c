/* Applies the rules of dialects, and finds values that have two owners. */
#include "worker/job/dialects/dialect.h"

#include "base/config_value.h"
#include "worker/job/dialects/registered.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

const struct dialect *const dialects[] = {&dialect_lightning,
                                          &dialect_trainer,
                                          &dialect_ddp_strategy,
                                          &dialect_deepspeed_strategy,
                                          &dialect_fsdp_strategy,
                                          &dialect_callbacks,
                                          &dialect_early_stopping,
                                          &dialect_model_checkpoint,
                                          &dialect_timer,
                                          &dialect_transformers,
                                          &dialect_accelerate,
                                          &dialect_launch,
                                          &dialect_fsdp,
                                          &dialect_fsdp_block,
                                          &dialect_neox,
                                          &dialect_script,
                                          &dialect_deepspeed,
                                          &dialect_neox_deepspeed,
                                          NULL};

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
    char *offload = strstr(plain, "_offload");
    if (strcmp(plain, "fsdp_cpu_offload") == 0) {
        return dt_arena_strdup(arena, "full_shard");
    }
    if (offload != NULL) { /* the section `offload` has that */
        *offload = 0;
    }
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
                {"64-true", "64-true", DT_F64, DT_F64},       {"64", "64-true", DT_F64, DT_F64},
                {"fp64", "64-true", DT_F64, DT_F64}};
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
    return dialect_is_auto(ours) ||
           (d->family != NULL && cJSON_IsString(ours) && strcasecmp(ours->valuestring, d->family) == 0);
}

/* ---- one key ---- */

bool dialect_is_auto(const cJSON *value)
{
    return cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0;
}

bool dialect_is_word(const cJSON *value, const char *word)
{
    return cJSON_IsString(value) && strcasecmp(value->valuestring, word) == 0;
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
    dt_value_show(dt_config_given(u->c, path), &is); /* which may be null */
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

void dialect_wrong(struct dialect_use *u, const char *path, const char *give)
{
    const cJSON *value = dt_config_value(u->c, path);
    struct dt_text is;
    dt_text_init(&is);
    if (value != NULL) {
        dt_value_show(value, &is);
        dt_text_puts(&is, "; ");
    }
    dt_config_problem(u->c, path, "%s%sgive %s", value != NULL ? "is " : "", dt_text_str(&is), give);
    dt_text_clear(&is);
}

void dialect_inert(struct dialect_use *u, const char *path, const char *why)
{
    enum { LONGEST = 120 }; /* a key of a file may be as long as it likes */
    const char *name = dt_config_name(u->c, path);
    dt_text_printf(u->inert, "%s%.*s%s",
                   u->inert->size == 0 ? ""
                   : u->converts       ? "\n"
                                       : ", ",
                   LONGEST, name, strlen(name) > LONGEST ? "..." : "");
    dt_text_puts(u->inert, why != NULL ? " (" : "");
    for (const char *p = why != NULL ? why : ""; *p != 0; p++) { /* without Markdown */
        dt_text_add(u->inert, p, *p != '`');
    }
    dt_text_puts(u->inert, why != NULL ? ")" : "");
}

/* Ours as JSON (true, 0), or as a bare string. */
static cJSON *word_value(const char *ours)
{
    cJSON *value = cJSON_ParseWithOpts(ours, NULL, true);
    return value != NULL ? value : cJSON_CreateString(ours);
}

void dialect_words(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
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
    } else if (*ours == '~') {
        dialect_inert(u, path, ours + 1);
    } else if (*ours != 0) {
        dialect_give(u, path, r->to, word_value(ours));
    }
    dt_config_pass(u->c, path);
    dt_text_clear(&names);
    dt_text_clear(&is);
}

static bool has_auto(const struct dialect_rule *r)
{
    return r->sees_auto ||
           (r->how == DIALECT_WORDS && (strncmp(r->text, "auto=", 5) == 0 || strstr(r->text, "|auto=") != NULL));
}

/* An offload to nowhere is off as well. */
static bool is_off(const cJSON *value)
{
    const cJSON *device = cJSON_IsObject(value) ? cJSON_GetObjectItemCaseSensitive(value, "device") : NULL;
    return dt_config_off(value) || (cJSON_IsString(device) && strcmp(device->valuestring, "none") == 0);
}

/* "auto" at a key where its system has no meaning for it. */
static bool is_wrong_auto(const struct dialect_use *u, const struct dialect_rule *r, const cJSON *value)
{
    return dialect_is_auto(value) && u->dialect->autos != NULL && !has_auto(r) && r->how != DIALECT_REFUSE &&
           strstr(u->dialect->autos, dt_arena_printf(u->arena, "|%s|", r->from)) == NULL;
}

static void apply(struct dialect_use *u, const struct dialect_rule *r, const char *path, const cJSON *value)
{
    if (is_wrong_auto(u, r, value)) {
        dt_config_problem(u->c, path, "\"auto\" means nothing here; give a value, or remove it");
    } else if (r->how == DIALECT_REFUSE) {
        if (!is_off(value)) { /* also "auto", which would be a wish for it */
            dt_config_problem(u->c, path, "%s", r->text);
        } else if (r->block && cJSON_IsObject(value)) {
            dialect_inert(u, path, NULL); /* a block that is switched off */
        }
    } else if (r->how == DIALECT_INERT && !dialect_is_auto(value)) {
        dialect_inert(u, path, u->converts ? r->text : NULL);
    } else if (r->how == DIALECT_SILENT || (dialect_is_auto(value) && !has_auto(r))) {
        dt_config_pass(u->c, path);
    } else if (r->how == DIALECT_FUNCTION) {
        r->fn(u, r, path, value);
    } else if (r->how == DIALECT_WORDS) {
        dialect_words(u, r, path, value);
    } else {
        dialect_give(u, path, r->to, cJSON_Duplicate(value, true));
    }
    if (!r->shallow) {
        dt_config_pass(u->c, path);
    }
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
 * place itself. */
static void fall_back(struct dialect_use *u, const struct dialect_rule *r)
{
    size_t size = strchr(r->from, '.') != NULL ? strcspn(r->from, ".") : 0;
    const char *section = size > 0               ? dt_arena_printf(u->arena, "%s%.*s", u->prefix, (int)size, r->from)
                          : u->prefix[0] != '\0' ? u->place
                                                 : NULL;
    const cJSON *ours = dt_config_value(u->c, r->to);
    bool theirs = u->prefix[0] != '\0' || has_key_of(u, r->from, size);
    if (theirs && section != NULL && dt_config_value(u->c, section) != NULL &&
        (ours == NULL || dialect_is_auto(ours))) {
        dt_config_move(u->c, section, r->to, cJSON_Parse(r->fallback));
    }
}

/* ---- all keys ---- */

/* A comment where the format has none: "_note", "//", "comment". */
static bool is_comment(const char *leaf)
{
    return *leaf == '_' || strncmp(leaf, "//", 2) == 0 || strcmp(leaf, "comment") == 0;
}

/* The last part of a path; a part in quotes has a dot of its own. */
static const char *leaf_of(const char *path)
{
    size_t size = strlen(path);
    const char *quote = size > 1 && path[size - 1] == '"' ? strchr(path, '"') : NULL;
    const char *dot = quote != NULL ? NULL : strrchr(path, '.');
    return quote != NULL ? quote + 1 : dot != NULL ? dot + 1 : path;
}

/* True for a name that differs from the other by its case, blanks at an end, or "-" for "_". */
static bool same_name(const char *a, const char *b)
{
    a += strspn(a, " \t");
    for (; *a != 0 && *b != 0; a++, b++) {
        char x = (char)tolower((unsigned char)*a), y = (char)tolower((unsigned char)*b);
        if ((x == '-' ? '_' : x) != (y == '-' ? '_' : y)) {
            return false;
        }
    }
    return *b == 0 && a[strspn(a, " \t")] == 0;
}

/* A key at the top of the dialect that is written like this one but for a slip, or null. */
static const char *meant(const struct dialect_use *u, const char *leaf)
{
    for (const struct dialect_rule *r = u->dialect->rules; r->from != NULL; r++) {
        const char *top = dt_arena_printf(u->arena, "%.*s", (int)strcspn(r->from, "."), r->from);
        if (same_name(leaf, top) || dt_text_distance(leaf, top, 2) <= 2) {
            return top;
        }
    }
    return NULL;
}

/* Where a key of this name belongs: the whole key, or null. */
static const char *belongs(const struct dialect_use *u, const char *leaf)
{
    for (const struct dialect_rule *r = u->dialect->rules; r->from != NULL; r++) {
        size_t size = strcspn(r->from, ".");
        if (strcmp(leaf_of(r->from), leaf) == 0) {
            return r->from;
        }
        if (strlen(leaf) == size && strncmp(r->from, leaf, size) == 0) { /* a block */
            return dt_arena_strdup(u->arena, leaf);
        }
    }
    return NULL;
}

/* A key that its own system does not know and ignores. */
static void ignore(struct dialect_use *u, const char *path)
{
    const char *right = belongs(u, leaf_of(path));
    struct dt_text why;
    dt_text_init(&why);
    dt_text_printf(&why, "%s",
                   strcmp(u->place, "neox") == 0 ? "there is no such key here" : "DeepSpeed ignores it, too");
    if (right != NULL) {
        dt_text_printf(&why, "; it belongs at %s", right);
    }
    const cJSON *value = dt_config_value(u->c, path);
    for (const cJSON *v = cJSON_IsObject(value) ? value->child : NULL; v != NULL; v = v->next) {
        right = belongs(u, v->string);
        if (right != NULL && strchr(right, '.') == NULL) {
            dt_text_printf(&why, "; %s belongs at the top level", v->string);
        }
    }
    dialect_inert(u, path, dt_text_str(&why));
    dt_text_clear(&why);
    dt_config_pass(u->c, path);
}

/* What no rule has read. */
static void apply_rest(struct dialect_use *u)
{
    const char *path;
    const cJSON *value;
    for (size_t at = 0; *u->place != 0 && (path = dt_config_unread(u->c, u->place, &at, &value)) != NULL;) {
        const char *leaf = leaf_of(path);
        bool top = (size_t)(leaf - path) == strlen(u->prefix);
        if (is_comment(leaf)) {
            dt_config_pass(u->c, path);
        } else if (u->dialect->lenient && top && meant(u, leaf) != NULL) {
            dt_config_problem(u->c, path, "unknown key; did you mean %s?", meant(u, leaf));
            dt_config_pass(u->c, path);
        } else if (u->dialect->lenient && top) {
            ignore(u, path);
        } else if (u->dialect->lenient && belongs(u, leaf) != NULL) {
            const char *right = belongs(u, leaf);
            dt_config_problem(u->c, path, "%s%s; move it there",
                              strchr(right, '.') != NULL ? "belongs at " : "belongs at the top of the file, as ",
                              right);
            dt_config_pass(u->c, path);
        }
    }
}

/* Hydra's word may stand in blocks that are refused as a whole, too. */
static void find_missing(struct dialect_use *u)
{
    const char *path;
    const cJSON *value;
    for (size_t at = 0; *u->place != 0 && (path = dt_config_unread(u->c, u->place, &at, &value)) != NULL;) {
        if (cJSON_IsString(value) && strcmp(value->valuestring, "???") == 0) {
            dt_config_problem(u->c, path, "is ???, Hydra's word for a value that must be given; give it");
        }
    }
}

/* The ways to write a rule's key: as it is, with the dialect's prefix of names, with hyphens. Null for
 * one that the dialect does not have. */
enum { WAYS = 3 };
static const char *given_path(const struct dialect_use *u, const struct dialect_rule *r, int way)
{
    const struct dialect *d = u->dialect;
    if (way == 1) {
        return d->spelling != NULL ? dt_arena_printf(u->arena, "%s%s%s", u->prefix, d->spelling, r->from) : NULL;
    }
    if (way == 2 && (!d->hyphens || strchr(r->from, '_') == NULL)) {
        return NULL;
    }
    char *path = dt_arena_printf(u->arena, "%s%s", u->prefix, r->from);
    for (char *p = path + strlen(u->prefix); way == 2 && *p != 0; p++) {
        *p = *p == '_' ? '-' : *p;
    }
    return path;
}

static void apply_at(struct dialect_use *u)
{
    find_missing(u);
    for (const struct dialect_rule *r = u->dialect->rules; r->from != NULL; r++) {
        for (int way = 0; way < WAYS; way++) {
            const char *path = given_path(u, r, way);
            if (path == NULL) {
                continue;
            }
            if (r->how != DIALECT_REFUSE) {
                dt_config_known(u->c, path);
            }
            if (dt_config_where(u->c, path) == NULL) {
                if (r->sees_null && dt_config_given(u->c, path) != NULL) {
                    r->fn(u, r, path, NULL);
                }
                dt_config_pass(u->c, path);
            } else {
                apply(u, r, path, dt_config_value(u->c, path));
            }
        }
    }
    apply_rest(u);
}

static void fall_back_at(struct dialect_use *u)
{
    for (const struct dialect_rule *r = u->dialect->rules; r->from != NULL; r++) {
        bool given = false;
        for (int way = 0; r->fallback != NULL && way < WAYS; way++) {
            const char *path = given_path(u, r, way);
            given |= path != NULL && dt_config_value(u->c, path) != NULL;
        }
        if (r->fallback != NULL && !given) {
            fall_back(u, r);
        }
    }
    if (u->dialect->defaults != NULL) {
        u->dialect->defaults(u);
    }
}

/* At each place that is there. */
static void at_places(const struct dialect *d, struct dialect_use *u, void (*visit)(struct dialect_use *))
{
    u->dialect = d;
    for (const char *const *place = d->places; *place != NULL; place++) {
        u->place = *place;
        u->prefix = **place != 0 ? dt_arena_printf(u->arena, "%s.", *place) : "";
        if (**place == 0 || (dt_config_value(u->c, *place) != NULL && (d->counts == NULL || d->counts(u)))) {
            visit(u);
        }
    }
}

/* The keys of a wrapper, such as `fit` of Lightning's command line, are those of the section around it. */
static void unwrap(struct dt_config *c, const struct dialect *d)
{
    if (d->wrapper == NULL || !cJSON_IsObject(dt_config_value(c, d->wrapper))) {
        return;
    }
    const char *twice = dt_config_lift(c, d->wrapper, d->section);
    if (twice != NULL) {
        dt_config_problem(c, twice, "stands outside of %s, too; give it once", dt_config_name(c, d->wrapper));
        dt_config_pass(c, d->wrapper);
    }
}

void dialects_apply(struct dt_config *c, struct dt_arena *arena, int world, bool converts, struct dt_text *inert)
{
    static const struct dialect own = {.name = "the job", .rules = NULL};
    struct dialect_use u = {.c = c,
                            .arena = arena,
                            .dialect = &own,
                            .place = "",
                            .prefix = "",
                            .world = world,
                            .converts = converts,
                            .inert = inert};
    registered_apply(&u);
    size_t count = 0;
    for (; dialects[count] != NULL; count++) {
        unwrap(c, dialects[count]);
        at_places(dialects[count], &u, apply_at);
    }
    while (count > 0) {
        at_places(dialects[--count], &u, fall_back_at);
    }
}
