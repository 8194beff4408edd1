/* The parts of a tokenizer, for tokenizer.c alone: what each needs to be opened from its part of
 * tokenizer.json, and to be applied. Every open refuses what it does not know, by name and place
 * ("normalizer.normalizers[2].type: Foo; there are ..."). */
#ifndef DT_WORKER_DATA_TOKENIZERS_PARTS_H
#define DT_WORKER_DATA_TOKENIZERS_PARTS_H

#include "worker/data/tokenizers/tokenizer.h"

#include <cjson/cJSON.h>

/* ---- part.c: members of a part, by key ---- */
/* fallback -1: the member must be there. A member of another type, or null where a value must be, is
 * DT_INVALID, with the key. */
int part_bool(const cJSON *part, const char *key, int fallback, bool *out, struct dt_error *err);
/* 0 to most. */
int part_integer(const cJSON *part, const char *key, int64_t fallback, int64_t most, int64_t *out,
                 struct dt_error *err);
/* The text, which the part owns. fallback: for a missing or null member; null: *out becomes null. */
int part_text(const cJSON *part, const char *key, const char *fallback, const char **out, struct dt_error *err);
/* The type of a part, "ByteLevel". Null after an error: the part is no object with a type. */
const char *part_type(const cJSON *part, struct dt_error *err);

/* ---- vocabulary.c ---- */
/* Token to id and back, of the model without added tokens. */
struct vocabulary;
/* vocab: {"token": id}, or a Unigram's list of [token, score]. */
int vocabulary_open(struct vocabulary **out, const cJSON *vocab, struct dt_error *err);
void vocabulary_close(struct vocabulary *v);                                         /* null is allowed */
int64_t vocabulary_tokens(const struct vocabulary *v);                               /* their number */
int32_t vocabulary_find(const struct vocabulary *v, const char *token, size_t size); /* -1: none */
const char *vocabulary_token(const struct vocabulary *v, int32_t id, size_t *size);  /* null: none */
int64_t vocabulary_size(const struct vocabulary *v);                                 /* largest id + 1 */

/* ---- pattern.c: {"Regex": "..."} or {"String": "..."} of tokenizer.json ---- */
/* The regular expressions are Oniguruma's (Ruby's) with Unicode 16; what PCRE2 would take otherwise
 * is translated, or refused by name. */
struct pattern;
int pattern_open(struct pattern **out, const cJSON *json, struct dt_error *err);
/* A search in one text; all zero at its beginning but for the first three. */
struct pattern_search {
    const struct pattern *pattern;
    const char *text; /* valid UTF-8 */
    size_t size;
    size_t from, last;
    bool any;
    void *match; /* freed when the search is over */
};
/* Finds the next match, which may be empty: 1. 0: there is none. -1: the pattern needs too much time
 * or memory for this text. */
int pattern_next(struct pattern_search *s, size_t *begin, size_t *end, struct dt_error *err);
/* Ends a search before pattern_next said 0 or -1. */
void pattern_search_end(struct pattern_search *s);
void pattern_close(struct pattern *p);

/* ---- normalizer.c ---- */
struct normalizer;
/* json: null or JSON null gives *out = null, which normalizer_apply takes as "unchanged". */
int normalizer_open(struct normalizer **out, const cJSON *json, struct dt_error *err);
/* Appends the normalised text. text: valid UTF-8. Fails only where a pattern of Replace needs too much
 * time or memory for this text. */
int normalizer_apply(const struct normalizer *n, const char *text, size_t size, struct dt_text *out,
                     struct dt_error *err);
void normalizer_close(struct normalizer *n);

/* ---- pre-tokenizers: rows of pretokenizer.c ---- */
/* Pieces of a text, by their bytes. What lies between two pieces is left out (white space). */
struct piece {
    size_t begin, end;
};
struct pieces {
    struct piece *at;
    size_t count, capacity;
};
void pieces_add(struct pieces *p, size_t begin, size_t end);
/* Splits one piece, text[0 .. size), appending pieces with offsets from its beginning. For the
 * pre-tokenizers that only split; those that also rewrite (ByteLevel, Metaspace) are pretokenizer.c's
 * own. */
struct splitter_ops {
    const char *type; /* "Whitespace" */
    int (*open)(void **state, const cJSON *json, struct dt_error *err);
    void (*split)(const void *state, const char *text, size_t size, struct pieces *out);
    void (*close)(void *state); /* null: nothing to free */
};
extern const struct splitter_ops splitter_bert, splitter_whitespace, splitter_whitespace_split, splitter_punctuation,
    splitter_digits, splitter_char_delimiter, splitter_fixed_length; /* splitters.c */

/* ---- models: bpe.c, wordpiece.c, unigram.c, wordlevel.c ---- */
struct token_model_ops {
    const char *type; /* "BPE" */
    /* v: the vocabulary of `model`, which must outlive the state; `model` itself goes after this call. */
    int (*open)(void **state, const cJSON *model, const struct vocabulary *v, struct dt_error *err);
    /* The memory that one thread needs; null: none. */
    void *(*scratch_open)(const void *state);
    void (*scratch_close)(void *scratch);
    /* Appends the ids of one piece, which is not empty. */
    int (*encode)(const void *state, void *scratch, const char *piece, size_t size, struct token_ids *out,
                  struct dt_error *err);
    void (*close)(void *state);
};
extern const struct token_model_ops token_model_bpe, token_model_wordpiece, token_model_unigram, token_model_wordlevel;

/* ---- postprocess.c ---- */
struct postprocessor;
int postprocessor_open(struct postprocessor **out, const cJSON *json, struct dt_error *err); /* null as above */
/* The number of ids that it adds to one text, or to a pair. */
size_t postprocessor_added(const struct postprocessor *p, bool pair);
/* Writes ids, types and masks of a text or a pair (b: null if there is none). */
void postprocessor_apply(const struct postprocessor *p, const struct token_ids *a, const struct token_ids *b,
                         struct token_sequence *out);
void postprocessor_close(struct postprocessor *p);

/* ---- length.c: truncation and padding ---- */
struct truncation {
    bool given;
    int64_t max_length, stride;
    enum truncation_strategy { LONGEST_FIRST, ONLY_FIRST, ONLY_SECOND } strategy;
    bool left;
};
struct padding {
    bool given;
    int64_t length;      /* 0: to the longest of the batch */
    int64_t multiple_of; /* 0: any */
    int32_t id, type;
    bool left;
};
int truncation_open(struct truncation *t, const cJSON *json, struct dt_error *err);
int padding_open(struct padding *p, const cJSON *json, struct dt_error *err);
/* Shortens a and b (null: one text), so that with `added` special tokens they fit. */
int truncation_apply(const struct truncation *t, size_t added, struct token_ids *a, struct token_ids *b,
                     struct dt_error *err);
void padding_apply(const struct padding *p, struct token_sequence *batch, size_t count);

#endif
