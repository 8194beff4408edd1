/* Upper, lower and title case with Unicode's full mappings, as Python has them. */
#include "worker/data/templates/own.h"

#include "worker/data/tokenizers/unicode.h"

#include <string.h>
#include <utf8proc.h>

static bool is_cased(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static bool is_ignorable(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK ||
           (c > 0 && c < 0x80 && strchr("'.:^`", c) != NULL) || c == 0xb7 || c == 0x2018 || c == 0x2019 ||
           c == 0x2024 || c == 0x2027;
}

/* True if the letter at `at` is the last one of a word. */
static bool is_final(const struct unicode_codes *all, size_t at)
{
    size_t before = at, after = at + 1;
    while (before > 0 && is_ignorable(all->at[before - 1])) {
        before--;
    }
    while (after < all->count && is_ignorable(all->at[after])) {
        after++;
    }
    return before > 0 && is_cased(all->at[before - 1]) && !(after < all->count && is_cased(all->at[after]));
}

static void lower(const struct unicode_codes *all, size_t at, struct unicode_codes *out)
{
    if (all->at[at] == 0x3a3) {
        unicode_codes_add(out, is_final(all, at) ? 0x3c2 : 0x3c3);
    } else {
        unicode_lower(out, (uint32_t)all->at[at]);
    }
}

/* A character whose upper case is several is the upper case of its folding. */
static void upper(int32_t c, bool title, struct unicode_codes *out)
{
    utf8proc_int32_t folded[8];
    int boundary = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(c, folded, 8, UTF8PROC_CASEFOLD, &boundary);
    if (n < 2 || n > 8 || c == 0x130 || c == 0x1e9e || (title && utf8proc_totitle(c) != utf8proc_toupper(c))) {
        unicode_codes_add(out, (uint32_t)(title ? utf8proc_totitle(c) : utf8proc_toupper(c)));
        return;
    }
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        unicode_codes_add(out, (uint32_t)(title && i > 0 ? folded[i] : utf8proc_toupper(folded[i])));
    }
}

/* Does the filter `title` begin a word behind this character? */
static bool parts_words(int32_t c)
{
    return (c > 0 && c < 0x80 && strchr("-({[<", c) != NULL) || unicode_is_space((uint32_t)c);
}

struct value change_case(struct run *r, struct value v, enum letters how)
{
    struct unicode_codes in = {0}, to = {0};
    struct dt_text text;
    bool begins = true;
    if (!work(r, v.text.size)) {
        return v;
    }
    dt_text_init(&text);
    unicode_read(&in, v.text.at, v.text.size);
    for (size_t i = 0; i < in.count; i++) {
        if (how == CASE_UPPER || (how == CASE_WORDS && begins)) {
            upper(in.at[i], false, &to);
        } else if (how != CASE_LOWER && begins) {
            upper(in.at[i], true, &to);
        } else {
            lower(&in, i, &to);
        }
        begins = how == CASE_TITLE ? !is_cased(in.at[i]) : how == CASE_WORDS ? parts_words(in.at[i]) : false;
    }
    unicode_write(&to, &text);
    v = text_copy(r, dt_text_str(&text), text.size);
    unicode_codes_clear(&in);
    unicode_codes_clear(&to);
    dt_text_clear(&text);
    return v;
}
