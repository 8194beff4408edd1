/* Sets of code points. A class is written for PCRE2 by its ranges, since the properties that PCRE2
 * knows are those of another Unicode version. */
#include "worker/data/tokenizers/pattern_set.h"
#include "worker/data/tokenizers/characters.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <utf8proc.h>

void code_set_open(struct code_set *s)
{
    characters_open();
    s->bits = dt_alloc(CHARACTERS / 8);
}

void code_set_close(struct code_set *s)
{
    free(s->bits);
}

static bool has(const struct code_set *s, uint32_t c)
{
    return (s->bits[c / 64] >> (c % 64) & 1) != 0;
}

static inline void add(struct code_set *s, uint32_t c)
{
    s->bits[c / 64] |= UINT64_C(1) << (c % 64);
}

void code_set_add(struct code_set *s, uint32_t first, uint32_t last)
{
    for (uint32_t c = first; c <= last; c++) {
        add(s, c);
    }
}

void code_set_add_set(struct code_set *s, const struct code_set *other, bool negated)
{
    for (size_t i = 0; i < CHARACTERS / 64; i++) {
        s->bits[i] |= negated ? ~other->bits[i] : other->bits[i];
    }
}

void code_set_intersect(struct code_set *s, const struct code_set *other)
{
    for (size_t i = 0; i < CHARACTERS / 64; i++) {
        s->bits[i] &= other->bits[i];
    }
}

/* Oniguruma counts some numbers among the characters of words, but not within brackets. */
static bool is_word(uint32_t c, bool in_class)
{
    return character_is_word(c) || (!in_class && (c == 0xb2 || c == 0xb3 || c == 0xb9 || (c >= 0xbc && c <= 0xbe)));
}

void code_set_add_escape(struct code_set *s, char letter, bool negated, bool in_class)
{
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        bool in = letter == 's'   ? (character_flags(c) & IS_SPACE) != 0
                  : letter == 'd' ? character_table[c] == UTF8PROC_CATEGORY_ND
                                  : is_word(c, in_class);
        if (in != negated) {
            add(s, c);
        }
    }
}

static const char categories[][3] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                     "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                     "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

/* Unicode 16. */
static const uint32_t han[][2] = {{0x2e80, 0x2e99},   {0x2e9b, 0x2ef3},   {0x2f00, 0x2fd5},   {0x3005, 0x3005},
                                  {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303b},   {0x3400, 0x4dbf},
                                  {0x4e00, 0x9fff},   {0xf900, 0xfa6d},   {0xfa70, 0xfad9},   {0x16fe2, 0x16fe3},
                                  {0x16ff0, 0x16ff1}, {0x20000, 0x2a6df}, {0x2a700, 0x2b739}, {0x2b740, 0x2b81d},
                                  {0x2b820, 0x2cea1}, {0x2ceb0, 0x2ebe0}, {0x2ebf0, 0x2ee5d}, {0x2f800, 0x2fa1d},
                                  {0x30000, 0x3134a}, {0x31350, 0x323af}};

static bool is_han(uint32_t c)
{
    for (size_t i = 0; i < sizeof han / sizeof *han; i++) {
        if (c >= han[i][0] && c <= han[i][1]) {
            return true;
        }
    }
    return false;
}

/* Bits of the categories that a name ("L", "Lu") stands for; 0: it stands for none. */
static uint32_t categories_of(const char *name, size_t size)
{
    uint32_t bits = 0;
    for (uint32_t i = 0; i < sizeof categories / sizeof *categories; i++) {
        if (size <= 2 && strncasecmp(name, categories[i], size) == 0) {
            bits |= 1u << i;
        }
    }
    return bits;
}

bool code_set_add_property(struct code_set *s, const char *name, size_t size, bool negated)
{
    bool script = size == 3 && strncasecmp(name, "Han", 3) == 0;
    uint32_t bits = size == 0 ? 0 : categories_of(name, size);
    if (bits == 0 && !script) {
        return false;
    }
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        uint32_t category = character_table[c] == CHARACTER_CONTROL_SPACE ? UTF8PROC_CATEGORY_CC : character_table[c];
        bool in = script ? is_han(c) : (bits >> category & 1) != 0;
        if (in != negated) {
            add(s, c);
        }
    }
    return true;
}

struct range {
    uint32_t first, last;
};

/* The longest first: PCRE2 compares one after the other. */
static int by_length(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    uint32_t n = x->last - x->first, m = y->last - y->first;
    return n != m ? (n < m) - (n > m) : (x->first > y->first) - (x->first < y->first);
}

void code_set_write(const struct code_set *s, bool negated, struct dt_text *out)
{
    struct range *ranges = dt_alloc(CHARACTERS / 2 * sizeof *ranges);
    size_t count = 0;
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        if (!has(s, c) || (c >= 0xd800 && c < 0xe000)) { /* valid UTF-8 has no surrogates */
            continue;
        }
        if (count > 0 && ranges[count - 1].last + 1 == c) {
            ranges[count - 1].last = c;
        } else {
            ranges[count++] = (struct range){c, c};
        }
    }
    qsort(ranges, count, sizeof *ranges, by_length);
    if (count == 0) { /* none, or all */
        dt_text_puts(out, negated ? "(?s:.)" : "(?!)");
    }
    for (size_t i = 0; i < count; i++) {
        dt_text_printf(out, "%s\\x{%x}", i > 0 ? "" : negated ? "[^" : "[", ranges[i].first);
        if (ranges[i].last > ranges[i].first) {
            dt_text_printf(out, "-\\x{%x}", ranges[i].last);
        }
    }
    dt_text_puts(out, count > 0 ? "]" : "");
    free(ranges);
}
