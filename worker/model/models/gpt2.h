/* The keys of GPT-2, with the names of config.json. */
#ifndef DT_WORKER_MODEL_MODELS_GPT2_H
#define DT_WORKER_MODEL_MODELS_GPT2_H

#include "worker/model/models/sequence_head.h"

#include <stdbool.h>
#include <stdint.h>

struct gpt2 {
    int64_t n_layer, n_head, n_embd, n_positions, vocab_size, n_inner; /* n_inner 0: 4 * n_embd */
    double layer_norm_epsilon, initializer_range;
    double attn_pdrop, embd_pdrop, resid_pdrop;
    int64_t pad_token_id; /* -1: none */
    struct sequence_head head;
    bool tie_word_embeddings;
};

#endif
