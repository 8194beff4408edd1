/* Optimizers whose step depends on norms of whole tensors (REACH_TENSOR, LAMB). Each rank adds the squares of
 * what it owns to exact sums (kernels/exact.h), which one all_reduce adds up as integers. So a tensor's ratio
 * has the same bits however it is cut. */
#include "worker/engine/optimizer.h"

#include "kernels/exact.h"

#include <string.h>

static int64_t limb_count(const struct optimizer *o)
{
    return (int64_t)o->strategy->chain->tensor_count * 2 * DT_EXACT_LIMBS;
}

static bool needs_ratios(const struct optimizer *o)
{
    for (int i = 0; i < o->group_count; i++) {
        if (o->groups[i].row->reach == REACH_TENSOR) {
            return o->strategy->chain->tensor_count > 0;
        }
    }
    return false;
}

void optimizer_ratios_plan(struct optimizer *o, struct plan *p)
{
    if (needs_ratios(o)) {
        o->ratios.piece_limbs =
            plan_add(p, PLAN_COMMUNICATION, PLAN_PEERS, (size_t)limb_count(o) * sizeof *o->ratios.limbs);
        o->ratios.piece_ratio = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL,
                                         (size_t)o->strategy->chain->tensor_count * sizeof *o->ratios.ratio);
    }
}

void optimizer_ratios_open(struct optimizer *o, const struct plan *p)
{
    if (needs_ratios(o)) {
        o->ratios.limbs = plan_at(p, o->ratios.piece_limbs);
        o->ratios.ratio = plan_at(p, o->ratios.piece_ratio);
    }
}

void optimizer_ratios_begin(struct optimizer *o)
{
    struct world *w = o->strategy->world;
    if (o->ratios.limbs != NULL) {
        w->device->kernels->fill(w->compute,
                                 &(struct dt_fill_args){.x = o->ratios.limbs, .count = limb_count(o), .type = DT_I64});
    }
}

static void add_squares(struct optimizer *o, int64_t *limbs, const void *x, int64_t count, enum dt_dtype type)
{
    struct world *w = o->strategy->world;
    w->device->kernels->norm_sum(w->compute,
                                 &(struct dt_norm_sum_args){.limbs = limbs, .x = x, .count = count, .type = type});
}

void optimizer_ratios_add(struct optimizer *o, const struct optimizer_range *r, const struct dt_update_slice *x)
{
    const struct strategy *s = o->strategy;
    const struct precision *types = &s->precision;
    int64_t first, count, begin;
    if (!strategy_counts(s)) {
        return;
    }
    strategy_owned(s, r->unit, &begin, &count);
    begin += r->first;
    strategy_share(s, r->unit, &first, &count); /* each element once, whoever else updates it, too */
    int64_t end = begin + x->count < first + count ? begin + x->count : first + count;
    first = first > begin ? first : begin;
    if (first >= end) {
        return;
    }
    int64_t *limbs = o->ratios.limbs + (int64_t)r->tensor * 2 * DT_EXACT_LIMBS, skipped = first - begin;
    add_squares(o, limbs, (const char *)x->w + (size_t)skipped * dt_dtype_size(types->masters), end - first,
                types->masters);
    add_squares(o, limbs + DT_EXACT_LIMBS, (const char *)x->grad + (size_t)skipped * dt_dtype_size(types->sums),
                end - first, types->sums);
}

void optimizer_ratios_finish(struct optimizer *o, const struct dt_update_numbers *numbers)
{
    struct strategy *s = o->strategy;
    struct world *w = s->world;
    if (o->ratios.limbs == NULL) {
        return;
    }
    if (!s->alone) { /* collectives of a communicator stay on one stream */
        dt_event_record(s->demand, w->compute);
        dt_event_wait(s->demand, w->communication);
        dt_comm_start(w->comm,
                      &(struct dt_collective){.kind = DT_ALL_REDUCE,
                                              .op = DT_SUM,
                                              .name = "tensor norms",
                                              .in = o->ratios.limbs,
                                              .out = o->ratios.limbs,
                                              .count = limb_count(o),
                                              .type = DT_I64},
                      w->communication);
        strategy_land(s);
    }
    w->device->kernels->trust_ratio(w->compute, &(struct dt_trust_ratio_args){.ratio = o->ratios.ratio,
                                                                              .limbs = o->ratios.limbs,
                                                                              .count = s->chain->tensor_count,
                                                                              .min_coeff = numbers->min_coeff,
                                                                              .max_coeff = numbers->max_coeff});
}
