/* Sizes and memory of a trainer: everything is measured by trainer_prepare, allocated by
 * trainer_open, and printed by trainer_print_plan. */
#include "worker/run/trainer.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Activations: what each block keeps, one buffer for what they make again, scratch of the
 * largest. */
static void plan_activations(struct trainer *t)
{
    const struct chain *c = &t->chain;
    struct plan *p = &t->plan;
    t->piece_kept = dt_arena_alloc(&t->arena, (size_t)c->block_count * sizeof *t->piece_kept);
    for (int i = 0; i < c->block_count; i++) {
        t->piece_kept[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->blocks[i].bytes[PLACE_KEPT]);
    }
    t->piece_again = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, chain_most(c, PLACE_AGAIN));
    for (int i = 0; i < 2; i++) {
        t->piece_y[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->slot_bytes[i]);
        t->piece_branch[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->branch_bytes[i]);
        t->piece_gradient[i] = plan_add(p, PLAN_ACTIVATIONS, PLAN_LOCAL, c->slot_bytes[i]);
    }
    t->piece_buffers = plan_add(p, PLAN_WEIGHTS, PLAN_PEERS, (size_t)c->buffer_count * dt_dtype_size(t->strategy.real));
    t->piece_scratch = plan_add(p, PLAN_SCRATCH, PLAN_LOCAL, chain_most(c, PLACE_CALL));
    t->piece_loss = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL, (size_t)t->micro_steps * sizeof(double));
    /* this step's and the next one's */
    size_t batches = 2 * (size_t)t->micro_steps * batch_offset(&c->batch, c->batch.count);
    t->piece_batch = plan_add(p, PLAN_BATCH, PLAN_LOCAL, batches);
    t->piece_host_batch = plan_add(p, PLAN_STAGING, PLAN_PINNED, batches);
    t->piece_progress = plan_add(p, PLAN_STAGING, PLAN_PINNED, sizeof *t->progress);
}

void trainer_count(struct trainer *t)
{
    const struct job_training *j = &t->job->training;
    struct horizon *h = &t->horizon;
    const struct batch_split now = trainer_split(t);
    horizon_begin(h, j, &now, t->step, t->train.sample_count);
    t->total_steps = t->step + horizon_left(h, j, &now, t->epoch, t->position);
    t->schedule = horizon_schedule(h, j);
}

struct batch_split trainer_split(const struct trainer *t)
{
    return (struct batch_split){t->job->training.batch_size_per_gpu * t->size, t->micro_steps};
}

static int open_data(struct trainer *t, struct dt_error *err)
{
    const struct job *job = t->job;
    if (data_open(&t->train, job->data.train, job->data.format, &t->chain.batch, err) != 0) {
        return dt_wrap(err, "data.train");
    }
    if (t->train.blank_count == t->train.sample_count) {
        return dt_fail(err, DT_INVALID,
                       "data.train: %s: none of the labels is a target: there is nothing to learn; give labels other "
                       "than -100 behind the first "
                       "of a row",
                       t->train.blank_path);
    }
    if (job->data.val && *job->data.val) {
        if (data_open(&t->val, job->data.val, job->data.format, &t->chain.batch, err) != 0) {
            return dt_wrap(err, "data.val");
        }
        t->has_val = true;
    }
    if (data_check(&job->data, &t->train, t->has_val ? &t->val : NULL, err) != 0) {
        return -1;
    }
    const struct data_source *sources[] = {&t->train, &t->val};
    for (int i = 0; i < 1 + t->has_val; i++) {
        int k = data_too_large(sources[i]);
        if (k >= 0) {
            const struct batch_field *f = &sources[i]->layout.field[k];
            int64_t largest = sources[i]->largest[k];
            return dt_fail(err, DT_INVALID, "model.%s: %lld: data.%s has %s up to %lld; raise it to %lld or more",
                           f->below_key, (long long)f->below, i ? "val" : "train",
                           strcmp(f->name, "input_ids") == 0 ? "ids" : f->name, (long long)largest,
                           (long long)largest + 1);
        }
    }
    t->order = (struct sampler){
        .sample_count = t->train.sample_count, .seed = (uint64_t)job->training.seed, .shuffle = job->data.shuffle};
    t->val_order = (struct sampler){.sample_count = t->val.sample_count};
    int64_t micro = job->training.batch_size_per_gpu * t->size, need = micro;
    if (job->training.partial_accumulation == PARTIAL_DROP) {
        need *= t->micro_steps;
    }
    if (t->train.sample_count < need) {
        return dt_fail(err, DT_INVALID,
                       "data.train: %lld samples of %lld tokens: %lld ranks * batch_size_per_gpu %lld need %lld; give "
                       "more data or less of these",
                       (long long)t->train.sample_count, (long long)t->train.sequence_length, (long long)t->size,
                       (long long)job->training.batch_size_per_gpu, (long long)need);
    }
    return 0;
}

static int open_chain(struct trainer *t, enum dt_dtype type, bool own_memory, struct dt_error *err)
{
    const struct job *job = t->job;
    struct model_spec spec = {.name = job->model.name,
                              .sizes = job->model.sizes.bytes,
                              .batch_size = job->training.batch_size_per_gpu,
                              .sequence_length = job->data.sequence_length,
                              .own_memory = own_memory,
                              .recompute = job->recompute.enabled ? job->recompute.level : RECOMPUTE_CHEAP,
                              .recompute_every = job->recompute.every_n_layers,
                              .type = type == DT_F32 ? job->precision.compute : type};
    return chain_open(&t->chain, &spec, t->shards, err);
}

int trainer_prepare(struct trainer *t, const struct job *job, int rank, int size, int local_size, enum dt_dtype type,
                    bool own_memory, struct dt_error *err)
{
    memset(t, 0, sizeof *t);
    t->hold = -1;
    t->named_step = -1;
    dt_arena_init(&t->arena);
    plan_init(&t->plan);
    t->job = job;
    t->rank = rank;
    t->size = size;
    t->saved_step = -1;
    t->micro_steps = job->training.gradient_accumulation_steps;
    if (type == DT_F64 && job->precision.moments == DT_BF16) {
        return dt_fail(err, DT_INVALID,
                       "training.optimizer_state_dtype: bf16 goes with fp32 masters, and this device computes in fp64; "
                       "write fp32");
    }
    const struct strategy_row *row = strategy_find(job->training.strategy, size, err);
    if (!row || strategy_shards(row, job, size, local_size, &t->shards, err) != 0 ||
        open_chain(t, type, own_memory, err) != 0 || open_data(t, err) != 0) {
        return -1;
    }
    trainer_count(t);
    if (schedule_check(&t->schedule, err) != 0) {
        return -1;
    }
    if (strategy_init(&t->strategy, row, job, &t->chain, rank, size, t->shards, err) != 0) {
        return -1;
    }
    strategy_plan(&t->strategy, &t->plan);
    optimizer_plan(&t->optimizer, &t->strategy, job, &t->plan);
    step_sums_plan(&t->step_sums, &t->strategy, t->micro_steps, &t->plan);
    plan_activations(t);
    return 0;
}

/* A choice of the job that costs memory which the strategy's name does not show. */
static bool gradients_made_whole(const struct trainer *t)
{
    return !t->strategy.alone && t->strategy.row->grads == &grads_sliced && t->strategy.grads == &grads_whole;
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
                   (long long)t->total_steps);
    dt_text_printf(out, ", \"precision\": \"%s\"", t->chain.spec.type == DT_BF16 ? "bf16-mixed" : "32-true");
    dt_text_printf(out, ", \"samples\": %lld, \"global_batch\": %lld, \"bytes\": {", (long long)t->train.sample_count,
                   (long long)(job->training.batch_size_per_gpu * t->micro_steps * t->size));
    for (int i = 0; i < PLAN_PURPOSE_COUNT; i++) {
        dt_text_printf(out, "%s\"%s\": %zu", i ? ", " : "", plan_purpose_name((enum plan_purpose)i), t->plan.bytes[i]);
    }
    char what[64];
    dt_text_printf(out, "}, \"total\": %zu, \"available\": %.0f}\n", plan_total(&t->plan),
                   plan_available(local_size, what, sizeof what));
}

void trainer_print_plan(const struct trainer *t, const char *device, int local_size, bool json, struct dt_text *out)
{
    if (json) {
        print_json(t, device, local_size, out);
        return;
    }
    const struct job *job = t->job;
    char text[32], other[32], what[64];
    dt_text_printf(out, "model      %s, %lld parameters in %d units%s\n", t->chain.spec.name,
                   (long long)t->chain.parameter_count, t->chain.unit_count,
                   t->chain.spec.type != DT_BF16      ? ""
                   : t->strategy.wire_type == DT_BF16 ? ", bf16"
                                                      : ", bf16, reduced as fp32");
    dt_text_printf(out, "data       %lld samples", (long long)t->train.sample_count);
    if (job->model.ops->positions != NULL) {
        dt_text_printf(out, " of %lld tokens", (long long)t->train.sequence_length);
    }
    dt_text_puts(out, "\n");
    dt_text_printf(out, "strategy   %s on %d rank%s", t->strategy.row->name, t->size, t->size == 1 ? "" : "s");
    if (t->strategy.replicas > 1) {
        dt_text_printf(out, " (%d replicas of %d shards)", t->strategy.replicas, t->shards);
    }
    if (gradients_made_whole(t)) {
        dt_text_puts(out, "\n           gradients whole until the last micro-step: accumulate_sync boundary");
    }
    dt_text_printf(out, "\nsteps      %lld of %lld samples (%lld per rank, %lld micro-step%s)\n",
                   (long long)t->total_steps, (long long)(job->training.batch_size_per_gpu * t->micro_steps * t->size),
                   (long long)job->training.batch_size_per_gpu, (long long)t->micro_steps,
                   t->micro_steps == 1 ? "" : "s");
    dt_text_printf(out, "output     %s\n\nbytes of one rank\n", job->output_dir);
    for (int i = 0; i < PLAN_PURPOSE_COUNT; i++) {
        dt_text_printf(out, "    %-16s %18zu   %10s\n", plan_purpose_name((enum plan_purpose)i), t->plan.bytes[i],
                       dt_text_bytes((double)t->plan.bytes[i], text, sizeof text));
    }
    size_t total = plan_total(&t->plan);
    dt_text_printf(out, "    %-16s %18zu   %10s\n", "total", total, dt_text_bytes((double)total, text, sizeof text));
    if (strcmp(device, "cuda") == 0) {
        dt_text_printf(out, "\na GPU holds all but staging, beside what CUDA's context, libraries and graphs take "
                            "there; staging is pinned memory of the host\n");
        return;
    }
    double have = plan_available(local_size, what, sizeof what);
    dt_text_printf(out, "\n%d rank%s on this host: %s; %s: %s\n", local_size, local_size == 1 ? "" : "s",
                   dt_text_bytes((double)total * local_size, text, sizeof text), what,
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
    t->connected_bytes = known && before > after ? (double)(before - after) : 0;
    return 0;
}

int trainer_open(struct trainer *t, struct world *w, struct dt_error *err)
{
    const struct chain *c = &t->chain;
    char bytes[32];
    t->world = w;
    t->metrics.gpu = w->gpu;
    if ((t->shards != t->size && !w->replica && world_split(w, t->shards, err) != 0) || connect_all(t, w, err) != 0 ||
        trainer_check_device(t, w, err) != 0) {
        return -1;
    }
    if (plan_open(&t->plan, w, err) != 0 || strategy_open(&t->strategy, w, &t->plan, err) != 0 ||
        dt_event_open(w->device, &t->done, err) != 0) {
        return -1;
    }
    optimizer_open(&t->optimizer, &t->plan);
    step_sums_open(&t->step_sums, &t->plan);
    trainer_step_open(t);
    t->loss_sum = plan_at(&t->plan, t->piece_loss);
    t->progress = plan_at(&t->plan, t->piece_progress);
    t->shape = (struct batch){.layout = &c->batch, .samples = c->spec.batch_size, .length = c->spec.sequence_length};
    t->micro = dt_arena_alloc(&t->arena, (size_t)t->micro_steps * sizeof *t->micro);
    if (trainer_batch_open(t, err) != 0) {
        return -1;
    }
    trainer_graph_open(t);
    for (int i = 0; i < 2; i++) {
        if (dt_event_open(w->device, &t->pending[i].done, err) != 0) {
            return -1;
        }
    }
    if (gradients_made_whole(t)) {
        metrics_say(&t->metrics,
                    "train: training.accumulate_sync=boundary keeps gradients whole on each rank (%s); "
                    "every_micro_step keeps a share",
                    dt_text_bytes((double)t->plan.bytes[PLAN_GRADIENTS], bytes, sizeof bytes));
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
    if (t->world && t->world->failed && t->world->compute) {
        (void)dt_stream_finish(t->world->compute, 30, NULL);
        (void)dt_stream_finish(t->world->communication, 30, NULL);
        (void)dt_stream_finish(t->world->gathering, 30, NULL);
    }
    trainer_batch_close(t);
    trainer_graph_close(t);
    timeline_close(t->timeline);
    dt_event_close(t->done);
    for (int i = 0; i < 2; i++) {
        dt_event_close(t->pending[i].done);
    }
    free(t->saved_path);
    free(t->model_config);
    trainer_pace_close(t);
    optimizer_clear(&t->optimizer);
    strategy_close(&t->strategy);
    plan_clear(&t->plan);
    chain_close(&t->chain);
    if (t->train.ops) {
        data_close(&t->train);
    }
    if (t->has_val) {
        data_close(&t->val);
    }
    if (t->metrics.line.data || t->metrics.path) {
        metrics_close(&t->metrics);
    }
    dt_arena_clear(&t->arena);
    if (t->hold >= 0) {
        (void)close(t->hold);
    }
    memset(t, 0, sizeof *t);
    t->hold = -1;
}
