/* Activations and their slopes by vectors: for the rows activation, gate and their backward. A
 * function that takes a kind is inlined with a constant. */
#ifndef DT_KERNELS_CPU_ISA_ACTIVATION_H
#define DT_KERNELS_CPU_ISA_ACTIVATION_H

#include "kernels/cpu/isa/isa.h"
#include "kernels/normal.h"

#define GELU_SCALE 0.79788456080286535588F
#define GELU_CUBIC 0.044715F

/* gelu(x) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form with one
 * exponential. */
INLINE vec gelu_sigmoid(vec x)
{
    vec u = x * vec_fma(x * x, vec_all(2 * GELU_SCALE * GELU_CUBIC), vec_all(2 * GELU_SCALE));
    return vec_sigmoid(u);
}

/* x * x - square exactly, where square is x * x rounded. */
INLINE vec square_rest(vec x, vec square)
{
#if defined(__AVX2__)
    return vec_fma(x, x, -square);
#else
    vec high = (vec)((ivec)x & ~0xfff), low = x - high; /* their products are exact */
    return ((high * high - square) + 2.0F * high * low) + low * low;
#endif
}

/* exp(-x^2 / 2) for |x| at most DT_NORMAL_MOST. The second step makes up for the rounding of the
 * square. */
INLINE vec bell(vec x)
{
    vec square = x * x, half = vec_all(-0.5F);
    vec e = vec_exp(square * half);
    return vec_fma(e, square_rest(x, square) * half, e);
}

/* |x|, at most DT_NORMAL_MOST */
INLINE vec normal_distance(vec x)
{
    vec a = vec_pick(x < 0, -x, x);
    return vec_min(a, vec_all(DT_NORMAL_MOST));
}

/* P(X < x) of the normal distribution */
INLINE vec normal(vec x)
{
    vec a = normal_distance(x), t = 1.0F / vec_fma(a, vec_all(DT_NORMAL_STEP), vec_all(1));
    vec tail = bell(a) * (t * DT_NORMAL_TAIL(t, vec_all, vec_fma));
    return vec_pick(x < 0, tail, 1.0F - tail);
}

INLINE vec activation_value(enum dt_activation kind, vec x)
{
    switch (kind) {
    case DT_ACT_GELU:
        return x * gelu_sigmoid(x);
    case DT_ACT_RELU: /* NaN stays NaN */
        return vec_pick(x < 0, vec_all(0), x);
    case DT_ACT_TANH:
        break;
    case DT_ACT_GELU_ERF:
        return x * normal(x);
    case DT_ACT_SILU:
        return x * vec_sigmoid(x);
    }
    return 2.0F * vec_sigmoid(2.0F * x) - 1.0F;
}

INLINE vec activation_slope(enum dt_activation kind, vec x)
{
    vec s, t;
    switch (kind) {
    case DT_ACT_GELU:
        s = gelu_sigmoid(x);
        /* (2 u)' */
        t = vec_fma(x * x, vec_all(6 * GELU_SCALE * GELU_CUBIC), vec_all(2 * GELU_SCALE));
        return vec_fma(x * t, s * (1.0F - s), s);
    case DT_ACT_RELU:
        return vec_pick(x > 0, vec_all(1), vec_all(0));
    case DT_ACT_TANH:
        break;
    case DT_ACT_GELU_ERF:
        return vec_fma(x * DT_NORMAL_DENSITY, bell(normal_distance(x)), normal(x));
    case DT_ACT_SILU:
        s = vec_sigmoid(x);
        return vec_fma(x * s, 1.0F - s, s);
    }
    t = 2.0F * vec_sigmoid(2.0F * x) - 1.0F;
    return 1.0F - t * t;
}

/* With AVX2 looking BF16 inputs up takes a third of the time that computing takes (docs/benchmarks.md).
 * AVX-512 computes twice as many values at a time, and plain C is the reference: both compute. */
#define DT_BY_TABLE (VEC == 8)
#define DT_TABLE_ENTRIES 65536
struct activation_table {
    float both[DT_TABLE_ENTRIES][2];    /* value, slope */
    uint16_t rounded[DT_TABLE_ENTRIES]; /* value as BF16 */
};
#if DT_BY_TABLE
/* activation_table.c: the table of any kind but RELU, computed when it is first asked for. */
const struct activation_table *ISA(dt_activation_table)(enum dt_activation kind);

INLINE void entries_of(const struct activation_table *t, const uint16_t *x, vec *value, vec *slope)
{
    __m128 pair[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        pair[i] = _mm_loadl_pi(_mm_setzero_ps(), (const __m64 *)t->both[x[2 * i]]);
        pair[i] = _mm_loadh_pi(pair[i], (const __m64 *)t->both[x[2 * i + 1]]);
    }
    __m256 first = _mm256_set_m128(pair[2], pair[0]), second = _mm256_set_m128(pair[3], pair[1]);
    *value = (vec)_mm256_shuffle_ps(first, second, 0x88);
    *slope = (vec)_mm256_shuffle_ps(first, second, 0xdd);
}
#else
INLINE void entries_of(const struct activation_table *t, const uint16_t *x, vec *value, vec *slope)
{
    (void)t;
    (void)x;
    *value = *slope = (vec){0}; /* never reached: has_table() is false */
}
#endif

INLINE bool has_table(enum dt_activation kind, enum dt_dtype type)
{
    return DT_BY_TABLE && type == DT_BF16 && kind != DT_ACT_RELU;
}

/* The table, or null for what has none. */
INLINE const struct activation_table *table_of(enum dt_activation kind, enum dt_dtype type)
{
#if DT_BY_TABLE
    return has_table(kind, type) ? ISA(dt_activation_table)(kind) : NULL;
#else
    (void)kind;
    (void)type;
    return NULL;
#endif
}

/* Values and slopes of x[0], ..., x[n - 1], at most VEC of them. */
INLINE void look_up(const struct activation_table *table, const uint16_t *x, int64_t n, vec *value, vec *slope)
{
    if (n < VEC) {
        uint16_t last[VEC] = {0};
        memcpy(last, x, (size_t)n * sizeof *last);
        entries_of(table, last, value, slope);
    } else {
        entries_of(table, x, value, slope);
    }
}

/* Calls f(a, begin, end, kind, type) with kind and type as constants. */
#define DT_FOR_KIND(f, type)                                                                                           \
    switch (a->kind) {                                                                                                 \
    case DT_ACT_GELU:                                                                                                  \
        f(a, begin, end, DT_ACT_GELU, type);                                                                           \
        break;                                                                                                         \
    case DT_ACT_RELU:                                                                                                  \
        f(a, begin, end, DT_ACT_RELU, type);                                                                           \
        break;                                                                                                         \
    case DT_ACT_TANH:                                                                                                  \
        f(a, begin, end, DT_ACT_TANH, type);                                                                           \
        break;                                                                                                         \
    case DT_ACT_GELU_ERF:                                                                                              \
        f(a, begin, end, DT_ACT_GELU_ERF, type);                                                                       \
        break;                                                                                                         \
    case DT_ACT_SILU:                                                                                                  \
        f(a, begin, end, DT_ACT_SILU, type);                                                                           \
        break;                                                                                                         \
    }
#define DT_FOR_KIND_AND_TYPE(f)                                                                                        \
    if (DT_IS_HALF(a->type)) {                                                                                         \
        DT_FOR_KIND(f, DT_HALF)                                                                                        \
    } else {                                                                                                           \
        DT_FOR_KIND(f, DT_F32)                                                                                         \
    }

#endif
