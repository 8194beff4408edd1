/* Reading of token shards, a part of `bench data`. */
#ifndef DT_CMD_BENCH_SHARDS_H
#define DT_CMD_BENCH_SHARDS_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

/* Prints a line per measure. */
int bench_shards(size_t repeats, struct dt_error *err);
/* Makes four shards train-*.bin of random ids in a folder; tokens: a multiple of 16384. */
int bench_write_shards(const char *folder, int64_t tokens, struct dt_error *err);

#endif
