/* Tokens to the nodes of expressions, by jinja2's grammar. */
#include "worker/data/templates/parse.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 100 };

static struct node *parse_unary(struct parser *p, bool with_tail);

struct node *parse_operand(struct parser *p, struct node *a, const char *name)
{
    struct node *n = parse_make(p, OP_OPERAND, a, NULL);
    n->name = name;
    return n;
}

/* Arguments behind "(", which is read already. */
static struct node *parse_arguments(struct parser *p)
{
    struct node *first = NULL, **end = &first;
    bool named = false;
    while (!p->failed && !parse_is(p, ")")) {
        const char *keyword = NULL;
        if (parse_is(p, "*") || parse_is(p, "**")) {
            return parse_refuse(p, "argument with", p->word);
        }
        struct node *a = parse_expression(p);
        if (a != NULL && a->op == OP_NAME && parse_accept(p, "=")) {
            keyword = a->name;
            a = parse_expression(p);
        } else if (named) {
            return parse_bad(p, "an argument without a name behind one with a name");
        }
        named = keyword != NULL;
        *end = parse_operand(p, a, keyword);
        end = &(*end)->next;
        if (!parse_is(p, ")")) {
            parse_expect(p, ",");
        }
    }
    parse_expect(p, ")");
    return first;
}

static struct node *parse_list(struct parser *p, struct node *n, const char *close)
{
    struct node **end = &n->items;
    while (!p->failed && !parse_is(p, close)) {
        *end = parse_operand(p, parse_expression(p), NULL);
        end = &(*end)->next;
        if (!parse_is(p, close)) {
            parse_expect(p, ",");
        }
    }
    parse_expect(p, close);
    return n;
}

static struct node *parse_dict(struct parser *p)
{
    struct node *n = parse_make(p, OP_DICT, NULL, NULL), **end = &n->items;
    while (!p->failed && !parse_is(p, "}")) {
        struct node *key = parse_expression(p);
        if (key != NULL && (key->op != OP_VALUE || key->value.kind != TEXT)) {
            return parse_refuse(p, "dict key that is no text", "");
        }
        parse_expect(p, ":");
        *end = parse_operand(p, parse_expression(p), NULL);
        (*end)->b = key;
        end = &(*end)->next;
        if (!parse_is(p, "}")) {
            parse_expect(p, ",");
        }
    }
    parse_expect(p, "}");
    return n;
}

static struct node *parse_parentheses(struct parser *p)
{
    if (parse_is(p, ")")) {
        parse_advance(p);
        return parse_make(p, OP_TUPLE, NULL, NULL);
    }
    struct node *first = parse_expression(p);
    if (!parse_is(p, ",")) {
        parse_expect(p, ")");
        return first;
    }
    struct node *n = parse_make(p, OP_TUPLE, NULL, NULL), *head = parse_operand(p, first, NULL);
    parse_advance(p);
    n = parse_list(p, n, ")");
    head->next = n->items;
    n->items = head;
    return n;
}

static struct node *parse_primary(struct parser *p)
{
    static const char *const constants[] = {"true", "True", "false", "False", "none", "None"};
    struct node *n = parse_make(p, OP_VALUE, NULL, NULL);
    if (p->token == T_TEXT) {
        struct dt_text all;
        dt_text_init(&all);
        for (; p->token == T_TEXT; parse_advance(p)) {
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
        parse_advance(p);
        return n;
    }
    if (p->token == T_NAME) {
        n->op = OP_NAME;
        n->name = parse_expect_name(p);
        for (int i = 0; i < 6; i++) {
            if (strcmp(n->name, constants[i]) == 0) {
                n->op = OP_VALUE;
                n->value = i < 4 ? boolean(i < 2) : none_of();
            }
        }
        return n;
    }
    if (parse_accept(p, "(")) {
        return parse_parentheses(p);
    }
    if (parse_accept(p, "[")) {
        n->op = OP_LIST;
        return parse_list(p, n, "]");
    }
    return parse_accept(p, "{") ? parse_dict(p) : parse_bad(p, "expected an expression, got %s", parse_shown(p));
}

/* Behind "[". */
static struct node *parse_subscript(struct parser *p, struct node *of)
{
    struct node *n = parse_make(p, OP_ITEM, of, NULL);
    if (!parse_is(p, ":")) {
        n->b = parse_expression(p);
    }
    if (parse_accept(p, ":")) {
        n->op = OP_SLICE;
        n->c = parse_is(p, ":") || parse_is(p, "]") ? NULL : parse_expression(p);
        if (parse_accept(p, ":")) {
            n->d = parse_is(p, "]") ? NULL : parse_expression(p);
        }
    }
    parse_expect(p, "]");
    return n;
}

/* Refuses, when the template is loaded, calls of what is not computed. */
static void check_call(struct parser *p, const struct node *callee)
{
    static const char *const globals[] = {"cycler", "joiner", "lipsum", "dict"};
    if (callee->op == OP_ATTRIBUTE && !method_exists(callee->name)) {
        (void)parse_refuse(p, "method", callee->name);
    }
    for (size_t i = 0; callee->op == OP_NAME && i < sizeof globals / sizeof globals[0]; i++) {
        if (strcmp(callee->name, globals[i]) == 0) {
            (void)parse_refuse(p, "function", callee->name);
        }
    }
}

static struct node *parse_call(struct parser *p, struct node *callee)
{
    struct node *n = parse_make(p, OP_CALL, callee, NULL);
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
        if (parse_accept(p, ".")) {
            struct node *of = n;
            n = parse_make(p, OP_ATTRIBUTE, of, NULL);
            if (p->token == T_NUMBER && p->value.kind == INTEGER) {
                n->op = OP_ITEM;
                n->b = parse_make(p, OP_VALUE, NULL, NULL);
                n->b->value = p->value;
                parse_advance(p);
                continue;
            }
            n->name = p->token == T_NAME ? p->word : parse_expect_name(p);
            for (size_t i = 0; of != NULL && of->op == OP_NAME && strcmp(of->name, "loop") == 0 && i < 4; i++) {
                if (strcmp(n->name, parts[i]) == 0) {
                    return parse_bad(p, "loop.%s is not supported", n->name);
                }
            }
            parse_advance(p);
        } else if (parse_accept(p, "[")) {
            n = parse_subscript(p, n);
        } else if (parse_accept(p, "(")) {
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
    struct node *n = parse_make(p, OP_TEST, of, NULL);
    n->negated = parse_accept(p, "not");
    n->name = p->token == T_NAME ? p->word : "";
    if (!test_exists(n->name)) {
        return p->token == T_NAME ? parse_refuse(p, "test", n->name)
                                  : parse_bad(p, "expected a test, got %s", parse_shown(p));
    }
    parse_advance(p);
    bool bare =
        p->token == T_TEXT || p->token == T_NUMBER || parse_is(p, "[") || parse_is(p, "{") ||
        (p->token == T_NAME && !parse_is(p, "else") && !parse_is(p, "or") && !parse_is(p, "and") && !parse_is(p, "is"));
    if (parse_accept(p, "(")) {
        n->items = parse_arguments(p);
    } else if (bare) {
        n->items = parse_operand(p, parse_postfix(p, parse_primary(p)), NULL);
    } else if (parse_is(p, "is")) {
        return parse_bad(p, "a test behind a test");
    }
    return n;
}

static struct node *parse_tail(struct parser *p, struct node *n)
{
    while (!p->failed) {
        if (parse_accept(p, "|")) {
            n = parse_make(p, OP_FILTER, n, NULL);
            n->name = p->token == T_NAME ? p->word : "";
            if (!filter_exists(n->name)) {
                return p->token == T_NAME ? parse_refuse(p, "filter", n->name)
                                          : parse_bad(p, "expected a filter, got %s", parse_shown(p));
            }
            parse_advance(p);
            n->items = parse_accept(p, "(") ? parse_arguments(p) : NULL;
        } else if (parse_accept(p, "is")) {
            n = parse_test(p, n);
        } else if (parse_accept(p, "(")) {
            n = parse_call(p, n);
        } else {
            break;
        }
    }
    return n;
}

bool parse_deeper(struct parser *p)
{
    if (++p->depth > DEPTH) {
        (void)parse_bad(p, "nested more than %d deep", DEPTH);
    }
    return !p->failed;
}

static struct node *parse_unary(struct parser *p, bool with_tail)
{
    struct node *n = NULL;
    bool minus = parse_is(p, "-");
    if (!parse_deeper(p)) {
        return NULL;
    }
    if (minus || parse_is(p, "+")) {
        parse_advance(p);
        n = parse_make(p, minus ? OP_NEGATE : OP_PLUS, parse_unary(p, false), NULL);
    } else {
        n = parse_postfix(p, parse_primary(p));
    }
    p->depth--;
    if (parse_is(p, "**")) {
        return parse_refuse(p, "operator", "**");
    }
    return with_tail ? parse_tail(p, n) : n;
}

static struct node *parse_product(struct parser *p)
{
    static const char *const words[] = {"*", "/", "//", "%"};
    struct node *n = parse_unary(p, true);
    for (int i = 0; i < 4 && !p->failed; i++) {
        if (parse_accept(p, words[i])) {
            n = parse_make(p, (enum op)(OP_MULTIPLY + i), n, NULL);
            n->b = parse_unary(p, true);
            i = -1;
        }
    }
    return n;
}

static struct node *parse_concat(struct parser *p)
{
    struct node *n = parse_product(p);
    if (parse_is(p, "~")) {
        struct node *all = parse_make(p, OP_CONCAT, NULL, NULL), **end = &all->items;
        *end = parse_operand(p, n, NULL);
        while (parse_accept(p, "~")) {
            end = &(*end)->next;
            *end = parse_operand(p, parse_product(p), NULL);
        }
        n = all;
    }
    return n;
}

static struct node *parse_sum(struct parser *p)
{
    struct node *n = parse_concat(p);
    while (!p->failed && (parse_is(p, "+") || parse_is(p, "-"))) {
        n = parse_make(p, parse_is(p, "+") ? OP_ADD : OP_SUBTRACT, n, NULL);
        parse_advance(p);
        n->b = parse_concat(p);
    }
    return n;
}

static struct node *parse_compare(struct parser *p)
{
    static const char *const words[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not"};
    struct node *first = parse_sum(p), *all = NULL, **end = NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !p->failed; i++) {
        if (!parse_accept(p, words[i])) {
            continue;
        }
        if (i == 7) {
            parse_expect(p, "in");
        }
        if (all == NULL) {
            all = parse_make(p, OP_COMPARE, first, NULL);
            end = &all->items;
        }
        *end = parse_operand(p, parse_sum(p), words[i]);
        end = &(*end)->next;
        i = (size_t)-1;
    }
    return all != NULL ? all : first;
}

static struct node *parse_not(struct parser *p)
{
    int nots = 0;
    while (parse_accept(p, "not")) {
        nots++;
    }
    struct node *n = parse_compare(p);
    for (n = nots > 0 ? parse_make(p, OP_NOT, n, NULL) : n; nots > 1; nots--) {
        n = parse_make(p, OP_NOT, n, NULL);
    }
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *n = parse_not(p);
    while (parse_accept(p, "and")) {
        n = parse_make(p, OP_AND, n, parse_not(p));
    }
    return n;
}

struct node *parse_or(struct parser *p)
{
    struct node *n = parse_and(p);
    while (parse_accept(p, "or")) {
        n = parse_make(p, OP_OR, n, parse_and(p));
    }
    return n;
}

struct node *parse_expression(struct parser *p)
{
    if (!parse_deeper(p)) {
        return NULL;
    }
    struct node *n = parse_or(p);
    while (parse_accept(p, "if")) {
        n = parse_make(p, OP_IF_ELSE, n, parse_or(p));
        n->c = parse_accept(p, "else") ? parse_expression(p) : NULL;
    }
    p->depth--;
    return n;
}
