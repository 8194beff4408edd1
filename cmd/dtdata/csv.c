/* See the header. */
#include "cmd/dtdata/csv.h"

#include <stdlib.h>
#include <string.h>

/* The end of the record that begins at text[0]; 0: its line break is not there. *open: for a quote that is never
 * closed. */
static size_t record_end(const struct csv_form *form, const char *text, size_t size, bool *open)
{
    *open = false;
    if (!form->quotes) {
        const char *newline = memchr(text, '\n', size);
        return newline != NULL ? (size_t)(newline - text) + 1 : 0;
    }
    bool field_begins = true, quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (quoted) {
            const char *quote = memchr(text + i, '"', size - i);
            if (quote == NULL) {
                *open = true;
                return 0;
            }
            i = (size_t)(quote - text);
            /* a doubled quote closes and opens again */
            quoted = i + 1 < size && text[i + 1] == '"';
            i += quoted;
        } else if (c == '\n') {
            return i + 1;
        } else {
            quoted = field_begins && c == '"';
            field_begins = c == form->delimiter;
        }
    }
    *open = quoted;
    return 0;
}

size_t csv_last_end(const struct csv_form *form, const char *text, size_t size)
{
    if (!form->quotes) {
        const char *newline = memrchr(text, '\n', size);
        return newline != NULL ? (size_t)(newline - text) + 1 : 0;
    }
    size_t at = 0, next;
    bool open;
    while (at < size && (next = record_end(form, text + at, size - at, &open)) > 0) {
        at += next;
    }
    return at;
}

size_t csv_first_end(const struct csv_form *form, const char *text, size_t size)
{
    bool open;
    size_t end = record_end(form, text, size, &open);
    const char *newline = open ? memchr(text, '\n', size) : NULL;
    return end > 0 ? end : newline != NULL ? (size_t)(newline - text) + 1 : size;
}

static void end_field(struct csv_fields *f)
{
    if (f->count == f->capacity) {
        f->capacity = f->capacity == 0 ? 16 : 2 * f->capacity;
        f->ends = dt_realloc(f->ends, f->capacity * sizeof *f->ends);
    }
    f->ends[f->count++] = f->text.size;
}

/* Adds a field that begins behind its opening quote; returns its end behind the closing one, 0 if there is none. */
static size_t add_quoted(struct csv_fields *f, const char *text, size_t at, size_t size)
{
    for (;;) {
        const char *quote = memchr(text + at, '"', size - at);
        if (quote == NULL) {
            return 0;
        }
        dt_text_add(&f->text, text + at, (size_t)(quote - text) - at);
        at = (size_t)(quote - text) + 1;
        if (at == size || text[at] != '"') {
            return at;
        }
        dt_text_add(&f->text, "\"", 1);
        at++;
    }
}

int csv_split(const struct csv_form *form, const char *record, size_t size, struct csv_fields *out,
              struct dt_error *err)
{
    dt_text_reset(&out->text);
    out->count = 0;
    if (size > 0 && record[size - 1] == '\n') {
        size--;
        size -= size > 0 && record[size - 1] == '\r';
    }
    for (size_t at = 0;; at++) { /* at the begin of a field */
        if (form->quotes && at < size && record[at] == '"') {
            at = add_quoted(out, record, at + 1, size);
            if (at == 0) {
                return dt_fail(err, DT_INVALID, "a quote is never closed");
            }
            if (at < size && record[at] != form->delimiter) {
                return dt_fail(err, DT_INVALID,
                               "field %zu: text behind its closing quote; a quote inside of quotes is written twice",
                               out->count + 1);
            }
        } else {
            const char *end = at < size ? memchr(record + at, form->delimiter, size - at) : NULL;
            size_t to = end != NULL ? (size_t)(end - record) : size;
            dt_text_add(&out->text, record + at, to - at);
            at = to;
        }
        end_field(out);
        if (at >= size) {
            return 0;
        }
    }
}

const char *csv_field(const struct csv_fields *f, size_t i, size_t *size)
{
    size_t begin = i == 0 ? 0 : f->ends[i - 1];
    *size = f->ends[i] - begin;
    return dt_text_str(&f->text) + begin;
}

void csv_fields_clear(struct csv_fields *f)
{
    dt_text_clear(&f->text);
    free(f->ends);
    *f = (struct csv_fields){0};
}
