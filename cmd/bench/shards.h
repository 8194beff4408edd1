/* Reading of token shards, a part of `bench data`. */
#ifndef DT_CMD_BENCH_SHARDS_H
#define DT_CMD_BENCH_SHARDS_H

#include "base/error.h"

#include <stddef.h>

/* Prints a line per measure. */
int bench_shards(size_t repeats, struct dt_error *err);

#endif
