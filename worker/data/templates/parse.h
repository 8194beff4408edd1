/* Shared by the files that turn a template's text into nodes: tokens, expressions, statements. All functions go
 * on after a failure, and do nothing then. */
#ifndef DT_WORKER_DATA_TEMPLATES_PARSE_H
#define DT_WORKER_DATA_TEMPLATES_PARSE_H

#include "worker/data/templates/own.h"

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

/* tokens.c */
/* Keeps the first error, with the line. Returns null. */
struct node *parse_bad(struct parser *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same of what jinja2 has and this has not. */
struct node *parse_refuse(struct parser *p, const char *what, const char *name);
struct node *parse_make(struct parser *p, enum op op, struct node *a, struct node *b);
/* Goes on by bytes of the text, and counts lines. */
void parse_step(struct parser *p, size_t bytes);
/* Bytes of a white space character that begins here; 0: there is none. */
size_t parse_space_at(const char *at, size_t size);
bool parse_starts(const struct parser *p, const char *with);
/* Leaves a tag, whose end is here: "-%}", "+%}" or "%}". */
bool parse_leave_tag(struct parser *p, const char *end);
/* Reads the next token of a tag. */
void parse_advance(struct parser *p);
bool parse_is(const struct parser *p, const char *word);
/* Goes on if the token is this word. */
bool parse_accept(struct parser *p, const char *word);
/* The token, for messages. */
const char *parse_shown(const struct parser *p);
void parse_expect(struct parser *p, const char *word);
void parse_expect_end(struct parser *p);
const char *parse_expect_name(struct parser *p);

/* expressions.c */
struct node *parse_expression(struct parser *p);
/* An expression without a condition, as behind if, elif and in: "a if b" ends before "if". */
struct node *parse_or(struct parser *p);
/* Counts one more level of nesting. False: there are too many. */
bool parse_deeper(struct parser *p);
struct node *parse_operand(struct parser *p, struct node *a, const char *name);

#endif
