/* Schedules of torch.optim.lr_scheduler with an end, or a period, of their own: they do not follow the
 * length of the run. Each by PyTorch's closed form. */
#include "worker/engine/schedules/schedule_cycles.h"

#include <math.h>

/* Half a wave from learning_rate to eta_min. */
static double wave(const struct schedule *s, double progress)
{
    double least = s->numbers.eta_min;
    return least + (s->learning_rate - least) * (1 + cos(acos(-1) * progress)) / 2;
}

/* CosineAnnealingLR: comes back up behind T_max. */
static double annealing_rate(const struct schedule *s, double step)
{
    return wave(s, step / (double)s->numbers.T_max);
}

/* CosineAnnealingWarmRestarts: begins anew after T_0, then after T_mult times as many, ... */
static double warm_restarts_rate(const struct schedule *s, double step)
{
    double length = (double)s->numbers.T_0;
    step = s->numbers.T_mult == 1 ? fmod(step, length) : step;
    while (step >= length) {
        step -= length;
        length *= (double)s->numbers.T_mult;
    }
    return wave(s, step / length);
}

/* The share of total_iters that is done. */
static double done(const struct schedule *s, double step)
{
    return fmin(1, step / (double)s->numbers.total_iters);
}

static double linear_rate(const struct schedule *s, double step)
{
    double from = s->numbers.start_factor;
    return s->learning_rate * (from + (s->numbers.end_factor - from) * done(s, step));
}

static double constant_rate(const struct schedule *s, double step)
{
    return done(s, step) < 1 ? s->learning_rate * s->numbers.start_factor : s->learning_rate;
}

static double polynomial_rate(const struct schedule *s, double step)
{
    return s->learning_rate * pow(1 - done(s, step), s->lr_power);
}

const struct schedule_cycle cycle_annealing = {annealing_rate, NULL}, cycle_warm_restarts = {warm_restarts_rate, NULL},
                            cycle_linear = {linear_rate, NULL}, cycle_constant = {constant_rate, NULL},
                            cycle_polynomial = {polynomial_rate, NULL};
