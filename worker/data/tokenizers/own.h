/* A tokenizer from within: tokenizer.c, encode.c, stream.c and decoder.c share it. */
#ifndef DT_WORKER_DATA_TOKENIZERS_OWN_H
#define DT_WORKER_DATA_TOKENIZERS_OWN_H

#include "worker/data/tokenizers/added_tokens.h"
#include "worker/data/tokenizers/decoder.h"
#include "worker/data/tokenizers/parts.h"
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
    bool bytes;                  /* the model takes pieces as bytes, without ByteLevel's mapping */
    scanner_function *scan;      /* gives all pieces; null: the pretokenizer must be asked */
    enum pretokenizer_cuts cuts; /* where a text may be cut, see stream.c */
};

struct tokenizer_scratch {
    const struct tokenizer *tokenizer;
    void *model; /* the model's; null: it needs none */
    struct pre_tokens pre_tokens;
    struct dt_text normal, spare;
    struct token_ids first, second; /* of tokenizer_encode_pair */
    struct token_sequence sequence;
    struct piece_cache *cache;
};

/* Places where a text may be cut (stream.c). normalizer: of tokenizer.json. */
enum pretokenizer_cuts stream_cuts(const struct tokenizer *t, const cJSON *normalizer);

/* Ids of pieces that were encoded before, in a fixed amount of memory. */
struct piece_cache *piece_cache_open(void);
void piece_cache_close(struct piece_cache *c);
/* A place for the piece, which has its ids or none. Null: the piece is too long to be kept. */
struct piece_slot *piece_cache_find(struct piece_cache *c, const char *piece, size_t size);
/* Appends the ids of a slot. False: it has none. */
bool piece_slot_get(const struct piece_slot *p, struct token_ids *out);
/* Keeps the ids if they are few. */
void piece_slot_set(struct piece_slot *p, const int32_t *ids, size_t count);

#endif
