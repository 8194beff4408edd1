/* The blocks there are, and the sizes that models give them. */
#ifndef DT_WORKER_MODEL_BLOCKS_BLOCKS_H
#define DT_WORKER_MODEL_BLOCKS_BLOCKS_H

#include "worker/model/chain.h"

/* What the blocks of a GPT-2 are told (b->args). */
struct gpt_shape {
    int64_t layers, heads, channels, positions, vocabulary, inner; /* L, H, C, P, V, 4C */
    double norm_epsilon, init_std;
};

extern const struct block_ops block_embed;     /* token and position embedding */
extern const struct block_ops block_gpt_layer; /* pre-norm attention and MLP, GPT-2's names and
                                                * layouts */
extern const struct block_ops block_lm_head;   /* final norm, tied head, loss */

/* Rows of the activations of a pass, B * T, and of those of a full batch. */
static inline int64_t row_count(const struct pass *p)
{
    return p->batch->samples * p->batch->length;
}
static inline int64_t most_rows(const struct block *b)
{
    return b->spec->batch_size * b->spec->sequence_length;
}

/* The flow (B, T, C) of a full batch. */
static inline struct flow stream_flow(const struct block *b, int64_t channels, bool pair)
{
    return (struct flow){.dims = 3,
                         .shape = {b->spec->batch_size, b->spec->sequence_length, channels},
                         .type = b->spec->type,
                         .pair = pair};
}

#endif
