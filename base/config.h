/* Reads a JSON file into structs by tables of fields. Knows where each value came from
 * (file:line:column, --set, default), reports all problems at once, and names the nearest known
 * key for an unknown one. */
#ifndef DT_BASE_CONFIG_H
#define DT_BASE_CONFIG_H

#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>

enum dt_rule_type {
    DT_RULE_BOOL,    /* bool */
    DT_RULE_INTEGER, /* int64_t; 1e9 counts as a whole number */
    DT_RULE_NUMBER,  /* double */
    DT_RULE_STRING,  /* const char *, in the arena */
    DT_RULE_CHOICE,  /* const char *: one of `choices`, spelled as there (upper and lower case
                      * are the same) */
    DT_RULE_ENUM,    /* int or enum: the place in `choices`; those named true and false are
                      * JSON's */
    DT_RULE_PAIR,    /* int64_t[2] */
    DT_RULE_NAMES    /* const char *: a list of names, or a string "a,b"; kept as "a,b", null
                      * when there are none */
};

struct dt_rule {
    enum dt_rule_type type;
    double min, max; /* of numbers, inclusive unless `open`; every number has both */
    bool open_min, open_max;
    const char *choices; /* "a|b|c" */
    const char *later;   /* choices that are known and not there yet; may be null */
    const char *list;    /* "train --list-strategies": what shows the choices when they are too
                          * many for a line; or null */
    bool null;           /* JSON null is allowed: strings become null, numbers, pairs and enums
                          * `null_value` */
    int null_value;
};

struct dt_field { /* tables end with a row whose key is null */
    const char *key;
    const char *fallback; /* JSON text of the default; null: the value must be given */
    const char *help;     /* one line */
    size_t offset;        /* of the member in the struct */
    const struct dt_rule *rule;
};

struct dt_config_hint { /* a key that we know and do not read */
    const char *path;   /* "fp16", "fsdp.cpu_offload"; with everything below it */
    const char *text;   /* what to say: "not there yet; training runs in fp32" */
};

struct dt_config;

/* Reads the file once; strings of all values live in `arena`, which must outlive the config. The
 * first fault of the JSON text is an error. */
int dt_config_open(struct dt_config **out, const char *path, struct dt_arena *arena, struct dt_error *err);
/* The same from memory; `path` is what messages say. */
int dt_config_open_text(struct dt_config **out, const char *path, const char *text, size_t size, struct dt_arena *arena,
                        struct dt_error *err);
/* "training.seed=7": the value is JSON, or a bare string when it is not. Replaces what the file
 * says. Before the first read. `option`: by which option the value was given, if by one of its
 * own ("--seed"); null: --set. Messages say it. */
int dt_config_set(struct dt_config *c, const char *assignment, const char *option, struct dt_error *err);
/* Keys that are recognised and refused by name; ends with a null path. A hinted key whose value
 * switches it off (false, null, or an object with "enabled": false) is accepted and ignored.
 * Before dt_config_close; the table must outlive c. */
void dt_config_hints(struct dt_config *c, const struct dt_config_hint *hints);
/* Fills `out` from a section ("" is the top). Wrong values are noted as problems, and the
 * default stands in. The word "auto" stands for the default of a number or bool. Returns how
 * many problems this section had. */
int dt_config_read(struct dt_config *c, const char *section, const struct dt_field *fields, void *out);
/* The place that gave a key, such as "job.json:4:9" or "--set training.seed=7"; null when
 * nothing gave it, or only null. Lives as long as c. */
const char *dt_config_where(const struct dt_config *c, const char *path);
/* Notes a problem of a key: `where: key: text`, sorted by place; a key that was not given is
 * named after the file alone. */
void dt_config_problem(struct dt_config *c, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* For values that are derived: what dt_config_source says for this key when it was not given. */
void dt_config_derived(struct dt_config *c, const char *path, const char *source);
/* The source of a key's value, for messages: dt_config_where, or "default". */
const char *dt_config_source(const struct dt_config *c, const char *path);
/* Ends: unknown keys become problems; `problems` gets one line each. Frees c. 0, or -1 when
 * there were any; err says the only one or how many. */
int dt_config_close(struct dt_config *c, struct dt_text *problems, struct dt_error *err);

/* Appends one member as JSON (shortest text that reads back to the same value). */
void dt_config_format(const struct dt_field *field, const void *in, struct dt_text *out);
/* Appends the JSON Schema of a section, without its braces: "key":{...},... on lines of `indent`
 * spaces. */
void dt_config_schema(const struct dt_field *fields, int indent, struct dt_text *out);

#endif
