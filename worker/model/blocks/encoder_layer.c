/* One encoder layer of BERT's kind: each token sees the others, or with `causal` those before it.
 * Weights of linear maps are stored (out, in), as in the Hugging Face file.
 *
 *                                                     values      none    cheap   mlp     block
 * norms behind the residual sums:
 *   q, k, v = x W + b                                 3C          saved   saved   saved   again
 *   a, lse = attention(q, k, v)                       C, H        saved   saved   saved   again
 *   s1 = x + a W + b                                  C           saved   saved   saved   again
 *   n = norm(s1)                                      C           saved   -       -       -
 *   f = n W + b                                       I           saved   saved   again   again
 *   g = act(f)                                        I           saved   -       -       -
 *   s2 = n + g W + b                                  C           saved   saved   saved   again
 *   y = norm(s2)                                      C           kept    kept    kept    kept
 *
 * norms first:
 *   h1 = x_residual + x_branch                        C           kept    kept    kept    kept
 *   n1 = norm(h1)                                     C           saved   -       -       -
 *   q, k, v = n1 W + b; turned by position            3C          saved   saved   saved   again
 *   a, lse = attention(q, k, v)                       C, H        saved   saved   saved   again
 *   p = a W + b                                       C           -       saved   saved   again
 *   h2 = h1 + p                         y_residual    C           saved   -       -       -
 *   n = norm(h2)                                      C           saved   -       -       -
 *   f = n W + b                                       I           saved   saved   again   again
 *   g = act(f)                                        I           saved   -       -       -
 *   y_branch = g W + b                                C
 *
 * Norms also save a mean and a deviation of each row. A gated MLP has f of 2I values. A layer
 * without a norm before attention reads x again in backward, and has no h1. "again" and "-" are as
 * in gpt_layer.c. With dropout, g and the outputs of maps that are added to the stream are dropped
 * where they were made.
 *
 * Letters: R = B * T rows, C channels, I inner, H heads, F = I, or 2I of a gated MLP. */
#include "worker/model/blocks/drop.h"
#include "worker/model/blocks/encoder.h"
#include "worker/model/blocks/layernorm.h"
#include "worker/model/blocks/linear.h"
#include "worker/model/blocks/packed.h"

enum { ATTENTION_REST = 4096 };
enum { DROP_ATTENTION, DROP_OUTPUT, DROP_INNER, DROP_DOWN }; /* sites of dropout */

/* Memory in the order of its declaration: first what lives from forward to backward, then that of
 * one call. */
enum {
    H1,    /* (R, C) */
    Y,     /* (R, C): y, if backward reads it */
    N1,    /* (R, C) */
    N,     /* (R, C) */
    INNER, /* (R, I): g */
    N1_MEAN,
    N1_RSTD, /* (R): of the norm before, or behind, attention */
    N2_MEAN,
    N2_RSTD, /* (R): of the MLP's */
    QKV,     /* (R, 3C) */
    ATT,     /* (R, C) */
    LSE,     /* (B, H, T) */
    SUM1,    /* (R, C): s1, or p */
    UP,      /* (R, F): f */
    SUM2,    /* (R, C): s2 */
    /* (R, C): n1, n, and gradients of what attention and MLP read; before them, the dropped
     * gradients of what these add */
    CALL_NORM,
    CALL_WIDE,   /* (R, I) or (R, 3C): g or its gradient; later that of q, k, v */
    CALL_SUM,    /* (R, C): h2, or p */
    CALL_BRANCH, /* (R, C): gradients of s1 and s2 */
    CALL_HEADS,  /* (R, C): the gradient of attention's output */
    CALL_REST,   /* what attention's backward uses for speed */
    CALL_END,    /* marks the end of CALL_REST */
    CALL_SUMS,   /* sums of columns for biases */
    CACHE        /* generation: keys and values of earlier positions */
};

struct tensors {
    struct linear qkv, output, up, down;
    struct layernorm first, second; /* of attention, of the MLP; first.weight -1: none */
};

static struct tensors walk_tensors(const struct block *b, struct block *declared)
{
    const struct encoder_layer *m = b->args;
    const struct encoder_names *names = m->names;
    int64_t c = m->channels, up = m->gated ? 2 * m->inner : m->inner;
    struct naming n = {.block = declared};
    struct tensors t = {.first = {.weight = -1}};
    if (declared != NULL) {
        (void)snprintf(n.prefix, sizeof n.prefix, names->layer, b->layer);
    }
    bool apart = names->qkv[1] != NULL;
    t.qkv = linear_name(&n, names->qkv, apart ? (int64_t[]){c, c, c} : (int64_t[]){3 * c}, apart ? 3 : 1, c,
                        m->attention_bias, &m->qkv_rule);
    t.output = linear_name(&n, &names->output, &c, 1, c, m->attention_bias, &m->output_rule);
    if (!m->plain_input) {
        t.first = layernorm_name(&n, names->attention_norm, c, m->norm_bias, m->norm_epsilon);
    }
    t.up = linear_name(&n, &names->up, &up, 1, c, m->mlp_bias, &m->up_rule);
    t.down = linear_name(&n, &names->down, &c, 1, m->inner, m->mlp_bias, &m->down_rule);
    t.second = layernorm_name(&n, names->mlp_norm, c, m->norm_bias, m->norm_epsilon);
    return t;
}

static void declare_memory(struct block *b)
{
    const struct encoder_layer *m = b->args;
    enum dt_dtype type = b->spec->type, wide = dt_dtype_wide(type);
    bool all = b->recompute == RECOMPUTE_NONE, first = m->norms_first, biased = m->attention_bias || m->mlp_bias;
    int64_t rows = most_rows(b), c = m->channels, i = m->inner, up = m->gated ? 2 * i : i;
    int64_t widest = i > 3 * c ? i : 3 * c, sums = up > 3 * c ? up : 3 * c;
    block_memory(b, "h1", LIFE_BACKWARD, RECOMPUTE_NEVER, first && !m->plain_input ? rows * c : 0, type);
    block_memory(b, "y", LIFE_BACKWARD, RECOMPUTE_NEVER, all || !first ? rows * c : 0, type);
    block_memory(b, "n1", LIFE_BACKWARD, RECOMPUTE_NEVER, all && first && !m->plain_input ? rows * c : 0, type);
    block_memory(b, "n", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * c : 0, type);
    block_memory(b, "inner", LIFE_BACKWARD, RECOMPUTE_NEVER, all ? rows * i : 0, type);
    block_memory(b, "first mean", LIFE_BACKWARD, RECOMPUTE_BLOCK, m->plain_input ? 0 : rows, wide);
    block_memory(b, "first rstd", LIFE_BACKWARD, RECOMPUTE_BLOCK, m->plain_input ? 0 : rows, wide);
    block_memory(b, "second mean", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows, wide);
    block_memory(b, "second rstd", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows, wide);
    block_memory(b, "qkv", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * 3 * c, type);
    block_memory(b, "attention", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * c, type);
    block_memory(b, "lse", LIFE_BACKWARD, RECOMPUTE_BLOCK, rows * m->heads, wide);
    block_memory(b, "attention sum", LIFE_BACKWARD, RECOMPUTE_BLOCK, all && first ? 0 : rows * c, type);
    block_memory(b, "f", LIFE_BACKWARD, RECOMPUTE_MLP, rows * up, type);
    block_memory(b, "mlp sum", LIFE_BACKWARD, RECOMPUTE_BLOCK, first ? 0 : rows * c, type);
    block_memory(b, "norm", LIFE_CALL, 0, rows * c, type);
    block_memory(b, "wide", LIFE_CALL, 0, rows * widest, type);
    block_memory(b, "sum", LIFE_CALL, 0, first ? rows * c : 0, type);
    block_memory(b, "branch", LIFE_CALL, 0, first ? 0 : rows * c, type);
    block_memory(b, "heads", LIFE_CALL, 0, rows * c, type);
    block_memory(b, "rest", LIFE_CALL, 0, type == DT_BF16 ? rows * m->heads + ATTENTION_REST : 0, DT_F32);
    block_memory(b, "end", LIFE_CALL, 0, 1, wide);
    block_memory(b, "sums", LIFE_CALL, 0, biased ? sums : 0, wide);
    packed_declare_cache(b, m->causal ? m->heads : 0, c / m->heads);
}

static int declare(struct block *b, struct dt_error *err)
{
    (void)err;
    const struct encoder_layer *m = b->args;
    const double rates[] = {m->attention_dropout, m->output_dropout, m->inner_dropout, m->down_dropout};
    bool sums_input = m->norms_first && !m->plain_input;
    (void)walk_tensors(b, b);
    declare_memory(b);
    packed_declare_segments(b);
    for (int i = 0; i < 4; i++) {
        drop_declare(b, rates[i]);
    }
    if (m->turns) {
        block_constant(b, m->rope_name, b->spec->sequence_length * m->rope.width, rope_fill, &m->rope, sizeof m->rope);
    }
    b->in = stream_flow(b, m->channels, sums_input);
    b->out = stream_flow(b, m->channels, m->norms_first);
    b->in_place = m->norms_first;
    b->reads_x = !sums_input;
    b->y_memory = !m->norms_first || b->recompute == RECOMPUTE_NONE ? Y : -1;
    return 0;
}

/* ---- forward ---- */

/* Memory `number` if the layer has it, otherwise the call's memory `other`. */
static void *memory_or(const struct block *b, const struct pass *p, int number, int other)
{
    void *m = pass_memory(b, p, number);
    return m != NULL ? m : pass_memory(b, p, other);
}

/* The memory that a norm writes and its backward reads. mean: number of the memory of the means;
 * that of the deviations follows it. */
static struct normed normed_at(const struct block *b, const struct pass *p, int mean, void *sum, void *y)
{
    return (struct normed){.sum = sum, .y = y, .mean = pass_memory(b, p, mean), .rstd = pass_memory(b, p, mean + 1)};
}

/* The layer's input, or the sum of the pair that came in. */
static const void *input_of(const struct block *b, const struct pass *p)
{
    const void *h1 = pass_memory(b, p, H1);
    return h1 != NULL ? h1 : p->x;
}

static struct packed attention_of(const struct block *b, const struct pass *p)
{
    const struct encoder_layer *m = b->args;
    struct packed a = {.shape = packed_shape(b, p, m->heads, m->heads, m->channels / m->heads),
                       .qkv = pass_memory(b, p, QKV),
                       .out = pass_memory(b, p, ATT),
                       .lse = pass_memory(b, p, LSE),
                       .cache = pass_memory(b, p, CACHE)};
    a.shape.causal = m->causal;
    a.shape.window = m->window;
    drop_attention(b, p, m->attention_dropout, DROP_ATTENTION, &a.shape);
    return a;
}

/* The input of attention: n1, or the layer's input. fresh: h1 is not there yet. */
static const void *attention_input(const struct block *b, const struct pass *p, const struct tensors *t, bool fresh)
{
    const struct encoder_layer *m = b->args;
    if (!m->norms_first || m->plain_input) {
        return p->x;
    }
    void *h1 = pass_memory(b, p, H1), *y = memory_or(b, p, N1, CALL_NORM);
    struct normed to = normed_at(b, p, N1_MEAN, fresh ? h1 : NULL, y);
    layernorm_forward(b, p, &t->first, row_count(p), fresh ? p->x : h1, fresh ? p->x_branch : NULL, &to);
    return y;
}

/* Drops elements (R, C) of what is added to the stream, or of its gradient; as drop. */
static const void *drop_branch(const struct block *b, const struct pass *p, int site, void *to, const void *x)
{
    const struct encoder_layer *m = b->args;
    return drop(b, p, site == DROP_OUTPUT ? m->output_dropout : m->down_dropout, site, to, x, row_count(p),
                m->channels);
}

/* From x to the output of the map behind attention. */
static void attend(const struct block *b, const struct pass *p, const struct tensors *t, const void *x, void *out)
{
    const struct encoder_layer *m = b->args;
    struct packed a = attention_of(b, p);
    linear_forward(b, p, &t->qkv, a.qkv, 0, x);
    if (m->turns) {
        packed_turn(b, p, &a.shape, m->rope.width, a.qkv, false);
    }
    packed_attention(p, &a);
    linear_forward(b, p, &t->output, out, 0, a.out);
    (void)drop_branch(b, p, DROP_OUTPUT, out, out);
}

/* n from the output of attention's map: h2 = h1 + p goes to `sum`, or s1 takes the place of that
 * output. summed: s1 is there already. */
static void *mlp_input(const struct block *b, const struct pass *p, const struct tensors *t, void *out, void *sum,
                       bool summed)
{
    const struct encoder_layer *m = b->args;
    void *y = memory_or(b, p, N, CALL_NORM);
    if (m->norms_first) {
        struct normed to = normed_at(b, p, N2_MEAN, sum, y);
        layernorm_forward(b, p, &t->second, row_count(p), input_of(b, p), out, &to);
    } else {
        struct normed to = normed_at(b, p, N1_MEAN, summed ? NULL : out, y);
        layernorm_forward(b, p, &t->first, row_count(p), summed ? out : p->x, summed ? NULL : out, &to);
    }
    return y;
}

static struct packed_gate gate_of(const struct block *b)
{
    const struct encoder_layer *m = b->args;
    return (struct packed_gate){
        .kind = m->activation, .inner = m->inner, .dropout = m->inner_dropout, .site = DROP_INNER};
}

/* g = act(f), or act(a) * g. */
static void activate(const struct block *b, const struct pass *p, void *y)
{
    const struct encoder_layer *m = b->args;
    void *f = pass_memory(b, p, UP);
    if (!m->gated) {
        p->kernels->activation(
            p->stream,
            &(struct dt_activation_args){
                .y = y, .x = f, .count = row_count(p) * m->inner, .kind = m->activation, .type = b->spec->type});
        return;
    }
    const struct packed_gate gate = gate_of(b);
    packed_gate(b, p, &gate, y, f);
}

static void forward(const struct block *b, const struct pass *p)
{
    const struct encoder_layer *m = b->args;
    bool again = p->phase == PASS_RECOMPUTE, whole = !again || b->recompute == RECOMPUTE_BLOCK;
    struct tensors t = walk_tensors(b, NULL);
    void *out = memory_or(b, p, SUM1, CALL_SUM), *inner = memory_or(b, p, INNER, CALL_WIDE);
    if (whole) {
        attend(b, p, &t, attention_input(b, p, &t, !again), out);
    }
    void *n = mlp_input(b, p, &t, out, again ? pass_memory(b, p, CALL_SUM) : p->y, !whole);
    linear_forward(b, p, &t.up, pass_memory(b, p, UP), 0, n);
    if (again && (m->norms_first || !whole)) {
        return; /* backward computes g as it needs it */
    }
    activate(b, p, inner);
    if (m->norms_first) {
        linear_forward(b, p, &t.down, p->y_branch, 0, inner);
        (void)drop_branch(b, p, DROP_DOWN, p->y_branch, p->y_branch);
        return;
    }
    void *s2 = pass_memory(b, p, SUM2);
    linear_forward(b, p, &t.down, s2, 0, inner);
    (void)drop_branch(b, p, DROP_DOWN, s2, s2);
    /* computed again, y is there already: only s2 and the statistics are wanted */
    struct normed to = normed_at(b, p, N2_MEAN, s2, again ? pass_memory(b, p, CALL_BRANCH) : p->y);
    layernorm_forward(b, p, &t.second, row_count(p), n, s2, &to);
}

/* ---- backward ---- */

/* The gradient of f from that of the output of g's map, dm; also that map's own. Returns where it is. */
static void *activate_backward(const struct block *b, const struct pass *p, const struct tensors *t, const void *dm)
{
    const struct encoder_layer *m = b->args;
    enum dt_dtype type = b->spec->type;
    void *inner = pass_memory(b, p, INNER), *wide = pass_memory(b, p, CALL_WIDE), *sums = pass_memory(b, p, CALL_SUMS);
    void *f = pass_memory(b, p, UP);
    if (m->gated) {
        const struct packed_gate gate = gate_of(b);
        packed_gate_backward(b, p, &gate, &t->down, f, inner, wide, dm, sums);
        return f;
    }
    if (inner == NULL) {
        activate(b, p, wide);
    }
    linear_weight_backward(b, p, &t->down, dm, inner != NULL ? inner : wide, sums);
    linear_input_backward(b, p, &t->down, wide, dm);
    p->kernels->activation_backward(
        p->stream,
        &(struct dt_activation_backward_args){
            .dx = wide, .dy = wide, .x = f, .count = row_count(p) * m->inner, .kind = m->activation, .type = type});
    return wide;
}

/* From the gradient of the output to that of the sum behind attention, of h2 or of s1, which goes to
 * p->dx. */
static void mlp_backward(const struct block *b, const struct pass *p, const struct tensors *t)
{
    const struct encoder_layer *m = b->args;
    int64_t rows = row_count(p);
    void *norm = pass_memory(b, p, CALL_NORM), *branch = pass_memory(b, p, CALL_BRANCH);
    const void *ds2 = p->dy;
    if (!m->norms_first) {
        struct normed second = normed_at(b, p, N2_MEAN, pass_memory(b, p, SUM2), NULL);
        layernorm_backward(b, p, &t->second, rows, &second, branch, p->dy, NULL);
        ds2 = branch;
    }
    const void *df = activate_backward(b, p, t, drop_branch(b, p, DROP_DOWN, norm, ds2));
    void *n = pass_memory(b, p, N), *out = pass_memory(b, p, SUM1), *sum = m->norms_first ? pass_memory(b, p, Y) : out;
    if (n == NULL) {
        sum = m->norms_first ? pass_memory(b, p, CALL_SUM) : out;
        n = mlp_input(b, p, t, out, sum, true);
    }
    linear_weight_backward(b, p, &t->up, df, n, pass_memory(b, p, CALL_SUMS));
    if (m->norms_first) {
        struct normed second = normed_at(b, p, N2_MEAN, sum, NULL);
        linear_input_backward(b, p, &t->up, norm, df);
        layernorm_backward(b, p, &t->second, rows, &second, p->dx, norm, p->dy);
    } else {
        struct normed first = normed_at(b, p, N1_MEAN, sum, NULL);
        linear_input_backward_add(b, p, &t->up, branch, df);
        layernorm_backward(b, p, &t->first, rows, &first, p->dx, branch, NULL);
    }
}

/* From the gradient of the sum behind attention to that of the input, both in p->dx. */
static void attend_backward(const struct block *b, const struct pass *p, const struct tensors *t)
{
    const struct encoder_layer *m = b->args;
    void *dqkv = pass_memory(b, p, CALL_WIDE), *norm = pass_memory(b, p, CALL_NORM);
    char *heads = pass_memory(b, p, CALL_HEADS), *rest = pass_memory(b, p, CALL_REST);
    struct packed a = attention_of(b, p);
    const void *dout = drop_branch(b, p, DROP_OUTPUT, norm, p->dx);
    linear_input_backward(b, p, &t->output, heads, dout);
    linear_weight_backward(b, p, &t->output, dout, a.out, pass_memory(b, p, CALL_SUMS));
    packed_attention_backward(p, &a, dqkv, heads, rest, (size_t)((char *)pass_memory(b, p, CALL_END) - rest));
    if (m->turns) {
        packed_turn(b, p, &a.shape, m->rope.width, dqkv, true);
    }
    const void *x = pass_memory(b, p, N1);
    x = x != NULL ? x : attention_input(b, p, t, false);
    linear_weight_backward(b, p, &t->qkv, dqkv, x, pass_memory(b, p, CALL_SUMS));
    if (m->norms_first && !m->plain_input) {
        struct normed first = normed_at(b, p, N1_MEAN, pass_memory(b, p, H1), NULL);
        linear_input_backward(b, p, &t->qkv, norm, dqkv);
        layernorm_backward(b, p, &t->first, row_count(p), &first, p->dx, norm, p->dx);
    } else {
        linear_input_backward_add(b, p, &t->qkv, p->dx, dqkv);
    }
}

static void backward(const struct block *b, const struct pass *p)
{
    struct tensors t = walk_tensors(b, NULL);
    mlp_backward(b, p, &t);
    attend_backward(b, p, &t);
}

const struct block_ops block_encoder_layer = {
    .name = "encoder_layer", .declare = declare, .forward = forward, .backward = backward};
