/* The first vocabulary of a Unigram training: all characters, and the parts of pieces that occur most
 * often. */
#ifndef DT_CMD_DTDATA_TRAIN_SEEDS_H
#define DT_CMD_DTDATA_TRAIN_SEEDS_H

#include "cmd/dtdata/train_store.h"
#include "cmd/dtdata/train_words.h"

enum { SEED_LENGTH = 16, SEEDS_MOST = 1000000 };

/* All pieces, one after the other, each with a 0 behind it. */
struct piece_text {
    uint32_t *characters;
    size_t size;
    uint64_t *counts; /* of each piece */
    size_t pieces;
};
int piece_text_read(struct piece_text *t, const struct words *words, struct store *store, struct dt_error *err);
void piece_text_free(struct piece_text *t, struct store *store);

/* A part of the text. */
struct seed {
    uint32_t at, length;
    double score;
};
/* Seeds in the order of the library: the characters by descending counts, then longer parts by
 * descending products of length and occurrences; equal ones by descending characters. A part is a seed
 * if different characters (or the end of a piece) follow it. Scores are natural logarithms of their
 * shares. *out lies in the store. */
int seeds_find(struct seed **out, size_t *count, const struct piece_text *t, struct store *store, struct dt_error *err);

#endif
