/* Characters: UTF-8, and the classes that patterns of tokenizers ask for (Unicode 16). */
#ifndef DT_WORKER_DATA_TOKENIZERS_CHARACTERS_H
#define DT_WORKER_DATA_TOKENIZERS_CHARACTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CHARACTERS = 0x110000,
    CHARACTER_CONTROL_SPACE = 30 /* in character_table, the control characters that are white space */
};

/* Fills the table of categories, once per process. Everything else here, but for UTF-8, needs it. */
void characters_open(void);

/* utf8proc's category of each code point. */
extern uint8_t character_table[CHARACTERS];

enum {
    IS_LETTER = 1,
    IS_NUMBER = 2,
    IS_SPACE = 4, /* White_Space */
    IS_MARK = 8,
    IS_CAPITAL = 16, /* \p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M} */
    IS_SMALL = 32,   /* \p{Ll}\p{Lm}\p{Lo}\p{M} */
    IS_PUNCTUATION = 64,
    IS_SYMBOL = 128,
    IS_WORD = 256 /* letters, marks, \p{Nd}, \p{Nl}, \p{Pc} */
};
extern const uint16_t character_flags_of[32];
static inline unsigned character_flags(uint32_t code)
{
    return character_flags_of[character_table[code]];
}
/* Alphabetic, marks, \p{Nd} and \p{Pc}. */
bool character_is_word(uint32_t code);

/* Bytes of the valid UTF-8 at the beginning of a text: `size` if all is. */
size_t utf8_valid(const char *text, size_t size);
/* Bytes of the longest part, at the beginning of a text that is not valid there, that a character
 * begins with; at least 1. U+FFFD stands for each such part. */
size_t utf8_invalid(const char *text, size_t size);
/* True if a character may begin with these bytes, 1 to 3, and is not complete. */
bool utf8_begins(const char *text, size_t size);
/* Bytes of a character at the end of the text that lacks its rest: 0 to 3. */
size_t utf8_cut(const char *text, size_t size);
/* Reads one character of valid UTF-8; *size: its bytes. */
static inline uint32_t utf8_read(const char *text, size_t *size)
{
    const unsigned char *p = (const unsigned char *)text;
    if (p[0] < 0x80) {
        *size = 1;
        return p[0];
    }
    if (p[0] < 0xe0) {
        *size = 2;
        return (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    }
    if (p[0] < 0xf0) {
        *size = 3;
        return (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    }
    *size = 4;
    return (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}
/* The same for the character that ends before text[at]; at: not 0. */
static inline uint32_t utf8_read_back(const char *text, size_t at, size_t *size)
{
    size_t from = at - 1;
    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80) {
        from--;
    }
    return utf8_read(text + from, size);
}
/* Writes one character; returns its bytes. */
size_t utf8_write(uint32_t code, char out[4]);

#endif
