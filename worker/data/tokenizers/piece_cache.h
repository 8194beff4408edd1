/* The ids of pieces that a thread met before, in a fixed amount of memory. A piece has one place; another
 * one that belongs there takes it. Most words of a text are repeated, so a small table spares most of the
 * work. Pieces are looked up in groups: the places of all are on their way to the processor before the
 * first is looked at. */
#ifndef DT_WORKER_DATA_TOKENIZERS_PIECE_CACHE_H
#define DT_WORKER_DATA_TOKENIZERS_PIECE_CACHE_H

#include "worker/data/tokenizers/parts.h"

enum { PIECE_CACHE_GROUP = 64, PIECE_KEY_MOST = 24, PIECE_IDS_MOST = 9 };

/* One line of a processor's cache. */
struct piece_slot {
    uint64_t key[3];
    uint16_t size;
    int16_t count; /* 0: no ids */
    int32_t ids[PIECE_IDS_MOST];
};

/* The key of a piece: its bytes, and zeros behind them; word[0] of one without a slot: its hash. */
struct piece_key {
    uint64_t word[3];
    size_t size;
    struct piece_slot *slot; /* null: the piece is too long for one */
};

struct piece_cache;
struct piece_cache *piece_cache_open(void);
void piece_cache_close(struct piece_cache *c); /* null is allowed */

/* Fills in the keys of the pieces of a text, at most PIECE_CACHE_GROUP, and asks for their places. */
void piece_cache_keys(const struct piece_cache *c, const char *text, size_t size, const struct piece *pieces,
                      size_t count, struct piece_key *out);
/* Appends the ids of a piece with a slot, for which `out` has room, and returns true; false: they are not known. */
static inline bool piece_slot_get(const struct piece_key *k, struct token_ids *out)
{
    const struct piece_slot *s = k->slot;
    if (s->count == 0 || s->size != k->size ||
        ((s->key[0] ^ k->word[0]) | (s->key[1] ^ k->word[1]) | (s->key[2] ^ k->word[2])) != 0) {
        return false;
    }
    for (int i = 0; i < 4; i++) { /* most have no more; what lies behind them is written over */
        out->ids[out->count + (size_t)i] = s->ids[i];
    }
    for (int i = 4; i < s->count; i++) {
        out->ids[out->count + (size_t)i] = s->ids[i];
    }
    out->count += (size_t)s->count;
    return true;
}
/* Keeps the ids of a piece if they are few. */
void piece_slot_set(const struct piece_key *k, const int32_t *ids, size_t count);

/* The same for a piece without a slot, such as the indentation of a line: few are so long, but they cost the most. */
bool piece_long_get(struct piece_cache *c, struct piece_key *k, const char *piece, struct token_ids *out);
void piece_long_set(struct piece_cache *c, const struct piece_key *k, const char *piece, const int32_t *ids,
                    size_t count);

#endif
