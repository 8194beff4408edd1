/* A tree of texts by their bytes, for the longest or for all tokens that begin at a place. */
#ifndef DT_WORKER_DATA_TOKENIZERS_TRIE_H
#define DT_WORKER_DATA_TOKENIZERS_TRIE_H

#include <stddef.h>
#include <stdint.h>

struct trie;
enum { TRIE_ROOT = 0, TRIE_NONE = 0 };

struct trie_entry {
    const char *text;
    size_t size;
    int32_t value; /* at least 0 */
};
/* Builds the tree. Sorts `entries`; the last of equal texts counts. Keeps nothing of them. */
struct trie *trie_open(struct trie_entry *entries, size_t count);
void trie_close(struct trie *t); /* null is allowed */
/* The node below `node` by one byte, or TRIE_NONE. */
uint32_t trie_step(const struct trie *t, uint32_t node, unsigned char byte);
/* The value of the text that ends at a node; -1: none does. */
int32_t trie_value(const struct trie *t, uint32_t node);

#endif
