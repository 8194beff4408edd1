/* covers: worker/data/mixture.c worker/data/sampler.c */
/* Weighted mixtures: shares are exact in each block; each source gives its samples once in an epoch of
 * its own; what comes at a place follows from the place alone; sources that do not fit are refused. */
#include "base/file.h"
#include "base/text.h"
#include "tests/lib/folder.h"
#include "worker/data/data.h"
#include "worker/data/shards.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { SOURCES = 3 };
static const int sizes[SOURCES] = {1000, 37, 3000};
static const double weights[SOURCES] = {5, 0.5, 2.5};

static const char *in(const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

/* A shard of `samples` samples of one id, and what its JSON says. */
static void write_shard(const char *name, int samples, const char *json)
{
    size_t size = SHARD_HEADER_BYTES + 2 * ((size_t)samples + 1);
    char *bytes = calloc(1, size);
    const int32_t header[] = {SHARD_MAGIC_U16, 1, samples + 1};
    struct dt_error err;
    assert_non_null(bytes);
    memcpy(bytes, header, sizeof header);
    assert_int_equal(dt_file_write(in(name), bytes, size, &err), 0);
    free(bytes);
    if (json != NULL) {
        char *info = dt_format("%s.json", in(name));
        assert_int_equal(dt_file_write(info, json, strlen(json), &err), 0);
        free(info);
    }
}

static struct dt_source source[SOURCES];

static int open_all(struct data_source *s, const double *by, struct dt_error *err)
{
    static const char *const names[SOURCES] = {"a.bin", "b.bin", "c.bin"};
    static char paths[SOURCES][256];
    for (int i = 0; i < SOURCES; i++) {
        (void)snprintf(paths[i], sizeof paths[i], "%s/%s", folder, names[i]);
        source[i] = (struct dt_source){.path = paths[i], .weight = by[i]};
    }
    const struct dt_sources from = {"a, b, c", SOURCES, source};
    const struct batch_layout layout = batch_tokens(1, 1, 0, "vocab_size");
    return data_open_mixture(s, &from, "auto", &layout, err);
}

static void write_all(void)
{
    write_shard("a.bin", sizes[0], NULL);
    write_shard("b.bin", sizes[1], NULL);
    write_shard("c.bin", sizes[2], NULL);
}

static int part_of(const struct data_source *s, int64_t sample)
{
    int i = 0;
    while (sample >= s->mixture->part[i].first + s->mixture->part[i].count) {
        i++;
    }
    return i;
}

static void test_shares_and_epochs(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err = {0};
    write_all();
    if (open_all(&s, weights, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(s.sample_count, 4037);
    assert_int_equal(s.mixture->part[0].quota, 2560);
    assert_int_equal(s.mixture->part[1].quota, 256);
    assert_int_equal(s.mixture->part[2].quota, 1280);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        const struct sampler order = {
            .sample_count = s.sample_count, .seed = 7, .shuffle = shuffle == 1, .mixture = s.mixture};
        int *seen[SOURCES];
        int64_t given[SOURCES] = {0};
        for (int i = 0; i < SOURCES; i++) {
            seen[i] = calloc((size_t)sizes[i], sizeof **seen);
            assert_non_null(seen[i]);
        }
        for (int64_t n = 0; n < 3 * MIXTURE_BLOCK; n++) {
            int64_t at = sampler_at(&order, n / s.sample_count, n % s.sample_count);
            assert_in_range(at, 0, s.sample_count - 1);
            int part = part_of(&s, at);
            given[part]++;
            seen[part][at - s.mixture->part[part].first]++;
            for (int i = 0; i < SOURCES && (n + 1) % MIXTURE_BLOCK == 0; i++) {
                assert_int_equal(given[i], (n + 1) / MIXTURE_BLOCK * s.mixture->part[i].quota);
            }
        }
        for (int i = 0; i < SOURCES; i++) { /* no sample comes again before all have come as often */
            for (int k = 0; k < sizes[i]; k++) {
                assert_in_range(seen[i][k], given[i] / sizes[i], given[i] / sizes[i] + (given[i] % sizes[i] != 0));
            }
            free(seen[i]);
        }
    }
    data_close(&s);
}

/* Blocks are mixed: no part of one is from one source alone. Places are asked for in any order. */
static void test_spread(void **state)
{
    (void)state;
    struct data_source s;
    struct dt_error err = {0};
    write_all();
    assert_int_equal(open_all(&s, weights, &err), 0);
    const struct sampler order = {.sample_count = s.sample_count, .seed = 7, .shuffle = true, .mixture = s.mixture};
    int first = 0, other = 0;
    for (int64_t n = 255; n >= 0; n--) {
        first += part_of(&s, sampler_at(&order, 0, n)) == 0;
        other += part_of(&s, sampler_at(&order, 1, n)) == 0;
    }
    assert_in_range(first, 128, 192); /* of 160 expected */
    assert_in_range(other, 128, 192);
    struct sampler more = order;
    more.seed++;
    int same = 0;
    for (int64_t n = 0; n < 256; n++) {
        same += sampler_at(&order, 0, n) == sampler_at(&more, 0, n);
    }
    assert_true(same < 16);
    data_close(&s);
}

static void refused(const double *by, const char *message)
{
    struct data_source s;
    struct dt_error err = {0};
    assert_int_equal(open_all(&s, by, &err), -1);
    if (strstr(err.text, message) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", message, err.text);
    }
}

static void test_what_does_not_fit(void **state)
{
    (void)state;
    write_all();
    refused((const double[]){1, 1e-6, 1},
            "b.bin: weight 1e-06 is less than a sample in 4096; raise it or leave it out");
    write_shard("b.bin", sizes[1], "{\"tokenizer\": \"words\", \"vocabulary\": 9}");
    refused(weights, "b.bin: tokenizer words, but");
    write_shard("b.bin", sizes[1], "{\"document_end\": 3}");
    refused(weights, "b.bin: documents end with id 3, those of");
    write_shard("b.bin", sizes[1], "{}");
    write_shard("c.bin", 0, NULL);
    refused(weights, "c.bin: 1 tokens, too few");
    struct dt_error err;
    const struct data_mixture some = {.count = 1};
    const struct sampler order = {.sample_count = 9, .shuffle = true, .order = ORDER_DISTRIBUTED, .mixture = &some};
    assert_int_equal(sampler_check(&order, &err), -1);
    assert_non_null(strstr(err.text, "data.sampler: distributed orders one source"));
}

/* Other weights are other data for a run that goes on. */
static void test_weights_count(void **state)
{
    (void)state;
    struct data_source was, is;
    struct dt_error err = {0};
    struct dt_text what;
    dt_text_init(&what);
    write_all();
    assert_int_equal(open_all(&was, weights, &err), 0);
    assert_int_equal(open_all(&is, (const double[]){10, 1, 5}, &err), 0); /* the same shares */
    assert_false(data_differ(was.files, was.file_count, &is, &what));
    assert_true(data_content(&was) == data_content(&is) && was.hash == is.hash);
    data_close(&is);
    assert_int_equal(open_all(&is, (const double[]){1, 1, 2}, &err), 0);
    assert_true(data_differ(was.files, was.file_count, &is, &what));
    assert_string_equal(dt_text_str(&what),
                        "the mixture 25 %, 25 %, 50 % stands where the mixture 62.5 %, 6.25 %, 31.25 % was");
    assert_true(was.hash != is.hash);
    data_close(&is);
    data_close(&was);
    dt_text_clear(&what);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shares_and_epochs), cmocka_unit_test(test_spread),
                                       cmocka_unit_test(test_what_does_not_fit), cmocka_unit_test(test_weights_count)};
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
