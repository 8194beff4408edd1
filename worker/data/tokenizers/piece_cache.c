/* See the header. */
#include "worker/data/tokenizers/piece_cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { SLOTS_LOG = 16, SLOTS_BYTES = sizeof(struct piece_slot) << SLOTS_LOG, LONG_SLOTS = 1 << 12, LONG_MOST = 80 };
_Static_assert(sizeof(struct piece_slot) == 64, "a slot is one cache line");

struct piece_long {
    uint64_t hash;
    int32_t size, count; /* count 0: no ids */
    int32_t ids[PIECE_IDS_MOST];
    char key[LONG_MOST];
};

struct piece_cache {
    struct piece_slot *slots;
    struct piece_long longs[LONG_SLOTS];
};

struct piece_cache *piece_cache_open(void)
{
    struct piece_cache *c = dt_alloc(sizeof *c);
    c->slots = aligned_alloc(SLOTS_BYTES, SLOTS_BYTES);
    if (c->slots == NULL) {
        c->slots = dt_alloc(SLOTS_BYTES); /* which says that there is no memory */
    }
    (void)madvise(c->slots, SLOTS_BYTES, MADV_HUGEPAGE);
    memset(c->slots, 0, SLOTS_BYTES);
    return c;
}

void piece_cache_close(struct piece_cache *c)
{
    if (c != NULL) {
        free(c->slots);
        free(c);
    }
}

/* Bytes of a piece, of which `room` can be read. */
static inline void load_key(uint64_t word[3], const char *piece, size_t size, size_t room)
{
    static const uint64_t masks[2 * PIECE_KEY_MOST / 8] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    uint64_t mask[3];
    if (room >= sizeof mask) {
        memcpy(word, piece, sizeof mask);
    } else {
        memset(word, 0, sizeof mask);
        memcpy(word, piece, size);
    }
    memcpy(mask, (const char *)masks + PIECE_KEY_MOST - size, sizeof mask);
    for (int i = 0; i < 3; i++) {
        word[i] &= mask[i];
    }
}

void piece_cache_keys(const struct piece_cache *c, const char *text, size_t size, const struct piece *pieces,
                      size_t count, struct piece_key *out)
{
    for (size_t i = 0; i < count; i++) {
        struct piece_key *k = &out[i];
        k->size = pieces[i].end - pieces[i].begin;
        k->slot = NULL;
        if (k->size > PIECE_KEY_MOST) {
            continue;
        }
        load_key(k->word, text + pieces[i].begin, k->size, size - pieces[i].begin);
        uint64_t h = (k->word[0] ^ k->size << 56) * 0x9e3779b97f4a7c15u;
        h ^= (k->word[1] * 0xbf58476d1ce4e5b9u) ^ (k->word[2] * 0x94d049bb133111ebu);
        h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u;
        k->slot = &c->slots[h >> (64 - SLOTS_LOG)];
        __builtin_prefetch(k->slot);
    }
}

void piece_slot_set(const struct piece_key *k, const int32_t *ids, size_t count)
{
    if (count > 0 && count <= PIECE_IDS_MOST) {
        memcpy(k->slot->key, k->word, sizeof k->word);
        k->slot->size = (uint16_t)k->size;
        k->slot->count = (int16_t)count;
        memcpy(k->slot->ids, ids, count * sizeof *ids);
    }
}

bool piece_long_get(struct piece_cache *c, struct piece_key *k, const char *piece, struct token_ids *out)
{
    if (k->size > LONG_MOST) {
        return false;
    }
    k->word[0] = XXH3_64bits(piece, k->size);
    const struct piece_long *s = &c->longs[k->word[0] % LONG_SLOTS];
    if (s->count == 0 || s->hash != k->word[0] || (size_t)s->size != k->size || memcmp(s->key, piece, k->size) != 0) {
        return false;
    }
    memcpy(out->ids + out->count, s->ids, (size_t)s->count * sizeof *s->ids);
    out->count += (size_t)s->count;
    return true;
}

void piece_long_set(struct piece_cache *c, const struct piece_key *k, const char *piece, const int32_t *ids,
                    size_t count)
{
    if (k->size <= LONG_MOST && count > 0 && count <= PIECE_IDS_MOST) {
        struct piece_long *s = &c->longs[k->word[0] % LONG_SLOTS];
        *s = (struct piece_long){.hash = k->word[0], .size = (int32_t)k->size, .count = (int32_t)count};
        memcpy(s->ids, ids, count * sizeof *ids);
        memcpy(s->key, piece, k->size);
    }
}
