#include "worker/engine/stopping.h"

#include <math.h>
#include <string.h>

/* NaN is no better than anything. */
static bool better(int mode, double a, double b)
{
    return mode == MODE_MAX ? a > b : a < b;
}

static bool is_reached(const struct job_stopping *j, double value)
{
    return j->stopping_threshold != JOB_NO_THRESHOLD && better(j->mode, value, j->stopping_threshold);
}

static bool has_diverged(const struct job_stopping *j, double value)
{
    return j->divergence_threshold != JOB_NO_THRESHOLD && better(j->mode, j->divergence_threshold, value);
}

static enum stop_reason judge(struct stopper *s, const struct job_stopping *j, double value)
{
    if (j->check_finite && !isfinite(value)) {
        return STOP_NOT_FINITE;
    }
    if (is_reached(j, value)) {
        return STOP_REACHED;
    }
    if (has_diverged(j, value)) {
        return STOP_DIVERGED;
    }
    double less = j->mode == MODE_MAX ? value - j->min_delta : value + j->min_delta;
    bool none = isnan(s->best), is_best = none ? !isnan(value) : better(j->mode, value, s->best),
         counts = none ? is_best : better(j->mode, less, s->best);
    if (counts || (is_best && j->compare_with_best)) {
        s->best = value;
    }
    s->bad = counts ? 0 : s->bad + 1;
    return !counts && s->bad >= j->patience ? STOP_PATIENCE : STOP_NOT;
}

void stopper_check(struct stopper *s, const struct job_stopping *j, int64_t step, double value)
{
    if (s->checks > 0 && step <= s->step) { /* a run that goes on evaluates its last step again */
        return;
    }
    if (s->checks == 0) {
        *s = (struct stopper){.best = NAN};
    }
    s->checks++;
    s->step = step;
    s->value = s->reason == STOP_NOT ? value : s->value; /* that of the reason stays */
    enum stop_reason reason = judge(s, j, value);
    s->reason = s->reason != STOP_NOT ? s->reason : reason;
}

/* The value of a reason passes its threshold still. A checkpoint that did not keep it has NaN, so it does. */
static bool stands(const struct stopper *s, double threshold, bool passes)
{
    return passes || (isnan(s->value) && threshold != JOB_NO_THRESHOLD);
}

void stopper_resume(struct stopper *s, const struct job_stopping *j)
{
    bool ends[STOP_REASONS] = {
        [STOP_NOT_FINITE] = j->check_finite,
        [STOP_REACHED] = stands(s, j->stopping_threshold, is_reached(j, s->value)),
        [STOP_DIVERGED] = stands(s, j->divergence_threshold, has_diverged(j, s->value)),
        [STOP_PATIENCE] = s->bad >= j->patience,
    };
    s->reason = j->monitor != NULL && ends[s->reason] ? s->reason : STOP_NOT;
}

/* Index of the worst, of equal ones the first. */
static int worst_of(const struct best_list *l, int mode)
{
    int worst = 0;
    for (int i = 1; i < l->count; i++) {
        double a = l->item[i].value, b = l->item[worst].value;
        worst = !isnan(b) && (isnan(a) || better(mode, b, a)) ? i : worst;
    }
    return worst;
}

bool best_wants(const struct best_list *l, int64_t k, int mode, int64_t step, double value)
{
    if (k <= 0 || best_has(l, step)) {
        return false;
    }
    if (l->count < k) {
        return true;
    }
    double worst = l->item[worst_of(l, mode)].value;
    return isnan(worst) ? !isnan(value) : better(mode, value, worst);
}

void best_add(struct best_list *l, int64_t step, double value)
{
    if (l->count <= BEST_MAX) {
        l->item[l->count++] = (struct best_item){step, value};
    }
}

static void remove_at(struct best_list *l, int i)
{
    l->count--;
    memmove(&l->item[i], &l->item[i + 1], (size_t)(l->count - i) * sizeof l->item[0]);
}

void best_trim(struct best_list *l, int64_t k, int mode)
{
    while (l->count > 0 && l->count > k) {
        remove_at(l, worst_of(l, mode));
    }
}

void best_remove(struct best_list *l, int64_t step)
{
    for (int i = l->count - 1; i >= 0; i--) {
        if (l->item[i].step == step) {
            remove_at(l, i);
        }
    }
}

bool best_has(const struct best_list *l, int64_t step)
{
    for (int i = 0; i < l->count; i++) {
        if (l->item[i].step == step) {
            return true;
        }
    }
    return false;
}

int64_t best_first(const struct best_list *l, int mode)
{
    int best = 0;
    for (int i = 1; i < l->count; i++) {
        double a = l->item[i].value, b = l->item[best].value;
        best = !isnan(a) && (isnan(b) || better(mode, a, b)) ? i : best;
    }
    return l->count > 0 ? l->item[best].step : -1;
}
