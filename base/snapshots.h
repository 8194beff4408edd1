/* The memory of the snapshots of a host's workers. Its agent makes it as one memfd for all rounds and passes
 * DTRUN_SNAPSHOTS=/proc/PID/fd/N (PID is the agent's). It belongs to no folder, so nothing is left of it when
 * the agent has ended, however it has. Each worker has two regions, far apart: only what is written takes
 * memory. What is in a region is worker/checkpoints/snapshot.h. */
#ifndef DT_BASE_SNAPSHOTS_H
#define DT_BASE_SNAPSHOTS_H

#include "base/error.h"

#include <stdint.h>

#define DT_SNAPSHOT_REGION ((int64_t)1 << 40) /* bytes from one region to the next */

/* Agent: memory for the snapshots of so many workers. Returns the descriptor; -1: there is none, as the
 * kernel has no memfd, or the limit of file sizes is lower. */
int dt_snapshots_create(int workers);
/* Worker: opens DTRUN_SNAPSHOTS. *workers: how many have regions. Returns the descriptor; -1 with the error,
 * DT_NOT_FOUND if the variable is not set. */
int dt_snapshots_attach(int *workers, struct dt_error *err);

#endif
