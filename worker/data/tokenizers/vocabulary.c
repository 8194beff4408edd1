/* The vocabulary of a model: spellings one behind the other, a hash table from them to ids, and an
 * index by id. */
#include "worker/data/tokenizers/parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct entry {
    size_t at;
    uint32_t size;
    bool used;
};

struct vocabulary {
    struct dt_text spellings;
    struct entry *entries; /* by id */
    int64_t count;         /* largest id + 1 */
    int32_t *slots;        /* ids, open addressing; -1: free */
    size_t slot_mask;
};

enum { ID_MOST = 1 << 24 };

static size_t slot_of(const struct vocabulary *v, const char *token, size_t size)
{
    size_t slot = XXH3_64bits(token, size) & v->slot_mask;
    while (v->slots[slot] >= 0) {
        const struct entry *e = &v->entries[v->slots[slot]];
        if (e->size == size && memcmp(v->spellings.data + e->at, token, size) == 0) {
            break;
        }
        slot = (slot + 1) & v->slot_mask;
    }
    return slot;
}

int32_t vocabulary_find(const struct vocabulary *v, const char *token, size_t size)
{
    return v->slots[slot_of(v, token, size)];
}

const char *vocabulary_token(const struct vocabulary *v, int32_t id, size_t *size)
{
    if (id < 0 || id >= v->count || !v->entries[id].used) {
        return NULL;
    }
    *size = v->entries[id].size;
    return v->spellings.data + v->entries[id].at;
}

int64_t vocabulary_size(const struct vocabulary *v)
{
    return v->count;
}

int64_t vocabulary_tokens(const struct vocabulary *v)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < v->count; i++) {
        tokens += v->entries[i].used;
    }
    return tokens;
}

static int add(struct vocabulary *v, const char *token, int64_t id, bool twice, struct dt_error *err)
{
    size_t size = strlen(token), slot = slot_of(v, token, size);
    struct entry *e = &v->entries[id];
    if (e->used) {
        return dt_fail(err, DT_INVALID, "id %lld has two tokens", (long long)id);
    }
    *e = (struct entry){.at = v->spellings.size, .size = (uint32_t)size, .used = true};
    dt_text_add(&v->spellings, token, size + 1);
    if (v->slots[slot] < 0) {
        v->slots[slot] = (int32_t)id;
    } else if (!twice) {
        return dt_fail(err, DT_INVALID, "a token stands twice");
    }
    return 0;
}

/* The id of a member of {"token": id}; -1: it is none. */
static int64_t id_of(const cJSON *value)
{
    double id = cJSON_IsNumber(value) ? value->valuedouble : -1;
    return id >= 0 && id < ID_MOST && floor(id) == id ? (int64_t)id : -1;
}

static int fill_object(struct vocabulary *v, const cJSON *vocab, struct dt_error *err)
{
    const cJSON *token;
    cJSON_ArrayForEach(token, vocab)
    {
        if (add(v, token->string, id_of(token), false, err) != 0) {
            char shown[64];
            return dt_wrap(err, "%s", dt_text_excerpt(token->string, strlen(token->string), shown, sizeof shown));
        }
    }
    return 0;
}

/* A Unigram's list of [token, score]. The first of equal tokens is found. */
static int fill_list(struct vocabulary *v, const cJSON *vocab, struct dt_error *err)
{
    const cJSON *pair;
    int64_t id = 0;
    cJSON_ArrayForEach(pair, vocab)
    {
        if (add(v, cJSON_GetArrayItem(pair, 0)->valuestring, id++, true, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Checks the members, and finds their number and the largest id + 1. */
static int measure(const cJSON *vocab, int64_t *tokens, int64_t *count, struct dt_error *err)
{
    bool object = cJSON_IsObject(vocab);
    const cJSON *m;
    char shown[64];
    *tokens = *count = 0;
    cJSON_ArrayForEach(m, vocab)
    {
        int64_t id = object                                                                       ? id_of(m)
                     : cJSON_IsArray(m) && cJSON_IsString(m->child) && cJSON_GetArraySize(m) == 2 ? *tokens
                                                                                                  : -1;
        if (id < 0 && object) {
            return dt_fail(err, DT_INVALID, "%s: not an id, a whole number from 0 to %d",
                           dt_text_excerpt(m->string, strlen(m->string), shown, sizeof shown), ID_MOST - 1);
        }
        if (id < 0 || id >= ID_MOST) {
            return dt_fail(err, DT_INVALID, "[%lld]: not a pair of a token and its score", (long long)*tokens);
        }
        *count = id >= *count ? id + 1 : *count;
        ++*tokens;
    }
    /* a small file must not ask for much memory */
    if (*count > 64 * *tokens + 65536) {
        return dt_fail(err, DT_INVALID, "ids go up to %lld, but there are only %lld tokens", (long long)*count - 1,
                       (long long)*tokens);
    }
    return 0;
}

int vocabulary_open(struct vocabulary **out, const cJSON *vocab, struct dt_error *err)
{
    int64_t tokens, count;
    if (!cJSON_IsObject(vocab) && !cJSON_IsArray(vocab)) {
        return dt_fail(err, DT_INVALID, "missing, or neither an object {\"token\": id} nor a list of pairs");
    }
    if (measure(vocab, &tokens, &count, err) != 0) {
        return -1;
    }
    struct vocabulary *v = dt_alloc(sizeof *v);
    size_t slots = 16;
    while (slots < 2 * (size_t)tokens) {
        slots *= 2;
    }
    dt_text_init(&v->spellings);
    v->count = count;
    v->entries = dt_alloc((size_t)(count + 1) * sizeof *v->entries);
    v->slots = dt_alloc(slots * sizeof *v->slots);
    memset(v->slots, 0xff, slots * sizeof *v->slots);
    v->slot_mask = slots - 1;
    if ((cJSON_IsObject(vocab) ? fill_object(v, vocab, err) : fill_list(v, vocab, err)) != 0) {
        vocabulary_close(v);
        return -1;
    }
    *out = v;
    return 0;
}

void vocabulary_close(struct vocabulary *v)
{
    if (v != NULL) {
        dt_text_clear(&v->spellings);
        free(v->entries);
        free(v->slots);
        free(v);
    }
}
