/* Text to nodes. The grammar and what becomes of white space beside tags are jinja2's. */
#include "worker/data/templates/own.h"

#include "base/scan.h"
#include "base/file.h"
#include "worker/data/tokenizers/special_tokens.h"
#include "worker/data/tokenizers/unicode.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES = 1 << 20, CONFIG_BYTES = 1 << 24, DEPTH = 100 };

enum token { T_END, T_TAG_END, T_NAME, T_TEXT, T_NUMBER, T_OPERATOR };

struct parser {
    struct template *t;
    const char *text;
    size_t size, at;
    int line, depth;
    int loops, macros; /* open around here; a macro hides the loops around it */
    bool line_begins;  /* the last tag ended a line */
    /* inside a tag */
    const char *close; /* "}}" or "%}" */
    int brackets;
    enum token token;
    struct value value; /* of a text or number */
    const char *word;   /* of a name or operator */
    struct dt_error *err;
    bool failed;
};

static struct node *bad(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static struct node *bad(struct parser *p, const char *fmt, ...)
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

static struct node *refuse(struct parser *p, const char *what, const char *name)
{
    return bad(p, "%s%s%s is not supported", what, *name != 0 ? " " : "", name);
}

static struct node *make(struct parser *p, enum op op, struct node *a, struct node *b)
{
    struct node *n = dt_arena_alloc(&p->t->arena, sizeof *n);
    *n = (struct node){.op = op, .line = p->line, .a = a, .b = b};
    return n;
}

/* ---- tokens ---- */

static size_t space_at(const char *at, size_t size)
{
    uint32_t code;
    size_t n = size > 0 ? character(at, size, &code) : 0;
    return n > 0 && unicode_is_space(code) ? n : 0;
}

static void step(struct parser *p, size_t bytes)
{
    for (; bytes > 0 && p->at < p->size; bytes--) {
        p->line += p->text[p->at++] == '\n';
    }
}

static bool starts(const struct parser *p, const char *with)
{
    size_t n = strlen(with);
    return p->size - p->at >= n && memcmp(p->text + p->at, with, n) == 0;
}

static void skip_space(struct parser *p)
{
    for (size_t n; (n = space_at(p->text + p->at, p->size - p->at)) > 0;) {
        step(p, n);
    }
}

/* Leaves a tag, whose end is here: "-%}", "+%}" or "%}". */
static bool leave_tag(struct parser *p, const char *end)
{
    char sign = p->at < p->size ? p->text[p->at] : 0;
    bool dash = sign == '-' || (sign == '+' && end[0] != '}');
    p->at += dash;
    if (!starts(p, end)) {
        p->at -= dash;
        return false;
    }
    step(p, 2);
    size_t before = p->at;
    if (dash && sign == '-') {
        skip_space(p);
    } else if (!dash && end[0] != '}' && starts(p, "\n")) {
        step(p, 1);
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
        step(p, 1);
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
                (void)bad(p, "an escape in a text is not right");
                break;
            }
        } else {
            dt_text_add(&text, p->text + p->at, 1);
            step(p, 1);
        }
    }
    if (!p->failed && p->at == p->size) {
        (void)bad(p, "a text does not end");
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
        (void)refuse(p, "number beyond 64 bits", "");
    }
}

static char *word_of(struct parser *p, size_t size)
{
    char *word = dt_arena_alloc(&p->t->arena, size + 1);
    memcpy(word, p->text + p->at, size);
    return word;
}

static void advance(struct parser *p)
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
    if (p->brackets == 0 && leave_tag(p, p->close)) {
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
            (void)refuse(p, "name with two underscores", p->word);
        }
    } else if (c == '\'' || c == '"') {
        read_text(p);
    } else if (c >= 0x80) {
        (void)refuse(p, "name beyond ASCII", "");
    } else {
        n = 1;
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
            n = starts(p, pairs[i]) ? 2 : n;
        }
        p->token = T_OPERATOR;
        p->word = word_of(p, n);
        p->at += n;
        p->brackets += strchr("([{", c) != NULL;
        p->brackets -= strchr(")]}", c) != NULL && p->brackets > 0;
        if (n == 1 && strchr("+-*/%~<>=()[]{}.,:|", c) == NULL) {
            (void)bad(p, "unexpected character %c", c >= ' ' && c < 0x7f ? c : '?');
        }
    }
}

static bool is(const struct parser *p, const char *word)
{
    return (p->token == T_NAME || p->token == T_OPERATOR) && strcmp(p->word, word) == 0;
}

static bool accept(struct parser *p, const char *word)
{
    bool found = is(p, word);
    if (found) {
        advance(p);
    }
    return found;
}

static const char *shown(const struct parser *p)
{
    return p->token == T_END       ? "the end"
           : p->token == T_TAG_END ? p->close
           : p->token == T_TEXT    ? "a text"
           : p->token == T_NUMBER  ? "a number"
                                   : p->word;
}

static void expect(struct parser *p, const char *word)
{
    if (!accept(p, word)) {
        (void)bad(p, "expected %s, got %s", word, shown(p));
    }
}

static void expect_end(struct parser *p)
{
    if (p->token != T_TAG_END) {
        (void)bad(p, "expected %s, got %s", p->close, shown(p));
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

static const char *expect_name(struct parser *p)
{
    const char *name = p->word;
    if (p->token != T_NAME || is_keyword(name)) {
        (void)bad(p, "expected a name, got %s", shown(p));
    }
    advance(p);
    return name;
}

/* ---- expressions ---- */

static struct node *parse_expression(struct parser *p);
static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_tail);

static struct node *operand(struct parser *p, struct node *a, const char *name)
{
    struct node *n = make(p, OP_OPERAND, a, NULL);
    n->name = name;
    return n;
}

/* Arguments behind "(", which is read already. */
static struct node *parse_arguments(struct parser *p)
{
    struct node *first = NULL, **end = &first;
    bool named = false;
    while (!p->failed && !is(p, ")")) {
        const char *keyword = NULL;
        if (is(p, "*") || is(p, "**")) {
            return refuse(p, "argument with", p->word);
        }
        struct node *a = parse_expression(p);
        if (a != NULL && a->op == OP_NAME && accept(p, "=")) {
            keyword = a->name;
            a = parse_expression(p);
        } else if (named) {
            return bad(p, "an argument without a name behind one with a name");
        }
        named = keyword != NULL;
        *end = operand(p, a, keyword);
        end = &(*end)->next;
        if (!is(p, ")")) {
            expect(p, ",");
        }
    }
    expect(p, ")");
    return first;
}

static struct node *parse_list(struct parser *p, struct node *n, const char *close)
{
    struct node **end = &n->items;
    while (!p->failed && !is(p, close)) {
        *end = operand(p, parse_expression(p), NULL);
        end = &(*end)->next;
        if (!is(p, close)) {
            expect(p, ",");
        }
    }
    expect(p, close);
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = make(p, OP_DICT, NULL, NULL), **end = &n->items;
    while (!p->failed && !is(p, "}")) {
        struct node *key = parse_expression(p);
        if (key != NULL && (key->op != OP_VALUE || key->value.kind != TEXT)) {
            return refuse(p, "dict key that is no text", "");
        }
        expect(p, ":");
        *end = operand(p, parse_expression(p), NULL);
        (*end)->b = key;
        end = &(*end)->next;
        if (!is(p, "}")) {
            expect(p, ",");
        }
    }
    expect(p, "}");
    return n;
}

static struct node *parse_parentheses(struct parser *p)
{
    if (is(p, ")")) {
        advance(p);
        return make(p, OP_TUPLE, NULL, NULL);
    }
    struct node *first = parse_expression(p);
    if (!is(p, ",")) {
        expect(p, ")");
        return first;
    }
    struct node *n = make(p, OP_TUPLE, NULL, NULL), *head = operand(p, first, NULL);
    advance(p);
    n = parse_list(p, n, ")");
    head->next = n->items;
    n->items = head;
    return n;
}

static struct node *parse_primary(struct parser *p)
{
    static const char *const constants[] = {"true", "True", "false", "False", "none", "None"};
    struct node *n = make(p, OP_VALUE, NULL, NULL);
    if (p->token == T_TEXT) {
        struct dt_text all;
        dt_text_init(&all);
        for (; p->token == T_TEXT; advance(p)) {
            dt_text_add(&all, p->value.text.at, p->value.text.size);
        }
        char *copy = dt_arena_alloc(&p->t->arena, all.size + 1);
        memcpy(copy, dt_text_str(&all), all.size);
        n->value = text_of(copy, all.size);
        dt_text_clear(&all);
        return n;
    }
    if (p->token == T_NUMBER) {
        n->value = p->value;
        advance(p);
        return n;
    }
    if (p->token == T_NAME) {
        n->op = OP_NAME;
        n->name = expect_name(p);
        for (int i = 0; i < 6; i++) {
            if (strcmp(n->name, constants[i]) == 0) {
                n->op = OP_VALUE;
                n->value = i < 4 ? boolean(i < 2) : none_of();
            }
        }
        return n;
    }
    if (accept(p, "(")) {
        return parse_parentheses(p);
    }
    if (accept(p, "[")) {
        n->op = OP_LIST;
        return parse_list(p, n, "]");
    }
    return accept(p, "{") ? parse_dict(p) : bad(p, "expected an expression, got %s", shown(p));
}

/* Behind "[". */
static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct node *n = make(p, OP_ITEM, of, NULL);
    if (!is(p, ":")) {
        n->b = parse_expression(p);
    }
    if (accept(p, ":")) {
        n->op = OP_SLICE;
        n->c = is(p, ":") || is(p, "]") ? NULL : parse_expression(p);
        if (accept(p, ":")) {
            n->d = is(p, "]") ? NULL : parse_expression(p);
        }
    }
    expect(p, "]");
    return n;
}

/* Refuses, when the template is loaded, calls of what is not computed. */
static void check_call(struct parser *p, const struct node *callee)
{
    static const char *const globals[] = {"cycler", "joiner", "lipsum", "dict"};
    if (callee->op == OP_ATTRIBUTE && !method_exists(callee->name)) {
        (void)refuse(p, "method", callee->name);
    }
    for (size_t i = 0; callee->op == OP_NAME && i < sizeof globals / sizeof globals[0]; i++) {
        if (strcmp(callee->name, globals[i]) == 0) {
            (void)refuse(p, "function", callee->name);
        }
    }
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = make(p, OP_CALL, callee, NULL);
    if (callee != NULL) {
        check_call(p, callee);
    }
    n->items = parse_arguments(p);
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    static const char *const parts[] = {"cycle", "changed", "depth", "depth0"};
    while (!p->failed) {
        if (accept(p, ".")) {
            struct node *of = n;
            n = make(p, OP_ATTRIBUTE, of, NULL);
            if (p->token == T_NUMBER && p->value.kind == INTEGER) {
                n->op = OP_ITEM;
                n->b = make(p, OP_VALUE, NULL, NULL);
                n->b->value = p->value;
                advance(p);
                continue;
            }
            n->name = p->token == T_NAME ? p->word : expect_name(p);
            for (size_t i = 0; of != NULL && of->op == OP_NAME && strcmp(of->name, "loop") == 0 && i < 4; i++) {
                if (strcmp(n->name, parts[i]) == 0) {
                    return bad(p, "loop.%s is not supported", n->name);
                }
            }
            advance(p);
        } else if (accept(p, "[")) {
            n = parse_subscript(p, n);
        } else if (accept(p, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

/* Behind "is". */
static struct node *parse_test(struct parser *p, struct node *of)
{
    struct node *n = make(p, OP_TEST, of, NULL);
    n->negated = accept(p, "not");
    n->name = p->token == T_NAME ? p->word : "";
    if (!test_exists(n->name)) {
        return p->token == T_NAME ? refuse(p, "test", n->name) : bad(p, "expected a test, got %s", shown(p));
    }
    advance(p);
    bool bare = p->token == T_TEXT || p->token == T_NUMBER || is(p, "[") || is(p, "{") ||
                (p->token == T_NAME && !is(p, "else") && !is(p, "or") && !is(p, "and") && !is(p, "is"));
    if (accept(p, "(")) {
        n->items = parse_arguments(p);
    } else if (bare) {
        n->items = operand(p, parse_postfix(p, parse_primary(p)), NULL);
    } else if (is(p, "is")) {
        return bad(p, "a test behind a test");
    }
    return n;
}

static struct node *parse_tail(struct parser *p, struct node *n)
{
    while (!p->failed) {
        if (accept(p, "|")) {
            n = make(p, OP_FILTER, n, NULL);
            n->name = p->token == T_NAME ? p->word : "";
            if (!filter_exists(n->name)) {
                return p->token == T_NAME ? refuse(p, "filter", n->name)
                                          : bad(p, "expected a filter, got %s", shown(p));
            }
            advance(p);
            n->items = accept(p, "(") ? parse_arguments(p) : NULL;
        } else if (accept(p, "is")) {
            n = parse_test(p, n);
        } else if (accept(p, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

static bool deeper(struct parser *p)
{
    if (++p->depth > DEPTH) {
        (void)bad(p, "nested more than %d deep", DEPTH);
    }
    return !p->failed;
}

static struct node *parse_unary(struct parser *p, bool with_tail)
{
    struct node *n = NULL;
    bool minus = is(p, "-");
    if (!deeper(p)) {
        return NULL;
    }
    if (minus || is(p, "+")) {
        advance(p);
        n = make(p, minus ? OP_NEGATE : OP_PLUS, parse_unary(p, false), NULL);
    } else {
        n = parse_postfix(p, parse_primary(p));
    }
    p->depth--;
    if (is(p, "**")) {
        return refuse(p, "operator", "**");
    }
    return with_tail ? parse_tail(p, n) : n;
}

static struct node *parse_product(struct parser *p)
{
    static const char *const words[] = {"*", "/", "//", "%"};
    struct node *n = parse_unary(p, true);
    for (int i = 0; i < 4 && !p->failed; i++) {
        if (accept(p, words[i])) {
            n = make(p, (enum op)(OP_MULTIPLY + i), n, NULL);
            n->b = parse_unary(p, true);
            i = -1;
        }
    }
    return n;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *n = parse_product(p);
    if (is(p, "~")) {
        struct node *all = make(p, OP_CONCAT, NULL, NULL), **end = &all->items;
        *end = operand(p, n, NULL);
        while (accept(p, "~")) {
            end = &(*end)->next;
            *end = operand(p, parse_product(p), NULL);
        }
        n = all;
    }
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    struct node *n = parse_concat(p);
    while (!p->failed && (is(p, "+") || is(p, "-"))) {
        n = make(p, is(p, "+") ? OP_ADD : OP_SUBTRACT, n, NULL);
        advance(p);
        n->b = parse_concat(p);
    }
    return n;
}

static struct node *parse_compare(struct parser *p)
{
    static const char *const words[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not"};
    struct node *first = parse_sum(p), *all = NULL, **end = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !p->failed; i++) {
        if (!accept(p, words[i])) {
            continue;
        }
        if (i == 7) {
            expect(p, "in");
        }
        if (all == NULL) {
            all = make(p, OP_COMPARE, first, NULL);
            end = &all->items;
        }
        *end = operand(p, parse_sum(p), words[i]);
        end = &(*end)->next;
        i = (size_t)-1;
    }
    return all != NULL ? all : first;
}

static struct node *parse_not(struct parser *p)
{
    int nots = 0;
    while (accept(p, "not")) {
        nots++;
    }
    struct node *n = parse_compare(p);
    for (n = nots > 0 ? make(p, OP_NOT, n, NULL) : n; nots > 1; nots--) {
        n = make(p, OP_NOT, n, NULL);
    }
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *n = parse_not(p);
    while (accept(p, "and")) {
        n = make(p, OP_AND, n, parse_not(p));
    }
    return n;
}

static struct node *parse_or(struct parser *p)
{
    struct node *n = parse_and(p);
    while (accept(p, "or")) {
        n = make(p, OP_OR, n, parse_and(p));
    }
    return n;
}

static struct node *parse_expression(struct parser *p)
{
    if (!deeper(p)) {
        return NULL;
    }
    struct node *n = parse_or(p);
    while (accept(p, "if")) {
        n = make(p, OP_IF_ELSE, n, parse_or(p));
        n->c = accept(p, "else") ? parse_expression(p) : NULL;
    }
    p->depth--;
    return n;
}

/* ---- statements ---- */

static struct node *parse_block(struct parser *p, const char *const *ends);

/* Text up to the next tag, as white space control leaves it; null: there is nothing. */
static struct node *parse_text(struct parser *p)
{
    size_t begin = p->at, end = begin;
    bool line_begins = p->line_begins;
    while (end + 1 < p->size && (p->text[end] != '{' || strchr("{%#", p->text[end + 1]) == NULL)) {
        end++;
    }
    end = end + 1 < p->size ? end : p->size;
    char kind = end < p->size ? p->text[end + 1] : 0, sign = end + 2 < p->size ? p->text[end + 2] : 0;
    size_t keep = end;
    if (kind != 0 && sign == '-') {
        struct value left = strip(text_of(p->text + begin, end - begin), STRIP_RIGHT, NULL);
        keep = begin + left.text.size;
    } else if ((kind == '%' || kind == '#') && sign != '+') {
        const char *newline = memrchr(p->text + begin, '\n', end - begin);
        size_t line = newline != NULL ? (size_t)(newline - p->text) + 1 : begin, at = line;
        for (size_t n; at < end && (n = space_at(p->text + at, end - at)) > 0;) {
            at += n;
        }
        keep = at == end && (newline != NULL || line_begins) ? line : end;
    }
    struct node *n = keep > begin ? make(p, OP_TEXT, NULL, NULL) : NULL;
    if (n != NULL) {
        n->value = text_of(p->text + begin, keep - begin);
    }
    step(p, end - begin);
    if (kind != 0) {
        p->at += sign == '-' || sign == '+' ? 3 : 2;
    }
    p->close = kind == '{' ? "}}" : kind == '%' ? "%}" : kind == '#' ? "#}" : "";
    return n;
}

static void skip_comment(struct parser *p)
{
    while (p->at < p->size && !starts(p, "#}") && !starts(p, "-#}") && !starts(p, "+#}")) {
        step(p, 1);
    }
    if (p->at == p->size || !leave_tag(p, "#}")) {
        (void)bad(p, "a comment does not end");
    }
}

/* Names behind "for", "set"; a tuple of them. */
static struct node *parse_targets(struct parser *p)
{
    struct node *first = NULL, **end = &first;
    bool wrapped = accept(p, "(");
    do {
        *end = operand(p, NULL, expect_name(p));
        end = &(*end)->next;
    } while (!p->failed && accept(p, ","));
    if (wrapped) {
        expect(p, ")");
    }
    return first;
}

static struct node *body(struct parser *p, const char *const *ends)
{
    expect_end(p);
    return p->failed || !deeper(p) ? NULL : parse_block(p, ends);
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    struct node *n = make(p, OP_IF, parse_expression(p), NULL);
    n->items = body(p, ends);
    if (accept(p, "elif")) {
        n->b = deeper(p) ? parse_if(p) : NULL;
        p->depth--;
        return n;
    }
    if (accept(p, "else")) {
        n->b = make(p, OP_BLOCK, NULL, NULL);
        n->b->items = body(p, last);
    }
    expect(p, "endif");
    return n;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    struct node *n = make(p, OP_FOR, NULL, NULL);
    n->d = parse_targets(p);
    expect(p, "in");
    n->a = parse_or(p);
    if (is(p, ",")) {
        struct node *all = make(p, OP_TUPLE, NULL, NULL), **end = &all->items;
        *end = operand(p, n->a, NULL);
        while (accept(p, ",")) {
            end = &(*end)->next;
            *end = operand(p, parse_or(p), NULL);
        }
        n->a = all;
    }
    n->b = accept(p, "if") ? parse_expression(p) : NULL;
    if (is(p, "recursive")) {
        return refuse(p, "loop that is", "recursive");
    }
    p->loops++;
    n->items = body(p, ends);
    p->loops--;
    if (accept(p, "else")) {
        n->c = make(p, OP_BLOCK, NULL, NULL);
        n->c->items = body(p, last);
    }
    expect(p, "endfor");
    return n;
}

static struct node *parse_set(struct parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct node *n = make(p, OP_SET, NULL, NULL);
    n->d = parse_targets(p);
    if (accept(p, ".")) {
        n->op = OP_SET_ATTRIBUTE;
        n->name = expect_name(p);
    }
    if (p->token == T_TAG_END && n->op == OP_SET && !p->failed && n->d->next == NULL) {
        n->op = OP_SET_BLOCK;
        p->macros++;
        n->items = body(p, ends);
        p->macros--;
        expect(p, "endset");
        return n;
    }
    expect(p, "=");
    n->a = parse_expression(p);
    if (is(p, ",")) {
        struct node *all = make(p, OP_TUPLE, NULL, NULL), **end = &all->items;
        *end = operand(p, n->a, NULL);
        while (accept(p, ",")) {
            end = &(*end)->next;
            *end = operand(p, parse_expression(p), NULL);
        }
        n->a = all;
    }
    return n;
}

static struct node *parse_macro(struct parser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct node *n = make(p, OP_MACRO, NULL, NULL), **end = &n->d;
    bool has_default = false;
    n->name = expect_name(p);
    expect(p, "(");
    while (!p->failed && !is(p, ")")) {
        *end = operand(p, NULL, expect_name(p));
        if (accept(p, "=")) {
            (*end)->a = parse_expression(p);
        } else if (has_default) {
            return bad(p, "a parameter without a default behind one with a default");
        }
        has_default = (*end)->a != NULL;
        end = &(*end)->next;
        if (!is(p, ")")) {
            expect(p, ",");
        }
    }
    expect(p, ")");
    int loops = p->loops;
    p->loops = 0;
    p->macros++;
    n->items = body(p, ends);
    p->macros--;
    p->loops = loops;
    expect(p, "endmacro");
    return n;
}

static struct node *parse_generation(struct parser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct node *n = make(p, OP_GENERATION, NULL, NULL);
    if (p->macros > 0) {
        return refuse(p, "generation inside a macro", "");
    }
    n->items = body(p, ends);
    expect(p, "endgeneration");
    return n;
}

static struct node *parse_statement(struct parser *p)
{
    static const char *const refused[] = {"include", "import", "from",       "extends", "block",
                                          "raw",     "call",   "autoescape", "with",    "do"};
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *);
    } rows[] = {{"if", parse_if},
                {"for", parse_for},
                {"set", parse_set},
                {"macro", parse_macro},
                {"generation", parse_generation}};
    const char *word = p->token == T_NAME ? p->word : "";
    struct node *n = NULL;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (accept(p, rows[i].name)) {
            n = rows[i].parse(p);
            expect_end(p);
            return n;
        }
    }
    if (strcmp(word, "break") == 0 || strcmp(word, "continue") == 0) {
        if (p->loops == 0) {
            return bad(p, "%s outside of a loop", word);
        }
        n = make(p, *word == 'b' ? OP_BREAK : OP_CONTINUE, NULL, NULL);
        advance(p);
        expect_end(p);
        return n;
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (strcmp(word, refused[i]) == 0) {
            return refuse(p, word, "");
        }
    }
    return strcmp(word, "filter") == 0 ? refuse(p, "filter block", "") : bad(p, "unknown tag %s", shown(p));
}

/* Nodes up to a tag that begins with one of these words, which is the token then; null: up to the end. */
static struct node *parse_block(struct parser *p, const char *const *ends)
{
    struct node *first = NULL, **end = &first;
    while (!p->failed) {
        *end = parse_text(p);
        end = *end != NULL ? &(*end)->next : end;
        if (*p->close == 0) {
            break;
        }
        if (*p->close == '#') {
            skip_comment(p);
            continue;
        }
        p->brackets = 0;
        bool prints = *p->close == '}';
        advance(p);
        for (int i = 0; !prints && ends != NULL && ends[i] != NULL; i++) {
            if (is(p, ends[i])) {
                p->depth--;
                return first;
            }
        }
        struct node *n = prints ? make(p, OP_PRINT, parse_expression(p), NULL) : parse_statement(p);
        if (prints) {
            expect_end(p);
        }
        *end = n;
        end = n != NULL ? &n->next : end;
    }
    if (ends != NULL) {
        (void)bad(p, "%s is missing", ends[0]);
    }
    return first;
}

/* ---- the whole ---- */

/* The source with LF at the ends of lines, without the one at its end. False: it is not UTF-8. */
static bool read_source(struct parser *p, const char *text, size_t size)
{
    char *to = dt_arena_alloc(&p->t->arena, size + 1);
    p->text = to;
    for (size_t i = 0, n; i < size; i += n) {
        n = dt_text_character(text + i, size - i);
        if (n == 0) {
            return false;
        }
        if (text[i] == '\r') {
            n = i + 1 < size && text[i + 1] == '\n' ? 2 : 1;
            to[p->size++] = '\n';
        } else {
            memcpy(to + p->size, text + i, n);
            p->size += n;
        }
    }
    p->size -= p->size > 0 && to[p->size - 1] == '\n';
    return true;
}

int template_open(struct template **out, const char *name, const char *text, size_t size, struct dt_error *err)
{
    struct template *t = dt_alloc(sizeof *t);
    struct parser p = {.t = t, .line = 1, .line_begins = true, .err = err, .close = ""};
    dt_arena_init(&t->arena);
    t->name = dt_strdup(name);
    if (size > (size_t)TEMPLATE_BYTES) {
        (void)bad(&p, "a template of more than %d bytes", TEMPLATE_BYTES);
    } else if (!read_source(&p, text, size)) {
        (void)bad(&p, "is not UTF-8");
    } else {
        t->body = parse_block(&p, NULL);
    }
    if (p.failed) {
        template_close(t);
        return -1;
    }
    *out = t;
    return 0;
}

void template_close(struct template *t)
{
    if (t != NULL) {
        dt_arena_clear(&t->arena);
        free(t->name);
        free(t);
    }
}

/* chat_template of tokenizer_config.json: a text, or an array of {"name", "template"}. */
static int open_of_config(struct template **out, const char *path, struct dt_error *err)
{
    struct dt_text text;
    dt_text_init(&text);
    int rc = dt_file_read(path, CONFIG_BYTES, &text, err);
    cJSON *config = rc == 0 ? dt_scan_parse_others(dt_text_str(&text), text.size, path, err) : NULL;
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(config, "chat_template"),
                *one = cJSON_IsArray(found) ? found->child : NULL;
    for (; one != NULL; one = one->next) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(one, "name"));
        if (name != NULL && strcmp(name, "default") == 0) {
            found = cJSON_GetObjectItemCaseSensitive(one, "template");
            break;
        }
    }
    const char *source = cJSON_GetStringValue(found);
    if (config == NULL) {
        rc = -1;
    } else if (source == NULL) {
        rc = dt_fail(err, DT_NOT_FOUND, "%s: has no chat_template", path);
    } else {
        rc = template_open(out, "chat_template", source, strlen(source), err) == 0 ? 0 : dt_wrap(err, "%s", path);
    }
    cJSON_Delete(config);
    dt_text_clear(&text);
    return rc;
}

int template_find(struct template **out, const char *path, struct dt_error *err)
{
    char *file = special_tokens_beside(path, "chat_template.jinja"),
         *config = special_tokens_beside(path, "tokenizer_config.json");
    struct dt_text text;
    dt_text_init(&text);
    int rc;
    if (dt_file_exists(file)) {
        rc = dt_file_read(file, TEMPLATE_BYTES, &text, err);
        rc = rc == 0 ? template_open(out, file, dt_text_str(&text), text.size, err) : -1;
    } else if (dt_file_exists(config)) {
        rc = open_of_config(out, config, err);
    } else {
        rc = dt_fail(err, DT_NOT_FOUND, "%s: there is no chat_template.jinja and no tokenizer_config.json beside it",
                     path);
    }
    dt_text_clear(&text);
    free(file);
    free(config);
    return rc;
}
