/* U+FFFD in the place of what is not UTF-8. */
#ifndef DT_CMD_DTDATA_UTF8_H
#define DT_CMD_DTDATA_UTF8_H

#include "base/text.h"

#include <stddef.h>

/* Appends the text with U+FFFD in the place of each part that is not UTF-8, cut into parts as Python's
 * errors="replace" does: the longest begin of a character, or one byte. Returns their number. */
long long utf8_replace(const char *text, size_t size, struct dt_text *out);

#endif
