/* Attention as operation graphs of cuDNN. Both passes are composed of products, reductions and
 * pointwise operations, which the library's engines recognise as one fused kernel. The library also
 * has a single node for attention, but many installations are older. Packed q, k, v need strides
 * only, no copies. */
#ifndef DT_KERNELS_CUDA_ATTENTION_GRAPH_H
#define DT_KERNELS_CUDA_ATTENTION_GRAPH_H

#include "kernels/cuda/dnn_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of qkv are (heads + 2 kv_heads) * head_size long, bf16. Backward writes its gradients in the
 * same layout. */
struct dt_attention_graph {
    int64_t batch, positions, heads, kv_heads, head_size;
    bool causal, f16; /* f16: else BF16 */
};

/* Numbers of the tensors to which a pack of pointers refers. */
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
    /* (B, H, T, 1) fp32: backward's sums of dout * out, in memory of the caller */
    DT_ATTENTION_DELTA,
    /* (B, H, T, D) fp32: dq while it is added up, in memory of the caller; only if it is added
     * up */
    DT_ATTENTION_SUMS,
    DT_ATTENTION_SCALE, /* by value: float */
    DT_ATTENTION_HIDDEN,
    DT_ATTENTION_ONE,
    DT_ATTENTION_UIDS /* the number of uids, plus 1 */
};

void dt_attention_forward_graph(struct dt_dnn_graph *g, const struct dt_attention_graph *s);
/* adds_up: all blocks at once add to dq in fp32, in no order. Otherwise dq is written once, from
 * gradients of the scores that are kept meanwhile: about 2 B H T T bytes of work memory, and the
 * same bits each time. */
void dt_attention_backward_graph(struct dt_dnn_graph *g, const struct dt_attention_graph *s, bool adds_up);
/* Most work memory that the library's engines need for the backward graph that does not add up. */
size_t dt_attention_backward_bytes(const struct dt_attention_graph *s);

#ifdef __cplusplus
}
#endif
#endif
