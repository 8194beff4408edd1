/* Weights as slices: a unit's whole weights exist only around its use, in a gather slot. Units
 * alternate between two slots, so that unit i + 1 arrives while unit i computes; a shared unit
 * (tied weights) has its own, because it lives from the first block to the last. Rows that keep
 * weights after forward have a slot for each unit.
 *
 * Events: filled = gathered, on the gathering stream; freed = compute is done with it; updated =
 * the optimizer wrote the slices. */
#include "worker/engine/strategy.h"

#include <assert.h>

static void add(struct strategy *s, struct plan *p)
{
    s->weights_piece = plan_add(p, PLAN_WEIGHTS, PLAN_PEERS, (size_t)(s->total / s->shards) * s->type_size);
    slots_plan(s, &s->gather, p, PLAN_GATHER_SLOTS, s->keep_after_forward, false, s->type);
}

static int open_sliced(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    s->weights_base = plan_at(p, s->weights_piece);
    return slots_open(s, &s->gather, p, err);
}

static void *slice(struct strategy *s, int unit)
{
    return s->weights_base + (size_t)(s->unit_first[unit] / s->shards) * s->type_size;
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
    strategy_gather(s, unit, slice(s, unit), x->data, s->chain->units[unit].numel / s->shards, "gather weights");
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

static void drop(struct strategy *s, int unit)
{
    struct slot *x = &s->gather.slot[s->gather.of[unit]];
    if (x->unit != unit) {
        return;
    }
    strategy_note(s, 'D', unit);
    dt_event_wait(x->filled, s->world->compute); /* prefetched and never used */
    dt_guard(s->world->compute, x->data, (size_t)s->chain->units[unit].numel * s->type_size);
    dt_event_record(x->freed, s->world->compute);
    x->unit = -1;
}

static void publish(struct strategy *s)
{
    for (int i = 0; i < s->gather.count; i++) {
        if (s->gather.slot[i].unit >= 0) {
            drop(s, s->gather.slot[i].unit);
        }
    }
    dt_event_record(s->updated, s->world->compute);
}

static void close_sliced(struct strategy *s)
{
    slots_close(&s->gather);
}

const struct weights_ops weights_sliced = {"sliced", add, open_sliced, fetch, get, drop, slice, publish, close_sliced};
