/* One sentence in other words. */
#ifndef DT_TESTS_REWORDED_REWORD_H
#define DT_TESTS_REWORDED_REWORD_H

#include "base/text.h"

#include <ctype.h>
#include <string.h>

/* size: of the buffer, as dt_text_make_visible has it; text null: nothing. */
static inline void reword(char *text, size_t size)
{
    if (text == NULL) {
        return;
    }
    dt_text_make_visible(text, size);
    for (char *p = text; *p != '\0'; p++) {
        *p = *p == ' '                     ? '_'
             : strchr(":;,()", *p) != NULL ? '|'
             : isdigit((unsigned char)*p)  ? (char)('G' + (*p - '0'))
             : (unsigned char)*p < 0x80    ? (char)toupper((unsigned char)*p)
                                           : *p;
    }
}

#endif
