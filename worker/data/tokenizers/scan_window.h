/* GPT-2's pattern in ASCII, 64 bytes at a time: words of 64 bits say where characters of a class stand, and shifts of
 * them where pieces begin. What this cannot see (other characters, the end of the text, longer pieces) is left to the
 * scanner. */
#ifndef DT_WORKER_DATA_TOKENIZERS_SCAN_WINDOW_H
#define DT_WORKER_DATA_TOKENIZERS_SCAN_WINDOW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __SSE2__
#define SCAN_WINDOWS 1
#include <emmintrin.h>

enum { WINDOW_BYTES = 64 };

/* Bit i: of byte i. */
struct window {
    uint64_t begins, apostrophes; /* begins: of pieces, below `known` */
    int known;                    /* from here on it is not known what begins; at most WINDOW_BYTES - 1 */
};

/* 0xff: a byte is one of the `count` from `first` on. */
static inline __m128i window_between(__m128i bytes, char first, int count)
{
    __m128i from = _mm_sub_epi8(bytes, _mm_set1_epi8(first));
    return _mm_cmplt_epi8(_mm_xor_si128(from, _mm_set1_epi8(-128)), _mm_set1_epi8((char)(count - 128)));
}

static inline uint64_t window_bits(__m128i bytes, int at)
{
    return (uint64_t)(unsigned)_mm_movemask_epi8(bytes) << at;
}

/* A piece begins at text[0]. digits: each digit is a piece, and what stands before it has ended. */
static inline struct window window_read(const char *text, bool digits)
{
    uint64_t letters = 0, numbers = 0, spaces = 0, blanks = 0, apostrophes = 0, foreign = 0;
    for (int i = 0; i < WINDOW_BYTES; i += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(text + i));
        __m128i blank = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(' '));
        letters |= window_bits(window_between(_mm_or_si128(bytes, _mm_set1_epi8(0x20)), 'a', 26), i);
        numbers |= window_bits(window_between(bytes, '0', 10), i);
        spaces |= window_bits(_mm_or_si128(window_between(bytes, '\t', 5), blank), i);
        blanks |= window_bits(blank, i);
        apostrophes |= window_bits(_mm_cmpeq_epi8(bytes, _mm_set1_epi8('\'')), i);
        foreign |= window_bits(bytes, i);
    }
    uint64_t others = ~(letters | numbers | spaces), runs = letters & letters << 1;
    runs |= others & others << 1;
    runs |= digits ? 0 : numbers & numbers << 1;
    /* a run begins, but for one behind a blank, which it takes */
    uint64_t begins = ~(spaces | runs | (digits ? (blanks << 1) & ~numbers : blanks << 1));
    /* so does white space, and its last character anew */
    begins |= spaces & (~(spaces << 1) | ~((digits ? spaces | numbers : spaces) >> 1));
    /* of the last byte that is known, the next one may say otherwise */
    int ascii = foreign != 0 ? __builtin_ctzll(foreign) : WINDOW_BYTES, known = ascii > 0 ? ascii - 1 : 0;
    return (struct window){(begins | 1) & ((UINT64_C(1) << known) - 1), apostrophes, known};
}

#endif
#endif
