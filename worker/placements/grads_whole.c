/* Gradients whole on every rank: micro-steps add up locally, the last one reduces each unit when its backward is done, all_reduce
 * where every rank updates everything, else reduce_scatter into the owned slice (and all_reduce across the replicas of a hybrid).
 * An all_reduce takes a bucket of units; the tree of sums is that of each element, so buckets change no bit. */
#include "worker/strategy.h"

#define FIRST_BUCKET_BYTES 0x1p20 /* small, so that the first one is on its way while most of backward is still to come */

/* Backward completes units from the last to the first: a bucket is closed when it holds its limit or more. */
static void make_buckets(struct strategy *s)
{
    int units = s->chain->unit_count, n = 0;
    s->bucket_of = dt_arena_alloc(&s->arena, (size_t)units * sizeof *s->bucket_of);
    s->buckets = dt_arena_alloc(&s->arena, (size_t)units * sizeof *s->buckets);
    double limit = s->bucket_cap_bytes < FIRST_BUCKET_BYTES ? s->bucket_cap_bytes : FIRST_BUCKET_BYTES, bytes = 0;
    for (int u = units - 1; u >= 0; u--) {
        s->bucket_of[u] = n;
        s->buckets[n] = (struct bucket){.first = u, .count = s->buckets[n].count + 1};
        bytes += (double)s->chain->units[u].numel * (double)s->type_size;
        if (bytes >= limit && u > 0) {
            n++;
            bytes = 0;
            limit = s->bucket_cap_bytes;
            s->buckets[n] = (struct bucket){0};
        }
    }
}

static void add(struct strategy *s, struct plan *p)
{
    make_buckets(s);
    s->grads_piece = plan_add(p, PLAN_GRADIENTS, PLAN_PEERS, (size_t)s->total * s->type_size);
}

static int open_whole(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    (void)err;
    s->grads_base = plan_at(p, s->grads_piece);
    return 0;
}

static char *unit_at(struct strategy *s, int unit)
{
    return s->grads_base + (size_t)s->unit_first[unit] * s->type_size;
}

static void *get(struct strategy *s, int unit, int64_t micro_step, bool *accumulate)
{
    *accumulate = micro_step > 0;
    return unit_at(s, unit);
}

static void *slice(struct strategy *s, int unit)
{
    int64_t first, count;
    strategy_owned(s, unit, &first, &count);
    return unit_at(s, unit) + (size_t)first * s->type_size;
}

static void reduce(struct strategy *s, int unit, bool last_micro_step)
{
    if (!last_micro_step || s->alone) {
        return;
    }
    struct world *w = s->world;
    const struct unit *u = &s->chain->units[unit];
    struct bucket *b = &s->buckets[s->bucket_of[unit]];
    if (s->optimizer == PART_WHOLE && ++b->ready < b->count) {
        return;
    }
    b->ready = 0;
    dt_event_record(s->unit_done[unit], w->compute);
    dt_event_wait(s->unit_done[unit], w->communication);
    strategy_note(s, 'R', unit);
    if (s->optimizer == PART_WHOLE) {
        void *at = unit_at(s, b->first);
        strategy_start(s, w->comm, DT_ALL_REDUCE, at, at, s->unit_first[b->first + b->count] - s->unit_first[b->first], "reduce gradients");
        return;
    }
    strategy_start(s, w->shard, DT_REDUCE_SCATTER, unit_at(s, unit), slice(s, unit), u->numel / s->shards, "reduce gradients");
    if (s->replicas > 1) {
        strategy_start(s, w->replica, DT_ALL_REDUCE, slice(s, unit), slice(s, unit), u->numel / s->shards, "reduce across replicas");
    }
}

static void close_whole(struct strategy *s)
{
    (void)s;
}

const struct grads_ops grads_whole = {"whole", add, open_whole, get, reduce, slice, close_whole};
