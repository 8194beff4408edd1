/* The parts of a tokenizer beside its vocabulary, by type and pattern, and the files that a trained
 * tokenizer is written to. */
#ifndef DT_CMD_DTDATA_TRAIN_FORMAT_H
#define DT_CMD_DTDATA_TRAIN_FORMAT_H

#include "cmd/dtdata/train_bpe.h"

#include <stdbool.h>

enum train_type { TRAIN_BPE, TRAIN_WORDPIECE, TRAIN_UNIGRAM };

struct train_shape {
    enum train_type type;
    const char *pattern;              /* its name for --pattern; null: an expression of the user, or none to choose */
    const char *normalizer, *decoder; /* JSON */
    const char *expression;           /* that splits the text, before bytes become characters; null: none */
    const char *pre_tokenizer;        /* JSON, if there is no expression */
    bool bytes;                       /* the characters are bytes (ByteLevel) */
    bool byte_fallback;               /* characters without a token become <0x00> to <0xFF> */
    bool lines;                       /* the trainer sees line by line */
    const char *unknown;              /* the token for what has none; null: there is nothing without */
    const char *special[8];           /* special tokens if the user names none; ends with null */
};

/* Finds the shape; `pattern` is a name, for BPE also an expression, or null for the first. Null: there
 * is none; `names` receives those that there are. `own` is the memory of an expression's shape. */
const struct train_shape *train_shape_find(enum train_type type, const char *pattern, struct train_shape *own,
                                           struct dt_text *names);
/* The characters that stand for the 256 bytes in byte-level tokenizers. */
void train_byte_characters(uint32_t out[256]);

/* tokenizer.json without a vocabulary and special tokens: splits a text for training. */
void train_splitter_json(const struct train_shape *shape, bool keep_case, struct dt_text *out);

struct trained {
    const struct train_shape *shape;
    bool keep_case;
    const char *const *special;
    size_t special_count;
    const struct train_vocabulary *vocabulary;
    const struct bpe_merge *merges; /* BPE */
    size_t merge_count;
    const double *scores; /* Unigram: by id */
};
void train_tokenizer_json(const struct trained *t, struct dt_text *out);
void train_config_json(const struct trained *t, struct dt_text *out);

#endif
