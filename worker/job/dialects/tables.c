/* What dialects know, for users: the JSON Schema of their keys, and a table of Markdown. */
#include "worker/job/dialects/dialect.h"

#include "worker/job/job_fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- schema ---- */

/* True when a key lies below the section; *rest is what follows. */
static bool below(const char *key, const char *section, const char **rest)
{
    size_t size = strlen(section);
    *rest = size > 0 ? key + size + 1 : key;
    return size == 0 || (strncmp(key, section, size) == 0 && key[size] == '.');
}

static void schema_words(const char *words, struct dt_text *out)
{
    dt_text_puts(out, "\"enum\": [\"auto\", null");
    for (const char *p = words; *p != 0; p += *p == '|') {
        size_t word = strcspn(p, "=");
        char *end = NULL;
        bool bare =
            strncmp(p, "true=", 5) == 0 || strncmp(p, "false=", 6) == 0 || (strtod(p, &end) >= 0 && end == p + word);
        if (p[word + 1] != '!' && *p != '*') {
            const char *quote = bare ? "" : "\"";
            dt_text_printf(out, ", %s%.*s%s", quote, (int)word, p, quote);
        }
        p += word + strcspn(p + word, "|");
    }
    dt_text_puts(out, "], ");
}

/* Our key's row, or null. */
static const struct dt_field *field_of(const char *path)
{
    const char *rest;
    for (const struct job_section *s = job_sections; path != NULL && s->name != NULL; s++) {
        for (const struct dt_field *f = s->fields; *s->name != 0 && f->key != NULL; f++) {
            if (below(path, s->name, &rest) && strcmp(rest, f->key) == 0) {
                return f;
            }
        }
    }
    return NULL;
}

/* A key that is moved has the type of ours. */
static void schema_key(const struct dialect *d, const struct dialect_rule *r, const char *key, int indent,
                       struct dt_text *out)
{
    char help[160];
    (void)snprintf(help, sizeof help, "%s's %s%s", d->name, r->to != NULL ? "name of " : "key",
                   r->to != NULL             ? r->to
                   : r->how == DIALECT_INERT ? ", without effect"
                                             : "");
    const struct dt_field *f = r->how == DIALECT_MOVE ? field_of(r->to) : NULL;
    if (f != NULL) {
        const struct dt_field one[2] = {{key, f->fallback, help, f->offset, f->rule}, {0}};
        dt_config_schema(one, indent, out);
        out->data[--out->size] = 0; /* a newline ends it */
        return;
    }
    dt_text_printf(out, "%*s\"%s\": {", indent, "", key);
    bool open = r->how == DIALECT_WORDS && (strstr(r->text, "|*=") != NULL || *r->text == '*') &&
                strstr(r->text, "*=!") == NULL;
    if (r->how == DIALECT_WORDS && !open) {
        schema_words(r->text, out);
    }
    dt_text_puts(out, "\"description\": ");
    dt_text_json(out, help, strlen(help));
    dt_text_puts(out, "}");
}

/* A block whose keys have rules of their own, too. */
static bool is_block(const struct dialect *d, const struct dialect_rule *block)
{
    const char *rest;
    for (const struct dialect_rule *r = d->rules; block->shallow && r->from != NULL; r++) {
        if (below(r->from, block->from, &rest)) {
            return true;
        }
    }
    return false;
}

static void members(const struct dialect *d, const char *section, int indent, struct dt_text *out);

/* A section, the first `whole` bytes of `path`, as an object; its name is the last `size` of them. */
static void object(const struct dialect *d, const char *path, size_t whole, int size, int indent, struct dt_text *out)
{
    char section[128];
    struct dt_text held;
    dt_text_init(&held);
    (void)snprintf(section, sizeof section, "%.*s", (int)whole, path);
    members(d, section, indent + 2, &held);
    dt_text_printf(out,
                   ",\n%*s\"%.*s\": {\"type\": \"object\", \"additionalProperties\": false, \"properties\": {%s\n%*s}}",
                   indent, "", size, path + whole - (size_t)size, dt_text_str(&held) + 1, indent, "");
    dt_text_clear(&held);
}

/* The members below a section of the dialect; sections inside it as objects. */
static void members(const struct dialect *d, const char *section, int indent, struct dt_text *out)
{
    const char *rest, *other, *last = "";
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        if (!below(r->from, section, &rest) || is_block(d, r)) {
            continue;
        }
        size_t size = strcspn(rest, ".");
        if (rest[size] == '.' && below(last, section, &other) && strncmp(other, rest, size + 1) == 0) {
            continue; /* the object has it */
        }
        if (rest[size] != '.') {
            dt_text_puts(out, ",\n");
            schema_key(d, r, rest, indent, out);
        } else {
            object(d, r->from, (size_t)(rest - r->from) + size, (int)size, indent, out);
        }
        last = r->from;
    }
}

static bool is_section(const char *name, size_t size)
{
    for (const struct job_section *s = job_sections; s->name != NULL; s++) {
        if (strlen(s->name) == size && strncmp(s->name, name, size) == 0) {
            return true;
        }
    }
    return false;
}

/* The dialect's section, and its keys at the top of the job, which look there. */
static void schema_top(const struct dialect *d, int indent, struct dt_text *out)
{
    struct dt_text held;
    dt_text_init(&held);
    members(d, "", indent + 4, &held);
    dt_text_printf(out,
                   ",\n%*s\"%s\": {\n%*s\"type\": [\"object\", \"string\", \"null\"], \"description\": \"%s's "
                   "configuration, or the file that holds it\",\n%*s\"additionalProperties\": false, \"properties\": "
                   "{%s\n%*s}\n%*s}",
                   indent, "", d->section, indent + 2, "", d->name, indent + 2, "", dt_text_str(&held) + 1, indent + 2,
                   "", indent, "");
    dt_text_clear(&held);
    const char *last = "";
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        size_t size = strcspn(r->from, ".");
        bool again = strncmp(last, r->from, size) == 0 && (last[size] == 0 || last[size] == '.');
        if (!again && !is_section(r->from, size)) {
            dt_text_printf(out, ",\n%*s\"%.*s\": {\"$ref\": \"#/properties/%s/properties/%.*s\"}", indent, "",
                           (int)size, r->from, d->section, (int)size, r->from);
            last = r->from;
        }
    }
}

/* Keys at the top of the job of a dialect that has no section, but for those in sections of the job. */
static void schema_loose(const struct dialect *d, int indent, struct dt_text *out)
{
    const char *last = "";
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        size_t size = strcspn(r->from, ".");
        if (is_section(r->from, size) || (strncmp(last, r->from, size) == 0 && last[size] == '.')) {
            continue;
        }
        if (r->from[size] == '.') {
            object(d, r->from, size, (int)size, indent, out);
        } else {
            dt_text_puts(out, ",\n");
            schema_key(d, r, r->from, indent, out);
        }
        last = r->from;
    }
}

void dialects_schema(const char *section, int indent, struct dt_text *out)
{
    for (const struct dialect *const *d = dialects; *d != NULL; d++) {
        bool at_top = *(*d)->places[0] == 0;
        if (*section != 0 && at_top) {
            members(*d, section, indent, out);
        } else if (*section == 0 && (*d)->section != NULL && at_top) {
            schema_top(*d, indent, out);
        } else if (*section == 0 && at_top) {
            schema_loose(*d, indent, out);
        } else if (*section == 0 && (*d)->section != NULL) {
            dt_text_printf(out,
                           ",\n%*s\"%s\": {\"type\": [\"object\", \"string\", \"null\"], \"description\": \"keys of "
                           "%s, or the file that holds them\"}",
                           indent, "", (*d)->section, (*d)->name);
        }
    }
}

/* ---- documentation ---- */

/* "2=zero2|0=" as "2 = `zero2`, 0: as it is". */
static void table_words(const char *words, struct dt_text *out)
{
    for (const char *p = words; *p != 0; p += *p == '|') {
        size_t word = strcspn(p, "="), rest = strcspn(p + word + 1, "|");
        const char *ours = p + word + 1;
        bool others = word == 1 && *p == '*';
        dt_text_puts(out, p == words ? "" : "; ");
        dt_text_printf(out, "%.*s", others ? 6 : (int)word, others ? "others" : p);
        if (rest == 0) {
            dt_text_puts(out, others ? " are taken" : " is taken");
        } else if (*ours == '~') {
            dt_text_printf(out, " %s no effect: %.*s", others ? "have" : "has", (int)rest - 1, ours + 1);
        } else if (*ours == '!') {
            /* a semicolon would end the part of this word */
            size_t cause = strcspn(ours, ";");
            cause = cause < rest ? cause : rest;
            dt_text_printf(out, " %s refused: %.*s", others ? "are" : "is", (int)cause - 1, ours + 1);
        } else {
            dt_text_printf(out, " %s `%.*s`", others ? "are" : "is", (int)rest, ours);
        }
        p += word + 1 + rest;
    }
}

void dialect_describe(const struct dialect_rule *r, struct dt_text *out)
{
    if (r->how == DIALECT_MOVE || (r->how == DIALECT_WORDS && r->to != NULL)) {
        dt_text_printf(out, "`%s`%s", r->to, r->how == DIALECT_WORDS ? ": " : "");
    }
    if (r->how == DIALECT_WORDS) {
        table_words(r->text, out);
    } else if (r->how != DIALECT_MOVE) {
        dt_text_printf(out, "%s%s",
                       r->how == DIALECT_INERT    ? "no effect: "
                       : r->how == DIALECT_SILENT ? "taken: "
                       : r->how == DIALECT_REFUSE ? "refused: "
                                                  : "",
                       r->text);
    }
    if (r->fallback != NULL) {
        bool inside = strchr(r->from, '.') != NULL;
        dt_text_printf(out, inside ? "; %s where `%.*s` does not say it" : "; %s where the file does not say it",
                       r->fallback, (int)strcspn(r->from, "."), r->from);
    }
}

/* Words that switch off what a key is for. */
static bool switches_off(const char *word, size_t size)
{
    static const char off[] = "|false|no|none|0|-1|1|";
    char quoted[16];
    (void)snprintf(quoted, sizeof quoted, "|%.*s|", size < 8 ? (int)size : 8, word);
    return strstr(off, quoted) != NULL;
}

/* The outcome of words that give nothing to a key of ours: a word that is taken as it is, and switches nothing off, says
 * what is done. */
static enum dialect_outcome words_outcome(const char *words)
{
    bool refused = false;
    for (const char *p = words; *p != 0; p += *p == '|') {
        size_t word = strcspn(p, "="), rest = strcspn(p + word + 1, "|");
        if (rest == 0 && !switches_off(p, word)) {
            return OUTCOME_DONE;
        }
        refused |= p[word + 1] == '!';
        p += word + 1 + rest;
    }
    return refused ? OUTCOME_REFUSED : OUTCOME_NO_EFFECT;
}

enum dialect_outcome dialect_outcome(const struct dialect_rule *r)
{
    switch (r->how) {
    case DIALECT_MOVE:
    case DIALECT_SILENT:
        return OUTCOME_DONE;
    case DIALECT_INERT:
        return OUTCOME_NO_EFFECT;
    case DIALECT_REFUSE:
        return OUTCOME_REFUSED;
    case DIALECT_WORDS:
        return r->to != NULL ? OUTCOME_DONE : words_outcome(r->text);
    case DIALECT_FUNCTION:
        return r->outcome;
    }
    return OUTCOME_REFUSED;
}

const char *dialect_outcome_name(enum dialect_outcome outcome)
{
    switch (outcome) {
    case OUTCOME_DONE:
        return "done";
    case OUTCOME_NO_EFFECT:
        return "no effect";
    case OUTCOME_REFUSED:
        return "refused";
    }
    return "";
}

const struct dialect_rule *dialect_rule_of(const struct dialect *d, const char *key)
{
    const struct dialect_rule *found = NULL;
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        size_t size = strlen(r->from);
        bool is = strncmp(key, r->from, size) == 0 && (key[size] == 0 || (key[size] == '.' && !r->shallow));
        found = is && (found == NULL || strlen(found->from) < size) ? r : found;
    }
    return found;
}

void dialect_table(const struct dialect *d, struct dt_text *out)
{
    dt_text_printf(out, "| %s's key | outcome | here |\n|---|---|---|\n", d->name);
    for (const struct dialect_rule *r = d->rules; r->from != NULL; r++) {
        dt_text_printf(out, "| `%s` | %s | ", r->from, dialect_outcome_name(dialect_outcome(r)));
        dialect_describe(r, out);
        dt_text_puts(out, " |\n");
    }
}
