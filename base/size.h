/* Sizes in bytes, as people write them. */
#ifndef DT_BASE_SIZE_H
#define DT_BASE_SIZE_H

#include <stdbool.h>
#include <stdint.h>

/* "5GB", "200MB", "1.5 KB" (powers of 1000, as Hugging Face has them), or plain bytes; at least 1.
 * False (out unchanged): it is anything else. */
bool dt_parse_bytes(const char *s, int64_t *out);

#endif
