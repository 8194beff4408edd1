/* SentencePiece's .model files: a protocol buffer with the pieces and the settings. */
#ifndef DT_WORKER_DATA_TOKENIZERS_SENTENCEPIECE_H
#define DT_WORKER_DATA_TOKENIZERS_SENTENCEPIECE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum piece_type { PIECE_NORMAL = 1, PIECE_UNKNOWN, PIECE_CONTROL, PIECE_USER_DEFINED, PIECE_UNUSED, PIECE_BYTE };
struct sentence_piece {
    const char *text; /* valid UTF-8 without NUL; points into the file */
    size_t size;
    float score;
    enum piece_type type;
};

struct sentencepiece {
    struct sentence_piece *pieces; /* by id */
    size_t count, capacity;
    enum { SENTENCEPIECE_UNIGRAM = 1, SENTENCEPIECE_BPE, SENTENCEPIECE_WORD, SENTENCEPIECE_CHAR } model;
    bool byte_fallback, dummy_prefix, remove_extra_whitespaces, escape_whitespaces, suffix;
    int64_t unknown, begin, end; /* ids; -1: none */
    const char *charsmap;        /* points into the file; null: none */
    size_t charsmap_size;
};

/* Reads a model. Everything is checked against the file's size. The pieces point into `bytes`, which
 * must outlive them. Errors say the field. */
int sentencepiece_read(struct sentencepiece *out, const void *bytes, size_t size, struct dt_error *err);
void sentencepiece_clear(struct sentencepiece *m);

#endif
