/* Loss scaling of F16. The loss is multiplied by the scale before backward, so that gradients do not
 * vanish below the least F16; they are divided by the same scale before they are clipped. A step with a
 * gradient that is not finite changes no weight and no state, and the scale follows from which steps
 * those were. Two rules are rows:
 *
 *   torch      torch.amp.GradScaler: growth_factor after growth_interval good steps in a row,
 *              backoff_factor after each overflow
 *   deepspeed  DeepSpeed's fp16 block: twice as much every loss_scale_window steps without overflow, half
 *              after `hysteresis` overflows
 *
 * Pure: numbers in, numbers out. All ranks call it with the same verdict, which the step's all_reduce
 * gives them (step_sums.h), so all have the same scale. */
#ifndef DT_WORKER_ENGINE_SCALER_H
#define DT_WORKER_ENGINE_SCALER_H

#include "worker/job/job.h"

#include <stdbool.h>
#include <stdint.h>

/* What a checkpoint keeps. */
struct scaler_state {
    double scale;            /* 0: there is none */
    int64_t seen;            /* steps that were judged */
    int64_t last;            /* deepspeed: number of the last overflow; -1: none */
    int64_t hysteresis;      /* deepspeed: overflows that are left before the scale falls, and 1 */
    int64_t good;            /* torch: good steps in a row */
    int64_t skipped;         /* steps that changed nothing */
    int64_t skipped_samples; /* horizon.samples of these: the schedule stood still */
};

struct scaler_row {
    const char *name;
    double least; /* of the scale, where the job does not say it */
    /* False: the scale would have to fall, and it is at its least. */
    bool (*judge)(const struct scaler_settings *s, double least, struct scaler_state *x, bool overflow);
};

/* The row of a name; null: there is none. */
const struct scaler_row *scaler_find(const char *name);
/* The state before the first step. */
struct scaler_state scaler_begin(const struct scaler_settings *s);
/* The scale in force for the next step, after one with or without overflow. False: training cannot go on. */
bool scaler_judge(const struct scaler_row *row, const struct scaler_settings *s, struct scaler_state *x, bool overflow);

#endif
