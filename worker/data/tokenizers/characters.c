/* The classes of characters. utf8proc has the categories of its own Unicode version; `corrections`
 * make them those of Unicode 16, which the regular expressions of the tokenizers library (0.23) know.
 * A correction names the right category whatever utf8proc says, so a newer utf8proc does no harm.
 * The table was found by comparing all code points with the library. */
#include "worker/data/tokenizers/characters.h"

#include "base/text.h"

#include <pthread.h>
#include <string.h>
#include <utf8proc.h>

static const struct {
    uint32_t first, last;
    uint8_t category;
} corrections[] = {
    {0x897, 0x897, UTF8PROC_CATEGORY_MN},     {0x1b4e, 0x1b4f, UTF8PROC_CATEGORY_PO},
    {0x1b7f, 0x1b7f, UTF8PROC_CATEGORY_PO},   {0x1c89, 0x1c89, UTF8PROC_CATEGORY_LU},
    {0x1c8a, 0x1c8a, UTF8PROC_CATEGORY_LL},   {0x2427, 0x2429, UTF8PROC_CATEGORY_SO},
    {0x2ffc, 0x2fff, UTF8PROC_CATEGORY_SO},   {0x31e4, 0x31e5, UTF8PROC_CATEGORY_SO},
    {0x31ef, 0x31ef, UTF8PROC_CATEGORY_SO},   {0xa7cb, 0xa7cc, UTF8PROC_CATEGORY_LU},
    {0xa7cd, 0xa7cd, UTF8PROC_CATEGORY_LL},   {0xa7da, 0xa7da, UTF8PROC_CATEGORY_LU},
    {0xa7db, 0xa7db, UTF8PROC_CATEGORY_LL},   {0xa7dc, 0xa7dc, UTF8PROC_CATEGORY_LU},
    {0x105c0, 0x105f3, UTF8PROC_CATEGORY_LO}, {0x10d40, 0x10d49, UTF8PROC_CATEGORY_ND},
    {0x10d4a, 0x10d4d, UTF8PROC_CATEGORY_LO}, {0x10d4e, 0x10d4e, UTF8PROC_CATEGORY_LM},
    {0x10d4f, 0x10d4f, UTF8PROC_CATEGORY_LO}, {0x10d50, 0x10d65, UTF8PROC_CATEGORY_LU},
    {0x10d69, 0x10d6d, UTF8PROC_CATEGORY_MN}, {0x10d6e, 0x10d6e, UTF8PROC_CATEGORY_PD},
    {0x10d6f, 0x10d6f, UTF8PROC_CATEGORY_LM}, {0x10d70, 0x10d85, UTF8PROC_CATEGORY_LL},
    {0x10d8e, 0x10d8f, UTF8PROC_CATEGORY_SM}, {0x10ec2, 0x10ec4, UTF8PROC_CATEGORY_LO},
    {0x10efc, 0x10efc, UTF8PROC_CATEGORY_MN}, {0x11380, 0x11389, UTF8PROC_CATEGORY_LO},
    {0x1138b, 0x1138b, UTF8PROC_CATEGORY_LO}, {0x1138e, 0x1138e, UTF8PROC_CATEGORY_LO},
    {0x11390, 0x113b5, UTF8PROC_CATEGORY_LO}, {0x113b7, 0x113b7, UTF8PROC_CATEGORY_LO},
    {0x113b8, 0x113ba, UTF8PROC_CATEGORY_MC}, {0x113bb, 0x113c0, UTF8PROC_CATEGORY_MN},
    {0x113c2, 0x113c2, UTF8PROC_CATEGORY_MC}, {0x113c5, 0x113c5, UTF8PROC_CATEGORY_MC},
    {0x113c7, 0x113ca, UTF8PROC_CATEGORY_MC}, {0x113cc, 0x113cd, UTF8PROC_CATEGORY_MC},
    {0x113ce, 0x113ce, UTF8PROC_CATEGORY_MN}, {0x113cf, 0x113cf, UTF8PROC_CATEGORY_MC},
    {0x113d0, 0x113d0, UTF8PROC_CATEGORY_MN}, {0x113d1, 0x113d1, UTF8PROC_CATEGORY_LO},
    {0x113d2, 0x113d2, UTF8PROC_CATEGORY_MN}, {0x113d3, 0x113d3, UTF8PROC_CATEGORY_LO},
    {0x113d4, 0x113d5, UTF8PROC_CATEGORY_PO}, {0x113d7, 0x113d8, UTF8PROC_CATEGORY_PO},
    {0x113e1, 0x113e2, UTF8PROC_CATEGORY_MN}, {0x116d0, 0x116e3, UTF8PROC_CATEGORY_ND},
    {0x1171e, 0x1171e, UTF8PROC_CATEGORY_MC}, {0x11bc0, 0x11be0, UTF8PROC_CATEGORY_LO},
    {0x11be1, 0x11be1, UTF8PROC_CATEGORY_PO}, {0x11bf0, 0x11bf9, UTF8PROC_CATEGORY_ND},
    {0x11f5a, 0x11f5a, UTF8PROC_CATEGORY_MN}, {0x13460, 0x143fa, UTF8PROC_CATEGORY_LO},
    {0x16100, 0x1611d, UTF8PROC_CATEGORY_LO}, {0x1611e, 0x16129, UTF8PROC_CATEGORY_MN},
    {0x1612a, 0x1612c, UTF8PROC_CATEGORY_MC}, {0x1612d, 0x1612f, UTF8PROC_CATEGORY_MN},
    {0x16130, 0x16139, UTF8PROC_CATEGORY_ND}, {0x16d40, 0x16d42, UTF8PROC_CATEGORY_LM},
    {0x16d43, 0x16d6a, UTF8PROC_CATEGORY_LO}, {0x16d6b, 0x16d6c, UTF8PROC_CATEGORY_LM},
    {0x16d6d, 0x16d6f, UTF8PROC_CATEGORY_PO}, {0x16d70, 0x16d79, UTF8PROC_CATEGORY_ND},
    {0x18cff, 0x18cff, UTF8PROC_CATEGORY_LO}, {0x1cc00, 0x1ccef, UTF8PROC_CATEGORY_SO},
    {0x1ccf0, 0x1ccf9, UTF8PROC_CATEGORY_ND}, {0x1cd00, 0x1ceb3, UTF8PROC_CATEGORY_SO},
    {0x1e5d0, 0x1e5ed, UTF8PROC_CATEGORY_LO}, {0x1e5ee, 0x1e5ef, UTF8PROC_CATEGORY_MN},
    {0x1e5f0, 0x1e5f0, UTF8PROC_CATEGORY_LO}, {0x1e5f1, 0x1e5fa, UTF8PROC_CATEGORY_ND},
    {0x1e5ff, 0x1e5ff, UTF8PROC_CATEGORY_PO}, {0x1f8b2, 0x1f8bb, UTF8PROC_CATEGORY_SO},
    {0x1f8c0, 0x1f8c1, UTF8PROC_CATEGORY_SO}, {0x1fa89, 0x1fa89, UTF8PROC_CATEGORY_SO},
    {0x1fa8f, 0x1fa8f, UTF8PROC_CATEGORY_SO}, {0x1fabe, 0x1fabe, UTF8PROC_CATEGORY_SO},
    {0x1fac6, 0x1fac6, UTF8PROC_CATEGORY_SO}, {0x1fadc, 0x1fadc, UTF8PROC_CATEGORY_SO},
    {0x1fadf, 0x1fadf, UTF8PROC_CATEGORY_SO}, {0x1fae9, 0x1fae9, UTF8PROC_CATEGORY_SO},
    {0x1fbcb, 0x1fbef, UTF8PROC_CATEGORY_SO}, {0x2ebf0, 0x2ee5d, UTF8PROC_CATEGORY_LO},
};

uint8_t character_table[CHARACTERS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void)
{
    for (uint32_t c = 0; c < CHARACTERS; c++) {
        character_table[c] = (uint8_t)utf8proc_category((utf8proc_int32_t)c);
    }
    for (size_t i = 0; i < sizeof corrections / sizeof *corrections; i++) {
        memset(character_table + corrections[i].first, corrections[i].category,
               corrections[i].last - corrections[i].first + 1);
    }
    for (uint32_t c = 9; c <= 13; c++) {
        character_table[c] = CHARACTER_CONTROL_SPACE;
    }
    character_table[0x85] = CHARACTER_CONTROL_SPACE;
}

void characters_open(void)
{
    (void)pthread_once(&once, fill);
}

/* The categories are utf8proc's numbers, in its order. */
#define OF(category, flags) [UTF8PROC_CATEGORY_##category] = (flags)
const uint16_t character_flags_of[32] = {
    OF(LU, IS_LETTER | IS_CAPITAL | IS_WORD),
    OF(LL, IS_LETTER | IS_SMALL | IS_WORD),
    OF(LT, IS_LETTER | IS_CAPITAL | IS_WORD),
    OF(LM, IS_LETTER | IS_CAPITAL | IS_SMALL | IS_WORD),
    OF(LO, IS_LETTER | IS_CAPITAL | IS_SMALL | IS_WORD),
    OF(MN, IS_MARK | IS_CAPITAL | IS_SMALL | IS_WORD),
    OF(MC, IS_MARK | IS_CAPITAL | IS_SMALL | IS_WORD),
    OF(ME, IS_MARK | IS_CAPITAL | IS_SMALL | IS_WORD),
    OF(ND, IS_NUMBER | IS_WORD),
    OF(NL, IS_NUMBER | IS_WORD),
    OF(NO, IS_NUMBER),
    OF(PC, IS_PUNCTUATION | IS_WORD),
    OF(PD, IS_PUNCTUATION),
    OF(PS, IS_PUNCTUATION),
    OF(PE, IS_PUNCTUATION),
    OF(PI, IS_PUNCTUATION),
    OF(PF, IS_PUNCTUATION),
    OF(PO, IS_PUNCTUATION),
    OF(SM, IS_SYMBOL),
    OF(SC, IS_SYMBOL),
    OF(SK, IS_SYMBOL),
    OF(SO, IS_SYMBOL),
    OF(ZS, IS_SPACE),
    OF(ZL, IS_SPACE),
    OF(ZP, IS_SPACE),
    [CHARACTER_CONTROL_SPACE] = IS_SPACE,
};

bool character_is_word(uint32_t c)
{
    /* letters in circles and squares are symbols, and words all the same */
    return (character_flags(c) & IS_WORD) != 0 || (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) ||
           (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
}

size_t utf8_valid(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        if (size - at >= sizeof eight) {
            memcpy(&eight, text + at, sizeof eight);
            if ((eight & 0x8080808080808080u) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t n = dt_text_character((const unsigned char *)text + at, size - at);
        if (n == 0) {
            break;
        }
        at += n;
    }
    return at;
}

bool utf8_begins(const char *text, size_t size)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t n = p[0] >= 0xc2 && p[0] < 0xe0 ? 2 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : 0;
    if (size >= n) {
        return false;
    }
    if (size > 1 && ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf0 && p[1] < 0x90) ||
                     (p[0] == 0xf4 && p[1] >= 0x90))) {
        return false;
    }
    for (size_t i = 1; i < size; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return false;
        }
    }
    return true;
}

size_t utf8_invalid(const char *text, size_t size)
{
    size_t n = 1;
    while (n < 3 && n < size && utf8_begins(text, n + 1)) {
        n++;
    }
    return n;
}

size_t utf8_cut(const char *text, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char c = (unsigned char)text[size - back];
        if (c >= 0xc0) {
            size_t whole = c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
            return whole > back ? back : 0;
        }
        if (c < 0x80) {
            return 0;
        }
    }
    return 0;
}

size_t utf8_write(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) {
        out[i] = (char)(0x80 | (c & 63));
    }
    out[0] = (char)((0xf00u >> n & 0xff) | c);
    return n;
}
