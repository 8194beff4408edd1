/* covers: worker/data/tokenizers/convert_sentencepiece.c worker/data/tokenizers/convert_tiktoken.c */
/* covers: worker/data/tokenizers/sentencepiece.c */
/* Converted tokenizers give the ids that SentencePiece and tiktoken gave
 * (tests/golden/tokenizers/convert, written by convert.py there). And what is refused. */
#include "base/file.h"
#include "worker/data/tokenizers/convert.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cjson/cJSON.h>
#include <cmocka.h>

#define FOLDER "tests/golden/tokenizers/convert/"

static void read_file(const char *name, struct dt_text *out)
{
    struct dt_error err = {0};
    char *path = dt_format(FOLDER "%s", name);
    assert_int_equal(dt_file_read(path, (size_t)16 << 20, out, &err), 0);
    free(path);
}

static struct tokenizer *convert(const cJSON *row)
{
    struct dt_text file = {0}, json = {0};
    struct dt_error err = {0};
    struct convert_special special[4];
    struct convert_options o = {.special = special};
    struct tokenizer *t = NULL;
    const cJSON *pattern = cJSON_GetObjectItem(row, "pattern"), *one = NULL;
    read_file(cJSON_GetObjectItem(row, "file")->valuestring, &file);
    cJSON_ArrayForEach(one, cJSON_GetObjectItem(row, "special"))
    {
        special[o.special_count++] = (struct convert_special){one->string, one->valueint};
    }
    o.pattern = pattern != NULL ? pattern->valuestring : NULL;
    int result = pattern != NULL ? convert_tiktoken(file.data, file.size, &o, &json, &err)
                                 : convert_sentencepiece(file.data, file.size, &o, &json, &err);
    if (result != 0 || tokenizer_parse(&t, "converted", json.data, json.size, &err) != 0) {
        fail_msg("%s", err.text);
    }
    dt_text_clear(&file);
    dt_text_clear(&json);
    return t;
}

static void check_case(const struct tokenizer *t, struct tokenizer_scratch *s, const cJSON *one)
{
    struct token_ids ids = {0};
    struct dt_error err = {0};
    const char *text = one->child->valuestring;
    const cJSON *want = NULL;
    size_t i = 0;
    assert_int_equal(tokenizer_encode(t, s, text, strlen(text), false, &ids, &err), 0);
    cJSON_ArrayForEach(want, one->child->next)
    {
        if (i >= ids.count || ids.ids[i] != want->valueint) {
            fail_msg("id %zu of %s: %d, not %d", i, text, i < ids.count ? ids.ids[i] : -1, want->valueint);
        }
        i++;
    }
    assert_int_equal(ids.count, i);
    token_ids_clear(&ids);
}

static void test_ids(void **state)
{
    (void)state;
    struct dt_text cases = {0};
    int rows = 0;
    read_file("cases.jsonl", &cases);
    for (const char *line = cases.data; *line != 0; rows++) {
        const char *end = strchr(line, '\n');
        cJSON *row = cJSON_ParseWithLength(line, (size_t)(end - line));
        const cJSON *one = NULL;
        assert_non_null(row);
        struct tokenizer *t = convert(row);
        struct tokenizer_scratch *s = tokenizer_scratch_open(t);
        cJSON_ArrayForEach(one, cJSON_GetObjectItem(row, "cases"))
        {
            check_case(t, s, one);
        }
        tokenizer_scratch_close(s);
        tokenizer_close(t);
        cJSON_Delete(row);
        line = end + 1;
    }
    assert_true(rows >= 6);
    dt_text_clear(&cases);
}

/* --bos and --eos: the model's own tokens around each text. */
static void test_template(void **state)
{
    (void)state;
    struct dt_text file = {0}, json = {0};
    struct dt_error err = {0};
    struct tokenizer *t = NULL;
    struct token_ids ids = {0};
    read_file("bpe.model", &file);
    const struct convert_options o = {.begin = true, .end = true};
    assert_int_equal(convert_sentencepiece(file.data, file.size, &o, &json, &err), 0);
    assert_int_equal(tokenizer_parse(&t, "converted", json.data, json.size, &err), 0);
    struct tokenizer_scratch *s = tokenizer_scratch_open(t);
    assert_int_equal(tokenizer_encode(t, s, "the", 3, true, &ids, &err), 0);
    assert_true(ids.count >= 3);
    assert_int_equal(ids.ids[0], 1);
    assert_int_equal(ids.ids[ids.count - 1], 2);
    assert_int_equal(tokenizer_id(t, "<s>", 3), 1);
    assert_true(tokenizer_is_special(t, 1));
    token_ids_clear(&ids);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
    dt_text_clear(&file);
    dt_text_clear(&json);
}

static void refuses_model(const char *bytes, size_t size, const char *text)
{
    struct dt_text json = {0};
    struct dt_error err = {0};
    const struct convert_options o = {0};
    assert_int_equal(convert_sentencepiece(bytes, size, &o, &json, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, text));
    dt_text_clear(&json);
}
#define REFUSES_MODEL(bytes, text) refuses_model(bytes, sizeof(bytes) - 1, text)

static void test_refused_models(void **state)
{
    (void)state;
    REFUSES_MODEL("", "no pieces");
    REFUSES_MODEL("\x0a\x05\x0a\x01", "damaged");              /* a piece of 5 bytes in 2 */
    REFUSES_MODEL("\x0a\x03\x0a\x7f\x61", "piece 0: damaged"); /* a text of 127 bytes in 1 */
    REFUSES_MODEL("\x0a\x03\x0a\x01\xff", "not UTF-8");
    REFUSES_MODEL("\x0a\x05\x0a\x01\x61\x18\x09", "type 9");
    REFUSES_MODEL("\x0a\x05\x0a\x01\x61\x18\x05", "type UNUSED");
    REFUSES_MODEL("\x0a\x03\x0a\x01\x61\x12\x02\x18\x04", "char"); /* model_type 4 */
    REFUSES_MODEL("\x0a\x03\x0a\x01\x61\x12\x03\xc0\x02\x07", "unk_id: 7, but there are 1 pieces");
    REFUSES_MODEL("\x0a\x03\x0a\x01\x61\x0b", "damaged"); /* a group */
    REFUSES_MODEL("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "damaged");
}

static void refuses_ranks(const char *text, const struct convert_options *o, const char *why)
{
    struct dt_text json = {0};
    struct dt_error err = {0};
    assert_int_equal(convert_tiktoken(text, strlen(text), o, &json, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, why));
    dt_text_clear(&json);
}

static void test_refused_ranks(void **state)
{
    (void)state;
    const struct convert_options none = {0}, gpt2 = {.pattern = "gpt2"};
    struct dt_text file = {0};
    refuses_ranks("IQ== 0\n", &none, "give a pattern");
    refuses_ranks("IQ== 0\n", &gpt2, "no token of the byte 0x00");
    refuses_ranks("IQ== 0\nI? 1\n", &gpt2, "line 2: not a token");
    refuses_ranks("IQ== x\n", &gpt2, "line 1: the rank");
    refuses_ranks("IQ== 0\nIg== 0\n", &gpt2, "rank 0 or its token occurs twice");
    refuses_ranks("IQ== 0\nIQ== 1\n", &gpt2, "occurs twice");
    read_file("gpt2.tiktoken", &file);
    const struct convert_special taken = {"<|x|>", 3};
    refuses_ranks(file.data, &(struct convert_options){.pattern = "gpt2", .special = &taken, .special_count = 1},
                  "special token <|x|>: 3 is taken");
    dt_text_clear(&file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_refused_models),
        cmocka_unit_test(test_refused_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
