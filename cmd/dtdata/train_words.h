/* The pieces of a text with their counts, as the trainers read them: each piece once, in ascending
 * order of its bytes, as often as they like. */
#ifndef DT_CMD_DTDATA_TRAIN_WORDS_H
#define DT_CMD_DTDATA_TRAIN_WORDS_H

#include "base/error.h"
#include "worker/data/tokenizers/characters.h"

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

/* The character at s + *at, which is valid UTF-8; advances *at. */
static inline uint32_t word_character(const char *s, size_t *at)
{
    size_t size;
    uint32_t c = utf8_read(s + *at, &size);
    *at += size;
    return c;
}

#endif
