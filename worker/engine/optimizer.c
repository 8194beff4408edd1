/* Ranges by group, then one call for all that differ in weight decay alone. */
#include "worker/engine/optimizer.h"

#include <string.h>

enum { MASTERS = DT_STATES_MAX };

static int group_of(const struct tensor *x)
{
    return x->decay ? 0 : 1;
}

const struct optimizer_group *optimizer_group_of(const struct optimizer *o, const struct tensor *x)
{
    return &o->groups[group_of(x)];
}

static bool same_numbers(const struct dt_update_numbers *a, const struct dt_update_numbers *b)
{
    return a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->eps == b->eps && a->momentum == b->momentum &&
           a->dampening == b->dampening && a->lr_decay == b->lr_decay && a->initial == b->initial &&
           a->nesterov == b->nesterov;
}

static void make_groups(struct optimizer *o, const struct job *job)
{
    const double decay[OPTIMIZER_GROUPS] = {job->training.weight_decay, 0};
    for (int i = 0; i < OPTIMIZER_GROUPS; i++) {
        struct optimizer_group *g = &o->groups[i];
        *g = (struct optimizer_group){.row = job->optimizer.row,
                                      .numbers = job->optimizer.numbers,
                                      .weight_decay = decay[i],
                                      .states = optimizer_row_states(job->optimizer.row, &job->optimizer.numbers)};
        while (o->groups[g->call].row != g->row || !same_numbers(&o->groups[g->call].numbers, &g->numbers)) {
            g->call++;
        }
    }
}

/* Appends elements [first, end) of the unit, cut to the owned part, to the ranges. */
static void add(struct optimizer *o, int unit, int64_t first, int64_t end, int group)
{
    int64_t owned_first, owned_count;
    strategy_owned(o->strategy, unit, &owned_first, &owned_count);
    first = (first > owned_first ? first : owned_first) - owned_first;
    end = (end < owned_first + owned_count ? end : owned_first + owned_count) - owned_first;
    if (first >= end) {
        return;
    }
    struct optimizer_range *last = o->range_count > 0 ? &o->ranges[o->range_count - 1] : NULL;
    if (last && last->unit == unit && last->group == group && last->first + last->count == first) {
        last->count = end - last->first;
        return;
    }
    o->ranges[o->range_count++] =
        (struct optimizer_range){.unit = unit, .first = first, .count = end - first, .group = group};
}

/* Returns the most states that a tensor of the unit has. */
static int add_unit(struct optimizer *o, int unit)
{
    const struct chain *c = o->strategy->chain;
    const struct tensor *previous = NULL; /* its range reaches to the start of the next tensor: the gap
                                           * stays zero either way */
    int states = 0;
    for (int t = 0; t < c->tensor_count; t++) {
        const struct tensor *x = &c->tensors[t];
        if (x->unit != unit) {
            continue;
        }
        if (previous) {
            add(o, unit, previous->offset, x->offset, group_of(previous));
        }
        states = o->groups[group_of(x)].states > states ? o->groups[group_of(x)].states : states;
        previous = x;
    }
    if (previous) {
        add(o, unit, previous->offset, previous->offset + previous->numel, group_of(previous));
    }
    return states;
}

void optimizer_plan(struct optimizer *o, struct strategy *s, const struct job *job, struct plan *p)
{
    const struct chain *c = s->chain;
    const struct precision *types = &s->precision;
    int64_t total[DT_STATES_MAX + 1] = {0};
    memset(o, 0, sizeof *o);
    dt_arena_init(&o->arena);
    o->strategy = s;
    o->seed = (uint64_t)job->training.seed;
    make_groups(o, job);
    o->ranges = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->ranges);
    o->slices = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->slices);
    for (int k = 0; k <= MASTERS; k++) {
        o->parts[k].first = dt_arena_alloc(&o->arena, (size_t)c->unit_count * sizeof *o->parts[k].first);
    }
    for (int u = 0; u < c->unit_count; u++) {
        int64_t first, count;
        strategy_owned(s, u, &first, &count);
        int states = strategy_trains(s, u) ? add_unit(o, u) : 0;
        for (int k = 0; k <= MASTERS; k++) {
            bool has = k == MASTERS ? precision_mixed(types) && strategy_trains(s, u) : k < states;
            o->parts[k].first[u] = total[k];
            total[k] += has ? count : 0;
        }
    }
    for (int k = 0; k <= MASTERS; k++) {
        size_t size = dt_dtype_size(k == MASTERS ? types->masters : types->states);
        o->parts[k].piece = plan_add(p, PLAN_OPTIMIZER, PLAN_LOCAL, (size_t)total[k] * size);
    }
}

void optimizer_open(struct optimizer *o, const struct plan *p)
{
    for (int k = 0; k <= MASTERS; k++) {
        o->parts[k].base = plan_at(p, o->parts[k].piece);
    }
}

void *optimizer_weights(const struct optimizer *o, int unit)
{
    struct strategy *s = o->strategy;
    const struct optimizer_part *masters = &o->parts[MASTERS];
    return masters->base != NULL && strategy_trains(s, unit)
               ? masters->base + (size_t)masters->first[unit] * dt_dtype_size(s->precision.masters)
               : s->weights->slice(s, unit);
}

void *optimizer_state(const struct optimizer *o, int k, int unit, int64_t element)
{
    return o->parts[k].base +
           (size_t)(o->parts[k].first[unit] + element) * dt_dtype_size(o->strategy->precision.states);
}

static struct dt_update_slice slice_of(const struct optimizer *o, const struct optimizer_range *r)
{
    struct strategy *s = o->strategy;
    const struct precision *types = &s->precision;
    const struct optimizer_group *g = &o->groups[r->group];
    int64_t owned_first, owned_count;
    strategy_owned(s, r->unit, &owned_first, &owned_count);
    struct dt_update_slice x = {
        .w = (char *)optimizer_weights(o, r->unit) + (size_t)r->first * dt_dtype_size(types->masters),
        .w_low = o->parts[MASTERS].base != NULL
                     ? (char *)s->weights->slice(s, r->unit) + (size_t)r->first * s->type_size
                     : NULL,
        .grad = (char *)s->grads->slice(s, r->unit) + (size_t)r->first * dt_dtype_size(types->sums),
        .count = r->count,
        .weight_decay = g->weight_decay,
        .unit = r->unit,
        .first = owned_first + r->first,
    };
    for (int k = 0; k < g->states; k++) {
        x.state[k] = optimizer_state(o, k, r->unit, r->first);
    }
    return x;
}

void optimizer_step(struct optimizer *o, double learning_rate, const double *factor)
{
    struct strategy *s = o->strategy;
    struct world *w = s->world;
    o->steps++;
    for (int call = 0; call < OPTIMIZER_GROUPS; call++) {
        int count = 0;
        for (int i = 0; i < o->range_count; i++) {
            if (o->groups[o->ranges[i].group].call == call) {
                o->slices[count++] = slice_of(o, &o->ranges[i]);
            }
        }
        const struct dt_update_args args = {.slices = o->slices,
                                            .slice_count = count,
                                            .clip = factor,
                                            .step = o->steps,
                                            .lr = learning_rate,
                                            .grad_scale = 1,
                                            .numbers = o->groups[call].numbers,
                                            .seed = o->seed,
                                            .type = s->precision.masters,
                                            .grad_type = s->precision.sums,
                                            .state_type = s->precision.states};
        if (count > 0) {
            o->groups[call].row->update(w->device->kernels, w->compute, &args);
        }
    }
}

void optimizer_clear(struct optimizer *o)
{
    dt_arena_clear(&o->arena);
    memset(o, 0, sizeof *o);
}
