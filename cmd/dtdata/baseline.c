/* See the header. N-grams are counted in one open-addressing table, keyed by length and bytes. */
#include "cmd/dtdata/baseline.h"

#include "base/text.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

int baseline_gzip(const uint8_t *bytes, size_t size, double *bits_per_byte, struct dt_error *err)
{
    z_stream z = {0};
    if (size == 0 || deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY) != Z_OK) {
        return dt_fail(err, DT_INVALID, "gzip: nothing to compress");
    }
    static uint8_t out[1 << 16];
    size_t compressed = 0, at = 0;
    int code = Z_OK;
    while (code == Z_OK) {
        if (z.avail_in == 0 && at < size) {
            size_t piece = size - at < 1 << 20 ? size - at : 1 << 20;
            z.next_in = (Bytef *)(uintptr_t)(bytes + at);
            z.avail_in = (uInt)piece;
            at += piece;
        }
        z.next_out = out;
        z.avail_out = sizeof out;
        code = deflate(&z, at == size ? Z_FINISH : Z_NO_FLUSH);
        compressed += sizeof out - z.avail_out;
    }
    (void)deflateEnd(&z);
    if (code != Z_STREAM_END) {
        return dt_fail(err, DT_INTERNAL, "gzip: zlib says %d", code);
    }
    *bits_per_byte = 8.0 * (double)compressed / (double)size;
    return 0;
}

/* An n-gram's count, and how many different bytes followed it. */
struct entry {
    uint64_t key; /* length in the top byte + bytes; 0: free */
    uint32_t count, followers;
};

struct table {
    struct entry *entries;
    size_t capacity, used;
};

static struct entry *slot_of(const struct table *t, uint64_t key)
{
    size_t at = (size_t)((key * 0x9e3779b97f4a7c15ull) >> 20) & (t->capacity - 1);
    while (t->entries[at].key != 0 && t->entries[at].key != key) {
        at = (at + 1) & (t->capacity - 1);
    }
    return &t->entries[at];
}

static struct entry *add(struct table *t, uint64_t key)
{
    if (2 * t->used >= t->capacity) {
        struct table larger = {.capacity = t->capacity * 2, .used = t->used};
        larger.entries = dt_alloc(larger.capacity * sizeof *larger.entries);
        for (size_t i = 0; i < t->capacity; i++) {
            if (t->entries[i].key != 0) {
                *slot_of(&larger, t->entries[i].key) = t->entries[i];
            }
        }
        free(t->entries);
        *t = larger;
    }
    struct entry *e = slot_of(t, key);
    if (e->key == 0) {
        e->key = key;
        t->used++;
    }
    return e;
}

/* The `length` bytes that end before `end`, as a key. */
static uint64_t key_of(const uint8_t *end, int length)
{
    uint64_t key = (uint64_t)(length + 1) << 56;
    for (int i = 0; i < length; i++) {
        key |= (uint64_t)end[-1 - i] << (8 * i);
    }
    return key;
}

int baseline_ngram(const uint8_t *train, size_t train_size, const uint8_t *val, size_t val_size, int order,
                   double *bits_per_byte, struct dt_error *err)
{
    if (order < 1 || order > 4 || val_size == 0) {
        return dt_fail(err, DT_INVALID, "n-gram model: order must be 1 to 4, and there must be held-out text");
    }
    struct table t = {.capacity = 1 << 16};
    t.entries = dt_alloc(t.capacity * sizeof *t.entries);
    for (size_t i = 0; i < train_size; i++) {
        for (int context = 0; context < order && (size_t)context <= i; context++) {
            struct entry *gram = add(&t, key_of(train + i + 1, context + 1));
            bool first = gram->count++ == 0;
            /* contexts are kept apart from n-grams */
            struct entry *before = add(&t, key_of(train + i, context) | 1ull << 48);
            before->count++;
            before->followers += first;
        }
    }
    double bits = 0;
    for (size_t i = 0; i < val_size; i++) {
        double p = 1.0 / 256;
        for (int context = 0; context < order && (size_t)context <= i; context++) {
            const struct entry *before = slot_of(&t, key_of(val + i, context) | 1ull << 48);
            if (before->key == 0) {
                break;
            }
            const struct entry *gram = slot_of(&t, key_of(val + i + 1, context + 1));
            p = (gram->count + before->followers * p) / ((double)before->count + before->followers);
        }
        bits -= log2(p);
    }
    free(t.entries);
    *bits_per_byte = bits / (double)val_size;
    return 0;
}
