/* RMSNorm, gated activations and rotary positions: of the sizes that a layer of a decoder has. */
#include "cmd/bench/decoders.h"

#include "kernels/cost.h"

/* Calls the kernel when `go`; the bytes that it must move. */
#define CALL(kernel, b, go, args) ((go) ? (b)->k->kernel((b)->s, args) : (void)0, dt_cost_##kernel(args).bytes)

double bench_rmsnorm(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_rmsnorm_args a = {.y = bench_buffer(b, 0, n, b->type),
                                .residual_out = bench_buffer(b, 1, n, b->type),
                                .rstd = bench_buffer(b, 2, b->rows, DT_F32),
                                .residual = bench_buffer(b, 3, n, b->type),
                                .branch = bench_buffer(b, 4, n, b->type),
                                .weight = bench_buffer(b, 5, b->cols, b->type),
                                .row_count = b->rows,
                                .col_count = b->cols,
                                .eps = 1e-6,
                                .type = b->type};
    return CALL(rmsnorm, b, go, &a);
}

double bench_rmsnorm_backward(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    struct dt_rmsnorm_backward_args a = {.dx = bench_buffer(b, 0, n, b->type),
                                         .dweight = bench_buffer(b, 1, b->cols, DT_F32),
                                         .dy = bench_buffer(b, 2, n, b->type),
                                         .x = bench_buffer(b, 3, n, b->type),
                                         .weight = bench_buffer(b, 4, b->cols, b->type),
                                         .rstd = bench_buffer(b, 5, b->rows, DT_F32),
                                         .dresidual = bench_buffer(b, 6, n, b->type),
                                         .row_count = b->rows,
                                         .col_count = b->cols,
                                         .type = b->type,
                                         .grad_type = DT_F32};
    return CALL(rmsnorm_backward, b, go, &a);
}

/* The size of heads: --head, or 64, or one head if the columns do not allow that. */
static int64_t head_of(const struct bench *b)
{
    return b->head > 0 ? b->head : b->cols % 64 == 0 ? 64 : b->cols;
}

double bench_rmsnorm_heads(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols, head = head_of(b), heads = b->cols / head;
    struct dt_rmsnorm_args a = {.y = bench_buffer(b, 0, n, b->type),
                                .rstd = bench_buffer(b, 1, b->rows * heads, DT_F32),
                                .residual = bench_buffer(b, 2, 2 * n, b->type),
                                .weight = bench_buffer(b, 3, head, b->type),
                                .row_count = b->rows * heads,
                                .col_count = head,
                                .heads = heads,
                                .x_ld = 2 * b->cols,
                                .y_ld = b->cols,
                                .eps = 1e-6,
                                .type = b->type};
    return CALL(rmsnorm, b, go, &a);
}

double bench_rmsnorm_heads_backward(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols, head = head_of(b), heads = b->cols / head;
    struct dt_rmsnorm_backward_args a = {.dx = bench_buffer(b, 0, n, b->type),
                                         .dweight = bench_buffer(b, 1, head, DT_F32),
                                         .dy = bench_buffer(b, 2, n, b->type),
                                         .x = bench_buffer(b, 3, 2 * n, b->type),
                                         .weight = bench_buffer(b, 4, head, b->type),
                                         .rstd = bench_buffer(b, 5, b->rows * heads, DT_F32),
                                         .row_count = b->rows * heads,
                                         .col_count = head,
                                         .heads = heads,
                                         .x_ld = 2 * b->cols,
                                         .y_ld = b->cols,
                                         .type = b->type,
                                         .grad_type = DT_F32};
    return CALL(rmsnorm_backward, b, go, &a);
}

static double activate(struct bench *b, bool go, enum dt_activation kind)
{
    int64_t n = b->rows * b->cols;
    struct dt_activation_args a = {bench_buffer(b, 0, n, b->type), bench_buffer(b, 1, n, b->type), n, kind, b->type};
    return CALL(activation, b, go, &a);
}

double bench_gelu_erf(struct bench *b, bool go)
{
    return activate(b, go, DT_ACT_GELU_ERF);
}

double bench_silu(struct bench *b, bool go)
{
    return activate(b, go, DT_ACT_SILU);
}

double bench_gate(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    char *both = bench_buffer(b, 0, 2 * n, b->type);
    struct dt_gate_args a = {.y = bench_buffer(b, 1, n, b->type),
                             .gate = both,
                             .up = both + (size_t)b->cols * dt_dtype_size(b->type),
                             .row_count = b->rows,
                             .col_count = b->cols,
                             .ld = 2 * b->cols,
                             .kind = DT_ACT_SILU,
                             .type = b->type};
    return CALL(gate, b, go, &a);
}

double bench_gate_backward(struct bench *b, bool go)
{
    int64_t n = b->rows * b->cols;
    size_t up = (size_t)b->cols * dt_dtype_size(b->type);
    char *both = bench_buffer(b, 0, 2 * n, b->type), *grads = bench_buffer(b, 1, 2 * n, b->type);
    struct dt_gate_backward_args a = {.dgate = grads,
                                      .dup = grads + up,
                                      .y = bench_buffer(b, 2, n, b->type),
                                      .dy = bench_buffer(b, 3, n, b->type),
                                      .gate = both,
                                      .up = both + up,
                                      .row_count = b->rows,
                                      .col_count = b->cols,
                                      .ld = 2 * b->cols,
                                      .kind = DT_ACT_SILU,
                                      .type = b->type};
    return CALL(gate_backward, b, go, &a);
}

double bench_rope(struct bench *b, bool go)
{
    int64_t head = head_of(b);
    struct dt_rope_args a = {.x = bench_buffer(b, 0, 2 * b->rows * b->cols, b->type),
                             .table = bench_buffer(b, 1, BENCH_POSITIONS * head, DT_F32),
                             .row_count = b->rows,
                             .position_count = BENCH_POSITIONS,
                             .heads = b->cols / head,
                             .head_size = head,
                             .width = head,
                             .stride = 2 * b->cols,
                             .type = b->type};
    return CALL(rope, b, go, &a);
}
