/* covers: worker/data/tokenizers/stream.c worker/data/tokenizers/pretokenizer.c */
/* Places where texts are cut: both sides of each have the ids of the whole, for pairs of a normalizer and a
 * pre-tokenizer, with and without added tokens, over random texts of what may go wrong at such places. */
#include "base/text.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/scanners.h"
#include "worker/data/tokenizers/tokenizer.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define NORMALIZER(type) "{\"type\":\"" type "\"}"
#define SEQUENCE(list) "{\"type\":\"Sequence\",\"normalizers\":[" list "]}"
#define BERT(clean, chinese, accents, lower)                                                                           \
    "{\"type\":\"BertNormalizer\",\"clean_text\":" clean ",\"handle_chinese_chars\":" chinese                          \
    ",\"strip_accents\":" accents ",\"lowercase\":" lower "}"
#define REPLACE(from, to) "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to "\"}"

static const struct {
    const char *json;
    bool cuts; /* false: no text is cut */
} normalizers[] = {
    {"null", true},
    {NORMALIZER("NFC"), true},
    {NORMALIZER("NFD"), true},
    {NORMALIZER("NFKC"), true},
    {NORMALIZER("NFKD"), true},
    {NORMALIZER("Lowercase"), true},
    {NORMALIZER("StripAccents"), true},
    {SEQUENCE(NORMALIZER("NFD") "," NORMALIZER("Lowercase") "," NORMALIZER("StripAccents")), true},
    {SEQUENCE(NORMALIZER("NFKD") "," NORMALIZER("StripAccents")), true},
    {SEQUENCE(NORMALIZER("NFC") "," NORMALIZER("StripAccents") "," NORMALIZER("NFKC")), true},
    {SEQUENCE(NORMALIZER("NFKC") "," BERT("true", "true", "null", "true")), true},
    {BERT("true", "true", "null", "true"), true},
    {BERT("true", "false", "false", "false"), true},
    {BERT("false", "true", "true", "false"), true},
    {BERT("false", "false", "true", "false"), true},
    {NORMALIZER("Nmt"), false},
    {NORMALIZER("ByteLevel"), false},
    {"{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", false},
    {"{\"type\":\"Prepend\",\"prepend\":\"_\"}", false},
    {REPLACE("a", ""), false},
    {SEQUENCE(NORMALIZER("NFC") "," REPLACE(" ", "_")), false},
};

#define STEPS(list) "{\"type\":\"Sequence\",\"pretokenizers\":[" list "]}"
#define BYTES(prefix, regex)                                                                                           \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":" prefix ",\"trim_offsets\":true,\"use_regex\":" regex "}"
#define DIGITS(each) "{\"type\":\"Digits\",\"individual_digits\":" each "}"
#define METASPACE(scheme, split)                                                                                       \
    "{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"
/* %s: a pattern, as JSON */
#define SPLIT(behavior, invert)                                                                                        \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":%s},\"behavior\":\"" behavior "\",\"invert\":" invert "}"
#define OWN_SPLIT(regex)                                                                                               \
    "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" regex "\"},\"behavior\":\"Isolated\",\"invert\":false}"

static const struct {
    const char *json;
    bool cuts, pattern; /* pattern: once for each that has a scanner */
} pretokenizers[] = {
    {BYTES("false", "true"), true, false},
    {BYTES("true", "true"), true, false},
    {STEPS(DIGITS("true") "," BYTES("false", "true")), true, false},
    {STEPS(DIGITS("false") "," BYTES("true", "true")), true, false},
    {STEPS(SPLIT("Isolated", "false") "," BYTES("false", "false")), true, true},
    {SPLIT("Removed", "true"), true, true},
    {STEPS(DIGITS("true") "," SPLIT("Isolated", "false")), true, true},
    {STEPS(SPLIT("Isolated", "false") "," METASPACE("always", "true")), true, true},
    {"{\"type\":\"BertPreTokenizer\"}", true, false},
    {"{\"type\":\"Whitespace\"}", true, false},
    {"{\"type\":\"WhitespaceSplit\"}", true, false},
    {METASPACE("always", "true"), true, false},
    {METASPACE("first", "true"), true, false},
    {METASPACE("never", "true"), true, false},
    {STEPS("{\"type\":\"WhitespaceSplit\"}," METASPACE("first", "true")), true, false},
    {STEPS("{\"type\":\"Whitespace\"}," BYTES("true", "true")), true, false},
    {STEPS(DIGITS("false") "," METASPACE("always", "true")), true, false},
    {STEPS(METASPACE("always", "true") "," DIGITS("true")), true, false},
    {STEPS(DIGITS("true") ",{\"type\":\"Whitespace\"}"), true, false},
    {"null", false, false},
    {METASPACE("always", "false"), false, false},
    {DIGITS("true"), false, false},
    {BYTES("true", "false"), false, false},
    {STEPS(BYTES("false", "false") ",{\"type\":\"WhitespaceSplit\"}"), false, false},
    {STEPS(BYTES("true", "false") "," METASPACE("always", "true")), false, false},
    {STEPS(BYTES("false", "false") "," SPLIT("Isolated", "false")), false, true},
    {SPLIT("Contiguous", "false"), false, true},
    {OWN_SPLIT("\\\\n.| ?\\\\w+|\\\\s+"), false, false},
    {OWN_SPLIT("!\\\\n*/*|\\\\s+"), false, false},
    {"{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"}", false, false},
    {"{\"type\":\"CharDelimiterSplit\",\"delimiter\":\" \"}", false, false},
    {"{\"type\":\"FixedLength\",\"length\":3}", false, false},
};

enum { TAIL = 40, TEXTS = 100 };
#define ADDED(id, content, left, right, alone)                                                                         \
    "{\"id\":" id ",\"content\":\"" content "\",\"lstrip\":" left ",\"rstrip\":" right ",\"single_word\":" alone       \
    ",\"special\":true,\"normalized\":false}"
static const char added_tokens[] = ADDED("256", "<l>", "true", "false", "false") "," //
    ADDED("257", "<r>", "false", "true", "false") "," ADDED("258", "ab", "false", "false", "true");

static uint32_t next_random(uint64_t *x)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*x >> 33);
}

struct subject {
    struct tokenizer *t;
    struct tokenizer_scratch *s;
    struct token_ids whole, parts;
    char *json;
};

/* Ids are bytes, and "##" stands before each character that begins no piece: other pieces have other ids. */
static void open_subject(struct subject *k, const char *normalizer, const char *pretokenizer, bool added)
{
    struct dt_text json;
    struct dt_error err;
    dt_text_init(&json);
    dt_text_printf(&json, "{\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":%s,", added ? added_tokens : "",
                   normalizer, pretokenizer);
    k->json = dt_strdup(json.data);
    dt_text_puts(&json, "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"continuing_subword_prefix\":\"##\","
                        "\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++) {
        dt_text_printf(&json, "%s\"<0x%02X>\":%d", i > 0 ? "," : "", (unsigned)i, i);
    }
    dt_text_puts(&json, "}}}");
    if (tokenizer_parse(&k->t, "t.json", json.data, json.size, &err) != 0) {
        fail_msg("%s: %s", k->json, err.text);
    }
    k->s = tokenizer_scratch_open(k->t);
    dt_text_clear(&json);
}

static void close_subject(struct subject *k)
{
    tokenizer_scratch_close(k->s);
    tokenizer_close(k->t);
    token_ids_clear(&k->whole);
    token_ids_clear(&k->parts);
    free(k->json);
    *k = (struct subject){0};
}

static void encode(const struct subject *k, const struct dt_text *text, size_t from, size_t to, struct token_ids *out)
{
    struct dt_error err;
    if (tokenizer_encode_part(k->t, k->s, text->data + from, to - from, from, out, &err) != 0) {
        fail_msg("%s: %s", k->json, err.text);
    }
}

/* Words that meet at cuts: white space, what pieces take with it, and what normalizers drop, add or make of others. */
static const char *const words[] = {
    " ",
    " ",
    "  ",
    "\n",
    "\n",
    "\r",
    "\t",
    "\v",
    "a",
    "B",
    "ab",
    "1",
    "22",
    "/",
    "!",
    "!\n",
    "_",
    "'s",
    "<l>",
    "<r>",
    "\xc3\xa9",         /* e with acute */
    "\xcc\x81",         /* the acute, a mark that is dropped */
    "\xcc\xa3",         /* one that is put before it */
    "\xcc\xb8",         /* a '/' through what stands before */
    "\xe0\xa4\x83",     /* a mark with a place of its own */
    "\xe3\x80\xae",     /* such a one that others are put before */
    "\xc2\xa8",         /* compatible: a space and a mark */
    "\xef\xb9\xb0",     /* the same in Arabic */
    "\xef\xb7\xba",     /* four words */
    "\xc2\xa0",         /* white space, which may become a space */
    "\xe2\x80\xa8",     /* line separator */
    "\xc2\x85",         /* white space, and a control character */
    "\xe1\xa0\x8e",     /* no white space any more */
    "\x01",             /* control characters */
    "\x7f",             /* */
    "\xe2\x80\x8b",     /* zero-width space, of category Cf */
    "\xee\x80\x80",     /* private use */
    "\xe4\xb8\xad",     /* Chinese, around which spaces are put */
    "\xef\xa4\x80",     /* Chinese, which becomes another */
    "\xef\xbc\x8f",     /* a '/' of full width */
    "\xef\xbe\x9e",     /* half width, becomes a mark */
    "\xc4\xb0",         /* two characters in lower case */
    "\xef\xac\x81",     /* ligature */
    "\xe1\x84\x80",     /* Hangul, which is composed with */
    "\xe1\x85\xa1",     /* this vowel */
    "\xe2\x96\x81",     /* Metaspace's mark */
    "\xc2\xb2",         /* a number that is no digit */
    "\xf0\x9f\x98\x80", /* four bytes */
};

/* Few kinds of words in one text, so that all neighbours of each are met. */
static void make_text(struct dt_text *text, uint64_t *x)
{
    enum { KINDS = 6 };
    const char *kinds[KINDS];
    char character[5] = {0};
    uint32_t c = next_random(x) % 0x30000;
    (void)utf8_write(c == 0 || (c >= 0xd800 && c < 0xe000) ? 'x' : c, character);
    for (int i = 0; i < KINDS; i++) {
        kinds[i] = words[next_random(x) % (i < 2 ? 6 : sizeof words / sizeof *words)];
    }
    kinds[KINDS - 1] = next_random(x) % 4 == 0 ? character : kinds[KINDS - 1];
    dt_text_reset(text);
    for (uint32_t n = next_random(x) % 16 + 2; n > 0; n--) {
        dt_text_puts(text, kinds[next_random(x) % KINDS]);
    }
}

static void check_same(const struct subject *k, const struct dt_text *text, size_t cut)
{
    bool same = k->parts.count == k->whole.count &&
                memcmp(k->parts.ids, k->whole.ids, k->whole.count * sizeof *k->whole.ids) == 0;
    if (!same) {
        struct dt_text shown;
        dt_text_init(&shown);
        for (size_t i = 0; i < text->size - TAIL; i++) {
            dt_text_printf(&shown, "%s%02x", i == cut ? " | " : " ", (unsigned char)text->data[i]);
        }
        fail_msg("%s: cut at %zu:%s", k->json, cut, shown.data);
    }
}

/* Cuts a text at each place by itself, and at all of them; returns how many there are. */
static int check_text(struct subject *k, struct dt_text *text)
{
    size_t last = 0, size = text->size;
    int found = 0;
    struct token_ids pieces = {0};
    for (int i = 0; i < TAIL; i++) { /* no place is too near the end */
        dt_text_puts(text, "z");
    }
    k->whole.count = 0;
    encode(k, text, 0, text->size, &k->whole);
    for (size_t end = 1; end <= text->size; end++) {
        size_t cut = tokenizer_cut(k->t, text->data, end);
        if (cut == last) {
            continue;
        }
        assert_in_range(cut, last + 1, size);
        k->parts.count = 0;
        encode(k, text, 0, cut, &k->parts);
        encode(k, text, cut, text->size, &k->parts);
        check_same(k, text, cut);
        encode(k, text, last, cut, &pieces);
        last = cut;
        found++;
    }
    encode(k, text, last, text->size, &pieces);
    k->parts.count = 0;
    for (size_t i = 0; i < pieces.count; i++) {
        token_ids_add(&k->parts, pieces.ids[i]);
    }
    check_same(k, text, 0);
    token_ids_clear(&pieces);
    return found;
}

static void check_pair(const char *normalizer, const char *pretokenizer, bool cuts, uint64_t *x)
{
    struct dt_text text;
    dt_text_init(&text);
    for (int added = 0; added < 2; added++) {
        struct subject k = {0};
        int found = 0;
        open_subject(&k, normalizer, pretokenizer, added == 1);
        for (int i = 0; i < TEXTS; i++) {
            make_text(&text, x);
            found += check_text(&k, &text);
        }
        if (cuts ? found < TEXTS / 8 : found > 0) {
            fail_msg("%s: %d cuts", k.json, found);
        }
        close_subject(&k);
    }
    dt_text_clear(&text);
}

/* The row's pre-tokenizer, with a pattern if it wants one; null: there is no such pattern. The caller frees it. */
static char *pretokenizer_json(size_t row, int pattern)
{
    const char *format = pretokenizers[row].json;
    if (!pretokenizers[row].pattern) {
        return pattern == 0 ? dt_strdup(format) : NULL;
    }
    if (scanner_regex(pattern) == NULL) {
        return NULL;
    }
    cJSON *regex = cJSON_CreateString(scanner_regex(pattern));
    char *quoted = cJSON_PrintUnformatted(regex);
    const char *place = strstr(format, "%s");
    char *json = dt_format("%.*s%s%s", (int)(place - format), format, quoted, place + 2);
    cJSON_free(quoted);
    cJSON_Delete(regex);
    return json;
}

static void test_random(void **state)
{
    (void)state;
    uint64_t x = 17;
    for (size_t i = 0; i < sizeof pretokenizers / sizeof *pretokenizers; i++) {
        char *json;
        for (int pattern = 0; (json = pretokenizer_json(i, pattern)) != NULL; pattern++) {
            for (size_t n = 0; n < sizeof normalizers / sizeof *normalizers; n++) {
                bool cuts = normalizers[n].cuts && pretokenizers[i].cuts;
                if (cuts || i == 0 || n == 0) {
                    check_pair(normalizers[n].json, json, cuts, &x);
                }
            }
            free(json);
        }
    }
}

/* Texts with their only place, and such as have none. */
static void test_places(void **state)
{
    (void)state;
    static const char strip[] = SEQUENCE(NORMALIZER("NFKD") "," NORMALIZER("StripAccents"));
    static const char bert[] = BERT("true", "true", "null", "true");
    static const char bytes[] = BYTES("false", "true"), white[] = "{\"type\":\"BertPreTokenizer\"}";
    static const struct {
        const char *normalizer, *pretokenizer, *text;
        size_t cut;
    } rows[] = {
        {"null", NULL, "a!\nb", 3}, /* null: o200k */
        {"null", NULL, "a!\n/b", 0},
        {"null", bytes, "a!\nb", 3},
        {NORMALIZER("NFC"), bytes, "a!\nb", 3},
        {NORMALIZER("NFC"), bytes, "a\xcc\x81 b", 3},
        {NORMALIZER("NFKC"), NULL, "a!\n\xef\xbc\x8f", 0},
        {strip, bytes, "ab  \xcc\x81  ", 2},
        {strip, bytes, "\xcc\x81  ", 0},
        {strip, bytes, "\xc3\xa9 b", 2},
        {strip, bytes, "\xc2\xa8 b", 0}, /* becomes a space and a mark */
        {bert, bytes, "a\nb", 0},        /* becomes a space */
        {bert, bytes, "\xe4\xb8\xad b", 0},
        {bert, bytes, "a\x01 b", 0},
        {bert, white, "a\nb", 2},
        {bert, white, "\xe4\xb8\xad b", 3},
    };
    size_t o200k = 0;
    while (!pretokenizers[o200k].pattern) {
        o200k++;
    }
    int pattern = 0;
    while (scanner_regex(pattern + 1) != NULL) {
        pattern++;
    }
    char *json = pretokenizer_json(o200k, pattern);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct subject k = {0};
        struct dt_text text;
        dt_text_init(&text);
        open_subject(&k, rows[i].normalizer, rows[i].pretokenizer != NULL ? rows[i].pretokenizer : json, false);
        dt_text_puts(&text, rows[i].text);
        dt_text_puts(&text, "zzzzzzzzzzzzzzzzzzzzzzzz");
        assert_int_equal(tokenizer_cut(k.t, text.data, text.size), rows[i].cut);
        dt_text_clear(&text);
        close_subject(&k);
    }
    free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_places), cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
