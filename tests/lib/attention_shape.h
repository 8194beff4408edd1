/* For tests of BF16 attention kernels: a shape, the sizes of its tensors, and the arguments of
 * calls. */
#ifndef DT_TESTS_LIB_ATTENTION_SHAPE_H
#define DT_TESTS_LIB_ATTENTION_SHAPE_H

#include "kernels/attention.h"

struct attention_shape {
    int64_t batch, positions, heads, head_size, kv_heads; /* kv_heads 0: the same as heads */
    bool causal;
    double scale; /* 0: the default */
    double size;  /* magnitude of queries and keys, for tests that depend on it */
};

enum attention_tensor { QKV, OUT, LSE, DOUT, DQKV, TENSORS };

static inline int64_t attention_kv_heads(const struct attention_shape *x)
{
    return x->kv_heads != 0 ? x->kv_heads : x->heads;
}

/* Number of elements in a row of qkv. */
static inline int64_t attention_row(const struct attention_shape *x)
{
    return (x->heads + 2 * attention_kv_heads(x)) * x->head_size;
}

static inline int64_t attention_count(const struct attention_shape *x, enum attention_tensor t)
{
    int64_t rows = x->batch * x->positions;
    return t == LSE ? rows * x->heads : rows * (t == QKV || t == DQKV ? attention_row(x) : x->heads * x->head_size);
}

static inline size_t attention_bytes(const struct attention_shape *x, enum attention_tensor t)
{
    return (size_t)attention_count(x, t) * (t == LSE ? sizeof(float) : sizeof(uint16_t));
}

static inline struct dt_attention_shape attention_common(const struct attention_shape *x)
{
    return (struct dt_attention_shape){.batch = x->batch,
                                       .queries = x->positions,
                                       .keys = x->positions,
                                       .heads = x->heads,
                                       .kv_heads = x->kv_heads,
                                       .head_size = x->head_size,
                                       .scale = x->scale,
                                       .causal = x->causal,
                                       .type = DT_BF16};
}

static inline struct dt_attention_args attention_args(const struct attention_shape *x, char *const *tensors)
{
    struct dt_attention_args a = {.shape = attention_common(x), .out = tensors[OUT], .lse = tensors[LSE]};
    a.q = tensors[QKV];
    a.k = dt_attention_part(&a.shape, tensors[QKV], 1);
    a.v = dt_attention_part(&a.shape, tensors[QKV], 2);
    return a;
}

/* Arguments without work memory. */
static inline struct dt_attention_backward_args attention_backward_args(const struct attention_shape *x,
                                                                        char *const *tensors)
{
    struct dt_attention_backward_args a = {.shape = attention_common(x), .lse = tensors[LSE]};
    a.dq = tensors[DQKV];
    a.dk = dt_attention_part(&a.shape, tensors[DQKV], 1);
    a.dv = dt_attention_part(&a.shape, tensors[DQKV], 2);
    a.dout = tensors[DOUT];
    a.out = tensors[OUT];
    a.q = tensors[QKV];
    a.k = dt_attention_part(&a.shape, tensors[QKV], 1);
    a.v = dt_attention_part(&a.shape, tensors[QKV], 2);
    return a;
}

#endif
