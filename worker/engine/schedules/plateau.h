/* torch.optim.lr_scheduler.ReduceLROnPlateau: lowers the rate once evaluations have stopped getting
 * better. Its state is in checkpoints, as a share of learning_rate. */
#ifndef DT_WORKER_ENGINE_SCHEDULES_PLATEAU_H
#define DT_WORKER_ENGINE_SCHEDULES_PLATEAU_H

#include "worker/engine/schedules/schedule.h"

/* What scheduler.monitor may name: values of an evaluation, as metrics.jsonl calls them. */
#define PLATEAU_MONITORS "val_loss|val_accuracy|val_f1_macro|val_pearson"

struct plateau {
    int64_t checks;        /* evaluations so far; 0: the rest is not set */
    int64_t step;          /* of the last one */
    double best, share;    /* NaN: none yet; of learning_rate */
    int64_t bad, cooldown; /* evaluations: without a better value; still to pass unjudged */
};

/* Judges the evaluation after `step`, once. */
void plateau_check(struct plateau *p, const struct schedule *s, int64_t step, double value);
/* What is left of the rate. */
static inline double plateau_share(const struct plateau *p)
{
    return p->checks > 0 ? p->share : 1;
}

#endif
