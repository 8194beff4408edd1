/* A block: one piece of the model with its parameters. It owns no memory; it is handed
 * everything for one call, so its weights can come and go.
 *
 * Between neighbours flows a tensor, or a pair: the residual stream and the branch that was not
 * added to it yet. The consumer of a pair adds the two in its first (fused) norm; the gradient of
 * a pair is one tensor, that of the sum. Each block declares what it takes and gives (`in`,
 * `out`), and the chain checks that neighbours fit. The first block takes the batch alone, so its
 * `in` has no dimensions; nor has the last one's `out`: that block computes the loss. In training
 * the last block does so in backward, chunk by chunk with its gradient, so it has no
 * PASS_FORWARD; its PASS_EVAL serves evaluation.
 *
 * Who writes which gradient. Backward visits the blocks from the last to the first. A tensor
 * used by two blocks (tied weights) is written by the later block first; the earlier one always
 * adds. So for each block, with accumulate false, every element of its tensors that no later
 * block has written is overwritten, and with accumulate true everything is added to. A strategy
 * may therefore clear a shared unit once and pass true for all its blocks, or pass false for all
 * of them at the first micro-step: the sums are the same. Gaps between tensors and the padding of
 * a unit are never written: whoever owns the memory keeps them zero.
 *
 * Which memory may overlap. A block that is in_place has read its input before it writes its
 * output, so y may be x, y_branch x_branch, and dx dy. Of all other blocks they lie apart. All
 * bits are the same whatever is recomputed (but for RECOMPUTE_NONE with a device's own GELU).
 * PASS_EVAL needs all of a block's memory too, but nothing of it is used later: one piece serves
 * all blocks.
 *
 * Letters: B batch, T tokens, C channels, V vocabulary, L layers, H heads. */
#ifndef DT_WORKER_MODEL_BLOCK_H
#define DT_WORKER_MODEL_BLOCK_H

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "worker/model/batch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK_TENSORS_MAX = 24, BLOCK_UNITS_MAX = 4, BLOCK_MEMORY_MAX = 24, TENSOR_DIMS_MAX = 4, FLOW_DIMS_MAX = 4 };

/* What of a layer's activations is made again in backward, least memory last: nothing; norms and
 * the activation; the first product of the MLP as well; all but the layer's input. job.h has
 * their names. */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_MLP, RECOMPUTE_BLOCK };

enum init_kind { INIT_ZERO, INIT_ONE, INIT_NORMAL };

/* What a tensor is to training. A buffer (a running statistic) is whole on every rank, its values
 * are in checkpoints, and no gradient is taken of it. */
enum role { ROLE_TRAINED, ROLE_FROZEN, ROLE_BUFFER };

struct tensor_rule { /* how a tensor begins and what becomes of it */
    enum role role;
    enum init_kind init;
    double init_std;
};

struct tensor {       /* one logical parameter or buffer */
    const char *name; /* Hugging Face name, e.g. "transformer.h.0.ln_1.weight"; owned by the
                       * chain's arena */
    int dims;
    int64_t shape[TENSOR_DIMS_MAX], numel;
    struct tensor_rule rule;
    bool decay;     /* weight decay applies (2 or more dimensions) */
    int unit;       /* which unit holds it; -1: a buffer */
    int64_t offset; /* elements from the start of the unit, or of the chain's buffers; a multiple
                     * of 64 */
};

struct flow {                     /* what goes from a block to the next one */
    int dims;                     /* 0: nothing */
    int64_t shape[FLOW_DIMS_MAX]; /* of a full batch */
    enum dt_dtype type;
    bool pair; /* out: forward writes a branch as well. in: a branch is taken where there is one */
};

enum life {
    LIFE_BACKWARD, /* from forward to backward */
    LIFE_CALL      /* of one call */
};
/* Where a block's memory lies: in a piece of its own; in one that all blocks share, from
 * PASS_RECOMPUTE to backward; in one that all share, for one call. */
enum memory_place { PLACE_KEPT, PLACE_AGAIN, PLACE_CALL, PLACE_COUNT };

struct block_memory {
    const char *name;
    enum memory_place place;
    size_t offset, size_bytes; /* from the start of its place; 0 bytes: not there */
};

struct model_spec { /* a model for one job */
    const char *name;
    const void *sizes;                   /* the values of its field table (struct model_ops); chain_open copies them */
    int64_t batch_size, sequence_length; /* B, T of a micro-batch; T is 1 where samples are no
                                          * sequences */
    bool own_memory;                     /* the device has memory of its own, and products
                                                 * there want aligned rows and many of them */
    enum recompute recompute;            /* of every recompute_every-th layer, the first
                                                 * one among them; of others RECOMPUTE_CHEAP */
    int64_t recompute_every;             /* 0: as 1 */
    enum dt_dtype type;                  /* of weights and activations: DT_F32, DT_BF16
                                                 * (DT_F64 on the twin device); statistics have
                                                 * dt_dtype_wide(type) */
};

enum pass_phase { PASS_FORWARD, PASS_RECOMPUTE, PASS_BACKWARD, PASS_EVAL };

struct pass { /* everything for one call of one block */
    enum pass_phase phase;
    struct dt_stream *stream;
    const struct dt_kernels *kernels;
    const struct batch *batch;
    const void *weights[BLOCK_UNITS_MAX]; /* the flat weights of each of the block's units */
    void *grads[BLOCK_UNITS_MAX];         /* backward: their flat gradients; null: frozen */
    bool accumulate[BLOCK_UNITS_MAX];     /* backward: adds into grads, else overwrites (see above) */
    void *buffers;                        /* the chain's, of type dt_dtype_wide(spec's) */
    enum dt_dtype grad_type;              /* of grads where the spec's type is BF16: F32 or BF16;
                                           * otherwise the spec's counts */
    /* The input in PASS_FORWARD and PASS_EVAL, and in backward that of the last block and of those
     * that ask for it (reads_x); otherwise null: the block has kept what it needs of it. x_branch is null where the block before gives no
     * branch. */
    const void *x, *x_branch;
    void *y, *y_branch;        /* the output, in PASS_FORWARD and PASS_EVAL */
    const void *dy;            /* gradient of the output, of a pair's sum; null for the last block */
    void *dx;                  /* gradient of the input, of a pair's sum; null for the first block */
    void *memory[PLACE_COUNT]; /* see pass_memory */
    int busy_sms;              /* as in struct dt_matmul_args; PASS_RECOMPUTE has its
                                * PASS_FORWARD's, or their bits would differ */
    double loss_scale;         /* backward of the last block: the factor on each target's loss
                                * before gradients (1/valid for a local mean, 1 for sums) */
    void *logits;              /* last block, evaluation: where given, no loss; instead the
                                * logits (V) of row logits_row of the (B*T) are written here */
    int64_t logits_row;
    double *loss_sum; /* last block, backward and eval: sum of the losses of valid targets is
                       * ADDED here, in fp64, in fixed order */
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
    const struct model_spec *spec; /* the chain's; lives as long */
    const void *args;              /* what the model says to its block: sizes, names; in the
                                    * chain's arena */
    int index;                     /* in the chain; also which layer, by models */
    int layer;                     /* 0..L-1; -1: not one of the layers */
    struct flow in, out;
    bool in_place;    /* see above */
    bool reads_x;     /* backward reads the input as well, so the block before keeps its
                                    * y (y_memory) */
    bool takes_batch; /* reads fields of the batch, not its sizes alone */
    int unit;         /* where its tensors go unless it says otherwise */
    int unit_count;
    int units[BLOCK_UNITS_MAX]; /* of its tensors */
    int tensor_count;
    int tensors[BLOCK_TENSORS_MAX];     /* indices into chain->tensors, in the block's own order */
    int unit_of[BLOCK_TENSORS_MAX];     /* place in `units`; -1: a buffer */
    int64_t offsets[BLOCK_TENSORS_MAX]; /* elements from the unit's start */
    bool adds[BLOCK_TENSORS_MAX];       /* a later block uses the tensor as well: backward always
                                         * adds */
    enum recompute recompute;           /* as the spec has it for this layer */
    int memory_count;
    struct block_memory memory[BLOCK_MEMORY_MAX];
    size_t bytes[PLACE_COUNT]; /* of all its memory in a place, for batches up to the spec's; a
                                * multiple of 64. Of PLACE_AGAIN not 0: backward is preceded by
                                * PASS_RECOMPUTE */
    int y_memory;              /* number of the memory where PASS_FORWARD is to write y, as
                                * backward reads it there; -1: anywhere */
    int slot;                  /* which of two places y and its gradient lie in (chain_walk) */
};

#endif
