/* The optimizer's step over what this rank owns. Parameter groups join a row of the table
 * (optimizers/) with numbers, and each tensor belongs to one group: the first of optimizer.groups that
 * names it, or none of them; and of each its matrices, which decay, or vectors, which do not. Each unit's
 * owned elements are cut where the group changes; neighbours of one group are one range, and all ranges of
 * groups that differ in weight decay alone go by one call for each portion that their homes bring at a time; from the device, all at once. State, F32 or
 * BF16 (training.optimizer_state_dtype), lies one owned part after the other; so do the F32 masters
 * of BF16 weights, which the same pass rounds to what is computed with. A unit whose tensors have different
 * numbers of states has only those that they need. */
#ifndef DT_WORKER_ENGINE_OPTIMIZER_H
#define DT_WORKER_ENGINE_OPTIMIZER_H

#include "worker/engine/optimizers/optimizers.h"
#include "worker/engine/strategy.h"

enum { OPTIMIZER_GROUPS = 4 * (JOB_GROUPS_MAX + 1) };

struct optimizer_group {
    const struct optimizer_row *row;
    struct dt_update_numbers numbers;
    double weight_decay, lr_scale; /* lr_scale: of the schedule's rate */
    int states;
    const char *state_names; /* "exp_avg,exp_avg_sq", where groups of other rows have others; or null */
    int call;                /* the first group that is updated in the same call */
};

struct optimizer_range {
    int unit;
    int64_t first, count;         /* elements from the start of the owned part */
    int group, tensor;            /* tensor: the first one; the only one unless it is REACH_ELEMENT */
    int64_t state[DT_STATES_MAX]; /* elements before it in each state, of those that rest where it does */
};

/* What an update does with a range, and which arrays it brings for that: all of it; what its tensor's step
 * follows from (weights are read, gradients become directions); the step itself. */
enum update_pass { UPDATE_WHOLE, UPDATE_DIRECTION, UPDATE_APPLY };

/* A part of a step: a call, or all of REACH_MATRIX (-1), in some of the units. */
struct update_part {
    int call;
    struct unit_range units;
    enum update_pass pass;
    int range; /* the place in it: of the next portion */
    int64_t done;
};

struct optimizer {
    struct strategy *strategy;
    uint64_t seed;     /* of the bits that BF16 state is rounded with */
    int64_t steps;     /* done */
    double clip_value; /* training.gradient_clip_value; 0: none */
    const struct job *job;
    int group_count;
    struct optimizer_group groups[OPTIMIZER_GROUPS];
    struct optimizer_range *ranges;
    int range_count;
    struct dt_update_slice *slices;  /* of one call */
    struct optimizer_range *brought; /* of which ranges they are */
    bool *kept;                      /* per unit: what is kept of it stays on the device (offload.ratio) */
    int64_t *masters;                /* elements before each unit's masters, of those that rest where they do */
    struct optimizer_part {          /* state k of all ranges that have it; last: masters */
        struct home home, near;      /* near: the device, of units that are kept there */
    } parts[DT_STATES_MAX + 1];
    struct optimizer_ratios { /* of REACH_TENSOR: optimizer_ratios.c */
        int piece_limbs, piece_ratio;
        int64_t *limbs; /* on the device: (tensors, 2, DT_EXACT_LIMBS); null: no tensor needs it */
        double *ratio;  /* on the device: of each tensor */
    } ratios;
    struct optimizer_matrices *matrices; /* of REACH_MATRIX: optimizer_matrices.c; null: there are none */
    bool *hidden;                        /* per tensor: a matrix of a layer */
    struct dt_arena arena;
};

/* Does each name of optimizer.groups match a tensor that is trained, and each of training.freeze a tensor? And is
 * any trained? DT_INVALID with the nearest one. */
int optimizer_check_names(const struct job *job, const struct chain *chain, struct dt_error *err);
/* Appends a line for each group of optimizer.groups, and for the rest, each after an end of line: tensors
 * and parameters. Nothing without groups. */
void optimizer_print_groups(const struct optimizer *o, struct dt_text *out);

/* Cuts the ranges and adds state and masters to the plan. The strategy outlives the optimizer. */
void optimizer_plan(struct optimizer *o, struct strategy *s, const struct job *job, struct plan *p);
/* The strategy is open. */
int optimizer_open(struct optimizer *o, const struct plan *p, struct dt_error *err);
/* The group of a tensor. */
const struct optimizer_group *optimizer_group_of(const struct optimizer *o, const struct tensor *x);
/* The most states that a tensor of the unit has. */
int optimizer_unit_states(const struct optimizer *o, int unit);
/* State number k of a unit's owned part, from an element on: of the strategy's precision.states.
 * The groups of the unit's tensors say which states there are. */
struct home_part optimizer_state(struct optimizer *o, int k, int unit, int64_t element);
/* Another momentum from the next step on: SGD's, or Adam's and Lion's first beta. beta2: theirs; 0: as
 * it is. */
void optimizer_set_momentum(struct optimizer *o, double momentum, double beta2);
/* Enqueues one step on the compute stream: gradients are multiplied by *factor (device memory),
 * once. skip (device memory, or null): where it is not 0, nothing changes; whoever learns of that takes
 * the step back from o->steps. */
void optimizer_step(struct optimizer *o, double learning_rate, const double *factor, const int32_t *skip);
/* For the parts of a step. update_bring: the next portion of the part to o->slices, and of which ranges to
 * o->brought; returns how many, 0 at the end. update_back: range number i of them. update_args: for the first
 * `count` slices, of a group of that call. */
int update_bring(struct optimizer *o, struct update_part *p);
void update_back(struct optimizer *o, const struct update_part *p, int i);
struct dt_update_args update_args(const struct optimizer *o, int group, int count, double learning_rate);
/* Updates slice number i by what lies in `direction`, of that type: w -= rate * (*factor) * (direction +
 * decay * w). factor and skip are in device memory; factor null: 1. */
void update_apply(struct optimizer *o, int i, const void *direction, enum dt_dtype type, double rate, double decay,
                  const double *factor, const int32_t *skip);
/* optimizer_matrices.c. Adds to the plan what REACH_MATRIX needs; takes it; enqueues the step of all matrices. */
void optimizer_matrices_plan(struct optimizer *o, struct plan *p);
void optimizer_matrices_open(struct optimizer *o, const struct plan *p);
void optimizer_matrices_step(struct optimizer *o, double learning_rate, const double *factor, const int32_t *skip);
/* optimizer_ratios.c. Adds to the plan what REACH_TENSOR needs; takes it. */
void optimizer_ratios_plan(struct optimizer *o, struct plan *p);
void optimizer_ratios_open(struct optimizer *o, const struct plan *p);
/* Enqueues: no norm is known yet; adds the squares of a slice that was brought, of range r; sums over ranks
 * and makes ratios. */
void optimizer_ratios_begin(struct optimizer *o);
void optimizer_ratios_add(struct optimizer *o, const struct optimizer_range *r, const struct dt_update_slice *x);
void optimizer_ratios_finish(struct optimizer *o, const struct dt_update_numbers *numbers);
/* The weights of a unit that this rank owns, as they are updated and saved, from an element on: of
 * the strategy's precision.masters, of a frozen unit precision.compute. */
struct home_part optimizer_weights(struct optimizer *o, int unit, int64_t element);
/* After a step: the first portions of the next one come in while the device does what is between. They take the room
 * of portions that are updated. */
void optimizer_ahead(struct optimizer *o);
/* Streams have run dry. Harmless on a zeroed struct, and twice. */
void optimizer_clear(struct optimizer *o);

#endif
