/* The first block of an image model: y = relu((x - mean) W^T + b), with the pixels of a sample in
 * one row of x. In training, `mean` is the mean of each pixel over the batch, and the running mean,
 * a buffer, is updated with it. Evaluation uses the running mean. The mean gets no gradient,
 * because the pixels need none. The mean is folded into the bias, so no pass only subtracts: (x -
 * mean) W^T + b = x W^T + (b - mean W^T). D pixels of a sample. */
#include "worker/model/blocks/dense.h"

#include <stdio.h>

enum { RUNNING = DENSE_B + 1, BATCHES };
/* Memory: x if its type differs from the batch's (B, D), mean (D), y (B, out). Of one call: sums
 * over the batch, and 1 for the number of batches (D), bias (out), dz (B, out). */
enum { X, MEAN, Y, SUM, BIAS, DZ };

static int declare(struct block *b, struct dt_error *err)
{
    const struct dense_args *a = b->args;
    enum dt_dtype type = b->spec->type;
    int64_t samples = b->spec->batch_size;
    char name[128];
    (void)err;
    dense_tensors(b);
    (void)snprintf(name, sizeof name, "%s.running_mean", a->name);
    block_tensor(b, name, (int64_t[]){a->in}, 1, &(struct tensor_rule){.role = ROLE_BUFFER});
    (void)snprintf(name, sizeof name, "%s.num_batches_tracked", a->name);
    block_tensor(b, name, (int64_t[]){1}, 1, &(struct tensor_rule){.role = ROLE_BUFFER});
    (void)block_field(b, "pixel_values");
    block_memory(b, "x", LIFE_BACKWARD, RECOMPUTE_NEVER, type != DT_F32 ? samples * a->in : 0, type);
    block_memory(b, "mean", LIFE_BACKWARD, RECOMPUTE_NEVER, a->in, type);
    block_memory(b, "y", LIFE_BACKWARD, RECOMPUTE_NEVER, samples * a->out, type);
    block_memory(b, "sum", LIFE_CALL, 0, a->in, dt_dtype_wide(type));
    block_memory(b, "bias", LIFE_CALL, 0, a->out, type);
    block_memory(b, "dz", LIFE_CALL, 0, samples * a->out, type);
    b->out = dense_flow(b, a->out);
    b->y_memory = Y;
    return 0;
}

/* The pixels in the compute type. */
static const void *pixels(const struct block *b, const struct pass *p)
{
    void *x = pass_memory(b, p, X);
    return x != NULL ? x : p->batch->at[batch_find(p->batch->layout, "pixel_values")];
}

static void add(const struct pass *p, void *to, const void *x, int64_t count, enum dt_dtype type)
{
    p->kernels->add(p->stream,
                    &(struct dt_add_args){.out = to, .a = to, .b = x, .count = count, .type = type, .b_type = type});
}

/* Computes the batch's mean, and updates the running mean with it, unless the batch has no target: a
 * rank without samples joins the step with such a batch. */
static void take_mean(const struct block *b, const struct pass *p)
{
    const struct dense_args *a = b->args;
    const struct dt_kernels *k = p->kernels;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    void *sum = pass_memory(b, p, SUM), *running = pass_buffer(b, p, RUNNING);
    k->column_sum(p->stream, &(struct dt_column_sum_args){.out = sum,
                                                          .x = pixels(b, p),
                                                          .row_count = p->batch->samples,
                                                          .col_count = a->in,
                                                          .type = type,
                                                          .grad_type = wide});
    k->scale(p->stream, &(struct dt_scale_args){
                            .x = sum, .count = a->in, .factor = 1.0 / (double)p->batch->samples, .type = wide});
    k->cast(p->stream, &(struct dt_cast_args){pass_memory(b, p, MEAN), sum, a->in, type, wide});
    if (p->batch->weight == 0) { /* a batch without targets counts for nothing */
        return;
    }
    k->scale(p->stream, &(struct dt_scale_args){.x = running, .count = a->in, .factor = 1 - a->momentum, .type = wide});
    k->scale(p->stream, &(struct dt_scale_args){.x = sum, .count = a->in, .factor = a->momentum, .type = wide});
    add(p, running, sum, a->in, wide);
    k->fill(p->stream, &(struct dt_fill_args){.x = sum, .count = 1, .value = 1, .type = wide});
    add(p, pass_buffer(b, p, BATCHES), sum, 1, wide);
}

/* b - mean W^T */
static void *shifted_bias(const struct block *b, const struct pass *p)
{
    const struct dense_args *a = b->args;
    enum dt_dtype type = b->spec->type;
    void *bias = pass_memory(b, p, BIAS);
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = bias,
                                                           .a = pass_memory(b, p, MEAN),
                                                           .b = pass_weight(b, p, DENSE_W),
                                                           .m = 1,
                                                           .n = a->out,
                                                           .k = a->in,
                                                           .b_transposed = true,
                                                           .type = type,
                                                           .c_type = type,
                                                           .busy_sms = p->busy_sms});
    p->kernels->scale(p->stream, &(struct dt_scale_args){.x = bias, .count = a->out, .factor = -1, .type = type});
    add(p, bias, pass_weight(b, p, DENSE_B), a->out, type);
    return bias;
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct dense_args *a = b->args;
    enum dt_dtype type = b->spec->type;
    int64_t samples = p->batch->samples;
    if (pass_memory(b, p, X) != NULL) {
        const void *from = p->batch->at[batch_find(p->batch->layout, "pixel_values")];
        p->kernels->cast(p->stream, &(struct dt_cast_args){pass_memory(b, p, X), from, samples * a->in, type, DT_F32});
    }
    if (p->phase == PASS_EVAL) {
        p->kernels->cast(p->stream, &(struct dt_cast_args){pass_memory(b, p, MEAN), pass_buffer(b, p, RUNNING), a->in,
                                                           type, dt_dtype_wide(type)});
    } else {
        take_mean(b, p);
    }
    dense_map(b, p, p->y, pixels(b, p), shifted_bias(b, p));
    p->kernels->activation(p->stream,
                           &(struct dt_activation_args){
                               .y = p->y, .x = p->y, .count = samples * a->out, .kind = DT_ACT_RELU, .type = type});
}

/* dW = dz^T (x - mean) = dz^T x - dz^T mean. */
static void backward(const struct block *b, const struct pass *p)
{
    const struct dense_args *a = b->args;
    enum dt_dtype type = b->spec->type;
    void *dz = pass_memory(b, p, DZ), *sum = pass_memory(b, p, BIAS);
    if (a->frozen) {
        return;
    }
    dense_relu_backward(b, p, dz, p->dy, pass_memory(b, p, Y));
    dense_weight_backward(b, p, dz, pixels(b, p));
    p->kernels->column_sum(
        p->stream,
        &(struct dt_column_sum_args){
            .out = sum, .x = dz, .row_count = p->batch->samples, .col_count = a->out, .type = type, .grad_type = type});
    p->kernels->scale(p->stream, &(struct dt_scale_args){.x = sum, .count = a->out, .factor = -1, .type = type});
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = pass_grad(b, p, DENSE_W),
                                                           .a = sum,
                                                           .b = pass_memory(b, p, MEAN),
                                                           .m = a->out,
                                                           .n = a->in,
                                                           .k = 1,
                                                           .a_transposed = true,
                                                           .accumulate = true,
                                                           .type = type,
                                                           .c_type = pass_grad_type(b, p),
                                                           .busy_sms = p->busy_sms});
}

const struct block_ops block_pixels = {.name = "pixels", .declare = declare, .forward = forward, .backward = backward};
