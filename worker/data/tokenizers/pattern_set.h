/* Sets of code points: the classes of regular expressions. */
#ifndef DT_WORKER_DATA_TOKENIZERS_PATTERN_SET_H
#define DT_WORKER_DATA_TOKENIZERS_PATTERN_SET_H

#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct code_set {
    uint64_t *bits;
};
void code_set_open(struct code_set *s); /* empty */
void code_set_close(struct code_set *s);
void code_set_add(struct code_set *s, uint32_t first, uint32_t last);
/* Adds the characters of \s, \d or \w (letter), or all others (`negated`). in_class: it stands in brackets. */
void code_set_add_escape(struct code_set *s, char letter, bool negated, bool in_class);
/* The same for \p{name}. False: the name is not known. */
bool code_set_add_property(struct code_set *s, const char *name, size_t size, bool negated);
/* Adds the characters of another set, or all others (`negated`). */
void code_set_add_set(struct code_set *s, const struct code_set *other, bool negated);
/* Removes what another set lacks. */
void code_set_intersect(struct code_set *s, const struct code_set *other);
/* Appends the class of PCRE2, [...] or [^...] (`negated`), by its ranges. */
void code_set_write(const struct code_set *s, bool negated, struct dt_text *out);

#endif
