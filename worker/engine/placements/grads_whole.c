/* Gradients whole on every rank: micro-steps add up locally, the last one reduces each unit when
 * its backward is done, all_reduce where every rank updates everything, else reduce_scatter into
 * the owned slice (and all_reduce across the replicas of a hybrid). An all_reduce takes a bucket
 * of units; the tree of sums is that of each element, so buckets change no bit. Sums over
 * micro-steps that travel in another type do so from one place beside them, bucket by bucket. */
#include "worker/engine/strategy.h"

/* Backward completes units from the last to the first: a bucket is closed when it holds its
 * limit or more, and before the root, which comes last and whose embedding may be larger than
 * all before it: nothing follows that could hide its way, so what is worth one goes ahead of it. The
 * first is small, so that it is on its way while most of backward is still to come. */
static void make_buckets(struct strategy *s)
{
    int units = s->chain->unit_count, n = 0;
    s->bucket_of = dt_arena_alloc(&s->arena, (size_t)units * sizeof *s->bucket_of);
    s->buckets = dt_arena_alloc(&s->arena, (size_t)units * sizeof *s->buckets);
    double first = s->first_bucket_bytes, limit = s->bucket_cap_bytes < first ? s->bucket_cap_bytes : first, bytes = 0;
    for (int u = units - 1; u >= 0; u--) {
        s->bucket_of[u] = n;
        bool trained = strategy_trains(s, u);
        s->buckets[n] =
            (struct bucket){.first = u, .count = s->buckets[n].count + 1, .wanted = s->buckets[n].wanted + trained};
        bytes += trained ? (double)s->chain->units[u].numel * (double)dt_dtype_size(s->precision.wire) : 0;
        if (u > 0 && (bytes >= limit || (u == 1 && bytes >= first))) {
            n++;
            bytes = 0;
            limit = s->bucket_cap_bytes;
            s->buckets[n] = (struct bucket){0};
        }
    }
}

/* Elements that travel at once, at most. */
static int64_t most_at_once(const struct strategy *s)
{
    int64_t most = 0;
    for (int u = 0; u < s->chain->unit_count; u++) {
        const struct bucket *b = &s->buckets[s->bucket_of[u]];
        int64_t whole = s->grad_first[b->first + b->count] - s->grad_first[b->first];
        int64_t count = s->optimizer == PART_WHOLE ? whole : s->grad_first[u + 1] - s->grad_first[u];
        most = count > most ? count : most;
    }
    return most;
}

static void add(struct strategy *s, struct plan *p)
{
    make_buckets(s);
    strategy_plan_home(s, &s->grads_home, &home_device, p, PLAN_GRADIENTS, PLAN_PEERS, s->grad_total,
                       s->precision.grads);
    bool beside = !s->alone && s->precision.wire != s->precision.grads;
    s->wire_piece = plan_add(p, PLAN_GRADIENT_SLOTS, PLAN_PEERS,
                             beside ? (size_t)most_at_once(s) * dt_dtype_size(s->precision.wire) : 0);
}

static int open_whole(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    s->wire_base = plan_at(p, s->wire_piece);
    return s->grads_home.ops->open(&s->grads_home, s->world, p, err);
}

static char *unit_at(struct strategy *s, int unit)
{
    return (char *)home_device_at(&s->grads_home) + (size_t)s->grad_first[unit] * dt_dtype_size(s->precision.grads);
}

static void *get(struct strategy *s, int unit, int64_t micro_step, bool *accumulate)
{
    *accumulate = micro_step > 0;
    return unit_at(s, unit);
}

static struct home_part slice(struct strategy *s, int unit)
{
    int64_t first, count;
    strategy_owned(s, unit, &first, &count);
    return (struct home_part){&s->grads_home,
                              (size_t)(s->grad_first[unit] + first) * dt_dtype_size(s->precision.grads)};
}

/* Where `count` gradients are while they travel: where they lie, or beside, in the wire's type.
 * The stream is the one that reduces, so what travelled before has left that place. */
static char *depart(struct strategy *s, char *grads, int64_t count)
{
    if (s->wire_base == NULL) {
        return grads;
    }
    s->world->device->kernels->cast(
        s->world->communication,
        &(struct dt_cast_args){s->wire_base, grads, count, s->precision.wire, s->precision.grads});
    return s->wire_base;
}

static void arrive(struct strategy *s, char *grads, const char *from, int64_t count)
{
    if (s->wire_base != NULL) {
        s->world->device->kernels->cast(
            s->world->communication, &(struct dt_cast_args){grads, from, count, s->precision.grads, s->precision.wire});
    }
}

static struct unit_range reduce(struct strategy *s, int unit, bool last_micro_step)
{
    if (!last_micro_step || s->alone) {
        return (struct unit_range){unit, last_micro_step};
    }
    struct world *w = s->world;
    struct bucket *b = &s->buckets[s->bucket_of[unit]];
    if (s->optimizer == PART_WHOLE && ++b->ready < b->wanted) {
        return (struct unit_range){unit, 0};
    }
    b->ready = 0;
    dt_event_record(s->unit_done[unit], w->compute);
    dt_event_wait(s->unit_done[unit], w->communication);
    strategy_note(s, 'R', unit);
    if (s->optimizer == PART_WHOLE) {
        int64_t count = s->grad_first[b->first + b->count] - s->grad_first[b->first];
        char *at = depart(s, unit_at(s, b->first), count);
        s->hook.row->exchange(s, s->bucket_of[unit], at, count);
        arrive(s, unit_at(s, b->first), at, count);
        return (struct unit_range){b->first, b->count};
    }
    int64_t count = s->chain->units[unit].numel / s->shards;
    char *at = depart(s, unit_at(s, unit), count * s->shards),
         *share = at + (size_t)(count * s->shard_rank) * dt_dtype_size(s->precision.wire);
    strategy_start(s, unit, w->shard, DT_REDUCE_SCATTER, s->precision.wire, at, share, count, "reduce gradients");
    if (s->replicas > 1) {
        strategy_start(s, unit, w->replica, DT_ALL_REDUCE, s->precision.wire, share, share, count,
                       "reduce across replicas");
    }
    arrive(s, unit_at(s, unit) + (size_t)(count * s->shard_rank) * dt_dtype_size(s->precision.grads), share, count);
    return (struct unit_range){unit, 1};
}

static void close_whole(struct strategy *s)
{
    home_close(&s->grads_home);
}

const struct grads_ops grads_whole = {"whole", add, open_whole, get, reduce, slice, close_whole};
