/* Added tokens, for the tokenizer: found in a text, and asked for by their ids. */
#ifndef DT_WORKER_DATA_TOKENIZERS_ADDED_TOKENS_H
#define DT_WORKER_DATA_TOKENIZERS_ADDED_TOKENS_H

#include "worker/data/tokenizers/parts.h"

struct added_tokens;
/* list: `added_tokens` of tokenizer.json. Tokens that are searched in normalised text are normalised
 * by n. */
int added_tokens_open(struct added_tokens **out, const cJSON *list, const struct vocabulary *v,
                      const struct normalizer *n, struct dt_error *err);
void added_tokens_close(struct added_tokens *a);

/* A token in a text, with the white space that it takes. */
struct added_match {
    int32_t id;
    size_t begin, end;
    size_t searched; /* the text before it was looked at */
};
/* Finds the next token after *m, which is all zero at first. normalized: of those that are searched
 * in normalised text. False: there is none. */
bool added_tokens_next(const struct added_tokens *a, bool normalized, const char *text, size_t size,
                       struct added_match *m);
/* True if there are such tokens at all. */
bool added_tokens_any(const struct added_tokens *a, bool normalized);

/* Where the longest token at text[at], of the raw or of the normalised text, ends with the white space that it takes;
 * 0: none begins there. */
size_t added_tokens_end_at(const struct added_tokens *a, const char *text, size_t size, size_t at);
size_t added_tokens_longest(const struct added_tokens *a); /* bytes */

const char *added_tokens_content(const struct added_tokens *a, int32_t id, size_t *size); /* null: none */
/* The text of a token when ids are decoded. As in the library a token that is searched in normalised
 * text has the normalised spelling, and it is skipped as special only if that is a special token's. */
const char *added_tokens_shown(const struct added_tokens *a, int32_t id, size_t *size); /* null: none */
bool added_tokens_skipped(const struct added_tokens *a, int32_t id);
bool added_tokens_special(const struct added_tokens *a, int32_t id);
int32_t added_tokens_find(const struct added_tokens *a, const char *token, size_t size); /* -1: none */
int64_t added_tokens_end(const struct added_tokens *a);                                  /* largest id + 1 */

#endif
