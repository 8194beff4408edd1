/* Learning rates: a pure function of the place in the run, with the formulas of Hugging Face's
 * get_*_schedule functions and of DeepSpeed's schedulers. Steps are those of the batch that the run
 * began with (horizon.h); a run whose batch has changed since may stand between two of them. */
#ifndef DT_WORKER_ENGINE_SCHEDULE_H
#define DT_WORKER_ENGINE_SCHEDULE_H

#include "base/error.h"

#include <stdint.h>

struct schedule {
    const char *type;                   /* "constant", "linear", "warmupdecaylr", ... */
    double learning_rate, min_lr_ratio; /* the decaying ones end at min_lr_ratio * learning_rate;
                                         * inverse_sqrt falls towards it */
    double lr_power, decay_ratio;       /* of polynomial; share of all steps that warmup_stable_decay falls in */
    int64_t warmup_steps, total_steps;
};

/* DT_INVALID with the nearest name for an unknown type. */
int schedule_check(const struct schedule *s, struct dt_error *err);
/* The rate in force during optimizer step `step` = 0, 1, ... With warm-up the first step runs at
 * 0, that of warmup_stable_decay at min_lr_ratio * learning_rate. */
double schedule_rate(const struct schedule *s, int64_t step);
/* The rate when `steps` steps, and a part of one, are done. */
double schedule_rate_at(const struct schedule *s, double steps);

#endif
