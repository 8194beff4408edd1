/* Rows of the tables of filters, methods and functions. */
#ifndef DT_WORKER_DATA_TEMPLATES_ROWS_H
#define DT_WORKER_DATA_TEMPLATES_ROWS_H

#include "worker/data/templates/own.h"

enum { ARGUMENTS = 4 };

/* arg: ARGUMENTS values, undefined with a null name where they are missing. */
struct row {
    const char *name;
    struct value (*fn)(struct run *r, struct value v, const struct value *arg, const struct arguments *raw);
    int most; /* arguments; -1: the row reads `raw` */
    const char *names[ARGUMENTS];
};

#define ROW_FN(name)                                                                                                   \
    static struct value name(struct run *r, struct value v, const struct value *arg, const struct arguments *raw)
#define UNUSED (void)r, (void)v, (void)arg, (void)raw

/* rows.c */
/* True if the argument is not missing. */
bool row_given(struct value arg);
/* An integer among arguments, `missing` if it is not given. Anything else fails. */
int64_t row_whole(struct run *r, struct value v, int64_t missing);
/* A text among arguments. Anything else fails. */
struct value row_needs_text(struct run *r, struct value v);
/* The same, ended by a zero, in the memory of the run. */
const char *row_text(struct run *r, struct value v);
/* Calls a row with its arguments, by place or by name. */
struct value row_call(struct run *r, const struct row *row, struct value v, const struct arguments *a);
/* The row with that name; null: there is none. */
const struct row *row_in(const struct row *rows, size_t count, const char *name);
#define FIND(table, name) row_in(table, sizeof(table) / sizeof(table)[0], name)

#endif
