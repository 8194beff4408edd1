/* Normalizers. A row per type, with the functions that read its part of tokenizer.json and apply it;
 * replace.c and precompiled.c hold the two that need more than a few lines. */
#include "worker/data/tokenizers/normalizers.h"

#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/unicode.h"

#include <stdlib.h>
#include <string.h>

struct normalizer {
    const struct normalizer_ops *ops;
    void *state;
};

/* ---- normal forms ---- */

/* Appends a text in a normal form. Characters below `plain` are the same in it. */
static void normal_form(const char *text, size_t size, unsigned char plain, bool compatible, bool composed,
                        struct dt_text *out)
{
    size_t same = 0;
    while (same < size && (unsigned char)text[same] < plain) {
        same++;
    }
    if (same < size && same > 0) { /* a mark may follow */
        do {
            same--;
        } while (same > 0 && ((unsigned char)text[same] & 0xc0) == 0x80);
    }
    dt_text_add(out, text, same);
    struct unicode_codes codes = {0};
    for (size_t at = same, n = 0; at < size; at += n) {
        unicode_decompose(&codes, utf8_read(text + at, &n), compatible);
    }
    unicode_order(&codes);
    if (composed) {
        unicode_compose(&codes);
    }
    unicode_write(&codes, out);
    unicode_codes_clear(&codes);
}

static int apply_nfc(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    (void)state;
    normal_form(text, size, 0xcc, false, true, out); /* 0xcc begins U+0300 */
    return 0;
}

static int apply_nfd(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    (void)state;
    normal_form(text, size, 0x80, false, false, out);
    return 0;
}

static int apply_nfkc(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    (void)state;
    normal_form(text, size, 0x80, true, true, out);
    return 0;
}

static int apply_nfkd(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    (void)state;
    normal_form(text, size, 0x80, true, false, out);
    return 0;
}

/* ---- one character at a time ---- */

static int apply_lowercase(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    (void)state;
    struct unicode_codes codes = {0};
    for (size_t at = 0, n = 0; at < size; at += n) {
        unicode_lower(&codes, utf8_read(text + at, &n));
    }
    unicode_write(&codes, out);
    unicode_codes_clear(&codes);
    return 0;
}

static int apply_strip_accents(const void *state, const char *text, size_t size, struct dt_text *out,
                               struct dt_error *err)
{
    (void)err;
    (void)state;
    for (size_t at = 0, n = 0; at < size; at += n) {
        if (!unicode_is_mark(utf8_read(text + at, &n))) {
            dt_text_add(out, text + at, n);
        }
    }
    return 0;
}

static bool nmt_drops(uint32_t c)
{
    return (c >= 1 && c <= 8) || c == 0xb || (c >= 0xe && c <= 0x1f) || c == 0x7f || c == 0x8f || c == 0x9f;
}

static bool nmt_blanks(uint32_t c)
{
    return c == 9 || c == 0xa || c == 0xc || c == 0xd || c == 0x1680 || (c >= 0x200b && c <= 0x200f) || c == 0x2028 ||
           c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}

static int apply_nmt(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    (void)state;
    for (size_t at = 0, n = 0; at < size; at += n) {
        uint32_t c = utf8_read(text + at, &n);
        if (nmt_blanks(c)) {
            dt_text_add(out, " ", 1);
        } else if (!nmt_drops(c)) {
            dt_text_add(out, text + at, n);
        }
    }
    return 0;
}

static int apply_byte_level(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    (void)state;
    byte_level_map(text, size, out);
    return 0;
}

/* ---- Strip, Prepend ---- */

struct strip {
    bool left, right;
};

static int open_strip(void **state, const cJSON *json, struct dt_error *err)
{
    struct strip s;
    if (part_bool(json, "strip_left", -1, &s.left, err) != 0 ||
        part_bool(json, "strip_right", -1, &s.right, err) != 0) {
        return -1;
    }
    *state = dt_alloc(sizeof s);
    memcpy(*state, &s, sizeof s);
    return 0;
}

static int apply_strip(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    const struct strip *s = state;
    size_t begin = 0, n = 0;
    while (s->left && begin < size && unicode_is_white(utf8_read(text + begin, &n))) {
        begin += n;
    }
    while (s->right && size > begin && unicode_is_white(utf8_read_back(text, size, &n))) {
        size -= n;
    }
    dt_text_add(out, text + begin, size - begin);
    return 0;
}

static int open_prepend(void **state, const cJSON *json, struct dt_error *err)
{
    const char *text = NULL;
    if (part_text(json, "prepend", NULL, &text, err) != 0) {
        return -1;
    }
    if (text == NULL) {
        return dt_fail(err, DT_INVALID, "prepend: missing; must be a text");
    }
    *state = dt_strdup(text);
    return 0;
}

static int apply_prepend(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    if (size > 0) {
        dt_text_puts(out, state);
        dt_text_add(out, text, size);
    }
    return 0;
}

/* ---- BertNormalizer ---- */

struct bert {
    bool clean, chinese, accents, lower; /* accents: strip them */
};

static int open_bert(void **state, const cJSON *json, struct dt_error *err)
{
    struct bert b;
    if (part_bool(json, "clean_text", -1, &b.clean, err) != 0 ||
        part_bool(json, "handle_chinese_chars", -1, &b.chinese, err) != 0 ||
        part_bool(json, "lowercase", -1, &b.lower, err) != 0) {
        return -1;
    }
    b.accents = b.lower;
    if (!cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(json, "strip_accents")) &&
        part_bool(json, "strip_accents", b.lower, &b.accents, err) != 0) {
        return -1;
    }
    *state = dt_alloc(sizeof b);
    memcpy(*state, &b, sizeof b);
    return 0;
}

static bool is_chinese(uint32_t c)
{
    return (c >= 0x4e00 && c <= 0x9fff) || (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x20000 && c <= 0x2a6df) ||
           (c >= 0x2a700 && c <= 0x2b73f) || (c >= 0x2b740 && c <= 0x2b81f) || (c >= 0x2b920 && c <= 0x2ceaf) ||
           (c >= 0xf900 && c <= 0xfaff) || (c >= 0x2f800 && c <= 0x2fa1f);
}

/* Appends a character, decomposed if accents will be dropped. */
static void bert_add(const struct bert *b, struct unicode_codes *codes, uint32_t c)
{
    if (b->accents) {
        unicode_decompose(codes, c, false);
    } else {
        unicode_codes_add(codes, c);
    }
}

/* A run of any characters: cleaned, decomposed and ordered in `codes`; without accents and in lower
 * case in `lower`. */
static void bert_run(const struct bert *b, const char *text, size_t size, struct unicode_codes *codes,
                     struct unicode_codes *lower, struct dt_text *out)
{
    codes->count = lower->count = 0;
    for (size_t at = 0, n = 0; at < size; at += n) {
        uint32_t c = utf8_read(text + at, &n);
        if (b->clean && (c == 0 || unicode_is_control(c))) {
            continue;
        }
        if (b->clean && unicode_is_white(c)) {
            c = ' ';
        }
        if (b->chinese && is_chinese(c)) {
            unicode_codes_add(codes, ' ');
            bert_add(b, codes, c);
            unicode_codes_add(codes, ' ');
        } else {
            bert_add(b, codes, c);
        }
    }
    if (b->accents) {
        unicode_order(codes);
    }
    for (size_t i = 0; i < codes->count; i++) {
        uint32_t c = (uint32_t)codes->at[i];
        if (b->accents && unicode_is_accent(c)) {
            continue;
        }
        if (b->lower) {
            unicode_lower(lower, c);
        } else {
            unicode_codes_add(lower, c);
        }
    }
    unicode_write(lower, out);
}

/* Printable ASCII, tab, newline and carriage return: characters that neither go nor join others. */
static bool is_simple(unsigned char c)
{
    return (c >= ' ' && c < 0x7f) || c == '\t' || c == '\n' || c == '\r';
}

static size_t bert_simple(const struct bert *b, const char *text, size_t size, struct dt_text *out)
{
    char buffer[256];
    size_t n = 0;
    while (n < size && n < sizeof buffer && is_simple((unsigned char)text[n])) {
        char c = text[n];
        buffer[n++] = b->clean && c < ' ' ? ' ' : b->lower && c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    dt_text_add(out, buffer, n);
    return n;
}

static int apply_bert(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    (void)err;
    struct unicode_codes codes = {0}, lower = {0};
    for (size_t at = 0; at < size;) {
        at += bert_simple(state, text + at, size - at, out);
        size_t end = at;
        while (end < size && !is_simple((unsigned char)text[end])) {
            end++;
        }
        if (end > at) {
            bert_run(state, text + at, end - at, &codes, &lower, out);
        }
        at = end;
    }
    unicode_codes_clear(&codes);
    unicode_codes_clear(&lower);
    return 0;
}

/* ---- Sequence ---- */

struct sequence {
    struct normalizer **at;
    size_t count;
};

static int open_one(struct normalizer **out, const cJSON *json, struct dt_error *err);

static void close_sequence(void *state)
{
    struct sequence *s = state;
    for (size_t i = 0; i < s->count; i++) {
        normalizer_close(s->at[i]);
    }
    free(s->at);
    free(s);
}

static int open_sequence(void **state, const cJSON *json, struct dt_error *err)
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(json, "normalizers"), *one = NULL;
    if (!cJSON_IsArray(list)) {
        return dt_fail(err, DT_INVALID, "normalizers: %s; must be a list", list == NULL ? "missing" : "not a list");
    }
    struct sequence *s = dt_alloc(sizeof *s);
    s->at = dt_alloc(((size_t)cJSON_GetArraySize(list) + 1) * sizeof(struct normalizer *));
    cJSON_ArrayForEach(one, list)
    {
        if (open_one(&s->at[s->count], one, err) != 0) {
            (void)dt_wrap(err, "normalizers[%zu]", s->count);
            close_sequence(s);
            return -1;
        }
        s->count++;
    }
    *state = s;
    return 0;
}

static int apply_sequence(const void *state, const char *text, size_t size, struct dt_text *out, struct dt_error *err)
{
    const struct sequence *s = state;
    struct dt_text between[2] = {{0}, {0}};
    int result = 0;
    for (size_t i = 0; i < s->count && result == 0; i++) {
        struct dt_text *to = i + 1 < s->count ? &between[i % 2] : out;
        if (to != out) {
            dt_text_reset(to);
        }
        result = normalizer_apply(s->at[i], text, size, to, err);
        text = dt_text_str(to);
        size = to->size;
    }
    if (s->count == 0) {
        dt_text_add(out, text, size);
    }
    dt_text_clear(&between[0]);
    dt_text_clear(&between[1]);
    return result;
}

/* ---- the table ---- */

static const struct normalizer_ops rows[] = {
    {"NFC", NULL, apply_nfc, NULL},
    {"NFD", NULL, apply_nfd, NULL},
    {"NFKC", NULL, apply_nfkc, NULL},
    {"NFKD", NULL, apply_nfkd, NULL},
    {"Lowercase", NULL, apply_lowercase, NULL},
    {"Strip", open_strip, apply_strip, free},
    {"StripAccents", NULL, apply_strip_accents, NULL},
    {"Replace", replace_open, replace_apply, replace_close},
    {"Prepend", open_prepend, apply_prepend, free},
    {"Nmt", NULL, apply_nmt, NULL},
    {"BertNormalizer", open_bert, apply_bert, free},
    {"Precompiled", precompiled_open, precompiled_apply, precompiled_close},
    {"ByteLevel", NULL, apply_byte_level, NULL},
    {"Sequence", open_sequence, apply_sequence, close_sequence},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static int fail_type(const char *type, struct dt_error *err)
{
    struct dt_text list = {0};
    struct dt_list names = {.text = &list};
    char shown[64];
    for (size_t i = 0; i < ROWS; i++) {
        dt_list_add(&names, "%s", rows[i].type);
    }
    (void)dt_fail(err, DT_INVALID, "type: %s is not supported; there are %s",
                  dt_text_excerpt(type, strlen(type), shown, sizeof shown), dt_text_str(&list));
    dt_text_clear(&list);
    return -1;
}

static int open_one(struct normalizer **out, const cJSON *json, struct dt_error *err)
{
    const char *type = part_type(json, err);
    if (type == NULL) {
        return -1;
    }
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(type, rows[i].type) == 0) {
            void *state = NULL;
            if (rows[i].open != NULL && rows[i].open(&state, json, err) != 0) {
                return -1;
            }
            *out = dt_alloc(sizeof **out);
            **out = (struct normalizer){&rows[i], state};
            return 0;
        }
    }
    return fail_type(type, err);
}

int normalizer_open(struct normalizer **out, const cJSON *json, struct dt_error *err)
{
    if (json == NULL || cJSON_IsNull(json)) {
        *out = NULL;
        return 0;
    }
    return open_one(out, json, err);
}

int normalizer_apply(const struct normalizer *n, const char *text, size_t size, struct dt_text *out,
                     struct dt_error *err)
{
    if (n == NULL) {
        dt_text_add(out, text, size);
        return 0;
    }
    return n->ops->apply(n->state, text, size, out, err);
}

void normalizer_close(struct normalizer *n)
{
    if (n != NULL && n->ops->close != NULL) {
        n->ops->close(n->state);
    }
    free(n);
}
