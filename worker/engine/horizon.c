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

/* The run goes by a number of samples, not by passes over the data. */
static bool by_samples(const struct job_training *j)
{
    return j->max_steps >= 0 || j->max_samples > 0;
}

/* A batch as training.accumulation_schedule splits it in an epoch. */
static struct batch_split split_in(const struct job_training *j, const struct batch_split *s, int64_t epoch)
{
    return (struct batch_split){s->micro_batch,
                                j->accumulation_schedule.count > 0 ? job_accumulation(j, epoch) : s->micro_steps};
}

int64_t horizon_rows(const struct job_training *j, int64_t rows, int64_t micro_batch)
{
    double limit = j->overfit_batches > 0 ? j->overfit_batches : j->limit_train_batches;
    bool fills = j->uneven_inputs == UNEVEN_JOIN;
    int64_t batches = (rows + (fills ? micro_batch - 1 : 0)) / micro_batch;
    if (limit <= 0 || limit >= (double)batches) {
        return rows;
    }
    return (int64_t)(limit < 1 ? limit * (double)batches : limit) * micro_batch;
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

/* Steps of whole epochs [epoch, end). */
static int64_t steps_between(const struct job_training *j, int64_t rows, const struct batch_split *s, int64_t epoch,
                             int64_t end)
{
    int64_t steps = 0;
    while (epoch < end) {
        struct batch_split of = split_in(j, s, epoch);
        int64_t next = j->accumulation_schedule.count > 0 ? job_accumulation_end(j, epoch) : end;
        next = next < end ? next : end;
        steps += (next - epoch) * steps_of_epoch(j, rows, &of);
        epoch = next;
    }
    return steps;
}

/* Samples of the part of an epoch behind the whole ones: of a share of its steps, rounded up as in Hugging Face's
 * Trainer. */
static int64_t part_of(const struct job_training *j, int64_t rows, const struct batch_split *s)
{
    double whole = floor(j->num_epochs);
    struct batch_split of = split_in(j, s, (int64_t)whole);
    double steps = (double)steps_of_epoch(j, rows, &of);
    int64_t part = times((int64_t)(ceil(j->num_epochs * steps) - whole * steps), batch_of(&of));
    return part < rows ? part : rows;
}

int64_t horizon_epoch_steps(const struct job_training *j, int64_t rows, const struct batch_split *s, int64_t epoch,
                            int64_t position)
{
    int64_t whole = (int64_t)floor(j->num_epochs), part = part_of(j, rows, s);
    int64_t k = split_in(j, s, epoch).micro_steps;
    if (j->partial_accumulation == PARTIAL_CARRY) {
        int64_t micro = micro_of(rows, s), all = whole * micro + part / s->micro_batch,
                used = times(epoch, micro) + position / s->micro_batch;
        return all > used ? (all - used) / k : 0;
    }
    if (epoch < whole && position == 0) {
        return steps_between(j, rows, s, epoch, whole) +
               steps_of(j, part / s->micro_batch, split_in(j, s, whole).micro_steps);
    }
    /* of the epoch that the run stands in */
    int64_t end = epoch < whole ? rows : epoch == whole ? part : 0;
    int64_t steps = end > position ? steps_of(j, (end - position) / s->micro_batch, k) : 0;
    return epoch < whole ? steps + steps_between(j, rows, s, epoch + 1, whole) +
                               steps_of(j, part / s->micro_batch, split_in(j, s, whole).micro_steps)
                         : steps;
}

/* A run by samples whose batch changes over epochs: steps from a place on, at most so many, or until so
 * many samples are done; each counts as a whole one. */
struct way {
    int64_t steps, samples;
};

static struct way go(const struct job_training *j, int64_t rows, const struct batch_split *now, int64_t epoch,
                     int64_t position, struct way most)
{
    struct way done = {0};
    while (done.steps < most.steps && done.samples < most.samples) {
        struct batch_split of = split_in(j, now, epoch);
        int64_t next = position > 0 ? epoch + 1 : job_accumulation_end(j, epoch);
        int64_t left = rows > position ? rows - position : 0;
        int64_t steps = position > 0        ? steps_of(j, left / of.micro_batch, of.micro_steps)
                        : next == INT64_MAX ? MOST
                                            : times(next - epoch, steps_of_epoch(j, rows, &of));
        int64_t needed = (most.samples - done.samples - 1) / batch_of(&of) + 1;
        steps = steps < needed ? steps : needed;
        steps = steps < most.steps - done.steps ? steps : most.steps - done.steps;
        done.steps += steps;
        done.samples = times(steps, batch_of(&of)) > MOST - done.samples ? MOST : done.samples + steps * batch_of(&of);
        epoch = next;
        position = 0;
    }
    return done;
}

static bool same_split(const struct batch_split *a, const struct batch_split *b)
{
    return a->micro_batch == b->micro_batch && a->micro_steps == b->micro_steps;
}

/* `samples` of a place in the data, from epoch 0 on: in the steps that the first batch would
 * have taken to get there, in all epochs. Another batch takes more of an epoch's samples, or fewer: the share
 * of them counts. */
static int64_t samples_at(const struct horizon *h, const struct job_training *j, const struct batch_split *now,
                          int64_t epoch, int64_t position)
{
    const struct batch_split here = split_in(j, now, epoch);
    int64_t full = micro_of(h->rows, &h->of) * h->of.micro_batch;
    int64_t whole =
        j->partial_accumulation == PARTIAL_CARRY ? full : times(steps_of_epoch(j, h->rows, &h->of), batch_of(&h->of));
    if (!same_split(&here, &h->of)) {
        int64_t taken = taken_of(j, h->rows, &here);
        return times(epoch, whole) + (position < taken ? (int64_t)((__int128)position * whole / taken) : whole);
    }
    return times(epoch, whole) + (position < full && position < whole ? position : whole);
}

/* Where training.epoch_limit ends a run by samples, each of whose steps counts as a whole one. */
static int64_t limit_of(const struct horizon *h, const struct job_training *j)
{
    struct job_training whole = *j;
    int64_t samples = 0;
    whole.num_epochs = (double)j->epoch_limit;
    if (j->accumulation_schedule.count == 0) {
        return h->base + times(horizon_epoch_steps(&whole, h->rows, &h->of, 0, 0), batch_of(&h->of));
    }
    for (int64_t epoch = 0; epoch < j->epoch_limit;) {
        struct batch_split of = split_in(j, &h->of, epoch);
        int64_t next = job_accumulation_end(j, epoch);
        next = next < j->epoch_limit ? next : j->epoch_limit;
        samples += times((next - epoch) * steps_of_epoch(j, h->rows, &of), batch_of(&of));
        epoch = next;
    }
    return h->base + samples;
}

static int64_t end_of(const struct horizon *h, const struct job_training *j)
{
    if (by_samples(j)) {
        int64_t end = j->max_samples > 0 ? j->max_samples : h->end;
        int64_t limit = j->epoch_limit > 0 ? limit_of(h, j) : end;
        return limit < end ? limit : end;
    }
    struct job_training even = *j; /* the first batch in all epochs is the unit */
    even.accumulation_schedule.count = 0;
    return h->base + times(horizon_epoch_steps(&even, h->rows, &h->of, 0, 0), batch_of(&h->of));
}

/* Samples of so many steps from here on. */
static int64_t samples_of(const struct job_training *j, int64_t rows, const struct batch_split *now, int64_t epoch,
                          int64_t position, int64_t steps)
{
    return j->accumulation_schedule.count == 0
               ? times(steps, batch_of(now))
               : go(j, rows, now, epoch, position, (struct way){.steps = steps, .samples = MOST}).samples;
}

void horizon_begin(struct horizon *h, const struct job_training *j, const struct batch_split *now, int64_t step,
                   int64_t rows, int64_t epoch, int64_t position)
{
    h->of = h->of.micro_batch > 0 ? h->of : split_in(j, now, epoch);
    h->rows = rows;
    if (j->max_steps >= 0 && j->max_steps != h->max_steps) {
        bool more = h->max_steps >= 0 && j->max_steps > h->max_steps && j->max_steps <= step && h->samples < h->end;
        int64_t left = j->max_steps > step ? j->max_steps - step : 0;
        /* steps were smaller: the first number lies behind */
        int64_t end = more ? h->end + times(j->max_steps - h->max_steps, batch_of(&h->of))
                           : h->samples + samples_of(j, rows, now, epoch, position, left);
        h->end = end < MOST ? end : MOST;
    }
    h->max_steps = j->max_steps;
}

struct horizon horizon_guess(const struct job_training *j, const struct batch_split *of, int64_t rows, int64_t step,
                             int64_t epoch, int64_t position)
{
    struct horizon h = {.max_steps = -1};
    horizon_begin(&h, j, of, 0, rows, 0, 0);
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
    if (!by_samples(j)) {
        return horizon_epoch_steps(j, h->rows, now, epoch, position);
    }
    return j->accumulation_schedule.count == 0
               ? (end - h->samples - 1) / batch_of(now) + 1
               : go(j, h->rows, now, epoch, position, (struct way){.steps = MOST, .samples = end - h->samples}).steps;
}

int64_t horizon_after(const struct horizon *h, const struct job_training *j, int64_t samples,
                      const struct batch_split *now, int64_t epoch, int64_t position, bool last)
{
    if (by_samples(j)) {
        const struct batch_split here = split_in(j, now, epoch);
        return samples + batch_of(&here);
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
    if (!by_samples(is) && !by_samples(was)) {
        h->samples = horizon_is_done(h, was) ? end_of(h, is) : h->base + samples_at(h, is, last, epoch, position);
    }
}

struct schedule horizon_schedule(const struct horizon *h, const struct job_training *j)
{
    int64_t total = (end_of(h, j) + batch_of(&h->of) - 1) / batch_of(&h->of);
    int64_t epoch = j->scheduler.interval == INTERVAL_EPOCH ? steps_of_epoch(j, h->rows, &h->of) : 0;
    return (struct schedule){.type = j->lr_scheduler_type,
                             .learning_rate = j->learning_rate,
                             .min_lr_ratio = j->min_lr_ratio,
                             .lr_power = j->lr_power,
                             .decay_ratio = j->decay_ratio,
                             .numbers = j->scheduler,
                             .plateau = 1,
                             .warmup_steps = j->warmup_steps >= 0 ? j->warmup_steps
                                                                  : (int64_t)ceil(j->warmup_ratio * (double)total),
                             .total_steps = epoch > 0 ? (total + epoch - 1) / epoch : total,
                             .epoch_steps = epoch};
}

double horizon_momentum(const struct horizon *h, const struct schedule *s, int64_t samples, double *beta2)
{
    return schedule_momentum_at(s, (double)samples / (double)batch_of(&h->of), beta2);
}

double horizon_rate(const struct horizon *h, const struct schedule *s, int64_t samples)
{
    return schedule_rate_at(s, (double)samples / (double)batch_of(&h->of));
}
