/* Reads a file as it is, or unpacked when it begins as gzip or zstd does. */
#ifndef DT_CMD_DTDATA_UNPACK_H
#define DT_CMD_DTDATA_UNPACK_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

struct unpack;

/* Bytes of the end of a name that says packed, .gz or .zst, in small or capital letters; 0: it has none. */
size_t unpack_end(const char *path);
/* "-": standard input. The caller closes. */
int unpack_open(struct unpack **out, const char *path, struct dt_error *err);
/* The next bytes, at least one of them before the end: `got` is 0 only there. Refused: packed
 * data that is damaged or cut short, and whatever is not packed behind it (zeros behind gzip aside, with
 * which tapes are filled up): gzip warns and drops that, and nobody reads warnings of a corpus.
 * DT_STOPPED if a signal asks us to stop while nothing comes. */
int unpack_read(struct unpack *u, unsigned char *out, size_t size, size_t *got, struct dt_error *err);
/* Before the first read: goes to byte `offset` of what the file holds. A file that is not packed is not
 * read for that. DT_INVALID if it is shorter. */
int unpack_skip(struct unpack *u, int64_t offset, struct dt_error *err);
void unpack_close(struct unpack *u);

#endif
