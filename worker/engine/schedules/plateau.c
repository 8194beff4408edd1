#include "worker/engine/schedules/plateau.h"

#include <math.h>

static bool better(const struct schedule_numbers *n, double value, double best)
{
    if (isnan(best)) {
        return isfinite(value);
    }
    double sign = n->mode == PLATEAU_MIN ? -1 : 1,
           than = n->threshold_mode == THRESHOLD_REL ? best * (1 + sign * n->threshold) : best + sign * n->threshold;
    return n->mode == PLATEAU_MIN ? value < than : value > than;
}

void plateau_check(struct plateau *p, const struct schedule *s, int64_t step, double value)
{
    const struct schedule_numbers *n = &s->numbers;
    if (p->checks > 0 && step <= p->step) { /* a run that goes on evaluates its last step again */
        return;
    }
    if (p->checks == 0) {
        *p = (struct plateau){.share = 1, .best = NAN};
    }
    p->checks++;
    p->step = step;
    if (better(n, value, p->best)) {
        p->best = value;
        p->bad = 0;
    } else {
        p->bad++;
    }
    if (p->cooldown > 0) {
        p->cooldown--;
        p->bad = 0;
    }
    if (p->bad > n->patience) {
        double rate = s->learning_rate * p->share, lower = fmax(rate * n->factor, n->min_lr);
        p->share = rate - lower > n->eps ? lower / s->learning_rate : p->share;
        p->cooldown = n->cooldown;
        p->bad = 0;
    }
}
