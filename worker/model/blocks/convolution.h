/* A convolution without bias and a batch norm behind it, of which the blocks of a ResNet are made.
 *
 * Images are (B, H, W, C) between blocks, weights (out, C, size, size) as PyTorch has them. A
 * convolution is a call of kernels/convolution.h. With struct pass_peers, the batch norm's statistics, and the sums of
 * its backward, are those of the samples of all ranks.
 *
 * Convolution number i of a block has the tensors 6 i ... 6 i + 5 and the memories 2 i and 2 i + 1; the
 * block declares its convolutions first, then the memory of calls (conv_declare_calls). */
#ifndef DT_WORKER_MODEL_BLOCKS_CONVOLUTION_H
#define DT_WORKER_MODEL_BLOCKS_CONVOLUTION_H

#include "worker/model/chain.h"

enum { CONV_NAME_MAX = 96, CONV_MAX = 4 };

struct conv { /* sizes of one convolution, and of its norm */
    /* of its tensors: NAME.convolution.weight, NAME.normalization.weight, ... */
    char name[CONV_NAME_MAX];
    int64_t height, width, in, out, size, stride;
    bool planar; /* reads the batch's pixels (B, in, height, width), F32 */
    double eps, momentum;
};

/* Memory that calls share, by its numbers. */
struct conv_calls {
    int work, moments, sums;
};

/* Height and width of the output. */
int64_t conv_height(const struct conv *c);
int64_t conv_width(const struct conv *c);
/* Elements of the output for `samples` images. */
int64_t conv_outputs(const struct conv *c, int64_t samples);
/* Operations of forward and backward for one image. */
double conv_flops(const struct conv *c);
struct flow image_flow(const struct block *b, int64_t height, int64_t width, int64_t channels);

/* Declares the tensors and the memory of the next convolution: z, its output, and statistics. The latter
 * are always kept: so what is computed again moves no running statistic, and needs no other rank. */
void conv_declare(struct block *b, const struct conv *c);
/* Declares the memory that calls of these convolutions share. */
struct conv_calls conv_declare_calls(struct block *b, const struct conv *convs, int count);

/* In the following, `i` is the convolution's number in the block, and x its input. */
/* y = norm(conv(x)) [+ residual], then 0 where negative with relu. PASS_EVAL takes the running
 * statistics; PASS_FORWARD moves them, unless the batch has no targets. PASS_RECOMPUTE makes conv(x) if the
 * layer does not keep it, and y unless it is null, from the statistics of PASS_FORWARD. */
void conv_forward(const struct block *b, const struct pass *p, const struct conv *c, int i, const struct conv_calls *m,
                  void *y, const void *x, const void *residual, bool relu);
/* dz = dy, or 0 where y, after the ReLU, is 0 (y null: dz is dy); then gradients of the norm's weights,
 * and to = the gradient of conv(x). `to` may be dz. */
void conv_norm_backward(const struct block *b, const struct pass *p, const struct conv *c, int i,
                        const struct conv_calls *m, void *to, void *dz, const void *dy, const void *y);
/* The gradient of the weights, by that of conv(x). */
void conv_weight_backward(const struct block *b, const struct pass *p, const struct conv *c, int i,
                          const struct conv_calls *m, const void *dy, const void *x);
/* dx = [dx +] the gradient of x, by that of conv(x). */
void conv_input_backward(const struct block *b, const struct pass *p, const struct conv *c, int i,
                         const struct conv_calls *m, void *dx, const void *dy, bool adds);

#endif
