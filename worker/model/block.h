/* A block: one piece of the model with its parameters. It owns no memory: each call gets all memory
 * that it uses, so weights may come and go between calls.
 *
 * A tensor or a pair flows from a block to the next. A pair is the residual stream and a branch
 * that is not added to it yet. The consumer of a pair adds the two in its first (fused) norm. The
 * gradient of a pair is one tensor, that of the sum. Each block declares its input and output
 * (`in`, `out`), and the chain checks that neighbours fit. The first block takes only the batch, so
 * its `in` has no dimensions. The last block computes the loss, so its `out` has none. In training
 * the last block does all its work in backward, chunk by chunk with the gradient, so it has no
 * PASS_FORWARD. Its PASS_EVAL serves evaluation.
 *
 * Gradients. Backward visits the blocks from the last to the first. If two blocks use a tensor
 * (tied weights), the later block writes its gradient first, and the earlier one always adds. So
 * with accumulate false, a block overwrites every element of its tensors that no later block has
 * written; with accumulate true, it adds everything. A strategy may clear a shared unit once and
 * pass true for all its blocks, or pass false for all of them at the first micro-step: the sums are
 * the same. Blocks never write the gaps between tensors and the padding of a unit. The owner of the
 * memory keeps them zero.
 *
 * Overlapping memory. A block that is in_place reads its input before it writes its output, so y
 * may be x, y_branch x_branch, and dx dy. For other blocks these do not overlap. The bits do not
 * depend on what is recomputed (except RECOMPUTE_NONE with a device's own GELU). PASS_EVAL needs
 * all of a block's memory, but nothing of it is used later: one piece of memory serves all blocks.
 *
 * Letters: B batch, T tokens, C channels, V vocabulary, L layers, H heads. */
#ifndef DT_WORKER_MODEL_BLOCK_H
#define DT_WORKER_MODEL_BLOCK_H

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/model/batch.h"
#include "worker/model/wrap.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BLOCK_TENSORS_MAX = 24,
    BLOCK_UNITS_MAX = 4,
    BLOCK_MEMORY_MAX = 32,
    BLOCK_CONSTANTS_MAX = 4,
    TENSOR_DIMS_MAX = 4,
    FLOW_DIMS_MAX = 4
};

/* The activations of a layer that backward computes again, from most to least memory: none; norms
 * and the activation function; also the first product of the MLP; everything but the layer's input.
 * job.h has the names. */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_MLP, RECOMPUTE_BLOCK };

enum init_kind { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_UNIFORM };

/* The role of a tensor in training. A buffer (a running statistic) is whole on every rank, is saved
 * in checkpoints, and has no gradient. */
enum role { ROLE_TRAINED, ROLE_FROZEN, ROLE_BUFFER };

struct tensor_rule { /* initial values and role of a tensor */
    enum role role;
    enum init_kind init;
    double init_std;   /* INIT_NORMAL */
    double init_bound; /* INIT_UNIFORM: values lie between -init_bound and init_bound */
    /* INIT_NORMAL: values lie within this many deviations; 0: no limit */
    double init_cut;
    /* INIT_NORMAL of 2 dimensions: this row begins as zeros */
    bool has_zero_row;
    int64_t zero_row;
};

/* Values that follow from the model's sizes alone, such as tables of angles: not in checkpoints, and
 * never changed. They lie behind the buffers and have their type. */
struct constant {
    const char *name;
    int64_t numel, offset; /* elements from the start of the chain's buffers; a multiple of 64 */
    /* computes elements [first, first + count) as double */
    void (*fill)(const void *args, int64_t first, int64_t count, double *out);
    const void *args;
};

struct tensor {       /* one logical parameter or buffer */
    const char *name; /* Hugging Face name, e.g. "transformer.h.0.ln_1.weight"; owned by the
                       * chain's arena */
    int dims;         /* 0: a single element, without dimensions */
    int64_t shape[TENSOR_DIMS_MAX], numel;
    struct tensor_rule rule;
    bool decay;     /* weight decay applies; set for tensors of 2 or more dimensions */
    int unit;       /* the unit that holds it; -1: a buffer */
    int64_t offset; /* elements from the start of the unit, or of the chain's buffers; a multiple
                     * of 64 */
    /* The same where the model has put it. What numbers elements or looks at neighbours takes this place,
     * so that no bit depends on how tensors are put together to units. */
    struct {
        int unit;
        int64_t offset;
    } declared;
};

struct flow {                     /* the tensor or pair between two blocks */
    int dims;                     /* 0: nothing */
    int64_t shape[FLOW_DIMS_MAX]; /* for a full batch */
    enum dt_dtype type;
    bool pair; /* out: forward also writes a branch. in: takes a branch, if there is one */
};

enum life {
    LIFE_BACKWARD, /* lives from forward to backward */
    LIFE_CALL,     /* lives during one call */
    LIFE_CACHE     /* lives from one PASS_EVAL to the next ones of the same samples */
};
/* Places of a block's memory: a piece of its own; a piece shared by all blocks, used from
 * PASS_RECOMPUTE to backward; a piece shared by all, used during one call; a piece of its own for
 * what positions that were computed before have left (struct batch_past). */
enum memory_place { PLACE_KEPT, PLACE_AGAIN, PLACE_CALL, PLACE_CACHE, PLACE_COUNT };

struct block_memory {
    const char *name;
    enum memory_place place;
    size_t offset, size_bytes; /* offset in its place; size 0: this layer does not have it */
};

struct model_spec { /* a model for one job */
    const char *name;
    /* values of the model's field table (struct model_ops); chain_open copies them */
    const void *sizes;
    /* B, T of a micro-batch; T is 1 if samples are not sequences */
    int64_t batch_size, sequence_length;
    /* generation: positions of a sample for which blocks keep what later passes need; 0: none */
    int64_t cache_length;
    /* the chain ends with the last hidden states instead of head and loss: PASS_EVAL writes all rows (B * T, C)
     * to pass.logits; for models of tokens, not for training */
    bool hidden;
    /* training and evaluation: a sample holds documents (batch_add_documents), for models that can */
    bool documents;
    /* the device has its own memory, and its products are fast with aligned rows and many of
     * them */
    bool own_memory;
    /* for every recompute_every-th layer, beginning with the first; the others use
     * RECOMPUTE_CHEAP */
    enum recompute recompute;
    int64_t recompute_every; /* 0: same as 1 */
    uint64_t seed;           /* of dropout */
    struct wrap_policy wrap; /* how tensors are put together to units */
    /* ranks over whose samples batch norms take their statistics together (struct pass_peers); 0: same
     * as 1 */
    int norm_ranks;
    /* of weights and activations: DT_F32, DT_BF16 or DT_F16 (DT_F64 on the twin device); statistics have
     * dt_dtype_wide(type) */
    enum dt_dtype type;
};

/* The ranks over whose samples batch norms take their statistics together. Both functions enqueue on the
 * compute stream; all ranks call them in the same order. Types: F32 and F64. */
struct pass_peers {
    int count;
    void *context;
    /* out: `count` elements of each rank, in the order of the ranks */
    void (*gather)(const struct pass_peers *p, const void *in, void *out, int64_t count, enum dt_dtype type);
    /* x = the sum of all ranks' x */
    void (*sum)(const struct pass_peers *p, void *x, int64_t count, enum dt_dtype type);
};

enum pass_phase { PASS_FORWARD, PASS_RECOMPUTE, PASS_BACKWARD, PASS_EVAL };

struct pass { /* everything for one call of one block */
    enum pass_phase phase;
    struct dt_stream *stream;
    const struct dt_kernels *kernels;
    const struct batch *batch;
    const void *weights[BLOCK_UNITS_MAX]; /* the flat weights of each of the block's units */
    /* backward: their flat gradients; null: the unit is frozen */
    void *grads[BLOCK_UNITS_MAX];
    /* backward: add to grads instead of overwriting (see above) */
    bool accumulate[BLOCK_UNITS_MAX];
    /* the buffers and constants of the chain, of type dt_dtype_wide(type of the spec) */
    void *buffers;
    /* type of grads if the spec's type has 16 bits: F32 or that type; otherwise grads have the spec's
     * type */
    enum dt_dtype grad_type;
    /* The input. Set in PASS_FORWARD and PASS_EVAL, and in PASS_RECOMPUTE and backward for the last
     * block and for those with reads_x; null otherwise, since the block has kept what it needs.
     * x_branch is null if the previous block gives no branch. */
    const void *x, *x_branch;
    void *y, *y_branch; /* the output, in PASS_FORWARD and PASS_EVAL */
    /* gradient of the output (for a pair, of its sum); null for the last block */
    const void *dy;
    /* gradient of the input (for a pair, of its sum); null for the first block */
    void *dx;
    void *memory[PLACE_COUNT];      /* see pass_memory */
    const struct pass_peers *peers; /* null: this rank alone */
    /* like in struct dt_matmul_args; PASS_RECOMPUTE has the same value as its PASS_FORWARD, or
     * their bits would differ */
    int busy_sms;
    /* for backward of the last block: factor on each target's loss before gradients are taken
     * (1/valid for a local mean, 1 for sums) */
    double loss_scale;
    /* for the last block in evaluation: if set, it computes no loss, but writes the logits
     * (logits_count, V) of these rows of the B*T rows here. logits_rows is in host memory */
    void *logits;
    const int64_t *logits_rows;
    int64_t logits_count;
    /* for the last block in backward and evaluation: the losses of valid targets are ADDED here, in
     * fp64 and fixed order */
    double *loss_sum;
    /* for the last block in evaluation, where its targets are tokens: if set, it writes the loss of each
     * of the B*T rows here, 0 without a target */
    double *row_loss;
};

struct block;
struct block_ops {
    const char *name;
    /* Declares tensors (block_tensor), memory (block_memory), in and out. */
    int (*declare)(struct block *b, struct dt_error *err);
    void (*forward)(const struct block *b, const struct pass *p);
    void (*backward)(const struct block *b, const struct pass *p);
};

struct block {
    const struct block_ops *ops;
    struct chain *chain;
    const struct model_spec *spec; /* owned by the chain, valid as long as the chain */
    /* the model's data for the block: sizes, names; in the chain's arena */
    const void *args;
    int index; /* in the chain */
    int layer; /* 0..L-1; -1: the block is no layer */
    struct flow in, out;
    bool in_place; /* see above */
    /* PASS_RECOMPUTE and backward also read the input, so the previous block keeps its y (y_memory) */
    bool reads_x;
    bool takes_batch; /* reads fields of the batch, not only its sizes */
    int unit;         /* the unit of its tensors, if it names no other */
    int unit_count;
    int units[BLOCK_UNITS_MAX]; /* the units of its tensors */
    int tensor_count;
    int tensors[BLOCK_TENSORS_MAX];     /* indices into chain->tensors, in the block's own order */
    int unit_of[BLOCK_TENSORS_MAX];     /* index in `units`; -1: a buffer */
    int64_t offsets[BLOCK_TENSORS_MAX]; /* elements from the start of the unit */
    /* a later block also uses the tensor, so backward always adds */
    bool adds[BLOCK_TENSORS_MAX];
    int constant_count;
    int64_t constants[BLOCK_CONSTANTS_MAX]; /* offsets of its constants */
    enum recompute recompute;               /* the spec's choice for this layer */
    int memory_count;
    struct block_memory memory[BLOCK_MEMORY_MAX];
    /* size of all its memory in each place, for batches up to the spec's; a multiple of 64. If
     * PLACE_AGAIN is not 0, PASS_RECOMPUTE comes before backward */
    size_t bytes[PLACE_COUNT];
    /* number of the memory to which PASS_FORWARD must write y, because backward reads it there; -1:
     * any memory */
    int y_memory;
    /* the last block, if it names classes or gives numbers: number of the memory of a call that holds the
     * logits of a whole batch, (targets, classes), after PASS_EVAL; -1: there is none */
    int logits_memory;
    int64_t classes;
    bool numbers; /* the logits are numbers, `classes` of a sample, and so are the targets */
    bool several; /* the targets are several classes of a sample, each from 0 to 1 */
    /* which of two memories holds y, and which its gradient (chain_walk) */
    int slot;
};

#endif
