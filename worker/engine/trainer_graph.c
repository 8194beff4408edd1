/* Calls of blocks as CUDA graphs: the kernels of one call of a layer (forward, recompute, backward,
 * evaluation) are launched as a whole, which costs the host one launch instead of ten or twenty.
 * Collectives, events and marks of progress stay outside, so graphs know no strategy.
 *
 * A graph is good for the arguments with which it was captured, so it is found by everything that
 * a call depends on (`struct call`): another address, size or flag is another call. Layers have the
 * same calls in each step, since units keep their slots and a layer takes no field of the batch. The
 * first time, a call runs without a graph, because plans are made and code is loaded then. The
 * second time it is captured. A block has at most CALLS graphs; its further calls always run without
 * one.
 *
 * With one rank nothing comes between the blocks of a micro-step but sums of gradients that are
 * complete, so the micro-step is one graph: its calls wait in a queue until backward is over. There are
 * two for each micro-step of a step, as batches lie in two places by turns. Where there are many of
 * them, or calls differ in each step (a mean over targets whose number varies), layers have theirs.
 *
 * `auto` measures: after a few steps without graphs it runs turns of TURN_STEPS steps with and
 * without them, and keeps the faster way. Bits are the same either way, so each rank decides by
 * itself. */
#include "worker/engine/trainer.h"

#include "base/bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CALLS = 8,      /* evaluation; forward, recompute and backward that adds, beside collectives
                     * or not; backward that overwrites */
    LAUNCHES = 100, /* more than these calls of a layer make together */
    WHOLES = 4,     /* graphs of micro-steps */
    TURN_STEPS = 4,
    TURNS = 6,    /* half of them with graphs */
    TIMES = TURNS /* of either kind: two steps of each turn count */
};
/* of device memory: what drivers before 12.4 take for a kernel in a graph, newer ones take less */
#define LAUNCH_BYTES 0x1p16

struct call {
    enum pass_phase phase;
    enum dt_dtype grad_type;
    bool accumulate[BLOCK_UNITS_MAX];
    const void *weights[BLOCK_UNITS_MAX], *grads[BLOCK_UNITS_MAX], *memory[PLACE_COUNT], *fields[BATCH_FIELDS_MAX];
    const void *buffers, *x, *x_branch, *y, *y_branch, *dy, *dx, *loss_sum;
    int64_t samples, length, busy_sms;
    bool blank; /* a batch without targets moves no running statistics */
    double loss_scale;
};

struct queued {
    const struct block *block;
    struct pass pass;
};

struct whole {
    struct call *calls;     /* as many as are queued */
    bool last;              /* micro-step: gradients are summed up for their norm */
    struct dt_graph *graph; /* null: it has come once */
};

struct trainer_graphs {
    struct queued *queue; /* of a micro-step; null: layers alone have graphs */
    int queued;
    bool queues;
    struct call *calls; /* those of the queue */
    struct whole wholes[WHOLES];
    int whole_count;
    struct {
        struct call call;
        struct dt_graph *graph; /* null: it has come once */
    } (*of)[CALLS];             /* of each block */
    int *count;
    bool on, refused;
    bool measuring;
    int64_t first_step;
    double times[2][TIMES]; /* without, with */
    size_t time_count[2];
};

static bool may_be_whole(const struct trainer *t)
{
    return !activations_rest(t) && t->strategy.alone && t->strategy.weights == &weights_whole &&
           t->job->training.cuda_graphs != GRAPHS_LAYERS && 2 * t->micro_steps <= WHOLES;
}

double trainer_graph_bytes(const struct trainer *t, const struct dt_device *device)
{
    int layers = 0;
    for (int i = 0; i < t->chain.block_count; i++) {
        layers += t->chain.blocks[i].layer >= 0;
    }
    double launches = (double)layers * LAUNCHES * (may_be_whole(t) ? 1 + (double)t->micro_steps : 1);
    return dt_device_has_graphs(device) ? launches * LAUNCH_BYTES : 0;
}

/* Nobody asked for graphs, and what they take may be missing. */
static bool no_room(const struct trainer *t)
{
    struct dt_device *device = t->world->device;
    size_t free_bytes, total_bytes;
    return t->job->training.cuda_graphs == GRAPHS_AUTO && dt_device_memory(device, &free_bytes, &total_bytes) &&
           (double)free_bytes < trainer_graph_bytes(t, device);
}

void trainer_graph_open(struct trainer *t)
{
    if (t->job->training.cuda_graphs == GRAPHS_OFF || !dt_device_has_graphs(t->world->device) || no_room(t)) {
        return;
    }
    struct trainer_graphs *g = dt_arena_alloc(&t->arena, sizeof *g);
    g->of = dt_arena_alloc(&t->arena, (size_t)t->chain.block_count * sizeof *g->of);
    g->count = dt_arena_alloc(&t->arena, (size_t)t->chain.block_count * sizeof *g->count);
    if (may_be_whole(t)) { /* forward, recompute and backward of each */
        size_t most = 3 * (size_t)t->chain.block_count;
        g->queue = dt_arena_alloc(&t->arena, most * sizeof *g->queue);
        g->calls = dt_arena_alloc(&t->arena, most * sizeof *g->calls);
        for (int i = 0; i < WHOLES; i++) {
            g->wholes[i].calls = dt_arena_alloc(&t->arena, most * sizeof *g->calls);
        }
    }
    g->measuring = t->job->training.cuda_graphs == GRAPHS_AUTO;
    g->on = !g->measuring;
    g->first_step = -1;
    t->stepper.graphs = g;
}

static void forget(struct trainer *t)
{
    struct trainer_graphs *g = t->stepper.graphs;
    for (int i = 0; i < t->chain.block_count; i++) {
        for (int k = 0; k < g->count[i]; k++) {
            dt_graph_close(g->of[i][k].graph);
            g->of[i][k].graph = NULL;
        }
    }
    for (int i = 0; i < g->whole_count; i++) {
        dt_graph_close(g->wholes[i].graph);
        g->wholes[i].graph = NULL;
    }
}

void trainer_graph_close(struct trainer *t)
{
    if (t->stepper.graphs != NULL) {
        forget(t);
    }
    t->stepper.graphs = NULL;
}

/* ---- a call ---- */

static struct call call_of(const struct pass *p)
{
    struct call c;
    memset(&c, 0, sizeof c); /* it is compared whole */
    c.phase = p->phase;
    c.grad_type = p->grad_type;
    memcpy(c.accumulate, p->accumulate, sizeof c.accumulate);
    memcpy(c.weights, p->weights, sizeof c.weights);
    memcpy(c.grads, p->grads, sizeof c.grads);
    memcpy(c.memory, p->memory, sizeof c.memory);
    memcpy(c.fields, p->batch->at, sizeof c.fields);
    c.buffers = p->buffers;
    c.x = p->x;
    c.x_branch = p->x_branch;
    c.y = p->y;
    c.y_branch = p->y_branch;
    c.dy = p->dy;
    c.dx = p->dx;
    c.loss_sum = p->loss_sum;
    c.samples = p->batch->samples;
    c.length = p->batch->length;
    c.busy_sms = p->busy_sms;
    c.blank = p->batch->weight == 0;
    c.loss_scale = p->loss_scale;
    return c;
}

/* Where the call's graph is or will be; null when it comes for the first time, or there is no
 * room for it. */
static struct dt_graph **find(struct trainer_graphs *g, int block, const struct call *c)
{
    for (int k = 0; k < g->count[block]; k++) {
        if (memcmp(&g->of[block][k].call, c, sizeof *c) == 0) {
            return &g->of[block][k].graph;
        }
    }
    if (g->count[block] < CALLS) {
        g->of[block][g->count[block]++].call = *c;
    }
    return NULL;
}

static void call_directly(struct trainer *t, const struct block *b, const struct pass *p)
{
    (void)t;
    chain_call(b, p);
}

static void run_queued(struct trainer *t, const struct queued *q,
                       void (*run)(struct trainer *, const struct block *, const struct pass *))
{
    if (q->pass.phase == PASS_BACKWARD && q->block->index + 1 == t->chain.block_count) {
        trainer_mark_backward(t);
    }
    run(t, q->block, &q->pass);
    if (q->pass.phase == PASS_BACKWARD) {
        trainer_leave_backward(t, q->block);
    }
}

/* Captures a call, or the queue when `b` is null. False: that failed, nothing of it has run, and no
 * other call is tried. */
static bool capture(struct trainer *t, const struct block *b, const struct pass *p, struct dt_graph **out)
{
    struct trainer_graphs *g = t->stepper.graphs;
    struct dt_stream *stream = t->world->compute;
    struct dt_error err = {0};
    int rc = dt_graph_begin(stream, &err);
    if (rc == 0 && b != NULL) {
        chain_call(b, p);
    }
    for (int i = 0; rc == 0 && b == NULL && i < g->queued; i++) {
        run_queued(t, &g->queue[i], call_directly);
    }
    rc = rc == 0 ? dt_graph_end(stream, out, &err) : rc;
    if (rc != 0) {
        g->on = g->measuring = false;
        g->refused = true;
        if (!dt_stream_failed(stream, NULL)) {
            observers_say(&t->observers, "train: warning: no CUDA graphs: %s; kernels are launched one by one",
                          err.text);
        }
    }
    return rc == 0;
}

static void run_alone(struct trainer *t, const struct block *b, const struct pass *p)
{
    struct trainer_graphs *g = t->stepper.graphs;
    if (g == NULL || g->refused || b->layer < 0 || p->peers != NULL) { /* collectives stay outside of graphs */
        chain_call(b, p);
        return;
    }
    struct call c = call_of(p);
    struct dt_graph **graph = find(g, b->index, &c);
    if (g->on && graph != NULL && (*graph != NULL || capture(t, b, p, graph))) {
        dt_graph_launch(*graph);
    } else {
        chain_call(b, p);
    }
}

void trainer_run_block(struct trainer *t, const struct block *b, const struct pass *p)
{
    struct trainer_graphs *g = t->stepper.graphs;
    if (trainer_graph_queues(t)) {
        g->queue[g->queued++] = (struct queued){b, *p};
    } else {
        run_alone(t, b, p);
    }
}

/* ---- a micro-step ---- */

bool trainer_graph_queues(const struct trainer *t)
{
    return t->stepper.graphs != NULL && t->stepper.graphs->queues;
}

void trainer_graph_queue(struct trainer *t)
{
    struct trainer_graphs *g = t->stepper.graphs;
    if (g != NULL) { /* a timeline has events between calls */
        g->queues = g->queue != NULL && (g->on || g->measuring) && t->stepper.timeline == NULL;
        g->queued = 0;
    }
}

/* The queue's whole; null when it comes for the first time, or there is no room for it. */
static struct whole *find_whole(struct trainer_graphs *g, bool last, bool *first)
{
    size_t size_bytes = (size_t)g->queued * sizeof *g->calls;
    *first = false;
    for (int i = 0; i < g->whole_count; i++) {
        if (g->wholes[i].last == last && memcmp(g->wholes[i].calls, g->calls, size_bytes) == 0) {
            return &g->wholes[i];
        }
    }
    if (g->whole_count < WHOLES) {
        *first = true;
        g->wholes[g->whole_count].last = last;
        memcpy(g->wholes[g->whole_count++].calls, g->calls, size_bytes);
    }
    return NULL;
}

void trainer_graph_flush(struct trainer *t)
{
    struct trainer_graphs *g = t->stepper.graphs;
    bool last = t->stepper.at.micro_step + 1 == t->stepper.at.count, first;
    if (!trainer_graph_queues(t)) {
        return;
    }
    g->queues = false;
    for (int i = 0; i < g->queued; i++) {
        g->calls[i] = call_of(&g->queue[i].pass);
    }
    struct whole *w = find_whole(g, last, &first);
    if (g->on && w != NULL && (w->graph != NULL || capture(t, NULL, NULL, &w->graph))) {
        dt_graph_launch(w->graph);
        return;
    }
    for (int i = 0; i < g->queued; i++) {
        run_queued(t, &g->queue[i], first ? call_directly : run_alone);
    }
}

/* ---- which way is faster ---- */

/* Of the step that is the n-th of this round: its turn; negative: before the first one. */
static int64_t turn_of(int64_t n)
{
    return n / TURN_STEPS - 1;
}

void trainer_graph_begin(struct trainer *t)
{
    struct trainer_graphs *g = t->stepper.graphs;
    if (g == NULL || !g->measuring) {
        return;
    }
    g->first_step = g->first_step < 0 ? t->stepper.begun : g->first_step;
    int64_t turn = turn_of(t->stepper.begun - g->first_step);
    g->on = turn >= 0 && turn % 2 == 0;
}

static void decide(struct trainer *t)
{
    struct trainer_graphs *g = t->stepper.graphs;
    double without_s = dt_bench_median(g->times[0], g->time_count[0]),
           with_s = dt_bench_median(g->times[1], g->time_count[1]);
    char fields[160];
    g->measuring = false;
    g->on = with_s < without_s;
    if (!g->on) {
        forget(t);
    }
    observers_say(&t->observers,
                  "train: CUDA graphs %s: a step takes %.4g ms with them and %.4g ms without (training.cuda_graphs)",
                  g->on ? "on" : "off", with_s * 1e3, without_s * 1e3);
    snprintf(fields, sizeof fields, "\"on\": %s, \"with_s\": %.6g, \"without_s\": %.6g, \"step\": %lld, \"round\": %d",
             g->on ? "true" : "false", with_s, without_s, (long long)t->run.step, t->world->round);
    observers_event(&t->observers, "cuda_graphs", fields);
}

/* While the host waits for a step, the next one is already enqueued. So only steps count whose
 * neighbours are of the same kind. */
void trainer_graph_timed(struct trainer *t, int64_t step, double step_s)
{
    struct trainer_graphs *g = t->stepper.graphs;
    if (g == NULL || !g->measuring) {
        return;
    }
    int64_t n = step - g->first_step, turn = turn_of(n), at = n % TURN_STEPS;
    if (turn >= 0 && turn < TURNS && at > 0 && at < TURN_STEPS - 1) {
        int with = turn % 2 == 0;
        g->times[with][g->time_count[with]++] = step_s;
    }
    if (turn == TURNS - 1 && at == TURN_STEPS - 1) {
        decide(t);
    }
}
