/* Linear maps as in PyTorch, y = x W^T + b with W (out, in), and the blocks made of them. */
#ifndef DT_WORKER_MODEL_BLOCKS_DENSE_H
#define DT_WORKER_MODEL_BLOCKS_DENSE_H

#include "worker/model/blocks/linear.h"

struct dense_args {
    const char *name; /* name of its tensors, NAME.weight and NAME.bias; a literal */
    int64_t in, out;
    bool frozen;
    double init_std;
    double momentum; /* block_pixels: weight of the newest batch in the running mean */
};

/* Data of block_class_head. */
struct class_head {
    const char *norm; /* null: none */
    bool norm_bias;
    double norm_epsilon;
    const char *name;
    int64_t channels, classes;
    double dropout;    /* of what the map reads */
    bool unbiased;     /* the map has no bias */
    bool per_position; /* each token has a class, otherwise each sample */
    /* labels are numbers (B, classes) instead of classes; their loss */
    bool numbers;
    enum dt_loss loss;
    struct linear_rule rule;
};

/* the first block: subtracts the mean of the pixels, then a map and a ReLU */
extern const struct block_ops block_pixels;
extern const struct block_ops block_dense;      /* a map and a ReLU */
extern const struct block_ops block_class_head; /* the last block: a norm, a map and the loss */

enum { DENSE_W, DENSE_B };

/* Declares W and b. */
void dense_tensors(struct block *b);
/* A flow (B, width) for a full batch. */
struct flow dense_flow(const struct block *b, int64_t width);
/* y (B, out) = x (B, in) W^T + bias, which may be null. */
void dense_map(const struct block *b, const struct pass *p, void *y, const void *x, const void *bias);
/* dW = dy^T x, added if the pass adds; nothing if W is frozen. */
void dense_weight_backward(const struct block *b, const struct pass *p, const void *dy, const void *x);
/* dx (B, in) = dy (B, out) W. */
void dense_input_backward(const struct block *b, const struct pass *p, void *dx, const void *dy);
/* dz = dy where y > 0, the gradient before a ReLU; also computes db from it. dz may be dy. */
void dense_relu_backward(const struct block *b, const struct pass *p, void *dz, const void *dy, const void *y);

#endif
