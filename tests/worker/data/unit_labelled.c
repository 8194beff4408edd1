/* covers: worker/data/labelled.c worker/data/data.c worker/data/choices.c */
/* Labelled rows: padded with a mask, by classes and by numbers; what does not fit is refused, with the
 * row. Choices, whose batches are as short as they may be. */
#include "tests/lib/folder.h"
#include "worker/data/data.h"
#include "worker/data/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { T = 5, ROWS = 3, TOTAL = 8 };

/* A file of rows; each test changes one part. */
struct rows {
    int32_t ids[TOTAL];
    int64_t starts[ROWS + 1], labels[ROWS];
    float numbers[ROWS];
    uint8_t types[TOTAL];
    bool regression, pairs;
    const char *tokenizer, *names, *pad_id;
};

static const struct rows good = {.ids = {1, 7, 8, 2, 1, 9, 2, 3},
                                 .starts = {0, 4, 7, 8},
                                 .labels = {1, 0, 2},
                                 .numbers = {0.5F, -1, 2},
                                 .types = {0, 0, 1, 1, 0, 1, 1, 0},
                                 .tokenizer = "words",
                                 .names = "[\"a\", \"b\", \"c\"]",
                                 .pad_id = "4"};

static const char *in(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    (void)snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void write_rows(const char *name, const struct rows *r)
{
    const int64_t total = TOTAL, n = ROWS, n_1 = ROWS + 1;
    const struct st_entry entries[] = {{"ids", DT_I32, 1, &total},
                                       {"starts", DT_I64, 1, &n_1},
                                       {"labels", r->regression ? DT_F32 : DT_I64, 1, &n},
                                       {"types", DT_U8, 1, &total}};
    const char *metadata[] = {"format", "pt",      "tokenizer",   r->tokenizer, "vocabulary", "12",
                              "pad_id", r->pad_id, "label_names", r->names,     NULL};
    metadata[8] = r->names != NULL ? metadata[8] : NULL;
    struct dt_error err;
    struct st_writer *w;
    bool ok = st_writer_open(&w, in(name), entries, r->pairs ? 4 : 3, metadata, &err) == 0 &&
              st_writer_data(w, r->ids, sizeof r->ids, &err) == 0 &&
              st_writer_data(w, r->starts, sizeof r->starts, &err) == 0 &&
              (r->regression ? st_writer_data(w, r->numbers, sizeof r->numbers, &err)
                             : st_writer_data(w, r->labels, sizeof r->labels, &err)) == 0 &&
              (!r->pairs || st_writer_data(w, r->types, sizeof r->types, &err) == 0) && st_writer_close(w, &err) == 0;
    if (!ok) {
        fail_msg("%s", err.text);
    }
}

/* What an encoder with a head for sequences reads. */
static struct batch_layout layout_of(int64_t samples, bool numbers)
{
    struct batch_layout l = {0};
    batch_add_encoder(&l, samples, T, 12, 2);
    l.field[l.count++] = (struct batch_field){.name = "labels",
                                              .type = numbers ? DT_F32 : DT_I32,
                                              .dims = 1,
                                              .most = {samples},
                                              .targets = true,
                                              .below = numbers ? 0 : 3,
                                              .below_key = "num_labels",
                                              .value = "class",
                                              .values = "classes"};
    return l;
}

static int open_rows(struct data_source *s, const char *glob, const char *format, bool numbers, struct dt_error *err)
{
    const struct batch_layout l = layout_of(4, numbers);
    return data_open(s, glob, format, &l, err);
}

struct filled {
    int32_t ids[4][T], mask[4][T], segments[4][T], types[4][T], labels[4];
    float numbers[4];
    int64_t weight;
};

static void fill(const struct data_source *s, struct filled *f)
{
    struct dt_error err = {0};
    const struct sampler order = {.sample_count = s->sample_count};
    struct batch b = {.layout = &s->layout, .samples = 4, .length = T};
    const char *const names[] = {"input_ids", "attention_mask", "segments", "token_type_ids"};
    void *const to[] = {f->ids, f->mask, f->segments, f->types};
    for (int i = 0; i < 4; i++) {
        b.at[batch_find(&s->layout, names[i])] = to[i];
    }
    b.at[s->targets] = s->layout.field[s->targets].type == DT_F32 ? (void *)f->numbers : (void *)f->labels;
    assert_int_equal(data_batch(s, &order, 0, 0, 0, 1, &b, &err), 0);
    f->weight = b.weight;
}

static void test_rows(void **state)
{
    (void)state;
    static const int32_t ids[ROWS][T] = {{1, 7, 8, 2, 4}, {1, 9, 2, 4, 4}, {3, 4, 4, 4, 4}},
                         mask[ROWS][T] = {{1, 1, 1, 1, 0}, {1, 1, 1, 0, 0}, {1, 0, 0, 0, 0}},
                         segments[ROWS][T] = {{0, 0, 0, 0, -1}, {0, 0, 0, -1, -1}, {0, -1, -1, -1, -1}},
                         types[ROWS][T] = {{0, 0, 1, 1, 0}, {0, 1, 1, 0, 0}, {0, 0, 0, 0, 0}};
    struct data_source s;
    struct dt_error err = {0};
    struct filled f;
    for (int pairs = 0; pairs < 2; pairs++) {
        struct rows r = good;
        r.pairs = pairs == 1;
        write_rows("rows.safetensors", &r);
        if (open_rows(&s, in("rows.safetensors"), pairs == 0 ? "auto" : "rows", false, &err) != 0) {
            fail_msg("%s", err.text);
        }
        assert_string_equal(s.ops->name, "rows");
        assert_string_equal(s.tokenizer, "words");
        assert_int_equal(s.vocabulary, 12);
        assert_int_equal(s.sample_count, ROWS);
        assert_int_equal(s.token_count, TOTAL);
        assert_int_equal(s.class_count, 3);
        assert_string_equal(s.classes[2], "c");
        fill(&s, &f);
        assert_memory_equal(f.ids, ids, sizeof ids);
        assert_memory_equal(f.mask, mask, sizeof mask);
        assert_memory_equal(f.segments, segments, sizeof segments);
        for (int i = 0; i < ROWS; i++) {
            for (int t = 0; t < T; t++) {
                assert_int_equal(f.types[i][t], pairs == 1 ? types[i][t] : 0);
            }
        }
        assert_int_equal(f.labels[0], 1);
        assert_int_equal(f.labels[2], 2);
        assert_int_equal(f.labels[3], -100); /* beyond the end */
        assert_int_equal(f.weight, 3);
        data_close(&s);
    }
}

/* Positions that are padding in all rows are left out, as far as the multiple allows; rows stand one after
 * the other then. An empty row behind the end does not count. */
static void test_short_batches(void **state)
{
    (void)state;
    static const struct {
        int64_t first, multiple, length;
    } cases[] = {{0, 1, 4}, {0, 2, 4}, {0, 3, 5}, {0, 8, 5}, {1, 1, 3}, {2, 1, 1}, {2, 2, 2}, {3, 1, 1}};
    struct data_source s;
    struct dt_error err = {0};
    write_rows("short.safetensors", &good);
    assert_int_equal(open_rows(&s, in("short.safetensors"), "auto", false, &err), 0);
    const struct sampler order = {.sample_count = ROWS};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int32_t ids[4 * T], mask[4 * T], segments[4 * T], types[4 * T], labels[4];
        struct batch b = {.layout = &s.layout, .samples = 4, .length = 2}; /* of the batch before */
        void *const to[] = {ids, mask, segments, types};
        for (int k = 0; k < 4; k++) {
            b.at[k] = to[k];
        }
        b.at[s.targets] = labels;
        s.pad_multiple = cases[c].multiple;
        assert_int_equal(data_batch(&s, &order, 0, cases[c].first, 0, 1, &b, &err), 0);
        assert_int_equal(b.length, cases[c].length);
        assert_int_equal(b.weight, ROWS - cases[c].first);
        for (int64_t row = 0; row < ROWS - cases[c].first; row++) {
            int64_t sample = cases[c].first + row, count = good.starts[sample + 1] - good.starts[sample];
            for (int64_t i = 0; i < b.length; i++) {
                assert_int_equal(ids[row * b.length + i], i < count ? good.ids[good.starts[sample] + i] : 4);
                assert_int_equal(mask[row * b.length + i], i < count);
                assert_int_equal(segments[row * b.length + i], i < count ? 0 : -1);
            }
            assert_int_equal(labels[row], good.labels[sample]);
        }
        assert_int_equal(labels[ROWS - cases[c].first], -100);
    }
    data_close(&s);
}

/* A batch of choices has the positions of its longest one, however long samples may be. */
static void test_short_choices(void **state)
{
    (void)state;
    enum { LONG = 40 };
    static const struct {
        int64_t samples, first, multiple, length;
    } cases[] = {{3, 0, 1, 7}, {3, 0, 8, 8}, {2, 0, 1, 4}, {1, 0, 1, 3}, {2, 2, 1, 7}, {2, 3, 4, 4}, {3, 0, 0, LONG}};
    /* "ab" + " " + choice, one id per byte; the last one is a label only */
    static const char *const texts[] = {"ab x", "ab yz", "ab words", "c q"};
    FILE *f = fopen(in("choices.jsonl"), "w");
    assert_non_null(f);
    (void)fputs("{\"context\": \"ab\", \"choices\": [\"x\", \"yz\", \"words\"], \"label\": 1}\n"
                "{\"context\": \"c\", \"choices\": [\"q\"], \"label\": 0}\n",
                f);
    assert_int_equal(fclose(f), 0);
    struct data_source s;
    struct dt_error err = {0};
    struct job job = {.checkpointing.checkpoint_dir = folder};
    struct batch_layout layout = batch_tokens(4, LONG, 256, "vocab_size");
    if (data_open(&s, in("choices.jsonl"), "auto", &layout, &err) != 0 || data_prepare(&s, &job, false, &err) != 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(s.sample_count, 4);
    const struct sampler order = {.sample_count = 4};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int32_t ids[3 * LONG], labels[3 * LONG];
        struct batch b = {.layout = &s.layout, .at = {ids, labels}, .samples = cases[c].samples, .length = LONG};
        s.pad_multiple = cases[c].multiple;
        assert_int_equal(data_batch(&s, &order, 0, cases[c].first, 0, 1, &b, &err), 0);
        assert_int_equal(b.length, cases[c].length);
        for (int64_t row = 0; row < b.samples && cases[c].first + row < 4; row++) {
            const char *text = texts[cases[c].first + row];
            int64_t size = (int64_t)strlen(text), context = strchr(text, ' ') - text;
            for (int64_t i = 0; i < b.length; i++) {
                assert_int_equal(ids[row * b.length + i], i + 1 < size ? text[i] : 0);
                assert_int_equal(labels[row * b.length + i], i + 1 < size && i + 1 >= context ? text[i + 1] : -100);
            }
        }
    }
    data_close(&s);
}

static void test_numbers(void **state)
{
    (void)state;
    struct rows r = good;
    struct data_source s;
    struct dt_error err = {0};
    struct filled f;
    r.regression = true;
    r.names = NULL;
    write_rows("numbers.safetensors", &r);
    assert_int_equal(open_rows(&s, in("numbers.safetensors"), "auto", true, &err), 0);
    assert_null(s.classes);
    fill(&s, &f);
    assert_true(f.numbers[0] == 0.5F && f.numbers[1] == -1 && f.numbers[2] == 2);
    data_close(&s);
    assert_int_equal(open_rows(&s, in("numbers.safetensors"), "auto", false, &err), -1);
    assert_non_null(strstr(err.text, "numbers.safetensors: labels are numbers, but the model gives classes"));
    write_rows("classes.safetensors", &good);
    assert_int_equal(open_rows(&s, in("classes.safetensors"), "auto", true, &err), -1);
    assert_non_null(strstr(err.text, "classes.safetensors: labels are classes, but the model gives numbers"));
}

/* Rows go on in the next file; files of other tokenizers or classes are refused. */
static void test_files(void **state)
{
    (void)state;
    struct rows r = good;
    struct data_source s;
    struct dt_error err = {0};
    r.ids[0] = 11;
    write_rows("many-0.safetensors", &good);
    write_rows("many-1.safetensors", &r);
    assert_int_equal(open_rows(&s, in("many-*.safetensors"), "auto", false, &err), 0);
    assert_int_equal(s.sample_count, 2 * ROWS);
    assert_int_equal(s.largest[batch_find(&s.layout, "input_ids")].value, 11);
    struct filled f;
    fill(&s, &f);
    assert_int_equal(f.ids[3][0], 11);
    data_close(&s);
    r.tokenizer = "pieces";
    write_rows("many-1.safetensors", &r);
    assert_int_equal(open_rows(&s, in("many-*.safetensors"), "auto", false, &err), -1);
    assert_non_null(strstr(err.text, "many-1.safetensors: tokenizer \"pieces\", but"));
    r = good;
    r.names = "[\"a\", \"c\", \"b\"]";
    write_rows("many-1.safetensors", &r);
    assert_int_equal(open_rows(&s, in("many-*.safetensors"), "auto", false, &err), -1);
    assert_non_null(strstr(err.text, "many-1.safetensors: classes [\"a\", \"c\", \"b\"], but"));
    r.names = "{}";
    write_rows("names.safetensors", &r);
    assert_int_equal(open_rows(&s, in("names.safetensors"), "auto", false, &err), -1);
    assert_non_null(strstr(err.text, "names.safetensors: label_names is not a JSON array of texts"));
}

static void refused(const struct rows *r, const char *message)
{
    struct data_source s;
    struct dt_error err = {0};
    write_rows("bad.safetensors", r);
    assert_int_equal(open_rows(&s, in("bad.safetensors"), "auto", r->regression, &err), -1);
    if (strstr(err.text, message) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", message, err.text);
    }
}

static void test_bad_rows(void **state)
{
    (void)state;
    struct rows r = good;
    r.starts[0] = 1;
    refused(&r, "bad.safetensors: starts: row 1 is ids 1 to 4 of 8: damaged");
    r = good;
    r.starts[2] = 3;
    refused(&r, "bad.safetensors: starts: row 2 is ids 4 to 3 of 8");
    r = good;
    r.starts[3] = 7;
    refused(&r, "bad.safetensors: starts: row 3 is ids 7 to 7 of 8");
    r = good;
    r.starts[3] = INT64_MAX;
    refused(&r, "starts: row 3");
    r = good;
    r.starts[1] = 7;
    refused(&r, "bad.safetensors: row 1 has 7 ids, but data.sequence_length is 5; raise it");
    r = good;
    r.starts[1] = 0;
    refused(&r, "bad.safetensors: row 1 has no ids; take it out");
    r = good;
    r.ids[5] = -1;
    refused(&r, "bad.safetensors: ids: row 2 has id -1");
    r = good;
    r.labels[1] = -1;
    refused(&r, "bad.safetensors: labels: row 2 has -1; classes are numbers from 0");
    r = good;
    r.regression = true;
    r.numbers[2] = 1.0F / 0.0F;
    refused(&r, "bad.safetensors: labels: row 3 has inf; labels are finite numbers");
    /* a class beyond the model's is found as in other data */
    struct data_source s;
    struct dt_error err = {0};
    r = good;
    r.labels[2] = 3;
    write_rows("beyond.safetensors", &r);
    assert_int_equal(open_rows(&s, in("beyond.safetensors"), "auto", false, &err), 0);
    assert_int_equal(data_check_range(&s, &(struct job){.evaluates = false}, "data.train", &err), -1);
    assert_non_null(strstr(err.text, "labels: sample 3 has class 3, but the model has 3 classes; raise "
                                     "model.num_labels to 4"));
    data_close(&s);
    /* a model of tokens reads no such rows */
    const struct batch_layout tokens = batch_tokens(1, T, 12, "vocab_size");
    write_rows("rows.safetensors", &good);
    assert_int_equal(data_open(&s, in("rows.safetensors"), "auto", &tokens, &err), -1);
    assert_non_null(strstr(err.text, "labelled rows are for models that classify sequences"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows),          cmocka_unit_test(test_short_batches),
                                       cmocka_unit_test(test_short_choices), cmocka_unit_test(test_numbers),
                                       cmocka_unit_test(test_files),         cmocka_unit_test(test_bad_rows)};
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
