/* One exchange between the leaders of hosts. With every other leader there is one stream in each direction:
 *
 *   out   head | sums of my nodes for what that host merges, by blocks | blocks that I have merged, or give
 *   in    head | sums of its nodes for what I merge, by blocks         | blocks that it has merged, or gives
 *
 * A block is merged as soon as all hosts' sums for it are here, and travels on at once, while the next one arrives. Sums
 * wait in a ring of TCP_RING blocks per node; merged blocks arrive where they belong. Sockets never block, so that no order of streams can
 * lock up; all waiting is in poll(), which wakes 20 times a second to look around. */
#include "collectives/tcp.h"

#include "base/clock.h"
#include "base/text.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define IOV_COUNT 16
#define SLICE_ELEMENTS 64 /* slices of hosts begin at multiples */

struct range {
    int64_t first, count;
};

/* What is merged, and what is known, of a running pass. */
struct run {
    struct dt_comm *c;
    struct tcp *t;
    const struct tcp_pass *p;
    size_t width;       /* bytes of an element */
    int64_t block;      /* elements of a block */
    bool reduces;       /* there are sums to merge */
    bool spreads;       /* there is something to give to all */
    bool small;         /* everybody merges everything */
    size_t block_count; /* that this host merges */
    size_t merged;
    size_t heads; /* segments before the sums: 0 or 1 */
};

size_t tcp_sum_width(enum dt_dtype type, int rank_count)
{
    return type == DT_BF16 && rank_count > 1 ? sizeof(float) : dt_dtype_size(type);
}

static void push(struct tcp_way *w, void *at, size_t size)
{
    if (w->count == w->capacity) {
        w->capacity = w->capacity * 2 + 64;
        w->segments = dt_realloc(w->segments, w->capacity * sizeof(*w->segments));
    }
    w->segments[w->count++] = (struct tcp_segment){at, size};
}

/* The i-th run of elements that host j merges, or gives without a reduction; count 0: no more. */
static struct range share(const struct run *u, int j, int i)
{
    const struct dt_collective *x = u->p->x;
    const struct tcp *t = u->t;
    int64_t n = u->p->n;
    if (x->kind == DT_REDUCE_SCATTER || x->kind == DT_ALL_GATHER) {
        return i < t->hosts[j].rank_count ? (struct range){t->hosts[j].ranks[i] * u->p->stride, n} : (struct range){0, 0};
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

/* The sums of host h's nodes over the share of host `of`; from its ring, or from sums. */
static void push_sums(struct run *u, struct tcp_way *w, int h, int of, bool ring)
{
    struct tcp *t = u->t;
    size_t turn = 0;
    for (int i = 0;; i++) {
        struct range s = share(u, of, i);
        if (s.count == 0) {
            return;
        }
        for (int64_t at = 0; at < s.count; at += u->block, turn++) {
            int64_t n = s.count - at < u->block ? s.count - at : u->block;
            for (int k = 0; k < t->part_count; k++) {
                if (t->parts[k].host != h) {
                    continue;
                }
                size_t wide = tcp_sum_width(u->p->x->type, t->nodes[k].count), index = (size_t)t->parts[k].index;
                char *from = ring ? t->hosts[h].ring + (index * TCP_RING + turn % TCP_RING) * TCP_BLOCK_BYTES
                                  : (char *)(uintptr_t)u->p->sums[index] + (size_t)(s.first + at) * wide;
                push(w, from, (size_t)n * wide);
            }
        }
    }
}

/* Blocks of host j's share where they belong. */
static void push_results(struct run *u, struct tcp_way *w, int j)
{
    for (int i = 0;; i++) {
        struct range s = share(u, j, i);
        if (s.count == 0) {
            return;
        }
        for (int64_t at = 0; at < s.count; at += u->block) {
            int64_t n = s.count - at < u->block ? s.count - at : u->block;
            push(w, u->p->result + (s.first + at) * (int64_t)u->width, (size_t)n * u->width);
        }
    }
}

static void list_blocks(struct run *u)
{
    struct tcp *t = u->t;
    for (int i = 0; u->reduces; i++) {
        struct range s = share(u, t->here, i);
        if (s.count == 0) {
            return;
        }
        for (int64_t at = 0; at < s.count; at += u->block) {
            if (u->block_count == t->block_capacity) {
                t->block_capacity = t->block_capacity * 2 + 64;
                t->blocks = dt_realloc(t->blocks, t->block_capacity * sizeof(*t->blocks));
            }
            t->blocks[u->block_count].first = s.first + at;
            t->blocks[u->block_count++].count = s.count - at < u->block ? s.count - at : u->block;
        }
    }
}

/* How far the streams with host j may go now. */
static void set_ready(struct run *u, struct tcp_host *h)
{
    size_t parts = (size_t)h->part_count;
    if (u->reduces) {
        size_t blocks = u->merged + TCP_RING < u->block_count ? u->merged + TCP_RING : u->block_count;
        h->in.ready = u->merged == u->block_count ? h->in.count : u->heads + blocks * parts;
        h->out.ready = u->spreads ? h->out.count - (u->block_count - u->merged) : h->out.count;
    } else {
        h->in.ready = h->in.count;
        h->out.ready = h->out.count;
    }
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
        if (u->reduces) {
            push_sums(u, &h->out, t->here, j, false);
            push_sums(u, &h->in, j, t->here, true);
        }
        if (u->spreads) {
            push_results(u, &h->out, t->here);
            push_results(u, &h->in, j);
        }
        set_ready(u, h);
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

/* Moves what can be moved at once; 1: something moved, 0: nothing, -1 with an error. */
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

/* Does host h do the same? */
static int compare(struct run *u, struct tcp_host *h, struct dt_error *err)
{
    struct tcp_head *ours = &u->t->head, *theirs = &h->head;
    h->checked = true;
    if (theirs->magic != TCP_MAGIC || theirs->number != ours->number) {
        return dt_fail(err, DT_INTERNAL, "communicator %s: what host %s sends is not collective %lld", u->c->name, h->key, (long long)ours->number);
    }
    if (ours->kind == theirs->kind && ours->op == theirs->op && ours->type == theirs->type && ours->root == theirs->root &&
        ours->count == theirs->count && memcmp(ours->name, theirs->name, sizeof(ours->name)) == 0) {
        return 0;
    }
    struct dt_text a, b;
    dt_text_init(&a);
    dt_text_init(&b);
    describe(ours, &a);
    describe(theirs, &b);
    (void)dt_fail(err, DT_INVALID, "communicator %s: the ranks disagree on collective %lld: rank %d does %s, rank %d does %s", u->c->name,
                  (long long)ours->number, ours->rank, dt_text_str(&a), theirs->rank, dt_text_str(&b));
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
            if (j != t->here && t->hosts[j].in.at < u->heads + (u->merged + 1) * (size_t)t->hosts[j].part_count) {
                goto out;
            }
        }
        for (int k = 0; k < t->part_count; k++) {
            size_t wide = tcp_sum_width(x->type, t->nodes[k].count), index = (size_t)t->parts[k].index;
            const struct tcp_host *h = &t->hosts[t->parts[k].host];
            t->merge_in[k] =
                t->parts[k].host == t->here ? u->p->sums[index] + (size_t)first * wide : h->ring + (index * TCP_RING + turn) * TCP_BLOCK_BYTES;
        }
        dt_tree_merge(u->p->result + first * (int64_t)u->width, t->merge_in, t->nodes, u->c->size, x->op, x->type, t->blocks[u->merged].count);
    }
out:
    for (int j = 0; j < t->host_count && u->merged != before; j++) {
        if (j != t->here) {
            set_ready(u, &t->hosts[j]);
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

/* Sleeps until a stream can go on, or somebody says something; looks around. */
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

int tcp_exchange(struct dt_comm *c, const struct tcp_pass *p, struct dt_error *err)
{
    struct tcp *t = c->state;
    enum dt_coll kind = p->x->kind;
    struct run u = {.c = c, .t = t, .p = p, .width = dt_dtype_size(p->x->type), .heads = p->with_head};
    u.reduces = kind == DT_ALL_REDUCE || kind == DT_REDUCE_SCATTER;
    u.small = kind == DT_ALL_REDUCE && (size_t)p->n * u.width <= TCP_SMALL_BYTES;
    u.spreads = (kind == DT_ALL_REDUCE && !u.small) || kind == DT_ALL_GATHER || kind == DT_BROADCAST;
    u.block = (int64_t)(TCP_BLOCK_BYTES / (p->x->type == DT_BF16 ? sizeof(float) : u.width));
    if (tcp_ordered(c, err) != 0) {
        return -1;
    }
    prepare(&u);
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
            merge(&u);
        } else if (wait_more(&u, &look_s, err) != 0) {
            return -1;
        }
    }
}
