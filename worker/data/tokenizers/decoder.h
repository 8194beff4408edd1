/* Decoders, for the tokenizer: from the spellings of tokens to text. */
#ifndef DT_WORKER_DATA_TOKENIZERS_DECODER_H
#define DT_WORKER_DATA_TOKENIZERS_DECODER_H

#include "worker/data/tokenizers/parts.h"

struct decoder;
/* json: null or JSON null: tokens are joined by spaces. */
int decoder_open(struct decoder **out, const cJSON *json, struct dt_error *err);
/* The bytes of text that a token of the model stands for wherever it is; -1: that depends. */
int64_t decoder_token_bytes(const struct decoder *d, const char *token, size_t size);
void decoder_close(struct decoder *d); /* null is allowed */

/* Tokens of one text go in one by one, and the text comes out as soon as no later token can change it. */
struct decoding;
struct decoding *decoding_open(const struct decoder *d);
void decoding_add(struct decoding *s, const char *token, size_t size, struct dt_text *out);
/* Ends the text; the next add begins another. */
void decoding_end(struct decoding *s, struct dt_text *out);
void decoding_close(struct decoding *s);

#endif
