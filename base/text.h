/* Growing byte strings. They always end with NUL, and may contain NULs. */
#ifndef DT_BASE_TEXT_H
#define DT_BASE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct dt_text {
    char *data;            /* null before the first use; dt_text_str never returns null */
    size_t size, capacity; /* size: bytes without the closing NUL */
};

/* init makes an empty text; clear frees it. After both the text can be used again. */
void dt_text_init(struct dt_text *t);
void dt_text_clear(struct dt_text *t);
/* Empties the text and keeps its memory. */
void dt_text_reset(struct dt_text *t);
/* Append. The program aborts if memory runs out, since these are small strings and it could do
 * nothing sensible. */
void dt_text_add(struct dt_text *t, const void *bytes, size_t size);
void dt_text_puts(struct dt_text *t, const char *s);
void dt_text_printf(struct dt_text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void dt_text_vprintf(struct dt_text *t, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
/* Length (1 to 4) of the character at `at`, if it is valid UTF-8; otherwise 0. Overlong forms and surrogates are
 * invalid. size: at least 1. */
size_t dt_text_character(const void *at, size_t size);
/* Length (1 to 4) of the character at s, if it is valid UTF-8 and visible on a terminal: no control
 * character (C0, DEL, C1), and none that changes the direction of writing or begins a line (U+061C,
 * U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069). Otherwise 0. size: at least 1. */
size_t dt_text_visible(const char *s, size_t size);
/* True if s holds only such characters. With `lines`, newlines are allowed, too. */
bool dt_text_is_harmless(const char *s, size_t size, bool lines);
/* Replaces each byte of other characters by '?'. s ends with NUL. */
void dt_text_make_harmless(char *s, bool lines);
/* Appends s, with escapes for characters that are not visible: \n, \t, \x1b. With `lines`, newlines
 * stay. For texts of files, peers and workers that people will read. */
void dt_text_add_visible(struct dt_text *t, const char *s, size_t size, bool lines);
/* The same in place, in a buffer of out_bytes. If the text was cut or no longer fits, it ends with
 * a whole character. */
void dt_text_make_visible(char *out, size_t out_bytes);
/* Prints one line: the formatted text, made visible, and a newline. It may contain names from
 * anywhere. */
void dt_text_say(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Appends s as a JSON string with quotes. Invalid UTF-8 becomes U+FFFD, and characters that are not
 * visible become escapes. */
void dt_text_json(struct dt_text *t, const char *s, size_t size);
/* Appends s as one word of a shell's command line: unchanged, or in single quotes. */
void dt_text_shell(struct dt_text *t, const char *s);
/* Up to out_bytes - 1 bytes of text for a message, made harmless; "(empty)" for none, and "..." at
 * the end where something is left out. Returns out. */
char *dt_text_excerpt(const char *s, size_t size, char *out, size_t out_bytes);
/* C0 and DEL: a character that a terminal takes for a command. */
static inline bool dt_text_is_control(char c)
{
    return (unsigned char)c < 0x20 || c == 0x7f;
}
/* A list for people: "a, b, c, ...". Each call adds an item, with ", " before it from the second one
 * on; of more than `most` (0: all are shown) the first such one adds ", ..." and the others nothing. */
struct dt_list {
    struct dt_text *text;
    int most, count; /* count: of all items so far, shown or not */
};
void dt_list_add(struct dt_list *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *dt_text_str(const struct dt_text *t);

/* Length of the UTF-8 byte order mark at the beginning of `text`, 3 or 0; it is not part of the
 * text. *other: the encoding of another mark ("UTF-16", "UTF-32"), which nothing here reads, or
 * null. */
size_t dt_text_mark(const void *text, size_t size, const char **other);

/* malloc, realloc and strdup that abort with a message if memory runs out. */
void *dt_alloc(size_t size_bytes); /* zeroed */
void *dt_realloc(void *p, size_t size_bytes);
char *dt_strdup(const char *s);
char *dt_format(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* the caller frees */

/* Parse a whole string as one number. False (out unchanged): it is anything else, or out of
 * range. */
bool dt_parse_int64(const char *s, long long *out);
bool dt_parse_double(const char *s, double *out); /* finite, decimal, independent of the locale */
/* Edits from one name to the other (Levenshtein's, and two neighbours swapped), limit + 1 if more than `limit`. */
size_t dt_text_distance(const char *a, const char *b, size_t limit);
/* The distance within which a name may have been meant by `word`: a third of its length, at least 2 edits; 1 for up to
 * three letters. */
size_t dt_text_near(const char *word);
/* The candidate nearest to `word`, within dt_text_near, or null. */
const char *dt_text_nearest(const char *word, const char *const *candidates, size_t count);
/* Appends the words of `text` between columns `column` and 80, and a newline. The first line is
 * already at `column`. */
void dt_text_wrap(struct dt_text *out, const char *text, int column);
/* 12345678 -> "11.8 MiB", for people. `out` has at least 32 bytes. Returns out. */
char *dt_text_bytes(double size_bytes, char *out, size_t out_bytes);

/* 32 random hex digits from the kernel. */
void dt_text_random(char out[33]);

/* True if s ends with `end`. */
bool dt_text_ends_with(const char *s, const char *end);

#endif
