/* See the header. */
#include "cmd/dtdata/train_vocabulary.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

const char *train_vocabulary_token(const struct train_vocabulary *v, uint32_t id, size_t *size)
{
    size_t begin = id == 0 ? 0 : v->ends[id - 1];
    *size = v->ends[id] - begin;
    return dt_text_str(&v->bytes) + begin;
}

/* The slot of a token, or the free one where it belongs. */
static size_t slot_of(const struct train_vocabulary *v, const char *token, size_t size)
{
    size_t at = XXH3_64bits(token, size) & (v->slot_count - 1);
    for (; v->slots[at] != 0; at = (at + 1) & (v->slot_count - 1)) {
        size_t other_size;
        const char *other = train_vocabulary_token(v, v->slots[at] - 1, &other_size);
        if (other_size == size && memcmp(other, token, size) == 0) {
            break;
        }
    }
    return at;
}

uint32_t train_vocabulary_find(const struct train_vocabulary *v, const char *token, size_t size)
{
    return v->count == 0 ? UINT32_MAX : v->slots[slot_of(v, token, size)] - 1;
}

static void add_slots(struct train_vocabulary *v)
{
    free(v->slots);
    v->slot_count = v->slot_count == 0 ? 1024 : v->slot_count * 2;
    v->slots = dt_alloc(v->slot_count * sizeof *v->slots);
    for (uint32_t id = 0; id < v->count; id++) {
        size_t size;
        const char *token = train_vocabulary_token(v, id, &size);
        v->slots[slot_of(v, token, size)] = id + 1;
    }
}

uint32_t train_vocabulary_add(struct train_vocabulary *v, const char *token, size_t size)
{
    uint32_t id = train_vocabulary_find(v, token, size);
    if (id != UINT32_MAX) {
        return id;
    }
    if (v->count >= v->slot_count / 2) {
        v->ends = dt_realloc(v->ends, (v->slot_count == 0 ? 1024 : v->slot_count * 2) * sizeof *v->ends);
        add_slots(v);
    }
    v->slots[slot_of(v, token, size)] = v->count + 1;
    dt_text_add(&v->bytes, token, size);
    v->ends[v->count] = v->bytes.size;
    return v->count++;
}

void train_vocabulary_clear(struct train_vocabulary *v)
{
    dt_text_clear(&v->bytes);
    free(v->ends);
    free(v->slots);
    *v = (struct train_vocabulary){0};
}
