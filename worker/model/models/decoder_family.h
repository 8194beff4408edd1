/* The differences between families of decoders, and the chain that follows from them: for decoders.c. */
#ifndef DT_WORKER_MODEL_MODELS_DECODER_FAMILY_H
#define DT_WORKER_MODEL_MODELS_DECODER_FAMILY_H

#include "worker/model/blocks/decoder.h"
#include "worker/model/models/decoders.h"

/* The layers that see only a window, if the config lists no layer_types. */
enum window_rule {
    WINDOW_NONE,
    WINDOW_ALL,     /* all layers */
    WINDOW_LAST,    /* layers from max_window_layers on, if use_sliding_window */
    WINDOW_EVEN,    /* layers 0, 2, ... */
    WINDOW_PATTERN, /* all but each sliding_window_pattern-th */
    WINDOW_NO_ROPE  /* layers that do not turn, if use_sliding_window */
};

struct decoder_family {
    enum norm_place norms;
    enum qk_norm qk_norm;
    double weight_offset; /* of norms */
    int64_t head_dim;     /* where the config has none; 0: hidden_size / heads */
    enum window_rule window;
    bool qkv_bias;         /* always; otherwise attention_bias decides, if biased */
    bool biased;           /* attention_bias counts, for q, k, v and o */
    bool fused;            /* q, k, v are one tensor; gate and up, too */
    bool local_rope;       /* layers with a window turn by rope_local_base_freq */
    bool scaled_embedding; /* by the root of hidden_size */
    bool only_default_rope;
    bool whole_heads; /* Transformers wants hidden_size to be a multiple of the heads, whatever head_dim says */
    bool only_tokens; /* Transformers has no class that gives sequences classes */
    bool one_kind;    /* of layers: layer_types cannot mix them */
};

/* Heads of keys and values; values of a head. */
int64_t decoder_kv_heads(const struct decoder *m);
int64_t decoder_head_size(const struct decoder_family *f, const struct decoder *m);
/* True if layer i turns queries and keys. */
bool decoder_turns(const struct decoder *m, int64_t i);
/* True if layer i sees only a window. */
bool decoder_slides(const struct decoder_family *f, const struct decoder *m, int64_t i);
/* The window of a sliding layer; 0: there is none. */
int64_t decoder_window(const struct decoder_family *f, const struct decoder *m);
/* The angles of a layer; local: of one with a window, if these have their own. */
struct rope decoder_rope(const struct decoder_family *f, const struct decoder *m, bool local);
/* Gives the chain its batch, units and blocks. The root unit holds embedding, final norm and head, and
 * each layer has a unit. */
int decoder_build(const struct decoder_family *f, struct chain *c, struct dt_error *err);
/* 6 operations per weight of a product, and the scores and sums of attention. */
double decoder_flops(const struct chain *c);

#endif
