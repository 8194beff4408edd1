/* Blocks of a ResNet. */
#ifndef DT_WORKER_MODEL_BLOCKS_RESNET_LAYER_H
#define DT_WORKER_MODEL_BLOCKS_RESNET_LAYER_H

#include "worker/model/blocks/convolution.h"

/* Data of block_resnet_stem and block_resnet_layer. */
struct resnet_layer {
    int count; /* of convolutions on the main path */
    /* convs[count] is the shortcut's; otherwise the shortcut is the input itself */
    bool shortcut;
    bool pools; /* the stem: the largest of 3 x 3 with stride 2 follows */
    struct conv convs[CONV_MAX];
};

/* Data of block_resnet_pool. */
struct resnet_pool {
    int64_t height, width, channels;
};

extern const struct block_ops block_resnet_stem;  /* the first block: a convolution of the pixels, max pool */
extern const struct block_ops block_resnet_layer; /* 2 or 3 convolutions and a shortcut around them */
extern const struct block_ops block_resnet_pool;  /* (B, H, W, C) to the mean over H, W: (B, C) */

/* Height and width of what a stem or a layer gives. */
int64_t resnet_height(const struct resnet_layer *a);
int64_t resnet_width(const struct resnet_layer *a);
/* Operations of forward and backward of a stem or a layer for one image. */
double resnet_layer_flops(const struct resnet_layer *a);

#endif
