/* Ranges by group, then one call for all that differ in weight decay alone, portion by portion. */
#include "worker/engine/optimizer.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

enum { MASTERS = DT_STATES_MAX };

/* The first group of the job that names the tensor; their number if none does. */
static int job_group_of(const struct job *job, const char *name)
{
    for (int i = 0; i < job->optimizer.group_count; i++) {
        const struct dt_strings *params = &job->optimizer.groups[i].params;
        for (int k = 0; k < params->count; k++) {
            if (fnmatch(params->of[k], name, 0) == 0) {
                return i;
            }
        }
    }
    return job->optimizer.group_count;
}

/* The four groups of a group of the job: by the optimizer's row or its rest, decaying or not. */
static int group_of(const struct optimizer *o, const struct tensor *x)
{
    int group = job_group_of(o->job, x->name);
    const struct job_group *own = group < o->job->optimizer.group_count ? &o->job->optimizer.groups[group] : NULL;
    const struct optimizer_row *row = o->job->optimizer.row, *named = own != NULL ? own->row : NULL;
    bool takes = row->reach != REACH_MATRIX ||
                 (named != NULL ? named == row && x->dims == 2 : o->hidden[x - o->strategy->chain->tensors]);
    return 4 * group + (takes ? 0 : 2) + (x->decay ? 0 : 1);
}

const struct optimizer_group *optimizer_group_of(const struct optimizer *o, const struct tensor *x)
{
    return &o->groups[group_of(o, x)];
}

/* ---- optimizer.groups ---- */

static bool is_trained(const struct chain *c, const struct tensor *x)
{
    return x->unit >= 0 && c->units[x->unit].role == ROLE_TRAINED;
}

enum { FAR = 256 };

static bool is_parameter(const struct chain *c, const struct tensor *x)
{
    (void)c;
    return x->unit >= 0;
}

/* Each glob names one of the tensors that may be meant. */
static int check_globs(const char *key, const struct dt_strings *globs, const struct chain *chain,
                       bool (*counts)(const struct chain *, const struct tensor *), struct dt_error *err)
{
    for (int k = 0; k < globs->count; k++) {
        const char *nearest = NULL;
        size_t best = FAR + 1;
        bool found = false;
        for (int t = 0; t < chain->tensor_count && !found; t++) {
            const struct tensor *x = &chain->tensors[t];
            found = counts(chain, x) && fnmatch(globs->of[k], x->name, 0) == 0;
            size_t far = counts(chain, x) ? dt_text_distance(globs->of[k], x->name, FAR) : FAR + 1;
            nearest = far < best ? x->name : nearest;
            best = far < best ? far : best;
        }
        if (!found) {
            return dt_fail(err, DT_INVALID, "%s: %s: no tensor%s has such a name%s%s; * stands for any characters", key,
                           globs->of[k], counts == is_trained ? " that is trained" : "",
                           nearest != NULL ? "; the nearest is " : "", nearest != NULL ? nearest : "");
        }
    }
    return 0;
}

int optimizer_check_names(const struct job *job, const struct chain *chain, struct dt_error *err)
{
    const struct dt_strings *freeze = &job->training.freeze;
    bool trained = freeze->count == 0;
    for (int t = 0; t < chain->tensor_count && !trained; t++) {
        trained = is_trained(chain, &chain->tensors[t]);
    }
    if (check_globs("training.freeze", freeze, chain, is_parameter, err) != 0) {
        return -1;
    }
    if (!trained) {
        return dt_fail(err, DT_INVALID,
                       "training.freeze: names all tensors: nothing is trained; name fewer, or use train --evaluate");
    }
    for (int i = 0; i < job->optimizer.group_count; i++) {
        if (check_globs("optimizer.groups", &job->optimizer.groups[i].params, chain, is_trained, err) != 0) {
            return -1;
        }
        bool has = false;
        for (int t = 0; t < chain->tensor_count && !has; t++) {
            has = is_trained(chain, &chain->tensors[t]) && job_group_of(job, chain->tensors[t].name) == i;
        }
        if (!has) {
            return dt_fail(err, DT_INVALID,
                           "optimizer.groups: group %d (%s): groups before it have all tensors that it names; put it "
                           "before them",
                           i + 1, job->optimizer.groups[i].params.of[0]);
        }
    }
    return 0;
}

/* How many parameters of the group go by the optimizer's rest. */
static void print_rest(const struct optimizer *o, int group, struct dt_text *out)
{
    const struct chain *c = o->strategy->chain;
    int64_t parameters = 0;
    for (int t = 0; t < c->tensor_count; t++) {
        const struct tensor *x = &c->tensors[t];
        bool own = is_trained(c, x) && job_group_of(o->job, x->name) == group;
        parameters += own && o->groups[group_of(o, x)].row != o->job->optimizer.row ? x->numel : 0;
    }
    dt_text_printf(out, ", %lld of them by %s, rate x %.6g", (long long)parameters, o->job->optimizer.row->rest,
                   o->groups[4 * group + 2].lr_scale);
}

static void print_group(const struct optimizer *o, int group, struct dt_text *out)
{
    const struct job_optimizer *job = &o->job->optimizer;
    const struct optimizer_group *first = &o->groups[4 * group];
    const struct chain *c = o->strategy->chain;
    int64_t tensors = 0, parameters = 0;
    for (int t = 0; t < c->tensor_count; t++) {
        const struct tensor *x = &c->tensors[t];
        if (is_trained(c, x) && job_group_of(o->job, x->name) == group) {
            tensors++;
            parameters += x->numel;
        }
    }
    bool rest = group == job->group_count;
    dt_text_printf(out, "\n%s%s: %lld tensors, %lld parameters, rate x %.6g, decay ",
                   group == 0 ? "groups     " : "           ", rest ? "the rest" : job->groups[group].params.of[0],
                   (long long)tensors, (long long)parameters, first->lr_scale);
    dt_text_printf(out, first->weight_decay == first[1].weight_decay ? "%.6g" : "%.6g of matrices",
                   first->weight_decay);
    if (job->row->rest != NULL) {
        print_rest(o, group, out);
    }
}

void optimizer_print_groups(const struct optimizer *o, struct dt_text *out)
{
    bool shown = o->job->optimizer.group_count > 0 || o->job->optimizer.row->rest != NULL;
    for (int i = 0; i <= o->job->optimizer.group_count && shown; i++) {
        print_group(o, i, out);
    }
}

static bool same_numbers(const struct dt_update_numbers *a, const struct dt_update_numbers *b)
{
    return a->beta1 == b->beta1 && a->beta2 == b->beta2 && a->eps == b->eps && a->momentum == b->momentum &&
           a->dampening == b->dampening && a->lr_decay == b->lr_decay && a->initial == b->initial &&
           a->nesterov == b->nesterov && a->min_coeff == b->min_coeff && a->max_coeff == b->max_coeff &&
           a->amsgrad == b->amsgrad && a->uncorrected == b->uncorrected;
}

static void take_numbers(const struct job_group *own, struct dt_update_numbers *out)
{
    if (own->own_betas) {
        out->beta1 = own->beta1;
        out->beta2 = own->beta2;
    }
    out->eps = own->eps > 0 ? own->eps : out->eps;
    out->momentum = own->momentum > 0 ? own->momentum : out->momentum;
}

static void make_groups(struct optimizer *o, const struct job *job)
{
    const struct job_optimizer *all = &job->optimizer;
    const struct optimizer_row *rest = optimizer_rest(all->row);
    double rest_scale = all->numbers.rest_lr > 0 ? all->numbers.rest_lr / job->training.learning_rate : 1;
    o->group_count = 4 * (all->group_count + 1);
    for (int i = 0; i < o->group_count; i++) {
        const struct job_group *own = i / 4 < all->group_count ? &all->groups[i / 4] : NULL;
        const double decay = own != NULL ? own->weight_decay : NAN;
        bool by_rest = i % 4 >= 2 && rest != NULL;
        struct optimizer_group *g = &o->groups[i];
        *g = (struct optimizer_group){.row = by_rest ? rest : all->row,
                                      .numbers = by_rest ? all->rest : all->numbers,
                                      .weight_decay = !isnan(decay) ? decay
                                                      : i % 2 == 0  ? job->training.weight_decay
                                                                    : 0,
                                      .lr_scale = own != NULL ? own->lr_scale : 1};
        g->lr_scale *= by_rest && (own == NULL || !own->own_rate) ? rest_scale : 1;
        if (own != NULL) {
            take_numbers(own, &g->numbers);
        }
        g->states = optimizer_row_states(g->row, &g->numbers);
        for (int k = 0; k < g->states && rest != NULL; k++) {
            g->state_names =
                k == 0 ? g->row->state[0] : dt_arena_printf(&o->arena, "%s,%s", g->state_names, g->row->state[k]);
        }
        while (o->groups[g->call].row != g->row || o->groups[g->call].lr_scale != g->lr_scale ||
               !same_numbers(&o->groups[g->call].numbers, &g->numbers)) {
            g->call++;
        }
    }
}

/* Marks tensors whose elements all belong to a layer's matrix. */
static void find_hidden(struct optimizer *o)
{
    const struct chain *c = o->strategy->chain;
    o->hidden = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->hidden);
    for (int layers = 1; layers >= 0; layers--) { /* what a head or an embedding shares with one is none */
        for (int i = 0; i < c->block_count; i++) {
            const struct block *b = &c->blocks[i];
            for (int k = 0; k < b->tensor_count && (b->layer >= 0) == (layers == 1); k++) {
                o->hidden[b->tensors[k]] = layers == 1 && c->tensors[b->tensors[k]].dims == 2;
            }
        }
    }
}

/* Two tensors have the same distance from where the model has put them, so one range numbers their elements. */
static bool numbered_alike(const struct tensor *a, const struct tensor *b)
{
    return a->declared.unit == b->declared.unit && a->declared.offset - a->offset == b->declared.offset - b->offset;
}

/* Appends the elements of the unit from a tensor's first to `end`, cut to the owned part, to the ranges. */
static void add(struct optimizer *o, const struct tensor *x, int64_t end)
{
    int unit = x->unit, group = group_of(o, x);
    int64_t first = x->offset;
    int64_t owned_first, owned_count;
    strategy_owned(o->strategy, unit, &owned_first, &owned_count);
    first = (first > owned_first ? first : owned_first) - owned_first;
    end = (end < owned_first + owned_count ? end : owned_first + owned_count) - owned_first;
    if (first >= end) {
        return;
    }
    struct optimizer_range *last = o->range_count > 0 ? &o->ranges[o->range_count - 1] : NULL;
    if (last && last->unit == unit && last->group == group && last->first + last->count == first &&
        o->groups[group].row->reach == REACH_ELEMENT && numbered_alike(&o->strategy->chain->tensors[last->tensor], x)) {
        last->count = end - last->first;
        return;
    }
    o->ranges[o->range_count++] = (struct optimizer_range){.unit = unit,
                                                           .first = first,
                                                           .count = end - first,
                                                           .group = group,
                                                           .tensor = (int)(x - o->strategy->chain->tensors)};
}

/* The ranges of the unit. Its state lies as they do where all its tensors have the same number of states;
 * otherwise those of a state follow each other. total: elements of each state before it and behind it. */
static void add_unit(struct optimizer *o, int unit, int64_t total[DT_STATES_MAX])
{
    const struct chain *c = o->strategy->chain;
    const struct tensor *previous = NULL; /* its range reaches to the start of the next tensor: the gap
                                           * stays zero either way */
    int least = DT_STATES_MAX, most = 0, begin = o->range_count;
    for (int t = 0; t < c->tensor_count; t++) {
        const struct tensor *x = &c->tensors[t];
        if (x->unit != unit) {
            continue;
        }
        if (previous) {
            add(o, previous, x->offset);
        }
        int states = optimizer_group_of(o, x)->states;
        most = states > most ? states : most;
        least = states < least ? states : least;
        previous = x;
    }
    if (previous) {
        add(o, previous, previous->offset + previous->numel);
    }
    int64_t first, count;
    strategy_owned(o->strategy, unit, &first, &count);
    for (int k = 0; k < most; k++) {
        for (int i = begin; i < o->range_count; i++) {
            struct optimizer_range *r = &o->ranges[i];
            int64_t end = i + 1 < o->range_count ? r[1].first : count;
            r->state[k] = least == most ? total[k] + r->first : total[k];
            total[k] += least < most && o->groups[r->group].states > k ? end - r->first : 0;
        }
        total[k] += least == most ? count : 0;
    }
}

/* Units whose state stays on the device, so that the others' is as near to the job's share as whole units
 * allow. */
static void keep_units(struct optimizer *o, const struct job_offload *job)
{
    const struct chain *c = o->strategy->chain;
    double all = 0, far = 0;
    o->kept = dt_arena_alloc(&o->arena, (size_t)c->unit_count * sizeof *o->kept);
    for (int u = 0; u < c->unit_count; u++) {
        all += strategy_trains(o->strategy, u) ? (double)c->units[u].numel : 0;
    }
    for (int u = 0; u < c->unit_count && job->optimizer != OFFLOAD_NONE; u++) {
        double own = strategy_trains(o->strategy, u) ? (double)c->units[u].numel : 0;
        o->kept[u] = far + own / 2 > job->ratio * all;
        far += o->kept[u] ? 0 : own;
    }
}

void optimizer_plan(struct optimizer *o, struct strategy *s, const struct job *job, struct plan *p)
{
    const struct chain *c = s->chain;
    const struct precision *types = &s->precision;
    int64_t total[2][DT_STATES_MAX + 1] = {0}; /* by o->kept */
    memset(o, 0, sizeof *o);
    dt_arena_init(&o->arena);
    o->strategy = s;
    o->seed = (uint64_t)job->training.seed;
    o->job = job;
    o->clip_value = job->training.clip_value;
    make_groups(o, job);
    find_hidden(o);
    keep_units(o, &job->offload);
    o->ranges = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->ranges);
    o->slices = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->slices);
    o->brought = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *o->brought);
    o->masters = dt_arena_alloc(&o->arena, (size_t)c->unit_count * sizeof *o->masters);
    for (int u = 0; u < c->unit_count; u++) {
        int64_t first, count, *own = total[o->kept[u]];
        strategy_owned(s, u, &first, &count);
        o->masters[u] = own[MASTERS];
        if (strategy_trains(s, u)) {
            add_unit(o, u, own);
            own[MASTERS] += precision_mixed(types) ? count : 0;
        }
    }
    for (int k = 0; k <= MASTERS; k++) {
        enum dt_dtype type = k == MASTERS ? types->masters : types->states;
        strategy_plan_home(s, &o->parts[k].home, k == MASTERS ? s->rests.masters : s->rests.states, p, PLAN_OPTIMIZER,
                           PLAN_LOCAL, total[0][k], type);
        strategy_plan_home(s, &o->parts[k].near, &home_device, p, PLAN_OPTIMIZER, PLAN_LOCAL, total[1][k], type);
    }
    optimizer_ratios_plan(o, p);
    optimizer_matrices_plan(o, p);
}

int optimizer_open(struct optimizer *o, const struct plan *p, struct dt_error *err)
{
    for (int k = 0; k <= MASTERS; k++) {
        struct home *const both[] = {&o->parts[k].home, &o->parts[k].near};
        for (int i = 0; i < 2; i++) {
            if (both[i]->ops->open(both[i], o->strategy->world, p, err) != 0) {
                return -1;
            }
        }
    }
    optimizer_ratios_open(o, p);
    optimizer_matrices_open(o, p);
    return 0;
}

static struct home_part later(struct home_part x, int64_t elements, enum dt_dtype type)
{
    return (struct home_part){x.home, x.at + (size_t)elements * dt_dtype_size(type)};
}

/* Part k of a unit, from an element of its home on. */
static struct home_part part_of(struct optimizer *o, int k, int unit, int64_t element, enum dt_dtype type)
{
    struct optimizer_part *x = &o->parts[k];
    return later((struct home_part){.home = o->kept[unit] ? &x->near : &x->home}, element, type);
}

struct home_part optimizer_weights(struct optimizer *o, int unit, int64_t element)
{
    struct strategy *s = o->strategy;
    const struct precision *types = &s->precision;
    return precision_mixed(types) && strategy_trains(s, unit)
               ? part_of(o, MASTERS, unit, o->masters[unit] + element, types->masters)
               : later(s->weights->slice(s, unit), element, types->compute);
}

int optimizer_unit_states(const struct optimizer *o, int unit)
{
    const struct chain *c = o->strategy->chain;
    int most = 0;
    for (int t = 0; t < c->tensor_count; t++) {
        int own = c->tensors[t].unit == unit ? optimizer_group_of(o, &c->tensors[t])->states : 0;
        most = own > most ? own : most;
    }
    return most;
}

struct home_part optimizer_state(struct optimizer *o, int k, int unit, int64_t element)
{
    int low = 0, high = o->range_count - 1; /* the last range that begins there or before */
    while (low < high) {
        int middle = (low + high + 1) / 2;
        const struct optimizer_range *r = &o->ranges[middle];
        bool before = r->unit < unit || (r->unit == unit && r->first <= element);
        low = before ? middle : low;
        high = before ? high : middle - 1;
    }
    const struct optimizer_range *r = &o->ranges[low];
    return part_of(o, k, unit, r->state[k] + element - r->first, o->strategy->precision.states);
}

/* ---- a step ---- */

/* An array of a range, and how an update uses it. */
struct used {
    struct home_part part;
    enum dt_dtype type;
    enum home_use use;
};
enum { USED_GRADS, USED_WEIGHTS, USED_STATES, USED_LOW = USED_STATES + DT_STATES_MAX, USED_MOST };

/* home null: the pass has no use for such an array. */
static void find_used(struct optimizer *o, const struct optimizer_range *r, enum update_pass pass,
                      struct used out[USED_MOST])
{
    struct strategy *s = o->strategy;
    const struct precision *types = &s->precision;
    const struct optimizer_group *g = &o->groups[r->group];
    bool apply = pass == UPDATE_APPLY, direction = pass == UPDATE_DIRECTION;
    memset(out, 0, USED_MOST * sizeof *out);
    if (!apply || g->row->reach != REACH_MATRIX) { /* a matrix's direction is elsewhere by then */
        out[USED_GRADS] = (struct used){later(s->grads->slice(s, r->unit), r->first, types->sums), types->sums,
                                        direction ? HOME_CHANGE : HOME_READ};
    }
    out[USED_WEIGHTS] =
        (struct used){optimizer_weights(o, r->unit, r->first), types->masters, direction ? HOME_READ : HOME_CHANGE};
    for (int k = 0; k < g->states && !apply; k++) {
        out[USED_STATES + k] = (struct used){optimizer_state(o, k, r->unit, r->first), types->states, HOME_CHANGE};
    }
    if (precision_mixed(types) && !direction) {
        out[USED_LOW] =
            (struct used){later(s->weights->slice(s, r->unit), r->first, types->compute), types->compute, HOME_WRITE};
    }
}

static struct dt_update_slice bring(struct optimizer *o, const struct optimizer_range *r, enum update_pass pass)
{
    struct used used[USED_MOST];
    void *at[USED_MOST] = {NULL};
    int64_t owned_first, owned_count;
    strategy_owned(o->strategy, r->unit, &owned_first, &owned_count);
    find_used(o, r, pass, used);
    const struct tensor *first = &o->strategy->chain->tensors[r->tensor];
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
                                .unit = first->declared.unit,
                                .first = owned_first + r->first + first->declared.offset - first->offset};
    memcpy(x.state, &at[USED_STATES], sizeof x.state);
    return x;
}

void update_back(struct optimizer *o, const struct update_part *p, int i)
{
    struct used used[USED_MOST];
    const struct optimizer_range *r = &o->brought[i];
    find_used(o, r, p->pass, used);
    for (int k = 0; k < USED_MOST; k++) {
        if (used[k].part.home != NULL) {
            home_back(used[k].part, (size_t)r->count * dt_dtype_size(used[k].type), o->strategy->world->compute);
        }
    }
}

static bool belongs(const struct optimizer *o, const struct update_part *p, const struct optimizer_range *r)
{
    const struct optimizer_group *g = &o->groups[r->group];
    bool in_call = p->call >= 0 ? g->call == p->call : g->row->reach == REACH_MATRIX;
    return in_call && r->unit >= p->units.first && r->unit < p->units.first + p->units.count;
}

/* Elements that norm_sum adds up before they become part of an exact sum. Tensors and shares begin at multiples, and
 * so do portions: the sums of a tensor are rounded alike wherever it is cut. */
enum { NORM_BLOCK = 64 };

int update_bring(struct optimizer *o, struct update_part *p)
{
    int count = 0;
    int64_t room = o->strategy->portion;
    int most = room < INT64_MAX ? HOME_PIECES_MOST : o->range_count;
    while (p->range < o->range_count && room > 0 && count < most) {
        struct optimizer_range part = o->ranges[p->range];
        int64_t left = part.count - p->done;
        if (!belongs(o, p, &part) || left == 0) {
            p->range++;
            p->done = 0;
            continue;
        }
        part.first += p->done;
        part.count = left < room ? left : room;
        o->brought[count] = part;
        o->slices[count++] = bring(o, &part, p->pass);
        p->done += part.count;
        room -= (part.count + NORM_BLOCK - 1) / NORM_BLOCK * NORM_BLOCK;
    }
    return count;
}

void optimizer_set_momentum(struct optimizer *o, double momentum, double beta2)
{
    for (int i = 0; i < o->group_count; i++) {
        struct dt_update_numbers *n = &o->groups[i].numbers;
        if (n->momentum > 0) {
            n->momentum = momentum;
        } else if (n->beta1 > 0) {
            n->beta1 = momentum;
            n->beta2 = beta2 > 0 ? beta2 : n->beta2;
        }
    }
}

struct dt_update_args update_args(const struct optimizer *o, int group, int count, double learning_rate)
{
    const struct precision *types = &o->strategy->precision;
    return (struct dt_update_args){.slices = o->slices,
                                   .slice_count = count,
                                   .step = o->steps,
                                   .lr = learning_rate * o->groups[group].lr_scale,
                                   .grad_scale = 1,
                                   .numbers = o->groups[group].numbers,
                                   .seed = o->seed,
                                   .type = types->masters,
                                   .grad_type = types->sums,
                                   .state_type = types->states,
                                   .low_type = types->compute};
}

void update_apply(struct optimizer *o, int i, const void *direction, enum dt_dtype type, double rate, double decay,
                  const double *factor, const int32_t *skip)
{
    struct world *w = o->strategy->world;
    struct dt_update_slice x = o->slices[i];
    struct dt_update_args args = update_args(o, o->brought[i].group, 1, 0);
    x.grad = direction;
    x.weight_decay = decay;
    memset(x.state, 0, sizeof x.state);
    args.slices = &x;
    args.lr = rate;
    args.numbers = (struct dt_update_numbers){0};
    args.grad_type = type;
    args.clip = factor;
    args.skip = skip;
    w->device->kernels->sgd_many(w->compute, &args);
}

/* The second half of a step of REACH_TENSOR: each tensor's direction, which lies where its gradient was, is
 * subtracted from it, times its ratio and the rate. */
static void step_by_ratios(struct optimizer *o, int call, double learning_rate, const int32_t *skip)
{
    struct update_part part = {.call = call, .units = {0, o->strategy->chain->unit_count}, .pass = UPDATE_APPLY};
    for (int count; (count = update_bring(o, &part)) > 0;) {
        for (int i = 0; i < count; i++) {
            update_apply(o, i, o->slices[i].grad, o->strategy->precision.sums, learning_rate * o->groups[call].lr_scale,
                         0, &o->ratios.ratio[o->brought[i].tensor], skip);
            update_back(o, &part, i);
        }
    }
}

static void step_call(struct optimizer *o, int call, double learning_rate, const double *factor, const int32_t *skip)
{
    struct world *w = o->strategy->world;
    const struct optimizer_row *row = o->groups[call].row;
    bool ratios = row->reach == REACH_TENSOR;
    struct update_part part = {
        .call = call, .units = {0, o->strategy->chain->unit_count}, .pass = ratios ? UPDATE_DIRECTION : UPDATE_WHOLE};
    if (ratios) {
        optimizer_ratios_begin(o);
    }
    for (int count; (count = update_bring(o, &part)) > 0;) {
        struct dt_update_args args = update_args(o, call, count, learning_rate);
        args.clip = factor;
        args.skip = skip;
        args.clip_value = o->clip_value;
        row->update(w->device->kernels, w->compute, &args);
        for (int i = 0; i < count; i++) {
            if (ratios) {
                optimizer_ratios_add(o, &o->brought[i], &o->slices[i]);
            }
            update_back(o, &part, i);
        }
    }
    if (ratios) {
        optimizer_ratios_finish(o, &o->groups[call].numbers);
        step_by_ratios(o, call, learning_rate, skip);
    }
}

void optimizer_step(struct optimizer *o, double learning_rate, const double *factor, const int32_t *skip)
{
    o->steps++;
    for (int call = 0; call < o->group_count; call++) {
        if (o->groups[call].call == call && o->groups[call].row->reach != REACH_MATRIX) {
            step_call(o, call, learning_rate, factor, skip);
        }
    }
    if (o->matrices != NULL) {
        optimizer_matrices_step(o, learning_rate, factor, skip);
    }
}

void optimizer_clear(struct optimizer *o)
{
    for (int k = 0; k <= MASTERS; k++) {
        home_close(&o->parts[k].home);
        home_close(&o->parts[k].near);
    }
    dt_arena_clear(&o->arena);
    memset(o, 0, sizeof *o);
}

void optimizer_ahead(struct optimizer *o)
{
    for (int k = 0; k <= MASTERS; k++) {
        struct home *h = &o->parts[k].home;
        size_t portion = h->settings->portion_bytes;
        for (size_t at = 0;
             h->ops->ahead != NULL && at < h->size_bytes && at / portion + 1 < (size_t)h->settings->buffers;
             at += portion) {
            h->ops->ahead(h, at, h->size_bytes - at < portion ? h->size_bytes - at : portion);
        }
    }
}
