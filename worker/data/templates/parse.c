/* Statements to nodes, and where templates come from. The grammar is jinja2's. */
#include "worker/data/templates/parse.h"

#include "base/file.h"
#include "base/scan.h"
#include "worker/data/tokenizers/special_tokens.h"
#include "worker/data/tokenizers/unicode.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_BYTES = 1 << 20, CONFIG_BYTES = 1 << 24 };

/* ---- statements ---- */

static struct node *parse_block(struct parser *p, const char *const *ends);

static bool begins_tag(const char *at)
{
    return at[0] == '{' && (at[1] == '{' || at[1] == '%' || at[1] == '#');
}

/* Text up to the next tag, as white space control leaves it; null: there is nothing. */
static struct node *parse_text(struct parser *p)
{
    size_t begin = p->at, end = begin;
    bool line_begins = p->line_begins;
    while (end + 1 < p->size && !begins_tag(p->text + end)) {
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
        for (size_t n; at < end && (n = parse_space_at(p->text + at, end - at)) > 0;) {
            at += n;
        }
        keep = at == end && (newline != NULL || line_begins) ? line : end;
    }
    struct node *n = keep > begin ? parse_make(p, OP_TEXT, NULL, NULL) : NULL;
    if (n != NULL) {
        n->value = text_of(p->text + begin, keep - begin);
    }
    parse_step(p, end - begin);
    if (kind != 0) {
        p->at += sign == '-' || sign == '+' ? 3 : 2;
    }
    p->close = kind == '{' ? "}}" : kind == '%' ? "%}" : kind == '#' ? "#}" : "";
    return n;
}

static void skip_comment(struct parser *p)
{
    while (p->at < p->size && !parse_starts(p, "#}") && !parse_starts(p, "-#}") && !parse_starts(p, "+#}")) {
        parse_step(p, 1);
    }
    if (p->at == p->size || !parse_leave_tag(p, "#}")) {
        (void)parse_bad(p, "a comment does not end");
    }
}

/* Names behind "for", "set"; a tuple of them. */
static struct node *parse_targets(struct parser *p)
{
    struct node *first = NULL, **end = &first;
    bool wrapped = parse_accept(p, "(");
    do {
        *end = parse_operand(p, NULL, parse_expect_name(p));
        end = &(*end)->next;
    } while (!p->failed && parse_accept(p, ","));
    if (wrapped) {
        parse_expect(p, ")");
    }
    return first;
}

static struct node *body(struct parser *p, const char *const *ends)
{
    parse_expect_end(p);
    return p->failed || !parse_deeper(p) ? NULL : parse_block(p, ends);
}

static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    struct node *n = parse_make(p, OP_IF, parse_or(p), NULL);
    n->items = body(p, ends);
    if (parse_accept(p, "elif")) {
        n->b = parse_deeper(p) ? parse_if(p) : NULL;
        p->depth--;
        return n;
    }
    if (parse_accept(p, "else")) {
        n->b = parse_make(p, OP_BLOCK, NULL, NULL);
        n->b->items = body(p, last);
    }
    parse_expect(p, "endif");
    return n;
}

static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const last[] = {"endfor", NULL};
    struct node *n = parse_make(p, OP_FOR, NULL, NULL);
    n->d = parse_targets(p);
    parse_expect(p, "in");
    n->a = parse_or(p);
    if (parse_is(p, ",")) {
        struct node *all = parse_make(p, OP_TUPLE, NULL, NULL), **end = &all->items;
        *end = parse_operand(p, n->a, NULL);
        while (parse_accept(p, ",")) {
            end = &(*end)->next;
            *end = parse_operand(p, parse_or(p), NULL);
        }
        n->a = all;
    }
    n->b = parse_accept(p, "if") ? parse_expression(p) : NULL;
    if (parse_is(p, "recursive")) {
        return parse_refuse(p, "loop that is", "recursive");
    }
    p->loops++;
    n->items = body(p, ends);
    p->loops--;
    if (parse_accept(p, "else")) {
        n->c = parse_make(p, OP_BLOCK, NULL, NULL);
        n->c->items = body(p, last);
    }
    parse_expect(p, "endfor");
    return n;
}

static struct node *parse_set(struct parser *p)
{
    static const char *const ends[] = {"endset", NULL};
    struct node *n = parse_make(p, OP_SET, NULL, NULL);
    n->d = parse_targets(p);
    if (parse_accept(p, ".")) {
        n->op = OP_SET_ATTRIBUTE;
        n->name = parse_expect_name(p);
    }
    if (p->token == T_TAG_END && n->op == OP_SET && !p->failed && n->d->next == NULL) {
        n->op = OP_SET_BLOCK;
        p->macros++;
        n->items = body(p, ends);
        p->macros--;
        parse_expect(p, "endset");
        return n;
    }
    parse_expect(p, "=");
    n->a = parse_expression(p);
    if (parse_is(p, ",")) {
        struct node *all = parse_make(p, OP_TUPLE, NULL, NULL), **end = &all->items;
        *end = parse_operand(p, n->a, NULL);
        while (parse_accept(p, ",")) {
            end = &(*end)->next;
            *end = parse_operand(p, parse_expression(p), NULL);
        }
        n->a = all;
    }
    return n;
}

static struct node *parse_macro(struct parser *p)
{
    static const char *const ends[] = {"endmacro", NULL};
    struct node *n = parse_make(p, OP_MACRO, NULL, NULL), **end = &n->d;
    bool has_default = false;
    n->name = parse_expect_name(p);
    parse_expect(p, "(");
    while (!p->failed && !parse_is(p, ")")) {
        *end = parse_operand(p, NULL, parse_expect_name(p));
        if (parse_accept(p, "=")) {
            (*end)->a = parse_expression(p);
        } else if (has_default) {
            return parse_bad(p, "a parameter without a default behind one with a default");
        }
        has_default = (*end)->a != NULL;
        end = &(*end)->next;
        if (!parse_is(p, ")")) {
            parse_expect(p, ",");
        }
    }
    parse_expect(p, ")");
    int loops = p->loops;
    p->loops = 0;
    p->macros++;
    n->items = body(p, ends);
    p->macros--;
    p->loops = loops;
    parse_expect(p, "endmacro");
    return n;
}

static struct node *parse_generation(struct parser *p)
{
    static const char *const ends[] = {"endgeneration", NULL};
    struct node *n = parse_make(p, OP_GENERATION, NULL, NULL);
    if (p->macros > 0) {
        return parse_refuse(p, "generation inside a macro", "");
    }
    n->items = body(p, ends);
    parse_expect(p, "endgeneration");
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
        if (parse_accept(p, rows[i].name)) {
            n = rows[i].parse(p);
            parse_expect_end(p);
            return n;
        }
    }
    if (strcmp(word, "break") == 0 || strcmp(word, "continue") == 0) {
        if (p->loops == 0) {
            return parse_bad(p, "%s outside of a loop", word);
        }
        n = parse_make(p, *word == 'b' ? OP_BREAK : OP_CONTINUE, NULL, NULL);
        parse_advance(p);
        parse_expect_end(p);
        return n;
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (strcmp(word, refused[i]) == 0) {
            return parse_refuse(p, word, "");
        }
    }
    return strcmp(word, "filter") == 0 ? parse_refuse(p, "filter block", "")
                                       : parse_bad(p, "unknown tag %s", parse_shown(p));
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
        parse_advance(p);
        for (int i = 0; !prints && ends != NULL && ends[i] != NULL; i++) {
            if (parse_is(p, ends[i])) {
                p->depth--;
                return first;
            }
        }
        struct node *n = prints ? parse_make(p, OP_PRINT, parse_expression(p), NULL) : parse_statement(p);
        if (prints) {
            parse_expect_end(p);
        }
        *end = n;
        end = n != NULL ? &n->next : end;
    }
    if (ends != NULL) {
        (void)parse_bad(p, "%s is missing", ends[0]);
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
        (void)parse_bad(&p, "a template of more than %d bytes", TEMPLATE_BYTES);
    } else if (!read_source(&p, text, size)) {
        (void)parse_bad(&p, "is not UTF-8");
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
