/* Ranks with a GPU each, by NCCL. What ranks agree upon and who is lost goes over a communicator
 * of host memory (`control`); NCCL's own communicators are made when all have found the same
 * library, and children of them serve groups. Memory of dt_comm_alloc is NCCL's where the
 * version has that, registered as symmetric windows with the communicator and its groups, at the
 * same offset everywhere.
 *
 * The order of NCCL's sums is its own: with two ranks the bits are those of the canonical tree,
 * with more they are not, and BF16 is rounded at each hop. */
#include "collectives/nccl.h"
#include "collectives/backends.h"
#include "collectives/shm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)4096)
#define CLOSE_S 10.0

/* ---- opening ---- */

static struct nccl *make_state(struct dt_comm *c)
{
    if (c->state != NULL) {
        return c->state;
    }
    struct nccl *n = dt_alloc(sizeof *n);
    c->state = n;
    (void)pthread_mutex_init(&n->lock, NULL);
    (void)pthread_mutex_init(&n->facts_lock, NULL);
    n->control = dt_comm_make(c->name, c->rank, c->size, c->ops == &dt_comm_nccl_hosts ? &dt_comm_tcp : &dt_comm_shm);
    n->control->page = c->page;
    n->control->store = c->store;
    n->control->timeout_s = c->timeout_s;
    n->control->open_timeout_s = c->open_timeout_s;
    n->device = c->device;
    (void)snprintf(n->control->host, sizeof n->control->host, "%s", c->host);
    if (c->parent != NULL) {
        n->control->parent = ((struct nccl *)c->parent->state)->control;
        n->control->members = dt_alloc((size_t)c->size * sizeof(int));
        memcpy(n->control->members, c->members, (size_t)c->size * sizeof(int));
    }
    return n;
}

static int offer(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err)
{
    struct dt_comm *control = make_state(c)->control;
    return control->ops->offer(control, ticket, err);
}

int nccl_hosts_run(struct dt_comm *c, enum dt_coll kind, const char *name, const void *in, void *out, size_t size_bytes,
                   struct dt_error *err)
{
    struct dt_comm *control = ((struct nccl *)c->state)->control;
    const struct dt_collective x = {
        .kind = kind, .name = name, .in = in, .out = out, .count = (int64_t)size_bytes, .type = DT_U8};
    return control->ops->run(control, &x, ++control->number, c->open_timeout_s, err);
}

static struct nccl_config make_config(const struct dt_comm *c, int policy)
{
    const struct nccl *n = c->state;
    struct nccl_config config = NCCL_CONFIG;
    config.blocking = 0;
    config.name = n->control->name; /* NCCL keeps the pointer */
    if (c->sm_limit > 0 && dt_nccl_has_limits(n->lib)) {
        config.least_ctas = 1;
        config.most_ctas = c->sm_limit;
    }
    if (policy != 0 && dt_nccl_has_policies(n->lib)) {
        config.cta_policy = policy;
    }
    return config;
}

struct id_offer {
    int32_t result;
    struct nccl_id id;
};

/* By an id that rank 0 makes and the hosts pass on. */
static int init(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state;
    struct id_offer x;
    memset(&x, 0, sizeof x);
    dt_device_use(c->device);
    x.result = c->rank == 0 ? n->lib->get_id(&x.id) : 0;
    if (nccl_hosts_run(c, DT_BROADCAST, "NCCL's id", &x, &x, sizeof x, err) != 0) {
        return -1;
    }
    if (x.result != NCCL_SUCCESS) {
        return dt_fail(err, DT_IO, "rank %d: NCCL %s: ncclGetUniqueId: %s", shm_shown(c, 0), n->lib->number,
                       n->lib->error_string(x.result));
    }
    struct nccl_config config = make_config(c, NCCL_CTA_EFFICIENCY);
    return nccl_settle(c, NCCL_MAIN, n->lib->init(&n->handles[NCCL_MAIN], c->size, x.id, c->rank, &config),
                       c->open_timeout_s, "ncclCommInitRankConfig", err);
}

/* A child of `of`'s communicator, for `out` (null: this rank is in none). All ranks of `of` call
 * it alike. */
static int split_off(struct dt_comm *of, struct dt_comm *out, enum nccl_which which, int color, int policy,
                     struct dt_error *err)
{
    struct nccl *n = of->state;
    struct nccl_config config = make_config(out != NULL ? out : of, policy);
    struct nccl *to = out != NULL ? out->state : NULL;
    if (to != NULL) {
        to->splitting = to != n;
    }
    (void)pthread_mutex_lock(&n->lock);
    int rc = n->dead ? NCCL_INVALID_USAGE
                     : n->lib->split(n->handles[NCCL_MAIN], to != NULL ? color : NCCL_NO_COLOR, of->rank,
                                     to != NULL ? &to->handles[which] : &n->none, &config);
    (void)pthread_mutex_unlock(&n->lock);
    if (nccl_settle(of, NCCL_MAIN, rc, of->open_timeout_s, "ncclCommSplit", err) != 0) {
        return -1;
    }
    if (to != NULL) {
        to->splitting = false;
    }
    return to != NULL ? nccl_settle(out, which, NCCL_SUCCESS, of->open_timeout_s, "ncclCommSplit", err) : 0;
}

/* Without ncclCommSplit a group's communicator is made as the world's, when it is opened. */
static int split(struct dt_comm *parent, struct dt_comm *group, int color, struct dt_error *err)
{
    const struct nccl *n = parent->state;
    if ((n->features & DT_NCCL_SPLIT) == 0) {
        return 0;
    }
    if (group != NULL) {
        make_state(group)->lib = n->lib;
    }
    return split_off(parent, group, NCCL_MAIN, color, NCCL_CTA_EFFICIENCY, err);
}

static int register_arena(struct dt_comm *c, const struct nccl_arena *a, struct dt_error *err);

/* The arenas that were there before this group. */
static int join_parent(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state, *above = c->parent->state;
    struct dt_comm **last = &above->groups;
    while (*last != NULL) {
        last = &((struct nccl *)(*last)->state)->next_group;
    }
    *last = c;
    n->joined = true;
    for (int i = 0; i < above->arena_count; i++) {
        if (register_arena(c, &above->arenas[i], err) != 0) {
            return -1;
        }
    }
    return 0;
}

static void leave_parent(struct dt_comm *c)
{
    struct nccl *n = c->state, *above = c->parent->state;
    for (struct dt_comm **at = &above->groups; *at != NULL; at = &((struct nccl *)(*at)->state)->next_group) {
        if (*at == c) {
            *at = n->next_group;
            return;
        }
    }
}

static bool on_one_host(const struct nccl *n, const struct dt_comm *c)
{
    return n->side_count == c->size;
}

static int open_nccl(struct dt_comm *c, const char *ticket, struct dt_error *err)
{
    struct nccl *n = make_state(c);
    struct dt_device_place place;
    if (c->device == NULL) {
        return dt_fail(err, DT_INVALID, "backend nccl needs a device whose memory is not the host's");
    }
    if (dt_device_place(c->device->ops->name, c->device->options.index, &place)) {
        memcpy(n->device_name, place.name, sizeof n->device_name);
    }
    if (n->control->ops->open(n->control, ticket, err) != 0) {
        return -1;
    }
    n->control->store = NULL;
    n->control_open = true;
    if (nccl_agree(c, err) != 0 || nccl_watch_open(c, err) != 0 ||
        dt_device_alloc(c->device, DT_MEMORY_DEVICE, 64, &n->scratch, err) != 0 ||
        (n->handles[NCCL_MAIN] == NULL && init(c, err) != 0)) {
        return nccl_give_up(c, err);
    }
    if ((n->features & DT_NCCL_ZERO_CTAS) != 0 && on_one_host(n, c) &&
        split_off(c, c, NCCL_GATHER, 0, NCCL_CTA_ZERO, err) != 0) {
        return nccl_give_up(c, err);
    }
    if (c->parent != NULL && join_parent(c, err) != 0) {
        return nccl_give_up(c, err);
    }
    if (c->rank == 0 && c->parent == NULL) {
        dt_log(DT_LOG_INFO, "comm", "%s: %d ranks by NCCL %s (%s)%s%s", c->name, c->size, n->lib->number, n->lib->path,
               (n->features & DT_NCCL_WINDOWS) != 0 ? ", symmetric windows" : "",
               n->handles[NCCL_GATHER] != NULL ? ", gathers without multiprocessors" : "");
    }
    n->opened = true;
    return 0;
}

/* ---- memory ---- */

static int clear(struct dt_comm *c, void *p, size_t size_bytes, struct dt_error *err)
{
    struct dt_stream *s = NULL;
    if (dt_stream_open(c->device, 0, &s, err) != 0) {
        return -1;
    }
    c->device->kernels->fill(
        s, &(struct dt_fill_args){.x = p, .count = (int64_t)(size_bytes / sizeof(float)), .value = 0, .type = DT_F32});
    int rc = dt_stream_finish(s, c->open_timeout_s, err);
    dt_stream_close(s);
    return rc;
}

static void free_arena(struct dt_comm *c, struct nccl_arena *a)
{
    const struct nccl *n = c->state;
    if (a->of_nccl) {
        dt_device_use(c->device);
        (void)n->lib->mem_free(a->base);
    } else if (a->base != NULL) {
        dt_device_free(c->device, DT_MEMORY_DEVICE, a->base, a->size_bytes);
    }
    *a = (struct nccl_arena){0};
}

static int make_arena(struct dt_comm *c, struct nccl_arena *a, struct dt_error *err)
{
    struct nccl *n = c->state;
    if ((n->features & DT_NCCL_WINDOWS) == 0) {
        return dt_device_alloc(c->device, DT_MEMORY_DEVICE, a->size_bytes, &a->base, err);
    }
    dt_device_use(c->device);
    int rc = n->lib->mem_alloc(&a->base, a->size_bytes);
    if (rc != NCCL_SUCCESS) {
        size_t left = 0, total = 0;
        bool known = dt_device_memory(c->device, &left, &total);
        a->base = NULL;
        return dt_fail(err, known && left < a->size_bytes ? DT_NO_MEMORY : DT_IO,
                       "NCCL %s: ncclMemAlloc of %zu bytes: %s (%zu of %zu bytes are free)", n->lib->number,
                       a->size_bytes, n->lib->error_string(rc), left, total);
    }
    a->of_nccl = true;
    return clear(c, a->base, a->size_bytes, err);
}

/* With each of c's handles. Without a window NCCL copies through buffers of its own, so a
 * refusal costs time only. */
static int register_arena(struct dt_comm *c, const struct nccl_arena *a, struct dt_error *err)
{
    struct nccl *n = c->state;
    for (int i = 0; a->of_nccl && i < NCCL_HANDLES; i++) {
        size_t at = 0;
        while (at < sizeof n->windows / sizeof n->windows[0] && n->windows[at][0] != NULL) {
            at++;
        }
        if (n->handles[i] == NULL || at == sizeof n->windows / sizeof n->windows[0]) {
            continue;
        }
        nccl_window *w = &n->windows[at][1]; /* not on the stack: NCCL may set it after we have
                                              * given up */
        *w = NULL;
        (void)pthread_mutex_lock(&n->lock);
        int rc = n->dead ? NCCL_IN_PROGRESS : n->lib->window(n->handles[i], a->base, a->size_bytes, w, NCCL_SYMMETRIC);
        (void)pthread_mutex_unlock(&n->lock);
        if (rc == NCCL_INVALID_ARGUMENT || rc == NCCL_INVALID_USAGE) {
            dt_log(DT_LOG_WARN, "comm",
                   "communicator %s: NCCL %s takes no window of %zu bytes: %s; its collectives copy", c->name,
                   n->lib->number, a->size_bytes, n->lib->error_string(rc));
            continue;
        }
        if (nccl_settle(c, (enum nccl_which)i, rc, c->open_timeout_s, "ncclCommWindowRegister", err) != 0) {
            return -1;
        }
        if (*w != NULL) { /* null: this device or these ranks have none, and that is all */
            n->windows[at][0] = n->handles[i];
        }
    }
    return 0;
}

struct arena_fact {
    int64_t size_bytes; /* negative: this rank has none, and the text says why */
    int32_t status;
    char why[260];
};

static int alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err)
{
    struct nccl *n = c->state;
    if (n->arena_count == NCCL_ARENAS_MAX) {
        return dt_fail(err, DT_INVALID, "more than %d arenas", NCCL_ARENAS_MAX);
    }
    struct nccl_arena *a = &n->arenas[n->arena_count];
    struct arena_fact mine, *all = dt_alloc((size_t)c->size * sizeof *all);
    struct dt_error why = {0};
    memset(&mine, 0, sizeof mine);
    mine.size_bytes = (int64_t)size_bytes;
    *a = (struct nccl_arena){.size_bytes = (size_bytes + PAGE - (size_bytes > 0)) / PAGE * PAGE};
    if (make_arena(c, a, &why) != 0) {
        mine.size_bytes = -1;
        mine.status = (int32_t)why.status;
        (void)snprintf(mine.why, sizeof mine.why, "%s", why.text);
    }
    int rc = nccl_hosts_run(c, DT_ALL_GATHER, "arena", &mine, all, sizeof mine, err);
    for (int r = 0; r < c->size && rc == 0; r++) {
        if (all[r].size_bytes < 0) {
            rc = dt_fail(err, dt_status_of(all[r].status), "rank %d: %.*s", shm_shown(c, r), (int)sizeof all[r].why,
                         all[r].why);
            nccl_heard(c, r, err);
        } else if (all[r].size_bytes != (int64_t)size_bytes) {
            rc = dt_fail(err, DT_INVALID, "the ranks ask for different sizes: rank %d for %zu bytes, rank %d for %lld",
                         shm_shown(c, c->rank), size_bytes, shm_shown(c, r), (long long)all[r].size_bytes);
        }
    }
    free(all);
    n->arena_count++; /* from now on it is freed in close, when NCCL has ended: it may be
                       * registering it still when this fails */
    rc = rc == 0 ? register_arena(c, a, err) : rc;
    for (struct dt_comm *g = n->groups; g != NULL && rc == 0; g = ((struct nccl *)g->state)->next_group) {
        rc = register_arena(g, a, err);
    }
    if (rc != 0) {
        return nccl_give_up(c, err);
    }
    *out = a->base;
    return 0;
}

/* ---- the collectives ---- */

/* How many of its elements NCCL sees for one of ours: what it does not know is only moved, never
 * added. */
static size_t factor_of(enum dt_dtype type)
{
    return type == DT_U16 ? 2 : 1;
}

static int type_of(enum dt_dtype type)
{
    switch (type) {
    case DT_F32:
        return NCCL_F32;
    case DT_F64:
        return NCCL_F64;
    case DT_BF16:
        return NCCL_BF16;
    case DT_F16:
        return NCCL_F16;
    case DT_I64:
        return NCCL_I64;
    case DT_I32:
        return NCCL_I32;
    case DT_U16:
        return NCCL_U8;
    case DT_U8:
        return NCCL_U8;
    case DT_DTYPE_COUNT:
        break;
    }
    return NCCL_U8;
}

static int op_of(enum dt_reduction op)
{
    switch (op) {
    case DT_SUM:
        return NCCL_SUM;
    case DT_MAX:
        return NCCL_MAX;
    case DT_MIN:
        return NCCL_MIN;
    case DT_REDUCTION_COUNT:
        break;
    }
    return NCCL_SUM;
}

static int enqueue(struct dt_comm *c, const struct dt_collective *x, void *stream, enum nccl_which *which)
{
    struct nccl *n = c->state;
    size_t factor = factor_of(x->type), count = (size_t)x->count;
    int type = type_of(x->type), op = op_of(x->op);
    *which = x->kind == DT_ALL_GATHER && n->handles[NCCL_GATHER] != NULL ? NCCL_GATHER : NCCL_MAIN;
    nccl_comm handle = n->handles[*which];
    switch (x->kind) {
    case DT_ALL_REDUCE:
        return n->lib->all_reduce(x->in, x->out, count, type, op, handle, stream);
    case DT_REDUCE_SCATTER:
        return n->lib->reduce_scatter(x->in, x->out, count, type, op, handle, stream);
    case DT_ALL_GATHER:
        return n->lib->all_gather(x->in, x->out, count * factor, type, handle, stream);
    case DT_BROADCAST:
        return n->lib->broadcast(x->root == c->rank ? x->in : x->out, x->out, count * factor, type, x->root, handle,
                                 stream);
    default: /* a barrier: nobody is through before all have come */
        return n->lib->all_reduce(n->scratch, n->scratch, 1, NCCL_I32, NCCL_SUM, handle, stream);
    }
}

static const char *function_of(enum dt_coll kind)
{
    switch (kind) {
    case DT_ALL_REDUCE:
        return "ncclAllReduce";
    case DT_REDUCE_SCATTER:
        return "ncclReduceScatter";
    case DT_ALL_GATHER:
        return "ncclAllGather";
    case DT_BROADCAST:
        return "ncclBroadcast";
    case DT_BARRIER:
        return "ncclAllReduce";
    case DT_COLL_COUNT:
        break;
    }
    return "unknown";
}

static int start(struct dt_comm *c, const struct dt_collective *x, int64_t number, struct dt_stream *s,
                 struct dt_error *err)
{
    struct nccl *n = c->state;
    (void)number;
    if (nccl_first(n, err) != 0) {
        return -1;
    }
    if (++n->step == 0) { /* wraps around; 0 is nobody's */
        n->step = 1;
    }
    if (nccl_say(c, x, err) != 0) {
        return nccl_give_up(c, err);
    }
    nccl_mark(c, s, false);
    if (x->kind == DT_BARRIER || x->count > 0) {
        enum nccl_which which = NCCL_MAIN;
        int rc;
        void *stream = dt_stream_native(s);
        dt_device_use(c->device);
        (void)pthread_mutex_lock(&n->lock);
        rc = n->dead ? NCCL_INVALID_USAGE : enqueue(c, x, stream, &which);
        (void)pthread_mutex_unlock(&n->lock);
        /* Until it is no longer in progress it is not in the stream, and nothing may be put
         * behind it. */
        if (nccl_settle(c, which, rc, c->timeout_s, function_of(x->kind), err) != 0) {
            (void)nccl_await_rest(c); /* NCCL's thread may be about to put it there yet, and
                                       * whoever hears of the failure may close the stream */
            return -1;
        }
    }
    nccl_mark(c, s, true);
    return 0;
}

/* Without a stream: host memory, and the hosts' communicator. */
static int run(struct dt_comm *c, const struct dt_collective *x, int64_t number, double timeout_s, struct dt_error *err)
{
    (void)number;
    struct dt_comm *control = ((struct nccl *)c->state)->control;
    return control->ops->run(control, x, ++control->number, timeout_s, err);
}

static int poll_nccl(struct dt_comm *c, struct dt_error *err)
{
    struct nccl *n = c->state;
    if (nccl_first(n, err) != 0) {
        return -1;
    }
    return n->control->ops->poll(n->control, err) == 0 && nccl_look(c, err) == 0 && nccl_check_clock(c, err) == 0
               ? 0
               : nccl_give_up(c, err);
}

static void tell(struct dt_comm *c, const struct dt_error *why)
{
    struct dt_comm *control = ((struct nccl *)c->state)->control;
    control->ops->tell(control, why);
}

/* A CTA of NCCL's takes one multiprocessor at most; where nothing bounds them it is not known
 * how many there are. */
static int sms(const struct dt_comm *c, enum dt_coll kind)
{
    const struct nccl *n = c->state;
    bool copied = kind == DT_ALL_GATHER && (n->features & DT_NCCL_ZERO_CTAS) != 0 && on_one_host(n, c);
    return copied || !dt_nccl_has_limits(n->lib) ? 0 : c->sm_limit;
}

/* Not where nothing orders what the communicators have on the device: nccl_load.c. Gathers by
 * copy engines need no room there, and go by the same rule. */
static bool beside(const struct dt_comm *c)
{
    return (((const struct nccl *)c->state)->features & DT_NCCL_BESIDE) != 0;
}

static void abort_nccl(struct dt_comm *c)
{
    struct nccl *n = c->state;
    n->control->ops->abort(n->control);
    nccl_stop(c);
}

/* Of a half-open one, too. */
static void close_nccl(struct dt_comm *c)
{
    struct nccl *n = c->state;
    if (n == NULL) {
        return;
    }
    struct dt_error err;
    if (n->joined) {
        leave_parent(c);
    }
    /* a peer's collective may still read what is freed here */
    if (n->opened && !atomic_load(&n->stopping) && atomic_load(&c->stopped) == 0) {
        (void)n->control->ops->run(n->control,
                                   &(struct dt_collective){.kind = DT_BARRIER, .name = "close", .type = DT_U8},
                                   ++n->control->number, CLOSE_S, &err);
    }
    for (size_t i = 0; i < sizeof n->windows / sizeof n->windows[0] && !atomic_load(&n->stopping); i++) {
        if (n->windows[i][0] != NULL) {
            (void)n->lib->window_end(n->windows[i][0], n->windows[i][1]);
        }
    }
    bool gone = n->lib == NULL || nccl_end(c);
    if (!gone && c->parent != NULL) {
        ((struct nccl *)c->parent->state)->left = true;
    }
    if (!gone || n->left) { /* NCCL may still write anywhere here */
        c->state = NULL;
        return;
    }
    for (int i = 0; i < n->arena_count; i++) {
        free_arena(c, &n->arenas[i]);
    }
    dt_device_free(c->device, DT_MEMORY_DEVICE, n->scratch, 64);
    nccl_watch_close(c);
    dt_comm_close(n->control);
    (void)pthread_mutex_destroy(&n->lock);
    (void)pthread_mutex_destroy(&n->facts_lock);
    free(n);
    c->state = NULL;
}

#define OPS                                                                                                            \
    .name = "nccl", .offer = offer, .open = open_nccl, .alloc = alloc, .run = run, .poll = poll_nccl,                  \
    .abort = abort_nccl, .close = close_nccl, .start = start, .waits = nccl_waits, .tell = tell, .split = split,       \
    .sms = sms, .beside = beside, .connects_late = true
const struct dt_comm_ops dt_comm_nccl = {OPS};
const struct dt_comm_ops dt_comm_nccl_hosts = {OPS, .all_offer = true};
