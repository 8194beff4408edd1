/* training.max_time and checkpointing.save_every_n_seconds: rank 0's clock says for all that the run has trained
 * for so long, or since its last save. */
#include "worker/run/observers/observer.h"

#include "base/clock.h"
#include "worker/engine/trainer.h"

#include <stdlib.h>

struct until {
    double end_s, save_s; /* when the run ends, and a save is due; 0: never, or training has not begun */
};

static bool time_open(struct observer *o)
{
    const struct job *job = o->all->job;
    if (o->all->world->rank != 0 || (job->training.max_time_s <= 0 && job->checkpointing.save_every_n_seconds <= 0)) {
        return false;
    }
    struct until *u = o->state = dt_alloc(sizeof *u);
    *u = (struct until){.end_s = 0};
    return true;
}

static void time_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct until *u = o->state;
    const struct job *job = o->all->job;
    double now_s = dt_now_s();
    if (moment == MOMENT_START && job->training.max_time_s > 0) {
        u->end_s = now_s + job->training.max_time_s - r->of->run.trained_s;
    }
    if ((moment == MOMENT_START || moment == MOMENT_SAVING) && job->checkpointing.save_every_n_seconds > 0) {
        u->save_s = now_s + job->checkpointing.save_every_n_seconds;
    }
}

static unsigned time_vote(struct observer *o)
{
    const struct until *u = o->state;
    double now_s = dt_now_s();
    unsigned votes = u->end_s > 0 && now_s >= u->end_s ? VOTE_FINISH : 0;
    return votes | (u->save_s > 0 && now_s >= u->save_s ? VOTE_SAVE : 0);
}

static void time_close(struct observer *o)
{
    free(o->state);
}

const struct observer_ops observer_time = {
    .name = "time", .open = time_open, .report = time_report, .vote = time_vote, .close = time_close};
