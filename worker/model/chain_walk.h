/* THE walk over a chain, for everything that runs one: training, evaluation, generation, listing
 * matrix products, tests. Hooks bring the weights and do what surrounds a call, so the walk does
 * not know the strategy.
 *
 * There are two slots. y of a block is in one of them (or where the block keeps it), and its
 * gradient in the gradient slot of the same number. A block that is not in_place writes to the slot
 * that it does not read. */
#ifndef DT_WORKER_MODEL_CHAIN_WALK_H
#define DT_WORKER_MODEL_CHAIN_WALK_H

#include "worker/model/chain.h"

struct chain_walk;
struct walk_hooks {
    /* Called first, in PASS_FORWARD, PASS_EVAL and PASS_RECOMPUTE, which stands for PASS_BACKWARD, too. It may change
     * in `kept` where the memory of this block and of the one before it is; null: that stays as it is. */
    void (*keep)(const struct chain_walk *w, const struct block *b, enum pass_phase phase);
    /* Called before the block runs in the pass's phase. Sets weights, and in PASS_BACKWARD grads
     * and accumulate. It may set other members, too (batch, busy_sms). PASS_RECOMPUTE comes before
     * each PASS_BACKWARD, even if the block recomputes nothing. False: the walk ends here. */
    bool (*enter)(const struct chain_walk *w, const struct block *b, struct pass *p);
    /* Runs the block; null: chain_call. */
    void (*run)(const struct chain_walk *w, const struct block *b, const struct pass *p);
    /* Called after PASS_FORWARD, PASS_BACKWARD and PASS_EVAL; may be null. */
    void (*leave)(const struct chain_walk *w, const struct block *b, const struct pass *p);
};

struct chain_walk {
    const struct chain *chain;
    struct dt_stream *stream;
    const struct dt_kernels *kernels;
    enum dt_dtype grad_type; /* like in struct pass */
    /* memory, with the sizes that the chain gives */
    void *y[2], *y_branch[2], *gradient[2]; /* of slot_bytes, branch_bytes and slot_bytes */
    /* one per block, of bytes[PLACE_KEPT]; in evaluation they may all be the same */
    void *const *kept;
    void *again, *scratch; /* of chain_most bytes for PLACE_AGAIN and PLACE_CALL */
    void *const *caches;   /* one per block, of bytes[PLACE_CACHE]; null: the spec has no cache_length */
    void *buffers;
    const struct pass_peers *peers; /* like in struct pass */
    const struct walk_hooks *hooks;
    void *context; /* for the hooks */
};

struct walk_loss { /* members of struct pass for the last block */
    double scale, *sum;
    void *logits;
    const int64_t *logits_rows;
    int64_t logits_count;
    double *row_loss;
};

/* Runs PASS_FORWARD, in which the last block has no work, or PASS_EVAL. */
void chain_forward(const struct chain_walk *w, enum pass_phase phase, const struct batch *batch,
                   const struct walk_loss *loss);
/* Call it after PASS_FORWARD of the same batch. Computes the loss and all gradients. */
void chain_backward(const struct chain_walk *w, const struct batch *batch, const struct walk_loss *loss);
/* Calls the block's function for the pass's phase. */
void chain_call(const struct block *b, const struct pass *p);
/* The size of the largest block's memory in a place. */
size_t chain_most(const struct chain *c, enum memory_place place);

#endif
