/* timeline-rank-N.json: every rank writes what its streams did in logging.timeline_steps, once these
 * steps are over. The step records it (engine/timeline.h). */
#include "worker/run/trainer.h"

#include <stdlib.h>

static bool timeline_file_open(struct observer *o)
{
    return o->all->files && o->all->job->logging.timeline_steps[0] != 0;
}

/* A disk that refuses the file costs a warning. */
static void timeline_file_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct dt_error err;
    bool over = (moment == MOMENT_STEP && timeline_over(r->of->stepper.timeline, r->step)) ||
                (moment == MOMENT_END && timeline_over(r->of->stepper.timeline, INT64_MAX));
    if (!over) {
        return;
    }
    char *path = dt_format("%s/timeline-rank-%d.json", o->all->job->output_dir, o->all->world->rank);
    if (timeline_write(r->of->stepper.timeline, path, &err) == 0) {
        observers_say(o->all, "train: timeline: %s", path);
    } else {
        observers_say(o->all, "train: warning: timeline: %s", err.text);
    }
    free(path);
}

const struct observer_ops observer_timeline_file = {
    .name = "timeline", .open = timeline_file_open, .report = timeline_file_report};
