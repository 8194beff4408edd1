/* THE walk over a chain, for whoever runs one: training, evaluation, generation, the collection of
 * matrix products, tests. Where weights come from and what happens around a call is up to hooks,
 * so the walk knows no strategy.
 *
 * y of a block lies in one of two slots (or where the block keeps it), its gradient in a slot of
 * the same number: a block that is not in_place writes to the slot that it does not read. */
#ifndef DT_WORKER_MODEL_CHAIN_WALK_H
#define DT_WORKER_MODEL_CHAIN_WALK_H

#include "worker/model/chain.h"

struct chain_walk;
struct walk_hooks {
    /* Before the block runs in the pass's phase: sets weights, and in PASS_BACKWARD grads and
     * accumulate; may set whatever else is its own (batch, busy_sms). PASS_RECOMPUTE comes before
     * each PASS_BACKWARD, whether or not the block has anything to make again. False: the walk
     * ends here. */
    bool (*enter)(const struct chain_walk *w, const struct block *b, struct pass *p);
    /* Runs the block; null: chain_call. */
    void (*run)(const struct chain_walk *w, const struct block *b, const struct pass *p);
    /* After PASS_FORWARD, PASS_BACKWARD, PASS_EVAL; may be null. */
    void (*leave)(const struct chain_walk *w, const struct block *b, const struct pass *p);
};

struct chain_walk {
    const struct chain *chain;
    struct dt_stream *stream;
    const struct dt_kernels *kernels;
    enum dt_dtype grad_type; /* as in struct pass */
    /* memory, as the chain's sizes say it */
    void *y[2], *y_branch[2], *gradient[2]; /* slot_bytes, branch_bytes, slot_bytes */
    void *const *kept;                      /* per block: bytes[PLACE_KEPT]; of an evaluation they may
                                             * all be one */
    void *again, *scratch;                  /* the most of all blocks */
    void *buffers;
    const struct walk_hooks *hooks;
    void *context; /* the hooks' */
};

struct walk_loss { /* what the last block is told */
    double scale, *sum;
    void *logits;
    int64_t logits_row;
};

/* PASS_FORWARD, in which the last block has nothing to do, or PASS_EVAL. */
void chain_forward(const struct chain_walk *w, enum pass_phase phase, const struct batch *batch,
                   const struct walk_loss *loss);
/* After PASS_FORWARD of the same batch: the loss, and all gradients. */
void chain_backward(const struct chain_walk *w, const struct batch *batch, const struct walk_loss *loss);
/* Puts in what the pass asks of the block. */
void chain_call(const struct block *b, const struct pass *p);
/* The most that a block takes in a place. */
size_t chain_most(const struct chain *c, enum memory_place place);

#endif
