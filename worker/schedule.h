/* Learning rates: a pure function of the optimizer step, with the formulas of Hugging Face's get_*_schedule functions. */
#ifndef DT_WORKER_SCHEDULE_H
#define DT_WORKER_SCHEDULE_H

#include "base/error.h"

#include <stdint.h>

struct schedule {
    const char *type;                   /* "constant", "constant_with_warmup", "linear", "cosine" */
    double learning_rate, min_lr_ratio; /* the decaying ones end at min_lr_ratio * learning_rate */
    int64_t warmup_steps, total_steps;
};

/* DT_INVALID with the nearest name for an unknown type. */
int schedule_check(const struct schedule *s, struct dt_error *err);
/* The rate in force during optimizer step `step` = 0, 1, ... With warm-up the first step runs at 0. */
double schedule_rate(const struct schedule *s, int64_t step);

#endif
