/* Added tokens: those that stand in the text as they are (or in the normalised text), and are cut
 * out of it before anything else. Two tries, for tokens that are searched in the raw text and in the
 * normalised one; at each place, from left to right, the longest token counts.
 *
 * Like the library, tokens get their ids again: that of the model's vocabulary, or the next one
 * behind it. The ids of the file must be these. */
#include "worker/data/tokenizers/added_tokens.h"
#include "worker/data/tokenizers/characters.h"

#include <stdlib.h>
#include <string.h>

struct token {
    char *content, *shown; /* shown: as the normaliser writes it; null: the same */
    size_t size;
    int32_t id;
    bool special, normalized, lstrip, rstrip, single_word;
};

/* A trie; children of a node are a list. Node 0 is the root, whose children are also in `first`. */
struct node {
    int32_t child, sibling; /* 0: none */
    int32_t token;          /* -1: no token ends here */
    unsigned char byte;
};
struct trie {
    struct node *nodes;
    int32_t count, capacity;
    int32_t first[256]; /* 0: no token begins so */
    int begins;         /* different first bytes */
    unsigned char only; /* the first byte, if there is one */
};

struct added_tokens {
    struct token *tokens;
    int32_t count;
    int64_t largest; /* id; -1: there are none */
    int32_t *by_id;  /* index + 1 of the token with this id, from `least` on */
    int64_t least;
    struct trie all, raw, normalized; /* all: of contents, to find tokens by them */
};

static int32_t new_node(struct trie *t, unsigned char byte)
{
    if (t->count == t->capacity) {
        t->capacity = t->capacity == 0 ? 64 : 2 * t->capacity;
        t->nodes = dt_realloc(t->nodes, (size_t)t->capacity * sizeof *t->nodes);
    }
    t->nodes[t->count] = (struct node){.token = -1, .byte = byte};
    return t->count++;
}

static int32_t child_of(const struct trie *t, int32_t at, unsigned char byte)
{
    int32_t c = t->nodes[at].child;
    while (c != 0 && t->nodes[c].byte != byte) {
        c = t->nodes[c].sibling;
    }
    return c;
}

/* The first of equal texts counts. */
static void trie_add(struct trie *t, const char *text, size_t size, int32_t token)
{
    if (t->count == 0) {
        (void)new_node(t, 0);
    }
    int32_t at = 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t next = child_of(t, at, byte);
        if (next == 0) {
            next = new_node(t, byte);
            t->nodes[next].sibling = t->nodes[at].child;
            t->nodes[at].child = next;
        }
        if (i == 0 && t->first[byte] == 0) {
            t->first[byte] = next;
            t->begins++;
            t->only = byte;
        }
        at = next;
    }
    if (t->nodes[at].token < 0) {
        t->nodes[at].token = token;
    }
}

/* The longest token at text[at]; -1: none. */
static int32_t longest_at(const struct trie *t, const char *text, size_t size, size_t at, size_t *end)
{
    int32_t node = t->first[(unsigned char)text[at]], found = -1;
    for (size_t i = at + 1; node != 0; i++) {
        if (t->nodes[node].token >= 0) {
            found = t->nodes[node].token;
            *end = i;
        }
        node = i < size ? child_of(t, node, (unsigned char)text[i]) : 0;
    }
    return found;
}

/* The next place from `at` on where a token may begin; `size`: nowhere. */
static size_t next_begin(const struct trie *t, const char *text, size_t size, size_t at)
{
    if (t->begins == 0) {
        return size;
    }
    if (t->begins == 1) {
        const char *p = at < size ? memchr(text + at, t->only, size - at) : NULL;
        return p != NULL ? (size_t)(p - text) : size;
    }
    while (at < size && t->first[(unsigned char)text[at]] == 0) {
        at++;
    }
    return at;
}

static size_t spaces_before(const char *text, size_t at)
{
    size_t n;
    while (at > 0 && (character_flags(utf8_read_back(text, at, &n)) & IS_SPACE) != 0) {
        at -= n;
    }
    return at;
}

static size_t spaces_after(const char *text, size_t size, size_t at)
{
    size_t n;
    while (at < size && (character_flags(utf8_read(text + at, &n)) & IS_SPACE) != 0) {
        at += n;
    }
    return at;
}

/* U+200C and U+200D join characters of a word. */
static bool joins_word(uint32_t c)
{
    return character_is_word(c) || c == 0x200c || c == 0x200d;
}

static bool stands_alone(const char *text, size_t size, size_t begin, size_t end)
{
    size_t n;
    return (begin == 0 || !joins_word(utf8_read_back(text, begin, &n))) &&
           (end == size || !joins_word(utf8_read(text + end, &n)));
}

bool added_tokens_next(const struct added_tokens *a, bool normalized, const char *text, size_t size,
                       struct added_match *m)
{
    const struct trie *t = normalized ? &a->normalized : &a->raw;
    size_t at = m->searched;
    while ((at = next_begin(t, text, size, at)) < size) {
        size_t end = at;
        int32_t token = longest_at(t, text, size, at, &end);
        if (token < 0) {
            at++;
            continue;
        }
        const struct token *k = &a->tokens[token];
        size_t begin = at;
        at = end; /* also behind a token that is none here */
        if (k->single_word && !stands_alone(text, size, begin, end)) {
            continue;
        }
        if (k->lstrip) {
            begin = spaces_before(text, begin);
            begin = begin > m->end ? begin : m->end;
        }
        end = k->rstrip ? spaces_after(text, size, end) : end;
        *m = (struct added_match){.id = k->id, .begin = begin, .end = end, .searched = at};
        return true;
    }
    m->searched = size;
    return false;
}

bool added_tokens_any(const struct added_tokens *a, bool normalized)
{
    return (normalized ? a->normalized : a->raw).begins > 0;
}

size_t added_tokens_end_at(const struct added_tokens *a, const char *text, size_t size, size_t at)
{
    const struct trie *const tries[] = {&a->raw, &a->normalized};
    size_t reached = 0;
    for (int i = 0; i < 2; i++) {
        size_t end = at;
        int32_t token = longest_at(tries[i], text, size, at, &end);
        if (token >= 0) {
            end = a->tokens[token].rstrip ? spaces_after(text, size, end) : end;
            reached = end > reached ? end : reached;
        }
    }
    return reached;
}

size_t added_tokens_longest(const struct added_tokens *a)
{
    size_t longest = 0;
    for (int32_t i = 0; i < a->count; i++) {
        longest = a->tokens[i].size > longest ? a->tokens[i].size : longest;
    }
    return longest;
}

static const struct token *by_id(const struct added_tokens *a, int32_t id)
{
    if (a->count == 0 || id < a->least || id > a->largest || a->by_id[id - a->least] == 0) {
        return NULL;
    }
    return &a->tokens[a->by_id[id - a->least] - 1];
}

const char *added_tokens_content(const struct added_tokens *a, int32_t id, size_t *size)
{
    const struct token *k = by_id(a, id);
    if (k == NULL) {
        return NULL;
    }
    *size = k->size;
    return k->content;
}

const char *added_tokens_shown(const struct added_tokens *a, int32_t id, size_t *size)
{
    const struct token *k = by_id(a, id);
    if (k == NULL || k->shown == NULL) {
        return added_tokens_content(a, id, size);
    }
    *size = strlen(k->shown);
    return k->shown;
}

bool added_tokens_skipped(const struct added_tokens *a, int32_t id)
{
    size_t size;
    const char *shown = added_tokens_shown(a, id, &size);
    int32_t same = shown != NULL ? added_tokens_find(a, shown, size) : -1;
    return same >= 0 && added_tokens_special(a, same);
}

bool added_tokens_special(const struct added_tokens *a, int32_t id)
{
    const struct token *k = by_id(a, id);
    return k != NULL && k->special;
}

int32_t added_tokens_find(const struct added_tokens *a, const char *token, size_t size)
{
    int32_t at = 0;
    for (size_t i = 0; i < size; i++) {
        at = a->all.count > 0 ? child_of(&a->all, at, (unsigned char)token[i]) : 0;
        if (at == 0) {
            return -1;
        }
    }
    int32_t found = at > 0 ? a->all.nodes[at].token : -1;
    return found >= 0 ? a->tokens[found].id : -1;
}

int64_t added_tokens_end(const struct added_tokens *a)
{
    return a->largest + 1;
}

static int read_token(const cJSON *j, struct token *k, int64_t *id, struct dt_error *err)
{
    const cJSON *content = cJSON_GetObjectItemCaseSensitive(j, "content");
    if (!cJSON_IsObject(j) || !cJSON_IsString(content)) {
        return dt_fail(err, DT_INVALID, "content: missing, or not a text");
    }
    if (part_integer(j, "id", -1, INT32_MAX, id, err) != 0 || part_bool(j, "special", -1, &k->special, err) != 0 ||
        part_bool(j, "normalized", -1, &k->normalized, err) != 0 || part_bool(j, "lstrip", -1, &k->lstrip, err) != 0 ||
        part_bool(j, "rstrip", -1, &k->rstrip, err) != 0 ||
        part_bool(j, "single_word", -1, &k->single_word, err) != 0) {
        return -1;
    }
    k->size = strlen(content->valuestring);
    k->content = dt_strdup(content->valuestring);
    return 0;
}

/* The id that the library gives to a new token. */
static int64_t id_for(const struct added_tokens *a, const struct vocabulary *v, int64_t tokens, const struct token *k)
{
    int32_t known = vocabulary_find(v, k->content, k->size);
    return known >= 0 ? known : a->largest >= tokens || (tokens == 0 && a->count > 0) ? a->largest + 1 : tokens;
}

static int read_list(struct added_tokens *a, const cJSON *list, const struct vocabulary *v, struct dt_error *err)
{
    const int64_t tokens = vocabulary_tokens(v);
    const cJSON *j;
    int place = 0;
    cJSON_ArrayForEach(j, list)
    {
        struct token *k = &a->tokens[a->count];
        int64_t id;
        *k = (struct token){0};
        if (read_token(j, k, &id, err) != 0) {
            return dt_wrap(err, "[%d]", place);
        }
        if (k->size == 0) { /* as in the library */
            free(k->content);
            place++;
            continue;
        }
        int64_t right = id_for(a, v, tokens, k);
        bool twice = added_tokens_find(a, k->content, k->size) >= 0;
        trie_add(&a->all, k->content, k->size, a->count++);
        k->id = (int32_t)right;
        a->largest = right > a->largest ? right : a->largest;
        if (twice || id != right) {
            char shown[64];
            (void)dt_text_excerpt(k->content, k->size, shown, sizeof shown);
            return twice
                       ? dt_fail(err, DT_INVALID, "[%d].content: %s: the token stands twice", place, shown)
                       : dt_fail(err, DT_INVALID,
                                 "[%d].id: %lld, but the tokenizers library gives %s the id %lld (that of the model's "
                                 "vocabulary, or the next free one); write that",
                                 place, (long long)id, shown, (long long)right);
        }
        place++;
    }
    return 0;
}

static void index_ids(struct added_tokens *a)
{
    a->least = a->largest;
    for (int32_t i = 0; i < a->count; i++) {
        a->least = a->tokens[i].id < a->least ? a->tokens[i].id : a->least;
    }
    a->by_id = dt_alloc((size_t)(a->largest - a->least + 1) * sizeof *a->by_id);
    for (int32_t i = 0; i < a->count; i++) {
        a->by_id[a->tokens[i].id - a->least] = i + 1;
    }
}

static int fill_tries(struct added_tokens *a, const struct normalizer *n, struct dt_error *err)
{
    struct dt_text normal;
    dt_text_init(&normal);
    int rc = 0;
    /* special tokens first: of equal normalised texts the first counts */
    for (int32_t i = 0; i < 2 * a->count && rc == 0; i++) {
        const struct token *k = &a->tokens[i % a->count];
        if (k->special != (i < a->count)) {
            continue;
        }
        if (!k->normalized) {
            trie_add(&a->raw, k->content, k->size, i % a->count);
            continue;
        }
        dt_text_reset(&normal);
        rc = normalizer_apply(n, k->content, k->size, &normal, err);
        if (rc == 0 && normal.size == 0) {
            rc = dt_fail(err, DT_INVALID,
                         "[%d]: the normalizer leaves nothing of %s, so it cannot be found; set its `normalized` to "
                         "false",
                         i % a->count, k->content);
        } else if (rc == 0) {
            a->tokens[i % a->count].shown = dt_strdup(normal.data);
            trie_add(&a->normalized, normal.data, normal.size, i % a->count);
        }
    }
    dt_text_clear(&normal);
    return rc;
}

int added_tokens_open(struct added_tokens **out, const cJSON *list, const struct vocabulary *v,
                      const struct normalizer *n, struct dt_error *err)
{
    if (list != NULL && !cJSON_IsArray(list) && !cJSON_IsNull(list)) {
        return dt_fail(err, DT_INVALID, "not a list");
    }
    struct added_tokens *a = dt_alloc(sizeof *a);
    a->largest = -1;
    a->tokens = dt_alloc((size_t)(cJSON_GetArraySize(list) + 1) * sizeof *a->tokens);
    characters_open();
    if (read_list(a, list, v, err) != 0 || (a->count > 0 && fill_tries(a, n, err) != 0)) {
        added_tokens_close(a);
        return -1;
    }
    index_ids(a);
    *out = a;
    return 0;
}

void added_tokens_close(struct added_tokens *a)
{
    if (a == NULL) {
        return;
    }
    for (int32_t i = 0; i < a->count; i++) {
        free(a->tokens[i].content);
        free(a->tokens[i].shown);
    }
    free(a->tokens);
    free(a->by_id);
    free(a->all.nodes);
    free(a->raw.nodes);
    free(a->normalized.nodes);
    free(a);
}
