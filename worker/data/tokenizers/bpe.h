/* Byte-level pieces without the detour over the characters that stand for bytes. */
#ifndef DT_WORKER_DATA_TOKENIZERS_BPE_H
#define DT_WORKER_DATA_TOKENIZERS_BPE_H

#include "worker/data/tokenizers/parts.h"

/* True if the vocabulary has a token for each byte, and no prefix or suffix of subwords. */
bool bpe_takes_bytes(const void *state);
/* Like token_model_bpe.encode of the mapped piece. */
int bpe_encode_bytes(const void *state, void *scratch, const char *piece, size_t size, struct token_ids *out,
                     struct dt_error *err);

/* Appends the characters that stand for bytes: those of Latin-1 that are visible stand for themselves,
 * the other 68 bytes are U+0100 and following. */
void byte_level_map(const char *bytes, size_t size, struct dt_text *out);
/* The byte that a character stands for; -1: none. */
int byte_level_byte(uint32_t character);

#endif
