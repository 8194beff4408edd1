/* The blocks there are, and what they share: cutting one piece of memory into parts. */
#ifndef DT_WORKER_MODEL_BLOCKS_BLOCKS_H
#define DT_WORKER_MODEL_BLOCKS_BLOCKS_H

#include "worker/model/chain.h"

extern const struct block_ops block_embed;     /* token and position embedding */
extern const struct block_ops block_gpt_layer; /* pre-norm attention and MLP, GPT-2's names and
                                                * layouts */
extern const struct block_ops block_lm_head;   /* final norm, tied head, loss */

/* Hands out parts of a piece of memory, each a multiple of 64 bytes. With base null it only adds
 * up: declare and the passes walk the same list, so sizes and places cannot differ. */
struct cutter {
    char *base;
    size_t used;
};

/* The type of a pass's gradients. */
static inline enum dt_dtype grad_type(const struct block *b, const struct pass *p)
{
    return b->spec->type == DT_BF16 ? p->grad_type : b->spec->type;
}

static inline void *cut(struct cutter *c, int64_t count, size_t element_bytes)
{
    size_t at = c->used;
    c->used += ((size_t)count * element_bytes + 63) / 64 * 64;
    return c->base != NULL ? c->base + at : NULL;
}

#endif
