/* Weights as slices: a unit's whole weights exist only around its use, in a gather slot. Units take two
 * slots in turn, so that unit i + 1 arrives while unit i computes, or more where more of them are gathered
 * ahead (live.c); a shared unit (tied weights) has its own, because it lives from the first block to the
 * last, and so has one that is kept after forward. A persistent one stays until the optimizer has updated
 * it, and its next use gathers it.
 *
 * Events: filled = gathered, on the gathering stream; freed = compute is done with it; updated =
 * the optimizer wrote the slices. */
#include "worker/engine/strategy.h"

#include <assert.h>

static void add(struct strategy *s, struct plan *p)
{
    strategy_plan_home(s, &s->weights_home, s->rests.weights, p, PLAN_WEIGHTS, PLAN_PEERS, s->total / s->shards,
                       s->precision.compute);
    slots_plan(s, &s->gather, p, PLAN_GATHER_SLOTS, s->live.sets, s->precision.compute);
}

static int open_sliced(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    return s->weights_home.ops->open(&s->weights_home, s->world, p, err) != 0 ? -1 : slots_open(s, &s->gather, p, err);
}

static struct home_part slice(struct strategy *s, int unit)
{
    return (struct home_part){&s->weights_home, (size_t)(s->unit_first[unit] / s->shards) * s->type_size};
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
    strategy_note(s, 'G', unit);
    int64_t count = s->chain->units[unit].numel / s->shards;
    size_t size_bytes = (size_t)count * s->type_size;
    struct home_part mine = slice(s, unit);
    strategy_gather(s, unit, home_bring(mine, size_bytes, HOME_READ, w->gathering), x->data, count,
                    s->precision.compute, "gather weights");
    home_back(mine, size_bytes, w->gathering);
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
    home_close(&s->weights_home);
}

const struct weights_ops weights_sliced = {"sliced", add, open_sliced, fetch, get, drop, slice, publish, close_sliced};
