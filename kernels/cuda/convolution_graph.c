/* See the header. */
#include "kernels/cuda/convolution_graph.h"

/* A tensor with dimensions (count, channels, height, width), whose channels come last in memory unless it
 * is planar. */
static void *tensor(struct dt_dnn_graph *g, int64_t uid, const int64_t *dims, bool planar, enum dt_dnn_type type)
{
    struct dt_dnn_shape s = {.uid = uid, .dims = {dims[0], dims[1], dims[2], dims[3]}, .type = type};
    int64_t pixels = dims[2] * dims[3], channels = dims[1];
    s.strides[0] = channels * pixels;
    s.strides[1] = planar ? pixels : 1;
    s.strides[2] = planar ? dims[3] : dims[3] * channels;
    s.strides[3] = planar ? 1 : channels;
    return dt_dnn_tensor(g, &s);
}

void dt_convolution_graph(struct dt_dnn_graph *g, const struct dt_convolution_graph *c)
{
    const struct dt_windows *w = &c->windows;
    const struct dt_dnn_windows windows = {w->stride, w->padding};
    const int64_t images[] = {w->batch, w->channels, w->height, w->width},
                  weights[] = {c->out, w->channels, w->size, w->size},
                  outputs[] = {w->batch, c->out, w->out_height, w->out_width};
    void *x = tensor(g, DT_CONVOLUTION_X, images, c->planar, c->type);
    void *weight = tensor(g, DT_CONVOLUTION_W, weights, true, c->type);
    void *y = tensor(g, DT_CONVOLUTION_Y, outputs, false, c->type);
    dt_dnn_convolution(g, c->pass, &windows, x, weight, y, c->adds);
}
