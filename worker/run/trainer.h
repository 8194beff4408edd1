/* The run around the step: trainer_run is the whole life of a worker. Weights come from a seed, a
 * Hugging Face folder or a checkpoint; trainer_save writes a checkpoint. struct trainer and the step
 * are worker/engine/trainer.h. */
#ifndef DT_WORKER_RUN_TRAINER_H
#define DT_WORKER_RUN_TRAINER_H

#include "worker/checkpoints/checkpoint.h"
#include "worker/checkpoints/snapshot.h"
#include "worker/engine/trainer.h"
#include "worker/run/observers/observer.h"

/* trainer_plans.c: how the device computes the job's products, the same on all ranks; before
 * anything is allocated. All ranks together. */
int trainer_choose_plans(struct trainer *t, struct world *w, struct dt_error *err);

/* A wait that only the end of the round ends. */
#define FOR_EVER_S 1e9

/* trainer_resume.c: where a run begins. */
/* Loads the newest complete checkpoint as checkpointing.resume says; *found. All ranks load the
 * same one. */
int trainer_resume(struct trainer *t, bool *found, struct dt_error *err);
/* True if both paths are there and lead to one file or folder. */
bool trainer_same_file(const char *a, const char *b);

/* trainer_agree.c: how ranks agree outside steps. */
/* Waits for a key of the store, showing a pulse. */
int trainer_await(struct trainer *t, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err);
/* Rank 0's text reaches all ranks; with a `failure` (null: none; only rank 0's counts) it is
 * that error on all of them. */
int trainer_share(struct trainer *t, const char *key, struct dt_text *text, const struct dt_error *failure,
                  double timeout_s, struct dt_error *err);
/* Words of a rank on another host, with which all end: the error says whose they are, so that its
 * agent, and no other, names the cause. On one host the agent hears all ranks itself. */
void trainer_mark_heard(const struct trainer *t, struct dt_error *err);
/* An error without blame is that of `rank`, which told of it; -1: of this rank. */
void trainer_name_rank(int rank, struct dt_error *err);
/* Puts words behind an error. Where there is no room for both, they stay. */
void trainer_add_words(struct dt_error *err, const char *words);
/* The error is that of a rank on another host. */
bool trainer_only_heard(const struct dt_error *err);
/* What a rank says to rank 0, which never begins with '!' by itself: a failure, and its reading:
 * 0 or -1 with the error. */
void trainer_tell_failure(struct dt_text *text, const struct dt_error *failure);
int trainer_hear(const char *said, struct dt_error *err);
/* Rank 0 hears what all ranks say under KEY/RANK: 0, or -1 with the first complaint; *who
 * complains. */
int trainer_hear_all(struct trainer *t, const char *key, const struct dt_text *own, int *who, struct dt_error *err);
/* Rank 0 says why all fail: because of this rank. */
void trainer_say_for(struct trainer *t, int who, struct dt_error *why);

/* trainer_shared.c. All ranks: do they see rank 0's folder of checkpoints? On rank 0 *failed
 * (nothing is looked for where it is set already) and why, which is for all to share. */
int trainer_check_shared(struct trainer *t, bool *failed, struct dt_error *why, struct dt_error *err);
/* All ranks, before they share memory: have they the job, the data and the program of rank 0? DT_USAGE on those that
 * have not, with what differs. */
int trainer_check_jobs(struct trainer *t, struct dt_error *err);
/* --plan: what the start would find without changing anything: -1 when the checkpoint to begin
 * from (the newest, or the one that is named) was another training's, or the named one is not
 * there or no checkpoint. Where there is one, the run stands there then (t->run.step,
 * t->run.total_steps). */
int trainer_check_folder(struct trainer *t, struct dt_error *err);
/* --plan before a start: DT_IN_USE when another job writes to the folder of checkpoints, or to output_dir. */
int trainer_check_free(const struct job *job, struct dt_error *err);
/* Rank 0's *flag becomes everybody's. */
int trainer_agree(struct trainer *t, const char *key, bool *flag, struct dt_error *err);

/* For checkpoint_progress: shows a pulse on the page. */
static inline void trainer_pulse(void *page)
{
    dt_page_pulse(page);
}
/* trainer_weights.c: where weights come from. */
int trainer_init_weights(struct trainer *t, struct dt_error *err);
/* Rank 0, before anything of an earlier run is set aside: the files of model.load have the model's tensors. */
int trainer_check_weights(const struct trainer *t, struct dt_error *err);
/* Where a loss is not finite: true if the run has made no step and began with weights of model.load that are
 * not finite; then `err` says so, and keeps its blame. */
bool trainer_began_broken(const struct trainer *t, struct dt_error *err);
/* *changes: what of the job differs from that of the checkpoint, and was taken. */
int trainer_load(struct trainer *t, const char *path, struct job_changes *changes, struct dt_error *err);
/* Elements [*first, *first + *count) of a unit from which this rank can go on: those that its optimizer updates,
 * and of what is frozen all that is resident. Unit -1, the buffers: nothing is changed. */
void trainer_kept_range(struct trainer *t, int unit, int64_t *first, int64_t *count);
/* Weights, buffers and the optimizer's state alone, of a checkpoint of this run. *samples: horizon.samples there. */
int trainer_load_state(struct trainer *t, const char *path, int64_t *samples, struct dt_error *err);
/* DT_INVALID, with the key and both values, if the job's model is not that of the checkpoint. */
int trainer_check_model(const struct job *job, const char *path, struct dt_error *err);
/* The weights of a checkpoint alone, into a model whose tensors have the same names and shapes; the run's
 * step is the checkpoint's. */
int trainer_load_weights(struct trainer *t, const char *path, struct dt_error *err);
/* trainer_save.c: checkpoints. All ranks together. What the disk refuses is DT_FULL (disk or quota) or DT_IO (permission,
 * error) on all of them: nothing is left of the try, the checkpoint before stays, and the run
 * may go on. */
int trainer_save(struct trainer *t, struct dt_error *err);
/* trainer_rollback.c: goes back to the last checkpoint, as t->run.goes_back wants it, with no step in and no save
 * under way. All ranks together. */
int trainer_roll_back(struct trainer *t, struct dt_error *err);
/* trainer_replicas.c: do all ranks that should have the same weights and optimizer state have them? With no
 * step in; all ranks together. DT_IO, with the blame on the rank that differs, names step and tensor.
 * Nothing is compared where no two ranks hold the same. */
int trainer_check_replicas(struct trainer *t, struct dt_error *err);
/* trainer_save_beside.c: saves beside training. After trainer_prepare: memory for the copy, if the job wants
 * such saves. */
void trainer_plan_saves(struct trainer *t);
/* Copies what this rank saves, and starts to write it. None may be under way (t->saver.beside). */
int trainer_save_begin(struct trainer *t, struct dt_error *err);
/* The save under way is still being written, as far as this rank knows. */
bool trainer_save_runs(const struct trainer *t);
/* The step that it saves. */
int64_t trainer_save_step(const struct trainer *t);
/* Waits until the save under way is over: as trainer_save, whose errors these are. */
int trainer_save_end(struct trainer *t, struct dt_error *err);
/* trainer_saves.c: saves as the loop asks for them. What the disk refuses costs a warning. */
/* Saves the state after the run's step, or begins to, as the job says. last: the run ends here; it is tried twice, and
 * what the disk refuses ends the run. All ranks together. */
int trainer_save_due(struct trainer *t, bool last, struct dt_error *err);
/* The save beside training, if there is one: waits for its end, or looks whether it is over. */
int trainer_end_save(struct trainer *t, bool wait, struct dt_error *err);
/* trainer_snapshot.c: the state in memory that outlives this worker, if the job wants that. */
/* After trainer_prepare: counts the memory that they take beside the plan. */
void trainer_plan_snapshots(struct trainer *t);
void trainer_open_snapshots(struct trainer *t);
void trainer_close_snapshots(struct trainer *t);
bool trainer_snapshot_falls_on(const struct trainer *t, int64_t step);
/* Makes one of the state as it is now. Memory that is not to be had costs a warning. */
int trainer_snapshot(struct trainer *t, struct dt_error *err);
/* trainer_peers.c: going on from snapshots. */
struct saved_snapshot { /* what a path stands for that is one */
    struct snapshot_id id;
    int64_t file_step; /* of the newest checkpoint on disk; -1: none */
    int root;          /* the first of the ranks that send it to those that lack it; -1: all have it */
};
/* Before rank 0 proposes: each rank says from which it could go on. */
int trainer_offer_snapshots(struct trainer *t, struct dt_error *err);
/* Rank 0: appends what stands for the newest one that serves all ranks, where it is no older than file_step, the
 * step of the newest checkpoint. */
int trainer_propose_snapshot(struct trainer *t, int64_t file_step, struct dt_text *out, struct dt_error *err);
/* Does a path stand for a snapshot? */
bool trainer_is_snapshot(const char *path, struct saved_snapshot *out);
/* This rank's host has of it what the rank needs. */
bool trainer_has_snapshot(const struct trainer *t, const struct saved_snapshot *x);
/* Opens it, and compares this rank's part of the checksums. */
int trainer_check_snapshot(struct trainer *t, const struct saved_snapshot *x, struct dt_error *err);
/* All ranks, once each has checked it. *data: what this rank's host has of it; null: nothing. *state: the state
 * that all ranks take; it may be the same. */
int trainer_open_snapshot(struct trainer *t, const struct saved_snapshot *x, struct checkpoint **data,
                          struct checkpoint **state, struct dt_error *err);
/* Once all ranks have read what they have of it: those that lack it get it, and weights reach those that compute
 * with them. All ranks together. */
int trainer_spread_snapshot(struct trainer *t, const char *path, struct dt_error *err);
/* The run goes on from `path`, null: anew: other snapshots are left behind. */
void trainer_keep_snapshot(struct trainer *t, const char *path);
/* trainer_stopping.c: when a run is evaluated, and ends. */
bool trainer_evaluation_falls_on(const struct trainer *t, int64_t step);
/* The same of checkpoints, by steps or epochs. */
bool trainer_save_falls_on(const struct trainer *t, int64_t step);
/* Steps between checkpoints, about, where epochs say it; 0: the end alone saves. */
int64_t trainer_save_interval(const struct trainer *t);
/* The rate, the end and the best checkpoints, which depend on evaluations, have seen that of the run's step. */
bool trainer_saw_evaluation(const struct trainer *t);
/* The evaluations of all sets of data.val, after the run's step. */
void trainer_judge_evaluation(struct trainer *t, const struct trainer_evaluation *known);
/* The save of a step is over: one of the best checkpoints is there, or is not. */
void trainer_best_saved(struct trainer *t, int64_t step, bool saved);
/* True once: the run ends now. t->run.total_steps is then the last step that was begun. */
bool trainer_ends_early(struct trainer *t);
/* The run has been ended so, whatever its number of steps is. */
bool trainer_ended_early(const struct trainer *t);
/* The key that has ended it. */
const char *trainer_ending_key(const struct trainer *t);
/* Takes what a checkpoint says of all that. */
void trainer_resume_stopping(struct trainer *t, const struct checkpoint_state *state);
/* training.num_sanity_val_steps: evaluates a little of each set, for nothing but errors. */
int trainer_try_evaluations(struct trainer *t, struct dt_error *err);
/* trainer_output.c: the disk. Bytes that a checkpoint takes, about. */
double trainer_checkpoint_bytes(const struct trainer *t);
/* Rank 0 says what is set aside, once per launch, and warns when the disk has no room for the
 * checkpoints that the run will keep. */
void trainer_check_disk(struct trainer *t);
/* Rank 0: writes output_dir/model from the newest checkpoint. */
int trainer_export(struct trainer *t, struct dt_error *err);
/* Rank 0: output_dir with job.json and env.json. Of a finished run they stay as they are. */
int trainer_write_folder(struct trainer *t, struct dt_error *err);

/* trainer_samples.c: samples during training, if the job wants them; else all four do nothing. */
/* Behind trainer_prepare: adds their memory to the plan. DT_INVALID: the model writes no text, or there is
 * no prompt that it could continue. */
int trainer_plan_samples(struct trainer *t, struct dt_error *err);
/* Behind trainer_open. */
int trainer_open_samples(struct trainer *t, struct dt_error *err);
/* All ranks, with no step in: rank 0 makes samples from the weights as they are, and reports them. */
int trainer_sample(struct trainer *t, struct dt_error *err);
/* Before trainer_close. */
void trainer_close_samples(struct trainer *t);

/* trainer_origin.c: config.json and the files of model.load, for the export. */
/* Rank 0, once the weights are there (found: from a checkpoint): keeps them in the folder of
 * checkpoints, and says what of them is left out or not honoured. */
int trainer_keep_origin(struct trainer *t, bool found, struct dt_error *err);
void trainer_set_config(struct trainer *t, const char *text);
/* The id that ends the documents of data.train, where a model from the beginning predicts next tokens and the
 * data say it; otherwise -1. Its config.json has it as eos_token_id. */
int64_t trainer_document_end(const struct trainer *t);
/* All ranks, where rank 0's host may be lost and a snapshot of others taken: they know its config.json, too. */
int trainer_share_config(struct trainer *t, struct dt_error *err);

/* trainer_continue.c: going on with other numbers. */
/* DT_INVALID when a checkpoint is of another job or other data, and checkpointing.accept does
 * not name what differs; otherwise *changes is what does. */
int trainer_check_saved(const struct trainer *t, const struct checkpoint_state *state, const char *path,
                        struct job_changes *changes, struct dt_error *err);
/* The run stands where the checkpoint says, and counts from there. */
void trainer_take_place(struct trainer *t, const struct checkpoint_state *state, const struct job_changes *changes);
/* What a checkpoint keeps of it. */
struct horizon trainer_horizon(const struct trainer *t);
/* A line and an event for each of the changes, and a line when a step has another batch than
 * when the run began. */
void trainer_say_changes(struct trainer *t, const struct job_changes *changes);

/* Says why all ranks fail, before they share it: each rank ends as soon as it knows, and its end may
 * end the others. The agent says it, or rank 0 for all. */
void trainer_say_cause(struct trainer *t, const struct dt_error *why);
/* The whole run, or one evaluation (options->evaluate); *exit_code is DT_EXIT_DONE or DT_EXIT_STOPPED when it
 * returns 0. options may be null. */
int trainer_run(struct world *w, const struct job *job, const struct observers_options *options, int *exit_code,
                struct dt_error *err);
/* Tells the observers where the run stands: for moments that need no more. */
void trainer_report(struct trainer *t, enum moment moment);
/* The disk refused something: DT_FULL or DT_IO. */
bool trainer_disk_refused(const struct dt_error *err);
/* The exit code that belongs to an error. */
int trainer_exit_code(const struct dt_error *err);

#endif
