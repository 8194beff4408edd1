/* covers: worker/data/tokenizers */
/* Tokenizers against the golden cases of the tokenizers library: ids, special tokens, pairs, text of
 * ids, and texts and ids that come in parts. And what is refused. */
#include "base/file.h"
#include "base/text.h"
#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/parts.h"
#include "worker/data/tokenizers/scanners.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const folders[] = {"gpt2", "llama3", "added", "llama2", "bert", "bert_added"};

struct open_tokenizer {
    struct tokenizer *t;
    struct tokenizer_scratch *s;
};

static struct open_tokenizer open_folder(const char *name)
{
    struct open_tokenizer k;
    struct dt_error err;
    char *path = dt_format("tests/golden/tokenizers/%s", name);
    if (tokenizer_open(&k.t, path, &err) != 0) {
        fail_msg("%s", err.text);
    }
    k.s = tokenizer_scratch_open(k.t);
    free(path);
    return k;
}

static struct open_tokenizer open_text(const char *json)
{
    struct open_tokenizer k;
    struct dt_error err;
    if (tokenizer_parse(&k.t, "t.json", json, strlen(json), &err) != 0) {
        fail_msg("%s", err.text);
    }
    k.s = tokenizer_scratch_open(k.t);
    return k;
}

static void close_tokenizer(struct open_tokenizer *k)
{
    tokenizer_scratch_close(k->s);
    tokenizer_close(k->t);
}

/* The text under `key`, or that in hexadecimal digits under key_hex, as bytes. False: there is none. */
static bool case_text(const cJSON *c, const char *key, struct dt_text *out)
{
    char *hex_key = dt_format("%s_hex", key);
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(c, key), *hex = cJSON_GetObjectItemCaseSensitive(c, hex_key);
    free(hex_key);
    dt_text_reset(out);
    if (cJSON_IsString(text)) {
        dt_text_puts(out, text->valuestring);
    }
    for (const char *p = cJSON_IsString(hex) ? hex->valuestring : ""; *p != 0; p += 2) {
        unsigned byte;
        assert_int_equal(sscanf(p, "%2x", &byte), 1);
        char b = (char)byte;
        dt_text_add(out, &b, 1);
    }
    return text != NULL || hex != NULL;
}

static void check_ids(const char *folder, const char *line, const cJSON *wanted, const struct token_ids *ids)
{
    bool equal = (size_t)cJSON_GetArraySize(wanted) == ids->count;
    const cJSON *id = equal ? wanted->child : NULL;
    for (size_t i = 0; equal && i < ids->count; i++, id = id->next) {
        equal = id->valueint == ids->ids[i];
    }
    if (!equal) {
        fail_msg("%s: other ids (%zu): %.200s", folder, ids->count, line);
    }
}

static void check_text(const char *folder, const char *line, const struct dt_text *wanted, const struct dt_text *text)
{
    if (wanted->size != text->size || memcmp(dt_text_str(wanted), dt_text_str(text), text->size) != 0) {
        fail_msg("%s: other text \"%s\": %.200s", folder, dt_text_str(text), line);
    }
}

static struct token_ids ids_of(const cJSON *list)
{
    struct token_ids ids = {0};
    const cJSON *id;
    cJSON_ArrayForEach(id, list)
    {
        token_ids_add(&ids, id->valueint);
    }
    return ids;
}

/* By parts, after each of which no half character may have come out. */
static void decode_parts(const struct tokenizer *t, const struct token_ids *ids, bool skip, struct dt_text *out)
{
    struct tokenizer_decoder *d = tokenizer_decoder_open(t, skip);
    for (size_t i = 0; i < ids->count; i++) {
        tokenizer_decoder_add(d, ids->ids[i], out);
        assert_int_equal(utf8_valid(dt_text_str(out), out->size), out->size);
    }
    tokenizer_decoder_end(d, out);
    tokenizer_decoder_close(d);
}

static void check_decoded(const char *folder, const char *line, const cJSON *c, const struct open_tokenizer *k,
                          const struct token_ids *ids)
{
    struct dt_text wanted, text, parts;
    dt_text_init(&wanted);
    dt_text_init(&text);
    dt_text_init(&parts);
    for (int skip = 0; skip < 2; skip++) {
        if (!case_text(c, skip == 1 ? "decoded_skip" : "decoded", &wanted) && !case_text(c, "decoded", &wanted)) {
            fail_msg("%s: no text: %.200s", folder, line);
        }
        dt_text_reset(&text);
        dt_text_reset(&parts);
        if (skip == 0 || cJSON_GetObjectItem(c, "decode_only") == NULL) {
            tokenizer_decode(k->t, ids->ids, ids->count, skip == 1, &text);
            check_text(folder, line, &wanted, &text);
            decode_parts(k->t, ids, skip == 1, &parts);
            check_text(folder, line, &wanted, &parts);
        }
    }
    dt_text_clear(&wanted);
    dt_text_clear(&text);
    dt_text_clear(&parts);
}

static void check_encoded(const char *folder, const char *line, const cJSON *c, const struct open_tokenizer *k,
                          const struct dt_text *text)
{
    const cJSON *ids = cJSON_GetObjectItem(c, "ids"), *special = cJSON_GetObjectItem(c, "ids_special");
    struct dt_error err;
    struct token_ids got = {0};
    assert_int_equal(tokenizer_encode(k->t, k->s, dt_text_str(text), text->size, false, &got, &err), 0);
    check_ids(folder, line, ids, &got);
    got.count = 0;
    assert_int_equal(tokenizer_encode(k->t, k->s, dt_text_str(text), text->size, true, &got, &err), 0);
    check_ids(folder, line, special != NULL ? special : ids, &got);
    got.count = 0;
    struct tokenizer_stream *r = tokenizer_stream_open(k->t, k->s);
    for (size_t i = 0; i < text->size; i++) {
        assert_int_equal(tokenizer_stream_add(r, text->data + i, 1, &got, &err), 0);
    }
    assert_int_equal(tokenizer_stream_end(r, &got, &err), 0);
    check_ids(folder, line, ids, &got);
    tokenizer_stream_close(r);
    token_ids_clear(&got);
}

static void check_pair(const char *folder, const char *line, const cJSON *c, const struct open_tokenizer *k,
                       const struct dt_text *text)
{
    const cJSON *types = cJSON_GetObjectItem(c, "type_ids"), *type = types->child;
    struct dt_text pair;
    struct dt_error err;
    struct token_sequence q = {0};
    dt_text_init(&pair);
    assert_true(case_text(c, "pair", &pair));
    assert_int_equal(
        tokenizer_encode_pair(k->t, k->s, dt_text_str(text), text->size, dt_text_str(&pair), pair.size, 0, &q, &err),
        0);
    check_ids(folder, line, cJSON_GetObjectItem(c, "ids_special"), &q.ids);
    for (size_t i = 0; i < q.ids.count; i++, type = type->next) {
        assert_int_equal(q.types[i], type->valueint);
        assert_int_equal(q.mask[i], 1);
    }
    token_sequence_clear(&q);
    dt_text_clear(&pair);
}

static int check_case(const char *folder, const char *line, const struct open_tokenizer *k)
{
    cJSON *c = cJSON_Parse(line);
    assert_non_null(c);
    struct dt_text text;
    dt_text_init(&text);
    bool encodes = case_text(c, "text", &text);
    if (cJSON_GetObjectItem(c, "pair") != NULL) {
        check_pair(folder, line, c, k, &text);
    } else {
        struct token_ids ids = ids_of(cJSON_GetObjectItem(c, encodes ? "ids" : "decode_only"));
        if (encodes) {
            check_encoded(folder, line, c, k, &text);
        }
        check_decoded(folder, line, c, k, &ids);
        token_ids_clear(&ids);
    }
    dt_text_clear(&text);
    cJSON_Delete(c);
    return 1;
}

static void test_golden(void **state)
{
    (void)state;
    int cases = 0;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct open_tokenizer k = open_folder(folders[i]);
        struct dt_text text;
        struct dt_error err;
        char *path = dt_format("tests/golden/tokenizers/%s/cases.jsonl", folders[i]);
        dt_text_init(&text);
        assert_int_equal(dt_file_read(path, 1 << 20, &text, &err), 0);
        char *rest = text.data, *line;
        while ((line = strsep(&rest, "\n")) != NULL && *line != 0) {
            cases += check_case(folders[i], line, &k);
        }
        dt_text_clear(&text);
        free(path);
        close_tokenizer(&k);
    }
    assert_int_equal(cases, 3784);
}

/* ---- the tables ---- */

static void test_characters(void **state)
{
    (void)state;
    /* the numbers of Unicode 16 */
    static const int wanted[30] = {0,   1858, 2258, 31, 404, 136477, 2020,   468, 13,   760,
                                   236, 915,  10,   27, 79,  77,     12,     10,  640,  950,
                                   63,  125,  7376, 17, 1,   1,      65 - 6, 170, 2048, 137468};
    int count[32] = {0}, spaces = 0;
    characters_open();
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        count[character_table[c]]++;
        spaces += (character_flags(c) & IS_SPACE) != 0;
    }
    for (int i = 1; i < 30; i++) {
        assert_int_equal(count[i], wanted[i]);
    }
    assert_int_equal(count[CHARACTER_CONTROL_SPACE], 6);
    assert_int_equal(spaces, 25);
}

static void test_bytes(void **state)
{
    (void)state;
    for (int i = 0; i < 256; i++) {
        struct dt_text mapped;
        size_t n;
        char byte = (char)i;
        dt_text_init(&mapped);
        byte_level_map(&byte, 1, &mapped);
        assert_int_equal(byte_level_byte(utf8_read(mapped.data, &n)), i);
        assert_int_equal(n, mapped.size);
        dt_text_clear(&mapped);
    }
    assert_int_equal(byte_level_byte(0x144), -1);
    assert_int_equal(byte_level_byte(' '), -1);
}

/* ---- scanners and their patterns ---- */

static uint32_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 33);
}

/* Text that has what the patterns ask for. */
static void add_random(struct dt_text *t, uint64_t *x)
{
    static const char *const words[] = {"'s", "'S", "'ſ", "'re",  "'LL",     "'v",     "'",        "a",
                                        "B",  "Ab", "ǅ",  "ʰ",    "中",      "1",      "²",        "Ⅳ",
                                        " ",  "  ", "\n", "\r\n", "\t",      "\u3000", "\xc2\x85", "\u180e",
                                        ".",  "/",  "!?", "é",    "e\u0301", "\u0301", "_"};
    char character[4];
    uint32_t c = next_random(x) % 4;
    if (c > 0) {
        dt_text_puts(t, words[next_random(x) % (sizeof words / sizeof *words)]);
        return;
    }
    c = next_random(x) % (next_random(x) % 2 == 0 ? 0x3000 : CHARACTERS);
    dt_text_add(t, character, utf8_write(c >= 0xd800 && c < 0xe000 ? 'x' : c, character));
}

/* Long texts, of ASCII in two of three rounds: scanners see several characters at a time. */
static void make_text(struct dt_text *t, int round, uint64_t *x)
{
    static const char *const words[] = {"a",    "Bc",   "words", "'s", "'ll", "'",    "''", "'v", "1",
                                        "23",   " ",    " ",     "  ", "\n",  "\r\n", "\t", "\v", "\f",
                                        "\x1c", "\x7f", ".",     "::", "{}",  "_",    "#-"};
    dt_text_reset(t);
    for (uint32_t n = next_random(x) % (round % 2 == 0 ? 40 : 150) + 1; n > 0; n--) {
        if (round % 3 == 0 || next_random(x) % 64 == 0) {
            add_random(t, x);
        } else {
            dt_text_puts(t, words[next_random(x) % (sizeof words / sizeof *words)]);
        }
    }
}

/* The ends of all pieces of the pattern, by their places. */
static void mark_ends(const struct pattern *p, const char *text, size_t size, size_t first, bool *ends)
{
    struct dt_error err;
    struct pattern_search search = {.pattern = p, .text = text + first, .size = size};
    size_t at = 0, begin, end;
    while (pattern_next(&search, &begin, &end, &err) == 1) {
        assert_int_equal(begin, at);
        ends[first + end] = true;
        at = end;
    }
    assert_int_equal(at, size);
}

/* The ends of all pieces, where each number is a piece and the pattern sees only what lies between two of them. */
static void mark_digits(const struct pattern *p, const struct dt_text *t, bool *ends)
{
    size_t first = 0, n;
    for (size_t at = 0; at < t->size; at += n) {
        if ((character_flags(utf8_read(t->data + at, &n)) & IS_NUMBER) != 0) {
            mark_ends(p, t->data, at - first, first, ends);
            ends[at + n] = true;
            first = at + n;
        }
    }
    mark_ends(p, t->data, t->size - first, first, ends);
}

static void compare_scanner(const char *regex, scanner_function *scan, bool digits, uint64_t seed)
{
    static const size_t mosts[] = {1, 2, 3, 64};
    struct dt_error err;
    struct pattern *p;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "Regex", regex);
    assert_non_null(scan);
    if (pattern_open(&p, json, &err) != 0) {
        fail_msg("%s", err.text);
    }
    struct dt_text t;
    dt_text_init(&t);
    for (int round = 0; round < 600; round++) {
        struct piece own[64];
        make_text(&t, round, &seed);
        bool *ends = calloc(t.size + 1, sizeof *ends);
        assert_non_null(ends);
        if (digits) {
            mark_digits(p, &t, ends);
        } else {
            mark_ends(p, t.data, t.size, 0, ends);
        }
        for (size_t at = 0; at < t.size;) {
            size_t most = mosts[next_random(&seed) % 4], count = scan(t.data, t.size, at, own, most);
            assert_in_range(count, 1, most);
            for (size_t i = 0; i < count; i++) {
                size_t end = at + 1;
                while (!ends[end]) {
                    end++;
                }
                if (own[i].begin != at || own[i].end != end) {
                    fail_msg("%.20s: a piece from %zu ends at %zu, not %zu: %s", regex, at, own[i].end, end, t.data);
                }
                at = end;
            }
        }
        free(ends);
    }
    dt_text_clear(&t);
    pattern_close(p);
    cJSON_Delete(json);
}

static void test_scanners(void **state)
{
    (void)state;
    for (int i = 0; scanner_regex(i) != NULL; i++) {
        compare_scanner(scanner_regex(i), scanner_find(scanner_regex(i)), false, 7 + (uint64_t)i);
    }
    compare_scanner(scanner_gpt2_regex, scanner_digits_gpt2, true, 5);
}

/* ---- models ---- */

#define NULLS "\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,"

/* A long piece is merged as a short one is: aaaa... by pairs. */
static void test_long_piece(void **state)
{
    (void)state;
    struct open_tokenizer k =
        open_text("{" NULLS "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2,\"b\":3,\"ba\":4},"
                  "\"merges\":[\"b a\",\"a a\",[\"aa\",\"aa\"]]}}");
    struct dt_text text;
    struct token_ids ids = {0};
    struct dt_error err;
    dt_text_init(&text);
    dt_text_puts(&text, "b");
    for (int i = 0; i < 200000; i++) {
        dt_text_puts(&text, "a");
    }
    assert_int_equal(tokenizer_encode(k.t, k.s, text.data, text.size, false, &ids, &err), 0);
    /* ba, then 199,999 a */
    assert_int_equal(ids.count, 1 + 49999 + 2);
    assert_int_equal(ids.ids[0], 4);
    assert_int_equal(ids.ids[49999], 2);
    assert_int_equal(ids.ids[50000], 1);
    assert_int_equal(ids.ids[50001], 0);
    token_ids_clear(&ids);
    dt_text_clear(&text);
    close_tokenizer(&k);
}

/* ---- merges, one by one ---- */

enum { MERGES = 60, TOKENS = 3 + MERGES, TOKEN_MOST = 12 };
struct merges {
    char tokens[TOKENS][TOKEN_MOST + 1];
    int left[MERGES], right[MERGES]; /* makes token 3 + i */
};

/* Tokens of a, b and c, each of two that were there before. */
static void make_merges(struct merges *m, uint64_t *x)
{
    for (int i = 0; i < TOKENS; i++) {
        bool fresh = i < 3;
        if (fresh) {
            (void)snprintf(m->tokens[i], sizeof m->tokens[i], "%c", 'a' + i);
        }
        while (!fresh) {
            int l = (int)(next_random(x) % (uint32_t)i), r = (int)(next_random(x) % (uint32_t)i);
            if (strlen(m->tokens[l]) + strlen(m->tokens[r]) > TOKEN_MOST) {
                continue;
            }
            m->left[i - 3] = l;
            m->right[i - 3] = r;
            (void)strcpy(m->tokens[i], m->tokens[l]);
            (void)strcat(m->tokens[i], m->tokens[r]);
            fresh = true;
            for (int k = 0; k < i; k++) {
                fresh = fresh && strcmp(m->tokens[k], m->tokens[i]) != 0;
            }
        }
    }
}

static struct open_tokenizer open_merges(const struct merges *m)
{
    struct dt_text json;
    dt_text_init(&json);
    dt_text_puts(&json, "{\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int i = 0; i < TOKENS; i++) {
        dt_text_printf(&json, "%s\"%s\":%d", i > 0 ? "," : "", m->tokens[i], i);
    }
    dt_text_puts(&json, "},\"merges\":[");
    for (int i = 0; i < MERGES; i++) {
        dt_text_printf(&json, "%s\"%s %s\"", i > 0 ? "," : "", m->tokens[m->left[i]], m->tokens[m->right[i]]);
    }
    dt_text_puts(&json, "]}}");
    struct open_tokenizer k = open_text(json.data);
    dt_text_clear(&json);
    return k;
}

/* The pair of lowest rank, the leftmost of equals, again and again. */
static int merge_slowly(const struct merges *m, int32_t *ids, int count)
{
    for (int rank = 0; rank < MERGES; rank++) {
        for (int i = 0; i + 1 < count; i++) {
            if (ids[i] == m->left[rank] && ids[i + 1] == m->right[rank]) {
                ids[i] = 3 + rank;
                memmove(ids + i + 1, ids + i + 2, (size_t)(count - i - 2) * sizeof *ids);
                count--;
                rank = -1; /* a lower rank may be there now */
                break;
            }
        }
    }
    return count;
}

static void test_merges(void **state)
{
    (void)state;
    uint64_t x = 3;
    for (int round = 0; round < 60; round++) {
        struct merges m;
        make_merges(&m, &x);
        struct open_tokenizer k = open_merges(&m);
        for (int i = 0; i < 20; i++) {
            char text[300];
            int32_t ids[sizeof text];
            struct token_ids got = {0};
            struct dt_error err;
            int count = (int)(next_random(&x) % (i % 2 == 0 ? 40 : sizeof text)) + 1;
            for (int c = 0; c < count; c++) {
                ids[c] = (int32_t)(next_random(&x) % 3);
                text[c] = (char)('a' + ids[c]);
            }
            assert_int_equal(tokenizer_encode(k.t, k.s, text, (size_t)count, false, &got, &err), 0);
            assert_int_equal(got.count, merge_slowly(&m, ids, count));
            assert_memory_equal(got.ids, ids, got.count * sizeof *ids);
            token_ids_clear(&got);
        }
        close_tokenizer(&k);
    }
}

/* The texts of a folder's cases, again and again, with spaces and line ends between them. */
static void add_long_text(const char *folder, struct dt_text *out)
{
    struct dt_text file, text;
    struct dt_error err;
    char *path = dt_format("tests/golden/tokenizers/%s/cases.jsonl", folder);
    uint64_t x = 11;
    dt_text_init(&file);
    dt_text_init(&text);
    assert_int_equal(dt_file_read(path, 1 << 20, &file, &err), 0);
    while (out->size < 400000) {
        for (const char *line = file.data; *line != 0 && out->size < 400000; line = strchr(line, '\n') + 1) {
            cJSON *c = cJSON_ParseWithLength(line, (size_t)(strchr(line, '\n') - line));
            if (case_text(c, "text", &text)) {
                dt_text_add(out, dt_text_str(&text), text.size);
                dt_text_puts(out, next_random(&x) % 3 == 0 ? "" : next_random(&x) % 3 == 0 ? "\n" : " ");
            }
            cJSON_Delete(c);
        }
    }
    dt_text_clear(&file);
    dt_text_clear(&text);
    free(path);
}

/* A long text in random parts has the ids of the whole, and most of them come before its end. */
static void test_long_stream(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct open_tokenizer k = open_folder(folders[i]);
        struct dt_text text;
        struct token_ids whole = {0}, parts = {0};
        struct dt_error err;
        uint64_t x = i + 1;
        dt_text_init(&text);
        add_long_text(folders[i], &text);
        assert_int_equal(tokenizer_encode(k.t, k.s, text.data, text.size, false, &whole, &err), 0);
        struct tokenizer_stream *r = tokenizer_stream_open(k.t, k.s);
        for (size_t at = 0; at < text.size;) {
            size_t n = next_random(&x) % 30000 + 1;
            n = n > text.size - at ? text.size - at : n;
            assert_int_equal(tokenizer_stream_add(r, text.data + at, n, &parts, &err), 0);
            at += n;
        }
        size_t before_end = parts.count;
        assert_int_equal(tokenizer_stream_end(r, &parts, &err), 0);
        assert_int_equal(parts.count, whole.count);
        assert_memory_equal(parts.ids, whole.ids, whole.count * sizeof *whole.ids);
        bool cuts = strcmp(folders[i], "llama2") != 0 && strcmp(folders[i], "bert_added") != 0;
        assert_true(!cuts || before_end > whole.count / 2);
        tokenizer_stream_close(r);
        token_ids_clear(&whole);
        token_ids_clear(&parts);
        dt_text_clear(&text);
        close_tokenizer(&k);
    }
}

/* Texts as a reader of blocks has them: both sides of a cut have the ids of the whole, and a text of words has one
 * near its end. Tokens that take white space, and such as share their begin, stand everywhere. */
static void test_cuts(void **state)
{
    (void)state;
    static const char *const words[] = {" the",
                                        " a",
                                        "a",
                                        "b ",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\n\n",
                                        "x\n",
                                        "<mask>",
                                        "<sep>",
                                        " <mask>",
                                        "<sep> ",
                                        "<sep>\n",
                                        "\n<mask>",
                                        "<|a",
                                        "<|a|>",
                                        "<|ab|>",
                                        "|>",
                                        "token",
                                        " with",
                                        " space",
                                        "token with space",
                                        "dtrun",
                                        " dtrun ",
                                        "\xc3\xa9",
                                        "\xe4\xb8\xad",
                                        "[MASK]",
                                        "<|endoftext|>",
                                        "\xe3\x80\x80",
                                        "1",
                                        ",",
                                        "word"};
    struct dt_text text;
    struct dt_error err;
    dt_text_init(&text);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        struct open_tokenizer k = open_folder(folders[i]);
        struct token_ids whole = {0}, parts = {0};
        uint64_t x = 77 + i;
        int found = 0;
        for (int round = 0; round < 300; round++) {
            dt_text_reset(&text);
            for (uint32_t n = next_random(&x) % (round % 10 == 0 ? 9000 : 200) + 1; n > 0; n--) {
                dt_text_puts(&text, words[next_random(&x) % (sizeof words / sizeof *words)]);
            }
            for (size_t size = text.size - next_random(&x) % text.size; size > 0; size /= 2) {
                size_t cut = tokenizer_cut(k.t, text.data, size); /* the text may end within a character */
                assert_true(cut < size);
                found += cut > 0;
                if (cut == 0) {
                    continue;
                }
                whole.count = parts.count = 0;
                assert_int_equal(tokenizer_encode(k.t, k.s, text.data, text.size, false, &whole, &err), 0);
                assert_int_equal(tokenizer_encode_part(k.t, k.s, text.data, cut, 0, &parts, &err), 0);
                assert_int_equal(tokenizer_encode_part(k.t, k.s, text.data + cut, text.size - cut, cut, &parts, &err),
                                 0);
                if (parts.count != whole.count || memcmp(parts.ids, whole.ids, whole.count * sizeof *whole.ids) != 0) {
                    fail_msg("%s: cut at %zu of %zu: %s", folders[i], cut, size, text.data);
                }
            }
        }
        bool cuts = strcmp(folders[i], "llama2") != 0 && strcmp(folders[i], "bert_added") != 0;
        if (cuts ? found < 300 : found > 0) {
            fail_msg("%s: %d cuts", folders[i], found);
        }
        token_ids_clear(&whole);
        token_ids_clear(&parts);
        close_tokenizer(&k);
    }
    /* what is not UTF-8 far from the end does no harm to a cut near it */
    struct open_tokenizer k = open_folder("gpt2");
    dt_text_reset(&text);
    dt_text_puts(&text, "\xff");
    for (int i = 0; i < 4000; i++) {
        dt_text_puts(&text, " word");
    }
    assert_int_equal(tokenizer_cut(k.t, text.data, text.size) > text.size - 100, 1);
    text.data[text.size - 50] = '\xff';
    assert_int_equal(tokenizer_cut(k.t, text.data, text.size), 0);
    close_tokenizer(&k);
    dt_text_clear(&text);
}

static void test_invalid_text(void **state)
{
    (void)state;
    struct open_tokenizer k = open_folder("gpt2");
    struct token_ids ids = {0};
    struct dt_error err;
    assert_int_equal(tokenizer_encode(k.t, k.s, "abc\xed\xa0\x80", 6, false, &ids, &err), -1);
    assert_string_equal(err.text, "byte 3 of the text (0xed) is not valid UTF-8");
    /* in a stream the byte counts from its beginning, however much is gone */
    struct tokenizer_stream *r = tokenizer_stream_open(k.t, k.s);
    struct dt_text text;
    dt_text_init(&text);
    for (int i = 0; i < 100000; i++) {
        dt_text_puts(&text, "ab ");
    }
    int rc = tokenizer_stream_add(r, text.data, text.size, &ids, &err);
    assert_int_equal(rc, 0);
    assert_true(ids.count > 100000);
    rc = tokenizer_stream_add(r, "\xc3\xa9\xc3", 3, &ids, &err);
    rc = rc == 0 ? tokenizer_stream_end(r, &ids, &err) : rc;
    assert_int_equal(rc, -1);
    assert_string_equal(err.text, "byte 300002 of the text (0xc3) is not valid UTF-8");
    tokenizer_stream_close(r);
    dt_text_clear(&text);
    token_ids_clear(&ids);
    close_tokenizer(&k);
}

static void test_unknown_character(void **state)
{
    (void)state;
    struct open_tokenizer k = open_text("{" NULLS "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    struct token_ids ids = {0};
    struct dt_error err;
    assert_int_equal(tokenizer_encode(k.t, k.s, "abab", 4, false, &ids, &err), 0);
    assert_int_equal(ids.count, 2); /* the library leaves out what it has no token for */
    token_ids_clear(&ids);
    close_tokenizer(&k);
}

static const struct {
    const char *json, *error;
} refused[] = {
    {"[]", "t.json: not a JSON object"},
    {"", "t.json:1:1: empty"},
    {" \n{\"model\"", "t.json:2:9: "},
    {"\n\x0e\n\x05<unk>", "t.json: is no tokenizer.json; dtdata convert-tokenizer makes one of a .model"},
    {"IQ== 0\n", "t.json: is no tokenizer.json; "},
    {"{}", "t.json: model: missing, or not an object"},
    {"{\"normaliser\":null}", "t.json: normaliser: unknown part; remove it"},
    {"{\"version\":\"2.0\"}", "t.json: version: 2.0 is not known, but 1.0"},
    {"{\"model\":{\"type\":\"Foo\",\"vocab\":{}}}",
     "t.json: model: type: Foo is not supported; there are BPE, WordPiece, Unigram, WordLevel"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1.5},\"merges\":[]}}",
     "t.json: model: vocab: a: not an id, a whole number from 0 to 16777215"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}",
     "t.json: model: vocab: b: id 1 has two tokens"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":16000000},\"merges\":[]}}",
     "t.json: model: vocab: ids go up to 16000000, but there are only 1 tokens"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b\"]}}",
     "t.json: model: merges[0]: b is not in the vocabulary"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[\"a b c\"]}}",
     "t.json: model: merges[0]: not two tokens, as \"a b\" or [\"a\", \"b\"]"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}",
     "t.json: model: dropout: random merges are not supported; write null"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Sequence\","
     "\"pretokenizers\":[{\"type\":\"Foo\"}]}}",
     "t.json: pre_tokenizer: pretokenizers[0]: type: Foo is not supported; there are ByteLevel, Split, Metaspace, "},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
     "\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\"a\\\\h\"}}}",
     "t.json: pre_tokenizer: pattern: Regex: \\h at byte 1: this escape is not supported"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"decoder\":{\"type\":\"Foo\"}}",
     "t.json: decoder: type: Foo is not supported; there are ByteLevel, "},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":7,\"content\":\"x\","
     "\"special\":true,\"normalized\":false,\"lstrip\":false,\"rstrip\":false,\"single_word\":false}]}",
     "t.json: added_tokens: [0].id: 7, but the tokenizers library gives x the id 1 "},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}",
     "t.json: added_tokens: [0]: special: missing; must be true or false"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct tokenizer *t;
        struct dt_error err;
        assert_int_equal(tokenizer_parse(&t, "t.json", refused[i].json, strlen(refused[i].json), &err), -1);
        if (strncmp(err.text, refused[i].error, strlen(refused[i].error)) != 0) {
            fail_msg("%s\ninstead of\n%s", err.text, refused[i].error);
        }
    }
}

/* The same pieces, whatever the pattern is written like; some that PCRE2 would read otherwise. */
static void test_patterns(void **state)
{
    (void)state;
    static const struct {
        const char *regex, *text, *first; /* the first match */
    } rows[] = {
        {"\\s+", "a\xe1\xa0\x8e \t", " \t"}, /* U+180E is no space */
        {"a{2}+", "aaaaa", "aaaa"},          /* not possessive */
        {"a{,2}b", "aaab", "aab"},
        {"x(?i)a|b", "xB", "xB"}, /* (?i) holds for both alternatives behind x */
        {"^b", "a\nb", "b"},      /* a line begins */
        {"(?m:a.b)", "a\nb", "a\nb"},
        {"[^\\S\\n]+", "\n \n", " "},
        {"[\\p{^L}]", "ab1", "1"},
        {"\\bx", "\xc2\xb2x x", "x"},
        {"\\w+", "=\xc2\xb2x", "\xc2\xb2x"}, /* a number is of a word, but not within brackets */
        {"[\\w]+", "=\xc2\xb2x", "x"},
        {"[^\\w]+", "=\xc2\xb2x", "=\xc2\xb2"},
        {"(?i:s)", "\xc5\xbf", "\xc5\xbf"},
        {"(?i)\\p{Lu}", "sS", "S"}, /* only classes in brackets are folded */
        {"(?i)[\\p{Lu}]+", "sS", "sS"},
        {"\\p{Lu}", "\xea\x9f\x9a", "\xea\x9f\x9a"}, /* U+A7DA, of Unicode 16 */
        {"[^(\\s|[.,])]+", "(|a.", "a"},             /* a class within a class */
        {"[a-f&&[^bc]]+", "bade", "ade"},
        {"[\\]\\-]+", "a]-", "]-"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pattern *p;
        struct dt_error err;
        size_t begin = 0, end = 0;
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "Regex", rows[i].regex);
        if (pattern_open(&p, json, &err) != 0) {
            fail_msg("%s", err.text);
        }
        struct pattern_search s = {.pattern = p, .text = rows[i].text, .size = strlen(rows[i].text)};
        if (pattern_next(&s, &begin, &end, &err) != 1 || end - begin != strlen(rows[i].first) ||
            memcmp(rows[i].text + begin, rows[i].first, end - begin) != 0) {
            fail_msg("%s: matches %zu to %zu", rows[i].regex, begin, end);
        }
        pattern_search_end(&s);
        pattern_close(p);
        cJSON_Delete(json);
    }
}

/* A pattern that would take ages ends with an error. */
static void test_slow_pattern(void **state)
{
    (void)state;
    struct open_tokenizer k = open_text(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"pre_tokenizer\":{\"type\":\"Split\","
        "\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\"(?:a|a|aa)+c\"}}}");
    struct token_ids ids = {0};
    struct dt_error err;
    char text[64];
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 2, "bc", 2);
    assert_int_equal(tokenizer_encode(k.t, k.s, text, sizeof text, false, &ids, &err), -1);
    assert_non_null(strstr(err.text, "cannot be searched"));
    token_ids_clear(&ids);
    close_tokenizer(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_characters),
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_scanners),
        cmocka_unit_test(test_long_piece),   cmocka_unit_test(test_merges),
        cmocka_unit_test(test_long_stream),  cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_invalid_text), cmocka_unit_test(test_unknown_character),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_patterns),
        cmocka_unit_test(test_slow_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
