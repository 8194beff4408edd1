/* Runs a template: expressions to values, statements to text. */
#include "worker/data/templates/own.h"

#include <cjson/cJSON.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS = 100 };
#define OUT_BYTES ((size_t)16 << 20)

static struct value eval(struct run *r, const struct node *n);
static void run_block(struct run *r, const struct node *n);

/* ---- variables ---- */

static struct value name_text(const char *name)
{
    return text_of(name, strlen(name));
}

static void set_variable(struct run *r, const char *name, struct value v)
{
    dict_set(r, &r->scope->variables, name_text(name), v);
}

static struct scope *enter(struct run *r, struct scope *parent)
{
    struct scope *before = r->scope, *s = take(r, sizeof *s);
    if (s != NULL) {
        s->parent = parent;
        r->scope = s;
    }
    return before;
}

static struct value lookup(struct run *r, const char *name)
{
    for (const struct scope *s = r->scope; s != NULL; s = s->parent) {
        const struct value *v =
            work(r, 1 + (size_t)s->variables.count) ? dict_get(&s->variables, name, strlen(name)) : NULL;
        if (v != NULL) {
            return *v;
        }
    }
    return function_exists(name) ? (struct value){.kind = FUNCTION, .text = {name, strlen(name)}}
                                 : undefined(name, strlen(name));
}

/* ---- access ---- */

static struct value of_undefined(struct run *r, struct value v)
{
    return v.text.size > 0 ? fail(r, "%.*s is undefined", (int)v.text.size, v.text.at) : fail(r, "is undefined");
}

struct value attribute_of(struct run *r, struct value v, const char *name)
{
    size_t size = strlen(name);
    if (v.kind == UNDEFINED) {
        return of_undefined(r, v);
    }
    bool is_method = v.kind == DICT
                         ? strcmp(name, "items") == 0 || strcmp(name, "keys") == 0 || strcmp(name, "values") == 0 ||
                               strcmp(name, "get") == 0
                         : v.kind == TEXT && method_exists(name) && strcmp(name, "items") != 0 &&
                               strcmp(name, "keys") != 0 && strcmp(name, "values") != 0 && strcmp(name, "get") != 0;
    if (is_method) {
        return (struct value){.kind = METHOD, .text = {name, size}};
    }
    bool has = v.kind == DICT || v.kind == NAMESPACE || v.kind == LOOP;
    const struct value *found = has && work(r, (size_t)v.dict->count) ? dict_get(v.dict, name, size) : NULL;
    return found != NULL ? *found : undefined(name, size);
}

struct value item_of(struct run *r, struct value v, struct value key)
{
    bool number = key.kind == INTEGER || key.kind == BOOLEAN;
    int64_t at = key.kind == INTEGER ? key.i : key.kind == BOOLEAN ? key.yes : 0;
    if (v.kind == UNDEFINED) {
        return of_undefined(r, v);
    }
    if ((v.kind == DICT || v.kind == NAMESPACE || v.kind == LOOP) && key.kind == TEXT) {
        const struct value *found =
            work(r, (size_t)v.dict->count) ? dict_get(v.dict, key.text.at, key.text.size) : NULL;
        return found != NULL ? *found : undefined(key.text.at, key.text.size);
    }
    if ((v.kind == LIST || v.kind == TUPLE) && number) {
        at += at < 0 ? v.list->count : 0;
        return at >= 0 && at < v.list->count ? v.list->at[at] : undefined("", 0);
    }
    if (v.kind == TEXT && number && work(r, v.text.size / 16)) {
        int64_t count = text_length(v);
        at += at < 0 ? count : 0;
        return at >= 0 && at < count ? text_part(v, at, at + 1) : undefined("", 0);
    }
    return undefined("", 0);
}

static int64_t bound(struct run *r, const struct node *n, int64_t missing)
{
    struct value v = n != NULL ? eval(r, n) : none_of();
    if (v.kind != NONE && v.kind != INTEGER) {
        (void)fail(r, "a slice by %s", kind_name(v));
    }
    return v.kind == INTEGER ? v.i : missing;
}

/* A place of a slice, from `low` to `high`. */
static int64_t place(int64_t at, int64_t count, int64_t low, int64_t high)
{
    at += at < 0 && at != INT64_MIN ? count : 0;
    return at < low ? low : at > high ? high : at;
}

static struct value slice(struct run *r, const struct node *n)
{
    struct value v = eval(r, n->a);
    int64_t by = bound(r, n->d, 1);
    struct value all =
        v.kind == TEXT || v.kind == LIST || v.kind == TUPLE ? to_list(r, v) : fail(r, "a slice of %s", kind_name(v));
    if (r->failed || by == 0) {
        return fail(r, "a slice with step 0");
    }
    int64_t count = all.list->count, low = by > 0 ? 0 : -1, high = by > 0 ? count : count - 1;
    int64_t from = n->b != NULL ? place(bound(r, n->b, by > 0 ? 0 : INT64_MAX), count, low, high) : by > 0 ? 0 : high;
    struct value end = n->c != NULL ? eval(r, n->c) : none_of();
    if (end.kind != NONE && end.kind != INTEGER) {
        return fail(r, "a slice by %s", kind_name(end));
    }
    int64_t to = end.kind == INTEGER ? place(end.i, count, low, high) : by > 0 ? count : -1;
    int64_t distance = by > 0 ? to - from : from - to, size = by > 0 ? by : by == INT64_MIN ? INT64_MAX : -by;
    int64_t items = distance > 0 ? (distance - 1) / size + 1 : 0;
    if (v.kind == TEXT && by == 1) {
        return text_part(v, from, from + items);
    }
    struct value out = list_of(r, v.kind == TUPLE ? TUPLE : LIST, items);
    for (int64_t i = 0; !r->failed && i < items; i++) {
        out.list->at[i] = all.list->at[from + i * by];
    }
    return r->failed || v.kind != TEXT ? out : call_filter(r, "join", out, &(struct arguments){0});
}

/* ---- operators ---- */

static bool number_of(struct value v, double *f)
{
    *f = v.kind == FLOAT ? v.f : v.kind == INTEGER ? (double)v.i : v.kind == BOOLEAN ? v.yes : 0;
    return v.kind == FLOAT || v.kind == INTEGER || v.kind == BOOLEAN;
}

static struct value whole_result(struct run *r, enum op op, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool over = op == OP_ADD        ? __builtin_add_overflow(a, b, &out)
                : op == OP_SUBTRACT ? __builtin_sub_overflow(a, b, &out)
                : op == OP_MULTIPLY ? __builtin_mul_overflow(a, b, &out)
                                    : a == INT64_MIN && b == -1;
    if (over) {
        return fail(r, "number beyond 64 bits is not supported");
    }
    if (op == OP_FLOOR) {
        out = a / b - (a % b != 0 && (a < 0) != (b < 0));
    } else if (op == OP_MODULO) {
        out = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    }
    return integer(out);
}

static struct value arithmetic(struct run *r, enum op op, struct value a, struct value b)
{
    static const char signs[] = "+-*//%";
    double x, y;
    if (a.kind == UNDEFINED || b.kind == UNDEFINED) {
        return of_undefined(r, a.kind == UNDEFINED ? a : b);
    }
    if (op == OP_ADD && a.kind == TEXT && b.kind == TEXT) {
        char *both = take(r, a.text.size + b.text.size);
        if (both == NULL) {
            return a;
        }
        memcpy(both, a.text.at, a.text.size);
        memcpy(both + a.text.size, b.text.at, b.text.size);
        return text_of(both, a.text.size + b.text.size);
    }
    if (op == OP_ADD && (a.kind == LIST || a.kind == TUPLE) && a.kind == b.kind) {
        struct value out = list_of(r, a.kind, a.list->count + b.list->count);
        for (int64_t i = 0; !r->failed && i < out.list->count; i++) {
            out.list->at[i] = i < a.list->count ? a.list->at[i] : b.list->at[i - a.list->count];
        }
        return out;
    }
    if (a.kind == TEXT && (op == OP_MODULO || op == OP_MULTIPLY)) {
        return fail(r, "%s is not supported", op == OP_MODULO ? "text with %" : "repeated text");
    }
    if (!number_of(a, &x) || !number_of(b, &y)) {
        return fail(r, "%s %c %s", kind_name(a), signs[op - OP_ADD], kind_name(b));
    }
    if (y == 0 && op >= OP_DIVIDE) {
        return fail(r, "division by zero");
    }
    if (a.kind != FLOAT && b.kind != FLOAT && op != OP_DIVIDE) {
        return whole_result(r, op, a.kind == BOOLEAN ? a.yes : a.i, b.kind == BOOLEAN ? b.yes : b.i);
    }
    double rest = op == OP_MODULO ? fmod(x, y) : 0;
    x = op == OP_ADD        ? x + y
        : op == OP_SUBTRACT ? x - y
        : op == OP_MULTIPLY ? x * y
        : op == OP_DIVIDE   ? x / y
        : op == OP_FLOOR    ? floor(x / y)
                            : rest + (rest != 0 && (rest < 0) != (y < 0) ? y : 0);
    return (struct value){.kind = FLOAT, .f = x};
}

static struct value comparison(struct run *r, const struct node *n)
{
    struct value a = eval(r, n->a);
    bool holds = true;
    for (const struct node *o = n->items; o != NULL && holds && !r->failed; o = o->next) {
        struct value b = eval(r, o->a);
        const char *op = o->name;
        if (r->failed) {
            break;
        }
        if (strcmp(op, "==") == 0 || strcmp(op, "!=") == 0) {
            holds = equal(r, a, b) == (*op == '=');
        } else if (strcmp(op, "in") == 0 || strcmp(op, "not") == 0) {
            holds = contains(r, b, a) == (*op == 'i');
        } else {
            int order = compare(r, a, b);
            holds = *op == '<' ? order < (op[1] == '=') : order > -(op[1] == '=');
        }
        a = b;
    }
    return boolean(holds);
}

static struct value concatenation(struct run *r, const struct node *n)
{
    struct dt_text all;
    dt_text_init(&all);
    for (const struct node *o = n->items; o != NULL && !r->failed; o = o->next) {
        struct value v = to_text(r, eval(r, o->a));
        if (!r->failed && work(r, v.text.size / 16)) {
            dt_text_add(&all, v.text.at, v.text.size);
        }
    }
    struct value v = r->failed ? undefined("", 0) : text_copy(r, dt_text_str(&all), all.size);
    dt_text_clear(&all);
    return v;
}

static struct value collection(struct run *r, const struct node *n)
{
    int64_t count = 0;
    for (const struct node *o = n->items; o != NULL; o = o->next) {
        count++;
    }
    struct value v = n->op == OP_DICT ? (struct value){.kind = DICT, .dict = take(r, sizeof *v.dict)}
                                      : list_of(r, n->op == OP_LIST ? LIST : TUPLE, count);
    count = 0;
    for (const struct node *o = n->items; o != NULL && !r->failed; o = o->next) {
        struct value item = eval(r, o->a);
        if (n->op == OP_DICT) {
            dict_set(r, v.dict, o->b->value, item);
        } else if (!r->failed) {
            v.list->at[count++] = item;
        }
    }
    return v;
}

/* ---- calls ---- */

static bool read_arguments(struct run *r, const struct node *items, struct arguments *a)
{
    *a = (struct arguments){0};
    for (const struct node *o = items; o != NULL; o = o->next) {
        a->count++;
    }
    a->at = take(r, (size_t)a->count * sizeof *a->at);
    a->names = take(r, (size_t)a->count * sizeof *a->names);
    int i = 0;
    for (const struct node *o = items; o != NULL && !r->failed; o = o->next, i++) {
        struct value v = eval(r, o->a);
        if (!r->failed) {
            a->at[i] = v;
            a->names[i] = o->name;
            a->by_position += o->name == NULL;
        }
    }
    return !r->failed;
}

/* Runs a block in a scope of its own, whose text is the result. */
static struct value captured(struct run *r, const struct node *items)
{
    struct dt_text text, *before = r->out;
    dt_text_init(&text);
    r->out = &text;
    run_block(r, items);
    r->out = before;
    struct value v = r->failed ? undefined("", 0) : text_copy(r, dt_text_str(&text), text.size);
    dt_text_clear(&text);
    return v;
}

static struct value call_macro(struct run *r, const struct macro *m, const struct arguments *a)
{
    struct scope *before = enter(r, m->scope);
    int used = 0, at = 0;
    if (++r->calls > CALLS) {
        (void)fail(r, "calls nested more than %d deep", CALLS);
    }
    for (const struct node *p = m->node->d; p != NULL && !r->failed; p = p->next, at++) {
        int from = at < a->by_position ? at : -1;
        for (int i = a->by_position; i < a->count; i++) {
            from = strcmp(a->names[i], p->name) == 0 ? i : from;
        }
        used += from >= 0;
        set_variable(r, p->name,
                     from >= 0      ? a->at[from]
                     : p->a != NULL ? eval(r, p->a)
                                    : undefined(p->name, strlen(p->name)));
    }
    if (!r->failed && used != a->count) {
        (void)fail(r, "macro %s has no such argument, or one was given twice", m->node->name);
    }
    struct value v = captured(r, m->node->items);
    r->calls--;
    r->scope = before;
    return v;
}

static struct value call(struct run *r, const struct node *n)
{
    struct arguments a;
    if (n->a->op == OP_ATTRIBUTE) {
        struct value self = eval(r, n->a->a);
        if (!r->failed && (self.kind == TEXT || self.kind == DICT) && read_arguments(r, n->items, &a)) {
            return call_method(r, self, n->a->name, &a);
        }
        return r->failed                ? self
               : self.kind == UNDEFINED ? of_undefined(r, self)
                                        : fail(r, "%s has no method %s", kind_name(self), n->a->name);
    }
    struct value f = eval(r, n->a);
    if (r->failed || !read_arguments(r, n->items, &a)) {
        return f;
    }
    r->line = n->line;
    return f.kind == MACRO       ? call_macro(r, f.macro, &a)
           : f.kind == FUNCTION  ? call_function(r, f.text.at, &a)
           : f.kind == UNDEFINED ? of_undefined(r, f)
                                 : fail(r, "%s cannot be called", kind_name(f));
}

/* ---- expressions ---- */

static struct value sign(struct run *r, struct value v, bool negative)
{
    if (v.kind == FLOAT) {
        v.f = negative ? -v.f : v.f;
    } else if (v.kind == INTEGER || v.kind == BOOLEAN) {
        int64_t i = v.kind == INTEGER ? v.i : v.yes;
        v = negative ? whole_result(r, OP_SUBTRACT, 0, i) : integer(i);
    } else {
        v = v.kind == UNDEFINED ? of_undefined(r, v) : fail(r, "a sign before %s", kind_name(v));
    }
    return v;
}

static struct value filter_or_test(struct run *r, const struct node *n)
{
    struct arguments a;
    struct value v = eval(r, n->a);
    if (r->failed || !read_arguments(r, n->items, &a)) {
        return undefined("", 0);
    }
    return n->op == OP_FILTER ? call_filter(r, n->name, v, &a) : boolean(call_test(r, n->name, v, &a) != n->negated);
}

static struct value eval_node(struct run *r, const struct node *n)
{
    struct value v;
    switch (n->op) {
    case OP_VALUE:
        return n->value;
    case OP_NAME:
        return lookup(r, n->name);
    case OP_LIST:
    case OP_TUPLE:
    case OP_DICT:
        return collection(r, n);
    case OP_OR:
    case OP_AND:
        v = eval(r, n->a);
        return is_true(v) == (n->op == OP_OR) ? v : eval(r, n->b);
    case OP_NOT:
        return boolean(!is_true(eval(r, n->a)));
    case OP_COMPARE:
        return comparison(r, n);
    case OP_ADD:
    case OP_SUBTRACT:
    case OP_MULTIPLY:
    case OP_DIVIDE:
    case OP_FLOOR:
    case OP_MODULO:
        v = eval(r, n->a);
        struct value b = eval(r, n->b);
        return r->failed ? v : arithmetic(r, n->op, v, b);
    case OP_CONCAT:
        return concatenation(r, n);
    case OP_NEGATE:
    case OP_PLUS:
        v = eval(r, n->a);
        return r->failed ? v : sign(r, v, n->op == OP_NEGATE);
    case OP_IF_ELSE:
        return is_true(eval(r, n->b)) ? eval(r, n->a) : n->c != NULL ? eval(r, n->c) : undefined("", 0);
    case OP_ATTRIBUTE:
        v = eval(r, n->a);
        return r->failed ? v : attribute_of(r, v, n->name);
    case OP_ITEM:
        v = eval(r, n->a);
        struct value key = eval(r, n->b);
        return r->failed ? v : item_of(r, v, key);
    case OP_SLICE:
        return slice(r, n);
    case OP_CALL:
        return call(r, n);
    case OP_FILTER:
    case OP_TEST:
        return filter_or_test(r, n);
    default:
        return fail(r, "is no expression");
    }
}

static struct value eval(struct run *r, const struct node *n)
{
    if (n == NULL || !work(r, 1)) {
        return undefined("", 0);
    }
    if (++r->depth > RUN_DEPTH) {
        (void)fail(r, "nested more than %d deep", RUN_DEPTH);
    }
    r->line = n->line;
    struct value v = r->failed ? undefined("", 0) : eval_node(r, n);
    r->depth--;
    return v;
}

/* ---- statements ---- */

static void put(struct run *r, struct value text)
{
    r->out_bytes += text.text.size;
    if (r->out_bytes > OUT_BYTES) {
        (void)fail(r, "writes more than %zu MiB", OUT_BYTES >> 20);
    }
    if (!r->failed && work(r, text.text.size / 16)) {
        dt_text_add(r->out, text.text.at, text.text.size);
    }
}

/* Gives a value, or the parts of it, to names. */
static void assign(struct run *r, const struct node *targets, struct value v)
{
    if (targets->next == NULL) {
        set_variable(r, targets->name, v);
        return;
    }
    struct value parts = to_list(r, v);
    int64_t count = 0, at = 0;
    for (const struct node *t = targets; t != NULL; t = t->next) {
        count++;
    }
    if (!r->failed && parts.list->count != count) {
        (void)fail(r, "%lld values for %lld names", (long long)parts.list->count, (long long)count);
    }
    for (const struct node *t = targets; t != NULL && !r->failed; t = t->next) {
        set_variable(r, t->name, parts.list->at[at++]);
    }
}

/* The members of `loop` in one iteration. */
static void set_loop(struct run *r, const struct list *items, int64_t i)
{
    struct value loop = {.kind = LOOP, .dict = take(r, sizeof *loop.dict)};
    const struct {
        const char *name;
        struct value v;
    } rows[] = {{"index", integer(i + 1)},
                {"index0", integer(i)},
                {"revindex", integer(items->count - i)},
                {"revindex0", integer(items->count - i - 1)},
                {"first", boolean(i == 0)},
                {"last", boolean(i + 1 == items->count)},
                {"length", integer(items->count)},
                {"previtem", i > 0 ? items->at[i - 1] : undefined("loop.previtem", 13)},
                {"nextitem", i + 1 < items->count ? items->at[i + 1] : undefined("loop.nextitem", 13)}};
    for (size_t k = 0; k < sizeof rows / sizeof rows[0] && !r->failed; k++) {
        dict_set(r, loop.dict, name_text(rows[k].name), rows[k].v);
    }
    set_variable(r, "loop", loop);
}

/* The items of a loop that pass its condition. */
static struct value passing(struct run *r, const struct node *n, struct value all)
{
    struct value out = list_of(r, LIST, r->failed ? 0 : all.list->count);
    int64_t count = 0;
    for (int64_t i = 0; !r->failed && i < all.list->count; i++) {
        struct scope *before = enter(r, r->scope);
        assign(r, n->d, all.list->at[i]);
        if (is_true(eval(r, n->b)) && !r->failed) {
            out.list->at[count++] = all.list->at[i];
        }
        r->scope = before;
    }
    if (!r->failed) {
        out.list->count = count;
    }
    return out;
}

static void run_for(struct run *r, const struct node *n)
{
    struct value items = eval(r, n->a);
    items = r->failed ? items : to_list(r, items);
    items = n->b != NULL ? passing(r, n, items) : items;
    bool ended = false; /* an iteration, as jinja2 counts for its `else`: one without break and continue */
    for (int64_t i = 0; !r->failed && i < items.list->count; i++) {
        struct scope *before = enter(r, r->scope);
        set_loop(r, items.list, i);
        if (!r->failed) {
            assign(r, n->d, items.list->at[i]);
        }
        run_block(r, n->items);
        r->scope = before;
        bool stops = r->signal == BREAKS;
        ended = ended || r->signal == GO_ON;
        r->signal = GO_ON;
        if (stops) {
            break;
        }
    }
    if (!r->failed && !ended && n->c != NULL) {
        struct scope *before = enter(r, r->scope);
        run_block(r, n->c->items);
        r->scope = before;
    }
}

static void set_attribute(struct run *r, const struct node *n)
{
    struct value of = lookup(r, n->d->name), v = eval(r, n->a);
    if (r->failed || n->d->next != NULL || of.kind != NAMESPACE) {
        (void)fail(r, "%s.%s: only a namespace can be changed", n->d->name, n->name);
    } else {
        dict_set(r, of.dict, name_text(n->name), v);
    }
}

static void run_if(struct run *r, const struct node *n)
{
    while (n != NULL && n->op == OP_IF && !is_true(eval(r, n->a))) {
        n = n->b;
    }
    if (n != NULL) {
        run_block(r, n->items);
    }
}

static void run_statement(struct run *r, const struct node *n)
{
    struct scope *before = r->scope;
    struct value v;
    switch (n->op) {
    case OP_TEXT:
        put(r, n->value);
        break;
    case OP_PRINT:
        v = eval(r, n->a);
        r->line = n->line;
        if (v.kind >= LIST && !r->failed) {
            (void)fail(r, "printing %s is not supported", kind_name(v));
        }
        v = to_text(r, v);
        if (!r->failed) {
            put(r, v);
        }
        break;
    case OP_IF:
        run_if(r, n);
        break;
    case OP_FOR:
        run_for(r, n);
        break;
    case OP_SET:
        v = eval(r, n->a);
        if (!r->failed) {
            assign(r, n->d, v);
        }
        break;
    case OP_SET_ATTRIBUTE:
        set_attribute(r, n);
        break;
    case OP_SET_BLOCK:
        (void)enter(r, r->scope);
        v = captured(r, n->items);
        r->scope = before;
        set_variable(r, n->d->name, v);
        break;
    case OP_MACRO:
        v = (struct value){.kind = MACRO, .macro = take(r, sizeof *v.macro)};
        if (!r->failed) {
            *v.macro = (struct macro){n, r->scope};
            set_variable(r, n->name, v);
        }
        break;
    case OP_GENERATION:
        (void)enter(r, r->scope);
        run_block(r, n->items);
        r->scope = before;
        break;
    case OP_BREAK:
    case OP_CONTINUE:
        r->signal = n->op == OP_BREAK ? BREAKS : CONTINUES;
        break;
    default:
        break;
    }
}

static void run_block(struct run *r, const struct node *n)
{
    if (++r->depth > RUN_DEPTH) {
        (void)fail(r, "nested more than %d deep", RUN_DEPTH);
    }
    for (; n != NULL && r->signal == GO_ON && work(r, 1); n = n->next) {
        r->line = n->line;
        run_statement(r, n);
    }
    r->depth--;
}

int template_render(const struct template *t, const cJSON *variables, const struct tm *now, struct dt_text *out,
                    struct dt_error *err)
{
    struct dt_text text;
    struct scope root = {0};
    struct run r = {.t = t, .out = &text, .scope = &root, .now = now, .line = 1, .err = err};
    const cJSON *one;
    dt_text_init(&text);
    dt_arena_init(&r.arena);
    cJSON_ArrayForEach(one, variables)
    {
        struct value v = from_json(&r, one);
        if (!r.failed) {
            set_variable(&r, one->string, v);
        }
    }
    run_block(&r, t->body);
    if (!r.failed) {
        dt_text_add(out, dt_text_str(&text), text.size);
    }
    dt_text_clear(&text);
    dt_arena_clear(&r.arena);
    return r.failed ? -1 : 0;
}
