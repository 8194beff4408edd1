/* Pre-tokenizers that only split. Most look at one character at a time: whether it is a delimiter,
 * and a behavior says which piece a delimiter belongs to. */
#include "worker/data/tokenizers/parts.h"

#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/unicode.h"

#include <stdlib.h>
#include <string.h>

enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };

/* ---- runs of characters ---- */

/* The pieces of delimiters and of what lies between them. Each delimiter is one character. */
static void split_at(bool (*is_delimiter)(uint32_t c), enum behavior behavior, const char *text, size_t size,
                     struct pieces *out)
{
    size_t begin = 0;    /* of the piece that is open */
    bool before = false; /* the character before was a delimiter */
    for (size_t at = 0, n = 0; at < size; at += n) {
        bool delimiter = is_delimiter(utf8_read(text + at, &n));
        bool cut = false;
        switch (behavior) {
        case REMOVED:
        case ISOLATED:
            cut = delimiter || before;
            break;
        case MERGED_WITH_PREVIOUS: /* a delimiter closes the piece that it ends */
            cut = before;
            break;
        case MERGED_WITH_NEXT:
            cut = delimiter;
            break;
        case CONTIGUOUS:
            cut = delimiter != before;
            break;
        }
        if (cut && at > begin) {
            if (!(behavior == REMOVED && before)) {
                pieces_add(out, begin, at);
            }
            begin = at;
        }
        before = delimiter;
    }
    if (size > begin && !(behavior == REMOVED && before)) {
        pieces_add(out, begin, size);
    }
}

/* ---- BertPreTokenizer, WhitespaceSplit ---- */

static void split_white(const void *state, const char *text, size_t size, struct pieces *out)
{
    (void)state;
    split_at(unicode_is_white, REMOVED, text, size, out);
}

static void split_bert(const void *state, const char *text, size_t size, struct pieces *out)
{
    (void)state;
    size_t begin = 0;
    for (size_t at = 0, n = 0; at < size; at += n) {
        uint32_t c = utf8_read(text + at, &n);
        bool white = unicode_is_white(c), punctuation = !white && unicode_is_punctuation(c);
        if (!white && !punctuation) {
            continue;
        }
        if (at > begin) {
            pieces_add(out, begin, at);
        }
        if (punctuation) {
            pieces_add(out, at, at + n);
        }
        begin = at + n;
    }
    if (size > begin) {
        pieces_add(out, begin, size);
    }
}

/* ---- Whitespace: \w+|[^\w\s]+ ---- */

static int word_class(uint32_t c)
{
    return unicode_is_word(c) ? 1 : unicode_is_white(c) ? 0 : 2;
}

static void split_words(const void *state, const char *text, size_t size, struct pieces *out)
{
    (void)state;
    size_t begin = 0;
    int before = 0;
    for (size_t at = 0, n = 0; at < size; at += n) {
        int class = word_class(utf8_read(text + at, &n));
        if (class != before) {
            if (before != 0) {
                pieces_add(out, begin, at);
            }
            begin = at;
            before = class;
        }
    }
    if (before != 0) {
        pieces_add(out, begin, size);
    }
}

/* ---- Punctuation, Digits: the state is the behavior ---- */

static int keep_behavior(void **state, enum behavior behavior)
{
    *state = dt_alloc(sizeof behavior);
    memcpy(*state, &behavior, sizeof behavior);
    return 0;
}

static int open_punctuation(void **state, const cJSON *json, struct dt_error *err)
{
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const char *name = NULL;
    if (part_text(json, "behavior", "Isolated", &name, err) != 0) {
        return -1;
    }
    for (int i = 0; i <= CONTIGUOUS; i++) {
        if (strcmp(name, names[i]) == 0) {
            return keep_behavior(state, (enum behavior)i);
        }
    }
    char shown[64];
    return dt_fail(err, DT_INVALID,
                   "behavior: %s; there are Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                   dt_text_excerpt(name, strlen(name), shown, sizeof shown));
}

static void split_punctuation(const void *state, const char *text, size_t size, struct pieces *out)
{
    split_at(unicode_is_punctuation, *(const enum behavior *)state, text, size, out);
}

static int open_digits(void **state, const cJSON *json, struct dt_error *err)
{
    bool individual = false;
    if (part_bool(json, "individual_digits", -1, &individual, err) != 0) {
        return -1;
    }
    return keep_behavior(state, individual ? ISOLATED : CONTIGUOUS);
}

static void split_digits(const void *state, const char *text, size_t size, struct pieces *out)
{
    split_at(unicode_is_numeric, *(const enum behavior *)state, text, size, out);
}

/* ---- CharDelimiterSplit: the state is the delimiter's UTF-8 ---- */

static int open_char_delimiter(void **state, const cJSON *json, struct dt_error *err)
{
    const char *delimiter = NULL;
    size_t n = 0;
    if (part_text(json, "delimiter", "", &delimiter, err) != 0) {
        return -1;
    }
    if (*delimiter != 0) {
        (void)utf8_read(delimiter, &n);
    }
    if (n == 0 || delimiter[n] != 0) {
        return dt_fail(err, DT_INVALID, "delimiter: must be one character");
    }
    *state = dt_strdup(delimiter);
    return 0;
}

static void split_char_delimiter(const void *state, const char *text, size_t size, struct pieces *out)
{
    const char *delimiter = state;
    size_t n = strlen(delimiter), begin = 0;
    for (;;) {
        const char *found = size - begin >= n ? memmem(text + begin, size - begin, delimiter, n) : NULL;
        size_t end = found != NULL ? (size_t)(found - text) : size;
        if (end > begin) {
            pieces_add(out, begin, end);
        }
        if (found == NULL) {
            return;
        }
        begin = end + n;
    }
}

/* ---- FixedLength: the state is the number of characters ---- */

static int open_fixed_length(void **state, const cJSON *json, struct dt_error *err)
{
    int64_t length = 0;
    if (part_integer(json, "length", 5, INT32_MAX, &length, err) != 0) {
        return -1;
    }
    if (length == 0) {
        return dt_fail(err, DT_INVALID, "length: 0; must be at least 1");
    }
    *state = dt_alloc(sizeof length);
    memcpy(*state, &length, sizeof length);
    return 0;
}

static void split_fixed_length(const void *state, const char *text, size_t size, struct pieces *out)
{
    int64_t length = *(const int64_t *)state, count = 0;
    size_t begin = 0;
    for (size_t at = 0, n = 0; at < size; at += n) {
        (void)utf8_read(text + at, &n);
        if (++count == length || at + n == size) {
            pieces_add(out, begin, at + n);
            begin = at + n;
            count = 0;
        }
    }
}

static int open_nothing(void **state, const cJSON *json, struct dt_error *err)
{
    (void)json;
    (void)err;
    *state = NULL;
    return 0;
}

const struct splitter_ops splitter_bert = {"BertPreTokenizer", open_nothing, split_bert, NULL},
                          splitter_whitespace = {"Whitespace", open_nothing, split_words, NULL},
                          splitter_whitespace_split = {"WhitespaceSplit", open_nothing, split_white, NULL},
                          splitter_punctuation = {"Punctuation", open_punctuation, split_punctuation, free},
                          splitter_digits = {"Digits", open_digits, split_digits, free},
                          splitter_char_delimiter = {"CharDelimiterSplit", open_char_delimiter, split_char_delimiter,
                                                     free},
                          splitter_fixed_length = {"FixedLength", open_fixed_length, split_fixed_length, free};
