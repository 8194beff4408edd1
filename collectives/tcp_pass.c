/* One exchange between the leaders of hosts. With every other leader there is one stream in each
 * direction, of blocks:
 *
 *   out   head | S0 S1 S2 M0 S3 M1 S4 M2 ...    S: sums of our nodes for the share that it merges
 *                                               M: blocks that we have merged, or give
 *   in    head | S0 S1 S2 M0 S3 M1 S4 M2 ...    S: sums of its nodes for the share that we merge
 *                                               M: blocks that it has merged, or gives
 *
 * A block is merged as soon as the sums of all hosts for it are here. It is sent on while it is
 * in the cache, after `lag` further blocks of sums. So few bytes are in flight that they stay in
 * the caches and in the socket's window: 25 MiB between two ranks on loopback take less than
 * half of the time that they take when all sums are sent first. There is no deadlock: block M i
 * needs S i of all hosts, and only blocks M before i - lag precede those. Sums wait in a ring of
 * TCP_RING blocks per node. Merged blocks are received in place. Sockets never block. When
 * nothing moves, the leader tries again for a moment, then waits in poll(), and looks around 20
 * times a second. */
#include "collectives/tcp.h"

#include "base/clock.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define IOV_COUNT 16
#define SLICE_ELEMENTS 64 /* slices of hosts begin at multiples of this */

struct range {
    int64_t first, count;
};

/* A pass in progress: what it has to do, and how many blocks are merged. */
struct run {
    struct dt_comm *c;
    struct tcp *t;
    const struct tcp_pass *p;
    size_t width;       /* bytes of an element */
    int64_t block;      /* elements of a block */
    bool reduces;       /* there are sums to merge */
    bool spreads;       /* there are results to send to all hosts */
    bool small;         /* every host merges everything */
    size_t block_count; /* blocks that this host merges */
    size_t merged;
    size_t heads; /* segments before the sums: 0 or 1 */
};

size_t tcp_sum_width(enum dt_dtype type, int rank_count)
{
    return dt_dtype_half(type) && rank_count > 1 ? sizeof(float) : dt_dtype_size(type);
}

static void push(struct tcp_way *w, void *at, size_t size)
{
    if (w->count == w->capacity) {
        w->capacity = w->capacity * 2 + 64;
        w->segments = dt_realloc(w->segments, w->capacity * sizeof(*w->segments));
    }
    w->segments[w->count++] = (struct tcp_segment){at, size};
}

/* The i-th range of elements that host j merges (without a reduction: that it gives). count 0:
 * there is none. */
static struct range share(const struct run *u, int j, int i)
{
    const struct dt_collective *x = u->p->x;
    const struct tcp *t = u->t;
    int64_t n = u->p->n;
    if (x->kind == DT_REDUCE_SCATTER || x->kind == DT_ALL_GATHER) {
        return i < t->hosts[j].rank_count ? (struct range){t->hosts[j].ranks[i] * u->p->stride, n}
                                          : (struct range){0, 0};
    }
    if (i > 0 || x->kind == DT_BARRIER || (x->kind == DT_BROADCAST && t->host_of[x->root] != j)) {
        return (struct range){0, 0};
    }
    if (x->kind == DT_BROADCAST || u->small) {
        return (struct range){0, n};
    }
    int64_t each = (n / t->host_count / SLICE_ELEMENTS + 1) * SLICE_ELEMENTS;
    int64_t first = j * each < n ? j * each : n;
    return (struct range){first, n - first < each ? n - first : each};
}

/* A walk over the blocks of a host's share. */
struct walk {
    int host, i;
    int64_t at;
};

/* The next block; count 0: no more. */
static struct range next_block(const struct run *u, struct walk *k)
{
    struct range s = share(u, k->host, k->i);
    if (s.count == 0) {
        return s;
    }
    int64_t n = s.count - k->at < u->block ? s.count - k->at : u->block;
    struct range b = {s.first + k->at, n};
    k->at += n;
    if (k->at == s.count) {
        k->i++;
        k->at = 0;
    }
    return b;
}

static size_t count_blocks(const struct run *u, int j)
{
    size_t n = 0;
    for (struct walk k = {j, 0, 0}; next_block(u, &k).count > 0;) {
        n++;
    }
    return n;
}

/* Appends host h's sums for one block: from where they are, or into block `turn` of its ring. */
static void push_sums(struct run *u, struct tcp_way *w, int h, struct range b, bool ring, size_t turn)
{
    struct tcp *t = u->t;
    for (int k = 0; k < t->part_count; k++) {
        if (t->parts[k].host != h) {
            continue;
        }
        size_t wide = tcp_sum_width(u->p->x->type, t->nodes[k].count), index = (size_t)t->parts[k].index;
        char *from = ring ? t->hosts[h].ring + (index * TCP_RING + turn % TCP_RING) * TCP_BLOCK_BYTES
                          : (char *)(uintptr_t)u->p->sums[index] + (size_t)b.first * wide;
        push(w, from, (size_t)b.count * wide);
    }
}

/* Lists one direction of a stream: the sums of host `from` over the share of `to`, and the merged
 * blocks of its own share, each `lag` blocks of sums later. */
static void push_stream(struct run *u, struct tcp_way *w, int from, int to)
{
    size_t lag = u->t->hosts[from == u->t->here ? to : from].lag;
    struct walk sums = {to, 0, 0}, results = {from, 0, 0};
    bool ours = from == u->t->here, more_sums = u->reduces, more_results = u->spreads;
    for (size_t i = 0; more_sums || more_results; i++) {
        struct range b = more_sums ? next_block(u, &sums) : (struct range){0, 0};
        if (b.count > 0) {
            push_sums(u, w, from, b, !ours, i);
        }
        more_sums = b.count > 0;
        if (more_results && (!u->reduces || i >= lag)) {
            b = next_block(u, &results);
            if (b.count > 0) {
                push(w, u->p->result + b.first * (int64_t)u->width, (size_t)b.count * u->width);
            }
            more_results = b.count > 0;
        }
    }
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Segments that host j sends us before block i of the sums. */
static size_t before_sums(const struct run *u, int j, size_t i)
{
    const struct tcp_host *h = &u->t->hosts[j];
    return u->heads + i * (size_t)h->part_count + (u->spreads && i > h->lag ? least(i - h->lag, h->block_count) : 0);
}

/* Segments that we send to host j before the i-th block that we have merged. */
static size_t before_result(const struct run *u, int j, size_t i)
{
    const struct tcp *t = u->t;
    const struct tcp_host *h = &t->hosts[j];
    return u->heads + least(i + h->lag + 1, h->block_count) * (size_t)t->hosts[t->here].part_count + i;
}

static void list_blocks(struct run *u)
{
    struct tcp *t = u->t;
    struct walk k = {t->here, 0, 0};
    for (struct range b; u->reduces && (b = next_block(u, &k)).count > 0; u->block_count++) {
        if (u->block_count == t->block_capacity) {
            t->block_capacity = t->block_capacity * 2 + 64;
            t->blocks = dt_realloc(t->blocks, t->block_capacity * sizeof(*t->blocks));
        }
        t->blocks[u->block_count].first = b.first;
        t->blocks[u->block_count].count = b.count;
    }
}

/* Sets how far the streams with host j may go now. */
static void set_ready(struct run *u, int j)
{
    struct tcp_host *h = &u->t->hosts[j];
    size_t full = u->merged + TCP_RING;
    h->in.ready = u->reduces && full < u->block_count ? before_sums(u, j, full) : h->in.count;
    h->out.ready =
        u->reduces && u->spreads && u->merged < u->block_count ? before_result(u, j, u->merged) : h->out.count;
}

static void prepare(struct run *u)
{
    struct tcp *t = u->t;
    list_blocks(u);
    for (int j = 0; j < t->host_count; j++) {
        struct tcp_host *h = &t->hosts[j];
        if (j == t->here) {
            continue;
        }
        h->out.count = h->out.at = h->out.done = 0;
        h->in.count = h->in.at = h->in.done = 0;
        if (u->p->with_head) {
            h->checked = false;
            push(&h->out, &t->head, sizeof(t->head));
            push(&h->in, &h->head, sizeof(h->head));
        }
        h->block_count = count_blocks(u, j);
        push_stream(u, &h->out, t->here, j);
        push_stream(u, &h->in, j, t->here);
        set_ready(u, j);
    }
}

static int fill(const struct tcp_way *w, struct iovec *v)
{
    int n = 0;
    for (size_t i = w->at; i < w->ready && n < IOV_COUNT; i++, n++) {
        size_t skip = i == w->at ? w->done : 0;
        v[n] = (struct iovec){w->segments[i].at + skip, w->segments[i].size - skip};
    }
    return n;
}

static void advance(struct tcp_way *w, size_t bytes)
{
    w->done += bytes;
    while (w->at < w->ready && w->done >= w->segments[w->at].size) {
        w->done -= w->segments[w->at++].size;
    }
}

/* Sends and receives what is possible at once. 1: something moved; 0: nothing; -1 with an error. */
static int move(struct run *u, struct tcp_host *h, struct dt_error *err)
{
    struct iovec v[IOV_COUNT];
    int moved = 0;
    if (h->out.at < h->out.ready) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)fill(&h->out, v)};
        ssize_t n = sendmsg(h->data, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            advance(&h->out, (size_t)n);
            moved = 1;
        } else if (n < 0 && errno != EAGAIN && errno != EINTR) {
            return tcp_lost(u->c, h, strerror(errno), err);
        }
    }
    if (h->in.at < h->in.ready) {
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)fill(&h->in, v)};
        ssize_t n = recvmsg(h->data, &m, MSG_DONTWAIT);
        if (n > 0) {
            advance(&h->in, (size_t)n);
            moved = 1;
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            return tcp_lost(u->c, h, n == 0 ? "its connection has ended" : strerror(errno), err);
        }
    }
    return moved;
}

static void describe(const struct tcp_head *h, struct dt_text *out)
{
    enum dt_coll kind = (enum dt_coll)h->kind;
    dt_text_printf(out, "%s %.47s", dt_coll_name(kind), h->name);
    if (kind != DT_BARRIER) {
        dt_text_printf(out, " of %lld %s", (long long)h->count, dt_dtype_name((enum dt_dtype)h->type));
    }
    if (kind == DT_ALL_REDUCE || kind == DT_REDUCE_SCATTER) {
        dt_text_printf(out, " %s", dt_reduction_name((enum dt_reduction)h->op));
    } else if (kind == DT_BROADCAST) {
        dt_text_printf(out, " from rank %d", h->root);
    }
}

/* Fails if host h is about to do something else. */
static int compare(struct run *u, struct tcp_host *h, struct dt_error *err)
{
    struct tcp_head *ours = &u->t->head, *theirs = &h->head;
    h->checked = true;
    if (theirs->magic != TCP_MAGIC || theirs->number != ours->number) {
        return dt_fail(err, DT_INTERNAL, "communicator %s: what host %s sends is not collective %lld", u->c->name,
                       h->key, (long long)ours->number);
    }
    if (ours->kind == theirs->kind && ours->op == theirs->op && ours->type == theirs->type &&
        ours->root == theirs->root && ours->count == theirs->count &&
        memcmp(ours->name, theirs->name, sizeof(ours->name)) == 0) {
        return 0;
    }
    struct dt_text a, b;
    dt_text_init(&a);
    dt_text_init(&b);
    describe(ours, &a);
    describe(theirs, &b);
    (void)dt_fail(err, DT_INVALID,
                  "communicator %s: the ranks disagree on collective %lld: rank %d does %s, rank %d does %s",
                  u->c->name, (long long)ours->number, ours->rank, dt_text_str(&a), theirs->rank, dt_text_str(&b));
    dt_text_clear(&a);
    dt_text_clear(&b);
    return -1;
}

/* Merges the blocks for which all sums are here. */
static void merge(struct run *u)
{
    struct tcp *t = u->t;
    const struct dt_collective *x = u->p->x;
    size_t before = u->merged;
    for (; u->merged < u->block_count; u->merged++) {
        size_t turn = u->merged % TCP_RING;
        int64_t first = t->blocks[u->merged].first;
        for (int j = 0; j < t->host_count; j++) {
            if (j != t->here && t->hosts[j].in.at < before_sums(u, j, u->merged) + (size_t)t->hosts[j].part_count) {
                goto out;
            }
        }
        for (int k = 0; k < t->part_count; k++) {
            size_t wide = tcp_sum_width(x->type, t->nodes[k].count), index = (size_t)t->parts[k].index;
            const struct tcp_host *h = &t->hosts[t->parts[k].host];
            t->merge_in[k] = t->parts[k].host == t->here ? u->p->sums[index] + (size_t)first * wide
                                                         : h->ring + (index * TCP_RING + turn) * TCP_BLOCK_BYTES;
        }
        dt_tree_merge(u->p->result + first * (int64_t)u->width, t->merge_in, t->nodes, u->c->size, x->op, x->type,
                      t->blocks[u->merged].count);
    }
out:
    for (int j = 0; j < t->host_count && u->merged != before; j++) {
        if (j != t->here) {
            set_ready(u, j);
        }
    }
}

static int timed_out(struct run *u, struct dt_error *err)
{
    struct tcp *t = u->t;
    const struct shm_call *call = u->p->call;
    struct dt_text who;
    dt_text_init(&who);
    for (int j = 0; j < t->host_count; j++) {
        const struct tcp_host *h = &t->hosts[j];
        if (j != t->here && (h->in.at < h->in.ready || h->out.at < h->out.ready)) {
            dt_text_puts(&who, who.size > 0 ? "; " : "");
            tcp_describe_host(h, &who);
            if (u->p->with_head && h->in.at == 0) {
                dt_text_puts(&who, ", which has not begun it");
            }
        }
    }
    (void)dt_fail(err, DT_TIMEOUT, "no end in %g s; missing: %s", call->timeout_s, dt_text_str(&who));
    dt_text_clear(&who);
    return -1;
}

/* Sleeps until a stream can go on. Looks around every TCP_LOOK_S. */
static int wait_more(struct run *u, double *look_s, struct dt_error *err)
{
    struct tcp *t = u->t;
    struct pollfd *polls = t->polls;
    for (int j = 0; j < t->host_count; j++) {
        const struct tcp_host *h = &t->hosts[j];
        int want = (h->out.at < h->out.ready ? POLLOUT : 0) | (h->in.at < h->in.ready ? POLLIN : 0);
        polls[j] = (struct pollfd){.fd = j != t->here && want != 0 ? h->data : -1, .events = (short)want};
    }
    (void)poll(polls, (nfds_t)t->host_count, (int)(TCP_LOOK_S * 1e3));
    double now_s = dt_now_s();
    if (now_s < *look_s) {
        return 0;
    }
    *look_s = now_s + TCP_LOOK_S;
    if (tcp_look(u->c, err) != 0) {
        return -1;
    }
    return now_s >= u->p->deadline_s ? timed_out(u, err) : 0;
}

/* The time since which nothing moves, and how long to spin. */
struct idle {
    double since_s, limit_s;
};

/* True to try again at once: the peer may be just behind, and a sleep costs more than a short wait.
 * If spinning was in vain (the peer shares this core, or the wire is slow), spin for less; every
 * 32nd time try the full limit again. */
static bool spins(struct tcp *t, struct idle *i)
{
    double now_s = dt_now_s();
    if (i->since_s <= 0) {
        *i = (struct idle){now_s, t->wait_count++ % 32 == 0 ? t->spin_s : t->spin_now_s};
    }
    if (now_s - i->since_s < i->limit_s) {
        return true;
    }
    if (i->limit_s > 0) {
        t->spin_now_s = t->spin_now_s > t->spin_s / 8 ? t->spin_now_s / 2 : 0;
        i->limit_s = 0; /* spinning is over: later polls come after a sleep */
    }
    return false;
}

static void found(struct tcp *t, struct idle *i)
{
    if (i->limit_s > 0) {
        t->spin_now_s = fmin(i->limit_s * 2, t->spin_s);
    }
    *i = (struct idle){0};
}

int tcp_exchange(struct dt_comm *c, const struct tcp_pass *p, struct dt_error *err)
{
    struct tcp *t = c->state;
    enum dt_coll kind = p->x->kind;
    struct run u = {.c = c, .t = t, .p = p, .width = dt_dtype_size(p->x->type), .heads = p->with_head};
    u.reduces = kind == DT_ALL_REDUCE || kind == DT_REDUCE_SCATTER;
    u.small = kind == DT_ALL_REDUCE && (size_t)p->n * u.width <= TCP_SMALL_BYTES;
    u.spreads = (kind == DT_ALL_REDUCE && !u.small) || kind == DT_ALL_GATHER || kind == DT_BROADCAST;
    u.block = (int64_t)(TCP_BLOCK_BYTES / (dt_dtype_half(p->x->type) ? sizeof(float) : u.width));
    if (tcp_ordered(c, err) != 0) {
        return -1;
    }
    prepare(&u);
    struct idle idle = {0};
    for (double look_s = dt_now_s() + TCP_LOOK_S;;) {
        bool moved = false, done = u.merged == u.block_count;
        for (int j = 0; j < t->host_count; j++) {
            struct tcp_host *h = &t->hosts[j];
            if (j == t->here) {
                continue;
            }
            int rc = move(&u, h, err);
            if (rc < 0 || (p->with_head && !h->checked && h->in.at > 0 && compare(&u, h, err) != 0)) {
                return -1;
            }
            moved = moved || rc > 0;
            done = done && h->out.at == h->out.count && h->in.at == h->in.count;
        }
        if (done) {
            return 0;
        }
        if (moved) {
            found(t, &idle);
            merge(&u);
            continue;
        }
        if (!spins(t, &idle) && wait_more(&u, &look_s, err) != 0) {
            return -1;
        }
    }
}
