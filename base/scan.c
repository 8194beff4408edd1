/* The pre-scan of JSON: one pass over the text without recursion, with a small stack of open
 * brackets. Keys are compared after decoding their escapes ("a" and "\u0061" are the same key), by
 * a 128-bit hash seeded with the number of their object. */
#include "base/scan.h"

#include "base/text.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct level {
    bool object;
    uint64_t id; /* number of the object; seeds the hashes of its keys */
};

struct scanner {
    const unsigned char *text;
    size_t size, at;
    uint32_t line, column; /* of text[at] */
    const char *where;
    struct dt_scan *out;
    size_t value_count;
    struct level levels[DT_SCAN_DEPTH];
    int depth;
    uint64_t object_count;
    XXH128_hash_t *keys; /* hash table with open addressing; all zero marks a free slot */
    size_t key_count, key_capacity;
    struct dt_text decoded;
    struct dt_scan_limits limits;
    bool any_number; /* accept numbers of any size, because the text is not ours */
    /* for dt_scan_record */
    bool record;
    const char *wanted; /* the key to find */
    struct dt_text *found;
    enum dt_scan_found state;
    bool string;  /* the last value is a string */
    bool no_text; /* an escape in `decoded` stands for no valid character */
    struct dt_error *err;
};

static int fail_at(struct scanner *s, uint32_t line, uint32_t column, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int fail_at(struct scanner *s, uint32_t line, uint32_t column, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    (void)dt_fail_v(s->err, DT_INVALID, fmt, args);
    va_end(args);
    return dt_wrap(s->err, "%s:%u:%u", s->where, line, column);
}
#define fail(s, ...) fail_at(s, (s)->line, (s)->column, __VA_ARGS__)

static void skip_space(struct scanner *s)
{
    while (s->at < s->size) {
        unsigned char c = s->text[s->at];
        if (c == '\n') {
            s->line++;
            s->column = 1;
        } else if (c == ' ' || c == '\t' || c == '\r') {
            s->column++;
        } else {
            return;
        }
        s->at++;
    }
}

/* Reports what is here instead of `wanted`. */
static int unexpected(struct scanner *s, const char *wanted)
{
    if (s->at >= s->size) {
        return fail(s, "the text ends here; expected %s", wanted);
    }
    const unsigned char *p = s->text + s->at;
    size_t n = dt_text_character(p, s->size - s->at);
    if (*p == 0) {
        return fail(s, "NUL byte; expected %s", wanted);
    }
    if (n == 0) {
        return fail(s, "byte 0x%02x is not valid UTF-8", *p);
    }
    if (*p == '#' || (*p == '/' && s->at + 1 < s->size && (p[1] == '/' || p[1] == '*'))) {
        return fail(s, "comments are not part of JSON; remove it");
    }
    if (*p == '\'') {
        return fail(s, "expected %s; JSON strings have double quotes", wanted);
    }
    if (dt_text_is_control((char)*p)) {
        return fail(s, "control character 0x%02x; expected %s", *p, wanted);
    }
    return fail(s, "unexpected \"%.*s\"; expected %s", (int)n, (const char *)p, wanted);
}

static int hex4(struct scanner *s, unsigned *out)
{
    unsigned value = 0;
    for (size_t i = 0; i < 4; i++) {
        unsigned char c = s->at + i < s->size ? s->text[s->at + i] : 0;
        unsigned digit = c >= '0' && c <= '9'   ? c - '0' + 0u
                         : c >= 'a' && c <= 'f' ? c - 'a' + 10u
                         : c >= 'A' && c <= 'F' ? c - 'A' + 10u
                                                : 16;
        if (digit == 16) {
            return fail(s, "\\u needs four hexadecimal digits");
        }
        value = value << 4 | digit;
    }
    s->at += 4;
    s->column += 4;
    *out = value;
    return 0;
}

static void add_character(struct dt_text *t, unsigned code)
{
    unsigned char b[4];
    size_t n;
    if (code < 0x80) {
        b[0] = (unsigned char)code;
        n = 1;
    } else if (code < 0x800) {
        b[0] = (unsigned char)(0xc0 | code >> 6);
        b[1] = (unsigned char)(0x80 | (code & 63));
        n = 2;
    } else if (code < 0x10000) {
        b[0] = (unsigned char)(0xe0 | code >> 12);
        b[1] = (unsigned char)(0x80 | (code >> 6 & 63));
        b[2] = (unsigned char)(0x80 | (code & 63));
        n = 3;
    } else {
        b[0] = (unsigned char)(0xf0 | code >> 18);
        b[1] = (unsigned char)(0x80 | (code >> 12 & 63));
        b[2] = (unsigned char)(0x80 | (code >> 6 & 63));
        b[3] = (unsigned char)(0x80 | (code & 63));
        n = 4;
    }
    dt_text_add(t, b, n);
}

/* Scans an escape after its backslash. */
static int scan_escape(struct scanner *s)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    unsigned char c = s->at < s->size ? s->text[s->at] : 0;
    const char *found = c != 0 ? strchr(names, c) : NULL;
    if (found != NULL) {
        dt_text_add(&s->decoded, values + (found - names), 1);
        s->at++;
        s->column++;
        return 0;
    }
    if (c != 'u') {
        return fail(s, "unknown escape; JSON knows \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
    }
    uint32_t line = s->line, column = s->column;
    unsigned code = 0, low = 0;
    s->at++;
    s->column++;
    if (hex4(s, &code) != 0) {
        return -1;
    }
    if (code >= 0xd800 && code < 0xdc00 && s->at + 1 < s->size && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u') {
        s->at += 2;
        s->column += 2;
        if (hex4(s, &low) != 0) {
            return -1;
        }
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
    }
    if (s->record && (code == 0 || (code >= 0xd800 && code < 0xe000))) {
        s->no_text = true;
        code = 0xfffd;
    }
    if (code >= 0xd800 && code < 0xe000) {
        return fail_at(s, line, column, "\\u%04x is half of a surrogate pair", code);
    }
    if (code == 0) {
        return fail_at(s, line, column, "\\u0000 is not allowed in strings");
    }
    add_character(&s->decoded, code);
    return 0;
}

/* The bytes at the begin of `text` that stand for themselves in a string: ASCII but for controls, quotes and
 * backslashes. */
static size_t plain_run(const unsigned char *text, size_t size)
{
    const uint64_t ones = 0x0101010101010101ull, highs = 0x8080808080808080ull;
    size_t at = 0;
    for (; at + 8 <= size; at += 8) {
        uint64_t word;
        memcpy(&word, text + at, sizeof word);
        uint64_t quote = word ^ ones * '"', slash = word ^ ones * '\\';
        /* a byte below n borrows from its highest bit; one of 0x80 or more is found by that bit itself */
        if (((word | (word - ones * 0x20) | (quote - ones) | (slash - ones)) & highs) != 0) {
            break;
        }
    }
    while (at < size && text[at] >= 0x20 && text[at] < 0x80 && text[at] != '"' && text[at] != '\\') {
        at++;
    }
    return at;
}

/* Scans a string from its opening quote. s->decoded becomes its decoded bytes. */
static int scan_string(struct scanner *s)
{
    uint32_t line = s->line, column = s->column;
    dt_text_reset(&s->decoded);
    s->no_text = false;
    s->at++;
    s->column++;
    for (size_t plain; s->at < s->size;) {
        if ((plain = plain_run(s->text + s->at, s->size - s->at)) > 0) {
            dt_text_add(&s->decoded, s->text + s->at, plain);
            s->at += plain;
            s->column += (uint32_t)plain;
            continue;
        }
        unsigned char c = s->text[s->at];
        if (c == '"') {
            s->at++;
            s->column++;
            return 0;
        }
        if (c == '\\') {
            s->at++;
            s->column++;
            if (scan_escape(s) != 0) {
                return -1;
            }
            continue;
        }
        if (c == '\n') {
            return fail_at(s, line, column, "the string does not end on its line; a closing quote is missing");
        }
        size_t n = dt_text_character(s->text + s->at, s->size - s->at);
        if (n == 0) {
            return fail(s, "byte 0x%02x is not valid UTF-8", c);
        }
        if (c < 0x20) {
            return c == 0 ? fail(s, "NUL byte in a string")
                          : fail(s, "control character 0x%02x in a string; write \\u%04x", c, c);
        }
        dt_text_add(&s->decoded, s->text + s->at, n);
        s->at += n;
        s->column++;
    }
    return fail_at(s, line, column, "the string does not end; a closing quote is missing");
}

static bool digit_at(const struct scanner *s, size_t at)
{
    return at < s->size && s->text[at] >= '0' && s->text[at] <= '9';
}

static int scan_number(struct scanner *s)
{
    size_t at = s->at, first = s->at;
    bool integer = true, zero = true;
    if (s->text[at] == '-') {
        at++;
    }
    if (!digit_at(s, at)) {
        s->column++;
        s->at = at;
        return unexpected(s, "a digit after the minus sign");
    }
    if (s->text[at] == '0' && digit_at(s, at + 1)) {
        return fail(s, "numbers do not begin with 0");
    }
    for (; digit_at(s, at); at++) {
        zero = zero && s->text[at] == '0';
    }
    if (at < s->size && s->text[at] == '.') {
        integer = false;
        at++;
        if (!digit_at(s, at)) {
            return fail(s, "a number needs digits after its point");
        }
        for (; digit_at(s, at); at++) {
            zero = zero && s->text[at] == '0';
        }
    }
    if (at < s->size && (s->text[at] == 'e' || s->text[at] == 'E')) {
        integer = false;
        at++;
        if (at < s->size && (s->text[at] == '+' || s->text[at] == '-')) {
            at++;
        }
        if (!digit_at(s, at)) {
            return fail(s, "a number needs digits after its exponent sign");
        }
        while (digit_at(s, at)) {
            at++;
        }
    }
    size_t length = at - first;
    if (s->any_number) {
        s->at = at;
        s->column += (uint32_t)length;
        return 0;
    }
    char buffer[512];
    if (length >= sizeof buffer) {
        return fail(s, "a number of %zu characters; the limit is %zu", length, sizeof buffer - 1);
    }
    memcpy(buffer, s->text + first, length);
    buffer[length] = 0;
    double value = strtod(buffer, NULL);
    if (!isfinite(value)) {
        return fail(s, "%.40s is too large for a double", buffer);
    }
    if (value == 0 && !zero) {
        return fail(s, "%.40s is too small for a double", buffer);
    }
    if (integer && fabs(value) >= 9007199254740992.0 &&
        strcmp(buffer[0] == '-' ? buffer + 1 : buffer, "9007199254740992") != 0) {
        return fail(s, "%.40s is beyond 2^53 and cannot be kept exactly; write it as a string", buffer);
    }
    s->at = at;
    s->column += (uint32_t)length;
    return 0;
}

static int scan_word(struct scanner *s)
{
    static const char *const words[] = {"true", "false", "null"};
    size_t length = 0;
    while (s->at + length < s->size && length < 12) {
        unsigned char c = s->text[s->at + length];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_')) {
            break;
        }
        length++;
    }
    const char *p = (const char *)s->text + s->at;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (length == strlen(words[i]) && memcmp(p, words[i], length) == 0) {
            s->at += length;
            s->column += (uint32_t)length;
            return 0;
        }
    }
    if (length == 0) {
        return unexpected(s, "a value");
    }
    size_t name = 0; /* CONFIG_BATCH_SIZE: a script was to put a value there */
    while (s->at + name < s->size &&
           ((p[name] >= 'A' && p[name] <= 'Z') || (p[name] >= '0' && p[name] <= '9') || p[name] == '_')) {
        name++;
    }
    if (name > 2 && memchr(p, '_', name) != NULL) {
        return fail(s, "not JSON: looks like a template, fill in %.*s", (int)(name < 60 ? name : 60), p);
    }
    return fail(s, "\"%.*s\" is not a JSON value; words are true, false and null, strings have quotes", (int)length, p);
}

/* Adds a key of the innermost object. False: the object has it already. */
static bool key_is_new(struct scanner *s, XXH128_hash_t hash)
{
    if (hash.low64 == 0 && hash.high64 == 0) {
        hash.low64 = 1;
    }
    if (s->key_count * 2 >= s->key_capacity) {
        size_t capacity = s->key_capacity == 0 ? 64 : s->key_capacity * 2;
        XXH128_hash_t *keys = dt_alloc(capacity * sizeof *keys);
        for (size_t i = 0; i < s->key_capacity; i++) {
            if (s->keys[i].low64 != 0 || s->keys[i].high64 != 0) {
                size_t slot = s->keys[i].low64 & (capacity - 1);
                while (keys[slot].low64 != 0 || keys[slot].high64 != 0) {
                    slot = (slot + 1) & (capacity - 1);
                }
                keys[slot] = s->keys[i];
            }
        }
        free(s->keys);
        s->keys = keys;
        s->key_capacity = capacity;
    }
    size_t slot = hash.low64 & (s->key_capacity - 1);
    while (s->keys[slot].low64 != 0 || s->keys[slot].high64 != 0) {
        if (XXH128_isEqual(s->keys[slot], hash)) {
            return false;
        }
        slot = (slot + 1) & (s->key_capacity - 1);
    }
    s->keys[slot] = hash;
    s->key_count++;
    return true;
}

static int note_value(struct scanner *s, uint32_t key_line, uint32_t key_column)
{
    if (++s->value_count > s->limits.values) {
        return fail(s, "more than %zu values, the limit", s->limits.values);
    }
    if (s->out == NULL) {
        return 0;
    }
    if (s->out->count == s->out->capacity) {
        s->out->capacity = s->out->capacity == 0 ? 64 : s->out->capacity * 2;
        s->out->places = dt_realloc(s->out->places, s->out->capacity * sizeof *s->out->places);
    }
    s->out->places[s->out->count++] = (struct dt_scan_place){.line = s->line,
                                                             .column = s->column,
                                                             .key_line = key_line != 0 ? key_line : s->line,
                                                             .key_column = key_line != 0 ? key_column : s->column};
    return 0;
}

/* Scans `"key" :` in an object. */
static int scan_key(struct scanner *s, uint32_t *line, uint32_t *column)
{
    skip_space(s);
    if (s->at >= s->size || s->text[s->at] != '"') {
        if (s->at < s->size && s->text[s->at] == '}') {
            return fail(s, "a comma before \"}\"; remove the comma");
        }
        return unexpected(s, "a key in double quotes");
    }
    *line = s->line;
    *column = s->column;
    if (scan_string(s) != 0) {
        return -1;
    }
    uint64_t object = s->levels[s->depth - 1].id;
    if (!s->no_text && !key_is_new(s, XXH3_128bits_withSeed(dt_text_str(&s->decoded), s->decoded.size, object))) {
        return fail_at(s, *line, *column, "%.100s: the key stands twice in one object", dt_text_str(&s->decoded));
    }
    skip_space(s);
    if (s->at >= s->size || s->text[s->at] != ':') {
        return unexpected(s, "\":\" after a key");
    }
    s->at++;
    s->column++;
    return 0;
}

/* Scans one value; of an array or object only its opening bracket. */
static int scan_value(struct scanner *s, uint32_t key_line, uint32_t key_column)
{
    skip_space(s);
    if (s->at >= s->size) {
        return unexpected(s, "a value");
    }
    unsigned char c = s->text[s->at];
    if (note_value(s, key_line, key_column) != 0) {
        return -1;
    }
    s->string = c == '"';
    if (c == '{' || c == '[') {
        if (s->depth == DT_SCAN_DEPTH) {
            return fail(s, "nested deeper than %d levels", DT_SCAN_DEPTH);
        }
        s->levels[s->depth++] = (struct level){.object = c == '{', .id = ++s->object_count};
        s->at++;
        s->column++;
        return 0;
    }
    return s->string ? scan_string(s) : c == '-' || (c >= '0' && c <= '9') ? scan_number(s) : scan_word(s);
}

/* Called after a value: closes brackets and consumes the comma. 1: another value follows in the
 * innermost bracket; 0: all brackets are closed. */
static int scan_end(struct scanner *s, bool just_opened)
{
    while (s->depth > 0) {
        bool object = s->levels[s->depth - 1].object;
        skip_space(s);
        unsigned char c = s->at < s->size ? s->text[s->at] : 0;
        if (s->at < s->size && c == (object ? '}' : ']')) {
            s->depth--;
            s->at++;
            s->column++;
            just_opened = false;
            continue;
        }
        if (just_opened) {
            return 1;
        }
        if (s->at >= s->size || c != ',') {
            return unexpected(s, object ? "\",\" or \"}\"" : "\",\" or \"]\"");
        }
        s->at++;
        s->column++;
        skip_space(s);
        if (!object && s->at < s->size && s->text[s->at] == ']') {
            return fail(s, "a comma before \"]\"; remove the comma");
        }
        return 1;
    }
    return 0;
}

/* Called after scan_key: true for the key of dt_scan_record. */
static bool is_wanted(const struct scanner *s)
{
    size_t size = strlen(s->wanted);
    return !s->no_text && s->decoded.size == size && memcmp(dt_text_str(&s->decoded), s->wanted, size) == 0;
}

static int scan_all(struct scanner *s)
{
    if (s->size > s->limits.bytes) {
        return dt_fail(s->err, DT_INVALID, "%s: larger than the limit of %zu bytes", s->where, s->limits.bytes);
    }
    const char *other;
    if (dt_text_mark(s->text, s->size, &other) > 0) {
        return fail(s, "begins with a byte order mark; save it as UTF-8 without one");
    }
    if (other != NULL) {
        return fail(s, "looks like %s; save it as UTF-8", other);
    }
    skip_space(s);
    if (s->at >= s->size) {
        return fail(s, "empty; expected a JSON value");
    }
    int more = 1;
    while (more == 1) {
        uint32_t line = 0, column = 0;
        int depth = s->depth;
        if (depth > 0 && s->levels[depth - 1].object && scan_key(s, &line, &column) != 0) {
            return -1;
        }
        bool wanted = s->record && depth == 1 && s->levels[0].object && is_wanted(s);
        if (scan_value(s, line, column) != 0) {
            return -1;
        }
        if (wanted && s->string) {
            s->state = s->no_text ? DT_SCAN_NO_TEXT : DT_SCAN_FOUND;
            dt_text_add(s->found, s->decoded.data, s->decoded.size);
        }
        more = scan_end(s, s->depth > depth);
        if (more < 0) {
            return -1;
        }
    }
    skip_space(s);
    return s->at < s->size ? unexpected(s, "the end of the text") : 0;
}

static struct scanner *begin(const char *text, size_t size, const char *where, struct dt_error *err)
{
    struct scanner *s = dt_alloc(sizeof *s);
    s->text = (const unsigned char *)text;
    s->size = size;
    s->limits = (struct dt_scan_limits){.bytes = DT_SCAN_BYTES, .values = DT_SCAN_VALUES};
    s->line = s->column = 1;
    s->where = where;
    s->err = err;
    return s;
}

static void end(struct scanner *s)
{
    free(s->keys);
    dt_text_clear(&s->decoded);
    free(s);
}

int dt_scan(const char *text, size_t size, const char *where, struct dt_scan *out, struct dt_error *err)
{
    struct scanner *s = begin(text, size, where, err);
    s->out = out;
    if (out != NULL) {
        out->count = 0;
    }
    int result = scan_all(s);
    end(s);
    return result;
}

int dt_scan_record(const char *text, size_t size, const char *where, const char *key, struct dt_text *out,
                   enum dt_scan_found *found, struct dt_error *err)
{
    struct scanner *s = begin(text, size, where, err);
    s->record = s->any_number = true;
    s->limits.values = SIZE_MAX; /* none of them is kept */
    s->wanted = key;
    s->found = out;
    dt_text_reset(out);
    int result = scan_all(s);
    *found = s->state;
    end(s);
    return result;
}

void dt_scan_clear(struct dt_scan *s)
{
    free(s->places);
    *s = (struct dt_scan){0};
}

/* Called after the scan: builds the tree. */
static cJSON *parse(int scanned, const char *text, size_t size, const char *where, struct dt_error *err)
{
    cJSON *tree = scanned == 0 ? cJSON_ParseWithLength(text, size) : NULL;
    if (scanned == 0 && tree == NULL) {
        (void)dt_fail(err, DT_INVALID, "%s: not readable as JSON", where);
    }
    return tree;
}

struct cJSON *dt_scan_parse(const char *text, size_t size, const char *where, struct dt_scan *out, struct dt_error *err)
{
    return parse(dt_scan(text, size, where, out, err), text, size, where, err);
}

struct cJSON *dt_scan_parse_large(const char *text, size_t size, const char *where, const struct dt_scan_limits *limits,
                                  struct dt_error *err)
{
    struct scanner *s = begin(text, size, where, err);
    s->limits = *limits;
    s->any_number = true;
    int result = scan_all(s);
    end(s);
    return parse(result, text, size, where, err);
}

struct cJSON *dt_scan_parse_others(const char *text, size_t size, const char *where, struct dt_error *err)
{
    const struct dt_scan_limits limits = {.bytes = DT_SCAN_BYTES, .values = DT_SCAN_VALUES};
    return dt_scan_parse_large(text, size, where, &limits, err);
}
