/* Gradients reduced at every micro-step: backward writes a unit's whole gradient into one of two
 * alternating slots, or the only one (a shared unit into its own, from the head's backward to the
 * embedding's); it is reduced at once, from a place beside them where it travels in another type, and what
 * this rank owns adds up over the micro-steps. With an optimizer
 * over everything (ddp, every micro-step) "owned" is the whole unit and the collective
 * all_reduce. */
#include "worker/engine/strategy.h"

#include <assert.h>

static void add(struct strategy *s, struct plan *p)
{
    int64_t owned = s->optimizer == PART_WHOLE ? s->grad_total : s->grad_total / s->shards;
    strategy_plan_home(s, &s->grads_home, s->rests.grads, p, PLAN_GRADIENTS, PLAN_PEERS, owned, s->precision.sums);
    slots_plan(s, &s->gradient, p, PLAN_GRADIENT_SLOTS, s->live.grad_sets, s->precision.grads);
    int64_t most = 0;
    for (int u = 0; u < s->chain->unit_count && s->precision.wire != s->precision.grads; u++) {
        most = strategy_trains(s, u) && s->chain->units[u].numel > most ? s->chain->units[u].numel : most;
    }
    s->wire_piece = plan_add(p, PLAN_GRADIENT_SLOTS, PLAN_PEERS, (size_t)most * dt_dtype_size(s->precision.wire));
}

static int open_sliced(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    s->wire_base = s->precision.wire != s->precision.grads ? plan_at(p, s->wire_piece) : NULL;
    return s->grads_home.ops->open(&s->grads_home, s->world, p, err) != 0 ? -1 : slots_open(s, &s->gradient, p, err);
}

static struct home_part slice(struct strategy *s, int unit)
{
    int64_t before = s->optimizer == PART_WHOLE ? s->grad_first[unit] : s->grad_first[unit] / s->shards;
    return (struct home_part){&s->grads_home, (size_t)before * dt_dtype_size(s->precision.sums)};
}

static void *get(struct strategy *s, int unit, int64_t micro_step, bool *accumulate)
{
    struct slot *x = &s->gradient.slot[s->gradient.of[unit]];
    const struct unit *u = &s->chain->units[unit];
    s->micro_step = micro_step;
    *accumulate = false;
    if (x->unit != unit) {
        assert(x->unit < 0); /* reduce frees a slot before its next unit comes */
        dt_event_wait(x->freed, s->world->compute);
        if (x->mixed) {
            s->world->device->kernels->fill(
                s->world->compute, &(struct dt_fill_args){.x = x->data, .count = u->numel, .type = s->precision.grads});
        }
        x->unit = unit;
    }
    return x->data;
}

/* The first micro-step's sum of a unit, or one more: into what this rank owns. */
static void keep(struct strategy *s, void *sum, const void *part, int64_t count, bool first)
{
    const struct dt_kernels *k = s->world->device->kernels;
    struct dt_stream *stream = s->world->communication;
    if (!first) {
        k->add(stream, &(struct dt_add_args){.out = sum,
                                             .a = sum,
                                             .b = part,
                                             .count = count,
                                             .type = s->precision.sums,
                                             .b_type = s->precision.wire});
    } else if (part != sum) {
        k->cast(
            stream,
            &(struct dt_cast_args){
                .out = sum, .in = part, .count = count, .out_type = s->precision.sums, .in_type = s->precision.wire});
    }
}

static struct unit_range reduce(struct strategy *s, int unit, bool last_micro_step)
{
    struct world *w = s->world;
    struct slot *x = &s->gradient.slot[s->gradient.of[unit]];
    int64_t count = s->chain->units[unit].numel, owned = s->optimizer == PART_WHOLE ? count : count / s->shards;
    size_t owned_bytes = (size_t)owned * dt_dtype_size(s->precision.sums);
    bool first = s->micro_step == 0, direct = first && s->precision.sums == s->precision.wire;
    struct home_part kept = slice(s, unit);
    char *sum = home_bring(kept, owned_bytes, first ? HOME_WRITE : HOME_CHANGE, w->communication), *out = sum;
    dt_event_record(s->unit_done[unit], w->compute);
    dt_event_wait(s->unit_done[unit], w->communication);
    strategy_note(s, 'R', unit);
    char *sent = x->data;
    if (s->wire_base != NULL && !s->alone) {
        sent = s->wire_base;
        w->device->kernels->cast(w->communication,
                                 &(struct dt_cast_args){sent, x->data, count, s->precision.wire, s->precision.grads});
    }
    if (s->optimizer == PART_WHOLE) {
        out = direct ? sum : sent;
        strategy_start(s, unit, w->comm, DT_ALL_REDUCE, s->precision.wire, sent, out, count, "reduce gradients");
    } else {
        count /= s->shards;
        out = direct ? sum : sent + (size_t)(s->shard_rank * count) * dt_dtype_size(s->precision.wire);
        strategy_start(s, unit, w->shard, DT_REDUCE_SCATTER, s->precision.wire, sent, out, count, "reduce gradients");
        if (s->replicas > 1) {
            strategy_start(s, unit, w->replica, DT_ALL_REDUCE, s->precision.wire, out, out, count,
                           "reduce across replicas");
        }
    }
    keep(s, sum, out, count, first);
    home_back(kept, owned_bytes, w->communication);
    dt_event_record(x->freed, w->communication);
    x->unit = -1;
    return (struct unit_range){unit, last_micro_step};
}

static void close_sliced(struct strategy *s)
{
    slots_close(&s->gradient);
    home_close(&s->grads_home);
}

const struct grads_ops grads_sliced = {"sliced", add, open_sliced, get, reduce, slice, close_sliced};
