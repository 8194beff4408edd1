#include "worker/engine/outliers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool outliers_asked(const struct job_training *job)
{
    return job->skip_loss_z > 0 || job->skip_grad_z > 0 || job->guard_factor > 0;
}

void outliers_open(struct outliers *o, const struct job_training *job, struct dt_arena *arena)
{
    *o = (struct outliers){
        .skip_loss_z = job->skip_loss_z, .skip_grad_z = job->skip_grad_z, .guard_factor = job->guard_factor};
    if (outliers_asked(job)) {
        o->window = job->guard_window;
        o->loss = dt_arena_alloc(arena, (size_t)o->window * sizeof(double));
        o->norm = dt_arena_alloc(arena, (size_t)o->window * sizeof(double));
        o->sorted = dt_arena_alloc(arena, (size_t)o->window * sizeof(double));
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_of(struct outliers *o)
{
    memcpy(o->sorted, o->loss, (size_t)o->window * sizeof(double));
    qsort(o->sorted, (size_t)o->window, sizeof(double), compare);
    return (o->sorted[(o->window - 1) / 2] + o->sorted[o->window / 2]) / 2;
}

/* Of x, which is among them. 0 if they are all alike. */
static double deviations(const double *last, int64_t window, double x)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < window; i++) {
        sum += last[i];
    }
    double mean = sum / (double)window;
    for (int64_t i = 0; i < window; i++) {
        squares += (last[i] - mean) * (last[i] - mean);
    }
    return squares > 0 ? (x - mean) / sqrt(squares / (double)window) : 0;
}

enum outlier outliers_judge(struct outliers *o, double loss, double norm, double *score)
{
    bool full = o->count >= o->window;
    double median = full && o->guard_factor > 0 ? median_of(o) : 0;
    int64_t at = o->count++ % o->window;
    o->loss[at] = loss;
    o->norm[at] = norm;
    *score = 0;
    if (!full) {
        return OUTLIER_NONE;
    }
    if (median > 0 && loss > o->guard_factor * median) {
        *score = loss / median;
        return OUTLIER_LOSS_MEDIAN;
    }
    *score = o->skip_loss_z > 0 ? deviations(o->loss, o->window, loss) : 0;
    if (o->skip_loss_z > 0 && *score > o->skip_loss_z) {
        return OUTLIER_LOSS_Z;
    }
    *score = o->skip_grad_z > 0 ? deviations(o->norm, o->window, norm) : 0;
    return o->skip_grad_z > 0 && *score > o->skip_grad_z ? OUTLIER_GRAD_Z : OUTLIER_NONE;
}

struct outlier_steps outliers_steps(const struct outliers *o)
{
    return (struct outlier_steps){.count = o->count,
                                  .kept = o->count < o->window ? o->count : o->window,
                                  .skipped = o->skipped,
                                  .loss = o->loss,
                                  .norm = o->norm};
}

void outliers_resume(struct outliers *o, const struct outlier_steps *from)
{
    int64_t n = from->kept < o->window ? from->kept : o->window;
    /* of the same window each step has its old place, so that sums are added up in the same order */
    o->count = from->kept == o->window ? from->count : n;
    o->skipped = from->skipped;
    for (int64_t i = 1; i <= n; i++) {
        o->loss[(o->count - i) % o->window] = from->loss[(from->count - i) % from->kept];
        o->norm[(o->count - i) % o->window] = from->norm[(from->count - i) % from->kept];
    }
}
