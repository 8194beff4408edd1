/* From Oniguruma's spelling of a regular expression to PCRE2's. */
#ifndef DT_WORKER_DATA_TOKENIZERS_PATTERN_H
#define DT_WORKER_DATA_TOKENIZERS_PATTERN_H

#include "worker/data/tokenizers/parts.h"

/* Appends the pattern for PCRE2 with PCRE2_UTF. DT_INVALID for a construct that is not translated,
 * which the error names. */
int pattern_translate(const char *regex, struct dt_text *out, struct dt_error *err);

#endif
