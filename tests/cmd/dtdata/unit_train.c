/* covers: cmd/dtdata/train_bpe.c cmd/dtdata/train_pairs.c cmd/dtdata/train_queue.c cmd/dtdata/train_store.c
 * cmd/dtdata/train_vocabulary.c cmd/dtdata/train_counts.c cmd/dtdata/train_runs.c cmd/dtdata/train_seeds.c
 * cmd/dtdata/train_unigram.c */
/* Trainers of tokenizers on small texts: merges as the tokenizers library has them, the same with any
 * memory; counts in tables and runs. */
#include "cmd/dtdata/train_bpe.h"
#include "cmd/dtdata/train_counts.h"
#include "cmd/dtdata/train_runs.h"
#include "cmd/dtdata/train_seeds.h"
#include "cmd/dtdata/train_unigram.h"
#include "base/file.h"
#include "tests/lib/folder.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* "piece count piece count ..." */
struct list {
    const char *const *pieces;
    const uint64_t *counts;
    size_t count, at;
};

static int rewind_list(void *context, struct dt_error *err)
{
    (void)err;
    ((struct list *)context)->at = 0;
    return 0;
}

static int next_of_list(void *context, const char **piece, size_t *size, uint64_t *count, struct dt_error *err)
{
    struct list *l = context;
    (void)err;
    if (l->at == l->count) {
        return 0;
    }
    *piece = l->pieces[l->at];
    *size = strlen(*piece);
    *count = l->counts[l->at++];
    return 1;
}

static int go_on(struct dt_error *err)
{
    (void)err;
    return 0;
}

/* Trains; returns all merges as "a b\n" lines, which the caller frees. limit 1: the arrays go to files. */
static char *merges_of(const char *const *pieces, const uint64_t *counts, size_t count, struct bpe_options o,
                       int64_t limit, struct train_vocabulary *v)
{
    struct dt_error err = {0};
    struct dt_text t;
    struct list list = {pieces, counts, count, 0};
    struct words words = {rewind_list, next_of_list, &list, go_on};
    struct store *store = store_open(folder, limit);
    struct bpe_result r;
    dt_text_init(&t);
    if (bpe_train(v, &r, &o, &words, store, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (size_t i = 0; i < r.merge_count; i++) {
        for (int side = 0; side < 2; side++) {
            size_t size;
            const char *token = train_vocabulary_token(v, side == 0 ? r.merges[i].left : r.merges[i].right, &size);
            dt_text_add(&t, token, size);
            dt_text_puts(&t, side == 0 ? " " : "\n");
        }
    }
    free(r.merges);
    store_close(store);
    return t.data != NULL ? t.data : dt_strdup("");
}

static const char *const roses[] = {"BERT", "GPT-2", "and",   "are", "big",    "blue",
                                    "is",   "red",   "roses", "so",  "voilets"};
static const uint64_t rose_counts[] = {1, 1, 1, 2, 1, 1, 2, 1, 1, 1, 1};

/* The text and the result of a test of the library. */
static void merges_and_ids_are_those_of_the_library(void **state)
{
    (void)state;
    static const char *const tokens[] = {"-", "2", "B", "E", "G", "P", "R", "T", "a", "b",  "d",   "e", "g",
                                         "i", "l", "n", "o", "r", "s", "t", "u", "v", "re", "are", "is"};
    struct train_vocabulary v = {0};
    char *merges =
        merges_of(roses, rose_counts, 11, (struct bpe_options){.vocabulary = 30000, .min_frequency = 2}, 1 << 30, &v);
    assert_string_equal(merges, "r e\na re\ni s\n");
    assert_int_equal(v.count, sizeof tokens / sizeof tokens[0]);
    for (uint32_t i = 0; i < v.count; i++) {
        assert_int_equal(train_vocabulary_find(&v, tokens[i], strlen(tokens[i])), i);
    }
    free(merges);
    train_vocabulary_clear(&v);
}

static void equal_counts_go_by_ids(void **state)
{
    (void)state;
    static const char *const pieces[] = {"ab", "cd", "xa"};
    static const uint64_t counts[] = {5, 5, 5};
    struct train_vocabulary v = {0};
    (void)train_vocabulary_add(&v, "x", 1); /* a special token has the first id, and is a character, too */
    char *merges = merges_of(pieces, counts, 3, (struct bpe_options){.vocabulary = 100}, 1 << 30, &v);
    assert_string_equal(merges, "x a\na b\nc d\n");
    free(merges);
    train_vocabulary_clear(&v);
}

/* "aaaa": a pair of the new symbol with itself; the count of (a, a) is 3 at first, and 6 with "aaaab". */
static void overlapping_pairs_are_merged_from_the_left(void **state)
{
    (void)state;
    static const char *const pieces[] = {"aaaa", "aaaab", "aaab"};
    static const uint64_t counts[] = {4, 2, 3};
    struct train_vocabulary v = {0};
    char *merges = merges_of(pieces, counts, 3, (struct bpe_options){.vocabulary = 100}, 1 << 30, &v);
    assert_string_equal(merges, "a a\naa aa\na b\naa ab\naaaa b\n");
    free(merges);
    train_vocabulary_clear(&v);
}

static void wordpiece_marks_what_does_not_begin(void **state)
{
    (void)state;
    static const char *const pieces[] = {"aba", "bab"};
    static const uint64_t counts[] = {3, 1};
    struct train_vocabulary v = {0};
    char *merges = merges_of(pieces, counts, 2, (struct bpe_options){.vocabulary = 100, .prefix = "##"}, 1 << 30, &v);
    assert_string_equal(merges, "a ##b\nab ##a\nb ##a\nba ##b\n");
    assert_int_equal(train_vocabulary_find(&v, "##a", 3), 2);
    assert_int_equal(train_vocabulary_find(&v, "##b", 3), 3);
    assert_int_equal(train_vocabulary_find(&v, "aba", 3), 5);
    free(merges);
    train_vocabulary_clear(&v);
}

/* Characters beyond the limit vanish from the pieces, and their neighbours meet. */
static void alphabet_is_limited_to_the_most_frequent(void **state)
{
    (void)state;
    static const char *const pieces[] = {"axb", "ayb"};
    static const uint64_t counts[] = {3, 1};
    struct train_vocabulary v = {0};
    char *merges =
        merges_of(pieces, counts, 2, (struct bpe_options){.vocabulary = 100, .limit_alphabet = 2}, 1 << 30, &v);
    assert_string_equal(merges, "a b\n");
    assert_int_equal(v.count, 3);
    free(merges);
    train_vocabulary_clear(&v);
}

enum { MANY = 4000 };

/* Many pieces of few letters: many equal counts, and tokens that arise in several ways. */
static void make_many(char (*text)[24], const char **pieces, uint64_t *counts)
{
    uint64_t x = 7;
    for (int i = 0; i < MANY; i++) {
        size_t n = 2 + (size_t)(i % 17);
        for (size_t k = 0; k < n; k++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            text[i][k] = "aabcdefgh"[(x >> 33) % 9];
        }
        text[i][n] = 0;
        pieces[i] = text[i];
        counts[i] = 1 + (x >> 40) % 9;
    }
}

static void memory_does_not_change_merges(void **state)
{
    (void)state;
    static char text[MANY][24];
    static const char *pieces[MANY];
    static uint64_t counts[MANY];
    make_many(text, pieces, counts);
    struct train_vocabulary a = {0}, b = {0};
    char *much = merges_of(pieces, counts, MANY, (struct bpe_options){.vocabulary = 9000}, INT64_MAX / 2, &a);
    char *little = merges_of(pieces, counts, MANY, (struct bpe_options){.vocabulary = 9000}, 1, &b);
    assert_true(strlen(much) > 10000);
    assert_string_equal(much, little);
    free(much);
    free(little);
    train_vocabulary_clear(&a);
    train_vocabulary_clear(&b);
}

/* Arrays keep what they hold when they move to files, and when they grow there. */
static void store_keeps_what_it_holds(void **state)
{
    (void)state;
    enum { NUMBERS = 1 << 20 };
    struct dt_error err;
    struct store *s = store_open(folder, 1);
    void *memory = NULL;
    assert_int_equal(store_alloc(s, &memory, NUMBERS * sizeof(uint32_t), &err), 0);
    for (uint32_t i = 0; i < NUMBERS; i++) {
        ((uint32_t *)memory)[i] = i * 2654435761u;
    }
    assert_int_equal(store_breathe(s, &err), 0);
    assert_true(store_in_files(s));
    assert_int_equal(store_grow(s, &memory, 2 * NUMBERS * sizeof(uint32_t), &err), 0);
    assert_int_equal(store_breathe(s, &err), 0);
    for (uint32_t i = 0; i < 2 * NUMBERS; i++) {
        assert_int_equal(((uint32_t *)memory)[i], i < NUMBERS ? i * 2654435761u : 0);
    }
    store_close(s);
}

/* One of many calls looks at the memory while all arrays leave some of it, and each one when they may not. */
static void store_looks_rarely(void **state)
{
    (void)state;
    enum { CALLS = 1000 };
    static const struct {
        int64_t limit;
        size_t size;
        int64_t least, most;
    } cases[] = {{(int64_t)8 << 30, 1 << 20, 1, CALLS / 20},
                 {(int64_t)8 << 30, (size_t)7 << 30, CALLS, CALLS}, /* nothing of it is there yet */
                 {1, 1 << 20, CALLS, CALLS}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct dt_error err;
        struct store *s = store_open(folder, cases[i].limit);
        void *memory = NULL;
        assert_int_equal(store_alloc(s, &memory, 1, &err), 0);
        assert_int_equal(store_grow(s, &memory, cases[i].size, &err), 0);
        for (int k = 0; k < CALLS; k++) {
            assert_int_equal(store_breathe(s, &err), 0);
        }
        assert_in_range(store_looks(s), cases[i].least, cases[i].most);
        store_free(s, memory);
        int64_t before = store_looks(s);
        for (int k = 0; k < CALLS; k++) {
            assert_int_equal(store_breathe(s, &err), 0);
        }
        assert_true((store_looks(s) - before < CALLS / 20) == !store_in_files(s));
        store_close(s);
    }
}

/* ---- counts ---- */

static char *path_in(const char *name)
{
    return dt_format("%s/%s", folder, name);
}

static void table_becomes_a_sorted_run(void **state)
{
    (void)state;
    struct dt_error err;
    struct run_info info;
    struct run_reader *r;
    const char *piece;
    size_t size;
    uint64_t count;
    struct piece_table *t = piece_table_open(1 << 20);
    char *path = path_in("run");
    assert_true(piece_table_add(t, "b", 1) && piece_table_add(t, "ab", 2) && piece_table_add(t, "a", 1) &&
                piece_table_add(t, "b", 1));
    assert_int_equal(piece_table_write(t, path, &info, &err), 0);
    assert_true(piece_table_empty(t));
    assert_int_equal(run_open(&r, path, &info, 1, &err), 0);
    static const char *const want[] = {"a", "ab", "b"};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(run_next(r, &piece, &size, &count, &err), 1);
        assert_int_equal(size, strlen(want[i]));
        assert_memory_equal(piece, want[i], size);
        assert_int_equal(count, i == 2 ? 2 : 1);
    }
    assert_int_equal(run_next(r, &piece, &size, &count, &err), 0);
    run_close(r);
    piece_table_close(t);
    free(path);
}

/* Counts 20,000 pieces, 5000 different ones, in a table of 64 KiB: full several times. A piece that is
 * larger than the table has its place, too. */
static void full_tables_merge_to_the_same_counts(void **state)
{
    (void)state;
    enum { DIFFERENT = 5000, LARGE = 300000 };
    struct dt_error err;
    struct run_info infos[64], info;
    char *paths[64], *merged = path_in("merged"), *large = dt_alloc(LARGE);
    size_t runs = 0;
    memset(large, 'z', LARGE);
    struct piece_table *t = piece_table_open(1);
    for (int i = 0; i <= 4 * DIFFERENT; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%06d", i * 7 % DIFFERENT);
        const char *piece = i == 4 * DIFFERENT ? large : text;
        size_t size = i == 4 * DIFFERENT ? LARGE : strlen(text);
        if (!piece_table_add(t, piece, size)) {
            paths[runs] = dt_format("%s/run-%zu", folder, runs);
            assert_int_equal(piece_table_write(t, paths[runs], &infos[runs], &err), 0);
            runs++;
            assert_true(piece_table_add(t, piece, size));
        }
    }
    paths[runs] = dt_format("%s/run-%zu", folder, runs);
    assert_int_equal(piece_table_write(t, paths[runs], &infos[runs], &err), 0);
    runs++;
    assert_true(runs > 3);
    assert_int_equal(run_merge((const char *const *)paths, infos, runs, merged, 4096, &info, &err), 0);
    struct run_reader *r;
    const char *piece;
    size_t size;
    uint64_t count;
    assert_int_equal(run_open(&r, merged, &info, 4096, &err), 0);
    for (int i = 0; i < DIFFERENT; i++) {
        char text[32];
        (void)snprintf(text, sizeof text, "%06d", i);
        assert_int_equal(run_next(r, &piece, &size, &count, &err), 1);
        assert_int_equal(size, 6);
        assert_memory_equal(piece, text, 6);
        assert_int_equal(count, 4);
    }
    assert_int_equal(run_next(r, &piece, &size, &count, &err), 1);
    assert_int_equal(size, LARGE);
    assert_memory_equal(piece, large, LARGE);
    assert_int_equal(run_next(r, &piece, &size, &count, &err), 0);
    run_close(r);
    piece_table_close(t);
    for (size_t i = 0; i < runs; i++) {
        free(paths[i]);
    }
    free(merged);
    free(large);
}

/* One changed byte shows at the end at the latest, and a file that was cut at once. */
static void damaged_runs_are_refused(void **state)
{
    (void)state;
    struct dt_error err;
    struct run_info info;
    struct run_reader *r;
    struct piece_table *t = piece_table_open(1 << 20);
    char *path = path_in("run");
    (void)piece_table_add(t, "abc", 3);
    (void)piece_table_add(t, "abd", 3);
    assert_int_equal(piece_table_write(t, path, &info, &err), 0);
    struct dt_text whole;
    dt_text_init(&whole);
    assert_int_equal(dt_file_read(path, 1000, &whole, &err), 0);
    for (size_t i = 0; i <= whole.size; i++) {
        whole.data[i < whole.size ? i : 0] ^= 1;
        assert_int_equal(dt_file_write(path, whole.data, i < whole.size ? whole.size : whole.size - 1, &err), 0);
        int state_of = run_open(&r, path, &info, 1, &err);
        if (state_of == 0) {
            const char *piece;
            size_t size;
            uint64_t count;
            while ((state_of = run_next(r, &piece, &size, &count, &err)) == 1) {
            }
            run_close(r);
        }
        assert_int_equal(state_of, -1);
        assert_int_equal(err.status, DT_INVALID);
        whole.data[i < whole.size ? i : 0] ^= 1;
    }
    dt_text_clear(&whole);
    piece_table_close(t);
    free(path);
}

/* Runs that the manifest names are there when the folder is opened again; others are gone. */
static void manifest_names_what_counts(void **state)
{
    (void)state;
    struct dt_error err;
    struct runs r;
    bool other;
    char *dir = path_in("counts");
    assert_int_equal(runs_open(&r, dir, 1, 4096, &other, &err), 0);
    assert_int_equal(r.count, 0);
    for (int i = 0; i < 20; i++) {
        struct piece_table *t = piece_table_open(1 << 16);
        struct run_row row = {.number = r.next_number++};
        char *path = runs_path(&r, row.number);
        (void)piece_table_add(t, "same", 4);
        assert_int_equal(piece_table_write(t, path, &row.info, &err), 0);
        r.blocks = i + 1;
        assert_int_equal(runs_commit(&r, &row, 1, &err), 0);
        piece_table_close(t);
        free(path);
    }
    assert_int_equal(r.count, 5); /* 16 became one */
    struct runs second;
    assert_int_equal(runs_open(&second, dir, 1, 4096, &other, &err), -1);
    assert_int_equal(err.status, DT_IN_USE);
    runs_close(&r, false);
    char *cut = dt_format("%s/run-000099", dir);
    assert_int_equal(dt_file_write(cut, "half", 4, &err), 0);
    assert_int_equal(runs_open(&r, dir, 1, 4096, &other, &err), 0);
    assert_false(other);
    assert_false(dt_file_exists(cut));
    assert_int_equal(r.count, 5);
    assert_int_equal(r.blocks, 20);
    assert_int_equal(runs_finish(&r, &err), 0);
    char *path = runs_path(&r, r.rows[0].number);
    struct run_reader *reader;
    const char *piece;
    size_t size;
    uint64_t count;
    assert_int_equal(run_open(&reader, path, &r.rows[0].info, 4096, &err), 0);
    assert_int_equal(run_next(reader, &piece, &size, &count, &err), 1);
    assert_int_equal(count, 20);
    run_close(reader);
    runs_close(&r, false);
    assert_int_equal(runs_open(&r, dir, 2, 4096, &other, &err), 0); /* other settings: nothing counts */
    assert_true(other);
    assert_int_equal(r.count, 0);
    assert_false(dt_file_exists(path));
    runs_close(&r, true);
    assert_false(dt_file_exists(dir));
    free(path);
    free(cut);
    free(dir);
}

/* ---- Unigram ---- */

static const char *const songs[] = {"sing", "singer", "singing", "song", "songs"};
static const uint64_t song_counts[] = {5, 3, 2, 4, 1};

/* Against all parts of all pieces, counted one by one. */
static void seeds_are_all_parts_that_branch(void **state)
{
    (void)state;
    struct dt_error err;
    struct list list = {songs, song_counts, 5, 0};
    struct words words = {rewind_list, next_of_list, &list, go_on};
    struct store *store = store_open(folder, 1 << 30);
    struct piece_text t;
    struct seed *seeds;
    size_t count;
    assert_int_equal(piece_text_read(&t, &words, store, &err), 0);
    assert_int_equal(seeds_find(&seeds, &count, &t, store, &err), 0);
    /* characters by counts, then longer parts by length times occurrences in different pieces */
    struct dt_text all;
    dt_text_init(&all);
    for (size_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < seeds[i].length; k++) {
            char c = (char)t.characters[seeds[i].at + k];
            dt_text_add(&all, &c, 1);
        }
        dt_text_puts(&all, " ");
    }
    assert_string_equal(dt_text_str(&all), "n g s i o r e sing ng ing song ong ");
    dt_text_clear(&all);
    store_close(store);
}

static void unigram_keeps_characters_and_sums_to_one(void **state)
{
    (void)state;
    static char text[MANY][24];
    static const char *pieces[MANY];
    static uint64_t counts[MANY];
    make_many(text, pieces, counts);
    double *first = NULL;
    struct train_vocabulary v[2] = {{.count = 0}, {.count = 0}};
    for (int i = 0; i < 2; i++) {
        struct dt_error err;
        struct list list = {pieces, counts, 400, 0};
        struct words words = {rewind_list, next_of_list, &list, go_on};
        struct store *store = store_open(folder, i == 0 ? INT64_MAX / 2 : 1);
        double *scores, sum = 0;
        (void)train_vocabulary_add(&v[i], "<unk>", 5);
        struct unigram_options o = {.vocabulary = 60};
        assert_int_equal(unigram_train(&v[i], &scores, &o, &words, store, &err), 0);
        assert_int_equal(v[i].count, 60);
        for (const char *c = "abcdefgh"; *c != 0; c++) {
            assert_true(train_vocabulary_find(&v[i], c, 1) < 60);
        }
        for (uint32_t id = 1; id < 60; id++) {
            sum += exp(scores[id]);
            assert_true(id == 1 || scores[id] <= scores[id - 1]);
        }
        assert_true(sum > 0.8 && sum < 1.05);
        if (i == 1) {
            assert_memory_equal(scores, first, 60 * sizeof *scores); /* the same bits in files */
            assert_memory_equal(v[0].bytes.data, v[1].bytes.data, v[0].bytes.size);
            free(first);
            free(scores);
        }
        first = scores;
        struct unigram_options few = {.vocabulary = 8};
        struct train_vocabulary small = {0};
        (void)train_vocabulary_add(&small, "<unk>", 5);
        assert_int_equal(unigram_train(&small, &scores, &few, &words, store, &err), -1);
        assert_non_null(strstr(err.text, "give at least 9"));
        train_vocabulary_clear(&small);
        store_close(store);
    }
    train_vocabulary_clear(&v[0]);
    train_vocabulary_clear(&v[1]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_setup, folder_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(merges_and_ids_are_those_of_the_library),
        TEST(equal_counts_go_by_ids),
        TEST(overlapping_pairs_are_merged_from_the_left),
        TEST(wordpiece_marks_what_does_not_begin),
        TEST(alphabet_is_limited_to_the_most_frequent),
        TEST(memory_does_not_change_merges),
        TEST(store_keeps_what_it_holds),
        TEST(store_looks_rarely),
        TEST(table_becomes_a_sorted_run),
        TEST(full_tables_merge_to_the_same_counts),
        TEST(damaged_runs_are_refused),
        TEST(manifest_names_what_counts),
        TEST(seeds_are_all_parts_that_branch),
        TEST(unigram_keeps_characters_and_sums_to_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
