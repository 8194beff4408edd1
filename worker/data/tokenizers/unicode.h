/* Properties and normal forms of characters, as the tokenizers library has them: its normalizers and
 * pre-tokenizers rest on tables of several Unicode versions. utf8proc has the tables here, and
 * unicode_tables.h says where the library's differ. */
#ifndef DT_WORKER_DATA_TOKENIZERS_UNICODE_H
#define DT_WORKER_DATA_TOKENIZERS_UNICODE_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool unicode_is_white(uint32_t c);       /* White_Space */
bool unicode_is_space(uint32_t c);       /* what Python's str.isspace is true for */
bool unicode_is_control(uint32_t c);     /* the characters that BertNormalizer's clean_text drops */
bool unicode_is_accent(uint32_t c);      /* the marks that BertNormalizer's strip_accents drops */
bool unicode_is_mark(uint32_t c);        /* the marks that StripAccents drops */
bool unicode_is_punctuation(uint32_t c); /* ASCII's and P* */
bool unicode_is_numeric(uint32_t c);     /* Nd, Nl, No */
bool unicode_is_word(uint32_t c);        /* \w of the pre-tokenizer Whitespace */

/* A growing list of characters. All zero is an empty list; unicode_codes_clear frees it. */
struct unicode_codes {
    int32_t *at;
    size_t count, capacity;
};
void unicode_codes_add(struct unicode_codes *l, uint32_t c);
void unicode_codes_clear(struct unicode_codes *l);
/* Appends the characters of valid UTF-8, and the reverse. */
void unicode_read(struct unicode_codes *l, const char *text, size_t size);
void unicode_write(const struct unicode_codes *l, struct dt_text *out);

/* Appends the lower case of a character: two characters for U+0130, else one. */
void unicode_lower(struct unicode_codes *l, uint32_t c);
/* Appends the decomposition of a character; compatible: that of NFKD. */
void unicode_decompose(struct unicode_codes *l, uint32_t c, bool compatible);
/* Puts combining marks into canonical order. */
void unicode_order(struct unicode_codes *l);
/* Composes ordered, decomposed characters. */
void unicode_compose(struct unicode_codes *l);

/* Bytes of the first extended grapheme cluster of a text. size: at least 1. */
size_t unicode_cluster(const char *text, size_t size);

#endif
