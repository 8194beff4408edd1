/* One GPT-2 layer. Weights of its linear maps lie (in, out), as in the Hugging Face file.
 *
 *                                                     values      none    cheap   mlp     block
 *   h1 = x_residual + x_branch                        C           kept    kept    kept    kept
 *   n1 = norm(h1)                                     C + 2       saved   -       -       -
 *   qkv = n1 Wqkv + b                                 3C          saved   saved   saved   again
 *   a, lse = attention(qkv)                           C, H        saved   saved   saved   again
 *   p = a Wproj + b                                   C           -       saved   saved   again
 *   h2 = h1 + p                         y_residual    C           saved   -       -       -
 *   n2 = norm(h2)                                     C + 2       saved   -       -       -
 *   f = n2 Wfc + b                                    I           saved   saved   again   again
 *   g = gelu(f)                                       I           saved   -       -       -
 *   y_branch = g Wout + b                             C
 *
 * "again": PASS_RECOMPUTE makes it, into memory that all layers share; "-": backward makes it,
 * out of what the layer has by then, but for p, which with h2 at hand nobody needs. Where a
 * device has an epilogue for it, gelu and its gradient, and sums for biases, are part of a
 * product.
 *
 * So a layer holds 16, 10, 6 or 1 C per token where I is 4C, and no pass only moves data: every
 * sum rides on a norm. Letters: R = B * T rows, C channels, I inner. */
#include "worker/model/blocks/blocks.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

/* a bias behind its weight */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };
enum { ATTENTION_REST = 4096 };

struct normed {
    void *sum, *y;     /* (R, C) */
    void *mean, *rstd; /* (R) */
};
/* Null: not of this layer. */
struct saved {
    struct normed first, second; /* the first one's sum is kept */
    void *qkv;                   /* (R, 3C) */
    void *att;                   /* (R, C) */
    void *lse;                   /* (B, H, T) */
    void *proj;                  /* (R, C) */
    void *fc;                    /* (R, I) */
    void *gelu;                  /* (R, I) */
};
struct scratch {
    void *norm;        /* (R, C): n1, n2 and their gradients, one after the other */
    void *wide;        /* (R, I) or (R, 3C): gelu, also when it is only f that is made again,
                        * then its gradient; later dqkv */
    void *sum;         /* (R, C): h2, or p; behind `wide`, so that what dqkv leaves of both is
                        * one piece */
    void *rest;        /* behind `sum`, with BF16: what attention's backward pass needs beside whole
                        * sequences' scores, (R, H) and a little, as these fill the piece */
    void *mean, *rstd; /* (R) */
};

static struct normed cut_normed(const struct model_spec *m, int64_t rows, struct cutter *c)
{
    struct normed n = {.sum = NULL};
    n.y = cut(c, rows * m->channels, dt_dtype_size(m->type));
    n.mean = cut(c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    n.rstd = cut(c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    return n;
}

/* Out of what is saved, and of what is made again. */
static struct saved cut_saved(const struct block *b, int64_t rows, struct cutter *saved, struct cutter *again)
{
    const struct model_spec *m = b->spec;
    struct cutter *attention = b->recompute == RECOMPUTE_BLOCK ? again : saved,
                  *mlp = b->recompute >= RECOMPUTE_MLP ? again : saved;
    size_t e = dt_dtype_size(m->type);
    struct saved out = {.gelu = NULL};
    if (b->recompute == RECOMPUTE_NONE) {
        void *sum = cut(saved, rows * m->channels, e); /* first: it is y_residual */
        out.first = cut_normed(m, rows, saved);
        out.second = cut_normed(m, rows, saved);
        out.second.sum = sum;
        out.gelu = cut(saved, rows * m->inner, e);
    }
    out.qkv = cut(attention, rows * 3 * m->channels, e);
    out.att = cut(attention, rows * m->channels, e);
    out.lse = cut(attention, rows * m->heads, dt_dtype_size(dt_dtype_wide(m->type)));
    out.proj = b->recompute != RECOMPUTE_NONE ? cut(attention, rows * m->channels, e) : NULL;
    out.fc = cut(mlp, rows * m->inner, e);
    return out;
}

static size_t cut_scratch(const struct model_spec *m, int64_t rows, void *base, struct scratch *out)
{
    struct cutter c = {.base = base};
    size_t e = dt_dtype_size(m->type);
    out->norm = cut(&c, rows * m->channels, e);
    out->wide = cut(&c, rows * (m->inner > 3 * m->channels ? m->inner : 3 * m->channels), e);
    out->sum = cut(&c, rows * m->channels, e);
    out->rest = cut(&c, m->type == DT_BF16 ? rows * m->heads + ATTENTION_REST : 0, sizeof(float));
    out->mean = cut(&c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    out->rstd = cut(&c, rows, dt_dtype_size(dt_dtype_wide(m->type)));
    return c.used;
}

static void name_tensor(struct block *b, const char *part, const int64_t *shape, int dims, enum init_kind init,
                        double init_std)
{
    char name[128];
    (void)snprintf(name, sizeof name, "transformer.h.%d.%s", b->layer, part);
    block_tensor(b, name, shape, dims, init, init_std);
}

static int declare(struct block *b, const struct model_spec *m, struct dt_error *err)
{
    (void)err;
    int64_t c = m->channels, i = m->inner;
    /* maps that end in the residual stream */
    double std = m->init_std, last = std / sqrt(2.0 * (double)m->layers);
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
    struct cutter saved = {.base = NULL}, again = {.base = NULL};
    struct scratch scratch;
    (void)cut_saved(b, rows, &saved, &again);
    b->kept_bytes = ((size_t)(rows * c) * dt_dtype_size(m->type) + 63) / 64 * 64;
    b->saved_bytes = saved.used;
    b->again_bytes = again.used;
    b->residual_saved = b->recompute == RECOMPUTE_NONE;
    b->scratch_bytes = cut_scratch(m, rows, NULL, &scratch);
    b->branch_out = true;
    return 0;
}

static int64_t row_count(const struct pass *p)
{
    return p->batch->batch_size * p->batch->sequence_length;
}

static struct saved saved_of(const struct block *b, const struct pass *p)
{
    struct cutter saved = {.base = p->saved}, again = {.base = p->again};
    return cut_saved(b, row_count(p), &saved, &again);
}

/* to->y = norm(residual + branch); the sum goes to to->sum, where that is not null. */
static void norm(const struct block *b, const struct pass *p, int weight, const void *residual, const void *branch,
                 const struct normed *to)
{
    enum dt_dtype type = b->spec->type;
    p->kernels->layernorm(p->stream, &(struct dt_layernorm_args){.y = to->y,
                                                                 .residual_out = to->sum,
                                                                 .mean = to->mean,
                                                                 .rstd = to->rstd,
                                                                 .residual = residual,
                                                                 .branch = branch,
                                                                 .gamma = block_at(b, p->weights, weight, type),
                                                                 .beta = block_at(b, p->weights, weight + 1, type),
                                                                 .row_count = row_count(p),
                                                                 .col_count = b->spec->channels,
                                                                 .eps = b->spec->norm_epsilon,
                                                                 .type = type});
}

/* Where a norm's results are: saved, or, for this call, in scratch. */
static struct normed place(const struct normed *saved, const struct scratch *s, void *sum)
{
    struct normed n = saved->y != NULL ? *saved : (struct normed){.y = s->norm, .mean = s->mean, .rstd = s->rstd};
    n.sum = sum;
    return n;
}

/* y (R, n) = x (R, k) W + bias; tensor number `weight` is W (k, n), the next one the bias. */
static void linear(const struct block *b, const struct pass *p, int weight, void *y, const void *x, int64_t n,
                   int64_t k)
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

/* f = x Wfc + bias and gelu(f), which nobody reads when f is made again. */
static void mlp_in(const struct block *b, const struct pass *p, const struct saved *f, const void *x, void *gelu)
{
    enum dt_dtype type = b->spec->type;
    dt_matmul_epilogue(p->kernels, p->stream,
                       &(struct dt_matmul_args){.epilogue = DT_EPILOGUE_GELU,
                                                .aux_only = p->phase == PASS_RECOMPUTE,
                                                .c = gelu,
                                                .aux = f->fc,
                                                .a = x,
                                                .b = block_at(b, p->weights, FC_W, type),
                                                .bias = block_at(b, p->weights, FC_B, type),
                                                .m = row_count(p),
                                                .n = b->spec->inner,
                                                .k = b->spec->channels,
                                                .type = type,
                                                .c_type = type,
                                                .busy_sms = p->busy_sms});
}

static void attend(const struct block *b, const struct pass *p, const struct saved *f, const void *x)
{
    const struct model_spec *m = b->spec;
    linear(b, p, QKV_W, f->qkv, x, 3 * m->channels, m->channels);
    p->kernels->attention(p->stream, &(struct dt_attention_args){.out = f->att,
                                                                 .lse = f->lse,
                                                                 .qkv = f->qkv,
                                                                 .batch = p->batch->batch_size,
                                                                 .positions = p->batch->sequence_length,
                                                                 .heads = m->heads,
                                                                 .head_size = m->channels / m->heads,
                                                                 .causal = true,
                                                                 .type = m->type});
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct model_spec *m = b->spec;
    bool again = p->phase == PASS_RECOMPUTE;
    int64_t c = m->channels;
    struct saved f = saved_of(b, p);
    struct scratch s;
    if (again && b->again_bytes == 0) {
        return;
    }
    assert(p->phase != PASS_FORWARD || !b->residual_saved || p->y_residual == p->saved);
    (void)cut_scratch(m, row_count(p), p->scratch, &s);
    void *proj = f.proj != NULL ? f.proj : s.sum, *gelu = f.gelu != NULL ? f.gelu : s.wide;
    if (!again || b->recompute == RECOMPUTE_BLOCK) {
        struct normed first = place(&f.first, &s, again ? NULL : p->kept);
        norm(b, p, LN1_W, again ? p->kept : p->x_residual, again ? NULL : p->x_branch, &first);
        attend(b, p, &f, first.y);
        linear(b, p, PROJ_W, proj, f.att, c, c);
    }
    struct normed second = place(&f.second, &s, again ? s.sum : p->y_residual);
    norm(b, p, LN2_W, p->kept, proj, &second);
    mlp_in(b, p, &f, second.y, gelu);
    if (!again) {
        linear(b, p, OUT_W, p->y_branch, gelu, c, m->inner);
    }
}

/* dW of y = x W + bias from x (R, k) and dy (R, n); with BIAS_BACKWARD also dbias. */
static void weight_backward(const struct block *b, const struct pass *p, int weight, const void *x, const void *dy,
                            int64_t n, int64_t k, enum dt_epilogue epilogue)
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
static struct dt_matmul_args input_gradient(const struct block *b, const struct pass *p, int weight, void *dx,
                                            const void *dy, int64_t n, int64_t k)
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
static void linear_backward(const struct block *b, const struct pass *p, int weight, void *dx, const void *x,
                            const void *dy, int64_t n, int64_t k, enum dt_epilogue epilogue)
{
    struct dt_matmul_args product = input_gradient(b, p, weight, dx, dy, n, k);
    weight_backward(b, p, weight, x, dy, n, k, epilogue);
    p->kernels->matmul(p->stream, &product);
}

/* Of y = gelu(f) Wout + bias: its gradients, those of f in wide, where gelu(f) may lie, and the
 * bias's of f. */
static void mlp_out_backward(const struct block *b, const struct pass *p, const struct saved *f, const void *gelu,
                             const struct scratch *s)
{
    enum dt_dtype grads = grad_type(b, p);
    int64_t c = b->spec->channels, inner = b->spec->inner;
    struct dt_matmul_args product = input_gradient(b, p, OUT_W, s->wide, p->dy, c, inner);
    weight_backward(b, p, OUT_W, gelu, p->dy, c, inner, DT_EPILOGUE_BIAS_BACKWARD);
    product.epilogue = DT_EPILOGUE_GELU_BACKWARD;
    product.aux = f->fc;
    product.bias_gradient = block_at(b, p->grads, FC_B, grads);
    product.grad_type = grads;
    product.accumulate = p->accumulate || b->adds[FC_B];
    dt_matmul_epilogue(p->kernels, p->stream, &product);
}

/* dx = gradient `dy` through the norm of x + what reached x from above. */
static void norm_backward(const struct block *b, const struct pass *p, int weight, const struct normed *n,
                          const void *x, const void *dy, const void *dabove)
{
    enum dt_dtype type = b->spec->type, grads = grad_type(b, p);
    p->kernels->layernorm_backward(
        p->stream, &(struct dt_layernorm_backward_args){.dx = p->dx,
                                                        .dgamma = block_at(b, p->grads, weight, grads),
                                                        .dbeta = block_at(b, p->grads, weight + 1, grads),
                                                        .dy = dy,
                                                        .x = x,
                                                        .gamma = block_at(b, p->weights, weight, type),
                                                        .mean = n->mean,
                                                        .rstd = n->rstd,
                                                        .dresidual = dabove,
                                                        .row_count = row_count(p),
                                                        .col_count = b->spec->channels,
                                                        .accumulate = p->accumulate || b->adds[weight],
                                                        .type = type,
                                                        .grad_type = grads});
}

/* What forward saved of a norm, or the same made again. */
static struct normed norm_again(const struct block *b, const struct pass *p, int weight, const struct normed *saved,
                                const struct scratch *s, const void *branch, void *sum)
{
    if (saved->y != NULL) {
        return *saved;
    }
    struct normed n = place(saved, s, sum);
    norm(b, p, weight, p->kept, branch, &n);
    return n;
}

static void mlp_backward(const struct block *b, const struct pass *p, const struct saved *f, const struct scratch *s)
{
    const struct model_spec *m = b->spec;
    if (f->gelu == NULL) {
        p->kernels->activation(
            p->stream,
            &(struct dt_activation_args){
                .y = s->wide, .x = f->fc, .count = row_count(p) * m->inner, .kind = DT_ACT_GELU, .type = m->type});
    }
    mlp_out_backward(b, p, f, f->gelu != NULL ? f->gelu : s->wide, s);
    struct normed second = norm_again(b, p, LN2_W, &f->second, s, f->proj, s->sum);
    linear_backward(b, p, FC_W, s->norm, second.y, s->wide, m->inner, m->channels, DT_EPILOGUE_NONE);
    /* dy is the gradient of the branch as well as of h2 */
    norm_backward(b, p, LN2_W, &second, second.sum, s->norm, p->dy);
}

/* From the gradient of h2, in dx, on. */
static void attend_backward(const struct block *b, const struct pass *p, const struct saved *f, const struct scratch *s)
{
    const struct model_spec *m = b->spec;
    int64_t c = m->channels;
    size_t dqkv_bytes = (size_t)(row_count(p) * 3 * c) * dt_dtype_size(m->type);
    linear_backward(b, p, PROJ_W, s->norm, f->att, p->dx, c, c, DT_EPILOGUE_BIAS_BACKWARD);
    p->kernels->attention_backward(
        p->stream,
        &(struct dt_attention_backward_args){.dqkv = s->wide,
                                             .work = (char *)s->wide + dqkv_bytes,
                                             .work_bytes = (size_t)((char *)s->mean - (char *)s->wide) - dqkv_bytes,
                                             .dout = s->norm,
                                             .out = f->att,
                                             .qkv = f->qkv,
                                             .lse = f->lse,
                                             .batch = p->batch->batch_size,
                                             .positions = p->batch->sequence_length,
                                             .heads = m->heads,
                                             .head_size = c / m->heads,
                                             .causal = true,
                                             .type = m->type});
    struct normed first = norm_again(b, p, LN1_W, &f->first, s, NULL, NULL);
    linear_backward(b, p, QKV_W, s->norm, first.y, s->wide, 3 * c, c, DT_EPILOGUE_BIAS_BACKWARD);
    norm_backward(b, p, LN1_W, &first, p->kept, s->norm, p->dx);
}

static void backward(const struct block *b, const struct pass *p)
{
    struct saved f = saved_of(b, p);
    struct scratch s;
    (void)cut_scratch(b->spec, row_count(p), p->scratch, &s);
    mlp_backward(b, p, &f, &s);
    attend_backward(b, p, &f, &s);
}

const struct block_ops block_gpt_layer = {
    .name = "gpt_layer", .declare = declare, .forward = forward, .backward = backward};
