/* The plain twins of every kernel, for float, double, BF16 and F16: twin.inc included four times. */
#include "kernels/attention.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/plain.h"
#include "kernels/dropout.h"
#include "kernels/exact.h"
#include "kernels/moments.h"
#include "kernels/stochastic.h"

#include <math.h>
#include <string.h>

#define GELU_SCALE 0.79788456080286535588 /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715
#define INVERSE_SQRT_2PI 0.39894228040143267794

/* Reads element i of a tensor whose type is known only at run time. */
static inline double load(const void *x, int64_t i, enum dt_dtype type)
{
    return type == DT_F64   ? ((const double *)x)[i]
           : type == DT_F32 ? (double)((const float *)x)[i]
           : type == DT_F16 ? (double)dt_from_f16(((const uint16_t *)x)[i])
                            : (double)dt_from_bf16(((const uint16_t *)x)[i]);
}

static inline uint16_t bf16_of(double x)
{
    return dt_to_bf16(dt_narrow_to_odd(x)); /* rounded once */
}

static inline uint16_t f16_of(double x)
{
    return dt_to_f16(dt_narrow_to_odd(x));
}

static inline void store(void *to, int64_t i, double x, enum dt_dtype type)
{
    if (type == DT_F64) {
        ((double *)to)[i] = x;
    } else if (type == DT_F32) {
        ((float *)to)[i] = (float)x;
    } else {
        ((uint16_t *)to)[i] = type == DT_F16 ? f16_of(x) : bf16_of(x);
    }
}

/* A query of one head: its first and its last key, where its rows are in q, k, v and out, and the
 * numbers of its scores. */
struct query {
    const struct dt_attention_shape *s;
    int64_t at, first, end;  /* at: its key position */
    int64_t q, k, out, stat; /* k: of key 0, in k and in v */
    const int32_t *segments;
    uint64_t mask; /* of dropout */
};

/* `row` counts batch entries, heads and queries. */
static struct query query_of(const struct dt_attention_shape *s, int64_t row)
{
    int64_t h = row / s->queries % s->heads, i = row % s->queries, b = row / (s->heads * s->queries);
    struct query x = {.s = s, .at = i + s->keys - s->queries, .stat = row};
    x.first = dt_attention_first(s, x.at);
    x.end = dt_attention_end(s, x.at);
    x.q = (b * s->queries + i) * s->q_stride + h * s->head_size;
    x.k = b * s->key_capacity * s->kv_stride + h / (s->heads / s->kv_heads) * s->head_size;
    x.out = (b * s->queries + i) * s->out_stride + h * s->head_size;
    x.segments = s->segments != NULL ? s->segments + b * s->keys : NULL;
    x.mask = s->dropout > 0.0 ? dt_dropout_row_key(dt_dropout_key(s->seed, s->site, s->samples[b]), h, x.at) : 0;
    return x;
}

static bool sees(const struct query *x, int64_t j)
{
    return x->segments == NULL || x->segments[j] == dt_attention_segment(x->segments, x->at);
}

/* The factor of dropout on the probability of key j: 0, or 1 / (1 - rate). */
static double kept_share(const struct query *x, int64_t j)
{
    double rate = x->s->dropout;
    return rate <= 0.0 ? 1.0 : dt_dropout_keeps(x->mask, j, dt_dropout_limit(rate)) ? 1.0 / (1.0 - rate) : 0.0;
}

#define TYPE DT_F32
#define TWIN_HALF 0
#define REAL float
#define STAT float
#define GET(x) ((double)(x))
#define PUT(x) ((float)(x))
#define NAME(x) x##_f32
#define TWIN_NAME "twin32"
#include "kernels/cpu/twin.inc"
#undef TYPE
#undef REAL
#undef STAT
#undef PUT
#undef NAME
#undef TWIN_NAME

#define TYPE DT_F64
#define REAL double
#define STAT double
#define PUT(x) ((double)(x))
#define NAME(x) x##_f64
#define TWIN_NAME "twin64"
#include "kernels/cpu/twin.inc"
#undef TYPE
#undef TWIN_HALF
#undef REAL
#undef STAT
#undef GET
#undef PUT
#undef NAME
#undef TWIN_NAME

#define TYPE DT_BF16
#define TWIN_HALF 1
#define REAL uint16_t
#define STAT float
#define GET(x) ((double)dt_from_bf16(x))
#define PUT(x) bf16_of(x)
#define NAME(x) x##_bf16
#define TWIN_NAME "twin16"
#include "kernels/cpu/twin.inc"
#undef TYPE
#undef GET
#undef PUT
#undef NAME
#undef TWIN_NAME

#define TYPE DT_F16
#define GET(x) ((double)dt_from_f16(x))
#define PUT(x) f16_of(x)
#define NAME(x) x##_f16
#define TWIN_NAME "twin16f"
#include "kernels/cpu/twin.inc"

const struct dt_kernels *dt_kernels_twin(enum dt_dtype type)
{
    return type == DT_F32    ? &table_f32
           : type == DT_F64  ? &table_f64
           : type == DT_BF16 ? &table_bf16
           : type == DT_F16  ? &table_f16
                             : NULL;
}
