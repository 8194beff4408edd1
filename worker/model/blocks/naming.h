/* A walk over a block's tensors: the same one declares them, and later finds their numbers. */
#ifndef DT_WORKER_MODEL_BLOCKS_NAMING_H
#define DT_WORKER_MODEL_BLOCKS_NAMING_H

#include "worker/model/chain.h"

#include <stdio.h>

struct naming {
    struct block *block; /* null: tensors are only counted */
    char prefix[64];     /* of all names, "bert.encoder.layer.3." */
    int next;            /* number of the next tensor */
};

/* The number of the next tensor, PREFIX NAME END; declares it if the walk declares. */
static inline int name_tensor(struct naming *n, const char *name, const char *end, const int64_t *shape, int dims,
                              const struct tensor_rule *rule)
{
    if (n->block != NULL) {
        char whole[192];
        (void)snprintf(whole, sizeof whole, "%s%s%s", n->prefix, name, end);
        (void)block_tensor(n->block, whole, shape, dims, rule);
    }
    return n->next++;
}

#endif
