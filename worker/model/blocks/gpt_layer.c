/* One GPT-2 layer. Weights of linear maps are stored (in, out), as in the Hugging Face file.
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
 * "again": PASS_RECOMPUTE computes it again, into memory that all layers share. "-": backward
 * computes it again from what the layer then has; except p, which is not needed if h2 is saved.
 * On a device with epilogues, gelu, its gradient and the sums for biases are part of a product.
 *
 * With dropout, p and y_branch are dropped where they were made, and attention drops its
 * probabilities. Backward drops their gradients likewise.
 *
 * So with I = 4C a layer keeps 16, 10, 6 or 1 C per token. No pass only moves data: each
 * residual sum is part of a norm. Letters: R = B * T rows, C channels, I inner. */
#include "worker/model/blocks/blocks.h"
#include "worker/model/blocks/drop.h"
#include "worker/model/blocks/packed.h"

#include <math.h>
#include <stdio.h>

/* each bias follows its weight */
enum { LN1_W, LN1_B, QKV_W, QKV_B, PROJ_W, PROJ_B, LN2_W, LN2_B, FC_W, FC_B, OUT_W, OUT_B };
enum { ATTENTION_REST = 4096 };
enum { DROP_ATTENTION, DROP_PROJ, DROP_OUT }; /* sites of dropout */

static const struct gpt_layer *shape_of(const struct block *b)
{
    return b->args;
}

/* Memory in the order of its declaration: first what lives from forward to backward, then that of
 * one call. */
enum {
    H1, /* (R, C) */
    H2, /* (R, C): y, if backward reads it */
    N1,
    N1_MEAN,
    N1_RSTD, /* (R, C), (R), (R) */
    N2,
    N2_MEAN,
    N2_RSTD,
    GELU,      /* (R, I) */
    QKV,       /* (R, 3C) */
    ATT,       /* (R, C) */
    LSE,       /* (B, H, T) */
    PROJ,      /* (R, C) */
    FC,        /* (R, I) */
    CALL_NORM, /* (R, C): n1, n2 and their gradients, in turn */
    /* (R, I) or (R, 3C): gelu, also if only f is computed again; then its gradient; later dqkv */
    CALL_WIDE,
    /* (R, C): h2, or p, or the dropped gradient of p or of y_branch; follows CALL_WIDE, so that the
     * parts of both that dqkv leaves are one piece */
    CALL_SUM,
    /* follows CALL_SUM, for BF16: attention's backward needs (R, H) and a little more, besides the
     * scores of whole sequences, which fill that piece */
    CALL_REST,
    CALL_MEAN,
    CALL_RSTD, /* (R) */
    CACHE      /* generation: keys and values of earlier positions */
};

struct normed {
    void *sum, *y;     /* (R, C) */
    void *mean, *rstd; /* (R) */
};
/* Null: this layer does not have it. */
struct saved {
    struct normed first, second;
    void *qkv, *att, *lse, *proj, *fc, *gelu;
};
struct scratch {
    void *norm, *wide, *sum, *mean, *rstd;
};

static void name_tensor(struct block *b, const char *part, const int64_t *shape, int dims, enum init_kind init,
                        double init_std)
{
    char name[128];
    (void)snprintf(name, sizeof name, "transformer.h.%d.%s", b->layer, part);
    block_tensor(b, name, shape, dims, &(struct tensor_rule){.init = init, .init_std = init_std});
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct gpt_layer *m = b->args;
    int64_t c = m->channels, i = m->inner, rows = most_rows(b), widest = i > 3 * c ? i : 3 * c;
    /* for the maps whose output is added to the residual stream */
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
    bool all = b->recompute == RECOMPUTE_NONE;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    block_memory(b, "h1", LIFE_BACKWARD, RECOMPUTE_NEVER, rows * c, type);
    block_memory(b, "h2", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * c : 0, type);
    block_memory(b, "n1", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * c : 0, type);
    block_memory(b, "n1 mean", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows : 0, wide);
    block_memory(b, "n1 rstd", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows : 0, wide);
    block_memory(b, "n2", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * c : 0, type);
    block_memory(b, "n2 mean", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows : 0, wide);
    block_memory(b, "n2 rstd", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows : 0, wide);
    block_memory(b, "gelu", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * i : 0, type);
    block_memory(b, "qkv", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * 3 * c, type);
    block_memory(b, "attention", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * c, type);
    block_memory(b, "lse", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * m->heads, wide);
    block_memory(b, "projection", LIFE_BACKWARD, RECOMPUTE_BLOCK, all ? 0 : rows * c, type);
    block_memory(b, "f", LIFE_BACKWARD, RECOMPUTE_MLP, rows * i, type);
    block_memory(b, "norm", LIFE_CALL, 0, rows * c, type);
    block_memory(b, "wide", LIFE_CALL, 0, rows * widest, type);
    block_memory(b, "sum", LIFE_CALL, 0, rows * c, type);
    block_memory(b, "rest", LIFE_CALL, 0, type == DT_BF16 ? rows * m->heads + ATTENTION_REST : 0, DT_F32);
    block_memory(b, "mean", LIFE_CALL, 0, rows, wide);
    block_memory(b, "rstd", LIFE_CALL, 0, rows, wide);
    packed_declare_cache(b, m->heads, c / m->heads);
    packed_declare_segments(b);
    drop_declare(b, m->attention_dropout);
    drop_declare(b, m->residual_dropout);
    b->in = b->out = stream_flow(b, c, true);
    b->in_place = true;
    b->y_memory = all ? H2 : -1;
    return 0;
}

static struct normed normed_at(const struct block *b, const struct pass *p, int y)
{
    return (struct normed){
        .y = pass_memory(b, p, y), .mean = pass_memory(b, p, y + 1), .rstd = pass_memory(b, p, y + 2)};
}

static struct saved saved_of(const struct block *b, const struct pass *p)
{
    struct saved f = {.first = normed_at(b, p, N1),
                      .second = normed_at(b, p, N2),
                      .qkv = pass_memory(b, p, QKV),
                      .att = pass_memory(b, p, ATT),
                      .lse = pass_memory(b, p, LSE),
                      .proj = pass_memory(b, p, PROJ),
                      .fc = pass_memory(b, p, FC),
                      .gelu = pass_memory(b, p, GELU)};
    f.first.sum = pass_memory(b, p, H1);
    f.second.sum = pass_memory(b, p, H2);
    return f;
}

static struct scratch scratch_of(const struct block *b, const struct pass *p)
{
    return (struct scratch){.norm = pass_memory(b, p, CALL_NORM),
                            .wide = pass_memory(b, p, CALL_WIDE),
                            .sum = pass_memory(b, p, CALL_SUM),
                            .mean = pass_memory(b, p, CALL_MEAN),
                            .rstd = pass_memory(b, p, CALL_RSTD)};
}

/* to->y = norm(residual + branch). The sum goes to to->sum, if that is not null. */
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
                                                                 .gamma = pass_weight(b, p, weight),
                                                                 .beta = pass_weight(b, p, weight + 1),
                                                                 .row_count = row_count(p),
                                                                 .col_count = shape_of(b)->channels,
                                                                 .eps = shape_of(b)->norm_epsilon,
                                                                 .type = type});
}

/* Returns where a norm's results go: to saved memory, or to scratch for this call. */
static struct normed place(const struct normed *saved, const struct scratch *s, void *sum)
{
    struct normed n = saved->y != NULL ? *saved : (struct normed){.y = s->norm, .mean = s->mean, .rstd = s->rstd};
    n.sum = sum;
    return n;
}

/* Drops elements of a branch (R, C), or of its gradient; as drop. */
static const void *drop_branch(const struct block *b, const struct pass *p, int site, void *to, const void *x)
{
    return drop(b, p, shape_of(b)->residual_dropout, site, to, x, row_count(p), shape_of(b)->channels);
}

/* y (R, n) = x (R, k) W + bias; tensor number `weight` is W (k, n), the next one the bias. */
static void linear(const struct block *b, const struct pass *p, int weight, void *y, const void *x, int64_t n,
                   int64_t k)
{
    enum dt_dtype type = b->spec->type;
    p->kernels->matmul(p->stream, &(struct dt_matmul_args){.c = y,
                                                           .a = x,
                                                           .b = pass_weight(b, p, weight),
                                                           .bias = pass_weight(b, p, weight + 1),
                                                           .m = row_count(p),
                                                           .n = n,
                                                           .k = k,
                                                           .type = type,
                                                           .c_type = type,
                                                           .busy_sms = p->busy_sms});
}

/* f = x Wfc + bias, and gelu(f). PASS_RECOMPUTE needs only f. */
static void mlp_in(const struct block *b, const struct pass *p, const struct saved *f, const void *x, void *gelu)
{
    enum dt_dtype type = b->spec->type;
    dt_matmul_epilogue(p->kernels, p->stream,
                       &(struct dt_matmul_args){.epilogue = DT_EPILOGUE_GELU,
                                                .aux_only = p->phase == PASS_RECOMPUTE,
                                                .c = gelu,
                                                .aux = f->fc,
                                                .a = x,
                                                .b = pass_weight(b, p, FC_W),
                                                .bias = pass_weight(b, p, FC_B),
                                                .m = row_count(p),
                                                .n = shape_of(b)->inner,
                                                .k = shape_of(b)->channels,
                                                .type = type,
                                                .c_type = type,
                                                .busy_sms = p->busy_sms});
}

static struct packed attention_of(const struct block *b, const struct pass *p, const struct saved *f)
{
    const struct gpt_layer *m = b->args;
    struct packed a = {.shape = packed_shape(b, p, m->heads, m->heads, m->channels / m->heads),
                       .qkv = f->qkv,
                       .out = f->att,
                       .lse = f->lse,
                       .cache = pass_memory(b, p, CACHE)};
    a.shape.causal = true;
    drop_attention(b, p, m->attention_dropout, DROP_ATTENTION, &a.shape);
    return a;
}

static void attend(const struct block *b, const struct pass *p, const struct saved *f, const void *x)
{
    const struct gpt_layer *m = b->args;
    struct packed a = attention_of(b, p, f);
    linear(b, p, QKV_W, f->qkv, x, 3 * m->channels, m->channels);
    packed_attention(p, &a);
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct gpt_layer *m = b->args;
    bool again = p->phase == PASS_RECOMPUTE;
    int64_t c = m->channels;
    struct saved f = saved_of(b, p);
    struct scratch s = scratch_of(b, p);
    void *proj = f.proj != NULL ? f.proj : s.sum, *gelu = f.gelu != NULL ? f.gelu : s.wide;
    if (!again || b->recompute == RECOMPUTE_BLOCK) {
        struct normed first = place(&f.first, &s, again ? NULL : f.first.sum);
        norm(b, p, LN1_W, again ? f.first.sum : p->x, again ? NULL : p->x_branch, &first);
        attend(b, p, &f, first.y);
        linear(b, p, PROJ_W, proj, f.att, c, c);
        (void)drop_branch(b, p, DROP_PROJ, proj, proj);
    }
    struct normed second = place(&f.second, &s, again ? s.sum : p->y);
    norm(b, p, LN2_W, f.first.sum, proj, &second);
    mlp_in(b, p, &f, second.y, gelu);
    if (!again) {
        linear(b, p, OUT_W, p->y_branch, gelu, c, m->inner);
        (void)drop_branch(b, p, DROP_OUT, p->y_branch, p->y_branch);
    }
}

/* dW of y = x W + bias, from x (R, k) and dy (R, n). With BIAS_BACKWARD also dbias. */
static void weight_backward(const struct block *b, const struct pass *p, int weight, const void *x, const void *dy,
                            int64_t n, int64_t k, enum dt_epilogue epilogue)
{
    enum dt_dtype grads = pass_grad_type(b, p);
    if (!block_trains(b, weight) && !block_trains(b, weight + 1)) {
        return;
    }
    dt_matmul_epilogue(p->kernels, p->stream,
                       &(struct dt_matmul_args){.epilogue = epilogue,
                                                .c = pass_grad(b, p, weight),
                                                .bias_gradient = pass_grad(b, p, weight + 1),
                                                .a = x,
                                                .b = dy,
                                                .m = k,
                                                .n = n,
                                                .k = row_count(p),
                                                .a_transposed = true,
                                                .accumulate = pass_adds(b, p, weight),
                                                .type = b->spec->type,
                                                .c_type = grads,
                                                .grad_type = grads,
                                                .busy_sms = p->busy_sms});
}

/* The product dx (R, k) = dy W^T, for y (R, n) = x W + bias. */
static struct dt_matmul_args input_gradient(const struct block *b, const struct pass *p, int weight, void *dx,
                                            const void *dy, int64_t n, int64_t k)
{
    enum dt_dtype type = b->spec->type;
    return (struct dt_matmul_args){.c = dx,
                                   .a = dy,
                                   .b = pass_weight(b, p, weight),
                                   .m = row_count(p),
                                   .n = k,
                                   .k = n,
                                   .b_transposed = true,
                                   .type = type,
                                   .c_type = type,
                                   .busy_sms = p->busy_sms};
}

/* dW as above, then dx, which may overwrite x. */
static void linear_backward(const struct block *b, const struct pass *p, int weight, void *dx, const void *x,
                            const void *dy, int64_t n, int64_t k, enum dt_epilogue epilogue)
{
    struct dt_matmul_args product = input_gradient(b, p, weight, dx, dy, n, k);
    weight_backward(b, p, weight, x, dy, n, k, epilogue);
    p->kernels->matmul(p->stream, &product);
}

/* The gradients of y = gelu(f) Wout + bias from dy. The gradient of f goes to wide, which may hold gelu(f).
 * Also computes the gradient of the bias of f. */
static void mlp_out_backward(const struct block *b, const struct pass *p, const struct saved *f, const void *gelu,
                             const void *dy, const struct scratch *s)
{
    enum dt_dtype grads = pass_grad_type(b, p);
    int64_t c = shape_of(b)->channels, inner = shape_of(b)->inner;
    struct dt_matmul_args product = input_gradient(b, p, OUT_W, s->wide, dy, c, inner);
    weight_backward(b, p, OUT_W, gelu, dy, c, inner, DT_EPILOGUE_BIAS_BACKWARD);
    product.epilogue = DT_EPILOGUE_GELU_BACKWARD;
    product.aux = f->fc;
    product.bias_gradient = pass_grad(b, p, FC_B);
    product.grad_type = grads;
    product.accumulate = pass_adds(b, p, FC_B);
    dt_matmul_epilogue(p->kernels, p->stream, &product);
}

/* dx = gradient `dy` through the norm of x, plus `dabove`, the gradient that reaches x directly. */
static void norm_backward(const struct block *b, const struct pass *p, int weight, const struct normed *n,
                          const void *x, const void *dy, const void *dabove)
{
    enum dt_dtype type = b->spec->type, grads = pass_grad_type(b, p);
    p->kernels->layernorm_backward(p->stream,
                                   &(struct dt_layernorm_backward_args){.dx = p->dx,
                                                                        .dgamma = pass_grad(b, p, weight),
                                                                        .dbeta = pass_grad(b, p, weight + 1),
                                                                        .dy = dy,
                                                                        .x = x,
                                                                        .gamma = pass_weight(b, p, weight),
                                                                        .mean = n->mean,
                                                                        .rstd = n->rstd,
                                                                        .dresidual = dabove,
                                                                        .row_count = row_count(p),
                                                                        .col_count = shape_of(b)->channels,
                                                                        .accumulate = pass_adds(b, p, weight),
                                                                        .type = type,
                                                                        .grad_type = grads});
}

/* Returns the results of a norm that forward has saved, or computes them again. */
static struct normed norm_again(const struct block *b, const struct pass *p, int weight, const struct normed *saved,
                                const struct scratch *s, const void *branch, void *sum)
{
    if (saved->y != NULL) {
        return *saved;
    }
    struct normed n = place(saved, s, sum);
    norm(b, p, weight, pass_memory(b, p, H1), branch, &n);
    return n;
}

static void mlp_backward(const struct block *b, const struct pass *p, const struct saved *f, const struct scratch *s)
{
    const struct gpt_layer *m = b->args;
    if (f->gelu == NULL) {
        p->kernels->activation(p->stream, &(struct dt_activation_args){.y = s->wide,
                                                                       .x = f->fc,
                                                                       .count = row_count(p) * m->inner,
                                                                       .kind = DT_ACT_GELU,
                                                                       .type = b->spec->type});
    }
    const void *dbranch = drop_branch(b, p, DROP_OUT, s->sum, p->dy);
    mlp_out_backward(b, p, f, f->gelu != NULL ? f->gelu : s->wide, dbranch, s);
    struct normed second = norm_again(b, p, LN2_W, &f->second, s, f->proj, s->sum);
    linear_backward(b, p, FC_W, s->norm, second.y, s->wide, m->inner, m->channels, DT_EPILOGUE_NONE);
    /* dy is the gradient of the branch and also of h2 */
    norm_backward(b, p, LN2_W, &second, second.sum, s->norm, p->dy);
}

/* Backward from the gradient of h2, in dx, to the layer's input. */
static void attend_backward(const struct block *b, const struct pass *p, const struct saved *f, const struct scratch *s)
{
    const struct gpt_layer *m = b->args;
    int64_t c = m->channels;
    size_t dqkv_bytes = (size_t)(row_count(p) * 3 * c) * dt_dtype_size(b->spec->type);
    const void *dproj = drop_branch(b, p, DROP_PROJ, s->sum, p->dx);
    linear_backward(b, p, PROJ_W, s->norm, f->att, dproj, c, c, DT_EPILOGUE_BIAS_BACKWARD);
    struct packed a = attention_of(b, p, f);
    packed_attention_backward(p, &a, s->wide, s->norm, (char *)s->wide + dqkv_bytes,
                              (size_t)((char *)s->mean - (char *)s->wide) - dqkv_bytes);
    struct normed first = norm_again(b, p, LN1_W, &f->first, s, NULL, NULL);
    linear_backward(b, p, QKV_W, s->norm, first.y, s->wide, 3 * c, c, DT_EPILOGUE_BIAS_BACKWARD);
    norm_backward(b, p, LN1_W, &first, f->first.sum, s->norm, p->dx);
}

static void backward(const struct block *b, const struct pass *p)
{
    struct saved f = saved_of(b, p);
    struct scratch s = scratch_of(b, p);
    mlp_backward(b, p, &f, &s);
    attend_backward(b, p, &f, &s);
}

const struct block_ops block_gpt_layer = {
    .name = "gpt_layer", .declare = declare, .forward = forward, .backward = backward};
