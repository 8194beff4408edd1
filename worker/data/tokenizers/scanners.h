/* Hand-written scanners for the patterns that most byte-level tokenizers have. Each gives the pieces of
 * the pattern itself (tests compare them). */
#ifndef DT_WORKER_DATA_TOKENIZERS_SCANNERS_H
#define DT_WORKER_DATA_TOKENIZERS_SCANNERS_H

#include "worker/data/tokenizers/parts.h"

/* Gives the next pieces, from text[at] on; returns how many: 1 to `most`. text: valid UTF-8; at: less than
 * size. Pieces cover the whole text. A piece begins before a space behind anything but white space, and
 * behind a single line feed that stands between other characters, but for a '/' behind it. */
typedef size_t scanner_function(const char *text, size_t size, size_t at, struct piece *out, size_t most);

/* The scanner of a regular expression, as tokenizer.json spells it; null: there is none. */
scanner_function *scanner_find(const char *regex);
/* The regular expressions that have a scanner, by number from 0 on; null: there are no more. */
const char *scanner_regex(int number);
/* GPT-2's, which ByteLevel uses. */
extern const char scanner_gpt2_regex[];
scanner_function scanner_gpt2;
/* Digits (each by itself), then ByteLevel: SmolLM's. */
scanner_function scanner_digits_gpt2;

#endif
