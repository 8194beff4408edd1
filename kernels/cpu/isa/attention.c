/* Causal attention by tiles of queries. A part is one batch entry and one kv head; only one tile of
 * the scores (queries, T) exists at a time. Backward computes each tile again from the saved
 * log-sum-exp. It goes from the last tile to the first: the last tile reaches every key and
 * overwrites dk and dv, and the others add. BF16 tensors are converted one head at a time to floats
 * in work memory. Results are rounded once. */
#include "kernels/attention.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define TILE 64         /* queries of a tile of backward */
#define FORWARD_TILE 32 /* of forward: a smaller tile wastes less above the diagonal */

struct shape {
    struct dt_attention_shape of; /* filled */
    int64_t positions, heads, kv_heads, group, head_size;
    /* elements between positions of the memory that a tile uses: as in the tensors, or head_size */
    int64_t q_step, kv_step, o_step;
    float scale;
    bool causal, half;
};

static struct shape shape_of(const struct dt_attention_shape *args)
{
    struct shape x = {.of = dt_attention_filled(args)};
    x.positions = x.of.keys;
    x.heads = x.of.heads;
    x.kv_heads = x.of.kv_heads;
    x.group = x.heads / x.kv_heads;
    x.head_size = x.of.head_size;
    x.causal = x.of.causal;
    x.half = x.of.type == DT_BF16;
    x.q_step = x.half ? x.head_size : x.of.q_stride;
    x.kv_step = x.half ? x.head_size : x.of.kv_stride;
    x.o_step = x.half ? x.head_size : x.of.out_stride;
    x.scale = (float)x.of.scale;
    return x;
}

/* The rows of a head, as floats: in place, or converted into `room` (positions, head_size). */
static const float *fetch_head(const struct shape *x, float *room, const void *tensor, int64_t at, int64_t stride)
{
    if (!x->half) {
        return (const float *)tensor + at;
    }
    for (int64_t i = 0; i < x->positions; i++) {
        vec_fetch(room + i * x->head_size, tensor, at + i * stride, x->head_size, DT_BF16);
    }
    return room;
}

/* Returns where a head's results are written: the tensor itself, or `room`, from which keep_head
 * stores them. */
static float *place_head(const struct shape *x, float *room, void *tensor, int64_t at)
{
    return x->half ? room : (float *)tensor + at;
}

static void keep_head(const struct shape *x, const float *room, void *tensor, int64_t at, int64_t stride)
{
    for (int64_t i = 0; i < x->positions && x->half; i++) {
        vec_keep(tensor, at + i * stride, room + i * x->head_size, x->head_size, DT_BF16);
    }
}

/* Most keys that a query of the tile sees. */
static int64_t keys_of(const struct shape *x, int64_t begin, int64_t rows)
{
    return x->causal ? min64(x->positions, begin + rows) : x->positions;
}

/* c (m, n) = a b. b is packed with `stride` rows, of which k are used. */
static void product(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t stride, int64_t m,
                    int64_t n, int64_t k)
{
    ISA(dt_gemm_packed)
    (&(struct dt_gemm){.c = c, .a = a, .m = m, .n = n, .k = k, .a_row = lda, .a_col = 1, .ldc = ldc}, b, stride);
}

/* c (m, n) [+]= a^T b; a is stored as (k, m) */
static void product_turned(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t m, int64_t n,
                           int64_t k, bool add)
{
    ISA(dt_gemm_packed)
    (&(struct dt_gemm){.c = c, .a = a, .m = m, .n = n, .k = k, .a_row = 1, .a_col = lda, .ldc = ldc, .accumulate = add},
     b, k);
}

/* Sets x to e^(scale x - shift) in [0, valid) and to 0 in [valid, n). Returns the sum. */
static float exp_row(float *x, int64_t valid, int64_t n, float scale, float shift)
{
    vec sum = {0};
    for (int64_t j = 0; j < valid; j += VEC) {
        vec e = vec_exp(vec_fma(vec_load_n(x + j, valid - j), vec_all(scale), vec_all(-shift)));
        if (valid - j < VEC) {
            e = vec_pick(vec_index() < (int32_t)(valid - j), e, vec_all(0));
        }
        sum += e;
        vec_store_n(x + j, e, valid - j);
    }
    if (n > valid) {
        memset(x + valid, 0, (size_t)(n - valid) * sizeof(float));
    }
    return vec_sum(sum);
}

static float max_row(const float *x, int64_t n)
{
    vec top = vec_all(x[0]);
    int64_t j = 0;
    for (; j + VEC <= n; j += VEC) {
        top = vec_max(vec_load(x + j), top);
    }
    float max = vec_top(top);
    for (; j < n; j++) {
        max = x[j] > max ? x[j] : max;
    }
    return max;
}

/* k (transposed) and v are packed */
static void forward_tile(const struct shape *x, const float *q, const float *k, const float *v, float *out, float *lse,
                         int64_t begin, float *scores)
{
    int64_t rows = min64(FORWARD_TILE, x->positions - begin), keys = keys_of(x, begin, rows), D = x->head_size;
    float factor[FORWARD_TILE];
    product(scores, keys, q + begin * x->q_step, x->q_step, k, D, rows, keys, D);
    for (int64_t i = 0; i < rows; i++) {
        int64_t valid = x->causal ? begin + i + 1 : keys;
        float max = max_row(scores + i * keys, valid) * x->scale;
        float sum = exp_row(scores + i * keys, valid, keys, x->scale, max);
        factor[i] = 1.0F / sum;
        lse[begin + i] = (float)((double)max + log((double)sum));
    }
    product(out + begin * x->o_step, x->o_step, scores, keys, v, x->positions, rows, D, keys);
    for (int64_t i = 0; i < rows; i++) {
        float *o = out + (begin + i) * x->o_step;
        for (int64_t d = 0; d < D; d++) {
            o[d] *= factor[i];
        }
    }
}

struct forward {
    const struct dt_attention_args *args;
    struct shape shape;
};

static void attention_part(void *context, int64_t part)
{
    const struct forward *c = context;
    const struct shape *x = &c->shape;
    int64_t b = part / x->kv_heads, g = part % x->kv_heads, D = x->head_size, T = x->positions;
    int64_t kv_at = b * x->of.key_capacity * x->of.kv_stride + g * D;
    int64_t need = FORWARD_TILE * T + DT_PACKED(T) * D + DT_PACKED(D) * T + (x->half ? 2 * T * D : 0);
    float *scores = dt_cpu_work(DT_WORK_KERNEL, (size_t)need * sizeof(float));
    float *turned_k = scores + FORWARD_TILE * T, *packed_v = turned_k + DT_PACKED(T) * D;
    float *in = packed_v + DT_PACKED(D) * T, *result = in + T * D;
    ISA(dt_gemm_pack)(turned_k, fetch_head(x, in, c->args->k, kv_at, x->of.kv_stride), 1, x->kv_step, T, D);
    ISA(dt_gemm_pack)(packed_v, fetch_head(x, in, c->args->v, kv_at, x->of.kv_stride), x->kv_step, 1, D, T);
    for (int64_t h = g * x->group; h < (g + 1) * x->group; h++) {
        int64_t out_at = b * T * x->of.out_stride + h * D;
        const float *q = fetch_head(x, in, c->args->q, b * T * x->of.q_stride + h * D, x->of.q_stride);
        float *out = place_head(x, result, c->args->out, out_at), *lse = (float *)c->args->lse + (b * x->heads + h) * T;
        for (int64_t begin = 0; begin < T; begin += FORWARD_TILE) {
            forward_tile(x, q, turned_k, packed_v, out, lse, begin, scores);
        }
        keep_head(x, result, c->args->out, out_at, x->of.out_stride);
    }
}

static int attention_now(struct dt_pool *pool, struct dt_attention_args *a, struct dt_error *err)
{
    struct forward c = {a, shape_of(&a->shape)};
    if (!dt_attention_is_simple(&c.shape.of) || a->lse == NULL) {
        return dt_twin_attention(a, err);
    }
    dt_pool_run(pool, c.shape.of.batch * c.shape.kv_heads, attention_part, &c);
    return 0;
}
DT_ISA_KERNEL_OF(attention, a->shape.type)

/* ---- backward ---- */

struct head {
    const float *q, *out, *dout, *lse;
    const float *turned_k, *turned_v, *packed_k; /* packed: (D, T), (D, T), (T, D) */
    float *dq, *dk, *dv;
};

static float delta_of(const float *x, const float *y, int64_t n)
{
    vec sum = {0};
    for (int64_t i = 0; i < n; i += VEC) {
        sum = vec_fma(vec_load_n(x + i, n - i), vec_load_n(y + i, n - i), sum);
    }
    return vec_sum(sum);
}

/* p (rows, keys): probabilities; ds (rows, keys): gradients of the scores before scaling */
static void backward_tile(const struct shape *x, const struct head *h, int64_t begin, bool add, float *p, float *ds,
                          float *tile)
{
    int64_t rows = min64(TILE, x->positions - begin), keys = keys_of(x, begin, rows), D = x->head_size, S = x->q_step,
            KS = x->kv_step;
    const float *q = h->q + begin * S, *dout = h->dout + begin * x->o_step;
    product(p, keys, q, S, h->turned_k, D, rows, keys, D);
    product(ds, keys, dout, x->o_step, h->turned_v, D, rows, keys, D);
    for (int64_t i = 0; i < rows; i++) {
        int64_t valid = x->causal ? begin + i + 1 : keys;
        float delta = delta_of(dout + i * x->o_step, h->out + (begin + i) * x->o_step, D);
        float *pi = p + i * keys, *di = ds + i * keys;
        exp_row(pi, valid, keys, x->scale, h->lse[begin + i]);
        for (int64_t j = 0; j < keys; j++) {
            /* p is 0 for keys that a query does not see */
            di[j] = pi[j] * (di[j] - delta) * x->scale;
        }
    }
    ISA(dt_gemm_pack)(tile, dout, x->o_step, 1, D, rows);
    product_turned(h->dv, KS, p, keys, tile, keys, D, rows, add);
    ISA(dt_gemm_pack)(tile, q, S, 1, D, rows);
    product_turned(h->dk, KS, ds, keys, tile, keys, D, rows, add);
    product(h->dq + begin * S, S, ds, keys, h->packed_k, x->positions, rows, D, keys);
}

struct backward {
    const struct dt_attention_backward_args *args;
    struct shape shape;
};

static void attention_backward_part(void *context, int64_t part)
{
    const struct backward *c = context;
    const struct dt_attention_backward_args *a = c->args;
    const struct shape *x = &c->shape;
    int64_t b = part / x->kv_heads, g = part % x->kv_heads, D = x->head_size, T = x->positions, S = x->of.kv_stride;
    int64_t kv_at = b * x->of.key_capacity * S + g * D;
    int64_t need = 2 * TILE * T + 2 * DT_PACKED(T) * D + DT_PACKED(D) * (T + TILE) + (x->half ? 6 * T * D : 0);
    float *p = dt_cpu_work(DT_WORK_KERNEL, (size_t)need * sizeof(float)), *ds = p + TILE * T;
    float *turned_k = ds + TILE * T, *turned_v = turned_k + DT_PACKED(T) * D, *packed_k = turned_v + DT_PACKED(T) * D,
          *tile = packed_k + DT_PACKED(D) * T,
          *room = tile + DT_PACKED(D) * TILE; /* room for q, out, dout, dq, dk, dv */
    const float *k = fetch_head(x, room, a->k, kv_at, S);
    ISA(dt_gemm_pack)(turned_k, k, 1, x->kv_step, T, D);
    ISA(dt_gemm_pack)(packed_k, k, x->kv_step, 1, D, T);
    ISA(dt_gemm_pack)(turned_v, fetch_head(x, room, a->v, kv_at, S), 1, x->kv_step, T, D);
    struct head h = {.turned_k = turned_k,
                     .turned_v = turned_v,
                     .packed_k = packed_k,
                     .dk = place_head(x, room + 4 * T * D, a->dk, kv_at),
                     .dv = place_head(x, room + 5 * T * D, a->dv, kv_at)};
    for (int64_t i = g * x->group; i < (g + 1) * x->group; i++) {
        int64_t q_at = b * T * x->of.q_stride + i * D, out_at = b * T * x->of.out_stride + i * D;
        h.q = fetch_head(x, room, a->q, q_at, x->of.q_stride);
        h.out = fetch_head(x, room + T * D, a->out, out_at, x->of.out_stride);
        h.dout = fetch_head(x, room + 2 * T * D, a->dout, out_at, x->of.out_stride);
        h.dq = place_head(x, room + 3 * T * D, a->dq, q_at);
        h.lse = (const float *)a->lse + (b * x->heads + i) * T;
        for (int64_t begin = (T - 1) / TILE * TILE; begin >= 0; begin -= TILE) {
            bool first = i == g * x->group && begin == (T - 1) / TILE * TILE;
            backward_tile(x, &h, begin, !first, p, ds, tile);
        }
        keep_head(x, h.dq, a->dq, q_at, x->of.q_stride);
    }
    keep_head(x, h.dk, a->dk, kv_at, S);
    keep_head(x, h.dv, a->dv, kv_at, S);
}

static int attention_backward_now(struct dt_pool *pool, struct dt_attention_backward_args *a, struct dt_error *err)
{
    struct backward c = {a, shape_of(&a->shape)};
    if (!dt_attention_is_simple(&c.shape.of)) {
        return dt_twin_attention_backward(a, err);
    }
    dt_pool_run(pool, c.shape.of.batch * c.shape.kv_heads, attention_backward_part, &c);
    return 0;
}
DT_ISA_KERNEL_OF(attention_backward, a->shape.type)
