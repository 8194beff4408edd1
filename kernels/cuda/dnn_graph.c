/* Tensors and operations as cuDNN's descriptors. The graph owns all of its descriptors until it is
 * cleared. */
#include "kernels/cuda/dnn_graph.h"

#include <string.h>

int dt_dnn_make(const struct dt_dnn *api, enum dt_dnn_descriptor type, void **out)
{
    *out = NULL;
    return api->cudnnBackendCreateDescriptor((int)type, out);
}

int dt_dnn_set(const struct dt_dnn *api, void *descriptor, enum dt_dnn_attribute name, enum dt_dnn_kind kind,
               int64_t count, const void *values)
{
    return api->cudnnBackendSetAttribute(descriptor, (int)name, (int)kind, count, values);
}

void dt_dnn_drop(const struct dt_dnn *api, void *descriptor)
{
    if (descriptor != NULL) {
        (void)api->cudnnBackendDestroyDescriptor(descriptor);
    }
}

void dt_dnn_graph_init(struct dt_dnn_graph *g, const struct dt_dnn *api)
{
    memset(g, 0, sizeof *g);
    g->api = api;
    g->next_uid = 1000;
}

void dt_dnn_graph_clear(struct dt_dnn_graph *g)
{
    if (g->api == NULL) {
        return;
    }
    while (g->later_count > 0) {
        dt_dnn_drop(g->api, g->later[--g->later_count]);
    }
    dt_dnn_drop(g->api, g->graph);
    while (g->held_count > 0) {
        dt_dnn_drop(g->api, g->held[--g->held_count]);
    }
    g->graph = NULL;
    g->op_count = 0;
}

static bool good(struct dt_dnn_graph *g, int status, const char *what)
{
    if (status != DT_DNN_SUCCESS && g->status == DT_DNN_SUCCESS) {
        g->status = status;
        g->what = what;
        g->api->cudnnGetLastErrorString(g->why, sizeof g->why);
    }
    return g->status == DT_DNN_SUCCESS;
}

static void *make(struct dt_dnn_graph *g, enum dt_dnn_descriptor type)
{
    void *made = NULL;
    if (g->status == DT_DNN_SUCCESS && g->held_count == DT_DNN_HELD) {
        (void)good(g, DT_DNN_BAD_PARAM, "too many descriptors");
    }
    if (g->status == DT_DNN_SUCCESS && good(g, dt_dnn_make(g->api, type, &made), "descriptor")) {
        g->held[g->held_count++] = made;
    }
    return made;
}

static void set(struct dt_dnn_graph *g, void *d, enum dt_dnn_attribute name, enum dt_dnn_kind kind, int64_t count,
                const void *values, const char *what)
{
    if (g->status == DT_DNN_SUCCESS) {
        (void)good(g, dt_dnn_set(g->api, d, name, kind, count, values), what);
    }
}

static void refer(struct dt_dnn_graph *g, void *d, enum dt_dnn_attribute name, void *to, const char *what)
{
    set(g, d, name, DT_DNN_TYPE_DESCRIPTOR, 1, &to, what);
}

static void finalize(struct dt_dnn_graph *g, void *d, const char *what)
{
    if (g->status == DT_DNN_SUCCESS) {
        (void)good(g, g->api->cudnnBackendFinalize(d), what);
    }
}

static void *operation(struct dt_dnn_graph *g, enum dt_dnn_descriptor type)
{
    if (g->op_count == DT_DNN_OPS) {
        (void)good(g, DT_DNN_BAD_PARAM, "too many operations");
        return NULL;
    }
    void *made = make(g, type);
    if (made != NULL) {
        g->ops[g->op_count++] = made;
    }
    return made;
}

void *dt_dnn_tensor(struct dt_dnn_graph *g, const struct dt_dnn_shape *s)
{
    void *t = make(g, DT_DNN_TENSOR);
    int64_t uid = s->uid != 0 ? s->uid : g->next_uid++, alignment = s->alignment != 0 ? s->alignment : 16;
    int type = (int)s->type;
    bool nowhere = s->uid == 0, yes = true;
    set(g, t, DT_DNN_TENSOR_UNIQUE_ID, DT_DNN_TYPE_INT64, 1, &uid, "tensor");
    set(g, t, DT_DNN_TENSOR_DATA_TYPE, DT_DNN_TYPE_DATA_TYPE, 1, &type, "tensor type");
    set(g, t, DT_DNN_TENSOR_BYTE_ALIGNMENT, DT_DNN_TYPE_INT64, 1, &alignment, "tensor alignment");
    set(g, t, DT_DNN_TENSOR_DIMENSIONS, DT_DNN_TYPE_INT64, DT_DNN_DIMS, s->dims, "tensor dimensions");
    set(g, t, DT_DNN_TENSOR_STRIDES, DT_DNN_TYPE_INT64, DT_DNN_DIMS, s->strides, "tensor strides");
    set(g, t, DT_DNN_TENSOR_IS_VIRTUAL, DT_DNN_TYPE_BOOLEAN, 1, &nowhere, "tensor");
    if (s->by_value) {
        set(g, t, DT_DNN_TENSOR_IS_BY_VALUE, DT_DNN_TYPE_BOOLEAN, 1, &yes, "tensor by value");
    }
    finalize(g, t, "tensor");
    return t;
}

void dt_dnn_matmul(struct dt_dnn_graph *g, void *a, void *b, void *c)
{
    void *how = make(g, DT_DNN_MATMUL), *op;
    int sums = DT_DNN_FLOAT;
    set(g, how, DT_DNN_MATMUL_COMP_TYPE, DT_DNN_TYPE_DATA_TYPE, 1, &sums, "product");
    finalize(g, how, "product");
    op = operation(g, DT_DNN_OPERATION_MATMUL);
    refer(g, op, DT_DNN_OPERATION_MATMUL_ADESC, a, "product");
    refer(g, op, DT_DNN_OPERATION_MATMUL_BDESC, b, "product");
    refer(g, op, DT_DNN_OPERATION_MATMUL_CDESC, c, "product");
    refer(g, op, DT_DNN_OPERATION_MATMUL_DESC, how, "product");
    finalize(g, op, "product");
}

static void pointwise(struct dt_dnn_graph *g, enum dt_dnn_pointwise mode, enum dt_dnn_type computed,
                      const int64_t *axis, void *x, void *b, void *mask, void *y)
{
    void *how = make(g, DT_DNN_POINTWISE), *op;
    int what = (int)mode, type = (int)computed;
    set(g, how, DT_DNN_POINTWISE_MODE, DT_DNN_TYPE_POINTWISE_MODE, 1, &what, "pointwise");
    set(g, how, DT_DNN_POINTWISE_MATH_PREC, DT_DNN_TYPE_DATA_TYPE, 1, &type, "pointwise");
    if (axis != NULL) {
        set(g, how, DT_DNN_POINTWISE_AXIS, DT_DNN_TYPE_INT64, 1, axis, "index");
    }
    finalize(g, how, "pointwise");
    op = operation(g, DT_DNN_OPERATION_POINTWISE);
    refer(g, op, DT_DNN_OPERATION_POINTWISE_PW_DESCRIPTOR, how, "pointwise");
    refer(g, op, DT_DNN_OPERATION_POINTWISE_XDESC, x, "pointwise");
    if (b != NULL) {
        refer(g, op, DT_DNN_OPERATION_POINTWISE_BDESC, b, "pointwise");
    }
    if (mask != NULL) {
        refer(g, op, DT_DNN_OPERATION_POINTWISE_TDESC, mask, "select");
    }
    refer(g, op, DT_DNN_OPERATION_POINTWISE_YDESC, y, "pointwise");
    finalize(g, op, "pointwise");
}

void dt_dnn_pointwise(struct dt_dnn_graph *g, enum dt_dnn_pointwise mode, void *x, void *b, void *y)
{
    pointwise(g, mode, DT_DNN_FLOAT, NULL, x, b, NULL, y);
}

void dt_dnn_index(struct dt_dnn_graph *g, int64_t axis, void *x, void *y)
{
    pointwise(g, DT_DNN_GEN_INDEX, DT_DNN_INT32, &axis, x, NULL, NULL, y);
}

void dt_dnn_compare(struct dt_dnn_graph *g, void *x, void *b, void *y)
{
    pointwise(g, DT_DNN_CMP_GE, DT_DNN_BOOLEAN, NULL, x, b, NULL, y);
}

void dt_dnn_select(struct dt_dnn_graph *g, void *x, void *b, void *mask, void *y)
{
    pointwise(g, DT_DNN_BINARY_SELECT, DT_DNN_FLOAT, NULL, x, b, mask, y);
}

void dt_dnn_reduce(struct dt_dnn_graph *g, enum dt_dnn_reduction how_to, void *x, void *y)
{
    void *how = make(g, DT_DNN_REDUCTION), *op;
    int sums = DT_DNN_FLOAT, what = (int)how_to;
    set(g, how, DT_DNN_REDUCTION_OPERATOR, DT_DNN_TYPE_REDUCTION, 1, &what, "reduction");
    set(g, how, DT_DNN_REDUCTION_COMP_TYPE, DT_DNN_TYPE_DATA_TYPE, 1, &sums, "reduction");
    finalize(g, how, "reduction");
    op = operation(g, DT_DNN_OPERATION_REDUCTION);
    refer(g, op, DT_DNN_OPERATION_REDUCTION_XDESC, x, "reduction");
    refer(g, op, DT_DNN_OPERATION_REDUCTION_YDESC, y, "reduction");
    refer(g, op, DT_DNN_OPERATION_REDUCTION_DESC, how, "reduction");
    finalize(g, op, "reduction");
}

void dt_dnn_reshape(struct dt_dnn_graph *g, void *x, void *y)
{
    void *op = operation(g, DT_DNN_OPERATION_RESHAPE);
    refer(g, op, DT_DNN_OPERATION_RESHAPE_XDESC, x, "reshape");
    refer(g, op, DT_DNN_OPERATION_RESHAPE_YDESC, y, "reshape");
    finalize(g, op, "reshape");
}

void dt_dnn_convolution(struct dt_dnn_graph *g, enum dt_dnn_pass pass, const struct dt_dnn_windows *windows, void *x,
                        void *w, void *y, bool adds)
{
    static const enum dt_dnn_descriptor types[] = {DT_DNN_OPERATION_CONVOLUTION_FORWARD,
                                                   DT_DNN_OPERATION_CONVOLUTION_BACKWARD_DATA,
                                                   DT_DNN_OPERATION_CONVOLUTION_BACKWARD_FILTER};
    const int64_t dims = 2, ones[] = {1, 1}, strides[] = {windows->stride, windows->stride},
                  paddings[] = {windows->padding, windows->padding};
    const float alpha = 1, beta = adds ? 1 : 0;
    const char *what = "convolution";
    int sums = DT_DNN_FLOAT, mode = DT_DNN_CROSS_CORRELATION, first = 6 * (int)pass;
    void *how = make(g, DT_DNN_CONVOLUTION), *op;
    set(g, how, DT_DNN_CONVOLUTION_COMP_TYPE, DT_DNN_TYPE_DATA_TYPE, 1, &sums, what);
    set(g, how, DT_DNN_CONVOLUTION_CONV_MODE, DT_DNN_TYPE_CONVOLUTION_MODE, 1, &mode, what);
    set(g, how, DT_DNN_CONVOLUTION_SPATIAL_DIMS, DT_DNN_TYPE_INT64, 1, &dims, what);
    set(g, how, DT_DNN_CONVOLUTION_DILATIONS, DT_DNN_TYPE_INT64, 2, ones, what);
    set(g, how, DT_DNN_CONVOLUTION_FILTER_STRIDES, DT_DNN_TYPE_INT64, 2, strides, what);
    set(g, how, DT_DNN_CONVOLUTION_PRE_PADDINGS, DT_DNN_TYPE_INT64, 2, paddings, what);
    set(g, how, DT_DNN_CONVOLUTION_POST_PADDINGS, DT_DNN_TYPE_INT64, 2, paddings, what);
    finalize(g, how, what);
    op = operation(g, types[pass]);
    set(g, op, (enum dt_dnn_attribute)(first + DT_DNN_OPERATION_CONVOLUTION_FORWARD_ALPHA), DT_DNN_TYPE_FLOAT, 1,
        &alpha, what);
    set(g, op, (enum dt_dnn_attribute)(first + DT_DNN_OPERATION_CONVOLUTION_FORWARD_BETA), DT_DNN_TYPE_FLOAT, 1, &beta,
        what);
    refer(g, op, (enum dt_dnn_attribute)(first + DT_DNN_OPERATION_CONVOLUTION_FORWARD_CONV_DESC), how, what);
    refer(g, op, (enum dt_dnn_attribute)(first + DT_DNN_OPERATION_CONVOLUTION_FORWARD_W), w, what);
    refer(g, op, (enum dt_dnn_attribute)(first + DT_DNN_OPERATION_CONVOLUTION_FORWARD_X), x, what);
    refer(g, op, (enum dt_dnn_attribute)(first + DT_DNN_OPERATION_CONVOLUTION_FORWARD_Y), y, what);
    finalize(g, op, what);
}

int dt_dnn_graph_finish(struct dt_dnn_graph *g, void *handle, struct dt_error *err)
{
    void *graph = make(g, DT_DNN_OPERATIONGRAPH);
    if (graph != NULL) {
        g->held_count--; /* the graph's descriptor refers to all others, so it is destroyed first */
        g->graph = graph;
    }
    if (handle != NULL) {
        set(g, graph, DT_DNN_OPERATIONGRAPH_HANDLE, DT_DNN_TYPE_HANDLE, 1, &handle, "graph");
    }
    set(g, graph, DT_DNN_OPERATIONGRAPH_OPS, DT_DNN_TYPE_DESCRIPTOR, g->op_count, g->ops, "graph");
    finalize(g, graph, "graph");
    if (g->status != DT_DNN_SUCCESS) {
        (void)dt_fail(err, DT_INVALID, "cuDNN: refuses the %s: %s (status %d)%s%.150s", g->what,
                      g->api->cudnnGetErrorString(g->status), g->status, g->why[0] != '\0' ? ": " : "", g->why);
    }
    return g->status;
}
