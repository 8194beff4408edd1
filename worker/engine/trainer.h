/* struct trainer joins what is trained (chain, strategy, optimizer) with five parts: the run, feeds,
 * memory, stepper, saver. The run around the step is worker/run/trainer.h.
 *   trainer_prepare   all sizes, no memory; enough for train --plan
 *   trainer_open      all memory
 *   trainer_begin     enqueues one optimizer step; trainer_finish: its results; trainer_evaluate */
#ifndef DT_WORKER_ENGINE_TRAINER_H
#define DT_WORKER_ENGINE_TRAINER_H

#include "worker/data/data.h"
#include "worker/engine/choice_scores.h"
#include "worker/engine/class_counts.h"
#include "worker/engine/horizon.h"
#include "worker/engine/number_sums.h"
#include "worker/engine/optimizer.h"
#include "worker/engine/pace.h"
#include "worker/engine/plan.h"
#include "worker/engine/schedules/plateau.h"
#include "worker/engine/report.h"
#include "worker/engine/scaler.h"
#include "worker/engine/outliers.h"
#include "worker/engine/step_sums.h"
#include "worker/engine/stopping.h"
#include "worker/engine/strategy.h"
#include "worker/engine/world.h"
#include "worker/job/job.h"
#include "worker/model/chain_walk.h"

/* The run's place: steps whose results are known, and the last step. trainer.c */
struct trainer_run {
    int64_t step, epoch, position, tokens, total_steps;
    int64_t blank_steps; /* of the steps: without any target, so they changed nothing */
    int64_t rollbacks;   /* of this round */
    bool goes_back;      /* the last step that was begun stood out: weights and state become the last checkpoint's */
    bool blank_rank_said;
    int64_t replicas_step; /* the last one at which replicas were compared in this round */
    /* The learning rate as it would be now if nothing had changed when the run went on. */
    double rate_before;
    struct horizon horizon;
    struct schedule schedule;
    struct scaler_state scaler; /* counts if the strategy's precision has a scaler */
    struct plateau plateau;     /* of reduce_lr_on_plateau */
    struct stopper stopper;     /* of early_stopping */
    struct best_list best;      /* of checkpointing.save_top_k */
    bool best_due;              /* the checkpoint of this step is one of them, and was not saved yet */
    double trained_s, begin_s;  /* seconds of training before this start; when it began, 0: not yet */
    int64_t first_step;         /* where this start began */
    int64_t eval_limit;         /* batches of an evaluation; 0: as the job says */
    /* enum vote: of any rank, known to all, not acted upon yet. VOTE_STOP and VOTE_FINISH stay. */
    unsigned votes;
    bool eval_due;        /* the evaluation of this step was not made yet */
    bool said_not_finite; /* of an evaluation: its loss was not finite, and a line said so */
    bool finished_before; /* a finished run was found: nothing was done */
    double peak_flops;    /* of one rank's device, by rank 0; NaN: unknown */
};

/* The batches of one step in host memory. SLOT_EMPTY: the loader may read into it; SLOT_FULL: it has;
 * SLOT_TAKEN: the step copies from it. */
struct trainer_slot {
    char *host;                        /* for each micro-step the fields of a batch */
    int64_t *valid, *length;           /* per micro-step, as the batches say */
    int64_t step, count;               /* which one; its micro-steps */
    int64_t from_epoch, from_position; /* where its data begin */
    int64_t epoch, position;           /* where the data go on behind it */
    int64_t active;                    /* micro-batches of all ranks that have a sample */
    bool blank;                        /* no rank has a target in it: the weights stay as they are */
    int blank_rank; /* the first rank that has no target in one of its micro-steps, where others have some; -1: none */
    enum { SLOT_EMPTY, SLOT_FULL, SLOT_TAKEN } state;
};
struct trainer_loader; /* trainer_loader.c */

struct trainer_feed { /* the batches of one step */
    struct batch *batches;
    int64_t *valid;          /* per micro-step, as the batches say */
    int64_t count;           /* micro-steps */
    int64_t epoch, position; /* where the data go on behind the step */
    double data_s;           /* how long the step waited for them */
    int64_t active;          /* as struct trainer_slot */
    bool blank;              /* as struct trainer_slot */
    int blank_rank;
    bool full;                      /* copied, and not taken yet */
    char *device;                   /* for each micro-step the fields of a batch */
    struct dt_event *copied, *used; /* used: null where the host's memory is the device's */
};

/* A set of data.val. */
struct trainer_val {
    const char *name; /* null: data.val is one set without a name */
    const char *key;  /* "data.val" or "data.val.NAME", for messages */
    struct data_source data;
    struct sampler order;
    struct text_bytes *bytes;     /* null until the first evaluation */
    int64_t text_bytes;           /* of the targets of this rank that were evaluated */
    struct choice_scores choices; /* of multiple choice; otherwise zeroed */
    double *f1;                   /* of each class of a model that names classes */
};

/* Samples, and batches on their way to the device. trainer_batch.c */
struct trainer_feeds {
    struct data_source train;
    struct sampler order;
    int val_count;
    struct trainer_val *val;
    struct trainer_loader *loader; /* null until the plan is open */
    struct trainer_feed feed[2];   /* used alternately, as the steps are */
    struct dt_stream *copy;        /* to a device with memory of its own; else null */
};

/* The plan, and which of its pieces are whose. trainer_open.c, trainer_memory.c */
struct trainer_memory {
    struct plan plan;
    int *kept; /* per block */
    int y[2], branch[2], gradient[2], buffers, buffers_before, scratch, again, loss, batch, host_batch, progress,
        eval_host, eval_rows, order, copy; /* copy: of what this rank saves beside training */
    int numbers;                           /* -1: the model drops nothing */
    /* bytes of PLAN_STAGING that rank 0 alone has, for samples */
    size_t samples_bytes;
    double snapshot_bytes; /* of host memory beside the plan: this rank's snapshots */
    /* This rank's share of a device with memory of its own; 0: the device computes in the host's;
     * infinite: not known. */
    double device_bytes;
    /* Planned bytes of the level before the chosen one, which did not fit; 0: there is none. */
    double above_bytes;
    bool level_chosen;
    /* What was in use before the plan: of a device with memory of its own by streams and libraries,
     * and of that what the communicators took when they were connected; otherwise by this process. */
    double context_bytes, connected_bytes;
    /* The last answer of trainer_memory_now, the step after which it was asked for, and how often. */
    double seen_bytes;
    int64_t seen_step;
    int seen_times;
};

/* Activations that rest outside of the device's memory. trainer_activations.c */
struct trainer_activations {
    struct home home; /* ops null: they lie in the plan */
    struct home_settings settings;
    size_t *at;  /* of each block, in the home */
    bool *here;  /* per block: it was brought */
    void **kept; /* the walk's */
    int held;    /* a block of forward that stays until the next one is over; -1: none */
};

struct trainer_pending { /* a step that was enqueued */
    double begin_s, data_s, rate, computed;
    int64_t number;                 /* of the step, from 1 on */
    int64_t count, epoch, position; /* micro-steps; where the run stands behind it */
    int64_t from_epoch, from_position;
    int64_t samples;   /* horizon.samples behind it */
    double loss_scale; /* of run.scaler; 1: none */
    int turn;          /* of its sums */
    int blank_rank;
    bool blank, riders;
    bool skipped; /* an outlier: it is not applied */
    struct dt_event *done;
};

/* Steps under way. trainer_step.c, trainer_graph.c */
struct trainer_stepper {
    int64_t begun, begun_samples; /* steps that were enqueued, and what horizon.samples is behind them */
    int ahead;                    /* steps that may be enqueued while the results of one are not known */
    struct trainer_pending pending[2];
    double finished_s; /* when the last result was known */
    struct chain_walk walk;
    /* sizes, weight and the samples' numbers, for a block that takes no fields of a batch */
    struct batch shape;
    struct pass_peers peers; /* where batch norms of all ranks have their statistics together */
    struct trainer_at {      /* where in a step the walk is */
        int64_t micro_step, count;
    } at;
    double *loss_sum;            /* one per micro-step */
    struct class_counts classes; /* of a model that names classes, with data.val; otherwise zeroed */
    struct number_sums numbers;  /* of a model that gives numbers */
    int64_t *progress;           /* host memory that a device with memory of its own marks */
    int64_t marks, progress_seen;
    struct dt_event *done;
    struct trainer_graphs *graphs; /* null: the device has none, or the job wants none */
    struct timeline *timeline;     /* null: not wanted */
    struct outliers outliers;      /* window 0: no step is judged */
    struct pace_clock pace;
    int64_t met, met_whole; /* local SGD: after which step weights were averaged; and the optimizer's state */
    bool pace_due;          /* a block of the clock is complete and travels with the next step */
    _Atomic bool copying;   /* a save copies what updates change: the next update waits for its end */
    double copy_wait_s;     /* for how long it did */
};

/* Checkpoints. trainer_save.c, trainer_resume.c, trainer_origin.c */
struct trainer_saver {
    /* Saves that were begun in this round, the same on all ranks: each has keys of its own in the
     * store. */
    int64_t tries;
    int64_t saved_step; /* of the newest checkpoint; -1: there is none */
    char *saved_path;   /* where it is; null: there is none */
    bool elsewhere;     /* it is of another folder than this run's, as rank 0 sees it; where save_top_k is above 0 */
    /* The checkpoint that was loaded is of a version that did not keep config.json as it came. */
    bool rewritten;
    /* Rank 0, from trainer_keep_origin or trainer_load on: config.json of the exported folder. */
    char *model_config;
    /* Rank 0: the step of this run's checkpoint that checkpointing.resume names; -1: none. */
    int64_t named_step;
    struct save_beside *beside;   /* the save that goes on beside training; null: none does */
    struct snapshots *snapshots;  /* null: the job wants none, or nothing here would keep them */
    struct checkpoint *opened;    /* the snapshot that is gone on from, once it was checked; null */
    struct snapshot_offer *offer; /* those from which this rank could go on; null until all ranks are asked */
    int hold;                     /* rank 0: the lock on the folder of checkpoints; -1: none */
    int hold_output;              /* the same on output_dir, where the checkpoints lie elsewhere */
};

struct trainer_samples; /* worker/run/trainer_samples.c */

struct trainer {
    const struct job *job;
    struct world *world; /* null until trainer_open */
    int rank, size, shards;
    int local_rank, local_size; /* of this host; local_rank is 0 where there is only a plan */
    int64_t micro_steps;        /* of a full step */
    bool files;                 /* output folder and checkpoints as in a real run */
    /* A peer was lost while the host ran ahead of its device, or the device itself: nothing more is
     * enqueued or saved. */
    bool lost;
    struct chain chain;
    struct strategy strategy;
    struct optimizer optimizer;
    struct step_sums step_sums;
    struct observers observers;
    struct trainer_run run;
    struct trainer_feeds feeds;
    struct trainer_memory memory;
    struct trainer_activations activations;
    struct trainer_stepper stepper;
    struct trainer_saver saver;
    struct trainer_samples *samples; /* null: the job wants none */
    struct dt_arena arena;
};

struct trainer_evaluation { /* of all samples of a set, each once */
    double loss;            /* NaN: the set has no target */
    int64_t targets;
    int64_t text_bytes;           /* of the targets; 0: unknown */
    double pearson;               /* NaN: the model gives no numbers, or they do not vary */
    struct class_report classes;  /* classes 0: the model names none. f1 is good until the set's next one */
    struct choice_report choices; /* items 0: the set is no multiple choice */
};

/* of one step */
struct trainer_result {
    double loss, grad_norm; /* NaN in a step without targets */
    bool not_finite;        /* trainer_finish fails for that: the loss or the gradient */
    double loss_scale;      /* that the step was computed with; 1: none */
    double lr, step_s;
    int64_t valid_count, micro_steps;
    double computed;     /* share of the positions of full batches that this rank's had */
    double data_wait_s;  /* how long this rank's step waited for its batches */
    const int64_t *pace; /* times of all ranks that came with this step (pace_judge_add), until
                          * the next one; null: none did */
};

/* A rank of the job wishes to stop: nothing new begins, and the run ends with a save. */
static inline bool trainer_stops(const struct trainer *t)
{
    return (t->run.votes & VOTE_STOP) != 0;
}

/* Opens data, chain, strategy and plan for a rank of a world. local_size: ranks on this host.
 * type: what the device computes with, DT_F32 (the job may then want BF16), or DT_F64 for
 * twin64. device_bytes: as in struct trainer_memory; all ranks give the same, as the level of
 * activation_checkpointing may follow from it. */
int trainer_prepare(struct trainer *t, const struct job *job, int rank, int size, int local_size, enum dt_dtype type,
                    double device_bytes, struct dt_error *err);
/* trainer_memory.c: a level that was chosen by the GPU's memory, and why; nothing of another. */
void trainer_level_words(const struct trainer *t, struct dt_text *out);
const char *trainer_level_name(const struct trainer *t, char name[16]);
/* Does the plan leave of the GPU what a level needs to be chosen? */
bool trainer_level_fits(const struct trainer *t);
/* Bytes of the plan on the device. */
double trainer_device_bytes(const struct trainer *t);
/* Steps and schedule from where the run stands (called again after a checkpoint was loaded). */
void trainer_count(struct trainer *t);
/* Samples of an epoch as steps count them: with training.uneven_inputs join those that are missing in the last
 * batch are among them. */
int64_t trainer_rows(const struct trainer *t);
/* Tells the order of samples how many of an epoch are used, and evaluations as many of theirs; the run's horizon
 * is known. */
void trainer_limit_epochs(struct trainer *t);
/* trainer_checks.c. DT_INVALID: batches of all ranks need more samples than data.train has, or
 * training.uneven_inputs does not go with data or model. */
int trainer_check_samples(const struct trainer *t, struct dt_error *err);
/* DT_INVALID: what looks at a value of evaluations names one that they do not have. */
int trainer_check_monitors(const struct trainer *t, struct dt_error *err);
/* DT_INVALID: the batches of an epoch that training.limit_train_batches or overfit_batches leaves are none, or no
 * step. */
int trainer_check_limit(const struct trainer *t, struct dt_error *err);
/* The split of a step's batch among the ranks of this round. */
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
/* Bytes that this rank holds, asked for a few steps ago at most: the driver takes a lock to say it. */
double trainer_memory_now(struct trainer *t);
/* Bytes that so many ranks with this plan take together where nothing but the host has memory. */
double trainer_host_bytes(const struct trainer *t, int ranks);
double trainer_planned_bytes(const struct trainer *t);
/* Table of the plan (80 columns), or one JSON object. */
void trainer_print_plan(const struct trainer *t, const char *device, int local_size, bool json, struct dt_text *out);
/* Allocates everything and makes weights. The world's groups must be split for t->shards. */
int trainer_open(struct trainer *t, struct world *w, struct dt_error *err);
/* trainer_activations.c: plans what blocks keep; open and close as homes do. bring: before the passes of a block are
 * made (walk_hooks.keep); back: after each pass. */
void activations_plan(struct trainer *t);
int activations_open(struct trainer *t, struct dt_error *err);
void activations_close(struct trainer *t);
void activations_bring(struct trainer *t, const struct block *b, enum pass_phase phase);
void activations_back(struct trainer *t, const struct block *b, enum pass_phase phase);
bool activations_rest(const struct trainer *t);
/* trainer_step.c: the memory of an open plan becomes that of the walk. */
void trainer_step_open(struct trainer *t);
/* Bytes of the buffers (running statistics) as they were before a step that may be skipped; 0: no step is. */
size_t trainer_buffers_before(const struct trainer *t);
/* Puts the next step in; on a device with memory of its own it then reads the batches of the one
 * after it. At most t->stepper.ahead + 1 steps are in at a time. */
int trainer_begin(struct trainer *t, struct dt_error *err);
/* Enqueues the work of one optimizer step over these batches, and nothing around it. */
void trainer_enqueue(struct trainer *t, struct trainer_feed *f, struct trainer_pending *p);
/* trainer_outliers.c: the gradients and sums of a step are in, and its update is not: does it stand out?
 * Then it is skipped; -1: or it ends the run. */
int trainer_judge(struct trainer *t, struct trainer_pending *p, struct dt_error *err);
/* Waits for the earliest step that is in, and counts it: step, epoch, position, tokens are as
 * behind it. */
int trainer_finish(struct trainer *t, struct trainer_result *out, struct dt_error *err);
/* trainer_scale.c: the loss scale of F16. The scale of the next step, 1 where there is none; and by what the
 * gradients that it gives are too large, with that scale and so many micro-steps. */
double trainer_scale(const struct trainer *t);
double trainer_gradient_scale(const struct trainer *t, double loss_scale, int64_t micro_steps);
/* The learning rate of the next step: skipped steps do not advance the schedule. */
double trainer_rate(const struct trainer *t, int64_t samples);
/* The run goes on from a checkpoint, which need not have a scale. */
void trainer_scale_resume(struct trainer *t, const struct scaler_state *saved);
/* After a step, with the verdict of all ranks. DT_INVALID: the scale is at its least. */
int trainer_scale_judge(struct trainer *t, const struct trainer_pending *p, bool overflow, struct dt_error *err);
/* With no step in: of strategies whose ranks go apart (hooks/local_sgd.c), weights and the optimizer's state
 * become the mean of all ranks' ones, as whoever looks at the model needs it. */
void trainer_meet(struct trainer *t);
/* trainer_finite.c: fails with DT_INVALID on all ranks, for a step that gave a gradient that is not finite; names
 * the tensors, and blames the first rank that holds one. what: more of the cause. */
int trainer_gradient_broken(struct trainer *t, const char *what, const char *advice, struct dt_error *err);
/* The host waits for an event; meanwhile it looks at peers, orders and the clock. */
int trainer_wait(struct trainer *t, struct dt_event *event, const char *what, struct dt_error *err);
/* Waits on the host while a save copies weights and the optimizer's state (stepper.copying). Whoever enqueues work that
 * changes them calls it before. */
void trainer_await_copy(struct trainer *t);
/* For a host that waits since begin_s: looks at peers, orders and the clock. */
int trainer_look(struct trainer *t, const char *what, double begin_s, struct dt_error *err);
/* With no step in. Mean loss per target over a set of data.val, every sample once; NaN where there is no
 * target. A vote to stop ends it early: trainer_stops, and the loss is NaN. */
int trainer_evaluate(struct trainer *t, struct trainer_val *v, struct trainer_evaluation *out, struct dt_error *err);
/* With no step in: sums integers over all ranks, `what` for. */
int trainer_sum_counts(struct trainer *t, int64_t *counts, int64_t count, const char *what, struct dt_error *err);
/* The host waits until both streams have run dry: weights that travel after an update have
 * arrived. */
int trainer_settle(struct trainer *t, const char *what, struct dt_error *err);
void trainer_close(struct trainer *t);
/* trainer_loader.c: samples of the next steps, read by a thread of its own. host: memory of two steps
 * of so many bytes. Reading begins with restart, where the run stands. Close may be called twice, and
 * without open. */
void trainer_loader_open(struct trainer *t, char *host, size_t step_bytes);
void trainer_loader_close(struct trainer *t);
void trainer_loader_restart(struct trainer *t);
/* Waits for the batches of step number `step` (steps come one after the other); they stay until
 * release. */
int trainer_loader_take(struct trainer *t, int64_t step, struct trainer_slot **out, struct dt_error *err);
/* Nothing copies from the step's slot any more. Nothing happens if it was not taken. */
void trainer_loader_release(struct trainer *t, int64_t step);
/* The host memory of a step that was not taken, for other use until the next take. */
char *trainer_loader_borrow(struct trainer *t, int64_t step);
/* A batch of that shape in host memory. */
struct batch trainer_batch_in(const struct batch *shape, char *host);
/* trainer_batch.c: batches on their way. */
int trainer_batch_open(struct trainer *t, struct dt_error *err);
/* Ends reading ahead, so that no thread runs any more. May be called twice, and without open. */
void trainer_batch_close(struct trainer *t);
/* Reading goes on from where the run stands. */
void trainer_batch_restart(struct trainer *t);
/* The batches of the step that begins now, read before or now; the compute stream waits for
 * them. */
int trainer_batch_take(struct trainer *t, struct trainer_feed **out, struct dt_error *err);
/* Micro-step j begins: the numbers of its samples go where blocks read them. */
void trainer_batch_number(struct trainer *t, const struct trainer_feed *f, int64_t j);
/* The compute stream has read them. */
void trainer_batch_used(struct trainer *t, struct trainer_feed *f);
/* Reads the next step's. busy: what the device does meanwhile. */
int trainer_batch_prepare(struct trainer *t, struct dt_event *busy, struct dt_error *err);
/* Batch i of a set of data.val, on the compute stream; the host waits before it asks for the next one. Null: a
 * sample cannot be read. */
struct batch *trainer_batch_eval(struct trainer *t, struct trainer_val *v, int64_t i, struct dt_error *err);

/* trainer_graph.c: calls of blocks as graphs. close: nothing more is enqueued by then;
 * harmless without open and twice. */
void trainer_graph_open(struct trainer *t);
void trainer_graph_close(struct trainer *t);
/* Device memory that graphs take at most, beside the plan. */
double trainer_graph_bytes(const struct trainer *t, const struct dt_device *device);
/* Enqueues the kernels of the pass, one by one or as a graph: the same ones in the same order. */
void trainer_run_block(struct trainer *t, const struct block *b, const struct pass *p);
/* A micro-step begins: its calls may be queued, to go in as one graph. Flush enqueues what is. */
void trainer_graph_queue(struct trainer *t);
bool trainer_graph_queues(const struct trainer *t);
void trainer_graph_flush(struct trainer *t);
/* A sign of life, in the order of the compute stream: the phase that begins, and its number. */
void trainer_mark(struct trainer *t, enum dt_phase phase, int64_t micro_step);
/* trainer_step.c: what else a queue enqueues: before the first block's backward, and behind each.
 * The mark is the same in each step, as a graph needs it. */
void trainer_mark_backward(struct trainer *t);
void trainer_leave_backward(struct trainer *t, const struct block *b);
/* A step begins: with graphs or without? How long it took, from the one before it. */
void trainer_graph_begin(struct trainer *t);
void trainer_graph_timed(struct trainer *t, int64_t step, double step_s);

#endif
