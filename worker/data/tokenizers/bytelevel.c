/* Byte-level tokenizers write each byte as a visible character. */
#include "worker/data/tokenizers/bpe.h"
#include "worker/data/tokenizers/characters.h"

/* Bytes that stand for themselves: 0x21-0x7e, 0xa1-0xac, 0xae-0xff. */
static bool is_visible(unsigned byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

/* The place of an invisible byte among them: 0x00-0x20, 0x7f-0xa0, 0xad. */
static uint32_t character_of(unsigned byte)
{
    return is_visible(byte) ? byte : byte <= 0x20 ? 0x100 + byte : byte <= 0xa0 ? 0x100 + 33 + (byte - 0x7f) : 0x143;
}

void byte_level_map(const char *bytes, size_t size, struct dt_text *out)
{
    for (size_t i = 0; i < size; i++) {
        char character[4];
        dt_text_add(out, character, utf8_write(character_of((unsigned char)bytes[i]), character));
    }
}

int byte_level_byte(uint32_t c)
{
    if (c < 0x100) {
        return is_visible(c) ? (int)c : -1;
    }
    if (c > 0x143) {
        return -1;
    }
    unsigned place = c - 0x100;
    return place <= 0x20 ? (int)place : place < 67 ? (int)(place - 33 + 0x7f) : 0xad;
}
