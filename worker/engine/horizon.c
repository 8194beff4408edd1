/* Whole numbers only, so a run that stops and goes on computes the same rates bit by bit. */
#include "worker/engine/horizon.h"

#include <math.h>

static int64_t batch_of(const struct batch_split *s)
{
    return s->micro_batch * s->micro_steps;
}

/* samples that no run does, and that JSON has as a whole number */
#define MOST INT64_C(9000000000000000)

static int64_t times(int64_t a, int64_t b)
{
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > MOST ? MOST : product;
}

static int64_t at_least_1(int64_t n)
{
    return n > 1 ? n : 1;
}

/* Optimizer steps that `micro` micro-steps of one epoch make. */
static int64_t steps_of(const struct job_training *j, int64_t micro, int64_t k)
{
    return j->partial_accumulation == PARTIAL_STEP ? (micro + k - 1) / k : micro / k;
}

/* Micro-steps and steps of a whole epoch. At least one: data that were accepted may hold fewer
 * samples than the first batch. */
static int64_t micro_of(int64_t rows, const struct batch_split *s)
{
    return at_least_1(rows / s->micro_batch);
}

static int64_t steps_of_epoch(const struct job_training *j, int64_t rows, const struct batch_split *s)
{
    return at_least_1(steps_of(j, micro_of(rows, s), s->micro_steps));
}

/* Samples of an epoch that steps of this batch take, of so many. */
static int64_t taken_of(const struct job_training *j, int64_t rows, const struct batch_split *s)
{
    int64_t micro = micro_of(rows, s), k = s->micro_steps;
    bool leaves = j->partial_accumulation != PARTIAL_STEP && j->partial_accumulation != PARTIAL_CARRY && micro > k;
    return (leaves ? micro - micro % k : micro) * s->micro_batch;
}

int64_t horizon_epoch_steps(const struct job_training *j, int64_t rows, const struct batch_split *s, int64_t epoch,
                            int64_t position)
{
    int64_t whole = (int64_t)floor(j->num_epochs), part = (int64_t)((j->num_epochs - (double)whole) * (double)rows);
    int64_t k = s->micro_steps;
    if (j->partial_accumulation == PARTIAL_CARRY) {
        int64_t micro = micro_of(rows, s), all = whole * micro + part / s->micro_batch,
                used = times(epoch, micro) + position / s->micro_batch;
        return all > used ? (all - used) / k : 0;
    }
    /* of the epoch that the run stands in */
    int64_t end = epoch < whole ? rows : epoch == whole ? part : 0;
    int64_t steps = end > position ? steps_of(j, (end - position) / s->micro_batch, k) : 0;
    if (epoch < whole) {
        steps = position == 0 ? steps_of_epoch(j, rows, s) : steps;
        steps += (whole - epoch - 1) * steps_of_epoch(j, rows, s) + steps_of(j, part / s->micro_batch, k);
    }
    return steps;
}

static bool same_split(const struct batch_split *a, const struct batch_split *b)
{
    return a->micro_batch == b->micro_batch && a->micro_steps == b->micro_steps;
}

/* `samples` of a place in the data, from epoch 0 on: in the steps that the first batch would
 * have taken to get there. Another batch takes more of an epoch's samples, or fewer: the share
 * of them counts. */
static int64_t samples_at(const struct horizon *h, const struct job_training *j, const struct batch_split *now,
                          int64_t epoch, int64_t position)
{
    int64_t full = micro_of(h->rows, &h->of) * h->of.micro_batch;
    int64_t whole =
        j->partial_accumulation == PARTIAL_CARRY ? full : times(steps_of_epoch(j, h->rows, &h->of), batch_of(&h->of));
    if (!same_split(now, &h->of)) {
        int64_t taken = taken_of(j, h->rows, now);
        return times(epoch, whole) + (position < taken ? (int64_t)((__int128)position * whole / taken) : whole);
    }
    return times(epoch, whole) + (position < full && position < whole ? position : whole);
}

static int64_t end_of(const struct horizon *h, const struct job_training *j)
{
    return j->max_steps >= 0 ? h->end
                             : h->base + times(horizon_epoch_steps(j, h->rows, &h->of, 0, 0), batch_of(&h->of));
}

void horizon_begin(struct horizon *h, const struct job_training *j, const struct batch_split *now, int64_t step,
                   int64_t rows)
{
    h->of = h->of.micro_batch > 0 ? h->of : *now;
    h->rows = rows;
    if (j->max_steps >= 0 && j->max_steps != h->max_steps) {
        bool more = h->max_steps >= 0 && j->max_steps > h->max_steps && j->max_steps <= step && h->samples < h->end;
        /* steps were smaller: the first number lies behind */
        int64_t end = more ? h->end + times(j->max_steps - h->max_steps, batch_of(&h->of))
                           : h->samples + (j->max_steps > step ? times(j->max_steps - step, batch_of(now)) : 0);
        h->end = end < MOST ? end : MOST;
    }
    h->max_steps = j->max_steps;
}

struct horizon horizon_guess(const struct job_training *j, const struct batch_split *of, int64_t rows, int64_t step,
                             int64_t epoch, int64_t position)
{
    struct horizon h = {.max_steps = -1};
    horizon_begin(&h, j, of, 0, rows);
    h.samples = times(step, batch_of(of));
    h.base = horizon_base(&h, j, of, epoch, position);
    return h;
}

int64_t horizon_left(const struct horizon *h, const struct job_training *j, const struct batch_split *now,
                     int64_t epoch, int64_t position)
{
    int64_t end = end_of(h, j);
    if (h->samples >= end) {
        return 0;
    }
    return j->max_steps >= 0 ? (end - h->samples - 1) / batch_of(now) + 1
                             : horizon_epoch_steps(j, h->rows, now, epoch, position);
}

int64_t horizon_after(const struct horizon *h, const struct job_training *j, int64_t samples,
                      const struct batch_split *now, int64_t epoch, int64_t position, bool last)
{
    if (j->max_steps >= 0) {
        return samples + batch_of(now);
    }
    int64_t at = h->base + samples_at(h, j, now, epoch, position), end = end_of(h, j);
    at = at > samples ? at : samples; /* a batch that has just changed may
                                       * take another share of the epoch */
    return last == (at >= end) ? at
           : last              ? end
                               : end - 1; /* another split leaves out other
                                           * samples of the last epoch */
}

int64_t horizon_base(const struct horizon *h, const struct job_training *j, const struct batch_split *now,
                     int64_t epoch, int64_t position)
{
    return h->samples - samples_at(h, j, now, epoch, position);
}

bool horizon_is_done(const struct horizon *h, const struct job_training *j)
{
    return h->samples >= end_of(h, j);
}

void horizon_count_anew(struct horizon *h, const struct job_training *was, const struct job_training *is,
                        const struct batch_split *last, int64_t epoch, int64_t position)
{
    if (is->max_steps < 0 && was->max_steps < 0) {
        h->samples = horizon_is_done(h, was) ? end_of(h, is) : h->base + samples_at(h, is, last, epoch, position);
    }
}

struct schedule horizon_schedule(const struct horizon *h, const struct job_training *j)
{
    int64_t total = (end_of(h, j) + batch_of(&h->of) - 1) / batch_of(&h->of);
    return (struct schedule){.type = j->lr_scheduler_type,
                             .learning_rate = j->learning_rate,
                             .min_lr_ratio = j->min_lr_ratio,
                             .lr_power = j->lr_power,
                             .decay_ratio = j->decay_ratio,
                             .numbers = j->scheduler,
                             .plateau = 1,
                             .warmup_steps = j->warmup_steps >= 0 ? j->warmup_steps
                                                                  : (int64_t)ceil(j->warmup_ratio * (double)total),
                             .total_steps = total};
}

double horizon_momentum(const struct horizon *h, const struct schedule *s, int64_t samples, double *beta2)
{
    return schedule_momentum_at(s, (double)samples / (double)batch_of(&h->of), beta2);
}

double horizon_rate(const struct horizon *h, const struct schedule *s, int64_t samples)
{
    return schedule_rate_at(s, (double)samples / (double)batch_of(&h->of));
}
