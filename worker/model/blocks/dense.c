/* Linear maps, and the hidden layer that is one of them with a ReLU. Of its activations the layer
 * keeps y alone: a ReLU's gradient needs no more, and the next block reads it too. */
#include "worker/model/blocks/dense.h"

#include <stdio.h>

void dense_tensors(struct block *b)
{
    const struct dense_args *a = b->args;
    enum role role = a->frozen ? ROLE_FROZEN : ROLE_TRAINED;
    char name[128];
    (void)snprintf(name, sizeof name, "%s.weight", a->name);
    block_tensor(b, name, (int64_t[]){a->out, a->in}, 2,
                 &(struct tensor_rule){.role = role, .init = INIT_NORMAL, .init_std = a->init_std});
    (void)snprintf(name, sizeof name, "%s.bias", a->name);
    block_tensor(b, name, (int64_t[]){a->out}, 1, &(struct tensor_rule){.role = role});
}

struct flow dense_flow(const struct block *b, int64_t width)
{
    return (struct flow){.dims = 2, .shape = {b->spec->batch_size, width}, .type = b->spec->type};
}

void dense_map(const struct block *b, const struct pass *p, void *y, const void *x, const void *bias)
{
    const struct dense_args *a = b->args;
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = y,
                                                           .a = x,
                                                           .b = pass_weight(b, p, DENSE_W),
                                                           .bias = bias,
                                                           .m = p->batch->samples,
                                                           .n = a->out,
                                                           .k = a->in,
                                                           .b_transposed = true,
                                                           .type = b->spec->type,
                                                           .c_type = b->spec->type,
                                                           .busy_sms = p->busy_sms});
}

void dense_weight_backward(const struct block *b, const struct pass *p, const void *dy, const void *x)
{
    const struct dense_args *a = b->args;
    if (pass_grad(b, p, DENSE_W) == NULL) {
        return;
    }
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = pass_grad(b, p, DENSE_W),
                                                           .a = dy,
                                                           .b = x,
                                                           .m = a->out,
                                                           .n = a->in,
                                                           .k = p->batch->samples,
                                                           .a_transposed = true,
                                                           .accumulate = pass_adds(b, p, DENSE_W),
                                                           .type = b->spec->type,
                                                           .c_type = pass_grad_type(b, p),
                                                           .busy_sms = p->busy_sms});
}

void dense_input_backward(const struct block *b, const struct pass *p, void *dx, const void *dy)
{
    const struct dense_args *a = b->args;
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = dx,
                                                           .a = dy,
                                                           .b = pass_weight(b, p, DENSE_W),
                                                           .m = p->batch->samples,
                                                           .n = a->in,
                                                           .k = a->out,
                                                           .type = b->spec->type,
                                                           .c_type = b->spec->type,
                                                           .busy_sms = p->busy_sms});
}

void dense_relu_backward(const struct block *b, const struct pass *p, void *dz, const void *dy, const void *y)
{
    const struct dense_args *a = b->args;
    void *db = pass_grad(b, p, DENSE_B);
    p->kernels->activation_backward(p->stream,
                                    &(struct dt_activation_backward_args){.dx = dz,
                                                                          .dy = dy,
                                                                          .x = y,
                                                                          .count = p->batch->samples * a->out,
                                                                          .kind = DT_ACT_RELU,
                                                                          .type = b->spec->type,
                                                                          .dbias = db,
                                                                          .col_count = a->out,
                                                                          .accumulate = pass_adds(b, p, DENSE_B),
                                                                          .grad_type = pass_grad_type(b, p)});
}

/* ---- the hidden layer ---- */

enum { Y, DZ };

static int declare(struct block *b, struct dt_error *err)
{
    const struct dense_args *a = b->args;
    (void)err;
    dense_tensors(b);
    block_memory(b, "y", LIFE_BACKWARD, RECOMPUTE_NEVER, b->spec->batch_size * a->out, b->spec->type);
    block_memory(b, "dz", LIFE_CALL, 0, b->spec->batch_size * a->out, b->spec->type);
    b->in = dense_flow(b, a->in);
    b->out = dense_flow(b, a->out);
    b->y_memory = Y;
    b->reads_x = true;
    return 0;
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct dense_args *a = b->args;
    dense_map(b, p, p->y, p->x, pass_weight(b, p, DENSE_B));
    p->kernels->activation(
        p->stream,
        &(struct dt_activation_args){
            .y = p->y, .x = p->y, .count = p->batch->samples * a->out, .kind = DT_ACT_RELU, .type = b->spec->type});
}

static void backward(const struct block *b, const struct pass *p)
{
    void *dz = pass_memory(b, p, DZ);
    dense_relu_backward(b, p, dz, p->dy, pass_memory(b, p, Y));
    dense_weight_backward(b, p, dz, p->x);
    dense_input_backward(b, p, p->dx, dz);
}

const struct block_ops block_dense = {.name = "dense", .declare = declare, .forward = forward, .backward = backward};
