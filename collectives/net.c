/* Non-blocking sockets and poll(). With a page, poll wakes every 20 ms to read the order, because a
 * thread cannot wait for a futex and a socket at once. Most waits end earlier: an agent that aborts
 * a round also closes the store, which ends their connections. */
#include "collectives/net.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const double order_interval_s = 0.02;

/* Seconds of polling before a thread sleeps. Most answers come within this time, and sleeping and
 * waking costs both sides more than polling. On an idle virtual machine a round trip through the
 * store takes 50 us with sleeping and 25 us without (`bench store`). Between two polls the thread
 * yields the processor. */
static const double look_s = 50e-6;

char *dt_net_name(const char *host, int port, char *out, size_t out_bytes)
{
    (void)snprintf(out, out_bytes, strchr(host, ':') != NULL ? "[%s]:%d" : "%s:%d", host, port);
    return out;
}

static bool is_aborted(const struct dt_page *page)
{
    return page != NULL && atomic_load_explicit(&page->order, memory_order_relaxed) >= DT_ORDER_ABORT;
}

static int fail_stopped(const struct dt_net *n, const char *what, struct dt_error *err)
{
    return dt_fail(err, DT_STOPPED, "%s: %s: the round was ended", n->name, what);
}

/* The error of a connected socket: DT_PEER, or DT_STOPPED if the page orders an abort, because then
 * closed connections are expected. */
static int fail_gone(const struct dt_net *n, const char *what, const char *cause, struct dt_error *err)
{
    return is_aborted(n->page) ? fail_stopped(n, what, err) : dt_fail(err, DT_PEER, "%s: %s: %s", n->name, what, cause);
}

/* Polls for a short time without sleeping. */
static bool comes_soon(int fd, double deadline_s)
{
    double until_s = fmin(deadline_s, dt_now_s() + look_s);
    do {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, 0) > 0) {
            return true;
        }
        (void)sched_yield();
    } while (dt_now_s() < until_s);
    return false;
}

/* 1: ready; 0: the deadline passed; -1: the page ordered an abort. Polls the socket at least
 * once. */
static int wait_for(const struct dt_net *n, short events, double deadline_s, const char *what, struct dt_error *err)
{
    if (events == POLLIN && !is_aborted(n->page) && comes_soon(n->fd, deadline_s)) {
        return 1;
    }
    for (;;) {
        if (is_aborted(n->page)) {
            return fail_stopped(n, what, err);
        }
        double left_s = fmax(deadline_s - dt_now_s(), 0.0);
        double slice_s = n->page != NULL ? fmin(left_s, order_interval_s) : fmin(left_s, 3600.0);
        struct pollfd p = {.fd = n->fd, .events = events};
        int rc = poll(&p, 1, (int)ceil(slice_s * 1e3));
        if (rc > 0) {
            return 1;
        }
        if (rc < 0 && errno != EINTR) {
            return dt_fail_errno(err, "%s: %s: poll", n->name, what);
        }
        if (rc == 0 && dt_now_s() >= deadline_s) {
            return 0;
        }
    }
}

static void set_options(int fd)
{
    int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    int idle_s = 30, interval_s = 10, probes = 3;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

/* True for a connection to ourselves. If the target is a free ephemeral port, the kernel may choose
 * it as the source port too, and join the socket with itself. */
static bool is_own(int fd)
{
    struct sockaddr_storage a = {0}, b = {0};
    socklen_t a_size = sizeof a, b_size = sizeof b;
    return getsockname(fd, (struct sockaddr *)&a, &a_size) == 0 &&
           getpeername(fd, (struct sockaddr *)&b, &b_size) == 0 && a_size == b_size && memcmp(&a, &b, a_size) == 0;
}

/* Tries one address once. 0: n->fd is connected; -1: `cause` says why not; -2: the page ordered an
 * abort. */
static int try_address(struct dt_net *n, const struct addrinfo *a, double deadline_s, char *cause, size_t cause_bytes,
                       struct dt_error *err)
{
    n->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (n->fd < 0) {
        (void)snprintf(cause, cause_bytes, "socket: %s", strerror(errno));
        return -1;
    }
    int code = connect(n->fd, a->ai_addr, a->ai_addrlen) == 0 ? 0 : errno;
    if (code == EINPROGRESS || code == EINTR) {
        int rc = wait_for(n, POLLOUT, deadline_s, "connect", err);
        socklen_t size = sizeof code;
        code = ETIMEDOUT;
        if (rc < 0) {
            dt_net_close(n);
            return -2;
        }
        if (rc > 0 && getsockopt(n->fd, SOL_SOCKET, SO_ERROR, &code, &size) != 0) {
            code = errno;
        }
    }
    if (code == 0 && is_own(n->fd)) {
        code = ECONNREFUSED;
    }
    if (code != 0) {
        (void)snprintf(cause, cause_bytes, "%s", strerror(code));
        dt_net_close(n);
        return -1;
    }
    set_options(n->fd);
    return 0;
}

/* Tries each address of the name once. */
static int try_all(struct dt_net *n, const char *host, int port, double deadline_s, char *cause, size_t cause_bytes,
                   struct dt_error *err)
{
    char service[16];
    (void)snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV},
                    *found = NULL;
    int code = getaddrinfo(host, service, &hints, &found);
    if (code != 0) {
        (void)snprintf(cause, cause_bytes, "name look-up: %s",
                       code == EAI_SYSTEM ? strerror(errno) : gai_strerror(code));
        return -1;
    }
    int rc = -1;
    for (const struct addrinfo *a = found; a != NULL && rc == -1; a = a->ai_next) {
        /* One dead address must leave time for the others. */
        double until_s =
            a->ai_next != NULL ? fmin(deadline_s, dt_now_s() + fmax((deadline_s - dt_now_s()) / 3, 0.2)) : deadline_s;
        rc = try_address(n, a, until_s, cause, cause_bytes, err);
    }
    freeaddrinfo(found);
    return rc;
}

int dt_net_connect(struct dt_net *n, const char *host, int port, double deadline_s, struct dt_page *page,
                   struct dt_error *err)
{
    struct dt_net made = {.fd = -1, .page = page};
    dt_net_name(host, port, made.name, sizeof made.name);
    if (port < 1 || port > 65535) {
        return dt_fail(err, DT_INVALID, "%s: connect: port %d is not in 1..65535", made.name, port);
    }
    char cause[160] = "";
    double began_s = dt_now_s(), pause_s = 0.005;
    unsigned seed = (unsigned)getpid() ^ (unsigned)(began_s * 1e6);
    for (;;) {
        int rc = try_all(&made, host, port, deadline_s, cause, sizeof cause, err);
        if (rc == 0) {
            *n = made;
            return 0;
        }
        if (rc == -2) {
            return -1;
        }
        seed = seed * 1103515245u + 12345u;
        double until_s = dt_now_s() + pause_s * (0.5 + (double)(seed >> 16 & 0xffff) / 65536.0);
        pause_s = fmin(pause_s * 1.5, 1.0);
        if (until_s >= deadline_s) {
            return dt_fail(err, DT_TIMEOUT, "%s: connect: %s (tried for %.1f s)", made.name, cause,
                           dt_now_s() - began_s);
        }
        for (double left_s = until_s - dt_now_s(); left_s > 0; left_s = until_s - dt_now_s()) {
            if (is_aborted(page)) {
                return fail_stopped(&made, "connect", err);
            }
            dt_sleep_s(fmin(left_s, order_interval_s));
        }
    }
}

static int listen_at(struct dt_net *n, const struct addrinfo *a, int backlog)
{
    n->fd = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int on = 1, off = 0;
    if (n->fd < 0) {
        return -1;
    }
    (void)setsockopt(n->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6) {
        (void)setsockopt(n->fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(n->fd, a->ai_addr, a->ai_addrlen) != 0 || listen(n->fd, backlog > 0 ? backlog : 4096) != 0) {
        int code = errno;
        dt_net_close(n);
        errno = code;
        return -1;
    }
    return 0;
}

int dt_net_listen(struct dt_net *n, const char *host, int port, int backlog, struct dt_page *page, int *port_out,
                  struct dt_error *err)
{
    struct dt_net made = {.fd = -1, .page = page};
    bool all = host == NULL || host[0] == '\0';
    dt_net_name(all ? "*" : host, port, made.name, sizeof made.name);
    char service[16];
    (void)snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICSERV | AI_PASSIVE},
                    *found = NULL;
    int code = getaddrinfo(all ? NULL : host, service, &hints, &found);
    if (code != 0) {
        return dt_fail(err, code == EAI_AGAIN ? DT_TIMEOUT : DT_NOT_FOUND,
                       "%s: %s; must be a name or an address of this host", all ? "*" : host, gai_strerror(code));
    }
    int rc = -1;
    /* For all addresses try IPv6 first, which serves both families. For a name try IPv4 first. */
    for (int pass = 0; pass < 2 && rc != 0; pass++) {
        for (const struct addrinfo *a = found; a != NULL && rc != 0; a = a->ai_next) {
            if ((a->ai_family == AF_INET6) == (all ? pass == 0 : pass == 1)) {
                rc = listen_at(&made, a, backlog);
            }
        }
    }
    freeaddrinfo(found);
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    if (rc != 0 || getsockname(made.fd, (struct sockaddr *)&at, &size) != 0) {
        code = errno;
        (void)dt_fail_errno(err, "%s: listen", made.name);
        if (code == EACCES) { /* not DT_IO, since a restart would be denied, too */
            (void)dt_fail(err, DT_INVALID, "%s: listen: " DT_NET_DENIED, made.name);
        } else if (code == EADDRNOTAVAIL) {
            (void)dt_fail(err, DT_NOT_FOUND, "%s: is no address of this host", host);
        }
        dt_net_close(&made);
        return -1;
    }
    *port_out = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                               : ((struct sockaddr_in *)&at)->sin_port);
    dt_net_name(all ? "*" : host, *port_out, made.name, sizeof made.name);
    *n = made;
    return 0;
}

struct dt_ports dt_ports_but(int lo, int hi, int last)
{
    return (struct dt_ports){lo, hi, lo > 0 && last >= lo && last <= hi ? last - lo + 1 : 0};
}

int dt_net_listen_within(struct dt_net *n, const char *host, const struct dt_ports *ports, int backlog,
                         struct dt_page *page, int *port_out, struct dt_error *err)
{
    if (ports->lo <= 0) {
        return dt_net_listen(n, host, 0, backlog, page, port_out, err);
    }
    int span = ports->hi - ports->lo + 1;
    for (int i = 0; i < span; i++) {
        if (dt_net_listen(n, host, ports->lo + (ports->first % span + i) % span, backlog, page, port_out, err) == 0) {
            return 0;
        }
        /* the name is at fault, so other ports would fail, too */
        if (err->status == DT_NOT_FOUND || err->status == DT_TIMEOUT) {
            return -1;
        }
    }
    return dt_wrap(err, "no free port in %d-%d", ports->lo, ports->hi);
}

bool dt_net_is_here(const char *host)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM}, *found = NULL;
    bool here = false;
    if (getaddrinfo(host, NULL, &hints, &found) != 0) {
        return true;
    }
    for (const struct addrinfo *a = found; a != NULL && !here; a = a->ai_next) {
        int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        here = fd >= 0 && (bind(fd, a->ai_addr, a->ai_addrlen) == 0 || errno != EADDRNOTAVAIL);
        if (fd >= 0) {
            (void)close(fd);
        }
    }
    freeaddrinfo(found);
    return here;
}

int dt_net_accept(struct dt_net *listener, struct dt_net *out, double deadline_s, struct dt_error *err)
{
    for (;;) {
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        int fd = accept4(listener->fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            char host[NI_MAXHOST] = "?", service[NI_MAXSERV] = "0";
            (void)getnameinfo((struct sockaddr *)&from, size, host, sizeof host, service, sizeof service,
                              NI_NUMERICHOST | NI_NUMERICSERV);
            struct dt_net made = {.fd = fd, .page = listener->page};
            (void)snprintf(made.name, sizeof made.name, strchr(host, ':') != NULL ? "[%.200s]:%s" : "%.200s:%s", host,
                           service);
            set_options(fd);
            *out = made;
            return 0;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
            return dt_fail_errno(err, "%s: accept", listener->name);
        }
        int rc = wait_for(listener, POLLIN, deadline_s, "accept", err);
        if (rc == 0) {
            return dt_fail(err, DT_TIMEOUT, "%s: accept: nobody connected in time", listener->name);
        }
        if (rc < 0) {
            return -1;
        }
    }
}

int dt_net_write(struct dt_net *n, const void *data, size_t size, double deadline_s, struct dt_error *err)
{
    const char *from = data;
    size_t sent = 0;
    while (sent < size) {
        ssize_t rc = send(n->fd, from + sent, size - sent, MSG_NOSIGNAL);
        if (rc >= 0) {
            sent += (size_t)rc;
            continue;
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            return fail_gone(n, "send", strerror(errno), err);
        }
        int ready = wait_for(n, POLLOUT, deadline_s, "send", err);
        if (ready == 0) {
            return dt_fail(err, DT_TIMEOUT, "%s: send: %zu of %zu bytes were taken in time", n->name, sent, size);
        }
        if (ready < 0) {
            return -1;
        }
    }
    return 0;
}

/* Reads at least at_least and at most size bytes. */
static int read_between(struct dt_net *n, void *data, size_t at_least, size_t size, size_t *out, double deadline_s,
                        struct dt_error *err)
{
    char *to = data;
    size_t got = 0;
    while (got < at_least) {
        ssize_t rc = recv(n->fd, to + got, size - got, 0);
        if (rc > 0) {
            got += (size_t)rc;
            continue;
        }
        if (rc == 0) {
            return fail_gone(n, "receive", "connection closed by the other side", err);
        }
        if (errno == EINTR) {
            continue;
        }
        if (errno != EAGAIN && errno != EWOULDBLOCK) {
            return fail_gone(n, "receive", strerror(errno), err);
        }
        int ready = wait_for(n, POLLIN, deadline_s, "receive", err);
        if (ready == 0) {
            return dt_fail(err, DT_TIMEOUT, "%s: receive: %zu of %zu bytes came in time", n->name, got, at_least);
        }
        if (ready < 0) {
            return -1;
        }
    }
    *out = got;
    return 0;
}

int dt_net_read(struct dt_net *n, void *data, size_t size, double deadline_s, struct dt_error *err)
{
    size_t got = 0;
    return read_between(n, data, size, size, &got, deadline_s, err);
}

int dt_net_read_some(struct dt_net *n, void *data, size_t size, size_t *got, double deadline_s, struct dt_error *err)
{
    return read_between(n, data, 1, size, got, deadline_s, err);
}

int dt_net_local_address(const struct dt_net *n, char *out, size_t out_bytes, struct dt_error *err)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    if (getsockname(n->fd, (struct sockaddr *)&at, &size) != 0) {
        return dt_fail_errno(err, "%s: own address", n->name);
    }
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&at;
    const struct sockaddr_in *four = (const struct sockaddr_in *)&at;
    const char *text;
    if (at.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) {
        text = inet_ntop(AF_INET, &six->sin6_addr.s6_addr[12], out, (socklen_t)out_bytes);
    } else if (at.ss_family == AF_INET6) {
        text = inet_ntop(AF_INET6, &six->sin6_addr, out, (socklen_t)out_bytes);
    } else {
        text = inet_ntop(AF_INET, &four->sin_addr, out, (socklen_t)out_bytes);
    }
    return text != NULL ? 0 : dt_fail_errno(err, "%s: own address", n->name);
}

void dt_net_close(struct dt_net *n)
{
    if (n->fd >= 0) {
        (void)close(n->fd);
        n->fd = -1;
    }
}
