/* One decoder layer with switches, which carries Llama and the families near it, and the sizes that
 * models pass to it. */
#ifndef DT_WORKER_MODEL_BLOCKS_DECODER_H
#define DT_WORKER_MODEL_BLOCKS_DECODER_H

#include "worker/model/blocks/blocks.h"
#include "worker/model/blocks/rope.h"

/* The places of RMSNorms. BEFORE: the inputs of attention and MLP. AFTER: their outputs, before
 * the residual sum. BOTH: inputs and outputs. */
enum norm_place { NORM_BEFORE, NORM_AFTER, NORM_BOTH };
/* Norms of queries and keys before they turn: none, over each head's values with one weight for all
 * heads, or over all heads together. */
enum qk_norm { QK_NORM_NONE, QK_NORM_HEADS, QK_NORM_ALL };

struct decoder_layer {                                   /* the data of block_decoder_layer (b->args) */
    int64_t channels, inner, heads, kv_heads, head_size; /* C, I, H, KV, D */
    enum norm_place norms;
    enum qk_norm qk_norm;
    double norm_epsilon, weight_offset; /* a norm multiplies by offset + weight: 1 for Gemma */
    bool qkv_bias, o_bias, mlp_bias;
    bool fused; /* one tensor for q, k, v, and one for gate and up */
    enum dt_activation activation;
    int64_t window;                /* 0: none */
    double score_scale, score_cap; /* 0: 1 / sqrt(D); no cap */
    double residual_scale;         /* of what is added to the residual stream */
    /* of probabilities; of what is added to the residual stream, where no norm comes before it */
    double attention_dropout, residual_dropout;
    bool turns;            /* queries and keys turn by position */
    const char *rope_name; /* of the table; layers with one name have one table */
    struct rope rope;
    double init_std;
};

extern const struct block_ops block_decoder_layer;

#endif
