/* Text to tokens. White space beside tags is as jinja2 has it. */
#include "worker/data/templates/parse.h"

#include "worker/data/tokenizers/unicode.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct node *parse_bad(struct parser *p, const char *fmt, ...)
{
    char words[256];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    if (!p->failed) {
        (void)dt_fail(p->err, DT_INVALID, "%s:%d: %s", p->t->name, p->line, words);
    }
    p->failed = true;
    p->token = T_END;
    return NULL;
}

struct node *parse_refuse(struct parser *p, const char *what, const char *name)
{
    return parse_bad(p, "%s%s%s is not supported", what, *name != 0 ? " " : "", name);
}

struct node *parse_make(struct parser *p, enum op op, struct node *a, struct node *b)
{
    struct node *n = dt_arena_alloc(&p->t->arena, sizeof *n);
    *n = (struct node){.op = op, .line = p->line, .a = a, .b = b};
    return n;
}

size_t parse_space_at(const char *at, size_t size)
{
    uint32_t code;
    size_t n = size > 0 ? character(at, size, &code) : 0;
    return n > 0 && unicode_is_space(code) ? n : 0;
}

void parse_step(struct parser *p, size_t bytes)
{
    for (; bytes > 0 && p->at < p->size; bytes--) {
        p->line += p->text[p->at++] == '\n';
    }
}

bool parse_starts(const struct parser *p, const char *with)
{
    size_t n = strlen(with);
    return p->size - p->at >= n && memcmp(p->text + p->at, with, n) == 0;
}

static void skip_space(struct parser *p)
{
    for (size_t n; (n = parse_space_at(p->text + p->at, p->size - p->at)) > 0;) {
        parse_step(p, n);
    }
}

bool parse_leave_tag(struct parser *p, const char *end)
{
    char sign = p->at < p->size ? p->text[p->at] : 0;
    bool dash = sign == '-' || (sign == '+' && end[0] != '}');
    p->at += dash;
    if (!parse_starts(p, end)) {
        p->at -= dash;
        return false;
    }
    parse_step(p, 2);
    size_t before = p->at;
    if (dash && sign == '-') {
        skip_space(p);
    } else if (!dash && end[0] != '}' && parse_starts(p, "\n")) {
        parse_step(p, 1);
    }
    p->line_begins = p->at > before && p->text[p->at - 1] == '\n';
    return true;
}

static void put_utf8(struct dt_text *out, uint32_t c)
{
    struct unicode_codes one = {0};
    unicode_codes_add(&one, c);
    unicode_write(&one, out);
    unicode_codes_clear(&one);
}

/* One escape behind its backslash, as Python reads it. */
static bool read_escape(struct parser *p, struct dt_text *out)
{
    static const char names[] = "ntr\\'\"abfv\n", values[] = "\n\t\r\\'\"\a\b\f\v";
    char c = p->text[p->at];
    const char *known = c != 0 ? strchr(names, c) : NULL;
    int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (known != NULL) {
        dt_text_add(out, values + (known - names), c != '\n');
        parse_step(p, 1);
    } else if (c >= '0' && c <= '7') {
        for (int i = 0; i < 3 && p->at < p->size && p->text[p->at] >= '0' && p->text[p->at] <= '7'; i++) {
            code = code * 8 + (uint32_t)(p->text[p->at++] - '0');
        }
        put_utf8(out, code);
    } else if (digits > 0) {
        for (int i = 1; i <= digits; i++) {
            char h = p->at + (size_t)i < p->size ? p->text[p->at + (size_t)i] : 0;
            if (!isxdigit((unsigned char)h)) {
                return false;
            }
            code = code * 16 + (uint32_t)(h <= '9' ? h - '0' : (h | 32) - 'a' + 10);
        }
        if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
            return false;
        }
        put_utf8(out, code);
        p->at += 1 + (size_t)digits;
    } else {
        dt_text_puts(out, "\\");
        return c != 'N';
    }
    return true;
}

static void read_text(struct parser *p)
{
    char quote = p->text[p->at++];
    struct dt_text text;
    dt_text_init(&text);
    while (p->at < p->size && p->text[p->at] != quote) {
        if (p->text[p->at] == '\\' && p->at + 1 < p->size) {
            p->at++;
            if (!read_escape(p, &text)) {
                (void)parse_bad(p, "an escape in a text is not right");
                break;
            }
        } else {
            dt_text_add(&text, p->text + p->at, 1);
            parse_step(p, 1);
        }
    }
    if (!p->failed && p->at == p->size) {
        (void)parse_bad(p, "a text does not end");
    }
    p->at += !p->failed;
    char *copy = dt_arena_alloc(&p->t->arena, text.size + 1);
    memcpy(copy, dt_text_str(&text), text.size);
    p->token = p->failed ? T_END : T_TEXT;
    p->value = text_of(copy, text.size);
    dt_text_clear(&text);
}

static void read_number(struct parser *p)
{
    char digits[64];
    size_t n = 0, at = p->at;
    bool is_float = false;
    while (at < p->size && n < sizeof digits - 2) {
        char c = p->text[at], after = at + 1 < p->size ? p->text[at + 1] : 0;
        bool sign = (after == '+' || after == '-') && at + 2 < p->size && isdigit((unsigned char)p->text[at + 2]);
        if (isdigit((unsigned char)c)) {
            digits[n++] = c;
        } else if (c == '.' && !is_float && isdigit((unsigned char)after)) {
            is_float = true;
            digits[n++] = c;
        } else if ((c == 'e' || c == 'E') && (isdigit((unsigned char)after) || sign)) {
            is_float = true;
            digits[n++] = c;
            digits[n++] = after;
            at++;
        } else if (c != '_' || !isdigit((unsigned char)after)) {
            break;
        }
        at++;
    }
    digits[n] = 0;
    errno = 0;
    p->token = T_NUMBER;
    p->value = is_float ? (struct value){.kind = FLOAT, .f = strtod(digits, NULL)} : integer(strtoll(digits, NULL, 10));
    p->at = at;
    if ((errno != 0 && !is_float) || n >= sizeof digits - 2) {
        (void)parse_refuse(p, "number beyond 64 bits", "");
    }
}

static char *word_of(struct parser *p, size_t size)
{
    char *word = dt_arena_alloc(&p->t->arena, size + 1);
    memcpy(word, p->text + p->at, size);
    return word;
}

void parse_advance(struct parser *p)
{
    static const char *const pairs[] = {"**", "//", "==", "!=", "<=", ">="};
    if (p->failed) {
        return;
    }
    skip_space(p);
    p->value = undefined("", 0);
    p->word = "";
    if (p->at == p->size) {
        p->token = T_END;
        return;
    }
    if (p->brackets == 0 && parse_leave_tag(p, p->close)) {
        p->token = T_TAG_END;
        return;
    }
    unsigned char c = (unsigned char)p->text[p->at];
    size_t n = 0;
    while (p->at + n < p->size && (isalnum((unsigned char)p->text[p->at + n]) || p->text[p->at + n] == '_')) {
        n++;
    }
    if (isdigit(c)) {
        read_number(p);
    } else if (n > 0) {
        p->token = T_NAME;
        p->word = word_of(p, n);
        p->at += n;
        if (strncmp(p->word, "__", 2) == 0) {
            (void)parse_refuse(p, "name with two underscores", p->word);
        }
    } else if (c == '\'' || c == '"') {
        read_text(p);
    } else if (c >= 0x80) {
        (void)parse_refuse(p, "name beyond ASCII", "");
    } else {
        n = 1;
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
            n = parse_starts(p, pairs[i]) ? 2 : n;
        }
        p->token = T_OPERATOR;
        p->word = word_of(p, n);
        p->at += n;
        p->brackets += c != 0 && strchr("([{", c) != NULL;
        p->brackets -= c != 0 && strchr(")]}", c) != NULL && p->brackets > 0;
        if (c == 0 || (n == 1 && strchr("+-*/%~<>=()[]{}.,:|", c) == NULL)) {
            (void)parse_bad(p, "unexpected character %c", c >= ' ' && c < 0x7f ? c : '?');
        }
    }
}

bool parse_is(const struct parser *p, const char *word)
{
    return (p->token == T_NAME || p->token == T_OPERATOR) && strcmp(p->word, word) == 0;
}

bool parse_accept(struct parser *p, const char *word)
{
    bool found = parse_is(p, word);
    if (found) {
        parse_advance(p);
    }
    return found;
}

const char *parse_shown(const struct parser *p)
{
    return p->token == T_END       ? "the end"
           : p->token == T_TAG_END ? p->close
           : p->token == T_TEXT    ? "a text"
           : p->token == T_NUMBER  ? "a number"
                                   : p->word;
}

void parse_expect(struct parser *p, const char *word)
{
    if (!parse_accept(p, word)) {
        (void)parse_bad(p, "expected %s, got %s", word, parse_shown(p));
    }
}

void parse_expect_end(struct parser *p)
{
    if (p->token != T_TAG_END) {
        (void)parse_bad(p, "expected %s, got %s", p->close, parse_shown(p));
    }
}

static bool is_keyword(const char *word)
{
    static const char *const words[] = {"and", "or", "not", "is", "in", "if", "else", "elif"};
    bool found = false;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        found = found || strcmp(words[i], word) == 0;
    }
    return found;
}

const char *parse_expect_name(struct parser *p)
{
    const char *name = p->word;
    if (p->token != T_NAME || is_keyword(name)) {
        (void)parse_bad(p, "expected a name, got %s", parse_shown(p));
    }
    parse_advance(p);
    return name;
}
