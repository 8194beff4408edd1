#ifndef DT_CMD_BENCH_COLD_H
#define DT_CMD_BENCH_COLD_H

#include "base/error.h"

#include <stddef.h>

/* bench data --folder: token shards that memory has not got, made in a folder of its own inside `folder`, against
 * what its disk gives. */
int bench_cold_shards(const char *folder, size_t repeats, struct dt_error *err);

#endif
