/* Clients live in two lists: `fresh` ones have not finished the handshake (oldest last, so the timer looks at the end only), the
 * others are `active`. Answers are gathered per client while one read is processed and written afterwards, together with what
 * the read woke: first by uv_try_write, the rest by uv_write. A client is closed by drop() at any point; its memory goes when libuv
 * has closed the handle, and until then `closing` keeps everybody off it. */
#include "launcher/store_server.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "collectives/net.h"
#include "collectives/wire.h"
#include "launcher/endpoint.h"
#include "launcher/lookup.h"
#include "launcher/strangers.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { read_bytes = 65536, sweep_ms = 1000, STORE_LISTENERS = 2 };

struct client {
    uv_tcp_t handle;
    struct store_server *server;
    struct client *next, *previous; /* of fresh or active */
    struct client *next_dirty;
    bool is_fresh, is_dirty, closing;
    double since_s;
    struct dt_wire_parser parser;
    size_t held; /* what the parser held when last counted */
    struct dt_store_waiter waiter;
    struct dt_text output; /* answers not handed to libuv yet */
    size_t in_flight;      /* bytes libuv still has */
};

_Static_assert(sizeof(struct client) <= 4096, "thousands may be idle");

struct list {
    struct client *first, *last;
    size_t count;
};

struct store_server {
    struct store_server_options options;
    uv_loop_t *loop;
    uv_tcp_t listeners[STORE_LISTENERS];
    int listener_count;
    uv_timer_t timer;
    int port;
    int handles; /* not closed yet: listeners, timer, clients */
    bool closing;
    void (*closed)(void *user);
    void *closed_user;
    struct dt_store_table *table;
    struct list fresh, active;
    struct client *dirty;
    size_t held;     /* bytes in all parsers */
    double warned_s; /* last line about failing accepts */
    struct strangers strangers;
    void (*ping)(void *user, int pid); /* null: nobody asks */
    void *ping_user;
    uint64_t accepted, dropped, taken, rounds, requests[DT_WIRE_QUERY_COUNT];
    char buffer[read_bytes]; /* reads of all clients: libuv reads and calls back at once */
};

struct write {
    uv_write_t request;
    size_t size;
    struct client *client;
    struct dt_text bytes;
};

/* ---- lists and the end of clients ---- */

static void list_add(struct list *l, struct client *c)
{
    c->previous = NULL;
    c->next = l->first;
    *(l->first != NULL ? &l->first->previous : &l->last) = c;
    l->first = c;
    l->count++;
}

static void list_remove(struct list *l, struct client *c)
{
    *(c->previous != NULL ? &c->previous->next : &l->first) = c->next;
    *(c->next != NULL ? &c->next->previous : &l->last) = c->previous;
    l->count--;
}

static void handle_closed(struct store_server *s)
{
    if (--s->handles > 0 || !s->closing) {
        return;
    }
    void (*closed)(void *user) = s->closed;
    void *user = s->closed_user;
    dt_store_table_close(s->table);
    free(s);
    if (closed != NULL) {
        closed(user);
    }
}

static void on_client_closed(uv_handle_t *handle)
{
    struct client *c = handle->data;
    struct store_server *s = c->server;
    dt_wire_parser_clear(&c->parser);
    dt_text_clear(&c->output);
    free(c);
    handle_closed(s);
}

static void on_own_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static const char *peer_name(const struct client *c, char *out, size_t out_bytes)
{
    struct sockaddr_storage from = {0};
    int size = sizeof from;
    (void)uv_tcp_getpeername(&c->handle, (struct sockaddr *)&from, &size);
    return lookup_name((struct sockaddr *)&from, out, out_bytes);
}

/* Every time for those of the job; of others, whose host may try a thousand times, once a minute. */
static void say_dropped(struct client *c, const char *why)
{
    struct store_server *s = c->server;
    struct sockaddr_storage from = {0};
    int size = sizeof from, unsaid = 0;
    char name[320];
    (void)peer_name(c, name, sizeof name);
    if (!c->is_fresh) {
        dt_log(DT_LOG_WARN, "store", "client %s dropped: %s", name, why);
    } else if (uv_tcp_getpeername(&c->handle, (struct sockaddr *)&from, &size) == 0 &&
               strangers_refused(&s->strangers, (struct sockaddr *)&from, false, dt_now_s(), &unsaid)) {
        dt_log(DT_LOG_WARN, "store", "connection from %s dropped: %s; since the last line %d more", name, why, unsaid);
    }
}

/* Closes a client, saying why in one line unless why is null. Harmless twice. */
static void drop(struct client *c, const char *why)
{
    struct store_server *s = c->server;
    if (c->closing) {
        return;
    }
    if (why != NULL) {
        say_dropped(c, why);
        s->dropped++;
    }
    c->closing = true;
    s->held -= c->held;
    c->held = 0;
    dt_store_table_cancel(s->table, &c->waiter);
    list_remove(c->is_fresh ? &s->fresh : &s->active, c);
    if (c->is_dirty) {
        struct client **place = &s->dirty;
        while (*place != c) {
            place = &(*place)->next_dirty;
        }
        *place = c->next_dirty;
        c->is_dirty = false;
    }
    uv_close((uv_handle_t *)&c->handle, on_client_closed);
}

/* ---- answers ---- */

static void mark_dirty(struct client *c)
{
    if (!c->is_dirty && !c->closing) {
        c->is_dirty = true;
        c->next_dirty = c->server->dirty;
        c->server->dirty = c;
    }
}

static void on_ready(struct dt_store_waiter *w)
{
    struct client *c = w->user;
    dt_wire_put_u8(&c->output, DT_WIRE_STOP_WAITING);
    mark_dirty(c);
}

static void on_written(uv_write_t *request, int status)
{
    struct write *w = request->data;
    struct client *c = w->client;
    c->in_flight -= w->size;
    if (status < 0 && status != UV_ECANCELED) {
        drop(c, status == UV_EPIPE || status == UV_ECONNRESET ? NULL : uv_strerror(status));
    }
    dt_text_clear(&w->bytes);
    free(w);
}

static void send_output(struct client *c)
{
    size_t sent = 0;
    if (c->in_flight == 0) {
        uv_buf_t buf = uv_buf_init(c->output.data, (unsigned)(c->output.size < (1u << 30) ? c->output.size : (1u << 30)));
        int rc = uv_try_write((uv_stream_t *)&c->handle, &buf, 1);
        if (rc < 0 && rc != UV_EAGAIN) {
            drop(c, rc == UV_EPIPE || rc == UV_ECONNRESET ? NULL : uv_strerror(rc));
            return;
        }
        sent = rc > 0 ? (size_t)rc : 0;
    }
    size_t rest = c->output.size - sent;
    if (rest == 0) {
        if (c->output.capacity > read_bytes) {
            dt_text_clear(&c->output);
        } else {
            dt_text_reset(&c->output);
        }
        return;
    }
    struct write *w = dt_alloc(sizeof *w);
    *w = (struct write){.client = c, .size = rest, .bytes = c->output};
    w->request.data = w;
    dt_text_init(&c->output);
    uv_buf_t buf = uv_buf_init(w->bytes.data + sent, (unsigned)rest);
    int rc = uv_write(&w->request, (uv_stream_t *)&c->handle, &buf, 1, on_written);
    if (rc < 0) {
        dt_text_clear(&w->bytes);
        free(w);
        drop(c, uv_strerror(rc));
        return;
    }
    c->in_flight += rest;
}

void store_server_on_ping(struct store_server *s, void (*ping)(void *user, int pid), void *user)
{
    s->ping = ping;
    s->ping_user = user;
}

void store_server_flush(struct store_server *s)
{
    while (s->dirty != NULL) {
        struct client *c = s->dirty;
        s->dirty = c->next_dirty;
        c->is_dirty = false;
        send_output(c);
    }
}

/* ---- requests ---- */

static void count_held(struct client *c)
{
    size_t held = dt_wire_parser_held(&c->parser);
    c->server->held += held - c->held;
    c->held = held;
}

/* Process ids of other machines say nothing here. */
static bool is_of_this_machine(const struct client *c)
{
    struct sockaddr_storage from = {0}, to = {0};
    int from_size = sizeof from, to_size = sizeof to;
    return uv_tcp_getpeername(&c->handle, (struct sockaddr *)&from, &from_size) == 0 &&
           uv_tcp_getsockname(&c->handle, (struct sockaddr *)&to, &to_size) == 0 &&
           lookup_same_host((struct sockaddr *)&from, (struct sockaddr *)&to);
}

static void serve(struct client *c, const char *data, size_t size)
{
    struct store_server *s = c->server;
    struct dt_wire_request r;
    struct dt_error err = {0};
    int rc;
    dt_wire_feed(&c->parser, data, size);
    while ((rc = dt_wire_next(&c->parser, &r, &err)) == 1) {
        if (c->is_fresh) {
            list_remove(&s->fresh, c);
            c->is_fresh = false;
            list_add(&s->active, c);
        }
        s->requests[r.query]++;
        if (r.query == DT_WIRE_PING && s->ping != NULL && r.word <= INT32_MAX && is_of_this_machine(c)) {
            s->ping(s->ping_user, (int)r.word);
        }
        if (r.query == DT_WIRE_WAIT || r.query == DT_WIRE_BARRIER) {
            c->waiter.since_s = (double)uv_now(s->loop) * 1e-3;
        }
        if (c->in_flight + c->output.size > s->options.output_bytes) { /* one answer may be longer, but then the next has to wait for it */
            rc = dt_fail(&err, DT_INVALID, "asks on, and does not read its answers");
            break;
        }
        if (dt_wire_answer(s->table, &c->waiter, &r, &c->output, &err) != 0) {
            rc = -1;
            break;
        }
    }
    if (rc != 0) {
        drop(c, err.text);
        return;
    }
    count_held(c);
    if (s->held > s->options.limits.total_bytes) {
        drop(c, "unfinished requests of all clients take too much memory");
        return;
    }
    if (c->output.size > 0) {
        mark_dirty(c);
    }
}

/* The torch protocol has no key: only hosts of the job may use it. */
static bool is_allowed(const struct client *c)
{
    const struct store_server_options *o = &c->server->options;
    struct sockaddr_storage from = {0};
    int size = sizeof from;
    return o->allow == NULL || (uv_tcp_getpeername(&c->handle, (struct sockaddr *)&from, &size) == 0 && o->allow(o->user, (struct sockaddr *)&from));
}

/* The first byte was not 0x00: out of libuv's hands by a duplicate of the socket. */
static void give_away(struct client *c, const char *data, size_t size)
{
    struct store_server *s = c->server;
    int fd = -1, copy = -1;
    char name[320];
    if (s->options.take != NULL && uv_fileno((uv_handle_t *)&c->handle, &fd) == 0) {
        copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    }
    (void)uv_read_stop((uv_stream_t *)&c->handle);
    if (copy >= 0 && s->options.take(s->options.user, copy, data, size, peer_name(c, name, sizeof name))) {
        s->taken++;
        drop(c, NULL);
        return;
    }
    if (copy >= 0) {
        (void)close(copy);
    }
    drop(c, "does not speak the store's protocol");
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct client *c = handle->data;
    (void)suggested;
    *buf = uv_buf_init(c->server->buffer, read_bytes);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct client *c = stream->data;
    struct store_server *s = c->server;
    if (size == 0 || c->closing) {
        return;
    }
    if (size < 0) {
        bool usual = size == UV_EOF || size == UV_ECONNRESET || size == UV_EPIPE;
        drop(c, usual ? NULL : uv_strerror((int)size));
    } else if (c->is_fresh && dt_wire_parser_held(&c->parser) == 0 && buf->base[0] != DT_WIRE_VALIDATE) {
        give_away(c, buf->base, (size_t)size);
    } else if (c->is_fresh && dt_wire_parser_held(&c->parser) == 0 && !is_allowed(c)) {
        drop(c, "its host is not part of the job");
    } else {
        serve(c, buf->base, (size_t)size);
    }
    store_server_flush(s);
}

/* ---- connections ---- */

/* A connection of fd, or (listener given) the next one from it. */
static void welcome(struct store_server *s, int fd, uv_stream_t *listener)
{
    struct client *c = dt_alloc(sizeof *c);
    c->server = s;
    c->handle.data = c;
    dt_wire_parser_init(&c->parser, &s->options.limits);
    c->waiter.ready = on_ready;
    c->waiter.user = c;
    c->since_s = dt_now_s();
    int rc = uv_tcp_init(s->loop, &c->handle);
    if (rc != 0) {
        free(c);
        return;
    }
    s->handles++;
    rc = listener == NULL ? uv_tcp_open(&c->handle, fd) : uv_accept(listener, (uv_stream_t *)&c->handle);
    if (rc != 0) {
        if (listener == NULL) {
            (void)close(fd);
        }
        c->closing = true;
        uv_close((uv_handle_t *)&c->handle, on_client_closed);
        return;
    }
    s->accepted++;
    c->is_fresh = true;
    list_add(&s->fresh, c);
    (void)uv_tcp_nodelay(&c->handle, 1);
    if (s->fresh.count > s->options.fresh_count) {
        drop(s->fresh.last, "too many connections that say nothing");
    }
    if (s->options.client_count > 0 && s->fresh.count + s->active.count > s->options.client_count) {
        drop(c, "too many connections");
        return;
    }
    int socket = -1;
    if (uv_fileno((uv_handle_t *)&c->handle, &socket) == 0) {
        int on = 1, idle_s = 30, interval_s = 10, probes = 3, unsent_ms = 120000;
        (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
        (void)setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
        (void)setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &unsent_ms, sizeof unsent_ms);
    }
    rc = uv_read_start((uv_stream_t *)&c->handle, on_alloc, on_read);
    if (rc != 0) {
        drop(c, uv_strerror(rc));
    }
}

/* libuv accepts until the queue is empty and calls here for each. */
static void on_connection(uv_stream_t *listener, int status)
{
    struct store_server *s = listener->data;
    if (status == 0) {
        welcome(s, -1, listener);
        return;
    }
    if (dt_now_s() - s->warned_s > 10) {
        s->warned_s = dt_now_s();
        dt_log(DT_LOG_WARN, "store", "accept: %s; clients %zu", uv_strerror(status), s->fresh.count + s->active.count);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct store_server *s = timer->data;
    double now_s = dt_now_s();
    while (s->fresh.last != NULL && now_s - s->fresh.last->since_s > s->options.hello_s) {
        drop(s->fresh.last, "connected, but sent no valid beginning in time");
    }
}

/* ---- open, reset, close ---- */

int store_server_listen(struct store_server *s, int fd, struct dt_error *err)
{
    if (s->listener_count == STORE_LISTENERS) {
        return dt_fail(err, DT_INVALID, "listen: %d ports are all it has", (int)STORE_LISTENERS);
    }
    uv_tcp_t *listener = &s->listeners[s->listener_count];
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3); /* so that the caller keeps fd when this fails */
    if (copy < 0) {
        return dt_fail_errno(err, "listen");
    }
    (void)uv_tcp_init(s->loop, listener);
    listener->data = s;
    s->listener_count++;
    s->handles++;
    int rc = uv_tcp_open(listener, copy);
    if (rc != 0) {
        (void)close(copy);
    }
    rc = rc == 0 ? uv_listen((uv_stream_t *)listener, s->options.backlog, on_connection) : rc;
    if (rc != 0) {
        return dt_fail(err, DT_IO, "listen: %s", uv_strerror(rc));
    }
    (void)close(fd);
    return 0;
}

int store_server_open(struct store_server **out, uv_loop_t *loop, const struct store_server_options *options, struct dt_error *err)
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
        port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port : ((struct sockaddr_in *)&at)->sin_port);
        (void)dt_net_name("*", port, net.name, sizeof net.name);
    } else if (dt_net_listen(&net, options->host, options->port, backlog, NULL, &port, err) != 0) {
        char owner[128];
        bool taken = options->port > 0 && endpoint_port_owner(options->port, owner, sizeof owner);
        return taken ? dt_fail(err, DT_IO, "port %d: already in use by %s; end it, or choose another port", options->port, owner) : -1;
    }
    struct store_server *s = dt_alloc(sizeof *s);
    size_t files = dt_file_raise_limit();
    s->options = *options;
    s->options.backlog = backlog;
    s->options.limits = dt_store_limits_or_default(&options->limits);
    s->options.output_bytes = options->output_bytes > 0 ? options->output_bytes : (size_t)16 << 20;
    s->options.fresh_count = options->fresh_count > 0 ? options->fresh_count : files / 4 < 4096 ? files / 4 : 4096;
    s->options.hello_s = options->hello_s > 0 ? options->hello_s : 30;
    s->options.host = NULL;
    s->loop = loop;
    s->port = port;
    s->table = dt_store_table_open(&s->options.limits);
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    s->handles = 1;
    if (store_server_listen(s, net.fd, err) != 0) {
        if (options->listen_fd <= 0) {
            dt_net_close(&net);
        }
        store_server_close(s, NULL, NULL);
        return dt_wrap(err, "%s", net.name);
    }
    (void)uv_timer_start(&s->timer, on_sweep, sweep_ms, sweep_ms);
    uv_unref((uv_handle_t *)&s->timer);
    *out = s;
    return 0;
}

int store_server_port(const struct store_server *s)
{
    return s->port;
}

struct dt_store_table *store_server_table(struct store_server *s)
{
    return s->table;
}

static int first_byte(int fd)
{
    unsigned char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1 ? byte : -1;
}

/* Connections of the old round may still lie in the accept queue with requests in their buffers: those must not reach the new table. */
static void drain_accept_queue(struct store_server *s)
{
    for (int i = 0; i < s->listener_count; i++) {
        int listener = -1, fd;
        if (uv_fileno((uv_handle_t *)&s->listeners[i], &listener) != 0) {
            continue;
        }
        while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
            if (first_byte(fd) == DT_WIRE_VALIDATE) {
                (void)close(fd);
            } else {
                welcome(s, fd, NULL);
            }
        }
    }
}

void store_server_reset(struct store_server *s)
{
    while (s->active.first != NULL) {
        drop(s->active.first, NULL);
    }
    for (struct client *c = s->fresh.first, *next; c != NULL; c = next) {
        int fd = -1;
        next = c->next;
        if (dt_wire_parser_held(&c->parser) > 0 || (uv_fileno((uv_handle_t *)&c->handle, &fd) == 0 && first_byte(fd) == DT_WIRE_VALIDATE)) {
            drop(c, NULL);
        }
    }
    drain_accept_queue(s);
    dt_store_table_reset(s->table);
    s->rounds++;
}

void store_server_close(struct store_server *s, void (*closed)(void *user), void *user)
{
    s->closing = true;
    s->closed = closed;
    s->closed_user = user;
    while (s->active.first != NULL) {
        drop(s->active.first, NULL);
    }
    while (s->fresh.first != NULL) {
        drop(s->fresh.first, NULL);
    }
    uv_close((uv_handle_t *)&s->timer, on_own_closed);
    for (int i = 0; i < s->listener_count; i++) {
        uv_close((uv_handle_t *)&s->listeners[i], on_own_closed);
    }
}

/* ---- statistics ---- */

enum { WAIT_KEYS = 64 }; /* enough to see for whom everybody waits */

struct waits {
    struct {
        struct dt_bytes key;
        const struct dt_store_waiter *oldest;
        size_t count;
    } keys[WAIT_KEYS];
    size_t key_count;
};

static void note_wait(void *user, const struct dt_store_waiter *w, struct dt_bytes key)
{
    struct waits *l = user;
    size_t i = 0;
    while (i < l->key_count && (l->keys[i].key.size != key.size || memcmp(l->keys[i].key.data, key.data, key.size) != 0)) {
        i++;
    }
    if (i == WAIT_KEYS) {
        return;
    }
    if (i == l->key_count) {
        l->keys[l->key_count++].key = key;
    }
    l->keys[i].count++;
    if (l->keys[i].oldest == NULL || w->since_s < l->keys[i].oldest->since_s) {
        l->keys[i].oldest = w;
    }
}

static void show_waits(const struct store_server *s, struct dt_text *out)
{
    struct waits l = {.key_count = 0};
    double now_s = (double)uv_now(s->loop) * 1e-3;
    dt_store_table_each_waiter(s->table, note_wait, &l);
    for (size_t i = 0; i < l.key_count; i++) {
        char name[320], text[256];
        const struct dt_store_waiter *w = l.keys[i].oldest;
        dt_text_printf(out, "%s{\"peer\":\"%s\",\"key\":", i > 0 ? "," : "", peer_name(w->user, name, sizeof name));
        (void)dt_store_key_text(l.keys[i].key, text, sizeof text);
        dt_text_json(out, text, strlen(text));
        dt_text_printf(out, ",\"count\":%zu,\"missing\":%zu,\"age_s\":%.1f}", l.keys[i].count, w->missing_count, now_s - w->since_s);
    }
}

void store_server_stats(const struct store_server *s, struct dt_text *out)
{
    dt_text_printf(out,
                   "{\"clients\":%zu,\"accepted\":%llu,\"dropped\":%llu,\"taken\":%llu,\"rounds\":%llu,\"keys\":%lld,\"bytes\":%zu,\"requests\":{",
                   s->fresh.count + s->active.count, (unsigned long long)s->accepted, (unsigned long long)s->dropped, (unsigned long long)s->taken,
                   (unsigned long long)s->rounds, (long long)dt_store_table_key_count(s->table), dt_store_table_bytes(s->table));
    const char *comma = "";
    for (int i = 0; i < DT_WIRE_QUERY_COUNT; i++) {
        if (s->requests[i] > 0) {
            dt_text_printf(out, "%s\"%s\":%llu", comma, dt_wire_query_name((enum dt_wire_query)i), (unsigned long long)s->requests[i]);
            comma = ",";
        }
    }
    dt_text_puts(out, "},\"waits\":[");
    show_waits(s, out);
    dt_text_puts(out, "]}");
}
