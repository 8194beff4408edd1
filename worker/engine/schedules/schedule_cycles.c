/* One cycle up and down, of PyTorch and of DeepSpeed, and DeepSpeed's test of a range of rates. */
#include "worker/engine/schedules/schedule_cycles.h"

#include <math.h>

/* ---- PyTorch's OneCycleLR ---- */

static double anneal(const struct schedule_numbers *n, double from, double to, double progress)
{
    progress = fmin(1, progress); /* a wave would come back beyond the end */
    return n->anneal_strategy == ANNEAL_COS ? to + (from - to) / 2 * (cos(acos(-1) * progress) + 1)
                                            : (to - from) * progress + from;
}

/* Up to the last step of a phase; the last of all is total_steps - 1. */
struct phase {
    double end, from, to;
};

static double at_phase(const struct schedule *s, const struct phase *phases, int count, double step)
{
    double begin = 0;
    int i = 0;
    while (i + 1 < count && step > phases[i].end) {
        begin = phases[i++].end;
    }
    double span = phases[i].end - begin;
    return anneal(&s->numbers, phases[i].from, phases[i].to, span > 0 ? (step - begin) / span : 1);
}

/* Values: the first, that at the top, and the last two. */
static double torch_at(const struct schedule *s, double step, double first, double top, double last)
{
    double total = (double)s->total_steps, up = s->numbers.pct_start * total;
    const struct phase three[] = {{up - 1, first, top}, {2 * up - 2, top, first}, {total - 1, first, last}};
    const struct phase two[] = {{up - 1, first, top}, {total - 1, top, last}};
    return s->numbers.three_phase ? at_phase(s, three, 3, step) : at_phase(s, two, 2, step);
}

static double torch_rate(const struct schedule *s, double step)
{
    double first = s->learning_rate / s->numbers.div_factor;
    return torch_at(s, step, first, s->learning_rate, first / s->numbers.final_div_factor);
}

static double torch_momentum(const struct schedule *s, double step, double *beta2)
{
    (void)beta2;
    const struct schedule_numbers *n = &s->numbers;
    return torch_at(s, step, n->max_momentum, n->base_momentum, n->max_momentum);
}

/* ---- DeepSpeed's OneCycle ---- */

static double second(int64_t value, int64_t first)
{
    return (double)(value >= 0 ? value : first);
}

/* The share of the cycle's height, and steps since its end: below 0 or 0 within it. */
static double height(const struct schedule_numbers *n, double step, double *behind)
{
    double first = (double)n->cycle_first_step_size, total = first + second(n->cycle_second_step_size, (int64_t)first),
           up = (double)n->cycle_first_stair_count, down = second(n->cycle_second_stair_count, (int64_t)up);
    *behind = step - total;
    double in = step < total ? step : 0, x = in / total;
    if (x <= first / total) {
        return up > 0 ? floor(floor(in) * up / first) / up : x * total / first;
    }
    return down > 0 ? floor((total - floor(in)) * down / (total - first)) / down : (x - 1) / (first / total - 1);
}

/* 1 without a decay. */
static double decayed(const struct schedule_numbers *n, double rate, double behind)
{
    return n->decay_step_size > 0 ? 1 + rate * behind / (double)n->decay_step_size : 1;
}

static double deepspeed_rate(const struct schedule *s, double step)
{
    const struct schedule_numbers *n = &s->numbers;
    double behind, f = height(n, step, &behind), most = n->cycle_max_lr >= 0 ? n->cycle_max_lr : s->learning_rate;
    return behind > 0 ? n->cycle_min_lr / decayed(n, n->decay_lr_rate, behind)
                      : n->cycle_min_lr + (most - n->cycle_min_lr) * f;
}

/* Before the scheduler's first step DeepSpeed has set the least momentum, where the formula says the
 * most. */
static double deepspeed_momentum(const struct schedule *s, double step, double *beta2)
{
    const struct schedule_numbers *n = &s->numbers;
    double behind, f = height(n, step, &behind);
    *beta2 = 0.99;
    return step <= 0    ? n->cycle_min_mom
           : behind > 0 ? n->cycle_max_mom * decayed(n, n->decay_mom_rate, behind)
                        : n->cycle_max_mom - (n->cycle_max_mom - n->cycle_min_mom) * f;
}

/* ---- DeepSpeed's LRRangeTest ---- */

static double range_test_rate(const struct schedule *s, double step)
{
    const struct schedule_numbers *n = &s->numbers;
    double x = step / (double)n->lr_range_test_step_size;
    return n->lr_range_test_min_lr * (1 + n->lr_range_test_step_rate * (n->lr_range_test_staircase ? floor(x) : x));
}

const struct schedule_cycle cycle_torch = {torch_rate, torch_momentum}, cycle_range_test = {range_test_rate, NULL},
                            cycle_deepspeed = {deepspeed_rate, deepspeed_momentum};
