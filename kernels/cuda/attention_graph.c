/* The two graphs of attention, operation by operation. The library's engines recognise a graph by
 * the order of its operations, the types between them, and which tensors are in memory. A mask
 * comes before the row's maximum in the forward pass, and after the log-sum-exp is subtracted in
 * backward. A product reads 16 bits, as q, k and v have. The transposed matrix goes through a reshape.
 * Letters: B batch, H heads, KV key heads, T positions, D head size. */
#include "kernels/cuda/attention_graph.h"

struct builder {
    struct dt_dnn_graph *g;
    const struct dt_attention_graph *s;
};

static enum dt_dnn_type half_of(const struct builder *b)
{
    return b->s->f16 ? DT_DNN_HALF : DT_DNN_BFLOAT16;
}

/* a tensor (B, heads, rows, cols), tight, that is not stored in memory */
static void *passing(const struct builder *b, enum dt_dnn_type type, int64_t heads, int64_t rows, int64_t cols)
{
    return dt_dnn_tensor(b->g, &(struct dt_dnn_shape){.dims = {b->s->batch, heads, rows, cols},
                                                      .strides = {heads * rows * cols, rows * cols, cols, 1},
                                                      .type = type});
}

static void *scores(const struct builder *b, enum dt_dnn_type type)
{
    return passing(b, type, b->s->heads, b->s->positions, b->s->positions);
}

/* a tensor with one number per query */
static void *column(const struct builder *b, int64_t uid)
{
    int64_t h = b->s->heads, t = b->s->positions;
    return dt_dnn_tensor(
        b->g, &(struct dt_dnn_shape){
                  .uid = uid, .dims = {b->s->batch, h, t, 1}, .strides = {h * t, t, 1, 1}, .type = DT_DNN_FLOAT});
}

static void *number(const struct builder *b, int64_t uid)
{
    return dt_dnn_tensor(b->g, &(struct dt_dnn_shape){.uid = uid,
                                                      .dims = {1, 1, 1, 1},
                                                      .strides = {1, 1, 1, 1},
                                                      .alignment = 4,
                                                      .type = DT_DNN_FLOAT,
                                                      .by_value = true});
}

/* `heads` heads of rows that are `row` elements long; `turned`: transposed, (D, T) instead of (T,
 * D) */
static void *heads_of(const struct builder *b, int64_t uid, int64_t heads, int64_t row, bool turned)
{
    int64_t t = b->s->positions, d = b->s->head_size;
    struct dt_dnn_shape shape = {
        .uid = uid, .dims = {b->s->batch, heads, t, d}, .strides = {t * row, d, row, 1}, .type = half_of(b)};
    if (turned) {
        shape.dims[2] = d;
        shape.dims[3] = t;
        shape.strides[2] = 1;
        shape.strides[3] = row;
    }
    return dt_dnn_tensor(b->g, &shape);
}

static int64_t packed_row(const struct dt_attention_graph *s)
{
    return (s->heads + 2 * s->kv_heads) * s->head_size;
}

static void *scaled(const struct builder *b, void *x, void *scale)
{
    void *y = scores(b, DT_DNN_FLOAT);
    dt_dnn_pointwise(b->g, DT_DNN_MUL, x, scale, y);
    return y;
}

/* Sets the scores of keys after the query to -inf. */
static void *masked(const struct builder *b, void *x)
{
    if (!b->s->causal) {
        return x;
    }
    void *rows = scores(b, DT_DNN_INT32), *cols = scores(b, DT_DNN_INT32), *seen = scores(b, DT_DNN_BOOLEAN),
         *y = scores(b, DT_DNN_FLOAT);
    dt_dnn_index(b->g, 2, x, rows);
    dt_dnn_index(b->g, 3, x, cols);
    dt_dnn_compare(b->g, rows, cols, seen);
    dt_dnn_select(b->g, x, number(b, DT_ATTENTION_HIDDEN), seen, y);
    return y;
}

void dt_attention_forward_graph(struct dt_dnn_graph *g, const struct dt_attention_graph *s)
{
    const struct builder b = {g, s};
    int64_t row = packed_row(s);
    void *q = heads_of(&b, DT_ATTENTION_Q, s->heads, row, false);
    void *k = heads_of(&b, DT_ATTENTION_K, s->kv_heads, row, true);
    void *v = heads_of(&b, DT_ATTENTION_V, s->kv_heads, row, false);
    void *product = scores(&b, DT_DNN_FLOAT), *most = column(&b, 0), *less = scores(&b, DT_DNN_FLOAT),
         *weight = scores(&b, DT_DNN_FLOAT);
    void *sum = column(&b, 0), *log = column(&b, 0), *p = scores(&b, half_of(&b));
    dt_dnn_matmul(g, q, k, product);
    void *x = masked(&b, scaled(&b, product, number(&b, DT_ATTENTION_SCALE)));
    dt_dnn_reduce(g, DT_DNN_MAX, x, most);
    dt_dnn_pointwise(g, DT_DNN_SUB, x, most, less);
    dt_dnn_pointwise(g, DT_DNN_EXP, less, NULL, weight);
    dt_dnn_reduce(g, DT_DNN_SUM, weight, sum);
    dt_dnn_pointwise(g, DT_DNN_LOG, sum, NULL, log);
    dt_dnn_pointwise(g, DT_DNN_ADD, most, log, column(&b, DT_ATTENTION_LSE));
    dt_dnn_pointwise(g, DT_DNN_DIV, weight, sum, p);
    dt_dnn_matmul(g, p, v, heads_of(&b, DT_ATTENTION_OUT, s->heads, s->heads * s->head_size, false));
}

/* x (B, H, T, T) in 16 bits, transposed in its last two dimensions */
static void *turned(const struct builder *b, void *x)
{
    int64_t h = b->s->heads, t = b->s->positions;
    void *y = dt_dnn_tensor(b->g, &(struct dt_dnn_shape){.dims = {b->s->batch, h, t, t},
                                                         .strides = {h * t * t, t * t, 1, t},
                                                         .type = half_of(b)});
    dt_dnn_reshape(b->g, x, y);
    return y;
}

/* Gradient of keys or values: computed per query head, then summed over the heads of a group. */
static void product_of_group(const struct builder *b, void *x, void *y, int64_t uid)
{
    void *out = heads_of(b, uid, b->s->kv_heads, packed_row(b->s), false);
    if (b->s->heads == b->s->kv_heads) {
        dt_dnn_matmul(b->g, x, y, out);
        return;
    }
    void *each = passing(b, half_of(b), b->s->heads, b->s->positions, b->s->head_size);
    dt_dnn_matmul(b->g, x, y, each);
    dt_dnn_reduce(b->g, DT_DNN_SUM, each, out);
}

void dt_attention_backward_graph(struct dt_dnn_graph *g, const struct dt_attention_graph *s, bool adds_up)
{
    const struct builder b = {g, s};
    int64_t row = packed_row(s), out_row = s->heads * s->head_size, h = s->heads, t = s->positions, d = s->head_size;
    void *q = heads_of(&b, DT_ATTENTION_Q, s->heads, row, false),
         *out = heads_of(&b, DT_ATTENTION_OUT, s->heads, out_row, false);
    void *k = heads_of(&b, DT_ATTENTION_K, s->kv_heads, row, true),
         *dout = heads_of(&b, DT_ATTENTION_DOUT, s->heads, out_row, false);
    void *v = heads_of(&b, DT_ATTENTION_V, s->kv_heads, row, true), *scale = number(&b, DT_ATTENTION_SCALE);
    /* delta = sum of dout * out; the engines require a factor here, which is one without dropout */
    void *both = passing(&b, DT_DNN_FLOAT, h, t, d), *sum = column(&b, 0), *delta = column(&b, DT_ATTENTION_DELTA);
    dt_dnn_pointwise(g, DT_DNN_MUL, dout, out, both);
    dt_dnn_reduce(g, DT_DNN_SUM, both, sum);
    dt_dnn_pointwise(g, DT_DNN_MUL, sum, number(&b, DT_ATTENTION_ONE), delta);
    /* the weights again, and dv */
    void *product = scores(&b, DT_DNN_FLOAT), *less = scores(&b, DT_DNN_FLOAT), *weight = scores(&b, DT_DNN_FLOAT);
    dt_dnn_matmul(g, q, k, product);
    dt_dnn_pointwise(g, DT_DNN_SUB, scaled(&b, product, scale), column(&b, DT_ATTENTION_LSE), less);
    dt_dnn_pointwise(g, DT_DNN_EXP, masked(&b, less), NULL, weight);
    product_of_group(&b, turned(&b, weight), dout, DT_ATTENTION_DV);
    /* gradient of the scores, and dk */
    void *above = scores(&b, DT_DNN_FLOAT), *change = scores(&b, DT_DNN_FLOAT), *weighed = scores(&b, DT_DNN_FLOAT);
    dt_dnn_matmul(g, dout, v, above);
    dt_dnn_pointwise(g, DT_DNN_SUB, above, delta, change);
    dt_dnn_pointwise(g, DT_DNN_MUL, change, weight, weighed);
    void *dscores = scaled(&b, weighed, scale);
    product_of_group(&b, turned(&b, dscores), q, DT_ATTENTION_DK);
    /* dq */
    void *keys = heads_of(&b, 0, s->kv_heads, row, false), *dq = heads_of(&b, DT_ATTENTION_DQ, s->heads, row, false);
    dt_dnn_reshape(g, k, keys);
    if (adds_up) {
        void *sums = dt_dnn_tensor(g, &(struct dt_dnn_shape){.uid = DT_ATTENTION_SUMS,
                                                             .dims = {s->batch, h, t, d},
                                                             .strides = {h * t * d, t * d, d, 1},
                                                             .type = DT_DNN_FLOAT});
        dt_dnn_matmul(g, dscores, keys, sums);
        dt_dnn_pointwise(g, DT_DNN_IDENTITY, sums, NULL, dq);
    } else {
        dt_dnn_matmul(g, dscores, keys, dq);
    }
}

size_t dt_attention_backward_bytes(const struct dt_attention_graph *s)
{
    /* rounded up to whole tiles */
    int64_t queries = (s->positions + 63) / 64 * 64, keys = (s->positions + 127) / 128 * 128;
    /* dk and dv per query head, before their sums */
    int64_t grouped = s->heads != s->kv_heads ? 6 * keys * s->head_size : 0;
    return (size_t)(s->batch * s->heads * (2 * queries * keys + grouped)) + 4096;
}
