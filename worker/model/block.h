/* A block: one piece of the model with its parameters. It owns no memory; it is handed
 * everything for one call, so its weights can come and go.
 *
 * Between blocks flows a pair: the residual stream and the previous block's branch output that
 * was not added yet. The consumer adds the two in its first (fused) norm. The gradient of a pair
 * is one tensor, that of the sum. The pair of the first block's input is absent; the last block
 * computes the loss: in training it does so in backward, chunk by chunk with its gradient, and
 * its PASS_EVAL serves evaluation.
 *
 * Who writes which gradient. Backward visits the blocks from the last to the first. A tensor
 * used by two blocks (tied weights) is written by the later block first; the earlier one always
 * adds (`adds`). So for each block, with accumulate false, every element of its tensors that no
 * later block has written is overwritten, and with accumulate true everything is added to. A
 * strategy may therefore clear a shared unit once and pass true for all its blocks, or pass
 * false for all of them at the first micro-step: the sums are the same. Gaps between tensors and
 * the padding of a unit are never written: whoever owns the memory keeps them zero.
 *
 * What a pass may overlay. y_residual may be x_residual and y_branch may be x_branch (both dead
 * once the pair was added into `kept`); dx may be dy. All bits are the same whatever is
 * recomputed (but for RECOMPUTE_NONE with a device's own GELU). PASS_EVAL needs kept, saved,
 * again and scratch too, but nothing of them is used later: one set serves all blocks.
 *
 * Letters: B batch, T tokens, C channels (n_embd), V vocabulary, L layers, H heads. */
#ifndef DT_WORKER_MODEL_BLOCK_H
#define DT_WORKER_MODEL_BLOCK_H

#include "base/dtype.h"
#include "base/error.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK_TENSORS_MAX = 24, TENSOR_DIMS_MAX = 4 };

/* What of a layer's activations is made again in backward, least memory last: nothing; norms and
 * the activation; the first product of the MLP as well; all but the layer's input. job.h has
 * their names. */
enum recompute { RECOMPUTE_NONE, RECOMPUTE_CHEAP, RECOMPUTE_MLP, RECOMPUTE_BLOCK };

enum init_kind { INIT_ZERO, INIT_ONE, INIT_NORMAL };

/* one logical parameter */
struct tensor {
    const char *name; /* Hugging Face name, e.g. "transformer.h.0.ln_1.weight"; owned by the
                       * chain's arena */
    int dims;
    int64_t shape[TENSOR_DIMS_MAX], numel;
    enum init_kind init;
    double init_std;
    bool decay;     /* weight decay applies (2 or more dimensions) */
    int unit;       /* which unit holds it */
    int64_t offset; /* elements from the start of the unit; a multiple of 64 */
};

/* one micro-batch of one rank, in device memory */
struct batch {
    const int32_t *ids;    /* (B, T) */
    const int32_t *labels; /* (B, T), already shifted: position t is judged against labels[t];
                            * -100: ignored */
    int64_t batch_size, sequence_length;
    int64_t valid_count; /* labels that are not -100 */
};

struct model_spec { /* sizes of a model for one job */
    const char *name;
    int64_t layers, heads, channels, positions, vocabulary, inner; /* L, H, C, P, V, 4C */
    double norm_epsilon, init_std;
    double attn_pdrop, embd_pdrop, resid_pdrop; /* only for config.json: dropout is not there yet */
    int64_t batch_size, sequence_length;        /* B, T of a micro-batch */
    bool own_memory;                            /* the device has memory of its own, and products
                                                 * there want aligned rows and many of them */
    enum recompute recompute;                   /* of every recompute_every-th layer, the first
                                                 * one among them; of others RECOMPUTE_CHEAP */
    int64_t recompute_every;                    /* 0: as 1 */
    enum dt_dtype type;                         /* of weights and activations: DT_F32, DT_BF16
                                                 * (DT_F64 on the twin device); statistics have
                                                 * dt_dtype_wide(type) */
};

enum pass_phase { PASS_FORWARD, PASS_RECOMPUTE, PASS_BACKWARD, PASS_EVAL };

struct pass { /* everything for one call of one block */
    enum pass_phase phase;
    struct dt_stream *stream;
    const struct dt_kernels *kernels;
    const struct batch *batch;
    const void *weights;     /* the unit's flat weights; tensor at weights + offset elements */
    void *grads;             /* backward: the unit's flat gradients */
    enum dt_dtype grad_type; /* of grads where the spec's type is BF16: F32 or BF16; otherwise
                              * the spec's counts */
    bool accumulate;         /* backward: adds into grads, else overwrites (see above) */
    /* (B,T,C) input pair in PASS_FORWARD and PASS_EVAL; branch is null when the block before has
     * no branch_out. Null in PASS_RECOMPUTE and PASS_BACKWARD: the block starts from `kept`.
     * Only the last block may be given the pair in backward; then its PASS_FORWARD may be left
     * out. */
    const void *x_residual, *x_branch;
    void *y_residual, *y_branch; /* (B,T,C) output pair; forward and evaluation. PASS_RECOMPUTE
                                  * does not touch them (may be null) */
    const void *dy;              /* (B,T,C) gradient of the output pair's sum; null for the last
                                  * block */
    void *dx;                    /* (B,T,C) gradient of the input pair's sum; null for the first
                                  * block. May alias dy */
    void *kept;                  /* kept_bytes, from forward to backward, also when recomputing */
    void *saved;                 /* saved_bytes, from forward to backward */
    void *again;                 /* again_bytes: forward leaves nothing there that counts; from
                                  * PASS_RECOMPUTE to backward */
    void *scratch;               /* scratch_bytes, during this call only */
    int busy_sms;                /* as in struct dt_matmul_args; PASS_RECOMPUTE has its
                                  * PASS_FORWARD's, or their bits would differ */
    double loss_scale;           /* backward of the last block: the factor on each target's loss
                                  * before gradients (1/valid for a local mean, 1 for sums) */
    void *logits;                /* last block, evaluation: where given, no loss; instead the
                                  * logits (V) of row logits_row of the (B*T) are written here */
    int64_t logits_row;
    double *loss_sum; /* last block, backward and eval: sum of the losses of valid targets is
                       * ADDED here, in fp64, in fixed order */
};

struct block;
struct block_ops {
    const char *name;
    /* Names the tensors through block_tensor(), sets branch_out, residual_saved and the byte
     * sizes. */
    int (*declare)(struct block *b, const struct model_spec *m, struct dt_error *err);
    void (*forward)(const struct block *b, const struct pass *p);
    void (*backward)(const struct block *b, const struct pass *p);
};

struct block {
    const struct block_ops *ops;
    struct chain *chain;
    const struct model_spec *spec; /* the chain's; lives as long */
    int index;                     /* in the chain; also which layer, by models */
    int layer;                     /* gpt_layer: 0..L-1 */
    int unit;                      /* all tensors of a block are in one unit */
    int tensor_count;
    int tensors[BLOCK_TENSORS_MAX];                /* indices into chain->tensors, in the block's
                                                    * own order */
    int64_t offsets[BLOCK_TENSORS_MAX];            /* elements from the unit's start, same order */
    bool adds[BLOCK_TENSORS_MAX];                  /* a later block uses the tensor as well:
                                                    * backward always adds */
    bool branch_out;                               /* forward writes y_branch; otherwise the next
                                                    * block's x_branch is null */
    enum recompute recompute;                      /* as the spec has it for this layer */
    bool residual_saved;                           /* y_residual of PASS_FORWARD has to be
                                                    * `saved`: backward reads it there */
    size_t kept_bytes, saved_bytes, scratch_bytes; /* for batches up to the spec's B * T;
                                                    * multiples of 64, or 0 */
    size_t again_bytes;                            /* the same; not 0: backward is preceded by
                                                    * PASS_RECOMPUTE */
};

#endif
