/* Going on from a checkpoint with other numbers: what may differ from the job that saved it,
 * where the run stands then, and what is said of it. */
#include "worker/run/trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How the data differ from those of the checkpoint; nothing when they are the same. */
static void compare_data(const struct trainer *t, const struct checkpoint_state *state, struct dt_text *out)
{
    if (state->data_count > 0) {
        (void)data_differ(state->data, state->data_count, &t->feeds.train, out);
    } else if (state->data_hash != t->feeds.train.hash) {
        dt_text_puts(out, "not the data it was trained on");
    }
}

int trainer_check_saved(const struct trainer *t, const struct checkpoint_state *state, const char *path,
                        struct job_changes *changes, struct dt_error *err)
{
    struct dt_text data;
    dt_text_init(&data);
    compare_data(t, state, &data);
    bool known = state->job != NULL && t->job->text != NULL;
    int rc = job_compare(known ? state->job : "{}", known ? t->job->text : "{}", t->job->checkpointing.accept,
                         data.data, changes, err);
    dt_text_clear(&data);
    const char *was = state->tokenizer != NULL ? state->tokenizer : "", *is = t->feeds.train.tokenizer;
    if (rc == 0 && *was != 0 && *is != 0 && strcmp(was, is) != 0) { /* data that were accepted */
        rc = dt_fail(err, DT_INVALID,
                     "data.train: tokenizer %s, and %s when it was saved; make the data with that one, or begin anew "
                     "with --fresh or another "
                     "output_dir" JOB_WEIGHTS_ALONE,
                     is, was);
    }
    return rc == 0 ? 0 : dt_wrap(err, "%s", path);
}

void trainer_take_place(struct trainer *t, const struct checkpoint_state *state, const struct job_changes *changes)
{
    struct job_training was = t->job->training;
    job_read_training(state->job != NULL ? state->job : "{}", &t->arena, &was);
    t->run.step = state->step;
    t->run.epoch = state->epoch;
    t->run.position = state->position;
    t->run.tokens = state->tokens;
    t->run.plateau = state->plateau;
    outliers_resume(&t->stepper.outliers, &state->outliers);
    trainer_resume_stopping(t, state);
    const struct batch_split last = {was.batch_size_per_gpu * state->ranks, job_accumulation(&was, state->epoch)};
    bool known = state->horizon.of.micro_batch > 0;
    t->run.horizon = known ? state->horizon
                           : horizon_guess(&was, &last, trainer_rows(t), t->run.step, t->run.epoch, t->run.position);
    struct schedule before = horizon_schedule(&t->run.horizon, &was);
    before.plateau = plateau_share(&state->plateau);
    trainer_scale_resume(t, &state->scaler);
    t->run.rate_before = horizon_rate(&t->run.horizon, &before, t->run.horizon.samples - t->run.scaler.skipped_samples);
    for (int i = 0; i < changes->count; i++) {
        if (strcmp(changes->list[i].key, "training.partial_accumulation") == 0) {
            horizon_count_anew(&t->run.horizon, &was, &t->job->training, &last, t->run.epoch, t->run.position);
        }
        if (strcmp(changes->list[i].key, "scheduler.monitor") == 0 ||
            strcmp(changes->list[i].key, "scheduler.mode") == 0) {
            t->run.plateau.best = NAN;
        }
        if (changes->list[i].kind == JOB_KEY_DATA) { /* other samples, or another order: from
                                                      * their beginning */
            t->run.epoch = t->run.position = 0;
            t->run.horizon.base = t->run.horizon.samples;
        }
    }
    trainer_count(t);
}

struct horizon trainer_horizon(const struct trainer *t)
{
    struct horizon h = t->run.horizon;
    const struct job_training *j = &t->job->training;
    if (j->max_steps >= 0 || j->max_samples > 0) { /* should it go on by num_epochs */
        const struct batch_split now = trainer_split(t);
        h.base = horizon_base(&h, j, &now, t->run.epoch, t->run.position);
    }
    return h;
}

/* A value as JSON: a part of one is a string. */
static void put_value(struct dt_text *out, const char *key, const char *value, bool cut)
{
    dt_text_printf(out, "\"%s\": ", key);
    if (cut) {
        dt_text_json(out, value, strlen(value));
    } else {
        dt_text_puts(out, value);
    }
}

static void say_change(struct trainer *t, const struct job_change *change, const char *data)
{
    struct dt_text what, fields;
    double rate = trainer_rate(t, t->run.horizon.samples);
    dt_text_init(&what);
    dt_text_init(&fields);
    dt_text_printf(&fields, "\"key\": \"%s\", ", change->key);
    if (strcmp(change->key, JOB_DATA_KEY) == 0) {
        dt_text_printf(&what, "%s: %s,", change->key, data);
        dt_text_puts(&fields, "\"what\": ");
        dt_text_json(&fields, data, strlen(data));
    } else {
        dt_text_printf(&what, "%s %s -> %s", change->key, change->was, change->is);
        put_value(&fields, "was", change->was, change->cut);
        dt_text_puts(&fields, ", ");
        put_value(&fields, "is", change->is, change->cut);
    }
    dt_text_printf(&what, " from step %lld", (long long)t->run.step);
    dt_text_puts(&what, change->kind == JOB_KEY_DATA ? ", with the first sample" : "");
    if (rate != t->run.rate_before) {
        dt_text_printf(&what, " (learning rate %.3g -> %.3g)", t->run.rate_before, rate);
    }
    dt_text_printf(&fields, ", \"step\": %lld, \"lr_was\": %.9g, \"lr\": %.9g", (long long)t->run.step,
                   t->run.rate_before, rate);
    observers_say(&t->observers, "train: %s", dt_text_str(&what));
    if (t->run.step < t->run.total_steps) { /* of a finished run nothing changes */
        observers_event(&t->observers, "change", dt_text_str(&fields));
    }
    dt_text_clear(&fields);
    dt_text_clear(&what);
}

void trainer_say_changes(struct trainer *t, const struct job_changes *changes)
{
    const struct batch_split now = trainer_split(t), *first = &t->run.horizon.of;
    int64_t batch = now.micro_batch * now.micro_steps, first_batch = first->micro_batch * first->micro_steps;
    for (int i = 0; i < changes->count; i++) {
        say_change(t, &changes->list[i], changes->data);
    }
    if (batch != first_batch && t->run.step < t->run.total_steps) {
        observers_say(&t->observers,
                      "train: a step is %lld samples, and was %lld when the run began: it ends at step %lld, and the "
                      "learning rate follows the samples",
                      (long long)batch, (long long)first_batch, (long long)t->run.total_steps);
    }
}
