/* See the header. */
#include "worker/data/templates/rows.h"

#include <string.h>

bool row_given(struct value arg)
{
    return arg.kind != UNDEFINED || arg.text.at != NULL;
}

int64_t row_whole(struct run *r, struct value v, int64_t missing)
{
    if (!row_given(v) || v.kind == NONE) {
        return missing;
    }
    if (v.kind != INTEGER && v.kind != BOOLEAN) {
        (void)fail(r, "needs an integer, not %s", kind_name(v));
        return missing;
    }
    return v.kind == INTEGER ? v.i : v.yes;
}

struct value row_call(struct run *r, const struct row *row, struct value v, const struct arguments *a)
{
    struct value arg[ARGUMENTS];
    for (int i = 0; i < ARGUMENTS; i++) {
        arg[i] = undefined(NULL, 0);
    }
    for (int i = 0; row->most >= 0 && i < a->count; i++) {
        int at = a->names[i] == NULL ? i : 0;
        while (a->names[i] != NULL && at < row->most &&
               (row->names[at] == NULL || strcmp(row->names[at], a->names[i]) != 0)) {
            at++;
        }
        if (at >= row->most) {
            return fail(r, "%s: argument %s is not supported", row->name,
                        a->names[i] != NULL ? a->names[i] : "too many");
        }
        arg[at] = a->at[i];
    }
    if (++r->depth > RUN_DEPTH) { /* map('map', 'map', ...) calls rows within each other */
        (void)fail(r, "nested more than %d deep", RUN_DEPTH);
    }
    bool goes_on = work(r, v.kind == TEXT ? v.text.size / 16 : 0); /* a row may read the text once */
    v = goes_on ? row->fn(r, v, arg, a) : undefined("", 0);
    r->depth--;
    return v;
}

const struct row *row_in(const struct row *rows, size_t count, const char *name)
{
    const struct row *found = NULL;
    for (size_t i = 0; i < count; i++) {
        found = strcmp(rows[i].name, name) == 0 ? &rows[i] : found;
    }
    return found;
}

struct value row_needs_text(struct run *r, struct value v)
{
    return v.kind == TEXT
               ? v
               : (struct value){.kind = TEXT, .text = {fail(r, "needs a text, not %s", kind_name(v)).text.at, 0}};
}

const char *row_text(struct run *r, struct value v)
{
    v = row_needs_text(r, v);
    char *copy = r->failed ? NULL : take(r, v.text.size + 1);
    return copy != NULL ? memcpy(copy, v.text.at, v.text.size) : "";
}
