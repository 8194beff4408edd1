/* Collectives over shared memory. Nothing moves that arithmetic does not touch: buffers in
 * arenas are read and written where they are, by all ranks.
 *
 *   small (16 KiB)  everybody copies its input to its slot | step | reads all slots
 *   all_reduce      | step | rank r sums slice r over all buffers, stores the sum to all | step |
 *   others          | step | rank r reads what it wants from its peers                   | step |
 *
 * The first step also compares what the ranks are about to do. When one of them has its buffers
 * outside the arenas, all go by chunks that fit the bounce buffer: copy in | step | as above |
 * step | copy out. Every element is summed by dt_tree_reduce over all ranks, so that neither
 * slices nor chunks show in the bits. */
#include "collectives/shm.h"

#include "base/text.h"
#include "collectives/backends.h"
#include "collectives/tree.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SLICE_BYTES ((size_t)4096)

/* One collective on its way. Offsets and sizes in elements unless they say bytes. */
struct op {
    struct dt_comm *c;
    struct shm *s;
    const struct dt_collective *x;
    struct shm_call call;
    struct shm_what *mine;
    size_t width;               /* bytes of an element */
    size_t in_bytes, out_bytes; /* of each rank's buffers */
    struct shm_places *places;  /* where each rank has its buffers: checked copies of what lies
                                 * in shared memory */
    const void **in;            /* room for dt_tree_reduce's inputs */
};

/* The arena that holds all of p, here or in a parent. */
static bool find_arena(const struct dt_comm *c, const void *p, size_t size_bytes, struct shm_place *out)
{
    int32_t level = 0;
    for (; c != NULL && c->ops == &dt_comm_shm; c = c->parent, level++) {
        const struct shm *s = c->state;
        for (int i = 0; i < s->arena_count; i++) {
            const struct shm_arena *a = &s->arenas[i];
            uintptr_t first = (uintptr_t)a->map.base + (size_t)c->rank * a->stride, at = (uintptr_t)p;
            if (at >= first && at <= first + a->stride && size_bytes <= first + a->stride - at) {
                *out = (struct shm_place){level, i, at - first};
                return true;
            }
        }
    }
    *out = (struct shm_place){.level = -1};
    return false;
}

/* Does `place` of some rank hold a buffer of so many bytes? Peers write it, so it is checked
 * once, and only a copy is used. */
static bool holds(const struct dt_comm *c, const struct shm_place *place, size_t size_bytes)
{
    for (int32_t i = 0; i < place->level && c != NULL; i++) {
        c = c->parent;
    }
    if (place->level < 0 || c == NULL || c->ops != &dt_comm_shm) {
        return place->level == -1;
    }
    const struct shm *s = c->state;
    return place->arena >= 0 && place->arena < s->arena_count && place->offset <= s->arenas[place->arena].stride &&
           size_bytes <= s->arenas[place->arena].stride - place->offset;
}

/* Where `rank` has the buffer that it calls `place`. */
static char *address(const struct op *o, int rank, const struct shm_place *place)
{
    if (place->level < 0) {
        return o->s->bounces + (size_t)rank * SHM_BOUNCE_BYTES;
    }
    const struct dt_comm *c = o->c;
    for (int32_t i = 0; i < place->level; i++) {
        rank = c->members[rank];
        c = c->parent;
    }
    const struct shm_arena *a = &((const struct shm *)c->state)->arenas[place->arena];
    return a->map.base + (size_t)rank * a->stride + place->offset;
}

/* Says what this rank is about to do. */
static void publish(struct op *o, int64_t number)
{
    const struct dt_collective *x = o->x;
    struct shm_slot *slot = shm_slot(o->s, o->c->rank);
    struct shm_what *w = &slot->what[number & 1];
    char name[SHM_NAME_WORDS * 8] = "";
    uint64_t words[SHM_NAME_WORDS];
    size_t name_bytes = strlen(x->name);
    memcpy(name, x->name, name_bytes < sizeof(name) ? name_bytes : sizeof(name));
    memcpy(words, name, sizeof(words));
    uint64_t h = shm_mix(shm_mix(shm_mix(1, (uint64_t)number), (uint64_t)x->count),
                         (uint64_t)x->kind << 32 | (uint64_t)x->type << 16 | (uint64_t)x->op);
    h = shm_mix(h, (uint64_t)(x->kind == DT_BROADCAST ? x->root : 0));
    for (int i = 0; i < SHM_NAME_WORDS; i++) {
        h = shm_mix(h, words[i]);
        atomic_store_explicit(&w->name[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&w->count, x->count, memory_order_relaxed);
    atomic_store_explicit(&w->kind, (uint32_t)x->kind, memory_order_relaxed);
    atomic_store_explicit(&w->op, (uint32_t)x->op, memory_order_relaxed);
    atomic_store_explicit(&w->type, (uint32_t)x->type, memory_order_relaxed);
    atomic_store_explicit(&w->root, x->root, memory_order_relaxed);
    w->digest = h;
    (void)find_arena(o->c, x->in, o->in_bytes, &w->at.in);
    (void)find_arena(o->c, x->out, o->out_bytes, &w->at.out);
    atomic_store_explicit(&slot->shown, o->call.number, memory_order_relaxed);
    atomic_store_explicit(&slot->number, number, memory_order_relaxed);
    o->mine = w;
}

static void describe(const struct shm_what *w, struct dt_text *out)
{
    char name[SHM_NAME_WORDS * 8 + 1] = "";
    for (int i = 0; i < SHM_NAME_WORDS; i++) {
        uint64_t word = atomic_load(&w->name[i]);
        memcpy(name + i * 8, &word, 8);
    }
    enum dt_coll kind = (enum dt_coll)atomic_load(&w->kind);
    dt_text_printf(out, "%s %s", dt_coll_name(kind), name);
    if (kind != DT_BARRIER) {
        dt_text_printf(out, " of %lld %s", (long long)atomic_load(&w->count),
                       dt_dtype_name((enum dt_dtype)atomic_load(&w->type)));
    }
    if (kind == DT_ALL_REDUCE || kind == DT_REDUCE_SCATTER) {
        dt_text_printf(out, " %s", dt_reduction_name((enum dt_reduction)atomic_load(&w->op)));
    } else if (kind == DT_BROADCAST) {
        dt_text_printf(out, " from rank %d", atomic_load(&w->root));
    }
}

/* After the first step: do all ranks do the same? */
static int compare(struct op *o, int64_t number, struct dt_error *err)
{
    for (int r = 0; r < o->c->size; r++) {
        const struct shm_what *what = &shm_slot(o->s, r)->what[number & 1];
        o->places[r] = what->at;
        if (what->digest == o->mine->digest) {
            if (holds(o->c, &o->places[r].in, o->in_bytes) && holds(o->c, &o->places[r].out, o->out_bytes)) {
                continue;
            }
            (void)dt_fail(err, DT_INTERNAL, "communicator %s: rank %d says that its buffers lie where no arena is",
                          o->c->name, shm_shown(o->c, r));
            shm_fail(o->c, err);
            return -1;
        }
        struct dt_text ours, theirs;
        dt_text_init(&ours);
        dt_text_init(&theirs);
        describe(o->mine, &ours);
        describe(what, &theirs);
        (void)dt_fail(err, DT_INVALID,
                      "communicator %s: the ranks disagree on collective %lld: rank %d does %s, rank %d does %s",
                      o->c->name, (long long)o->call.number, shm_shown(o->c, o->c->rank), dt_text_str(&ours),
                      shm_shown(o->c, r), dt_text_str(&theirs));
        dt_text_clear(&ours);
        dt_text_clear(&theirs);
        shm_fail(o->c, err);
        return -1;
    }
    return 0;
}

static void reduce(struct op *o, void *out, int64_t count)
{
    dt_tree_reduce(out, o->in, o->c->size, o->x->op, o->x->type, count);
}

static int first_step(struct op *o, int64_t number, struct dt_error *err)
{
    return shm_step(o->c, &o->call, err) == 0 ? compare(o, number, err) : -1;
}

int shm_begin(struct dt_comm *c, const struct dt_collective *outer, const struct shm_call *call, struct dt_error *err)
{
    struct shm *s = c->state;
    struct op o = {.c = c,
                   .s = s,
                   .x = outer,
                   .call = *call,
                   .in_bytes = SIZE_MAX,
                   .out_bytes = SIZE_MAX,
                   .places = s->places,
                   .in = s->in};
    publish(&o, ++c->number);
    return first_step(&o, c->number, err);
}

/* Everybody's input fits its slot. */
static int run_small(struct op *o, int64_t number, size_t in_bytes, struct dt_error *err)
{
    const struct dt_collective *x = o->x;
    int turn = (int)(number & 1), size = o->c->size;
    size_t part = (size_t)x->count * o->width;
    if (in_bytes > 0 && (x->kind != DT_BROADCAST || x->root == o->c->rank)) {
        memcpy(shm_slot(o->s, o->c->rank)->small[turn], x->in, in_bytes);
    }
    if (first_step(o, number, err) != 0) {
        return -1;
    }
    for (int r = 0; r < size && part > 0; r++) {
        const char *theirs = shm_slot(o->s, r)->small[turn];
        o->in[r] = x->kind == DT_REDUCE_SCATTER ? theirs + (size_t)o->c->rank * part : theirs;
        if (x->kind == DT_ALL_GATHER) {
            memcpy((char *)x->out + (size_t)r * part, theirs, part);
        } else if (x->kind == DT_BROADCAST && r == x->root && (r != o->c->rank || x->in != x->out)) {
            memcpy(x->out, theirs, part);
        }
    }
    if (part > 0 && (x->kind == DT_ALL_REDUCE || x->kind == DT_REDUCE_SCATTER)) {
        reduce(o, x->out, x->count);
    }
    return 0;
}

/* Elements at..at + n of each slice (of the whole for all_reduce and broadcast); input and
 * output of rank r for them. */
static const char *input(const struct op *o, int r, int64_t at, int64_t n, int slice)
{
    const struct shm_place *p = &o->places[r].in;
    bool sliced = o->x->kind == DT_REDUCE_SCATTER;
    int64_t before = p->level < 0 ? (sliced ? slice * n : 0) : (sliced ? slice * o->x->count : 0) + at;
    return address(o, r, p) + (size_t)before * o->width;
}

static char *output(const struct op *o, int r, int64_t at)
{
    const struct shm_place *p = &o->places[r].out;
    return address(o, r, p) + (p->level < 0 ? 0 : (size_t)at * o->width);
}

static void sum_slice(struct op *o, int64_t at, int64_t n)
{
    int size = o->c->size, me = o->c->rank;
    size_t total = (size_t)n * o->width, each = (total / (size_t)size / SLICE_BYTES + 1) * SLICE_BYTES;
    size_t first = (size_t)me * each < total ? (size_t)me * each : total,
           last = first + each < total ? first + each : total;
    for (size_t b = first; b < last; b += SHM_BLOCK_BYTES) {
        size_t bytes = last - b < SHM_BLOCK_BYTES ? last - b : SHM_BLOCK_BYTES;
        for (int r = 0; r < size; r++) {
            o->in[r] = input(o, r, at, n, 0) + b;
        }
        char *out = output(o, me, at) + b;
        reduce(o, out, (int64_t)(bytes / o->width));
        for (int r = 0; r < size; r++) {
            if (r != me) {
                memcpy(output(o, r, at) + b, out, bytes);
            }
        }
    }
}

/* Between the two steps: this rank's share of elements at..at + n. */
static void work(struct op *o, int64_t at, int64_t n)
{
    const struct dt_collective *x = o->x;
    int size = o->c->size, me = o->c->rank;
    size_t bytes = (size_t)n * o->width;
    if (x->kind == DT_ALL_REDUCE) {
        sum_slice(o, at, n);
    } else if (x->kind == DT_REDUCE_SCATTER) {
        for (int r = 0; r < size; r++) {
            o->in[r] = input(o, r, at, n, me);
        }
        reduce(o, (char *)x->out + (size_t)at * o->width, n);
    } else if (x->kind == DT_ALL_GATHER) {
        for (int i = 0; i < size; i++) {
            int r = (me + i) % size; /* not all from the same one at once */
            char *out = (char *)x->out + (size_t)(r * x->count + at) * o->width;
            const char *in = r == me ? (const char *)x->in + (size_t)at * o->width : input(o, r, at, n, 0);
            if (in != out) {
                memcpy(out, in, bytes);
            }
        }
    } else if (x->kind == DT_BROADCAST) {
        char *out = (char *)x->out + (size_t)at * o->width;
        const char *in = x->root == me ? (const char *)x->in + (size_t)at * o->width : input(o, x->root, at, n, 0);
        if (in != out) {
            memcpy(out, in, bytes);
        }
    }
}

/* Must peers reach this rank's input (output) for the collective? */
static bool staged_in(const struct op *o, int r)
{
    return o->places[r].in.level < 0 && (o->x->kind != DT_BROADCAST || r == o->x->root);
}

static bool staged_out(const struct op *o, int r)
{
    return o->places[r].out.level < 0 && o->x->kind == DT_ALL_REDUCE;
}

static void copy_in(struct op *o, int64_t at, int64_t n)
{
    const struct dt_collective *x = o->x;
    char *bounce = o->s->bounces + (size_t)o->c->rank * SHM_BOUNCE_BYTES;
    int slices = x->kind == DT_REDUCE_SCATTER ? o->c->size : 1;
    for (int i = 0; i < slices; i++) {
        memcpy(bounce + (size_t)(i * n) * o->width, (const char *)x->in + (size_t)(i * x->count + at) * o->width,
               (size_t)n * o->width);
    }
}

static int run_large(struct op *o, int64_t number, struct dt_error *err)
{
    const struct dt_collective *x = o->x;
    int64_t slices = x->kind == DT_REDUCE_SCATTER ? o->c->size : 1;
    int64_t chunk = (int64_t)(SHM_BOUNCE_BYTES / o->width) / slices;
    int64_t n = x->count < chunk ? x->count : chunk;
    bool in_bounces = o->mine->at.in.level < 0 && (x->kind != DT_BROADCAST || x->root == o->c->rank);
    bool out_bounces = o->mine->at.out.level < 0 && x->kind == DT_ALL_REDUCE;
    if (in_bounces) {
        copy_in(o, 0, n);
    }
    if (first_step(o, number, err) != 0) {
        return -1;
    }
    bool staged = false;
    for (int r = 0; r < o->c->size; r++) {
        staged = staged || staged_in(o, r) || staged_out(o, r);
    }
    if (!staged) {
        n = x->count;
    }
    for (int64_t at = 0;;) {
        work(o, at, n);
        if (shm_step(o->c, &o->call, err) != 0) {
            return -1;
        }
        if (out_bounces) {
            memcpy((char *)x->out + (size_t)at * o->width, o->s->bounces + (size_t)o->c->rank * SHM_BOUNCE_BYTES,
                   (size_t)n * o->width);
        }
        at += n;
        if (at >= x->count) {
            return 0;
        }
        n = x->count - at < chunk ? x->count - at : chunk;
        if (in_bounces) {
            copy_in(o, at, n);
        }
        if (shm_step(o->c, &o->call, err) != 0) {
            return -1;
        }
    }
}

static int run(struct dt_comm *c, const struct dt_collective *x, int64_t number, double timeout_s, struct dt_error *err)
{
    struct shm *s = c->state;
    struct op o = {.c = c,
                   .s = s,
                   .x = x,
                   .call = {dt_coll_name(x->kind), x->name, number, timeout_s},
                   .places = s->places,
                   .in = s->in};
    o.width = dt_dtype_size(x->type);
    size_t part = x->kind == DT_BARRIER ? 0 : (size_t)x->count * o.width;
    o.in_bytes = x->kind == DT_REDUCE_SCATTER ? part * (size_t)c->size : part;
    o.out_bytes = x->kind == DT_ALL_GATHER ? part * (size_t)c->size : part;
    publish(&o, number);
    return o.in_bytes <= SHM_SMALL_BYTES ? run_small(&o, number, o.in_bytes, err) : run_large(&o, number, err);
}

/* Rank 0 makes one file for all; its ticket travels by a broadcast. */
static int alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err)
{
    struct shm *s = c->state;
    if (s->arena_count == SHM_ARENAS_MAX) {
        return dt_fail(err, DT_INVALID, "more than %d arenas", SHM_ARENAS_MAX);
    }
    struct shm_arena a = {.stride = (size_bytes + 4095) / 4096 * 4096};
    char ticket[DT_COMM_TICKET_BYTES] = "";
    int fd = -1, rc = 0;
    if (c->rank == 0 && shm_map_make(&a.map, a.stride * (size_t)c->size, &fd, ticket, err) != 0) {
        shm_fail(c, err);
        return -1;
    }
    /* The size goes along as a collective, so that ranks that disagree on it are named. */
    int64_t sizes[2] = {(int64_t)size_bytes, -(int64_t)size_bytes};
    const struct dt_collective steps[] = {
        {DT_ALL_REDUCE, DT_MAX, "size of an arena", sizes, sizes, 2, DT_I64, 0},
        {DT_BROADCAST, DT_SUM, "arena", ticket, ticket, sizeof(ticket), DT_U8, 0},
        {DT_BARRIER, DT_SUM, "arena is mapped", NULL, NULL, 0, DT_U8, 0},
    };
    for (int i = 0; i < 3 && rc == 0; i++) {
        rc = run(c, &steps[i], ++c->number, c->open_timeout_s, err);
        if (rc == 0 && i == 0 && sizes[0] != -sizes[1]) {
            rc = dt_fail(err, DT_INVALID, "the ranks ask for different sizes: from %lld to %lld bytes, rank %d for %zu",
                         (long long)-sizes[1], (long long)sizes[0], shm_shown(c, c->rank), size_bytes);
        } else if (rc == 0 && i == 1 && c->rank != 0) {
            ticket[sizeof(ticket) - 1] = '\0';
            rc = shm_map_take(&a.map, ticket, a.stride * (size_t)c->size, err);
            if (rc != 0) {
                shm_fail(c, err);
            }
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (rc != 0) {
        shm_map_drop(&a.map);
        return -1;
    }
    s->arenas[s->arena_count++] = a;
    *out = a.map.base + (size_t)c->rank * a.stride;
    return 0;
}

static int open_shm(struct dt_comm *c, const char *ticket, struct dt_error *err)
{
    if (shm_open_segment(c, ticket, err) != 0) {
        return -1;
    }
    struct shm *s = c->state;
    s->places = dt_alloc((size_t)c->size * sizeof(*s->places));
    s->in = dt_alloc((size_t)c->size * sizeof(*s->in));
    return 0;
}

static void abort_shm(struct dt_comm *c)
{
    struct dt_error why;
    (void)dt_fail(&why, DT_PEER, "rank %d aborted communicator %s", shm_shown(c, c->rank), c->name);
    (void)dt_blame(&why, DT_FAULT_LOST, dt_comm_job_rank(c, c->rank));
    shm_fail(c, &why);
}

static void close_shm(struct dt_comm *c)
{
    struct shm *s = c->state;
    if (s != NULL) {
        free(s->places);
        free(s->in);
    }
    shm_close(c);
}

const struct dt_comm_ops dt_comm_shm = {"shm",     false, shm_offer, open_shm, alloc, run,  shm_look, abort_shm,
                                        close_shm, NULL,  NULL,      shm_fail, NULL,  NULL, NULL,     false};
