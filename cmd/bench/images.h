/* Benchmarks of the kernels of images. */
#ifndef DT_CMD_BENCH_IMAGES_H
#define DT_CMD_BENCH_IMAGES_H

#include "cmd/bench/buffers.h"

/* Each makes its buffers, queues one call when `go`, and gives the bytes that one must move. */
double bench_unfold(struct bench *b, bool go);
double bench_fold(struct bench *b, bool go);
/* Operations: convolutions of 3 x 3 with as many outputs as channels. */
double bench_convolution(struct bench *b, bool go);
double bench_convolution_input(struct bench *b, bool go);
double bench_convolution_weights(struct bench *b, bool go);
double bench_max_pool(struct bench *b, bool go);
double bench_max_pool_backward(struct bench *b, bool go);
double bench_batch_moments(struct bench *b, bool go);
double bench_batch_merge(struct bench *b, bool go);
double bench_batch_norm(struct bench *b, bool go);
double bench_batch_norm_sums(struct bench *b, bool go);
double bench_batch_norm_backward(struct bench *b, bool go);

#endif
