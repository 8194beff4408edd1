/* Training: one struct joins job, chain, strategy, plan, optimizer and data; trainer_run is the
 * whole life of a worker.
 *   trainer_prepare   all sizes, no memory; enough for train --plan
 *   trainer_open      memory, weights (initial, loaded or from a checkpoint)
 *   trainer_begin     puts one optimizer step in; trainer_finish: what it came to; trainer_evaluate; trainer_save
 *   trainer_run       all of it, in order */
#ifndef DT_WORKER_RUN_TRAINER_H
#define DT_WORKER_RUN_TRAINER_H

#include "worker/model/chain_walk.h"
#include "worker/checkpoints/checkpoint.h"
#include "worker/engine/step_sums.h"
#include "worker/data/data.h"
#include "worker/run/horizon.h"
#include "worker/job/job.h"
#include "worker/run/metrics.h"
#include "worker/engine/optimizer.h"
#include "worker/engine/plan.h"
#include "worker/engine/strategy.h"
#include "worker/engine/world.h"

struct trainer_micro { /* where a micro-step takes its samples */
    int64_t epoch, position;
};

struct trainer_feed { /* batches of one step: trainer_batch.c */
    struct batch *batches;
    int64_t *valid;                 /* per micro-step, as the batches say */
    int64_t count;                  /* micro-steps */
    int64_t epoch, position;        /* behind it */
    double data_s;                  /* for which it was waited */
    bool blank;                     /* no rank has a target in it: the weights stay as they are */
    int blank_rank;                 /* the first that has none in one of its micro-steps, where
                                     * others have some; -1 */
    bool full;                      /* read, and not taken yet */
    char *host, *device;            /* for each micro-step the fields of a batch; the loader
                                     * fills the host's */
    struct dt_event *copied, *used; /* on a device with memory of its own; else null */
};

struct trainer_pending { /* a step that was put in */
    double begin_s, data_s, rate;
    int64_t count, epoch, position; /* micro-steps; where the run stands behind it */
    int64_t samples;                /* horizon.samples behind it */
    int turn;                       /* of its sums */
    int blank_rank;
    bool blank, riders;
    struct dt_event *done;
};

struct trainer {
    const struct job *job;
    struct world *world; /* null until trainer_open */
    struct chain chain;
    struct strategy strategy;
    struct plan plan;
    struct optimizer optimizer;
    struct step_sums step_sums;
    struct schedule schedule;
    struct metrics metrics;
    struct data_source train, val;
    bool has_val;
    struct sampler order, val_order;
    int rank, size, shards;

    int64_t micro_steps;                                /* of a full step */
    int64_t step, epoch, position, tokens, total_steps; /* of steps whose results are known */
    int64_t blank_steps;                                /* of the steps: without any target, so
                                                         * they changed nothing */
    bool blank_rank_said;
    double rate_before;                /* what the learning rate would be now if nothing had
                                        * changed when the run went on */
    struct horizon horizon;            /* alike */
    int64_t begun, begun_samples;      /* steps that were put in, and what horizon.samples is
                                        * behind them */
    int64_t read_epoch, read_position; /* where the next step's batches come from */
    int64_t cold, cold_span;           /* for so many steps more the disk is asked for samples
                                        * before they are read; and after the next wait for it */
    int ahead;                         /* steps that may be put in while the results of one are
                                        * not known */
    struct trainer_feed feeds[2];      /* used in turn, as the steps are */
    struct trainer_pending pending[2];
    double finished_s;             /* when the last result was known */
    struct dt_stream *copy;        /* brings batches to a device with memory of its own; else
                                    * null */
    struct batch shape;            /* what a block is given that takes no fields of a batch: sizes */
    struct trainer_graphs *graphs; /* null: the device has none, or the job wants none */
    struct timeline *timeline;     /* null: not wanted */
    int64_t save_tries;            /* begun in this round, the same on all ranks: each has words
                                    * of its own in the store */
    int64_t saved_step;
    char *model_config;                /* rank 0, from trainer_keep_origin or trainer_load on:
                                        * config.json of the exported folder */
    bool saved_rewritten;              /* the checkpoint that was loaded is of a version that did
                                        * not keep config.json as it came */
    char *saved_path;                  /* of the checkpoint of saved_step; null before there is
                                        * one */
    bool stop_wanted;                  /* by any rank, known to all */
    bool eval_due;                     /* the evaluation that falls on this step was not made yet */
    bool lost;                         /* a peer, while the host ran ahead of its device, or the
                                        * device itself: nothing more is put in or saved */
    bool finished_before;              /* a finished run was found: nothing was done */
    bool inspecting;                   /* tests: opened without output folder */
    int64_t named_step;                /* rank 0: of this run's checkpoint that
                                        * checkpointing.resume names; -1: none */
    int hold;                          /* rank 0: the lock on the folder of checkpoints; -1: none */
    double context_bytes;              /* of a device with memory of its own: what was in use of
                                        * it before the plan, streams and libraries */
    double connected_bytes;            /* of that: what the communicators made when they were
                                        * connected */
    double longest_step_s, peak_flops; /* peak_flops: of one rank's device, by rank 0; NaN
                                        * unknown */
    struct pace_clock pace;
    bool pace_due;           /* a block of it is complete and travels with the next step */
    struct pace_judge judge; /* rank 0 */
    struct pace_news *pace_news;

    /* pieces of the plan, then their addresses */
    int piece_y[2], piece_branch[2], piece_gradient[2], piece_buffers, piece_scratch, piece_again, piece_loss,
        piece_batch, piece_host_batch, piece_progress;
    int *piece_kept;
    struct chain_walk walk;
    struct trainer_at { /* where in a step the walk is */
        int64_t micro_step, count;
    } at;
    double *loss_sum;  /* one per micro-step */
    int64_t *progress; /* host memory that a device with memory of its own marks (trainer_step.c) */
    int64_t marks, progress_seen;
    struct trainer_micro *micro;
    struct dt_event *done;
    struct dt_arena arena;
};

/* of one step */
struct trainer_result {
    double loss, grad_norm; /* NaN in a step without targets */
    double lr, step_s;
    int64_t valid_count, micro_steps;
    const int64_t *pace; /* times of all ranks that came with this step (pace_judge_add), until
                          * the next one; null: none did */
};

/* Tests look and act between steps; members may be null. */
struct trainer_hooks {
    void (*after_step)(struct trainer *t, const struct trainer_result *r,
                       void *context);                /* its results are known; the next step may
                                                       * be in (t->begun) */
    void (*at_end)(struct trainer *t, void *context); /* weights are final, still in memory */
    void *context;
    bool quiet, no_files; /* nothing on stderr; no output folder, no checkpoints */
};

/* Opens data, chain, strategy and plan for a rank of a world. local_size: ranks on this host.
 * type: what the device computes with, DT_F32 (the job may then want BF16), or DT_F64 for
 * twin64. own_memory: the device has memory of its own. */
int trainer_prepare(struct trainer *t, const struct job *job, int rank, int size, int local_size, enum dt_dtype type,
                    bool own_memory, struct dt_error *err);
/* Steps and schedule from where the run stands (called again after a checkpoint was loaded). */
void trainer_count(struct trainer *t);
/* How a step's batch is split on the ranks of now. */
struct batch_split trainer_split(const struct trainer *t);
/* trainer_memory.c: does the job fit? DT_NO_MEMORY with what to change. */
/* Into the host's memory, with local_size ranks. device: the one that is open, or null; of one
 * with memory of its own trainer_check_device says it. */
int trainer_check_memory(const struct trainer *t, struct dt_device *device, int local_size, struct dt_error *err);
/* One rank into a GPU of so many bytes (0 or less: not known, which fits), before anything is
 * started. */
int trainer_check_total(const struct trainer *t, double total_bytes, int local_size, struct dt_error *err);
/* Into the open device, whose libraries have taken what they take. DT_IO: it would, but others
 * hold the memory; waits a while when nobody is known to. */
int trainer_check_device(struct trainer *t, struct world *w, struct dt_error *err);
/* Bytes that this rank holds now, and what it was planned to hold: of the device where that has
 * memory of its own, with what CUDA takes for itself. */
double trainer_memory(const struct trainer *t);
double trainer_planned_bytes(const struct trainer *t);
/* Table of the plan (80 columns), or one JSON object. */
void trainer_print_plan(const struct trainer *t, const char *device, int local_size, bool json, struct dt_text *out);
/* products.c: how the device computes the job's products, the same on all ranks; before anything
 * is allocated. All ranks together. */
int trainer_products(struct trainer *t, struct world *w, struct dt_error *err);
/* Allocates everything and makes weights. The world's groups must be split for t->shards. */
int trainer_open(struct trainer *t, struct world *w, struct dt_error *err);
/* trainer_step.c: the memory of an open plan becomes that of the walk. */
void trainer_step_open(struct trainer *t);
/* Puts the next step in; on a device with memory of its own it then reads the batches of the one
 * after it. At most t->ahead + 1 steps are in at a time. */
int trainer_begin(struct trainer *t, struct dt_error *err);
/* Waits for the earliest step that is in, and counts it: step, epoch, position, tokens are as
 * behind it. */
int trainer_finish(struct trainer *t, struct trainer_result *out, struct dt_error *err);
/* The host waits for an event; meanwhile it looks at peers, orders and the clock. */
int trainer_wait(struct trainer *t, struct dt_event *event, const char *what, struct dt_error *err);
/* With no step in. Mean loss per target over data.val, every sample once; NaN where there is no
 * target. A wish to stop ends it early: t->stop_wanted, and the loss is NaN. */
int trainer_evaluate(struct trainer *t, double *loss, struct dt_error *err);
/* The host waits until both streams have run dry: weights that travel after an update have
 * arrived. */
int trainer_settle(struct trainer *t, const char *what, struct dt_error *err);
void trainer_close(struct trainer *t);
/* Why all ranks fail, before they share it: they end as soon as they know, and another's end can
 * be ours. Said by the agent, or by rank 0 for all. */
void trainer_say_cause(struct trainer *t, const struct dt_error *why);

/* trainer_batch.c: batches on their way. */
int trainer_batch_open(struct trainer *t, struct dt_error *err);
/* Nothing runs any more. Harmless without open and twice. */
void trainer_batch_close(struct trainer *t);
/* Reading goes on from where the run stands. */
void trainer_batch_restart(struct trainer *t);
/* The batches of the step that begins now, read before or now; the compute stream waits for
 * them. */
int trainer_batch_take(struct trainer *t, struct trainer_feed **out, struct dt_error *err);
/* The compute stream has read them. */
void trainer_batch_used(struct trainer *t, struct trainer_feed *f);
/* Reads the next step's. busy: what the device does meanwhile. */
int trainer_batch_prepare(struct trainer *t, struct dt_event *busy, struct dt_error *err);
/* Batch i of data.val, on the compute stream; the host waits before it asks for the next one. */
struct batch *trainer_batch_eval(struct trainer *t, int64_t i);

/* trainer_graph.c: calls of blocks as graphs. close: nothing is put in any more; harmless
 * without open and twice. */
void trainer_graph_open(struct trainer *t);
void trainer_graph_close(struct trainer *t);
/* Device memory that graphs take at most, beside the plan. */
double trainer_graph_bytes(const struct trainer *t, const struct dt_device *device);
/* Puts in what the pass asks of the block, directly or as a graph: the same kernels in the same
 * order. */
void trainer_run_block(struct trainer *t, const struct block *b, const struct pass *p);
/* A step begins: with graphs or without? How long it took, from the one before it. */
void trainer_graph_begin(struct trainer *t);
void trainer_graph_timed(struct trainer *t, int64_t step, double step_s);

/* trainer_resume.c: where a run begins, and how ranks agree outside steps. */
/* Loads the newest complete checkpoint as checkpointing.resume says; *found. All ranks load the
 * same one. */
int trainer_resume(struct trainer *t, bool *found, struct dt_error *err);
/* Waits for a key of the store, showing a pulse. */
int trainer_await(struct trainer *t, const char *key, struct dt_text *out, double timeout_s, struct dt_error *err);
/* Rank 0's text reaches all ranks; with a `failure` (null: none; only rank 0's counts) it is
 * that error on all of them. */
int trainer_share(struct trainer *t, const char *key, struct dt_text *text, const struct dt_error *failure,
                  double timeout_s, struct dt_error *err);
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
/* trainer_shared.c. All ranks: do they see rank 0's folder of checkpoints? On rank 0 *failed
 * (nothing is looked for where it is set already) and why, which is for all to share. */
int trainer_check_shared(struct trainer *t, bool *failed, struct dt_error *why, struct dt_error *err);
/* --plan: what the start would find without changing anything: -1 when the checkpoint to begin
 * from (the newest, or the one that is named) was another training's, or the named one is not
 * there or no checkpoint. Where there is one, the run stands there then (t->step,
 * t->total_steps). */
int trainer_check_folder(struct trainer *t, struct dt_error *err);
/* --plan before a start: DT_IN_USE when another job writes to the folder of checkpoints. */
int trainer_check_free(const struct job *job, struct dt_error *err);
/* Rank 0's *flag becomes everybody's. */
int trainer_agree(struct trainer *t, const char *key, bool *flag, struct dt_error *err);

/* trainer_state.c: weights and checkpoints. */
int trainer_init_weights(struct trainer *t, struct dt_error *err);
/* *changes: what of the job differs from that of the checkpoint, and was taken. */
int trainer_load(struct trainer *t, const char *path, struct job_changes *changes, struct dt_error *err);
/* All ranks together. What the disk refuses is DT_FULL (disk or quota) or DT_IO (permission,
 * error) on all of them: nothing is left of the try, the checkpoint before stays, and the run
 * may go on. */
int trainer_save(struct trainer *t, struct dt_error *err);
/* Bytes that a checkpoint takes, about. */
double trainer_checkpoint_bytes(const struct trainer *t);
/* Rank 0 says what is set aside, once per launch, and warns when the disk has no room for the
 * checkpoints that the run will keep. */
void trainer_check_disk(struct trainer *t);
/* Rank 0: writes output_dir/model from the newest checkpoint. */
int trainer_export(struct trainer *t, struct dt_error *err);
/* Rank 0: output_dir with job.json and env.json. Of a finished run they stay as they are. */
int trainer_write_folder(struct trainer *t, struct dt_error *err);

/* trainer_origin.c: config.json and the files of model.load, for the export. */
/* Rank 0, once the weights are there (found: from a checkpoint): keeps them in the folder of
 * checkpoints, and says what of them is left out or not honoured. */
int trainer_keep_origin(struct trainer *t, bool found, struct dt_error *err);
void trainer_set_config(struct trainer *t, const char *text);

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

/* trainer_pace.c: the straggler report. open: before the first step; close is harmless without
 * it. */
void trainer_pace_open(struct trainer *t);
void trainer_pace_close(struct trainer *t);
/* A step is over: where its time went, for the judge of all ranks and on the page for who asks
 * the agent. */
void trainer_pace_keep(struct trainer *t, double begin_s, double data_s, double now_s);
/* Judges the times that a step brought along (null is fine), and says on rank 0 who is slow. */
void trainer_pace(struct trainer *t, const int64_t *table);

/* The whole run; *exit_code is DT_EXIT_DONE or DT_EXIT_STOPPED when it returns 0. */
int trainer_run(struct world *w, const struct job *job, const struct trainer_hooks *hooks, int *exit_code,
                struct dt_error *err);
/* The disk refused something: DT_FULL or DT_IO. */
bool trainer_disk_refused(const struct dt_error *err);
/* The exit code that belongs to an error. */
int trainer_exit_code(const struct dt_error *err);

#endif
