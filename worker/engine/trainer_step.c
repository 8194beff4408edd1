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
#include "worker/engine/text_bytes.h"
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
static void mark(struct trainer *t, enum dt_phase phase, int64_t micro_step)
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
        mark(t, DT_PHASE_BACKWARD, t->stepper.at.micro_step);
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

/* The update, and what follows it. */
static void update(struct trainer *t, struct trainer_pending *p)
{
    struct world *w = t->world;
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
    hook_begin_step(s, t->stepper.begun);
    p->number = t->stepper.begun + 1;

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
        mark(t, DT_PHASE_FORWARD, j);
        trainer_graph_queue(t);
        chain_forward(&t->stepper.walk, PASS_FORWARD, batch, &loss);
        if (!trainer_graph_queues(t)) {
            mark(t, DT_PHASE_BACKWARD, j);
        }
        chain_backward(&t->stepper.walk, batch, &loss);
        trainer_graph_flush(t);
    }
    trainer_batch_used(t, f);
    strategy_land(s);

    mark(t, DT_PHASE_STEP, f->count);
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
        (void)dt_fail(err, DT_INVALID,
                      "step %lld: the gradient is not finite; lower training.learning_rate or look at the data",
                      (long long)t->run.step + 1);
        return dt_blame(err, DT_FAULT_FAILED, t->rank);
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

/* Copies what the tally needs to the host, where it is once the host has waited: the losses of a batch's
 * positions; otherwise its logits, which are in the last block's memory of the call, and its targets. */
static void take_results(struct trainer *t, const struct trainer_val *v, const struct batch *b)
{
    if (v->choices.n != NULL) {
        dt_stream_copy(t->world->compute, plan_at(&t->memory.plan, t->memory.eval_host),
                       plan_at(&t->memory.plan, t->memory.eval_rows),
                       (size_t)batch_elements(b->layout, batch_targets(b->layout)) * sizeof(double));
        return;
    }
    const struct block *last = &t->chain.blocks[t->chain.block_count - 1];
    const struct block_memory *m = &last->memory[last->logits_memory];
    int targets = batch_targets(b->layout);
    char *host = plan_at(&t->memory.plan, t->memory.eval_host);
    dt_stream_copy(t->world->compute, host, (char *)t->stepper.walk.scratch + m->offset, m->size_bytes);
    dt_stream_copy(t->world->compute, host + m->size_bytes, b->at[targets],
                   (size_t)batch_elements(b->layout, targets) * sizeof(int32_t));
}

/* The integers that an evaluation adds up on each rank beside the loss; null: there are none. */
static int64_t *tally_of(struct trainer *t, struct trainer_val *v, int64_t *size)
{
    const struct class_counts *classes = &t->stepper.classes;
    const struct number_sums *numbers = &t->stepper.numbers;
    const struct choice_scores *choices = &v->choices;
    *size = classes->n != NULL   ? class_counts_size(classes)
            : numbers->n != NULL ? number_sums_size(numbers)
                                 : choices->samples;
    return classes->n != NULL ? classes->n : numbers->n != NULL ? numbers->n : choices->n;
}

/* Adds what take_results has taken of the batch that begins at position `first`. */
static void add_results(struct trainer *t, struct trainer_val *v, const struct batch *b, int64_t first)
{
    const struct block *last = &t->chain.blocks[t->chain.block_count - 1];
    const char *host = plan_at(&t->memory.plan, t->memory.eval_host);
    if (v->choices.n != NULL) {
        choice_scores_add(&v->choices, (const double *)(const void *)host, b->samples, b->length, first, t->rank,
                          t->size);
        return;
    }
    const void *targets = host + last->memory[last->logits_memory].size_bytes;
    int field = batch_targets(b->layout);
    if (last->numbers) {
        number_sums_add(&t->stepper.numbers, host, t->chain.spec.type, targets, b->layout->field[field].type,
                        b->samples);
    } else {
        class_counts_add(&t->stepper.classes, host, t->chain.spec.type, targets, batch_used(b, field));
    }
}

/* As a rule in one piece. */
int trainer_sum_counts(struct trainer *t, int64_t *tally, int64_t size, const char *what, struct dt_error *err)
{
    int64_t most = step_sums_room(&t->step_sums);
    for (int64_t at = 0, n; at < size; at += n) {
        n = size - at < most ? size - at : most;
        const int64_t *sums = step_sums_start_counts(&t->step_sums, tally + at, n);
        dt_event_record(t->stepper.done, t->world->compute);
        if (trainer_wait(t, t->stepper.done, what, err) != 0) {
            return -1;
        }
        memcpy(tally + at, sums, (size_t)n * sizeof *sums);
    }
    return 0;
}

/* Next tokens of a tokenizer whose file the data know: all ranks say the same of that. */
static bool asks_text_bytes(const struct trainer_val *v)
{
    const struct data_source *s = &v->data;
    return s->choices == NULL && s->tokenizer_hash != 0 && s->targets >= 0 && s->layout.field[s->targets].shifted;
}

/* Bytes of text that all ranks' targets stand for; 0: a rank does not know. */
static int sum_text_bytes(struct trainer *t, const struct trainer_val *v, int64_t *out, struct dt_error *err)
{
    int64_t sums[2] = {v->text_bytes, !text_bytes_known(v->bytes)};
    if (trainer_sum_counts(t, sums, 2, "evaluation", err) != 0) {
        return -1;
    }
    *out = sums[1] == 0 ? sums[0] : 0;
    return 0;
}

int trainer_evaluate(struct trainer *t, struct trainer_val *v, struct trainer_evaluation *out, struct dt_error *err)
{
    int64_t tally_size, *tally = tally_of(t, v, &tally_size);
    struct world *w = t->world;
    int64_t batch_size = t->job->training.batch_size_per_gpu, samples = batch_size * t->size;
    int64_t count = (v->data.sample_count + samples - 1) / samples, limit = t->job->training.eval_batches;
    count = limit > 0 && limit < count ? limit : count;
    int64_t valid = 0;
    int turn = 0;
    *out = (struct trainer_evaluation){.loss = NAN, .pearson = NAN};
    if (tally != NULL) {
        memset(tally, 0, (size_t)tally_size * sizeof *tally);
    }
    if (asks_text_bytes(v) && v->bytes == NULL) {
        v->bytes = text_bytes_open(&v->data, t->job->data.tokenizer, t->job->model.load);
    }
    v->text_bytes = 0;
    timeline_step(t->stepper.timeline, 0);
    strategy_send_buffers(&t->strategy, t->stepper.walk.buffers, t->chain.buffer_count);
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = t->stepper.loss_sum, .count = 1, .type = DT_F64});
    for (int64_t i = 0; i < count; i++) {
        const struct batch *batch = trainer_batch_eval(t, v, i, err);
        if (batch == NULL) {
            return -1;
        }
        valid += batch->weight;
        t->stepper.at = (struct trainer_at){0, 1};
        t->stepper.shape.length = batch->length;
        mark(t, DT_PHASE_EVAL, i);
        const struct walk_loss loss = {.sum = t->stepper.loss_sum,
                                       .row_loss = plan_at(&t->memory.plan, t->memory.eval_rows)};
        chain_forward(&t->stepper.walk, PASS_EVAL, batch, &loss);
        if (tally != NULL && !t->lost) {
            take_results(t, v, batch);
        }
        /* The sums so far, of all ranks: the last are the result. With them travel votes to
         * stop, or a stop would wait for the end of a long evaluation. The next batch lies where
         * this one does, so the host waits. */
        turn = step_sums_start_sum(&t->step_sums,
                                   &(struct step_sums_input){.loss_sum = t->stepper.loss_sum,
                                                             .valid_count = &valid,
                                                             .micro_steps = 1,
                                                             .votes = observers_vote(&t->observers) & VOTE_STOP});
        dt_event_record(t->stepper.done, w->compute);
        if (trainer_wait(t, t->stepper.done, "evaluation", err) != 0) {
            return -1;
        }
        if (step_sums_read(&t->step_sums, turn)->votes != 0 && i + 1 < count) {
            t->run.votes |= VOTE_STOP;
            return 0;
        }
        if (tally != NULL) {
            add_results(t, v, batch, i * samples);
        }
    }
    const struct step_sums_result *r = count > 0 ? step_sums_read(&t->step_sums, turn) : NULL;
    out->targets = r != NULL ? r->valid_count : 0;
    out->loss = out->targets > 0 ? r->loss : NAN;
    if (asks_text_bytes(v) && sum_text_bytes(t, v, &out->text_bytes, err) != 0) {
        return -1;
    }
    if (tally != NULL && trainer_sum_counts(t, tally, tally_size, "evaluation", err) != 0) {
        return -1;
    }
    if (t->stepper.classes.n != NULL) {
        out->classes = class_counts_report(&t->stepper.classes, v->f1);
    } else if (v->choices.n != NULL) {
        out->choices = choice_scores_report(&v->choices, count * samples);
    } else if (tally != NULL) {
        out->pearson = number_sums_pearson(&t->stepper.numbers);
    }
    return 0;
}
