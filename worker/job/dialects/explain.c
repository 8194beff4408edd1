/* train --explain: what a key does here, whatever its system. */
#include "worker/job/dialects/dialect.h"

#include "worker/job/job_fields.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NAMES_MAX = 4096 };

/* True when `key` is all of a path, or its end after a dot: "max_epochs" of "trainer.max_epochs". */
static bool ends_with(const char *path, const char *key)
{
    size_t a = strlen(path), b = strlen(key);
    return *key != 0 && a >= b && strcmp(path + a - b, key) == 0 && (a == b || path[a - b - 1] == '.');
}

/* All that a search goes through, and what it finds. */
struct search {
    const char *key;
    struct dt_text *out;
    const char *names[NAMES_MAX]; /* for the nearest one; they live as long as the tables, or in the arena */
    size_t count;
    struct dt_arena arena;
    bool found;
};

static bool is_it(struct search *s, const char *known)
{
    if (s->count < NAMES_MAX) {
        s->names[s->count++] = known;
    }
    bool it = ends_with(known, s->key);
    s->found |= it;
    return it;
}

/* The same of a dialect's key, before which a place of it may stand: "trainer.max_epochs". */
static bool is_rule(struct search *s, const struct dialect *d, const char *known)
{
    const char *key = s->key;
    size_t a = strlen(key), b = strlen(known);
    if (d->hyphens) {
        char *plain = dt_arena_strdup(&s->arena, key);
        for (char *p = plain; *p != 0; p++) {
            *p = *p == '-' ? '_' : *p;
        }
        key = plain;
    }
    bool it = is_it(s, known) || ends_with(known, key);
    for (const char *const *place = d->places; a > b && ends_with(key, known) && *place != NULL; place++) {
        it |= ends_with(*place, dt_arena_printf(&s->arena, "%.*s", (int)(a - b - 1), key));
    }
    s->found |= it;
    return it;
}

static void wrap(struct search *s, const char *text)
{
    dt_text_puts(s->out, "    ");
    dt_text_wrap(s->out, text, 4);
}

/* The values that a key takes, where they are words, or the command that lists them. */
static const char *values_of(struct search *s, const struct dt_rule *rule)
{
    if (rule->choices == NULL || rule->list != NULL) {
        return rule->list != NULL ? dt_arena_printf(&s->arena, "; see %s", rule->list) : "";
    }
    const char *list = "";
    for (const char *p = rule->choices; *p != 0; p += *p == '|') {
        int size = (int)strcspn(p, "|");
        list = dt_arena_printf(&s->arena, "%s%s%.*s", list, *list != 0 ? ", " : "", size, p);
        p += size;
    }
    return dt_arena_printf(&s->arena, "; one of: %s%s", list, rule->null ? ", null" : "");
}

static void explain_field(struct search *s, const char *section, const struct dt_field *f)
{
    const char *path = *section != 0 ? dt_arena_printf(&s->arena, "%s.%s", section, f->key) : f->key;
    if (is_it(s, path)) {
        dt_text_printf(s->out, "%s (a key of the job)\n", path);
        wrap(s, dt_arena_printf(&s->arena, "%s%s; default: %s", f->help, values_of(s, f->rule),
                                f->fallback != NULL ? f->fallback : "none, it must be given"));
    }
}

static void explain_own(struct search *s)
{
    for (const struct job_section *section = job_sections; section->name != NULL; section++) {
        for (const struct dt_field *f = section->fields; f->key != NULL; f++) {
            explain_field(s, section->name, f);
        }
        if (*section->name != 0 && is_it(s, section->name)) {
            dt_text_printf(s->out, "%s (a section of the job)\n", section->name);
            wrap(s, section->help);
        }
        for (int i = 0; job_other_fields(section, i) != NULL; i++) {
            for (const struct dt_field *f = job_other_fields(section, i); f->key != NULL; f++) {
                bool known = false;
                for (int k = 0; k < i; k++) {
                    for (const struct dt_field *g = job_other_fields(section, k); g->key != NULL; g++) {
                        known |= strcmp(g->key, f->key) == 0;
                    }
                }
                if (!known) {
                    explain_field(s, section->name, f);
                }
            }
        }
    }
    if (is_it(s, "strategies")) {
        dt_text_puts(s->out, "strategies (a section of the job)\n");
        wrap(
            s,
            "names for strategies with options, { \"mine\": { \"base\": \"zero2\", \"description\": \"...\", \"fsdp\": "
            "{ ... } } }, for training.strategy");
    }
    for (const struct dt_config_hint *h = job_hints; h->path != NULL; h++) {
        if (is_it(s, h->path)) {
            dt_text_printf(s->out, "%s\n", h->path);
            wrap(s, h->text);
        }
    }
}

static void say_rule(struct search *s, const struct dialect *d, const struct dialect_rule *r)
{
    struct dt_text text;
    dt_text_init(&text);
    dialect_describe(r, &text);
    char *to = text.data;
    for (const char *p = dt_text_str(&text); *p != 0; p++) { /* without Markdown */
        if (*p != '`') {
            *to++ = *p;
        }
    }
    *to = 0;
    dt_text_printf(s->out, "%s (%s)\n", r->from, d->name);
    wrap(s, text.data);
    dt_text_clear(&text);
}

static void explain_rule(struct search *s, const struct dialect *d, const struct dialect_rule *r)
{
    const char *spelled = d->spelling != NULL ? dt_arena_printf(&s->arena, "%s%s", d->spelling, r->from) : NULL;
    bool it = is_rule(s, d, r->from), other = spelled != NULL && is_rule(s, d, spelled);
    if (it || other) {
        say_rule(s, d, r);
    }
}

/* All of a dialect's keys below a block, or, of "", all that it has. */
static void say_keys(struct search *s, const struct dialect *d, const char *block, const char *what)
{
    struct dt_text text;
    size_t size = strlen(block);
    dt_text_init(&text);
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        bool below = size == 0 || (strncmp(r->from, block, size) == 0 && r->from[size] == '.');
        if (below) {
            dt_text_printf(&text, "%s%s", text.size == 0 ? what : ", ", r->from + (size > 0 ? size + 1 : 0));
        }
    }
    wrap(s, dt_text_str(&text));
    dt_text_clear(&text);
}

/* A block of keys, such as zero_optimization, or zero_optimization.offload_param. */
static void explain_blocks(struct search *s, const struct dialect *d)
{
    const char *last = "";
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        for (const char *dot = strchr(r->from, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
            const char *block = dt_arena_printf(&s->arena, "%.*s", (int)(dot - r->from), r->from);
            if (strcmp(block, last) != 0 && is_rule(s, d, block)) {
                dt_text_printf(s->out, "%s (a block of %s)\n", block, d->name);
                say_keys(s, d, block, "its keys: ");
                last = block;
            }
        }
    }
    for (const char *const *place = d->places; *place != NULL; place++) {
        if (strncmp(*place, "lightning.trainer.", 18) != 0 && ends_with(*place, s->key)) {
            s->found = true;
            dt_text_printf(s->out, "%s (%s's keys%s)\n", s->key, d->name,
                           strchr(*place, '.') == NULL ? ", or the file that has them" : "");
            say_keys(s, d, "", "");
            return;
        }
    }
}

/* A class whose arguments are a dialect of their own: EarlyStopping, FSDPStrategy. */
static void explain_class(struct search *s, const struct dialect *d)
{
    const char *class = strrchr(d->name, ' ');
    if (class == NULL || strncmp(d->places[0], "lightning.trainer.", 18) != 0 || class[1] < 'A' || class[1] > 'Z' ||
        !is_it(s, class + 1)) {
        return;
    }
    dt_text_printf(s->out, "%s (a class of Lightning)\n", class + 1);
    say_keys(s, d, "", "its arguments: ");
    if (d == &dialect_fsdp_strategy) {
        say_keys(s, &dialect_fsdp_block, "", "and those of FSDP's block: ");
    }
}

/* Keys below one that is taken or refused as a whole: tensorboard.output_path. */
static void explain_below(struct search *s, const struct dialect *d)
{
    const struct dialect_rule *r = dialect_rule_of(d, s->key);
    bool whole = r != NULL && (r->how == DIALECT_INERT || r->how == DIALECT_SILENT || r->how == DIALECT_REFUSE ||
                               (r->how == DIALECT_FUNCTION && d->lenient));
    if (whole) {
        s->found = true;
        say_rule(s, d, r);
    }
}

/* A value of a key of the job: hybrid_shard, 16-mixed. */
static void explain_value(struct search *s, const char *section, const struct dt_field *f)
{
    size_t size = strlen(s->key);
    for (const char *p = f->rule->choices; p != NULL && *p != 0; p += *p == '|') {
        size_t word = strcspn(p, "|");
        if (word == size && strncasecmp(p, s->key, size) == 0) {
            s->found = true;
            dt_text_printf(s->out, "%.*s (a value of %s%s%s)\n", (int)word, p, section, *section != 0 ? "." : "",
                           f->key);
            wrap(s, f->help);
        }
        p += word;
    }
}

static void search(struct search *s)
{
    explain_own(s);
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        explain_class(s, *d);
        explain_blocks(s, *d);
        for (const struct dialect_rule *r = (*d)->rules; r->from != NULL; r++) {
            explain_rule(s, *d, r);
        }
    }
    for (const struct dialect *const *d = dialects; !s->found && *d != NULL; d++) {
        explain_below(s, *d);
    }
    bool known = s->found;
    for (const struct job_section *section = job_sections; !known && section->name != NULL; section++) {
        for (const struct dt_field *f = section->fields; f->key != NULL; f++) {
            explain_value(s, section->name, f);
        }
    }
}

/* True for the first letters of a name's words, two or more: "gas" of gradient_accumulation_steps. */
static bool is_initials(const char *key, const char *name)
{
    size_t size = strlen(key);
    for (bool starts = true; *name != 0; name++) {
        if (starts && tolower((unsigned char)*key++) != tolower((unsigned char)*name)) {
            return false;
        }
        starts = *name == '_';
    }
    return *key == 0 && size > 1;
}

/* The nearest known key, by the whole key or by its last part. Upper and lower case are the same. */
static const char *nearest_of(struct search *s)
{
    size_t least = dt_text_near(s->key);
    const char *nearest = NULL;
    bool by_all = false; /* of the nearest one; it is nearer than one by its last part */
    for (size_t i = 0; i < s->count; i++) {
        const char *name = s->names[i], *dot = strrchr(name, '.'), *leaf = dot != NULL ? dot + 1 : name;
        bool same = strcasecmp(name, s->key) == 0 || strcasecmp(leaf, s->key) == 0 || is_initials(s->key, leaf);
        size_t whole = dt_text_distance(s->key, name, least), last = dt_text_distance(s->key, leaf, least);
        size_t distance = same ? 0 : whole < last ? whole : last;
        bool all = whole <= distance || strcasecmp(name, s->key) == 0 || is_initials(s->key, name);
        if (distance < strlen(s->key) &&
            (distance < least || (distance == least && (nearest == NULL || (all && !by_all))))) {
            least = distance;
            nearest = name;
            by_all = all;
        }
    }
    return nearest;
}

bool dialects_explain(const char *key, struct dt_text *out)
{
    struct search *s = dt_alloc(sizeof *s);
    s->key = key;
    s->out = out;
    dt_arena_init(&s->arena);
    search(s);
    bool found = s->found;
    if (!found && *key == 0) {
        dt_text_puts(out, "names no key; give one, such as zero_optimization.stage");
    } else if (!found) {
        const char *nearest = nearest_of(s);
        dt_text_printf(out, "%.100s: no key of the job, nor of a system that is known here%s%s%s", key,
                       nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "",
                       nearest != NULL ? "?" : "");
    }
    dt_arena_clear(&s->arena);
    free(s);
    return found;
}
