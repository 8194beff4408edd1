/* AdamW over what this rank owns: each unit's owned elements are cut where weight decay changes
 * (matrices decay, vectors do not), neighbours with the same decay are one range, and all ranges
 * one call. The moments, F32 or BF16 (training.optimizer_state_dtype), lie one owned part after
 * the other; so do the F32 masters of BF16 weights, which the same pass rounds to what is
 * computed with. */
#ifndef DT_WORKER_ENGINE_OPTIMIZER_H
#define DT_WORKER_ENGINE_OPTIMIZER_H

#include "worker/engine/strategy.h"

struct optimizer_range {
    int unit;
    int64_t first, count; /* elements from the start of the owned part */
    bool decay;
};

struct optimizer {
    struct strategy *strategy;
    double beta1, beta2, epsilon, weight_decay;
    uint64_t seed;             /* of the bits that BF16 moments are rounded with */
    enum dt_dtype moment_type; /* of m and v: as the strategy's `real`, or BF16 */
    int64_t steps;             /* done */
    struct optimizer_range *ranges;
    int range_count;
    struct dt_adamw_args *calls; /* one per range: what a step says about it */
    int64_t *unit_first;         /* elements of moments before each unit */
    int64_t total;
    int piece_m, piece_v, piece_w;
    char *m, *v, *w; /* w: masters where weights are BF16, laid out as the moments; otherwise
                      * null: the weights are updated where they are */
    struct dt_arena arena;
};

/* Cuts the ranges and adds the moments to the plan. The strategy outlives the optimizer. */
void optimizer_plan(struct optimizer *o, struct strategy *s, const struct job *job, struct plan *p);
void optimizer_open(struct optimizer *o, const struct plan *p);
/* Where the moments of an element of a unit's owned part lie: bytes from the start of m, and of
 * v. */
size_t optimizer_moment(const struct optimizer *o, int unit, int64_t element);
/* Enqueues one update on the compute stream: gradients are multiplied by *factor (device
 * memory), once. */
void optimizer_step(struct optimizer *o, double learning_rate, const double *factor);
/* The weights of a unit that this rank owns, as they are updated and saved: of the strategy's
 * type `real`, those of a frozen unit of its `type`, in device memory. */
void *optimizer_weights(const struct optimizer *o, int unit);
void optimizer_clear(struct optimizer *o);

#endif
