#include "cmd/bench/encoders.h"

#include "kernels/cost.h"

enum { TYPES = 2 };

/* Calls the kernel when `go`; the bytes that it must move. */
#define CALL(kernel, b, go, args) ((go) ? (b)->k->kernel((b)->s, args) : (void)0, dt_cost_##kernel(args).bytes)

double bench_embedding_tables(struct bench *b, bool go)
{
    struct dt_embedding_args a = {.out = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                  .tokens = bench_buffer(b, 1, b->vocabulary * b->cols, b->type),
                                  .positions = bench_buffer(b, 2, BENCH_POSITIONS * b->cols, b->type),
                                  .types = bench_buffer(b, 4, TYPES * b->cols, b->type),
                                  .ids = bench_ids(b, 3, b->rows, b->vocabulary),
                                  .type_ids = bench_buffer(b, 5, b->rows, DT_I32),
                                  .row_count = b->rows,
                                  .position_count = BENCH_POSITIONS,
                                  .col_count = b->cols,
                                  .scale = 2,
                                  .type = b->type};
    return CALL(embedding, b, go, &a);
}

double bench_embedding_backward_types(struct bench *b, bool go)
{
    struct dt_embedding_backward_args a = {.dtokens = bench_buffer(b, 0, TYPES * b->cols, DT_F32),
                                           .dy = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                           .ids = bench_ids(b, 2, b->rows, TYPES),
                                           .row_count = b->rows,
                                           .vocab_count = TYPES,
                                           .col_count = b->cols,
                                           .type = b->type,
                                           .grad_type = DT_F32};
    return CALL(embedding_backward, b, go, &a);
}

/* Rows as sequences of at most BENCH_POSITIONS. */
static int64_t positions_of(const struct bench *b)
{
    return b->rows < BENCH_POSITIONS ? b->rows : BENCH_POSITIONS;
}

double bench_dropout(struct bench *b, bool go)
{
    int64_t T = positions_of(b);
    struct dt_dropout_args a = {.x = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                .in = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                .samples = bench_buffer(b, 2, (b->rows + T - 1) / T, DT_I64),
                                .row_count = b->rows,
                                .rows_per_sample = T,
                                .col_count = b->cols,
                                .rate = 0.1,
                                .type = b->type};
    return CALL(dropout, b, go, &a);
}

double bench_masked_mean(struct bench *b, bool go)
{
    int64_t T = positions_of(b), batch = b->rows / T;
    struct dt_masked_mean_args a = {.out = bench_buffer(b, 0, batch * b->cols, b->type),
                                    .x = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                    .batch = batch,
                                    .positions = T,
                                    .col_count = b->cols,
                                    .type = b->type};
    return CALL(masked_mean, b, go, &a);
}

double bench_masked_mean_backward(struct bench *b, bool go)
{
    int64_t T = positions_of(b), batch = b->rows / T;
    struct dt_masked_mean_backward_args a = {.dx = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                             .dout = bench_buffer(b, 1, batch * b->cols, b->type),
                                             .batch = batch,
                                             .positions = T,
                                             .col_count = b->cols,
                                             .type = b->type};
    return CALL(masked_mean_backward, b, go, &a);
}

double bench_take_rows(struct bench *b, bool go)
{
    struct dt_take_rows_args a = {.out = bench_buffer(b, 0, b->rows / 2 * b->cols, b->type),
                                  .x = bench_buffer(b, 1, b->rows * b->cols, b->type),
                                  .row_count = b->rows / 2,
                                  .col_count = b->cols,
                                  .step = 2,
                                  .type = b->type};
    return CALL(take_rows, b, go, &a);
}

double bench_take_rows_backward(struct bench *b, bool go)
{
    struct dt_take_rows_backward_args a = {.dx = bench_buffer(b, 0, b->rows * b->cols, b->type),
                                           .dout = bench_buffer(b, 1, b->rows / 2 * b->cols, b->type),
                                           .row_count = b->rows / 2,
                                           .source_count = b->rows,
                                           .col_count = b->cols,
                                           .step = 2,
                                           .type = b->type};
    return CALL(take_rows_backward, b, go, &a);
}

double bench_label_loss(struct bench *b, bool go)
{
    struct dt_label_loss_args a = {.logits = bench_buffer(b, 0, b->loss_rows * b->vocabulary, b->type),
                                   .labels = bench_buffer(b, 1, b->loss_rows * b->vocabulary, DT_F32),
                                   .row_loss = bench_buffer(b, 2, b->loss_rows, DT_F64),
                                   .loss_sum = bench_buffer(b, 3, 1, DT_F64),
                                   .row_count = b->loss_rows,
                                   .col_count = b->vocabulary,
                                   .grad_scale = 1.0 / 1024,
                                   .kind = DT_LOSS_BINARY,
                                   .with_grad = true,
                                   .type = b->type};
    return CALL(label_loss, b, go, &a);
}
