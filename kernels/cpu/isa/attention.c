/* Attention by tiles of queries. A part is one batch entry and one kv head; only one tile of the
 * scores (queries, keys) exists at a time, of the keys from the first to the last one that a query of
 * the tile sees. Backward computes each tile again from the saved log-sum-exp. It goes from the last
 * tile to the first: a last tile that reaches every key overwrites dk and dv, and the others add.
 * Where dot products of BF16 are chosen, heads of even sizes are read where they lie. Other 16-bit tensors are
 * converted one head at a time to floats in work memory. Results are rounded once. */
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/pool.h"

#define TILE 32         /* queries of a tile of backward */
#define FORWARD_TILE 32 /* of forward: a smaller tile wastes less above the diagonal */
enum { FEW = 4 };       /* queries that read keys where they lie */

/* False for all in the copies of other instruction sets. */
#if VEC == 16 && !defined(DT_FOR_F16)
#define DOTS(x) ((x)->dots)
#else
#define DOTS(x) ((void)(x), false)
#endif

/* `count` rows of a head as tiles read them: in place, or converted to floats in `room` (count, head_size). */
static const void *fetch_head(const struct shape *x, float *room, const void *tensor, int64_t at, int64_t stride,
                              int64_t count)
{
    int64_t D = x->of.head_size;
    if (DOTS(x)) {
        return (const uint16_t *)tensor + at;
    }
    if (!x->half) {
        return (const float *)tensor + at;
    }
    for (int64_t i = 0; i < count; i++) {
        vec_fetch(room + i * D, tensor, at + i * stride, D, DT_HALF);
    }
    return room;
}

/* Element i of rows that a tile reads. */
static const void *from(const struct shape *x, const void *rows, int64_t i)
{
    return DOTS(x) ? (const void *)((const uint16_t *)rows + i) : (const void *)((const float *)rows + i);
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
        if (DOTS(x)) {
            dt_round_dots((uint16_t *)tensor + at + i * stride, room + i * D, D);
        } else {
            vec_keep(tensor, at + i * stride, room + i * D, D, DT_HALF);
        }
    }
}

/* The keys of a tile, from the beginning of a panel of packed keys on. */
static struct range keys_of(const struct shape *x, int64_t b, int64_t begin, int64_t rows)
{
    struct range r = range_of(x, b, begin, rows);
    r.first = r.first / DT_PACKED(1) * DT_PACKED(1);
    return r;
}

/* Fetches rows of head_size elements into the cache that the next tile reads. The rows are too far apart for the
 * processor to foresee them. */
static void fetch_soon(const struct shape *x, const void *rows, int64_t step, int64_t begin, int64_t count)
{
    int64_t line = 64 / (DOTS(x) ? 2 : 4);
    for (int64_t i = begin > 0 ? begin : 0; i < begin + count; i++) {
        for (int64_t d = 0; d < x->of.head_size; d += line) {
            __builtin_prefetch(from(x, rows, i * step + d));
        }
    }
}

/* Words of k elements of a column of a packed matrix. */
static int64_t words(const struct shape *x, int64_t k)
{
    return DOTS(x) ? (k + 1) / 2 : k;
}

/* Packs (k, n) elements that a tile reads. */
static void pack(const struct shape *x, float *to, const void *b, int64_t row, int64_t col, int64_t n, int64_t k)
{
    if (DOTS(x)) {
        dt_gemm_pack_dots(to, b, row, col, n, k);
    } else {
        ISA_BASE(dt_gemm_pack)(to, b, row, col, n, k);
    }
}

/* c (m, n) [+]= a b; a is stored as (m, k), or `turned` as (k, m). b is packed with packed_k rows, of which k are
 * used. */
struct product {
    float *c;
    const void *a;
    const float *b;
    int64_t ldc, lda, packed_k, m, n, k;
    bool turned, add;
};

static void multiply(const struct shape *x, const struct product *p)
{
    int64_t a_row = p->turned ? 1 : p->lda, a_col = p->turned ? p->lda : 1;
    if (DOTS(x)) {
        const struct dt_gemm_half g = {.c = p->c,
                                       .a = p->a,
                                       .m = p->m,
                                       .n = p->n,
                                       .k = p->k,
                                       .a_row = a_row,
                                       .a_col = a_col,
                                       .ldc = p->ldc,
                                       .accumulate = p->add,
                                       .c_is_f32 = true};
        dt_gemm_packed_dots(&g, p->b, words(x, p->packed_k));
        return;
    }
    const struct dt_gemm g = {.c = p->c,
                              .a = p->a,
                              .m = p->m,
                              .n = p->n,
                              .k = p->k,
                              .a_row = a_row,
                              .a_col = a_col,
                              .ldc = p->ldc,
                              .accumulate = p->add};
    ISA_BASE(dt_gemm_packed)(&g, p->b, p->packed_k);
}

/* (rows, n) values as products read them: themselves, or rounded to BF16 in their own memory. */
static const void *rounded(const struct shape *x, float *values, int64_t rows, int64_t n)
{
    if (DOTS(x)) {
        dt_round_dots(values, values, rows * n);
    }
    return values;
}

/* The same for products that read them transposed. */
static const void *rounded_turned(const struct shape *x, float *room, const float *values, int64_t rows, int64_t n)
{
    if (DOTS(x)) {
        dt_round_pairs_dots(room, values, rows, n);
        return room;
    }
    return values;
}

/* One head, and the memory of its tiles. */
struct head {
    int64_t b, h;
    const void *q;
    const float *k, *v; /* k (transposed) and v are packed */
    float *out, *lse;   /* lse: null if it is not wanted */
    float *scores;
};

static void forward_tile(const struct shape *x, const struct head *c, int64_t begin)
{
    int64_t rows = min64(FORWARD_TILE, x->of.queries - begin), D = x->of.head_size;
    struct range keys = keys_of(x, c->b, begin, rows);
    int64_t n = keys.end - keys.first;
    float factor[FORWARD_TILE];
    multiply(x, &(struct product){.c = c->scores,
                                  .ldc = n,
                                  .a = from(x, c->q, begin * x->q_step),
                                  .lda = x->q_step,
                                  .b = c->k + keys.first * words(x, D),
                                  .packed_k = D,
                                  .m = rows,
                                  .n = n,
                                  .k = D});
    fetch_soon(x, c->q, x->q_step, begin + rows, min64(FORWARD_TILE, x->of.queries - begin - rows));
    for (int64_t i = 0; i < rows; i++) {
        struct row row = row_of(x, c->b, c->h, begin + i, &keys);
        float lse;
        factor[i] = softmax_row(x, &row, c->scores + i * n, n, &lse);
        if (DOTS(x)) {
            factor[i] *= dt_round_row_dots((uint16_t *)c->scores + i * n, c->scores + i * n, n);
        }
        if (c->lse != NULL) {
            c->lse[begin + i] = lse;
        }
    }
    multiply(x, &(struct product){.c = c->out + begin * x->o_made,
                                  .ldc = x->o_made,
                                  .a = c->scores,
                                  .lda = n,
                                  .b = c->v + words(x, keys.first) * DT_PANEL,
                                  .packed_k = x->of.keys,
                                  .m = rows,
                                  .n = D,
                                  .k = n});
    for (int64_t i = 0; i < rows; i++) {
        float *o = c->out + (begin + i) * x->o_made;
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
    pack(x, turned_k, fetch_head(x, in, a->k, kv_at, s->kv_stride, T), 1, x->kv_step, T, D);
    pack(x, packed_v, fetch_head(x, in, a->v, kv_at, s->kv_stride, T), x->kv_step, 1, D, T);
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

/* True if products are to be dot products of BF16. Below 0 after an error. */
static int has_dots(const struct dt_attention_shape *s, struct dt_error *err)
{
    const struct dt_bf16_ways *ways;
    if (VEC < 16 || s->type != DT_BF16 || s->head_size % 2 != 0) {
        return 0;
    }
    ways = dt_bf16_ways(ISA_BASE(dt_gemm), err);
    return ways == NULL ? -1 : ways->dots;
}

static int attention_now(struct dt_pool *pool, struct dt_attention_args *a, struct dt_error *err)
{
    int dots = has_dots(&a->shape, err);
    if (dots < 0) {
        return -1;
    }
    struct forward c = {a, shape_of(&a->shape, dots)};
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
    const void *q, *out, *dout;
    const float *lse;
    const float *turned_k, *turned_v, *packed_k; /* packed: (D, T), (D, T), (T, D) */
    float *dq, *dk, *dv;
    float *p, *ds, *tile, *pairs; /* memory of a tile */
};

INLINE float sum_of_products(const void *x, const void *y, int64_t n, enum dt_dtype type)
{
    vec sum = {0};
    for (int64_t i = 0; i < n; i += VEC) {
        sum = vec_fma(vec_get(x, i, n - i, type), vec_get(y, i, n - i, type), sum);
    }
    return vec_sum(sum);
}

/* The sum of products of n elements that a tile reads. */
static float delta_of(const struct shape *x, const void *a, const void *b, int64_t n)
{
    return DOTS(x) ? sum_of_products(a, b, n, DT_BF16) : sum_of_products(a, b, n, DT_F32);
}

struct size {
    int64_t rows, keys;
};

/* to (keys, head_size) [+]= values (rows, keys) transposed, times the `rows` of a head, `step` elements apart. */
static void turned_product(const struct shape *x, const struct backward_head *h, float *to, const float *values,
                           const void *head, int64_t step, const struct size *size, bool add)
{
    pack(x, h->tile, head, step, 1, x->of.head_size, size->rows);
    multiply(x, &(struct product){.c = to,
                                  .ldc = x->kv_made,
                                  .a = rounded_turned(x, h->pairs, values, size->rows, size->keys),
                                  .lda = size->keys,
                                  .turned = true,
                                  .b = h->tile,
                                  .packed_k = size->rows,
                                  .m = size->keys,
                                  .n = x->of.head_size,
                                  .k = size->rows,
                                  .add = add});
}

/* p (rows, keys): probabilities; ds (rows, keys): gradients of the scores before scaling */
static void backward_tile(const struct shape *x, const struct backward_head *h, int64_t begin, bool add)
{
    int64_t rows = min64(TILE, x->of.queries - begin), D = x->of.head_size, S = x->q_step, O = x->o_step;
    struct range keys = keys_of(x, h->b, begin, rows);
    int64_t n = keys.end - keys.first, at = keys.first * x->kv_made, column = keys.first * words(x, D);
    const void *q = from(x, h->q, begin * S), *dout = from(x, h->dout, begin * O), *out = from(x, h->out, begin * O);
    multiply(x, &(struct product){.c = h->p,
                                  .ldc = n,
                                  .a = q,
                                  .lda = S,
                                  .b = h->turned_k + column,
                                  .packed_k = D,
                                  .m = rows,
                                  .n = n,
                                  .k = D});
    multiply(x, &(struct product){.c = h->ds,
                                  .ldc = n,
                                  .a = dout,
                                  .lda = O,
                                  .b = h->turned_v + column,
                                  .packed_k = D,
                                  .m = rows,
                                  .n = n,
                                  .k = D});
    fetch_soon(x, h->q, S, begin - TILE, TILE);
    fetch_soon(x, h->dout, O, begin - TILE, TILE);
    fetch_soon(x, h->out, O, begin - TILE, TILE);
    for (int64_t i = 0; i < rows; i++) {
        float delta = delta_of(x, from(x, dout, i * O), from(x, out, i * O), D);
        struct row row = row_of(x, h->b, h->h, begin + i, &keys);
        gradient_row(x, &row, h->p + i * n, h->ds + i * n, n, h->lse[begin + i], delta);
    }
    turned_product(x, h, h->dv + at, h->p, dout, O, &(struct size){rows, n}, add);
    turned_product(x, h, h->dk + at, h->ds, q, S, &(struct size){rows, n}, add);
    multiply(x, &(struct product){.c = h->dq + begin * x->q_made,
                                  .ldc = x->q_made,
                                  .a = rounded(x, h->ds, rows, n),
                                  .lda = n,
                                  .b = h->packed_k + words(x, keys.first) * DT_PANEL,
                                  .packed_k = x->of.keys,
                                  .m = rows,
                                  .n = D,
                                  .k = n});
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
        clear(h->dk + i * x->kv_made, x->of.head_size);
        clear(h->dv + i * x->kv_made, x->of.head_size);
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
    int64_t need = 2 * TILE * T + TILE / 2 * (T + 8) + 2 * DT_PACKED(T) * D + DT_PACKED(D) * (T + TILE) +
                   (x->half ? 6 * T * D : 0);
    float *p = dt_cpu_work(DT_WORK_KERNEL, (size_t)need * sizeof(float)), *ds = p + TILE * T;
    float *turned_k = ds + TILE * T, *turned_v = turned_k + DT_PACKED(T) * D, *packed_k = turned_v + DT_PACKED(T) * D,
          *tile = packed_k + DT_PACKED(D) * T, *pairs = tile + DT_PACKED(D) * TILE,
          *room = pairs + TILE / 2 * (T + 8); /* room for q, out, dout, dq, dk, dv */
    const void *k = fetch_head(x, room, a->k, kv_at, S, T);
    pack(x, turned_k, k, 1, x->kv_step, T, D);
    pack(x, packed_k, k, x->kv_step, 1, D, T);
    pack(x, turned_v, fetch_head(x, room, a->v, kv_at, S, T), 1, x->kv_step, T, D);
    struct backward_head h = {.b = b, .turned_k = turned_k, .turned_v = turned_v, .packed_k = packed_k, .p = p};
    h.ds = ds;
    h.tile = tile;
    h.pairs = pairs;
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
    int dots = has_dots(&a->shape, err);
    if (dots < 0) {
        return -1;
    }
    struct backward c = {a, shape_of(&a->shape, dots)};
    dt_pool_run(pool, c.shape.of.batch * c.shape.of.kv_heads, attention_backward_part, &c);
    return 0;
}
DT_ISA_KERNEL_OF(attention_backward, a->shape.type)
