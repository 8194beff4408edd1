/* Attention in BF16 for tests of its kernels: a shape, the sizes of its tensors, and the calls
 * on them. */
#ifndef DT_TESTS_LIB_ATTENTION_SHAPE_H
#define DT_TESTS_LIB_ATTENTION_SHAPE_H

#include "kernels/kernels.h"

struct attention_shape {
    int64_t batch, positions, heads, head_size, kv_heads; /* kv_heads 0: heads */
    bool causal;
    double scale; /* 0: the usual one */
    double size;  /* of queries and keys, for tests to which it matters */
};

enum attention_tensor { QKV, OUT, LSE, DOUT, DQKV, TENSORS };

static inline int64_t attention_kv_heads(const struct attention_shape *x)
{
    return x->kv_heads != 0 ? x->kv_heads : x->heads;
}

/* Elements of a row of qkv. */
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

static inline struct dt_attention_args attention_args(const struct attention_shape *x, char *const *tensors)
{
    return (struct dt_attention_args){.out = tensors[OUT],
                                      .lse = tensors[LSE],
                                      .qkv = tensors[QKV],
                                      .batch = x->batch,
                                      .positions = x->positions,
                                      .heads = x->heads,
                                      .kv_heads = x->kv_heads,
                                      .head_size = x->head_size,
                                      .scale = x->scale,
                                      .causal = x->causal,
                                      .type = DT_BF16};
}

/* Without work memory. */
static inline struct dt_attention_backward_args attention_backward_args(const struct attention_shape *x,
                                                                        char *const *tensors)
{
    return (struct dt_attention_backward_args){.dqkv = tensors[DQKV],
                                               .dout = tensors[DOUT],
                                               .out = tensors[OUT],
                                               .qkv = tensors[QKV],
                                               .lse = tensors[LSE],
                                               .batch = x->batch,
                                               .positions = x->positions,
                                               .heads = x->heads,
                                               .kv_heads = x->kv_heads,
                                               .head_size = x->head_size,
                                               .scale = x->scale,
                                               .causal = x->causal,
                                               .type = DT_BF16};
}

#endif
