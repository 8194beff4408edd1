/* training.max_time: rank 0's clock says for all that the run has trained for so long. */
#include "worker/run/observers/observer.h"

#include "base/clock.h"
#include "worker/engine/trainer.h"

#include <stdlib.h>

struct until {
    double end_s; /* 0: training has not begun */
};

static bool time_open(struct observer *o)
{
    if (o->all->job->training.max_time_s <= 0 || o->all->world->rank != 0) {
        return false;
    }
    o->state = dt_alloc(sizeof(struct until));
    return true;
}

static void time_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct until *u = o->state;
    if (moment == MOMENT_START) {
        u->end_s = dt_now_s() + o->all->job->training.max_time_s - r->of->run.trained_s;
    }
}

static unsigned time_vote(struct observer *o)
{
    const struct until *u = o->state;
    return u->end_s > 0 && dt_now_s() >= u->end_s ? VOTE_FINISH : 0;
}

static void time_close(struct observer *o)
{
    free(o->state);
}

const struct observer_ops observer_time = {
    .name = "time", .open = time_open, .report = time_report, .vote = time_vote, .close = time_close};
