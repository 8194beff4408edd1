/* The decisions of evaluations about a run: that it ends early, as Lightning's EarlyStopping, and which checkpoints are
 * the best, as its ModelCheckpoint. Values are the same on all ranks, so all decide alike; both states are in
 * checkpoints. */
#ifndef DT_WORKER_ENGINE_STOPPING_H
#define DT_WORKER_ENGINE_STOPPING_H

#include "worker/job/job.h"

enum stop_reason { STOP_NOT, STOP_NOT_FINITE, STOP_REACHED, STOP_DIVERGED, STOP_PATIENCE, STOP_REASONS };

struct stopper {
    int64_t checks; /* evaluations so far; 0: the rest is not set */
    int64_t step;   /* of the last one */
    int64_t bad;    /* evaluations without a better value */
    double best;    /* NaN: none yet */
    double value;   /* of the last one */
    enum stop_reason reason;
};

/* Judges the evaluation after `step`, once. From a reason on the run ends as soon as it may. */
void stopper_check(struct stopper *s, const struct job_stopping *j, int64_t step, double value);
/* The run goes on with these settings: what they no longer end has not ended. */
void stopper_resume(struct stopper *s, const struct job_stopping *j);

enum { BEST_MAX = 64 };
struct best_list { /* checkpoints that are kept, in the order in which they were saved */
    int64_t seen;  /* step of the last evaluation that was looked at; 0: none */
    int count;
    struct best_item {
        int64_t step;
        double value; /* NaN: as bad as can be */
    } item[BEST_MAX + 1];
};

/* Does the checkpoint of a step with this value belong to the k best? While there are fewer, or if it is better
 * than the worst. */
bool best_wants(const struct best_list *l, int64_t k, int mode, int64_t step, double value);
/* Adds it; the list may have one too many until the checkpoint is complete. */
void best_add(struct best_list *l, int64_t step, double value);
/* Leaves the k best: of equal ones the later. */
void best_trim(struct best_list *l, int64_t k, int mode);
void best_remove(struct best_list *l, int64_t step);
bool best_has(const struct best_list *l, int64_t step);
/* Step of the best one, the first of equals; -1: the list is empty. */
int64_t best_first(const struct best_list *l, int mode);

#endif
