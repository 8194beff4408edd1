/* The rows, their other names, and what placements share: sizes, events, the trace. */
#include "worker/engine/strategy.h"

#include "base/log.h"
#include "worker/engine/pinned_window.h"

#include <stdio.h>
#include <string.h>

/* so large that a library takes its ways for large collectives, too */
#define CONNECT_BYTES ((size_t)32 << 20)

#define ON_DEVICE                                                                                                      \
    {                                                                                                                  \
        &home_device, &home_device, &home_device, &home_device                                                         \
    }

static const struct strategy_row rows[] = {
    {"single_device", &weights_whole, &grads_whole, PART_WHOLE, GROUP_WORLD, REDUCE_BOUNDARY, false, ON_DEVICE,
     "one rank; nothing travels", NULL},
    {"ddp", &weights_whole, &grads_whole, PART_WHOLE, GROUP_WORLD, REDUCE_BOUNDARY, false, ON_DEVICE,
     "everything whole; gradients are all-reduced", NULL},
    {"local_sgd", &weights_whole, &grads_whole, PART_WHOLE, GROUP_WORLD, REDUCE_BOUNDARY, false, ON_DEVICE,
     "everything whole; ranks average their weights every few steps", "local_sgd"},
    {"zero0", &weights_whole, &grads_whole, PART_WHOLE, GROUP_WORLD, REDUCE_BOUNDARY, false, ON_DEVICE, "as ddp", NULL},
    {"no_shard", &weights_whole, &grads_whole, PART_WHOLE, GROUP_WORLD, REDUCE_BOUNDARY, false, ON_DEVICE, "as ddp",
     NULL},
    {"zero1", &weights_whole, &grads_whole, PART_SLICE, GROUP_WORLD, REDUCE_BOUNDARY, false, ON_DEVICE,
     "optimizer state sliced", NULL},
    {"zero2", &weights_whole, &grads_sliced, PART_SLICE, GROUP_WORLD, REDUCE_EVERY_MICRO_STEP, false, ON_DEVICE,
     "optimizer state and gradients sliced", NULL},
    {"zero3", &weights_sliced, &grads_sliced, PART_SLICE, GROUP_WORLD, REDUCE_EVERY_MICRO_STEP, false, ON_DEVICE,
     "everything sliced", NULL},
    {"full_shard", &weights_sliced, &grads_sliced, PART_SLICE, GROUP_WORLD, REDUCE_EVERY_MICRO_STEP, false, ON_DEVICE,
     "everything sliced", NULL},
    {"shard_grad_op", &weights_sliced, &grads_sliced, PART_SLICE, GROUP_WORLD, REDUCE_EVERY_MICRO_STEP, true, ON_DEVICE,
     "everything sliced, weights kept from forward to backward", NULL},
    {"hybrid_shard", &weights_sliced, &grads_sliced, PART_SLICE, GROUP_NODE, REDUCE_EVERY_MICRO_STEP, false, ON_DEVICE,
     "full_shard inside a host, copies across hosts", NULL},
    {"hybrid_shard_zero2", &weights_sliced, &grads_sliced, PART_SLICE, GROUP_NODE, REDUCE_EVERY_MICRO_STEP, true,
     ON_DEVICE, "shard_grad_op inside a host, copies across hosts", NULL},
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

/* Names that people know from elsewhere: FSDP, DeepSpeed, Lightning. */
static const struct strategy_alias aliases[] = {
    {"single", "single_device"},
    {"ddp_find_unused_parameters_false", "ddp"},
    {"ddp_find_unused_parameters_true", "ddp"},
    {"ddp_spawn", "ddp"},
    {"ddp_spawn_find_unused_parameters_false", "ddp"},
    {"ddp_spawn_find_unused_parameters_true", "ddp"},
    {"ddp_fork", "ddp"},
    {"ddp_fork_find_unused_parameters_false", "ddp"},
    {"ddp_fork_find_unused_parameters_true", "ddp"},
    {"ddp_notebook", "ddp"},
    {"ddp_notebook_find_unused_parameters_false", "ddp"},
    {"ddp_notebook_find_unused_parameters_true", "ddp"},
    {"fsdp", "full_shard"},
    {"fsdp_full_shard", "full_shard"},
    {"fsdp_shard_grad_op", "shard_grad_op"},
    {"fsdp_no_shard", "no_shard"},
    {"fsdp_hybrid_shard", "hybrid_shard"},
    {"_hybrid_shard_zero2", "hybrid_shard_zero2"},
    {"deepspeed", "zero2"},
    {"zero_stage_0", "zero0"},
    {"zero_stage_1", "zero1"},
    {"zero_stage_2", "zero2"},
    {"zero_stage_3", "zero3"},
    {"deepspeed_stage_0", "zero0"},
    {"deepspeed_stage_1", "zero1"},
    {"deepspeed_stage_2", "zero2"},
    {"deepspeed_stage_3", "zero3"},
    {"deepspeed_stage_1_offload", "zero1"},
    {"deepspeed_stage_2_offload", "zero2"},
    {"deepspeed_stage_3_offload", "zero3"},
    {"deepspeed_stage_3_offload_nvme", "zero3"},
    {"fsdp_cpu_offload", "full_shard"},
    {"zero2_offload", "zero2"},
    {"zero3_offload", "zero3"},
};
enum { ALIAS_COUNT = sizeof aliases / sizeof aliases[0] };

static const struct strategy_row *find_row(const char *name)
{
    for (int i = 0; i < ROW_COUNT; i++) {
        if (strcasecmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    return NULL;
}

const struct strategy_row *strategy_find(const char *name, int size, struct dt_error *err)
{
    if (!name || strcasecmp(name, "auto") == 0) {
        name = size > 1 ? "ddp" : "single_device";
    }
    const struct strategy_row *row = find_row(name);
    for (int i = 0; !row && i < ALIAS_COUNT; i++) {
        if (strcasecmp(aliases[i].name, name) != 0) {
            continue;
        }
        row = find_row(aliases[i].row);
    }
    if (!row) {
        const char *names[ROW_COUNT + ALIAS_COUNT];
        for (int i = 0; i < ROW_COUNT + ALIAS_COUNT; i++) {
            names[i] = i < ROW_COUNT ? rows[i].name : aliases[i - ROW_COUNT].name;
        }
        const char *nearest = dt_text_nearest(name, names, ROW_COUNT + ALIAS_COUNT);
        dt_fail(err, DT_INVALID, "training.strategy: %s: unknown strategy; %s%s%s", name,
                nearest ? "did you mean " : "see train --list-strategies", nearest ? nearest : "", nearest ? "?" : "");
        return NULL;
    }
    if (size > 1 && row == &rows[0]) {
        dt_fail(err, DT_INVALID, "training.strategy: single_device: %d ranks; use ddp", size);
        return NULL;
    }
    return row;
}

const struct strategy_row *strategy_at(int i)
{
    return i >= 0 && i < ROW_COUNT ? &rows[i] : NULL;
}

bool strategy_same(const struct strategy_row *a, const struct strategy_row *b)
{
    return a->weights == b->weights && a->grads == b->grads && a->optimizer == b->optimizer && a->group == b->group &&
           a->reduce == b->reduce && a->keep_after_forward == b->keep_after_forward &&
           memcmp(&a->rests, &b->rests, sizeof a->rests) == 0 && a->hook == b->hook;
}

void strategy_list(struct dt_text *out)
{
    for (int i = 0; i < ROW_COUNT; i++) {
        const struct strategy_row *r = &rows[i];
        dt_text_printf(out, "%s\n    %s\n    weights %s, gradients %s, optimizer %s; reduced %s\n", r->name, r->help,
                       r->weights->name, r->grads->name, r->optimizer == PART_WHOLE ? "whole" : "sliced",
                       r->reduce == REDUCE_BOUNDARY ? "once a step" : "every micro-step");
        struct dt_text names;
        dt_text_init(&names);
        for (int j = 0; j < ALIAS_COUNT; j++) {
            if (strcmp(aliases[j].row, r->name) == 0) {
                dt_text_printf(&names, "%s%s", names.size > 0 ? " " : "", aliases[j].name);
            }
        }
        if (names.size > 0) {
            dt_text_puts(out, "    also named: ");
            dt_text_wrap(out, dt_text_str(&names), 16);
        }
        dt_text_clear(&names);
    }
}

int strategy_shards(const struct strategy_row *row, const struct job *job, int size, int local_size, int *out,
                    struct dt_error *err)
{
    int64_t replicas = job->fsdp.device_mesh[0], shards = job->fsdp.device_mesh[1];
    if (row->optimizer == PART_WHOLE && hook_has_groups(job)) {
        int64_t group = job->local_sgd.group_size > 0 ? job->local_sgd.group_size : local_size;
        *out = group < size ? (int)group : size;
        return size % *out == 0 ? 0
                                : dt_fail(err, DT_INVALID,
                                          "ddp.comm_hook: post_local_sgd: %d ranks are no groups of %d; give "
                                          "local_sgd.group_size a divisor of %d",
                                          size, *out, size);
    }
    if (row->group == GROUP_WORLD || size == 1) {
        *out = size;
        return 0;
    }
    if (replicas == 0 && shards == 0) {
        shards = local_size;
        replicas = size / local_size;
    }
    if (shards < 1 || replicas < 1 || shards * replicas != size) {
        return dt_fail(err, DT_INVALID,
                       "fsdp.device_mesh: [%lld, %lld] is %lld ranks: the world has %d; use [replicas, shards] with "
                       "replicas * shards = %d",
                       (long long)replicas, (long long)shards, (long long)(replicas * shards), size, size);
    }
    *out = (int)shards;
    return 0;
}

/* fsdp.reshard_after_forward fits the shard group. */
static int check_reshard(const struct strategy *s, int64_t ranks, struct dt_error *err)
{
    if (s->alone || s->weights != &weights_sliced || s->keep_after_forward || ranks == 0 || s->shards == 1) {
        return 0;
    }
    if (ranks == 1 || ranks == s->shards) {
        return dt_fail(err, DT_INVALID,
                       "fsdp.reshard_after_forward: %lld of %d ranks is what training.strategy %s does; write that, or "
                       "a number between",
                       (long long)ranks, s->shards,
                       ranks > 1          ? "full_shard"
                       : s->replicas == 1 ? "shard_grad_op"
                                          : "hybrid_shard_zero2");
    }
    return s->shards % ranks == 0
               ? 0
               : dt_fail(err, DT_INVALID,
                         "fsdp.reshard_after_forward: %lld does not divide the %d ranks over which weights are sliced",
                         (long long)ranks, s->shards);
}

/* The smallest of the portions that the row's homes ask for. */
static int64_t least_portion(const struct residence *r)
{
    const struct home_ops *all[] = {r->weights, r->grads, r->masters, r->states};
    int64_t least = INT64_MAX;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        least = all[i]->portion > 0 && all[i]->portion < least ? all[i]->portion : least;
    }
    return least;
}

void strategy_plan_home(const struct strategy *s, struct home *h, const struct home_ops *ops, struct plan *p,
                        enum plan_purpose purpose, enum plan_memory memory, int64_t count, enum dt_dtype type)
{
    int64_t size = (int64_t)dt_dtype_size(type), window = PINNED_WINDOW_BYTES / size;
    int64_t most = s->portion < INT64_MAX && s->portion > window ? s->portion : window;
    for (int u = 0; u < s->chain->unit_count && (purpose != PLAN_OPTIMIZER || s->portion == INT64_MAX); u++) {
        int64_t first, owned;
        strategy_owned(s, u, &first, &owned);
        most = owned > most ? owned : most;
    }
    most = most < count ? most : count;
    *h = (struct home){.ops = ops, .settings = purpose == PLAN_WEIGHTS ? &s->weights_settings : &s->optimizer_settings};
    ops->plan(h, p, purpose, memory, (size_t)(count * size), (size_t)(most * size));
}

int strategy_init(struct strategy *s, const struct strategy_row *row, const struct job *job, struct chain *chain,
                  const struct precision *precision, int rank, int size, int shards, struct dt_error *err)
{
    memset(s, 0, sizeof *s);
    dt_arena_init(&s->arena);
    if (size % shards != 0 || chain->shards != shards) {
        return dt_fail(err, DT_INTERNAL, "strategy %s: %d ranks, %d shards, chain built for %d", row->name, size,
                       shards, chain->shards);
    }
    s->row = row;
    s->chain = chain;
    s->size = size;
    s->shards = shards;
    s->replicas = size / shards;
    s->shard_rank = rank % shards;
    s->replica_rank = rank / shards;
    s->alone = size == 1;
    s->trains = !job->evaluates;
    s->precision = *precision;
    s->type_size = dt_dtype_size(precision->compute);
    s->prefetch = job->fsdp.backward_prefetch;
    s->forward_prefetch = job->fsdp.forward_prefetch;
    s->bucket_cap_bytes = job->ddp.bucket_cap_mb * 0x1p20;
    s->first_bucket_bytes = job->ddp.first_bucket_mb * 0x1p20;
    s->gradient_share = 1;
    s->weights = row->weights;
    s->grads = row->grads;
    s->optimizer = row->optimizer;
    s->keep_after_forward = row->keep_after_forward;
    residence_choose(&s->rests, &row->rests, &job->offload, chain->spec.own_memory);
    residence_settings(&s->optimizer_settings, &job->offload, chain->spec.own_memory, false);
    residence_settings(&s->weights_settings, &job->offload, chain->spec.own_memory, true);
    s->portion = least_portion(&s->rests);
    if (s->portion < INT64_MAX && job->offload.portion > 0) {
        s->portion = job->offload.portion;
    }
    s->reduce_every = job->training.accumulate_sync == SYNC_AUTO
                          ? row->reduce == REDUCE_EVERY_MICRO_STEP
                          : job->training.accumulate_sync == SYNC_EVERY_MICRO_STEP;
    if (s->alone) { /* nothing to slice: every row is the same, and no collective is issued */
        /* slices that rest elsewhere come for their use, as they do with more ranks */
        bool elsewhere = row->weights == &weights_sliced && s->rests.weights != &home_device;
        s->weights = elsewhere ? row->weights : &weights_whole;
        s->optimizer = PART_WHOLE;
        s->reduce_every = s->keep_after_forward = false;
    }
    if (check_reshard(s, job->fsdp.reshard_after_forward, err) != 0) {
        return -1;
    }
    bool reshards = !s->alone && s->weights == &weights_sliced && !s->keep_after_forward && shards > 1;
    s->reshard = reshards ? (int)job->fsdp.reshard_after_forward : 0;
    s->grads = s->reduce_every ? &grads_sliced : &grads_whole;
    /* With one micro-step both are the same sums, so whole gradients that are kept anyway need
     * no slots beside them. */
    if (row->grads == &grads_whole && job->training.gradient_accumulation_steps == 1) {
        s->grads = &grads_whole;
    }
    if (s->grads == &grads_sliced && dt_dtype_half(precision->compute)) { /* they travel before anything is added to
                                                                             * them */
        s->precision.grads = precision->wire;
    }
    if (s->grads == &grads_whole && s->optimizer == PART_WHOLE && !s->alone) {
        s->hook = (struct hook){.row = hook_choose(job, row->hook, &s->precision), .job = job};
    }
    strategy_plan_live(s, &job->fsdp);
    int units = chain->unit_count;
    s->unit_first = dt_arena_alloc(&s->arena, (size_t)(units + 1) * sizeof *s->unit_first);
    for (int u = 0; u < units; u++) {
        s->unit_first[u + 1] = s->unit_first[u] + chain->units[u].numel;
    }
    s->total = s->unit_first[units];
    s->grad_first = dt_arena_alloc(&s->arena, (size_t)(units + 1) * sizeof *s->grad_first);
    for (int u = 0; u < units; u++) {
        s->grad_first[u + 1] = s->grad_first[u] + (strategy_trains(s, u) ? chain->units[u].numel : 0);
    }
    s->grad_total = s->grad_first[units];
    return 0;
}

void strategy_plan(struct strategy *s, struct plan *p)
{
    int64_t most = 0;
    s->weights->plan(s, p);
    s->grads->plan(s, p);
    if (s->hook.row != NULL && s->hook.row->plan != NULL) {
        s->hook.row->plan(s, p);
    }
    for (int u = 0; u < s->chain->unit_count && s->trains; u++) {
        const struct unit *x = &s->chain->units[u];
        most = x->discarded && x->numel > most ? x->numel : most;
    }
    s->discard_piece = plan_add(p, PLAN_GRADIENT_SLOTS, PLAN_LOCAL, (size_t)most * dt_dtype_size(s->precision.grads));
}

void *strategy_discard(const struct strategy *s, int unit)
{
    return s->chain->units[unit].discarded ? s->discard : NULL;
}

int strategy_connect(const struct strategy *s, struct world *w, struct dt_error *err)
{
    const unsigned sums = 1u << DT_ALL_REDUCE,
                   buffers = (s->chain->buffer_count > 0 ? 1u << DT_BROADCAST : 0) |
                             (s->chain->spec.norm_ranks > 1 ? 1u << DT_ALL_GATHER : 0),
                   slices = 1u << DT_REDUCE_SCATTER | 1u << DT_ALL_GATHER;
    bool sliced = s->optimizer == PART_SLICE, one = w->shard == w->comm;
    size_t all = (size_t)s->total * sizeof(float), bytes = all < CONNECT_BYTES ? all : CONNECT_BYTES;
    if (s->alone) {
        return 0;
    }
    /* others gather when nothing is reduced */
    if (s->weights == &weights_sliced && world_separate_gathers(w, err) != 0) {
        return -1;
    }
    bool separate = world_gathers_separate(w);
    if (s->reshard > 0 && (world_split_again(w, s->reshard, err) != 0 ||
                           dt_comm_connect(w->reshard, 1u << DT_ALL_GATHER, bytes, w->gathering, err) != 0)) {
        return -1;
    }
    unsigned of_shards = separate ? 1u << DT_REDUCE_SCATTER : slices;
    /* the step's sums are a few words */
    if ((!sliced || !one) && dt_comm_connect(w->comm, sums | buffers, sliced ? 0 : bytes, w->communication, err) != 0) {
        return -1;
    }
    if (sliced &&
        dt_comm_connect(w->shard, one ? of_shards | sums | buffers : of_shards, bytes, w->communication, err) != 0) {
        return -1;
    }
    if (separate && dt_comm_connect(w->gather, 1u << DT_ALL_GATHER, bytes, w->gathering, err) != 0) {
        return -1;
    }
    if (s->optimizer == PART_WHOLE && !one && s->shards > 1 &&
        dt_comm_connect(w->shard, sums, bytes, w->communication, err) != 0) {
        return -1;
    }
    return sliced && w->replica != NULL ? dt_comm_connect(w->replica, sums, bytes, w->communication, err) : 0;
}

int strategy_open(struct strategy *s, struct world *w, const struct plan *p, struct dt_error *err)
{
    s->world = w;
    s->discard = plan_at(p, s->discard_piece);
    int units = s->chain->unit_count;
    s->unit_done = dt_arena_alloc(&s->arena, (size_t)units * sizeof *s->unit_done);
    for (int u = 0; u < units; u++) {
        if (dt_event_open(w->device, &s->unit_done[u], err) != 0) {
            return -1;
        }
    }
    if (dt_event_open(w->device, &s->updated, err) != 0 || dt_event_open(w->device, &s->demand, err) != 0 ||
        dt_event_open(w->device, &s->landed, err) != 0 || dt_event_open(w->device, &s->gathered, err) != 0) {
        return -1;
    }
    if (s->weights->open(s, p, err) != 0 || s->grads->open(s, p, err) != 0) {
        return -1;
    }
    return s->hook.row != NULL && s->hook.row->open != NULL ? s->hook.row->open(s, p, err) : 0;
}

static void close_event(struct dt_event **e)
{
    if (*e) {
        dt_event_close(*e);
        *e = NULL;
    }
}

void strategy_close(struct strategy *s)
{
    if (s->world) {
        s->weights->close(s);
        s->grads->close(s);
        for (int u = 0; s->unit_done && u < s->chain->unit_count; u++) {
            close_event(&s->unit_done[u]);
        }
        close_event(&s->updated);
        close_event(&s->demand);
        close_event(&s->landed);
        close_event(&s->gathered);
    }
    dt_arena_clear(&s->arena);
    memset(s, 0, sizeof *s);
}

void strategy_share(const struct strategy *s, int unit, int64_t *first, int64_t *count)
{
    *count = s->chain->units[unit].numel / s->shards;
    *first = *count * s->shard_rank;
}

void strategy_owned(const struct strategy *s, int unit, int64_t *first, int64_t *count)
{
    if (s->optimizer == PART_SLICE) {
        strategy_share(s, unit, first, count);
        return;
    }
    *first = 0;
    *count = s->chain->units[unit].numel;
}

struct home_part strategy_resident(struct strategy *s, int unit, int64_t *first, int64_t *count)
{
    struct home_part owned = s->weights->slice(s, unit);
    int64_t owned_first;
    strategy_owned(s, unit, &owned_first, count);
    *first = owned_first;
    if (s->weights == &weights_whole) {
        *first = 0;
        *count = s->chain->units[unit].numel;
        owned.at -= (size_t)owned_first * s->type_size;
    }
    return owned;
}

bool strategy_trains(const struct strategy *s, int unit)
{
    return s->trains && s->chain->units[unit].role == ROLE_TRAINED;
}

/* A collective that takes what the compute stream has computed, and for which that stream waits. It goes through
 * the communication stream, so collectives have one order on all ranks. */
static void run_in(struct strategy *s, struct dt_comm *comm, const struct dt_collective *c)
{
    struct world *w = s->world;
    dt_event_record(s->demand, w->compute);
    dt_event_wait(s->demand, w->communication);
    int span = timeline_begin(s->timeline, TIMELINE_COMMUNICATION, w->communication, c->name, NULL);
    dt_comm_start(comm, c, w->communication);
    timeline_end(s->timeline, span, w->communication);
    dt_event_record(s->landed, w->communication);
    dt_event_wait(s->landed, w->compute);
}

static void run_between(struct strategy *s, const struct dt_collective *c)
{
    run_in(s, s->world->comm, c);
}

void strategy_send(struct strategy *s, struct dt_comm *comm, int root, const char *name, void *at, int64_t count,
                   enum dt_dtype type)
{
    run_in(s, comm,
           &(struct dt_collective){
               .kind = DT_BROADCAST, .name = name, .in = at, .out = at, .count = count, .type = type, .root = root});
}

void strategy_barrier(struct strategy *s, const char *name)
{
    if (!s->alone) {
        run_in(s, s->world->comm, &(struct dt_collective){.kind = DT_BARRIER, .name = name, .type = DT_U8});
    }
}

void strategy_send_buffers(struct strategy *s, void *buffers, int64_t count)
{
    if (s->alone || count == 0) {
        return;
    }
    strategy_send(s, s->world->comm, 0, "buffers", buffers, count, s->precision.buffers);
}

static void gather_from_peers(const struct pass_peers *p, const void *in, void *out, int64_t count, enum dt_dtype type)
{
    run_between(p->context, &(struct dt_collective){.kind = DT_ALL_GATHER,
                                                    .name = "moments of batch norms",
                                                    .in = in,
                                                    .out = out,
                                                    .count = count,
                                                    .type = type});
}

static void sum_with_peers(const struct pass_peers *p, void *x, int64_t count, enum dt_dtype type)
{
    run_between(p->context, &(struct dt_collective){.kind = DT_ALL_REDUCE,
                                                    .op = DT_SUM,
                                                    .name = "gradients of batch norms",
                                                    .in = x,
                                                    .out = x,
                                                    .count = count,
                                                    .type = type});
}

struct pass_peers strategy_peers(struct strategy *s)
{
    return (struct pass_peers){.count = s->size, .context = s, .gather = gather_from_peers, .sum = sum_with_peers};
}

bool strategy_counts(const struct strategy *s)
{
    return s->replica_rank == 0;
}

struct dt_stream *strategy_sums(const struct strategy *s)
{
    return s->alone ? s->world->compute : s->world->communication;
}

void strategy_land(struct strategy *s)
{
    if (s->alone && s->weights == &weights_whole) {
        return;
    }
    dt_event_record(s->landed, s->world->communication);
    dt_event_wait(s->landed, s->world->compute);
    if (world_gathers_separate(s->world)) { /* the optimizer writes what they read, also those that
                                          * nobody waited for */
        dt_event_record(s->gathered, s->world->gathering);
        dt_event_wait(s->gathered, s->world->compute);
    }
}

/* Weights on their way during a pass: those that the optimizer's slices make anew, or units that
 * arrive ahead of their use. */
static bool gathers_beside(const struct strategy *s, enum pass_phase phase, bool first_micro_step)
{
    bool backward = phase == PASS_BACKWARD, eval = phase == PASS_EVAL;
    if (s->weights == &weights_whole) {
        return s->optimizer == PART_SLICE && first_micro_step && !backward && !eval;
    }
    bool ahead = s->prefetch != PREFETCH_NONE || (s->forward_prefetch && !backward);
    bool kept = s->keep_after_forward && !eval && (backward || (!first_micro_step && !s->reduce_every));
    return ahead && !kept;
}

int strategy_busy_sms(const struct strategy *s, const struct world *w, enum pass_phase phase, bool last_block,
                      bool first_micro_step, bool last_micro_step)
{
    int gathers = gathers_beside(s, phase, first_micro_step) ? dt_comm_sms(w->shard, DT_ALL_GATHER) : 0;
    /* backward begins with the last block */
    bool reduces = phase == PASS_BACKWARD && !last_block && (s->reduce_every || last_micro_step);
    int reductions = reduces ? dt_comm_sms(w->comm, DT_ALL_REDUCE) : 0;
    /* products are measured before they are */
    bool separate = world_may_separate_gathers(w);
    /* on one stream one at a time */
    return separate ? gathers + reductions : gathers > reductions ? gathers : reductions;
}

void strategy_note(struct strategy *s, char what, int unit)
{
    struct strategy_trace *t = s->trace;
    if (t && t->count < (int)(sizeof t->entries / sizeof t->entries[0])) {
        t->entries[t->count].what = what;
        t->entries[t->count++].unit = unit;
    }
}

void strategy_gather(struct strategy *s, int unit, struct dt_comm *c, const void *in, void *out, int64_t count,
                     enum dt_dtype type, const char *name)
{
    struct dt_stream *stream = s->world->gathering;
    if (s->alone) {
        dt_stream_copy(stream, out, in, (size_t)count * dt_dtype_size(type));
        return;
    }
    int span = timeline_begin(s->timeline, TIMELINE_GATHERING, stream, name, s->chain->units[unit].name);
    dt_comm_start(c,
                  &(struct dt_collective){
                      .kind = DT_ALL_GATHER, .name = name, .in = in, .out = out, .count = count, .type = type},
                  stream);
    timeline_end(s->timeline, span, stream);
}

void strategy_start(struct strategy *s, int unit, struct dt_comm *c, enum dt_coll kind, enum dt_dtype type,
                    const void *in, void *out, int64_t count, const char *name)
{
    struct dt_stream *stream = s->world->communication;
    int span = timeline_begin(s->timeline, TIMELINE_COMMUNICATION, stream, name, s->chain->units[unit].name);
    dt_comm_start(c,
                  &(struct dt_collective){
                      .kind = kind, .op = DT_SUM, .name = name, .in = in, .out = out, .count = count, .type = type},
                  stream);
    timeline_end(s->timeline, span, stream);
}
