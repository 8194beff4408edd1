/* Training of Unigram by expectation maximisation, as SentencePiece and the tokenizers library do it:
 * frequent parts of pieces are the first vocabulary, which shrinks round by round. */
#ifndef DT_CMD_DTDATA_TRAIN_UNIGRAM_H
#define DT_CMD_DTDATA_TRAIN_UNIGRAM_H

#include "cmd/dtdata/train_store.h"
#include "cmd/dtdata/train_vocabulary.h"
#include "cmd/dtdata/train_words.h"

struct unigram_options {
    uint32_t vocabulary; /* tokens in all */
};

/* v: holds the special tokens; receives all others, in descending order of their scores. *scores: by
 * id, 0 for special tokens; the caller frees. DT_INVALID if the vocabulary is too small for all
 * characters of the text. */
int unigram_train(struct train_vocabulary *v, double **scores, const struct unigram_options *o,
                  const struct words *words, struct store *store, struct dt_error *err);

#endif
