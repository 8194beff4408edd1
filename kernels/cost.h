/* What a call of a kernel costs at least, by its arguments alone: the bytes that must move in
 * and out of memory, each tensor once, and the operations of products and attention. Where
 * memory decides, operations are not counted (0). What only the data know (how many rows of a
 * table the ids name) counts with the most that it can be. Pure. */
#ifndef DT_KERNELS_COST_H
#define DT_KERNELS_COST_H

#include "kernels/kernels.h"

struct dt_cost {
    double bytes, flops;
};

/* The rows of struct dt_kernels that take a stream and a struct of their own name. The other
 * ones: matmul_epilogue, which costs what dt_cost_matmul says, and adamw_many. */
#define DT_COST_ROWS(ROW)                                                                                              \
    ROW(fill)                                                                                                          \
    ROW(cast)                                                                                                          \
    ROW(scale)                                                                                                         \
    ROW(add)                                                                                                           \
    ROW(sum_slices)                                                                                                    \
    ROW(matmul)                                                                                                        \
    ROW(column_sum)                                                                                                    \
    ROW(layernorm)                                                                                                     \
    ROW(layernorm_backward)                                                                                            \
    ROW(activation)                                                                                                    \
    ROW(activation_backward)                                                                                           \
    ROW(attention)                                                                                                     \
    ROW(attention_backward)                                                                                            \
    ROW(embedding)                                                                                                     \
    ROW(embedding_backward)                                                                                            \
    ROW(position_backward)                                                                                             \
    ROW(cross_entropy)                                                                                                 \
    ROW(adamw)                                                                                                         \
    ROW(sgd)                                                                                                           \
    ROW(norm_sum)                                                                                                      \
    ROW(norm_finish)                                                                                                   \
    ROW(exact_sum)

#define DT_COST_OF(kernel) struct dt_cost dt_cost_##kernel(const struct dt_##kernel##_args *a);
DT_COST_ROWS(DT_COST_OF)
#undef DT_COST_OF
struct dt_cost dt_cost_adamw_many(const struct dt_adamw_args *each, int count);

#endif
