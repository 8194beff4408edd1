/* See the header. */
#include "cmd/dtdata/train_pairs.h"

#include <string.h>

/* A row read at random from a file brings its neighbours, 64 KB in all. */
enum { FIRST_CAPACITY = 4096, BREATHE_ROWS = 256, BREATHE_FILE_ROWS = 32 };

/* Fills a table with free rows. */
static int open_rows(struct store *store, struct pair_count **out, size_t capacity, struct dt_error *err)
{
    void *at;
    if (store_alloc(store, &at, capacity * sizeof **out, err) != 0) {
        return -1;
    }
    *out = at;
    for (size_t i = 0; i < capacity; i++) {
        (*out)[i].pair = PAIR_NONE;
        if (i % (BREATHE_ROWS * 16) == 0 && store_breathe(store, err) != 0) {
            return -1;
        }
    }
    return 0;
}

int pairs_open(struct pairs *p, struct store *store, struct dt_error *err)
{
    *p = (struct pairs){.store = store, .capacity = FIRST_CAPACITY};
    return open_rows(store, &p->at, p->capacity, err);
}

void pairs_close(struct pairs *p)
{
    store_free(p->store, p->at);
    p->at = NULL;
}

int pairs_reserve(struct pairs *p, size_t more, struct dt_error *err)
{
    size_t capacity = p->capacity;
    while (p->used + more > capacity / 3 * 2) {
        capacity *= 2;
    }
    if (capacity == p->capacity) {
        return 0;
    }
    struct pairs larger = {.store = p->store, .capacity = capacity};
    if (open_rows(p->store, &larger.at, capacity, err) != 0) {
        return -1;
    }
    for (size_t i = 0; i < p->capacity; i++) {
        if (p->at[i].pair != PAIR_NONE) {
            pairs_at(&larger, p->at[i].pair)->count = p->at[i].count;
        }
        size_t rows = store_in_files(p->store) ? BREATHE_FILE_ROWS : BREATHE_ROWS;
        if (i % rows == 0 && store_breathe(p->store, err) != 0) {
            return -1;
        }
    }
    store_free(p->store, p->at);
    *p = larger;
    return 0;
}
