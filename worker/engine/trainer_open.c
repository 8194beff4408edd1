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
    return t->feeds.val_count > 0 && t->chain.blocks[t->chain.block_count - 1].logits_memory >= 0;
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
    bool chooses = false;
    for (int i = 0; i < t->feeds.val_count; i++) {
        chooses |= t->feeds.val[i].data.choices != NULL;
    }
    return chooses ? (size_t)batch_elements(l, batch_targets(l)) * sizeof(double) : 0;
}

/* Activations: what each block keeps, one buffer for what they make again, scratch of the
 * largest. */
static void plan_activations(struct trainer *t)
{
    const struct chain *c = &t->chain;
    struct plan *p = &t->memory.plan;
    activations_plan(t);
    t->memory.again = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, chain_most(c, PLACE_AGAIN));
    for (int i = 0; i < 2; i++) {
        t->memory.y[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->slot_bytes[i]);
        t->memory.branch[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->branch_bytes[i]);
        t->memory.gradient[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->slot_bytes[i]);
    }
    t->memory.buffers =
        plan_add(p, PLAN_WEIGHTS, PLAN_PEERS, (size_t)chain_buffers(c) * dt_dtype_size(t->strategy.precision.buffers));
    t->memory.buffers_before = plan_add(p, PLAN_WEIGHTS, PLAN_LOCAL, trainer_buffers_before(t));
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
    horizon_begin(h, j, &now, t->run.step, trainer_rows(t), t->run.epoch, t->run.position);
    t->run.total_steps = t->run.step + horizon_left(h, j, &now, t->run.epoch, t->run.position);
    t->run.schedule = horizon_schedule(h, j);
    t->run.schedule.plateau = plateau_share(&t->run.plateau);
    trainer_limit_epochs(t);
    if (t->feeds.order.lengths != NULL) { /* the first start's batch, so an epoch keeps its order */
        sampler_regroup(&t->feeds.order, h->of.micro_batch * h->of.micro_steps);
    }
}

struct batch_split trainer_split(const struct trainer *t)
{
    const struct job_training *j = &t->job->training;
    return (struct batch_split){j->batch_size_per_gpu * t->size, j->accumulation_schedule.count > 0
                                                                     ? job_accumulation(j, t->run.epoch)
                                                                     : t->micro_steps};
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
        const struct data_source *s = &t->feeds.train;
        return dt_fail(err, DT_INVALID,
                       "data.train: %s: none of the labels is a target: there is nothing to learn; give labels other "
                       "than -100%s",
                       s->blank_path,
                       s->targets >= 0 && s->layout.field[s->targets].shifted ? " behind the first of a row" : "");
    }
    return 0;
}

/* Tells the chain and the data which id ends a document: the job's, or that of the data. */
static int end_documents(struct trainer *t, struct dt_error *err)
{
    const struct job_data *job = &t->job->data;
    int64_t end = job->document_end;
    int first = t->job->evaluates ? 0 : -1, count = job->document_mask ? t->feeds.val_count : first;
    const char *ends = "";                /* the first source that says `end` */
    for (int i = first; i < count; i++) { /* -1: data.train */
        const struct data_source *s = i < 0 ? &t->feeds.train : &t->feeds.val[i].data;
        const char *words = i < 0 ? job->train.words : job->val.of[i].from.words;
        int64_t own = job->document_end < 0 ? s->document_end : end;
        if (s->choices != NULL) {
            continue; /* a sample is one document */
        }
        if (own < 0) {
            return dt_fail(err, DT_INVALID,
                           "data.document_mask: %s does not say which id ends a document; set data.document_end to it",
                           words);
        }
        if (end >= 0 && own != end) {
            return dt_fail(err, DT_INVALID,
                           "data.document_mask: documents of %s end with id %lld, those of %s with %lld; make both "
                           "alike",
                           ends, (long long)end, words, (long long)own);
        }
        ends = end < 0 ? words : ends;
        end = own;
    }
    int64_t below = end >= 0 ? t->chain.batch.field[batch_find(&t->chain.batch, "input_ids")].below : 0;
    if (end >= 0 && end >= below) {
        return dt_fail(
            err, DT_INVALID,
            "data.document_mask: documents end with id %lld, but the model has ids up to %lld: none would end; "
            "correct data.document_end",
            (long long)end, (long long)below - 1);
    }
    batch_end_documents(&t->chain.batch, end);
    for (int i = first; i < count; i++) {
        struct data_source *s = i < 0 ? &t->feeds.train : &t->feeds.val[i].data;
        if (s->choices == NULL) {
            data_end_documents(s, end);
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
                      : t->job->training.overfit_batches > 0
                          ? "training.overfit_batches takes the first samples in their order"
                      : !job->shuffle ? "data.shuffle is false"
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

/* The sets of data.val. */
static int open_val(struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    const struct data_source *train = job->evaluates ? NULL : &t->feeds.train;
    t->feeds.val = dt_arena_alloc(&t->arena, (size_t)job->data.val.count * sizeof *t->feeds.val + 1);
    for (int i = 0; i < job->data.val.count; i++) {
        const struct dt_set *set = &job->data.val.of[i];
        struct trainer_val *v = &t->feeds.val[i];
        *v = (struct trainer_val){.name = set->name,
                                  .key = set->name != NULL ? dt_arena_printf(&t->arena, "data.val.%s", set->name)
                                                           : "data.val"};
        if (data_open_mixture(&v->data, &set->from, job->data.format, &t->chain.batch, err) != 0) {
            return dt_wrap(err, "%s", v->key);
        }
        t->feeds.val_count++;
        v->order = (struct sampler){.sample_count = v->data.sample_count};
        if (data_prepare(&v->data, job, false, err) != 0) {
            return dt_wrap(err, "%s", v->key);
        }
        /* data.train, or else the first set, says what the others must be like */
        const struct data_source *first = train == NULL && i > 0 ? &t->feeds.val[0].data : train;
        const char *words = train == NULL && i > 0 ? job->data.val.of[0].from.words : job->data.train.words;
        if (data_check(&job->data, first, words, &v->data, v->key, set->from.words, err) != 0 ||
            (job->evaluates && data_check_classes(&v->data, job, v->key, set->from.words, err) != 0) ||
            data_check_range(&v->data, job, v->key, err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* data.train, unless the job only evaluates, and data.val, if it has any. */
static int open_data(struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    const struct data_source *train = job->evaluates ? NULL : &t->feeds.train;
    if (train != NULL &&
        (open_train(t, err) != 0 || data_check(&job->data, train, job->data.train.words, NULL, NULL, NULL, err) != 0 ||
         data_check_range(train, job, "data.train", err) != 0)) {
        return -1;
    }
    if (open_val(t, err) != 0 || end_documents(t, err) != 0) {
        return -1;
    }
    t->feeds.order = (struct sampler){.sample_count = t->feeds.train.sample_count,
                                      .mixture = t->feeds.train.mixture,
                                      .order = job->data.sampler,
                                      .seed = (uint64_t)job->training.seed,
                                      .shuffle = job->data.shuffle};
    if (train != NULL && order_by_length(t, err) != 0) {
        return -1;
    }
    return train == NULL || (sampler_check(&t->feeds.order, err) == 0 && trainer_check_samples(t, err) == 0) ? 0 : -1;
}

static int open_chain(struct trainer *t, const struct strategy_row *row, enum dt_dtype compute, enum recompute level,
                      struct dt_error *err)
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
                              .wrap = strategy_wrap(row, job, t->shards),
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
    const struct strategy_row *row = t->strategy.row;
    const struct batch_layout batch = t->chain.batch; /* it knows what ends a document */
    enum recompute level = t->chain.spec.recompute + 1;
    t->memory.above_bytes = trainer_device_bytes(t);
    optimizer_clear(&t->optimizer);
    strategy_close(&t->strategy);
    plan_clear(&t->memory.plan);
    chain_close(&t->chain);
    if (open_chain(t, row, compute, level, err) != 0) {
        return -1;
    }
    t->chain.batch = batch;
    return 0;
}

int trainer_prepare(struct trainer *t, const struct job *job, int rank, int size, int local_size, enum dt_dtype type,
                    double device_bytes, struct dt_error *err)
{
    memset(t, 0, sizeof *t);
    t->saver.hold = t->saver.hold_output = -1;
    t->saver.named_step = -1;
    dt_arena_init(&t->arena);
    plan_init(&t->memory.plan);
    t->job = job;
    t->rank = rank;
    t->size = size;
    t->local_size = local_size;
    t->saver.saved_step = -1;
    t->micro_steps = job->training.gradient_accumulation_steps;
    t->memory.device_bytes = device_bytes;
    struct precision precision;
    enum recompute last, level = first_level(t, &last);
    if (precision_of(job, type, &precision, err) != 0) {
        return -1;
    }
    t->run.scaler = precision.scaler != NULL ? scaler_begin(&job->loss_scaling) : (struct scaler_state){0};
    const struct strategy_row *row = strategy_find(job->training.strategy, size, err);
    if (!row || strategy_shards(row, job, size, local_size, &t->shards, err) != 0 ||
        open_chain(t, row, precision.compute, level, err) != 0 || optimizer_check_names(job, &t->chain, err) != 0 ||
        open_data(t, err) != 0) {
        return -1;
    }
    t->memory.level_chosen = t->memory.level_chosen && t->chain.recomputes;
    if (!job->evaluates) {
        trainer_count(t);
        if (schedule_check(&t->run.schedule, err) != 0 || trainer_check_monitors(t, err) != 0) {
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
    return t->job->evaluates ? &t->feeds.val[0].data : &t->feeds.train;
}

static void print_json(const struct trainer *t, const char *device, int local_size, struct dt_text *out)
{
    const struct job *job = t->job;
    bool writes = !job->evaluates && job->training.fast_dev_run == 0; /* otherwise dtrun leaves nothing there, too */
    dt_text_puts(out, "{\"output_dir\": ");
    if (writes) {
        dt_text_json(out, job->output_dir, strlen(job->output_dir));
    } else {
        dt_text_puts(out, "null");
    }
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

static const char *precision_words(const struct precision *p)
{
    bool wide = p->wire != p->compute;
    switch (p->compute) {
    case DT_BF16:
        return precision_mixed(p) ? (wide ? ", bf16, reduced as fp32" : ", bf16")
                                  : (wide ? ", bf16 without masters, reduced as fp32" : ", bf16 without masters");
    case DT_F16:
        return precision_mixed(p) ? (wide ? ", fp16, reduced as fp32" : ", fp16")
                                  : (wide ? ", fp16 without masters, reduced as fp32" : ", fp16 without masters");
    default:
        return "";
    }
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
    struct dt_text words;
    dt_text_init(&words);
    dt_text_printf(out, "model      %s, %lld parameters in %d units%s\n", t->chain.spec.name,
                   (long long)t->chain.parameter_count, t->chain.unit_count, precision_words(p));
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
        dt_text_printf(
            out, "\nsteps      %lld of %lld samples (%lld per rank, %lld micro-step%s)", (long long)t->run.total_steps,
            (long long)(job->training.batch_size_per_gpu * t->micro_steps * t->size),
            (long long)job->training.batch_size_per_gpu, (long long)t->micro_steps, t->micro_steps == 1 ? "" : "s");
        if (schedule_ends_in_warmup(&t->run.schedule, &words)) {
            dt_text_printf(out, "\n           %s", dt_text_str(&words));
        }
        dt_text_printf(out, "\noutput     %s", job->output_dir);
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
    dt_text_reset(&words);
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
        optimizer_open(&t->optimizer, &t->memory.plan, err) != 0 || activations_open(t, err) != 0 ||
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
        class_counts_open(&t->stepper.classes, last->classes, last->several);
    }
    for (int i = 0; i < t->feeds.val_count; i++) {
        struct trainer_val *v = &t->feeds.val[i];
        v->f1 = dt_arena_alloc(&t->arena, (size_t)t->stepper.classes.classes * sizeof *v->f1 + 1);
        if (v->data.choices != NULL) {
            choice_scores_open(&v->choices, &v->data);
        }
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
    timeline_close(t->stepper.timeline);
    dt_event_close(t->stepper.done);
    for (int i = 0; i < 2; i++) {
        dt_event_close(t->stepper.pending[i].done);
    }
    free(t->saver.saved_path);
    free(t->saver.offer);
    free(t->saver.model_config);
    activations_close(t);
    optimizer_clear(&t->optimizer);
    strategy_close(&t->strategy);
    plan_clear(&t->memory.plan);
    chain_close(&t->chain);
    if (t->feeds.train.ops) {
        data_close(&t->feeds.train);
    }
    for (int i = 0; i < t->feeds.val_count; i++) {
        choice_scores_close(&t->feeds.val[i].choices);
        text_bytes_close(t->feeds.val[i].bytes);
        data_close(&t->feeds.val[i].data);
    }
    observers_close(&t->observers);
    dt_arena_clear(&t->arena);
    if (t->saver.hold >= 0) {
        (void)close(t->saver.hold);
    }
    if (t->saver.hold_output >= 0) {
        (void)close(t->saver.hold_output);
    }
    memset(t, 0, sizeof *t);
    t->saver.hold = t->saver.hold_output = -1;
}
