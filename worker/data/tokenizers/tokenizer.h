/* Tokenizers: text to ids and back, id for id what the tokenizers library gives for the same
 * tokenizer.json.
 *
 * A text goes through these stages: added tokens are cut out, the rest is normalised, split into
 * pieces, and each piece is given to the model; the post-processor adds special tokens to the ids.
 * A tokenizer does not change after it was opened. Several threads may use it at once, each with a
 * scratch of its own. */
#ifndef DT_WORKER_DATA_TOKENIZERS_TOKENIZER_H
#define DT_WORKER_DATA_TOKENIZERS_TOKENIZER_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* A growing list of ids. All zero is an empty list; token_ids_clear frees it. */
struct token_ids {
    int32_t *ids;
    size_t count, capacity;
};
void token_ids_add(struct token_ids *l, int32_t id);
void token_ids_clear(struct token_ids *l);

/* The tokenizer.json of a folder; any other path is the file's itself. The caller frees it. */
char *tokenizer_file(const char *path);
/* Opens a tokenizer.json, or that of a folder. Errors name the file, the part that is not supported
 * or not right (`model.vocab`), and what is supported instead. */
int tokenizer_open(struct tokenizer **out, const char *path, struct dt_error *err);
/* The same from memory; `name` stands for the path in errors. */
int tokenizer_parse(struct tokenizer **out, const char *name, const char *json, size_t size, struct dt_error *err);
/* What tokenizer_hash says of such a file, without opening the tokenizer. */
int tokenizer_hash_file(const char *path, uint64_t *hash, struct dt_error *err);
void tokenizer_close(struct tokenizer *t); /* null is allowed */

/* The largest id plus one, added tokens included. */
int64_t tokenizer_vocabulary(const struct tokenizer *t);
/* XXH3 (64 bits) of the file: token shards name their tokenizer by it. */
uint64_t tokenizer_hash(const struct tokenizer *t);
/* The id of a token, as tokenizer.json spells it; -1: there is none. Added tokens are searched first. */
int32_t tokenizer_id(const struct tokenizer *t, const char *token, size_t size);
/* The spelling of an id in tokenizer.json, with its size; null: the id has none. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *size);
/* True if the id is an added token that is marked special. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* The bytes of text that an id stands for, where a text is its tokens one behind the other: with a
 * ByteLevel decoder, or one that makes spaces of a mark. Special tokens stand for 0. -1: it cannot be said
 * (WordPiece), or the id has no token. */
int64_t tokenizer_text_bytes(const struct tokenizer *t, int32_t id);

/* The memory of one thread: buffers, and the ids of pieces that it met before. */
struct tokenizer_scratch;
struct tokenizer_scratch *tokenizer_scratch_open(const struct tokenizer *t);
void tokenizer_scratch_close(struct tokenizer_scratch *s);

/* Appends the ids of a text to `out`. special: with the tokens that the post-processor adds. No
 * truncation, no padding. DT_INVALID if the text is not UTF-8 (with the byte's offset), or if a
 * model of words has no id for one and no unknown token. A BPE without one leaves out the characters
 * that it has no token for, as the library does. */
int tokenizer_encode(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                     bool special, struct token_ids *out, struct dt_error *err);

/* One text or a pair as a model reads it: `count` ids, with the type and the mask of each. */
struct token_sequence {
    struct token_ids ids;
    uint8_t *types; /* type_ids: 0, 1 */
    uint8_t *mask;  /* attention_mask: 1 for a token, 0 for padding */
    size_t capacity;
    bool cut; /* truncation took ids away */
};
void token_sequence_clear(struct token_sequence *q);
/* Encodes a text, or a pair (second: null if there is none), with special tokens, and with the
 * truncation of tokenizer.json; max_length > 0 takes its place, as truncation=True of transformers does: the longest
 * first, without a stride, on the side that the file says (right if it says none). Replaces what `out` held. */
int tokenizer_encode_pair(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                          const char *second, size_t second_size, int64_t max_length, struct token_sequence *out,
                          struct dt_error *err);
/* Pads sequences of one batch as tokenizer.json says: to the longest, or to a fixed length. Does
 * nothing if the file says nothing. */
void tokenizer_pad(const struct tokenizer *t, struct token_sequence *batch, size_t count);

/* The last known place to cut a text at: the ids of both parts are those of the whole, whatever follows text[0 ..
 * size), which may end within a character. 0: none is known, or the text is not UTF-8. */
size_t tokenizer_cut(const struct tokenizer *t, const char *text, size_t size);
/* As tokenizer_encode without special tokens, for the part of a text that begins at such a place, behind `from` bytes
 * of it. */
int tokenizer_encode_part(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                          uint64_t from, struct token_ids *out, struct dt_error *err);

/* A text that comes in parts: the ids of all parts are those of tokenizer_encode for the whole, in
 * memory that does not grow with the text where the pre-tokenizer splits it. Each call appends the ids
 * that no later part can change. */
struct tokenizer_stream;
struct tokenizer_stream *tokenizer_stream_open(const struct tokenizer *t, struct tokenizer_scratch *s);
int tokenizer_stream_add(struct tokenizer_stream *r, const char *text, size_t size, struct token_ids *out,
                         struct dt_error *err);
/* The text is the rest of another from a place of tokenizer_cut on, behind `from` bytes of it. Call it before the
 * first add. */
void tokenizer_stream_begin(struct tokenizer_stream *r, uint64_t from);
/* Ends the text; the next add begins another. */
int tokenizer_stream_end(struct tokenizer_stream *r, struct token_ids *out, struct dt_error *err);
void tokenizer_stream_close(struct tokenizer_stream *r);

/* Appends the text of ids. skip_special: without special added tokens. Bytes that are not UTF-8
 * become U+FFFD as in the library. Ids without a token give nothing. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
                      struct dt_text *out);
/* Ids that come one by one: each call appends the text that no later id can change. It never shows a
 * part of a character. All of it together is tokenizer_decode's text. */
struct tokenizer_decoder;
struct tokenizer_decoder *tokenizer_decoder_open(const struct tokenizer *t, bool skip_special);
void tokenizer_decoder_add(struct tokenizer_decoder *d, int32_t id, struct dt_text *out);
void tokenizer_decoder_end(struct tokenizer_decoder *d, struct dt_text *out);
void tokenizer_decoder_close(struct tokenizer_decoder *d);

/* For training a tokenizer: normalises and splits a text, and hands over each piece as the model
 * would get it (with byte-level pre-tokenizers: the mapped characters, as tokenizer.json spells
 * them). */
typedef void tokenizer_piece(void *context, const char *piece, size_t size);
int tokenizer_pieces(const struct tokenizer *t, struct tokenizer_scratch *s, const char *text, size_t size,
                     tokenizer_piece *each, void *context, struct dt_error *err);

#endif
