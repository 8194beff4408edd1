/* Opening and splitting communicators, and the watch over every collective: numbers, counts, the
 * page, failures. What actually moves and adds bytes is a row of `backends`. */
#include "collectives/comm.h"

#include "base/clock.h"
#include "base/page.h"
#include "base/text.h"
#include "collectives/backends.h"
#include "collectives/store.h"
#include "collectives/tree.h"
#include "collectives/watch.h"
#include "kernels/device.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct dt_comm_ops *const backends[] = {&dt_comm_solo, &dt_comm_shm, &dt_comm_tcp, &dt_comm_peer,
                                                     &dt_comm_nccl};

const char *dt_coll_name(enum dt_coll kind)
{
    switch (kind) {
    case DT_ALL_REDUCE:
        return "all_reduce";
    case DT_REDUCE_SCATTER:
        return "reduce_scatter";
    case DT_ALL_GATHER:
        return "all_gather";
    case DT_BROADCAST:
        return "broadcast";
    case DT_BARRIER:
        return "barrier";
    case DT_COLL_COUNT:
        break;
    }
    return "unknown";
}

const char *dt_reduction_name(enum dt_reduction op)
{
    switch (op) {
    case DT_SUM:
        return "sum";
    case DT_MAX:
        return "max";
    case DT_MIN:
        return "min";
    case DT_REDUCTION_COUNT:
        break;
    }
    return "unknown";
}

static const struct dt_comm_ops *choose(const struct dt_comm_options *o, struct dt_error *err)
{
    const struct dt_comm_ops *ops = NULL;
    bool apart = o->device != NULL && !o->device->host_memory;
    const char *wanted = o->backend != NULL && o->backend[0] != 0 ? o->backend
                         : o->size == 1                           ? "solo"
                         : apart                                  ? (o->host != NULL ? "nccl" : "peer")
                         : o->host != NULL                        ? "tcp"
                                                                  : "shm";
    struct dt_text known;
    dt_text_init(&known);
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        dt_text_printf(&known, " %s", backends[i]->name);
        ops = strcmp(backends[i]->name, wanted) == 0 ? backends[i] : ops;
    }
    if (ops == NULL) {
        (void)dt_fail(err, DT_INVALID, "communicator: backend %s: unknown; there are:%s", wanted, dt_text_str(&known));
    } else if (ops == &dt_comm_solo && o->size != 1) {
        (void)dt_fail(err, DT_INVALID, "communicator: backend solo is for one rank, not for %d", o->size);
        ops = NULL;
    } else if (o->size == 1) {
        ops = &dt_comm_solo;
    } else if (apart && ops->start == NULL) {
        (void)dt_fail(err, DT_INVALID,
                      "communicator: backend %s reaches host memory only, and the device is %s; use peer or nccl",
                      ops->name, o->device->ops->name);
        ops = NULL;
    } else if (ops == &dt_comm_nccl && o->host != NULL) {
        ops = &dt_comm_nccl_hosts;
    }
    dt_text_clear(&known);
    return ops;
}

struct dt_comm *dt_comm_make(const char *name, int rank, int size, const struct dt_comm_ops *ops)
{
    struct dt_comm *c = dt_alloc(sizeof(*c));
    c->rank = rank;
    c->size = size;
    (void)snprintf(c->name, sizeof(c->name), "%s", name);
    c->ops = ops;
    (void)pthread_mutex_init(&c->lock, NULL);
    return c;
}

/* Rank 0, of backends where all offer: everybody's tickets in one table. Each rank has put its
 * own under KEY/RANK. */
static int collect(struct dt_comm *c, const char *key, char *table, struct dt_error *err)
{
    size_t size = (size_t)c->size;
    char(*names)[112] = dt_alloc(size * sizeof(*names));
    const char **keys = dt_alloc(size * sizeof(*keys));
    struct dt_text *values = dt_alloc(size * sizeof(*values));
    for (size_t r = 0; r < size; r++) {
        (void)snprintf(names[r], sizeof(names[r]), "%s/%zu", key, r);
        keys[r] = names[r];
        dt_text_init(&values[r]);
    }
    int rc = dt_store_multi_get(c->store, keys, size, values, c->open_timeout_s, err);
    for (size_t r = 0; r < size; r++) {
        if (rc == 0) {
            (void)snprintf(table + r * DT_COMM_TICKET_BYTES, DT_COMM_TICKET_BYTES, "%s", dt_text_str(&values[r]));
        }
        dt_text_clear(&values[r]);
    }
    free(values);
    free(keys);
    free(names);
    return rc == 0 ? 0 : dt_wrap(err, "waiting for all ranks to open their side");
}

/* Makes what this rank offers and finds what it needs of the others: rank 0's ticket, or the
 * table of all. */
static int exchange(struct dt_comm *c, const char *key, char **tickets, struct dt_error *err)
{
    bool all = c->ops->all_offer;
    size_t bytes = (all ? (size_t)c->size : 1) * DT_COMM_TICKET_BYTES;
    char mine[DT_COMM_TICKET_BYTES] = "", own_key[112];
    *tickets = dt_alloc(bytes);
    if (c->size == 1) {
        return 0;
    }
    if ((all || c->rank == 0) && c->ops->offer(c, mine, err) != 0) {
        return -1;
    }
    if (all) {
        (void)snprintf(own_key, sizeof(own_key), "%s/%d", key, c->rank);
        if (dt_store_set(c->store, own_key, mine, strlen(mine), err) != 0) {
            return -1;
        }
    }
    if (c->rank == 0) {
        (void)snprintf(*tickets, DT_COMM_TICKET_BYTES, "%s", mine);
        if (all && collect(c, key, *tickets, err) != 0) {
            return -1;
        }
        return dt_store_set(c->store, key, *tickets, bytes, err);
    }
    struct dt_text value;
    dt_text_init(&value);
    int rc = dt_store_get(c->store, key, &value, c->open_timeout_s, err);
    if (rc != 0) {
        (void)dt_wrap(err, "waiting for rank 0 to open its side");
    } else if (value.size != bytes || value.data[bytes - 1] != 0) {
        rc = dt_fail(err, DT_INVALID, "the store's %s is no ticket of this communicator", key);
    } else {
        memcpy(*tickets, value.data, bytes);
    }
    dt_text_clear(&value);
    return rc;
}

int dt_comm_open(struct dt_comm **out, const struct dt_comm_options *o, struct dt_error *err)
{
    assert(o->size >= 1 && o->rank >= 0 && o->rank < o->size && err != NULL);
    const struct dt_comm_ops *ops = choose(o, err);
    if (ops == NULL) {
        return -1;
    }
    struct dt_comm *c = dt_comm_make(o->name != NULL ? o->name : "world", o->rank, o->size, ops);
    c->page = o->page;
    c->timeout_s = o->timeout_s > 0 ? o->timeout_s : 600;
    c->open_timeout_s = o->open_timeout_s > 0 ? o->open_timeout_s : 300;
    c->sm_limit = o->sm_limit;
    c->store = o->store;
    c->device = o->device != NULL && !o->device->host_memory ? o->device : NULL;
    (void)snprintf(c->host, sizeof(c->host), "%s", o->host != NULL ? o->host : "");
    char *tickets = NULL, key[96];
    (void)snprintf(key, sizeof(key), "comm/%s/%s/%u", ops->name, c->name, o->page != NULL ? o->page->round : 0);
    int rc = exchange(c, key, &tickets, err) == 0 ? ops->open(c, tickets, err) : -1;
    free(tickets);
    c->store = NULL;
    if (rc == 0 && comm_watch_begin(c, err) == 0) {
        *out = c;
        return 0;
    }
    (void)dt_wrap(err, "communicator %s, rank %d of %d", c->name, c->rank, c->size);
    dt_comm_close(c);
    return -1;
}

/* Runs a collective of our own: numbered like all others, not counted. */
static int run_internal(struct dt_comm *c, const struct dt_collective *x, struct dt_error *err)
{
    return c->ops->run(c, x, ++c->number, c->open_timeout_s, err);
}

int dt_comm_split(struct dt_comm *parent, int color, const char *name, struct dt_comm **out, struct dt_error *err)
{
    struct dt_comm *c = NULL;
    int64_t mine = color < 0 ? -1 : color;
    int64_t *colors = dt_alloc((size_t)parent->size * sizeof(*colors));
    char(*tickets)[DT_COMM_TICKET_BYTES] = dt_alloc((size_t)parent->size * DT_COMM_TICKET_BYTES);
    char ticket[DT_COMM_TICKET_BYTES] = "";
    int rc = run_internal(parent, &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "colors", &mine, colors, 1, DT_I64, 0},
                          err);
    if (rc == 0 && color >= 0) {
        int *members = dt_alloc((size_t)parent->size * sizeof(*members));
        int size = 0, rank = 0;
        for (int r = 0; r < parent->size; r++) {
            if (colors[r] == color) {
                rank = r == parent->rank ? size : rank;
                members[size++] = r;
            }
        }
        c = dt_comm_make(name, rank, size, size == 1 ? &dt_comm_solo : parent->ops);
        c->parent = parent;
        c->members = members;
        c->page = parent->page;
        c->device = parent->device;
        c->timeout_s = parent->timeout_s;
        c->open_timeout_s = parent->open_timeout_s;
        c->sm_limit = parent->sm_limit;
        if (size > 1 && (rank == 0 || c->ops->all_offer) && c->ops->offer(c, ticket, err) != 0) {
            (void)snprintf(ticket, sizeof(ticket), "! %s", err->text);
        }
    }
    /* Whoever could not offer says so; everybody takes part to the end. */
    if (rc == 0) {
        rc = run_internal(
            parent,
            &(struct dt_collective){DT_ALL_GATHER, DT_SUM, "tickets", ticket, tickets, DT_COMM_TICKET_BYTES, DT_U8, 0},
            err);
    }
    if (rc == 0 && parent->ops->split != NULL) {
        rc = parent->ops->split(parent, c != NULL && c->size > 1 ? c : NULL, color, err);
    }
    if (rc == 0 && c != NULL) {
        int offers = c->ops->all_offer ? c->size : 1;
        char *theirs = dt_alloc((size_t)offers * DT_COMM_TICKET_BYTES);
        for (int r = 0; r < offers && rc == 0; r++) {
            memcpy(theirs + (size_t)r * DT_COMM_TICKET_BYTES, tickets[c->members[r]], DT_COMM_TICKET_BYTES - 1);
            rc = tickets[c->members[r]][0] == '!'
                     ? dt_fail(err, DT_IO, "rank %d: %.200s", c->members[r], tickets[c->members[r]] + 2)
                     : 0;
        }
        rc = rc == 0 && c->ops->open(c, theirs, err) == 0 ? comm_watch_begin(c, err) : -1;
        free(theirs);
    }
    free(colors);
    free(tickets);
    if (rc != 0) {
        (void)dt_wrap(err, "group %s of rank %d", name, parent->rank);
        dt_comm_close(c);
        return -1;
    }
    *out = c;
    return 0;
}

int dt_comm_alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err)
{
    return c->ops->alloc(c, size_bytes, out, err) == 0
               ? 0
               : dt_wrap(err, "communicator %s: arena of %zu bytes", c->name, size_bytes);
}

int dt_comm_job_rank(const struct dt_comm *c, int rank)
{
    for (; c->parent != NULL; c = c->parent) {
        rank = c->members[rank];
    }
    return c->shown != NULL ? c->shown[rank] : rank;
}

int dt_comm_stopped(struct dt_comm *c, struct dt_error *err)
{
    int state = atomic_load(&c->stopped);
    if (state == 0) {
        return 0;
    }
    if (state == 1) {
        return dt_fail(err, DT_STOPPED, "communicator %s: aborted", c->name);
    }
    (void)pthread_mutex_lock(&c->lock);
    if (err != NULL) {
        *err = c->error;
    }
    (void)pthread_mutex_unlock(&c->lock);
    return -1;
}

void comm_keep(struct dt_comm *c, const struct dt_error *why)
{
    (void)pthread_mutex_lock(&c->lock);
    if (atomic_load(&c->stopped) != 2) {
        c->error = *why;
        atomic_store(&c->stopped, 2);
    }
    (void)pthread_mutex_unlock(&c->lock);
}

struct call {
    struct dt_comm *c;
    struct dt_collective x;
    int64_t number;
};

static int perform(struct dt_stream *s, void *args, struct dt_error *err)
{
    double begin_s = dt_now_s();
    struct call *call = args;
    struct dt_comm *c = call->c;
    if (dt_comm_stopped(c, err) != 0) {
        return -1;
    }
    if (c->page != NULL) {
        atomic_fetch_add(&c->page->in_collective, 1);
    }
    int rc = c->ops->run(c, &call->x, call->number, c->timeout_s, err);
    if (c->page != NULL) {
        atomic_fetch_sub(&c->page->in_collective, 1);
    }
    if (rc != 0) {
        comm_keep(c, err);
    }
    if (s != NULL) {
        dt_stream_add_wait(s, dt_now_s() - begin_s);
    }
    return rc;
}

static void count(struct dt_comm *c, const struct dt_collective *x)
{
    bool slices = x->kind == DT_REDUCE_SCATTER || x->kind == DT_ALL_GATHER;
    c->stats.count[x->kind]++;
    if (x->kind != DT_BARRIER) {
        c->stats.bytes[x->kind] += x->count * (slices ? c->size : 1) * (int64_t)dt_dtype_size(x->type);
    }
}

/* For the agent's report: what this rank does, and since when. */
static void show(struct dt_comm *c, const struct dt_collective *x)
{
    struct dt_page *page = c->page;
    if (page == NULL) {
        return;
    }
    (void)snprintf(page->collective_name, sizeof(page->collective_name), "%s %s", dt_coll_name(x->kind), x->name);
    atomic_fetch_add(&page->collective_count, 1);
    atomic_store(&page->collective_s, dt_now_s());
}

void dt_comm_start(struct dt_comm *c, const struct dt_collective *x, struct dt_stream *s)
{
    bool reduces = x->kind == DT_ALL_REDUCE || x->kind == DT_REDUCE_SCATTER;
    assert((unsigned)x->kind < DT_COLL_COUNT && (unsigned)x->op < DT_REDUCTION_COUNT);
    assert(x->kind == DT_BARRIER || x->count >= 0);
    assert(x->kind != DT_BROADCAST || (x->root >= 0 && x->root < c->size));
    struct call call = {c, *x, ++c->number};
    if (x->name == NULL) {
        call.x.name = "";
    }
    if (x->kind == DT_BARRIER) {
        call.x.count = 0;
    }
    count(c, &call.x);
    show(c, &call.x);
    struct dt_error err = {0};
    if (reduces && !dt_tree_can(x->type)) {
        (void)dt_fail(&err, DT_INVALID, "%s %s: elements of type %s cannot be reduced", dt_coll_name(x->kind),
                      call.x.name, dt_dtype_name(x->type));
        comm_keep(c, &err);
        c->ops->abort(c);
    }
    if (s == NULL) {
        (void)perform(NULL, &call, &err);
    } else if (c->ops->start != NULL) {
        if (dt_comm_stopped(c, &err) != 0) {
            dt_stream_fail_with(s, &err);
        } else if (c->ops->start(c, &call.x, call.number, s, &err) != 0) {
            comm_keep(c, &err);
            dt_stream_fail_with(s, &err);
        }
    } else {
        dt_stream_call(s, perform, &call, sizeof(call));
    }
}

bool dt_comm_beside(const struct dt_comm *c)
{
    return c->ops->beside != NULL && c->ops->beside(c);
}

int dt_comm_sms(const struct dt_comm *c, enum dt_coll kind)
{
    return c->ops->sms != NULL ? c->ops->sms(c, kind) : 0;
}

int dt_comm_poll(struct dt_comm *c, struct dt_error *err)
{
    if (dt_comm_stopped(c, err) != 0) {
        return -1;
    }
    return c->ops->poll(c, err);
}

void dt_comm_abort(struct dt_comm *c)
{
    int running = 0;
    (void)atomic_compare_exchange_strong(&c->stopped, &running, 1);
    c->ops->abort(c);
}

void dt_comm_close(struct dt_comm *c)
{
    if (c == NULL) {
        return;
    }
    comm_watch_end(c);
    c->ops->close(c);
    (void)pthread_mutex_destroy(&c->lock);
    free(c->members);
    free(c->shown);
    free(c);
}
