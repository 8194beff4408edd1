/* One row per schedule: the factor on the learning rate in the warm-up and after it, or the rate
 * itself (schedule_cycles.c). */
#include "worker/engine/schedules/schedule.h"
#include "worker/engine/schedules/schedule_cycles.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

/* A run's place on the schedule. */
struct place {
    double step, warmup;   /* steps since the start, and of the warm-up */
    double progress, left; /* shares of the steps after the warm-up: done, to come */
    double decay;          /* share of the steps after the warm-up that a last decay takes */
};

typedef double decay_fn(const struct schedule *s, const struct place *at);

typedef double rise_fn(double step, double warmup); /* of the warm-up */

static double even(double step, double warmup)
{
    return step / fmax(1, warmup);
}

static double steep(double step, double warmup)
{
    return log(step + 1) / log(warmup);
}

static double stay(const struct schedule *s, const struct place *at)
{
    (void)s;
    (void)at;
    return 1;
}

static double linear(const struct schedule *s, const struct place *at)
{
    (void)s;
    return fmax(0, at->left);
}

static double half_wave(double progress)
{
    /* beyond the end it would come back up */
    return fmax(0, 0.5 * (1 + cos(acos(-1) * fmin(1, progress))));
}

static double cosine(const struct schedule *s, const struct place *at)
{
    (void)s;
    return half_wave(at->progress);
}

/* Half a wave for each of num_cycles. */
static double restarts(const struct schedule *s, const struct place *at)
{
    return at->progress >= 1 ? 0 : half_wave(fmod((double)s->numbers.num_cycles * at->progress, 1));
}

static double polynomial(const struct schedule *s, const struct place *at)
{
    return pow(fmax(0, at->left), s->lr_power);
}

/* Without a warm-up there is no scale of time: Hugging Face takes 10000 steps. */
static double inverse_sqrt(const struct schedule *s, const struct place *at)
{
    double scale = s->numbers.timescale > 0 ? (double)s->numbers.timescale : at->warmup > 0 ? at->warmup : 10000;
    return 1 / sqrt((at->step - at->warmup + scale) / scale);
}

static double stable_cosine(const struct schedule *s, const struct place *at)
{
    (void)s;
    return at->left >= at->decay ? 1 : half_wave(1 - at->left / at->decay);
}

static double stable_linear(const struct schedule *s, const struct place *at)
{
    (void)s;
    return at->left >= at->decay ? 1 : fmax(0, at->left / at->decay);
}

/* Steps and milestones count from the start of the run, as in PyTorch, whose schedules have no warm-up. */
static double stairs(const struct schedule *s, const struct place *at)
{
    return pow(s->numbers.gamma, floor(at->step / (double)s->numbers.step_size));
}

static double milestones(const struct schedule *s, const struct place *at)
{
    int passed = 0;
    for (int64_t i = 0; i < s->numbers.milestones.count; i++) {
        passed += (double)s->numbers.milestones.of[i] <= at->step;
    }
    return pow(s->numbers.gamma, passed);
}

static double exponential(const struct schedule *s, const struct place *at)
{
    return pow(s->numbers.gamma, at->step - at->warmup);
}

static double plateau(const struct schedule *s, const struct place *at)
{
    (void)at;
    return s->plateau;
}

/* DeepSpeed's are a step late: its scheduler counts from -1, and the steps 0 and 1 run at the least rate. The fall of
 * its cosine is not late. */
static const struct row {
    const char *name;
    decay_fn *decay;
    rise_fn *rise;     /* null: no warm-up */
    double late, fall; /* steps: all of it, and how many fewer after the warm-up */
    double least;      /* warm-up */
    enum {
        FROM_0,
        FROM_LEAST,     /* the warm-up begins at min_lr_ratio */
        FROM_MIN_LR,    /* the warm-up begins at warmup_min_lr, and a fall ends there */
        FROM_MIN_RATIO, /* the warm-up begins at 0, and in the next step at warmup_min_ratio */
        KEEPS           /* no min_lr_ratio */
    } from;
    const struct schedule_cycle *cycle; /* instead of all that */
} rows[] = {
    {"constant", stay, NULL, 0, 0, 0, KEEPS, NULL},
    {"constant_with_warmup", stay, even, 0, 0, 0, KEEPS, NULL},
    {"linear", linear, even, 0, 0, 0, FROM_0, NULL},
    {"cosine", cosine, even, 0, 0, 0, FROM_0, NULL},
    {"cosine_with_restarts", restarts, even, 0, 0, 0, FROM_0, NULL},
    {"polynomial", polynomial, even, 0, 0, 0, FROM_0, NULL},
    {"inverse_sqrt", inverse_sqrt, even, 0, 0, 0, FROM_0, NULL},
    {"warmup_stable_decay", stable_cosine, even, 0, 0, 0, FROM_LEAST, NULL},
    {"warmup_stable_decay_linear", stable_linear, even, 0, 0, 0, FROM_LEAST, NULL},
    {"step", stairs, even, 0, 0, 0, FROM_0, NULL},
    {"multi_step", milestones, even, 0, 0, 0, FROM_0, NULL},
    {"exponential", exponential, even, 0, 0, 0, FROM_0, NULL},
    {"reduce_lr_on_plateau", plateau, even, 0, 0, 0, KEEPS, NULL},
    {"cosine_annealing", NULL, NULL, 0, 0, 0, KEEPS, &cycle_annealing},
    {"cosine_warm_restarts", NULL, NULL, 0, 0, 0, KEEPS, &cycle_warm_restarts},
    {"linear_lr", NULL, NULL, 0, 0, 0, KEEPS, &cycle_linear},
    {"constant_lr", NULL, NULL, 0, 0, 0, KEEPS, &cycle_constant},
    {"polynomial_lr", NULL, NULL, 0, 0, 0, KEEPS, &cycle_polynomial},
    {"one_cycle", NULL, NULL, 0, 0, 0, KEEPS, &cycle_torch},
    {"warmuplr", stay, steep, 1, 0, 2, FROM_MIN_LR, NULL},
    {"warmuplr_linear", stay, even, 1, 0, 2, FROM_MIN_LR, NULL},
    {"warmupdecaylr", linear, steep, 1, 0, 2, FROM_MIN_LR, NULL},
    {"warmupdecaylr_linear", linear, even, 1, 0, 2, FROM_MIN_LR, NULL},
    {"warmupcosinelr", cosine, steep, 1, 1, 2, FROM_MIN_RATIO, NULL},
    {"warmupcosinelr_linear", cosine, even, 1, 1, 2, FROM_MIN_RATIO, NULL},
    {"lrrangetest", NULL, NULL, 0, 0, 0, KEEPS, &cycle_range_test},
    {"onecycle", NULL, NULL, 0, 0, 0, KEEPS, &cycle_deepspeed},
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

static const struct row *find(const char *name)
{
    for (int i = 0; i < ROW_COUNT; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

int schedule_check(const struct schedule *s, struct dt_error *err)
{
    if (find(s->type)) {
        return 0;
    }
    const char *names[ROW_COUNT];
    for (int i = 0; i < ROW_COUNT; i++) {
        names[i] = rows[i].name;
    }
    const char *nearest = dt_text_nearest(s->type, names, ROW_COUNT);
    return dt_fail(err, DT_INVALID, "training.lr_scheduler_type: %s: unknown schedule; %s%s", s->type,
                   nearest ? "did you mean " : "see training.lr_scheduler_type in train --schema",
                   nearest ? nearest : "");
}

bool schedule_warms_up(const char *type)
{
    const struct row *row = find(type);
    return row != NULL && row->rise != NULL;
}

bool schedule_has_least(const char *type)
{
    const struct row *row = find(type);
    return row != NULL && row->from != KEEPS && row->decay != stay;
}

/* Where epochs are counted, those that are done. */
static double counted(const struct schedule *s, double steps)
{
    return s->epoch_steps > 0 ? floor(steps / (double)s->epoch_steps) : steps;
}

double schedule_rate_at(const struct schedule *s, double steps)
{
    const struct row *row = find(s->type);
    double step = counted(s, steps);
    row = row != NULL ? row : &rows[0];
    if (row->cycle != NULL) {
        return row->cycle->rate(s, step);
    }
    double warmup = fmax(row->least, (double)s->warmup_steps), total = (double)s->total_steps, factor;
    bool least = row->from != KEEPS && row->decay != stay; /* min_lr_ratio is its least value, not 0 */
    step -= row->late;
    if (row->rise != NULL && step < warmup) {
        factor = row->rise(fmax(0, step), warmup);
        least = row->from == FROM_LEAST;
        if (row->from == FROM_MIN_RATIO) {
            double from = s->numbers.warmup_min_ratio;
            factor = step < 0 ? 0 : from + (1 - from) * factor;
        }
    } else {
        double span = fmax(1, total - warmup);
        step += row->fall;
        factor = row->decay(
            s, &(struct place){.step = step,
                               .warmup = warmup,
                               .progress = (step - warmup) / span,
                               .left = (total - step) / span,
                               .decay = fmin(1, (s->numbers.num_decay_steps > 0 ? (double)s->numbers.num_decay_steps
                                                                                : s->decay_ratio * total) /
                                                    span)});
    }
    if (least) {
        factor = factor * (1 - s->min_lr_ratio) + s->min_lr_ratio;
    }
    double from = row->from == FROM_MIN_LR ? s->numbers.warmup_min_lr : 0;
    return from + (s->learning_rate - from) * factor;
}

bool schedule_ends_in_warmup(const struct schedule *s, struct dt_text *out)
{
    bool early = schedule_warms_up(s->type) && s->total_steps > 0 && s->warmup_steps > s->total_steps;
    if (early) {
        dt_text_printf(out, "the warm-up of %lld steps is longer than the run of %lld: the learning rate gets to %.3g",
                       (long long)s->warmup_steps, (long long)s->total_steps, schedule_rate(s, s->total_steps - 1));
    }
    return early;
}

double schedule_rate(const struct schedule *s, int64_t step)
{
    return schedule_rate_at(s, (double)step);
}

bool schedule_moves_momentum(const struct schedule *s)
{
    const struct row *row = find(s->type);
    return row != NULL && row->cycle != NULL && row->cycle->momentum != NULL && s->numbers.cycle_momentum;
}

double schedule_momentum_at(const struct schedule *s, double steps, double *beta2)
{
    return find(s->type)->cycle->momentum(s, counted(s, steps), beta2);
}
