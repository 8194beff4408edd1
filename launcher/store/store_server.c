/* Clients live in two lists: `fresh` ones have not finished the handshake (newest first, so the
 * timer looks at the end only), the others are `active`. libuv says which socket is ready
 * (uv_poll_t); they are read here and written in store_clients.c, which costs less per request
 * than libuv's streams. */
#include "launcher/store/store_private.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "collectives/net.h"
#include "launcher/net/endpoint.h"
#include "launcher/net/lookup.h"
#include "launcher/store/store_waits.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    reads_at_once = 4, /* full buffers of one client before the others have their turn */
    sweep_ms = 1000,
    linger_us = 15,
    gather_us = 40,
    stream_reads = 4 /* of one client, nothing but requests without an answer: more of them are
                      * on their way */
};

/* ---- requests ---- */

void store_server_on_ping(struct store_server *s, void (*ping)(void *user, int pid), void *user)
{
    s->ping = ping;
    s->ping_user = user;
}

static void take_ping(struct store_client *c, uint32_t word)
{
    const struct store_server *s = c->server;
    c->looks = c->looks || (word & DT_WIRE_LOOKS) != 0;
    c->pid = (int)(word & ~DT_WIRE_LOOKS);
    if (s->ping != NULL && c->guest.is_here && c->pid > 0) { /* process ids of other machines say
                                                              * nothing here */
        s->ping(s->ping_user, c->pid);
    }
}

static bool has_answer(enum dt_wire_query query)
{
    return query != DT_WIRE_SET && query != DT_WIRE_MULTI_SET && query != DT_WIRE_APPEND && query != DT_WIRE_QUEUE_PUSH;
}

/* The client that costs most memory: by what it began to ask, by answers that it does not read.
 * Null: none costs much. */
static struct store_client *find_hog(const struct store_server *s)
{
    struct store_client *hog = NULL;
    size_t most = STORE_READ_BYTES;
    const struct store_list *lists[] = {&s->active, &s->fresh};
    for (int i = 0; i < 2; i++) {
        for (struct store_client *c = lists[i]->first; c != NULL; c = c->next) {
            size_t cost = c->held + dt_wire_output_left(&c->output);
            hog = cost > most ? c : hog;
            most = cost > most ? cost : most;
        }
    }
    return hog;
}

/* Keys and values, unfinished requests and unread answers of all clients have one bound. False:
 * c is closed. */
static bool make_room(struct store_server *s, struct store_client *c)
{
    struct store_client *hog = c;
    while (dt_store_table_bytes(s->table) + dt_store_table_left_bytes(s->table) + s->held >
               s->options.limits.total_bytes &&
           hog != NULL) {
        hog = find_hog(s);
        if (hog != NULL) {
            store_client_drop(
                hog, "the store is full, and it holds most: answers that it does not read, or an unfinished request");
        }
    }
    return !c->closing;
}

static void serve(struct store_client *c, const char *data, size_t size)
{
    struct store_server *s = c->server;
    bool waits = false, any = false;
    struct dt_wire_request r;
    struct dt_error err = {0};
    int rc;
    dt_wire_feed(&c->parser, data, size);
    while ((rc = dt_wire_next(&c->parser, &r, &err)) == 1) {
        if (c->is_fresh) {
            store_list_remove(&s->fresh, c);
            c->is_fresh = false;
            store_list_add(&s->active, c);
            store_crowd_greeted(s, c);
        }
        s->requests[r.query]++;
        any = true;
        waits = waits || has_answer(r.query);
        if (r.query == DT_WIRE_PING) {
            take_ping(c, r.word);
        }
        if (r.query == DT_WIRE_WAIT || r.query == DT_WIRE_BARRIER) {
            c->waiter.since_s = (double)uv_now(s->loop) * 1e-3;
        }
        /* one answer may be longer, but then the next has to wait for it */
        if (dt_wire_output_unsent(&c->output) > s->options.output_bytes) {
            rc = dt_fail(&err, DT_INVALID, "asks on, and does not read its answers");
            break;
        }
        if (dt_wire_answer(s->table, &c->waiter, &r, &c->output, &err) != 0) {
            rc = -1;
            break;
        }
    }
    if (rc != 0) {
        store_client_drop(c, err.text);
        return;
    }
    store_client_count(c);
    if (!make_room(s, c)) {
        return;
    }
    c->unasked = waits || !any ? 0 : c->unasked < stream_reads ? c->unasked + 1 : stream_reads;
    s->soon = s->soon || c->looks;
    s->streams = s->streams || (c->looks && c->unasked >= stream_reads);
    if (dt_wire_output_unsent(&c->output) > 0) {
        store_client_mark(c);
    }
}

/* The first byte was not 0x00: the socket is somebody else's, or closed. */
static void give_away(struct store_client *c, const char *data, size_t size)
{
    struct store_server *s = c->server;
    char name[320];
    (void)store_client_name(c, name, sizeof name);
    if (s->options.take == NULL) {
        store_client_drop(c, "does not speak the store's protocol");
        return;
    }
    store_client_leave(c); /* first, for whoever takes it watches it with the same loop */
    if (s->options.take(s->options.user, c->fd, data, size, name)) {
        s->taken++;
        return;
    }
    store_client_say_dropped(c, "does not speak the store's protocol");
    s->dropped++;
    (void)close(c->fd);
}

static void receive(struct store_client *c, int reads)
{
    struct store_server *s = c->server;
    struct dt_error err;
    for (int i = 0; i < reads && !c->closing; i++) {
        ssize_t size = recv(c->fd, s->buffer, STORE_READ_BYTES, 0);
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            break;
        }
        if (size <= 0) {
            bool usual = size == 0 || errno == ECONNRESET || errno == EPIPE;
            store_client_drop(c, usual ? NULL : strerror(errno));
        } else if (c->is_fresh && dt_wire_parser_held(&c->parser) == 0 && s->buffer[0] != DT_WIRE_VALIDATE) {
            give_away(c, s->buffer, (size_t)size);
        } else if (c->is_fresh && dt_wire_parser_held(&c->parser) == 0 &&
                   store_access_check(&s->access, c->fd, &c->guest, &err) != 0) {
            store_client_drop(c, err.text);
        } else {
            serve(c, s->buffer, (size_t)size);
        }
        if (size < STORE_READ_BYTES) { /* that was all; libuv says when there is more */
            break;
        }
        store_server_flush(s);
    }
    if (s->dirty_count >= STORE_DIRTY_MOST) {
        store_server_flush(s);
    }
}

void store_client_event(uv_poll_t *handle, int status, int events)
{
    struct store_client *c = handle->data;
    if (!c->closing && (events & UV_WRITABLE) != 0) {
        store_client_send(c);
    }
    if (!c->closing && (status < 0 || (events & UV_READABLE) != 0)) {
        receive(c, status < 0 ? INT_MAX : reads_at_once); /* what came before an error counts */
    }
    if (!c->closing && status < 0) { /* libuv looks at it no longer */
        store_server_flush(c->server);
        store_client_drop(c, NULL);
    }
}

/* ---- connections ---- */

static void set_options(int fd)
{
    int on = 1, idle_s = 30, interval_s = 10, probes = 3, unsent_ms = 120000;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof unsent_ms);
}

/* A new connection, fd: a client until it shows otherwise. Null: it could not be watched and is
 * closed. */
static struct store_client *welcome(struct store_server *s, int fd)
{
    struct store_client *c = dt_alloc(sizeof *c);
    int rc = uv_poll_init(s->loop, &c->handle, fd);
    if (rc != 0) {
        free(c);
        (void)close(fd);
        return NULL;
    }
    c->fd = fd;
    c->server = s;
    c->handle.data = c;
    dt_wire_parser_init(&c->parser, &s->options.limits);
    c->waiter.ready = store_client_woken;
    c->waiter.user = c;
    c->since_s = dt_now_s();
    s->handles++;
    s->accepted++;
    c->is_fresh = true;
    store_list_add(&s->fresh, c);
    if (s->fresh.count > s->options.fresh_count) {
        store_client_drop(s->fresh.last, "too many connections that say nothing");
    }
    store_crowd_came(s, c);
    if (!c->closing) {
        set_options(fd);
        store_client_watch(c, false);
    }
    return c;
}

static void on_connection(void *user, int fd)
{
    struct store_client *c = welcome(user, fd);
    if (c != NULL) { /* what it says is often there already */
        receive(c, reads_at_once);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct store_server *s = timer->data;
    double now_s = dt_now_s();
    while (s->fresh.last != NULL && now_s - s->fresh.last->since_s > s->options.hello_s) {
        store_client_drop(s->fresh.last, "connected, but sent no valid beginning in time");
    }
}

/* Looks for the next request for a short time: its client does so for our answer, and to look is
 * cheaper for both than to sleep and be woken. What a client sends that waits for nothing
 * gathers before: to take each request as it comes makes sending it twice as dear for the client
 * as to add it to others. */
static void linger(const struct store_server *s)
{
    struct pollfd p = {.fd = uv_backend_fd(s->loop), .events = POLLIN};
    uint64_t from_ns = uv_hrtime() + (s->streams ? gather_us * 1000 : 0), until_ns = from_ns + linger_us * 1000;
    while (s->streams && uv_hrtime() < from_ns) {
        (void)sched_yield();
    }
    while (poll(&p, 1, 0) == 0 && uv_hrtime() < until_ns) {
        (void)sched_yield();
    }
}

/* The loop has been through the sockets that were ready. */
static void on_read(uv_check_t *check)
{
    struct store_server *s = check->data;
    store_server_flush(s);
    if (s->soon) {
        linger(s);
        s->soon = s->streams = false;
    }
}

/* ---- open, reset, close ---- */

int store_server_listen(struct store_server *s, int fd, struct dt_error *err)
{
    if (s->listener_count == STORE_LISTENERS) {
        return dt_fail(err, DT_INVALID, "listen: %d ports are all it has", (int)STORE_LISTENERS);
    }
    if (listener_open(&s->listeners[s->listener_count], s->loop, fd, s->options.backlog, on_connection, s, err) != 0) {
        return -1;
    }
    s->listener_count++;
    s->handles++;
    return 0;
}

static int listen_at(struct dt_net *net, const struct store_server_options *o, int backlog, int *port,
                     struct dt_error *err)
{
    return o->port == 0 ? dt_net_listen_within(net, o->host, &o->range, backlog, NULL, port, err)
                        : dt_net_listen(net, o->host, o->port, backlog, NULL, port, err);
}

int store_server_open(struct store_server **out, uv_loop_t *loop, const struct store_server_options *options,
                      struct dt_error *err)
{
    struct dt_net net = {.fd = -1};
    int port = 0, backlog = options->backlog > 0 ? options->backlog : 4096;
    if (options->listen_fd > 0) {
        struct sockaddr_storage at = {0};
        socklen_t size = sizeof at;
        if (getsockname(options->listen_fd, (struct sockaddr *)&at, &size) != 0) {
            return dt_fail_errno(err, "listening socket %d", options->listen_fd);
        }
        net.fd = options->listen_fd;
        port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                              : ((struct sockaddr_in *)&at)->sin_port);
        (void)dt_net_name("*", port, net.name, sizeof net.name);
    } else if (listen_at(&net, options, backlog, &port, err) != 0) {
        char owner[128], range[48] = "";
        int last = options->port > 0 ? options->port : options->range.hi; /* that was tried */
        if (options->port == 0) {
            (void)snprintf(range, sizeof range, "no free port in %d-%d: ", options->range.lo, options->range.hi);
        }
        bool taken = last > 0 && err->status == DT_IO && endpoint_port_owner(last, owner, sizeof owner);
        return taken ? dt_fail(err, DT_IO, "%sport %d: already in use by %s; end it, or choose another port", range,
                               last, owner)
                     : -1;
    }
    struct store_server *s = dt_alloc(sizeof *s);
    size_t files = dt_file_raise_limit();
    s->options = *options;
    s->options.backlog = backlog;
    s->options.limits = dt_store_limits_or_default(&options->limits);
    s->options.output_bytes = options->output_bytes > 0 ? options->output_bytes : (size_t)16 << 20;
    s->options.fresh_count = options->fresh_count > 0 ? options->fresh_count : files / 4 < 4096 ? files / 4 : 4096;
    s->options.hello_s = options->hello_s > 0 ? options->hello_s : 30;
    s->options.client_count = options->client_count > 0 ? options->client_count : STORE_CLIENTS;
    s->options.host = NULL;
    s->loop = loop;
    s->port = port;
    s->table = dt_store_table_open(&s->options.limits);
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    (void)uv_check_init(loop, &s->read);
    s->read.data = s;
    s->handles = 2;
    s->access.owners.fd = -1;
    if (store_server_listen(s, net.fd, err) != 0) {
        if (options->listen_fd <= 0) {
            dt_net_close(&net);
        }
        store_server_close(s, NULL, NULL);
        return dt_wrap(err, "%s", net.name);
    }
    store_access_open(&s->access, &s->options.access, net.fd);
    (void)uv_timer_start(&s->timer, on_sweep, sweep_ms, sweep_ms);
    uv_unref((uv_handle_t *)&s->timer);
    (void)uv_check_start(&s->read, on_read);
    uv_unref((uv_handle_t *)&s->read);
    *out = s;
    return 0;
}

int store_server_port(const struct store_server *s)
{
    return s->port;
}

bool store_server_is_open(const struct store_server *s)
{
    return s->access.everybody;
}

void store_server_expect(struct store_server *s, int world_size)
{
    s->options.client_count = (size_t)world_size * 4 + 1024;
}

static int first_byte(int fd)
{
    unsigned char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 ? byte : -1;
}

/* Connections of the old round may still lie in the accept queue with requests in their buffers:
 * those must not reach the new table. */
static void drain_accept_queue(struct store_server *s)
{
    for (int i = 0; i < s->listener_count; i++) {
        int fd;
        while ((fd = listener_next(&s->listeners[i])) >= 0) {
            if (first_byte(fd) == DT_WIRE_VALIDATE) {
                (void)close(fd);
            } else {
                (void)welcome(s, fd);
            }
        }
    }
}

void store_server_reset(struct store_server *s)
{
    store_server_flush(s);
    while (s->active.first != NULL) {
        store_client_drop(s->active.first, NULL);
    }
    for (struct store_client *c = s->fresh.first, *next; c != NULL; c = next) {
        next = c->next;
        if (dt_wire_parser_held(&c->parser) > 0 || first_byte(c->fd) == DT_WIRE_VALIDATE) {
            store_client_drop(c, NULL);
        }
    }
    drain_accept_queue(s);
    dt_store_table_reset(s->table);
    s->rounds++;
}

static void on_own_closed(uv_handle_t *handle)
{
    store_handle_closed(handle->data);
}

static void on_listener_closed(void *user)
{
    store_handle_closed(user);
}

void store_server_close(struct store_server *s, void (*closed)(void *user), void *user)
{
    store_server_flush(s);
    s->closing = true;
    s->closed = closed;
    s->closed_user = user;
    while (s->active.first != NULL) {
        store_client_drop(s->active.first, NULL);
    }
    while (s->fresh.first != NULL) {
        store_client_drop(s->fresh.first, NULL);
    }
    uv_close((uv_handle_t *)&s->timer, on_own_closed);
    uv_close((uv_handle_t *)&s->read, on_own_closed);
    for (int i = 0; i < s->listener_count; i++) {
        listener_close(&s->listeners[i], on_listener_closed);
    }
}

/* ---- statistics ---- */

static const char *waiter_name(const struct dt_store_waiter *w, char *out, size_t out_bytes)
{
    return store_client_name(w->user, out, out_bytes);
}

void store_server_count(const struct store_server *s, struct store_server_counts *out)
{
    *out = (struct store_server_counts){.clients = s->fresh.count + s->active.count,
                                        .bytes = dt_store_table_bytes(s->table),
                                        .keys = dt_store_table_key_count(s->table),
                                        .accepted = s->accepted,
                                        .dropped = s->dropped,
                                        .taken = s->taken,
                                        .rounds = s->rounds};
    for (int i = 0; i < DT_WIRE_QUERY_COUNT; i++) {
        out->requests += s->requests[i];
    }
}

void store_server_details(const struct store_server *s, struct dt_text *out)
{
    const char *comma = "";
    dt_text_puts(out, "\"requests\":{");
    for (int i = 0; i < DT_WIRE_QUERY_COUNT; i++) {
        if (s->requests[i] > 0) {
            dt_text_printf(out, "%s\"%s\":%llu", comma, dt_wire_query_name((enum dt_wire_query)i),
                           (unsigned long long)s->requests[i]);
            comma = ",";
        }
    }
    dt_text_puts(out, "},\"waits\":[");
    store_waits_show(s->table, (double)uv_now(s->loop) * 1e-3, waiter_name, out);
    dt_text_puts(out, "]");
}
