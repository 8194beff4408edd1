/* One optimizer step: read trainer_enqueue first. It walks the chain once forward and once
 * backward per micro-step and asks the strategy for weights and gradients; where they are and
 * what travels is the strategy's business. Nothing in it allocates.
 *
 *   communication                                           | reduce 2, its norm | reduce 1, its norm | ...| sums |
 *   gathering       gather 1 | gather 2 | ...               | gather 0 |                               the same stream where two are not safe
 *   compute         block 0  | block 1  | ... | head and loss | block 2 | block 1  | ...           | adamw
 *
 * The host waits once a step. For a device with memory of its own it has enqueued the next step
 * by then, and that step's batches are on their way. So a step's results are known one step
 * late, while the device goes on. Before a save, an evaluation and the end, which need a step's
 * state, nothing more is enqueued. */
#include "worker/engine/trainer.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Between two looks of the host that waits. A device's peers are looked after by a thread
 * (collectives/watch.h), and this is how soon the host hears of it. */
#define WAIT_SLICE_S 0.25
#define WAIT_SLICE_DEVICE_S 0.02
/* A mark in one number that a double holds: which one, micro-step, phase. */
enum { MARK_SHIFT = 16, MARK_MASK = 0xffff, MARK_ROUND = 0xfffff };
/* Of a device with memory of its own, how many blocks of backward have one mark: each is a kernel. */
enum { MARK_BLOCKS = 4 };
#define COPY_LOOK_S 0.0002

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

/* What the device wrote last, at whatever time. Nothing is concluded from it, so the thread
 * sanitizer, which would ask for an order, does not watch. */
__attribute__((no_sanitize("thread"))) static int64_t last_mark(const struct trainer *t)
{
    return __atomic_load_n(t->stepper.progress, __ATOMIC_RELAXED);
}

static void look_at_marks(struct trainer *t)
{
    int64_t number = last_mark(t);
    if (number != t->stepper.progress_seen) {
        t->stepper.progress_seen = number;
        show_mark(
            &(struct mark){t->world->page, (enum dt_phase)(number & MARK_MASK), number >> MARK_SHIFT & MARK_MASK});
    }
}

/* The host may be far ahead, and sit in a launch for most of a step: it looks between launches, too,
 * and puts nothing more in when a peer was lost. */
static void look_between(struct trainer *t)
{
    struct dt_error why = {0};
    look_at_marks(t);
    if (dt_comm_stopped(t->world->comm, &why) != 0) {
        t->lost = true;
        dt_stream_fail_with(t->world->compute, &why);
    }
}

static void put_number(struct trainer *t, int64_t round, enum dt_phase phase, int64_t micro_step)
{
    int64_t number = (round << MARK_SHIFT | (micro_step & MARK_MASK)) << MARK_SHIFT | phase;
    t->world->device->kernels->fill(
        t->world->compute,
        &(struct dt_fill_args){.x = t->stepper.progress, .count = 1, .value = (double)number, .type = DT_I64});
}

/* A device with memory of its own would wait for a host function: it writes a number, which the
 * host shows when it looks. */
void trainer_mark(struct trainer *t, enum dt_phase phase, int64_t micro_step)
{
    struct world *w = t->world;
    struct mark m = {.page = w->page, .phase = phase, .micro_step = micro_step};
    if (w->device->host_memory) {
        dt_stream_call(w->compute, run_mark, &m, sizeof m);
        return;
    }
    put_number(t, ++t->stepper.marks & MARK_ROUND, phase, micro_step);
    look_between(t);
}

void trainer_mark_backward(struct trainer *t)
{
    put_number(t, 0, DT_PHASE_BACKWARD, t->stepper.at.micro_step);
}

static int poll_peers(struct world *w, struct dt_error *err)
{
    struct dt_comm *all[WORLD_COMMS_MAX];
    int count = world_comms(w, all);
    for (int i = 0; i < count; i++) {
        if (dt_comm_poll(all[i], err) != 0) {
            return -1;
        }
    }
    return 0;
}

int trainer_look(struct trainer *t, const char *what, double begin_s, struct dt_error *err)
{
    /* of many ranks the agent finds the silent one */
    double limit_s = t->size == 1 ? t->job->training.step_timeout_s : 0;
    look_at_marks(t);
    if (poll_peers(t->world, err) != 0) {
        return -1;
    }
    if (atomic_load(&t->world->page->order) == DT_ORDER_ABORT) {
        (void)dt_fail(err, DT_STOPPED, "%s: told to stop, the round is over", what);
        return dt_blame(err, DT_FAULT_FAILED, t->rank);
    }
    if (limit_s > 0 && dt_now_s() - begin_s > limit_s) {
        (void)dt_fail(err, DT_TIMEOUT, "%s: not done after %.1f s (training.step_timeout)", what, limit_s);
        return dt_blame(err, DT_FAULT_FAILED, t->rank);
    }
    return 0;
}

int trainer_wait(struct trainer *t, struct dt_event *event, const char *what, struct dt_error *err)
{
    struct world *w = t->world;
    double begin_s = dt_now_s();
    double slice_s = w->device->host_memory ? WAIT_SLICE_S : WAIT_SLICE_DEVICE_S;
    while (dt_event_sync(event, slice_s, err) != 0) {
        /* why it failed, not that time went by */
        if (err->status != DT_TIMEOUT || dt_stream_failed(w->compute, err)) {
            return -1;
        }
        if (trainer_look(t, what, begin_s, err) != 0) {
            return -1;
        }
    }
    look_at_marks(t);
    /* A stream on a device is let go when a peer is lost: then it ran dry, and what it computed
     * is nothing. */
    return w->device->host_memory ? 0 : poll_peers(w, err);
}

int trainer_settle(struct trainer *t, const char *what, struct dt_error *err)
{
    strategy_land(&t->strategy);
    dt_event_record(t->stepper.done, t->world->compute);
    return trainer_wait(t, t->stepper.done, what, err);
}

/* ---- one micro-step ---- */

static int busy_sms(const struct trainer *t, const struct block *b, enum pass_phase phase)
{
    return strategy_busy_sms(&t->strategy, t->world, phase, b->index + 1 == t->chain.block_count,
                             t->stepper.at.micro_step == 0, t->stepper.at.micro_step + 1 == t->stepper.at.count);
}

static void fetch(struct trainer *t, int block)
{
    const struct block *b = &t->chain.blocks[block];
    for (int k = 0; k < b->unit_count; k++) {
        t->strategy.weights->fetch(&t->strategy, b->units[k]);
    }
}

static void note(struct trainer *t, char what, const struct block *b)
{
    for (int k = 0; k < b->unit_count; k++) {
        strategy_note(&t->strategy, what, b->units[k]);
    }
}

/* Asks for weights of the blocks that come after this one, as far as live.c says. */
static void fetch_ahead(struct trainer *t, const struct block *b, bool back, int end)
{
    int count = t->strategy.live.ahead[b->index][back];
    for (int i = 1; i <= count; i++) {
        int next = back ? b->index - i : b->index + i;
        if (next >= 0 && next < end) {
            fetch(t, next);
        }
    }
}

/* Asks for the block's weights, and for those of blocks that run next, if they are wanted early. */
static void bring_weights(struct trainer *t, const struct block *b, struct pass *p)
{
    struct strategy *s = &t->strategy;
    bool back = p->phase == PASS_RECOMPUTE;
    fetch(t, b->index);
    if (back ? s->prefetch == PREFETCH_PRE : s->forward_prefetch) {
        fetch_ahead(t, b, back, p->phase == PASS_FORWARD ? t->chain.block_count - 1 : t->chain.block_count);
    }
    for (int k = 0; k < b->unit_count; k++) {
        p->weights[k] = s->weights->get(s, b->units[k]);
    }
    note(t, back ? 'B' : 'F', b);
}

static void keep(const struct chain_walk *w, const struct block *b, enum pass_phase phase)
{
    activations_bring(w->context, b, phase);
}

static bool enter(const struct chain_walk *w, const struct block *b, struct pass *p)
{
    struct trainer *t = w->context;
    struct strategy *s = &t->strategy;
    p->batch = b->takes_batch ? p->batch : &t->stepper.shape;
    p->busy_sms = busy_sms(t, b, p->phase);
    p->kernels = t->world->device->kernels; /* a meter may have come before them since */
    if (p->phase != PASS_BACKWARD) {
        if (t->lost) {
            return false;
        }
        bring_weights(t, b, p);
        return true;
    }
    for (int k = 0; k < b->unit_count; k++) {
        if (!strategy_trains(s, b->units[k])) {
            p->grads[k] = strategy_discard(s, b->units[k]);
            continue;
        }
        p->grads[k] = s->grads->get(s, b->units[k], t->stepper.at.micro_step, &p->accumulate[k]);
    }
    return true;
}

static void run_block(const struct chain_walk *w, const struct block *b, const struct pass *p)
{
    struct trainer *t = w->context;
    const char *what = p->phase == PASS_RECOMPUTE ? "recompute" : p->phase == PASS_BACKWARD ? "backward" : "forward";
    int span = timeline_begin(t->stepper.timeline, TIMELINE_COMPUTE, p->stream, what,
                              b->layer >= 0 ? t->chain.units[b->unit].name : b->ops->name);
    trainer_run_block(t, b, p);
    timeline_end(t->stepper.timeline, span, p->stream);
}

/* Forward: weights that no later block uses go, but for those that backward, which comes from
 * the other end, needs first. */
static void leave_forward(struct trainer *t, const struct block *b, enum pass_phase phase)
{
    struct strategy *s = &t->strategy;
    for (int k = 0; k < b->unit_count; k++) {
        bool stays = phase != PASS_EVAL && strategy_stays(s, b, b->units[k]);
        if (b->index == t->chain.units[b->units[k]].last_use && !stays) {
            if (phase == PASS_FORWARD) {
                strategy_reshard(s, b->units[k]);
            }
            s->weights->drop(s, b->units[k]);
        }
    }
}

/* Backward: units that no earlier block uses are complete. Kept weights stay for the next
 * micro-step unless gradients travel at each one anyway. */
void trainer_leave_backward(struct trainer *t, const struct block *b)
{
    struct strategy *s = &t->strategy;
    bool last_micro_step = t->stepper.at.micro_step + 1 == t->stepper.at.count;
    if (s->prefetch == PREFETCH_POST) {
        fetch_ahead(t, b, true, t->chain.block_count);
    }
    for (int k = 0; k < b->unit_count; k++) {
        if (b->index != t->chain.units[b->units[k]].first_use) {
            continue;
        }
        if (strategy_trains(s, b->units[k])) {
            step_sums_add(&t->step_sums, s->grads->reduce(s, b->units[k], last_micro_step));
        }
        if (!s->live.kept[b->units[k]] || s->reduce_every || last_micro_step) {
            s->weights->drop(s, b->units[k]);
        }
    }
}

static void leave(const struct chain_walk *w, const struct block *b, const struct pass *p)
{
    struct trainer *t = w->context;
    activations_back(t, b, p->phase);
    if (p->phase != PASS_BACKWARD) {
        leave_forward(t, b, p->phase);
        return;
    }
    if (trainer_graph_queues(t)) {
        return;
    }
    if (t->world->device->host_memory || b->index % MARK_BLOCKS == 0) {
        trainer_mark(t, DT_PHASE_BACKWARD, t->stepper.at.micro_step);
    } else {
        look_between(t);
    }
    trainer_leave_backward(t, b);
}

void trainer_step_open(struct trainer *t)
{
    static const struct walk_hooks hooks = {.keep = keep, .enter = enter, .run = run_block, .leave = leave};
    const struct chain *c = &t->chain;
    void **kept = dt_arena_alloc(&t->arena, (size_t)c->block_count * sizeof *kept);
    for (int i = 0; i < c->block_count; i++) {
        kept[i] = plan_at(&t->memory.plan, t->memory.kept[i]);
    }
    t->activations.kept = kept;
    t->stepper.walk = (struct chain_walk){.chain = c,
                                          .stream = t->world->compute,
                                          .kernels = t->world->device->kernels,
                                          .grad_type = t->strategy.precision.grads,
                                          .kept = kept,
                                          .again = plan_at(&t->memory.plan, t->memory.again),
                                          .scratch = plan_at(&t->memory.plan, t->memory.scratch),
                                          .buffers = plan_at(&t->memory.plan, t->memory.buffers),
                                          .hooks = &hooks,
                                          .context = t};
    if (c->spec.norm_ranks > 1) {
        t->stepper.peers = strategy_peers(&t->strategy);
        t->stepper.walk.peers = &t->stepper.peers;
    }
    for (int i = 0; i < 2; i++) {
        t->stepper.walk.y[i] = plan_at(&t->memory.plan, t->memory.y[i]);
        t->stepper.walk.y_branch[i] = plan_at(&t->memory.plan, t->memory.branch[i]);
        t->stepper.walk.gradient[i] = plan_at(&t->memory.plan, t->memory.gradient[i]);
    }
}

/* What the gradient of a batch's summed loss is multiplied by. */
static double loss_factor(const struct trainer *t, const struct batch *b)
{
    bool local = t->job->training.loss_normalization == LOSS_LOCAL_MEAN;
    return !local ? 1 : b->weight > 0 ? 1.0 / (double)b->weight : 0;
}

/* The share of the positions of full batches that the step's batches have. */
static double computed(const struct trainer *t, const struct trainer_feed *f)
{
    int64_t positions = 0;
    for (int64_t j = 0; j < f->count; j++) {
        positions += f->batches[j].length;
    }
    return f->count > 0 ? (double)positions / (double)(f->count * t->chain.spec.sequence_length) : 1;
}

/* ---- the step ---- */

void trainer_await_copy(struct trainer *t)
{
    double begin_s = dt_now_s();
    while (atomic_load(&t->stepper.copying)) {
        dt_page_pulse(t->world->page);
        dt_sleep_s(COPY_LOOK_S);
        t->stepper.copy_wait_s = dt_now_s() - begin_s;
    }
}

size_t trainer_buffers_before(const struct trainer *t)
{
    bool skips = outliers_asked(&t->job->training) || t->strategy.precision.scaler != NULL;
    return skips ? (size_t)t->chain.buffer_count * dt_dtype_size(t->strategy.precision.buffers) : 0;
}

/* A step that may be skipped keeps the buffers as they were before its forward; one that is skipped puts them back. */
static void copy_buffers(struct trainer *t, bool back)
{
    size_t size = trainer_buffers_before(t);
    void *now = t->stepper.walk.buffers, *before = plan_at(&t->memory.plan, t->memory.buffers_before);
    if (size > 0) {
        dt_stream_copy(t->world->compute, back ? now : before, back ? before : now, size);
    }
}

/* The update, and what follows it. */
static void update(struct trainer *t, struct trainer_pending *p)
{
    struct world *w = t->world;
    trainer_await_copy(t);
    if (p->skipped) {
        copy_buffers(t, true);
        hook_forget_errors(&t->strategy);
    }
    if (!p->blank && !p->skipped) { /* or weight decay and old moments would move weights of which the step
                                     * says nothing */
        int span = timeline_begin(t->stepper.timeline, TIMELINE_COMPUTE, w->compute, "optimizer", NULL);
        optimizer_step(&t->optimizer, p->rate, t->step_sums.factor,
                       t->strategy.precision.scaler != NULL ? t->step_sums.overflow : NULL);
        timeline_end(t->stepper.timeline, span, w->compute);
    }
    if (local_sgd_falls_due(&t->strategy)) {
        local_sgd_average(&t->strategy, &t->optimizer, true, false);
        t->stepper.met = p->number;
    }
    t->strategy.weights->publish(&t->strategy);
    optimizer_ahead(&t->optimizer);
    dt_event_record(p->done, w->compute);
}

void trainer_meet(struct trainer *t)
{
    if (t->strategy.hook.apart && t->stepper.met_whole != t->run.step) {
        local_sgd_average(&t->strategy, &t->optimizer, t->stepper.met != t->run.step, true);
        t->stepper.met = t->stepper.met_whole = t->run.step;
    }
}

static bool judges(const struct trainer *t, const struct trainer_pending *p)
{
    return t->stepper.outliers.window > 0 && !p->blank;
}

void trainer_enqueue(struct trainer *t, struct trainer_feed *f, struct trainer_pending *p)
{
    struct world *w = t->world;
    struct strategy *s = &t->strategy;
    double scale = trainer_gradient_scale(t, p->loss_scale, f->count);
    trainer_graph_begin(t);
    timeline_step(t->stepper.timeline, t->stepper.begun + 1);
    hook_begin_step(s, t->stepper.begun,
                    scale * (double)f->count /
                        (trainer_gradient_scale(t, p->loss_scale, t->micro_steps) * (double)t->micro_steps));
    s->hook.blank = f->blank;
    p->number = t->stepper.begun + 1;

    copy_buffers(t, false);
    step_sums_begin(&t->step_sums);
    w->device->kernels->fill(w->compute,
                             &(struct dt_fill_args){.x = t->stepper.loss_sum, .count = f->count, .type = DT_F64});
    for (int64_t j = 0; j < f->count && !t->lost; j++) {
        const struct batch *batch = &f->batches[j];
        const struct walk_loss loss = {.scale = loss_factor(t, batch) * scale, .sum = &t->stepper.loss_sum[j]};
        t->stepper.at = (struct trainer_at){j, f->count};
        trainer_batch_number(t, f, j);
        t->stepper.shape.weight = batch->weight;
        t->stepper.shape.length = batch->length;
        if (t->job->training.broadcast_buffers && (j == 0 || s->reduce_every)) {
            strategy_send_buffers(s, t->stepper.walk.buffers, t->chain.buffer_count);
        }
        trainer_mark(t, DT_PHASE_FORWARD, j);
        trainer_graph_queue(t);
        chain_forward(&t->stepper.walk, PASS_FORWARD, batch, &loss);
        if (!trainer_graph_queues(t)) {
            trainer_mark(t, DT_PHASE_BACKWARD, j);
        }
        chain_backward(&t->stepper.walk, batch, &loss);
        trainer_graph_flush(t);
    }
    trainer_batch_used(t, f);
    strategy_land(s);

    trainer_mark(t, DT_PHASE_STEP, f->count);
    struct step_sums_input sums = {.loss_sum = t->stepper.loss_sum,
                                   .valid_count = f->valid,
                                   .micro_steps = f->count,
                                   .active = t->job->training.divide_by_initial_world_size ? 0 : f->active,
                                   .max_norm = t->job->training.max_grad_norm,
                                   .loss_scale = scale,
                                   .normalization = t->job->training.loss_normalization,
                                   .riders = p->riders ? t->stepper.pace.block_ns : NULL,
                                   .votes = observers_vote(&t->observers)};
    int span = timeline_begin(t->stepper.timeline, TIMELINE_COMPUTE, w->compute, "step sums", NULL);
    p->turn = step_sums_start(&t->step_sums, &sums);
    timeline_end(t->stepper.timeline, span, w->compute);
    p->skipped = false;
    if (judges(t, p)) {
        dt_event_record(p->done, w->compute);
        return;
    }
    update(t, p);
}

int trainer_begin(struct trainer *t, struct dt_error *err)
{
    struct trainer_pending *p = &t->stepper.pending[t->stepper.begun % 2];
    struct trainer_feed *f;
    double begin_s = dt_now_s();
    if (trainer_batch_take(t, &f, err) != 0) {
        return -1;
    }
    p->begin_s = begin_s;
    p->data_s = f->data_s;
    p->rate = trainer_rate(t, t->stepper.begun_samples);
    p->loss_scale = trainer_scale(t);
    if (schedule_moves_momentum(&t->run.schedule)) {
        double beta2 = 0;
        double momentum = horizon_momentum(&t->run.horizon, &t->run.schedule,
                                           t->stepper.begun_samples - t->run.scaler.skipped_samples, &beta2);
        optimizer_set_momentum(&t->optimizer, momentum, beta2);
    }
    const struct trainer_pending *before = &t->stepper.pending[(t->stepper.begun + 1) % 2];
    bool first = t->stepper.begun == t->run.step; /* none is in */
    p->from_epoch = first ? t->run.epoch : before->epoch;
    p->from_position = first ? t->run.position : before->position;
    p->count = f->count;
    p->computed = computed(t, f);
    p->epoch = f->epoch;
    p->position = f->position;
    p->blank = f->blank;
    p->blank_rank = f->blank_rank;
    const struct batch_split now = trainer_split(t);
    bool last = t->stepper.begun + 1 >= t->run.total_steps;
    t->stepper.begun_samples = p->samples =
        horizon_after(&t->run.horizon, &t->job->training, t->stepper.begun_samples, &now, p->epoch, p->position, last);
    p->riders = t->stepper.pace_due;
    t->stepper.pace_due = false;
    trainer_enqueue(t, f, p);
    if (judges(t, p)) {
        if (trainer_judge(t, p, err) != 0) {
            return -1;
        }
        update(t, p);
    }
    t->stepper.begun++;
    timeline_step(t->stepper.timeline, t->stepper.begun + 1);
    bool more = t->stepper.begun < t->run.total_steps && !trainer_stops(t) && !t->lost;
    return t->stepper.ahead > 0 && more ? trainer_batch_prepare(t, p->done, err) : 0;
}

/* A step is over: where its time went, for the judge of all ranks, and on the page for the agent. */
static void keep_pace(struct trainer *t, double begin_s, double data_s, double now_s)
{
    struct dt_page *page = t->world->page;
    bool complete = pace_step(&t->stepper.pace, begin_s, data_s, now_s, dt_stream_waited_s(t->world->compute));
    t->stepper.pace_due = t->stepper.pace_due || (complete && t->size > 1); /* one rank is slower than nobody */
    if (complete) {
        atomic_store(&page->data_s, (double)t->stepper.pace.block_ns[PACE_DATA] * 1e-9 / PACE_BLOCK);
        atomic_store(&page->compute_s, (double)t->stepper.pace.block_ns[PACE_COMPUTE] * 1e-9 / PACE_BLOCK);
        atomic_store(&page->communication_s, (double)t->stepper.pace.block_ns[PACE_COMMUNICATION] * 1e-9 / PACE_BLOCK);
    }
}

/* Once each: of the next ones metrics.jsonl has the number. */
static void say_blank(struct trainer *t, const struct trainer_pending *p)
{
    bool local_mean = t->job->training.loss_normalization == LOSS_LOCAL_MEAN;
    if (p->blank && t->run.blank_steps++ == 0) {
        observers_say(
            &t->observers,
            "train: step %lld: no row of its batch has a target: the weights stay as they are, in all such steps",
            (long long)t->run.step);
    } else if (!p->blank && p->blank_rank >= 0 && local_mean && !t->run.blank_rank_said) {
        t->run.blank_rank_said = true;
        observers_say(&t->observers,
                      "train: step %lld: rank %d has no target in a micro-batch, which counts as loss 0 in the mean "
                      "(training.loss_normalization "
                      "local_mean); write global_tokens for the mean over targets",
                      (long long)t->run.step, p->blank_rank);
    }
}

int trainer_finish(struct trainer *t, struct trainer_result *out, struct dt_error *err)
{
    struct world *w = t->world;
    const struct trainer_pending *p = &t->stepper.pending[t->run.step % 2];
    char what[48];
    snprintf(what, sizeof what, "step %lld", (long long)t->run.step + 1);
    if (trainer_wait(t, p->done, what, err) != 0) {
        return -1;
    }
    const struct step_sums_result *r = step_sums_read(&t->step_sums, p->turn);
    out->not_finite = r->bad_rank >= 0 || !r->norm_finite; /* if it fails */
    bool scaled = t->strategy.precision.scaler != NULL, overflow = scaled && !r->norm_finite;
    if (r->bad_rank >= 0 && !overflow) {
        (void)dt_fail(err, DT_INVALID,
                      "step %lld: the loss is not finite; lower training.learning_rate or look at the data",
                      (long long)t->run.step + 1);
        return dt_blame(err, DT_FAULT_FAILED, r->bad_rank);
    }
    if (!r->norm_finite && !scaled) {
        return trainer_gradient_broken(t, "", "lower training.learning_rate or look at the data", err);
    }
    if (p->blank && r->valid_count > 0) {
        (void)dt_fail(err, DT_INVALID,
                      "step %lld: data.train has no targets here, and on another rank it has; give all the same files",
                      (long long)t->run.step + 1);
        return dt_blame(err, DT_FAULT_FAILED, t->rank);
    }
    if (scaled && !p->blank && trainer_scale_judge(t, p, overflow, err) != 0) {
        return -1;
    }
    if (overflow) { /* the next step is not in yet */
        copy_buffers(t, true);
    }
    t->run.step++;
    t->run.epoch = p->epoch;
    t->run.position = p->position;
    t->run.horizon.samples = p->samples;
    t->run.votes |= r->votes;
    t->run.tokens += p->count * t->size * t->job->training.batch_size_per_gpu * t->feeds.train.sequence_length;
    atomic_store(&w->page->step, t->run.step);
    double now_s = dt_now_s();
    keep_pace(t, p->begin_s, p->data_s, now_s);
    say_blank(t, p);
    t->stepper.outliers.skipped += p->skipped;
    *out = (struct trainer_result){.loss = r->valid_count > 0 && r->bad_rank < 0 ? r->loss : NAN,
                                   .loss_scale = p->loss_scale,
                                   .grad_norm = r->valid_count > 0 ? r->grad_norm : NAN,
                                   .lr = p->rate,
                                   .step_s = now_s - fmax(p->begin_s, t->stepper.finished_s),
                                   .valid_count = r->valid_count,
                                   .data_wait_s = p->data_s,
                                   .micro_steps = p->count,
                                   .computed = p->computed,
                                   .pace = p->riders ? step_sums_riders(&t->step_sums, p->turn) : NULL};
    t->stepper.finished_s = now_s;
    trainer_graph_timed(t, t->run.step - 1, out->step_s);
    return 0;
}
