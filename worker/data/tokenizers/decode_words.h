/* Small changes of texts that decoders make. */
#ifndef DT_WORKER_DATA_TOKENIZERS_DECODE_WORDS_H
#define DT_WORKER_DATA_TOKENIZERS_DECODE_WORDS_H

#include "base/text.h"

/* Appends a text with `to` in the place of each `from`; from may be empty: nothing is replaced. */
void words_replace(struct dt_text *out, const char *text, size_t size, const char *from, const char *to);
/* WordPiece's clean-up of spaces before punctuation, in place. */
void words_clean_up(struct dt_text *t);

#endif
