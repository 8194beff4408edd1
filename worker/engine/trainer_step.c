/* One optimizer step: read trainer_begin first. It walks the chain once forward and once
 * backward per micro-step and asks the strategy for weights and gradients; where they are and
 * what travels is the strategy's business. Nothing in it allocates.
 *
 *   communication                                           | reduce 2, its norm | reduce 1, its norm | ...| sums |
 *   gathering       gather 1 | gather 2 | ...               | gather 0 |                               the same stream where two are not safe
 *   compute         block 0  | block 1  | ... | head and loss | block 2 | block 1  | ...           | adamw
 *
 * The host waits once a step. For a device with memory of its own it has put the next step in by
 * then, and that one's batches are on their way: what a step came to is known one step late,
 * while the device goes on. Before whatever needs a step's state (a save, an evaluation, the
 * end) nothing more is put in. */
#include "worker/run/trainer.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>

/* Between two looks of the host that waits. A device's peers are looked after by a thread
 * (collectives/watch.h), and this is how soon the host hears of it. */
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

/* What the device wrote last, at whatever time. Nothing is concluded from it, so the thread
 * sanitizer, which would ask for an order, does not watch. */
__attribute__((no_sanitize("thread"))) static int64_t last_mark(const struct trainer *t)
{
    return __atomic_load_n(t->progress, __ATOMIC_RELAXED);
}

static void look_at_marks(struct trainer *t)
{
    int64_t number = last_mark(t);
    if (number != t->progress_seen) {
        t->progress_seen = number;
        show_mark(
            &(struct mark){t->world->page, (enum dt_phase)(number & MARK_MASK), number >> MARK_SHIFT & MARK_MASK});
    }
}

/* A device with memory of its own would wait for a host function: it writes a number, which the
 * host shows when it looks. The host may be far ahead, and sit in a launch for most of a step:
 * it looks here too, and puts nothing more in when a peer was lost. */
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
    w->device->kernels->fill(
        w->compute, &(struct dt_fill_args){.x = t->progress, .count = 1, .value = (double)number, .type = DT_I64});
    look_at_marks(t);
    if (dt_comm_stopped(w->comm, &why) != 0) {
        t->lost = true;
        dt_stream_fail_with(w->compute, &why);
    }
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

int trainer_wait(struct trainer *t, struct dt_event *event, const char *what, struct dt_error *err)
{
    struct world *w = t->world;
    /* of many ranks the agent finds the silent one */
    double begin_s = dt_now_s(), limit_s = t->size == 1 ? t->job->training.step_timeout_s : 0;
    double slice_s = w->device->host_memory ? WAIT_SLICE_S : WAIT_SLICE_DEVICE_S;
    while (dt_event_sync(event, slice_s, err) != 0) {
        /* why it failed, not that time went by */
        if (err->status != DT_TIMEOUT || dt_stream_failed(w->compute, err)) {
            return -1;
        }
        look_at_marks(t);
        if (poll_peers(w, err) != 0) {
            return -1;
        }
        if (atomic_load(&w->page->order) == DT_ORDER_ABORT) {
            (void)dt_fail(err, DT_STOPPED, "%s: told to stop, the round is over", what);
            return dt_blame(err, DT_FAULT_FAILED, t->rank);
        }
        if (limit_s > 0 && dt_now_s() - begin_s > limit_s) {
            (void)dt_fail(err, DT_TIMEOUT, "%s: not done after %.1f s (training.step_timeout)", what, limit_s);
            return dt_blame(err, DT_FAULT_FAILED, t->rank);
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
    dt_event_record(t->done, t->world->compute);
    return trainer_wait(t, t->done, what, err);
}

/* ---- one micro-step ---- */

/* Which of its step's micro-steps a pass is in; a batch of an evaluation is one by itself. */
struct micro {
    int64_t step, count;
};

static int busy_sms(const struct trainer *t, enum pass_phase phase, int block, struct micro micro)
{
    return strategy_busy_sms(&t->strategy, t->world, phase, block + 1 == t->chain.block_count, micro.step == 0,
                             micro.step + 1 == micro.count);
}

static struct pass new_pass(struct trainer *t, enum pass_phase phase, int block, const struct batch *batch,
                            struct micro micro)
{
    return (struct pass){
        .phase = phase,
        .stream = t->world->compute,
        .kernels = t->world->device->kernels,
        .batch = t->chain.blocks[block].layer >= 0 ? &t->shape : batch,
        .kept = t->kept[block],
        .saved = t->saved[block],
        .again = t->again,
        .scratch = t->scratch,
        .grad_type = t->strategy.grad_type,
        .busy_sms = busy_sms(t, phase, block, micro),
    };
}

static void run_block(struct trainer *t, const struct block *b, const struct pass *p, const char *what)
{
    int span = timeline_begin(t->timeline, TIMELINE_COMPUTE, p->stream, what,
                              b->layer >= 0 ? t->chain.units[b->unit].name : b->ops->name);
    trainer_run_block(t, b, p);
    timeline_end(t->timeline, span, p->stream);
}

/* Where a block's residual goes: one pair of buffers serves all blocks, each overwrites what it
 * has read, but for those that keep theirs. */
static void *residual_of(const struct trainer *t, int block)
{
    return t->chain.blocks[block].residual_saved ? t->saved[block] : t->residual;
}

/* The pair of the block before `block`. */
static void set_input(const struct trainer *t, struct pass *p, int block)
{
    p->x_residual = block > 0 ? residual_of(t, block - 1) : NULL;
    p->x_branch = block > 0 && t->chain.blocks[block - 1].branch_out ? t->branch : NULL;
}

/* Runs all blocks, but in training not the last: its work is in backward. */
static void forward(struct trainer *t, enum pass_phase phase, const struct batch *batch, struct micro micro,
                    double *loss_sum)
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
        struct pass p = new_pass(t, phase, i, batch, micro);
        p.weights = weights->get(s, b->unit);
        p.y_residual = residual_of(t, i);
        p.y_branch = t->branch;
        p.loss_sum = loss_sum;
        set_input(t, &p, i);
        strategy_note(s, 'F', b->unit);
        run_block(t, b, &p, "forward");
        /* Backward comes from the other end: what it needs first stays. */
        bool stays = phase != PASS_EVAL && (s->keep_after_forward || u->shared || i + 1 == count);
        if (i == u->last_use && !stays) {
            weights->drop(s, b->unit);
        }
    }
}

static void backward(struct trainer *t, const struct batch *batch, struct micro micro)
{
    struct strategy *s = &t->strategy;
    const struct weights_ops *weights = s->weights;
    const struct chain *c = &t->chain;
    int64_t micro_step = micro.step;
    bool last_micro_step = micro_step + 1 == micro.count;
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
        struct pass p = new_pass(t, PASS_RECOMPUTE, i, batch, micro);
        p.weights = weights->get(s, b->unit);
        strategy_note(s, 'B', b->unit);
        if (b->again_bytes > 0) {
            run_block(t, b, &p, "recompute");
        }
        p.phase = PASS_BACKWARD;
        p.busy_sms = busy_sms(t, PASS_BACKWARD, i, micro);
        p.grads = s->grads->get(s, b->unit, micro_step, &p.accumulate);
        p.dy = last_block ? NULL : t->gradient;
        p.dx = i > 0 ? t->gradient : NULL;
        if (last_block) {
            set_input(t, &p, i);
            p.loss_scale = scale;
            p.loss_sum = &t->loss_sum[micro_step];
        }
        run_block(t, b, &p, "backward");
        mark(t, DT_PHASE_BACKWARD, micro_step);
        if (s->prefetch == PREFETCH_POST && i > 0) {
            weights->fetch(s, c->blocks[i - 1].unit);
        }
        if (i == c->units[b->unit].first_use) {
            clip_add(&t->clip, s->grads->reduce(s, b->unit, last_micro_step));
            /* Kept weights stay for the next micro-step unless gradients travel at each one
             * anyway. */
            if (!s->keep_after_forward || s->reduce_every || last_micro_step) {
                weights->drop(s, b->unit);
            }
        }
    }
}

/* ---- the step ---- */

int trainer_begin(struct trainer *t, struct dt_error *err)
{
    struct world *w = t->world;
    struct strategy *s = &t->strategy;
    struct trainer_pending *p = &t->pending[t->begun % 2];
    struct trainer_feed *f;
    double begin_s = dt_now_s();
    if (trainer_batch_take(t, &f, err) != 0) {
        return -1;
    }
    p->begin_s = begin_s;
    p->data_s = f->data_s;
    p->rate = horizon_rate(&t->horizon, &t->schedule, t->begun_samples);
    p->count = f->count;
    p->epoch = f->epoch;
    p->position = f->position;
    p->blank = f->blank;
    p->blank_rank = f->blank_rank;
    const struct batch_split now = trainer_split(t);
    bool last = t->begun + 1 >= t->total_steps;
    t->begun_samples = p->samples =
        horizon_after(&t->horizon, &t->job->training, t->begun_samples, &now, p->epoch, p->position, last);
    p->riders = t->pace_due;
    t->pace_due = false;
    trainer_graph_begin(t);
    timeline_step(t->timeline, t->begun + 1);

    clip_begin(&t->clip);
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = t->loss_sum, .count = f->count, .type = DT_F64});
    for (int64_t j = 0; j < f->count && !t->lost; j++) {
        const struct micro micro = {j, f->count};
        mark(t, DT_PHASE_FORWARD, j);
        forward(t, PASS_FORWARD, &f->batches[j], micro, NULL);
        mark(t, DT_PHASE_BACKWARD, j);
        backward(t, &f->batches[j], micro);
    }
    trainer_batch_used(t, f);
    strategy_land(s);

    mark(t, DT_PHASE_STEP, f->count);
    struct clip_input sums = {.loss_sum = t->loss_sum,
                              .valid_count = f->valid,
                              .micro_steps = f->count,
                              .max_norm = t->job->training.max_grad_norm,
                              .normalization = t->job->training.loss_normalization,
                              .riders = p->riders ? t->pace.block_ns : NULL,
                              .stop = atomic_load(&w->page->order) == DT_ORDER_STOP};
    int span = timeline_begin(t->timeline, TIMELINE_COMPUTE, w->compute, "step sums", NULL);
    p->turn = clip_start(&t->clip, &sums);
    timeline_end(t->timeline, span, w->compute);
    if (!p->blank) { /* or weight decay and old moments would move weights of which the step says
                      * nothing */
        span = timeline_begin(t->timeline, TIMELINE_COMPUTE, w->compute, "optimizer", NULL);
        optimizer_step(&t->optimizer, p->rate, t->clip.factor);
        timeline_end(t->timeline, span, w->compute);
    }
    s->weights->publish(s);
    dt_event_record(p->done, w->compute);
    t->begun++;
    timeline_step(t->timeline, t->begun + 1);
    bool more = t->begun < t->total_steps && !t->stop_wanted && !t->lost;
    return t->ahead > 0 && more ? trainer_batch_prepare(t, p->done, err) : 0;
}

/* Once each: of the next ones metrics.jsonl has the number. */
static void say_blank(struct trainer *t, const struct trainer_pending *p)
{
    bool local_mean = t->job->training.loss_normalization == LOSS_LOCAL_MEAN;
    if (p->blank && t->blank_steps++ == 0) {
        metrics_say(
            &t->metrics,
            "train: step %lld: no row of its batch has a target: the weights stay as they are, in all such steps",
            (long long)t->step);
    } else if (!p->blank && p->blank_rank >= 0 && local_mean && !t->blank_rank_said) {
        t->blank_rank_said = true;
        metrics_say(&t->metrics,
                    "train: step %lld: rank %d has no target in a micro-batch, which counts as loss 0 in the mean "
                    "(training.loss_normalization "
                    "local_mean); write global_tokens for the mean over targets",
                    (long long)t->step, p->blank_rank);
    }
}

int trainer_finish(struct trainer *t, struct trainer_result *out, struct dt_error *err)
{
    struct world *w = t->world;
    const struct trainer_pending *p = &t->pending[t->step % 2];
    char what[48];
    snprintf(what, sizeof what, "step %lld", (long long)t->step + 1);
    if (trainer_wait(t, p->done, what, err) != 0) {
        return -1;
    }
    const struct clip_result *r = clip_read(&t->clip, p->turn);
    if (r->bad_rank >= 0) {
        (void)dt_fail(err, DT_INVALID,
                      "step %lld: the loss is not finite; lower training.learning_rate or look at the data",
                      (long long)t->step + 1);
        return dt_blame(err, DT_FAULT_FAILED, r->bad_rank);
    }
    if (!r->norm_finite) {
        (void)dt_fail(err, DT_INVALID,
                      "step %lld: the gradient is not finite; lower training.learning_rate or look at the data",
                      (long long)t->step + 1);
        return dt_blame(err, DT_FAULT_FAILED, t->rank);
    }
    if (p->blank && r->valid_count > 0) {
        (void)dt_fail(err, DT_INVALID,
                      "step %lld: data.train has no targets here, and on another rank it has; give all the same files",
                      (long long)t->step + 1);
        return dt_blame(err, DT_FAULT_FAILED, t->rank);
    }
    t->step++;
    t->epoch = p->epoch;
    t->position = p->position;
    t->horizon.samples = p->samples;
    t->stop_wanted = t->stop_wanted || r->stop_count > 0;
    t->tokens += p->count * t->size * t->job->training.batch_size_per_gpu * t->train.sequence_length;
    atomic_store(&w->page->step, t->step);
    double now_s = dt_now_s();
    trainer_pace_keep(t, p->begin_s, p->data_s, now_s);
    say_blank(t, p);
    *out = (struct trainer_result){.loss = r->valid_count > 0 ? r->loss : NAN,
                                   .grad_norm = r->valid_count > 0 ? r->grad_norm : NAN,
                                   .lr = p->rate,
                                   .step_s = now_s - fmax(p->begin_s, t->finished_s),
                                   .valid_count = r->valid_count,
                                   .micro_steps = p->count,
                                   .pace = p->riders ? clip_riders(&t->clip, p->turn) : NULL};
    t->finished_s = now_s;
    trainer_graph_timed(t, t->step - 1, out->step_s);
    return 0;
}

int trainer_evaluate(struct trainer *t, double *loss, struct dt_error *err)
{
    struct world *w = t->world;
    int64_t batch_size = t->job->training.batch_size_per_gpu, samples = batch_size * t->size;
    int64_t count = (t->val.sample_count + samples - 1) / samples, limit = t->job->training.eval_batches;
    count = limit > 0 && limit < count ? limit : count;
    int64_t valid = 0;
    int turn = 0;
    timeline_step(t->timeline, 0);
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = t->loss_sum, .count = 1, .type = DT_F64});
    for (int64_t i = 0; i < count; i++) {
        const struct batch *batch = trainer_batch_eval(t, i);
        valid += batch->valid_count;
        mark(t, DT_PHASE_EVAL, i);
        forward(t, PASS_EVAL, batch, (struct micro){0, 1}, t->loss_sum);
        /* The sums so far, of all ranks: the last are the result. With them travels the wish to
         * stop, or a stop would wait for the end of a long evaluation. The next batch lies where
         * this one does, so the host waits. */
        turn = clip_start_sum(&t->clip, &(struct clip_input){.loss_sum = t->loss_sum,
                                                             .valid_count = &valid,
                                                             .micro_steps = 1,
                                                             .stop = atomic_load(&w->page->order) == DT_ORDER_STOP});
        dt_event_record(t->done, w->compute);
        if (trainer_wait(t, t->done, "evaluation", err) != 0) {
            return -1;
        }
        if (clip_read(&t->clip, turn)->stop_count > 0 && i + 1 < count) {
            t->stop_wanted = true;
            *loss = NAN;
            return 0;
        }
    }
    const struct clip_result *r = count > 0 ? clip_read(&t->clip, turn) : NULL;
    *loss = r != NULL && r->valid_count > 0 ? r->loss : NAN;
    return 0;
}
