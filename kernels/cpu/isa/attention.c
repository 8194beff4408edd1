/* Causal attention by tiles of queries. One part is one batch entry and kv head; of the scores only a tile (queries, T) exists.
 * Backward computes a tile again from the saved log-sum-exp; tiles go from the last to the first, so that the first one done
 * reaches every key and overwrites dk and dv, and the others add. */
#include "kernels/cpu/isa/isa.h"
#include "kernels/cpu/pool.h"

#define TILE 64         /* queries of a tile of backward */
#define FORWARD_TILE 32 /* of forward: less above the diagonal */

struct shape {
    int64_t positions, heads, kv_heads, group, head_size, qkv_stride, out_stride;
    float scale;
    bool causal;
};

static struct shape shape_of(int64_t positions, int64_t heads, int64_t kv_heads, int64_t head_size, double scale, bool causal)
{
    struct shape x = {.positions = positions, .heads = heads, .head_size = head_size, .causal = causal};
    x.kv_heads = kv_heads != 0 ? kv_heads : heads;
    x.group = heads / x.kv_heads;
    x.qkv_stride = (heads + 2 * x.kv_heads) * head_size;
    x.out_stride = heads * head_size;
    x.scale = (float)(scale != 0 ? scale : 1.0 / sqrt((double)head_size));
    return x;
}

/* How many keys the queries of a tile see at most. */
static int64_t keys_of(const struct shape *x, int64_t begin, int64_t rows)
{
    return x->causal ? min64(x->positions, begin + rows) : x->positions;
}

/* c (m, n) = a b, b packed with `stride` rows of which k are used */
static void product(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t stride, int64_t m, int64_t n, int64_t k)
{
    ISA(dt_gemm_packed)(&(struct dt_gemm){.c = c, .a = a, .m = m, .n = n, .k = k, .a_row = lda, .a_col = 1, .ldc = ldc}, b, stride);
}

/* c (m, n) [+]= a^T b, a stored (k, m) */
static void product_turned(float *c, int64_t ldc, const float *a, int64_t lda, const float *b, int64_t m, int64_t n, int64_t k, bool add)
{
    ISA(dt_gemm_packed)(&(struct dt_gemm){.c = c, .a = a, .m = m, .n = n, .k = k, .a_row = 1, .a_col = lda, .ldc = ldc, .accumulate = add}, b, k);
}

/* x becomes e^(scale x - shift) in [0, valid) and 0 in [valid, n). Returns the sum. */
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

/* k turned and v are packed */
static void forward_tile(const struct shape *x, const float *q, const float *k, const float *v, float *out, float *lse, int64_t begin, float *scores)
{
    int64_t rows = min64(FORWARD_TILE, x->positions - begin), keys = keys_of(x, begin, rows), D = x->head_size;
    float factor[FORWARD_TILE];
    product(scores, keys, q + begin * x->qkv_stride, x->qkv_stride, k, D, rows, keys, D);
    for (int64_t i = 0; i < rows; i++) {
        int64_t valid = x->causal ? begin + i + 1 : keys;
        float max = max_row(scores + i * keys, valid) * x->scale;
        float sum = exp_row(scores + i * keys, valid, keys, x->scale, max);
        factor[i] = 1.0F / sum;
        lse[begin + i] = (float)((double)max + log((double)sum));
    }
    product(out + begin * x->out_stride, x->out_stride, scores, keys, v, x->positions, rows, D, keys);
    for (int64_t i = 0; i < rows; i++) {
        float *o = out + (begin + i) * x->out_stride;
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
    const float *base = (const float *)c->args->qkv + b * T * x->qkv_stride;
    const float *k = base + (x->heads + g) * D, *v = k + x->kv_heads * D;
    float *scores = dt_cpu_work(DT_WORK_KERNEL, (size_t)(FORWARD_TILE * T + DT_PACKED(T) * D + DT_PACKED(D) * T) * sizeof(float));
    float *turned_k = scores + FORWARD_TILE * T, *packed_v = turned_k + DT_PACKED(T) * D;
    ISA(dt_gemm_pack)(turned_k, k, 1, x->qkv_stride, T, D);
    ISA(dt_gemm_pack)(packed_v, v, x->qkv_stride, 1, D, T);
    for (int64_t h = g * x->group; h < (g + 1) * x->group; h++) {
        float *out = (float *)c->args->out + b * T * x->out_stride + h * D, *lse = (float *)c->args->lse + (b * x->heads + h) * T;
        for (int64_t begin = 0; begin < T; begin += FORWARD_TILE) {
            forward_tile(x, base + h * D, turned_k, packed_v, out, lse, begin, scores);
        }
    }
}

static int attention_now(struct dt_pool *pool, struct dt_attention_args *a, struct dt_error *err)
{
    (void)err;
    struct forward c = {a, shape_of(a->positions, a->heads, a->kv_heads, a->head_size, a->scale, a->causal)};
    dt_pool_run(pool, a->batch * c.shape.kv_heads, attention_part, &c);
    return 0;
}
DT_ISA_KERNEL(attention)

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
static void backward_tile(const struct shape *x, const struct head *h, int64_t begin, bool add, float *p, float *ds, float *tile)
{
    int64_t rows = min64(TILE, x->positions - begin), keys = keys_of(x, begin, rows), D = x->head_size, S = x->qkv_stride;
    const float *q = h->q + begin * S, *dout = h->dout + begin * x->out_stride;
    product(p, keys, q, S, h->turned_k, D, rows, keys, D);
    product(ds, keys, dout, x->out_stride, h->turned_v, D, rows, keys, D);
    for (int64_t i = 0; i < rows; i++) {
        int64_t valid = x->causal ? begin + i + 1 : keys;
        float delta = delta_of(dout + i * x->out_stride, h->out + (begin + i) * x->out_stride, D);
        float *pi = p + i * keys, *di = ds + i * keys;
        exp_row(pi, valid, keys, x->scale, h->lse[begin + i]);
        for (int64_t j = 0; j < keys; j++) {
            di[j] = pi[j] * (di[j] - delta) * x->scale; /* p is 0 where a key is not seen */
        }
    }
    ISA(dt_gemm_pack)(tile, dout, x->out_stride, 1, D, rows);
    product_turned(h->dv, S, p, keys, tile, keys, D, rows, add);
    ISA(dt_gemm_pack)(tile, q, S, 1, D, rows);
    product_turned(h->dk, S, ds, keys, tile, keys, D, rows, add);
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
    int64_t b = part / x->kv_heads, g = part % x->kv_heads, D = x->head_size, T = x->positions;
    int64_t qkv_at = b * T * x->qkv_stride, k_at = (x->heads + g) * D, v_at = k_at + x->kv_heads * D;
    const float *qkv = (const float *)a->qkv + qkv_at;
    float *dqkv = (float *)a->dqkv + qkv_at;
    int64_t need = 2 * TILE * T + 2 * DT_PACKED(T) * D + DT_PACKED(D) * (T + TILE);
    float *p = dt_cpu_work(DT_WORK_KERNEL, (size_t)need * sizeof(float)), *ds = p + TILE * T;
    float *turned_k = ds + TILE * T, *turned_v = turned_k + DT_PACKED(T) * D, *packed_k = turned_v + DT_PACKED(T) * D,
          *tile = packed_k + DT_PACKED(D) * T;
    ISA(dt_gemm_pack)(turned_k, qkv + k_at, 1, x->qkv_stride, T, D);
    ISA(dt_gemm_pack)(turned_v, qkv + v_at, 1, x->qkv_stride, T, D);
    ISA(dt_gemm_pack)(packed_k, qkv + k_at, x->qkv_stride, 1, D, T);
    for (int64_t i = g * x->group; i < (g + 1) * x->group; i++) {
        int64_t out_at = b * T * x->out_stride + i * D;
        struct head h = {.q = qkv + i * D,
                         .turned_k = turned_k,
                         .turned_v = turned_v,
                         .packed_k = packed_k,
                         .dq = dqkv + i * D,
                         .dk = dqkv + k_at,
                         .dv = dqkv + v_at,
                         .out = (const float *)a->out + out_at,
                         .dout = (const float *)a->dout + out_at,
                         .lse = (const float *)a->lse + (b * x->heads + i) * T};
        for (int64_t begin = (T - 1) / TILE * TILE; begin >= 0; begin -= TILE) {
            bool first = i == g * x->group && begin == (T - 1) / TILE * TILE;
            backward_tile(x, &h, begin, !first, p, ds, tile);
        }
    }
}

static int attention_backward_now(struct dt_pool *pool, struct dt_attention_backward_args *a, struct dt_error *err)
{
    (void)err;
    struct backward c = {a, shape_of(a->positions, a->heads, a->kv_heads, a->head_size, a->scale, a->causal)};
    dt_pool_run(pool, a->batch * c.shape.kv_heads, attention_backward_part, &c);
    return 0;
}
DT_ISA_KERNEL(attention_backward)
