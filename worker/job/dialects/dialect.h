/* Dialects: keys of other systems in a job file. A dialect is a table of rules; each moves one
 * foreign key to ours before the field tables are read, so nothing after it knows the key. */
#ifndef DT_WORKER_JOB_DIALECTS_DIALECT_H
#define DT_WORKER_JOB_DIALECTS_DIALECT_H

#include "base/config.h"
#include "base/dtype.h"

struct cJSON;
struct dialect_use;
struct dialect_rule;
/* Translates the value of a rule's key, which was given at `path`. */
typedef void dialect_fn(struct dialect_use *u, const struct dialect_rule *rule, const char *path,
                        const struct cJSON *value);

enum dialect_how {
    DIALECT_MOVE,     /* the value is that of `to` */
    DIALECT_WORDS,    /* `text` lists their words and ours: "2=zero2|0=|4=!not there yet; write 3|*=!why".
                       * Nothing behind =: the word says nothing. Behind =!: why the word is refused.
                       * "*": all other words, which are refused without it */
    DIALECT_FUNCTION, /* `fn` translates; `text` says how, for the documentation */
    DIALECT_INERT,    /* accepted without effect, with all below it; `text` says why */
    DIALECT_REFUSE    /* with all below it, unless the value switches it off; `text` says why and
                       * what to do */
};

struct dialect_rule {     /* tables end with a row whose `from` is null */
    const char *from;     /* their key: "optimizer.params.lr" */
    const char *to;       /* our key; null where nothing of ours takes the value */
    enum dialect_how how; /* null says nothing, and "auto" leaves the choice to our key, whatever the rule */
    const char *text;
    dialect_fn *fn;
    const char *fallback; /* JSON: their default, where the section of `from` is given without it and
                           * nothing says `to`; a key at their top is of the dialect's section.
                           * Null: our default holds */
};

/* Rows of a table. OR: with a fallback. */
#define MOVE(theirs, ours)                                                                                             \
    {                                                                                                                  \
        .from = (theirs), .to = (ours), .how = DIALECT_MOVE                                                            \
    }
#define MOVE_OR(theirs, ours, json)                                                                                    \
    {                                                                                                                  \
        .from = (theirs), .to = (ours), .how = DIALECT_MOVE, .fallback = (json)                                        \
    }
#define WORDS(theirs, ours, words)                                                                                     \
    {                                                                                                                  \
        .from = (theirs), .to = (ours), .how = DIALECT_WORDS, .text = (words)                                          \
    }
#define FUNCTION(theirs, ours, function, said)                                                                         \
    {                                                                                                                  \
        .from = (theirs), .to = (ours), .how = DIALECT_FUNCTION, .fn = (function), .text = (said)                      \
    }
#define INERT(theirs, why)                                                                                             \
    {                                                                                                                  \
        .from = (theirs), .how = DIALECT_INERT, .text = (why)                                                          \
    }
#define REFUSE(theirs, why)                                                                                            \
    {                                                                                                                  \
        .from = (theirs), .how = DIALECT_REFUSE, .text = (why)                                                         \
    }

struct dialect {
    const char *name;                 /* "DeepSpeed" */
    const char *section;              /* a section of the job (an object, or the name of a file) that holds keys of
                          * the dialect only; null: there is none. At the top of the job its keys are
                          * known as well */
    const char *family;               /* a value of ours that leaves the choice to the dialect's key, as "auto" does */
    const struct dialect_rule *rules; /* applied in this order */
};
extern const struct dialect dialect_deepspeed, dialect_fsdp;
/* Ends with null. */
extern const struct dialect *const dialects[];

/* What a rule may use. */
struct dialect_use {
    struct dt_config *c;
    struct dt_arena *arena;
    const struct dialect *dialect;
    const char *prefix; /* of the keys: "", or "deepspeed." */
    int world;          /* ranks that the job runs on */
    struct dt_text *inert;
};

/* Reads the files that sections of dialects name. 0, or -1 with what is wrong with the first. */
int dialects_include(struct dt_config *c, struct dt_error *err);
/* Applies all rules. Appends names of keys that have no effect to `inert` (initialised), with
 * commas between them. */
void dialects_apply(struct dt_config *c, struct dt_arena *arena, int world, struct dt_text *inert);

/* For functions of rules. Gives a value (owned from here on) to the key `to`; notes a problem that
 * names both keys when another value was given to it before. `path`: the key that says it. */
void dialect_give(struct dialect_use *u, const char *path, const char *to, struct cJSON *value);
/* The full path of a key of the dialect, in the arena. */
const char *dialect_path(const struct dialect_use *u, const char *key);
/* True when the key is given and not "auto". */
bool dialect_says(const struct dialect_use *u, const char *key);
bool dialect_is_auto(const struct cJSON *value);

/* A training.strategy without the alias: "deepspeed_stage_3" and "zero_stage_3" are "zero3",
 * "fsdp_no_shard" is "no_shard". In the arena. */
const char *dialect_strategy(const char *name, struct dt_arena *arena);
/* A training.precision in the one spelling that it is kept in: "32-true", "16-mixed", "bf16-mixed", "16-true",
 * "bf16-true", "64-true". The types of what is computed with, and of weights as they are updated. */
const char *dialect_precision(const char *name, enum dt_dtype *compute, enum dt_dtype *masters);
/* "fp32", "bfloat16", ... */
enum dt_dtype dialect_element(const char *name);

/* The members of the JSON Schema for keys of a section of the job ("fsdp", or "" for the top) that
 * dialects read: each begins with a comma and a newline. */
void dialects_schema(const char *section, int indent, struct dt_text *out);
/* What becomes of each key, as a table of Markdown. */
void dialect_table(const struct dialect *d, struct dt_text *out);

#endif
