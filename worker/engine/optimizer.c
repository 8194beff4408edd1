/* Ranges by group, then one call for all that differ in weight decay alone, portion by portion. */
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
    o->brought = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->brought);
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
        strategy_plan_home(s, &o->parts[k].home, k == MASTERS ? s->row->rests.masters : s->row->rests.states, p,
                           PLAN_OPTIMIZER, PLAN_LOCAL, total[k], k == MASTERS ? types->masters : types->states);
    }
}

int optimizer_open(struct optimizer *o, const struct plan *p, struct dt_error *err)
{
    for (int k = 0; k <= MASTERS; k++) {
        struct home *h = &o->parts[k].home;
        if (h->ops->open(h, o->strategy->world, p, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static struct home_part later(struct home_part x, int64_t elements, enum dt_dtype type)
{
    return (struct home_part){x.home, x.at + (size_t)elements * dt_dtype_size(type)};
}

static struct home_part part_of(struct optimizer *o, int k, int unit, int64_t element, enum dt_dtype type)
{
    struct optimizer_part *x = &o->parts[k];
    return later((struct home_part){.home = &x->home}, x->first[unit] + element, type);
}

struct home_part optimizer_weights(struct optimizer *o, int unit, int64_t element)
{
    struct strategy *s = o->strategy;
    const struct precision *types = &s->precision;
    return precision_mixed(types) && strategy_trains(s, unit)
               ? part_of(o, MASTERS, unit, element, types->masters)
               : later(s->weights->slice(s, unit), element, types->compute);
}

struct home_part optimizer_state(struct optimizer *o, int k, int unit, int64_t element)
{
    return part_of(o, k, unit, element, o->strategy->precision.states);
}

/* ---- a step ---- */

/* An array of a range, and how an update uses it. */
struct used {
    struct home_part part;
    enum dt_dtype type;
    enum home_use use;
};
enum { USED_GRADS, USED_WEIGHTS, USED_STATES, USED_LOW = USED_STATES + DT_STATES_MAX, USED_MOST };

/* home null: the range has no such array. */
static void find_used(struct optimizer *o, const struct optimizer_range *r, struct used out[USED_MOST])
{
    struct strategy *s = o->strategy;
    const struct precision *types = &s->precision;
    memset(out, 0, USED_MOST * sizeof *out);
    out[USED_GRADS] = (struct used){later(s->grads->slice(s, r->unit), r->first, types->sums), types->sums, HOME_READ};
    out[USED_WEIGHTS] = (struct used){optimizer_weights(o, r->unit, r->first), types->masters, HOME_CHANGE};
    for (int k = 0; k < o->groups[r->group].states; k++) {
        out[USED_STATES + k] = (struct used){optimizer_state(o, k, r->unit, r->first), types->states, HOME_CHANGE};
    }
    if (precision_mixed(types)) {
        out[USED_LOW] =
            (struct used){later(s->weights->slice(s, r->unit), r->first, types->compute), types->compute, HOME_WRITE};
    }
}

static struct dt_update_slice bring(struct optimizer *o, const struct optimizer_range *r)
{
    struct used used[USED_MOST];
    void *at[USED_MOST] = {NULL};
    int64_t owned_first, owned_count;
    strategy_owned(o->strategy, r->unit, &owned_first, &owned_count);
    find_used(o, r, used);
    for (int i = 0; i < USED_MOST; i++) {
        if (used[i].part.home != NULL) {
            at[i] = home_bring(used[i].part, (size_t)r->count * dt_dtype_size(used[i].type), used[i].use,
                               o->strategy->world->compute);
        }
    }
    struct dt_update_slice x = {.w = at[USED_WEIGHTS],
                                .w_low = at[USED_LOW],
                                .grad = at[USED_GRADS],
                                .count = r->count,
                                .weight_decay = o->groups[r->group].weight_decay,
                                .unit = r->unit,
                                .first = owned_first + r->first};
    memcpy(x.state, &at[USED_STATES], sizeof x.state);
    return x;
}

static void give_back(struct optimizer *o, const struct optimizer_range *r)
{
    struct used used[USED_MOST];
    find_used(o, r, used);
    for (int i = 0; i < USED_MOST; i++) {
        if (used[i].part.home != NULL) {
            home_back(used[i].part, (size_t)r->count * dt_dtype_size(used[i].type), o->strategy->world->compute);
        }
    }
}

/* The place of an update in the ranges of a call. */
struct place {
    int range;
    int64_t done; /* elements of this range */
};

/* Brings the next portion of a call to o->slices: returns how many there are, 0 at the end. */
static int bring_portion(struct optimizer *o, int call, struct place *p)
{
    int count = 0;
    int64_t room = o->strategy->portion;
    while (p->range < o->range_count && room > 0) {
        struct optimizer_range part = o->ranges[p->range];
        int64_t left = part.count - p->done;
        if (o->groups[part.group].call != call || left == 0) {
            *p = (struct place){.range = p->range + 1};
            continue;
        }
        part.first += p->done;
        part.count = left < room ? left : room;
        o->brought[count] = part;
        o->slices[count++] = bring(o, &part);
        p->done += part.count;
        room -= part.count;
    }
    return count;
}

void optimizer_step(struct optimizer *o, double learning_rate, const double *factor, const int32_t *skip)
{
    struct strategy *s = o->strategy;
    struct world *w = s->world;
    o->steps++;
    for (int call = 0; call < OPTIMIZER_GROUPS; call++) {
        struct place place = {0};
        for (int count; (count = bring_portion(o, call, &place)) > 0;) {
            const struct dt_update_args args = {.slices = o->slices,
                                                .slice_count = count,
                                                .clip = factor,
                                                .skip = skip,
                                                .step = o->steps,
                                                .lr = learning_rate,
                                                .grad_scale = 1,
                                                .numbers = o->groups[call].numbers,
                                                .seed = o->seed,
                                                .type = s->precision.masters,
                                                .grad_type = s->precision.sums,
                                                .state_type = s->precision.states};
            o->groups[call].row->update(w->device->kernels, w->compute, &args);
            for (int i = 0; i < count; i++) {
                give_back(o, &o->brought[i]);
            }
        }
    }
}

void optimizer_clear(struct optimizer *o)
{
    for (int k = 0; k <= MASTERS; k++) {
        home_close(&o->parts[k].home);
    }
    dt_arena_clear(&o->arena);
    memset(o, 0, sizeof *o);
}
