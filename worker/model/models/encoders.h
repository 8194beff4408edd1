/* The sizes of BERT and the families near it: the values of their field tables. A family that lacks
 * a key has 0 there. */
#ifndef DT_WORKER_MODEL_MODELS_ENCODERS_H
#define DT_WORKER_MODEL_MODELS_ENCODERS_H

#include "base/config.h"

/* The task of the head: a class for each sequence, a class for each token, or the masked tokens'
 * ids. */
enum encoder_task { ENCODER_SEQUENCES, ENCODER_TOKENS, ENCODER_MASKED };

/* The head's answer for a sequence: one of the classes, num_labels numbers (regression), or any
 * number of the classes. PROBLEM_BY_LABELS: numbers if num_labels is 1, otherwise a class. */
enum encoder_problem { PROBLEM_CLASS, PROBLEM_NUMBERS, PROBLEM_CLASSES, PROBLEM_BY_LABELS };

struct encoder {
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
    int64_t max_position_embeddings, type_vocab_size, pad_token_id /* -1: none */, num_labels;
    int64_t local_attention, global_attn_every_n_layers;
    double norm_epsilon, initializer_range, initializer_cutoff_factor;
    double global_rope_theta, local_rope_theta;
    double hidden_dropout, attention_dropout, embedding_dropout, mlp_dropout, classifier_dropout;
    int hidden_act, classifier_activation, classifier_pooling, task, problem_type;
    bool norm_bias, attention_bias, mlp_bias, classifier_bias, decoder_bias, tie_word_embeddings;
    struct dt_kinds layer_types; /* 1: sliding attention */
};

#endif
