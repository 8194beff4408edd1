/* The sizes of Llama and the families near it: the values of their field tables. A family that lacks
 * a key has 0 there, or what its file sets. */
#ifndef DT_WORKER_MODEL_MODELS_DECODERS_H
#define DT_WORKER_MODEL_MODELS_DECODERS_H

#include "base/config.h"
#include "worker/model/models/sequence_head.h"

struct decoder {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t num_key_value_heads, head_dim; /* 0: by the family's rule */
    int64_t max_position_embeddings, pad_token_id /* -1: none */;
    int64_t sliding_window /* 0: none */, max_window_layers, sliding_window_pattern, no_rope_layer_interval;
    double rms_norm_eps, initializer_range, attention_dropout, resid_pdrop;
    double rope_theta, rope_local_base_freq, partial_rotary_factor;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_beta_fast, rope_beta_slow;
    double rope_attention_factor, rope_mscale, rope_mscale_all_dim;
    int64_t rope_original_max_position_embeddings; /* 0: max_position_embeddings */
    double query_pre_attn_scalar, attn_logit_softcapping, final_logit_softcapping;
    double attention_multiplier, embedding_multiplier, residual_multiplier, logits_scaling;
    int hidden_act, rope_type;
    bool rope_truncate, attention_bias, mlp_bias, tie_word_embeddings, use_sliding_window;
    struct sequence_head head;
    struct dt_kinds layer_types, no_rope_layers; /* 1: sliding attention; 1: turns */
};

#endif
