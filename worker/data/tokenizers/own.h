/* A tokenizer from within: tokenizer.c, encode.c, stream.c and decoder.c share it. */
#ifndef DT_WORKER_DATA_TOKENIZERS_OWN_H
#define DT_WORKER_DATA_TOKENIZERS_OWN_H

#include "worker/data/tokenizers/added_tokens.h"
#include "worker/data/tokenizers/decoder.h"
#include "worker/data/tokenizers/parts.h"
#include "worker/data/tokenizers/piece_cache.h"
#include "worker/data/tokenizers/pretokenizer.h"

struct tokenizer {
    struct vocabulary *vocabulary;
    struct normalizer *normalizer;
    struct added_tokens *added;
    struct pretokenizer *pretokenizer;
    const struct token_model_ops *ops;
    void *model;
    struct postprocessor *postprocessor;
    struct decoder *decoder;
    struct truncation truncation;
    struct padding padding;
    uint64_t hash;
    bool bytes;             /* the model takes pieces as bytes, without ByteLevel's mapping */
    scanner_function *scan; /* gives all pieces, before ByteLevel's mapping; null: the pretokenizer must be asked */
    enum pretokenizer_cuts cuts; /* where a text may be cut, see stream.c */
};

struct tokenizer_scratch {
    const struct tokenizer *tokenizer;
    void *model; /* the model's; null: it needs none */
    struct pre_tokens pre_tokens;
    struct dt_text normal, spare;
    struct token_ids first, second; /* of tokenizer_encode_pair */
    struct token_sequence sequence;
    struct piece_cache *cache; /* null until ids are wanted */
};

/* Places where a text may be cut (stream.c). normalizer: of tokenizer.json. */
enum pretokenizer_cuts stream_cuts(const struct tokenizer *t, const cJSON *normalizer);

#endif
