/* train --explain: what a key does here, whatever its system. */
#include "worker/job/dialects/dialect.h"

#include "worker/job/job_fields.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 2048 };

/* True when one of the two is the other's end after a dot: "trainer.max_epochs" and "max_epochs". */
static bool matches(const char *known, const char *key)
{
    size_t a = strlen(known), b = strlen(key);
    const char *longer = a > b ? known : key, *shorter = a > b ? key : known;
    size_t rest = a > b ? a - b : b - a;
    return strcmp(longer + rest, shorter) == 0 && (rest == 0 || longer[rest - 1] == '.');
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
    bool it = matches(known, s->key);
    s->found |= it;
    return it;
}

static void wrap(struct search *s, const char *text)
{
    dt_text_puts(s->out, "    ");
    dt_text_wrap(s->out, text, 4);
}

static void explain_field(struct search *s, const char *section, const struct dt_field *f)
{
    const char *path = *section != 0 ? dt_arena_printf(&s->arena, "%s.%s", section, f->key) : f->key;
    if (is_it(s, path)) {
        dt_text_printf(s->out, "%s (a key of the job)\n", path);
        wrap(s, dt_arena_printf(&s->arena, "%s; default: %s", f->help,
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

static void explain_rule(struct search *s, const struct dialect *d, const struct dialect_rule *r)
{
    const char *spelled = d->spelling != NULL ? dt_arena_printf(&s->arena, "%s%s", d->spelling, r->from) : NULL;
    bool it = is_it(s, r->from), other = spelled != NULL && is_it(s, spelled);
    if (it || other) {
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
}

/* A class whose arguments are a dialect of their own: EarlyStopping. */
static void explain_class(struct search *s, const struct dialect *d)
{
    static const char callbacks[] = "lightning.trainer.callbacks.";
    const char *class = d->places[0] + sizeof callbacks - 1;
    if (strncmp(d->places[0], callbacks, sizeof callbacks - 1) != 0 || !is_it(s, class)) {
        return;
    }
    struct dt_text text;
    dt_text_init(&text);
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        dt_text_printf(&text, "%s%s", r == d->rules ? "its arguments: " : ", ", r->from);
    }
    dt_text_printf(s->out, "%s (a callback of Lightning)\n", class);
    wrap(s, dt_text_str(&text));
    dt_text_clear(&text);
}

static void search(struct search *s)
{
    explain_own(s);
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        explain_class(s, *d);
        for (const struct dialect_rule *r = (*d)->rules; r->from != NULL; r++) {
            explain_rule(s, *d, r);
        }
    }
}

bool dialects_explain(const char *key, struct dt_text *out)
{
    struct search *s = dt_alloc(sizeof *s);
    s->key = key;
    s->out = out;
    dt_arena_init(&s->arena);
    search(s);
    bool found = s->found;
    if (!found) {
        const char *nearest = dt_text_nearest(key, s->names, s->count);
        for (size_t i = 0; nearest == NULL && i < s->count; i++) { /* perhaps the last part alone */
            const char *dot = strrchr(s->names[i], '.');
            nearest = dot != NULL && dt_text_distance(key, dot + 1, 2) <= 2 ? s->names[i] : NULL;
        }
        dt_text_printf(out, "%.100s: no key of the job, nor of a system that is known here%s%s%s", key,
                       nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "",
                       nearest != NULL ? "?" : "");
    }
    dt_arena_clear(&s->arena);
    free(s);
    return found;
}
