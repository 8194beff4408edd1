/* What the job asks of its data and its model, and they do not have. */
#include "worker/engine/trainer.h"

#include <stdio.h>
#include <string.h>

/* training.uneven_inputs: what it asks of data and model. */
static int check_uneven(const struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    int64_t rows = t->feeds.train.sample_count, batch = job->training.batch_size_per_gpu * t->size, rest = rows % batch;
    bool limited = horizon_rows(&job->training, rows, batch) < rows;
    if (job->training.uneven_inputs == UNEVEN_STRICT && rest > 0 && !job->elsewhere && !limited) {
        return dt_fail(
            err, DT_INVALID,
            "training.uneven_inputs: strict: data.train has %lld samples, %lld more than batches of %d ranks * "
            "%lld take; write join to compute them, or drop to leave them out",
            (long long)rows, (long long)rest, t->size, (long long)job->training.batch_size_per_gpu);
    }
    if (job->training.uneven_inputs == UNEVEN_JOIN && t->chain.buffer_count > 0) {
        return dt_fail(err, DT_INVALID,
                       "training.uneven_inputs: join: batch norms of model.name %s would take their statistics over "
                       "rows without samples, too; write drop",
                       job->model.name);
    }
    return 0;
}

int trainer_check_samples(const struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    int64_t need = job->training.batch_size_per_gpu * t->size;
    if (check_uneven(t, err) != 0) {
        return -1;
    }
    need = job->training.uneven_inputs == UNEVEN_JOIN ? 1 : need;
    if (job->training.partial_accumulation == PARTIAL_DROP) {
        need *= t->micro_steps;
    }
    if (t->feeds.train.sample_count >= need || job->elsewhere) {
        return 0;
    }
    char tokens[48] = "";
    if (job->model.ops->positions != NULL) {
        (void)snprintf(tokens, sizeof tokens, " of %lld tokens", (long long)t->feeds.train.sequence_length);
    }
    return dt_fail(err, DT_INVALID,
                   "data.train: %lld samples%s: %lld ranks * batch_size_per_gpu %lld need %lld; give more data or "
                   "less of these",
                   (long long)t->feeds.train.sample_count, tokens, (long long)t->size,
                   (long long)job->training.batch_size_per_gpu, (long long)need);
}

/* What looks at a value of evaluations needs some that have it. */
static int check_monitor(const struct trainer *t, const char *key, const char *monitor, struct dt_error *err)
{
    const struct block *last = &t->chain.blocks[t->chain.block_count - 1];
    const char *value = "loss";
    int set = job_monitor(t->job, monitor, &value);
    bool numbers = last->numbers, classes = last->logits_memory >= 0 && !numbers,
         choices = set >= 0 && set < t->feeds.val_count && t->feeds.val[set].data.choices != NULL;
    bool has = strcmp(value, "loss") == 0       ? true
               : strcmp(value, "pearson") == 0  ? numbers
               : strcmp(value, "f1_macro") == 0 ? classes
                                                : classes || choices;
    return has ? 0
               : dt_fail(err, DT_INVALID, "%s: an evaluation of %s has no %s; write val_loss", key,
                         t->job->model.ops->name, monitor);
}

int trainer_check_monitors(const struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    bool plateau = strcmp(job->training.lr_scheduler_type, "reduce_lr_on_plateau") == 0,
         best = job->checkpointing.save_top_k > 0 && job->checkpointing.monitor != NULL;
    if (plateau && check_monitor(t, "scheduler.monitor", job->training.scheduler.monitor, err) != 0) {
        return -1;
    }
    if (best && check_monitor(t, "checkpointing.monitor", job->checkpointing.monitor, err) != 0) {
        return -1;
    }
    return job->stopping.monitor == NULL ? 0 : check_monitor(t, "early_stopping.monitor", job->stopping.monitor, err);
}

int trainer_check_limit(const struct trainer *t, struct dt_error *err)
{
    const struct job_training *j = &t->job->training;
    const struct batch_split *of = &t->run.horizon.of;
    const char *key = j->overfit_batches > 0 ? "overfit_batches" : "limit_train_batches";
    double limit = j->overfit_batches > 0 ? j->overfit_batches : j->limit_train_batches;
    int64_t all = t->feeds.train.sample_count, rows = horizon_rows(j, all, of->micro_batch);
    if (rows == 0) {
        return dt_fail(err, DT_INVALID, "training.%s: %g of the %lld batches of an epoch is less than one; give more",
                       key, limit, (long long)(all / of->micro_batch));
    }
    if (rows < all && rows < j->batch_size_per_gpu * t->size) { /* one batch would go beyond the epoch */
        return dt_fail(err, DT_INVALID,
                       "training.%s: an epoch is %lld samples, as the first start fixed it, and %d ranks * %lld take "
                       "%lld at once; use fewer ranks or a smaller training.batch_size_per_gpu",
                       key, (long long)rows, t->size, (long long)j->batch_size_per_gpu,
                       (long long)j->batch_size_per_gpu * t->size);
    }
    if (rows < all && j->partial_accumulation == PARTIAL_DROP && rows < of->micro_batch * of->micro_steps) {
        return dt_fail(err, DT_INVALID,
                       "training.%s: leaves %lld batches of an epoch, and a step takes %lld, which "
                       "training.partial_accumulation drop does not split; give more",
                       key, (long long)(rows / of->micro_batch), (long long)of->micro_steps);
    }
    return 0;
}
