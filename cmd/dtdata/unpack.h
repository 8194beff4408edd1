/* Reads a file as it is, or unpacked when it begins as gzip does. */
#ifndef DT_CMD_DTDATA_UNPACK_H
#define DT_CMD_DTDATA_UNPACK_H

#include "base/error.h"

#include <stddef.h>

struct unpack;

/* "-": standard input. The caller closes. */
int unpack_open(struct unpack **out, const char *path, struct dt_error *err);
/* The next bytes, at least one of them before the end: `got` is 0 only there. Refused: packed
 * data that is damaged or cut short, and whatever is no gzip behind it (zeros aside, with which
 * tapes are filled up): gzip warns and drops that, and nobody reads warnings of a corpus. */
int unpack_read(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err);
void unpack_close(struct unpack *u);

#endif
