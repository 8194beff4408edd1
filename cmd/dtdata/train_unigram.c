/* See the header.
 *
 * A round: two steps of expectation maximisation, then a quarter of the tokens goes, those that the
 * likelihood of the text misses least. All sums run in the order of the pieces, so that the result is
 * the same on any machine and with any number of threads. */
#include "cmd/dtdata/train_unigram.h"

#include "cmd/dtdata/train_seeds.h"

#include "base/mix.h"
#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 2, BREATHE_PIECES = 64 };
#define SHRINK 0.75
#define UNKNOWN_PENALTY 10.0
#define LEAST_FREQUENCY 0.5 /* a token that is expected more rarely goes */
#define LEAST_STEP 0.0001   /* between the scores of characters that lost theirs */

/* A part of a piece that is a token. id 0: none, a character without a token. */
struct edge {
    uint32_t begin, length, id;
    double score;
};

/* Children by node and character. */
struct trie_row {
    uint64_t key; /* node << 32 | character; 0: free (no character is 0) */
    uint32_t child;
    uint32_t id; /* of the token that ends here; 0: none */
};

struct em {
    const struct unigram_options *o;
    const struct words *words;
    struct store *store;
    struct piece_text text;
    struct seed *tokens; /* token 0 stands for what has none */
    size_t count;
    double least; /* the least score */
    struct trie_row *trie;
    size_t trie_rows;
    uint32_t nodes;
    double *expected;
    /* of one piece */
    struct edge *edges;
    size_t edge_count, edge_capacity;
    double *before, *behind;
    uint32_t *best;
    size_t length_capacity;
};

/* ---- the tokens as a trie ---- */

static struct trie_row *row_of(const struct em *e, uint32_t node, uint32_t character)
{
    uint64_t key = (uint64_t)node << 32 | character;
    size_t at = dt_mix64(key) & (e->trie_rows - 1);
    while (e->trie[at].key != key && e->trie[at].key != 0) {
        at = (at + 1) & (e->trie_rows - 1);
    }
    return &e->trie[at];
}

static int build_trie(struct em *e, struct dt_error *err)
{
    size_t most = 2, rows = 1024;
    void *memory = NULL;
    for (size_t i = 1; i < e->count; i++) {
        most += e->tokens[i].length;
    }
    while (rows < most + most / 2) {
        rows *= 2;
    }
    store_free(e->store, e->trie);
    e->trie = NULL;
    if (store_alloc(e->store, &memory, rows * sizeof *e->trie, err) != 0) {
        return -1;
    }
    e->trie = memory;
    e->trie_rows = rows;
    e->nodes = 1;
    e->least = INFINITY;
    for (size_t i = 1; i < e->count; i++) {
        const struct seed *s = &e->tokens[i];
        uint32_t node = 0, *id = NULL;
        for (uint32_t k = 0; k < s->length; k++) {
            uint32_t c = e->text.characters[s->at + k];
            struct trie_row *row = row_of(e, node, c);
            if (row->key == 0) {
                row->key = (uint64_t)node << 32 | c;
                row->child = e->nodes++;
            }
            node = row->child;
            id = &row->id;
        }
        if (id != NULL) { /* no token is empty */
            *id = (uint32_t)i;
        }
        e->least = s->score < e->least ? s->score : e->least;
        if (i % BREATHE_PIECES == 0 && store_breathe(e->store, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- one piece ---- */

static void reserve(struct em *e, size_t length)
{
    if (length + 1 > e->length_capacity) {
        e->length_capacity = 2 * (length + 1);
        e->before = dt_realloc(e->before, e->length_capacity * sizeof *e->before);
        e->behind = dt_realloc(e->behind, e->length_capacity * sizeof *e->behind);
        e->best = dt_realloc(e->best, e->length_capacity * sizeof *e->best);
    }
    if (length * SEED_LENGTH + length > e->edge_capacity) {
        e->edge_capacity = 2 * (length * SEED_LENGTH + length);
        e->edges = dt_realloc(e->edges, e->edge_capacity * sizeof *e->edges);
    }
}

/* Finds the tokens in a piece: by their begins, then by their lengths. */
static void find_edges(struct em *e, const uint32_t *piece, uint32_t length)
{
    reserve(e, length);
    e->edge_count = 0;
    for (uint32_t begin = 0; begin < length; begin++) {
        bool single = false;
        for (uint32_t n = 0, node = 0; begin + n < length;) {
            const struct trie_row *row = row_of(e, node, piece[begin + n]);
            if (row->key == 0) {
                break;
            }
            node = row->child;
            n++;
            if (row->id != 0) {
                e->edges[e->edge_count++] = (struct edge){begin, n, row->id, e->tokens[row->id].score};
                single |= n == 1;
            }
        }
        if (!single) {
            e->edges[e->edge_count++] = (struct edge){begin, 1, 0, e->least - UNKNOWN_PENALTY};
        }
    }
}

/* log(exp(x) + exp(y)) */
static double log_sum(double x, double y)
{
    double low = x > y ? y : x, high = x > y ? x : y;
    return high > low + 50.0 ? high : high + log(exp(low - high) + 1.0);
}

/* Adds how often each token is expected in a piece that occurs `count` times. */
static int expect(struct em *e, uint32_t length, double count, struct dt_error *err)
{
    for (uint32_t i = 0; i <= length; i++) {
        e->before[i] = e->behind[i] = NAN; /* nothing yet */
    }
    e->before[0] = e->behind[length] = 0;
    for (size_t i = 0; i < e->edge_count; i++) {
        const struct edge *g = &e->edges[i];
        double *to = &e->before[g->begin + g->length], x = g->score + e->before[g->begin];
        *to = isnan(*to) ? x : log_sum(*to, x);
    }
    for (size_t last = e->edge_count; last > 0;) {
        size_t first = last - 1; /* edges with one begin, short ones first */
        while (first > 0 && e->edges[first - 1].begin == e->edges[last - 1].begin) {
            first--;
        }
        for (size_t i = first; i < last; i++) {
            const struct edge *g = &e->edges[i];
            double *to = &e->behind[g->begin], x = g->score + e->behind[g->begin + g->length];
            *to = isnan(*to) ? x : log_sum(*to, x);
        }
        last = first;
    }
    double all = e->before[length];
    if (!isfinite(all)) {
        return dt_fail(err, DT_INTERNAL, "the likelihood of a piece of %u characters is no number", length);
    }
    for (size_t i = 0; i < e->edge_count; i++) {
        const struct edge *g = &e->edges[i];
        e->expected[g->id] += count * exp(e->before[g->begin] + g->score + e->behind[g->begin + g->length] - all);
    }
    return 0;
}

/* The most likely tokens of a piece: e->best[i] is the edge that ends at character i. whole: also the
 * one that is all of the piece. Returns the score. */
static double find_best(struct em *e, uint32_t length, bool whole)
{
    for (uint32_t i = 1; i <= length; i++) {
        e->before[i] = NAN;
    }
    e->before[0] = 0;
    for (size_t i = 0; i < e->edge_count; i++) {
        const struct edge *g = &e->edges[i];
        double *to = &e->before[g->begin + g->length], x = e->before[g->begin] + g->score;
        if ((whole || g->length < length) && (isnan(*to) || x > *to)) {
            *to = x;
            e->best[g->begin + g->length] = (uint32_t)i;
        }
    }
    return e->before[length];
}

/* ---- rounds ---- */

static double digamma(double x)
{
    double result = 0;
    for (; x < 7; x++) {
        result -= 1 / x;
    }
    x -= 0.5;
    double y = 1 / x, y2 = y * y, y4 = y2 * y2;
    return result + log(x) + 1.0 / 24 * y2 - 7.0 / 960 * y4 + 31.0 / 8064 * y4 * y2 - 127.0 / 30720 * y4 * y4;
}

/* Calls `each` for all pieces, with their edges. */
static int for_pieces(struct em *e,
                      int (*each)(struct em *e, uint32_t length, double count, void *context, struct dt_error *err),
                      void *context, struct dt_error *err)
{
    size_t at = 0;
    for (size_t i = 0; i < e->text.pieces; i++) {
        uint32_t length = 0;
        while (e->text.characters[at + length] != 0) {
            length++;
        }
        find_edges(e, e->text.characters + at, length);
        if (length > 0 && each(e, length, (double)e->text.counts[i], context, err) != 0) {
            return -1;
        }
        at += length + 1;
        if (i % BREATHE_PIECES == 0 && (store_breathe(e->store, err) != 0 || e->words->go_on(err) != 0)) {
            return -1;
        }
    }
    return 0;
}

static int expect_piece(struct em *e, uint32_t length, double count, void *context, struct dt_error *err)
{
    (void)context;
    return expect(e, length, count, err);
}

/* One step of expectation maximisation. Tokens that are too rare go; the others keep their order. */
static int step(struct em *e, struct dt_error *err)
{
    memset(e->expected, 0, e->count * sizeof *e->expected);
    if (for_pieces(e, expect_piece, NULL, err) != 0) {
        return -1;
    }
    size_t kept = 1;
    double sum = 0;
    for (size_t i = 1; i < e->count; i++) {
        if (e->expected[i] >= LEAST_FREQUENCY) {
            e->tokens[kept] = e->tokens[i];
            e->tokens[kept++].score = e->expected[i];
            sum += e->expected[i];
        }
    }
    e->count = kept;
    for (size_t i = 1; i < kept; i++) { /* a prior that prefers few tokens */
        e->tokens[i].score = digamma(e->tokens[i].score) - digamma(sum);
    }
    return build_trie(e, err);
}

struct usage {
    double *of_token, pieces;
};

static int count_best(struct em *e, uint32_t length, double count, void *context, struct dt_error *err)
{
    struct usage *u = context;
    (void)err;
    (void)find_best(e, length, true);
    for (uint32_t at = length; at > 0; at = e->edges[e->best[at]].begin) {
        u->of_token[e->edges[e->best[at]].id] += count;
    }
    u->pieces += count;
    return 0;
}

struct loss {
    double value;
    size_t token;
};

static int by_loss(const void *a, const void *b)
{
    const struct loss *x = a, *y = b;
    return x->value != y->value ? (x->value > y->value ? -1 : 1) : x->token < y->token ? -1 : x->token > y->token;
}

enum fate { GOES, STAYS, COMPETES };

/* How much likelihood is lost if a token goes, and its best replacement takes its place. */
static enum fate judge(struct em *e, size_t token, const struct usage *u, double sum, double *loss)
{
    const struct seed *s = &e->tokens[token];
    double freq = u->of_token[token];
    find_edges(e, e->text.characters + s->at, s->length);
    double replaced = s->length > 1 ? find_best(e, s->length, false) : NAN;
    bool alone = isnan(replaced), best = !alone && s->score >= replaced;
    if (freq == 0 && !alone && !best) {
        return GOES;
    }
    if (!best) {
        return STAYS;
    }
    if (freq == 0) {
        return GOES;
    }
    size_t parts = 0;
    for (uint32_t at = s->length; at > 0; at = e->edges[e->best[at]].begin) {
        parts++;
    }
    double all = log(sum + freq * (double)(parts - 1)), other = 0;
    for (uint32_t at = s->length; at > 0; at = e->edges[e->best[at]].begin) {
        other += log(u->of_token[e->edges[e->best[at]].id] + freq) - all;
    }
    *loss = freq / u->pieces * (log(freq) - log(sum) - other);
    return COMPETES;
}

static size_t wanted(const struct em *e)
{
    return (size_t)e->o->vocabulary * 11 / 10;
}

static int prune(struct em *e, struct dt_error *err)
{
    struct usage u = {.of_token = dt_alloc(e->count * sizeof *u.of_token)};
    struct loss *losses = dt_alloc((e->count + 1) * sizeof *losses);
    struct seed *kept = dt_alloc((e->count + 1) * sizeof *kept);
    size_t kept_count = 1, loss_count = 0;
    size_t target = (size_t)((double)e->count * SHRINK);
    double sum = 0;
    target = target > wanted(e) ? target : wanted(e);
    int result = for_pieces(e, count_best, &u, err);
    for (size_t i = 0; i < e->count; i++) {
        sum += u.of_token[i];
    }
    for (size_t i = 1; result == 0 && i < e->count; i++) {
        double loss = 0;
        enum fate fate = judge(e, i, &u, sum, &loss);
        if (fate == STAYS) {
            kept[kept_count++] = e->tokens[i];
        } else if (fate == COMPETES) {
            losses[loss_count++] = (struct loss){loss, i};
        }
        result = i % BREATHE_PIECES == 0 ? store_breathe(e->store, err) : 0;
    }
    if (result == 0) {
        qsort(losses, loss_count, sizeof *losses, by_loss);
        for (size_t i = 0; i < loss_count && kept_count < target; i++) {
            kept[kept_count++] = e->tokens[losses[i].token];
        }
        kept[0] = e->tokens[0];
        memcpy(e->tokens, kept, kept_count * sizeof *kept);
        e->count = kept_count;
        result = build_trie(e, err);
    }
    free(kept);
    free(losses);
    free(u.of_token);
    return result;
}

/* ---- the result ---- */

struct scored {
    struct seed token;
    size_t order;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->token.score != y->token.score ? (x->token.score > y->token.score ? -1 : 1)
           : x->order < y->order            ? -1
                                            : x->order > y->order;
}

/* The place of one of each character, by its code; 0: none (place 0 is stored as 1, and so on). */
static int places_of_characters(const struct em *e, uint32_t **out, size_t *count, struct dt_error *err)
{
    void *memory = NULL;
    if (store_alloc(e->store, &memory, CHARACTERS * sizeof **out, err) != 0) {
        return -1;
    }
    *out = memory;
    *count = 0;
    for (size_t i = 0; i < e->text.size; i++) {
        uint32_t c = e->text.characters[i];
        if (c != 0 && (*out)[c] == 0) {
            (*out)[c] = (uint32_t)i + 1;
            ++*count;
        }
    }
    return 0;
}

/* All characters, also those whose token was lost, then others in their order, as many as fit. */
static size_t choose(const struct em *e, struct scored *chosen, const uint32_t *places, size_t most)
{
    size_t n = 0;
    double penalty = 0;
    for (uint32_t c = 1; c < CHARACTERS; c++) {
        if (places[c] != 0) {
            uint32_t at = places[c] - 1, id = row_of(e, 0, c)->id;
            double score = id != 0 ? e->tokens[id].score : e->least + penalty;
            penalty += id != 0 ? 0 : LEAST_STEP;
            chosen[n] = (struct scored){{at, 1, score}, n};
            n++;
        }
    }
    for (size_t i = 1; i < e->count && n < most; i++) {
        if (e->tokens[i].length > 1) {
            chosen[n] = (struct scored){e->tokens[i], n};
            n++;
        }
    }
    qsort(chosen, n, sizeof *chosen, by_score);
    return n;
}

static void finish(const struct em *e, struct train_vocabulary *v, double **scores, const struct scored *chosen,
                   size_t count)
{
    *scores = dt_alloc((v->count + count + 1) * sizeof **scores);
    for (size_t i = 0; i < count; i++) {
        const struct seed *s = &chosen[i].token;
        char token[4 * SEED_LENGTH];
        size_t size = 0;
        for (uint32_t k = 0; k < s->length; k++) {
            size += utf8_write(e->text.characters[s->at + k], token + size);
        }
        uint32_t before = v->count, id = train_vocabulary_add(v, token, size);
        if (id == before) { /* not the name of a special token */
            (*scores)[id] = s->score;
        }
    }
}

static int train(struct em *e, struct train_vocabulary *v, double **scores, struct dt_error *err)
{
    struct seed *seeds = NULL;
    void *memory = NULL;
    uint32_t *places = NULL;
    size_t count = 0, characters = 0, most = e->o->vocabulary - v->count;
    if (places_of_characters(e, &places, &characters, err) != 0) {
        return -1;
    }
    if (characters > most) {
        store_free(e->store, places);
        return dt_fail(err, DT_INVALID,
                       "-v %u: %u special tokens and the %zu characters of the text do not fit; give at least %zu",
                       e->o->vocabulary, v->count, characters, characters + v->count);
    }
    int result = seeds_find(&seeds, &count, &e->text, e->store, err);
    if (result == 0 && (result = store_alloc(e->store, &memory, (count + 1) * sizeof *seeds, err)) == 0) {
        e->tokens = memory;
        memcpy(e->tokens + 1, seeds, count * sizeof *seeds);
        e->count = count + 1;
        e->expected = dt_alloc(e->count * sizeof *e->expected);
        store_free(e->store, seeds);
        result = build_trie(e, err);
    }
    while (result == 0) {
        for (int i = 0; result == 0 && i < STEPS; i++) {
            result = step(e, err);
        }
        if (result != 0 || e->count <= wanted(e)) {
            break;
        }
        result = prune(e, err);
    }
    if (result == 0) {
        struct scored *chosen = dt_alloc((characters + e->count + 1) * sizeof *chosen);
        size_t n = choose(e, chosen, places, most);
        finish(e, v, scores, chosen, n);
        free(chosen);
    }
    store_free(e->store, places);
    return result;
}

int unigram_train(struct train_vocabulary *v, double **scores, const struct unigram_options *o,
                  const struct words *words, struct store *store, struct dt_error *err)
{
    struct em e = {.o = o, .words = words, .store = store};
    int result = piece_text_read(&e.text, words, store, err);
    result = result == 0 ? train(&e, v, scores, err) : -1;
    piece_text_free(&e.text, store);
    store_free(store, e.trie);
    store_free(store, e.tokens);
    free(e.expected);
    free(e.edges);
    free(e.before);
    free(e.behind);
    free(e.best);
    return result;
}
