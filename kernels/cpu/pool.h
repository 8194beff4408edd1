/* A pool of threads for parallel loops. Work is cut into parts by the shape alone, and threads take
 * parts one by one. So a late thread costs nothing, and results do not depend on the number of
 * threads. Idle threads spin for at most 20 us, then sleep. */
#ifndef DT_KERNELS_CPU_POOL_H
#define DT_KERNELS_CPU_POOL_H

#include "base/error.h"

#include <stdint.h>

struct dt_pool;
/* Computes one part. */
typedef void dt_pool_fn(void *context, int64_t part);

/* thread_count includes the caller. Below 2 there is no pool: *out is null, which dt_pool_run
 * accepts. */
int dt_pool_open(struct dt_pool **out, int thread_count, struct dt_error *err);
void dt_pool_close(struct dt_pool *p);
/* Runs fn for parts 0 .. part_count - 1, and returns when all are done. If another thread is using
 * the pool, the caller runs all parts itself. */
void dt_pool_run(struct dt_pool *p, int64_t part_count, dt_pool_fn *fn, void *context);
/* Number of threads, with the caller; 1 for null. */
int dt_pool_size(const struct dt_pool *p);

#endif
