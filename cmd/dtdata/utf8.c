/* See the header. */
#include "cmd/dtdata/utf8.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* The bytes at `p` that begin a character, 1 at least; *whole: they are one. */
static size_t character(const unsigned char *p, size_t size, bool *whole)
{
    unsigned char a = p[0];
    size_t length = a < 0x80                ? 1
                    : a >= 0xc2 && a < 0xe0 ? 2
                    : a >= 0xe0 && a < 0xf0 ? 3
                    : a >= 0xf0 && a < 0xf5 ? 4
                                            : 0;
    size_t n = 1;
    /* the second byte's range leaves out overlong forms, surrogates, and what is beyond U+10FFFF */
    unsigned char least = a == 0xe0 ? 0xa0 : a == 0xf0 ? 0x90 : 0x80, most = a == 0xed ? 0x9f : a == 0xf4 ? 0x8f : 0xbf;
    while (n < length && n < size && p[n] >= least && p[n] <= most) {
        n++;
        least = 0x80;
        most = 0xbf;
    }
    *whole = n == length;
    return n;
}

size_t utf8_valid(const char *text, size_t size)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        if (size - at >= 8 && (memcpy(&eight, p + at, 8), (eight & 0x8080808080808080ull) == 0)) {
            at += 8;
            continue;
        }
        bool whole;
        size_t n = character(p + at, size - at, &whole);
        if (!whole) {
            return at;
        }
        at += n;
    }
    return size;
}

long long utf8_replace(const char *text, size_t size, struct dt_text *out)
{
    long long count = 0;
    for (size_t at = 0; at < size;) {
        size_t valid = utf8_valid(text + at, size - at);
        dt_text_add(out, text + at, valid);
        at += valid;
        if (at < size) {
            bool whole;
            dt_text_puts(out, "\xef\xbf\xbd");
            at += character((const unsigned char *)text + at, size - at, &whole);
            count++;
        }
    }
    return count;
}
