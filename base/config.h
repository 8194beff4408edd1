/* Reads a JSON file into structs by tables of fields. Remembers where each value came from
 * (file:line:column, --set, default), reports all problems at once, and suggests the nearest known
 * key for an unknown one. */
#ifndef DT_BASE_CONFIG_H
#define DT_BASE_CONFIG_H

#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dt_rule_type {
    DT_RULE_BOOL,    /* bool */
    DT_RULE_INTEGER, /* int64_t; 1e9 counts as a whole number */
    DT_RULE_NUMBER,  /* double */
    DT_RULE_STRING,  /* const char *, in the arena */
    /* const char *: one of `choices`, in the spelling of `choices`; upper and lower case are
     * equal. A choice of digits may be a number */
    DT_RULE_CHOICE,
    /* int or enum: the index in `choices`; choices named true and false are JSON's literals */
    DT_RULE_ENUM,
    DT_RULE_PAIR,     /* int64_t[2] */
    DT_RULE_INTEGERS, /* struct dt_integers: a list of 1 to DT_INTEGERS_MAX whole numbers */
    /* const char *: a list of names, or a string "a,b"; stored as "a,b", null if empty */
    DT_RULE_NAMES,
    /* struct dt_strings: a string, or a list of 1 to DT_STRINGS_MAX strings, none of them empty */
    DT_RULE_STRINGS,
    /* struct dt_sources: a string, or a list of 1 to DT_SOURCES_MAX objects {"path", "weight"} */
    DT_RULE_SOURCES,
    /* struct dt_sets: a path, a list of 1 to DT_SOURCES_MAX paths, or an object of 1 to DT_SETS_MAX names with
     * one of these each (config_sets.c) */
    DT_RULE_SETS,
    /* struct dt_numbers: a number, or a list of 1 to DT_NUMBERS_MAX numbers */
    DT_RULE_NUMBERS,
    /* struct dt_kinds: a list of names out of `choices`, or of 0 and 1 where these are the choices */
    DT_RULE_KINDS,
    /* const char *: a list of objects, as JSON text; whoever reads it checks what is in them */
    DT_RULE_OBJECTS
};

enum { DT_INTEGERS_MAX = 32 };
struct dt_integers {
    int64_t count, /* 0: null */
        of[DT_INTEGERS_MAX];
};

enum { DT_NUMBERS_MAX = 4 };
struct dt_numbers {
    int count; /* 0: null */
    double of[DT_NUMBERS_MAX];
};

enum { DT_STRINGS_MAX = 1024 };
struct dt_strings {
    int count;             /* 0: null */
    const char *const *of; /* in the arena */
};

enum { DT_SOURCES_MAX = 64 };
struct dt_source {
    const char *path;
    double weight;    /* above 0, up to 1e9 */
    const char *text; /* what the job names, where the path is that of shards which were made of it; else null */
};
struct dt_sources {
    const char *words; /* the path, or "a, b" for messages; null: there is none */
    int count;
    const struct dt_source *of; /* in the arena, as the words */
};

/* One source. The path is copied. */
struct dt_sources dt_source_alone(struct dt_arena *arena, const char *path);

enum { DT_SETS_MAX = 16, DT_SET_NAME_MAX = 40 };
struct dt_set {
    const char *name;       /* letters, digits, _ and -; null: one set without a name */
    struct dt_sources from; /* all of weight 1 */
};
struct dt_sets {
    int count; /* 0: null */
    const struct dt_set *of;
};

/* One set without a name. The path is copied. */
struct dt_sets dt_set_alone(struct dt_arena *arena, const char *path);

enum { DT_KINDS_MAX = 252 };
struct dt_kinds {
    int count;                /* 0: null */
    uint8_t of[DT_KINDS_MAX]; /* indices in the rule's choices */
};

struct dt_rule {
    enum dt_rule_type type;
    /* limits of numbers, inclusive unless open_min or open_max is set; every number has both */
    double min, max;
    bool open_min, open_max;
    bool whole;          /* DT_RULE_NUMBERS: whole numbers */
    const char *choices; /* "a|b|c" */
    const char *later;   /* known choices that are not supported yet; may be null */
    /* the command that lists the choices if they do not fit a line, "train --list-strategies"; or
     * null */
    const char *list;
    /* Appends why a choice that is not among `choices` cannot be, and returns true; may be null. */
    bool (*explain)(const char *word, struct dt_text *out);
    /* The choice that a word means, where spelling alone does not find it; null, or a null answer: none. */
    const char *(*meant)(const char *word);
    bool open; /* the file itself may register more choices, which are replaced before it is read */
    /* JSON null is allowed: strings become null; numbers, pairs and enums become `null_value`. Of
     * enums this is one of the choices, or their number. */
    bool null;
    int null_value;
    bool object; /* of numbers: an object may stand there, too, which is moved elsewhere before the table is read */
};

struct dt_field { /* a table ends with a row whose key is null */
    const char *key;
    const char *fallback; /* the default as JSON text; null: a value is required */
    const char *help;     /* one line */
    size_t offset;        /* offset of the member in the struct */
    const struct dt_rule *rule;
};

struct dt_config_hint { /* a key that is known but not read */
    const char *path;   /* "fp16", "fsdp.cpu_offload"; includes everything below it */
    const char *text;   /* message: "not there yet; training runs in fp32" */
};

struct dt_config;

/* Reads the file, JSON or, by the end of its name, YAML. Strings of all values live in `arena`, which must outlive the config. The first
 * syntax error of the JSON text is an error. */
int dt_config_open(struct dt_config **out, const char *path, struct dt_arena *arena, struct dt_error *err);
/* The same; JSON may have comments and commas before closing brackets. */
int dt_config_open_relaxed(struct dt_config **out, const char *path, struct dt_arena *arena, struct dt_error *err);
/* The same from memory; messages show `path`, by whose end it is JSON or YAML. */
int dt_config_open_text(struct dt_config **out, const char *path, const char *text, size_t size, struct dt_arena *arena,
                        struct dt_error *err);
/* Sets "training.seed=7": the value is JSON, or a bare string if it is not valid JSON. It replaces
 * the file's value. Call it before the first read. `option`: the option of its own that gave the
 * value ("--seed"), for messages; null: --set. */
int dt_config_set(struct dt_config *c, const char *assignment, const char *option, struct dt_error *err);
/* Adds keys that are recognised and refused by name; a null path ends the table. A hinted key whose
 * value disables it (false, null, or an object with "enabled": false) is accepted and ignored. Call
 * it before dt_config_close. The table must outlive c. */
void dt_config_hints(struct dt_config *c, const struct dt_config_hint *hints);
/* Fills `out` from a section ("" is the top). A wrong value becomes a problem, and the default is
 * used instead. Several tables may read one section. The word "auto" selects the default of a
 * number or bool. Returns the number of problems in this section. */
int dt_config_read(struct dt_config *c, const char *section, const struct dt_field *fields, void *out);
/* ---- keys of other systems, translated before the tables are read ---- */
struct cJSON;
/* Where the value of `section` is a string, the members of that file become the members of the
 * section; messages say the file's own places and keys. A path is looked for in the working folder,
 * then beside the file that says it. JSON is relaxed. 0, also without such a value, or -1; the section
 * is then without members. */
int dt_config_include(struct dt_config *c, const char *section, struct dt_error *err);
/* The same with a file that nothing named. */
int dt_config_include_file(struct dt_config *c, const char *section, const char *path, struct dt_error *err);
/* The next key below `section`, at any depth, that was not read, and its value; null behind the last
 * one. *at: 0 at first. */
const char *dt_config_unread(const struct dt_config *c, const char *section, size_t *at, const struct cJSON **value);
/* The value of a key as it was given; null when nothing, or only null, gave it. Lives as long as c. */
const struct cJSON *dt_config_value(const struct dt_config *c, const char *path);
/* The name of the key in messages: its path, or the key that it was moved from. The second function
 * gives the value that stands there. */
const char *dt_config_name(const struct dt_config *c, const char *path);
const struct cJSON *dt_config_given(const struct dt_config *c, const char *path);
/* Declares a key that no table reads: the sections above it are read, and it is among the names
 * that an unknown key may have meant. */
void dt_config_known(struct dt_config *c, const char *path);
/* Marks a key and all below it as read. */
void dt_config_pass(struct dt_config *c, const char *path);
/* Gives a value (null: the one of `from`; else c owns it) to the key `to`, in place of what `to`
 * had. `from` was given; messages about `to` say its place and name. */
void dt_config_move(struct dt_config *c, const char *from, const char *to, struct cJSON *value);
/* Moves the keys below `from` to the same names below `to`; messages say the places and names that they had. Returns the
 * path below `from` of one that `to` has already, and moves nothing then; null otherwise. */
const char *dt_config_lift(struct dt_config *c, const char *from, const char *to);
/* Makes an object (owned by c from here on) that stands within the value of `from`, as in a list, a section at `path`,
 * which begins with from's path and a dot: its members are keys there. Messages say from's place. */
void dt_config_unfold(struct dt_config *c, const char *from, const char *path, struct cJSON *object);
/* The number that a value is or, as YAML and command lines write it, spells; false for others. */
bool dt_config_number(const struct cJSON *value, double *out);
/* True when the key was given and, once it was read, fitted its rule. */
bool dt_config_taken(const struct dt_config *c, const char *path);
/* True for a value that switches off what its key is for: false, null, { "enabled": false }. */
bool dt_config_off(const struct cJSON *value);

/* The place that gave a key, such as "job.json:4:9" or "--set training.seed=7"; null when
 * nothing gave it, or only null. Lives as long as c. */
const char *dt_config_where(const struct dt_config *c, const char *path);
/* Adds a problem of a key: `where: key: text`, sorted by place. For a key that was not given,
 * `where` is the file alone. The key is then not refused as unknown as well. */
void dt_config_problem(struct dt_config *c, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Sets the source of a key that was not given and whose value was derived, for dt_config_source. */
void dt_config_derived(struct dt_config *c, const char *path, const char *source);
/* The source of a key's value for messages: dt_config_where, a derived source, or "default". */
const char *dt_config_source(const struct dt_config *c, const char *path);
/* Ends reading and frees c. Unknown keys become problems. `problems` gets one line each. 0, or -1
 * if there were problems; err has the only one, or their number. */
int dt_config_close(struct dt_config *c, struct dt_text *problems, struct dt_error *err);

/* Bytes of a rule's values. */
size_t dt_config_size(const struct dt_rule *rule);
/* Appends one member as JSON, in the shortest text that reads back as the same value. */
void dt_config_format(const struct dt_field *field, const void *in, struct dt_text *out);
/* Appends the JSON Schema of a section, without its braces: "key":{...},... on lines of `indent`
 * spaces. */
void dt_config_schema(const struct dt_field *fields, int indent, struct dt_text *out);

#endif
