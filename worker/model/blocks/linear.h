/* Linear maps as in PyTorch: y = x W^T + b, with W (out, in). Several maps of one input stand side by
 * side in the columns of y. Where their tensors lie one behind the other, they are one product.
 *
 * Letters: R rows, B * T if the map does not say otherwise. */
#ifndef DT_WORKER_MODEL_BLOCKS_LINEAR_H
#define DT_WORKER_MODEL_BLOCKS_LINEAR_H

#include "worker/model/blocks/naming.h"

enum { LINEAR_PARTS_MAX = 3, LINEAR_NONE = -1 };

struct linear {
    int count; /* of maps */
    int64_t in;
    int64_t out[LINEAR_PARTS_MAX]; /* columns of each map */
    int weight[LINEAR_PARTS_MAX];  /* numbers of tensors in the block */
    int bias[LINEAR_PARTS_MAX];    /* LINEAR_NONE: the map has none */
    bool of_samples;               /* rows are samples, so R = B */
};

struct linear_rule { /* of a map's tensors; a bias begins as zeros if nothing else is said */
    struct tensor_rule weight, bias;
};

/* The maps NAMES[i].weight (out[i], in), one behind the other, then NAMES[i].bias if biased. A name that
 * ends with "_" has no point behind it. */
struct linear linear_name(struct naming *n, const char *const *names, const int64_t *out, int count, int64_t in,
                          bool biased, const struct linear_rule *rule);

/* y (R, sum of out) = the maps of x (R, in). ldy: elements between rows of y; 0: tight. */
void linear_forward(const struct block *b, const struct pass *p, const struct linear *l, void *y, int64_t ldy,
                    const void *x);
/* dW = dy^T x and db = the sum of the rows of dy (R, sum of out), tight; added where the pass adds,
 * and left out where the unit is frozen. sums: (sum of out) values of pass_grad_type that the call
 * may use; null if no map has a bias. */
void linear_weight_backward(const struct block *b, const struct pass *p, const struct linear *l, const void *dy,
                            const void *x, void *sums);
/* dx (R, in) = dy W; with _add, dx + dy W, rounded once. */
void linear_input_backward(const struct block *b, const struct pass *p, const struct linear *l, void *dx,
                           const void *dy);
void linear_input_backward_add(const struct block *b, const struct pass *p, const struct linear *l, void *dx,
                               const void *dy);
/* Columns of y. */
int64_t linear_columns(const struct linear *l);

#endif
