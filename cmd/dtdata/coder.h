/* Text to ids: by a tokenizer.json, or one id per byte. */
#ifndef DT_CMD_DTDATA_CODER_H
#define DT_CMD_DTDATA_CODER_H

#include "worker/data/shards.h"
#include "worker/data/tokenizers/tokenizer.h"

struct coder {
    struct tokenizer *tokenizer; /* null: bytes */
    char name[SHARD_TOKENIZER_BYTES];
    char *path; /* of tokenizer.json, absolute; null: bytes */
    uint64_t hash;
    int64_t vocabulary;
    int32_t end; /* the id that ends documents; -1: none is known */
    int32_t pad; /* the id of padding */
};

/* tokenizer: "bytes", a tokenizer.json or a folder with one. Documents end with eos_token of tokenizer_config.json in
 * the same folder, or of special_tokens_map.json; without them with eos_token_id of generation_config.json or
 * config.json. */
int coder_open(struct coder *c, const char *tokenizer, struct dt_error *err);
/* Documents end with this token; null changes nothing. DT_INVALID: the tokenizer has none such. */
int coder_end_with(struct coder *c, const char *end, struct dt_error *err);
/* Appends the ids of a text, without special tokens. scratch: of the tokenizer; null for bytes. */
int coder_encode(const struct coder *c, struct tokenizer_scratch *scratch, const char *text, size_t size,
                 struct token_ids *out, struct dt_error *err);
/* The same for the part of a text that begins where coder_cut has cut it, behind `from` bytes. */
int coder_encode_part(const struct coder *c, struct tokenizer_scratch *scratch, const char *text, size_t size,
                      uint64_t from, struct token_ids *out, struct dt_error *err);
/* For source_open: where a text may be cut. */
size_t coder_cut(const void *coder, const char *text, size_t size);
/* Appends the text of ids, with the spelling of special tokens. */
void coder_decode(const struct coder *c, const int32_t *ids, size_t count, struct dt_text *out);
void coder_close(struct coder *c);

#endif
