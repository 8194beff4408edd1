/* When a run is evaluated, what an evaluation changes (the rate, early_stopping, the best checkpoints), and how a
 * run ends before its last step. All ranks know the same values and votes, and do the same. */
#include "worker/run/trainer.h"

#include "base/clock.h"

#include <math.h>
#include <string.h>

static const char *const reasons[] = {
    [STOP_NOT_FINITE] = "is not finite",
    [STOP_REACHED] = "is better than early_stopping.stopping_threshold",
    [STOP_DIVERGED] = "is worse than early_stopping.divergence_threshold",
    [STOP_PATIENCE] = "has not become better",
};

static bool has_plateau(const struct trainer *t)
{
    return strcmp(t->job->training.lr_scheduler_type, "reduce_lr_on_plateau") == 0;
}

bool trainer_saw_evaluation(const struct trainer *t)
{
    const struct trainer_run *r = &t->run;
    return (!has_plateau(t) || r->plateau.step == r->step) &&
           (t->job->stopping.monitor == NULL || r->stopper.step == r->step) &&
           (t->job->checkpointing.save_top_k == 0 || r->best.seen == r->step);
}

/* A place in the data, in epochs. One with rows left that no step takes is the next epoch's beginning. */
static double epochs_at(const struct trainer *t, int64_t epoch, int64_t position)
{
    const struct batch_split split = trainer_split(t);
    int64_t least = split.micro_batch * (t->job->training.partial_accumulation == PARTIAL_DROP ? split.micro_steps : 1),
            rows = trainer_rows(t);
    return rows - position < least ? (double)(epoch + 1) : (double)epoch + (double)position / (double)rows;
}

/* Has a place in the data come to another multiple of an interval, in epochs? */
static bool crosses(const struct trainer *t, double every, int64_t epoch, int64_t position, int64_t from_epoch,
                    int64_t from_position)
{
    const double slack = 1e-9; /* 0.3 / 0.1 is below 3 */
    return floor(epochs_at(t, epoch, position) / every + slack) >
           floor(epochs_at(t, from_epoch, from_position) / every + slack);
}

/* Has a step, begun or done, come to another multiple of so many epochs? */
static bool ends_epochs(const struct trainer *t, double every, int64_t step)
{
    if (every <= 0 || step == 0) {
        return false;
    }
    if (step > t->run.first_step) {
        const struct trainer_pending *p = &t->stepper.pending[(step - 1) % 2];
        return crosses(t, every, p->epoch, p->position, p->from_epoch, p->from_position);
    }
    /* where the run goes on: of that step only the size of its batch is known */
    const struct batch_split split = trainer_split(t);
    int64_t batch = split.micro_batch * split.micro_steps;
    return crosses(t, every, t->run.epoch, t->run.position, t->run.epoch, t->run.position - batch);
}

/* Epochs that are done after a step. */
static double epochs_after(const struct trainer *t, int64_t step)
{
    if (step <= t->run.first_step) {
        return epochs_at(t, t->run.epoch, t->run.position);
    }
    const struct trainer_pending *p = &t->stepper.pending[(step - 1) % 2];
    return epochs_at(t, p->epoch, p->position);
}

bool trainer_save_falls_on(const struct trainer *t, int64_t step)
{
    const struct job_checkpointing *j = &t->job->checkpointing;
    return t->files && ((j->save_every_n_steps > 0 && step > 0 && step % j->save_every_n_steps == 0) ||
                        ends_epochs(t, j->save_every_n_epochs, step));
}

int64_t trainer_save_interval(const struct trainer *t)
{
    const struct job_checkpointing *j = &t->job->checkpointing;
    const struct batch_split split = trainer_split(t);
    double steps = (double)trainer_rows(t) / (double)(split.micro_batch * split.micro_steps) * j->save_every_n_epochs;
    int64_t epochs = j->save_every_n_epochs <= 0 ? 0 : steps < 1 ? 1 : steps < 1e15 ? (int64_t)steps : (int64_t)1e15;
    int64_t every = j->save_every_n_steps;
    return every == 0 ? epochs : epochs == 0 || every < epochs ? every : epochs;
}

bool trainer_evaluation_falls_on(const struct trainer *t, int64_t step)
{
    const struct job_training *j = &t->job->training;
    if (t->feeds.val_count == 0) {
        return false;
    }
    if (step >= t->run.total_steps) {
        return true;
    }
    if (j->eval_every_n_steps > 0) {
        return step % j->eval_every_n_steps == 0 && (double)step >= j->eval_delay;
    }
    const double slack = 1e-9;
    return ends_epochs(t, j->eval_every_n_epochs, step) && epochs_after(t, step) + slack >= j->eval_delay;
}

/* A value that a monitor names; NaN: the evaluation has none. */
static double monitored(const struct trainer *t, const char *monitor, const struct trainer_evaluation *known)
{
    const char *value = NULL;
    int set = job_monitor(t->job, monitor, &value);
    if (set < 0 || set >= t->feeds.val_count) {
        return NAN;
    }
    const struct trainer_evaluation *e = &known[set];
    return strcmp(value, "loss") == 0       ? e->loss
           : strcmp(value, "pearson") == 0  ? e->pearson
           : strcmp(value, "f1_macro") == 0 ? (e->classes.classes > 0 ? e->classes.f1_macro : NAN)
           : e->classes.classes > 0         ? e->classes.accuracy
           : e->choices.items > 0           ? e->choices.accuracy
                                            : NAN;
}

/* reduce_lr_on_plateau sees an evaluation. */
static void judge_rate(struct trainer *t, const struct trainer_evaluation *known)
{
    const struct schedule_numbers *n = &t->job->training.scheduler;
    double before = t->run.schedule.plateau;
    if (!has_plateau(t) || known[0].targets == 0) {
        return;
    }
    plateau_check(&t->run.plateau, &t->run.schedule, t->run.step, monitored(t, n->monitor, known));
    t->run.schedule.plateau = plateau_share(&t->run.plateau);
    if (t->run.schedule.plateau != before) {
        double rate = t->job->training.learning_rate;
        observers_say(&t->observers, "train: step %lld: %s is no better than %.6g: learning rate %.3g -> %.3g",
                      (long long)t->run.step, n->monitor, t->run.plateau.best, before * rate,
                      t->run.schedule.plateau * rate);
    }
}

/* early_stopping sees an evaluation. */
static void judge_end(struct trainer *t, const struct trainer_evaluation *known)
{
    const struct job_stopping *j = &t->job->stopping;
    struct stopper *s = &t->run.stopper;
    enum stop_reason before = s->reason;
    if (j->monitor == NULL || t->run.step == 0) {
        return;
    }
    double value = monitored(t, j->monitor, known);
    stopper_check(s, j, t->run.step, value);
    if (before != STOP_NOT || s->reason == STOP_NOT) {
        return;
    }
    char more[96] = "";
    if (s->reason == STOP_PATIENCE) {
        if (j->compare_with_best) { /* the value may be the best */
            (void)snprintf(more, sizeof more, " by early_stopping.min_delta in %lld evaluations", (long long)s->bad);
        } else {
            (void)snprintf(more, sizeof more, " than %.6g in %lld evaluations", s->best, (long long)s->bad);
        }
    }
    observers_say(&t->observers, "train: step %lld: early stopping: %s %.6g %s%s", (long long)t->run.step, j->monitor,
                  value, reasons[s->reason], more);
    char fields[96];
    (void)snprintf(fields, sizeof fields, "\"step\": %lld, \"reason\": %d, \"round\": %d", (long long)t->run.step,
                   (int)s->reason, t->world->round);
    observers_event(&t->observers, "early_stopping", fields);
}

/* Is the checkpoint of this step one of the best? Then it is saved before the next step. */
static void judge_checkpoint(struct trainer *t, const struct trainer_evaluation *known)
{
    const struct job_checkpointing *j = &t->job->checkpointing;
    if (j->save_top_k == 0 || !t->files || t->run.step == 0) {
        return;
    }
    best_trim(&t->run.best, j->save_top_k, j->mode);
    t->run.best.seen = t->run.step;
    double value = monitored(t, j->monitor != NULL ? j->monitor : "val_loss", known);
    if (best_wants(&t->run.best, j->save_top_k, j->mode, t->run.step, value)) {
        best_add(&t->run.best, t->run.step, value);
        t->run.best_due = t->saver.saved_step != t->run.step || t->saver.elsewhere;
    }
}

void trainer_judge_evaluation(struct trainer *t, const struct trainer_evaluation *known)
{
    judge_rate(t, known);
    judge_end(t, known);
    judge_checkpoint(t, known);
}

void trainer_best_saved(struct trainer *t, int64_t step, bool saved)
{
    const struct job_checkpointing *j = &t->job->checkpointing;
    if (saved) {
        best_trim(&t->run.best, j->save_top_k, j->mode);
    } else {
        best_remove(&t->run.best, step);
    }
    t->run.best_due = false;
}

/* The minimum that nothing ends a run before. */
static bool may_end(const struct trainer *t)
{
    const struct job_training *j = &t->job->training;
    double epochs = (double)t->run.epoch + fmin(1, (double)t->run.position / (double)trainer_rows(t));
    return t->run.step >= j->min_steps && epochs >= j->min_epochs;
}

bool trainer_ends_early(struct trainer *t)
{
    bool late = (t->run.votes & VOTE_FINISH) != 0;
    if ((!late && t->run.stopper.reason == STOP_NOT) || !may_end(t) || t->run.total_steps <= t->stepper.begun) {
        return false;
    }
    if (late) {
        observers_say(&t->observers, "train: step %lld: training.max_time %s is over", (long long)t->run.step,
                      t->job->training.max_time);
    }
    t->run.total_steps = t->stepper.begun; /* steps that were begun are trained to their end */
    return true;
}

bool trainer_ended_early(const struct trainer *t)
{
    return (t->run.stopper.reason != STOP_NOT || (t->run.votes & VOTE_FINISH) != 0) && may_end(t);
}

const char *trainer_ending_key(const struct trainer *t)
{
    static const char *const keys[] = {[STOP_NOT] = "training.max_time",
                                       [STOP_NOT_FINITE] = "early_stopping.check_finite",
                                       [STOP_REACHED] = "early_stopping.stopping_threshold",
                                       [STOP_DIVERGED] = "early_stopping.divergence_threshold",
                                       [STOP_PATIENCE] = "early_stopping.patience"};
    return keys[t->run.stopper.reason];
}

void trainer_resume_stopping(struct trainer *t, const struct checkpoint_state *state)
{
    const struct job_checkpointing *j = &t->job->checkpointing;
    const double most_s = t->job->training.max_time_s;
    bool stopping = true, best = true;
    job_same_monitors(t->job, state->job, &stopping, &best);
    t->run.stopper = stopping ? state->stopper : (struct stopper){.checks = 0};
    stopper_resume(&t->run.stopper, &t->job->stopping);
    t->run.best = best ? state->best : (struct best_list){.count = 0};
    best_trim(&t->run.best, j->save_top_k, j->mode);
    t->run.trained_s = state->trained_s;
    t->run.votes |= most_s > 0 && state->trained_s >= most_s ? VOTE_FINISH : 0;
}

int trainer_try_evaluations(struct trainer *t, struct dt_error *err)
{
    int64_t most = t->job->training.num_sanity_val_steps;
    t->run.eval_limit = most < 0 ? INT64_MAX : most;
    for (int i = 0; i < t->feeds.val_count && t->run.eval_limit > 0 && !trainer_stops(t); i++) {
        struct trainer_evaluation known;
        if (trainer_evaluate(t, &t->feeds.val[i], &known, err) != 0) {
            return dt_wrap(err, "training.num_sanity_val_steps: %s", t->feeds.val[i].key);
        }
        char count[32] = "all";
        if (most > 0) {
            (void)snprintf(count, sizeof count, "%lld", (long long)most);
        }
        observers_note(&t->observers, "train: %s: %s batches tried, loss %.6g", t->feeds.val[i].key, count, known.loss);
    }
    t->run.eval_limit = 0;
    return 0;
}
