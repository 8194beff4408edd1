/* covers: cmd/dtdata/source.c cmd/dtdata/csv.c cmd/dtdata/records.c cmd/dtdata/labels.c cmd/dtdata/utf8.c cmd/dtdata/json_array.c */
/* The readers of dtdata tokenize: blocks of a file, records of CSV and JSON, labels, U+FFFD. */
#include "base/file.h"
#include "base/text.h"
#include "cmd/dtdata/csv.h"
#include "cmd/dtdata/json_array.h"
#include "cmd/dtdata/labels.h"
#include "cmd/dtdata/records.h"
#include "cmd/dtdata/source.h"
#include "cmd/dtdata/utf8.h"
#include "tests/lib/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct csv_form csv = {',', true}, tsv = {'\t', false};

/* The fields of a record with '|' between them; the error, if there is one. */
static const char *split(const struct csv_form *form, const char *record)
{
    static struct dt_text out;
    struct csv_fields fields = {0};
    struct dt_error err = {0};
    dt_text_reset(&out);
    if (csv_split(form, record, strlen(record), &fields, &err) != 0) {
        dt_text_puts(&out, err.text);
    }
    for (size_t i = 0; err.text[0] == 0 && i < fields.count; i++) {
        size_t size;
        const char *field = csv_field(&fields, i, &size);
        dt_text_puts(&out, i > 0 ? "|" : "");
        dt_text_add(&out, field, size);
    }
    csv_fields_clear(&fields);
    return dt_text_str(&out);
}

static void test_fields(void **state)
{
    (void)state;
    static const struct {
        const char *record, *csv, *tsv;
    } cases[] = {
        {"a,b\n", "a|b", "a,b"},
        {"a\tb\r\n", "a\tb", "a|b"},
        {"", "", ""},
        {",\n", "|", ","},
        {"\"a,\"\"b\"\"\",\n", "a,\"b\"|", "\"a,\"\"b\"\"\","},
        {"\"x\r\ny\"\r\n", "x\r\ny", "\"x\r\ny\""},
        {"a\"b\",c", "a\"b\"|c", "a\"b\",c"},
        {"\"a\" ,b", "field 1: text behind its closing quote; a quote inside of quotes is written twice", "\"a\" ,b"},
        {"b,\"open\n", "a quote is never closed", "b,\"open"},
        {"\"\",\"\"", "|", "\"\",\"\""},
        {"\r\n", "", ""},
        {"a\r", "a\r", "a\r"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(split(&csv, cases[i].record), cases[i].csv);
        assert_string_equal(split(&tsv, cases[i].record), cases[i].tsv);
    }
}

static void test_ends(void **state)
{
    (void)state;
    static const char text[] = "a,b\n\"x\ny\",\"\"\"\n\"\n\"open\n";
    size_t size = sizeof text - 1;
    assert_int_equal(csv_first_end(&csv, text, size), 4);
    assert_int_equal(csv_first_end(&csv, text + 4, size - 4), 12);
    assert_int_equal(csv_last_end(&csv, text, size), 16);
    assert_int_equal(csv_last_end(&tsv, text, size), size);
    assert_int_equal(csv_last_end(&csv, text, 9), 4); /* cut within quotes */
    assert_int_equal(csv_last_end(&csv, "a\"b\nc", 5), 4);
    assert_int_equal(csv_last_end(&csv, "abc", 3), 0);
}

static void test_replace(void **state)
{
    (void)state;
    static const struct {
        const char *text, *replaced;
        int count;
    } cases[] = {
        {"plain \xc3\xa4", "plain \xc3\xa4", 0},
        {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd", 2},
        {"\xe4\xb8x", "\xef\xbf\xbdx", 1},
        {"\xf0\x9f\x98", "\xef\xbf\xbd", 1},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 3},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_text out;
        dt_text_init(&out);
        assert_int_equal(utf8_replace(cases[i].text, strlen(cases[i].text), &out), cases[i].count);
        assert_string_equal(dt_text_str(&out), cases[i].replaced);
        dt_text_clear(&out);
    }
}

static void add_labels(struct labels *l, const char *const *names, int64_t classes)
{
    struct dt_error err = {0};
    for (size_t i = 0; names[i] != NULL; i++) {
        assert_int_equal(labels_add(l, names[i], strlen(names[i]), &err), 0);
    }
    labels_end(l, classes);
}

static void check_label(const struct labels *l, const char *name, int expected)
{
    double value = -1;
    struct dt_error err = {0};
    assert_int_equal(labels_value(l, name, strlen(name), &value, &err), expected < 0 ? -1 : 0);
    assert_int_equal(value, expected);
}

static void test_labels(void **state)
{
    (void)state;
    struct labels l = {0};
    struct dt_error err = {0};
    struct dt_text json;
    dt_text_init(&json);
    add_labels(&l, (const char *const[]){"spam", "ham", "spam", "\xc3\xa4", NULL}, 0);
    check_label(&l, "ham", 0);
    check_label(&l, "spam", 1);
    check_label(&l, "\xc3\xa4", 2);
    check_label(&l, "eggs", -1);
    labels_json(&l, &json);
    assert_string_equal(json.data, "[\"ham\", \"spam\", \"\xc3\xa4\"]");
    labels_clear(&l);
    add_labels(&l, (const char *const[]){"10", "9", "8", "7", "6", "5", "4", "3", "2", "1", "0", NULL}, 0);
    check_label(&l, "2", 2);
    check_label(&l, "10", 10);
    labels_clear(&l);
    add_labels(&l, (const char *const[]){"2", "0", NULL}, 0); /* not the numbers to n - 1 */
    check_label(&l, "2", 1);
    labels_clear(&l);
    add_labels(&l, (const char *const[]){"2", "0", NULL}, 3); /* but numbers of the model's classes */
    check_label(&l, "2", 2);
    check_label(&l, "1", 1);
    assert_int_equal(l.count, 3);
    labels_clear(&l);
    add_labels(&l, (const char *const[]){"3", "1", NULL}, 3); /* beyond them: as names */
    check_label(&l, "1", 0);
    assert_int_equal(l.count, 2);
    labels_clear(&l);
    add_labels(&l, (const char *const[]){"02", "0", NULL}, 3);
    check_label(&l, "02", 1);
    labels_clear(&l);
    assert_int_equal(labels_parse(&l, "b,a", &err), 0);
    check_label(&l, "b", 0);
    check_label(&l, "a", 1);
    check_label(&l, "", -1);
    labels_clear(&l);
    assert_int_equal(labels_parse(&l, "[\"b, c\", \"a\"]", &err), 0);
    check_label(&l, "b, c", 0);
    check_label(&l, "a", 1);
    labels_clear(&l);
    static const char *const wrong[] = {"[]", "[\"a\", \"a\"]", "[\"a\", \"\"]", "[1]", "[\"a\""};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(labels_parse(&l, wrong[i], &err), -1);
        labels_clear(&l);
    }
    assert_int_equal(labels_parse(&l, "b,a,b", &err), -1);
    assert_string_equal(err.text, "--labels b,a,b: b stands there twice");
    labels_clear(&l);
    assert_int_equal(labels_parse(&l, "b,,a", &err), -1);
    labels_clear(&l);
    dt_text_clear(&json);
}

/* ---- blocks ---- */

static size_t at_blank(const void *context, const char *text, size_t size)
{
    (void)context;
    const char *blank = memrchr(text, ' ', size);
    return blank != NULL ? (size_t)(blank - text) : 0;
}

static char *write_text(const char *name, const char *text, size_t size)
{
    struct dt_error err = {0};
    char *path = dt_format("%s/%s", folder, name);
    assert_int_equal(dt_file_write(path, text, size, &err), 0);
    return path;
}

/* Reads all blocks, and again from the begin of each that may be read by itself; both give `text`. */
static int check_blocks(const char *name, const char *text, size_t size, source_cut *cut)
{
    char *path = write_text(name, text, size);
    struct source *s = NULL;
    struct text_block b = {0}, again = {0};
    struct dt_error err = {0};
    size_t at = 0;
    int count = 0;
    bool last = false, joined = false;
    assert_int_equal(source_open(&s, path, SOURCE_AUTO, cut, NULL, &err), 0);
    while (source_next(s, &b, &err) > 0) {
        assert_int_equal(b.first, count == 0);
        assert_int_equal(b.joined, joined);
        assert_false(last);
        at = count == 0 ? (size_t)b.begin.offset : at;
        assert_int_equal(b.begin.offset, at);
        assert_true(at + b.size <= size && memcmp(text + at, b.text, b.size) == 0);
        if (!b.joined && at > 0) {
            struct source *other = NULL;
            assert_int_equal(source_open(&other, path, SOURCE_AUTO, cut, NULL, &err), 0);
            assert_int_equal(source_seek(other, &b.begin, &err), 0);
            assert_int_equal(source_next(other, &again, &err), 1);
            assert_int_equal(again.begin.line, b.begin.line);
            assert_true(again.size > 0 && memcmp(again.text, text + at, again.size) == 0);
            source_close(other);
        }
        joined = b.open;
        at += b.size;
        last = b.last;
        count++;
    }
    assert_string_equal(err.text, "");
    assert_true(last && at == size);
    source_close(s);
    block_clear(&b);
    block_clear(&again);
    free(path);
    return count;
}

static void test_blocks(void **state)
{
    (void)state;
    enum { SIZE = 3 * SOURCE_BLOCK_BYTES + 17 };
    char *text = dt_alloc(SIZE);
    for (size_t i = 0; i < SIZE; i++) {
        text[i] = i % 7 == 6 ? ' ' : i % 1000 == 0 ? '\n' : (char)('a' + i % 26);
    }
    assert_int_equal(check_blocks("a.txt", text, SIZE, NULL), 4);
    assert_int_equal(check_blocks("a.txt", text, SIZE, at_blank), 4);
    assert_int_equal(check_blocks("a.txt", text, SOURCE_BLOCK_BYTES, at_blank), 2); /* its end was not seen yet */
    assert_int_equal(check_blocks("a.txt", text, 0, at_blank), 1);
    assert_true(check_blocks("a.jsonl", text, SIZE, NULL) >= 2);
    memset(text, 'x', SIZE);
    assert_int_equal(check_blocks("b.txt", text, SIZE, at_blank), 4);
    memset(text, 0xa4, SIZE); /* bytes that continue a character, without its begin */
    assert_int_equal(check_blocks("b.txt", text, SIZE, NULL), 4);
    for (size_t i = 0; i + 3 <= SIZE; i += 3) {
        memcpy(text + i, "\xe4\xb8\xad", 3);
    }
    assert_int_equal(check_blocks("b.txt", text, SIZE - SIZE % 3, NULL), 4);
    /* records with a header, one of them larger than a block */
    memset(text, 'y', SIZE);
    memcpy(text, "text,label\n", 11);
    text[SIZE - 1000] = '\n';
    assert_true(check_blocks("c.csv", text, SIZE, NULL) >= 1);
    free(text);
}

/* A header is no block, and the line of a record counts those of the header. */
static void test_header(void **state)
{
    (void)state;
    static const char text[] = "\xef\xbb\xbf\"te\nxt\",label\r\na,b\r\n";
    char *path = write_text("h.csv", text, sizeof text - 1);
    struct source *s = NULL;
    struct text_block b = {0};
    struct dt_error err = {0};
    assert_int_equal(source_open(&s, path, SOURCE_AUTO, NULL, NULL, &err), 0);
    assert_int_equal(source_next(s, &b, &err), 1);
    assert_string_equal(dt_text_str(source_header(s)), "\"te\nxt\",label\r\n");
    assert_true(b.marked && b.first && b.last);
    assert_int_equal(b.begin.line, 2);
    assert_string_equal(b.text, "a,b\r\n");
    assert_int_equal(source_next(s, &b, &err), 0);
    source_close(s);
    block_clear(&b);
    free(path);
}

static void test_kinds(void **state)
{
    (void)state;
    assert_int_equal(source_kind("a.txt"), SOURCE_TEXT);
    assert_int_equal(source_kind("x/a.jsonl"), SOURCE_JSONL);
    assert_int_equal(source_kind("a.ndjson.zst"), SOURCE_JSONL);
    assert_int_equal(source_kind("a.csv.gz"), SOURCE_CSV);
    assert_int_equal(source_kind(".tsv"), SOURCE_TSV);
    assert_int_equal(source_kind("csv"), SOURCE_TEXT);
    assert_int_equal(source_kind("-"), SOURCE_TEXT);
}

/* ---- records ---- */

static int add_record(void *context, const struct record *r, struct dt_error *err)
{
    (void)err;
    dt_text_printf(context, "[%.*s]%.*s", (int)r->text_size, r->text, (int)r->label_size,
                   r->label != NULL ? r->label : "");
    return 0;
}

static void test_json_records(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"text\": \"a\", \"l\": 3}\n \t\r\n{\"text\": \"b\", \"l\": \"x\"}\n{\"text\": \"c\", \"l\": "
        "true}\n{\"text\": \"d\"}\n{\"text\": \"e\", \"l\": 1.5}";
    struct dt_text out;
    struct dt_error err = {0};
    struct tally *tally = dt_alloc(sizeof *tally);
    struct text_block b = {.text = dt_strdup(lines), .size = sizeof lines - 1};
    const struct record_form form = {.text_key = "text", .label_key = "l", .skip = true};
    dt_text_init(&out);
    assert_int_equal(records_of(&form, SOURCE_JSONL, "f", NULL, &b, tally, add_record, &out, &err), 0);
    assert_string_equal(out.data, "[a]3[b]x[c]true[e]1.5");
    assert_int_equal(tally->of[TALLY_BROKEN].count, 1);
    assert_string_equal(tally->of[TALLY_BROKEN].first,
                        "f: record 5: no label under \"l\"; name the key with --label_column");
    dt_text_clear(&out);
    block_clear(&b);
    free(tally);
}

/* ---- arrays ---- */

/* The lines of an array that comes in parts of `part` bytes; the error, if there is one. */
static const char *lines_of(const char *array, size_t part)
{
    static char out[256];
    struct json_array a = {0};
    struct dt_error err = {0};
    size_t size = strlen(array);
    (void)snprintf(out, sizeof out, "%s", array);
    for (size_t at = 0; at < size && err.text[0] == 0; at += part) {
        (void)json_array_lines(&a, out + at, part < size - at ? part : size - at, "f", &err);
    }
    if (err.text[0] != 0 || json_array_end(&a, "f", &err) != 0) {
        (void)snprintf(out, sizeof out, "%s", err.text);
    }
    return out;
}

static void test_arrays(void **state)
{
    (void)state;
    static const struct {
        const char *array, *lines;
    } cases[] = {
        {"[{\"a\": 1}, {\"a\": 2}]", " {\"a\": 1}\n {\"a\": 2} "},
        {"\xef\xbb\xbf [\n  {\n \"a\": [1,\n2]\n}\n,\r\n{}\n]\n", "\xef\xbb\xbf     {  \"a\": [1, 2] } \n\r {}   "},
        {"[{\"a\": \"],[{\\\"\"},{\"\\\\\":\",\"}]", " {\"a\": \"],[{\\\"\"}\n{\"\\\\\":\",\"} "},
        {"[\"a,b\",1]", " \"a,b\"\n1 "},
        {"[]", "  "},
        {"[{\"a\": \"x\ny\"}]", " {\"a\": \"x\ny\"} "}, /* no JSON, which the record will say */
        {"[{}}, 1]", " {}}\n 1 "},
        {"[{},]", "f: an element of the array is empty: a comma too many"},
        {"[,{}]", "f: an element of the array is empty: a comma too many"},
        {"[{}, {}", "f: the JSON array does not end: the file is cut short"},
        {"[{}, \"]", "f: the JSON array does not end: the file is cut short"},
        {" ", "f: the JSON array is missing: the file is empty"},
        {"{}", "f: no JSON array of objects; with one object per line say the format jsonl"},
        {"[{}]\n[{}]", "f: something stands behind the array; is it one object per line? Then say the format jsonl"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t part = 1; part < 20; part++) {
            assert_string_equal(lines_of(cases[i].array, part), cases[i].lines);
        }
    }
}

/* Blocks are the same from any begin on, as after a kill; records are numbered from the file's begin. */
static void test_array_blocks(void **state)
{
    (void)state;
    struct dt_text file;
    struct dt_error err = {0};
    char *path = dt_format("%s/long.json", folder);
    dt_text_init(&file);
    for (int i = 0; i < 60000; i++) {
        dt_text_printf(&file, "%s{\n  \"id\": %d,\n  \"text\": \"it, [%d]\"\n}", i == 0 ? "[" : ",\n", i, i);
    }
    dt_text_puts(&file, "]\n");
    assert_int_equal(dt_file_write(path, file.data, file.size, &err), 0);
    assert_true(source_is_array(path));
    struct source *s, *again;
    struct text_block b = {0}, c = {0};
    assert_int_equal(source_open(&s, path, SOURCE_JSON, NULL, NULL, &err), 0);
    int blocks = 0, records = 0;
    for (; source_next(s, &b, &err) > 0; blocks++) {
        assert_int_equal(b.begin.line, records);
        for (size_t i = 0; i < b.size; i++) {
            records += b.text[i] == '\n';
        }
        assert_int_equal(source_open(&again, path, SOURCE_JSON, NULL, NULL, &err), 0);
        assert_int_equal(source_seek(again, &b.begin, &err), 0);
        assert_int_equal(source_next(again, &c, &err), 1);
        assert_string_equal(c.text, b.text);
        assert_int_equal(c.last, b.last);
        source_close(again);
    }
    assert_int_equal(err.status, 0);
    assert_int_equal(records, 60000 - 1);
    assert_true(blocks > 5);
    source_close(s);
    block_clear(&b);
    block_clear(&c);
    dt_text_clear(&file);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),       cmocka_unit_test(test_ends),         cmocka_unit_test(test_replace),
        cmocka_unit_test(test_labels),       cmocka_unit_test(test_blocks),       cmocka_unit_test(test_header),
        cmocka_unit_test(test_kinds),        cmocka_unit_test(test_json_records), cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_array_blocks),
    };
    return cmocka_run_group_tests(tests, folder_setup, folder_teardown);
}
