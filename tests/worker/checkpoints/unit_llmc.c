/* covers: worker/checkpoints/llmc.c */
/* Headers of llm.c's models: each thing that can be wrong is said, and the size of the file is that of
 * the tensors. Whole files: story_llmc.py. */
#include "base/text.h"
#include "worker/checkpoints/llmc.h"

#include <endian.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAGIC, VERSION, POSITIONS, VOCABULARY, LAYERS, HEADS, CHANNELS, PADDED };

static const int32_t gpt2[] = {20240326, 3, 1024, 50257, 12, 12, 768, 50304};
/* as llm.c's readme has it: 124,475,904 parameters with the padding */
static const int64_t gpt2_bytes = 1024 + 4 * INT64_C(124475904);

static void fill(char bytes[LLMC_HEADER_BYTES], const int32_t *words)
{
    memset(bytes, 0, LLMC_HEADER_BYTES);
    for (int i = 0; i < 8; i++) {
        uint32_t word = htole32((uint32_t)words[i]);
        memcpy(bytes + 4 * i, &word, sizeof word);
    }
}

static void test_good(void **state)
{
    (void)state;
    char bytes[LLMC_HEADER_BYTES];
    int32_t words[8];
    struct llmc_header h;
    struct dt_error err;
    fill(bytes, gpt2);
    assert_int_equal(llmc_read_header(bytes, sizeof bytes, gpt2_bytes, &h, &err), 0);
    assert_true(h.positions == 1024 && h.vocabulary == 50257 && h.layers == 12 && h.heads == 12);
    assert_true(h.channels == 768 && h.padded == 50304 && h.type == DT_F32);
    memcpy(words, gpt2, sizeof words);
    words[VERSION] = 5;
    fill(bytes, words);
    assert_int_equal(llmc_read_header(bytes, sizeof bytes, 1024 + (gpt2_bytes - 1024) / 2, &h, &err), 0);
    assert_int_equal(h.type, DT_BF16);
}

/* One word of a good header is another one. */
static void refuses(int at, int32_t value, int64_t file_bytes, const char *expected)
{
    char bytes[LLMC_HEADER_BYTES];
    int32_t words[8];
    struct llmc_header h;
    struct dt_error err = {0};
    memcpy(words, gpt2, sizeof words);
    words[at] = value;
    fill(bytes, words);
    assert_int_equal(llmc_read_header(bytes, sizeof bytes, file_bytes, &h, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    if (strstr(err.text, expected) == NULL) {
        fail_msg("word %d, %d: says: %s", at, value, err.text);
    }
}

static void test_bad(void **state)
{
    (void)state;
    static const struct {
        int at;
        int32_t value;
        const char *says;
    } rows[] = {
        {MAGIC, 1, "magic number 1: no model of llm.c, which begins with 20240326"},
        {MAGIC, 20240527, "the optimizer's state of one process"},
        {MAGIC, 20240520, "it holds tokens"},
        {MAGIC, 20240801, "it holds tokens"},
        {MAGIC, 20240522, "it holds questions"},
        {MAGIC, 20240327, "it holds activations"},
        {MAGIC, 20240328, "it holds a tokenizer"},
        {VERSION, 1, "version 1 of llm.c's models; known are 3 (float32) and 5 (bfloat16)"},
        {VERSION, 4, "version 4"},
        {VERSION, -5, "version -5"},
        {POSITIONS, 0, "longest sequence is 0; must be from 1 to 4194304"},
        {VOCABULARY, -1, "vocabulary is -1"},
        {VOCABULARY, 50305, "padded vocabulary 50304 is less than the vocabulary 50305"},
        {LAYERS, 10001, "number of layers is 10001; must be from 1 to 10000"},
        {HEADS, 0, "number of heads is 0"},
        {HEADS, 7, "768 channels cannot be split among 7 heads"},
        {CHANNELS, INT32_MAX, "number of channels is 2147483647"},
        {CHANNELS, INT32_MIN, "number of channels is -2147483648"},
        {PADDED, 50256, "padded vocabulary 50256 is less"},
        {PADDED, INT32_MAX, "padded vocabulary is 2147483647"},
        {LAYERS, 10000, "cut short: it has 497904640 bytes, and its header says"},
        {PADDED, 50257, "too long: it has 497904640 bytes, and its header says 497760256"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        refuses(rows[i].at, rows[i].value, gpt2_bytes, rows[i].says);
    }
    refuses(MAGIC, gpt2[MAGIC], gpt2_bytes - 1, "cut short: it has 497904639 bytes, and its header says 497904640");
    refuses(MAGIC, gpt2[MAGIC], gpt2_bytes + 1, "too long: it has 497904641 bytes");
}

/* The largest sizes there are do not overflow, and a file without a whole header is none. */
static void test_ends(void **state)
{
    (void)state;
    static const int32_t largest[] = {20240326, 3, 1 << 22, 1 << 24, 10000, 8192, 1 << 20, 1 << 25};
    char bytes[LLMC_HEADER_BYTES];
    struct llmc_header h;
    struct dt_error err;
    int64_t c = 1 << 20;
    fill(bytes, largest);
    int64_t count = ((INT64_C(1) << 25) + (1 << 22) + 2) * c + 10000 * (12 * c * c + 13 * c);
    assert_int_equal(llmc_read_header(bytes, sizeof bytes, 1024 + 4 * count, &h, &err), 0);
    for (size_t size = 0; size < sizeof bytes; size++) {
        char *part = malloc(size + 1); /* no more bytes, so that a sanitizer sees one read too many */
        assert_non_null(part);
        memcpy(part, bytes, size);
        assert_int_equal(llmc_read_header(part, size, (int64_t)size, &h, &err), -1);
        assert_non_null(strstr(err.text, "cut short: it has"));
        free(part);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
