#include "worker/data/tokenizers/unicode.h"

#include "worker/data/tokenizers/characters.h"
#include "worker/data/tokenizers/unicode_tables.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define COUNT(table) (sizeof(table) / sizeof *(table))
#define IN(table, c) in_ranges(table, COUNT(table), (int32_t)(c))

static bool in_ranges(const struct range *table, size_t count, int32_t c)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > table[middle].last) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < count && c >= table[low].first;
}

/* ---- properties ---- */

static bool has_category(uint32_t c, unsigned categories)
{
    return (categories >> utf8proc_category((int32_t)c) & 1) != 0;
}

enum {
    NUMBERS = 1 << UTF8PROC_CATEGORY_ND | 1 << UTF8PROC_CATEGORY_NL | 1 << UTF8PROC_CATEGORY_NO,
    MARKS = 1 << UTF8PROC_CATEGORY_MN | 1 << UTF8PROC_CATEGORY_MC | 1 << UTF8PROC_CATEGORY_ME,
    PUNCTUATION = 1 << UTF8PROC_CATEGORY_PC | 1 << UTF8PROC_CATEGORY_PD | 1 << UTF8PROC_CATEGORY_PS |
                  1 << UTF8PROC_CATEGORY_PE | 1 << UTF8PROC_CATEGORY_PI | 1 << UTF8PROC_CATEGORY_PF |
                  1 << UTF8PROC_CATEGORY_PO,
    WORD = 1 << UTF8PROC_CATEGORY_LU | 1 << UTF8PROC_CATEGORY_LL | 1 << UTF8PROC_CATEGORY_LT |
           1 << UTF8PROC_CATEGORY_LM | 1 << UTF8PROC_CATEGORY_LO | MARKS | 1 << UTF8PROC_CATEGORY_ND |
           1 << UTF8PROC_CATEGORY_NL | 1 << UTF8PROC_CATEGORY_PC,
    CONTROLS = 1 << UTF8PROC_CATEGORY_CC | 1 << UTF8PROC_CATEGORY_CF | 1 << UTF8PROC_CATEGORY_CO
};

bool unicode_is_white(uint32_t c)
{
    if (c < 0x80) {
        return c == ' ' || (c >= 9 && c <= 13);
    }
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool unicode_is_space(uint32_t c)
{
    return unicode_is_white(c) || (c >= 0x1c && c <= 0x1f);
}

bool unicode_is_control(uint32_t c)
{
    if (c < 0x80) {
        return (c < ' ' && c != '\t' && c != '\n' && c != '\r') || c == 0x7f;
    }
    return c == 0xfffd || has_category(c, CONTROLS) != IN(other_differ, c);
}

bool unicode_is_accent(uint32_t c)
{
    return c >= 0x300 && has_category(c, 1 << UTF8PROC_CATEGORY_MN) != IN(nonspacing_differ, c);
}

bool unicode_is_mark(uint32_t c)
{
    return c >= 0x300 && has_category(c, MARKS) != IN(mark_differ, c);
}

bool unicode_is_punctuation(uint32_t c)
{
    if (c < 0x80) {
        return (c > ' ' && c < '0') || (c > '9' && c < 'A') || (c > 'Z' && c < 'a') || (c > 'z' && c < 0x7f);
    }
    return has_category(c, PUNCTUATION) != IN(punctuation_differ, c);
}

bool unicode_is_numeric(uint32_t c)
{
    return c < 0x80 ? c >= '0' && c <= '9' : has_category(c, NUMBERS) != IN(numeric_differ, c);
}

bool unicode_is_word(uint32_t c)
{
    if (c < 0x80) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || c == '_' || (c >= 'a' && c <= 'z');
    }
    return has_category(c, WORD) != IN(word_differ, c);
}

/* ---- lists of characters ---- */

void unicode_codes_add(struct unicode_codes *l, uint32_t c)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity > 0 ? 2 * l->capacity : 64;
        l->at = dt_realloc(l->at, l->capacity * sizeof *l->at);
    }
    l->at[l->count++] = (int32_t)c;
}

void unicode_codes_clear(struct unicode_codes *l)
{
    free(l->at);
    *l = (struct unicode_codes){0};
}

void unicode_read(struct unicode_codes *l, const char *text, size_t size)
{
    for (size_t at = 0, n = 0; at < size; at += n) {
        unicode_codes_add(l, utf8_read(text + at, &n));
    }
}

void unicode_write(const struct unicode_codes *l, struct dt_text *out)
{
    for (size_t i = 0; i < l->count; i++) {
        char bytes[4];
        dt_text_add(out, bytes, utf8_write((uint32_t)l->at[i], bytes));
    }
}

/* ---- case and normal forms ---- */

void unicode_lower(struct unicode_codes *l, uint32_t c)
{
    if (c < 0x80) {
        unicode_codes_add(l, c >= 'A' && c <= 'Z' ? c + 32 : c);
        return;
    }
    if (c == 0x130) {
        unicode_codes_add(l, 'i');
        unicode_codes_add(l, 0x307);
        return;
    }
    for (size_t i = 0; i < COUNT(lower_case); i++) {
        if ((int32_t)c >= lower_case[i][0] && (int32_t)c <= lower_case[i][1]) {
            unicode_codes_add(l, (uint32_t)((int32_t)c + lower_case[i][2]));
            return;
        }
    }
    unicode_codes_add(l, (uint32_t)utf8proc_tolower((int32_t)c));
}

void unicode_decompose(struct unicode_codes *l, uint32_t c, bool compatible)
{
    enum { LONGEST = 18 }; /* U+FDFA */
    int32_t parts[LONGEST];
    if (c < 0xa0 || IN(not_decomposed, c)) {
        unicode_codes_add(l, c);
        return;
    }
    int options = UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : 0);
    utf8proc_ssize_t n = utf8proc_decompose_char((int32_t)c, parts, LONGEST, options, NULL);
    for (utf8proc_ssize_t i = 0; i < n && i < LONGEST; i++) {
        unicode_codes_add(l, (uint32_t)parts[i]);
    }
}

static int combining_class(int32_t c)
{
    return c < 0x300 || IN(not_combining, c) ? 0 : utf8proc_get_property(c)->combining_class;
}

static void order_short(int32_t *at, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        int32_t moved = at[i];
        size_t to = i;
        while (to > 0 && combining_class(at[to - 1]) > combining_class(moved)) {
            at[to] = at[to - 1];
            to--;
        }
        at[to] = moved;
    }
}

/* Counts the marks of each class, so that a long run takes no more than linear time. */
static void order_long(int32_t *at, size_t count)
{
    enum { CLASSES = 256 };
    size_t begin[CLASSES + 1] = {0};
    int32_t *sorted = dt_alloc(count * sizeof *sorted);
    for (size_t i = 0; i < count; i++) {
        begin[combining_class(at[i]) + 1]++;
    }
    for (size_t k = 1; k <= CLASSES; k++) {
        begin[k] += begin[k - 1];
    }
    for (size_t i = 0; i < count; i++) {
        sorted[begin[combining_class(at[i])]++] = at[i];
    }
    memcpy(at, sorted, count * sizeof *sorted);
    free(sorted);
}

/* Sorts a run of marks by their classes. Marks of one class keep their order. */
static void order_run(int32_t *at, size_t count)
{
    enum { SHORT = 16 };
    if (count <= SHORT) {
        order_short(at, count);
    } else {
        order_long(at, count);
    }
}

void unicode_order(struct unicode_codes *l)
{
    for (size_t i = 0; i < l->count;) {
        size_t end = i;
        while (end < l->count && combining_class(l->at[end]) != 0) {
            end++;
        }
        if (end > i + 1) {
            order_run(l->at + i, end - i);
        }
        i = end + 1;
    }
}

/* True if nothing before at[i] is composed with it in the library, though utf8proc would. */
static bool begins_apart(const int32_t *at, size_t i)
{
    if (at[i] >= 0x300 && IN(not_combining, at[i])) {
        return true;
    }
    for (size_t k = 0; i > 0 && k < COUNT(not_composed); k++) {
        if (at[i - 1] == not_composed[k][0] && at[i] == not_composed[k][1]) {
            return true;
        }
    }
    return false;
}

void unicode_compose(struct unicode_codes *l)
{
    size_t to = 0;
    for (size_t from = 0; from < l->count;) {
        size_t end = from + 1;
        while (end < l->count && !begins_apart(l->at, end)) {
            end++;
        }
        utf8proc_ssize_t n =
            utf8proc_normalize_utf32(l->at + from, (utf8proc_ssize_t)(end - from), UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        memmove(l->at + to, l->at + from, (size_t)n * sizeof *l->at);
        to += (size_t)n;
        from = end;
    }
    l->count = to;
}

/* ---- clusters (UAX 29) ---- */

/* The class of a character. Extended_Pictographic is UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC. */
static int bound_class(uint32_t c)
{
    int class = utf8proc_get_property((int32_t)c)->boundclass;
    if (c < 0x300 || c == 0x200d) {
        return class;
    }
    if ((class == UTF8PROC_BOUNDCLASS_EXTEND) != IN(extend_differ, c)) {
        return UTF8PROC_BOUNDCLASS_EXTEND;
    }
    if ((class == UTF8PROC_BOUNDCLASS_SPACINGMARK) != IN(spacing_differ, c)) {
        return UTF8PROC_BOUNDCLASS_SPACINGMARK;
    }
    if ((class == UTF8PROC_BOUNDCLASS_PREPEND) != IN(prepend_differ, c)) {
        return UTF8PROC_BOUNDCLASS_PREPEND;
    }
    if ((class == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC) != IN(picture_differ, c)) {
        return UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC;
    }
    if ((class == UTF8PROC_BOUNDCLASS_CONTROL) != IN(control_differ, c)) {
        return UTF8PROC_BOUNDCLASS_CONTROL;
    }
    switch (class) {
    case UTF8PROC_BOUNDCLASS_EXTEND:
    case UTF8PROC_BOUNDCLASS_SPACINGMARK:
    case UTF8PROC_BOUNDCLASS_PREPEND:
    case UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC:
    case UTF8PROC_BOUNDCLASS_CONTROL:
        return UTF8PROC_BOUNDCLASS_OTHER;
    default:
        return class;
    }
}

/* The part of a cluster that decides whether the next character belongs to it. */
struct cluster {
    int last;       /* class of the last character */
    bool picture;   /* GB11: it ends with a picture and Extend* */
    bool joined;    /* GB11: with these and a joiner */
    int regionals;  /* GB12: regional indicators at its end */
    bool consonant; /* GB9c: it ends with a consonant, marks and linkers */
    bool linker;    /* GB9c: one of these is a linker */
};

static void cluster_add(struct cluster *k, uint32_t c, int class)
{
    bool linker = IN(linkers, c);
    bool extends = class == UTF8PROC_BOUNDCLASS_EXTEND || class == UTF8PROC_BOUNDCLASS_ZWJ;
    k->joined = k->picture && class == UTF8PROC_BOUNDCLASS_ZWJ;
    k->picture =
        class == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC || (k->picture && class == UTF8PROC_BOUNDCLASS_EXTEND);
    k->regionals = class == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR ? k->regionals + 1 : 0;
    if (IN(consonants, c)) {
        k->consonant = true;
        k->linker = false;
    } else {
        k->consonant = k->consonant && (linker || (extends && !IN(not_linking, c)));
        k->linker = k->consonant && (k->linker || linker);
    }
    k->last = class;
}

static bool is_cut(int class)
{
    return class == UTF8PROC_BOUNDCLASS_CONTROL || class == UTF8PROC_BOUNDCLASS_CR || class == UTF8PROC_BOUNDCLASS_LF;
}

/* Syllables of Hangul: GB6 to GB8. */
static bool is_syllable(int last, int class)
{
    switch (class) {
    case UTF8PROC_BOUNDCLASS_L:
    case UTF8PROC_BOUNDCLASS_LV:
    case UTF8PROC_BOUNDCLASS_LVT:
        return last == UTF8PROC_BOUNDCLASS_L;
    case UTF8PROC_BOUNDCLASS_V:
        return last == UTF8PROC_BOUNDCLASS_L || last == UTF8PROC_BOUNDCLASS_LV || last == UTF8PROC_BOUNDCLASS_V;
    case UTF8PROC_BOUNDCLASS_T:
        return last == UTF8PROC_BOUNDCLASS_LV || last == UTF8PROC_BOUNDCLASS_V || last == UTF8PROC_BOUNDCLASS_LVT ||
               last == UTF8PROC_BOUNDCLASS_T;
    default:
        return false;
    }
}

static bool cluster_takes(const struct cluster *k, uint32_t c, int class)
{
    if (is_cut(k->last) || is_cut(class)) {
        return k->last == UTF8PROC_BOUNDCLASS_CR && class == UTF8PROC_BOUNDCLASS_LF;
    }
    return is_syllable(k->last, class) || class == UTF8PROC_BOUNDCLASS_EXTEND || class == UTF8PROC_BOUNDCLASS_ZWJ ||
           class == UTF8PROC_BOUNDCLASS_SPACINGMARK || k->last == UTF8PROC_BOUNDCLASS_PREPEND ||
           (k->linker && IN(consonants, c)) || (k->joined && class == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC) ||
           (class == UTF8PROC_BOUNDCLASS_REGIONAL_INDICATOR && k->regionals % 2 == 1);
}

size_t unicode_cluster(const char *text, size_t size)
{
    if (size == 1 || ((unsigned char)text[0] < 0x80 && (unsigned char)text[1] < 0x80 && text[0] != '\r')) {
        return 1;
    }
    struct cluster k = {0};
    size_t at = 0, n = 0;
    while (at < size) {
        uint32_t c = utf8_read(text + at, &n);
        int class = bound_class(c);
        if (at > 0 && !cluster_takes(&k, c, class)) {
            break;
        }
        cluster_add(&k, c, class);
        at += n;
    }
    return at;
}
