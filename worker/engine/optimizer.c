/* Ranges by decay, then one call for all of them. */
#include "worker/engine/optimizer.h"

#include <string.h>

/* Calls with elements [first, first + count) of the unit: appends them, cut to the owned part,
 * to the ranges. */
static void add(struct optimizer *o, int unit, int64_t first, int64_t end, bool decay)
{
    int64_t owned_first, owned_count;
    strategy_owned(o->strategy, unit, &owned_first, &owned_count);
    first = (first > owned_first ? first : owned_first) - owned_first;
    end = (end < owned_first + owned_count ? end : owned_first + owned_count) - owned_first;
    if (first >= end) {
        return;
    }
    struct optimizer_range *last = o->range_count > 0 ? &o->ranges[o->range_count - 1] : NULL;
    if (last && last->unit == unit && last->decay == decay && last->first + last->count == first) {
        last->count = end - last->first;
        return;
    }
    o->ranges[o->range_count++] =
        (struct optimizer_range){.unit = unit, .first = first, .count = end - first, .decay = decay};
}

void optimizer_plan(struct optimizer *o, struct strategy *s, const struct job *job, struct plan *p)
{
    const struct chain *c = s->chain;
    memset(o, 0, sizeof *o);
    dt_arena_init(&o->arena);
    o->strategy = s;
    o->beta1 = job->training.adam_beta1;
    o->beta2 = job->training.adam_beta2;
    o->epsilon = job->training.adam_epsilon;
    o->weight_decay = job->training.weight_decay;
    o->seed = (uint64_t)job->training.seed;
    o->moment_type = job->precision.moments == DT_BF16 ? DT_BF16 : s->real;
    o->ranges = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->ranges);
    o->calls = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->calls);
    o->unit_first = dt_arena_alloc(&o->arena, (size_t)c->unit_count * sizeof *o->unit_first);
    for (int u = 0; u < c->unit_count; u++) {
        int64_t first, count;
        strategy_owned(s, u, &first, &count);
        o->unit_first[u] = o->total;
        if (!strategy_trains(s, u)) {
            continue;
        }
        o->total += count;
        const struct tensor *previous = NULL; /* a tensor's range reaches to the next one's
                                               * start: the gap stays zero either way */
        for (int t = 0; t < c->tensor_count; t++) {
            if (c->tensors[t].unit != u) {
                continue;
            }
            if (previous) {
                add(o, u, previous->offset, c->tensors[t].offset, previous->decay);
            }
            previous = &c->tensors[t];
        }
        if (previous) {
            add(o, u, previous->offset, previous->offset + previous->numel, previous->decay);
        }
    }
    size_t moment_bytes = (size_t)o->total * dt_dtype_size(o->moment_type);
    o->piece_m = plan_add(p, PLAN_OPTIMIZER, PLAN_LOCAL, moment_bytes);
    o->piece_v = plan_add(p, PLAN_OPTIMIZER, PLAN_LOCAL, moment_bytes);
    o->piece_w =
        plan_add(p, PLAN_OPTIMIZER, PLAN_LOCAL, s->type != s->real ? (size_t)o->total * dt_dtype_size(s->real) : 0);
}

void optimizer_open(struct optimizer *o, const struct plan *p)
{
    o->m = plan_at(p, o->piece_m);
    o->v = plan_at(p, o->piece_v);
    o->w = plan_at(p, o->piece_w);
}

void *optimizer_weights(const struct optimizer *o, int unit)
{
    struct strategy *s = o->strategy;
    return o->w != NULL && strategy_trains(s, unit) ? o->w + (size_t)o->unit_first[unit] * dt_dtype_size(s->real)
                                                    : s->weights->slice(s, unit);
}

size_t optimizer_moment(const struct optimizer *o, int unit, int64_t element)
{
    return (size_t)(o->unit_first[unit] + element) * dt_dtype_size(o->moment_type);
}

void optimizer_step(struct optimizer *o, double learning_rate, const double *factor)
{
    struct strategy *s = o->strategy;
    struct world *w = s->world;
    o->steps++;
    for (int i = 0; i < o->range_count; i++) {
        const struct optimizer_range *r = &o->ranges[i];
        size_t at = (size_t)r->first * dt_dtype_size(s->real), moment = optimizer_moment(o, r->unit, r->first);
        int64_t owned_first, owned_count;
        strategy_owned(s, r->unit, &owned_first, &owned_count);
        o->calls[i] = (struct dt_adamw_args){
            .w = (char *)optimizer_weights(o, r->unit) + at,
            .w_bf16 = o->w != NULL ? (char *)s->weights->slice(s, r->unit) + (size_t)r->first * s->type_size : NULL,
            .m = o->m + moment,
            .v = o->v + moment,
            .grad = (char *)s->grads->slice(s, r->unit) + (size_t)r->first * dt_dtype_size(s->sum_type),
            .clip = factor,
            .count = r->count,
            .step = o->steps,
            .lr = learning_rate,
            .beta1 = o->beta1,
            .beta2 = o->beta2,
            .eps = o->epsilon,
            .weight_decay = r->decay ? o->weight_decay : 0,
            .grad_scale = 1,
            .seed = o->seed,
            .unit = r->unit,
            .first = owned_first + r->first,
            .type = s->real,
            .grad_type = s->sum_type,
            .moment_type = o->moment_type,
        };
    }
    w->device->kernels->adamw_many(w->compute, &(struct dt_adamw_many_args){o->calls, o->range_count});
}

void optimizer_clear(struct optimizer *o)
{
    dt_arena_clear(&o->arena);
    memset(o, 0, sizeof *o);
}
