/* Saves as the loop asks for them: at once or beside training, and what comes of one that the disk refuses. */
#include "worker/run/trainer.h"

#include "base/clock.h"
#include "base/file.h"

#include <stdio.h>

#define SECOND_TRY_S 1.0
#define TOLD_S 60.0 /* all ranks learn at about the same time that the last save failed */

/* "reason; needs 1.2 GiB, 0.3 GiB free there" */
static void add_room(struct trainer *t, struct dt_error *err)
{
    char need[32], left[32] = "an unknown number of bytes";
    /* after the try was removed */
    double free_bytes = dt_file_free_bytes(t->job->checkpointing.checkpoint_dir);
    dt_text_bytes(trainer_checkpoint_bytes(t), need, sizeof need);
    if (free_bytes >= 0) {
        dt_text_bytes(free_bytes, left, sizeof left);
    }
    char words[128];
    (void)snprintf(words, sizeof words, "; needs %s, %s free there", need, left);
    trainer_add_words(err, words);
}

void trainer_say_cause(struct trainer *t, const struct dt_error *why)
{
    char words[DT_WORDS_BYTES];
    (world_tell_cause(t->world, why) ? observers_note : observers_say)(&t->observers, "train: %s",
                                                                       dt_error_words(why, words));
    t->world->told = true;
}

/* The save of a step has ended, with rc. What the disk refuses costs a warning, and training goes on to the next
 * interval; after the last save there is none, so the run ends as one that fails the same way again: the
 * checkpoint before, of step `before`, is where it continues. */
static int save_ended(struct trainer *t, int rc, int64_t step, bool last, int64_t before, struct dt_error *err)
{
    char cause[DT_WORDS_BYTES];
    trainer_report(t, MOMENT_SAVE_OVER);
    trainer_best_saved(t, step, rc == 0);
    if (rc == 0 || t->lost || !trainer_disk_refused(err)) {
        return rc;
    }
    char fields[96];
    snprintf(fields, sizeof fields, "\"step\": %lld, \"round\": %d", (long long)t->run.step, t->world->round);
    observers_event(&t->observers, "save_failed", fields);
    if (err->status == DT_FULL) { /* in what else a disk refuses, its size plays no part */
        add_room(t, err);
    }
    if (!last) {
        observers_say(&t->observers, "train: warning: %s; training goes on, the next try is at the next interval",
                      dt_error_words(err, cause));
        return 0;
    }
    char words[128] = "; put that right, and the same command continues from the beginning";
    if (before >= 0) {
        snprintf(words, sizeof words, "; put that right, and the same command continues at step %lld",
                 (long long)before);
    }
    trainer_add_words(err, words);
    err->status = DT_INVALID;
    trainer_say_cause(t, err); /* all ranks know */
    struct dt_text said;
    dt_text_init(&said);
    (void)trainer_share(t, "train/told", &said, NULL, TOLD_S,
                        &(struct dt_error){0}); /* fails when the end of rank 0 was seen first:
                                                 * it has said it */
    dt_text_clear(&said);
    return -1;
}

int trainer_end_save(struct trainer *t, bool wait, struct dt_error *err)
{
    if (t->saver.beside == NULL || (!wait && trainer_save_runs(t))) {
        return 0;
    }
    int64_t step = trainer_save_step(t);
    return save_ended(t, trainer_save_end(t, err), step, false, t->saver.saved_step, err);
}

/* Begins a save beside training. One that is still being written is waited for, or keeps this one from
 * being made, if it is none of the best: as rank 0 sees it, which is the last to know that it is over. */
static int save_beside(struct trainer *t, struct dt_error *err)
{
    bool busy = trainer_save_runs(t), skips = t->job->checkpointing.skips && !t->run.best_due;
    char key[64];
    int rc = 0;
    trainer_report(t, MOMENT_SAVING);
    (void)snprintf(key, sizeof key, "train/saving/%lld", (long long)t->run.step);
    if (skips && t->saver.tries > 0 && trainer_agree(t, key, &busy, err) != 0) {
        return -1;
    }
    if (skips && busy) {
        observers_say(&t->observers, "train: step %lld is not saved: the save before it is still being written",
                      (long long)t->run.step);
    } else {
        t->run.best_due = false;
        rc = trainer_end_save(t, true, err) != 0 ? -1 : trainer_save_begin(t, err);
    }
    trainer_report(t, MOMENT_SAVE_OVER);
    return rc;
}

int trainer_save_due(struct trainer *t, bool last, struct dt_error *err)
{
    char cause[DT_WORDS_BYTES];
    if (!last && t->job->checkpointing.beside) {
        return save_beside(t, err);
    }
    trainer_report(t, MOMENT_SAVING);
    int64_t before = t->saver.saved_step;
    int rc = trainer_save(t, err);
    if (rc != 0 && !t->lost && trainer_disk_refused(err) && last) {
        observers_note(&t->observers, "train: %s; trying once more", dt_error_words(err, cause));
        dt_sleep_s(SECOND_TRY_S);
        rc = trainer_save(t, err);
    }
    return save_ended(t, rc, t->run.step, last, before, err);
}

bool trainer_disk_refused(const struct dt_error *err)
{
    return err->status == DT_FULL || err->status == DT_IO;
}
