/* Ranks of several hosts. Ranks of one host form an inner communicator (shm), whose leader
 * speaks with the leaders of the other hosts (tcp_pass.c):
 *
 *   one rank per host    its buffers go out and come in as they are
 *   several              everybody copies its input to its stage | step | sums its slice of the host's nodes | step |
 *                        the leader exchanges | step | everybody copies its output;   by passes that fit the stage
 *
 * The sums of nodes combine to what dt_tree_reduce gives over all ranks, so that the layout does
 * not show in the bits. A communicator that lies on one host leaves everything to the inner one. */
#include "collectives/tcp.h"

#include "base/clock.h"
#include "base/text.h"
#include "collectives/backends.h"
#include "collectives/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* the leader gives up later than ranks that wait for a neighbour, who can name it */
#define LEADER_MORE_S 0.5

/* Where the inner ticket travels: with a group's ticket; through the store otherwise. */
static struct tcp *parent_of(const struct dt_comm *c)
{
    return c->parent != NULL ? c->parent->state : NULL;
}

static const char *key_of(const struct dt_comm *c)
{
    const struct tcp *above = parent_of(c);
    return above != NULL ? above->hosts[above->host_of[c->members[c->rank]]].key : c->host[0] != 0 ? c->host : "0";
}

static void make_inner(struct dt_comm *c, const int *ranks, int count, int own)
{
    struct tcp *t = c->state, *above = parent_of(c);
    t->inner = dt_comm_make(c->name, own, count, count == 1 ? &dt_comm_solo : &dt_comm_shm);
    struct dt_comm *inner = t->inner;
    inner->page = c->page;
    inner->timeout_s = c->timeout_s;
    inner->open_timeout_s = c->open_timeout_s;
    inner->shown = dt_alloc((size_t)count * sizeof(int));
    memcpy(inner->shown, ranks, (size_t)count * sizeof(int));
    if (above != NULL && count > 1) { /* its arenas serve this one */
        inner->parent = above->inner;
        inner->members = dt_alloc((size_t)count * sizeof(int));
        for (int i = 0; i < count; i++) {
            inner->members[i] = above->local_of[c->members[ranks[i]]];
        }
    }
}

/* tcp1 KEY ADDRESS PORT NONCE [ticket of the inner communicator] */
static int offer(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err)
{
    struct tcp *t = dt_alloc(sizeof(*t)), *above = parent_of(c);
    char address[64] = "-";
    int port = 0;
    c->state = t;
    t->listener.fd = -1;
    int *ranks = dt_alloc((size_t)c->size * sizeof(*ranks)), count = 0, own = 0, rc = 0;
    for (int r = 0; above != NULL && r < c->size; r++) {
        if (above->host_of[c->members[r]] == above->host_of[c->members[c->rank]]) {
            own = r == c->rank ? count : own;
            ranks[count++] = r;
        }
    }
    char inside[DT_COMM_TICKET_BYTES] = "";
    if (above != NULL) {
        make_inner(c, ranks, count, own);
        rc = own == 0 && count > 1 ? t->inner->ops->offer(t->inner, inside, err) : 0;
    }
    if (rc == 0 && own == 0 && count < c->size) {
        rc = tcp_listen(c, address, &port, err);
    }
    free(ranks);
    uint64_t nonce = 0;
    if (rc == 0 && getrandom(&nonce, sizeof(nonce), 0) != (ssize_t)sizeof(nonce)) {
        rc = dt_fail_errno(err, "random bytes for a nonce");
    }
    if (rc == 0 &&
        (size_t)snprintf(ticket, DT_COMM_TICKET_BYTES, "tcp1 %s %s %d %llx %s", above != NULL ? "-" : key_of(c),
                         address, port, (unsigned long long)nonce, inside) >= DT_COMM_TICKET_BYTES) {
        rc = dt_fail(err, DT_INVALID, "host %s at %s: too long for a ticket", key_of(c), address);
    }
    return rc;
}

/* The parts of a ticket, which anybody may have written. */
struct ticket {
    char key[64], address[64];
    int port;
    uint64_t nonce;
    const char *inside; /* the rest: the ticket of the inner communicator */
};

static bool read_ticket(struct ticket *out, const char *text)
{
    unsigned long long nonce = 0;
    int used = 0;
    if (sscanf(text, "tcp1 %63s %63s %5d %16llx %n", out->key, out->address, &out->port, &nonce, &used) != 4 ||
        used == 0 || out->port < 0 || out->port > 65535) {
        return false;
    }
    out->nonce = nonce;
    out->inside = text + used;
    return true;
}

/* Learns from everybody's tickets which ranks lie where. */
static int read_tickets(struct dt_comm *c, const char *tickets, const char **inside, struct dt_error *err)
{
    struct tcp *t = c->state, *above = parent_of(c);
    size_t size = (size_t)c->size;
    t->host_of = dt_alloc(size * sizeof(int));
    t->local_of = dt_alloc(size * sizeof(int));
    t->hosts = dt_alloc(size * sizeof(*t->hosts));
    for (int r = 0; r < c->size; r++) {
        const char *ticket = tickets + (size_t)r * DT_COMM_TICKET_BYTES;
        struct ticket x;
        int j = 0;
        if (memchr(ticket, '\0', DT_COMM_TICKET_BYTES) == NULL || !read_ticket(&x, ticket)) {
            return dt_fail(err, DT_INVALID, "\"%.80s\" of rank %d does not say where it is", ticket, r);
        }
        if (above != NULL) {
            (void)snprintf(x.key, sizeof(x.key), "%s", above->hosts[above->host_of[c->members[r]]].key);
        }
        t->nonce = r == 0 ? x.nonce : t->nonce;
        while (j < t->host_count && strcmp(t->hosts[j].key, x.key) != 0) {
            j++;
        }
        struct tcp_host *h = &t->hosts[j];
        if (j == t->host_count) {
            t->host_count++;
            h->data = h->control = -1;
            h->port = x.port;
            h->ranks = dt_alloc(size * sizeof(int));
            (void)snprintf(h->key, sizeof(h->key), "%s", x.key);
            (void)snprintf(h->address, sizeof(h->address), "%s", x.address);
        }
        t->host_of[r] = j;
        t->local_of[r] = h->rank_count;
        h->ranks[h->rank_count++] = r;
    }
    for (int j = 0; j < t->host_count; j++) {
        t->staged = t->staged || t->hosts[j].rank_count > 1;
    }
    t->here = t->host_of[c->rank];
    t->leader = t->hosts[t->here].ranks[0] == c->rank;
    if (above != NULL) {
        struct ticket first;
        /* it was read above */
        (void)read_ticket(&first, tickets + (size_t)t->hosts[t->here].ranks[0] * DT_COMM_TICKET_BYTES);
        *inside = first.inside;
    }
    return 0;
}

/* The nodes that each host holds. */
static void list_parts(struct dt_comm *c)
{
    struct tcp *t = c->state;
    struct dt_tree_part some[DT_TREE_PARTS_MAX];
    t->nodes = dt_alloc((size_t)c->size * sizeof(*t->nodes));
    t->parts = dt_alloc((size_t)c->size * sizeof(*t->parts));
    t->merge_in = dt_alloc((size_t)c->size * sizeof(*t->merge_in));
    t->sums = dt_alloc((size_t)c->size * sizeof(*t->sums));
    for (int first = 0, end; first < c->size; first = end) {
        int j = t->host_of[first];
        for (end = first + 1; end < c->size && t->host_of[end] == j; end++) {
        }
        int n = dt_tree_parts(c->size, first, end - first, some);
        for (int i = 0; i < n; i++) {
            t->nodes[t->part_count] = some[i];
            t->parts[t->part_count++] = (struct tcp_part){j, t->hosts[j].part_count++};
        }
    }
}

/* The world's ranks of one host find their leader's segment through the store. */
static int open_inner(struct dt_comm *c, const char *inside, struct dt_error *err)
{
    struct tcp *t = c->state;
    const struct tcp_host *h = &t->hosts[t->here];
    struct dt_comm *inner = t->inner;
    char ticket[DT_COMM_TICKET_BYTES] = "", key[160];
    if (inner != NULL || h->rank_count == 1) {
        if (inner == NULL) {
            make_inner(c, h->ranks, 1, 0);
        }
        return t->inner->ops->open(t->inner, inside, err);
    }
    make_inner(c, h->ranks, h->rank_count, t->local_of[c->rank]);
    inner = t->inner;
    (void)snprintf(key, sizeof(key), "comm/tcp/%s/%u/host/%s", c->name, c->page != NULL ? c->page->round : 0, h->key);
    if (t->leader) {
        if (inner->ops->offer(inner, ticket, err) != 0 ||
            dt_store_set(c->store, key, ticket, strlen(ticket), err) != 0) {
            return -1;
        }
    } else {
        struct dt_text value;
        dt_text_init(&value);
        int rc = dt_store_get(c->store, key, &value, c->open_timeout_s, err);
        (void)snprintf(ticket, sizeof(ticket), "%s", dt_text_str(&value));
        dt_text_clear(&value);
        if (rc != 0) {
            return dt_wrap(err, "waiting for rank %d of this host", h->ranks[0]);
        }
    }
    return inner->ops->open(inner, ticket, err);
}

/* Stage of each rank, and the leader's area: sums of nodes, then the result. */
static int alloc_stage(struct dt_comm *c, struct dt_error *err)
{
    struct tcp *t = c->state;
    void *own = NULL, *common = NULL;
    size_t parts = (size_t)t->hosts[t->here].part_count;
    if (t->inner->ops->alloc(t->inner, TCP_STAGE_BYTES, &own, err) != 0 ||
        t->inner->ops->alloc(t->inner, (parts * 2 + 1) * TCP_STAGE_BYTES, &common, err) != 0) {
        return -1;
    }
    const struct shm *s = t->inner->state;
    t->stage = own;
    t->stage_stride = s->arenas[s->arena_count - 2].stride;
    t->common = (char *)common - (size_t)t->inner->rank * s->arenas[s->arena_count - 1].stride;
    return 0;
}

static int open_hosts(struct dt_comm *c, struct dt_error *err)
{
    struct tcp *t = c->state;
    int rc = 0;
    if (t->leader) {
        rc = tcp_connect_all(c, err);
        /* With ranks beside this one as they do; a leader that is alone on its host has a core. */
        t->spin_s = t->spin_now_s = t->inner->size > 1 ? ((struct shm *)t->inner->state)->spin_s : TCP_SPIN_S;
        t->polls = dt_alloc((size_t)t->host_count * 16);
        for (int j = 0; j < t->host_count; j++) {
            if (j != t->here) {
                t->hosts[j].ring = malloc((size_t)t->hosts[j].part_count * TCP_RING * TCP_BLOCK_BYTES);
                rc = rc == 0 && t->hosts[j].ring == NULL
                         ? dt_fail(err, DT_NO_MEMORY, "no memory for what host %s sends", t->hosts[j].key)
                         : rc;
            }
        }
    }
    if (rc == 0 && t->inner->size > 1) {
        rc = alloc_stage(c, err);
        struct shm_call call = {"opening", c->name, 0, c->open_timeout_s + 2 * LEADER_MORE_S};
        rc = rc == 0 ? shm_step(t->inner, &call, err) : rc;
    }
    return rc;
}

static int open_tcp(struct dt_comm *c, const char *tickets, struct dt_error *err)
{
    struct tcp *t = c->state;
    const char *inside = "";
    int rc = read_tickets(c, tickets, &inside, err);
    if (rc == 0) {
        list_parts(c);
        rc = open_inner(c, inside, err);
    }
    if (rc == 0 && t->host_count > 1) {
        rc = open_hosts(c, err);
    }
    dt_net_close(&t->listener);
    if (rc != 0) {
        tcp_tell(c, err);
        return -1;
    }
    t->open = true;
    return 0;
}

/* Elements of each slot (of the whole) in one pass; alike on all hosts. */
static int64_t pass_count(const struct dt_comm *c, const struct dt_collective *x)
{
    const struct tcp *t = c->state;
    int64_t slots = x->kind == DT_REDUCE_SCATTER || x->kind == DT_ALL_GATHER ? c->size : 1;
    return t->staged ? (int64_t)(TCP_STAGE_BYTES / dt_dtype_size(x->type)) / slots : INT64_MAX;
}

/* The one rank of its host. */
static int run_alone(struct dt_comm *c, const struct dt_collective *x, struct tcp_pass *p, struct dt_error *err)
{
    size_t width = dt_dtype_size(x->type), part = x->kind == DT_BARRIER ? 0 : (size_t)x->count * width;
    int64_t count = x->kind == DT_BARRIER ? 0 : x->count, most = pass_count(c, x);
    /* of slots that are not ours */
    uintptr_t before = x->kind == DT_REDUCE_SCATTER ? (uintptr_t)c->rank * part : 0;
    if (x->kind == DT_ALL_GATHER && part > 0 && (char *)x->out + (size_t)c->rank * part != x->in) {
        memcpy((char *)x->out + (size_t)c->rank * part, x->in, part);
    } else if (x->kind == DT_BROADCAST && part > 0 && x->root == c->rank && x->in != x->out) {
        memcpy(x->out, x->in, part);
    }
    int64_t at = 0;
    p->stride = count;
    do {
        uintptr_t shift = (uintptr_t)at * width;
        const char *sums[1] = {(const char *)((uintptr_t)x->in + shift)};
        p->n = count - at < most ? count - at : most;
        p->with_head = at == 0;
        p->sums = sums;
        p->result = (char *)((uintptr_t)x->out - before + shift);
        p->failed = tcp_exchange(c, p, err) != 0;
        if (p->failed) {
            return -1;
        }
        at += p->n;
    } while (at < count);
    return 0;
}

/* Elements at .. at + n of each slot (of the whole) on their way through the stage. */
struct staged {
    struct dt_comm *c;
    struct tcp *t;
    const struct dt_collective *x;
    size_t width;
    int64_t at, n, total; /* total: elements of the pass, slots together */
    const char **sums;    /* the communicator's */
    char *result;
};

static char *stage_of(const struct staged *s, int local)
{
    return s->t->stage + (local - s->t->inner->rank) * (int64_t)s->t->stage_stride;
}

static void copy_in(struct staged *s)
{
    const struct dt_collective *x = s->x;
    int slots = x->kind == DT_REDUCE_SCATTER ? s->c->size : 1;
    size_t bytes = (size_t)s->n * s->width;
    if (bytes == 0 || (x->kind == DT_BROADCAST && x->root != s->c->rank)) {
        return;
    }
    for (int i = 0; i < slots; i++) {
        memcpy(s->t->stage + (size_t)i * bytes, (const char *)x->in + (size_t)(i * x->count + s->at) * s->width, bytes);
    }
}

/* This rank's slice of elements first .. first + count of the sums of all nodes of this host. */
static void sum_nodes(struct staged *s, int64_t first, int64_t count)
{
    struct tcp *t = s->t;
    const void **in = ((struct shm *)t->inner->state)->in;
    for (int k = 0; k < t->part_count && count > 0; k++) {
        const struct dt_tree_part *node = &t->nodes[k];
        if (t->parts[k].host != t->here || node->count == 1) {
            continue;
        }
        for (int i = 0; i < node->count; i++) {
            in[i] = stage_of(s, t->local_of[node->first + i]) + (size_t)first * s->width;
        }
        char *out = t->common + (size_t)t->parts[k].index * 2 * TCP_STAGE_BYTES;
        dt_tree_partial(out + (size_t)first * tcp_sum_width(s->x->type, node->count), in, node->count, s->x->op,
                        s->x->type, count);
    }
}

static void find_sums(struct staged *s)
{
    struct tcp *t = s->t;
    for (int k = 0; k < t->part_count; k++) {
        if (t->parts[k].host == t->here) {
            int i = t->parts[k].index;
            s->sums[i] = t->nodes[k].count == 1 ? stage_of(s, t->local_of[t->nodes[k].first])
                                                : t->common + (size_t)i * 2 * TCP_STAGE_BYTES;
        }
    }
}

static void copy_out(struct staged *s)
{
    const struct dt_collective *x = s->x;
    size_t bytes = (size_t)s->n * s->width;
    if (bytes == 0) {
        return;
    }
    char *out = (char *)x->out + (size_t)s->at * s->width;
    if (x->kind == DT_ALL_GATHER) {
        for (int r = 0; r < s->c->size; r++) {
            memcpy(out + (size_t)(r * x->count) * s->width, s->result + (size_t)r * bytes, bytes);
        }
    } else {
        memcpy(out, s->result + (x->kind == DT_REDUCE_SCATTER ? (size_t)s->c->rank * bytes : 0), bytes);
    }
}

/* All ranks of a host that holds several, from the step where all inputs are in place. */
static int pass(struct staged *s, struct tcp_pass *p, const struct shm_call *call, struct dt_error *err)
{
    struct tcp *t = s->t;
    const struct dt_collective *x = s->x;
    bool reduces = x->kind == DT_ALL_REDUCE || x->kind == DT_REDUCE_SCATTER;
    if (reduces && (size_t)s->total * s->width > TCP_SMALL_BYTES) {
        int64_t each = (s->total / t->inner->size / 64 + 1) * 64, first = t->inner->rank * each;
        first = first < s->total ? first : s->total;
        sum_nodes(s, first, s->total - first < each ? s->total - first : each);
        if (shm_step(t->inner, call, err) != 0) {
            return -1;
        }
    } else if (reduces && t->leader) {
        sum_nodes(s, 0, s->total);
    }
    if (t->leader) {
        size_t bytes = (size_t)s->n * s->width;
        const struct tcp_host *h = &t->hosts[t->here];
        find_sums(s);
        for (int i = 0; x->kind == DT_ALL_GATHER && i < h->rank_count; i++) {
            memcpy(s->result + (size_t)h->ranks[i] * bytes, stage_of(s, i), bytes);
        }
        if (x->kind == DT_BROADCAST && t->host_of[x->root] == t->here) {
            memcpy(s->result, stage_of(s, t->local_of[x->root]), bytes);
        }
        p->n = s->n;
        p->stride = s->n;
        p->with_head = s->at == 0;
        p->sums = s->sums;
        p->result = s->result;
        p->failed = tcp_exchange(s->c, p, err) != 0;
        if (p->failed) {
            return -1;
        }
    }
    struct shm_call later = *call;
    later.timeout_s += 2 * LEADER_MORE_S;
    if (shm_step(t->inner, &later, err) != 0) {
        return -1;
    }
    copy_out(s);
    return 0;
}

static int run_staged(struct dt_comm *c, const struct dt_collective *x, struct tcp_pass *p, const struct shm_call *call,
                      struct dt_error *err)
{
    struct tcp *t = c->state;
    bool slots = x->kind == DT_REDUCE_SCATTER || x->kind == DT_ALL_GATHER;
    struct staged s = {.c = c, .t = t, .x = x, .width = dt_dtype_size(x->type), .sums = t->sums};
    int64_t count = x->kind == DT_BARRIER ? 0 : x->count, slot_count = slots ? c->size : 1;
    int64_t most = pass_count(c, x);
    size_t parts = (size_t)t->hosts[t->here].part_count;
    s.result = t->common + parts * 2 * TCP_STAGE_BYTES;
    int rc = 0;
    do {
        s.n = count - s.at < most ? count - s.at : most;
        s.total = s.n * slot_count;
        copy_in(&s);
        rc = s.at == 0 ? shm_begin(t->inner, x, call, err) : shm_step(t->inner, call, err);
        rc = rc == 0 ? pass(&s, p, call, err) : rc;
        s.at += s.n;
    } while (rc == 0 && s.at < count);
    return rc;
}

/* Tells the others. An abort here may be seen by the stream before the one who aborts has said
 * so. */
static void tell(struct dt_comm *c, const struct dt_error *why)
{
    struct dt_error abort;
    if (atomic_load(&c->stopped) == 1) {
        (void)dt_fail(&abort, DT_PEER, "rank %d aborted communicator %s", c->rank, c->name);
        (void)dt_blame(&abort, DT_FAULT_LOST, dt_comm_job_rank(c, c->rank));
        why = &abort;
    }
    tcp_tell(c, why);
}

static int run(struct dt_comm *c, const struct dt_collective *x, int64_t number, double timeout_s, struct dt_error *err)
{
    struct tcp *t = c->state;
    if (t->host_count == 1) {
        return t->inner->ops->run(t->inner, x, ++t->inner->number, timeout_s, err);
    }
    struct shm_call call = {dt_coll_name(x->kind), x->name, number, timeout_s};
    struct tcp_pass p = {.x = x, .call = &call, .deadline_s = dt_now_s() + timeout_s + LEADER_MORE_S};
    t->head = (struct tcp_head){
        TCP_MAGIC, (int32_t)x->kind, (int32_t)x->op, (int32_t)x->type, 0, c->rank, number, x->count, ""};
    t->head.root = x->kind == DT_BROADCAST ? x->root : 0;
    memcpy(t->head.name, x->name, strnlen(x->name, sizeof(t->head.name)));
    int rc = t->inner->size == 1 ? run_alone(c, x, &p, err) : run_staged(c, x, &p, &call, err);
    if (rc != 0) {
        tell(c, err);
        if (p.failed && err->blame.told == DT_TOLD_NOT && err->status != DT_INVALID) {
            (void)dt_wrap(err, "%s %s (number %lld)", call.what, call.name, (long long)number);
        }
    }
    return rc;
}

/* Memory that ranks of this host reach; sizes agree everywhere. */
static int alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err)
{
    struct tcp *t = c->state;
    int64_t sizes[2] = {(int64_t)size_bytes, -(int64_t)size_bytes};
    const struct dt_collective agree = {DT_ALL_REDUCE, DT_MAX, "size of an arena", sizes, sizes, 2, DT_I64, 0};
    if (t->host_count > 1 && run(c, &agree, ++c->number, c->open_timeout_s, err) != 0) {
        return -1;
    }
    if (t->host_count > 1 && sizes[0] != -sizes[1]) {
        return dt_fail(err, DT_INVALID, "the ranks ask for different sizes: from %lld to %lld bytes, rank %d for %zu",
                       (long long)-sizes[1], (long long)sizes[0], c->rank, size_bytes);
    }
    return t->inner->ops->alloc(t->inner, size_bytes, out, err);
}

static int poll_tcp(struct dt_comm *c, struct dt_error *err)
{
    if (tcp_look(c, err) == 0) {
        return 0;
    }
    tell(c, err);
    return -1;
}

static void abort_tcp(struct dt_comm *c)
{
    struct tcp *t = c->state;
    struct dt_error why;
    if (t->inner != NULL) {
        atomic_store(&t->inner->stopped, 1);
    }
    (void)dt_fail(&why, DT_PEER, "rank %d aborted communicator %s", c->rank, c->name);
    (void)dt_blame(&why, DT_FAULT_LOST, dt_comm_job_rank(c, c->rank));
    tell(c, &why);
}

static void close_tcp(struct dt_comm *c)
{
    struct tcp *t = c->state;
    if (t == NULL) {
        return;
    }
    tcp_disconnect(c);
    dt_comm_close(t->inner);
    for (int j = 0; t->hosts != NULL && j < t->host_count; j++) {
        struct tcp_host *h = &t->hosts[j];
        free(h->ranks);
        free(h->out.segments);
        free(h->in.segments);
        free(h->ring);
    }
    free(t->hosts);
    free(t->host_of);
    free(t->local_of);
    free(t->nodes);
    free(t->parts);
    free(t->merge_in);
    free(t->sums);
    free(t->polls);
    free(t->blocks);
    free(t);
    c->state = NULL;
}

const struct dt_comm_ops dt_comm_tcp = {"tcp",     true, offer, open_tcp, alloc, run,  poll_tcp, abort_tcp,
                                        close_tcp, NULL, NULL,  tcp_tell, NULL,  NULL, NULL,     false};
