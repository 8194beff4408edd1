/* LayerNorm as a part of blocks: its tensors, forward and backward.
 *
 * Letters: C channels; rows are the caller's. */
#ifndef DT_WORKER_MODEL_BLOCKS_LAYERNORM_H
#define DT_WORKER_MODEL_BLOCKS_LAYERNORM_H

#include "worker/model/blocks/naming.h"

struct layernorm {
    int64_t channels;
    double epsilon;
    int weight, bias; /* numbers of tensors in the block; bias -1: there is none */
};

struct normed {        /* what a norm writes */
    void *sum;         /* (rows, C): residual + branch; null: not wanted */
    void *y;           /* (rows, C) */
    void *mean, *rstd; /* (rows), of dt_dtype_wide */
};

/* NAME.weight and, if biased, NAME.bias. */
struct layernorm layernorm_name(struct naming *n, const char *name, int64_t channels, bool biased, double epsilon);
/* to->y = norm(residual + branch); branch may be null. */
void layernorm_forward(const struct block *b, const struct pass *p, const struct layernorm *l, int64_t rows,
                       const void *residual, const void *branch, const struct normed *to);
/* dx = the gradient dy through the norm of `from->sum` [+ dresidual]; dx may be dresidual. Weights
 * get no gradient where their unit is frozen. */
void layernorm_backward(const struct block *b, const struct pass *p, const struct layernorm *l, int64_t rows,
                        const struct normed *from, void *dx, const void *dy, const void *dresidual);

#endif
