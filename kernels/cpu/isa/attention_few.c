/* Attention of few queries with many keys, for generation. Memory decides: each key and each value
 * is read once, where it lies, and meets all queries of all heads that share it. A part is one batch
 * entry and one kv head. */
#include "kernels/cpu/isa/attention.h"
#include "kernels/cpu/pool.h"

enum { TOGETHER = 4 }; /* values that are added to a sum at a time */

struct few {
    const struct dt_attention_args *args;
    const struct shape *shape;
};

/* The queries of a part, (rows, D), and what is computed of them: scores (rows, n), sums (rows, D). */
struct part {
    float *q, *scores, *sums;
    int64_t rows, n, D, stride; /* stride: of keys and values */
};

INLINE void products(const struct part *p, const void *k, int64_t at, enum dt_dtype type)
{
    for (int64_t j = 0; j < p->n; j++) {
        for (int64_t r = 0; r < p->rows; r++) {
            vec sum = {0};
            for (int64_t d = 0; d < p->D; d += VEC) {
                vec own = vec_load_n(p->q + r * p->D + d, p->D - d);
                sum = vec_fma(own, vec_get(k, at + j * p->stride + d, p->D - d, type), sum);
            }
            p->scores[r * p->n + j] = vec_sum(sum);
        }
    }
}

INLINE void add_values(const struct part *p, const void *v, int64_t at, enum dt_dtype type)
{
    memset(p->sums, 0, (size_t)(p->rows * p->D) * sizeof(float));
    for (int64_t j = 0; j < p->n; j += TOGETHER) {
        int64_t count = min64(TOGETHER, p->n - j);
        for (int64_t r = 0; r < p->rows; r++) {
            const float *weight = p->scores + r * p->n + j;
            float *sums = p->sums + r * p->D;
            for (int64_t d = 0; d < p->D; d += VEC) {
                vec sum = vec_load_n(sums + d, p->D - d);
                for (int64_t i = 0; i < count; i++) {
                    vec own = vec_get(v, at + (j + i) * p->stride + d, p->D - d, type);
                    sum = vec_fma(vec_all(weight[i]), own, sum);
                }
                vec_store_n(sums + d, sum, p->D - d);
            }
        }
    }
}

static void few_part(void *context, int64_t number)
{
    const struct few *c = context;
    const struct shape *x = c->shape;
    const struct dt_attention_shape *s = &x->of;
    const struct dt_attention_args *a = c->args;
    int64_t b = number / s->kv_heads, g = number % s->kv_heads;
    struct range keys = range_of(x, b, 0, s->queries);
    struct part p = {.rows = x->group * s->queries, .n = keys.end - keys.first, .D = s->head_size};
    int64_t at = (b * s->key_capacity + keys.first) * s->kv_stride + g * p.D;
    p.stride = s->kv_stride;
    p.q = dt_cpu_work(DT_WORK_KERNEL, (size_t)(p.rows * (p.n + 2 * p.D)) * sizeof(float));
    p.sums = p.q + p.rows * p.D;
    p.scores = p.sums + p.rows * p.D;
    for (int64_t r = 0; r < p.rows; r++) {
        int64_t h = g * x->group + r / s->queries, i = r % s->queries;
        vec_fetch(p.q + r * p.D, a->q, (b * s->queries + i) * s->q_stride + h * p.D, p.D, s->type);
    }
    if (x->half) {
        products(&p, a->k, at, DT_HALF);
    } else {
        products(&p, a->k, at, DT_F32);
    }
    float *factor = p.q; /* the queries have been used */
    for (int64_t r = 0; r < p.rows; r++) {
        int64_t h = g * x->group + r / s->queries, i = r % s->queries;
        struct row row = row_of(x, b, h, i, &keys);
        float lse;
        factor[r] = softmax_row(x, &row, p.scores + r * p.n, p.n, &lse);
        if (a->lse != NULL) {
            ((float *)a->lse)[(b * s->heads + h) * s->queries + i] = lse;
        }
    }
    if (x->half) {
        add_values(&p, a->v, at, DT_HALF);
    } else {
        add_values(&p, a->v, at, DT_F32);
    }
    for (int64_t r = 0; r < p.rows; r++) {
        int64_t h = g * x->group + r / s->queries, i = r % s->queries;
        float *sums = p.sums + r * p.D;
        for (int64_t d = 0; d < p.D; d++) {
            sums[d] *= factor[r];
        }
        vec_keep(a->out, (b * s->queries + i) * s->out_stride + h * p.D, sums, p.D, s->type);
    }
}

void ISA(dt_attention_few)(struct dt_pool *pool, const struct dt_attention_args *a, const struct shape *x)
{
    struct few c = {a, x};
    dt_pool_run(pool, x->of.batch * x->of.kv_heads, few_part, &c);
}
