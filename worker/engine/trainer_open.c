/* Sizes and memory of a trainer: everything is measured by trainer_prepare, allocated by
 * trainer_open, and printed by trainer_print_plan. */
#include "worker/engine/text_bytes.h"
#include "worker/engine/trainer.h"

#include "base/log.h"
#include "worker/data/randperm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Evaluation looks at logits and targets of a batch on the host: it counts classes, or sums numbers. */
static bool takes_logits(const struct trainer *t)
{
    return t->feeds.has_val && t->chain.blocks[t->chain.block_count - 1].logits_memory >= 0;
}

static size_t logits_bytes(const struct trainer *t)
{
    const struct block *last = &t->chain.blocks[t->chain.block_count - 1];
    return last->memory[last->logits_memory].size_bytes;
}

static size_t targets_bytes(const struct trainer *t)
{
    const struct batch_layout *l = &t->chain.batch;
    return (size_t)batch_elements(l, batch_targets(l)) * sizeof(int32_t);
}

/* Of an evaluation by multiple choice: a loss of each position. */
static size_t row_loss_bytes(const struct trainer *t)
{
    const struct batch_layout *l = &t->chain.batch;
    return t->feeds.val.choices != NULL ? (size_t)batch_elements(l, batch_targets(l)) * sizeof(double) : 0;
}

/* Activations: what each block keeps, one buffer for what they make again, scratch of the
 * largest. */
static void plan_activations(struct trainer *t)
{
    const struct chain *c = &t->chain;
    struct plan *p = &t->memory.plan;
    t->memory.kept = dt_arena_alloc(&t->arena, (size_t)c->block_count * sizeof *t->memory.kept);
    for (int i = 0; i < c->block_count; i++) {
        t->memory.kept[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->blocks[i].bytes[PLACE_KEPT]);
    }
    t->memory.again = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, chain_most(c, PLACE_AGAIN));
    for (int i = 0; i < 2; i++) {
        t->memory.y[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->slot_bytes[i]);
        t->memory.branch[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->branch_bytes[i]);
        t->memory.gradient[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->slot_bytes[i]);
    }
    t->memory.buffers =
        plan_add(p, PLAN_WEIGHTS, PLAN_PEERS, (size_t)chain_buffers(c) * dt_dtype_size(t->strategy.precision.buffers));
    t->memory.scratch = plan_add(p, PLAN_SCRATCH, PLAN_LOCAL, chain_most(c, PLACE_CALL));
    t->memory.loss = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL, (size_t)t->micro_steps * sizeof(double));
    /* this step's and the next one's */
    size_t batches = 2 * (size_t)t->micro_steps * batch_offset(&c->batch, c->batch.count);
    t->memory.batch = plan_add(p, PLAN_BATCH, PLAN_LOCAL, batches);
    int numbers = batch_numbers(&c->batch);
    t->memory.numbers =
        numbers < 0 ? -1
                    : plan_add(p, PLAN_BATCH, PLAN_LOCAL, (size_t)batch_elements(&c->batch, numbers) * sizeof(int64_t));
    t->memory.host_batch = plan_add(p, PLAN_STAGING, PLAN_PINNED, batches);
    t->memory.order = plan_add(p, PLAN_STAGING, PLAN_PINNED, sampler_bytes(&t->feeds.order));
    t->memory.progress = plan_add(p, PLAN_STAGING, PLAN_PINNED, sizeof *t->stepper.progress);
    t->memory.eval_host = plan_add(p, PLAN_STAGING, PLAN_PINNED,
                                   takes_logits(t) ? logits_bytes(t) + targets_bytes(t) : row_loss_bytes(t));
    t->memory.eval_rows = plan_add(p, PLAN_SCRATCH, PLAN_LOCAL, row_loss_bytes(t));
}

void trainer_count(struct trainer *t)
{
    const struct job_training *j = &t->job->training;
    struct horizon *h = &t->run.horizon;
    const struct batch_split now = trainer_split(t);
    horizon_begin(h, j, &now, t->run.step, t->feeds.train.sample_count);
    t->run.total_steps = t->run.step + horizon_left(h, j, &now, t->run.epoch, t->run.position);
    t->run.schedule = horizon_schedule(h, j);
    if (t->feeds.order.lengths != NULL) { /* the first start's batch, so an epoch keeps its order */
        sampler_regroup(&t->feeds.order, h->of.micro_batch * h->of.micro_steps);
    }
}

struct batch_split trainer_split(const struct trainer *t)
{
    return (struct batch_split){t->job->training.batch_size_per_gpu * t->size, t->micro_steps};
}

static int open_train(struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    if (data_open_mixture(&t->feeds.train, &job->data.train, job->data.format, &t->chain.batch, err) != 0) {
        return dt_wrap(err, "data.train");
    }
    if (data_prepare(&t->feeds.train, job, true, err) != 0) {
        return dt_wrap(err, "data.train");
    }
    if (t->feeds.train.blank_count == t->feeds.train.sample_count) {
        return dt_fail(err, DT_INVALID,
                       "data.train: %s: none of the labels is a target: there is nothing to learn; give labels other "
                       "than -100 behind the first "
                       "of a row",
                       t->feeds.train.blank_path);
    }
    return 0;
}

/* Batches of all ranks need as many samples. */
static int check_samples(const struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    int64_t need = job->training.batch_size_per_gpu * t->size;
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

/* Tells the chain and the data which id ends a document: the job's, or that of the data. */
static int end_documents(struct trainer *t, struct dt_error *err)
{
    const struct job_data *job = &t->job->data;
    struct data_source *const sources[] = {t->job->evaluates ? NULL : &t->feeds.train,
                                           t->feeds.has_val ? &t->feeds.val : NULL};
    int64_t end = job->document_end;
    for (int i = 0; i < 2 && job->document_mask; i++) {
        if (sources[i] != NULL && sources[i]->choices != NULL) {
            continue; /* a sample is one document */
        }
        int64_t own = sources[i] != NULL && job->document_end < 0 ? sources[i]->document_end : end;
        if (sources[i] != NULL && own < 0) {
            return dt_fail(err, DT_INVALID,
                           "data.document_mask: %s does not say which id ends a document; set data.document_end to it",
                           i == 0 ? job->train.words : job->val);
        }
        if (end >= 0 && own != end) {
            return dt_fail(err, DT_INVALID,
                           "data.document_mask: documents of %s end with id %lld, those of %s with %lld; make both "
                           "alike",
                           job->train.words, (long long)end, job->val, (long long)own);
        }
        end = own;
    }
    batch_end_documents(&t->chain.batch, end);
    for (int i = 0; i < 2 && job->document_mask; i++) {
        if (sources[i] != NULL && sources[i]->choices == NULL) {
            data_end_documents(sources[i], end);
        }
    }
    return 0;
}

/* data.group_by_length */
static int order_by_length(struct trainer *t, struct dt_error *err)
{
    const struct job_data *job = &t->job->data;
    struct sampler *o = &t->feeds.order;
    const char *why = t->feeds.train.mixture != NULL       ? "data.train is several sources"
                      : t->feeds.train.ops->length == NULL ? "samples of this format have one length"
                      : !job->shuffle                      ? "data.shuffle is false"
                                                           : NULL;
    if (why != NULL && job->group_by_length > 0) {
        return dt_fail(err, DT_INVALID, "data.group_by_length: %s; remove one of them", why);
    }
    bool wanted = job->group_by_length > 0 ||
                  (job->group_by_length < 0 && job->sampler == ORDER_PERMUTATION && o->sample_count <= RANDPERM_MOST);
    if (why == NULL && wanted) {
        o->lengths = &t->feeds.train;
        o->window = SAMPLER_WINDOW;
    }
    return 0;
}

/* data.train, unless the job only evaluates, and data.val, if it has any. */
static int open_data(struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    if (!job->evaluates && open_train(t, err) != 0) {
        return -1;
    }
    if (job->data.val && *job->data.val) {
        if (data_open(&t->feeds.val, job->data.val, job->data.format, &t->chain.batch, err) != 0) {
            return dt_wrap(err, "data.val");
        }
        t->feeds.has_val = true;
        if (data_prepare(&t->feeds.val, job, false, err) != 0) {
            return dt_wrap(err, "data.val");
        }
    }
    const struct data_source *train = job->evaluates ? NULL : &t->feeds.train,
                             *val = t->feeds.has_val ? &t->feeds.val : NULL;
    if (data_check(&job->data, train, val, err) != 0 ||
        (train != NULL && data_check_range(train, "data.train", err) != 0) ||
        (val != NULL && data_check_range(val, "data.val", err) != 0)) {
        return -1;
    }
    if (end_documents(t, err) != 0) {
        return -1;
    }
    t->feeds.order = (struct sampler){.sample_count = t->feeds.train.sample_count,
                                      .mixture = t->feeds.train.mixture,
                                      .order = job->data.sampler,
                                      .seed = (uint64_t)job->training.seed,
                                      .shuffle = job->data.shuffle};
    t->feeds.val_order = (struct sampler){.sample_count = t->feeds.val.sample_count};
    if (train != NULL && order_by_length(t, err) != 0) {
        return -1;
    }
    return train == NULL || (sampler_check(&t->feeds.order, err) == 0 && check_samples(t, err) == 0) ? 0 : -1;
}

static int open_chain(struct trainer *t, enum dt_dtype compute, enum recompute level, struct dt_error *err)
{
    const struct job *job = t->job;
    bool some = t->memory.level_chosen && level == RECOMPUTE_NONE ? false : job->recompute.enabled;
    struct model_spec spec = {.name = job->model.name,
                              .sizes = job->model.sizes.bytes,
                              .batch_size = job->training.batch_size_per_gpu,
                              .sequence_length = job->data.sequence_length,
                              .documents = job->data.document_mask,
                              .own_memory = t->memory.device_bytes > 0,
                              .norm_ranks = job->training.sync_batch_norm ? t->size : 1,
                              .recompute = level,
                              .recompute_every = some ? job->recompute.every_n_layers : 1,
                              .seed = (uint64_t)job->training.seed,
                              .type = compute};
    return chain_open(&t->chain, &spec, t->shards, err);
}

/* The level of activation_checkpointing; *last: the one that is taken whatever memory there is, if
 * no level from the first to it leaves enough of the GPU. */
static enum recompute first_level(struct trainer *t, enum recompute *last)
{
    const struct job_recompute *r = &t->job->recompute;
    bool any = r->level == JOB_RECOMPUTE_AUTO, fixed = r->enabled && !any;
    t->memory.level_chosen = !fixed && t->memory.device_bytes > 0 && !t->job->evaluates;
    *last = any ? RECOMPUTE_BLOCK : RECOMPUTE_CHEAP;
    return t->memory.level_chosen ? RECOMPUTE_NONE : fixed ? r->level : RECOMPUTE_CHEAP;
}

/* Strategy, optimizer and plan of the chain as it is. */
static int plan_all(struct trainer *t, const struct strategy_row *row, const struct precision *precision,
                    struct dt_error *err)
{
    if (strategy_init(&t->strategy, row, t->job, &t->chain, precision, t->rank, t->size, t->shards, err) != 0) {
        return -1;
    }
    strategy_plan(&t->strategy, &t->memory.plan);
    optimizer_plan(&t->optimizer, &t->strategy, t->job, &t->memory.plan);
    step_sums_plan(&t->step_sums, &t->strategy, t->micro_steps, &t->memory.plan);
    plan_activations(t);
    return 0;
}

/* The chain at the next level, without a plan. */
static int open_next_level(struct trainer *t, enum dt_dtype compute, struct dt_error *err)
{
    const struct batch_layout batch = t->chain.batch; /* it knows what ends a document */
    enum recompute level = t->chain.spec.recompute + 1;
    t->memory.above_bytes = trainer_device_bytes(t);
    optimizer_clear(&t->optimizer);
    strategy_close(&t->strategy);
    plan_clear(&t->memory.plan);
    chain_close(&t->chain);
    if (open_chain(t, compute, level, err) != 0) {
        return -1;
    }
    t->chain.batch = batch;
    return 0;
}

int trainer_prepare(struct trainer *t, const struct job *job, int rank, int size, int local_size, enum dt_dtype type,
                    double device_bytes, struct dt_error *err)
{
    memset(t, 0, sizeof *t);
    t->saver.hold = -1;
    t->saver.named_step = -1;
    dt_arena_init(&t->arena);
    plan_init(&t->memory.plan);
    t->job = job;
    t->rank = rank;
    t->size = size;
    t->saver.saved_step = -1;
    t->micro_steps = job->training.gradient_accumulation_steps;
    t->memory.device_bytes = device_bytes;
    struct precision precision;
    enum recompute last, level = first_level(t, &last);
    if (precision_of(job, type, &precision, err) != 0) {
        return -1;
    }
    const struct strategy_row *row = strategy_find(job->training.strategy, size, err);
    if (!row || strategy_shards(row, job, size, local_size, &t->shards, err) != 0 ||
        open_chain(t, precision.compute, level, err) != 0 || optimizer_check_groups(job, &t->chain, err) != 0 ||
        open_data(t, err) != 0) {
        return -1;
    }
    t->memory.level_chosen = t->memory.level_chosen && t->chain.recomputes;
    if (!job->evaluates) {
        trainer_count(t);
        if (schedule_check(&t->run.schedule, err) != 0) {
            return -1;
        }
    }
    int rc = plan_all(t, row, &precision, err);
    while (rc == 0 && t->memory.level_chosen && t->chain.spec.recompute < last && !trainer_level_fits(t)) {
        rc = open_next_level(t, precision.compute, err) == 0 ? plan_all(t, row, &precision, err) : -1;
    }
    return rc;
}

/* A choice of the job that costs memory which the strategy's name does not show. */
static bool gradients_made_whole(const struct trainer *t)
{
    return !t->strategy.alone && t->strategy.row->grads == &grads_sliced && t->strategy.grads == &grads_whole;
}

/* The data that the plan is about. */
static const struct data_source *plan_data(const struct trainer *t)
{
    return t->job->evaluates ? &t->feeds.val : &t->feeds.train;
}

static void print_json(const struct trainer *t, const char *device, int local_size, struct dt_text *out)
{
    const struct job *job = t->job;
    dt_text_puts(out, "{\"output_dir\": ");
    dt_text_json(out, job->output_dir, strlen(job->output_dir));
    dt_text_printf(out, ", \"device\": \"%s\"", device);
    dt_text_printf(out,
                   ", \"strategy\": \"%s\", \"ranks\": %d, \"local_ranks\": %d, \"shards\": %d, \"parameters\": %lld, "
                   "\"total_steps\": %lld",
                   t->strategy.row->name, t->size, local_size, t->shards, (long long)t->chain.parameter_count,
                   (long long)t->run.total_steps);
    dt_text_printf(out, ", \"precision\": \"%s\"", precision_name(&t->strategy.precision));
    if (t->chain.recomputes) {
        char level[16];
        dt_text_printf(out, ", \"activation_checkpointing\": \"%s\"", trainer_level_name(t, level));
    }
    dt_text_printf(out, ", \"samples\": %lld, \"global_batch\": %lld, \"bytes\": {",
                   (long long)plan_data(t)->sample_count,
                   (long long)(job->training.batch_size_per_gpu * t->micro_steps * t->size));
    for (int i = 0; i < PLAN_PURPOSE_COUNT; i++) {
        if (i != PLAN_HOST || t->memory.plan.bytes[i] > 0) {
            dt_text_printf(out, "%s\"%s\": %zu", i ? ", " : "", plan_purpose_name((enum plan_purpose)i),
                           t->memory.plan.bytes[i]);
        }
    }
    char what[64];
    dt_text_puts(out, "}");
    if (t->memory.plan.file_bytes > 0) {
        dt_text_printf(out, ", \"files\": %zu", t->memory.plan.file_bytes);
    }
    dt_text_printf(out, ", \"total\": %zu, \"available\": %.0f}\n", plan_total(&t->memory.plan),
                   plan_available(local_size, what, sizeof what));
}

void trainer_print_plan(const struct trainer *t, const char *device, int local_size, bool json, struct dt_text *out)
{
    if (json) {
        print_json(t, device, local_size, out);
        return;
    }
    const struct job *job = t->job;
    const struct precision *p = &t->strategy.precision;
    char text[32], other[32], what[64];
    dt_text_printf(out, "model      %s, %lld parameters in %d units%s\n", t->chain.spec.name,
                   (long long)t->chain.parameter_count, t->chain.unit_count,
                   precision_mixed(p) ? (p->wire == p->compute ? ", bf16" : ", bf16, reduced as fp32") : "");
    dt_text_printf(out, "data       %lld samples", (long long)plan_data(t)->sample_count);
    if (job->model.ops->positions != NULL) {
        dt_text_printf(out, " of %lld tokens", (long long)plan_data(t)->sequence_length);
    }
    dt_text_puts(out, "\n");
    dt_text_printf(out, "strategy   %s on %d rank%s", t->strategy.row->name, t->size, t->size == 1 ? "" : "s");
    if (t->strategy.replicas > 1) {
        dt_text_printf(out, " (%d replicas of %d shards)", t->strategy.replicas, t->shards);
    }
    if (gradients_made_whole(t)) {
        dt_text_puts(out, "\n           gradients whole until the last micro-step: accumulate_sync boundary");
    }
    if (!job->evaluates) {
        dt_text_printf(out, "\nsteps      %lld of %lld samples (%lld per rank, %lld micro-step%s)\noutput     %s",
                       (long long)t->run.total_steps,
                       (long long)(job->training.batch_size_per_gpu * t->micro_steps * t->size),
                       (long long)job->training.batch_size_per_gpu, (long long)t->micro_steps,
                       t->micro_steps == 1 ? "" : "s", job->output_dir);
    }
    optimizer_print_groups(&t->optimizer, out);
    dt_text_puts(out, "\n\nbytes of one rank\n");
    for (int i = 0; i < PLAN_PURPOSE_COUNT; i++) {
        if (i == PLAN_HOST && t->memory.plan.bytes[i] == 0) {
            continue;
        }
        dt_text_printf(out, "    %-16s %18zu   %10s\n", plan_purpose_name((enum plan_purpose)i),
                       t->memory.plan.bytes[i], dt_text_bytes((double)t->memory.plan.bytes[i], text, sizeof text));
    }
    size_t total = plan_total(&t->memory.plan);
    dt_text_printf(out, "    %-16s %18zu   %10s\n", "total", total, dt_text_bytes((double)total, text, sizeof text));
    if (t->memory.plan.file_bytes > 0) {
        dt_text_printf(out, "    %-16s %18zu   %10s   beside the total\n", "files", t->memory.plan.file_bytes,
                       dt_text_bytes((double)t->memory.plan.file_bytes, text, sizeof text));
    }
    struct dt_text words;
    dt_text_init(&words);
    residence_words(&t->memory.plan, &job->offload, local_size, t->chain.spec.own_memory, &words);
    dt_text_printf(out, "%s%s%s", words.size > 0 ? "\n" : "", dt_text_str(&words), words.size > 0 ? "\n" : "");
    dt_text_clear(&words);
    if (strcmp(device, "cuda") == 0) {
        bool host = t->memory.plan.bytes[PLAN_HOST] > 0;
        dt_text_printf(out,
                       "\na GPU holds all but %sstaging, beside what CUDA's context, libraries and graphs take there; "
                       "%sstaging %s pinned memory of the host\n",
                       host ? "host and " : "", host ? "host and " : "", host ? "are" : "is");
        if (t->memory.level_chosen) {
            trainer_level_words(t, out);
            dt_text_puts(out, "\n");
        }
        return;
    }
    double have = plan_available(local_size, what, sizeof what);
    dt_text_printf(out, "\n%d rank%s on this host: %s; %s: %s\n", local_size, local_size == 1 ? "" : "s",
                   dt_text_bytes(trainer_host_bytes(t, local_size), text, sizeof text), what,
                   dt_text_bytes(have, other, sizeof other));
}

/* Before the plan is compared with what is free: the memory that collectives take is known then. */
static int connect_all(struct trainer *t, struct world *w, struct dt_error *err)
{
    size_t before = 0, after = 0, total;
    bool known = !w->device->host_memory && dt_device_memory(w->device, &before, &total);
    if (strategy_connect(&t->strategy, w, err) != 0) {
        return -1;
    }
    known = known && dt_device_memory(w->device, &after, &total);
    t->memory.connected_bytes = known && before > after ? (double)(before - after) : 0;
    return 0;
}

int trainer_open(struct trainer *t, struct world *w, struct dt_error *err)
{
    const struct chain *c = &t->chain;
    char bytes[32];
    t->world = w;
    if ((t->shards != t->size && !w->replica && world_split(w, t->shards, err) != 0) || connect_all(t, w, err) != 0 ||
        trainer_check_device(t, w, err) != 0) {
        return -1;
    }
    if (plan_open(&t->memory.plan, w, err) != 0 || strategy_open(&t->strategy, w, &t->memory.plan, err) != 0 ||
        optimizer_open(&t->optimizer, &t->memory.plan, err) != 0 ||
        dt_event_open(w->device, &t->stepper.done, err) != 0) {
        return -1;
    }
    step_sums_open(&t->step_sums, &t->memory.plan);
    trainer_step_open(t);
    t->stepper.loss_sum = plan_at(&t->memory.plan, t->memory.loss);
    t->stepper.progress = plan_at(&t->memory.plan, t->memory.progress);
    const struct block *last = &c->blocks[c->block_count - 1];
    if (takes_logits(t) && last->numbers) {
        number_sums_open(&t->stepper.numbers, last->classes);
    } else if (takes_logits(t)) {
        class_counts_open(&t->stepper.classes, last->classes);
        t->stepper.f1 = dt_arena_alloc(&t->arena, (size_t)t->stepper.classes.classes * sizeof *t->stepper.f1);
    }
    if (t->feeds.val.choices != NULL) {
        choice_scores_open(&t->stepper.choice_scores, &t->feeds.val);
    }
    t->stepper.shape =
        (struct batch){.layout = &c->batch, .samples = c->spec.batch_size, .length = c->spec.sequence_length};
    outliers_open(&t->stepper.outliers, &t->job->training, &t->arena);
    if (trainer_batch_open(t, err) != 0) {
        return -1;
    }
    trainer_graph_open(t);
    for (int i = 0; i < 2; i++) {
        if (dt_event_open(w->device, &t->stepper.pending[i].done, err) != 0) {
            return -1;
        }
    }
    if (gradients_made_whole(t)) {
        observers_say(&t->observers,
                      "train: training.accumulate_sync=boundary keeps gradients whole on each rank (%s); "
                      "every_micro_step keeps a share",
                      dt_text_bytes((double)t->memory.plan.bytes[PLAN_GRADIENTS], bytes, sizeof bytes));
    }
    if (w->rank == 0) {
        struct dt_text words;
        dt_text_init(&words);
        residence_words(&t->memory.plan, &t->job->offload, w->local_size, !w->device->host_memory, &words);
        if (words.size > 0) {
            observers_say(&t->observers, "train: %s", dt_text_str(&words));
        }
        dt_text_clear(&words);
    }
    atomic_store(&w->page->step, 0);
    return 0;
}

void trainer_close(struct trainer *t)
{
    if (t->world && t->world->failed) { /* frees streams that wait for peers, so that events can
                                         * be closed */
        world_abort(t->world);
    }
    if (t->world && t->world->compute) { /* what they still read or write is freed below */
        (void)dt_stream_finish(t->world->compute, 30, NULL);
        (void)dt_stream_finish(t->world->communication, 30, NULL);
        (void)dt_stream_finish(t->world->gathering, 30, NULL);
    }
    trainer_batch_close(t);
    trainer_graph_close(t);
    class_counts_close(&t->stepper.classes);
    number_sums_close(&t->stepper.numbers);
    choice_scores_close(&t->stepper.choice_scores);
    text_bytes_close(t->feeds.val_bytes);
    timeline_close(t->stepper.timeline);
    dt_event_close(t->stepper.done);
    for (int i = 0; i < 2; i++) {
        dt_event_close(t->stepper.pending[i].done);
    }
    free(t->saver.saved_path);
    free(t->saver.model_config);
    optimizer_clear(&t->optimizer);
    strategy_close(&t->strategy);
    plan_clear(&t->memory.plan);
    chain_close(&t->chain);
    if (t->feeds.train.ops) {
        data_close(&t->feeds.train);
    }
    if (t->feeds.has_val) {
        data_close(&t->feeds.val);
    }
    observers_close(&t->observers);
    dt_arena_clear(&t->arena);
    if (t->saver.hold >= 0) {
        (void)close(t->saver.hold);
    }
    memset(t, 0, sizeof *t);
    t->saver.hold = -1;
}
