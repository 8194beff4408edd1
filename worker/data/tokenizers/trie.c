/* The children of a node lie side by side, sorted by their bytes. */
#include "worker/data/tokenizers/trie.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct node {
    uint32_t first; /* its children: first .. first + count - 1 */
    uint16_t count;
    uint8_t byte;
    int32_t value;
};

struct trie {
    struct node *nodes;
    size_t count, capacity;
    uint32_t root[256]; /* the root's children by byte */
};

static int compare(const void *a, const void *b)
{
    const struct trie_entry *x = a, *y = b;
    int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    if (order != 0 || x->size != y->size) {
        return order != 0 ? order : x->size < y->size ? -1 : 1;
    }
    return x->value < y->value ? -1 : x->value > y->value;
}

/* The entries below a node while the tree is built. */
struct span {
    size_t begin, end, depth;
};

static void add_node(struct trie *t, struct span **spans, struct span span, unsigned char byte)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity > 0 ? 2 * t->capacity : 1024;
        t->nodes = dt_realloc(t->nodes, t->capacity * sizeof *t->nodes);
        *spans = dt_realloc(*spans, t->capacity * sizeof **spans);
    }
    (*spans)[t->count] = span;
    t->nodes[t->count++] = (struct node){.byte = byte, .value = -1};
}

/* Gives a node its value and its children. */
static void fill_node(struct trie *t, struct span **spans, size_t node, const struct trie_entry *entries)
{
    struct span s = (*spans)[node];
    size_t at = s.begin;
    while (at < s.end && entries[at].size == s.depth) {
        t->nodes[node].value = entries[at++].value;
    }
    t->nodes[node].first = (uint32_t)t->count;
    while (at < s.end) {
        unsigned char byte = (unsigned char)entries[at].text[s.depth];
        size_t end = at + 1;
        while (end < s.end && (unsigned char)entries[end].text[s.depth] == byte) {
            end++;
        }
        add_node(t, spans, (struct span){at, end, s.depth + 1}, byte);
        t->nodes[node].count++;
        at = end;
    }
}

struct trie *trie_open(struct trie_entry *entries, size_t count)
{
    struct trie *t = dt_alloc(sizeof *t);
    struct span *spans = NULL;
    if (count > 0) {
        qsort(entries, count, sizeof *entries, compare);
    }
    add_node(t, &spans, (struct span){0, count, 0}, 0);
    for (size_t node = 0; node < t->count; node++) {
        fill_node(t, &spans, node, entries);
    }
    for (uint32_t i = 0; i < t->nodes[0].count; i++) {
        t->root[t->nodes[1 + i].byte] = 1 + i;
    }
    free(spans);
    return t;
}

void trie_close(struct trie *t)
{
    if (t != NULL) {
        free(t->nodes);
        free(t);
    }
}

uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte)
{
    if (node == TRIE_ROOT) {
        return t->root[byte];
    }
    uint32_t low = t->nodes[node].first, high = low + t->nodes[node].count;
    while (high - low > 4) {
        uint32_t middle = (low + high) / 2;
        if (t->nodes[middle].byte <= byte) {
            low = middle;
        } else {
            high = middle;
        }
    }
    for (; low < high; low++) {
        if (t->nodes[low].byte == byte) {
            return low;
        }
    }
    return TRIE_NONE;
}

int32_t trie_value(const struct trie *t, uint32_t node)
{
    return t->nodes[node].value;
}
