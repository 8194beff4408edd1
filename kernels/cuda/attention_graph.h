/* Attention as operation graphs of cuDNN. Both passes are composed of products, reductions and
 * pointwise operations, which the library's engines know as one fused kernel; its single node
 * for attention is newer than many installations. Packed q, k, v need strides only, no copies. */
#ifndef DT_KERNELS_CUDA_ATTENTION_GRAPH_H
#define DT_KERNELS_CUDA_ATTENTION_GRAPH_H

#include "kernels/cuda/dnn_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of qkv are (heads + 2 kv_heads) * head_size long, bf16; what backward writes lies alike. */
struct dt_attention_shape {
    int64_t batch, positions, heads, kv_heads, head_size;
    bool causal;
};

/* Numbers of the tensors that a pack of pointers names. */
enum dt_attention_uid {
    DT_ATTENTION_Q = 1, /* (B, H, T, D) in qkv */
    DT_ATTENTION_K,
    DT_ATTENTION_V,
    DT_ATTENTION_OUT, /* (B, H, T, D) in (B, T, H, D) */
    DT_ATTENTION_LSE, /* (B, H, T, 1) fp32 */
    DT_ATTENTION_DOUT,
    DT_ATTENTION_DQ,
    DT_ATTENTION_DK,
    DT_ATTENTION_DV,
    DT_ATTENTION_DELTA, /* (B, H, T, 1) fp32: backward's sums of dout * out, memory of the caller */
    DT_ATTENTION_SUMS,  /* (B, H, T, D) fp32: dq while it adds up, memory of the caller; only
                         * where it does */
    DT_ATTENTION_SCALE, /* by value: float */
    DT_ATTENTION_HIDDEN,
    DT_ATTENTION_ONE,
    DT_ATTENTION_UIDS /* how many, and 1 */
};

void dt_attention_forward_graph(struct dt_dnn_graph *g, const struct dt_attention_shape *s);
/* adds_up: dq is summed in fp32 by all blocks at once, in no order. Otherwise it is written
 * once, from gradients of the scores that are kept meanwhile: about 2 B H T T bytes of work, and
 * the same bits each time. */
void dt_attention_backward_graph(struct dt_dnn_graph *g, const struct dt_attention_shape *s, bool adds_up);
/* Work memory that the library's engines want for the backward graph that does not add up, at
 * most. */
size_t dt_attention_backward_bytes(const struct dt_attention_shape *s);

#ifdef __cplusplus
}
#endif
#endif
