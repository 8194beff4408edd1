/* How often each pair of symbols occurs: a hash table in a store. */
#ifndef DT_CMD_DTDATA_TRAIN_PAIRS_H
#define DT_CMD_DTDATA_TRAIN_PAIRS_H

#include "cmd/dtdata/train_store.h"

#include "base/mix.h"

struct pair_count {
    uint64_t pair; /* left << 32 | right; PAIR_NONE: a free place */
    int64_t count;
};
#define PAIR_NONE UINT64_MAX

struct pairs {
    struct store *store;
    struct pair_count *at;
    size_t capacity, used;
};

int pairs_open(struct pairs *p, struct store *store, struct dt_error *err);
void pairs_close(struct pairs *p);
/* Makes room for `more` pairs, so that pairs_at cannot fail. */
int pairs_reserve(struct pairs *p, size_t more, struct dt_error *err);

static inline uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

/* The row of a pair, which is added with the count 0 if it is missing. Valid until the next reserve. */
static inline struct pair_count *pairs_at(struct pairs *p, uint64_t pair)
{
    size_t at = dt_mix64(pair) & (p->capacity - 1);
    while (p->at[at].pair != pair) {
        if (p->at[at].pair == PAIR_NONE) {
            p->at[at].pair = pair;
            p->used++;
            break;
        }
        at = (at + 1) & (p->capacity - 1);
    }
    return &p->at[at];
}

#endif
