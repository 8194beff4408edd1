/* The case of attention: each feature of its shape, and several at once. */
#include "kernels/attention.h"
#include "tests/lib/kernel_cases.h"

#include <math.h>

enum { SPARE = 3 /* positions in k and v that are no keys, where queries are fewer */ };

/* The shape, without addresses. B, T, H, D, KV, and what CASE_... of kernel_cases.h say. */
static struct dt_attention_shape shape_of(const int64_t *n)
{
    int64_t kv = n[4] != 0 ? n[4] : n[2], what = n[5];
    struct dt_attention_shape s = {.batch = n[0], .keys = n[1], .heads = n[2], .head_size = n[3], .kv_heads = n[4]};
    s.queries = what >> 24 != 0 ? what >> 24 : s.keys;
    s.key_capacity = s.queries < s.keys ? s.keys + SPARE : 0;
    s.causal = (what & CASE_CAUSAL) != 0;
    s.softcap = (what & CASE_SOFTCAP) != 0 ? 1.25 : 0;
    s.scale = (what & CASE_SOFTCAP) != 0 ? 0.4 : 0;
    s.dropout = (what & CASE_DROPOUT) != 0 ? 0.3 : 0;
    s.seed = 77;
    s.site = 3;
    s.window = what >> 8 & 0xffff;
    if ((what & CASE_STRIDES) != 0) {
        s.q_stride = s.heads * s.head_size + 5;
        s.kv_stride = kv * s.head_size + 3;
        s.out_stride = s.heads * s.head_size + 1;
    }
    return s;
}

/* Segments of `count` keys: 1 padding at the end, 2 at the beginning, 3 holes, 4 documents, 5 only
 * padding. */
static void make_segments(int32_t *to, int64_t count, int64_t kind, int64_t b)
{
    for (int64_t j = 0; j < count; j++) {
        bool padding = kind == 1   ? j >= count - count / 3 - b
                       : kind == 2 ? j < count / 3 + b
                       : kind == 3 ? (j * 7 + b) % 3 == 0
                                   : kind == 5;
        to[j] = padding ? -1 : kind == 4 ? (int32_t)(j * 4 / count + (j > 2)) : 0;
    }
}

void case_make_attention(const int64_t *n)
{
    const struct dt_attention_shape given = shape_of(n), x = dt_attention_filled(&given);
    bool packed = given.q_stride == 0 && given.queries == given.keys;
    int64_t queries = x.batch * x.queries, keys = x.batch * x.key_capacity;
    int64_t all = packed ? queries * x.q_stride : queries * x.q_stride + 2 * keys * x.kv_stride;
    case_make(0, all, 1.5, 0);                                  /* q, k, v */
    case_make(1, queries * x.out_stride, 1, 0);                 /* out */
    case_make_of(STAT, 2, x.batch * x.heads * x.queries, 1, 0); /* lse */
    case_make(3, queries * x.out_stride, 1, 0);                 /* dout */
    case_make(4, all, 1, 0);                                    /* dq, dk, dv */
    for (int64_t b = 0; b < x.batch; b++) {
        make_segments(case_side.ids + b * x.keys, x.keys, n[5] >> 4 & 15, b);
        case_side.samples[b] = 1000 + 17 * b;
    }
}

static void *part_of(const struct case_run *r, const struct dt_attention_shape *given, int buffer, int part)
{
    struct dt_attention_shape x = dt_attention_filled(given);
    void *base = case_at(r, buffer);
    if (given->q_stride == 0 && x.queries == x.keys) {
        return dt_attention_part(given, base, part);
    }
    int64_t at = part == 0 ? 0 : x.batch * (x.queries * x.q_stride + (part - 1) * x.key_capacity * x.kv_stride);
    return (char *)base + (size_t)at * dt_dtype_size(r->type);
}

struct dt_attention_args case_attention(const struct case_run *r)
{
    struct dt_attention_args a = {.shape = shape_of(r->n), .out = case_at(r, 1), .lse = case_at(r, 2)};
    a.shape.type = r->type;
    a.shape.segments = (r->n[5] >> 4 & 15) != 0 ? case_side_of(r)->ids : NULL;
    a.shape.samples = case_side_of(r)->samples;
    a.q = part_of(r, &a.shape, 0, 0);
    a.k = part_of(r, &a.shape, 0, 1);
    a.v = part_of(r, &a.shape, 0, 2);
    return a;
}

void case_run_attention(const struct case_run *r)
{
    struct dt_attention_args a = case_attention(r);
    r->k->attention(r->s, &a);
    if (a.shape.queries < a.shape.keys) {
        return;
    }
    struct dt_attention_backward_args b = {.shape = a.shape, .out = a.out, .lse = a.lse, .q = a.q, .k = a.k, .v = a.v};
    b.dq = part_of(r, &b.shape, 4, 0);
    b.dk = part_of(r, &b.shape, 4, 1);
    b.dv = part_of(r, &b.shape, 4, 2);
    b.dout = case_at(r, 3);
    r->k->attention_backward(r->s, &b);
}

/* Makes the log-sum-exp of a query that sees nothing a number, which can be compared. */
void case_after_attention(const struct case_run *r)
{
    for (int64_t i = 0; i < case_buf[2].count; i++) {
        if (r->type == DT_F64) {
            double *x = &case_buf[2].d[i];
            *x = *x == -(double)INFINITY ? -1e9 : *x;
        } else {
            float *x = (float *)case_buf[2].x + i;
            *x = *x == -INFINITY ? -1e9F : *x;
        }
    }
}
