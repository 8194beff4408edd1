/* The rows `attention` and `attention_backward`: which implementation a shape takes. It depends on type and shape alone, so forward, a
 * forward made again, and another start choose alike. */
#include "kernels/cuda/attention.h"

static bool check(struct dt_stream *s, int64_t positions, int64_t heads, int64_t kv_heads, int64_t head_size, enum dt_dtype type)
{
    if (type != DT_F32 && type != DT_BF16) {
        dt_stream_fail(s, DT_INVALID, "attention: %s is not computed on the GPU", dt_dtype_name(type));
        return false;
    }
    if (!dt_cuda_attention_plain_can(positions, heads, head_size) || (kv_heads != 0 && heads % kv_heads != 0)) {
        dt_stream_fail(
            s, DT_INVALID,
            "attention: %lld positions, %lld heads (%lld of keys) of size %lld: head sizes go to 256; lower model.n_embd or raise model.n_head",
            (long long)positions, (long long)heads, (long long)(kv_heads != 0 ? kv_heads : heads), (long long)head_size);
        return false;
    }
    return true;
}

void dt_cuda_attention(struct dt_stream *s, const struct dt_attention_args *a)
{
    struct dt_cuda_launch l;
    if (a->batch <= 0 || a->positions <= 0 || !dt_cuda_begin(s, &l) || !check(s, a->positions, a->heads, a->kv_heads, a->head_size, a->type)) {
        return;
    }
    dt_cuda_attention_plain(&l, a);
    dt_cuda_end(s, "attention");
}

void dt_cuda_attention_backward(struct dt_stream *s, const struct dt_attention_backward_args *a)
{
    struct dt_cuda_launch l;
    if (a->batch <= 0 || a->positions <= 0 || !dt_cuda_begin(s, &l) || !check(s, a->positions, a->heads, a->kv_heads, a->head_size, a->type)) {
        return;
    }
    dt_cuda_attention_backward_plain(&l, a);
    dt_cuda_end(s, "attention_backward");
}
