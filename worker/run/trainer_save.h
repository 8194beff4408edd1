/* What saves have in common, whether training waits for them (trainer_save.c) or goes on beside them
 * (trainer_save_beside.c). */
#ifndef DT_WORKER_RUN_TRAINER_SAVE_H
#define DT_WORKER_RUN_TRAINER_SAVE_H

#include "worker/run/trainer.h"

enum save_for { SAVE_CHECKPOINT, SAVE_SNAPSHOT };

/* The memory from which a slice is saved. */
struct save_source {
    struct home_part part; /* home null: `at` is bytes from base */
    const void *base;
    enum dt_dtype type;
};

/* This rank's slices, and what each is read from. */
struct save_slices {
    struct checkpoint_slice *slice;
    struct save_source *from; /* also the slices' `data` */
    int count;
    const struct checkpoint_reader *reader;
    char error[32]; /* purpose of this rank's errors */
};

/* This rank's shares of all tensors: weights, and of those that are trained the optimizer's state. All buffers are
 * saved by rank 0, and in a snapshot by the first rank of each host. save_free_slices frees them. */
void save_list_slices(struct trainer *t, enum save_for what, const struct checkpoint_reader *reader,
                      struct save_slices *out);
void save_free_slices(struct save_slices *x);
/* The state as it is now. What it points to belongs to t, and does not change but for `outliers`. */
struct checkpoint_state save_state(const struct trainer *t);
/* Every rank: rank 0 completes the checkpoint when it has all entries, and all ranks hear how that went.
 * failure: why this rank has no entry; null: it has. Of t it uses job, rank, size, world and saver.tries. */
int save_agree(struct trainer *t, const struct checkpoint_state *state, struct dt_text *entry,
               const struct dt_error *failure, struct dt_error *err);
/* This rank's part of a snapshot of the state as it is now. */
int save_snapshot(struct trainer *t, struct dt_error *err);
/* The checkpoint of that step is complete; pause_s: training stood still for so long. */
void save_done(struct trainer *t, int64_t step, double begin_s, double pause_s);

#endif
