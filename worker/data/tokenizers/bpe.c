/* Byte-pair encoding: a piece begins as its characters (or, where the pre-tokenizer ends with
 * ByteLevel, as its bytes); the adjacent pair of lowest rank is merged, the leftmost of equals first,
 * until no pair has a rank. Short pieces are scanned for it, long ones have a heap: O(n log n). */
#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/characters.h"

#include <stdlib.h>
#include <string.h>

enum { SHORT = 48, NO_RANK = INT32_MAX };

struct merge_slot {
    uint64_t pair; /* left id << 32 | right id; all ones: free */
    int32_t rank, id;
};

struct bpe {
    const struct vocabulary *v;
    struct merge_slot *slots;
    size_t slot_mask;
    int32_t unk, byte_ids[256]; /* byte_ids: of <0x00> to <0xFF>; -1: none */
    int32_t mapped[256];        /* ids of the characters that stand for bytes; -1: none */
    int32_t (*byte_pairs)[256]; /* slots of pairs of bytes; -1: none. Null unless all bytes have ids */
    bool byte_fallback, fuse_unk, ignore_merges;
    char *prefix, *suffix; /* of continuing characters, of the last one; null: none */
};

struct symbol {
    int32_t id, previous, next; /* next -2: merged into another */
};

struct scratch {
    struct symbol *symbols;
    uint64_t *heap; /* rank << 32 | position */
    size_t capacity, heap_count, heap_capacity;
    struct dt_text text;
};

static size_t pair_slot(const struct bpe *b, uint64_t pair)
{
    uint64_t h = pair * 0x9e3779b97f4a7c15u;
    size_t slot = (h >> 29 ^ h >> 47) & b->slot_mask;
    while (b->slots[slot].pair != UINT64_MAX && b->slots[slot].pair != pair) {
        slot = (slot + 1) & b->slot_mask;
    }
    return slot;
}

static inline uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

/* Null: the pair has no rank. */
static const struct merge_slot *find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    const struct merge_slot *m = &b->slots[pair_slot(b, pair_of(left, right))];
    return m->pair != UINT64_MAX ? m : NULL;
}

/* ---- pieces of at most SHORT symbols ---- */

struct short_piece {
    int32_t ids[SHORT], ranks[SHORT], merged[SHORT]; /* of symbol i with the next one */
    int count;
};

static inline void rank_pair(const struct bpe *b, struct short_piece *p, int at)
{
    p->ranks[at] = NO_RANK;
    if (at + 1 < p->count) {
        const struct merge_slot *m = find_merge(b, p->ids[at], p->ids[at + 1]);
        if (m != NULL) {
            p->ranks[at] = m->rank;
            p->merged[at] = m->id;
        }
    }
}

static void merge_short(const struct bpe *b, struct short_piece *p)
{
    for (;;) {
        int32_t least = NO_RANK;
        int best = 0;
        for (int i = 0; i + 1 < p->count; i++) {
            least = p->ranks[i] < least ? p->ranks[i] : least;
        }
        if (least == NO_RANK) {
            return;
        }
        while (p->ranks[best] != least) {
            best++;
        }
        p->ids[best] = p->merged[best];
        size_t behind = (size_t)(p->count - best - 2) * sizeof *p->ids;
        memmove(p->ids + best + 1, p->ids + best + 2, behind);
        memmove(p->ranks + best + 1, p->ranks + best + 2, behind);
        memmove(p->merged + best + 1, p->merged + best + 2, behind);
        p->count--;
        rank_pair(b, p, best);
        if (best > 0) {
            rank_pair(b, p, best - 1);
        }
    }
}

/* ---- longer ones ---- */

static void heap_push(struct scratch *s, uint64_t entry)
{
    if (s->heap_count == s->heap_capacity) {
        s->heap_capacity = s->heap_capacity == 0 ? 256 : 2 * s->heap_capacity;
        s->heap = dt_realloc(s->heap, s->heap_capacity * sizeof *s->heap);
    }
    size_t at = s->heap_count++;
    while (at > 0 && s->heap[(at - 1) / 2] > entry) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = entry;
}

static uint64_t heap_pop(struct scratch *s)
{
    uint64_t top = s->heap[0], last = s->heap[--s->heap_count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < s->heap_count) {
        child += child + 1 < s->heap_count && s->heap[child + 1] < s->heap[child];
        if (s->heap[child] >= last) {
            break;
        }
        s->heap[at] = s->heap[child];
        at = child;
    }
    s->heap[at] = last;
    return top;
}

static void offer_pair(const struct bpe *b, struct scratch *s, int32_t at)
{
    int32_t next = at >= 0 ? s->symbols[at].next : -1;
    const struct merge_slot *m = next >= 0 ? find_merge(b, s->symbols[at].id, s->symbols[next].id) : NULL;
    if (m != NULL) {
        heap_push(s, (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)at);
    }
}

static void merge_long(const struct bpe *b, struct scratch *s, size_t count)
{
    s->heap_count = 0;
    for (size_t i = 0; i < count; i++) {
        s->symbols[i].previous = (int32_t)i - 1;
        s->symbols[i].next = i + 1 < count ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i + 1 < count; i++) {
        offer_pair(b, s, (int32_t)i);
    }
    while (s->heap_count > 0) {
        uint64_t top = heap_pop(s);
        struct symbol *left = &s->symbols[(uint32_t)top];
        if (left->next < 0) {
            continue; /* merged, or the last */
        }
        struct symbol *right = &s->symbols[left->next];
        const struct merge_slot *m = find_merge(b, left->id, right->id);
        if (m == NULL || (uint32_t)m->rank != top >> 32) {
            continue; /* the pair is another one by now */
        }
        left->id = m->id;
        left->next = right->next;
        right->next = -2;
        if (left->next >= 0) {
            s->symbols[left->next].previous = (int32_t)(uint32_t)top;
        }
        offer_pair(b, s, left->previous);
        offer_pair(b, s, (int32_t)(uint32_t)top);
    }
}

static void merge_symbols(const struct bpe *b, struct scratch *s, size_t count, struct token_ids *out)
{
    if (count > SHORT) {
        merge_long(b, s, count);
        for (int32_t i = 0; i >= 0; i = s->symbols[i].next) {
            token_ids_add(out, s->symbols[i].id);
        }
        return;
    }
    struct short_piece p = {.count = (int)count};
    for (int i = 0; i < p.count; i++) {
        p.ids[i] = s->symbols[i].id;
    }
    for (int i = 0; i < p.count; i++) {
        rank_pair(b, &p, i);
    }
    merge_short(b, &p);
    for (int i = 0; i < p.count; i++) {
        token_ids_add(out, p.ids[i]);
    }
}

/* ---- the first symbols ---- */

static void reserve_symbols(struct scratch *s, size_t count)
{
    if (count > s->capacity) {
        s->capacity = count > 2 * s->capacity ? count : 2 * s->capacity;
        s->symbols = dt_realloc(s->symbols, s->capacity * sizeof *s->symbols);
    }
}

/* The bytes of a spelling as <0xE2>; false: not all have a token. */
static bool fall_back(const struct bpe *b, struct scratch *s, size_t *count, const char *spelling, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (b->byte_ids[(unsigned char)spelling[i]] < 0) {
            return false;
        }
    }
    reserve_symbols(s, *count + size + 1);
    for (size_t i = 0; i < size; i++) {
        s->symbols[(*count)++].id = b->byte_ids[(unsigned char)spelling[i]];
    }
    return true;
}

/* The spelling of a character in the vocabulary, with prefix and suffix. */
static const char *spell(const struct bpe *b, struct scratch *s, const char *piece, size_t size, size_t at, size_t n,
                         size_t *spelling_size)
{
    const char *prefix = at > 0 && b->prefix != NULL ? b->prefix : "";
    const char *suffix = at + n == size && b->suffix != NULL ? b->suffix : "";
    if (*prefix == 0 && *suffix == 0) {
        *spelling_size = n;
        return piece + at;
    }
    dt_text_reset(&s->text);
    dt_text_puts(&s->text, prefix);
    dt_text_add(&s->text, piece + at, n);
    dt_text_puts(&s->text, suffix);
    *spelling_size = s->text.size;
    return s->text.data;
}

/* Unknown characters wait in `unknown`: byte tokens behind them come first, as in the library. */
static void first_symbols(const struct bpe *b, struct scratch *s, const char *piece, size_t size, size_t *count)
{
    bool unknown = false;
    size_t n;
    *count = 0;
    for (size_t at = 0; at < size; at += n) {
        (void)utf8_read(piece + at, &n);
        size_t spelling_size;
        const char *spelling = spell(b, s, piece, size, at, n, &spelling_size);
        int32_t id = vocabulary_find(b->v, spelling, spelling_size);
        reserve_symbols(s, *count + 3);
        if (id < 0 && b->byte_fallback && fall_back(b, s, count, spelling, spelling_size)) {
            continue;
        }
        if (id < 0 && b->unk < 0) {
            continue; /* the library leaves it out */
        }
        if (unknown && (id >= 0 || !b->fuse_unk)) {
            s->symbols[(*count)++].id = b->unk;
        }
        unknown = id < 0;
        if (id >= 0) {
            s->symbols[(*count)++].id = id;
        }
    }
    if (unknown) {
        reserve_symbols(s, *count + 1);
        s->symbols[(*count)++].id = b->unk;
    }
}

static int encode(const void *state, void *scratch, const char *piece, size_t size, struct token_ids *out,
                  struct dt_error *err)
{
    const struct bpe *b = state;
    struct scratch *s = scratch;
    int32_t whole = b->ignore_merges ? vocabulary_find(b->v, piece, size) : -1;
    size_t count;
    if (whole >= 0) {
        token_ids_add(out, whole);
        return 0;
    }
    if (size > INT32_MAX / 8) {
        return dt_fail(err, DT_INVALID, "a piece of %zu bytes; the pre-tokenizer must split it", size);
    }
    first_symbols(b, s, piece, size, &count);
    if (count > 0) {
        merge_symbols(b, s, count, out);
    }
    return 0;
}

bool bpe_takes_bytes(const void *state)
{
    return ((const struct bpe *)state)->byte_pairs != NULL;
}

int bpe_encode_bytes(const void *state, void *scratch, const char *piece, size_t size, struct token_ids *out,
                     struct dt_error *err)
{
    const struct bpe *b = state;
    struct scratch *s = scratch;
    const unsigned char *bytes = (const unsigned char *)piece;
    if (size > INT32_MAX / 8) {
        return dt_fail(err, DT_INVALID, "a piece of %zu bytes; the pre-tokenizer must split it", size);
    }
    if (b->ignore_merges) {
        dt_text_reset(&s->text);
        byte_level_map(piece, size, &s->text);
        int32_t whole = vocabulary_find(b->v, s->text.data, s->text.size);
        if (whole >= 0) {
            token_ids_add(out, whole);
            return 0;
        }
    }
    if (size > SHORT) {
        reserve_symbols(s, size);
        for (size_t i = 0; i < size; i++) {
            s->symbols[i].id = b->mapped[bytes[i]];
        }
        merge_symbols(b, s, size, out);
        return 0;
    }
    struct short_piece p;
    p.count = (int)size;
    for (size_t i = 0; i < size; i++) {
        int32_t slot = i + 1 < size ? b->byte_pairs[bytes[i]][bytes[i + 1]] : -1;
        p.ids[i] = b->mapped[bytes[i]];
        p.ranks[i] = slot >= 0 ? b->slots[slot].rank : NO_RANK;
        p.merged[i] = slot >= 0 ? b->slots[slot].id : -1;
    }
    merge_short(b, &p);
    for (int i = 0; i < p.count; i++) {
        token_ids_add(out, p.ids[i]);
    }
    return 0;
}

/* ---- opening ---- */

/* One merge, "a b" or ["a", "b"]. */
static int read_merge(const cJSON *j, const char **left, size_t *left_size, const char **right, struct dt_error *err)
{
    if (cJSON_IsString(j)) {
        const char *space = strchr(j->valuestring, ' ');
        if (space != NULL && strchr(space + 1, ' ') == NULL) {
            *left = j->valuestring;
            *left_size = (size_t)(space - j->valuestring);
            *right = space + 1;
            return 0;
        }
    } else if (cJSON_IsArray(j) && cJSON_IsString(j->child) && cJSON_IsString(j->child->next) &&
               j->child->next->next == NULL) {
        *left = j->child->valuestring;
        *left_size = strlen(*left);
        *right = j->child->next->valuestring;
        return 0;
    }
    return dt_fail(err, DT_INVALID, "not two tokens, as \"a b\" or [\"a\", \"b\"]");
}

static int find_token(const struct bpe *b, const char *token, size_t size, int32_t *id, struct dt_error *err)
{
    char shown[64];
    *id = vocabulary_find(b->v, token, size);
    return *id >= 0 ? 0
                    : dt_fail(err, DT_INVALID, "%s is not in the vocabulary",
                              dt_text_excerpt(token, size, shown, sizeof shown));
}

static int add_merge(struct bpe *b, const cJSON *j, int32_t rank, struct dt_text *text, struct dt_error *err)
{
    const char *left = NULL, *right = NULL;
    size_t left_size = 0, cut = b->prefix != NULL ? strlen(b->prefix) : 0;
    int32_t l, r, both;
    if (read_merge(j, &left, &left_size, &right, err) != 0 || find_token(b, left, left_size, &l, err) != 0 ||
        find_token(b, right, strlen(right), &r, err) != 0) {
        return -1;
    }
    if (strlen(right) < cut) {
        return dt_fail(err, DT_INVALID, "%s is shorter than continuing_subword_prefix", right);
    }
    dt_text_reset(text);
    dt_text_add(text, left, left_size);
    dt_text_puts(text, right + cut);
    if (find_token(b, text->data, text->size, &both, err) != 0) {
        return -1;
    }
    uint64_t pair = pair_of(l, r);
    b->slots[pair_slot(b, pair)] = (struct merge_slot){.pair = pair, .rank = rank, .id = both};
    return 0;
}

static int read_merges(struct bpe *b, const cJSON *merges, struct dt_error *err)
{
    const cJSON *j;
    size_t slots = 16, count = (size_t)cJSON_GetArraySize(merges);
    if (!cJSON_IsArray(merges)) {
        return dt_fail(err, DT_INVALID, "merges: missing, or not a list");
    }
    while (slots < 2 * count) {
        slots *= 2;
    }
    b->slots = dt_alloc(slots * sizeof *b->slots);
    memset(b->slots, 0xff, slots * sizeof *b->slots);
    b->slot_mask = slots - 1;
    struct dt_text text;
    dt_text_init(&text);
    int32_t rank = 0;
    int rc = 0;
    cJSON_ArrayForEach(j, merges)
    {
        if (cJSON_IsString(j) && strncmp(j->valuestring, "#version", 8) == 0) {
            continue;
        }
        if (add_merge(b, j, rank++, &text, err) != 0) {
            rc = dt_wrap(err, "merges[%d]", rank - 1);
            break;
        }
    }
    dt_text_clear(&text);
    return rc;
}

static int read_options(struct bpe *b, const cJSON *model, struct dt_error *err)
{
    const char *unk, *prefix, *suffix;
    const cJSON *dropout = cJSON_GetObjectItemCaseSensitive(model, "dropout");
    if (dropout != NULL && !cJSON_IsNull(dropout) && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0)) {
        return dt_fail(err, DT_INVALID, "dropout: random merges are not supported; write null");
    }
    if (part_text(model, "unk_token", NULL, &unk, err) != 0 ||
        part_text(model, "continuing_subword_prefix", NULL, &prefix, err) != 0 ||
        part_text(model, "end_of_word_suffix", NULL, &suffix, err) != 0 ||
        part_bool(model, "fuse_unk", 0, &b->fuse_unk, err) != 0 ||
        part_bool(model, "byte_fallback", 0, &b->byte_fallback, err) != 0 ||
        part_bool(model, "ignore_merges", 0, &b->ignore_merges, err) != 0) {
        return -1;
    }
    b->unk = -1;
    if (unk != NULL && find_token(b, unk, strlen(unk), &b->unk, err) != 0) {
        return dt_wrap(err, "unk_token");
    }
    b->prefix = prefix != NULL && *prefix != 0 ? dt_strdup(prefix) : NULL;
    b->suffix = suffix != NULL && *suffix != 0 ? dt_strdup(suffix) : NULL;
    return 0;
}

static void find_bytes(struct bpe *b)
{
    bool all = b->prefix == NULL && b->suffix == NULL;
    for (int i = 0; i < 256; i++) {
        char code[8], byte = (char)i;
        (void)snprintf(code, sizeof code, "<0x%02X>", (unsigned)i);
        b->byte_ids[i] = vocabulary_find(b->v, code, strlen(code));
        struct dt_text mapped;
        dt_text_init(&mapped);
        byte_level_map(&byte, 1, &mapped);
        b->mapped[i] = vocabulary_find(b->v, mapped.data, mapped.size);
        all = all && b->mapped[i] >= 0;
        dt_text_clear(&mapped);
    }
    if (!all) {
        return;
    }
    b->byte_pairs = dt_alloc(sizeof *b->byte_pairs * 256);
    for (int i = 0; i < 256; i++) {
        for (int k = 0; k < 256; k++) {
            size_t slot = pair_slot(b, pair_of(b->mapped[i], b->mapped[k]));
            b->byte_pairs[i][k] = b->slots[slot].pair != UINT64_MAX ? (int32_t)slot : -1;
        }
    }
}

static void close_state(void *state)
{
    struct bpe *b = state;
    free(b->slots);
    free(b->byte_pairs);
    free(b->prefix);
    free(b->suffix);
    free(b);
}

static int open_state(void **state, const cJSON *model, const struct vocabulary *v, struct dt_error *err)
{
    struct bpe *b = dt_alloc(sizeof *b);
    b->v = v;
    if (read_options(b, model, err) != 0 ||
        read_merges(b, cJSON_GetObjectItemCaseSensitive(model, "merges"), err) != 0) {
        close_state(b);
        return -1;
    }
    find_bytes(b);
    *state = b;
    return 0;
}

static void *open_scratch(const void *state)
{
    (void)state;
    return dt_alloc(sizeof(struct scratch));
}

static void close_scratch(void *scratch)
{
    struct scratch *s = scratch;
    free(s->symbols);
    free(s->heap);
    dt_text_clear(&s->text);
    free(s);
}

const struct token_model_ops token_model_bpe = {.type = "BPE",
                                                .open = open_state,
                                                .scratch_open = open_scratch,
                                                .scratch_close = close_scratch,
                                                .encode = encode,
                                                .close = close_state};
