/* One row per schedule: the factor on the learning rate in the warm-up and after it. */
#include "worker/engine/schedule.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

typedef double decay_fn(double progress, double left); /* shares of the steps after warm-up:
                                                        * done, to come */

typedef double rise_fn(double step, double warmup); /* of the warm-up */

static double even(double step, double warmup)
{
    return step / fmax(1, warmup);
}

static double steep(double step, double warmup)
{
    return log(step + 1) / log(warmup);
}

static double stay(double progress, double left)
{
    (void)progress;
    (void)left;
    return 1;
}

static double linear(double progress, double left)
{
    (void)progress;
    return fmax(0, left);
}

static double cosine(double progress, double left)
{
    (void)left;
    /* beyond the end it would come back up */
    return fmax(0, 0.5 * (1 + cos(acos(-1) * fmin(1, progress))));
}

/* DeepSpeed's are a step late: its scheduler counts from -1, and the steps 0 and 1 run at 0. */
static const struct row {
    const char *name;
    decay_fn *decay;
    rise_fn *rise; /* null: no warm-up */
    double late;   /* steps */
    double least;  /* warm-up */
} rows[] = {
    {"constant", stay, NULL, 0, 0},         {"constant_with_warmup", stay, even, 0, 0},
    {"linear", linear, even, 0, 0},         {"cosine", cosine, even, 0, 0},
    {"warmuplr", stay, steep, 1, 2},        {"warmuplr_linear", stay, even, 1, 2},
    {"warmupdecaylr", linear, steep, 1, 2}, {"warmupdecaylr_linear", linear, even, 1, 2},
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
    double warmup = fmax(row->least, (double)s->warmup_steps), total = (double)s->total_steps;
    step -= row->late;
    if (row->rise != NULL && step < warmup) {
        return s->learning_rate * row->rise(fmax(0, step), warmup);
    }
    double span = fmax(1, total - warmup);
    double factor = row->decay((step - warmup) / span, (total - step) / span);
    if (row->decay != stay) {
        factor = factor * (1 - s->min_lr_ratio) + s->min_lr_ratio;
    }
    return s->learning_rate * factor;
}

double schedule_rate(const struct schedule *s, int64_t step)
{
    return schedule_rate_at(s, (double)step);
}
