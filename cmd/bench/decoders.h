/* The rows of `bench kernels` that decoders have and memory decides. */
#ifndef DT_CMD_BENCH_DECODERS_H
#define DT_CMD_BENCH_DECODERS_H

#include "cmd/bench/buffers.h"

/* Each makes its buffers, queues one call when `go`, and gives the bytes that one must move. */
double bench_rmsnorm(struct bench *b, bool go);
double bench_rmsnorm_backward(struct bench *b, bool go);
/* Norms of heads of 64 values (--head), within rows of twice as many columns. */
double bench_rmsnorm_heads(struct bench *b, bool go);
double bench_rmsnorm_heads_backward(struct bench *b, bool go);
double bench_gelu_erf(struct bench *b, bool go);
double bench_silu(struct bench *b, bool go);
double bench_gate(struct bench *b, bool go);
double bench_gate_backward(struct bench *b, bool go);
double bench_rope(struct bench *b, bool go);

#endif
