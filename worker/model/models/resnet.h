/* The keys of ResNet. */
#ifndef DT_WORKER_MODEL_MODELS_RESNET_H
#define DT_WORKER_MODEL_MODELS_RESNET_H

#include "base/config.h"

enum resnet_layer_type { RESNET_BASIC, RESNET_BOTTLENECK };
enum resnet_stem { RESNET_STEM_IMAGENET, RESNET_STEM_SMALL };

struct resnet {
    int64_t num_channels, image_size, image_width /* 0: image_size */, embedding_size, num_labels;
    struct dt_integers hidden_sizes, depths; /* of the stages */
    int layer_type, stem, hidden_act;
    bool downsample_in_first_stage, downsample_in_bottleneck;
};

#endif
