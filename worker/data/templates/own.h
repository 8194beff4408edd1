/* Nodes of a template's program, and values while it runs. */
#ifndef DT_WORKER_DATA_TEMPLATES_OWN_H
#define DT_WORKER_DATA_TEMPLATES_OWN_H

#include "base/arena.h"
#include "worker/data/templates/template.h"

#include <stdbool.h>
#include <stdint.h>

enum kind {
    UNDEFINED,
    NONE,
    BOOLEAN,
    INTEGER,
    FLOAT,
    TEXT,
    LIST,
    TUPLE,
    GENERATOR, /* what map, select, items and reverse give: in `list`; true, without length, read once */
    DICT,
    NAMESPACE,
    LOOP, /* a dict in `dict` */
    MACRO,
    METHOD,
    FUNCTION
};

struct value {
    enum kind kind;
    union {
        bool yes;
        int64_t i;
        double f;
        struct {
            const char *at;
            size_t size;
        } text; /* UTF-8; of UNDEFINED, METHOD and FUNCTION: its name */
        struct list *list;
        struct dict *dict;
        struct macro *macro;
    };
};

struct list {
    struct value *at;
    int64_t count;
};

struct dict { /* keys in the order in which they came */
    struct entry {
        struct value key; /* a text */
        struct value value;
    } * at;
    int64_t count, capacity;
};

enum op {
    /* expressions */
    OP_VALUE,
    OP_NAME,
    OP_LIST,
    OP_TUPLE,
    OP_DICT, /* items: key, value, key, ... */
    OP_OR,
    OP_AND,
    OP_NOT,
    OP_COMPARE, /* a, then items with `name` as operator */
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR,
    OP_MODULO,
    OP_CONCAT, /* items */
    OP_NEGATE,
    OP_PLUS,
    OP_IF_ELSE, /* a if b else c */
    OP_ATTRIBUTE,
    OP_ITEM,
    OP_SLICE, /* a [b : c : d] */
    OP_CALL,
    OP_FILTER,
    OP_TEST,
    OP_OPERAND, /* of OP_COMPARE and calls: a; name: the operator, the keyword or null */
    /* statements */
    OP_TEXT,
    OP_PRINT,
    OP_IF,  /* a; items: the body; b: the rest, an OP_IF or a block */
    OP_FOR, /* targets in `d`; a: over; b: condition; items: body; c: else */
    OP_SET, /* targets in `d`; a */
    OP_SET_ATTRIBUTE,
    OP_SET_BLOCK,
    OP_MACRO, /* name; d: parameters with defaults in a; items: body */
    OP_GENERATION,
    OP_BREAK,
    OP_CONTINUE,
    OP_BLOCK /* items */
};

struct node {
    enum op op;
    int line;
    bool negated; /* of OP_TEST */
    const char *name;
    struct value value;
    struct node *a, *b, *c, *d, *items, *next;
};

struct template
{
    char *name;
    struct dt_arena arena;
    struct node *body;
};

struct scope {
    struct scope *parent;
    struct dict variables;
};

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was made */
};

struct arguments {
    struct value *at;
    const char **names; /* of each; null: by position */
    int count, by_position;
};

/* Calls of C functions within each other, while a template runs: expressions, blocks, filters, comparisons. */
enum { RUN_DEPTH = 3000 };

struct json_form {
    bool ascii, sorted;
    int indent;             /* -1: one line */
    const char *item, *key; /* what stands behind an item, and a key */
};

/* One rendering. After an error all functions do nothing and return what is undefined. */
struct run {
    const struct template *t;
    struct dt_arena arena;
    struct dt_text *out;
    struct scope *scope;
    const struct tm *now;
    enum { GO_ON, BREAKS, CONTINUES } signal;
    int line, depth, calls;
    int64_t steps;
    size_t used_bytes, out_bytes;
    bool failed;
    struct dt_error *err;
};

/* ---- values.c ---- */
struct value fail(struct run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Counts work: `amount` steps. False: the run has failed, or fails here. */
bool work(struct run *r, size_t amount);
void *take(struct run *r, size_t size_bytes); /* zeroed; counts as work */
struct value text_of(const char *at, size_t size);
struct value text_copy(struct run *r, const char *at, size_t size);
struct value boolean(bool yes);
struct value integer(int64_t i);
struct value list_of(struct run *r, enum kind kind, int64_t count);
struct value none_of(void);
struct value undefined(const char *name, size_t size);
struct value from_json(struct run *r, const struct cJSON *json);
void dict_set(struct run *r, struct dict *d, struct value key, struct value v);
const struct value *dict_get(const struct dict *d, const char *key, size_t size); /* null: not there */
const char *kind_name(struct value v);
bool is_true(struct value v);
bool equal(struct run *r, struct value a, struct value b);
/* Below 0, 0 or above: as a is to b. Fails for what has no order. */
int compare(struct run *r, struct value a, struct value b);
bool contains(struct run *r, struct value all, struct value one);
/* The text of a value as `~` makes it; lists and dicts have none. */
struct value to_text(struct run *r, struct value v);
void to_json(struct run *r, struct value v, const struct json_form *form, int level, struct dt_text *out);
/* The elements of what a loop can run over. A generator has none behind it. */
struct value to_list(struct run *r, struct value v);
int64_t text_length(struct value v); /* characters */
/* Characters [from, to) of a text. */
struct value text_part(struct value v, int64_t from, int64_t to);
/* The character at `at`, and its bytes. */
size_t character(const char *at, size_t size, uint32_t *code);
/* The white space at both ends, or the characters of `set`, is taken away. */
enum { STRIP_LEFT = 1, STRIP_RIGHT = 2 };
struct value strip(struct value v, int sides, const struct value *set);

/* ---- case.c ---- */
/* CASE_TITLE: text.title(); CASE_WORDS: the filter title; CASE_FIRST: capitalize. */
enum letters { CASE_UPPER, CASE_LOWER, CASE_TITLE, CASE_WORDS, CASE_FIRST };
struct value change_case(struct run *r, struct value v, enum letters how);

/* ---- functions.c ---- */
bool function_exists(const char *name), method_exists(const char *name);
bool filter_exists(const char *name), test_exists(const char *name);
struct value call_function(struct run *r, const char *name, const struct arguments *a);
struct value call_method(struct run *r, struct value self, const char *name, const struct arguments *a);
struct value call_filter(struct run *r, const char *name, struct value v, const struct arguments *a);
bool call_test(struct run *r, const char *name, struct value v, const struct arguments *a);
/* v.NAME, v[key] */
struct value attribute_of(struct run *r, struct value v, const char *name);
struct value item_of(struct run *r, struct value v, struct value key);

#endif
