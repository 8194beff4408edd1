/* Schedules that say the rate itself, not a factor on learning_rate after a warm-up. */
#ifndef DT_WORKER_ENGINE_SCHEDULES_SCHEDULE_CYCLES_H
#define DT_WORKER_ENGINE_SCHEDULES_SCHEDULE_CYCLES_H

#include "worker/engine/schedules/schedule.h"

struct schedule_cycle {
    double (*rate)(const struct schedule *s, double step);
    double (*momentum)(const struct schedule *s, double step, double *beta2); /* null: stays */
};
/* torch.optim.lr_scheduler.OneCycleLR, and DeepSpeed's OneCycle and LRRangeTest. */
extern const struct schedule_cycle cycle_torch, cycle_deepspeed, cycle_range_test;
/* torch.optim.lr_scheduler's CosineAnnealingLR, CosineAnnealingWarmRestarts, LinearLR, ConstantLR and
 * PolynomialLR (schedule_torch.c). */
extern const struct schedule_cycle cycle_annealing, cycle_warm_restarts, cycle_linear, cycle_constant, cycle_polynomial;

#endif
