/* The chain: an ordered list of blocks, and the flat units that hold their parameters. A unit is
 * one buffer of one dtype. Each of its tensors begins at a multiple of 64 elements, in registration
 * order. A unit is padded to a multiple of shards * 64 elements, so every rank of a shard group
 * owns an equal slice, and no block of 64 elements spans two ranks. */
#ifndef DT_WORKER_MODEL_CHAIN_H
#define DT_WORKER_MODEL_CHAIN_H

#include "base/arena.h"
#include "base/config.h"
#include "base/text.h"
#include "worker/model/block.h"

struct cJSON;

struct unit {
    const char *name;        /* "root", "transformer.h.3" */
    enum role role;          /* trained or frozen; the same for all its tensors */
    int tensor_count;        /* number of its tensors; a tensor's `unit` member names it */
    int64_t used;            /* elements up to the end of the last tensor */
    int64_t numel;           /* padded to shards * 64 */
    int first_use, last_use; /* block indices */
    bool shared;             /* used by several blocks (tied weights) that do not lie side by side */
    bool discarded;          /* frozen by the job: blocks compute gradients of it, which nobody takes */
    bool persistent;         /* sliced weights stay whole from their first use in a step to its end */
};

struct chain {
    struct model_spec spec;
    struct batch_layout batch; /* the layout of a batch of this model */
    struct block *blocks;
    int block_count;
    struct unit *units;
    int unit_count;
    struct tensor *tensors; /* in registration order over all units */
    int tensor_count;
    /* hash table of tensor index + 1, by name, with linear probing; the size is a power of two, at
     * most half full */
    int *by_name, place_count;
    int64_t parameter_count; /* without padding and buffers; tied tensors count once */
    int64_t buffer_count;    /* elements of all buffers, with their gaps */
    struct constant *constants;
    int constant_count;
    bool recomputes;      /* of some memory `recompute` decides whether it is computed again */
    int shards;           /* units are padded for this number of slices */
    size_t slot_bytes[2]; /* size of the largest y in each slot (struct block) */
    size_t branch_bytes[2];
    struct dt_arena arena;
    struct dt_error problem; /* the first mistake in the declarations of blocks or models */
};

struct model_ops;
/* Builds the chain of a model, by its name in the table of models (model.c). shards >= 1.
 * DT_INVALID: sizes that no model can have. Blocks point into c, so c must not move. chain_close
 * may be called on a zeroed chain, and after a failed open. */
int chain_open(struct chain *c, const struct model_spec *spec, int shards, struct dt_error *err);
/* The same for a model that need not be in the table. spec->name is not used. */
int chain_open_as(struct chain *c, const struct model_ops *ops, const struct model_spec *spec, int shards,
                  struct dt_error *err);
void chain_close(struct chain *c);

/* For models. chain_unit opens a unit and returns its index. chain_add adds a block, whose tensors
 * go to that unit by default. args (args_bytes) are copied; the block finds them in b->args. */
int chain_unit(struct chain *c, const char *name, enum role role);
int chain_add(struct chain *c, const struct block_ops *ops, int unit, int layer, const void *args, size_t args_bytes,
              struct dt_error *err);
/* For blocks: declares a tensor in the block's own unit, or in another one. If the name exists
 * already, it is that tensor (tied), in whichever unit. Returns its index in b->tensors. chain_open
 * fails if a tied tensor has another shape or role, or a tensor has another role than its unit. */
int block_tensor(struct block *b, const char *name, const int64_t *shape, int dims, const struct tensor_rule *rule);
int block_tensor_in(struct block *b, int unit, const char *name, const int64_t *shape, int dims,
                    const struct tensor_rule *rule);
/* For blocks: declares `count` elements of memory for a full batch, and returns the memory's
 * number. LIFE_BACKWARD: it lives from forward to backward; in a layer that recomputes as much as
 * `again_from` or more, PASS_RECOMPUTE computes its content again (RECOMPUTE_NEVER: never). Memory
 * of one place is laid out in the order of declaration, each piece a multiple of 64 bytes. 0
 * elements: this layer does not have it. again_from is read for LIFE_BACKWARD alone. */
enum { RECOMPUTE_NEVER = RECOMPUTE_BLOCK + 1 };
int block_memory(struct block *b, const char *name, enum life life, int again_from, int64_t count, enum dt_dtype type);
/* For blocks: declares a constant, and returns its number in the block. If the name exists already,
 * it is that constant. args (args_bytes) are copied. Models whose blocks have constants declare all
 * buffers in earlier blocks, or none (chain_open fails otherwise). */
int block_constant(struct block *b, const char *name, int64_t numel,
                   void (*fill)(const void *args, int64_t first, int64_t count, double *out), const void *args,
                   size_t args_bytes);
/* For blocks: declares that the block reads this field of the batch, and returns its index in the
 * layout. chain_open fails if the model has no such field. */
int block_field(struct block *b, const char *name);
/* For blocks: declares that the block reads the numbers of samples. Gives the batch a field for them,
 * which a pass has even if the block takes no other field. */
void block_numbers(struct block *b);

/* For the passes of blocks: tensor number i of the block, and its gradient. */
const void *pass_weight(const struct block *b, const struct pass *p, int i);
void *pass_grad(const struct block *b, const struct pass *p, int i);
/* True if backward adds to the gradient of tensor i instead of overwriting it. */
bool pass_adds(const struct block *b, const struct pass *p, int i);
/* Tensor number i, which must be a buffer. */
void *pass_buffer(const struct block *b, const struct pass *p, int i);
/* Constant number i of the block. */
const void *pass_constant(const struct block *b, const struct pass *p, int i);
/* Elements of buffers and constants together: what struct pass's `buffers` must hold. */
int64_t chain_buffers(const struct chain *c);
/* Tensor number i of the block is trained. */
bool block_trains(const struct block *b, int i);
/* The type of gradients in a pass. */
enum dt_dtype pass_grad_type(const struct block *b, const struct pass *p);
/* Memory by its number; null if it was declared with 0 elements. */
void *pass_memory(const struct block *b, const struct pass *p, int number);

/* The part of a tensor that lies in elements [first, first + count) of its unit, or of the buffers. */
struct span {
    const struct tensor *tensor;
    int64_t at, first, count; /* at: elements from the start of the range; first: in the tensor */
};
/* False: no part of the tensor lies there. span_of is the same for `numel` elements from `offset` on;
 * it sets no tensor. */
bool tensor_span(const struct tensor *t, int64_t first, int64_t count, struct span *out);
bool span_of(int64_t offset, int64_t numel, int64_t first, int64_t count, struct span *out);

/* Initial values of elements [first, first + count) of tensor t, as double. Each value is a
 * function of seed, tensor name and element alone. */
void init_values(const struct tensor *t, uint64_t seed, int64_t first, int64_t count, double *out);
/* Writes the first values of a span to `out`, the range that the span was cut from, of type `type`
 * (DT_F32 or DT_F64). */
void init_span(const struct span *s, uint64_t seed, enum dt_dtype type, void *out);
/* Fills elements [first, first + count) of unit u (-1: of the buffers and constants) into `out` of
 * type `type` (DT_F32 or DT_F64). Padding becomes zero. */
void init_unit(const struct chain *c, int u, uint64_t seed, int64_t first, int64_t count, enum dt_dtype type,
               void *out);

/* The values of a model's field table, as bytes of its struct. */
enum { MODEL_SIZES_MAX = 1024 };
struct model_sizes {
    _Alignas(8) char bytes[MODEL_SIZES_MAX];
};

struct model_key { /* another spelling of a key of config.json */
    const char *other, *key;
};

struct model_dropout {
    const char *key;
    double missing; /* what the library takes where a config.json does not have the key */
};

struct model_alias { /* another name in config.json's model_type, and how its classes' names begin */
    const char *name, *prefix;
};

struct model_ops {
    const char *name;                  /* "gpt2" */
    const struct model_alias *aliases; /* ends with a null name; may be null */
    /* the class that Hugging Face's library makes from an exported folder; by the sizes where class_of
     * is set */
    const char *architecture;
    const char *(*class_of)(const void *sizes);
    /* what to lower if the model does not fit the memory, for a message that has opened a bracket:
     * "model.hidden_size)" */
    const char *smaller;
    /* THE table of the model's keys, with their defaults. It serves the job's section `model`,
     * reading and writing config.json, and the comparison when a run is resumed. Rules: integers
     * and numbers. */
    const struct dt_field *fields;
    size_t sizes_bytes; /* size of the struct to which the fields' offsets belong */
    /* probabilities of dropout among the keys; a job may set them beside model.load. Ends with a null key;
     * may be null */
    const struct model_dropout *dropouts;
    const struct model_key *keys; /* other spellings of keys; ends with null */
    /* keys of the head, which a job may set beside model.load; ends with null; may be null */
    const char *const *head_keys;
    /* keys that put_config writes to config.json in its own way; ends with null; may be null */
    const char *const *spelled;
    /* Gives keys that are null the values which null stands for; may be null. So settings that mean
     * the same get the same values. */
    void (*settle)(void *sizes);
    /* the key of the longest sequence; null: samples are not sequences */
    const char *positions;
    /* a sample may hold documents: positions and attention begin anew in each (struct model_spec) */
    bool documents;
    /* Checks that involve several keys. DT_INVALID with what to change; *key: the key to blame. */
    int (*check)(const void *sizes, const char **key, struct dt_error *err);
    /* called with c->spec set: sets c->batch, adds units and blocks */
    int (*build)(struct chain *c, struct dt_error *err);
    /* Operations of a step's forward and backward per position (or sample), without
     * recomputation. */
    double (*flops)(const struct chain *c);
    /* Converts a tensor name of a Hugging Face file to ours (aliases, missing prefixes). False:
     * ignore the tensor (a buffer). */
    bool (*canonical_name)(const char *file_name, char *out, size_t out_bytes);
    /* The key, a bool, that says that the head is the embedding, and the names of both; null: the model
     * has no such key. A head with a bias may have two names for it, which are one tensor if the head is the
     * embedding; otherwise the second one is not computed with. */
    struct {
        const char *key, *head, *table, *head_bias, *bias;
    } tied;
    /* True for names of tensors of any head that the family may have; may be null. Those of this model's
     * begin anew where the loaded folder lacks them; the others are ignored in its files. */
    bool (*is_head)(const char *name);
    /* Writes the members of config.json that follow from head_keys, but for the class, as put_config
     * does; null if there are no such keys. */
    void (*put_head)(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to);
    /* DT_INVALID for settings in config.json that this model does not support; may be null. */
    int (*check_config)(const struct cJSON *config, struct dt_error *err);
    /* Gives a copy of config.json the keys of `fields` where the file has them nested, or where null
     * means something; may be null. */
    int (*flatten_config)(struct cJSON *config, struct dt_error *err);
    /* Appends what Hugging Face's library refuses or warns of when it reads an export, with what to do; may be
     * null. */
    void (*note_export)(const void *sizes, struct dt_text *out);
    /* Writes members of config.json beyond the fields: calls `put` with a key and JSON text. */
    void (*put_config)(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to);
};
/* Fills `sizes` with the defaults of the field table. */
void model_defaults(const struct model_ops *ops, void *sizes);
/* Reads sizes from a parsed config.json. Missing keys get their defaults. DT_INVALID names the
 * key. */
int model_read_config(const struct model_ops *ops, const struct cJSON *config, void *sizes, struct dt_error *err);
/* The same for config.json of a folder, where missing keys of dropout have the library's values. */
int model_read_folder(const struct model_ops *ops, const struct cJSON *config, void *sizes, struct dt_error *err);
/* Writes config.json for an exported folder, if the run began without one. */
void model_write_config(const struct model_ops *ops, const void *sizes, struct dt_text *out);
/* The value of a key, which must be an integer. */
int64_t model_integer(const struct model_ops *ops, const void *sizes, const char *key);
/* The value of a key, which must be a bool; sets it. */
bool model_flag(const struct model_ops *ops, const void *sizes, const char *key);
void model_set_flag(const struct model_ops *ops, void *sizes, const char *key, bool value);
/* True if a key means the same in both sizes, as written or once settled. `key` is in the field
 * table. */
bool model_same(const struct model_ops *ops, const char *key, const void *a, const void *b);
/* The class of an exported folder, whose config.json has this model_type (null: the model's own name). The caller
 * frees it. */
char *model_class(const struct model_ops *ops, const void *sizes, const char *model_type);
/* True for keys that a job may set beside model.load. */
bool model_chooses(const struct model_ops *ops, const char *key);
/* True for probabilities of dropout. */
bool model_drops(const struct model_ops *ops, const char *key);
/* Model number i of the table; null after the last. */
const struct model_ops *model_at(int i);
/* The model of that name or alias ("gpt2", as in config.json's model_type); null if there is none. */
const struct model_ops *model_find(const char *name);
/* Appends the names of all models, comma-separated, for messages. */
void model_list(struct dt_text *out);

#endif
