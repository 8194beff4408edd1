/* Dialects: keys of other systems, in a job file or in files of their own. A dialect is a table of
 * rules; each moves one foreign key to ours before the field tables are read, so nothing after it
 * knows the key. */
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
                       * Behind =~: why it has no effect. "*": all other words, which are refused
                       * without it. What stands for ours is JSON, or a bare string */
    DIALECT_FUNCTION, /* `fn` translates; `text` says how, for the documentation */
    DIALECT_INERT,    /* accepted without effect, with all below it; `text` says why */
    DIALECT_SILENT,   /* the same, and nobody needs to be told: it is so anyway, or speed alone */
    DIALECT_REFUSE    /* with all below it, unless the value switches it off; `text` says why and
                       * what to do */
};

/* What becomes of a key's values: one of ours, or what is done anyway; nothing; at most the value that
 * switches it off is taken. */
enum dialect_outcome { OUTCOME_DONE, OUTCOME_NO_EFFECT, OUTCOME_REFUSED };

struct dialect_rule {     /* tables end with a row whose `from` is null */
    const char *from;     /* their key: "optimizer.params.lr" */
    const char *to;       /* our key; null where nothing of ours takes the value */
    enum dialect_how how; /* null says nothing, and "auto" leaves the choice to our key, whatever the
                           * rule, unless its words have "auto" */
    const char *text;
    dialect_fn *fn;
    enum dialect_outcome outcome; /* of a function */
    bool shallow;                 /* what is below the key is of other rules */
    bool sees_auto;               /* the function judges "auto" itself */
    bool sees_null;               /* null does not stand for the default: the function gets no value then */
    bool block;                   /* of a refused key: switched off it is said to have no effect */
    const char *fallback;         /* JSON: their default, where the section of `from` is given without it and
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
#define FUNCTION_OF(result, theirs, ours, function, said)                                                              \
    {                                                                                                                  \
        .from = (theirs), .to = (ours), .how = DIALECT_FUNCTION, .fn = (function), .text = (said), .outcome = (result) \
    }
#define INERT(theirs, why)                                                                                             \
    {                                                                                                                  \
        .from = (theirs), .how = DIALECT_INERT, .text = (why)                                                          \
    }
#define SILENT(theirs, why)                                                                                            \
    {                                                                                                                  \
        .from = (theirs), .how = DIALECT_SILENT, .text = (why)                                                         \
    }
#define REFUSE(theirs, why)                                                                                            \
    {                                                                                                                  \
        .from = (theirs), .how = DIALECT_REFUSE, .text = (why)                                                         \
    }
#define REFUSE_BLOCK(theirs, why)                                                                                      \
    {                                                                                                                  \
        .from = (theirs), .how = DIALECT_REFUSE, .text = (why), .block = true                                          \
    }

struct dialect {
    const char *name;                 /* "DeepSpeed" */
    const char *section;              /* a section of the job (an object, or the name of a file) that holds keys of
                                       * the dialect only; null: there is none */
    const char *family;               /* a value of ours that leaves the choice to the dialect's key, as "auto" does; or
                                       * null */
    const char *const *places;        /* where its keys may stand: "" is the top of the job; ends with null. A place
                                       * may be the name of a file instead of an object */
    const char *wrapper;              /* a section within `section` whose keys count as the section's own; or null */
    const char *spelling;             /* its keys may begin with this, "fsdp_"; or null */
    bool hyphens;                     /* "-" may stand for "_" */
    const char *marks;                /* "a|b.c": a file that has one of these keys, and none of ours, is one of
                                       * the dialect's; null: no file is */
    const char *autos;                /* "|a.b|c|": keys that may be "auto"; null: all */
    bool lenient;                     /* unknown keys at the top of a place are ignored by its own system too */
    const struct dialect_rule *rules; /* applied in this order */
    /* gives defaults that depend on several keys, after all rules of all dialects; or null */
    void (*defaults)(struct dialect_use *u);
    /* false: the place counts for nothing, though it is given; or null */
    bool (*counts)(const struct dialect_use *u);
};
extern const struct dialect dialect_deepspeed, dialect_fsdp, dialect_fsdp_block, dialect_transformers,
    dialect_accelerate, dialect_launch, dialect_lightning, dialect_trainer, dialect_ddp_strategy,
    dialect_deepspeed_strategy, dialect_fsdp_strategy, dialect_callbacks, dialect_early_stopping,
    dialect_model_checkpoint, dialect_timer, dialect_neox, dialect_neox_deepspeed, dialect_script;
/* In the order of their rules; their defaults come in the opposite order. Ends with null. */
extern const struct dialect *const dialects[];

/* What a rule may use. */
struct dialect_use {
    struct dt_config *c;
    struct dt_arena *arena;
    const struct dialect *dialect;
    const char *place;  /* "", or "deepspeed" */
    const char *prefix; /* of the keys: "", or "deepspeed." */
    int world;          /* ranks that the job runs on */
    bool converts;      /* the job is only converted: it may run on any number, and reasons are lines */
    struct dt_text *inert;
};

/* Opens a job file. A file of a dialect becomes that dialect's section of a job that has nothing
 * else. Such files may be relaxed JSON. 0 or -1. */
int dialects_open(struct dt_config **c, const char *path, bool converts, struct dt_arena *arena, struct dt_error *err);
/* Adds a file of a dialect to a job. */
int dialects_add(struct dt_config *c, const char *path, struct dt_arena *arena, struct dt_error *err);
/* Reads the files that places of dialects name. What is wrong with one is a problem of its key. */
void dialects_include(struct dt_config *c);
/* Applies all rules. Appends names of keys that have no effect to `inert` (initialised), with
 * commas between them. */
void dialects_apply(struct dt_config *c, struct dt_arena *arena, int world, bool converts, struct dt_text *inert);

/* For functions of rules. Gives a value (owned from here on) to the key `to`; notes a problem that
 * names both keys when another value was given to it before. `path`: the key that says it. */
void dialect_give(struct dialect_use *u, const char *path, const char *to, struct cJSON *value);
/* Adds a key, with a reason in brackets unless it is null, to those without effect. */
void dialect_inert(struct dialect_use *u, const char *path, const char *why);
/* Notes that the value at a key is none that it takes: "is -8; give a whole number". */
void dialect_wrong(struct dialect_use *u, const char *path, const char *give);
/* The words of a rule, for functions that know some values and leave the others to words. */
void dialect_words(struct dialect_use *u, const struct dialect_rule *r, const char *path, const struct cJSON *value);
/* The full path of a key of the dialect, in the arena. */
const char *dialect_path(const struct dialect_use *u, const char *key);
/* True when the key is given and not "auto". */
bool dialect_says(const struct dialect_use *u, const char *key);
bool dialect_is_auto(const struct cJSON *value);
/* The word, in large or small letters. */
bool dialect_is_word(const struct cJSON *value, const char *word);

/* A training.strategy without the alias: "deepspeed_stage_3" and "zero_stage_3" are "zero3",
 * "fsdp_no_shard" is "no_shard". In the arena. */
const char *dialect_strategy(const char *name, struct dt_arena *arena);
/* A training.precision in the one spelling that it is kept in: "32-true", "16-mixed", "bf16-mixed", "16-true",
 * "bf16-true", "64-true". The types of what is computed with, and of weights as they are updated. */
const char *dialect_precision(const char *name, enum dt_dtype *compute, enum dt_dtype *masters);
/* "fp32", "bfloat16", ... */
enum dt_dtype dialect_element(const char *name);

/* What a key does here, of whatever dialect ("zero_optimization.stage", "max_epochs"), or is near to.
 * False: no such key; `out` then says what may be meant. */
bool dialects_explain(const char *key, struct dt_text *out);
/* The blocks that a file asks for by the names of classes ("LlamaDecoderLayer") must be the model's. */
void dialects_check_layers(struct dt_config *c, const char *model);
/* True for a class of Transformers that takes the mean of its micro-batch itself, whatever Trainer counts, where a file
 * of Hugging Face has chosen how losses are added up: they are means of ranks then. */
bool dialects_own_mean(struct dt_config *c, const char *class);
/* average_tokens_across_devices false: a rank's loss is the mean over all its micro-batches, which is our local_mean
 * where there is one of them. True if there are more: losses are summed over targets then, which is the same on one
 * rank; on several it is a problem. Called where losses are means of ranks. */
bool dialects_rank_mean(struct dt_config *c, int64_t micro_steps, int world);

/* The members of the JSON Schema for keys of a section of the job ("fsdp", or "" for the top) that
 * dialects read: each begins with a comma and a newline. */
void dialects_schema(const char *section, int indent, struct dt_text *out);
/* The outcome of a rule; its words say it where it has some. */
enum dialect_outcome dialect_outcome(const struct dialect_rule *r);
const char *dialect_outcome_name(enum dialect_outcome outcome);
/* The rule of a key, or of a block that it stands in; null: there is none. */
const struct dialect_rule *dialect_rule_of(const struct dialect *d, const char *key);
/* What becomes of one key, and of each key as a table, in Markdown. */
void dialect_describe(const struct dialect_rule *r, struct dt_text *out);
void dialect_table(const struct dialect *d, struct dt_text *out);

#endif
