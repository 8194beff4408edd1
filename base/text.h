/* Growing byte strings; always NUL-terminated, may hold NULs inside. */
#ifndef DT_BASE_TEXT_H
#define DT_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct dt_text {
    char *data;            /* null while empty and never used; use dt_text_str for a string that
                            * is never null */
    size_t size, capacity; /* bytes without the closing NUL */
};

/* An empty text. `clear` frees; both leave a text that can be used again. */
void dt_text_init(struct dt_text *t);
void dt_text_clear(struct dt_text *t);
/* Forgets the content, keeps the memory. */
void dt_text_reset(struct dt_text *t);
/* Appending aborts the program when memory is out (small host strings; nothing sensible could
 * follow). */
void dt_text_add(struct dt_text *t, const void *bytes, size_t size);
void dt_text_puts(struct dt_text *t, const char *s);
void dt_text_printf(struct dt_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void dt_text_vprintf(struct dt_text *t, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
/* Length (1 to 4) of the character at s, when it is valid UTF-8 that a terminal shows as a
 * character: no control (C0, DEL, C1) and none that turns the direction of writing or begins a
 * line (U+061C, U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069). 0: it is none of these.
 * size: at least 1. */
size_t dt_text_visible(const char *s, size_t size);
/* True when s holds harmless characters alone. With `lines`, newlines count as harmless, too. */
bool dt_text_is_harmless(const char *s, size_t size, bool lines);
/* Each byte that is no such character becomes a '?'. s ends with NUL. */
void dt_text_make_harmless(char *s, bool lines);
/* Appends s; what is not visible is shown as an escape: \n, \t, \x1b. With `lines` newlines
 * stay. For text of files, peers and workers on its way to a person. */
void dt_text_add_visible(struct dt_text *t, const char *s, size_t size, bool lines);
/* The same in place, for a text in a buffer of out_bytes; what was cut there, or does not fit
 * any more, ends with a whole character. */
void dt_text_make_visible(char *out, size_t out_bytes);
/* Prints one line: what is formatted, made visible, and a newline. Names from anywhere may be in
 * it. */
void dt_text_say(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends s as a JSON string with quotes; invalid UTF-8 becomes U+FFFD, what is not visible (see
 * above) an escape. */
void dt_text_json(struct dt_text *t, const char *s, size_t size);
/* Appends s as one word of a shell's command line: as it is, or in single quotes. */
void dt_text_shell(struct dt_text *t, const char *s);
const char *dt_text_str(const struct dt_text *t);

/* Bytes of the UTF-8 byte order mark that `text` begins with: 3 or 0; they are no part of the
 * text. *other: the encoding that another mark at the begin stands for ("UTF-16", "UTF-32"),
 * which nothing here reads, or null. */
size_t dt_text_mark(const void *text, size_t size, const char **other);

/* malloc, realloc and strdup that abort with a line when memory is out. */
void *dt_alloc(size_t size_bytes); /* zeroed */
void *dt_realloc(void *p, size_t size_bytes);
char *dt_strdup(const char *s);
char *dt_format(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* the caller frees */

/* Whole-string number parsers: false (out untouched) for anything but one number in range. */
bool dt_parse_int64(const char *s, long long *out);
bool dt_parse_double(const char *s, double *out); /* finite, decimal, locale-free */
/* Levenshtein distance, bounded at `limit` (returns limit + 1 above it). */
size_t dt_text_distance(const char *a, const char *b, size_t limit);
/* The candidate nearest to `word` within a third of its length (at least 2 edits), or null. */
const char *dt_text_nearest(const char *word, const char *const *candidates, size_t count);
/* Appends words of `text` in a column from `column` to 80, where the first line already stands,
 * and a newline. */
void dt_text_wrap(struct dt_text *out, const char *text, int column);
/* 12345678 -> "11.8 MiB", as people read it. `out` of at least 32 bytes; returns out. */
char *dt_text_bytes(double size_bytes, char *out, size_t out_bytes);

/* 32 hex digits that nobody else has: from the kernel. */
void dt_text_random(char out[33]);

#endif
