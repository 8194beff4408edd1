/* The pieces of a text with their counts, as the trainers read them: each piece once, in ascending
 * order of its bytes, as often as they like. */
#ifndef DT_CMD_DTDATA_TRAIN_WORDS_H
#define DT_CMD_DTDATA_TRAIN_WORDS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct words {
    int (*rewind)(void *context, struct dt_error *err);
    /* 1: the next piece, valid until the next call; 0: the end; -1 */
    int (*next)(void *context, const char **piece, size_t *size, uint64_t *count, struct dt_error *err);
    void *context;
    /* Called now and then; an error (a signal came) ends the training. */
    int (*go_on)(struct dt_error *err);
};

enum { CHARACTERS = 0x110000 };
/* The character at s, which is valid UTF-8; advances *at. */
static inline uint32_t word_character(const char *s, size_t *at)
{
    const unsigned char *p = (const unsigned char *)s + *at;
    int more = *p < 0x80 ? 0 : *p < 0xe0 ? 1 : *p < 0xf0 ? 2 : 3;
    uint32_t c = more == 0 ? *p : *p & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
        c = c << 6 | (p[i] & 0x3fu);
    }
    *at += (size_t)more + 1;
    return c;
}
/* Writes a character as UTF-8; returns its bytes. */
static inline size_t word_utf8(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) {
        out[i] = (char)(0x80 | (c & 0x3f));
    }
    out[0] = (char)(n == 2 ? 0xc0 | c : n == 3 ? 0xe0 | c : 0xf0 | c);
    return n;
}

#endif
