/* The chain: an ordered list of blocks and the flat units that hold their parameters. A unit is
 * one buffer of one dtype; each tensor starts at a multiple of 64 elements in registration
 * order, the whole is padded to shards * 64 elements, so every rank of a shard group owns an
 * equal slice and blocks of 64 never straddle two ranks (strategies.md 2.2). */
#ifndef DT_WORKER_MODEL_CHAIN_H
#define DT_WORKER_MODEL_CHAIN_H

#include "base/arena.h"
#include "base/config.h"
#include "base/text.h"
#include "worker/model/block.h"

struct cJSON;

struct unit {
    const char *name;        /* "root", "transformer.h.3" */
    enum role role;          /* trained or frozen: of all its tensors */
    int tensor_count;        /* tensors in it; their unit member says which */
    int64_t used;            /* elements up to the end of the last tensor */
    int64_t numel;           /* padded to shards * 64 */
    int first_use, last_use; /* block indices; a unit used by several blocks is shared (tied
                              * weights) */
    bool shared;
};

struct chain {
    struct model_spec spec;
    struct batch_layout batch; /* what a batch of this model is */
    struct block *blocks;
    int block_count;
    struct unit *units;
    int unit_count;
    struct tensor *tensors; /* in registration order over all units */
    int tensor_count;
    int *by_name, place_count; /* of tensors + 1, at a hash of their names or the next free
                                * place; a power of two, at most half of them taken */
    int64_t parameter_count;   /* logical, without padding and buffers; tied counted once */
    int64_t buffer_count;      /* elements of all buffers, with gaps */
    int shards;                /* what units are padded for */
    size_t slot_bytes[2];      /* the largest y of each slot (struct block); a branch takes as much */
    size_t branch_bytes[2];
    struct dt_arena arena;
    struct dt_error problem; /* the first thing that blocks or models declared wrongly */
};

struct model_ops;
/* Builds the chain of a model: looks the name up in the table of models (model.c). shards >= 1.
 * Sizes that no model can have are DT_INVALID. Blocks point into c: it may not move. close is
 * harmless on a zeroed or half-open chain. */
int chain_open(struct chain *c, const struct model_spec *spec, int shards, struct dt_error *err);
/* The same for a model that need not be in the table; spec->name is not read. */
int chain_open_as(struct chain *c, const struct model_ops *ops, const struct model_spec *spec, int shards,
                  struct dt_error *err);
void chain_close(struct chain *c);

/* For models: opens a unit (returns its index); adds a block whose tensors go to that unit. args
 * (args_bytes) are copied: the block finds them in b->args. */
int chain_unit(struct chain *c, const char *name, enum role role);
int chain_add(struct chain *c, const struct block_ops *ops, int unit, int layer, const void *args, size_t args_bytes,
              struct dt_error *err);
/* For blocks: declares a tensor by name in the block's own unit, or in another one. A name that is
 * there already is that tensor (tied), whichever unit holds it. Returns its place in b->tensors. A
 * tensor that comes back with another shape or role, and one whose role is not its unit's, make
 * chain_open fail. */
int block_tensor(struct block *b, const char *name, const int64_t *shape, int dims, const struct tensor_rule *rule);
int block_tensor_in(struct block *b, int unit, const char *name, const int64_t *shape, int dims,
                    const struct tensor_rule *rule);
/* For blocks: declares `count` elements of memory for a full batch, and returns their number.
 * LIFE_BACKWARD: from forward to backward; of a layer that recomputes as much as `again_from` or
 * more, PASS_RECOMPUTE makes them again (RECOMPUTE_NEVER: nothing does). Memory of one place lies
 * in the order of its declaration, each a multiple of 64 bytes; 0 elements: not of this layer. */
enum { RECOMPUTE_NEVER = RECOMPUTE_BLOCK + 1 };
int block_memory(struct block *b, const char *name, enum life life, int again_from, int64_t count, enum dt_dtype type);
/* For blocks: says that the block reads this field of the batch, and returns its place in the
 * layout. A model without such a field makes chain_open fail. */
int block_field(struct block *b, const char *name);

/* For the passes of blocks. Tensor number i of the block, and its gradient. */
const void *pass_weight(const struct block *b, const struct pass *p, int i);
void *pass_grad(const struct block *b, const struct pass *p, int i);
/* Whether backward adds to the gradient of tensor i, or overwrites it. */
bool pass_adds(const struct block *b, const struct pass *p, int i);
/* Tensor i, which is a buffer. */
void *pass_buffer(const struct block *b, const struct pass *p, int i);
/* The type of a pass's gradients. */
enum dt_dtype pass_grad_type(const struct block *b, const struct pass *p);
/* Memory by its number; null where 0 elements were declared. */
void *pass_memory(const struct block *b, const struct pass *p, int number);

/* Initial values of the logical elements [first, first + count) of tensor t (by counter: a
 * function of seed, tensor name and element alone), as double. */
void init_values(const struct tensor *t, uint64_t seed, int64_t first, int64_t count, double *out);
/* Fills elements [first, first+count) of unit u (padding: zero; u = -1: of the buffers) into `out`
 * of type `type` (DT_F32 or DT_F64). */
void init_unit(const struct chain *c, int u, uint64_t seed, int64_t first, int64_t count, enum dt_dtype type,
               void *out);

/* Values of one model's field table: its struct, by value. */
enum { MODEL_SIZES_MAX = 256 };
struct model_sizes {
    _Alignas(8) char bytes[MODEL_SIZES_MAX];
};

struct model_key { /* a second spelling of a key of config.json */
    const char *other, *key;
};

struct model_ops {
    const char *name;         /* "gpt2" */
    const char *architecture; /* the class that Hugging Face's library makes of an exported folder */
    const char *smaller;      /* what to lower where the model does not fit: "model.hidden_size)" behind a
                               * bracket */
    /* THE table of the model's keys: those of the job's section `model`, of config.json in and out,
     * and those that a run which goes on is compared by; with their defaults. Integers, numbers. */
    const struct dt_field *fields;
    size_t sizes_bytes;           /* of the struct that the fields' offsets count in */
    const char *const *kept;      /* keys that are not computed with, only kept for config.json; ends
                                   * with null */
    const struct model_key *keys; /* other spellings; end with null */
    const char *positions;        /* the key of the longest sequence; null: samples are no sequences */
    /* What spans keys: DT_INVALID with what to change; *key says which one is to blame. */
    int (*check)(const void *sizes, const char **key, struct dt_error *err);
    int (*build)(struct chain *c, struct dt_error *err); /* c->spec is set; says c->batch, and adds
                                                          * units and blocks */
    /* Of a step's forward and backward of one position (or sample), computing again not counted. */
    double (*flops)(const struct chain *c);
    /* Hugging Face folders: a file's tensor name -> ours (aliases, missing prefixes); false for
     * a name to be ignored (buffers). */
    bool (*canonical_name)(const char *file_name, char *out, size_t out_bytes);
    /* DT_INVALID for settings of a config.json that this model does not have; may be null. */
    int (*check_config)(const struct cJSON *config, struct dt_error *err);
    /* What config.json has beside the fields: JSON text by key through `put`. */
    void (*put_config)(const void *sizes, void (*put)(void *to, const char *key, const char *json), void *to);
};
/* Fills `sizes` with the defaults of the field table. */
void model_defaults(const struct model_ops *ops, void *sizes);
/* Sizes from a parsed config.json; what it lacks has its default. DT_INVALID names the key. */
int model_read_config(const struct model_ops *ops, const struct cJSON *config, void *sizes, struct dt_error *err);
/* config.json of an exported folder, where none came in. */
void model_write_config(const struct model_ops *ops, const void *sizes, struct dt_text *out);
/* The value of a key, an integer. */
int64_t model_integer(const struct model_ops *ops, const void *sizes, const char *key);
/* True for one of the keys that are not computed with. */
bool model_keeps(const struct model_ops *ops, const char *key);
/* Model number i in the table; null behind the last. */
const struct model_ops *model_at(int i);
/* Model by name ("gpt2", also config.json's model_type); null when there is none. */
const struct model_ops *model_find(const char *name);
/* Appends the names of all models, comma-separated, for messages. */
void model_list(struct dt_text *out);

#endif
