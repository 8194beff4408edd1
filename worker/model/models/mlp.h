/* The keys of the perceptron. */
#ifndef DT_WORKER_MODEL_MODELS_MLP_H
#define DT_WORKER_MODEL_MODELS_MLP_H

#include <stdint.h>

struct mlp {
    int64_t num_channels, image_size, hidden_size, last_hidden_size, num_labels, frozen_layers;
    double momentum, initializer_range;
};

#endif
