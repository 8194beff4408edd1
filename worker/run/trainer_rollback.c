/* training.loss_guard_action rollback: weights, buffers and the optimizer's state become those of the last
 * checkpoint, in place and on all ranks, which have judged the same numbers (trainer_outliers.c). Steps and data
 * go on: what was trained since the checkpoint is undone, and its samples, those of the step that stood out
 * among them, are left out. So the run ends where it would have ended, with the learning rate that is due. */
#include "worker/run/trainer.h"

#include <stdio.h>

int trainer_roll_back(struct trainer *t, struct dt_error *err)
{
    const char *path = t->saver.saved_path;
    int64_t to = t->saver.saved_step, samples = 0;
    long long step = (long long)t->run.step;
    t->run.goes_back = false;
    if (path == NULL || to < 0) { /* below 0: the run goes on from a snapshot, and has no file */
        observers_say(&t->observers, "train: step %lld: there is no checkpoint yet to go back to: it is skipped alone",
                      step);
        return 0;
    }
    trainer_await_copy(t);
    if (trainer_settle(t, "rollback", err) != 0 || trainer_load_state(t, path, &samples, err) != 0) {
        return -1;
    }
    t->strategy.weights->publish(&t->strategy); /* nobody takes weights that were there before */
    if (trainer_settle(t, "rollback", err) != 0) {
        return -1;
    }
    t->run.rollbacks++;
    samples = t->run.horizon.samples - samples;
    observers_say(
        &t->observers,
        "train: step %lld: goes back to %s: what steps %lld to %lld changed is undone, and their %lld samples "
        "are left out (%lld of %lld rollbacks)",
        step, path, (long long)to + 1, step, (long long)samples, (long long)t->run.rollbacks,
        (long long)t->job->training.guard_rollbacks);
    char fields[160];
    (void)snprintf(fields, sizeof fields,
                   "\"step\": %lld, \"to\": %lld, \"samples\": %lld, \"rollbacks\": %lld, \"round\": %d", step,
                   (long long)to, (long long)samples, (long long)t->run.rollbacks, t->world->round);
    observers_event(&t->observers, "rollback", fields);
    return 0;
}
