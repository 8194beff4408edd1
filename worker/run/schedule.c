/* One function per schedule: the factor on the learning rate; a row each in the table. Warm-up
 * comes first and is common. */
#include "worker/run/schedule.h"

#include "base/text.h"

#include <math.h>
#include <string.h>

typedef double decay_fn(double progress, double left); /* shares of the steps after warm-up:
                                                        * done, to come */

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

static const struct row {
    const char *name;
    decay_fn *decay;
    int warms_up;
} rows[] = {
    {"constant", stay, 0},
    {"constant_with_warmup", stay, 1},
    {"linear", linear, 1},
    {"cosine", cosine, 1},
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
                   nearest ? "did you mean " : "use constant, constant_with_warmup, linear or cosine",
                   nearest ? nearest : "");
}

double schedule_rate_at(const struct schedule *s, double step)
{
    const struct row *row = find(s->type);
    if (!row) {
        row = &rows[0];
    }
    double warmup = (double)s->warmup_steps, total = (double)s->total_steps;
    if (row->warms_up && step < warmup) {
        return s->learning_rate * (step / fmax(1, warmup));
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
