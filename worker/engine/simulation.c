/* All ranks do the same at the same time, so one rank and its clocks are enough. */
#include "worker/engine/simulation.h"

#include "kernels/simulated.h"

#include <math.h>
#include <string.h>

/* Steps that are enqueued; the first ones do not begin as later ones do. */
enum { STEPS = 3 };
/* Of a link's rate by the data sheet, what collectives of large buffers reach. */
#define LINK_SHARE 0.8
/* A collective's time without any bytes: once, and for each doubling of the ranks. */
#define START_S 1.0e-5
#define DOUBLING_S 4.0e-6

struct simulated_comm {
    struct dt_comm base;
    int hosts;          /* that its ranks lie on */
    double bytes_per_s; /* that each rank can send, in a ring */
    struct simulation *sums;
    void *memory;
    size_t memory_bytes;
};

struct simulated_world {
    struct world world;
    struct dt_device device;
    struct dt_page page;
    struct simulated_comm comm, shard, replica, gather, reshard;
};

/* ---- collectives ---- */

/* What a rank sends of a buffer, as a share of it, in a ring. */
static double sent_share(enum dt_coll kind, int size)
{
    double others = (double)(size - 1) / size;
    return kind == DT_ALL_REDUCE ? 2 * others : kind == DT_BARRIER ? 0 : others;
}

static int start_simulated(struct dt_comm *base, const struct dt_collective *x, int64_t number, struct dt_stream *s,
                           struct dt_error *err)
{
    (void)number, (void)err;
    struct simulated_comm *c = (struct simulated_comm *)base;
    bool slices = x->kind == DT_REDUCE_SCATTER || x->kind == DT_ALL_GATHER;
    double buffer = (double)x->count * (double)dt_dtype_size(x->type) * (slices ? base->size : 1);
    double sent = buffer * sent_share(x->kind, base->size);
    dt_simulated_busy(s, START_S + DOUBLING_S * log2(base->size) + sent / c->bytes_per_s);
    c->sums->messages[x->kind]++;
    c->sums->bytes[x->kind] += (int64_t)buffer;
    c->sums->sent_bytes += sent;
    c->sums->across_bytes += c->hosts > 1 ? sent * c->hosts / base->size : 0; /* so many of the ring's links cross */
    return 0;
}

static int alloc_simulated(struct dt_comm *base, size_t size_bytes, void **out, struct dt_error *err)
{
    struct simulated_comm *c = (struct simulated_comm *)base;
    if (dt_device_alloc(base->device, DT_MEMORY_DEVICE, size_bytes, out, err) != 0) {
        return -1;
    }
    c->memory = *out;
    c->memory_bytes = size_bytes;
    return 0;
}

static int poll_simulated(struct dt_comm *c, struct dt_error *err)
{
    (void)c, (void)err;
    return 0;
}

static const struct dt_comm_ops ops = {
    .name = "simulated", .alloc = alloc_simulated, .poll = poll_simulated, .start = start_simulated};

/* size: ranks of a group, of which `local` lie on each host. Each has a network card of its own, which a ring
 * across hosts uses. */
static void open_comm(struct simulated_comm *c, struct simulated_world *w, const struct dt_gpu_sheet *gpu, int size,
                      int local, struct simulation *sums)
{
    *c = (struct simulated_comm){.hosts = (size + local - 1) / local, .sums = sums};
    c->base = (struct dt_comm){.rank = 0, .size = size, .ops = &ops, .device = &w->device};
    double network = gpu->network_bytes_per_s * (local < size ? local : size);
    c->bytes_per_s = LINK_SHARE * (c->hosts > 1 ? fmin(gpu->link_bytes_per_s, network) : gpu->link_bytes_per_s);
}

/* ---- the world ---- */

static int open_world(struct simulated_world *w, const struct trainer *t, const struct dt_gpu_sheet *gpu,
                      int local_size, struct simulation *sums, struct dt_error *err)
{
    struct world *x = &w->world;
    int shards = t->shards, shard_local = shards < local_size ? shards : local_size;
    int replica_local = local_size / shard_local;
    memset(w, 0, sizeof *w);
    dt_simulated_open(&w->device, gpu, t->strategy.precision.compute);
    open_comm(&w->comm, w, gpu, t->size, local_size, sums);
    open_comm(&w->shard, w, gpu, shards, shard_local, sums);
    open_comm(&w->gather, w, gpu, shards, shard_local, sums);
    open_comm(&w->replica, w, gpu, t->size / shards, replica_local > 0 ? replica_local : 1, sums);
    int again = t->strategy.reshard > 0 ? t->strategy.reshard : 1;
    open_comm(&w->reshard, w, gpu, again, again < local_size ? again : local_size, sums);
    *x = (struct world){.size = t->size,
                        .local_size = local_size,
                        .node_count = w->comm.hosts,
                        .run_id = "plan",
                        .page = &w->page,
                        .page_fd = -1,
                        .device = &w->device,
                        .comm = &w->comm.base,
                        .shard = shards == t->size ? &w->comm.base : &w->shard.base,
                        .replica = shards == t->size ? NULL : &w->replica.base,
                        .gather = &w->gather.base,
                        .reshard = t->strategy.reshard > 0 ? &w->reshard.base : NULL};
    return dt_stream_open(&w->device, 0, &x->compute, err) != 0 ||
                   dt_stream_open(&w->device, 0, &x->communication, err) != 0 ||
                   dt_stream_open(&w->device, 0, &x->gathering, err) != 0
               ? -1
               : 0;
}

static void close_world(struct simulated_world *w)
{
    dt_stream_close(w->world.compute);
    dt_stream_close(w->world.communication);
    dt_stream_close(w->world.gathering);
    dt_stream_close(w->world.homes_in);
    dt_stream_close(w->world.homes_out);
    if (w->comm.memory != NULL) {
        dt_device_free(&w->device, DT_MEMORY_DEVICE, w->comm.memory, w->comm.memory_bytes);
    }
    dt_device_close(&w->device);
}

/* ---- steps ---- */

/* The trainer's parts as trainer_open takes them, without what reads samples. */
static int open_parts(struct trainer *t, struct world *w, struct dt_error *err)
{
    const struct plan *p = &t->memory.plan;
    t->world = w;
    if (plan_open(&t->memory.plan, w, err) != 0 || strategy_open(&t->strategy, w, p, err) != 0 ||
        optimizer_open(&t->optimizer, p, err) != 0 || dt_event_open(w->device, &t->stepper.done, err) != 0 ||
        dt_event_open(w->device, &t->stepper.pending[0].done, err) != 0) {
        return -1;
    }
    step_sums_open(&t->step_sums, p);
    trainer_step_open(t);
    t->stepper.loss_sum = plan_at(p, t->memory.loss);
    t->stepper.progress = plan_at(p, t->memory.progress);
    t->stepper.shape = (struct batch){.layout = &t->chain.batch,
                                      .samples = t->chain.spec.batch_size,
                                      .length = t->chain.spec.sequence_length,
                                      .weight = 1};
    return 0;
}

/* Batches of full length. */
static struct trainer_feed full_feed(struct trainer *t)
{
    const struct batch_layout *layout = &t->chain.batch;
    struct trainer_feed f = {.count = t->micro_steps, .device = plan_at(&t->memory.plan, t->memory.batch)};
    f.batches = dt_arena_alloc(&t->arena, (size_t)f.count * sizeof *f.batches);
    f.valid = dt_arena_alloc(&t->arena, (size_t)f.count * sizeof *f.valid);
    int numbers = batch_numbers(layout);
    t->stepper.shape.at[numbers < 0 ? 0 : numbers] = numbers < 0 ? NULL : plan_at(&t->memory.plan, t->memory.numbers);
    for (int64_t j = 0; j < f.count; j++) {
        f.batches[j] = t->stepper.shape;
        f.valid[j] = 1;
        for (int k = 0; k < layout->count; k++) {
            f.batches[j].at[k] = k == numbers ? t->stepper.shape.at[k] : f.device + batch_offset(layout, k);
        }
    }
    return f;
}

/* Steps that are all of that number in the run. */
static void simulate_step(struct trainer *t, struct trainer_feed *feed, int64_t number, struct simulation *out)
{
    struct world *w = t->world;
    for (int i = 0; i < STEPS; i++) {
        double begin_s = dt_simulated_s(w->compute), kernels_s = dt_simulated_kernels_s(w->device),
               flops = dt_simulated_flops(w->device), moved_bytes = dt_simulated_moved_bytes(w->device);
        *out = (struct simulation){.step_s = 0};
        t->stepper.begun = number;
        trainer_enqueue(t, feed, &t->stepper.pending[0]);
        out->step_s = dt_simulated_s(w->compute) - begin_s;
        out->kernels_s = dt_simulated_kernels_s(w->device) - kernels_s;
        out->flops = dt_simulated_flops(w->device) - flops;
        out->moved_bytes = dt_simulated_moved_bytes(w->device) - moved_bytes;
    }
}

/* One step of `period` is as `rare`. */
static void mix(struct simulation *out, const struct simulation *rare, int64_t period)
{
    double share = 1 / (double)period;
    out->step_s += (rare->step_s - out->step_s) * share;
    out->kernels_s += (rare->kernels_s - out->kernels_s) * share;
    out->moved_bytes += (rare->moved_bytes - out->moved_bytes) * share;
    out->sent_bytes += (rare->sent_bytes - out->sent_bytes) * share;
    out->across_bytes += (rare->across_bytes - out->across_bytes) * share;
    for (int i = 0; i < DT_COLL_COUNT; i++) {
        out->messages[i] += llround((double)(rare->messages[i] - out->messages[i]) * share);
        out->bytes[i] += llround((double)(rare->bytes[i] - out->bytes[i]) * share);
    }
}

static void simulate(struct trainer *t, struct simulation *out)
{
    struct trainer_feed feed = full_feed(t);
    int64_t rare, usual = hook_usual_step(&t->strategy, &rare);
    simulate_step(t, &feed, usual, out);
    if (rare != usual) {
        struct simulation most = *out;
        simulate_step(t, &feed, rare, out); /* communicators count there */
        const struct simulation once = *out;
        mix(&most, &once, t->job->local_sgd.period);
        *out = most;
    }
}

int trainer_simulate(struct trainer *t, const struct dt_gpu_sheet *gpu, int local_size, struct simulation *out,
                     struct dt_error *err)
{
    struct simulated_world w;
    int rc = open_world(&w, t, gpu, local_size, out, err);
    if (rc == 0 && (rc = open_parts(t, &w.world, err)) == 0) {
        simulate(t, out);
    }
    trainer_close(t);
    close_world(&w);
    return rc;
}
