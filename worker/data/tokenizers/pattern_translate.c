/* Oniguruma's regular expressions (Ruby's syntax, as the tokenizers library uses it) for PCRE2.
 * Classes are written out, so that both mean the same characters. Constructs that the two read
 * differently are rewritten, and others refused by name: nothing goes through that was not looked at. */
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/pattern.h"
#include "worker/data/tokenizers/pattern_set.h"

#include <stdlib.h>
#include <string.h>

enum { GROUPS_MOST = 200, CLASSES_MOST = 8, TRANSLATED_MOST = 1 << 20 };

struct translator {
    const char *regex;
    size_t size, at;
    struct dt_text *out;
    size_t atom; /* where the last atom begins in `out`, which a quantifier repeats; SIZE_MAX: there is none */
    struct {
        size_t begin;
        int closers; /* brackets that were opened within, for (?i) */
    } groups[GROUPS_MOST];
    int depth, classes; /* classes: open ones within the outermost */
    bool folds;         /* (?i) was seen */
    struct dt_error *err;
};

static int refuse(struct translator *t, size_t from, size_t size, const char *why)
{
    char shown[40];
    size = from + size > t->size ? t->size - from : size;
    return dt_fail(t->err, DT_INVALID, "Regex: %s at byte %zu: %s",
                   dt_text_excerpt(t->regex + from, size, shown, sizeof shown), from, why);
}

static bool next_is(const struct translator *t, const char *text)
{
    size_t n = strlen(text);
    return t->size - t->at >= n && memcmp(t->regex + t->at, text, n) == 0;
}

static void write_literal(struct translator *t, uint32_t c)
{
    t->atom = t->out->size;
    dt_text_printf(t->out, "\\x{%x}", c);
}

/* \x{41}, \x41 or \u0041, after the backslash and the letter. */
static int read_hex(struct translator *t, char letter, uint32_t *code)
{
    bool braces = letter == 'x' && next_is(t, "{");
    size_t begin = t->at - 2, digits = letter == 'u' ? 4 : braces ? 6 : 2, n = 0;
    t->at += braces;
    for (*code = 0; n < digits && t->at < t->size; n++, t->at++) {
        char c = t->regex[t->at];
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) {
            break;
        }
        *code = *code << 4 | (uint32_t)digit;
    }
    bool closed = !braces || next_is(t, "}");
    t->at += braces;
    if (n == 0 || (letter == 'u' && n < 4) || !closed || *code >= CHARACTERS || (*code >= 0xd800 && *code < 0xe000) ||
        (letter == 'x' && !braces && *code >= 0x80)) {
        return refuse(t, begin, 8, "not the number of a character");
    }
    return 0;
}

/* {name} of \p{name} or \p{^name}, after the letter. */
static int add_property(struct translator *t, struct code_set *s, bool negated)
{
    size_t begin = t->at - 2;
    const char *close = next_is(t, "{") ? memchr(t->regex + t->at, '}', t->size - t->at) : NULL;
    if (close == NULL) {
        return refuse(t, begin, 4, "a property needs braces, as \\p{L}");
    }
    t->at++;
    if (next_is(t, "^")) {
        t->at++;
        negated = !negated;
    }
    size_t size = (size_t)(close - t->regex) - t->at;
    if (!code_set_add_property(s, t->regex + t->at, size, negated)) {
        return refuse(t, begin, t->at + size + 1 - begin,
                      "this property is not supported; general categories (L, Lu, Nd, ...) and Han are");
    }
    t->at += size + 1;
    return 0;
}

static const char plain_names[] = "nrtfvae", plain_values[] = "\n\r\t\f\v\a\x1b";

/* An escape that stands for one character: 1, and *code. 0: it is another. */
static int read_character(struct translator *t, char letter, uint32_t *code)
{
    const char *plain = strchr(plain_names, letter);
    unsigned char c = (unsigned char)letter;
    if (plain != NULL) {
        *code = (unsigned char)plain_values[plain - plain_names];
        return 1;
    }
    if (letter == 'x' || letter == 'u') {
        return read_hex(t, letter, code) == 0 ? 1 : -1;
    }
    if (c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c < 0x20) {
        return 0;
    }
    *code = c;
    return 1;
}

/* Adds the class of an escape, which may stand in brackets, to a set: 1. 0: it is another escape. */
static int add_class(struct translator *t, char letter, struct code_set *s, bool in_class)
{
    if (letter != 0 && strchr("sSdDwW", letter) != NULL) {
        code_set_add_escape(s, (char)(letter | 32), letter < 'a', in_class);
        return 1;
    }
    if (letter == 'p' || letter == 'P') {
        return add_property(t, s, letter == 'P') == 0 ? 1 : -1;
    }
    return 0;
}

/* The characters of words, for \b, which PCRE2 sees otherwise. */
static void write_boundary(struct translator *t, bool negated)
{
    struct code_set words;
    struct dt_text set;
    dt_text_init(&set);
    code_set_open(&words);
    code_set_add_escape(&words, 'w', false, false);
    code_set_write(&words, false, &set);
    t->atom = t->out->size;
    const char *w = dt_text_str(&set);
    dt_text_printf(t->out, negated ? "(?:(?<=%s)(?=%s)|(?<!%s)(?!%s))" : "(?:(?<=%s)(?!%s)|(?<!%s)(?=%s))", w, w, w, w);
    code_set_close(&words);
    dt_text_clear(&set);
}

static int translate_escape(struct translator *t)
{
    size_t begin = t->at++;
    if (t->at >= t->size) {
        return refuse(t, begin, 1, "nothing follows the backslash");
    }
    char letter = t->regex[t->at++];
    uint32_t code;
    int rc = read_character(t, letter, &code);
    if (rc != 0) {
        if (rc > 0) {
            write_literal(t, code);
        }
        return rc < 0 ? -1 : 0;
    }
    if (letter == 'b' || letter == 'B') {
        write_boundary(t, letter == 'B');
        return 0;
    }
    if (letter == 'A' || letter == 'z' || letter == 'Z') {
        t->atom = t->out->size;
        dt_text_printf(t->out, "\\%c", letter);
        return 0;
    }
    struct code_set s;
    code_set_open(&s);
    rc = add_class(t, letter, &s, false);
    if (rc > 0) {
        /* (?i) says nothing of a class without brackets */
        t->atom = t->out->size;
        dt_text_puts(t->out, t->folds ? "(?-i:" : "");
        code_set_write(&s, false, t->out);
        dt_text_puts(t->out, t->folds ? ")" : "");
    }
    code_set_close(&s);
    return rc == 0 ? refuse(t, begin, 2, "this escape is not supported") : rc < 0 ? -1 : 0;
}

static int read_class(struct translator *t, struct code_set *s);

/* A class within a class. */
static int read_inner(struct translator *t, struct code_set *s)
{
    struct code_set inner;
    size_t begin = t->at++;
    bool negated = next_is(t, "^");
    t->at += negated;
    if (next_is(t, ":") || t->classes == CLASSES_MOST) {
        return refuse(t, begin, 8,
                      next_is(t, ":") ? "named classes are not supported; properties are, as \\p{L}"
                                      : "classes are nested too deeply");
    }
    t->classes++;
    code_set_open(&inner);
    int rc = read_class(t, &inner);
    code_set_add_set(s, &inner, negated);
    code_set_close(&inner);
    t->classes--;
    return rc == 0 ? 2 : -1;
}

/* One item of a class: a character (1, *code) or a whole class, which is added (2). */
static int read_item(struct translator *t, struct code_set *s, uint32_t *code)
{
    size_t n, begin = t->at;
    if (next_is(t, "[")) {
        return read_inner(t, s);
    }
    if (!next_is(t, "\\")) {
        *code = utf8_read(t->regex + t->at, &n);
        t->at += n;
        return 1;
    }
    t->at += 2;
    if (t->at > t->size) {
        return refuse(t, begin, 1, "nothing follows the backslash");
    }
    char letter = t->regex[t->at - 1];
    int rc = read_character(t, letter, code);
    if (rc != 0) {
        return rc;
    }
    rc = add_class(t, letter, s, true);
    return rc > 0 ? 2 : rc < 0 ? -1 : refuse(t, begin, 2, "this escape is not supported in a class");
}

/* An item, or a range from it on. */
static int read_range(struct translator *t, struct code_set *s)
{
    uint32_t from, to;
    size_t begin = t->at;
    int rc = read_item(t, s, &from);
    bool range = rc > 0 && next_is(t, "-") && t->at + 1 < t->size && t->regex[t->at + 1] != ']';
    if (rc == 2 && range) {
        return refuse(t, begin, 16, "a class cannot begin a range; write \\-");
    }
    if (rc != 1) {
        return rc < 0 ? -1 : 0;
    }
    to = from;
    if (range) {
        t->at++;
        rc = next_is(t, "[") ? 2 : read_item(t, s, &to);
        if (rc < 0) {
            return -1;
        }
        if (rc == 2 || to < from) {
            return refuse(t, begin, 16, "this range has no end behind its beginning");
        }
    }
    code_set_add(s, from, to);
    return 0;
}

/* The items up to the ] of a class; && intersects what stands on both sides. */
static int read_class(struct translator *t, struct code_set *s)
{
    size_t begin = t->at - 1;
    struct code_set left = {0}; /* the sides before the last && */
    int rc = 0;
    for (bool first = true; rc == 0 && (first || !next_is(t, "]")); first = false) {
        if (t->at >= t->size || (first && next_is(t, "]"))) {
            rc = refuse(t, begin, 8,
                        t->at >= t->size ? "the class has no end"
                                         : "an empty class, or one that begins with ]; write \\]");
        } else if (next_is(t, "&&")) {
            t->at += 2;
            if (left.bits != NULL) {
                code_set_intersect(s, &left);
                code_set_close(&left);
            }
            left = *s;
            code_set_open(s);
        } else {
            rc = read_range(t, s);
        }
    }
    t->at++;
    if (left.bits != NULL) {
        code_set_intersect(s, &left);
        code_set_close(&left);
    }
    return rc;
}

static int translate_class(struct translator *t)
{
    struct code_set s;
    t->at++;
    bool negated = next_is(t, "^");
    t->at += negated;
    code_set_open(&s);
    int rc = read_class(t, &s);
    if (rc == 0) {
        t->atom = t->out->size;
        code_set_write(&s, negated, t->out);
    }
    code_set_close(&s);
    return rc;
}

/* (?i) and (?i:...): Ruby's m is PCRE2's s. Reads up to the ":" or ")". */
static int translate_options(struct translator *t, size_t begin)
{
    char options[8];
    size_t n = 0;
    while (t->at < t->size && strchr("im-", t->regex[t->at]) != NULL && n + 1 < sizeof options) {
        char c = t->regex[t->at++];
        options[n++] = (char)(c == 'm' ? 's' : c);
        t->folds = t->folds || c == 'i';
    }
    options[n] = 0;
    if (n > 0 && next_is(t, ":")) {
        t->at++;
        dt_text_printf(t->out, "(?%s:", options);
        return 0;
    }
    if (n > 0 && next_is(t, ")")) {
        /* up to the end of the group around it, alternatives included */
        t->at++;
        t->depth--;
        if (t->depth >= 0) {
            t->groups[t->depth].closers++;
        }
        dt_text_printf(t->out, "(?%s:", options);
        return 0;
    }
    return refuse(t, begin, 6, "this kind of group is not supported");
}

static int translate_open(struct translator *t)
{
    static const char *const kinds[] = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    size_t begin = t->at;
    if (t->depth == GROUPS_MOST - 1) {
        return refuse(t, begin, 8, "groups are nested too deeply");
    }
    t->depth++;
    t->groups[t->depth].begin = t->out->size;
    t->groups[t->depth].closers = 0;
    t->atom = SIZE_MAX;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (next_is(t, kinds[i])) {
            dt_text_puts(t->out, kinds[i]);
            t->at += strlen(kinds[i]);
            return 0;
        }
    }
    if (next_is(t, "(?")) {
        t->at += 2;
        return translate_options(t, begin);
    }
    dt_text_puts(t->out, "(?:"); /* nothing here asks for what a group has matched */
    t->at++;
    return 0;
}

static int translate_close(struct translator *t)
{
    if (t->depth == 0) {
        return refuse(t, t->at, 1, "no group is open");
    }
    for (int i = 0; i <= t->groups[t->depth].closers; i++) {
        dt_text_puts(t->out, ")");
    }
    t->atom = t->groups[t->depth].begin;
    t->depth--;
    t->at++;
    return 0;
}

/* {n}, {n,}, {,m}, {n,m}: writes it, and returns 1. 0: the brace is a character. */
static int translate_interval(struct translator *t)
{
    unsigned low = 0, high = 0;
    int begin = 0, end = 0, comma = 0;
    const char *p = t->regex + t->at;
    size_t i = 1, rest = t->size - t->at;
    for (; i < rest && p[i] >= '0' && p[i] <= '9' && begin < 6; i++, begin++) {
        low = low * 10 + (unsigned)(p[i] - '0');
    }
    if (i < rest && p[i] == ',') {
        comma = 1;
        i++;
    }
    for (; comma && i < rest && p[i] >= '0' && p[i] <= '9' && end < 6; i++, end++) {
        high = high * 10 + (unsigned)(p[i] - '0');
    }
    if (i >= rest || p[i] != '}' || begin + end == 0) {
        return 0;
    }
    if (low > 65535 || high > 65535 || (end > 0 && high < low)) {
        return refuse(t, t->at, i + 1, "repeats more often than can be, or less than its least number");
    }
    bool more = i + 1 < rest && (p[i + 1] == '+' || (p[i + 1] == '?' && comma == 0));
    if (comma == 0) {
        dt_text_printf(t->out, "{%u}", low);
    } else if (end == 0) {
        dt_text_printf(t->out, "{%u,}", low);
    } else {
        dt_text_printf(t->out, "{%u,%u}", low, high);
    }
    t->at += i + 1;
    if (more) { /* in Ruby a quantifier of its own: neither possessive nor lazy */
        struct dt_text atom;
        dt_text_init(&atom);
        dt_text_add(&atom, t->out->data + t->atom, t->out->size - t->atom);
        t->out->size = t->atom;
        dt_text_printf(t->out, "(?:%s)%c", dt_text_str(&atom), t->regex[t->at++]);
        dt_text_clear(&atom);
    } else if (next_is(t, "?")) {
        dt_text_puts(t->out, "?");
        t->at++;
    }
    return 1;
}

static int translate_quantifier(struct translator *t)
{
    char c = t->regex[t->at];
    if (t->atom == SIZE_MAX) {
        return refuse(t, t->at, 2, "there is nothing to repeat");
    }
    if (c == '{') {
        int rc = translate_interval(t);
        if (rc == 0) {
            write_literal(t, '{');
            t->at++;
            return 0;
        }
        t->atom = SIZE_MAX;
        return rc < 0 ? -1 : 0;
    }
    dt_text_add(t->out, &c, 1);
    t->at++;
    if (next_is(t, "+") || next_is(t, "?")) {
        dt_text_add(t->out, t->regex + t->at++, 1);
    }
    t->atom = SIZE_MAX; /* a second quantifier is refused: the two read it differently */
    return 0;
}

static int translate_one(struct translator *t)
{
    size_t n;
    uint32_t c = utf8_read(t->regex + t->at, &n);
    switch (c) {
    case '\\':
        return translate_escape(t);
    case '[':
        return translate_class(t);
    case '(':
        return translate_open(t);
    case ')':
        return translate_close(t);
    case '{':
    case '*':
    case '+':
    case '?':
        return c == '{' && t->atom == SIZE_MAX ? refuse(t, t->at, 2, "there is nothing to repeat; write \\{")
                                               : translate_quantifier(t);
    case '|':
        dt_text_puts(t->out, "|");
        t->atom = SIZE_MAX;
        break;
    case '^':
    case '$': /* of a line, always */
        t->atom = t->out->size;
        dt_text_puts(t->out, c == '^' ? "(?m:^)" : "(?m:$)");
        break;
    case '.':
        t->atom = t->out->size;
        dt_text_puts(t->out, ".");
        break;
    default:
        write_literal(t, c);
    }
    t->at += n;
    return 0;
}

int pattern_translate(const char *regex, struct dt_text *out, struct dt_error *err)
{
    struct translator *t = dt_alloc(sizeof *t);
    *t = (struct translator){.regex = regex, .size = strlen(regex), .out = out, .atom = SIZE_MAX, .err = err};
    int rc = 0;
    while (rc == 0 && t->at < t->size) {
        rc = translate_one(t);
        if (rc == 0 && out->size > TRANSLATED_MOST) {
            rc = refuse(t, 0, t->size, "too many classes");
        }
    }
    if (rc == 0 && t->depth > 0) {
        rc = refuse(t, 0, t->size, "a group is not closed");
    }
    for (int i = 0; rc == 0 && i < t->groups[0].closers; i++) {
        dt_text_puts(out, ")");
    }
    free(t);
    return rc;
}
