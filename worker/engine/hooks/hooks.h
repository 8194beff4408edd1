/* Communication hooks: how the gradients of a bucket are summed over ranks, where all of them are whole on
 * each rank and reduced once a step (placements/grads_whole.c). A hook is a row; grads_whole asks it once for
 * each bucket, in the order of the communication stream. Casts to the type that travels are grads_whole's, so
 * a wrapper in 16 bits is a type and no code.
 *
 * After a step's reductions gradients are sums over ranks, or what strategy.gradient_share makes sums. */
#ifndef DT_WORKER_ENGINE_HOOKS_HOOKS_H
#define DT_WORKER_ENGINE_HOOKS_HOOKS_H

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct job;
struct optimizer;
struct plan;
struct precision;
struct strategy;
struct tensor;

struct hook_row {
    const char *name;
    enum dt_dtype low; /* BF16, F16: what travels; F32: as without a hook */
    bool means;        /* what comes back are means over ranks, not sums */
    bool local;        /* after local_sgd.warmup_steps ranks differ, and weights are averaged every period steps */
    /* May be null, both. */
    void (*plan)(struct strategy *s, struct plan *p);
    int (*open)(struct strategy *s, const struct plan *p, struct dt_error *err);
    /* Enqueues on the communication stream: `count` gradients x of the bucket, in the wire's type. */
    void (*exchange)(struct strategy *s, int bucket, void *x, int64_t count);
    const char *help;
};

/* Of a strategy. */
struct hook {
    const struct hook_row *row; /* null: nothing travels, or not by a bucket */
    const struct job *job;
    struct power_sgd *power; /* power_sgd.c; null: not that hook */
    int64_t step;            /* the one that is enqueued, counted from 0 over the whole run */
    double share;            /* of that step */
    bool blank;              /* of that step: no rank has a target */
    bool apart;              /* of that step: gradients are not summed over all ranks */
};

/* The hook of a job for the strategy's row, or null; its type of the wire goes to *p. row_hook: of the row. */
const struct hook_row *hook_choose(const struct job *job, const char *row_hook, struct precision *p);
/* Does the hook of this job sum gradients inside groups of ranks? */
bool hook_has_groups(const struct job *job);
/* DT_INVALID: the job's hook is not one of GPUs. */
int hook_check_gpu(const struct job *job, struct dt_error *err);
/* A step begins, number `step` of the run. share: what its gradients are larger than those of a step of all
 * micro-steps, on whose scale errors of steps are kept; 1 but for short ones. */
void hook_begin_step(struct strategy *s, int64_t step, double share);

/* A step that is as most of a long run are, and *rare, of which local SGD has one every period steps; the same
 * where there is no such. */
int64_t hook_usual_step(const struct strategy *s, int64_t *rare);

/* ---- for rows ---- */

/* One all_reduce of sums: what is done without a hook. */
void hook_sum(struct strategy *s, int bucket, void *x, int64_t count);
void power_sgd_plan(struct strategy *s, struct plan *p);
int power_sgd_open(struct strategy *s, const struct plan *p, struct dt_error *err);
void power_sgd_exchange(struct strategy *s, int bucket, void *x, int64_t count);

/* ---- power_sgd.c: what of it a checkpoint keeps ---- */

struct hook_state {
    const struct tensor *tensor; /* whose gradients are compressed */
    int64_t count;               /* elements, from the tensor's first one on */
    void *data;                  /* on the device, of type `type` */
    enum dt_dtype type;
    bool error; /* this rank's error; false: the matrix that the next step begins with, the same on all ranks */
};

/* State number i of this rank; false: there are no more. count 0: there is nothing in it yet, or it is not kept.
 * Before strategy_open: what there may be, and data is null. */
bool hook_state_at(const struct strategy *s, int i, struct hook_state *out);
/* Elements that a checkpoint has of them, of all ranks. */
double hook_saved_elements(const struct strategy *s);
/* loaded: the states were filled from a checkpoint; otherwise they become what they are at the start of a run. */
void hook_state_loaded(struct strategy *s, bool loaded);
/* The step whose gradients were exchanged last is skipped: what compression left out of it goes, and with it
 * what earlier steps left. Otherwise later steps would apply the gradient by the errors. */
void hook_forget_errors(struct strategy *s);

/* ---- local_sgd.c ---- */

/* Is the step that is enqueued one after which weights are averaged? */
bool local_sgd_falls_due(const struct strategy *s);
/* Enqueues on the compute stream: weights, and optimizer states if they are wanted, become the means of all
 * ranks' ones. */
void local_sgd_average(struct strategy *s, struct optimizer *o, bool weights, bool states);

#endif
