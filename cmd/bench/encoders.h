/* The rows of `bench kernels` that encoders have, and heads on a whole sequence. */
#ifndef DT_CMD_BENCH_ENCODERS_H
#define DT_CMD_BENCH_ENCODERS_H

#include "cmd/bench/buffers.h"

/* Each makes its buffers, queues one call when `go`, and gives the bytes that one must move. */
/* With a table of types and a scale. */
double bench_embedding_tables(struct bench *b, bool go);
/* The gradient of the table of types: thousands of rows add to each of two. */
double bench_embedding_backward_types(struct bench *b, bool go);
double bench_dropout(struct bench *b, bool go);
double bench_masked_mean(struct bench *b, bool go);
double bench_masked_mean_backward(struct bench *b, bool go);
/* Every second row. */
double bench_take_rows(struct bench *b, bool go);
double bench_take_rows_backward(struct bench *b, bool go);
/* Several labels of each sample. */
double bench_label_loss(struct bench *b, bool go);

#endif
