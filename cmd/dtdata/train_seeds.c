/* See the header. The places of the text are sorted by the SEED_LENGTH + 1 characters that follow; then
 * places with a common beginning are neighbours, and each interval of them is one candidate. */
#include "cmd/dtdata/train_seeds.h"

#include "base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = SEED_LENGTH + 1, BREATHE = 1024, FEW = 12 };

/* ---- the text ---- */

static int measure(struct piece_text *t, const struct words *words, struct dt_error *err)
{
    const char *piece;
    size_t size;
    uint64_t count;
    int state;
    if (words->rewind(words->context, err) != 0) {
        return -1;
    }
    while ((state = words->next(words->context, &piece, &size, &count, err)) == 1) {
        for (size_t at = 0; at < size; t->size++) {
            (void)word_character(piece, &at);
        }
        t->size++;
        t->pieces++;
    }
    return state;
}

static int copy(struct piece_text *t, const struct words *words, struct store *store, struct dt_error *err)
{
    const char *piece;
    size_t size, to = 0, i = 0;
    uint64_t count;
    int state;
    if (words->rewind(words->context, err) != 0) {
        return -1;
    }
    while ((state = words->next(words->context, &piece, &size, &count, err)) == 1) {
        for (size_t at = 0; at < size;) {
            uint32_t c = word_character(piece, &at);
            t->characters[to++] = c != 0 ? c : 0xfffd; /* a NUL would end the piece */
        }
        to++;
        t->counts[i++] = count;
        if (i % BREATHE == 0 && store_breathe(store, err) != 0) {
            return -1;
        }
    }
    return state;
}

int piece_text_read(struct piece_text *t, const struct words *words, struct store *store, struct dt_error *err)
{
    void *characters = NULL, *counts = NULL;
    *t = (struct piece_text){0};
    if (measure(t, words, err) != 0) {
        return -1;
    }
    if (t->size > UINT32_MAX) {
        return dt_fail(err, DT_INVALID,
                       "the different pieces of the text have %zu characters, more than 4294967295; give less text",
                       t->size);
    }
    if (store_alloc(store, &characters, t->size * sizeof *t->characters, err) != 0) {
        return -1;
    }
    t->characters = characters;
    if (store_alloc(store, &counts, t->pieces * sizeof *t->counts, err) != 0) {
        piece_text_free(t, store);
        return -1;
    }
    t->counts = counts;
    if (copy(t, words, store, err) != 0) {
        piece_text_free(t, store);
        return -1;
    }
    return 0;
}

void piece_text_free(struct piece_text *t, struct store *store)
{
    store_free(store, t->characters);
    store_free(store, t->counts);
    *t = (struct piece_text){0};
}

/* ---- sorting the places ---- */

struct sorter {
    const uint32_t *text;
    uint32_t *places;
    struct store *store;
    size_t steps;
    struct dt_error *err;
};

static int breathe(struct sorter *s, size_t steps)
{
    s->steps += steps;
    if (s->steps < BREATHE) {
        return 0;
    }
    s->steps = 0;
    return store_breathe(s->store, s->err);
}

/* How many characters two parts have in common, up to `most` and the end of a piece, which counts. */
static uint32_t common(const uint32_t *a, const uint32_t *b, uint32_t most)
{
    uint32_t n = 0;
    while (n < most && a[n] == b[n]) {
        if (a[n++] == 0) {
            break;
        }
    }
    return n;
}

static int order_of(const uint32_t *a, const uint32_t *b, uint32_t most)
{
    uint32_t n = common(a, b, most);
    return n == most || (n > 0 && a[n - 1] == 0) ? 0 : a[n] < b[n] ? -1 : 1;
}

static int sort_few(struct sorter *s, size_t begin, size_t end, uint32_t depth)
{
    for (size_t i = begin + 1; i < end; i++) {
        uint32_t moved = s->places[i];
        size_t to = i;
        for (; to > begin && order_of(s->text + moved + depth, s->text + s->places[to - 1] + depth, DEPTH - depth) < 0;
             to--) {
            s->places[to] = s->places[to - 1];
        }
        s->places[to] = moved;
    }
    return breathe(s, (end - begin) * 4);
}

static void swap_places(struct sorter *s, size_t a, size_t b)
{
    uint32_t other = s->places[a];
    s->places[a] = s->places[b];
    s->places[b] = other;
}

/* Sorts places that agree in `depth` characters: three parts by the next character. */
static int sort_places(struct sorter *s, size_t begin, size_t end, uint32_t depth)
{
    while (end - begin > FEW && depth < DEPTH) {
        uint32_t a = s->text[s->places[begin] + depth], b = s->text[s->places[begin + (end - begin) / 2] + depth],
                 c = s->text[s->places[end - 1] + depth];
        uint32_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        size_t less = begin, more = end;
        for (size_t i = begin; i < more;) {
            uint32_t x = s->text[s->places[i] + depth];
            if (x < pivot) {
                swap_places(s, i++, less++);
            } else if (x > pivot) {
                swap_places(s, i, --more);
            } else {
                i++;
            }
            if (i % BREATHE == 0 && breathe(s, BREATHE) != 0) {
                return -1;
            }
        }
        if (breathe(s, end - begin < BREATHE ? end - begin : 0) != 0) {
            return -1;
        }
        /* the equal ones at the next depth, the smaller of the others here, the larger in the loop */
        if (pivot != 0 && sort_places(s, less, more, depth + 1) != 0) {
            return -1;
        }
        bool left_first = less - begin < end - more;
        if (sort_places(s, left_first ? begin : more, left_first ? less : end, depth) != 0) {
            return -1;
        }
        begin = left_first ? more : begin;
        end = left_first ? end : less;
    }
    return depth < DEPTH && end - begin > 1 ? sort_few(s, begin, end, depth) : 0;
}

/* ---- candidates ---- */

struct candidate {
    uint64_t weight; /* length times occurrences */
    uint32_t at, length;
};

struct finder {
    const struct piece_text *text;
    struct store *store;
    struct candidate *found;
    size_t count, capacity;
};

static int add_candidate(struct finder *f, uint32_t at, uint32_t length, size_t occurrences, struct dt_error *err)
{
    if (length < 2 || length > SEED_LENGTH || f->text->characters[at + length - 1] == 0) {
        return 0;
    }
    if (f->count == f->capacity) {
        void *larger = f->found;
        size_t capacity = f->capacity == 0 ? 4096 : f->capacity * 2;
        if (store_grow(f->store, &larger, capacity * sizeof *f->found, err) != 0) {
            return -1;
        }
        f->found = larger;
        f->capacity = capacity;
    }
    f->found[f->count++] = (struct candidate){(uint64_t)length * occurrences, at, length};
    return f->count % BREATHE == 0 ? store_breathe(f->store, err) : 0;
}

/* Goes through the sorted places; a stack holds the intervals that are open. */
static int find_intervals(struct finder *f, const uint32_t *places, size_t count, struct dt_error *err)
{
    struct {
        uint32_t length;
        size_t begin;
    } open[DEPTH + 2] = {{0, 0}};
    size_t depth = 1;
    for (size_t i = 1; i <= count; i++) {
        const uint32_t *text = f->text->characters;
        uint32_t same = i < count ? common(text + places[i - 1], text + places[i], DEPTH) : 0;
        size_t begin = i - 1;
        while (open[depth - 1].length > same) {
            depth--;
            begin = open[depth].begin;
            if (add_candidate(f, places[i - 1], open[depth].length, i - begin, err) != 0) {
                return -1;
            }
        }
        if (open[depth - 1].length < same) {
            open[depth].length = same;
            open[depth++].begin = begin;
        }
        if (i % BREATHE == 0 && store_breathe(f->store, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* The order of the library: heavier ones first, then the later characters. */
static bool comes_before(const uint32_t *text, const struct candidate *a, const struct candidate *b)
{
    if (a->weight != b->weight) {
        return a->weight > b->weight;
    }
    for (uint32_t i = 0; i < a->length && i < b->length; i++) {
        if (text[a->at + i] != text[b->at + i]) {
            return text[a->at + i] > text[b->at + i];
        }
    }
    return a->length > b->length;
}

static void sink(struct finder *f, size_t count, size_t at)
{
    const uint32_t *text = f->text->characters;
    const struct candidate moved = f->found[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && comes_before(text, &f->found[child + 1], &f->found[child]);
        if (!comes_before(text, &f->found[child], &moved)) {
            break;
        }
        f->found[at] = f->found[child];
    }
    f->found[at] = moved;
}

/* ---- seeds ---- */

struct character {
    uint64_t count;
    uint32_t code, at;
};

static int by_count(const void *a, const void *b)
{
    const struct character *x = a, *y = b;
    return x->count != y->count ? (x->count > y->count ? -1 : 1) : x->code > y->code ? -1 : x->code < y->code;
}

/* The characters of the text, with the place of one of each. The caller frees. */
static int characters_of(const struct piece_text *t, struct character **out, size_t *count, struct store *store,
                         struct dt_error *err)
{
    void *memory = NULL;
    if (store_alloc(store, &memory, CHARACTERS * sizeof(struct character), err) != 0) {
        return -1;
    }
    struct character *all = memory, *kept;
    size_t piece = 0, n = 0;
    for (size_t i = 0; i < t->size; i++) {
        uint32_t c = t->characters[i];
        if (c == 0) {
            piece++;
        } else {
            all[c].count += t->counts[piece];
            all[c].at = (uint32_t)i;
        }
        if (i % BREATHE == 0 && store_breathe(store, err) != 0) {
            store_free(store, memory);
            return -1;
        }
    }
    for (uint32_t c = 1; c < CHARACTERS; c++) {
        n += all[c].count > 0;
    }
    kept = dt_alloc((n + 1) * sizeof *kept);
    *count = 0;
    for (uint32_t c = 1; c < CHARACTERS; c++) {
        if (all[c].count > 0) {
            kept[*count] = all[c];
            kept[(*count)++].code = c;
        }
    }
    store_free(store, memory);
    qsort(kept, *count, sizeof *kept, by_count);
    *out = kept;
    return 0;
}

static int find_candidates(struct finder *f, struct dt_error *err)
{
    void *places = NULL;
    if (store_alloc(f->store, &places, f->text->size * sizeof(uint32_t), err) != 0) {
        return -1;
    }
    struct sorter s = {.text = f->text->characters, .places = places, .store = f->store, .err = err};
    size_t count = 0;
    for (size_t i = 0; i < f->text->size; i++) {
        if (f->text->characters[i] != 0) {
            s.places[count++] = (uint32_t)i;
        }
    }
    int result = sort_places(&s, 0, count, 0) == 0 ? find_intervals(f, s.places, count, err) : -1;
    store_free(f->store, places);
    return result;
}

/* Takes candidates in their order, until there are enough seeds. */
static int take_candidates(struct finder *f, struct seed *seeds, size_t *count, size_t most, struct dt_error *err)
{
    size_t left = f->count;
    for (size_t i = left; i-- > 0;) {
        sink(f, left, i);
        if (i % 64 == 0 && store_breathe(f->store, err) != 0) {
            return -1;
        }
    }
    while (left > 0 && *count < most) {
        seeds[(*count)++] = (struct seed){f->found[0].at, f->found[0].length, (double)f->found[0].weight};
        f->found[0] = f->found[--left];
        if (left > 0) {
            sink(f, left, 0);
        }
        if (left % 64 == 0 && store_breathe(f->store, err) != 0) {
            return -1;
        }
    }
    return 0;
}

int seeds_find(struct seed **out, size_t *count, const struct piece_text *t, struct store *store, struct dt_error *err)
{
    struct finder f = {.text = t, .store = store};
    struct character *characters = NULL;
    void *memory = NULL;
    size_t n = 0;
    if (characters_of(t, &characters, &n, store, err) != 0) {
        return -1;
    }
    int result = find_candidates(&f, err);
    size_t most = n < SEEDS_MOST ? SEEDS_MOST : n, all = n + f.count < most ? n + f.count : most;
    if (result == 0 && (result = store_alloc(store, &memory, (all + 1) * sizeof **out, err)) == 0) {
        struct seed *seeds = memory;
        double sum = 0;
        for (*count = 0; *count < n; ++*count) {
            seeds[*count] = (struct seed){characters[*count].at, 1, (double)characters[*count].count};
        }
        result = take_candidates(&f, seeds, count, all, err);
        for (size_t i = 0; i < *count; i++) {
            sum += seeds[i].score;
        }
        for (size_t i = 0; i < *count; i++) {
            seeds[i].score = log(seeds[i].score) - log(sum);
        }
        *out = seeds;
    }
    free(characters);
    store_free(store, f.found);
    if (result != 0) {
        store_free(store, memory);
    }
    return result;
}
