/* covers: worker/data/tokenizers/normalizer.c worker/data/tokenizers/replace.c */
/* covers: worker/data/tokenizers/precompiled.c worker/data/tokenizers/unicode.c */
/* covers: worker/data/tokenizers/splitters.c worker/data/tokenizers/trie.c */
/* covers: worker/data/tokenizers/wordpiece.c worker/data/tokenizers/unigram.c */
/* covers: worker/data/tokenizers/wordlevel.c worker/data/tokenizers/postprocess.c */
/* covers: worker/data/tokenizers/length.c */
/* Parts of tokenizers against what the tokenizers library gave (tests/golden/tokenizers/parts.jsonl,
 * written by parts.py beside it), for every character among others, and what they refuse. */
#include "base/file.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/parts.h"

#include <setjmp.h>
#include <sodium.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static cJSON *member(const cJSON *row, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(row, key);
}

/* "a", a character and a space, for every character but U+0000 and those that are not assigned. */
static struct dt_text whole;

static bool is_assigned(uint32_t c)
{
    return (c < 0xd800 || c > 0xdfff) && (c < 0x33480 || (c >= 0xe0000 && c < 0xe0200) || c >= 0x10ff00);
}

static void write_whole(void)
{
    for (uint32_t c = 1; c < CHARACTERS; c++) {
        char text[4];
        if (is_assigned(c)) {
            dt_text_puts(&whole, "a");
            dt_text_add(&whole, text, utf8_write(c, text));
            dt_text_puts(&whole, " ");
        }
    }
}

static void check_digest(const struct dt_text *text, const cJSON *row)
{
    unsigned char digest[crypto_hash_sha256_BYTES];
    char hex[2 * sizeof digest + 1];
    (void)crypto_hash_sha256(digest, (const unsigned char *)dt_text_str(text), text->size);
    (void)sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
    assert_string_equal(hex, member(row, "all")->valuestring);
}

/* ---- normalizers ---- */

static void check_normalizer(const cJSON *row)
{
    struct normalizer *n = NULL;
    struct dt_error err = {0};
    struct dt_text out = {0};
    const cJSON *one = NULL;
    assert_int_equal(normalizer_open(&n, member(row, "part"), &err), 0);
    cJSON_ArrayForEach(one, member(row, "cases"))
    {
        dt_text_reset(&out);
        assert_int_equal(normalizer_apply(n, one->child->valuestring, strlen(one->child->valuestring), &out, &err), 0);
        assert_string_equal(dt_text_str(&out), one->child->next->valuestring);
    }
    if (member(row, "all") != NULL) {
        dt_text_reset(&out);
        assert_int_equal(normalizer_apply(n, whole.data, whole.size, &out, &err), 0);
        check_digest(&out, row);
    }
    dt_text_clear(&out);
    normalizer_close(n);
}

/* ---- pre-tokenizers ---- */

static const struct splitter_ops *splitter_of(const char *type)
{
    static const struct splitter_ops *const all[] = {
        &splitter_bert,   &splitter_whitespace,     &splitter_whitespace_split, &splitter_punctuation,
        &splitter_digits, &splitter_char_delimiter, &splitter_fixed_length};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->type, type) == 0) {
            return all[i];
        }
    }
    fail_msg("%s", type);
    return NULL;
}

/* The pieces, each with a newline behind it. */
static void join_pieces(const struct splitter_ops *ops, const void *state, const char *text, size_t size,
                        struct pieces *pieces, struct dt_text *out)
{
    pieces->count = 0;
    dt_text_reset(out);
    ops->split(state, text, size, pieces);
    for (size_t i = 0; i < pieces->count; i++) {
        assert_true(pieces->at[i].begin < pieces->at[i].end && pieces->at[i].end <= size);
        dt_text_add(out, text + pieces->at[i].begin, pieces->at[i].end - pieces->at[i].begin);
        dt_text_puts(out, "\n");
    }
}

static void check_splitter(const cJSON *row)
{
    const struct splitter_ops *ops = splitter_of(member(member(row, "part"), "type")->valuestring);
    void *state = NULL;
    struct pieces pieces = {0};
    struct dt_text got = {0}, want = {0};
    struct dt_error err = {0};
    const cJSON *one = NULL, *piece = NULL;
    assert_int_equal(ops->open(&state, member(row, "part"), &err), 0);
    cJSON_ArrayForEach(one, member(row, "cases"))
    {
        join_pieces(ops, state, one->child->valuestring, strlen(one->child->valuestring), &pieces, &got);
        dt_text_reset(&want);
        cJSON_ArrayForEach(piece, one->child->next)
        {
            dt_text_puts(&want, piece->valuestring);
            dt_text_puts(&want, "\n");
        }
        assert_string_equal(dt_text_str(&got), dt_text_str(&want));
    }
    join_pieces(ops, state, whole.data, whole.size, &pieces, &got);
    check_digest(&got, row);
    free(pieces.at);
    dt_text_clear(&got);
    dt_text_clear(&want);
    if (ops->close != NULL) {
        ops->close(state);
    }
}

/* ---- models ---- */

static const struct token_model_ops *model_of(const char *type)
{
    static const struct token_model_ops *const all[] = {&token_model_wordpiece, &token_model_unigram,
                                                        &token_model_wordlevel};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->type, type) == 0) {
            return all[i];
        }
    }
    fail_msg("%s", type);
    return NULL;
}

/* want: a list of numbers. */
static void check_numbers(const cJSON *want, const struct token_ids *got)
{
    const cJSON *one = NULL;
    size_t i = 0;
    assert_int_equal(got->count, cJSON_GetArraySize(want));
    cJSON_ArrayForEach(one, want)
    {
        assert_int_equal(got->ids[i++], one->valueint);
    }
}

static void check_model(const cJSON *row)
{
    const cJSON *part = member(row, "part"), *one = NULL;
    const struct token_model_ops *ops = model_of(member(part, "type")->valuestring);
    struct vocabulary *v = NULL;
    void *state = NULL;
    struct dt_error err = {0};
    struct token_ids ids = {0};
    assert_int_equal(vocabulary_open(&v, member(part, "vocab"), &err), 0);
    assert_int_equal(ops->open(&state, part, v, &err), 0);
    void *scratch = ops->scratch_open != NULL ? ops->scratch_open(state) : NULL;
    cJSON_ArrayForEach(one, member(row, "cases"))
    {
        const cJSON *want = one->child->next;
        ids.count = 0;
        int result = ops->encode(state, scratch, one->child->valuestring, strlen(one->child->valuestring), &ids, &err);
        assert_int_equal(result, cJSON_IsNull(want) ? -1 : 0);
        if (result == 0) {
            check_numbers(want, &ids);
        } else {
            assert_int_equal(err.status, DT_INVALID);
        }
    }
    if (scratch != NULL) {
        ops->scratch_close(scratch);
    }
    ops->close(state);
    vocabulary_close(v);
    token_ids_clear(&ids);
}

/* ---- post-processors, truncation, padding ---- */

static void fill(struct token_ids *l, int32_t first, int count)
{
    for (int i = 0; i < count; i++) {
        token_ids_add(l, first + i);
    }
}

static void check_bytes(const cJSON *want, const uint8_t *got)
{
    const cJSON *one = NULL;
    size_t i = 0;
    cJSON_ArrayForEach(one, want)
    {
        assert_int_equal(got[i++], one->valueint);
    }
}

static void check_length(const cJSON *row)
{
    struct postprocessor *p = NULL;
    struct truncation t;
    struct padding padding;
    struct token_ids a = {0}, b = {0};
    struct token_sequence q = {0};
    struct dt_error err = {0};
    const cJSON *want = member(row, "want"), *sizes = member(row, "sizes");
    bool pair = sizes->child->next->valueint >= 0;
    assert_int_equal(postprocessor_open(&p, member(row, "part"), &err), 0);
    assert_int_equal(truncation_open(&t, member(row, "truncation"), &err), 0);
    assert_int_equal(padding_open(&padding, member(row, "padding"), &err), 0);
    fill(&a, 1000, sizes->child->valueint);
    fill(&b, 2000, sizes->child->next->valueint);
    int result = truncation_apply(&t, postprocessor_added(p, pair), &a, pair ? &b : NULL, &err);
    assert_int_equal(result, cJSON_IsNull(want) ? -1 : 0);
    if (result == 0) {
        postprocessor_apply(p, &a, pair ? &b : NULL, &q);
        padding_apply(&padding, &q, 1);
        check_numbers(want->child, &q.ids);
        check_bytes(want->child->next, q.types);
        check_bytes(want->child->next->next, q.mask);
    }
    postprocessor_close(p);
    token_ids_clear(&a);
    token_ids_clear(&b);
    token_sequence_clear(&q);
}

/* ---- the file ---- */

static struct dt_text golden;

static int read_golden(void **state)
{
    (void)state;
    struct dt_error err = {0};
    characters_open();
    write_whole();
    return dt_file_read("tests/golden/tokenizers/parts.jsonl", (size_t)16 << 20, &golden, &err);
}

static int clear_golden(void **state)
{
    (void)state;
    dt_text_clear(&golden);
    dt_text_clear(&whole);
    return 0;
}

static void check_rows(const char *kind, void (*check)(const cJSON *row))
{
    int rows = 0;
    for (const char *line = golden.data; *line != 0;) {
        const char *end = strchr(line, '\n');
        cJSON *row = cJSON_ParseWithLength(line, (size_t)(end - line));
        assert_non_null(row);
        if (strcmp(member(row, "kind")->valuestring, kind) == 0) {
            check(row);
            rows++;
        }
        cJSON_Delete(row);
        line = end + 1;
    }
    assert_true(rows > 0);
}

static void test_normalizers(void **state)
{
    (void)state;
    check_rows("normalizer", check_normalizer);
}

static void test_splitters(void **state)
{
    (void)state;
    check_rows("splitter", check_splitter);
}

static void test_models(void **state)
{
    (void)state;
    check_rows("model", check_model);
}

static void test_lengths(void **state)
{
    (void)state;
    check_rows("length", check_length);
}

/* ---- refusals ---- */

static void refuses_normalizer(const char *part, const char *text)
{
    struct normalizer *n = NULL;
    struct dt_error err = {0};
    cJSON *json = cJSON_Parse(part);
    assert_int_equal(normalizer_open(&n, json, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, text));
    cJSON_Delete(json);
}

static void refuses_postprocessor(const char *part, const char *text)
{
    struct postprocessor *p = NULL;
    struct dt_error err = {0};
    cJSON *json = cJSON_Parse(part);
    assert_int_equal(postprocessor_open(&p, json, &err), -1);
    assert_non_null(strstr(err.text, text));
    cJSON_Delete(json);
}

static void test_refused(void **state)
{
    (void)state;
    refuses_normalizer("{\"type\": \"Foo\"}", "type: Foo is not supported; there are NFC, NFD");
    refuses_normalizer("{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Bar\"}]}",
                       "normalizers[1]: type: Bar");
    refuses_normalizer("{\"type\": \"Strip\", \"strip_left\": true}", "strip_right: missing");
    refuses_normalizer("{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"?\"}", "not base64");
    refuses_normalizer("{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"CAAAAAAA\"}", "damaged");
    /* a unit of the byte 1 with a value that lies outside of the trie */
    refuses_normalizer("{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"CAAAAAEAAAABIQAA\"}",
                       "leads outside of the map");
    refuses_postprocessor("{\"type\": \"Foo\"}", "type: Foo is not supported; there are");
    refuses_postprocessor("{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\", "
                          "\"type_id\": 0}}], \"pair\": [], \"special_tokens\": {}}",
                          "single[0]: special_tokens: has no ids of x");
    refuses_postprocessor("{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\", \"type_id\": "
                          "0}}], \"pair\": [], \"special_tokens\": {}}",
                          "a single text has no second part");
}

/* A long run of marks is sorted like a short one, in a time that does not grow with its square. */
static void test_long_run(void **state)
{
    (void)state;
    enum { PAIRS = 100000 };
    struct dt_text text = {0}, out = {0};
    struct normalizer *n = NULL;
    struct dt_error err = {0};
    cJSON *json = cJSON_Parse("{\"type\": \"NFD\"}");
    for (int i = 0; i < PAIRS; i++) {
        dt_text_puts(&text, "\xcc\x81\xcc\xa3"); /* U+0301 of class 230, U+0323 of class 220 */
    }
    assert_int_equal(normalizer_open(&n, json, &err), 0);
    assert_int_equal(normalizer_apply(n, text.data, text.size, &out, &err), 0);
    assert_int_equal(out.size, text.size);
    for (size_t i = 0; i < out.size; i += 2) {
        assert_memory_equal(out.data + i, i < out.size / 2 ? "\xcc\xa3" : "\xcc\x81", 2);
    }
    normalizer_close(n);
    cJSON_Delete(json);
    dt_text_clear(&text);
    dt_text_clear(&out);
}

static void test_room(void **state)
{
    (void)state;
    const struct truncation t = {.given = true, .max_length = 2};
    struct token_ids a = {0};
    struct dt_error err = {0};
    fill(&a, 0, 3);
    assert_int_equal(truncation_apply(&t, 3, &a, NULL, &err), -1);
    assert_non_null(strstr(err.text, "cut to 2 tokens, but the post-processor alone adds 3"));
    assert_int_equal(truncation_apply(&t, 2, &a, NULL, &err), 0);
    assert_int_equal(a.count, 0);
    token_ids_clear(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_normalizers), cmocka_unit_test(test_splitters), cmocka_unit_test(test_models),
        cmocka_unit_test(test_lengths),     cmocka_unit_test(test_refused),   cmocka_unit_test(test_room),
        cmocka_unit_test(test_long_run),
    };
    return cmocka_run_group_tests(tests, read_golden, clear_golden);
}
