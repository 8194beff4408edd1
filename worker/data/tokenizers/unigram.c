/* Unigram: the tokens of a piece whose scores have the largest sum. */
#include "worker/data/tokenizers/parts.h"
#include "worker/data/tokenizers/trie.h"

#include "worker/data/tokenizers/characters.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double UNKNOWN_PENALTY = 10; /* the unknown token's score is that much below the lowest */

struct unigram {
    struct trie *trie;
    double *scores; /* by id */
    double unknown_score;
    int32_t unknown;    /* -1: none */
    bool byte_fallback; /* and `bytes` is complete */
    int32_t bytes[256]; /* ids of <0x00> ... <0xFF>; -1: there is none */
};

static void close_unigram(void *state)
{
    struct unigram *u = state;
    trie_close(u->trie);
    free(u->scores);
    free(u);
}

/* ---- opening ---- */

/* A score as the library reads it: it multiplies or divides the digits by a power of ten, and does not
 * round to the nearest double. Files hold the shortest digits that give the number back, so they can be
 * found again from the number. */
static double library_number(double x)
{
    char text[40];
    uint64_t digits = 0;
    int exponent = 0;
    if (x == 0 || x == floor(x)) {
        return x;
    }
    for (int precision = 15; precision <= 17; precision++) {
        (void)snprintf(text, sizeof text, "%.*e", precision - 1, fabs(x));
        if (strtod(text, NULL) == fabs(x)) {
            break;
        }
    }
    char *e = strchr(text, 'e');
    exponent = (int)strtol(e + 1, NULL, 10);
    for (const char *p = text; p < e; p++) {
        if (*p != '.') {
            digits = 10 * digits + (uint64_t)(*p - '0');
        }
    }
    exponent -= (int)(e - text) - 2;
    while (digits % 10 == 0) { /* the shortest digits */
        digits /= 10;
        exponent++;
    }
    if (exponent < -308 || exponent > 308) {
        return x;
    }
    (void)snprintf(text, sizeof text, "1e%d", abs(exponent));
    double size = (double)digits, power = strtod(text, NULL);
    size = exponent < 0 ? size / power : size * power;
    return x < 0 ? -size : size;
}

static int read_entry(const cJSON *one, struct trie_entry *entry, double *score, struct dt_error *err)
{
    const cJSON *token = cJSON_IsArray(one) ? one->child : NULL, *number = token != NULL ? token->next : NULL;
    if (!cJSON_IsString(token) || !cJSON_IsNumber(number) || number->next != NULL) {
        return dt_fail(err, DT_INVALID, "must be a token and its score");
    }
    entry->text = token->valuestring;
    entry->size = strlen(token->valuestring);
    *score = library_number(number->valuedouble);
    return 0;
}

static int read_vocabulary(struct unigram *u, const cJSON *vocab, struct dt_error *err)
{
    const cJSON *one = NULL;
    int32_t count = 0;
    double lowest = INFINITY;
    size_t size = (size_t)cJSON_GetArraySize(vocab);
    struct trie_entry *entries = dt_alloc((size + 1) * sizeof *entries);
    u->scores = dt_alloc((size + 1) * sizeof *u->scores);
    cJSON_ArrayForEach(one, vocab)
    {
        if (read_entry(one, &entries[count], &u->scores[count], err) != 0) {
            free(entries);
            return dt_wrap(err, "vocab[%d]", count);
        }
        lowest = u->scores[count] < lowest ? u->scores[count] : lowest;
        entries[count].value = count;
        count++;
    }
    u->trie = trie_open(entries, (size_t)count);
    u->unknown_score = lowest - UNKNOWN_PENALTY;
    free(entries);
    return 0;
}

static int32_t find(const struct unigram *u, const char *text, size_t size)
{
    uint32_t node = TRIE_ROOT;
    for (size_t i = 0; i < size; i++) {
        node = trie_step(u->trie, node, (unsigned char)text[i]);
        if (node == TRIE_NONE) {
            return -1;
        }
    }
    return trie_value(u->trie, node);
}

static int read_members(struct unigram *u, const cJSON *model, struct dt_error *err)
{
    const cJSON *vocab = cJSON_GetObjectItemCaseSensitive(model, "vocab");
    const cJSON *unknown = cJSON_GetObjectItemCaseSensitive(model, "unk_id");
    int64_t id = -1, count = cJSON_IsArray(vocab) ? cJSON_GetArraySize(vocab) : -1;
    if (count < 0) {
        return dt_fail(err, DT_INVALID, "vocab: %s; must be a list of tokens and scores",
                       vocab == NULL ? "missing" : "not a list");
    }
    if (part_bool(model, "byte_fallback", 0, &u->byte_fallback, err) != 0 || read_vocabulary(u, vocab, err) != 0) {
        return -1;
    }
    if (unknown != NULL && !cJSON_IsNull(unknown)) {
        if (count == 0) {
            return dt_fail(err, DT_INVALID, "vocab: empty, but there is an unk_id; give its token");
        }
        if (part_integer(model, "unk_id", -1, count - 1, &id, err) != 0) {
            return -1;
        }
    }
    u->unknown = (int32_t)id;
    for (unsigned byte = 0; byte < 256; byte++) {
        char token[8];
        (void)snprintf(token, sizeof token, "<0x%02X>", byte);
        u->bytes[byte] = find(u, token, strlen(token));
    }
    return 0;
}

static int open_unigram(void **state, const cJSON *model, const struct vocabulary *v, struct dt_error *err)
{
    (void)v;
    struct unigram *u = dt_alloc(sizeof *u);
    if (read_members(u, model, err) != 0) {
        close_unigram(u);
        return -1;
    }
    *state = u;
    return 0;
}

/* ---- encoding ---- */

/* The best tokens up to a place, by the last of them. */
struct best {
    double score;
    size_t from;  /* where the last token begins */
    int32_t id;   /* -1: no tokens lead here */
    int32_t next; /* the token of the whole piece's best path that begins here */
    size_t to;    /* where that token ends */
};

struct memory {
    struct best *best;
    size_t capacity;
};

static void *scratch_open(const void *state)
{
    (void)state;
    return dt_alloc(sizeof(struct memory));
}

static void scratch_close(void *scratch)
{
    struct memory *m = scratch;
    free(m->best);
    free(m);
}

static void offer(struct best *to, double score, size_t from, int32_t id)
{
    if (to->id < 0 || score > to->score) {
        *to = (struct best){.score = score, .from = from, .id = id};
    }
}

static int fail_unknown(const char *piece, size_t size, struct dt_error *err)
{
    char shown[64];
    return dt_fail(err, DT_INVALID, "%s: no token of model.vocab, and model.unk_id is null; set it",
                   dt_text_excerpt(piece, size, shown, sizeof shown));
}

/* Fills best[0 .. size]. */
static int search(const struct unigram *u, struct best *best, const char *piece, size_t size, struct dt_error *err)
{
    for (size_t i = 0; i <= size; i++) {
        best[i] = (struct best){.id = -1};
    }
    for (size_t at = 0, n = 0; at < size; at += n) {
        double score = best[at].score;
        bool whole = false; /* the character itself is a token */
        uint32_t node = TRIE_ROOT;
        (void)utf8_read(piece + at, &n);
        for (size_t end = at; end < size;) {
            node = trie_step(u->trie, node, (unsigned char)piece[end++]);
            if (node == TRIE_NONE) {
                break;
            }
            int32_t id = trie_value(u->trie, node);
            if (id >= 0) {
                offer(&best[end], u->scores[id] + score, at, id);
                whole = whole || end == at + n;
            }
        }
        if (!whole) {
            double with = u->unknown_score + score;
            if (u->unknown < 0 && (best[at + n].id < 0 || with > best[at + n].score)) {
                return fail_unknown(piece + at, n, err);
            }
            if (u->unknown >= 0) {
                offer(&best[at + n], with, at, u->unknown);
            }
        }
    }
    return 0;
}

/* Appends the ids of text that is no token: those of its bytes, or the unknown token. */
static int add_unknown(const struct unigram *u, const char *text, size_t size, struct token_ids *out,
                       struct dt_error *err)
{
    bool bytes = u->byte_fallback;
    for (size_t i = 0; i < size && bytes; i++) {
        bytes = u->bytes[(unsigned char)text[i]] >= 0;
    }
    if (!bytes && u->unknown < 0) {
        return fail_unknown(text, size, err);
    }
    if (!bytes) {
        token_ids_add(out, u->unknown);
    }
    for (size_t i = 0; i < size && bytes; i++) {
        token_ids_add(out, u->bytes[(unsigned char)text[i]]);
    }
    return 0;
}

/* Turns the best path around, so that it can be walked from its beginning. */
static void turn(struct best *best, size_t size)
{
    for (size_t end = size; end > 0;) {
        size_t from = best[end].from;
        best[from].to = end;
        best[from].next = best[end].id;
        end = from;
    }
}

static int encode_unigram(const void *state, void *scratch, const char *piece, size_t size, struct token_ids *out,
                          struct dt_error *err)
{
    const struct unigram *u = state;
    struct memory *m = scratch;
    if (size + 1 > m->capacity) {
        m->capacity = 2 * (size + 1);
        m->best = dt_realloc(m->best, m->capacity * sizeof *m->best);
    }
    if (search(u, m->best, piece, size, err) != 0) {
        return -1;
    }
    turn(m->best, size);
    for (size_t at = 0; at < size;) {
        size_t begin = at;
        while (at < size && m->best[at].next == u->unknown) { /* unknown neighbours are one */
            at = m->best[at].to;
        }
        if (at == begin) {
            token_ids_add(out, m->best[at].next);
            at = m->best[at].to;
            continue;
        }
        int32_t id = find(u, piece + begin, at - begin);
        if (id >= 0) {
            token_ids_add(out, id);
        } else if (add_unknown(u, piece + begin, at - begin, out, err) != 0) {
            return -1;
        }
    }
    return 0;
}

const struct token_model_ops token_model_unigram = {.type = "Unigram",
                                                    .open = open_unigram,
                                                    .scratch_open = scratch_open,
                                                    .scratch_close = scratch_close,
                                                    .encode = encode_unigram,
                                                    .close = close_unigram};
