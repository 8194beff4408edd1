/* The last block of a chain that ends with the last hidden states (spec.hidden): residual sum and final
 * norm. It has no loss and no backward. In PASS_EVAL it writes all rows (B * T, C) to pass.logits. */
#include "worker/model/blocks/blocks.h"

enum { NORM_W, NORM_B };
/* Memory of one call: the sum of the pair (R, C) and statistics (R) of a LayerNorm, or statistics of an RMSNorm. */
enum { SUM, MEAN, RSTD };

static bool is_rms(const struct lm_head *m)
{
    return m->norm_bias == NULL && !m->centred;
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct lm_head *m = b->args;
    const struct tensor_rule one = {.init = m->weight_offset != 0 ? INIT_ZERO : INIT_ONE}, zero = {.init = INIT_ZERO};
    int64_t rows = m->norm_weight != NULL ? most_rows(b) : 0;
    if (m->norm_weight != NULL) {
        block_tensor(b, m->norm_weight, &m->channels, 1, &one);
    }
    if (m->norm_weight != NULL && m->norm_bias != NULL) {
        block_tensor(b, m->norm_bias, &m->channels, 1, &zero);
    }
    block_memory(b, "sum", LIFE_CALL, 0, is_rms(m) ? 0 : rows * m->channels, b->spec->type);
    block_memory(b, "mean", LIFE_CALL, 0, is_rms(m) ? 0 : rows, dt_dtype_wide(b->spec->type));
    block_memory(b, "rstd", LIFE_CALL, 0, rows, dt_dtype_wide(b->spec->type));
    b->in = stream_flow(b, m->channels, m->norm_weight != NULL);
    return 0;
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct lm_head *m = b->args;
    if (m->norm_weight == NULL) {
        p->kernels->cast(p->stream, &(struct dt_cast_args){p->logits, p->x, row_count(p) * m->channels, b->spec->type,
                                                           b->spec->type});
    } else if (is_rms(m)) {
        p->kernels->rmsnorm(p->stream, &(struct dt_rmsnorm_args){.y = p->logits,
                                                                 .rstd = pass_memory(b, p, RSTD),
                                                                 .residual = p->x,
                                                                 .branch = p->x_branch,
                                                                 .weight = pass_weight(b, p, NORM_W),
                                                                 .row_count = row_count(p),
                                                                 .col_count = m->channels,
                                                                 .eps = m->norm_epsilon,
                                                                 .branch_scale = m->branch_scale,
                                                                 .weight_offset = m->weight_offset,
                                                                 .type = b->spec->type});
    } else {
        p->kernels->layernorm(
            p->stream, &(struct dt_layernorm_args){.y = p->logits,
                                                   .residual_out = pass_memory(b, p, SUM),
                                                   .mean = pass_memory(b, p, MEAN),
                                                   .rstd = pass_memory(b, p, RSTD),
                                                   .residual = p->x,
                                                   .branch = p->x_branch,
                                                   .gamma = pass_weight(b, p, NORM_W),
                                                   .beta = m->norm_bias != NULL ? pass_weight(b, p, NORM_B) : NULL,
                                                   .row_count = row_count(p),
                                                   .col_count = m->channels,
                                                   .eps = m->norm_epsilon,
                                                   .type = b->spec->type});
    }
}

/* Nothing is trained. */
static void backward(const struct block *b, const struct pass *p)
{
    (void)b;
    (void)p;
}

const struct block_ops block_hidden = {.name = "hidden", .declare = declare, .forward = forward, .backward = backward};

const struct block_ops *block_of_head(const struct chain *c)
{
    return c->spec.hidden ? &block_hidden : &block_lm_head;
}
