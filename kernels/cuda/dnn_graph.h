/* An operation graph of cuDNN: tensors of four dimensions and operations between them, made as the
 * library's descriptors one by one. The first refusal is kept: later calls do nothing, and
 * dt_dnn_graph_finish returns it. */
#ifndef DT_KERNELS_CUDA_DNN_GRAPH_H
#define DT_KERNELS_CUDA_DNN_GRAPH_H

#include "kernels/cuda/dnn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_DNN_DIMS = 4, DT_DNN_OPS = 32, DT_DNN_HELD = 128, DT_DNN_LATER = 256 };

/* uid: the caller's number of a tensor whose memory it provides; 0: the tensor is not stored
 * ("virtual") and gets a number of its own. alignment: bytes that its address is a multiple of; 0:
 * 16. by_value: one number in host memory, read when the graph is executed. */
struct dt_dnn_shape {
    int64_t uid, dims[DT_DNN_DIMS], strides[DT_DNN_DIMS], alignment;
    enum dt_dnn_type type;
    bool by_value;
};

struct dt_dnn_graph {
    const struct dt_dnn *api;
    /* all descriptors in the order in which they were made, the ops among them */
    void *held[DT_DNN_HELD], *ops[DT_DNN_OPS];
    int held_count, op_count, later_count;
    /* descriptors that refer to the graph, destroyed before it (dnn_plan.c) */
    void *later[DT_DNN_LATER];
    int64_t next_uid;
    void *graph; /* null until finished */
    int status;  /* the first refusal */
    const char *what;
    char why[200]; /* the library's text, if it has any */
};

void dt_dnn_graph_init(struct dt_dnn_graph *g, const struct dt_dnn *api);
/* Destroys its descriptors. Allowed on a zeroed graph, and twice. */
void dt_dnn_graph_clear(struct dt_dnn_graph *g);

void *dt_dnn_tensor(struct dt_dnn_graph *g, const struct dt_dnn_shape *shape);
/* c = a b over the last two dimensions, summed in fp32. If a has more heads than b, neighbouring
 * heads of a share a head of b. */
void dt_dnn_matmul(struct dt_dnn_graph *g, void *a, void *b, void *c);
/* y = mode(x [, b]); b is null for one operand. Dimensions of 1 are broadcast. */
void dt_dnn_pointwise(struct dt_dnn_graph *g, enum dt_dnn_pointwise mode, void *x, void *b, void *y);
/* y = the index along the axis, in the shape of x */
void dt_dnn_index(struct dt_dnn_graph *g, int64_t axis, void *x, void *y);
/* y = row index >= column index; x and b are INT32, y is BOOLEAN */
void dt_dnn_compare(struct dt_dnn_graph *g, void *x, void *b, void *y);
/* y = mask ? x : b */
void dt_dnn_select(struct dt_dnn_graph *g, void *x, void *b, void *mask, void *y);
/* y = op over the dimensions in which y has size 1 (or a divisor of x's: groups of neighbours) */
void dt_dnn_reduce(struct dt_dnn_graph *g, enum dt_dnn_reduction op, void *x, void *y);
/* y is x with other dimensions and strides: here always its last two swapped */
void dt_dnn_reshape(struct dt_dnn_graph *g, void *x, void *y);
/* The passes of a convolution: y of x and w, dx of w and dy, dw of x and dy. The last operand is the result. */
enum dt_dnn_pass { DT_DNN_FORWARD, DT_DNN_DATA, DT_DNN_FILTER };
struct dt_dnn_windows {
    int64_t stride, padding; /* in both directions */
};
/* A convolution of images x (B, C, H, W) with w (K, C, R, S), as PyTorch has it (a cross-correlation), to
 * y (B, K, P, Q), summed in fp32. In the passes back x, w and y are the gradients. adds: to what the result
 * held. */
void dt_dnn_convolution(struct dt_dnn_graph *g, enum dt_dnn_pass pass, const struct dt_dnn_windows *windows, void *x,
                        void *w, void *y, bool adds);
/* Finishes the graph. handle may be null: then the graph has no device, for a plan by a device
 * description. Returns 0 or the library's status; err says what was refused. */
int dt_dnn_graph_finish(struct dt_dnn_graph *g, void *handle, struct dt_error *err);

/* A descriptor outside of a graph: makes it, and sets one value. */
int dt_dnn_make(const struct dt_dnn *api, enum dt_dnn_descriptor type, void **out);
int dt_dnn_set(const struct dt_dnn *api, void *descriptor, enum dt_dnn_attribute name, enum dt_dnn_kind kind,
               int64_t count, const void *values);
void dt_dnn_drop(const struct dt_dnn *api, void *descriptor); /* null is allowed */

#ifdef __cplusplus
}
#endif
#endif
