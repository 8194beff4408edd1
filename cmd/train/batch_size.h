/* train --plan --find_batch_size: the largest batch of a rank that fits the memory. */
#ifndef DT_CMD_TRAIN_BATCH_SIZE_H
#define DT_CMD_TRAIN_BATCH_SIZE_H

#include "cmd/train/plan.h"

/* Prints the largest training.batch_size_per_gpu whose plan fits the room less a margin, the largest power of
 * two, and the largest that divides the job's step; json: as one object. Sizes are those of plans, which hold
 * all memory of a step, so no step is tried. DT_NO_MEMORY: not even one sample fits, with what to change. */
int train_find_batch_size(const struct job *job, const struct train_room *room, bool json, struct dt_error *err);

#endif
