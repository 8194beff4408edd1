/* Attention by tiles of queries. A part is one batch entry and one kv head; only one tile of the
 * scores (queries, keys) exists at a time, of the keys from the first to the last one that a query of
 * the tile sees. Backward computes each tile again from the saved log-sum-exp. It goes from the last
 * tile to the first: a last tile that reaches every key overwrites dk and dv, and the others add.
 * BF16 tensors are converted one head at a time to floats in work memory. Results are rounded
 * once. */
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/pool.h"

#define TILE 64         /* queries of a tile of backward */
#define FORWARD_TILE 32 /* of forward: a smaller tile wastes less above the diagonal */
enum { FEW = 4 };       /* queries that read keys where they lie */

/* `count` rows of a head, as floats: in place, or converted into `room` (count, head_size). */
static const float *fetch_head(const struct shape *x, float *room, const void *tensor, int64_t at, int64_t stride,
                               int64_t count)
{
    int64_t D = x->of.head_size;
    if (!x->half) {
        return (const float *)tensor + at;
    }
    for (int64_t i = 0; i < count; i++) {
        vec_fetch(room + i * D, tensor, at + i * stride, D, DT_HALF);
    }
    return room;
}

/* Returns where a head's results are written: the tensor itself, or `room`, from which keep_head
 * stores them. */
static float *place_head(const struct shape *x, float *room, void *tensor, int64_t at)
{
    return x->half ? room : (float *)tensor + at;
}

static void keep_head(const struct shape *x, const float *room, void *tensor, int64_t at, int64_t stride, int64_t count)
{
    int64_t D = x->of.head_size;
    for (int64_t i = 0; i < count && x->half; i++) {
        vec_keep(tensor, at + i * stride, room + i * D, D, DT_HALF);
    }
}

/* The keys of a tile, from the beginning of a panel of packed keys on. */
static struct range keys_of(const struct shape *x, int64_t b, int64_t begin, int64_t rows)
{
    struct range r = range_of(x, b, begin, rows);
    r.first = r.first / DT_PACKED(1) * DT_PACKED(1);
    return r;
}

/* c (m, n) = a b. b is packed with `stride` rows, of which k are used. */
static void product(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t stride, int64_t m,
                    int64_t n, int64_t k)
{
    ISA_BASE(dt_gemm_packed)
    (&(struct dt_gemm){.c = c, .a = a, .m = m, .n = n, .k = k, .a_row = lda, .a_col = 1, .ldc = ldc}, b, stride);
}

/* c (m, n) [+]= a^T b; a is stored as (k, m) */
static void product_turned(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t m, int64_t n,
                           int64_t k, bool add)
{
    ISA_BASE(dt_gemm_packed)
    (&(struct dt_gemm){.c = c, .a = a, .m = m, .n = n, .k = k, .a_row = 1, .a_col = lda, .ldc = ldc, .accumulate = add},
     b, k);
}

/* One head, and the memory of its tiles. */
struct head {
    int64_t b, h;
    const float *q, *k, *v; /* k (transposed) and v are packed */
    float *out, *lse;       /* lse: null if it is not wanted */
    float *scores;
};

static void forward_tile(const struct shape *x, const struct head *c, int64_t begin)
{
    int64_t rows = min64(FORWARD_TILE, x->of.queries - begin), D = x->of.head_size;
    struct range keys = keys_of(x, c->b, begin, rows);
    int64_t n = keys.end - keys.first;
    float factor[FORWARD_TILE];
    product(c->scores, n, c->q + begin * x->q_step, x->q_step, c->k + keys.first * D, D, rows, n, D);
    for (int64_t i = 0; i < rows; i++) {
        struct row row = row_of(x, c->b, c->h, begin + i, &keys);
        float lse;
        factor[i] = softmax_row(x, &row, c->scores + i * n, n, &lse);
        if (c->lse != NULL) {
            c->lse[begin + i] = lse;
        }
    }
    product(c->out + begin * x->o_step, x->o_step, c->scores, n, c->v + keys.first * DT_PANEL, x->of.keys, rows, D, n);
    for (int64_t i = 0; i < rows; i++) {
        float *o = c->out + (begin + i) * x->o_step;
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
    const struct dt_attention_shape *s = &x->of;
    const struct dt_attention_args *a = c->args;
    int64_t b = part / s->kv_heads, g = part % s->kv_heads, D = s->head_size, Q = s->queries, T = s->keys;
    int64_t kv_at = b * s->key_capacity * s->kv_stride + g * D;
    int64_t need = FORWARD_TILE * T + DT_PACKED(T) * D + DT_PACKED(D) * T + (x->half ? (T + Q) * D : 0);
    float *scores = dt_cpu_work(DT_WORK_KERNEL, (size_t)need * sizeof(float));
    float *turned_k = scores + FORWARD_TILE * T, *packed_v = turned_k + DT_PACKED(T) * D;
    float *in = packed_v + DT_PACKED(D) * T, *result = in + T * D;
    ISA_BASE(dt_gemm_pack)(turned_k, fetch_head(x, in, a->k, kv_at, s->kv_stride, T), 1, x->kv_step, T, D);
    ISA_BASE(dt_gemm_pack)(packed_v, fetch_head(x, in, a->v, kv_at, s->kv_stride, T), x->kv_step, 1, D, T);
    for (int64_t h = g * x->group; h < (g + 1) * x->group; h++) {
        int64_t out_at = b * Q * s->out_stride + h * D;
        struct head head = {.b = b, .h = h, .k = turned_k, .v = packed_v, .scores = scores};
        head.q = fetch_head(x, in, a->q, b * Q * s->q_stride + h * D, s->q_stride, Q);
        head.out = place_head(x, result, a->out, out_at);
        head.lse = a->lse != NULL ? (float *)a->lse + (b * s->heads + h) * Q : NULL;
        for (int64_t begin = 0; begin < Q; begin += FORWARD_TILE) {
            forward_tile(x, &head, begin);
        }
        keep_head(x, result, a->out, out_at, s->out_stride, Q);
    }
}

static int attention_now(struct dt_pool *pool, struct dt_attention_args *a, struct dt_error *err)
{
    (void)err;
    struct forward c = {a, shape_of(&a->shape)};
    if (c.shape.of.queries < c.shape.of.keys && c.shape.of.queries <= FEW) {
        ISA(dt_attention_few)(pool, a, &c.shape);
    } else {
        dt_pool_run(pool, c.shape.of.batch * c.shape.of.kv_heads, attention_part, &c);
    }
    return 0;
}
DT_ISA_KERNEL_OF(attention, a->shape.type)

/* ---- backward ---- */

struct backward_head {
    int64_t b, h;
    const float *q, *out, *dout, *lse;
    const float *turned_k, *turned_v, *packed_k; /* packed: (D, T), (D, T), (T, D) */
    float *dq, *dk, *dv;
    float *p, *ds, *tile; /* memory of a tile */
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
static void backward_tile(const struct shape *x, const struct backward_head *h, int64_t begin, bool add)
{
    int64_t rows = min64(TILE, x->of.queries - begin), D = x->of.head_size, S = x->q_step, KS = x->kv_step;
    struct range keys = keys_of(x, h->b, begin, rows);
    int64_t n = keys.end - keys.first, at = keys.first * KS;
    const float *q = h->q + begin * S, *dout = h->dout + begin * x->o_step;
    product(h->p, n, q, S, h->turned_k + keys.first * D, D, rows, n, D);
    product(h->ds, n, dout, x->o_step, h->turned_v + keys.first * D, D, rows, n, D);
    for (int64_t i = 0; i < rows; i++) {
        float delta = delta_of(dout + i * x->o_step, h->out + (begin + i) * x->o_step, D);
        struct row row = row_of(x, h->b, h->h, begin + i, &keys);
        gradient_row(x, &row, h->p + i * n, h->ds + i * n, n, h->lse[begin + i], delta);
    }
    ISA_BASE(dt_gemm_pack)(h->tile, dout, x->o_step, 1, D, rows);
    product_turned(h->dv + at, KS, h->p, n, h->tile, n, D, rows, add);
    ISA_BASE(dt_gemm_pack)(h->tile, q, S, 1, D, rows);
    product_turned(h->dk + at, KS, h->ds, n, h->tile, n, D, rows, add);
    product(h->dq + begin * S, S, h->ds, n, h->packed_k + keys.first * DT_PANEL, x->of.keys, rows, D, n);
}

struct backward {
    const struct dt_attention_backward_args *args;
    struct shape shape;
};

/* Sets the gradients of a head's keys and values to 0, if its last tile may not reach all of them.
 * True: tiles must add to them from the first on. */
static bool clear_head(const struct shape *x, const struct backward_head *h)
{
    bool clears = x->of.window > 0 || x->of.segments != NULL;
    for (int64_t i = 0; i < x->of.keys && clears; i++) {
        clear(h->dk + i * x->kv_step, x->of.head_size);
        clear(h->dv + i * x->kv_step, x->of.head_size);
    }
    return clears;
}

static void attention_backward_part(void *context, int64_t part)
{
    const struct backward *c = context;
    const struct dt_attention_backward_args *a = c->args;
    const struct shape *x = &c->shape;
    const struct dt_attention_shape *s = &x->of;
    int64_t b = part / s->kv_heads, g = part % s->kv_heads, D = s->head_size, T = s->keys, S = s->kv_stride;
    int64_t kv_at = b * s->key_capacity * S + g * D;
    int64_t need = 2 * TILE * T + 2 * DT_PACKED(T) * D + DT_PACKED(D) * (T + TILE) + (x->half ? 6 * T * D : 0);
    float *p = dt_cpu_work(DT_WORK_KERNEL, (size_t)need * sizeof(float)), *ds = p + TILE * T;
    float *turned_k = ds + TILE * T, *turned_v = turned_k + DT_PACKED(T) * D, *packed_k = turned_v + DT_PACKED(T) * D,
          *tile = packed_k + DT_PACKED(D) * T,
          *room = tile + DT_PACKED(D) * TILE; /* room for q, out, dout, dq, dk, dv */
    const float *k = fetch_head(x, room, a->k, kv_at, S, T);
    ISA_BASE(dt_gemm_pack)(turned_k, k, 1, x->kv_step, T, D);
    ISA_BASE(dt_gemm_pack)(packed_k, k, x->kv_step, 1, D, T);
    ISA_BASE(dt_gemm_pack)(turned_v, fetch_head(x, room, a->v, kv_at, S, T), 1, x->kv_step, T, D);
    struct backward_head h = {.b = b, .turned_k = turned_k, .turned_v = turned_v, .packed_k = packed_k, .p = p};
    h.ds = ds;
    h.tile = tile;
    h.dk = place_head(x, room + 4 * T * D, a->dk, kv_at);
    h.dv = place_head(x, room + 5 * T * D, a->dv, kv_at);
    bool add = clear_head(x, &h);
    for (h.h = g * x->group; h.h < (g + 1) * x->group; h.h++) {
        int64_t q_at = b * T * s->q_stride + h.h * D, out_at = b * T * s->out_stride + h.h * D;
        h.q = fetch_head(x, room, a->q, q_at, s->q_stride, T);
        h.out = fetch_head(x, room + T * D, a->out, out_at, s->out_stride, T);
        h.dout = fetch_head(x, room + 2 * T * D, a->dout, out_at, s->out_stride, T);
        h.dq = place_head(x, room + 3 * T * D, a->dq, q_at);
        h.lse = (const float *)a->lse + (b * s->heads + h.h) * T;
        for (int64_t begin = (T - 1) / TILE * TILE; begin >= 0; begin -= TILE, add = true) {
            backward_tile(x, &h, begin, add);
        }
        keep_head(x, h.dq, a->dq, q_at, s->q_stride, T);
    }
    keep_head(x, h.dk, a->dk, kv_at, S, T);
    keep_head(x, h.dv, a->dv, kv_at, S, T);
}

static int attention_backward_now(struct dt_pool *pool, struct dt_attention_backward_args *a, struct dt_error *err)
{
    (void)err;
    struct backward c = {a, shape_of(&a->shape)};
    dt_pool_run(pool, c.shape.of.batch * c.shape.of.kv_heads, attention_backward_part, &c);
    return 0;
}
DT_ISA_KERNEL_OF(attention_backward, a->shape.type)
