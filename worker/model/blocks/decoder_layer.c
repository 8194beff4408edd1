/* One decoder layer of Llama's kind. Weights of linear maps are stored (out, in), as in the Hugging
 * Face file.
 *
 *                                                     values      none    cheap   mlp     block
 *   h1 = x_residual + x_branch                        C           kept    kept    kept    kept
 *   n1 = norm(h1)                                     C + 1       saved   -       -       -
 *   q, k, v = n1 W + b                                (H + 2KV) D saved   saved   saved   again
 *   q, k = norm(q), norm(k); turned by position       (H + KV) D  saved   saved   saved   again
 *   a, lse = attention(q, k, v)                       H D, H      saved   saved   saved   again
 *   p = a Wo + b                                      C           -       saved   saved   again
 *   h2 = h1 + norm(p)                   y_residual    C           saved   -       -       -
 *   n2 = norm(h2)                                     C + 1       saved   -       -       -
 *   g, u = n2 W + b                                   2 I         saved   saved   again   again
 *   f = act(g) u                                      I           saved   -       -       -
 *   m = f Wdown + b                                   C           -       saved   again   again
 *   y_branch = norm(m)                                C
 *
 * Each norm, bias and turn is there or not by the switches of struct decoder_layer. The row of q and
 * k before their norm exists only with that norm, p only if it has a norm or h2 is computed again, m
 * only if it has a norm. "again" and "-" are as in gpt_layer.c. With dropout, p and y_branch are
 * dropped where they were made.
 *
 * Backward overwrites g and u by their gradients. Letters: R = B * T rows, C channels, I inner, H
 * heads, KV heads of keys and values, D values of a head. */
#include "worker/model/blocks/decoder.h"
#include "worker/model/blocks/drop.h"
#include "worker/model/blocks/linear.h"
#include "worker/model/blocks/packed.h"

#include <assert.h>
#include <stdio.h>

enum { ATTENTION_REST = 4096 };
enum { DROP_ATTENTION, DROP_PROJ, DROP_DOWN }; /* sites of dropout */

/* Memory in the order of its declaration: first what lives from forward to backward, then that of
 * one call. */
enum {
    H1, /* (R, C) */
    H2, /* (R, C): y, if backward reads it */
    N1,
    N1_RSTD, /* (R, C), (R) */
    N2,
    N2_RSTD,
    INNER,  /* (R, I): f */
    QK,     /* (R, (H + KV) D): q and k before their norms */
    Q_RSTD, /* (R, H), or (R) for one norm over all heads */
    K_RSTD,
    QKV, /* (R, (H + 2 KV) D) */
    ATT, /* (R, H D) */
    LSE, /* (B, H, T) */
    PROJ,
    PROJ_RSTD, /* (R, C), (R) */
    GATE_UP,   /* (R, 2 I) */
    DOWN,
    DOWN_RSTD,   /* (R, C), (R) */
    CALL_NORM,   /* (R, C): n1, n2 and their gradients, in turn */
    CALL_WIDE,   /* (R, I) or (R, (H + 2 KV) D): f or its gradient; later the gradient of q, k, v */
    CALL_SUM,    /* (R, C): h2, or p */
    CALL_BRANCH, /* (R, C): a norm's output before the residual sum, or its gradient */
    CALL_HEADS,  /* (R, H D): the gradient of attention's output */
    CALL_REST,   /* what attention's backward uses for speed */
    CALL_RSTD,   /* (R) */
    CALL_SUMS,   /* sums of columns for biases */
    CACHE        /* generation: keys and values of earlier positions */
};

/* Tensors of the layer that every family has under some name; a block has those that it declares. */
struct tensors {
    struct linear qkv, o, gate_up, down;
    int norm_in, norm_out, norm_in2, norm_out2, q_norm, k_norm; /* -1: none */
};

static const struct decoder_layer *layer_of(const struct block *b)
{
    return b->args;
}

static int64_t qkv_columns(const struct decoder_layer *m)
{
    return (m->heads + 2 * m->kv_heads) * m->head_size;
}

static int64_t qk_columns(const struct decoder_layer *m)
{
    return (m->heads + m->kv_heads) * m->head_size;
}

/* ---- tensors: the same walk declares them and finds their numbers ---- */

static int name_norm(struct naming *n, const struct decoder_layer *m, const char *name, int64_t size)
{
    const struct tensor_rule rule = {.init = m->weight_offset != 0 ? INIT_ZERO : INIT_ONE};
    return name_tensor(n, name, ".weight", &size, 1, &rule);
}

static void name_attention(struct naming *n, const struct decoder_layer *m, struct tensors *t)
{
    static const char *const apart[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    static const char *const fused[] = {"self_attn.qkv_proj"}, *const out[] = {"self_attn.o_proj"};
    const struct linear_rule rule = {.weight = {.init = INIT_NORMAL, .init_std = m->init_std}};
    int64_t q = m->heads * m->head_size, kv = m->kv_heads * m->head_size, all = q + 2 * kv;
    t->qkv = m->fused ? linear_name(n, fused, &all, 1, m->channels, m->qkv_bias, &rule)
                      : linear_name(n, apart, (int64_t[]){q, kv, kv}, 3, m->channels, m->qkv_bias, &rule);
    t->o = linear_name(n, out, &m->channels, 1, q, m->o_bias, &rule);
    if (m->qk_norm != QK_NORM_NONE) {
        bool heads = m->qk_norm == QK_NORM_HEADS;
        t->q_norm = name_norm(n, m, "self_attn.q_norm", heads ? m->head_size : q);
        t->k_norm = name_norm(n, m, "self_attn.k_norm", heads ? m->head_size : kv);
    }
}

static void name_mlp(struct naming *n, const struct decoder_layer *m, struct tensors *t)
{
    static const char *const apart[] = {"mlp.gate_proj", "mlp.up_proj"}, *const fused[] = {"mlp.gate_up_proj"},
                             *const out[] = {"mlp.down_proj"};
    const struct linear_rule rule = {.weight = {.init = INIT_NORMAL, .init_std = m->init_std}};
    int64_t both = 2 * m->inner;
    t->gate_up = m->fused ? linear_name(n, fused, &both, 1, m->channels, m->mlp_bias, &rule)
                          : linear_name(n, apart, (int64_t[]){m->inner, m->inner}, 2, m->channels, m->mlp_bias, &rule);
    t->down = linear_name(n, out, &m->channels, 1, m->inner, m->mlp_bias, &rule);
}

/* "post_attention_layernorm" stands before the MLP where norms stand before only, and after
 * attention otherwise. */
static void name_norms(struct naming *n, const struct decoder_layer *m, struct tensors *t)
{
    int64_t c = m->channels;
    enum norm_place norms = m->norms;
    if (norms != NORM_AFTER) {
        t->norm_in = name_norm(n, m, "input_layernorm", c);
    }
    int post = name_norm(n, m, "post_attention_layernorm", c);
    *(norms == NORM_BEFORE ? &t->norm_in2 : &t->norm_out) = post;
    if (norms == NORM_BOTH) {
        t->norm_in2 = name_norm(n, m, "pre_feedforward_layernorm", c);
    }
    if (norms != NORM_BEFORE) {
        t->norm_out2 = name_norm(n, m, "post_feedforward_layernorm", c);
    }
}

static struct tensors walk_tensors(const struct block *b, struct block *declared)
{
    struct tensors t = {.norm_in = -1, .norm_out = -1, .norm_in2 = -1, .norm_out2 = -1, .q_norm = -1, .k_norm = -1};
    struct naming n = {.block = declared};
    if (declared != NULL) {
        (void)snprintf(n.prefix, sizeof n.prefix, "model.layers.%d.", b->layer);
    }
    name_attention(&n, b->args, &t);
    name_mlp(&n, b->args, &t);
    name_norms(&n, b->args, &t);
    return t;
}

static struct tensors tensors_of(const struct block *b)
{
    return walk_tensors(b, NULL);
}

static void declare_memory(struct block *b)
{
    const struct decoder_layer *m = b->args;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    bool all = b->recompute == RECOMPUTE_NONE, in = m->norms != NORM_AFTER, out = m->norms != NORM_BEFORE;
    bool qk = m->qk_norm != QK_NORM_NONE, scaled = m->residual_scale != 1;
    int64_t rows = most_rows(b), c = m->channels, i = m->inner, heads = m->heads * m->head_size, qkv = qkv_columns(m);
    int64_t norms = m->qk_norm == QK_NORM_ALL ? 1 : m->heads, kv_norms = m->qk_norm == QK_NORM_ALL ? 1 : m->kv_heads;
    bool biased = m->qkv_bias || m->o_bias || m->mlp_bias;
    int64_t widest = i > qkv ? i : qkv, sums = 2 * i > qkv ? 2 * i : qkv;
    block_memory(b, "h1", LIFE_BACKWARD, RECOMPUTE_NEVER, rows * c, type);
    block_memory(b, "h2", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * c : 0, type);
    block_memory(b, "n1", LIFE_BACKWARD, RECOMPUTE_NEVER, all && in ? rows * c : 0, type);
    block_memory(b, "n1 rstd", LIFE_BACKWARD, RECOMPUTE_NEVER, all && in ? rows : 0, wide);
    block_memory(b, "n2", LIFE_BACKWARD, RECOMPUTE_NEVER, all && in ? rows * c : 0, type);
    block_memory(b, "n2 rstd", LIFE_BACKWARD, RECOMPUTE_NEVER, all && in ? rows : 0, wide);
    block_memory(b, "inner", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * i : 0, type);
    block_memory(b, "q and k", LIFE_BACKWARD, RECOMPUTE_BLOCK, qk ? rows * qk_columns(m) : 0, type);
    block_memory(b, "q rstd", LIFE_BACKWARD, RECOMPUTE_BLOCK, qk ? rows * norms : 0, wide);
    block_memory(b, "k rstd", LIFE_BACKWARD, RECOMPUTE_BLOCK, qk ? rows * kv_norms : 0, wide);
    block_memory(b, "qkv", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * qkv, type);
    block_memory(b, "attention", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * heads, type);
    block_memory(b, "lse", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * m->heads, wide);
    block_memory(b, "projection", LIFE_BACKWARD, RECOMPUTE_BLOCK, all && !out ? 0 : rows * c, type);
    block_memory(b, "projection rstd", LIFE_BACKWARD, RECOMPUTE_BLOCK, out ? rows : 0, wide);
    block_memory(b, "gate and up", LIFE_BACKWARD, RECOMPUTE_MLP, rows * 2 * i, type);
    block_memory(b, "down", LIFE_BACKWARD, RECOMPUTE_MLP, out ? rows * c : 0, type);
    block_memory(b, "down rstd", LIFE_BACKWARD, RECOMPUTE_MLP, out ? rows : 0, wide);
    block_memory(b, "norm", LIFE_CALL, 0, rows * c, type);
    block_memory(b, "wide", LIFE_CALL, 0, rows * widest, type);
    block_memory(b, "sum", LIFE_CALL, 0, rows * c, type);
    block_memory(b, "branch", LIFE_CALL, 0, out || scaled || m->residual_dropout > 0 ? rows * c : 0, type);
    block_memory(b, "heads", LIFE_CALL, 0, rows * heads, type);
    block_memory(b, "rest", LIFE_CALL, 0, type == DT_BF16 ? rows * m->heads + ATTENTION_REST : 0, DT_F32);
    block_memory(b, "rstd", LIFE_CALL, 0, rows, wide);
    block_memory(b, "sums", LIFE_CALL, 0, biased ? (sums > c ? sums : c) : 0, wide);
    packed_declare_cache(b, m->kv_heads, m->head_size);
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct decoder_layer *m = b->args;
    assert(m->norms != NORM_AFTER || m->residual_scale == 1); /* `add` does not scale */
    assert(m->norms == NORM_BEFORE || m->residual_dropout == 0);
    assert(!m->fused || m->qk_norm == QK_NORM_NONE); /* `project` takes q and k apart from v */
    (void)walk_tensors(b, b);
    declare_memory(b);
    packed_declare_segments(b);
    if (m->turns) {
        block_constant(b, m->rope_name, most_positions(b) * m->rope.width, rope_fill, &m->rope, sizeof m->rope);
    }
    drop_declare(b, m->attention_dropout);
    drop_declare(b, m->residual_dropout);
    b->in = b->out = stream_flow(b, m->channels, true);
    b->in_place = true;
    b->y_memory = b->recompute == RECOMPUTE_NONE ? H2 : -1;
    return 0;
}

/* ---- forward ---- */

/* y = norm(residual + scale * branch); the sum goes to `sum` if that is not null. */
static void norm(const struct block *b, const struct pass *p, int weight, const void *residual, const void *branch,
                 void *sum, void *y, void *rstd)
{
    const struct decoder_layer *m = b->args;
    p->kernels->rmsnorm(p->stream, &(struct dt_rmsnorm_args){.y = y,
                                                             .residual_out = sum,
                                                             .rstd = rstd,
                                                             .residual = residual,
                                                             .branch = branch,
                                                             .weight = pass_weight(b, p, weight),
                                                             .row_count = row_count(p),
                                                             .col_count = m->channels,
                                                             .eps = m->norm_epsilon,
                                                             .branch_scale = m->residual_scale,
                                                             .weight_offset = m->weight_offset,
                                                             .type = b->spec->type});
}

/* sum = residual + branch, where no norm follows; without a branch, a copy. */
static void add(const struct block *b, const struct pass *p, void *sum, const void *residual, const void *branch)
{
    enum dt_dtype type = b->spec->type;
    int64_t count = row_count(p) * layer_of(b)->channels;
    if (branch != NULL) {
        p->kernels->add(p->stream, &(struct dt_add_args){sum, residual, branch, count, type, type});
    } else if (sum != residual) {
        p->kernels->cast(p->stream, &(struct dt_cast_args){sum, residual, count, type, type});
    }
}

/* Memory `number` if the layer has it, otherwise the call's memory `other`. */
static void *memory_or(const struct block *b, const struct pass *p, int number, int other)
{
    void *m = pass_memory(b, p, number);
    return m != NULL ? m : pass_memory(b, p, other);
}

/* Norms the queries and keys of QK into those of QKV. */
static void norm_heads(const struct block *b, const struct pass *p, const struct tensors *t)
{
    const struct decoder_layer *m = b->args;
    bool all = m->qk_norm == QK_NORM_ALL;
    int64_t first = 0, counts[] = {m->heads, m->kv_heads};
    for (int i = 0; i < 2; i++) {
        size_t offset = (size_t)(first * m->head_size) * dt_dtype_size(b->spec->type);
        int64_t norms = all ? 1 : counts[i];
        p->kernels->rmsnorm(p->stream,
                            &(struct dt_rmsnorm_args){.y = (char *)pass_memory(b, p, QKV) + offset,
                                                      .rstd = pass_memory(b, p, i == 0 ? Q_RSTD : K_RSTD),
                                                      .residual = (char *)pass_memory(b, p, QK) + offset,
                                                      .weight = pass_weight(b, p, i == 0 ? t->q_norm : t->k_norm),
                                                      .row_count = row_count(p) * norms,
                                                      .col_count = all ? counts[i] * m->head_size : m->head_size,
                                                      .heads = norms,
                                                      .x_ld = qk_columns(m),
                                                      .y_ld = qkv_columns(m),
                                                      .eps = m->norm_epsilon,
                                                      .weight_offset = m->weight_offset,
                                                      .type = b->spec->type});
        first += counts[i];
    }
}

/* Queries and keys to `qk`, values to qkv, where the norms of queries and keys come between. */
static void project(const struct block *b, const struct pass *p, const struct tensors *t, const void *x)
{
    const struct decoder_layer *m = b->args;
    char *qkv = pass_memory(b, p, QKV), *qk = pass_memory(b, p, QK);
    int64_t columns = qkv_columns(m), first = qk_columns(m);
    if (qk == NULL) {
        linear_forward(b, p, &t->qkv, qkv, 0, x);
        return;
    }
    struct linear queries = t->qkv, values = t->qkv;
    queries.count = 2;
    values.count = 1;
    values.out[0] = t->qkv.out[2];
    values.weight[0] = t->qkv.weight[2];
    values.bias[0] = t->qkv.bias[2];
    linear_forward(b, p, &queries, qk, 0, x);
    linear_forward(b, p, &values, qkv + (size_t)first * dt_dtype_size(b->spec->type), columns, x);
    norm_heads(b, p, t);
}

static struct packed attention_of(const struct block *b, const struct pass *p)
{
    const struct decoder_layer *m = b->args;
    struct packed a = {.shape = packed_shape(b, p, m->heads, m->kv_heads, m->head_size),
                       .qkv = pass_memory(b, p, QKV),
                       .out = pass_memory(b, p, ATT),
                       .lse = pass_memory(b, p, LSE),
                       .cache = pass_memory(b, p, CACHE)};
    a.shape.scale = m->score_scale;
    a.shape.softcap = m->score_cap;
    a.shape.causal = true;
    a.shape.window = m->window;
    drop_attention(b, p, m->attention_dropout, DROP_ATTENTION, &a.shape);
    return a;
}

/* Drops elements of a branch (R, C), or of its gradient; as drop. */
static const void *drop_branch(const struct block *b, const struct pass *p, int site, void *to, const void *x)
{
    return drop(b, p, layer_of(b)->residual_dropout, site, to, x, row_count(p), layer_of(b)->channels);
}

/* From h1 to p. */
static void attend(const struct block *b, const struct pass *p, const struct tensors *t, const void *x, void *proj)
{
    const struct decoder_layer *m = b->args;
    struct packed a = attention_of(b, p);
    project(b, p, t, x);
    if (m->turns) {
        packed_turn(b, p, &a.shape, m->rope.width, a.qkv, false);
    }
    packed_attention(p, &a);
    linear_forward(b, p, &t->o, proj, 0, a.out);
    (void)drop_branch(b, p, DROP_PROJ, proj, proj);
}

/* n1, or h1 itself if the layer has no norm there. fresh: h1 is not there yet. */
static const void *first_norm(const struct block *b, const struct pass *p, const struct tensors *t, bool fresh)
{
    void *h1 = pass_memory(b, p, H1), *y = memory_or(b, p, N1, CALL_NORM);
    if (t->norm_in >= 0) {
        norm(b, p, t->norm_in, fresh ? p->x : h1, fresh ? p->x_branch : NULL, fresh ? h1 : NULL, y,
             memory_or(b, p, N1_RSTD, CALL_RSTD));
        return y;
    }
    if (fresh) {
        add(b, p, h1, p->x, p->x_branch);
    }
    return h1;
}

/* h2 = h1 + p, or + norm(p), to `sum`, and n2, or h2 itself. */
static const void *second_norm(const struct block *b, const struct pass *p, const struct tensors *t, const void *proj,
                               void *sum)
{
    void *h1 = pass_memory(b, p, H1), *y = memory_or(b, p, N2, CALL_NORM);
    if (t->norm_out >= 0) {
        norm(b, p, t->norm_out, proj, NULL, NULL, pass_memory(b, p, CALL_BRANCH), pass_memory(b, p, PROJ_RSTD));
        proj = pass_memory(b, p, CALL_BRANCH);
    }
    if (t->norm_in2 >= 0) {
        norm(b, p, t->norm_in2, h1, proj, sum, y, memory_or(b, p, N2_RSTD, CALL_RSTD));
        return y;
    }
    add(b, p, sum, h1, proj);
    return sum;
}

static struct packed_gate gate_of(const struct block *b)
{
    return (struct packed_gate){.kind = layer_of(b)->activation, .inner = layer_of(b)->inner};
}

static void forward(const struct block *b, const struct pass *p)
{
    bool again = p->phase == PASS_RECOMPUTE;
    struct tensors t = tensors_of(b);
    void *proj = memory_or(b, p, PROJ, CALL_SUM), *inner = memory_or(b, p, INNER, CALL_WIDE);
    if (!again || b->recompute == RECOMPUTE_BLOCK) {
        attend(b, p, &t, first_norm(b, p, &t, !again), proj);
    }
    void *sum = again ? pass_memory(b, p, CALL_SUM) : p->y;
    linear_forward(b, p, &t.gate_up, pass_memory(b, p, GATE_UP), 0, second_norm(b, p, &t, proj, sum));
    if (again && t.norm_out2 < 0) {
        return; /* backward computes f as it needs it */
    }
    const struct packed_gate gate = gate_of(b);
    packed_gate(b, p, &gate, inner, pass_memory(b, p, GATE_UP));
    linear_forward(b, p, &t.down, t.norm_out2 < 0 ? p->y_branch : pass_memory(b, p, DOWN), 0, inner);
    if (t.norm_out2 >= 0 && !again) {
        norm(b, p, t.norm_out2, pass_memory(b, p, DOWN), NULL, NULL, p->y_branch, pass_memory(b, p, DOWN_RSTD));
    } else if (t.norm_out2 >= 0) {
        /* for the deviations; its output is not used */
        norm(b, p, t.norm_out2, pass_memory(b, p, DOWN), NULL, NULL, pass_memory(b, p, CALL_BRANCH),
             pass_memory(b, p, DOWN_RSTD));
    } else {
        (void)drop_branch(b, p, DROP_DOWN, p->y_branch, p->y_branch);
    }
}

/* ---- backward ---- */

/* dx = gradient `dy` through a norm of x, plus dresidual, which may be null. */
static void norm_backward(const struct block *b, const struct pass *p, int weight, const void *x, const void *rstd,
                          const void *dy, const void *dresidual, void *dx)
{
    const struct decoder_layer *m = b->args;
    p->kernels->rmsnorm_backward(p->stream, &(struct dt_rmsnorm_backward_args){.dx = dx,
                                                                               .dweight = pass_grad(b, p, weight),
                                                                               .dy = dy,
                                                                               .x = x,
                                                                               .weight = pass_weight(b, p, weight),
                                                                               .rstd = rstd,
                                                                               .dresidual = dresidual,
                                                                               .row_count = row_count(p),
                                                                               .col_count = m->channels,
                                                                               .weight_offset = m->weight_offset,
                                                                               .accumulate = pass_adds(b, p, weight),
                                                                               .type = b->spec->type,
                                                                               .grad_type = pass_grad_type(b, p)});
}

/* The gradient of a branch (p or m) from dy, that of the residual sum: scaled, dropped at `site`, and
 * through the norm `weight` of x if there is one. dy itself if it is none of these. */
static const void *branch_backward(const struct block *b, const struct pass *p, int site, int weight, const void *x,
                                   const void *rstd, const void *dy)
{
    const struct decoder_layer *m = b->args;
    void *branch = pass_memory(b, p, CALL_BRANCH);
    if (m->residual_scale != 1) {
        p->kernels->scale(p->stream, &(struct dt_scale_args){.x = branch,
                                                             .in = dy,
                                                             .count = row_count(p) * m->channels,
                                                             .factor = m->residual_scale,
                                                             .type = b->spec->type});
        dy = branch;
    }
    dy = drop_branch(b, p, site, branch, dy);
    if (weight >= 0) {
        norm_backward(b, p, weight, x, rstd, dy, NULL, branch);
        dy = branch;
    }
    return dy;
}

/* From the gradient of the branch to that of h2, in p->dx. */
static void mlp_backward(const struct block *b, const struct pass *p, const struct tensors *t)
{
    void *both = pass_memory(b, p, GATE_UP), *norm = pass_memory(b, p, CALL_NORM), *sums = pass_memory(b, p, CALL_SUMS);
    const void *dm =
        branch_backward(b, p, DROP_DOWN, t->norm_out2, pass_memory(b, p, DOWN), pass_memory(b, p, DOWN_RSTD), p->dy);
    const struct packed_gate gate = gate_of(b);
    packed_gate_backward(b, p, &gate, &t->down, both, pass_memory(b, p, INNER), pass_memory(b, p, CALL_WIDE), dm, sums);
    const void *h2 = pass_memory(b, p, H2), *n2 = pass_memory(b, p, N2), *rstd = memory_or(b, p, N2_RSTD, CALL_RSTD);
    if (h2 == NULL) {
        h2 = pass_memory(b, p, CALL_SUM);
        n2 = second_norm(b, p, t, pass_memory(b, p, PROJ), pass_memory(b, p, CALL_SUM));
    } else if (n2 == NULL) {
        n2 = h2;
    }
    linear_weight_backward(b, p, &t->gate_up, both, n2, sums);
    linear_input_backward(b, p, &t->gate_up, norm, both);
    if (t->norm_in2 >= 0) {
        norm_backward(b, p, t->norm_in2, h2, rstd, norm, p->dy, p->dx);
    } else {
        add(b, p, p->dx, norm, p->dy);
    }
}

static void norm_heads_backward(const struct block *b, const struct pass *p, const struct tensors *t, char *dqkv)
{
    const struct decoder_layer *m = b->args;
    bool all = m->qk_norm == QK_NORM_ALL;
    int64_t first = 0, counts[] = {m->heads, m->kv_heads};
    for (int i = 0; i < 2; i++) {
        size_t offset = (size_t)(first * m->head_size) * dt_dtype_size(b->spec->type);
        int64_t norms = all ? 1 : counts[i];
        int weight = i == 0 ? t->q_norm : t->k_norm;
        p->kernels->rmsnorm_backward(
            p->stream, &(struct dt_rmsnorm_backward_args){.dx = dqkv + offset,
                                                          .dweight = pass_grad(b, p, weight),
                                                          .dy = dqkv + offset,
                                                          .x = (char *)pass_memory(b, p, QK) + offset,
                                                          .weight = pass_weight(b, p, weight),
                                                          .rstd = pass_memory(b, p, i == 0 ? Q_RSTD : K_RSTD),
                                                          .row_count = row_count(p) * norms,
                                                          .col_count = all ? counts[i] * m->head_size : m->head_size,
                                                          .heads = norms,
                                                          .x_ld = qk_columns(m),
                                                          .y_ld = qkv_columns(m),
                                                          .weight_offset = m->weight_offset,
                                                          .accumulate = pass_adds(b, p, weight),
                                                          .type = b->spec->type,
                                                          .grad_type = pass_grad_type(b, p)});
        first += counts[i];
    }
}

/* From the gradient of h2, in p->dx, to the layer's input. */
static void attend_backward(const struct block *b, const struct pass *p, const struct tensors *t)
{
    const struct decoder_layer *m = b->args;
    char *heads = pass_memory(b, p, CALL_HEADS), *rest = pass_memory(b, p, CALL_REST),
         *dqkv = pass_memory(b, p, CALL_WIDE);
    void *norm = pass_memory(b, p, CALL_NORM), *sums = pass_memory(b, p, CALL_SUMS);
    const void *dp =
        branch_backward(b, p, DROP_PROJ, t->norm_out, pass_memory(b, p, PROJ), pass_memory(b, p, PROJ_RSTD), p->dx);
    linear_input_backward(b, p, &t->o, heads, dp);
    linear_weight_backward(b, p, &t->o, dp, pass_memory(b, p, ATT), sums);
    struct packed a = attention_of(b, p);
    packed_attention_backward(p, &a, dqkv, heads, rest, (size_t)((char *)pass_memory(b, p, CALL_RSTD) - rest));
    if (m->turns) {
        packed_turn(b, p, &a.shape, m->rope.width, dqkv, true);
    }
    if (m->qk_norm != QK_NORM_NONE) {
        norm_heads_backward(b, p, t, dqkv);
    }
    const void *n1 = pass_memory(b, p, N1), *rstd = memory_or(b, p, N1_RSTD, CALL_RSTD);
    n1 = n1 != NULL ? n1 : first_norm(b, p, t, false);
    linear_weight_backward(b, p, &t->qkv, dqkv, n1, sums);
    linear_input_backward(b, p, &t->qkv, norm, dqkv);
    if (t->norm_in >= 0) {
        norm_backward(b, p, t->norm_in, pass_memory(b, p, H1), rstd, norm, p->dx, p->dx);
    } else {
        add(b, p, p->dx, norm, p->dx);
    }
}

static void backward(const struct block *b, const struct pass *p)
{
    struct tensors t = tensors_of(b);
    mlp_backward(b, p, &t);
    attend_backward(b, p, &t);
}

const struct block_ops block_decoder_layer = {
    .name = "decoder_layer", .declare = declare, .forward = forward, .backward = backward};
