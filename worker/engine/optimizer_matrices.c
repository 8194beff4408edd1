/* Optimizers whose step depends on all elements of a matrix (REACH_MATRIX, Muon). Each matrix has an owner among
 * the ranks that hold slices of it, or copies. The owner alone makes the matrix's step, in products of the same
 * shapes on any number of ranks, so that its bits are the same however the matrix is cut.
 *
 * Units follow each other in waves, each of which has a matrix for every rank, or the last ones. For a wave:
 *   1. every rank makes the directions of what it updates, and they are gathered into the wave's room
 *   2. owners orthogonalise their matrices there, and what they do not own becomes zeros
 *   3. a sum over ranks, which adds zeros alone, gives each rank the steps of what it updates
 * The owner of a matrix is the one that has least to do by then, beginning with the largest matrix. */
#include "worker/engine/optimizer.h"

#include "kernels/exact.h"

#include <math.h>
#include <string.h>

/* Coefficients of the polynomial a x + b x^3 + c x^5 (Jordan, 2024). */
static const double polynomial[] = {3.4445, -4.7750, 2.0315};

struct matrix {
    const struct tensor *tensor;
    int owner; /* a rank of the shard group */
    double cost;
};

struct wave {
    struct unit_range units;
    int first, count; /* matrices */
    int64_t numel;    /* of its units that have one */
};

struct optimizer_matrices {
    struct wave *waves;
    struct matrix *all;
    int wave_count, count;
    int64_t *at; /* per unit: elements before it in its wave's room; -1: it has no matrix */
    enum dt_dtype type;
    int piece_room, piece_work, piece_limbs, piece_ratio;
    int64_t most_numel, most_matrix, most_square; /* elements of a wave, of a matrix, of its gram matrix */
    char *room;                                   /* most_numel elements */
    void *x, *y;                                  /* most_matrix elements */
    void *gram, *scaled, *inner;                  /* most_square elements */
    void *one;                                    /* a 1 */
    int64_t *limbs;                               /* (2, DT_EXACT_LIMBS) */
    double *ratio;
};

static int64_t least_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

enum { LINE = 64 };

/* `most`, or elements in whole lines if that is more. */
static int64_t most_of(int64_t most, int64_t elements)
{
    elements = (elements + LINE - 1) / LINE * LINE;
    return elements > most ? elements : most;
}

/* ---- plan ---- */

/* From the largest matrix of the wave on: each goes to the rank with the least to do. */
static void choose_owners(struct optimizer *o, struct optimizer_matrices *m, const struct wave *w)
{
    int ranks = o->strategy->shards;
    double *load = dt_arena_alloc(&o->arena, (size_t)ranks * sizeof *load);
    for (int done = 0; done < w->count; done++) {
        struct matrix *next = NULL;
        for (int i = w->first; i < w->first + w->count; i++) {
            if (m->all[i].owner < 0 && (next == NULL || m->all[i].cost > next->cost)) {
                next = &m->all[i];
            }
        }
        if (next == NULL) {
            return;
        }
        next->owner = 0;
        for (int r = 1; r < ranks; r++) {
            next->owner = load[r] < load[next->owner] ? r : next->owner;
        }
        load[next->owner] += next->cost;
    }
}

static void add_matrices(struct optimizer *o, struct optimizer_matrices *m, int unit)
{
    const struct chain *c = o->strategy->chain;
    for (int t = 0; t < c->tensor_count; t++) {
        const struct tensor *x = &c->tensors[t];
        if (x->unit == unit && optimizer_group_of(o, x)->row->reach == REACH_MATRIX && x->numel > 0) {
            int64_t side = least_of(x->shape[0], x->shape[1]);
            m->all[m->count++] = (struct matrix){x, -1, (double)x->numel * (double)side};
            m->most_matrix = most_of(m->most_matrix, x->numel);
            m->most_square = most_of(m->most_square, side * side);
        }
    }
}

void optimizer_matrices_plan(struct optimizer *o, struct plan *p)
{
    const struct strategy *s = o->strategy;
    const struct chain *c = s->chain;
    if (o->job->optimizer.row->reach != REACH_MATRIX) {
        return;
    }
    struct optimizer_matrices *m = dt_arena_alloc(&o->arena, sizeof *m);
    m->waves = dt_arena_alloc(&o->arena, (size_t)(c->unit_count + 1) * sizeof *m->waves);
    m->all = dt_arena_alloc(&o->arena, (size_t)(c->tensor_count + 1) * sizeof *m->all);
    m->at = dt_arena_alloc(&o->arena, (size_t)(c->unit_count + 1) * sizeof *m->at);
    m->type = s->precision.masters == DT_F64 ? DT_F64 : DT_F32;
    struct wave *w = m->waves;
    for (int u = 0; u < c->unit_count; u++) {
        int before = m->count;
        if (strategy_trains(s, u)) {
            add_matrices(o, m, u);
        }
        m->at[u] = m->count > before ? w->numel : -1;
        w->numel += m->count > before ? c->units[u].numel : 0;
        w->units.count++;
        w->count = m->count - w->first;
        m->most_numel = most_of(m->most_numel, w->numel);
        if (w->count >= s->shards || (u + 1 == c->unit_count && w->count > 0)) {
            choose_owners(o, m, w);
            m->wave_count++;
            *++w = (struct wave){.units.first = u + 1, .first = m->count};
        }
    }
    if (m->count == 0) {
        return;
    }
    size_t size = dt_dtype_size(m->type);
    m->piece_room = plan_add(p, PLAN_COMMUNICATION, PLAN_PEERS, (size_t)m->most_numel * size);
    m->piece_work =
        plan_add(p, PLAN_SCRATCH, PLAN_LOCAL, (size_t)(LINE + 2 * m->most_matrix + 3 * m->most_square) * size);
    m->piece_limbs = plan_add(p, PLAN_SCRATCH, PLAN_LOCAL, 2 * DT_EXACT_LIMBS * sizeof *m->limbs);
    m->piece_ratio = plan_add(p, PLAN_SCRATCH, PLAN_LOCAL, sizeof *m->ratio);
    o->matrices = m;
}

void optimizer_matrices_open(struct optimizer *o, const struct plan *p)
{
    struct optimizer_matrices *m = o->matrices;
    if (m == NULL) {
        return;
    }
    size_t size = dt_dtype_size(m->type), matrix = (size_t)m->most_matrix * size,
           square = (size_t)m->most_square * size;
    char *work = plan_at(p, m->piece_work);
    m->room = plan_at(p, m->piece_room);
    m->one = work;
    m->x = work + LINE * size;
    m->y = (char *)m->x + matrix;
    m->gram = (char *)m->y + matrix;
    m->scaled = (char *)m->gram + square;
    m->inner = (char *)m->scaled + square;
    m->limbs = plan_at(p, m->piece_limbs);
    m->ratio = plan_at(p, m->piece_ratio);
}

/* ---- a matrix ---- */

static void fill(struct optimizer *o, void *x, int64_t count, double value, enum dt_dtype type)
{
    struct world *w = o->strategy->world;
    w->device->kernels->fill(w->compute, &(struct dt_fill_args){.x = x, .count = count, .value = value, .type = type});
}

static void scale(struct optimizer *o, void *x, const void *in, int64_t count, double factor, const double *device)
{
    struct world *w = o->strategy->world;
    w->device->kernels->scale(
        w->compute,
        &(struct dt_scale_args){
            .x = x, .in = in, .device_factor = device, .count = count, .factor = factor, .type = o->matrices->type});
}

/* c (m, n) = a b [+ c], where b is (k, n); transposed: of a, or of b, -1 and 1; 0: of none. */
static void multiply(struct optimizer *o, void *c, const void *a, const void *b, int64_t m, int64_t n, int64_t k,
                     int transposed, bool accumulate)
{
    struct world *w = o->strategy->world;
    w->device->kernels->matmul(w->compute,
                               &(struct dt_matmul_args){.c = c,
                                                        .a = a,
                                                        .b = b,
                                                        .m = m,
                                                        .n = n,
                                                        .k = k,
                                                        .a_transposed = transposed<0, .b_transposed = transposed> 0,
                                                        .accumulate = accumulate,
                                                        .type = o->matrices->type,
                                                        .c_type = o->matrices->type});
}

/* m->x = the matrix divided by its norm, or by eps where that is larger: the ratio of the norm of a 1 to the
 * matrix's. */
static void normalise(struct optimizer *o, const void *matrix, int64_t count, double eps)
{
    struct optimizer_matrices *m = o->matrices;
    struct world *w = o->strategy->world;
    const struct dt_kernels *k = w->device->kernels;
    fill(o, m->one, 1, 1, m->type);
    fill(o, m->limbs, 2 * DT_EXACT_LIMBS, 0, DT_I64);
    k->norm_sum(w->compute, &(struct dt_norm_sum_args){m->limbs, m->one, 1, m->type});
    k->norm_sum(w->compute, &(struct dt_norm_sum_args){m->limbs + DT_EXACT_LIMBS, matrix, count, m->type});
    k->trust_ratio(w->compute, &(struct dt_trust_ratio_args){
                                   .ratio = m->ratio, .limbs = m->limbs, .count = 1, .max_coeff = 1 / eps});
    scale(o, m->x, matrix, count, 1, m->ratio);
}

/* The matrix becomes the nearest one with orthonormal rows or columns, about, by iterations of Newton and Schulz:
 * X = a X + (b G + c G G) X where G = X X' is of the shorter side. Zeros stay zeros. */
static void orthogonalise(struct optimizer *o, void *matrix, const struct tensor *t,
                          const struct dt_update_numbers *numbers)
{
    struct optimizer_matrices *m = o->matrices;
    struct world *w = o->strategy->world;
    int64_t rows = t->shape[0], cols = t->shape[1], side = least_of(rows, cols);
    bool wide = rows <= cols;
    normalise(o, matrix, t->numel, numbers->eps);
    void *x = m->x, *y = m->y;
    for (int64_t i = 0; i < numbers->ns_steps; i++) {
        multiply(o, m->gram, x, x, side, side, wide ? cols : rows, wide ? 1 : -1, false);
        scale(o, m->scaled, m->gram, side * side, polynomial[2], NULL);
        scale(o, m->inner, m->gram, side * side, polynomial[1], NULL);
        multiply(o, m->inner, m->scaled, m->gram, side, side, side, 0, true);
        scale(o, y, x, t->numel, polynomial[0], NULL);
        if (wide) {
            multiply(o, y, m->inner, x, rows, cols, rows, 0, true);
        } else {
            multiply(o, y, x, m->inner, rows, cols, cols, 0, true);
        }
        void *last = x;
        x = y;
        y = last;
    }
    /* added to zeros, as it will be to those of other ranks: -0 becomes 0 either way */
    fill(o, matrix, t->numel, 0, m->type);
    w->device->kernels->add(
        w->compute, &(struct dt_add_args){
                        .out = matrix, .a = matrix, .b = x, .count = t->numel, .type = m->type, .b_type = m->type});
}

/* The factor of a step of this matrix. */
static double adjusted(const struct tensor *t, const struct dt_update_numbers *numbers)
{
    double a = (double)t->shape[0], b = (double)t->shape[1];
    switch ((enum muon_adjust)numbers->adjust) {
    case MUON_ORIGINAL:
        return sqrt(fmax(1, a / b));
    case MUON_MATCH_RMS_ADAMW:
        return 0.2 * sqrt(fmax(a, b));
    case MUON_SPECTRAL_UNCLAMPED:
        return sqrt(a / b);
    }
    return 1;
}

/* ---- a wave ---- */

static char *unit_room(const struct optimizer_matrices *m, int unit)
{
    return m->room + (size_t)m->at[unit] * dt_dtype_size(m->type);
}

/* The room of slice i of what was brought. Not by the slice's `first`, which counts from where the model has put
 * its tensor. */
static char *room_of(const struct optimizer *o, int i)
{
    const struct optimizer_range *r = &o->brought[i];
    int64_t first, count;
    strategy_owned(o->strategy, r->unit, &first, &count);
    return unit_room(o->matrices, r->unit) + (size_t)(first + r->first) * dt_dtype_size(o->matrices->type);
}

/* The directions of what this rank updates, in the wave's room. */
static void make_directions(struct optimizer *o, const struct wave *v, const double *factor, const int32_t *skip)
{
    struct optimizer_matrices *m = o->matrices;
    struct world *w = o->strategy->world;
    const struct dt_kernels *k = w->device->kernels;
    for (int call = 0; call < o->group_count; call++) {
        struct update_part part = {.call = call, .units = v->units, .pass = UPDATE_DIRECTION};
        bool first = o->groups[call].call == call && o->groups[call].row->reach == REACH_MATRIX;
        for (int count; first && (count = update_bring(o, &part)) > 0;) {
            struct dt_update_args args = update_args(o, call, count, 0);
            args.clip = factor;
            args.skip = skip;
            args.clip_value = o->clip_value;
            o->groups[call].row->update(k, w->compute, &args);
            for (int i = 0; i < count; i++) {
                const struct dt_update_slice *x = &o->slices[i];
                k->cast(w->compute, &(struct dt_cast_args){.out = room_of(o, i),
                                                           .in = x->grad,
                                                           .count = x->count,
                                                           .out_type = m->type,
                                                           .in_type = args.grad_type});
                update_back(o, &part, i);
            }
        }
    }
}

static bool in_wave(const struct optimizer_matrices *m, const struct wave *v, int unit)
{
    return m->at[unit] >= 0 && unit >= v->units.first && unit < v->units.first + v->units.count;
}

/* Brings the slices of all ranks together. */
static void gather(struct optimizer *o, const struct wave *v)
{
    struct strategy *s = o->strategy;
    struct optimizer_matrices *m = o->matrices;
    if (s->alone || s->optimizer == PART_WHOLE) {
        return;
    }
    dt_event_record(s->demand, s->world->compute);
    dt_event_wait(s->demand, s->world->gathering);
    for (int u = v->units.first; u < v->units.first + v->units.count; u++) {
        if (in_wave(m, v, u)) {
            int64_t count = s->chain->units[u].numel / s->shards;
            char *at = unit_room(m, u);
            strategy_gather(s, u, s->world->gather, at + (size_t)(s->shard_rank * count) * dt_dtype_size(m->type), at,
                            count, m->type, "gather momentum");
        }
    }
    strategy_land(s);
}

static void make_steps(struct optimizer *o, const struct wave *v)
{
    struct optimizer_matrices *m = o->matrices;
    for (int i = v->first; i < v->first + v->count; i++) {
        const struct tensor *t = m->all[i].tensor;
        char *at = unit_room(m, t->unit) + (size_t)t->offset * dt_dtype_size(m->type);
        if (m->all[i].owner == o->strategy->shard_rank) {
            orthogonalise(o, at, t, &optimizer_group_of(o, t)->numbers);
        } else {
            fill(o, at, t->numel, 0, m->type);
        }
    }
}

/* The sum over ranks, of which one alone has a matrix that is not zeros. */
static void spread(struct optimizer *o, const struct wave *v)
{
    struct strategy *s = o->strategy;
    struct optimizer_matrices *m = o->matrices;
    struct world *w = s->world;
    if (s->alone) {
        return;
    }
    dt_event_record(s->demand, w->compute);
    dt_event_wait(s->demand, w->communication);
    if (s->optimizer == PART_WHOLE) {
        strategy_start(s, v->units.first, w->comm, DT_ALL_REDUCE, m->type, m->room, m->room, v->numel, "spread steps");
    }
    for (int u = v->units.first; u < v->units.first + v->units.count && s->optimizer == PART_SLICE; u++) {
        if (in_wave(m, v, u)) {
            int64_t count = s->chain->units[u].numel / s->shards;
            char *at = unit_room(m, u);
            strategy_start(s, u, w->shard, DT_REDUCE_SCATTER, m->type, at,
                           at + (size_t)(s->shard_rank * count) * dt_dtype_size(m->type), count, "spread steps");
        }
    }
    strategy_land(s);
}

static void apply(struct optimizer *o, const struct wave *v, double learning_rate, const int32_t *skip)
{
    struct optimizer_matrices *m = o->matrices;
    struct update_part part = {.call = -1, .units = v->units, .pass = UPDATE_APPLY};
    for (int count; (count = update_bring(o, &part)) > 0;) {
        for (int i = 0; i < count; i++) {
            const struct optimizer_range *r = &o->brought[i];
            const struct optimizer_group *g = &o->groups[r->group];
            double factor = adjusted(&o->strategy->chain->tensors[r->tensor], &g->numbers);
            /* the decay is not adjusted */
            update_apply(o, i, room_of(o, i), m->type, learning_rate * g->lr_scale * factor, g->weight_decay / factor,
                         NULL, skip);
            update_back(o, &part, i);
        }
    }
}

void optimizer_matrices_step(struct optimizer *o, double learning_rate, const double *factor, const int32_t *skip)
{
    struct optimizer_matrices *m = o->matrices;
    for (int i = 0; i < m->wave_count; i++) {
        const struct wave *v = &m->waves[i];
        fill(o, m->room, v->numel, 0, m->type); /* gaps, too */
        make_directions(o, v, factor, skip);
        gather(o, v);
        make_steps(o, v);
        spread(o, v);
        apply(o, v, learning_rate, skip);
    }
}
