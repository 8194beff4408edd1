/* The pooler, between the last layer of an encoder and the classes: y = act(W pooled + b), where
 * pooled are all rows of x, the first row of each sample, or the mean of a sample's rows that are
 * not masked, with elements dropped unless they are all rows. With a norm, x is a pair, and the rows
 * are those of the normed sum.
 *
 * Letters: R = B * T rows of x, Q rows of y: B, or R without pooling. */
#include "worker/model/blocks/drop.h"
#include "worker/model/blocks/encoder.h"
#include "worker/model/blocks/layernorm.h"
#include "worker/model/blocks/linear.h"

#include <assert.h>

/* Memory: the sum of the pair (R, C) and statistics (R); pooled (Q, C) and y before its activation
 * (Q, C). Of one call: the norm's output, and its gradient (R, C); gradients (Q, C); sums of columns
 * (C). */
enum { SUM, MEAN, RSTD, POOLED, BEFORE, NORM, DBEFORE, DPOOLED, SUMS };

struct tensors {
    struct layernorm norm;
    struct linear dense;
};

static struct tensors walk_tensors(const struct block *b, struct block *declared)
{
    const struct pooler *m = b->args;
    struct naming n = {.block = declared};
    struct tensors t = {.norm = {.weight = -1}};
    if (m->norm != NULL) {
        t.norm = layernorm_name(&n, m->norm, m->channels, m->norm_bias, m->norm_epsilon);
    }
    t.dense = linear_name(&n, &m->dense, &m->channels, 1, m->channels, m->dense_bias, &m->rule);
    t.dense.of_samples = m->pooling != POOL_NONE;
    return t;
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct pooler *m = b->args;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    bool whole = m->pooling == POOL_NONE, norm = m->norm != NULL;
    int64_t c = m->channels, rows = most_rows(b), out = whole ? rows : b->spec->batch_size;
    (void)walk_tensors(b, b);
    if (m->pooling == POOL_MEAN) {
        (void)block_field(b, "attention_mask");
    }
    assert(m->pooling != POOL_NONE || m->dropout == 0);
    drop_declare(b, m->dropout);
    block_memory(b, "sum", LIFE_BACKWARD, RECOMPUTE_NEVER, norm ? rows * c : 0, type);
    block_memory(b, "mean", LIFE_BACKWARD, RECOMPUTE_NEVER, norm ? rows : 0, wide);
    block_memory(b, "rstd", LIFE_BACKWARD, RECOMPUTE_NEVER, norm ? rows : 0, wide);
    block_memory(b, "pooled", LIFE_BACKWARD, RECOMPUTE_NEVER, whole && !norm ? 0 : out * c, type);
    block_memory(b, "before activation", LIFE_BACKWARD, RECOMPUTE_NEVER, out * c, type);
    block_memory(b, "norm", LIFE_CALL, 0, norm ? rows * c : 0, type);
    block_memory(b, "gradient before activation", LIFE_CALL, 0, out * c, type);
    block_memory(b, "gradient of pooled", LIFE_CALL, 0, whole ? 0 : out * c, type);
    block_memory(b, "sums", LIFE_CALL, 0, m->dense_bias ? c : 0, wide);
    b->in = stream_flow(b, c, norm);
    b->out =
        whole ? stream_flow(b, c, false) : (struct flow){.dims = 2, .shape = {b->spec->batch_size, c}, .type = type};
    b->reads_x = whole && !norm;
    return 0;
}

static const int32_t *mask_of(const struct pass *p)
{
    return p->batch->at[batch_find(p->batch->layout, "attention_mask")];
}

/* pooled = the rows of x (R, C) that go on. */
static void pool(const struct block *b, const struct pass *p, const void *x, void *pooled)
{
    const struct pooler *m = b->args;
    enum dt_dtype type = b->spec->type;
    switch (m->pooling) {
    case POOL_NONE:
        break;
    case POOL_FIRST:
        p->kernels->take_rows(p->stream, &(struct dt_take_rows_args){.out = pooled,
                                                                     .x = x,
                                                                     .row_count = p->batch->samples,
                                                                     .col_count = m->channels,
                                                                     .step = p->batch->length,
                                                                     .type = type});
        break;
    case POOL_MEAN:
        p->kernels->masked_mean(p->stream, &(struct dt_masked_mean_args){.out = pooled,
                                                                         .x = x,
                                                                         .mask = mask_of(p),
                                                                         .batch = p->batch->samples,
                                                                         .positions = p->batch->length,
                                                                         .col_count = m->channels,
                                                                         .type = type});
        break;
    }
}

/* dx (R, C) from the gradient of the pooled rows. */
static void pool_backward(const struct block *b, const struct pass *p, const void *dpooled, void *dx)
{
    const struct pooler *m = b->args;
    enum dt_dtype type = b->spec->type;
    switch (m->pooling) {
    case POOL_NONE:
        break;
    case POOL_FIRST:
        p->kernels->take_rows_backward(p->stream, &(struct dt_take_rows_backward_args){.dx = dx,
                                                                                       .dout = dpooled,
                                                                                       .row_count = p->batch->samples,
                                                                                       .source_count = row_count(p),
                                                                                       .col_count = m->channels,
                                                                                       .step = p->batch->length,
                                                                                       .type = type});
        break;
    case POOL_MEAN:
        p->kernels->masked_mean_backward(p->stream,
                                         &(struct dt_masked_mean_backward_args){.dx = dx,
                                                                                .dout = dpooled,
                                                                                .mask = mask_of(p),
                                                                                .batch = p->batch->samples,
                                                                                .positions = p->batch->length,
                                                                                .col_count = m->channels,
                                                                                .type = type});
        break;
    }
}

static int64_t out_count(const struct block *b, const struct pass *p)
{
    const struct pooler *m = b->args;
    return (m->pooling == POOL_NONE ? row_count(p) : p->batch->samples) * m->channels;
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct pooler *m = b->args;
    struct tensors t = walk_tensors(b, NULL);
    const void *x = p->x;
    void *pooled = pass_memory(b, p, POOLED), *before = pass_memory(b, p, BEFORE);
    if (m->norm != NULL) {
        void *y = m->pooling == POOL_NONE ? pooled : pass_memory(b, p, NORM);
        struct normed to = {
            .sum = pass_memory(b, p, SUM), .y = y, .mean = pass_memory(b, p, MEAN), .rstd = pass_memory(b, p, RSTD)};
        layernorm_forward(b, p, &t.norm, row_count(p), p->x, p->x_branch, &to);
        x = y;
    }
    pool(b, p, x, pooled);
    (void)drop(b, p, m->dropout, 0, pooled, pooled, p->batch->samples, m->channels);
    linear_forward(b, p, &t.dense, before, 0, m->pooling == POOL_NONE ? x : pooled);
    p->kernels->activation(
        p->stream, &(struct dt_activation_args){
                       .y = p->y, .x = before, .count = out_count(b, p), .kind = m->activation, .type = b->spec->type});
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct pooler *m = b->args;
    struct tensors t = walk_tensors(b, NULL);
    void *dbefore = pass_memory(b, p, DBEFORE), *pooled = pass_memory(b, p, POOLED);
    void *dnorm = m->norm != NULL ? pass_memory(b, p, NORM) : p->dx;
    void *dpooled = m->pooling == POOL_NONE ? dnorm : pass_memory(b, p, DPOOLED);
    p->kernels->activation_backward(p->stream, &(struct dt_activation_backward_args){.dx = dbefore,
                                                                                     .dy = p->dy,
                                                                                     .x = pass_memory(b, p, BEFORE),
                                                                                     .count = out_count(b, p),
                                                                                     .kind = m->activation,
                                                                                     .type = b->spec->type});
    linear_weight_backward(b, p, &t.dense, dbefore, pooled != NULL ? pooled : p->x, pass_memory(b, p, SUMS));
    linear_input_backward(b, p, &t.dense, dpooled, dbefore);
    (void)drop(b, p, m->dropout, 0, dpooled, dpooled, p->batch->samples, m->channels);
    pool_backward(b, p, dpooled, dnorm);
    if (m->norm != NULL) {
        struct normed from = {
            .sum = pass_memory(b, p, SUM), .mean = pass_memory(b, p, MEAN), .rstd = pass_memory(b, p, RSTD)};
        layernorm_backward(b, p, &t.norm, row_count(p), &from, p->dx, dnorm, NULL);
    }
}

const struct block_ops block_pooler = {.name = "pooler", .declare = declare, .forward = forward, .backward = backward};
