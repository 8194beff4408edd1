/* The ids of pieces that a thread met before. A piece has one place; another one that belongs there
 * takes it. Most words of a text are repeated, so a small table spares most of the work. */
#include "worker/data/tokenizers/own.h"

#include <stdlib.h>
#include <string.h>

enum { SLOTS_LOG = 15, KEY_MOST = 24, IDS_MOST = 9 };

/* One line of a processor's cache. */
struct piece_slot {
    uint64_t key[3];
    uint16_t size;
    int16_t count; /* 0: no ids */
    int32_t ids[IDS_MOST];
};
_Static_assert(sizeof(struct piece_slot) == 64, "a slot is one cache line");

struct piece_cache {
    struct piece_slot slots[1 << SLOTS_LOG];
};

struct piece_cache *piece_cache_open(void)
{
    struct piece_cache *c = aligned_alloc(64, sizeof *c);
    if (c == NULL) {
        return dt_alloc(sizeof *c); /* which says that there is no memory */
    }
    memset(c, 0, sizeof *c);
    return c;
}

void piece_cache_close(struct piece_cache *c)
{
    free(c);
}

static inline uint64_t load(const char *p, size_t n)
{
    uint64_t word = 0;
    memcpy(&word, p, n);
    return word;
}

/* Together with its size the key is the piece: parts of it may overlap. */
static inline void load_key(uint64_t key[3], const char *p, size_t n)
{
    key[1] = key[2] = 0;
    if (n >= 8) {
        key[0] = load(p, 8);
        key[1] = load(p + n - 8, 8);
        key[2] = n > 16 ? load(p + 8, 8) : 0;
    } else if (n >= 4) {
        key[0] = load(p, 4) | load(p + n - 4, 4) << 32;
    } else {
        key[0] = (uint64_t)(unsigned char)p[0] | (uint64_t)(unsigned char)p[n / 2] << 8 |
                 (uint64_t)(unsigned char)p[n - 1] << 16;
    }
}

struct piece_slot *piece_cache_find(struct piece_cache *c, const char *piece, size_t size)
{
    if (size > KEY_MOST || size == 0) {
        return NULL;
    }
    uint64_t key[3];
    load_key(key, piece, size);
    uint64_t h = (key[0] ^ size << 56) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32 ^ key[1]) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 29 ^ key[2]) * 0x94d049bb133111ebu;
    struct piece_slot *p = &c->slots[h >> (64 - SLOTS_LOG)];
    if (p->size != size || p->key[0] != key[0] || p->key[1] != key[1] || p->key[2] != key[2]) {
        memcpy(p->key, key, sizeof key);
        p->size = (uint16_t)size;
        p->count = 0;
    }
    return p;
}

bool piece_slot_get(const struct piece_slot *p, struct token_ids *out)
{
    for (int i = 0; i < p->count; i++) {
        token_ids_add(out, p->ids[i]);
    }
    return p->count > 0;
}

void piece_slot_set(struct piece_slot *p, const int32_t *ids, size_t count)
{
    if (count > 0 && count <= IDS_MOST) {
        memcpy(p->ids, ids, count * sizeof *ids);
        p->count = (int16_t)count;
    }
}
