/* Connections between the leaders of hosts: a data and a control connection for each pair.
 * Whoever connects says the round's nonce first; others are closed. Control carries at most one
 * word in each direction, a failure or a farewell, which is looked at and left there: so any
 * thread may look. A dead process shows as the end of its connections. */
#include "collectives/tcp.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "collectives/backends.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PENDING_MAX 64
#define HELLO_S 10.0 /* a connection that has not said who it is by then is closed */
#define SAY_EVERY_S 10.0
#define DEAD_S 15 /* as the launcher's --dead_after */

struct hello {
    uint32_t magic, lane; /* lane 0: data, 1: control */
    uint64_t nonce;
    int32_t host, size;
    uint32_t lag, unused;
    char name[32];
};

/* Our address on the way to a host; nothing is sent. False: no way. */
static bool address_towards(const char *host, char *out, size_t out_bytes)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    bool done = false;
    if (getaddrinfo(host, "9", &hints, &found) != 0) {
        return false;
    }
    for (const struct addrinfo *a = found; a != NULL && !done; a = a->ai_next) {
        struct dt_net n = {.fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0)};
        done = n.fd >= 0 && connect(n.fd, a->ai_addr, a->ai_addrlen) == 0 &&
               dt_net_local_address(&n, out, out_bytes, NULL) == 0;
        dt_net_close(&n);
    }
    freeaddrinfo(found);
    return done;
}

/* Why a host is not reached, when nothing refuses. */
static const char *const unreached_hint =
    "; if others reach it at another address, name that there with --local_addr (and open ports with --port_range)";

static bool is_loopback(const char *name)
{
    return strncmp(name, "127.", 4) == 0 || strcmp(name, "::1") == 0 || strncmp(name, "localhost", 9) == 0;
}

/* The address of the route to MASTER_ADDR. A host's own name may lead to loopback there
 * (127.0.1.1), where nobody else comes: then the default route's. */
static void route_address(char *out, size_t out_bytes)
{
    const char *master = getenv("MASTER_ADDR");
    char other[64];
    if (master == NULL || !address_towards(master, out, out_bytes)) {
        (void)snprintf(out, out_bytes, "127.0.0.1");
    } else if (is_loopback(out) && !is_loopback(master) && address_towards("192.0.2.1", other, sizeof(other))) {
        (void)snprintf(out, out_bytes, "%s", other);
    }
}

int tcp_listen(struct dt_comm *c, char *address, int *port, struct dt_error *err)
{
    struct tcp *t = c->state;
    const char *given = getenv("DTRUN_LOCAL_ADDR"), *range = getenv("DTRUN_PORT_RANGE");
    int lo = 0, hi = 0;
    if (given != NULL && given[0] != 0) {
        (void)snprintf(address, 64, "%s", given);
    } else {
        route_address(address, 64);
    }
    if (range != NULL && range[0] != 0 && (sscanf(range, "%d-%d", &lo, &hi) != 2 || lo < 1 || hi < lo || hi > 65535)) {
        return dt_fail(err, DT_INVALID, "DTRUN_PORT_RANGE: %.40s: not LO-HI with 1 <= LO <= HI <= 65535", range);
    }
    const char *at = dt_net_is_here(address) ? address : NULL; /* else it is translated to one of
                                                                * ours */
    return dt_net_listen_within(&t->listener, at, &(struct dt_ports){lo, hi, getpid() + c->rank}, 0, c->page, port,
                                err);
}

void tcp_describe_host(const struct tcp_host *h, struct dt_text *out)
{
    dt_text_printf(out, "host %s (%s", h->key, h->rank_count > 1 ? "ranks" : "rank");
    for (int i = 0; i < h->rank_count && i < 8; i++) {
        dt_text_printf(out, "%s %d", i > 0 ? "," : "", h->ranks[i]);
    }
    dt_text_puts(out, h->rank_count > 8 ? ", ...)" : ")");
}

/* The launcher notices a lost host and says so; a connection ends by itself somewhat later, so
 * that no rank is blamed for it. */
static double dead_s(void)
{
    const char *text = getenv("DTRUN_DEAD_AFTER");
    double s = 0;
    return (text != NULL && dt_parse_double(text, &s) && s >= 1 && s < 1e5 ? s : DEAD_S) * 4 / 3;
}

static void set_options(int fd)
{
    int size = 1 << 20, on = 1, dead_ms = (int)(dead_s() * 1e3);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof(dead_ms));
    int idle_s = 5, interval_s = 5, probes = 3;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
}

/* Do both ends of a connection lie on this machine? */
static bool is_near(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage room;
    } us = {0}, them = {0};
    socklen_t our_bytes = sizeof(us), their_bytes = sizeof(them);
    if (getsockname(fd, &us.any, &our_bytes) != 0 || getpeername(fd, &them.any, &their_bytes) != 0 ||
        us.any.sa_family != them.any.sa_family) {
        return false;
    }
    return us.any.sa_family == AF_INET6 ? memcmp(&us.v6.sin6_addr, &them.v6.sin6_addr, sizeof(us.v6.sin6_addr)) == 0
                                        : us.v4.sin_addr.s_addr == them.v4.sin_addr.s_addr;
}

static struct hello make_hello(const struct dt_comm *c, uint32_t lane, size_t lag)
{
    const struct tcp *t = c->state;
    struct hello h = {TCP_MAGIC, lane, t->nonce, t->here, c->size, (uint32_t)lag, 0, ""};
    (void)snprintf(h.name, sizeof(h.name), "%s", c->name);
    return h;
}

/* To the leaders before this one. */
static int call_others(struct dt_comm *c, double deadline_s, struct dt_error *err)
{
    struct tcp *t = c->state;
    for (int j = 0; j < t->here; j++) {
        struct tcp_host *h = &t->hosts[j];
        for (uint32_t lane = 0; lane < 2; lane++) {
            struct dt_net n = {.fd = -1};
            struct hello hello;
            int rc = -1;
            double begun_s = dt_now_s(), say_at_s = begun_s + SAY_EVERY_S;
            /* looks around between tries */
            for (double now_s = begun_s; rc != 0; now_s = dt_now_s()) {
                if (now_s >= say_at_s) {
                    say_at_s += SAY_EVERY_S;
                    dt_log(DT_LOG_WARN, "tcp", "waiting %.0f s for rank %d on host %s at %s port %d, %.0f s left: %s%s",
                           now_s - begun_s, h->ranks[0], h->key, h->address, h->port, deadline_s - now_s, err->text,
                           unreached_hint);
                }
                rc = dt_net_connect(&n, h->address, h->port, fmin(deadline_s, now_s + 0.5), c->page, err);
                if (rc != 0 && (err->status != DT_TIMEOUT || dt_now_s() >= deadline_s || tcp_look(c, err) != 0)) {
                    break;
                }
            }
            if (rc == 0) {
                h->lag = is_near(n.fd) ? TCP_LAG_NEAR : TCP_LAG_FAR;
                hello = make_hello(c, lane, h->lag);
            }
            if (rc != 0 || dt_net_write(&n, &hello, sizeof(hello), deadline_s, err) != 0) {
                dt_net_close(&n);
                size_t used = strlen(err->text);
                if (err->status == DT_TIMEOUT) {
                    (void)snprintf(err->text + used, sizeof err->text - used, "%s", unreached_hint);
                }
                return dt_wrap(err, "rank %d on host %s", h->ranks[0], h->key);
            }
            set_options(n.fd);
            *(lane == 0 ? &h->data : &h->control) = n.fd;
        }
    }
    return 0;
}

struct pending {
    struct dt_net net;
    struct hello hello;
    size_t got;
    double since_s;
};

/* 1: its hello is right and it has its place; 0: more to come; -1: not one of us. */
static int hear_hello(struct dt_comm *c, struct pending *p)
{
    struct tcp *t = c->state;
    ssize_t n = recv(p->net.fd, (char *)&p->hello + p->got, sizeof(p->hello) - p->got, 0);
    if (n <= 0) {
        return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
    }
    p->got += (size_t)n;
    if (p->got < sizeof(p->hello)) {
        return p->got >= 4 && p->hello.magic != TCP_MAGIC ? -1 : 0;
    }
    size_t lag = p->hello.lag == TCP_LAG_NEAR ? TCP_LAG_NEAR : TCP_LAG_FAR;
    struct hello want = make_hello(c, p->hello.lane, lag);
    int j = p->hello.host;
    want.host = j;
    if (memcmp(&want, &p->hello, sizeof(want)) != 0 || j <= t->here || j >= t->host_count || p->hello.lane > 1) {
        return -1;
    }
    int *place = p->hello.lane == 0 ? &t->hosts[j].data : &t->hosts[j].control;
    if (*place >= 0) {
        return -1;
    }
    set_options(p->net.fd);
    t->hosts[j].lag = lag;
    *place = p->net.fd;
    return 1;
}

static bool complete(const struct tcp *t)
{
    for (int j = t->here + 1; j < t->host_count; j++) {
        if (t->hosts[j].data < 0 || t->hosts[j].control < 0) {
            return false;
        }
    }
    return true;
}

static int missing_hosts(const struct dt_comm *c, struct dt_error *err)
{
    const struct tcp *t = c->state;
    struct dt_text who;
    dt_text_init(&who);
    for (int j = t->here + 1; j < t->host_count; j++) {
        if (t->hosts[j].data < 0 || t->hosts[j].control < 0) {
            dt_text_puts(&who, who.size > 0 ? "; " : "");
            tcp_describe_host(&t->hosts[j], &who);
        }
    }
    (void)dt_fail(err, DT_TIMEOUT, "opening: no connection in %g s; missing: %s", c->open_timeout_s, dt_text_str(&who));
    dt_text_clear(&who);
    return -1;
}

/* Takes the connections of those behind this one; strangers may come, silent or talking, and do
 * not stop it. */
static int await_others(struct dt_comm *c, double deadline_s, struct dt_error *err)
{
    struct tcp *t = c->state;
    struct pending *pending = dt_alloc(PENDING_MAX * sizeof(*pending));
    int count = 0, rc = 0;
    while (rc == 0 && !complete(t)) {
        struct pollfd polls[PENDING_MAX + 1] = {{.fd = t->listener.fd, .events = POLLIN}};
        for (int i = 0; i < count; i++) {
            polls[i + 1] = (struct pollfd){.fd = pending[i].net.fd, .events = POLLIN};
        }
        (void)poll(polls, (nfds_t)count + 1, (int)(TCP_LOOK_S * 1e3));
        rc = tcp_look(c, err);
        double now_s = dt_now_s();
        for (int i = count - 1; i >= 0; i--) {
            int heard = hear_hello(c, &pending[i]);
            if (heard == 0 && now_s - pending[i].since_s < HELLO_S) {
                continue;
            }
            if (heard != 1) {
                dt_net_close(&pending[i].net);
            }
            pending[i] = pending[--count];
        }
        struct dt_error none;
        if (count == PENDING_MAX) { /* the oldest one gives way */
            int oldest = 0;
            for (int i = 1; i < count; i++) {
                oldest = pending[i].since_s < pending[oldest].since_s ? i : oldest;
            }
            dt_net_close(&pending[oldest].net);
            pending[oldest] = pending[--count];
        }
        struct pending p = {.since_s = now_s};
        if ((polls[0].revents & POLLIN) != 0 && dt_net_accept(&t->listener, &p.net, 0, &none) == 0) {
            pending[count++] = p;
        }
        if (rc == 0 && now_s >= deadline_s && !complete(t)) {
            rc = missing_hosts(c, err);
        }
    }
    for (int i = 0; i < count; i++) {
        dt_net_close(&pending[i].net);
    }
    free(pending);
    return rc;
}

int tcp_connect_all(struct dt_comm *c, struct dt_error *err)
{
    double deadline_s = dt_now_s() + c->open_timeout_s;
    return call_others(c, deadline_s, err) == 0 ? await_others(c, deadline_s, err) : -1;
}

/* What host h has said: 1 with the word, 0 nothing yet, -1 the connection has ended. A part of a
 * word stays there to be looked at, so that nothing but poll tells whether the rest can still
 * come. */
static int peek(const struct tcp_host *h, struct tcp_word *w)
{
    ssize_t n = h->control < 0 ? -1 : recv(h->control, w, sizeof(*w), MSG_PEEK | MSG_DONTWAIT);
    if (n > 0 && n < (ssize_t)sizeof(*w)) {
        struct pollfd p = {.fd = h->control, .events = POLLRDHUP};
        bool ended = poll(&p, 1, 0) == 1;
        n = recv(h->control, w, sizeof(*w), MSG_PEEK | MSG_DONTWAIT); /* what came before the end */
        if (ended && n < (ssize_t)sizeof(*w)) {
            return -1;
        }
    }
    if (n == (ssize_t)sizeof(*w)) {
        w->text[sizeof(w->text) - 1] = 0;
        return w->magic == TCP_MAGIC ? 1 : -1;
    }
    if (h->control < 0 || n > 0) {
        return 0;
    }
    return n < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : -1;
}

static int fail_gone(const struct dt_comm *c, const struct tcp_host *h, const char *cause, struct dt_error *err)
{
    struct dt_text who;
    dt_text_init(&who);
    tcp_describe_host(h, &who);
    (void)dt_fail(err, DT_PEER, "communicator %s: rank %d on %s is gone: %s", c->name, h->ranks[0], dt_text_str(&who),
                  cause);
    dt_text_clear(&who);
    return dt_blame(err, DT_FAULT_LOST, dt_comm_job_rank(c, h->ranks[0]));
}

int tcp_ordered(struct dt_comm *c, struct dt_error *err)
{
    if (c->page != NULL && atomic_load(&c->page->order) >= DT_ORDER_ABORT) {
        return dt_fail(err, DT_STOPPED, "the round is over");
    }
    if (atomic_load(&c->stopped) == 1) {
        return dt_fail(err, DT_STOPPED, "communicator %s was aborted", c->name);
    }
    return 0;
}

/* The number by which the job knows a host: the agents' name for it, or else its place here. */
static int host_number(const struct tcp *t, int j)
{
    long long number;
    return dt_parse_int64(t->hosts[j].key, &number) && number >= 0 && number <= INT32_MAX ? (int)number : j;
}

/* The error that host j has sent. */
static int hear(const struct tcp *t, int j, const struct tcp_word *w, struct dt_error *err)
{
    struct dt_blame blame = {(enum dt_fault)w->fault, w->rank, (enum dt_told)w->told, w->first_teller, w->host};
    (void)dt_fail(err, dt_status_of(w->status), "%s", w->text);
    return dt_blame_heard(err, dt_blame_valid(&blame) ? &blame : &(struct dt_blame){0}, w->teller > 0 ? w->teller : 0,
                          host_number(t, j));
}

int tcp_look(struct dt_comm *c, struct dt_error *err)
{
    struct tcp *t = c->state;
    if (tcp_ordered(c, err) != 0) {
        return -1;
    }
    if (t->inner->ops == &dt_comm_shm && shm_look(t->inner, err) != 0) {
        return -1;
    }
    for (int j = 0; j < t->host_count; j++) {
        struct tcp_word w;
        int said = j == t->here ? 0 : peek(&t->hosts[j], &w);
        if (said == 1 && w.status != DT_OK) {
            return hear(t, j, &w, err);
        }
        if (said < 0) {
            return fail_gone(c, &t->hosts[j], "its connection has ended", err);
        }
    }
    return 0;
}

int tcp_lost(struct dt_comm *c, const struct tcp_host *h, const char *cause, struct dt_error *err)
{
    /* The word or the order that explains it may be on its way. */
    for (double end_s = dt_now_s() + 0.1;;) {
        struct tcp_word w;
        if (tcp_look(c, err) != 0) {
            return -1;
        }
        if (peek(h, &w) == 1) {
            (void)dt_fail(err, DT_PEER, "rank %d on host %s has closed communicator %s", h->ranks[0], h->key, c->name);
            return dt_blame(err, DT_FAULT_LOST, dt_comm_job_rank(c, h->ranks[0]));
        }
        if (dt_now_s() > end_s) {
            return fail_gone(c, h, cause, err);
        }
        dt_sleep_s(0.002);
    }
}

/* To all hosts. why null: this rank closes in good order. */
static void say(struct dt_comm *c, const struct dt_error *why)
{
    struct tcp *t = c->state;
    int none = 0;
    if (t->hosts == NULL || !t->leader || !atomic_compare_exchange_strong(&t->word_sent, &none, 1)) {
        return;
    }
    struct tcp_word w = {.magic = TCP_MAGIC, .status = DT_OK, .teller = dt_comm_job_rank(c, c->rank)};
    if (why != NULL) {
        w.status = (int32_t)why->status;
        w.fault = (int32_t)why->blame.fault;
        w.rank = why->blame.rank;
        w.told = (int32_t)why->blame.told;
        w.first_teller = why->blame.teller;
        w.host = why->blame.host;
        (void)snprintf(w.text, sizeof(w.text), "%.440s", why->text);
    }
    for (int j = 0; j < t->host_count; j++) {
        if (t->hosts[j].control >= 0) { /* the first bytes there: they fit the socket's buffer */
            (void)send(t->hosts[j].control, &w, sizeof(w), MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
}

void tcp_tell(struct dt_comm *c, const struct dt_error *why)
{
    struct tcp *t = c->state;
    if (t->inner != NULL && t->inner->ops == &dt_comm_shm && t->inner->state != NULL &&
        ((struct shm *)t->inner->state)->header != NULL) {
        shm_fail(t->inner, why);
    }
    say(c, why);
}

void tcp_disconnect(struct dt_comm *c)
{
    struct tcp *t = c->state;
    struct dt_error why;
    (void)dt_fail(&why, DT_PEER, "it could not open the communicator");
    say(c, t->open ? NULL : &why);
    for (int j = 0; t->hosts != NULL && j < t->host_count; j++) {
        if (t->hosts[j].data >= 0) {
            (void)close(t->hosts[j].data);
        }
        if (t->hosts[j].control >= 0) {
            (void)close(t->hosts[j].control);
        }
    }
    dt_net_close(&t->listener);
}
