/* Snapshots: what a checkpoint holds, in memory that outlives the workers (base/snapshots.h), from which the
 * next round goes on. The memory is that of one host, and has what the ranks of this host need to go on; ranks
 * that keep the same share the work. Each rank has two regions and writes them in turn, without a word to the
 * others:
 *   header    one page: step, round, ranks, sizes, a checksum, and last of all that it is complete
 *   file      this rank's slices, as in a checkpoint
 *   texts     the state as JSON (the manifest's head), and the manifest's entry of the file
 * A region that is being written is not complete, and the other one is the snapshot before. No rank is more
 * than one snapshot ahead of another, as each step needs all of them: so there is always one that all have. */
#ifndef DT_WORKER_CHECKPOINTS_SNAPSHOT_H
#define DT_WORKER_CHECKPOINTS_SNAPSHOT_H

#include "worker/checkpoints/checkpoint.h"

struct snapshots;
/* A round makes each step once, so the two tell a snapshot from all others of a launch. */
struct snapshot_id {
    int64_t round, step;
};
/* A host's share of a snapshot: the parts of ranks [first, first + count) of the `ranks` that there were. */
struct snapshot_part {
    struct snapshot_id id;
    int ranks, first, count;
};

/* Opens the memory for worker number `local_rank` of this host. launch: struct checkpoint_state's; snapshots of
 * other launches are none. DT_NOT_FOUND: the agent gives no memory. */
int snapshots_open(struct snapshots **out, int local_rank, const char *launch, struct dt_error *err);
/* Null is allowed. Snapshots stay in memory. */
void snapshots_close(struct snapshots *s);
/* Writes this worker's part, over the older one of its two. local_size: workers of this host. */
int snapshots_write(struct snapshots *s, const struct checkpoint_state *state, int rank, int ranks, int local_size,
                    const struct checkpoint_slice *slices, int slice_count, struct dt_error *err);
/* The snapshots of which all workers that this host had then have a part, the newest round and step first.
 * Returns how many: 2 at most. */
int snapshots_list(const struct snapshots *s, struct snapshot_part out[2]);
/* Appends the state of one as text. A checkpoint that is open stays so. */
int snapshots_head(const struct snapshots *s, const struct snapshot_id *id, struct dt_text *out, struct dt_error *err);
/* Opens what this host has of it as a checkpoint, to be closed before the next is opened or written. */
int snapshots_checkpoint(struct snapshots *s, const struct snapshot_id *id, struct checkpoint **out,
                         struct dt_error *err);
/* A checkpoint with that state and without tensors. */
int snapshots_state(const struct snapshot_id *id, const struct dt_text *head, struct checkpoint **out,
                    struct dt_error *err);
/* This worker's parts of others (null: its parts) are no snapshots any more: a run that goes on elsewhere has
 * left them behind. */
void snapshots_keep(struct snapshots *s, const struct snapshot_id *id);

/* ---- snapshot_choice.c: what ranks of several hosts go on from ---- */

/* The snapshots from which a rank could go on by what its host has, in any order. */
struct snapshot_offer {
    int count;
    struct snapshot_id of[2];
};
/* The newest one that all ranks offer. Where there is none, or a later round made one that serves: the newest one
 * that all ranks of a group offer, of groups [k group, (k + 1) group) that hold the same as each other; *root is
 * then the group's first rank, otherwise -1. False: there is neither, and *missing is a rank that does not offer
 * the newest of all, or -1 where nobody offers one. */
bool snapshots_choose(const struct snapshot_offer *offers, int ranks, int group, struct snapshot_id *out, int *root,
                      int *missing);
/* "3:7,3:6", the rounds and steps of an offer; and its reading. False: it is no such text. */
void snapshots_say(const struct snapshot_offer *offer, struct dt_text *out);
bool snapshots_hear(const char *text, struct snapshot_offer *out);

#endif
