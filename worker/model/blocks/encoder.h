/* The blocks of encoders: one layer with switches, which carries BERT and the families near it, and
 * the decoder mha-gpt; and what stands between the last layer and the loss. */
#ifndef DT_WORKER_MODEL_BLOCKS_ENCODER_H
#define DT_WORKER_MODEL_BLOCKS_ENCODER_H

#include "worker/model/blocks/blocks.h"
#include "worker/model/blocks/linear.h"
#include "worker/model/blocks/rope.h"

/* Names of a layer's tensors behind its prefix, without .weight and .bias. */
struct encoder_names {
    const char *layer;  /* the prefix: a format with the layer's number */
    const char *qkv[3]; /* of queries, keys, values; [1] null: one tensor for all */
    const char *output; /* the map behind attention */
    const char *attention_norm, *mlp_norm;
    const char *up, *down; /* the maps of the MLP; `up` holds both parts of a gated one */
};

struct encoder_layer {                 /* the data of block_encoder_layer (b->args) */
    const struct encoder_names *names; /* static */
    int64_t channels, inner, heads;    /* C, I, H */
    bool norms_first;                  /* norms stand before attention and MLP; otherwise behind their residual sums */
    bool plain_input;                  /* with norms_first: none before attention, as in a first layer */
    bool gated;                        /* the MLP is act(a) * g, with a and g the halves of its first map */
    bool norm_bias, attention_bias, mlp_bias;
    enum dt_activation activation;
    double norm_epsilon;
    /* dropout of attention's probabilities; of the output of its map; of a gated MLP's g; of the output
     * of the MLP */
    double attention_dropout, output_dropout, inner_dropout, down_dropout;
    bool causal;           /* a token sees none behind it, and generation keeps keys and values */
    int64_t window;        /* a token sees those fewer positions away; 0: all */
    bool turns;            /* queries and keys turn by position */
    const char *rope_name; /* of the table; layers with one name have one table */
    struct rope rope;
    struct linear_rule qkv_rule, output_rule, up_rule, down_rule;
};

/* Data of block_pooler: a norm, a choice of rows, a map with an activation. */
struct pooler {
    const char *norm; /* of the pair's sum; null: there is none, and no pair */
    bool norm_bias, dense_bias;
    double norm_epsilon;
    enum pooling { POOL_NONE, POOL_FIRST, POOL_MEAN } pooling; /* which rows of a sample go on; their mean */
    double dropout;                                            /* of the pooled rows; not with POOL_NONE */
    const char *dense;
    enum dt_activation activation;
    int64_t channels;
    struct linear_rule rule;
};

extern const struct block_ops block_encoder_layer;
extern const struct block_ops block_pooler;

#endif
