/* Shared by the files of attention: which keys a query sees, and its scores. A row is the scores of
 * one query with the keys of a tile, which follow each other. */
#ifndef DT_KERNELS_CPU_ISA_ATTENTION_H
#define DT_KERNELS_CPU_ISA_ATTENTION_H

#include "kernels/attention.h"
#include "kernels/cpu/isa/isa.h"
#include "kernels/dropout.h"

struct shape {
    struct dt_attention_shape of; /* filled */
    int64_t group;                /* query heads of a kv head */
    /* elements between positions of the memory that a tile reads, and of that where it leaves results: as in the
     * tensors, or head_size */
    int64_t q_step, kv_step, o_step, q_made, kv_made, o_made;
    float scale, softcap, kept; /* kept: by what dropout multiplies */
    uint32_t limit;             /* of dropout */
    bool half;
    bool dots; /* products are dot products of BF16, of which probabilities and gradients of scores are rounded */
    /* segments, a soft cap or dropout: a row is more than a range of scaled products */
    bool special;
};

INLINE struct shape shape_of(const struct dt_attention_shape *args, bool dots)
{
    struct shape x = {.of = dt_attention_filled(args), .dots = dots};
    const struct dt_attention_shape *s = &x.of;
    x.group = s->heads / s->kv_heads;
    x.half = DT_IS_HALF(s->type);
    x.q_made = x.half ? s->head_size : s->q_stride;
    x.kv_made = x.half ? s->head_size : s->kv_stride;
    x.o_made = x.half ? s->head_size : s->out_stride;
    x.q_step = dots ? s->q_stride : x.q_made;
    x.kv_step = dots ? s->kv_stride : x.kv_made;
    x.o_step = dots ? s->out_stride : x.o_made;
    x.scale = (float)s->scale;
    x.softcap = (float)s->softcap;
    x.limit = dt_dropout_limit(s->dropout);
    x.kept = (float)(1.0 / (1.0 - s->dropout));
    x.special = s->segments != NULL || s->softcap > 0.0 || s->dropout > 0.0;
    return x;
}

/* Keys first, ..., end - 1. */
struct range {
    int64_t first, end;
};

/* The keys that `count` queries from i on see at most: of these, only keys between the first and
 * the last one of their segments. */
INLINE struct range range_of(const struct shape *x, int64_t b, int64_t i, int64_t count)
{
    const struct dt_attention_shape *s = &x->of;
    int64_t at = i + s->keys - s->queries;
    struct range r = {dt_attention_first(s, at), dt_attention_end(s, at + count - 1)};
    if (s->segments != NULL) {
        const int32_t *segments = s->segments + b * s->keys;
        int32_t least = dt_attention_segment(segments, at), most = least;
        for (int64_t j = at + 1; j < at + count; j++) {
            int32_t own = dt_attention_segment(segments, j);
            least = own < least ? own : least;
            most = own > most ? own : most;
        }
        while (r.first < r.end && (segments[r.first] < least || segments[r.first] > most)) {
            r.first++;
        }
        while (r.first < r.end && (segments[r.end - 1] < least || segments[r.end - 1] > most)) {
            r.end--;
        }
    }
    return r;
}

/* The keys of a tile that a query sees. first and end count from the tile's first key, which is
 * key `base`. */
struct row {
    int64_t first, end, base;
    const int32_t *segments; /* of the tile's keys, or null */
    int32_t segment;
    uint64_t mask; /* key of dropout's mask */
};

INLINE struct row row_of(const struct shape *x, int64_t b, int64_t h, int64_t i, const struct range *tile)
{
    const struct dt_attention_shape *s = &x->of;
    int64_t at = i + s->keys - s->queries, first = dt_attention_first(s, at), end = dt_attention_end(s, at);
    struct row r = {.base = tile->first};
    r.end = min64(end, tile->end) - tile->first;
    r.first = first > tile->first ? first - tile->first : 0;
    if (r.end <= r.first) {
        r.first = r.end = 0;
    }
    if (s->segments != NULL) {
        r.segments = s->segments + b * s->keys + tile->first;
        r.segment = dt_attention_segment(s->segments + b * s->keys, at);
    }
    if (s->dropout > 0.0) {
        r.mask = dt_dropout_row_key(dt_dropout_key(s->seed, s->site, s->samples[b]), h, at);
    }
    return r;
}

/* Near 0 by its series, elsewhere by e^2x. */
INLINE vec vec_tanh(vec x)
{
    vec square = x * x, p = vec_fma(square, vec_all(62.0F / 2835), vec_all(-17.0F / 315));
    p = vec_fma(p, square, vec_all(2.0F / 15));
    p = vec_fma(p, square, vec_all(-1.0F / 3));
    vec near = vec_fma(x * square, p, x), far = 1.0F - 2.0F / (1.0F + vec_exp(x + x));
    return vec_pick(square < vec_all(0.0625F), near, far);
}

/* Products q k at s[j], ... become scores; -infinity where the query does not see the key. */
INLINE vec scores_at(const struct shape *x, const struct row *r, const float *s, int64_t j)
{
    int64_t n = r->end - j;
    vec v = vec_load_n(s + j, n) * x->scale;
    v = x->softcap > 0.0F ? vec_tanh(v / x->softcap) * x->softcap : v;
    ivec seen = vec_index() < (int32_t)(n < VEC ? n : VEC);
    if (r->segments != NULL) {
        ivec own = {0};
        if (n >= VEC) { /* one load: bytes that were copied one by one would be waited for */
            memcpy(&own, r->segments + j, sizeof own);
        } else {
            memcpy(&own, r->segments + j, (size_t)n * sizeof(int32_t));
        }
        seen &= own == r->segment;
    }
    return vec_pick(seen, v, vec_all(-INFINITY));
}

/* The factors of dropout on the probabilities of keys j, j + 1, ... */
INLINE vec kept_at(const struct shape *x, const struct row *r, int64_t j)
{
    if (x->of.dropout <= 0.0) {
        return vec_all(1.0F);
    }
    uvec bits = (uvec)vec_index() + (uint32_t)r->mask + (uint32_t)(r->base + j);
    DT_SCRAMBLE(bits);
    return vec_pick((ivec)((bits ^ (uint32_t)(r->mask >> 32)) >= x->limit), vec_all(x->kept), vec_all(0));
}

INLINE void clear(float *x, int64_t n)
{
    if (n > 0) {
        memset(x, 0, (size_t)n * sizeof(float));
    }
}

/* Sets x to e^(scale x - shift) in [0, valid) and to 0 in [valid, n). Returns the sum. */
INLINE float exp_row(float *x, int64_t valid, int64_t n, float scale, float shift)
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
    clear(x + valid, n - valid);
    return vec_sum(sum);
}

/* exp_row for a row of scores, in [first, end). Dropout applies to the stored values, but not to
 * the sum. */
INLINE float exp_special(const struct shape *x, const struct row *r, float *s, float shift)
{
    vec sum = {0};
    for (int64_t j = r->first; j < r->end; j += VEC) {
        vec v = vec_load_n(s + j, r->end - j);
        vec e = vec_pick(v == -INFINITY, vec_all(0), vec_exp(v - shift));
        e = r->end - j < VEC ? vec_pick(vec_index() < (int32_t)(r->end - j), e, vec_all(0)) : e;
        sum += e;
        vec_store_n(s + j, e * kept_at(x, r, j), r->end - j);
    }
    return vec_sum(sum);
}

/* Turns a row of n products q k into probabilities, but for the factor that it returns. *lse: the
 * log of the sum of exponentials. */
INLINE float softmax_row(const struct shape *x, const struct row *r, float *s, int64_t n, float *lse)
{
    float max = -INFINITY, sum = 0;
    clear(s, r->first);
    if (r->first < r->end && x->special) {
        for (int64_t j = r->first; j < r->end; j += VEC) {
            vec_store_n(s + j, scores_at(x, r, s, j), r->end - j);
        }
        max = vec_max_of(s + r->first, r->end - r->first);
        sum = exp_special(x, r, s, max);
        clear(s + r->end, n - r->end);
    } else if (r->first < r->end) {
        max = vec_max_of(s + r->first, r->end - r->first) * x->scale;
        sum = exp_row(s + r->first, r->end - r->first, n - r->first, x->scale, max);
    } else {
        clear(s, n);
    }
    *lse = (float)((double)max + log((double)sum));
    return sum == 0.0F ? 0.0F : 1.0F / sum;
}

/* p: products q k become probabilities, as dv needs them. ds: products dout v become gradients of
 * the products q k. */
INLINE void gradient_row(const struct shape *x, const struct row *r, float *p, float *ds, int64_t n, float lse,
                         float delta)
{
    clear(p, r->first);
    clear(ds, r->first);
    for (int64_t j = r->first; j < r->end && !x->special; j += VEC) {
        int64_t left = r->end - j;
        vec e = vec_exp(vec_fma(vec_load_n(p + j, left), vec_all(x->scale), vec_all(-lse)));
        vec_store_n(ds + j, e * (vec_load_n(ds + j, left) - delta) * x->scale, left);
        vec_store_n(p + j, e, left);
    }
    for (int64_t j = r->first; j < r->end && x->special; j += VEC) {
        int64_t left = r->end - j;
        vec s = scores_at(x, r, p, j), kept = kept_at(x, r, j), t = s / x->softcap;
        ivec hidden = s == -INFINITY;
        vec e = vec_pick(hidden, vec_all(0), vec_exp(s - lse));
        vec change = e * (vec_load_n(ds + j, left) * kept - delta) * x->scale;
        change = x->softcap > 0.0F ? change * (1.0F - t * t) : change;
        vec_store_n(ds + j, vec_pick(hidden, vec_all(0), change), left);
        vec_store_n(p + j, e * kept, left);
    }
    clear(p + r->end, n - r->end);
    clear(ds + r->end, n - r->end);
}

/* attention_few.c: forward of few queries, without packing keys and values. */
void ISA(dt_attention_few)(struct dt_pool *pool, const struct dt_attention_args *a, const struct shape *x);

#endif
