/* The optimizer's step over what this rank owns. Parameter groups join a row of the table
 * (optimizers/) with numbers, and each tensor belongs to one group: today matrices, which decay,
 * and vectors, which do not. Each unit's owned elements are cut where the group changes; neighbours
 * of one group are one range, and all ranges of groups that differ in weight decay alone go by one
 * call for each portion that their homes bring at a time; from the device, all at once. State, F32 or
 * BF16 (training.optimizer_state_dtype), lies one owned part after the other; so do the F32 masters
 * of BF16 weights, which the same pass rounds to what is computed with. */
#ifndef DT_WORKER_ENGINE_OPTIMIZER_H
#define DT_WORKER_ENGINE_OPTIMIZER_H

#include "worker/engine/optimizers/optimizers.h"
#include "worker/engine/strategy.h"

enum { OPTIMIZER_GROUPS = 2 };

struct optimizer_group {
    const struct optimizer_row *row;
    struct dt_update_numbers numbers;
    double weight_decay;
    int states;
    int call; /* the first group that is updated in the same call */
};

struct optimizer_range {
    int unit;
    int64_t first, count; /* elements from the start of the owned part */
    int group;
};

struct optimizer {
    struct strategy *strategy;
    uint64_t seed; /* of the bits that BF16 state is rounded with */
    int64_t steps; /* done */
    struct optimizer_group groups[OPTIMIZER_GROUPS];
    struct optimizer_range *ranges;
    int range_count;
    struct dt_update_slice *slices;  /* of one call */
    struct optimizer_range *brought; /* of which ranges they are */
    struct optimizer_part {          /* state k of each unit that has it; last: masters */
        int64_t *first;              /* elements before each unit */
        struct home home;
    } parts[DT_STATES_MAX + 1];
    struct dt_arena arena;
};

/* Cuts the ranges and adds state and masters to the plan. The strategy outlives the optimizer. */
void optimizer_plan(struct optimizer *o, struct strategy *s, const struct job *job, struct plan *p);
/* The strategy is open. */
int optimizer_open(struct optimizer *o, const struct plan *p, struct dt_error *err);
/* The group of a tensor. */
const struct optimizer_group *optimizer_group_of(const struct optimizer *o, const struct tensor *x);
/* State number k of a unit's owned part, from an element on: of the strategy's precision.states.
 * The groups of the unit's tensors say which states there are. */
struct home_part optimizer_state(struct optimizer *o, int k, int unit, int64_t element);
/* Enqueues one step on the compute stream: gradients are multiplied by *factor (device memory),
 * once. skip (device memory, or null): where it is not 0, nothing changes; whoever learns of that takes
 * the step back from o->steps. */
void optimizer_step(struct optimizer *o, double learning_rate, const double *factor, const int32_t *skip);
/* The weights of a unit that this rank owns, as they are updated and saved, from an element on: of
 * the strategy's precision.masters, of a frozen unit precision.compute. */
struct home_part optimizer_weights(struct optimizer *o, int unit, int64_t element);
/* Streams have run dry. Harmless on a zeroed struct, and twice. */
void optimizer_clear(struct optimizer *o);

#endif
