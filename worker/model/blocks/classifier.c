/* The last block of a model that tells classes apart: logits = x W^T + b, cross-entropy. Training
 * does all of it in backward. */
#include "worker/model/blocks/dense.h"

/* Memory of one call: logits, then their gradient (B, classes); losses of samples (B). */
enum { LOGITS, ROW_LOSS };

static int declare(struct block *b, struct dt_error *err)
{
    const struct dense_args *a = b->args;
    (void)err;
    dense_tensors(b);
    (void)block_field(b, "labels");
    block_memory(b, "logits", LIFE_CALL, 0, b->spec->batch_size * a->out, b->spec->type);
    block_memory(b, "row losses", LIFE_CALL, 0, b->spec->batch_size, DT_F64);
    b->in = dense_flow(b, a->in);
    return 0;
}

/* The loss; with_grad: logits become their gradient. */
static void loss(const struct block *b, const struct pass *p, bool with_grad)
{
    const struct dense_args *a = b->args;
    dense_map(b, p, pass_memory(b, p, LOGITS), p->x, pass_weight(b, p, DENSE_B));
    p->kernels->cross_entropy(
        p->stream, &(struct dt_cross_entropy_args){.logits = pass_memory(b, p, LOGITS),
                                                   .targets = p->batch->at[batch_find(p->batch->layout, "labels")],
                                                   .row_loss = pass_memory(b, p, ROW_LOSS),
                                                   .loss_sum = p->loss_sum,
                                                   .row_count = p->batch->samples,
                                                   .col_count = a->out,
                                                   .ld = a->out,
                                                   .grad_scale = p->loss_scale,
                                                   .with_grad = with_grad,
                                                   .type = b->spec->type});
}

static void forward(const struct block *b, const struct pass *p)
{
    loss(b, p, false);
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct dense_args *a = b->args;
    void *dlogits = pass_memory(b, p, LOGITS);
    loss(b, p, true);
    dense_weight_backward(b, p, dlogits, p->x);
    p->kernels->column_sum(p->stream, &(struct dt_column_sum_args){.out = pass_grad(b, p, DENSE_B),
                                                                   .x = dlogits,
                                                                   .row_count = p->batch->samples,
                                                                   .col_count = a->out,
                                                                   .accumulate = pass_adds(b, p, DENSE_B),
                                                                   .type = b->spec->type,
                                                                   .grad_type = pass_grad_type(b, p)});
    dense_input_backward(b, p, p->dx, dlogits);
}

const struct block_ops block_classifier = {
    .name = "classifier", .declare = declare, .forward = forward, .backward = backward};
