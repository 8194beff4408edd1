/* Snapshots: what a checkpoint holds, in memory that outlives the workers (base/snapshots.h), from which the
 * next round goes on. Each rank has two regions and writes them in turn, without a word to the others:
 *   header    one page: step, round, sizes, a checksum, and last of all that it is complete
 *   file      this rank's slices, as in a checkpoint
 *   texts     the state as JSON (the manifest's head), and the manifest's entry of the file
 * A region that is being written is not complete, and the other one is the snapshot before. No rank is more
 * than one snapshot ahead of another, as each step needs all of them: so there is always one that all have. */
#ifndef DT_WORKER_CHECKPOINTS_SNAPSHOT_H
#define DT_WORKER_CHECKPOINTS_SNAPSHOT_H

#include "worker/checkpoints/checkpoint.h"

struct snapshots;
/* Opens the memory for a rank, all of whose peers are workers of the same agent. DT_NOT_FOUND: the agent gives
 * none. */
int snapshots_open(struct snapshots **out, int rank, struct dt_error *err);
/* Null is allowed. Snapshots stay in memory. */
void snapshots_close(struct snapshots *s);
/* Writes this rank's part, over the older one of its two. */
int snapshots_write(struct snapshots *s, const struct checkpoint_state *state, int rank, int ranks,
                    const struct checkpoint_slice *slices, int slice_count, struct dt_error *err);
/* The newest step of which all ranks that there were have a part; -1: there is none. */
int64_t snapshots_newest(const struct snapshots *s);
/* Opens the snapshot of that step as a checkpoint, to be closed before the next is opened or written. */
int snapshots_checkpoint(struct snapshots *s, int64_t step, struct checkpoint **out, struct dt_error *err);
/* This rank's parts of other steps are no snapshots any more: a run that goes on elsewhere has left them
 * behind. */
void snapshots_keep(struct snapshots *s, int64_t step);

#endif
