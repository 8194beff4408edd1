/* The keys of mha-gpt. */
#ifndef DT_WORKER_MODEL_MODELS_MHA_GPT_H
#define DT_WORKER_MODEL_MODELS_MHA_GPT_H

#include <stdbool.h>
#include <stdint.h>

struct mha_gpt {
    int64_t vocab_size, hidden_size, num_hidden_layers, num_attention_heads, max_position_embeddings;
    double layer_norm_eps, initializer_range; /* initializer_range -1: as PyTorch's modules begin */
    bool causal, shift_labels;
};

#endif
