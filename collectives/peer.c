/* Ranks whose devices reach each other's memory: several on one GPU, or GPUs of one host. Each
 * rank imports the arenas of all others, and its stream reads the peers' buffers in place. Sums
 * are those of the kernel `sum_slices`, in tree order, so they have the same bits as every other
 * backend's.
 *
 *   arenas          | ready | wait for all | rank r sums slice r over all buffers,
 *                   | copies the sum to all | done | wait for all |
 *   small, or other | copy to my stage | ready | wait for all | read all stages |
 *                   two stages, used in turn
 *
 * Streams synchronize by words in shared host memory: a stream writes the number of its step to
 * its own word and waits for the words of its peers. No kernel spins. If a peer is lost, the
 * host writes the words itself, so no stream is left waiting. The data is invalid then, and
 * dt_comm_poll fails.
 *
 * The ranks have a second communicator over shared memory (`control`). It carries memory
 * handles, notices when a process has ended, and tells all ranks the failure of one. The host
 * never waits for its peers in `start`: the rank that comes later compares what the ranks do.
 *
 * Buffers lie at the same offset of the arena on every rank. For all_gather in place each rank's
 * input lies at its slice of the output. */
#include "collectives/backends.h"
#include "collectives/peer.h"
#include "collectives/shm.h"
#include "collectives/tree.h"

#include "base/clock.h"
#include "base/text.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SMALL_BYTES ((size_t)16384)
#define STAGE_BYTES ((size_t)1 << 20) /* bytes of each of the two stages */
#define CLOSE_S 10.0
#define DRAINED_S 0.002

struct place {
    const struct dt_comm *owner;
    int arena;
    size_t offset;
};

/* One collective while it is being enqueued. */
struct op {
    struct dt_comm *c;
    struct peer *p;
    const struct dt_collective *x;
    struct dt_stream *s;
    size_t width;
};

/* ---- memory ---- */

static bool find(const struct dt_comm *c, const void *at, size_t size_bytes, struct place *out)
{
    for (; c != NULL && c->ops == &dt_comm_peer; c = c->parent) {
        const struct peer *p = c->state;
        for (int i = 1; i < p->arena_count; i++) {
            uintptr_t base = (uintptr_t)p->arenas[i].base[c->rank], x = (uintptr_t)at;
            if (x >= base && x - base <= p->arenas[i].size_bytes &&
                size_bytes <= p->arenas[i].size_bytes - (x - base)) {
                *out = (struct place){c, i, x - base};
                return true;
            }
        }
    }
    return false;
}

/* Returns the address of `rank`'s buffer at `place`. */
static char *reach(const struct dt_comm *c, const struct place *place, int rank)
{
    for (; c != place->owner; c = c->parent) {
        rank = c->members[rank];
    }
    return ((const struct peer *)c->state)->arenas[place->arena].base[rank] + place->offset;
}

/* Returns the stage of `rank` for a step. Two stages are enough: a rank that enters step n + 2
 * knows that all peers have finished reading step n. */
static char *stage(const struct op *o, int rank, uint32_t step)
{
    return o->p->arenas[0].base[rank] + (step & 1) * STAGE_BYTES;
}

/* Gathers small facts in host memory from all ranks, by the control. */
static int gather(struct dt_comm *c, const char *name, const void *mine, void *all, size_t size_bytes,
                  struct dt_error *err)
{
    struct dt_comm *control = ((struct peer *)c->state)->control;
    const struct dt_collective x = {
        .kind = DT_ALL_GATHER, .name = name, .in = mine, .out = all, .count = (int64_t)size_bytes, .type = DT_U8};
    return control->ops->run(control, &x, ++control->number, c->open_timeout_s, err);
}

struct offer {
    char handle[DT_DEVICE_HANDLE_BYTES];
    int64_t size_bytes; /* negative: this rank has no arena, and `why` says why */
    char why[200];
};

static void drop_imports(struct dt_comm *c, struct peer_arena *a)
{
    for (int r = 0; a->base != NULL && r < c->size; r++) {
        if (a->base[r] != NULL && r != c->rank) {
            dt_device_release(c->device, a->base[r]);
            a->base[r] = NULL;
        }
    }
}

static void drop_arena(struct dt_comm *c, struct peer_arena *a)
{
    drop_imports(c, a);
    if (a->base != NULL && a->base[c->rank] != NULL) {
        dt_device_free(c->device, DT_MEMORY_DEVICE, a->base[c->rank], a->size_bytes);
    }
    free(a->base);
    *a = (struct peer_arena){0};
}

static int alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err)
{
    struct peer *p = c->state;
    /* CUDA may cut small allocations from one block of 2 MiB, and shares whole blocks with other
     * processes (CUDA C++ Programming Guide, interprocess communication) */
    const size_t block = (size_t)2 << 20;
    size_bytes = size_bytes < block ? block : size_bytes;
    if (p->arena_count == PEER_ARENAS_MAX) {
        return dt_fail(err, DT_INVALID, "more than %d arenas", PEER_ARENAS_MAX);
    }
    struct peer_arena *a = &p->arenas[p->arena_count];
    struct offer mine, *all = dt_alloc((size_t)c->size * sizeof *all);
    struct dt_error why = {0};
    memset(&mine, 0, sizeof mine);
    *a = (struct peer_arena){dt_alloc((size_t)c->size * sizeof *a->base), size_bytes};
    mine.size_bytes = (int64_t)size_bytes;
    if (dt_device_alloc(c->device, DT_MEMORY_DEVICE, size_bytes, (void **)&a->base[c->rank], &why) != 0 ||
        dt_device_export(c->device, a->base[c->rank], size_bytes, mine.handle, &why) != 0) {
        mine.size_bytes = -1;
        (void)snprintf(mine.why, sizeof mine.why, "%s", why.text);
    }
    int rc = gather(c, "arena", &mine, all, sizeof mine, err);
    for (int r = 0; r < c->size && rc == 0; r++) {
        if (all[r].size_bytes < 0) {
            rc = dt_fail(err, DT_NO_MEMORY, "rank %d: %.*s", shm_shown(c, r), (int)sizeof all[r].why, all[r].why);
        } else if (all[r].size_bytes != (int64_t)size_bytes) {
            rc = dt_fail(err, DT_INVALID, "the ranks ask for different sizes: rank %d for %zu bytes, rank %d for %lld",
                         shm_shown(c, c->rank), size_bytes, shm_shown(c, r), (long long)all[r].size_bytes);
        } else if (r != c->rank) {
            rc = dt_device_import(c->device, all[r].handle, size_bytes, (void **)&a->base[r], err);
            rc = rc == 0 ? 0 : dt_wrap(err, "rank %d's memory", shm_shown(c, r));
        }
    }
    free(all);
    if (rc != 0) {
        shm_fail(p->control, err);
        drop_arena(c, a);
        return -1;
    }
    p->arena_count++;
    *out = a->base[c->rank];
    return 0;
}

/* ---- opening ---- */

static void make_control(struct dt_comm *c)
{
    struct peer *p = dt_alloc(sizeof *p);
    (void)pthread_mutex_init(&p->lock, NULL);
    c->state = p;
    p->control = dt_comm_make(c->name, c->rank, c->size, &dt_comm_shm);
    p->control->page = c->page;
    p->control->timeout_s = c->timeout_s;
    p->control->open_timeout_s = c->open_timeout_s;
    if (c->parent != NULL) {
        p->control->parent = ((struct peer *)c->parent->state)->control;
        p->control->members = dt_alloc((size_t)c->size * sizeof(int));
        memcpy(p->control->members, c->members, (size_t)c->size * sizeof(int));
    }
}

static int offer(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err)
{
    if (c->state == NULL) {
        make_control(c);
    }
    struct dt_comm *control = ((struct peer *)c->state)->control;
    return control->ops->offer(control, ticket, err);
}

/* Opens the sides: an arena of the control that the streams of this rank may write to and wait
 * for. */
static int open_sides(struct dt_comm *c, struct dt_error *err)
{
    struct peer *p = c->state;
    void *own = NULL;
    if (p->control->ops->alloc(p->control, sizeof(struct peer_side), &own, err) != 0) {
        return -1;
    }
    const struct shm *shm = p->control->state;
    const struct shm_arena *a = &shm->arenas[shm->arena_count - 1];
    p->sides = dt_alloc((size_t)c->size * sizeof(struct peer_side *));
    for (int r = 0; r < c->size; r++) {
        p->sides[r] = (struct peer_side *)(void *)((char *)own + (r - c->rank) * (int64_t)a->stride);
    }
    if (dt_device_pin(c->device, p->sides[0], a->stride * (size_t)c->size, err) != 0) {
        shm_fail(p->control, err);
        return -1;
    }
    p->pinned = p->sides[0];
    return 0;
}

static int open_peer(struct dt_comm *c, const char *ticket, struct dt_error *err)
{
    if (c->state == NULL) {
        make_control(c);
    }
    struct peer *p = c->state;
    void *stages;
    if (c->device == NULL) {
        return dt_fail(err, DT_INVALID, "backend peer needs a device whose memory is not the host's");
    }
    if (p->control->ops->open(p->control, ticket, err) != 0 || open_sides(c, err) != 0 ||
        alloc(c, 2 * STAGE_BYTES, &stages, err) != 0) {
        return -1;
    }
    for (int i = 0; i < PEER_RING; i++) {
        p->in[i] = dt_alloc((size_t)c->size * sizeof(void *));
    }
    peer_look_open(p);
    p->opened = true;
    return 0;
}

/* ---- steps ---- */

static void arrive(struct op *o)
{
    struct peer *p = o->p;
    dt_stream_write_word(o->s, &p->sides[o->c->rank]->ready, atomic_fetch_add(&p->step, 1) + 1);
}

static void wait_for_all(struct op *o, bool done)
{
    struct peer *p = o->p;
    for (int i = 1; i < o->c->size; i++) {
        struct peer_side *side = p->sides[(o->c->rank + i) % o->c->size];
        dt_stream_wait_word(o->s, done ? &side->done : &side->ready, p->step);
    }
}

static void leave(struct op *o)
{
    dt_stream_write_word(o->s, &o->p->sides[o->c->rank]->done, o->p->step);
    wait_for_all(o, true);
}

/* Returns an array for the inputs of a sum. Waits for a stream that is PEER_RING sums behind,
 * because it may not have read its array yet. */
static const void **take_inputs(struct op *o)
{
    struct peer *p = o->p;
    uint32_t i = p->sum_count++ % PEER_RING;
    const struct peer_side *own = p->sides[o->c->rank];
    while (p->sum_count > PEER_RING && (int32_t)(peer_word(&own->ready) - p->in_step[i]) <= 0 &&
           atomic_load(&o->c->stopped) == 0 && !dt_stream_failed(o->s, NULL)) {
        dt_sleep_s(1e-4);
    }
    p->in_step[i] = p->step;
    return p->in[i];
}

static enum dt_op kernel_op(enum dt_reduction op)
{
    switch (op) {
    case DT_SUM:
        return DT_OP_SUM;
    case DT_MAX:
        return DT_OP_MAX;
    case DT_MIN:
        return DT_OP_MIN;
    case DT_REDUCTION_COUNT:
        break;
    }
    return DT_OP_SUM;
}

static void sum(struct op *o, void *out, const void **in, int64_t count)
{
    o->s->device->kernels->sum_slices(o->s, &(struct dt_sum_slices_args){.out = out,
                                                                         .in = in,
                                                                         .in_count = o->c->size,
                                                                         .op = kernel_op(o->x->op),
                                                                         .count = count,
                                                                         .type = o->x->type});
}

static void copy(struct op *o, void *to, const void *from, size_t size_bytes)
{
    if (to != from && size_bytes > 0) {
        dt_stream_copy(o->s, to, from, size_bytes);
    }
}

/* ---- the two algorithms ---- */

/* Elements at .. at + n of each slice, by way of the stages. */
static void run_staged(struct op *o, int64_t at, int64_t n)
{
    const struct dt_collective *x = o->x;
    int size = o->c->size, me = o->c->rank, slices = x->kind == DT_REDUCE_SCATTER ? size : 1;
    size_t bytes = (size_t)n * o->width;
    char *mine = stage(o, me, o->p->step + 1);
    for (int i = 0; i < slices && (x->kind != DT_BROADCAST || x->root == me); i++) {
        copy(o, mine + (size_t)i * bytes, (const char *)x->in + (size_t)(i * x->count + at) * o->width, bytes);
    }
    arrive(o);
    wait_for_all(o, false);
    char *out = (char *)x->out + (size_t)at * o->width;
    if (x->kind == DT_ALL_REDUCE || x->kind == DT_REDUCE_SCATTER) {
        const void **in = take_inputs(o);
        for (int r = 0; r < size; r++) {
            in[r] = stage(o, r, o->p->step) + (x->kind == DT_REDUCE_SCATTER ? (size_t)me * bytes : 0);
        }
        sum(o, out, in, n);
    } else if (x->kind == DT_ALL_GATHER) {
        for (int r = 0; r < size; r++) {
            copy(o, (char *)x->out + (size_t)(r * x->count + at) * o->width, stage(o, r, o->p->step), bytes);
        }
    } else if (x->kind == DT_BROADCAST) {
        copy(o, out, stage(o, x->root, o->p->step), bytes);
    }
}

/* Buffers in arenas, used in place. */
static void run_direct(struct op *o, const struct place *in_at, const struct place *out_at)
{
    const struct dt_collective *x = o->x;
    int size = o->c->size, me = o->c->rank;
    size_t bytes = (size_t)x->count * o->width;
    bool in_place = x->in == (const char *)x->out + (size_t)me * bytes;
    arrive(o);
    wait_for_all(o, false);
    if (x->kind == DT_ALL_REDUCE) {
        int64_t each = (x->count + size - 1) / size, first = me * each < x->count ? me * each : x->count;
        int64_t count = x->count - first < each ? x->count - first : each;
        size_t before = (size_t)first * o->width;
        const void **in = take_inputs(o);
        for (int r = 0; r < size; r++) {
            in[r] = reach(o->c, in_at, r) + before;
        }
        sum(o, (char *)x->out + before, in, count);
        for (int i = 1; i < size; i++) {
            int r = (me + i) % size;
            copy(o, reach(o->c, out_at, r) + before, (const char *)x->out + before, (size_t)count * o->width);
        }
    } else if (x->kind == DT_REDUCE_SCATTER) {
        const void **in = take_inputs(o);
        for (int r = 0; r < size; r++) {
            in[r] = reach(o->c, in_at, r) + (size_t)me * bytes;
        }
        sum(o, x->out, in, x->count);
    } else if (x->kind == DT_ALL_GATHER) {
        for (int i = 0; i < size; i++) {
            int r = (me + i) % size;
            const char *from = in_place ? reach(o->c, out_at, r) + (size_t)r * bytes : reach(o->c, in_at, r);
            copy(o, (char *)x->out + (size_t)r * bytes, from, bytes);
        }
    } else if (x->kind == DT_BROADCAST && me != x->root) {
        copy(o, x->out, reach(o->c, x->in == x->out ? out_at : in_at, x->root), bytes);
    } else if (x->kind == DT_BROADCAST) {
        copy(o, x->out, x->in, bytes);
    }
    leave(o);
}

/* ---- do all ranks do the same? ---- */

/* Publishes what this rank is about to do. Compares it with what other ranks have published for the
 * same collective. */
static int publish(struct op *o, int64_t number, const struct place *in_at, const struct place *out_at,
                   struct dt_error *err)
{
    const struct dt_collective *x = o->x;
    struct peer_notice *mine = &o->p->sides[o->c->rank]->notices[number % PEER_RING];
    uint64_t h = shm_mix(shm_mix(shm_mix(1, (uint64_t)number), (uint64_t)x->count),
                         (uint64_t)x->kind << 32 | (uint64_t)x->type << 16 | (uint64_t)x->op);
    h = shm_mix(h, (uint64_t)(x->kind == DT_BROADCAST ? x->root : 0));
    for (const char *c = x->name; *c != '\0'; c++) {
        h = shm_mix(h, (uint64_t)(unsigned char)*c);
    }
    /* arena offsets must agree, except where each rank's buffer is its own slice */
    if (out_at != NULL) {
        size_t own =
            x->kind == DT_ALL_GATHER && x->in == (const char *)x->out + (size_t)o->c->rank * (size_t)x->count * o->width
                ? 1
                : 0;
        h = shm_mix(h, own ? 1 : in_at->offset);
        h = shm_mix(h, x->kind == DT_REDUCE_SCATTER ? 2 : out_at->offset);
    }
    char ours[PEER_TEXT_BYTES] = "", theirs[PEER_TEXT_BYTES];
    uint64_t words[PEER_TEXT_WORDS];
    (void)snprintf(ours, sizeof ours, "%s %.40s of %lld %s", dt_coll_name(x->kind), x->name, (long long)x->count,
                   dt_dtype_name(x->type));
    memcpy(words, ours, sizeof words);
    atomic_store(&mine->number, -1);
    for (int i = 0; i < PEER_TEXT_WORDS; i++) {
        atomic_store(&mine->text[i], words[i]);
    }
    atomic_store(&mine->digest, h);
    atomic_store(&mine->number, number);
    for (int r = 0; r < o->c->size; r++) {
        const struct peer_notice *other = &o->p->sides[r]->notices[number % PEER_RING];
        if (atomic_load(&other->number) != number || atomic_load(&other->digest) == h) {
            continue;
        }
        for (int i = 0; i < PEER_TEXT_WORDS; i++) {
            words[i] = atomic_load(&other->text[i]);
        }
        memcpy(theirs, words, sizeof theirs);
        theirs[sizeof theirs - 1] = '\0';
        if (atomic_load(&other->number) == number) {
            return dt_fail(err, DT_INVALID,
                           "communicator %s: the ranks disagree on collective %lld: rank %d does %s, rank %d does %s%s",
                           o->c->name, (long long)number, shm_shown(o->c, o->c->rank), ours, shm_shown(o->c, r), theirs,
                           strcmp(theirs, ours) == 0 ? " elsewhere in memory" : "");
        }
    }
    return 0;
}

/* ---- the backend's row ---- */

/* A stream that waits for its peers occupies nothing that another stream needs, since no kernel
 * spins. All ranks start the collectives in one order, so the oldest unfinished one waits only for
 * work that each rank has enqueued before it. The order of a sum does not depend on the stream. */
static bool beside(const struct dt_comm *c)
{
    (void)c;
    return true;
}

static int start(struct dt_comm *c, const struct dt_collective *x, int64_t number, struct dt_stream *s,
                 struct dt_error *err)
{
    struct op o = {.c = c, .p = c->state, .x = x, .s = s, .width = dt_dtype_size(x->type)};
    size_t part = x->kind == DT_BARRIER ? 0 : (size_t)x->count * o.width;
    size_t in_bytes = x->kind == DT_REDUCE_SCATTER ? part * (size_t)c->size : part;
    size_t out_bytes = x->kind == DT_ALL_GATHER ? part * (size_t)c->size : part;
    struct place in_at, out_at;
    bool direct = in_bytes > SMALL_BYTES && find(c, x->in, in_bytes, &in_at) && find(c, x->out, out_bytes, &out_at);
    if (publish(&o, number, direct ? &in_at : NULL, direct ? &out_at : NULL, err) != 0) {
        shm_fail(o.p->control, err);
        return -1;
    }
    if (direct) {
        run_direct(&o, &in_at, &out_at);
        return 0;
    }
    int64_t slices = x->kind == DT_REDUCE_SCATTER ? c->size : 1, most = (int64_t)(STAGE_BYTES / o.width) / slices,
            at = 0;
    do {
        int64_t n = x->kind == DT_BARRIER ? 0 : x->count - at < most ? x->count - at : most;
        run_staged(&o, at, n);
        at += most;
    } while (x->kind != DT_BARRIER && at < x->count);
    return 0;
}

/* Without a stream the buffers are host memory, and the control runs the collective. */
static int run(struct dt_comm *c, const struct dt_collective *x, int64_t number, double timeout_s, struct dt_error *err)
{
    (void)number;
    struct dt_comm *control = ((struct peer *)c->state)->control;
    return control->ops->run(control, x, ++control->number, timeout_s, err);
}

/* Ranks that are threads of this process read our memory directly, without a mapping of their own.
 * Wait until their streams have ended before it is freed. */
static void await_threads(struct dt_comm *c)
{
    struct peer *p = c->state;
    double until_s = dt_now_s() + CLOSE_S;
    atomic_store(&p->sides[c->rank]->drained, 1);
    for (int r = 0; r < c->size; r++) {
        while (shm_slot(p->control->state, r)->pid == getpid() && atomic_load(&p->sides[r]->drained) == 0 &&
               dt_now_s() < until_s) {
            dt_sleep_s(DRAINED_S);
        }
    }
}

static void close_peer(struct dt_comm *c)
{
    struct peer *p = c->state;
    if (p == NULL) {
        return;
    }
    struct dt_error err;
    for (int i = 0; i < p->arena_count; i++) {
        drop_imports(c, &p->arenas[i]);
    }
    /* A peer's stream may still read the memory that is freed here. So wait for all ranks first. */
    if (p->opened && !p->releasing && atomic_load(&c->stopped) == 0) {
        (void)p->control->ops->run(p->control,
                                   &(struct dt_collective){.kind = DT_BARRIER, .name = "close", .type = DT_U8},
                                   ++p->control->number, CLOSE_S, &err);
    }
    if (p->opened) {
        await_threads(c);
    }
    peer_look_close(p);
    for (int i = 0; i < p->arena_count; i++) {
        drop_arena(c, &p->arenas[i]);
    }
    if (p->pinned != NULL) {
        dt_device_unpin(c->device, p->pinned);
    }
    for (int i = 0; i < PEER_RING; i++) {
        free(p->in[i]);
    }
    free(p->sides);
    dt_comm_close(p->control);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
    c->state = NULL;
}

const struct dt_comm_ops dt_comm_peer = {"peer",     false, offer,      open_peer, alloc, run,  peer_poll, peer_abort,
                                         close_peer, start, peer_waits, peer_tell, NULL,  NULL, beside,    false};
