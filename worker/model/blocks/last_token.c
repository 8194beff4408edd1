/* The final norm of one token of each sample: x (B, C) = norm(residual + branch) at the position that last_tokens marks
 * with 1. The row is taken before the norm, which is of each row alone. */
#include "worker/model/blocks/blocks.h"

enum { NORM_W, NORM_B };
/* Memory: the sum of the pair (B, C) and statistics (B). Of one call: the rows of the pair, or the gradient of their sum
 * (B, C), and the branch's (B, C). */
enum { SUM, MEAN, RSTD, ROWS, BRANCH };

static bool is_rms(const struct lm_head *m)
{
    return m->norm_bias == NULL && !m->centred;
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct lm_head *m = b->args;
    const struct tensor_rule one = {.init = m->weight_offset != 0 ? INIT_ZERO : INIT_ONE}, zero = {.init = INIT_ZERO};
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    int64_t samples = b->spec->batch_size, size = samples * m->channels;
    block_tensor(b, m->norm_weight, &m->channels, 1, &one);
    if (m->norm_bias != NULL) {
        block_tensor(b, m->norm_bias, &m->channels, 1, &zero);
    }
    (void)block_field(b, "last_tokens");
    block_memory(b, "sum", LIFE_BACKWARD, RECOMPUTE_NEVER, size, type);
    block_memory(b, "mean", LIFE_BACKWARD, RECOMPUTE_NEVER, is_rms(m) ? 0 : samples, wide);
    block_memory(b, "rstd", LIFE_BACKWARD, RECOMPUTE_NEVER, samples, wide);
    block_memory(b, "rows", LIFE_CALL, 0, size, type);
    block_memory(b, "branch", LIFE_CALL, 0, size, type);
    b->in = stream_flow(b, m->channels, true);
    b->out = (struct flow){.dims = 2, .shape = {samples, m->channels}, .type = type};
    return 0;
}

static const int32_t *marks_of(const struct pass *p)
{
    return p->batch->at[batch_find(p->batch->layout, "last_tokens")];
}

/* out (B, C) = the marked rows of x (R, C): a mean over one. Returns out. */
static void *take(const struct block *b, const struct pass *p, void *out, const void *x)
{
    const struct lm_head *m = b->args;
    p->kernels->masked_mean(p->stream, &(struct dt_masked_mean_args){.out = out,
                                                                     .x = x,
                                                                     .mask = marks_of(p),
                                                                     .batch = p->batch->samples,
                                                                     .positions = p->batch->length,
                                                                     .col_count = m->channels,
                                                                     .type = b->spec->type});
    return out;
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    if (p->phase == PASS_RECOMPUTE) {
        return;
    }
    const void *rows = take(b, p, pass_memory(b, p, ROWS), p->x),
               *branch = p->x_branch != NULL ? take(b, p, pass_memory(b, p, BRANCH), p->x_branch) : NULL;
    if (is_rms(m)) {
        p->kernels->rmsnorm(p->stream, &(struct dt_rmsnorm_args){.y = p->y,
                                                                 .residual_out = pass_memory(b, p, SUM),
                                                                 .rstd = pass_memory(b, p, RSTD),
                                                                 .residual = rows,
                                                                 .branch = branch,
                                                                 .weight = pass_weight(b, p, NORM_W),
                                                                 .row_count = p->batch->samples,
                                                                 .col_count = m->channels,
                                                                 .eps = m->norm_epsilon,
                                                                 .branch_scale = m->branch_scale,
                                                                 .weight_offset = m->weight_offset,
                                                                 .type = b->spec->type});
        return;
    }
    p->kernels->layernorm(p->stream,
                          &(struct dt_layernorm_args){.y = p->y,
                                                      .residual_out = pass_memory(b, p, SUM),
                                                      .mean = pass_memory(b, p, MEAN),
                                                      .rstd = pass_memory(b, p, RSTD),
                                                      .residual = rows,
                                                      .branch = branch,
                                                      .gamma = pass_weight(b, p, NORM_W),
                                                      .beta = m->norm_bias != NULL ? pass_weight(b, p, NORM_B) : NULL,
                                                      .row_count = p->batch->samples,
                                                      .col_count = m->channels,
                                                      .eps = m->norm_epsilon,
                                                      .type = b->spec->type});
}

static void norm_backward(const struct block *b, const struct pass *p, void *dx)
{
    const struct lm_head *m = b->args;
    if (is_rms(m)) {
        p->kernels->rmsnorm_backward(p->stream,
                                     &(struct dt_rmsnorm_backward_args){.dx = dx,
                                                                        .dweight = pass_grad(b, p, NORM_W),
                                                                        .dy = p->dy,
                                                                        .x = pass_memory(b, p, SUM),
                                                                        .weight = pass_weight(b, p, NORM_W),
                                                                        .rstd = pass_memory(b, p, RSTD),
                                                                        .row_count = p->batch->samples,
                                                                        .col_count = m->channels,
                                                                        .weight_offset = m->weight_offset,
                                                                        .accumulate = pass_adds(b, p, NORM_W),
                                                                        .type = b->spec->type,
                                                                        .grad_type = pass_grad_type(b, p)});
        return;
    }
    p->kernels->layernorm_backward(
        p->stream, &(struct dt_layernorm_backward_args){.dx = dx,
                                                        .dgamma = pass_grad(b, p, NORM_W),
                                                        .dbeta = m->norm_bias != NULL ? pass_grad(b, p, NORM_B) : NULL,
                                                        .dy = p->dy,
                                                        .x = pass_memory(b, p, SUM),
                                                        .gamma = pass_weight(b, p, NORM_W),
                                                        .mean = pass_memory(b, p, MEAN),
                                                        .rstd = pass_memory(b, p, RSTD),
                                                        .row_count = p->batch->samples,
                                                        .col_count = m->channels,
                                                        .accumulate = pass_adds(b, p, NORM_W),
                                                        .type = b->spec->type,
                                                        .grad_type = pass_grad_type(b, p)});
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    void *drows = pass_memory(b, p, ROWS);
    norm_backward(b, p, drows);
    p->kernels->masked_mean_backward(p->stream, &(struct dt_masked_mean_backward_args){.dx = p->dx,
                                                                                       .dout = drows,
                                                                                       .mask = marks_of(p),
                                                                                       .batch = p->batch->samples,
                                                                                       .positions = p->batch->length,
                                                                                       .col_count = m->channels,
                                                                                       .type = b->spec->type});
}

const struct block_ops block_last_token = {
    .name = "last_token", .declare = declare, .forward = forward, .backward = backward};
