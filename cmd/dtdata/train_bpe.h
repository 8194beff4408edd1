/* Training of BPE and of WordPiece, merge for merge as the trainers of the tokenizers library do it,
 * with an order of our own wherever theirs depends on the order of a hash table (docs/training.md). */
#ifndef DT_CMD_DTDATA_TRAIN_BPE_H
#define DT_CMD_DTDATA_TRAIN_BPE_H

#include "cmd/dtdata/train_store.h"
#include "cmd/dtdata/train_vocabulary.h"
#include "cmd/dtdata/train_words.h"

struct bpe_options {
    uint32_t vocabulary;      /* tokens in all */
    uint64_t min_frequency;   /* a pair must occur as often; 0 and 1: no limit */
    const char *prefix;       /* of a token that does not begin a piece: "##"; null: none */
    const uint32_t *alphabet; /* characters that get a token even if they do not occur */
    size_t alphabet_count;
    size_t limit_alphabet; /* most characters, of those that occur most often; 0: no limit */
};

struct bpe_merge {
    uint32_t left, right;
};

struct bpe_result {
    struct bpe_merge *merges; /* the caller frees */
    size_t merge_count;
    uint64_t piece_count, symbol_count; /* different pieces, and the characters in them */
};

/* v: holds the tokens that come first (special ones, bytes); receives all others. The arrays that
 * grow with the text lie in `store`. */
int bpe_train(struct train_vocabulary *v, struct bpe_result *out, const struct bpe_options *o,
              const struct words *words, struct store *store, struct dt_error *err);

#endif
