/* Threads that each open a world over one local store and run the trainer. Their results (losses,
 * weights by logical element) are gathered in shared memory, so that any two strategies and world
 * sizes can be compared. */
#include "ranks.h"

#include "base/file.h"

#include "worker/engine/pinned_window.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { SEQUENCE = 8, VOCABULARY = 40 };

static void write_shard(const char *name, int sample_count, unsigned seed)
{
    int tokens = sample_count * SEQUENCE + 1;
    size_t size = 1024 + (size_t)tokens * 2;
    char *bytes = dt_alloc(size), *path = dt_format("%s/%s", folder, name);
    int32_t header[3] = {20240520, 1, tokens};
    memcpy(bytes, header, sizeof header);
    uint16_t *out = (uint16_t *)(void *)(bytes + 1024);
    for (int i = 0; i < tokens; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = (uint16_t)((seed >> 16) % (i % 3 ? 9 : VOCABULARY));
    }
    struct dt_error err;
    if (dt_file_write(path, bytes, size, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    free(path);
    free(bytes);
}

int ranks_setup(void **state)
{
    if (folder_setup(state) != 0) {
        return -1;
    }
    write_shard("train.bin", 96, 1);
    write_shard("val.bin", 13, 2);
    return 0;
}

struct gpt2 *ranks_model(struct job *job)
{
    return (struct gpt2 *)(void *)job->model.sizes.bytes;
}

void ranks_job(struct job *job)
{
    memset(job, 0, sizeof *job);
    dt_arena_init(&job->arena);
    job->path = "test.json";
    job->name = "test";
    job->output_dir = dt_arena_printf(&job->arena, "%s/run", folder);
    job->model = (struct job_model){.name = "gpt2", .ops = model_find("gpt2")};
    *ranks_model(job) = (struct gpt2){.tie_word_embeddings = true,
                                      .n_layer = 2,
                                      .n_head = 2,
                                      .n_embd = 16,
                                      .head.num_labels = 2,
                                      .n_positions = SEQUENCE,
                                      .vocab_size = VOCABULARY,
                                      .layer_norm_epsilon = 1e-5,
                                      .initializer_range = 0.02};
    job->data =
        (struct job_data){.train = dt_source_alone(&job->arena, dt_arena_printf(&job->arena, "%s/train.bin", folder)),
                          .format = "tokens",
                          .sequence_length = SEQUENCE,
                          .shuffle = true};
    job->fsdp = (struct job_fsdp){.layers_per_unit = 1,
                                  .prefetch_bucket_size = -1,
                                  .max_live_parameters = -1,
                                  .model_persistence_threshold = -1,
                                  .overlap_comm = true};
    job->training = (struct job_training){.strategy = "ddp",
                                          .batch_size_per_gpu = 2,
                                          .gradient_accumulation_steps = 1,
                                          .max_steps = 3,
                                          .learning_rate = 1e-2,
                                          .warmup_steps = 1,
                                          .lr_scheduler_type = "linear",
                                          .weight_decay = 0.1,
                                          .max_grad_norm = 0.5,
                                          .seed = 7,
                                          .loss_normalization = LOSS_GLOBAL_TOKENS,
                                          .device = "cpu",
                                          .collective_timeout_s = 60,
                                          .divide_by_initial_world_size = true,
                                          .threads = 1};
    job->optimizer = (struct job_optimizer){
        .name = "adamw", .row = optimizer_find("adamw"), .numbers = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};
    job->loss_scaling = (struct scaler_settings){.algorithm = "torch",
                                                 .initial_scale_power = 16,
                                                 .loss_scale_window = 1000,
                                                 .hysteresis = 2,
                                                 .min_loss_scale = -1,
                                                 .growth_factor = 2,
                                                 .backoff_factor = 0.5,
                                                 .growth_interval = 2000};
    job->ddp.first_bucket_mb = 1;
    job->power_sgd =
        (struct job_power_sgd){.matrix_approximation_rank = 1, .min_compression_rate = 2, .warm_start = true};
    job->local_sgd.period = 1;
    job->recompute = (struct job_recompute){.every_n_layers = 1, .level = RECOMPUTE_BLOCK};
    job->checkpointing =
        (struct job_checkpointing){.keep_last_n = 3,
                                   .resume = "auto",
                                   .checkpoint_dir = dt_arena_printf(&job->arena, "%s/run/checkpoints", folder)};
    job->export = (struct job_export){.dtype = "float32", .max_shard_size = "5GB"};
    job->logging.log_every_n_steps = 1;
}

void ranks_muon(struct job *job)
{
    job->optimizer = (struct job_optimizer){
        .name = "muon",
        .row = optimizer_find("muon"),
        .numbers = {.momentum = 0.95, .nesterov = true, .ns_steps = 5, .eps = 1e-7, .adjust = MUON_MATCH_RMS_ADAMW},
        .rest = job->optimizer.numbers};
}

struct shared {
    const struct job *job;
    const struct ranks_options *options;
    struct ranks_outcome *out;
    struct dt_store_local *store;
    int size;
    pthread_mutex_t lock;
};

struct rank {
    struct shared *shared;
    int rank;
    int64_t step; /* the last one that was reported */
};

static int64_t started(const struct dt_comm *c, int64_t *of, int64_t *bytes)
{
    int64_t n = 0;
    for (int i = 0; i < DT_COLL_COUNT; i++) {
        n += c->stats.count[i];
        of[i] += c->stats.count[i];
        bytes[i] += c->stats.bytes[i];
    }
    return n;
}

static void count_collectives(struct trainer *t, struct ranks_outcome *out)
{
    memset(out->collectives_of, 0, sizeof out->collectives_of);
    memset(out->bytes_of, 0, sizeof out->bytes_of);
    struct dt_comm *all[WORLD_COMMS_MAX];
    int count = world_comms(t->world, all);
    out->collectives = 0;
    for (int i = 0; i < count; i++) {
        out->collectives += started(all[i], out->collectives_of, out->bytes_of);
    }
}

static void after_step(struct rank *self, const struct report *r)
{
    struct trainer *t = r->of;
    const struct ranks_options *o = self->shared->options;
    struct ranks_outcome *out = self->shared->out;
    if (self->rank == 0 && out->step_count < RANKS_STEPS_MAX) {
        out->loss[out->step_count] = r->loss;
        out->norm[out->step_count] = r->grad_norm;
        out->lr[out->step_count++] = r->lr;
        count_collectives(t, out);
        out->ahead = t->stepper.begun - t->run.step > out->ahead ? t->stepper.begun - t->run.step : out->ahead;
        out->read_before += t->stepper.begun > t->run.step && t->feeds.feed[t->stepper.begun % 2].full;
        static _Thread_local struct strategy_trace trace;
        if (o->trace) {
            size_t used = 0;
            out->trace[0] = '\0';
            for (int i = 0; t->strategy.trace && i < trace.count && used + 8 < sizeof out->trace; i++) {
                used += (size_t)snprintf(out->trace + used, sizeof out->trace - used, "%s%c%d", i ? " " : "",
                                         trace.entries[i].what, trace.entries[i].unit);
            }
            trace.count = 0;
            t->strategy.trace = &trace;
        }
    }
    if (o->evaluate) {
        struct trainer_evaluation e;
        struct dt_error err;
        bool known = trainer_evaluate(t, &t->feeds.val[0], &e, &err) == 0;
        if (self->rank == 0) {
            out->val_loss = known ? e.loss : NAN;
        }
    }
    if (o->on_step) {
        o->on_step(self->rank, t->run.step);
    }
    if (o->stop_after > 0 && t->run.step == o->stop_after && self->rank == o->stop_rank) {
        atomic_store(&t->world->page->order, DT_ORDER_STOP);
    }
    if (o->poison_step > 0 && t->run.step == o->poison_step && self->rank == o->poison_rank) {
        for (int u = 0; u < t->chain.unit_count; u++) {
            int64_t first, count;
            struct home_part part = strategy_resident(&t->strategy, u, &first, &count);
            *(float *)home_bring(part, sizeof(float), HOME_CHANGE, t->world->compute) = NAN;
            home_back(part, sizeof(float), t->world->compute);
        }
    }
    if (o->flip_step > 0 && t->run.step == o->flip_step && self->rank == o->flip_rank) {
        int64_t first, count;
        struct home_part part = strategy_resident(&t->strategy, t->chain.unit_count - 1, &first, &count);
        *(char *)home_bring(part, 1, HOME_CHANGE, t->world->compute) ^= 1;
        home_back(part, 1, t->world->compute);
    }
}

/* Copies `count` elements to host memory, which the caller frees. A part of no home is of the buffers. */
static char *host_copy(struct trainer *t, struct home_part part, int64_t count, enum dt_dtype type)
{
    struct pinned_window window;
    struct dt_error err;
    size_t size_bytes = (size_t)count * dt_dtype_size(type);
    char *out = dt_alloc(size_bytes + 1);
    const void *at =
        part.home == NULL ? t->stepper.walk.buffers : home_bring(part, size_bytes, HOME_READ, t->world->compute);
    if (pinned_window_open(&window, t->world->device, t->world->compute, &err) != 0 ||
        pinned_window_get(&window, out, at, size_bytes, &err) != 0) {
        memset(out, 0xff, size_bytes);
    }
    pinned_window_close(&window);
    if (part.home != NULL) {
        home_back(part, size_bytes, t->world->compute);
    }
    return out;
}

static void widen(double *out, const char *values, int64_t at, enum dt_dtype type)
{
    dt_cpu_cast(&(struct dt_cast_args){out, values + (size_t)at * dt_dtype_size(type), 1, DT_F64, type});
}

static void at_end(struct rank *self, struct trainer *t)
{
    struct ranks_outcome *out = self->shared->out;
    struct strategy *s = &t->strategy;
    pthread_mutex_lock(&self->shared->lock);
    if (!out->weights) {
        out->weight_count = 0; /* with frozen weights and buffers */
        for (int i = 0; i < t->chain.tensor_count; i++) {
            out->weight_count += t->chain.tensors[i].numel;
        }
        out->weights = dt_alloc((size_t)out->weight_count * sizeof *out->weights);
        out->exact = dt_alloc((size_t)out->weight_count * sizeof *out->exact);
        out->moments = dt_alloc(DT_STATES_MAX * (size_t)out->weight_count * sizeof *out->moments);
        memset(out->weights, 0xff, (size_t)out->weight_count * sizeof *out->weights);
    }
    struct optimizer *o = &t->optimizer;
    int64_t before = 0;
    out->tensor_count = t->chain.tensor_count < 64 ? t->chain.tensor_count : 64;
    for (int i = 0; i < t->chain.tensor_count; i++) {
        const struct tensor *x = &t->chain.tensors[i];
        if (i < 64) {
            snprintf(out->tensors[i].name, sizeof out->tensors[i].name, "%s", x->name);
            out->tensors[i].first = before;
            out->tensors[i].numel = x->numel;
        }
        bool buffer = x->unit < 0, trained = !buffer && strategy_trains(s, x->unit);
        if (buffer && self->rank != 0) {
            before += x->numel;
            continue;
        }
        int64_t first = 0, count = t->chain.buffer_count, owned = 0, owned_count = count;
        struct home_part part = {NULL, 0};
        enum dt_dtype type = s->precision.buffers;
        if (!buffer) {
            strategy_share(s, x->unit, &first, &count);
            strategy_owned(s, x->unit, &owned, &owned_count);
            part = optimizer_weights(o, x->unit, 0);
            type = trained ? s->precision.masters : s->precision.compute;
        }
        char *w = host_copy(t, part, owned_count, type);
        struct span span = {0};
        bool here = tensor_span(x, owned, owned_count, &span);
        int states = trained && here ? optimizer_group_of(o, x)->states : 0;
        char *state[DT_STATES_MAX] = {NULL};
        for (int k = 0; k < states; k++) {
            state[k] = host_copy(t, optimizer_state(o, k, x->unit, span.at), span.count, s->precision.states);
        }
        for (int64_t e = 0; e < x->numel; e++) {
            int64_t at = x->offset + e;
            if (at >= first && at < first + count) {
                widen(&out->exact[before + e], w, at - owned, type);
                out->weights[before + e] = (float)out->exact[before + e];
                for (int k = 0; k < states; k++) {
                    double value;
                    widen(&value, state[k], at - owned - span.at, s->precision.states);
                    out->moments[DT_STATES_MAX * (before + e) + k] = (float)value;
                }
            }
        }
        free(w);
        for (int k = 0; k < states; k++) {
            free(state[k]);
        }
        before += x->numel;
    }
    if (self->rank == 0) {
        out->last_step = t->run.step;
        out->finished_before = t->run.finished_before;
        memcpy(out->bytes, t->memory.plan.bytes, sizeof out->bytes);
    }
    pthread_mutex_unlock(&self->shared->lock);
}

static void ranks_report(struct observer *o, const struct report *r, enum moment moment)
{
    struct rank *self = o->state;
    if (r->of != NULL && self->shared->options->on_moment != NULL) {
        self->shared->options->on_moment(self->rank, r, moment);
    }
    if (moment == MOMENT_STEP) {
        self->step = r->step;
        after_step(o->state, r);
    } else if (moment == MOMENT_END) {
        at_end(o->state, r->of);
    }
}

static unsigned ranks_vote(struct observer *o)
{
    const struct rank *self = o->state;
    const struct ranks_options *options = self->shared->options;
    return options->vote != NULL ? options->vote(self->rank, self->step) : 0;
}

static void *rank_main(void *arg)
{
    struct rank *self = arg;
    struct shared *shared = self->shared;
    struct ranks_outcome *out = shared->out;
    struct dt_error *err = &out->err[self->rank];
    struct world w;
    struct dt_store *store = NULL;
    struct world_options options = {.device = shared->options->device,
                                    .share_gpu = true,
                                    .deterministic = shared->job->training.deterministic,
                                    .attention = shared->job->training.attention,
                                    .tf32 = shared->job->training.matmul_precision == MATMUL_HIGH,
                                    .collective_timeout_s = shared->job->training.collective_timeout_s,
                                    .threads = 1};
    char host[2] = {shared->options->hosts ? shared->options->hosts[self->rank] : 0, 0};
    options.host = host[0] ? host : NULL;
    static const struct observer_ops looker = {.name = "ranks", .report = ranks_report, .vote = ranks_vote};
    const struct observers_options observers = {
        .last = &looker, .context = self, .quiet = true, .no_files = !shared->options->files};
    int rc = dt_store_open_local(&store, shared->store, NULL, err);
    if (rc == 0) {
        rc = world_open_thread(&w, &options, store, self->rank, shared->size, err);
        if (rc == 0) {
            w.round = shared->options->round;
            rc = trainer_run(&w, shared->job, &observers, &out->exit_code[self->rank], err);
        }
        world_close(&w);
    }
    out->rc[self->rank] = rc;
    return NULL;
}

void ranks_train(const struct job *job, int size, const struct ranks_options *o, struct ranks_outcome *out)
{
    static const struct ranks_options none;
    memset(out, 0, sizeof *out);
    struct shared shared = {
        .job = job, .options = o ? o : &none, .out = out, .size = size, .store = dt_store_local_open()};
    pthread_mutex_init(&shared.lock, NULL);
    pthread_t threads[RANKS_MAX];
    struct rank ranks[RANKS_MAX];
    for (int r = 0; r < size; r++) {
        ranks[r] = (struct rank){.shared = &shared, .rank = r};
        if (pthread_create(&threads[r], NULL, rank_main, &ranks[r]) != 0) {
            abort();
        }
    }
    for (int r = 0; r < size; r++) {
        pthread_join(threads[r], NULL);
    }
    dt_store_local_close(shared.store);
    pthread_mutex_destroy(&shared.lock);
    if (out->weights) {
        out->hash = XXH3_64bits(out->weights, (size_t)out->weight_count * sizeof *out->weights);
        out->moments_hash = XXH3_64bits(out->moments, DT_STATES_MAX * (size_t)out->weight_count * sizeof *out->moments);
    }
}

void ranks_clear(struct ranks_outcome *out)
{
    free(out->weights);
    free(out->exact);
    free(out->moments);
    memset(out, 0, sizeof *out);
}
