/* PowerSGD (Vogels, Karimireddy, Jaggi 2019), as torch.distributed's hook has it. The gradient M (n, m) of a
 * tensor travels as P (n, r) and Q (m, r):
 *
 *   M += error, and the sum is kept      Q: the step before's, or random; columns orthonormal
 *   P = M Q, summed over ranks           columns orthonormal
 *   Q = M' P, summed over ranks          M = P Q', the sum over ranks; error = what was kept - P Q' / ranks
 *
 * Gradients of vectors, and of matrices that would hardly shrink, are summed as they are, packed side by side.
 * Their errors, which PyTorch keeps, sum up to nothing, so there are none here. All of it goes by three
 * all_reduces of a bucket. The small matrices have the wire's type; what is summed over a column is double. */
#include "worker/engine/hooks/hooks.h"

#include "worker/engine/strategy.h"

#include <math.h>
#include <string.h>
#include <strings.h>

struct matrix {
    const struct tensor *tensor; /* null: the whole bucket, with zeros behind it */
    int64_t first;               /* elements from the bucket's start */
    int64_t n, m, rank;
    int64_t p, q, error; /* elements before it in the bucket's P; in all Q; in all errors */
};

struct packed { /* gradients that are summed as they are */
    int64_t first, count;
};

struct power_bucket {
    int matrix, matrix_count, packed, packed_count; /* the first ones, and how many */
    int64_t p_count, q_first, q_count, packed_elements;
    bool begun; /* Q is that of a step before */
};

struct power_sgd {
    const struct job_power_sgd *job;
    bool whole; /* each bucket is one square matrix */
    struct power_bucket *buckets;
    int bucket_count, matrix_count;
    struct matrix *matrices;
    struct packed *packed;
    int64_t p_most, q_total, packed_most, error_total, square_most, room_most;
    int piece_p, piece_q, piece_packed, piece_error, piece_square, piece_room;
    char *p, *q, *pack, *error, *square; /* error null: no feedback */
    double *room;                        /* for the columns of a small matrix */
};

/* ---- what is compressed ---- */

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static bool worth_it(const struct job_power_sgd *job, int64_t n, int64_t m, int64_t rank)
{
    return (double)(n + m) * (double)rank * job->min_compression_rate < (double)n * (double)m;
}

static void add_matrix(struct power_sgd *x, struct power_bucket *b, const struct tensor *t, int64_t first, int64_t n,
                       int64_t m, int64_t rank)
{
    x->matrices[x->matrix_count++] = (struct matrix){.tensor = t,
                                                     .first = first,
                                                     .n = n,
                                                     .m = m,
                                                     .rank = rank,
                                                     .p = b->p_count,
                                                     .q = x->q_total,
                                                     .error = x->error_total};
    b->matrix_count++;
    b->p_count += n * rank;
    b->q_count += m * rank;
    x->q_total += m * rank;
    x->error_total += x->job->use_error_feedback ? n * m : 0;
    x->room_most = most(x->room_most, most(n, m) * rank);
}

static void add_packed(struct power_sgd *x, struct power_bucket *b, int64_t first, int64_t count)
{
    struct packed *last = b->packed_count > 0 ? &x->packed[b->packed + b->packed_count - 1] : NULL;
    b->packed_elements += count;
    if (last != NULL && last->first + last->count == first) {
        last->count += count;
        return;
    }
    x->packed[b->packed + b->packed_count++] = (struct packed){first, count};
}

static void add_tensor(struct power_sgd *x, struct power_bucket *b, const struct tensor *t, int64_t first)
{
    int64_t n = t->dims > 0 ? t->shape[0] : 1, m = t->numel / n, least = n < m ? n : m;
    int64_t rank = x->job->matrix_approximation_rank < least ? x->job->matrix_approximation_rank : least;
    if (worth_it(x->job, n, m, rank)) {
        add_matrix(x, b, t, first, n, m, rank);
    } else {
        add_packed(x, b, first, t->numel);
    }
}

static void add_bucket(struct power_sgd *x, const struct strategy *s, const struct bucket *units)
{
    struct power_bucket *b = &x->buckets[x->bucket_count];
    const struct power_bucket *last = x->bucket_count++ > 0 ? b - 1 : NULL;
    *b = (struct power_bucket){.matrix = x->matrix_count,
                               .packed = last != NULL ? last->packed + last->packed_count : 0,
                               .q_first = x->q_total};
    int64_t begin = s->grad_first[units->first], count = s->grad_first[units->first + units->count] - begin;
    if (x->whole) {
        int64_t side = (int64_t)ceil(sqrt((double)count));
        if (count > 0) {
            int64_t rank = x->job->matrix_approximation_rank;
            add_matrix(x, b, NULL, 0, side, side, rank < side ? rank : side);
            x->square_most = most(x->square_most, side * side);
        }
    } else {
        for (int i = 0; i < s->chain->tensor_count; i++) {
            const struct tensor *t = &s->chain->tensors[i];
            if (t->unit >= units->first && t->unit < units->first + units->count && strategy_trains(s, t->unit)) {
                add_tensor(x, b, t, s->grad_first[t->unit] - begin + t->offset);
            }
        }
    }
    x->p_most = most(x->p_most, b->p_count);
    x->packed_most = most(x->packed_most, b->packed_elements);
}

void power_sgd_plan(struct strategy *s, struct plan *p)
{
    const struct chain *c = s->chain;
    struct power_sgd *x = s->hook.power = dt_arena_alloc(&s->arena, sizeof *x);
    size_t size = dt_dtype_size(s->precision.wire);
    *x = (struct power_sgd){.job = &s->hook.job->power_sgd, .whole = strcmp(s->hook.row->name, "power_sgd") != 0};
    x->buckets = dt_arena_alloc(&s->arena, (size_t)c->unit_count * sizeof *x->buckets);
    x->matrices = dt_arena_alloc(&s->arena, (size_t)(c->tensor_count + c->unit_count) * sizeof *x->matrices);
    x->packed = dt_arena_alloc(&s->arena, (size_t)(c->tensor_count + 1) * sizeof *x->packed);
    for (int u = c->unit_count - 1; u >= 0; u--) {
        if (u == c->unit_count - 1 || s->bucket_of[u] != s->bucket_of[u + 1]) {
            add_bucket(x, s, &s->buckets[s->bucket_of[u]]);
        }
    }
    x->piece_p = plan_add(p, PLAN_COMMUNICATION, PLAN_PEERS, (size_t)x->p_most * size);
    x->piece_q = plan_add(p, PLAN_COMMUNICATION, PLAN_PEERS, (size_t)x->q_total * size);
    x->piece_packed = plan_add(p, PLAN_COMMUNICATION, PLAN_PEERS, (size_t)x->packed_most * size);
    x->piece_error = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL, (size_t)x->error_total * size);
    x->piece_square = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL, (size_t)x->square_most * size);
    x->piece_room = plan_add(p, PLAN_COMMUNICATION, PLAN_LOCAL, (size_t)x->room_most * sizeof *x->room);
}

static void clear(struct strategy *s, char *x, int64_t count)
{
    if (count > 0) {
        s->world->device->kernels->fill(s->world->communication,
                                        &(struct dt_fill_args){.x = x, .count = count, .type = s->precision.wire});
    }
}

int power_sgd_open(struct strategy *s, const struct plan *p, struct dt_error *err)
{
    struct power_sgd *x = s->hook.power;
    (void)err;
    x->p = plan_at(p, x->piece_p);
    x->q = plan_at(p, x->piece_q);
    x->pack = plan_at(p, x->piece_packed);
    x->error = x->error_total > 0 ? plan_at(p, x->piece_error) : NULL;
    x->square = plan_at(p, x->piece_square);
    x->room = plan_at(p, x->piece_room);
    clear(s, x->q, x->q_total);
    clear(s, x->error, x->error_total);
    return 0;
}

/* ---- columns, on the host ---- */

/* Share of a column's length below which what is left of it is rounding. */
#define DEPENDENT 1e-10
enum draws { DRAW_NONE, DRAW_LOST, DRAW_ALL }; /* random numbers: for no column; for those that would be zero */

struct columns { /* of a matrix (rows, count), in place */
    void *x;
    double *room; /* for all of it */
    int64_t rows, count;
    enum dt_dtype type;
    double epsilon;
    enum draws draws;
    const char *name;
    uint64_t seed;
};

static double dot(const struct columns *c, int64_t a, int64_t b)
{
    double sum = 0;
    for (int64_t i = 0; i < c->rows; i++) {
        sum += c->room[i * c->count + a] * c->room[i * c->count + b];
    }
    return sum;
}

/* Takes out of a column what it shares with those before it: twice, since what is left of one that depended on
 * them is rounding. */
static void take_out(const struct columns *c, int64_t column)
{
    for (int64_t k = 0; k < 2 * column; k++) {
        double share = dot(c, k % column, column);
        for (int64_t i = 0; i < c->rows; i++) {
            c->room[i * c->count + column] -= share * c->room[i * c->count + k % column];
        }
    }
}

static void draw(const struct columns *c, int64_t first, int64_t count, double *out)
{
    const struct tensor normal = {
        .name = c->name, .numel = c->rows * c->count, .rule = {.init = INIT_NORMAL, .init_std = 1}};
    init_values(&normal, c->seed, first, count, out);
}

static void draw_column(const struct columns *c, int64_t column)
{
    for (int64_t i = 0; i < c->rows; i++) {
        draw(c, column * c->rows + i, 1, &c->room[i * c->count + column]);
    }
}

/* The column's length without what it shares with the columns before it; 0: it depends on them but for rounding. */
static double length_apart(const struct columns *c, int64_t column)
{
    double before = sqrt(dot(c, column, column));
    take_out(c, column);
    double after = sqrt(dot(c, column, column));
    return after > DEPENDENT * before ? after : 0;
}

/* Gram and Schmidt: each column is taken out of those before it, and made of length 1. One that depends on them
 * becomes zero in P. In Q, where it would stay zero for ever, it is drawn anew. */
static int orthogonalize(struct dt_stream *stream, void *args, struct dt_error *err)
{
    const struct columns *c = args;
    int64_t all = c->rows * c->count;
    (void)stream, (void)err;
    if (c->draws == DRAW_ALL) {
        draw(c, 0, all, c->room);
    } else {
        dt_cpu_cast(&(struct dt_cast_args){c->room, c->x, all, DT_F64, c->type});
    }
    for (int64_t k = 0; k < c->count; k++) {
        double length = length_apart(c, k);
        if (length <= 0 && c->draws != DRAW_NONE) {
            draw_column(c, k);
            length = length_apart(c, k);
        }
        for (int64_t i = 0; i < c->rows; i++) {
            c->room[i * c->count + k] = length > 0 ? c->room[i * c->count + k] / (length + c->epsilon) : 0;
        }
    }
    dt_cpu_cast(&(struct dt_cast_args){c->x, c->room, all, c->type, DT_F64});
    return 0;
}

/* ---- a step ---- */

/* x: (n, m) of the matrix; the rest lies where the bucket's arrays are. */
struct place {
    const struct matrix *of;
    char *x, *p, *q, *error;
};

static struct place place_of(const struct strategy *s, const struct matrix *m, char *bucket)
{
    const struct power_sgd *x = s->hook.power;
    size_t size = dt_dtype_size(s->precision.wire);
    return (struct place){.of = m,
                          .x = m->tensor != NULL ? bucket + (size_t)m->first * size : x->square,
                          .p = x->p + (size_t)m->p * size,
                          .q = x->q + (size_t)m->q * size,
                          .error = x->error != NULL ? x->error + (size_t)m->error * size : NULL};
}

static void make_orthonormal(struct strategy *s, char *x, int64_t rows, const struct matrix *m, enum draws draws)
{
    const struct job_power_sgd *job = s->hook.power->job;
    struct columns c = {.x = x,
                        .room = s->hook.power->room,
                        .rows = rows,
                        .count = m->rank,
                        .type = s->precision.wire,
                        .epsilon = job->epsilon,
                        .draws = draws,
                        .name = m->tensor != NULL ? m->tensor->name : "bucket",
                        .seed = (uint64_t)job->random_seed + ((uint64_t)s->hook.step << 16) +
                                (m->tensor == NULL ? (uint64_t)m->q : 0)};
    dt_stream_call(s->world->communication, orthogonalize, &c, sizeof c);
}

/* A gradient without an error yet has one of zero. Afterwards it holds what is to be sent. */
static void add_error(struct strategy *s, const struct place *at)
{
    struct world *w = s->world;
    int64_t count = at->of->n * at->of->m;
    enum dt_dtype type = s->precision.wire;
    if (at->error != NULL) {
        w->device->kernels->add(
            w->communication,
            &(struct dt_add_args){
                .out = at->x, .a = at->x, .b = at->error, .count = count, .type = type, .b_type = type});
        dt_stream_copy(w->communication, at->error, at->x, (size_t)count * dt_dtype_size(type));
    }
}

/* All errors of a bucket, which lie side by side. */
static void scale_errors(struct strategy *s, const struct power_bucket *b, double factor)
{
    const struct power_sgd *x = s->hook.power;
    const struct matrix *first = &x->matrices[b->matrix], *last = first + b->matrix_count - 1;
    if (x->error != NULL && factor != 1) {
        s->world->device->kernels->scale(
            s->world->communication,
            &(struct dt_scale_args){.x = x->error + (size_t)first->error * dt_dtype_size(s->precision.wire),
                                    .count = last->error + last->n * last->m - first->error,
                                    .factor = factor,
                                    .type = s->precision.wire});
    }
}

static void multiply(struct strategy *s, const struct dt_matmul_args *product)
{
    struct dt_matmul_args a = *product;
    a.type = a.c_type = s->precision.wire;
    s->world->device->kernels->matmul(s->world->communication, &a);
}

/* x = P Q', and the error what of its mean is missing. */
static void decompress(struct strategy *s, const struct place *at)
{
    const struct matrix *m = at->of;
    struct dt_matmul_args product = {
        .c = at->x, .a = at->p, .b = at->q, .m = m->n, .n = m->m, .k = m->rank, .b_transposed = true};
    multiply(s, &product);
    if (at->error == NULL) {
        return;
    }
    s->world->device->kernels->scale(s->world->communication, &(struct dt_scale_args){.x = at->p,
                                                                                      .count = m->n * m->rank,
                                                                                      .factor = -1.0 / s->size,
                                                                                      .type = s->precision.wire});
    product.c = at->error;
    product.accumulate = true;
    multiply(s, &product);
}

static void copy_packed(struct strategy *s, const struct power_bucket *b, char *bucket, bool back)
{
    const struct power_sgd *x = s->hook.power;
    size_t size = dt_dtype_size(s->precision.wire);
    char *at = x->pack;
    for (int i = 0; i < b->packed_count; i++) {
        const struct packed *part = &x->packed[b->packed + i];
        char *there = bucket + (size_t)part->first * size;
        size_t bytes = (size_t)part->count * size;
        dt_stream_copy(s->world->communication, back ? there : at, back ? at : there, bytes);
        at += bytes;
    }
}

/* The square of batched_power_sgd: the bucket and its square, which has zeros behind it. */
static void copy_square(struct strategy *s, const struct power_bucket *b, char *bucket, int64_t count, bool back)
{
    struct power_sgd *x = s->hook.power;
    const struct matrix *m = &x->matrices[b->matrix];
    size_t size = dt_dtype_size(s->precision.wire), bytes = (size_t)count * size;
    dt_stream_copy(s->world->communication, back ? bucket : x->square, back ? x->square : bucket, bytes);
    if (!back) {
        clear(s, x->square + bytes, m->n * m->m - count);
    }
}

/* Nothing else clears what lies between tensors, and the approximation is not zero there: it would be summed
 * over ranks again in each step. */
static void clear_gaps(struct strategy *s, int bucket, char *gradients, int64_t count)
{
    const struct bucket *units = &s->buckets[bucket];
    const struct chain *c = s->chain;
    size_t size = dt_dtype_size(s->precision.wire);
    int64_t at = 0;
    for (int u = units->first; u < units->first + units->count; u++) {
        for (int i = 0; i < c->tensor_count; i++) {
            const struct tensor *t = &c->tensors[i];
            int64_t first = s->grad_first[u] - s->grad_first[units->first] + t->offset;
            if (t->unit == u && strategy_trains(s, u)) {
                clear(s, gradients + (size_t)at * size, first - at);
                at = first + t->numel;
            }
        }
    }
    clear(s, gradients + (size_t)at * size, count - at);
}

static void sum(struct strategy *s, int bucket, void *x, int64_t count, const char *name)
{
    if (count > 0) {
        strategy_start(s, s->buckets[bucket].first, s->world->comm, DT_ALL_REDUCE, s->precision.wire, x, x, count,
                       name);
    }
}

void power_sgd_exchange(struct strategy *s, int bucket, void *gradients, int64_t count)
{
    struct power_sgd *x = s->hook.power;
    struct power_bucket *b = &x->buckets[bucket];
    /* in a blank step the gradients are zeros, and the errors wait for a step that has an update */
    if (s->hook.step < x->job->start_iter || b->matrix_count == 0 || s->hook.blank) {
        hook_sum(s, bucket, gradients, count);
        return;
    }
    const struct matrix *all = &x->matrices[b->matrix];
    enum draws draws = x->job->warm_start && b->begun ? DRAW_LOST : DRAW_ALL;
    copy_packed(s, b, gradients, false);
    sum(s, bucket, x->pack, b->packed_elements, "reduce gradients");
    if (x->whole) {
        copy_square(s, b, gradients, count, false);
    }
    scale_errors(s, b, s->hook.share);
    for (int i = 0; i < b->matrix_count; i++) {
        const struct place at = place_of(s, &all[i], gradients);
        add_error(s, &at);
        make_orthonormal(s, at.q, all[i].m, &all[i], draws);
        multiply(s, &(struct dt_matmul_args){
                        .c = at.p, .a = at.x, .b = at.q, .m = all[i].n, .n = all[i].rank, .k = all[i].m});
    }
    sum(s, bucket, x->p, b->p_count, "reduce P");
    for (int i = 0; i < b->matrix_count; i++) {
        const struct place at = place_of(s, &all[i], gradients);
        make_orthonormal(s, at.p, all[i].n, &all[i], DRAW_NONE);
        multiply(
            s,
            &(struct dt_matmul_args){
                .c = at.q, .a = at.x, .b = at.p, .m = all[i].m, .n = all[i].rank, .k = all[i].n, .a_transposed = true});
    }
    sum(s, bucket, x->q + (size_t)b->q_first * dt_dtype_size(s->precision.wire), b->q_count, "reduce Q");
    for (int i = 0; i < b->matrix_count; i++) {
        const struct place at = place_of(s, &all[i], gradients);
        decompress(s, &at);
    }
    scale_errors(s, b, 1 / s->hook.share);
    if (x->whole) {
        copy_square(s, b, gradients, count, true);
        clear_gaps(s, bucket, gradients, count);
    }
    copy_packed(s, b, gradients, true);
    b->begun = true;
}

/* ---- checkpoints ---- */

static const struct power_bucket *bucket_of(const struct power_sgd *x, int matrix)
{
    const struct power_bucket *b = x->buckets;
    while (matrix >= b->matrix + b->matrix_count) {
        b++;
    }
    return b;
}

double hook_saved_elements(const struct strategy *s)
{
    const struct power_sgd *x = s->hook.power;
    return x == NULL || x->whole ? 0 : (double)x->error_total * s->size + (x->job->warm_start ? (double)x->q_total : 0);
}

bool hook_state_at(const struct strategy *s, int i, struct hook_state *out)
{
    const struct power_sgd *x = s->hook.power;
    if (x == NULL || x->whole || i >= 2 * x->matrix_count) {
        return false;
    }
    const struct matrix *m = &x->matrices[i / 2];
    size_t size = dt_dtype_size(s->precision.wire);
    bool error = i % 2 == 1, kept = x->q == NULL || bucket_of(x, i / 2)->begun; /* q null: what is kept is planned */
    bool has = error ? x->job->use_error_feedback : x->job->warm_start;
    char *base = error ? x->error : x->q;
    *out = (struct hook_state){.tensor = m->tensor,
                               .count = !kept || !has ? 0
                                        : error       ? m->n * m->m
                                                      : m->m * m->rank,
                               .data = base != NULL ? base + (size_t)(error ? m->error : m->q) * size : NULL,
                               .type = s->precision.wire,
                               .error = error};
    return true;
}

void hook_state_loaded(struct strategy *s, bool loaded)
{
    struct power_sgd *x = s->hook.power;
    for (int i = 0; x != NULL && i < x->bucket_count; i++) {
        x->buckets[i].begun = loaded;
    }
    if (x != NULL && !loaded) {
        clear(s, x->q, x->q_total);
        clear(s, x->error, x->error_total);
    }
}

void hook_forget_errors(struct strategy *s)
{
    struct power_sgd *x = s->hook.power;
    if (x != NULL && s->hook.step >= x->job->start_iter) {
        clear(s, x->error, x->error_total);
    }
}
