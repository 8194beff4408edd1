/* Learning rates: a pure function of the place in the run, with the formulas of Hugging Face's
 * get_*_schedule functions, of torch.optim.lr_scheduler and of DeepSpeed's schedulers. Steps are
 * those of the batch that the run began with (horizon.h); a run whose batch has changed since may
 * stand between two of them. */
#ifndef DT_WORKER_ENGINE_SCHEDULES_SCHEDULE_H
#define DT_WORKER_ENGINE_SCHEDULES_SCHEDULE_H

#include "base/config.h"
#include "base/error.h"

#include <stdint.h>

enum anneal { ANNEAL_COS, ANNEAL_LINEAR };
enum schedule_interval { INTERVAL_STEP, INTERVAL_EPOCH };
enum plateau_mode { PLATEAU_MIN, PLATEAU_MAX };
enum threshold_mode { THRESHOLD_REL, THRESHOLD_ABS };

/* The section `scheduler`: numbers of single schedules, by the names of the systems that they are
 * of. Each schedule reads its own. */
struct schedule_numbers {
    enum schedule_interval interval;                /* what the schedule counts */
    double warmup_min_lr, warmup_min_ratio;         /* warmuplr, warmupdecaylr; warmupcosinelr */
    double gamma;                                   /* step, multi_step, exponential */
    int64_t step_size;                              /* step; 0: not given */
    struct dt_integers milestones;                  /* multi_step */
    int64_t num_cycles;                             /* cosine_with_restarts */
    int64_t timescale, num_decay_steps;             /* inverse_sqrt; warmup_stable_decay. 0: not given */
    int64_t T_max, T_0, T_mult;                     /* cosine_annealing; cosine_warm_restarts. 0: not given */
    double eta_min;                                 /* of both */
    double start_factor, end_factor;                /* linear_lr; the first of constant_lr, too */
    int64_t total_iters;                            /* of both, and polynomial_lr */
    double pct_start, div_factor, final_div_factor; /* one_cycle */
    enum anneal anneal_strategy;
    bool three_phase, cycle_momentum; /* cycle_momentum: onecycle, too */
    double base_momentum, max_momentum;
    double cycle_min_lr, cycle_max_lr; /* onecycle; -1: not given */
    int64_t cycle_first_step_size, cycle_second_step_size, cycle_first_stair_count, cycle_second_stair_count;
    int64_t decay_step_size; /* cycle_second_*: -1: as the first */
    double decay_lr_rate, cycle_min_mom, cycle_max_mom, decay_mom_rate;
    double lr_range_test_min_lr, lr_range_test_step_rate;
    int64_t lr_range_test_step_size;
    bool lr_range_test_staircase;
    const char *monitor; /* reduce_lr_on_plateau */
    enum plateau_mode mode;
    double factor, threshold, min_lr, eps;
    enum threshold_mode threshold_mode;
    int64_t patience, cooldown;
};

struct schedule {
    const char *type;                   /* "constant", "linear", "warmupdecaylr", ... */
    double learning_rate, min_lr_ratio; /* the decaying ones end at min_lr_ratio * learning_rate;
                                         * inverse_sqrt, step, multi_step and exponential fall
                                         * towards it */
    double lr_power, decay_ratio;       /* of polynomial; share of all steps that warmup_stable_decay falls in */
    int64_t warmup_steps, total_steps;  /* counted as numbers.interval says */
    int64_t epoch_steps;                /* steps of an epoch, where the schedule counts epochs */
    struct schedule_numbers numbers;
    double plateau; /* share of the rate that reduce_lr_on_plateau has left (plateau.h) */
};

/* DT_INVALID with the nearest name for an unknown type. */
int schedule_check(const struct schedule *s, struct dt_error *err);
/* True for a schedule with a warm-up (training.warmup_steps). */
bool schedule_warms_up(const char *type);
/* True for a schedule that training.min_lr_ratio says something to. */
bool schedule_has_least(const char *type);
/* The rate in force during optimizer step `step` = 0, 1, ... With warm-up the first step runs at
 * 0, that of warmup_stable_decay at min_lr_ratio * learning_rate. */
double schedule_rate(const struct schedule *s, int64_t step);
/* The rate when `steps` steps, and a part of one, are done. */
double schedule_rate_at(const struct schedule *s, double steps);
/* True if the run ends before its warm-up; appends that in words. */
bool schedule_ends_in_warmup(const struct schedule *s, struct dt_text *out);
/* True if the schedule moves momentum, too: Adam's and Lion's first beta, SGD's momentum. */
bool schedule_moves_momentum(const struct schedule *s);
/* The momentum at the same place, of a schedule that moves it. *beta2 is left alone unless the
 * schedule sets Adam's second beta (DeepSpeed's does). */
double schedule_momentum_at(const struct schedule *s, double steps, double *beta2);

#endif
