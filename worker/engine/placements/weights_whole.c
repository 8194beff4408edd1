/* Weights whole on every rank. When each rank's optimizer updates a slice only, publish gathers
 * the units in forward order, and get lets the compute stream wait for its unit alone, so the
 * gathers hide behind the next forward. Weights that never travel need no memory that peers reach. */
#include "worker/engine/strategy.h"

static void add(struct strategy *s, struct plan *p)
{
    bool travel = s->optimizer == PART_SLICE || (s->hook.row != NULL && s->hook.row->local);
    strategy_plan_home(s, &s->weights_home, &home_device, p, PLAN_WEIGHTS, travel ? PLAN_PEERS : PLAN_LOCAL, s->total,
                       s->precision.compute);
}

static int open_whole(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    s->unit_ready = dt_arena_alloc(&s->arena, (size_t)s->chain->unit_count * sizeof *s->unit_ready);
    for (int u = 0; u < s->chain->unit_count; u++) {
        if (dt_event_open(s->world->device, &s->unit_ready[u], err) != 0) {
            return -1;
        }
    }
    return s->weights_home.ops->open(&s->weights_home, s->world, p, err);
}

static char *unit_at(struct strategy *s, int unit)
{
    return (char *)home_device_at(&s->weights_home) + (size_t)s->unit_first[unit] * s->type_size;
}

static void nothing(struct strategy *s, int unit)
{
    (void)s;
    (void)unit;
}

static const void *get(struct strategy *s, int unit)
{
    if (!s->alone && s->optimizer == PART_SLICE) {
        dt_event_wait(s->unit_ready[unit], s->world->compute);
    }
    return unit_at(s, unit);
}

static struct home_part slice(struct strategy *s, int unit)
{
    int64_t first, count;
    strategy_owned(s, unit, &first, &count);
    return (struct home_part){&s->weights_home, (size_t)(s->unit_first[unit] + first) * s->type_size};
}

static void publish(struct strategy *s)
{
    if (s->alone || s->optimizer == PART_WHOLE) {
        return;
    }
    dt_event_record(s->updated, s->world->compute);
    dt_event_wait(s->updated, s->world->gathering);
    for (int u = 0; u < s->chain->unit_count; u++) {
        if (!strategy_trains(s, u)) { /* nothing of it has changed */
            continue;
        }
        int64_t first, count;
        strategy_owned(s, u, &first, &count);
        strategy_note(s, 'P', u);
        strategy_gather(s, u, s->world->gather, unit_at(s, u) + (size_t)first * s->type_size, unit_at(s, u), count,
                        s->precision.compute, "publish weights");
        dt_event_record(s->unit_ready[u], s->world->gathering);
    }
}

static void close_whole(struct strategy *s)
{
    for (int u = 0; s->unit_ready && u < s->chain->unit_count; u++) {
        dt_event_close(s->unit_ready[u]);
    }
    home_close(&s->weights_home);
}

const struct weights_ops weights_whole = {"whole", add, open_whole, nothing, get, nothing, slice, publish, close_whole};
