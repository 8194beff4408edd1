/* Weights as slices: a unit's whole weights exist only around its use, in a gather slot. Units take two
 * slots in turn, so that unit i + 1 arrives while unit i computes, or more where more of them are gathered
 * ahead (live.c); a shared unit (tied weights) has its own, because it lives from the first block to the
 * last, and so has one that is kept after forward. A persistent one stays until the optimizer has updated
 * it, and its next use gathers it. Where the job says so (fsdp.reshard_after_forward), each rank keeps a larger
 * share of what is dropped in forward than its slice, and backward gathers it from fewer ranks.
 *
 * Events: filled = gathered, on the gathering stream; freed = compute is done with it; updated =
 * the optimizer wrote the slices. */
#include "worker/engine/strategy.h"

#include <assert.h>

/* Room for the shares of units that are dropped after forward. */
static void add_shares(struct strategy *s, struct plan *p)
{
    struct reshards *r = &s->kept_shares;
    int64_t total = 0;
    r->first = dt_arena_alloc(&s->arena, (size_t)s->chain->unit_count * sizeof *r->first);
    r->filled = dt_arena_alloc(&s->arena, (size_t)s->chain->unit_count * sizeof *r->filled);
    for (int u = 0; u < s->chain->unit_count; u++) {
        const struct unit *x = &s->chain->units[u];
        bool stays = x->shared || x->persistent || s->live.kept[u];
        r->first[u] = stays ? -1 : total;
        total += stays ? 0 : x->numel / s->reshard;
    }
    r->piece = plan_add(p, PLAN_GATHER_SLOTS, PLAN_PEERS, (size_t)total * s->type_size);
}

static void add(struct strategy *s, struct plan *p)
{
    strategy_plan_home(s, &s->weights_home, s->rests.weights, p, PLAN_WEIGHTS, PLAN_PEERS, s->total / s->shards,
                       s->precision.compute);
    slots_plan(s, &s->gather, p, PLAN_GATHER_SLOTS, s->live.sets, s->precision.compute);
    if (s->reshard > 0) {
        add_shares(s, p);
    }
}

static int open_sliced(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    struct reshards *r = &s->kept_shares;
    r->data = s->reshard > 0 ? plan_at(p, r->piece) : NULL;
    if (s->reshard > 0 && dt_event_open(s->world->device, &r->done, err) != 0) {
        return -1;
    }
    return s->weights_home.ops->open(&s->weights_home, s->world, p, err) != 0 ? -1 : slots_open(s, &s->gather, p, err);
}

static struct home_part slice(struct strategy *s, int unit)
{
    return (struct home_part){&s->weights_home, (size_t)(s->unit_first[unit] / s->shards) * s->type_size};
}

/* This rank's share of a unit, of the ranks that gather it again. */
static char *share_of(const struct strategy *s, int unit, size_t *size_bytes)
{
    *size_bytes = (size_t)(s->chain->units[unit].numel / s->reshard) * s->type_size;
    return s->kept_shares.data + (size_t)s->kept_shares.first[unit] * s->type_size;
}

void strategy_reshard(struct strategy *s, int unit)
{
    struct slot *x = s->reshard > 0 ? &s->gather.slot[s->gather.of[unit]] : NULL;
    if (x == NULL || s->kept_shares.first[unit] < 0 || x->unit != unit) {
        return;
    }
    size_t size_bytes;
    char *share = share_of(s, unit, &size_bytes);
    strategy_note(s, 'S', unit);
    dt_event_wait(x->filled, s->world->compute);
    dt_stream_copy(s->world->compute, share, (char *)x->data + (size_t)(s->shard_rank % s->reshard) * size_bytes,
                   size_bytes);
    dt_event_record(s->kept_shares.done, s->world->compute);
    s->kept_shares.filled[unit] = true;
}

/* Gathers a unit from the shares that were kept of it in forward. False: there are none. */
static bool fetch_again(struct strategy *s, int unit, struct slot *x)
{
    if (s->reshard == 0 || !s->kept_shares.filled[unit]) {
        return false;
    }
    size_t size_bytes;
    const char *share = share_of(s, unit, &size_bytes);
    dt_event_wait(s->kept_shares.done, s->world->gathering);
    strategy_note(s, 'g', unit);
    strategy_gather(s, unit, s->world->reshard, share, x->data, s->chain->units[unit].numel / s->reshard,
                    s->precision.compute, "gather weights again");
    s->kept_shares.filled[unit] = false;
    return true;
}

static void fetch(struct strategy *s, int unit)
{
    struct slot *x = &s->gather.slot[s->gather.of[unit]];
    if (x->unit >= 0) {
        return; /* already there, or somebody else is still in it: get asks again */
    }
    struct world *w = s->world;
    if (s->prefetch == PREFETCH_NONE) { /* on demand: not before compute has come this far */
        dt_event_record(s->demand, w->compute);
        dt_event_wait(s->demand, w->gathering);
    }
    dt_event_wait(x->freed, w->gathering);
    dt_event_wait(s->updated, w->gathering);
    if (!fetch_again(s, unit, x)) {
        strategy_note(s, 'G', unit);
        int64_t count = s->chain->units[unit].numel / s->shards;
        size_t size_bytes = (size_t)count * s->type_size;
        struct home_part mine = slice(s, unit);
        strategy_gather(s, unit, w->gather, home_bring(mine, size_bytes, HOME_READ, w->gathering), x->data, count,
                        s->precision.compute, "gather weights");
        home_back(mine, size_bytes, w->gathering);
    }
    dt_event_record(x->filled, w->gathering);
    x->unit = unit;
}

static const void *get(struct strategy *s, int unit)
{
    struct slot *x = &s->gather.slot[s->gather.of[unit]];
    fetch(s, unit);
    assert(x->unit == unit);
    dt_event_wait(x->filled, s->world->compute);
    return x->data;
}

static void empty(struct strategy *s, int unit)
{
    struct slot *x = &s->gather.slot[s->gather.of[unit]];
    strategy_note(s, 'D', unit);
    dt_event_wait(x->filled, s->world->compute); /* prefetched and never used */
    dt_guard(s->world->compute, x->data, (size_t)s->chain->units[unit].numel * s->type_size);
    dt_event_record(x->freed, s->world->compute);
    x->unit = -1;
}

static void drop(struct strategy *s, int unit)
{
    if (s->gather.slot[s->gather.of[unit]].unit == unit && !s->chain->units[unit].persistent) {
        empty(s, unit);
    }
}

static void publish(struct strategy *s)
{
    for (int u = 0; s->reshard > 0 && u < s->chain->unit_count; u++) {
        s->kept_shares.filled[u] = false; /* of units that backward had no use for */
    }
    for (int i = 0; i < s->gather.count; i++) {
        int unit = s->gather.slot[i].unit;
        if (unit >= 0 && (strategy_trains(s, unit) || !s->chain->units[unit].persistent)) {
            empty(s, unit);
        }
    }
    dt_event_record(s->updated, s->world->compute);
}

static void close_sliced(struct strategy *s)
{
    slots_close(&s->gather);
    if (s->reshard > 0) {
        dt_event_close(s->kept_shares.done);
    }
    home_close(&s->weights_home);
}

const struct weights_ops weights_sliced = {"sliced", add, open_sliced, fetch, get, drop, slice, publish, close_sliced};
