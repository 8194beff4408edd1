/* WordPiece: the longest token at each place of a word; all but the first have a prefix. A word that
 * has no token at a place is the unknown token as a whole. */
#include "worker/data/tokenizers/parts.h"
#include "worker/data/tokenizers/trie.h"

#include <stdlib.h>
#include <string.h>

struct wordpiece {
    struct trie *trie;
    uint32_t inner; /* the node behind the prefix, where inner tokens begin */
    bool has_inner; /* false: no token begins with the prefix */
    int64_t most;   /* characters of a word */
    int32_t unknown;
    char *unknown_token;
};

static void close_wordpiece(void *state)
{
    struct wordpiece *w = state;
    trie_close(w->trie);
    free(w->unknown_token);
    free(w);
}

static struct trie *trie_of(const struct vocabulary *v)
{
    size_t count = 0, size = (size_t)vocabulary_size(v);
    struct trie_entry *entries = dt_alloc((size + 1) * sizeof *entries);
    for (size_t id = 0; id < size; id++) {
        struct trie_entry *e = &entries[count];
        e->text = vocabulary_token(v, (int32_t)id, &e->size);
        e->value = (int32_t)id;
        count += e->text != NULL;
    }
    struct trie *t = trie_open(entries, count);
    free(entries);
    return t;
}

static int open_wordpiece(void **state, const cJSON *model, const struct vocabulary *v, struct dt_error *err)
{
    const char *unknown = NULL, *prefix = NULL;
    int64_t most = 0;
    if (part_text(model, "unk_token", "[UNK]", &unknown, err) != 0 ||
        part_text(model, "continuing_subword_prefix", "##", &prefix, err) != 0 ||
        part_integer(model, "max_input_chars_per_word", 100, INT32_MAX, &most, err) != 0) {
        return -1;
    }
    struct wordpiece *w = dt_alloc(sizeof *w);
    w->trie = trie_of(v);
    w->most = most;
    w->unknown = vocabulary_find(v, unknown, strlen(unknown));
    w->unknown_token = dt_strdup(unknown);
    w->has_inner = true;
    for (const char *p = prefix; *p != 0 && w->has_inner; p++) {
        w->inner = trie_step(w->trie, w->inner, (unsigned char)*p);
        w->has_inner = w->inner != TRIE_NONE;
    }
    *state = w;
    return 0;
}

static int add_unknown(const struct wordpiece *w, struct token_ids *out, struct dt_error *err)
{
    if (w->unknown < 0) {
        char shown[64];
        return dt_fail(err, DT_INVALID, "a word without tokens, and the unknown token %s is not in model.vocab; add it",
                       dt_text_excerpt(w->unknown_token, strlen(w->unknown_token), shown, sizeof shown));
    }
    token_ids_add(out, w->unknown);
    return 0;
}

/* The longest token from `node` on. Returns its bytes; 0: none. */
static size_t longest(const struct wordpiece *w, uint32_t node, const char *text, size_t size, int32_t *id)
{
    size_t best = 0;
    for (size_t i = 0; i < size; i++) {
        node = trie_step(w->trie, node, (unsigned char)text[i]);
        if (node == TRIE_NONE) {
            break;
        }
        int32_t value = trie_value(w->trie, node);
        if (value >= 0) {
            *id = value;
            best = i + 1;
        }
    }
    return best;
}

static bool is_longer(const char *text, size_t size, int64_t most)
{
    int64_t characters = 0;
    for (size_t i = 0; i < size && characters <= most; i++) {
        characters += ((unsigned char)text[i] & 0xc0) != 0x80;
    }
    return characters > most;
}

static int encode_wordpiece(const void *state, void *scratch, const char *piece, size_t size, struct token_ids *out,
                            struct dt_error *err)
{
    (void)scratch;
    const struct wordpiece *w = state;
    size_t before = out->count;
    if (is_longer(piece, size, w->most)) {
        return add_unknown(w, out, err);
    }
    for (size_t at = 0; at < size;) {
        int32_t id = -1;
        size_t n = at == 0        ? longest(w, TRIE_ROOT, piece, size, &id)
                   : w->has_inner ? longest(w, w->inner, piece + at, size - at, &id)
                                  : 0;
        if (n == 0) {
            out->count = before;
            return add_unknown(w, out, err);
        }
        token_ids_add(out, id);
        at += n;
    }
    return 0;
}

const struct token_model_ops token_model_wordpiece = {
    .type = "WordPiece", .open = open_wordpiece, .encode = encode_wordpiece, .close = close_wordpiece};
