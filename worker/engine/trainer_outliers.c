/* A step whose loss or norm stands out (outliers.h) is not applied: the host waits for the step's sums,
 * which are the same on all ranks, before it enqueues the update. */
#include "worker/engine/trainer.h"

#include <math.h>
#include <stdio.h>

/* The loss guard's step ends the run. */
static int end_run(struct trainer *t, double loss, double score, struct dt_error *err)
{
    char times[96] = "";
    bool back = t->job->training.guard_action == GUARD_ROLLBACK;
    if (back) {
        (void)snprintf(times, sizeof times, ", after %lld rollbacks (training.loss_guard_rollbacks)",
                       (long long)t->run.rollbacks);
    }
    (void)dt_fail(err, DT_INVALID,
                  "step %lld: the loss %.6g is %.4g times the median of the last %lld steps "
                  "(training.loss_guard_factor)%s; look at the data, lower training.learning_rate, or write "
                  "training.loss_guard_action skip",
                  (long long)t->stepper.begun + 1, loss, score, (long long)t->stepper.outliers.window, times);
    return dt_blame(err, DT_FAULT_FAILED, t->rank);
}

static void say_outlier(struct trainer *t, enum outlier what, double value, double score)
{
    static const char *const names[] = {"", "loss", "grad_norm", "loss"};
    static const char *const keys[] = {"", "skip_update_lossz", "skip_update_gradz", "loss_guard_factor"};
    long long step = (long long)t->stepper.begun + 1, window = (long long)t->stepper.outliers.window;
    char fields[192];
    (void)snprintf(fields, sizeof fields,
                   "\"step\": %lld, \"key\": \"training.%s\", \"%s\": %.9g, \"score\": %.4g, \"round\": %d", step,
                   keys[what], names[what], value, score, t->world->round);
    observers_event(&t->observers, "step_skipped", fields);
    observers_say(&t->observers, "train: step %lld: skipped: %s %.6g is %.4g %s of the last %lld steps (training.%s)",
                  step, what == OUTLIER_GRAD_Z ? "the gradient's norm" : "the loss", value, score,
                  what == OUTLIER_LOSS_MEDIAN ? "times the median" : "standard deviations above the mean", window,
                  keys[what]);
}

int trainer_judge(struct trainer *t, struct trainer_pending *p, struct dt_error *err)
{
    struct outliers *o = &t->stepper.outliers;
    char what[48];
    snprintf(what, sizeof what, "step %lld", (long long)t->stepper.begun + 1);
    if (trainer_wait(t, p->done, what, err) != 0) {
        return -1;
    }
    const struct step_sums_result *r = step_sums_read(&t->step_sums, p->turn);
    if (r->bad_rank >= 0 || !r->norm_finite || r->valid_count == 0) {
        return 0; /* trainer_finish says so */
    }
    double score;
    enum outlier found = outliers_judge(o, r->loss, r->grad_norm, &score);
    if (found == OUTLIER_NONE) {
        return 0;
    }
    enum guard_action action = found == OUTLIER_LOSS_MEDIAN ? t->job->training.guard_action : GUARD_SKIP;
    if (action == GUARD_STOP || (action == GUARD_ROLLBACK && t->run.rollbacks >= t->job->training.guard_rollbacks)) {
        return end_run(t, r->loss, score, err);
    }
    t->run.goes_back = action == GUARD_ROLLBACK;
    p->skipped = true;
    say_outlier(t, found, found == OUTLIER_GRAD_Z ? r->grad_norm : r->loss, score);
    return 0;
}
