/* A convolution as an operation graph of cuDNN: one operation on tensors as they lie in memory, images
 * with channels last and weights (out, C, size, size). The library's engines take both as they are. */
#ifndef DT_KERNELS_CUDA_CONVOLUTION_GRAPH_H
#define DT_KERNELS_CUDA_CONVOLUTION_GRAPH_H

#include "kernels/cuda/dnn_graph.h"
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dt_convolution_graph {
    struct dt_windows windows;
    int64_t out;
    enum dt_dnn_pass pass;
    bool planar, adds; /* x is (B, C, H, W); the result is added to */
    enum dt_dnn_type type;
};

/* Numbers of the tensors to which a pack of pointers refers; of gradients in the passes back. */
enum dt_convolution_uid { DT_CONVOLUTION_X = 1, DT_CONVOLUTION_W, DT_CONVOLUTION_Y, DT_CONVOLUTION_UIDS };

void dt_convolution_graph(struct dt_dnn_graph *g, const struct dt_convolution_graph *c);

#ifdef __cplusplus
}
#endif
#endif
