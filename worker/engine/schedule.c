/* One row per schedule: the factor on the learning rate in the warm-up and after it. */
#include "worker/engine/schedule.h"

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

static double polynomial(const struct schedule *s, const struct place *at)
{
    return pow(fmax(0, at->left), s->lr_power);
}

/* Without a warm-up there is no scale of time: Hugging Face takes 10000 steps. */
static double inverse_sqrt(const struct schedule *s, const struct place *at)
{
    (void)s;
    double scale = at->warmup > 0 ? at->warmup : 10000;
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

/* DeepSpeed's are a step late: its scheduler counts from -1, and the steps 0 and 1 run at 0. The fall of its cosine
 * is not. */
static const struct row {
    const char *name;
    decay_fn *decay;
    rise_fn *rise;     /* null: no warm-up */
    double late, fall; /* steps: all of it, and how many fewer after the warm-up */
    double least;      /* warm-up */
    bool from_least;   /* the warm-up begins at min_lr_ratio, not at 0 */
} rows[] = {
    {"constant", stay, NULL, 0, 0, 0, false},
    {"constant_with_warmup", stay, even, 0, 0, 0, false},
    {"linear", linear, even, 0, 0, 0, false},
    {"cosine", cosine, even, 0, 0, 0, false},
    {"polynomial", polynomial, even, 0, 0, 0, false},
    {"inverse_sqrt", inverse_sqrt, even, 0, 0, 0, false},
    {"warmup_stable_decay", stable_cosine, even, 0, 0, 0, true},
    {"warmup_stable_decay_linear", stable_linear, even, 0, 0, 0, true},
    {"warmuplr", stay, steep, 1, 0, 2, false},
    {"warmuplr_linear", stay, even, 1, 0, 2, false},
    {"warmupdecaylr", linear, steep, 1, 0, 2, false},
    {"warmupdecaylr_linear", linear, even, 1, 0, 2, false},
    {"warmupcosinelr", cosine, steep, 1, 1, 2, false},
    {"warmupcosinelr_linear", cosine, even, 1, 1, 2, false},
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

double schedule_rate_at(const struct schedule *s, double step)
{
    const struct row *row = find(s->type);
    if (!row) {
        row = &rows[0];
    }
    double warmup = fmax(row->least, (double)s->warmup_steps), total = (double)s->total_steps, factor;
    bool least = row->decay != stay; /* min_lr_ratio is its least value, not 0 */
    step -= row->late;
    if (row->rise != NULL && step < warmup) {
        factor = row->rise(fmax(0, step), warmup);
        least = row->from_least;
    } else {
        double span = fmax(1, total - warmup);
        step += row->fall;
        factor = row->decay(s, &(struct place){.step = step,
                                               .warmup = warmup,
                                               .progress = (step - warmup) / span,
                                               .left = (total - step) / span,
                                               .decay = fmin(1, s->decay_ratio * total / span)});
    }
    if (least) {
        factor = factor * (1 - s->min_lr_ratio) + s->min_lr_ratio;
    }
    return s->learning_rate * factor;
}

double schedule_rate(const struct schedule *s, int64_t step)
{
    return schedule_rate_at(s, (double)step);
}
