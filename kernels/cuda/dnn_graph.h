/* An operation graph of cuDNN: tensors of four dimensions and operations between them, put into
 * the library's descriptors one by one. The first refusal stays; what follows does nothing, and
 * dt_dnn_graph_finish tells. */
#ifndef DT_KERNELS_CUDA_DNN_GRAPH_H
#define DT_KERNELS_CUDA_DNN_GRAPH_H

#include "kernels/cuda/dnn.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_DNN_DIMS = 4, DT_DNN_OPS = 32, DT_DNN_HELD = 128, DT_DNN_LATER = 256 };

/* uid: the caller's number of a tensor that it hands memory for; 0: it lies nowhere ("virtual"),
 * and gets a number of its own. alignment: bytes that its address is a multiple of; 0: 16.
 * by_value: one number in host memory, which is read when a graph is executed. */
struct dt_dnn_shape {
    int64_t uid, dims[DT_DNN_DIMS], strides[DT_DNN_DIMS], alignment;
    enum dt_dnn_type type;
    bool by_value;
};

struct dt_dnn_graph {
    const struct dt_dnn *api;
    void *held[DT_DNN_HELD], *ops[DT_DNN_OPS]; /* descriptors, in the order in which they were
                                                * made; ops are among them */
    int held_count, op_count, later_count;
    void *later[DT_DNN_LATER]; /* what refers to the graph, and goes before it (dnn_plan.c) */
    int64_t next_uid;
    void *graph; /* null until finished */
    int status;  /* the first refusal */
    const char *what;
    char why[200]; /* the library's own words, where it has any */
};

void dt_dnn_graph_init(struct dt_dnn_graph *g, const struct dt_dnn *api);
/* Destroys its descriptors. Harmless on a zeroed graph and twice. */
void dt_dnn_graph_clear(struct dt_dnn_graph *g);

void *dt_dnn_tensor(struct dt_dnn_graph *g, const struct dt_dnn_shape *shape);
/* c = a b over the last two dimensions, summed in fp32; a head of b serves as many heads of a as
 * there are more of these. */
void dt_dnn_matmul(struct dt_dnn_graph *g, void *a, void *b, void *c);
/* y = mode(x [, b]); b null for one operand. Dimensions of 1 repeat. */
void dt_dnn_pointwise(struct dt_dnn_graph *g, enum dt_dnn_pointwise mode, void *x, void *b, void *y);
/* y = number along the axis, of x's shape */
void dt_dnn_index(struct dt_dnn_graph *g, int64_t axis, void *x, void *y);
/* y = row number >= column number; both and y are INT32 and BOOLEAN */
void dt_dnn_compare(struct dt_dnn_graph *g, void *x, void *b, void *y);
/* y = mask ? x : b */
void dt_dnn_select(struct dt_dnn_graph *g, void *x, void *b, void *mask, void *y);
/* y = op over the dimensions in which y has 1 (or a divisor of x's: groups of neighbours) */
void dt_dnn_reduce(struct dt_dnn_graph *g, enum dt_dnn_reduction op, void *x, void *y);
/* y is x with other dimensions and strides: here always its last two swapped */
void dt_dnn_reshape(struct dt_dnn_graph *g, void *x, void *y);
/* Puts the operations together. handle may be null: a graph without a device, for a plan that a
 * device description is given to. 0, or the library's status, and in err what was refused. */
int dt_dnn_graph_finish(struct dt_dnn_graph *g, void *handle, struct dt_error *err);

/* Descriptors outside of a graph: made, and one value set. */
int dt_dnn_make(const struct dt_dnn *api, enum dt_dnn_descriptor type, void **out);
int dt_dnn_set(const struct dt_dnn *api, void *descriptor, enum dt_dnn_attribute name, enum dt_dnn_kind kind,
               int64_t count, const void *values);
void dt_dnn_drop(const struct dt_dnn *api, void *descriptor); /* null is harmless */

#ifdef __cplusplus
}
#endif
#endif
