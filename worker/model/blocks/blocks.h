/* The blocks of token models, and what models pass to them. */
#ifndef DT_WORKER_MODEL_BLOCKS_BLOCKS_H
#define DT_WORKER_MODEL_BLOCKS_BLOCKS_H

#include "worker/model/chain.h"

/* Data of block_embed (b->args). */
struct embed {
    const char *tokens, *positions, *types; /* names of the tables (V, C), (P, C) and (K, C); null: none */
    const char *norm;                       /* of a LayerNorm behind the sum, without .weight; null: none */
    bool norm_bias;
    double norm_epsilon;
    int64_t vocabulary, channels, position_count, type_count; /* V, C, P, K */
    double scale;                                             /* of token embeddings; 0: 1 */
    /* positions are the batch's position_ids, and their padding row is like that of tokens;
     * otherwise 0, 1, ... */
    bool position_ids;
    /* id whose row begins as zeros (or not: random_padding), and gets no gradient from here; -1: none */
    int64_t padding_id;
    bool random_padding;
    double dropout;            /* of x */
    double init_std, init_cut; /* init_cut: as in struct tensor_rule */
};

/* Data of block_gpt_layer. */
struct gpt_layer {
    int64_t layers, heads, channels, inner; /* L, H, C, 4C */
    double norm_epsilon, init_std;
    double attention_dropout, residual_dropout; /* of probabilities; of what is added to the stream */
};

/* Data of block_lm_head. */
struct lm_head {
    /* names of the final norm's tensors and of the table (V, C); norm_bias null: an RMSNorm */
    const char *norm_weight, *norm_bias, *table;
    bool centred;     /* with norm_bias null: a LayerNorm all the same */
    const char *bias; /* name of the logits' bias (V); null: none */
    /* name of a tensor (V) that is kept and not computed with; null: none */
    const char *spare_bias;
    int64_t vocabulary, channels;
    double norm_epsilon, weight_offset; /* an RMSNorm multiplies by offset + weight */
    double branch_scale;                /* of the pair's branch before the sum; 0: 1 */
    double logit_scale, logit_cap;      /* 0: 1, and no cap */
    struct tensor_rule rule;            /* of the table, if it is not the embedding's */
};

extern const struct block_ops block_embed;     /* token and position embedding */
extern const struct block_ops block_gpt_layer; /* pre-norm attention and MLP, GPT-2's names and
                                                * layouts */
extern const struct block_ops block_lm_head;   /* final norm, head (tied or not), loss */
extern const struct block_ops block_hidden;    /* the final norm alone (struct lm_head); norm_weight null: none */
/* the final norm (struct lm_head) of the one token of a sample that the batch's last_tokens marks */
extern const struct block_ops block_last_token;

/* The last block of a decoder: block_lm_head, or block_hidden where the spec asks for hidden states. */
const struct block_ops *block_of_head(const struct chain *c);

/* Number of rows of the activations: B * T in a pass, and in a full batch. */
static inline int64_t row_count(const struct pass *p)
{
    return p->batch->samples * p->batch->length;
}
static inline int64_t most_rows(const struct block *b)
{
    return b->spec->batch_size * b->spec->sequence_length;
}

/* Positions that a sample may have, with those of earlier passes. */
static inline int64_t most_positions(const struct block *b)
{
    return b->spec->cache_length > b->spec->sequence_length ? b->spec->cache_length : b->spec->sequence_length;
}

/* The flow (B, T, C) for a full batch. */
static inline struct flow stream_flow(const struct block *b, int64_t channels, bool pair)
{
    return (struct flow){.dims = 3,
                         .shape = {b->spec->batch_size, b->spec->sequence_length, channels},
                         .type = b->spec->type,
                         .pair = pair};
}

#endif
