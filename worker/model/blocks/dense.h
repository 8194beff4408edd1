/* Linear maps as PyTorch has them, y = x W^T + b with W (out, in), and the blocks made of them. */
#ifndef DT_WORKER_MODEL_BLOCKS_DENSE_H
#define DT_WORKER_MODEL_BLOCKS_DENSE_H

#include "worker/model/chain.h"

struct dense_args {
    const char *name; /* of its tensors: NAME.weight, NAME.bias; a literal */
    int64_t in, out;
    bool frozen;
    double init_std;
    double momentum; /* block_pixels: share of the newest batch in the running mean */
};

extern const struct block_ops block_pixels;     /* pixels less their mean, map, ReLU: the first block */
extern const struct block_ops block_dense;      /* map, ReLU */
extern const struct block_ops block_classifier; /* map, cross-entropy: the last block */

enum { DENSE_W, DENSE_B };

/* Declares W and b. */
void dense_tensors(struct block *b);
/* A flow (B, width) of a full batch. */
struct flow dense_flow(const struct block *b, int64_t width);
/* y (B, out) = x (B, in) W^T + bias, which may be null. */
void dense_map(const struct block *b, const struct pass *p, void *y, const void *x, const void *bias);
/* dW = dy^T x (added to where the pass adds), unless W is frozen. */
void dense_weight_backward(const struct block *b, const struct pass *p, const void *dy, const void *x);
/* dx (B, in) = dy (B, out) W. */
void dense_input_backward(const struct block *b, const struct pass *p, void *dx, const void *dy);
/* dz = dy where y > 0, the gradient before a ReLU, and from it db. dz may be dy. */
void dense_relu_backward(const struct block *b, const struct pass *p, void *dz, const void *dy, const void *y);

#endif
