/* How far a run is and where it ends, counted in samples: its learning rate is a function of
 * that share. Ranks, batch_size_per_gpu and accumulation may change on the way; the batch of the
 * first start stays the unit, so the curve over samples does not bend. A run whose batch never
 * changes is where its step is.
 *
 *   training.max_steps   so many steps of the batch at that time: of the first start, or of where another number was given. Their samples stay. A larger number that
 *                        lies behind already, because steps have become smaller, is so many more steps of the first batch
 *   training.max_tokens  so many samples, whatever a step has of them
 *                        Of both training.epoch_limit may be the earlier end: so many passes over the data, by the first batch
 *   training.num_epochs  passes over the data; how far it is, the place in the data says
 *
 * training.accumulation_schedule changes the batch from epoch to epoch. The first epoch's stays the
 * unit, and `now` is split for the epoch that is meant. */
#ifndef DT_WORKER_ENGINE_HORIZON_H
#define DT_WORKER_ENGINE_HORIZON_H

#include "worker/job/job.h"
#include "worker/engine/schedules/schedule.h"

struct batch_split {
    int64_t micro_batch, micro_steps; /* samples of a micro-step on all ranks; micro-steps of a
                                       * step */
};

/* kept in checkpoints */
struct horizon {
    struct batch_split of; /* the first start's; 0 0: the run has not begun */
    int64_t samples;       /* done, where an incomplete step at the end of an epoch counts as a
                            * whole one of `of` */
    int64_t base;          /* what `samples` was at the beginning of epoch 0: not 0 after other
                            * data were accepted */
    int64_t rows;          /* samples of the data */
    int64_t max_steps;     /* training.max_steps that `end` is of; below 0: the run goes by
                            * num_epochs */
    int64_t end;           /* samples when it ends */
};

/* Samples of an epoch: all `rows`, or, as training.limit_train_batches or overfit_batches says, those of its first
 * micro-steps of micro_batch samples. Whole batches, but for all of them, and 0 where the share is less than one.
 * Without UNEVEN_JOIN samples behind the last whole batch are no batch that a share counts. */
int64_t horizon_rows(const struct job_training *j, int64_t rows, int64_t micro_batch);
/* Optimizer steps from a place in the data to the end of training.num_epochs, for a batch so
 * split. */
int64_t horizon_epoch_steps(const struct job_training *j, int64_t rows, const struct batch_split *split, int64_t epoch,
                            int64_t position);
/* Begins a run, or goes on, with a batch split as it is now, after so many steps at this place in the
 * data: where there is another training.max_steps, it is that of these steps. */
void horizon_begin(struct horizon *h, const struct job_training *j, const struct batch_split *now, int64_t step,
                   int64_t rows, int64_t epoch, int64_t position);
/* Of a run that has come here in `step` steps of one batch, by a version that did not keep it. */
struct horizon horizon_guess(const struct job_training *j, const struct batch_split *of, int64_t rows, int64_t step,
                             int64_t epoch, int64_t position);
/* Optimizer steps that are left for a batch split as it is now; 0 once the samples are done,
 * whatever the split. */
int64_t horizon_left(const struct horizon *h, const struct job_training *j, const struct batch_split *now,
                     int64_t epoch, int64_t position);
/* What `samples` becomes by a step from `samples` on, of a batch as it is now, that leads to
 * this place in the data. last: no step comes after it. */
int64_t horizon_after(const struct horizon *h, const struct job_training *j, int64_t samples,
                      const struct batch_split *now, int64_t epoch, int64_t position, bool last);
/* `base` as it must be for the run to stand at this place of epochs. */
int64_t horizon_base(const struct horizon *h, const struct job_training *j, const struct batch_split *now,
                     int64_t epoch, int64_t position);
/* All samples of the run are done. Where they are not and horizon_left is 0, what is left of the
 * epochs fills no micro-batch of the batch as it is now. */
bool horizon_is_done(const struct horizon *h, const struct job_training *j);
/* Another rule for what an epoch leaves over (partial_accumulation) gives its steps other
 * numbers: `samples` becomes that of the same place. last: the split that led there. */
void horizon_count_anew(struct horizon *h, const struct job_training *was, const struct job_training *is,
                        const struct batch_split *last, int64_t epoch, int64_t position);
/* The learning rates of the run, over steps of the first batch. */
struct schedule horizon_schedule(const struct horizon *h, const struct job_training *j);
/* The rate in force when so many samples are done. */
double horizon_rate(const struct horizon *h, const struct schedule *s, int64_t samples);
/* The momentum at that place, of a schedule that moves it (schedule_momentum_at). */
double horizon_momentum(const struct horizon *h, const struct schedule *s, int64_t samples, double *beta2);

#endif
