/* See the header.
 *
 * A piece is a record: its count and its symbols, which become fewer with each merge. A candidate is
 * a pair with the list of the records that it was found in. The first candidate in the queue is
 * merged in its records. The pairs that this makes, all with the new symbol, are new candidates with
 * lists of their own. So a merge touches only the records that it changes.
 *
 * The library never takes a pair's own occurrences from its count when it merges the pair, and a
 * candidate learns its new count only when it comes to the front of the queue. Two merges may give
 * the same token ("a" + "bc", "ab" + "c"); the pairs with this token then have several candidates.
 * All this shows in the result, so it is the same here. */
#include "cmd/dtdata/train_bpe.h"

#include "cmd/dtdata/train_pairs.h"
#include "cmd/dtdata/train_queue.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BREATHE_RECORDS = 32, BREATHE_ROWS = 4096, BREATHE_PAIRS = 512 }; /* what is read at random, and in order */

/* A piece; its place counts in units of 8 bytes, so that 32 bits are enough for 32 GiB. */
struct record {
    uint64_t count;
    uint32_t size;
    uint32_t symbols[];
};

/* The pairs of one merge with one neighbour, on one side: it and the new symbol, and it and the part
 * that the new symbol replaces. */
struct side {
    int64_t more, fewer;
    uint32_t hits, last; /* records that have the new pair, and the last of them */
    uint64_t list;
};

/* The new pair with the neighbour slot / 2, on the left or (slot odd) on the right. */
struct hit {
    uint32_t slot, record;
};

struct trainer {
    struct train_vocabulary *v;
    const struct bpe_options *o;
    const struct words *words;
    struct store *store;
    /* by character */
    uint64_t *counts;       /* how often it occurs */
    uint32_t *first, *rest; /* id + 1 at the begin of a piece, and behind; 0: none */
    uint64_t *records;
    size_t units; /* of 8 bytes, in records */
    struct pairs pairs;
    uint32_t *lists;
    size_t lists_used, lists_capacity;
    struct queue queue;
    struct side *sides; /* by slot */
    uint32_t *touched;
    size_t touched_count, sides_count;
    struct hit *hits;
    size_t hit_count, hit_capacity;
    struct bpe_result result;
    size_t merge_capacity;
};

static struct record *record_at(const struct trainer *t, size_t place)
{
    return (struct record *)(void *)(t->records + place);
}

/* Gives back memory that is too much, and ends the training after a signal. */
static int breathe(struct trainer *t, struct dt_error *err)
{
    return store_breathe(t->store, err) == 0 ? t->words->go_on(err) : -1;
}

static size_t record_units(size_t symbols)
{
    return (sizeof(struct record) + symbols * sizeof(uint32_t) + 7) / 8;
}

/* ---- the alphabet ---- */

/* Counts characters, and marks those that do not only begin pieces; finds how much memory the
 * records take. */
static int count_characters(struct trainer *t, struct dt_error *err)
{
    const char *piece;
    size_t size;
    uint64_t count;
    int state;
    if (t->words->rewind(t->words->context, err) != 0) {
        return -1;
    }
    while ((state = t->words->next(t->words->context, &piece, &size, &count, err)) == 1) {
        size_t symbols = 0;
        for (size_t at = 0; at < size; symbols++) {
            uint32_t c = word_character(piece, &at);
            t->counts[c] += count;
            t->rest[c] |= symbols > 0;
        }
        t->units += record_units(symbols);
        t->result.piece_count++;
        t->result.symbol_count += symbols;
    }
    for (size_t i = 0; i < t->o->alphabet_count; i++) {
        t->counts[t->o->alphabet[i]] = UINT64_MAX;
    }
    return state;
}

struct character {
    uint64_t count;
    uint32_t code;
};

static int by_count(const void *a, const void *b)
{
    const struct character *x = a, *y = b;
    return x->count != y->count ? (x->count > y->count ? -1 : 1) : x->code < y->code ? -1 : x->code > y->code;
}

/* Leaves out the rarest characters; of those with equal counts, the later ones. */
static void limit_alphabet(struct trainer *t)
{
    size_t count = 0;
    struct character *all = NULL;
    for (int pass = 0; pass < 2; pass++) {
        count = 0;
        for (uint32_t c = 0; c < CHARACTERS; c++) {
            if (t->counts[c] > 0) {
                if (all != NULL) {
                    all[count] = (struct character){t->counts[c], c};
                }
                count++;
            }
        }
        if (count <= t->o->limit_alphabet) {
            return;
        }
        all = all == NULL ? dt_alloc(count * sizeof *all) : all;
    }
    qsort(all, count, sizeof *all, by_count);
    for (size_t i = t->o->limit_alphabet; i < count; i++) {
        t->counts[all[i].code] = 0;
    }
    free(all);
}

/* Gives ids to the characters, in the order of their codes; then to those with the prefix. */
static void add_alphabet(struct trainer *t)
{
    char token[64];
    if (t->o->limit_alphabet > 0) {
        limit_alphabet(t);
    }
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        size_t size = t->counts[c] > 0 ? utf8_write(c, token) : 0;
        if (size > 0) {
            t->first[c] = train_vocabulary_add(t->v, token, size) + 1;
        }
    }
    if (t->o->prefix == NULL) {
        return;
    }
    size_t head = strlen(t->o->prefix);
    memcpy(token, t->o->prefix, head);
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        if (t->first[c] > 0 && t->rest[c] > 0) {
            t->rest[c] = train_vocabulary_add(t->v, token, head + utf8_write(c, token + head)) + 1;
        }
    }
}

/* ---- records and their pairs ---- */

static int fill_records(struct trainer *t, struct dt_error *err)
{
    const char *piece;
    size_t size, place = 0;
    uint64_t count;
    int state;
    const uint32_t *behind = t->o->prefix != NULL ? t->rest : t->first;
    if (t->words->rewind(t->words->context, err) != 0) {
        return -1;
    }
    for (size_t i = 0; (state = t->words->next(t->words->context, &piece, &size, &count, err)) == 1; i++) {
        struct record *r = record_at(t, place);
        r->count = count;
        for (size_t at = 0; at < size;) {
            bool begins = at == 0;
            uint32_t c = word_character(piece, &at), id = begins ? t->first[c] : behind[c];
            if (t->first[c] > 0 && id > 0) { /* a character beyond the alphabet is passed over */
                r->symbols[r->size++] = id - 1;
            }
        }
        place += record_units(r->size);
        if (i % BREATHE_RECORDS == 0 && breathe(t, err) != 0) {
            return -1;
        }
    }
    t->units = place;
    return state;
}

/* Breathes after each so many pairs that were looked up at random: each brings 64 KB of a file, or a page. */
static int breathe_after(struct trainer *t, size_t *pairs, size_t more, struct dt_error *err)
{
    *pairs += more;
    if (*pairs < (store_in_files(t->store) ? BREATHE_RECORDS : BREATHE_PAIRS)) {
        return 0;
    }
    *pairs = 0;
    return breathe(t, err);
}

/* Counts the pairs of all records; `places` receives how many records each list needs. */
static int count_pairs(struct trainer *t, struct pairs *places, struct dt_error *err)
{
    size_t pairs = 0;
    for (size_t place = 0; place < t->units;) {
        const struct record *r = record_at(t, place);
        if (pairs_reserve(&t->pairs, r->size, err) != 0 || pairs_reserve(places, r->size, err) != 0) {
            return -1;
        }
        for (uint32_t i = 0; i + 1 < r->size; i++) {
            uint64_t pair = pair_of(r->symbols[i], r->symbols[i + 1]);
            pairs_at(&t->pairs, pair)->count += (int64_t)r->count;
            pairs_at(places, pair)->count++;
            t->lists_used++;
        }
        place += record_units(r->size);
        if (breathe_after(t, &pairs, r->size, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static int reserve_lists(struct trainer *t, size_t used, struct dt_error *err)
{
    if (used <= t->lists_capacity) {
        return 0;
    }
    size_t capacity = used + used / 2;
    void *at = t->lists;
    if (store_grow(t->store, &at, capacity * sizeof *t->lists, err) != 0) {
        return -1;
    }
    t->lists = at;
    t->lists_capacity = capacity;
    return 0;
}

/* Makes the first candidates. A record that has a pair several times stands in its list as often, one
 * behind the other. */
static int first_candidates(struct trainer *t, struct pairs *places, struct dt_error *err)
{
    size_t end = 0, pairs = 0;
    for (size_t i = 0; i < places->capacity; i++) { /* sizes become begins */
        if (places->at[i].pair != PAIR_NONE) {
            size_t count = (size_t)places->at[i].count;
            places->at[i].count = (int64_t)end;
            end += count;
        }
        if (i % BREATHE_ROWS == 0 && breathe(t, err) != 0) {
            return -1;
        }
    }
    for (size_t place = 0; place < t->units;) {
        const struct record *r = record_at(t, place);
        for (uint32_t i = 0; i + 1 < r->size; i++) {
            t->lists[pairs_at(places, pair_of(r->symbols[i], r->symbols[i + 1]))->count++] = (uint32_t)place;
        }
        place += record_units(r->size);
        if (breathe_after(t, &pairs, r->size, err) != 0) {
            return -1;
        }
    }
    end = 0;
    for (size_t i = 0; i < places->capacity; i++) { /* begins have become ends */
        if (i % BREATHE_RECORDS == 0 && breathe(t, err) != 0) {
            return -1;
        }
        if (places->at[i].pair != PAIR_NONE) {
            struct candidate c = {.pair = places->at[i].pair, .list = end};
            c.count = pairs_at(&t->pairs, c.pair)->count;
            c.list_count = (size_t)places->at[i].count - end;
            end += c.list_count;
            if (queue_add(&t->queue, &c, err) != 0) {
                return -1;
            }
        }
    }
    return breathe(t, err);
}

static int make_records(struct trainer *t, struct dt_error *err)
{
    struct pairs places = {0};
    void *records = NULL;
    if (t->units > UINT32_MAX) {
        return dt_fail(err, DT_INVALID,
                       "%" PRIu64 " different pieces take more than 32 GiB; split the text into smaller pieces "
                       "(--pattern), or give less of it",
                       t->result.piece_count);
    }
    if (store_alloc(t->store, &records, t->units * 8, err) != 0) {
        return -1;
    }
    t->records = records;
    int result = fill_records(t, err);
    if (result == 0 && (result = pairs_open(&places, t->store, err)) == 0) {
        result = count_pairs(t, &places, err) == 0 && reserve_lists(t, t->lists_used, err) == 0
                     ? first_candidates(t, &places, err)
                     : -1;
        pairs_close(&places);
    }
    return result;
}

/* ---- merging ---- */

/* Room for neighbours up to the newest symbol. */
static void reserve_sides(struct trainer *t)
{
    size_t count = 2 * (size_t)t->v->count;
    if (count > t->sides_count) {
        size_t larger = count + count / 2;
        t->sides = dt_realloc(t->sides, larger * sizeof *t->sides);
        memset(t->sides + t->sides_count, 0, (larger - t->sides_count) * sizeof *t->sides);
        t->touched = dt_realloc(t->touched, larger * sizeof *t->touched);
        t->sides_count = larger;
    }
}

static struct side *side_at(struct trainer *t, uint32_t slot)
{
    struct side *s = &t->sides[slot];
    if ((s->more | s->fewer) == 0) {
        t->touched[t->touched_count++] = slot;
    }
    return s;
}

/* A new pair with a neighbour was made in a record, `count` times in the text. */
static void add_hit(struct trainer *t, uint32_t slot, uint32_t record, int64_t count)
{
    struct side *s = side_at(t, slot);
    s->more += count;
    if (s->hits == 0 || s->last != record) {
        s->hits++;
        s->last = record;
        t->hits[t->hit_count++] = (struct hit){slot, record};
    }
}

static void merge_record(struct trainer *t, uint32_t place, uint32_t left, uint32_t right, uint32_t merged)
{
    struct record *r = record_at(t, place);
    int64_t count = (int64_t)r->count;
    uint32_t *s = r->symbols, size = r->size, to = 0, from = 0;
    while (from + 1 < size && !(s[from] == left && s[from + 1] == right)) {
        from++;
    }
    if (from + 1 >= size) {
        return; /* another merge took it */
    }
    for (to = from; from < size;) {
        if (s[from] != left || from + 1 >= size || s[from + 1] != right) {
            s[to++] = s[from++];
            continue;
        }
        if (to > 0) {
            /* a pair of the new symbol with itself is one pair, on whichever side */
            add_hit(t, s[to - 1] == merged ? 2 * merged + 1 : 2 * s[to - 1], place, count);
            side_at(t, 2 * s[to - 1])->fewer += count;
        }
        from += 2;
        if (from < size) {
            add_hit(t, 2 * s[from] + 1, place, count);
            side_at(t, 2 * s[from] + 1)->fewer += count;
        }
        s[to++] = merged;
    }
    r->size = to;
}

static int merge_records(struct trainer *t, const struct candidate *c, uint32_t merged, struct dt_error *err)
{
    uint32_t left = (uint32_t)(c->pair >> 32), right = (uint32_t)c->pair;
    for (size_t i = 0, records = 0; i < c->list_count; i++) {
        uint32_t place = t->lists[c->list + i];
        if (i > 0 && place == t->lists[c->list + i - 1]) {
            continue; /* else a long record would be read as often as it has the pair */
        }
        size_t room = t->hit_count + 2 * (size_t)record_at(t, place)->size;
        if (room > t->hit_capacity) {
            void *at = t->hits;
            if (store_grow(t->store, &at, 2 * room * sizeof *t->hits, err) != 0) {
                return -1;
            }
            t->hits = at;
            t->hit_capacity = 2 * room;
        }
        merge_record(t, place, left, right, merged);
        if (++records % BREATHE_RECORDS == 0 && breathe(t, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* The pair of a neighbour with the new symbol. */
static uint64_t new_pair(uint32_t slot, uint32_t merged)
{
    return slot % 2 == 0 ? pair_of(slot / 2, merged) : pair_of(merged, slot / 2);
}

/* Brings the counts of pairs up to date after a merge, and adds the candidates. */
static int settle(struct trainer *t, const struct candidate *c, uint32_t merged, struct dt_error *err)
{
    uint32_t left = (uint32_t)(c->pair >> 32), right = (uint32_t)c->pair;
    if (pairs_reserve(&t->pairs, 2 * t->touched_count, err) != 0 ||
        reserve_lists(t, t->lists_used + t->hit_count, err) != 0) {
        return -1;
    }
    for (size_t i = 0; i < t->touched_count; i++) {
        uint32_t slot = t->touched[i];
        struct side *s = &t->sides[slot];
        if (s->fewer > 0) {
            pairs_at(&t->pairs, slot % 2 == 0 ? pair_of(slot / 2, left) : pair_of(right, slot / 2))->count -= s->fewer;
        }
        if (s->more > 0) {
            pairs_at(&t->pairs, new_pair(slot, merged))->count += s->more;
        }
        s->list = t->lists_used;
        t->lists_used += s->hits;
        if (i % BREATHE_RECORDS == BREATHE_RECORDS - 1 && breathe(t, err) != 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < t->hit_count; i++) {
        t->lists[t->sides[t->hits[i].slot].list++] = t->hits[i].record;
        if (i % BREATHE_RECORDS == BREATHE_RECORDS - 1 && breathe(t, err) != 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < t->touched_count; i++) {
        uint32_t slot = t->touched[i];
        struct side *s = &t->sides[slot];
        struct candidate made = {.pair = new_pair(slot, merged), .list = s->list - s->hits, .list_count = s->hits};
        if (s->hits > 0 && (made.count = pairs_at(&t->pairs, made.pair)->count) > 0 &&
            queue_add(&t->queue, &made, err) != 0) {
            return -1;
        }
        *s = (struct side){0};
        if (i % BREATHE_RECORDS == BREATHE_RECORDS - 1 && breathe(t, err) != 0) {
            return -1;
        }
    }
    t->touched_count = t->hit_count = 0;
    return breathe(t, err);
}

/* The token that a pair makes; added if it is new. */
static uint32_t token_of(struct trainer *t, uint32_t left, uint32_t right)
{
    struct dt_text token;
    size_t size, head = t->o->prefix != NULL ? strlen(t->o->prefix) : 0;
    dt_text_init(&token);
    const char *part = train_vocabulary_token(t->v, left, &size);
    dt_text_add(&token, part, size);
    part = train_vocabulary_token(t->v, right, &size);
    if (head > 0 && size >= head && memcmp(part, t->o->prefix, head) == 0) {
        part += head;
        size -= head;
    }
    dt_text_add(&token, part, size);
    uint32_t id = train_vocabulary_add(t->v, token.data, token.size);
    dt_text_clear(&token);
    return id;
}

static int merge_all(struct trainer *t, struct dt_error *err)
{
    struct candidate c;
    int64_t least = t->o->min_frequency > 1 ? (int64_t)t->o->min_frequency : 1;
    while (t->v->count < t->o->vocabulary) {
        int state = queue_take(&t->queue, &c, err);
        if (state <= 0) {
            return state;
        }
        int64_t now = pairs_at(&t->pairs, c.pair)->count;
        if (now != c.count) {
            c.count = now;
            if (queue_add(&t->queue, &c, err) != 0) {
                return -1;
            }
            continue;
        }
        if (c.count < least) {
            return 0;
        }
        uint32_t left = (uint32_t)(c.pair >> 32), right = (uint32_t)c.pair, merged = token_of(t, left, right);
        reserve_sides(t);
        if (t->result.merge_count == t->merge_capacity) {
            t->merge_capacity = t->merge_capacity == 0 ? 1024 : t->merge_capacity * 2;
            t->result.merges = dt_realloc(t->result.merges, t->merge_capacity * sizeof *t->result.merges);
        }
        t->result.merges[t->result.merge_count++] = (struct bpe_merge){left, right};
        if (merge_records(t, &c, merged, err) != 0 || settle(t, &c, merged, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* Keeps the last merge of a pair that was merged several times, as the library does. */
static int keep_last(struct trainer *t, struct dt_error *err)
{
    struct pairs met;
    if (pairs_open(&met, t->store, err) != 0) {
        return -1;
    }
    int result = pairs_reserve(&met, t->result.merge_count, err);
    size_t kept = t->result.merge_count;
    for (size_t i = t->result.merge_count; result == 0 && i-- > 0;) {
        struct bpe_merge m = t->result.merges[i];
        if (pairs_at(&met, pair_of(m.left, m.right))->count++ == 0) {
            t->result.merges[--kept] = m;
        }
        result = i % BREATHE_RECORDS == 0 ? breathe(t, err) : 0;
    }
    if (result == 0 && kept > 0) {
        t->result.merge_count -= kept;
        memmove(t->result.merges, t->result.merges + kept, t->result.merge_count * sizeof *t->result.merges);
    }
    pairs_close(&met);
    return result;
}

static int open_arrays(struct trainer *t, struct dt_error *err)
{
    void *counts, *first, *rest;
    if (store_alloc(t->store, &counts, CHARACTERS * sizeof *t->counts, err) != 0 ||
        store_alloc(t->store, &first, CHARACTERS * sizeof *t->first, err) != 0 ||
        store_alloc(t->store, &rest, CHARACTERS * sizeof *t->rest, err) != 0) {
        return -1;
    }
    t->counts = counts;
    t->first = first;
    t->rest = rest;
    return pairs_open(&t->pairs, t->store, err) == 0 ? queue_open(&t->queue, t->store, err) : -1;
}

int bpe_train(struct train_vocabulary *v, struct bpe_result *out, const struct bpe_options *o,
              const struct words *words, struct store *store, struct dt_error *err)
{
    struct trainer t = {.v = v, .o = o, .words = words, .store = store};
    t.pairs.store = t.queue.store = store;
    int result = open_arrays(&t, err);
    if (result == 0 && (result = count_characters(&t, err)) == 0) {
        add_alphabet(&t);
        result = make_records(&t, err) == 0 && merge_all(&t, err) == 0 ? keep_last(&t, err) : -1;
    }
    store_free(store, t.counts);
    store_free(store, t.first);
    store_free(store, t.rest);
    store_free(store, t.records);
    store_free(store, t.lists);
    store_free(store, t.hits);
    pairs_close(&t.pairs);
    queue_close(&t.queue);
    free(t.sides);
    free(t.touched);
    if (result == 0) {
        *out = t.result;
    } else {
        free(t.result.merges);
    }
    return result;
}
