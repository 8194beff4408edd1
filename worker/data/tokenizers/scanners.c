/* Scanners of known patterns. The first alternative of the pattern that matches counts; each takes as
 * much as it can. */
#include "worker/data/tokenizers/scanners.h"
#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/scan_window.h"

#include <endian.h>
#include <string.h>

const char scanner_gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum { OTHER = 1 << 15 }; /* neither white space nor letter nor number */

/* The flags of ASCII, close together. */
static const uint16_t ascii_flags[128] = {
    [0 ... 8] = OTHER,     [9 ... 13] = IS_SPACE,
    [14 ... 31] = OTHER,   [' '] = IS_SPACE,
    ['!' ... '/'] = OTHER, ['0' ... '9'] = IS_NUMBER,
    [':' ... '@'] = OTHER, ['A' ... 'Z'] = IS_LETTER | IS_CAPITAL,
    ['[' ... '`'] = OTHER, ['a' ... 'z'] = IS_LETTER | IS_SMALL,
    ['{' ... 127] = OTHER,
};

static inline unsigned flags_at(const char *text, size_t at, size_t *n)
{
    if ((unsigned char)text[at] < 0x80) {
        *n = 1;
        return ascii_flags[(unsigned char)text[at]];
    }
    unsigned flags = character_flags(utf8_read(text + at, n));
    return (flags & (IS_SPACE | IS_LETTER | IS_NUMBER)) == 0 ? flags | OTHER : flags;
}

/* The end of a run of characters that have one of the flags. */
static inline size_t run(const char *text, size_t size, size_t at, unsigned wanted)
{
    size_t n;
    while (at < size && (flags_at(text, at, &n) & wanted) != 0) {
        at += n;
    }
    return at;
}

#define EIGHT(byte) (0x0101010101010101u * (byte))

/* The top bits of those of eight bytes that do not lie between two ASCII characters. */
static inline uint64_t not_between(uint64_t bytes, unsigned first, unsigned last)
{
    uint64_t low = bytes & EIGHT(0x7f);
    return (~(low + EIGHT(0x80 - first)) | (low + EIGHT(0x7f - last)) | bytes) & EIGHT(0x80u);
}

/* The same run, of letters or small letters: eight bytes at a time. fold: 0x20 takes capitals as small ones. */
static inline size_t run_of_letters(const char *text, size_t size, size_t at, unsigned wanted, unsigned fold)
{
    size_t n;
    while (size - at >= sizeof(uint64_t)) {
        uint64_t bytes, others;
        memcpy(&bytes, text + at, sizeof bytes);
        others = not_between(le64toh(bytes) | EIGHT(fold), 'a', 'z');
        if (others == 0) {
            at += sizeof bytes;
            continue;
        }
        at += (size_t)__builtin_ctzll(others) / 8;
        if ((flags_at(text, at, &n) & wanted) == 0) {
            return at;
        }
        at += n;
    }
    return run(text, size, at, wanted);
}

static inline size_t run_of_any_letters(const char *text, size_t size, size_t at)
{
    return run_of_letters(text, size, at, IS_LETTER, 0x20);
}

static inline bool is_line_end(char c)
{
    return c == '\n' || c == '\r';
}

/* Bytes of 's, 't, 're, 've, 'm, 'll or 'd at the apostrophe; 0: none. any_case: (?i:...), where s may
 * also be U+017F. */
static inline size_t contraction(const char *text, size_t size, size_t at, bool any_case)
{
    size_t left = size - at;
    if (left < 2) {
        return 0;
    }
    char fold = any_case ? 32 : 0;
    char a = text[at + 1];
    if (any_case && a == '\xc5') {
        return left >= 3 && text[at + 2] == '\xbf' ? 3 : 0;
    }
    a = a >= 'A' && a <= 'Z' ? (char)(a | fold) : a;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') {
        return 2;
    }
    char b = left >= 3 ? text[at + 2] : 0;
    b = b >= 'A' && b <= 'Z' ? (char)(b | fold) : b;
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+ at white space that ends at `end`: the last character joins what follows. */
static inline size_t spaces(const char *text, size_t size, size_t at, size_t end)
{
    size_t n;
    if (end == size) {
        return end;
    }
    (void)utf8_read_back(text, end, &n);
    return end - n > at ? end - n : end;
}

static inline size_t scan_gpt2(const char *text, size_t size, size_t at, bool digits)
{
    size_t n, begin = at;
    if (text[at] == '\'') {
        size_t taken = contraction(text, size, at, false);
        if (taken > 0) {
            return at + taken;
        }
    }
    if (text[at] == ' ' && at + 1 < size) {
        at++;
    }
    unsigned flags = flags_at(text, at, &n);
    if ((flags & IS_LETTER) != 0) {
        return run_of_any_letters(text, size, at + n);
    }
    if ((flags & OTHER) != 0) {
        return run(text, size, at + n, OTHER);
    }
    if ((flags & IS_NUMBER) != 0) {
        /* a digit of its own ends the text before it */
        return !digits ? run(text, size, at + n, IS_NUMBER) : at > begin ? at : at + n;
    }
    size_t end = run(text, size, at, IS_SPACE);
    if (digits && end < size && (flags_at(text, end, &n) & IS_NUMBER) != 0) {
        return end;
    }
    return spaces(text, size, begin, end);
}

/* The function of a scanner, from what gives the end of the piece at text[at]. Declared once more, for a `;`. */
#define SCANNER(name, end_of_piece)                                                                                    \
    size_t name(const char *text, size_t size, size_t at, struct piece *out, size_t most)                              \
    {                                                                                                                  \
        size_t count = 0;                                                                                              \
        for (size_t end; count < most && at < size; at = end) {                                                        \
            end = end_of_piece;                                                                                        \
            out[count++] = (struct piece){at, end};                                                                    \
        }                                                                                                              \
        return count;                                                                                                  \
    }                                                                                                                  \
    scanner_function name

#ifdef SCAN_WINDOWS
/* The pieces that a window at text[*next] sees whole; *next: where they end. */
static inline size_t scan_window(const char *text, size_t size, size_t *next, struct piece *out, size_t most,
                                 bool digits)
{
    const size_t first = *next;
    const struct window w = window_read(text + first, digits);
    uint64_t ends = w.begins & (w.begins - 1); /* without the first piece's begin */
    size_t count = 0;
    int at = 0;
    for (; count < most && ends != 0; count++) {
        int end = __builtin_ctzll(ends);
        ends &= ends - 1;
        if ((w.apostrophes >> at & 1) != 0) {
            int taken = (int)contraction(text, size, first + (size_t)at, false);
            if (at + taken >= w.known) {
                break;
            }
            if (taken > 0) {
                end = at + taken;
                ends &= ~((UINT64_C(2) << end) - 1);
            }
        }
        out[count] = (struct piece){first + (size_t)at, first + (size_t)end};
        at = end;
    }
    *next = first + (size_t)at;
    return count;
}

/* Windows where they see pieces. Behind a piece that one does not see, none is asked for a while: the text may be one
 * of other characters. */
static inline size_t scan_gpt2_pieces(const char *text, size_t size, size_t at, struct piece *out, size_t most,
                                      bool digits)
{
    enum { WAIT = 8 };
    size_t count = 0;
    for (int wait = 0; count < most && at < size;) {
        if (wait == 0 && size - at >= WINDOW_BYTES) {
            size_t got = scan_window(text, size, &at, out + count, most - count, digits);
            count += got;
            wait = got > 0 ? 0 : WAIT;
            continue;
        }
        size_t end = scan_gpt2(text, size, at, digits);
        out[count++] = (struct piece){at, end};
        at = end;
        wait -= wait > 0;
    }
    return count;
}

size_t scanner_gpt2(const char *text, size_t size, size_t at, struct piece *out, size_t most)
{
    return scan_gpt2_pieces(text, size, at, out, most, false);
}

size_t scanner_digits_gpt2(const char *text, size_t size, size_t at, struct piece *out, size_t most)
{
    return scan_gpt2_pieces(text, size, at, out, most, true);
}
#else
SCANNER(scanner_gpt2, scan_gpt2(text, size, at, false));
SCANNER(scanner_digits_gpt2, scan_gpt2(text, size, at, true));
#endif

/* The alternatives from `\p{N}{1,most}` on, which begin with `flags`. slash: [\r\n/]* in the place of
 * [\r\n]*. */
static inline size_t scan_rest(const char *text, size_t size, size_t at, unsigned flags, size_t n, int most, bool slash)
{
    if ((flags & IS_NUMBER) != 0) {
        size_t end = at + n;
        for (int i = 1; i < most && end < size && (flags_at(text, end, &n) & IS_NUMBER) != 0; i++) {
            end += n;
        }
        return end;
    }
    size_t from = text[at] == ' ' ? at + 1 : at, end = run(text, size, from, OTHER);
    if (end > from) {
        while (end < size && (is_line_end(text[end]) || (slash && text[end] == '/'))) {
            end++;
        }
        return end;
    }
    end = run(text, size, at, IS_SPACE);
    for (size_t i = end; i > at; i--) {
        if (is_line_end(text[i - 1])) {
            return i;
        }
    }
    return spaces(text, size, at, end);
}

static inline size_t scan_llama3(const char *text, size_t size, size_t at, int most)
{
    size_t n, m;
    if (text[at] == '\'') {
        size_t taken = contraction(text, size, at, true);
        if (taken > 0) {
            return at + taken;
        }
    }
    unsigned flags = flags_at(text, at, &n);
    if ((flags & IS_LETTER) != 0) {
        return run_of_any_letters(text, size, at + n);
    }
    if ((flags & IS_NUMBER) == 0 && !is_line_end(text[at]) && at + n < size &&
        (flags_at(text, at + n, &m) & IS_LETTER) != 0) {
        return run_of_any_letters(text, size, at + n + m);
    }
    return scan_rest(text, size, at, flags, n, most, false);
}

static SCANNER(scanner_llama3, scan_llama3(text, size, at, 3));
static SCANNER(scanner_qwen2, scan_llama3(text, size, at, 1));

/* A word of o200k without what may stand before it: capitals (and characters without case), then small
 * ones. Returns the end of `capitals* small+`, 0 if there is none; *capitals: the end of `capitals*`. */
static inline size_t scan_word(const char *text, size_t size, size_t at, size_t *capitals)
{
    size_t n, last = 0;
    while (at < size) {
        unsigned flags = flags_at(text, at, &n);
        if ((flags & IS_CAPITAL) == 0) {
            break;
        }
        at += n;
        last = (flags & IS_SMALL) != 0 ? at : last; /* serves as a small one, too */
    }
    *capitals = at;
    size_t end = run_of_letters(text, size, at, IS_SMALL, 0);
    return end > at ? end : last;
}

static inline size_t with_contraction(const char *text, size_t size, size_t end)
{
    return end < size && text[end] == '\'' ? end + contraction(text, size, end, true) : end;
}

static size_t scan_o200k(const char *text, size_t size, size_t at)
{
    size_t n, capitals, capitals_behind = at, end, behind = 0;
    unsigned flags = flags_at(text, at, &n);
    bool before = (flags & (IS_LETTER | IS_NUMBER)) == 0 && !is_line_end(text[at]);
    if (before) {
        behind = scan_word(text, size, at + n, &capitals_behind);
    }
    if (behind > 0) {
        return with_contraction(text, size, behind);
    }
    end = scan_word(text, size, at, &capitals);
    if (end > 0) {
        return with_contraction(text, size, end);
    }
    if (before && capitals_behind > at + n) {
        return with_contraction(text, size, capitals_behind);
    }
    if (capitals > at) {
        return with_contraction(text, size, capitals);
    }
    return scan_rest(text, size, at, flags, n, 3, true);
}

static SCANNER(scanner_o200k, scan_o200k(text, size, at));

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CAPITALS "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define SMALL "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
static const struct {
    const char *regex;
    scanner_function *scan;
} scanners[] = {
    {scanner_gpt2_regex, scanner_gpt2},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES, scanner_llama3},
    {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACES, scanner_qwen2},
    {"[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "*" SMALL "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" CAPITALS "+" SMALL
     "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACES,
     scanner_o200k},
};

scanner_function *scanner_find(const char *regex)
{
    for (size_t i = 0; i < sizeof scanners / sizeof *scanners; i++) {
        if (strcmp(scanners[i].regex, regex) == 0) {
            characters_open();
            return scanners[i].scan;
        }
    }
    return NULL;
}

const char *scanner_regex(int number)
{
    return number < (int)(sizeof scanners / sizeof *scanners) ? scanners[number].regex : NULL;
}
