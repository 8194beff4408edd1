/* One GPT-2 layer. Weights of its linear maps lie (in, out), as in the Hugging Face file.
 *
 *   h1 = x_residual + x_branch          kept
 *   n1 = norm(h1)                                        made again in backward
 *   qkv = n1 Wqkv + b                   saved
 *   a, lse = attention(qkv)             saved
 *   p = a Wproj + b                     saved
 *   h2 = h1 + p                         y_residual       made again in backward, with n2
 *   n2 = norm(h2)
 *   f = n2 Wfc + b                      saved
 *   y_branch = gelu(f) Wout + b                          gelu made again in backward
 *
 * Where a device has an epilogue for it, gelu and its gradient, and sums for biases, are part of a product.
 *
 * So a layer holds C (kept) and 9C + H / 1 (saved) values per token, and no pass only moves data: every sum rides on a norm.
 * Letters: R = B * T rows, C channels, I inner. */
#include "worker/blocks/blocks.h"

#include <math.h>
#include <stdio.h>

enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B }; /* a bias behind its weight */

struct saved {
    void *qkv;  /* (R, 3C) */
    void *att;  /* (R, C) */
    void *lse;  /* (B, H, T) */
    void *proj; /* (R, C) */
    void *fc;   /* (R, I) */
};
struct scratch {
    void *norm;        /* (R, C): n1, n2 and their gradients, one after the other */
    void *wide;        /* (R, I) or (R, 3C): gelu, also when it is only f that is made again, then its gradient; later dqkv */
    void *sum;         /* (R, C): h2; behind `wide`, so that what dqkv leaves of both is one piece */
    void *mean, *rstd; /* (R) */
};

static size_t cut_saved(const struct model_spec *m, int64_t rows, void *base, struct saved *out)
{
    struct cutter c = {.base = base};
    size_t e = dt_dtype_size(m->type);
    out->qkv = cut(&c, rows * 3 * m->channels, e);
    out->att = cut(&c, rows * m->channels, e);
    out->lse = cut(&c, rows * m->heads, dt_dtype_size(dt_dtype_wide(m->type)));
    out->proj = cut(&c, rows * m->channels, e);
    out->fc = cut(&c, rows * m->inner, e);
    return c.used;
}

static size_t cut_scratch(const struct model_spec *m, int64_t rows, void *base, struct scratch *out)
{
    struct cutter c = {.base = base};
    size_t e = dt_dtype_size(m->type);
    out->norm = cut(&c, rows * m->channels, e);
    out->wide = cut(&c, rows * (m->inner > 3 * m->channels ? m->inner : 3 * m->channels), e);
    out->sum = cut(&c, rows * m->channels, e);
    out->mean = cut(&c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    out->rstd = cut(&c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    return c.used;
}

static void name_tensor(struct block *b, const char *part, const int64_t *shape, int dims, enum init_kind init, double init_std)
{
    char name[128];
    (void)snprintf(name, sizeof name, "transformer.h.%d.%s", b->layer, part);
    block_tensor(b, name, shape, dims, init, init_std);
}

static int declare(struct block *b, const struct model_spec *m, struct dt_error *err)
{
    (void)err;
    int64_t c = m->channels, i = m->inner;
    double std = m->init_std, last = std / sqrt(2.0 * (double)m->layers); /* maps that end in the residual stream */
    name_tensor(b, "ln_1.weight", (int64_t[]){c}, 1, INIT_ONE, 0);
    name_tensor(b, "ln_1.bias", (int64_t[]){c}, 1, INIT_ZERO, 0);
    name_tensor(b, "attn.c_attn.weight", (int64_t[]){c, 3 * c}, 2, INIT_NORMAL, std);
    name_tensor(b, "attn.c_attn.bias", (int64_t[]){3 * c}, 1, INIT_ZERO, 0);
    name_tensor(b, "attn.c_proj.weight", (int64_t[]){c, c}, 2, INIT_NORMAL, last);
    name_tensor(b, "attn.c_proj.bias", (int64_t[]){c}, 1, INIT_ZERO, 0);
    name_tensor(b, "ln_2.weight", (int64_t[]){c}, 1, INIT_ONE, 0);
    name_tensor(b, "ln_2.bias", (int64_t[]){c}, 1, INIT_ZERO, 0);
    name_tensor(b, "mlp.c_fc.weight", (int64_t[]){c, i}, 2, INIT_NORMAL, std);
    name_tensor(b, "mlp.c_fc.bias", (int64_t[]){i}, 1, INIT_ZERO, 0);
    name_tensor(b, "mlp.c_proj.weight", (int64_t[]){i, c}, 2, INIT_NORMAL, last);
    name_tensor(b, "mlp.c_proj.bias", (int64_t[]){c}, 1, INIT_ZERO, 0);
    int64_t rows = m->batch_size * m->sequence_length;
    struct saved saved;
    struct scratch scratch;
    b->kept_bytes = ((size_t)(rows * c) * dt_dtype_size(m->type) + 63) / 64 * 64;
    b->saved_bytes = cut_saved(m, rows, NULL, &saved);
    b->scratch_bytes = cut_scratch(m, rows, NULL, &scratch);
    b->branch_out = true;
    return 0;
}

static int64_t row_count(const struct pass *p)
{
    return p->batch->batch_size * p->batch->sequence_length;
}

/* y = norm(residual + branch); the sum goes to `sum`. */
static void norm(const struct block *b, const struct pass *p, const struct scratch *s, int weight, const void *residual, const void *branch,
                 void *sum)
{
    enum dt_dtype type = b->spec->type;
    p->kernels->layernorm(p->stream, &(struct dt_layernorm_args){.y = s->norm,
                                                                 .residual_out = sum,
                                                                 .mean = s->mean,
                                                                 .rstd = s->rstd,
                                                                 .residual = residual,
                                                                 .branch = branch,
                                                                 .gamma = block_at(b, p->weights, weight, type),
                                                                 .beta = block_at(b, p->weights, weight + 1, type),
                                                                 .row_count = row_count(p),
                                                                 .col_count = b->spec->channels,
                                                                 .eps = b->spec->norm_epsilon,
                                                                 .type = type});
}

/* y (R, n) = x (R, k) W + bias; tensor number `weight` is W (k, n), the next one the bias. */
static void linear(const struct block *b, const struct pass *p, int weight, void *y, const void *x, int64_t n, int64_t k)
{
    enum dt_dtype type = b->spec->type;
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = y,
                                                           .a = x,
                                                           .b = block_at(b, p->weights, weight, type),
                                                           .bias = block_at(b, p->weights, weight + 1, type),
                                                           .m = row_count(p),
                                                           .n = n,
                                                           .k = k,
                                                           .type = type,
                                                           .c_type = type,
                                                           .busy_sms = p->busy_sms});
}

/* f = norm Wfc + bias and wide = gelu(f), which nobody reads when f is made again. */
static void mlp_in(const struct block *b, const struct pass *p, const struct saved *f, const struct scratch *s)
{
    enum dt_dtype type = b->spec->type;
    dt_matmul_epilogue(p->kernels, p->stream,
                       &(struct dt_matmul_args){.epilogue = DT_EPILOGUE_GELU,
                                                .aux_only = p->phase == PASS_RECOMPUTE,
                                                .c = s->wide,
                                                .aux = f->fc,
                                                .a = s->norm,
                                                .b = block_at(b, p->weights, FC_W, type),
                                                .bias = block_at(b, p->weights, FC_B, type),
                                                .m = row_count(p),
                                                .n = b->spec->inner,
                                                .k = b->spec->channels,
                                                .type = type,
                                                .c_type = type,
                                                .busy_sms = p->busy_sms});
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct model_spec *m = b->spec;
    bool again = p->phase == PASS_RECOMPUTE;
    int64_t c = m->channels, rows = row_count(p);
    struct saved f;
    struct scratch s;
    (void)cut_saved(m, rows, p->saved, &f);
    (void)cut_scratch(m, rows, p->scratch, &s);
    norm(b, p, &s, LN1_W, again ? p->kept : p->x_residual, again ? NULL : p->x_branch, again ? NULL : p->kept);
    linear(b, p, QKV_W, f.qkv, s.norm, 3 * c, c);
    p->kernels->attention(p->stream, &(struct dt_attention_args){.out = f.att,
                                                                 .lse = f.lse,
                                                                 .qkv = f.qkv,
                                                                 .batch = p->batch->batch_size,
                                                                 .positions = p->batch->sequence_length,
                                                                 .heads = m->heads,
                                                                 .head_size = c / m->heads,
                                                                 .causal = true,
                                                                 .type = m->type});
    linear(b, p, PROJ_W, f.proj, f.att, c, c);
    norm(b, p, &s, LN2_W, p->kept, f.proj, again ? s.sum : p->y_residual);
    mlp_in(b, p, &f, &s);
    if (!again) {
        linear(b, p, OUT_W, p->y_branch, s.wide, c, m->inner);
    }
}

/* dW of y = x W + bias from x (R, k) and dy (R, n); with BIAS_BACKWARD also dbias. */
static void weight_backward(const struct block *b, const struct pass *p, int weight, const void *x, const void *dy, int64_t n, int64_t k,
                            enum dt_epilogue epilogue)
{
    enum dt_dtype grads = grad_type(b, p);
    dt_matmul_epilogue(p->kernels, p->stream,
                       &(struct dt_matmul_args){.epilogue = epilogue,
                                                .c = block_at(b, p->grads, weight, grads),
                                                .bias_gradient = block_at(b, p->grads, weight + 1, grads),
                                                .a = x,
                                                .b = dy,
                                                .m = k,
                                                .n = n,
                                                .k = row_count(p),
                                                .a_transposed = true,
                                                .accumulate = p->accumulate || b->adds[weight],
                                                .type = b->spec->type,
                                                .c_type = grads,
                                                .grad_type = grads,
                                                .busy_sms = p->busy_sms});
}

/* dx (R, k) = dy W^T for y (R, n) = x W + bias. */
static struct dt_matmul_args input_gradient(const struct block *b, const struct pass *p, int weight, void *dx, const void *dy, int64_t n, int64_t k)
{
    enum dt_dtype type = b->spec->type;
    return (struct dt_matmul_args){.c = dx,
                                   .a = dy,
                                   .b = block_at(b, p->weights, weight, type),
                                   .m = row_count(p),
                                   .n = k,
                                   .k = n,
                                   .b_transposed = true,
                                   .type = type,
                                   .c_type = type,
                                   .busy_sms = p->busy_sms};
}

/* The same, then dx, which may lie where x did. */
static void linear_backward(const struct block *b, const struct pass *p, int weight, void *dx, const void *x, const void *dy, int64_t n, int64_t k,
                            enum dt_epilogue epilogue)
{
    struct dt_matmul_args product = input_gradient(b, p, weight, dx, dy, n, k);
    weight_backward(b, p, weight, x, dy, n, k, epilogue);
    p->kernels->matmul(p->stream, &product);
}

/* Of y = gelu(f) Wout + bias: its gradients, those of f over gelu(f) in wide, and the bias's of f. */
static void mlp_out_backward(const struct block *b, const struct pass *p, const struct saved *f, const struct scratch *s)
{
    enum dt_dtype grads = grad_type(b, p);
    int64_t c = b->spec->channels, inner = b->spec->inner;
    struct dt_matmul_args product = input_gradient(b, p, OUT_W, s->wide, p->dy, c, inner);
    weight_backward(b, p, OUT_W, s->wide, p->dy, c, inner, DT_EPILOGUE_BIAS_BACKWARD);
    product.epilogue = DT_EPILOGUE_GELU_BACKWARD;
    product.aux = f->fc;
    product.bias_gradient = block_at(b, p->grads, FC_B, grads);
    product.grad_type = grads;
    product.accumulate = p->accumulate || b->adds[FC_B];
    dt_matmul_epilogue(p->kernels, p->stream, &product);
}

/* dx = gradient through the norm of x + what reached x from above. */
static void norm_backward(const struct block *b, const struct pass *p, const struct scratch *s, int weight, const void *x, const void *dabove)
{
    enum dt_dtype type = b->spec->type, grads = grad_type(b, p);
    p->kernels->layernorm_backward(p->stream, &(struct dt_layernorm_backward_args){.dx = p->dx,
                                                                                   .dgamma = block_at(b, p->grads, weight, grads),
                                                                                   .dbeta = block_at(b, p->grads, weight + 1, grads),
                                                                                   .dy = s->norm,
                                                                                   .x = x,
                                                                                   .gamma = block_at(b, p->weights, weight, type),
                                                                                   .mean = s->mean,
                                                                                   .rstd = s->rstd,
                                                                                   .dresidual = dabove,
                                                                                   .row_count = row_count(p),
                                                                                   .col_count = b->spec->channels,
                                                                                   .accumulate = p->accumulate || b->adds[weight],
                                                                                   .type = type,
                                                                                   .grad_type = grads});
}

static void backward(const struct block *b, const struct pass *p)
{
    const struct model_spec *m = b->spec;
    int64_t c = m->channels, rows = row_count(p);
    struct saved f;
    struct scratch s;
    (void)cut_saved(m, rows, p->saved, &f);
    (void)cut_scratch(m, rows, p->scratch, &s);
    /* MLP: dy is the gradient of the branch as well as of h2. */
    p->kernels->activation(p->stream,
                           &(struct dt_activation_args){.y = s.wide, .x = f.fc, .count = rows * m->inner, .kind = DT_ACT_GELU, .type = m->type});
    mlp_out_backward(b, p, &f, &s);
    norm(b, p, &s, LN2_W, p->kept, f.proj, s.sum);
    linear_backward(b, p, FC_W, s.norm, s.norm, s.wide, m->inner, c, DT_EPILOGUE_NONE);
    norm_backward(b, p, &s, LN2_W, s.sum, p->dy);
    /* attention; from here dx holds the gradient of h2 */
    linear_backward(b, p, PROJ_W, s.norm, f.att, p->dx, c, c, DT_EPILOGUE_BIAS_BACKWARD);
    size_t dqkv_bytes = (size_t)(rows * 3 * c) * dt_dtype_size(m->type);
    p->kernels->attention_backward(p->stream,
                                   &(struct dt_attention_backward_args){.dqkv = s.wide,
                                                                        .work = (char *)s.wide + dqkv_bytes,
                                                                        .work_bytes = (size_t)((char *)s.mean - (char *)s.wide) - dqkv_bytes,
                                                                        .dout = s.norm,
                                                                        .out = f.att,
                                                                        .qkv = f.qkv,
                                                                        .lse = f.lse,
                                                                        .batch = p->batch->batch_size,
                                                                        .positions = p->batch->sequence_length,
                                                                        .heads = m->heads,
                                                                        .head_size = c / m->heads,
                                                                        .causal = true,
                                                                        .type = m->type});
    norm(b, p, &s, LN1_W, p->kept, NULL, NULL);
    linear_backward(b, p, QKV_W, s.norm, s.norm, s.wide, 3 * c, c, DT_EPILOGUE_BIAS_BACKWARD);
    norm_backward(b, p, &s, LN1_W, p->kept, p->dx);
}

const struct block_ops block_gpt_layer = {.name = "gpt_layer", .declare = declare, .forward = forward, .backward = backward};
