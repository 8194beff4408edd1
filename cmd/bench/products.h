/* The rows of `bench kernels` that arithmetic decides. */
#ifndef DT_CMD_BENCH_PRODUCTS_H
#define DT_CMD_BENCH_PRODUCTS_H

#include "cmd/bench/buffers.h"

/* As at the start of a run: what computes a product, and one with its epilogue, is measured if
 * it was not yet. */
void bench_choose(struct bench *b, const struct dt_matmul_args *a);
/* Each makes its buffers, queues one call when `go`, and gives the operations of one. Without
 * `go`, what computes a product is chosen first, where the device chooses by measuring. */
double bench_matmul(struct bench *b, bool go);
double bench_matmul_gelu(struct bench *b, bool go);
double bench_matmul_dx(struct bench *b, bool go);
double bench_matmul_dx_gelu(struct bench *b, bool go);
double bench_matmul_dw(struct bench *b, bool go);
double bench_matmul_dw_bias(struct bench *b, bool go);
double bench_attention(struct bench *b, bool go);
double bench_attention_backward(struct bench *b, bool go);

#endif
