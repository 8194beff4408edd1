/* Conversion of other tokenizers' files to the text of a tokenizer.json. */
#ifndef DT_WORKER_DATA_TOKENIZERS_CONVERT_H
#define DT_WORKER_DATA_TOKENIZERS_CONVERT_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <stdint.h>

struct convert_special {
    const char *name;
    int64_t id;
};
struct convert_options {
    bool begin, end;     /* SentencePiece: the model's begin and end tokens around each text */
    const char *pattern; /* tiktoken: gpt2, cl100k, o200k, llama3, or a regular expression; null: none given */
    const struct convert_special *special; /* tiktoken */
    size_t special_count;
    struct dt_text *differs; /* SentencePiece: gets a line on each kind of text that has other ids, because a
                              * tokenizer.json cannot say the model's rule; null: not wanted */
};

/* Appends a tokenizer.json that gives the ids of SentencePiece for any text without the names of control
 * pieces. It is built as Transformers builds it, from the settings in the file. DT_INVALID for a file that
 * is damaged or has something that cannot be said in a tokenizer.json, which the error names. */
int convert_sentencepiece(const void *bytes, size_t size, const struct convert_options *o, struct dt_text *out,
                          struct dt_error *err);
/* The same for tiktoken's ranks: lines of a token in base64 and its rank. */
int convert_tiktoken(const char *text, size_t size, const struct convert_options *o, struct dt_text *out,
                     struct dt_error *err);

/* For both: one entry of "added_tokens", with a comma before all but the first. */
void convert_added_token(struct dt_text *out, bool first, int64_t id, const char *name, size_t size);

#endif
