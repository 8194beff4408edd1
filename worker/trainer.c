/* The step loop: read trainer_step first. It walks the chain once forward and once backward per micro-step and asks the strategy for
 * weights and gradients; where they are and what travels is the strategy's business. Nothing in it allocates, and the host
 * waits once, at the end of the step.
 *
 *   communication   gather 1 | gather 2 | ...               | reduce 2 | gather 0 | reduce 1 | ...| sums |
 *   compute         block 0  | block 1  | ... | head and loss | block 2 | block 1  | ...           | adamw
 */
#include "worker/trainer.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Between two looks of the host that waits. A device's peers are looked after by a thread (collectives/watch.h), and this is how soon the host hears of it. */
#define WAIT_SLICE_S 0.25
#define WAIT_SLICE_DEVICE_S 0.02
/* A mark in one number that a double holds: which one, micro-step, phase. */
enum { MARK_SHIFT = 16, MARK_MASK = 0xffff, MARK_ROUND = 0xfffff };

/* ---- signs of life, in stream order ---- */

struct mark {
    struct dt_page *page;
    enum dt_phase phase;
    int64_t micro_step;
};

static void show_mark(const struct mark *m)
{
    atomic_store(&m->page->micro_step, m->micro_step);
    dt_page_phase(m->page, m->phase);
    dt_page_pulse(m->page);
}

static int run_mark(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    (void)err;
    show_mark(args);
    return 0;
}

static void look_at_marks(struct trainer *t)
{
    int64_t number = __atomic_load_n(t->progress, __ATOMIC_RELAXED);
    if (number != t->progress_seen) {
        t->progress_seen = number;
        show_mark(&(struct mark){t->world->page, (enum dt_phase)(number & MARK_MASK), number >> MARK_SHIFT & MARK_MASK});
    }
}

/* A device with memory of its own would wait for a host function: it writes a number, which the host shows when it looks. The host may be far ahead, and sit in a
 * launch for most of a step: it looks here too, and puts nothing more in when a peer was lost. */
static void mark(struct trainer *t, enum dt_phase phase, int64_t micro_step)
{
    struct world *w = t->world;
    struct mark m = {.page = w->page, .phase = phase, .micro_step = micro_step};
    struct dt_error why = {0};
    if (w->device->host_memory) {
        dt_stream_call(w->compute, run_mark, &m, sizeof m);
        return;
    }
    int64_t number = ((++t->marks & MARK_ROUND) << MARK_SHIFT | (micro_step & MARK_MASK)) << MARK_SHIFT | phase;
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = t->progress, .count = 1, .value = (double)number, .type = DT_I64});
    look_at_marks(t);
    if (dt_comm_stopped(w->comm, &why) != 0) {
        t->lost = true;
        dt_stream_fail(w->compute, why.status, "%s", why.text);
    }
}

static int poll_peers(struct world *w, struct dt_error *err)
{
    struct dt_comm *all[] = {w->comm, w->shard != w->comm ? w->shard : NULL, w->replica};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (all[i] != NULL && dt_comm_poll(all[i], err) != 0) {
            return -1;
        }
    }
    return 0;
}

/* The host waits for the compute stream; meanwhile it looks at peers, orders and the clock. */
static int await_compute(struct trainer *t, const char *what, struct dt_error *err)
{
    struct world *w = t->world;
    double begin_s = dt_now_s(), limit_s = t->size == 1 ? t->job->training.step_timeout_s : 0; /* of many ranks the agent finds the silent one */
    double slice_s = w->device->host_memory ? WAIT_SLICE_S : WAIT_SLICE_DEVICE_S;
    dt_event_record(t->done, w->compute);
    while (dt_event_sync(t->done, slice_s, err) != 0) {
        if (err->status != DT_TIMEOUT || dt_stream_failed(w->compute, err)) { /* why it failed, not that time went by */
            return -1;
        }
        look_at_marks(t);
        if (poll_peers(w, err) != 0) {
            return -1;
        }
        if (atomic_load(&w->page->order) == DT_ORDER_ABORT) {
            return dt_fail(err, DT_STOPPED, "rank %d: %s: told to stop, the round is over", t->rank, what);
        }
        if (limit_s > 0 && dt_now_s() - begin_s > limit_s) {
            return dt_fail(err, DT_TIMEOUT, "rank %d: %s: not done after %.1f s (training.step_timeout)", t->rank, what, limit_s);
        }
    }
    look_at_marks(t);
    /* A stream on a device is let go when a peer is lost: then it ran dry, and what it computed is nothing. */
    return w->device->host_memory ? 0 : poll_peers(w, err);
}

int trainer_settle(struct trainer *t, const char *what, struct dt_error *err)
{
    strategy_land(&t->strategy);
    return await_compute(t, what, err);
}

/* ---- one micro-step ---- */

static struct pass new_pass(struct trainer *t, enum pass_phase phase, int block, const struct batch *batch)
{
    return (struct pass){
        .phase = phase,
        .stream = t->world->compute,
        .kernels = t->world->device->kernels,
        .batch = batch,
        .kept = t->kept[block],
        .saved = t->saved[block],
        .scratch = t->scratch,
        .grad_type = t->strategy.grad_type,
    };
}

/* The pair of the block before `block`: one pair of buffers serves all blocks, each overwrites what it has read. */
static void set_input(struct trainer *t, struct pass *p, int block)
{
    p->x_residual = block > 0 ? t->residual : NULL;
    p->x_branch = block > 0 && t->chain.blocks[block - 1].branch_out ? t->branch : NULL;
}

/* Runs all blocks, but in training not the last: its work is in backward. */
static void forward(struct trainer *t, enum pass_phase phase, const struct batch *batch, double *loss_sum)
{
    struct strategy *s = &t->strategy;
    const struct weights_ops *weights = s->weights;
    const struct chain *c = &t->chain;
    int count = phase == PASS_EVAL ? c->block_count : c->block_count - 1;
    for (int i = 0; i < count && !t->lost; i++) {
        const struct block *b = &c->blocks[i];
        const struct unit *u = &c->units[b->unit];
        weights->fetch(s, b->unit);
        if (s->forward_prefetch && i + 1 < count) {
            weights->fetch(s, c->blocks[i + 1].unit);
        }
        struct pass p = new_pass(t, phase, i, batch);
        p.weights = weights->get(s, b->unit);
        p.y_residual = t->residual;
        p.y_branch = t->branch;
        p.loss_sum = loss_sum;
        set_input(t, &p, i);
        strategy_note(s, 'F', b->unit);
        b->ops->forward(b, &p);
        /* Backward comes from the other end: what it needs first stays. */
        bool stays = phase != PASS_EVAL && (s->keep_after_forward || u->shared || i + 1 == count);
        if (i == u->last_use && !stays) {
            weights->drop(s, b->unit);
        }
    }
}

static void backward(struct trainer *t, int64_t micro_step, int64_t micro_steps)
{
    struct strategy *s = &t->strategy;
    const struct weights_ops *weights = s->weights;
    const struct chain *c = &t->chain;
    const struct batch *batch = &t->batches[micro_step];
    bool last_micro_step = micro_step + 1 == micro_steps;
    double scale = 1;
    if (t->job->training.loss_normalization == LOSS_LOCAL_MEAN) {
        scale = batch->valid_count > 0 ? 1.0 / (double)batch->valid_count : 0;
    }
    for (int i = c->block_count - 1; i >= 0 && !t->lost; i--) {
        const struct block *b = &c->blocks[i];
        bool last_block = i + 1 == c->block_count;
        weights->fetch(s, b->unit);
        if (s->prefetch == PREFETCH_PRE && i > 0) {
            weights->fetch(s, c->blocks[i - 1].unit);
        }
        struct pass p = new_pass(t, PASS_RECOMPUTE, i, batch);
        p.weights = weights->get(s, b->unit);
        strategy_note(s, 'B', b->unit);
        if (b->recompute) {
            b->ops->forward(b, &p);
        }
        p.phase = PASS_BACKWARD;
        p.grads = s->grads->get(s, b->unit, micro_step, &p.accumulate);
        p.dy = last_block ? NULL : t->gradient;
        p.dx = i > 0 ? t->gradient : NULL;
        if (last_block) {
            set_input(t, &p, i);
            p.loss_scale = scale;
            p.loss_sum = &t->loss_sum[micro_step];
        }
        b->ops->backward(b, &p);
        mark(t, DT_PHASE_BACKWARD, micro_step);
        if (s->prefetch == PREFETCH_POST && i > 0) {
            weights->fetch(s, c->blocks[i - 1].unit);
        }
        if (i == c->units[b->unit].first_use) {
            s->grads->reduce(s, b->unit, last_micro_step);
            /* Kept weights stay for the next micro-step unless gradients travel at each one anyway. */
            if (!s->keep_after_forward || s->reduce_every || last_micro_step) {
                weights->drop(s, b->unit);
            }
        }
    }
}

/* ---- batches ---- */

/* Decides where this step's micro-steps take their samples; returns how many there are. The rest of an epoch that fills no
 * micro-batch of all ranks is left out; what is left of a step at its end is up to partial_accumulation. */
static int64_t place_micro_steps(struct trainer *t)
{
    enum partial_accumulation partial = t->job->training.partial_accumulation;
    int64_t samples = t->job->training.batch_size_per_gpu * t->size;
    int64_t room = (t->train.sample_count - t->position) / samples, n = 0;
    if (room <= 0 || (room < t->micro_steps && partial == PARTIAL_DROP)) {
        t->epoch++;
        t->position = 0;
        room = t->train.sample_count / samples;
    }
    while (n < t->micro_steps) {
        if (room == 0) {
            if (partial != PARTIAL_CARRY) {
                break;
            }
            t->epoch++;
            t->position = 0;
            room = t->train.sample_count / samples;
        }
        t->micro[n++] = (struct trainer_micro){.epoch = t->epoch, .position = t->position};
        t->position += samples;
        room--;
    }
    return n;
}

/* The loader fills host memory, one copy in stream order brings ids and labels to the device. Each step ends with a wait, so nothing is copied from it now. */
static void read_batch(struct trainer *t, const struct data_source *from, const struct sampler *order, const struct trainer_micro *at, int64_t j)
{
    struct batch *b = &t->batches[j];
    int64_t elements = b->batch_size * b->sequence_length;
    int32_t *ids = t->host_batch + 2 * j * elements, *labels = ids + elements;
    b->valid_count = t->valid[j] = data_batch(from, order, at->epoch, at->position, t->rank, t->size, b->batch_size, ids, labels);
    dt_stream_copy(t->world->compute, t->device_batch + 2 * j * elements, ids, (size_t)(2 * elements) * sizeof *ids);
}

/* ---- the step ---- */

int trainer_step(struct trainer *t, struct trainer_result *out, struct dt_error *err)
{
    struct world *w = t->world;
    struct strategy *s = &t->strategy;
    double begin_s = dt_now_s(), rate = schedule_rate(&t->schedule, t->step);
    int64_t count = place_micro_steps(t);
    bool riders = t->pace_due;
    for (int64_t j = 0; j < count; j++) {
        read_batch(t, &t->train, &t->order, &t->micro[j], j);
    }
    double data_s = dt_now_s() - begin_s;

    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = t->loss_sum, .count = count, .type = DT_F64});
    for (int64_t j = 0; j < count && !t->lost; j++) {
        mark(t, DT_PHASE_FORWARD, j);
        forward(t, PASS_FORWARD, &t->batches[j], NULL);
        mark(t, DT_PHASE_BACKWARD, j);
        backward(t, j, count);
    }
    strategy_land(s);

    mark(t, DT_PHASE_STEP, count);
    struct clip_input sums = {.loss_sum = t->loss_sum,
                              .valid_count = t->valid,
                              .micro_steps = count,
                              .max_norm = t->job->training.max_grad_norm,
                              .normalization = t->job->training.loss_normalization,
                              .riders = riders ? t->pace.block_ns : NULL,
                              .stop = atomic_load(&w->page->order) == DT_ORDER_STOP};
    clip_start(&t->clip, &sums);
    optimizer_step(&t->optimizer, rate, t->clip.factor);
    s->weights->publish(s);

    char what[48];
    snprintf(what, sizeof what, "step %lld", (long long)t->step + 1);
    if (await_compute(t, what, err) != 0) {
        return -1;
    }
    const struct clip_result *r = clip_read(&t->clip);
    if (r->bad_rank >= 0) {
        return dt_fail(err, DT_INVALID, "rank %d: step %lld: the loss is not finite; lower training.learning_rate or look at the data", r->bad_rank,
                       (long long)t->step + 1);
    }
    if (!r->norm_finite) {
        return dt_fail(err, DT_INVALID, "rank %d: step %lld: the gradient is not finite; lower training.learning_rate or look at the data", t->rank,
                       (long long)t->step + 1);
    }
    t->step++;
    t->stop_wanted = r->stop_count > 0;
    t->tokens += count * t->size * t->job->training.batch_size_per_gpu * t->train.sequence_length;
    atomic_store(&w->page->step, t->step);
    double now_s = dt_now_s();
    trainer_pace_keep(t, begin_s, data_s, now_s);
    *out = (struct trainer_result){.loss = r->loss,
                                   .grad_norm = r->grad_norm,
                                   .lr = rate,
                                   .step_s = now_s - begin_s,
                                   .valid_count = r->valid_count,
                                   .micro_steps = count,
                                   .pace = riders ? clip_riders(&t->clip) : NULL};
    return 0;
}

int trainer_evaluate(struct trainer *t, double *loss, struct dt_error *err)
{
    struct world *w = t->world;
    int64_t batch_size = t->job->training.batch_size_per_gpu, samples = batch_size * t->size;
    int64_t count = (t->val.sample_count + samples - 1) / samples, limit = t->job->training.eval_batches;
    count = limit > 0 && limit < count ? limit : count;
    struct batch *batch = &t->batches[0]; /* training's first batch: it is read anew at the next step */
    int64_t valid = 0;
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = t->loss_sum, .count = 1, .type = DT_F64});
    for (int64_t i = 0; i < count; i++) {
        read_batch(t, &t->val, &t->val_order, &(struct trainer_micro){.position = i * samples}, 0);
        valid += batch->valid_count;
        mark(t, DT_PHASE_EVAL, i);
        forward(t, PASS_EVAL, batch, t->loss_sum);
        /* The sums so far, of all ranks: the last are the result. With them travels the wish to stop, or a stop would wait for the end
         * of a long evaluation. The next batch lies where this one does, so the host waits. */
        t->valid[0] = valid;
        clip_start_sum(
            &t->clip, &(struct clip_input){
                          .loss_sum = t->loss_sum, .valid_count = t->valid, .micro_steps = 1, .stop = atomic_load(&w->page->order) == DT_ORDER_STOP});
        if (await_compute(t, "evaluation", err) != 0) {
            return -1;
        }
        if (clip_read(&t->clip)->stop_count > 0 && i + 1 < count) {
            t->stop_wanted = true;
            *loss = NAN;
            return 0;
        }
    }
    *loss = count > 0 ? clip_read(&t->clip)->loss : 0;
    return 0;
}

/* ---- the run ---- */

#define START_LIMIT_S 600.0
#define FOR_EVER_S 1e9
#define STEP_LIMIT_S 60.0
#define OWN_WORD_S 1.0 /* a lone rank looks at its clock itself and says where it is: the agent, who looks too, leaves it the first word */

/* Tells the agent how long the pulse may stand still: training.step_timeout, otherwise by the longest step so far. */
static void set_pulse_limit(struct trainer *t, double at_least_s)
{
    double limit_s = t->job->training.step_timeout_s;
    if (limit_s > 0) {
        limit_s += t->size == 1 ? OWN_WORD_S : 0;
    } else {
        limit_s = t->longest_step_s > 0 ? fmax(STEP_LIMIT_S, 5 * t->longest_step_s) : START_LIMIT_S;
    }
    limit_s = fmax(limit_s, at_least_s);
    atomic_store(&t->world->page->pulse_limit_ms, (uint32_t)fmin(limit_s * 1e3, 4e9));
    dt_page_pulse(t->world->page);
}

#define PEAK_SIDE 384
#define PEAK_MEASURE_S 0.01

/* FLOP/s of this rank's device in a square product of the weights' type, the best of a few ms: what "mfu" is a share of. NaN when it could not
 * be measured. */
static double measure_peak(struct trainer *t)
{
    struct world *w = t->world;
    enum dt_dtype type = t->chain.spec.type;
    size_t bytes = (size_t)PEAK_SIDE * PEAK_SIDE * dt_dtype_size(type);
    char *x = NULL;
    struct dt_error err;
    if (type == DT_F64 || dt_device_alloc(w->device, DT_MEMORY_DEVICE, 3 * bytes, (void **)&x, &err) != 0) {
        return NAN;
    }
    struct dt_matmul_args product = {.c = x + 2 * bytes, .a = x, .b = x + bytes, .type = type, .c_type = type};
    product.m = product.n = product.k = PEAK_SIDE;
    double until_s = dt_now_s() + PEAK_MEASURE_S, best_s = INFINITY;
    for (int i = 0; i < 3 || dt_now_s() < until_s; i++) {
        double begin_s = dt_now_s();
        w->device->kernels->matmul(w->compute, &product);
        if (trainer_settle(t, "measuring", &err) != 0) {
            best_s = NAN;
            break;
        }
        best_s = fmin(best_s, dt_now_s() - begin_s);
    }
    dt_device_free(w->device, DT_MEMORY_DEVICE, x, 3 * bytes);
    return 2.0 * PEAK_SIDE * PEAK_SIDE * PEAK_SIDE / best_s;
}

/* Of a step's forward and backward, computing again not counted: 6 per weight that a product uses (the token embedding is the head), and the
 * causal half of attention. */
static double flops_per_token(const struct chain *c)
{
    const struct model_spec *m = &c->spec;
    return 6.0 * (double)(c->parameter_count - m->positions * m->channels) + 6.0 * (double)(m->layers * m->channels * m->sequence_length);
}

static struct metrics_step describe(const struct trainer *t, const struct trainer_result *r)
{
    int64_t tokens = r->micro_steps * t->size * t->job->training.batch_size_per_gpu * t->train.sequence_length;
    return (struct metrics_step){
        .step = t->step,
        .total_steps = t->total_steps,
        .epoch = (double)t->epoch + (double)t->position / (double)t->train.sample_count,
        .tokens = t->tokens,
        .loss = r->loss,
        .grad_norm = r->grad_norm,
        .lr = r->lr,
        .step_s = r->step_s,
        .tokens_per_s = r->step_s > 0 ? (double)tokens / r->step_s : 0,
        .mfu = (double)tokens * flops_per_token(&t->chain) / r->step_s / (t->peak_flops * t->size),
        .memory_bytes = metrics_memory(),
        .round = t->world->round,
    };
}

static bool due(int64_t step, int64_t interval)
{
    return interval > 0 && step % interval == 0;
}

#define SECOND_TRY_S 1.0
#define TOLD_S 60.0 /* all ranks learn at about the same time that the last save failed */

/* "reason; needs 1.2 GiB, 0.3 GiB free there" */
static void add_room(struct trainer *t, struct dt_error *err)
{
    char need[32], left[32] = "an unknown number of bytes";
    double free_bytes = dt_file_free_bytes(t->job->checkpointing.checkpoint_dir); /* after the try was removed */
    dt_text_bytes(trainer_checkpoint_bytes(t), need, sizeof need);
    if (free_bytes >= 0) {
        dt_text_bytes(free_bytes, left, sizeof left);
    }
    size_t used = strlen(err->text);
    (void)snprintf(err->text + used, sizeof err->text - used, "; needs %s, %s free there", need, left);
}

void trainer_say_cause(struct trainer *t, const struct dt_error *why)
{
    (world_tell_cause(t->world, why) ? metrics_log : metrics_say)(&t->metrics, "train: %s", why->text);
    t->world->told = true;
}

/* Saves. What the disk refuses costs a warning, and training goes on to the next interval; the last save has none after it, so it is tried
 * twice, and then the run ends as one that fails the same way again: the checkpoint before is where it continues. */
static int save(struct trainer *t, bool last, struct dt_error *err)
{
    dt_page_phase(t->world->page, DT_PHASE_SAVE);
    double limit_s = t->job->checkpointing.save_timeout_s;
    set_pulse_limit(t, limit_s > 0 ? fmax(START_LIMIT_S, limit_s) : FOR_EVER_S);
    int64_t before = t->saved_step;
    int rc = trainer_save(t, err);
    if (rc != 0 && !t->lost && trainer_disk_refused(err) && last) {
        metrics_log(&t->metrics, "train: %s; trying once more", err->text);
        dt_sleep_s(SECOND_TRY_S);
        rc = trainer_save(t, err);
    }
    set_pulse_limit(t, 0);
    if (rc == 0 || t->lost || !trainer_disk_refused(err)) {
        return rc;
    }
    char fields[96];
    snprintf(fields, sizeof fields, "\"step\": %lld, \"round\": %d", (long long)t->step, t->world->round);
    metrics_event(&t->metrics, "save_failed", fields);
    if (err->status == DT_FULL) { /* in what else a disk refuses, its size plays no part */
        add_room(t, err);
    }
    if (!last) {
        metrics_say(&t->metrics, "train: warning: %s; training goes on, the next try is at the next interval", err->text);
        return 0;
    }
    char where[64] = "from the beginning";
    if (before >= 0) {
        snprintf(where, sizeof where, "at step %lld", (long long)before);
    }
    size_t used = strlen(err->text);
    (void)snprintf(err->text + used, sizeof err->text - used, "; put that right, and the same command continues %s", where);
    err->status = DT_INVALID;
    trainer_say_cause(t, err); /* all ranks know */
    struct dt_text said;
    dt_text_init(&said);
    (void)trainer_share(t, "train/told", &said, NULL, TOLD_S,
                        &(struct dt_error){0}); /* fails when the end of rank 0 was seen first: it has said it */
    dt_text_clear(&said);
    return -1;
}

/* What was planned beside what the process holds once everything has been touched. */
static void compare_memory(struct trainer *t, double measured_bytes)
{
    char fields[96];
    snprintf(fields, sizeof fields, "\"planned_bytes\": %zu, \"measured_bytes\": %.0f, \"round\": %d", plan_total(&t->plan), measured_bytes,
             t->world->round);
    metrics_event(&t->metrics, "memory", fields);
}

/* The evaluation that is due at this step. A stop leaves it due: whoever goes on from here begins with it. */
static int evaluate(struct trainer *t, const struct metrics_step *m, struct dt_error *err)
{
    double loss;
    if (!t->eval_due || t->stop_wanted) {
        return 0;
    }
    if (trainer_evaluate(t, &loss, err) != 0) {
        return -1;
    }
    if (!t->stop_wanted) {
        t->eval_due = false;
        metrics_val(&t->metrics, m, loss);
    }
    return 0;
}

static bool eval_falls_on(const struct trainer *t, int64_t step)
{
    return t->has_val && (due(step, t->job->training.eval_every_n_steps) || step >= t->total_steps);
}

static int train(struct trainer *t, const struct trainer_hooks *hooks, struct dt_error *err)
{
    const struct job *job = t->job;
    bool files = !hooks->no_files;
    int64_t steps_here = 0;
    t->peak_flops = t->rank == 0 && files ? measure_peak(t) : NAN;
    set_pulse_limit(t, 0);
    struct metrics_step m = {.step = t->step, .total_steps = t->total_steps, .round = t->world->round};
    if (evaluate(t, &m, err) != 0) {
        return -1;
    }
    trainer_pace_open(t);
    while (t->step < t->total_steps && !t->stop_wanted) {
        struct trainer_result r;
        if (trainer_step(t, &r, err) != 0) {
            return -1;
        }
        bool end = t->step >= t->total_steps;
        trainer_pace(t, r.pace);
        t->longest_step_s = fmax(t->longest_step_s, r.step_s);
        set_pulse_limit(t, 0);
        m = describe(t, &r);
        if (++steps_here == 3) {
            compare_memory(t, m.memory_bytes);
        }
        metrics_step(&t->metrics, &m, due(t->step, job->logging.log_every_n_steps) || end);
        if (hooks->after_step) {
            hooks->after_step(t, &r, hooks->context);
        }
        bool between = t->eval_due = eval_falls_on(t, t->step);
        if (evaluate(t, &m, err) != 0) {
            return -1;
        }
        if (files && due(t->step, job->checkpointing.save_every_n_steps) && !end && !t->stop_wanted) {
            if (save(t, false, err) != 0) {
                return -1;
            }
            between = true;
        }
        if (between) {
            pace_skip(&t->pace, dt_now_s(), t->world->compute->waited_s);
        }
    }
    if (files && t->saved_step != t->step && save(t, true, err) != 0) {
        return -1;
    }
    return 0;
}

/* A shard group per host is what hybrid rows do unless told otherwise; with hosts of different sizes each would have another idea of the groups. */
static int check_hosts(const struct world *w, const struct job *job, struct dt_error *err)
{
    const struct strategy_row *row = strategy_find(job->training.strategy, w->size, err);
    if (row == NULL) {
        return -1;
    }
    if (row->group == GROUP_NODE && job->fsdp.device_mesh[0] == 0 && job->fsdp.device_mesh[1] == 0 && w->uneven[0] != '\0') {
        return dt_fail(
            err, DT_INVALID,
            "fsdp.device_mesh: not given, and the hosts have %s ranks: a shard group per host needs as many on each; give [replicas, shards]",
            w->uneven);
    }
    return 0;
}

int trainer_run(struct world *w, const struct job *job, const struct trainer_hooks *hooks, int *exit_code, struct dt_error *err)
{
    static const struct trainer_hooks none;
    hooks = hooks ? hooks : &none;
    struct trainer t;
    int rc = -1;
    if (check_hosts(w, job, err) != 0) {
        return -1;
    }
    if (trainer_prepare(&t, job, w->rank, w->size, w->local_size, w->device->real, !w->device->host_memory, err) != 0 ||
        trainer_check_memory(&t, w->device, 1, err) != 0) { /* the others' memory may be taken already */
        goto out;
    }
    metrics_open(&t.metrics, hooks->no_files ? NULL : job->output_dir, w->rank, hooks->quiet);
    metrics_log(&t.metrics, "train %s: rank %d of %d, pid %d, round %d", DT_VERSION, w->rank, w->size, (int)getpid(), w->round);
    if (trainer_products(&t, w, err) != 0 || trainer_open(&t, w, err) != 0) {
        goto out;
    }
    bool found = false;
    set_pulse_limit(&t, 0); /* reading shows a pulse; who does not read is found */
    if (!hooks->no_files && (trainer_resume(&t, &found, err) != 0 || trainer_write_folder(&t, err) != 0)) {
        goto out;
    }
    if (!hooks->no_files) {
        trainer_check_disk(&t);
    }
    bool evaluated;
    if (metrics_cut(&t.metrics, t.step, &evaluated, err) != 0 || (found && trainer_agree(&t, "train/evaluated", &evaluated, err) != 0)) {
        goto out;
    }
    t.eval_due = !evaluated && (found || t.total_steps == 0) && eval_falls_on(&t, t.step);
    if (!found && trainer_init_weights(&t, err) != 0) {
        goto out;
    }
    if (found && t.step >= t.total_steps && !t.eval_due) {
        metrics_say(&t.metrics, "train: %s: finished at step %lld; --fresh begins anew", job->output_dir, (long long)t.step);
        t.finished_before = true;
    } else if (train(&t, hooks, err) != 0) {
        goto out;
    }
    set_pulse_limit(&t, START_LIMIT_S);
    *exit_code = t.step >= t.total_steps && !t.eval_due ? DT_EXIT_DONE : DT_EXIT_STOPPED;
    if (*exit_code == DT_EXIT_DONE && !hooks->no_files && w->rank == 0 && trainer_export(&t, err) != 0) {
        goto out;
    }
    if (!t.finished_before) {
        metrics_say(&t.metrics,
                    *exit_code == DT_EXIT_DONE ? "train: done at step %lld" : "train: stopped at step %lld, saved; the same command continues",
                    (long long)t.step);
    }
    if (trainer_settle(&t, "end", err) != 0) {
        goto out;
    }
    if (hooks->at_end) {
        hooks->at_end(&t, hooks->context);
    }
    rc = 0;
out:
    if (rc != 0) {
        w->failed = true;
        if (!w->told) {
            metrics_log(&t.metrics, "train: %s", err->text);
        }
    }
    trainer_close(&t);
    return rc;
}

bool trainer_disk_refused(const struct dt_error *err)
{
    return err->status == DT_FULL || err->status == DT_IO;
}

int trainer_exit_code(const struct dt_error *err)
{
    switch (err->status) {
    case DT_TIMEOUT:
    case DT_PEER:
    case DT_STOPPED:
    case DT_IO:
    case DT_FULL:
        return DT_EXIT_TEMPORARY;
    case DT_IN_USE: /* as the look before the start would have found, had the other begun a moment earlier */
        return DT_EXIT_USAGE;
    default:
        return DT_EXIT_PERMANENT;
    }
}
