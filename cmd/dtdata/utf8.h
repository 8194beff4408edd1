/* UTF-8: where a text is not, and U+FFFD in the place of that. */
#ifndef DT_CMD_DTDATA_UTF8_H
#define DT_CMD_DTDATA_UTF8_H

#include "base/text.h"

#include <stddef.h>

/* The length of the valid UTF-8 at the begin of `text`; `size` if all of it is. */
size_t utf8_valid(const char *text, size_t size);
/* Appends the text with U+FFFD in the place of each part that is not UTF-8, cut into parts as Python's
 * errors="replace" does: the longest begin of a character, or one byte. Returns their number. */
long long utf8_replace(const char *text, size_t size, struct dt_text *out);

#endif
