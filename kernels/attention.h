/* The meaning of attention's arguments, shared by all implementations. For C and C++. */
#ifndef DT_KERNELS_ATTENTION_H
#define DT_KERNELS_ATTENTION_H

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/kernels.h"
#ifdef __cplusplus
}
#endif

#include <math.h>

/* The shape with defaults filled in. */
static inline struct dt_attention_shape dt_attention_filled(const struct dt_attention_shape *s)
{
    struct dt_attention_shape x = *s;
    x.kv_heads = x.kv_heads != 0 ? x.kv_heads : x.heads;
    x.key_capacity = x.key_capacity != 0 ? x.key_capacity : x.keys;
    int64_t row = (x.heads + 2 * x.kv_heads) * x.head_size;
    x.q_stride = x.q_stride != 0 ? x.q_stride : row;
    x.kv_stride = x.kv_stride != 0 ? x.kv_stride : row;
    x.out_stride = x.out_stride != 0 ? x.out_stride : x.heads * x.head_size;
    x.scale = x.scale != 0.0 ? x.scale : 1.0 / sqrt((double)x.head_size);
    x.window = x.window < x.keys ? x.window : 0;
    return x;
}

/* The keys that a query may see by `causal` and `window` are first, ..., end - 1. `at` is the
 * query's key position; s has been filled. */
static inline int64_t dt_attention_first(const struct dt_attention_shape *s, int64_t at)
{
    return s->window > 0 && at >= s->window ? at - s->window + 1 : 0;
}

static inline int64_t dt_attention_end(const struct dt_attention_shape *s, int64_t at)
{
    int64_t end = s->causal ? at + 1 : s->window > 0 ? at + s->window : s->keys;
    return end < s->keys ? end : s->keys;
}

/* The segment of the keys that a query sees; segments: of the batch entry. */
static inline int32_t dt_attention_segment(const int32_t *segments, int64_t at)
{
    return segments[at] > 0 ? segments[at] : 0;
}

/* The address of the first position's q (0), k (1) or v (2) in rows of qkv, each of which holds
 * these three one after the other. The shape has no strides of its own. */
static inline void *dt_attention_part(const struct dt_attention_shape *s, const void *qkv, int part)
{
    int64_t kv_heads = s->kv_heads != 0 ? s->kv_heads : s->heads;
    int64_t heads = part == 0 ? 0 : s->heads + (part - 1) * kv_heads;
    return (char *)(uintptr_t)qkv + (size_t)(heads * s->head_size) * dt_dtype_size(s->type);
}

/* True if a query sees all keys, or (causal) those up to itself, its score is a product times the
 * scale, and nothing is dropped. s has been filled. */
static inline bool dt_attention_is_simple(const struct dt_attention_shape *s)
{
    return s->queries == s->keys && s->window <= 0 && s->segments == NULL && s->softcap <= 0.0 && s->dropout <= 0.0;
}

#endif
