/* Connections that are not up are in one list, which the sweep looks at; those that are up stand in an array sorted by the peer's id and cost
 * nothing while idle: no timer, no buffer. Whatever a caller asks for is queued and done by the loop (the prepare handle), so that no hook is
 * ever called from within a call.
 *
 * Two agents may connect to each other at once. The one with the smaller id decides: as a server by its answer, as a client by sending its
 * proof, and it prefers what it began itself, unless the other side says (last session) that it had that link already and lost it. */
#include "launcher/link_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "launcher/endpoint.h"

#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { batch_bytes = 65536, refusals_per_s = 10 };
static const double line_interval_s = 60;

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf);
static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf);
static void lost(struct conn *c, bool dead, bool ask);
static void close_rest(struct link *l);

double link_now(const struct link *l)
{
    (void)l;
    return dt_now_s();
}

/* ---- peers ---- */

/* Index of the first peer whose id is not smaller. */
static int place_of(const struct link *l, uint64_t peer)
{
    int low = 0, high = l->peer_count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (l->peers[middle]->secure.peer_id < peer) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct conn *link_find(const struct link *l, uint64_t peer)
{
    int i = place_of(l, peer);
    return i < l->peer_count && l->peers[i]->secure.peer_id == peer ? l->peers[i] : NULL;
}

static void add_peer(struct link *l, struct conn *c)
{
    int i = place_of(l, c->secure.peer_id);
    if (l->peer_count == l->peer_capacity) {
        l->peer_capacity = l->peer_capacity > 0 ? l->peer_capacity * 2 : 16;
        l->peers = dt_realloc(l->peers, (size_t)l->peer_capacity * sizeof(struct conn *));
    }
    memmove(l->peers + i + 1, l->peers + i, (size_t)(l->peer_count - i) * sizeof(struct conn *));
    l->peers[i] = c;
    l->peer_count++;
}

static void remove_peer(struct link *l, const struct conn *c)
{
    int i = place_of(l, c->secure.peer_id);
    memmove(l->peers + i, l->peers + i + 1, (size_t)(l->peer_count - i - 1) * sizeof(struct conn *));
    l->peer_count--;
}

static struct known *find_known(const struct link *l, uint64_t id)
{
    for (int i = 0; i < l->known_count; i++) {
        if (l->known[i].id == id) {
            return &l->known[i];
        }
    }
    return NULL;
}

static void remember(struct link *l, const struct conn *c)
{
    struct known *k = find_known(l, c->secure.peer_id);
    if (k == NULL && l->known_count < LINK_KNOWN_MAX) {
        if (l->known_count == l->known_capacity) {
            l->known_capacity = l->known_capacity > 0 ? l->known_capacity * 2 : 16;
            l->known = dt_realloc(l->known, (size_t)l->known_capacity * sizeof *l->known);
        }
        k = &l->known[l->known_count++];
    } else if (k == NULL) {
        k = &l->known[l->known_next++ % LINK_KNOWN_MAX];
    }
    *k = (struct known){.id = c->secure.peer_id, .host = c->from};
    memcpy(k->session, c->secure.session, sizeof k->session);
}

/* ---- connections ---- */

static void list_add(struct link *l, struct conn *c)
{
    c->previous = NULL;
    c->next = l->first;
    *(l->first != NULL ? &l->first->previous : &l->last) = c;
    l->first = c;
    c->listed = true;
    link_watch(l);
}

static void list_remove(struct link *l, struct conn *c)
{
    if (c->listed) {
        *(c->previous != NULL ? &c->previous->next : &l->first) = c->next;
        *(c->next != NULL ? &c->next->previous : &l->last) = c->previous;
        c->listed = false;
    }
}

static bool is_half_open(const struct conn *c)
{
    return !c->secure.client && (c->state == CONN_GREETING || c->state == CONN_REFUSED);
}

static void set_state(struct conn *c, enum conn_state state)
{
    c->link->accepted_count -= is_half_open(c);
    c->state = state;
    c->link->accepted_count += is_half_open(c);
}

static void free_items(struct items *q)
{
    while (q->first != NULL) {
        struct item *i = q->first;
        q->first = i->next;
        free(i);
    }
    q->last = &q->first;
}

void link_handle_closed(struct link *l)
{
    if (--l->handles > 0) {
        return;
    }
    void (*closed)(void *user) = l->closed;
    void *user = l->closed_user;
    free(l->peers);
    free(l->known);
    sodium_memzero(&l->self, sizeof l->self);
    sodium_memzero(&l->options.key, sizeof l->options.key);
    free(l);
    if (closed != NULL) {
        closed(user);
    }
}

static void on_conn_closed(uv_handle_t *handle)
{
    struct conn *c = handle->data;
    struct link *l = c->link;
    secure_clear(&c->secure);
    dt_text_clear(&c->out);
    free(c);
    if (l->closing && l->first == NULL) {
        close_rest(l);
    }
    link_handle_closed(l);
}

static void on_own_closed(uv_handle_t *handle)
{
    link_handle_closed(handle->data);
}

struct conn *link_conn_new(struct link *l, bool client)
{
    struct conn *c = dt_alloc(sizeof *c);
    c->link = l;
    c->urgent.last = &c->urgent.first;
    c->usual.last = &c->usual.first;
    c->handle.data = c;
    c->state = CONN_CONNECTING;
    secure_init(&c->secure, &l->self, client);
    if (uv_tcp_init(l->loop, &c->handle) != 0) {
        free(c);
        return NULL;
    }
    l->handles++;
    list_add(l, c);
    return c;
}

void link_conn_close(struct conn *c)
{
    struct link *l = c->link;
    int fd;
    if (c->state == CONN_CLOSED) {
        return;
    }
    bool may_be_up = c->state == CONN_UP || (c->secure.client && c->secure.stage == SECURE_ANSWER) || (c->state == CONN_LEAVING && !c->shut);
    if (may_be_up && uv_fileno((uv_handle_t *)&c->handle, &fd) == 0) {
        struct linger now = {.l_onoff = 1, .l_linger = 0}; /* a reset: an orderly end without a goodbye would say that we are dead */
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    set_state(c, CONN_CLOSED);
    list_remove(l, c);
    if (c->is_dirty) {
        struct conn **place = &l->dirty;
        while (*place != c) {
            place = &(*place)->next_dirty;
        }
        *place = c->next_dirty;
        c->is_dirty = false;
    }
    free_items(&c->urgent);
    free_items(&c->usual);
    uv_close((uv_handle_t *)&c->handle, on_conn_closed);
}

void link_conn_tune(struct conn *c)
{
    int fd, on = 1, dead_ms = (int)(c->link->options.dead_s * 1e3);
    int idle_s = (int)fmax(1, c->link->options.dead_s / 3), interval_s = idle_s, probes = 2;
    (void)uv_tcp_nodelay(&c->handle, 1);
    if (uv_fileno((uv_handle_t *)&c->handle, &fd) == 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
    }
}

int link_conn_read(struct conn *c)
{
    int rc = uv_read_start((uv_stream_t *)&c->handle, on_alloc, on_read);
    if (rc != 0) {
        struct dt_error err;
        (void)dt_fail(&err, DT_IO, "read: %s", uv_strerror(rc));
        dial_lost(c, &err);
        link_conn_close(c);
    }
    return rc;
}

/* ---- writing ---- */

struct write {
    uv_write_t request;
    struct conn *conn;
    struct dt_text bytes;
};

static void mark_dirty(struct conn *c)
{
    if (!c->is_dirty) {
        c->is_dirty = true;
        c->next_dirty = c->link->dirty;
        c->link->dirty = c;
    }
}

/* A reset may have overtaken what the peer said last: the read side decides then. */
static void write_failed(struct conn *c, int status)
{
    c->failed = true;
    if (status == UV_EPIPE || status == UV_ECONNRESET) {
        c->reset = true;
    } else if (c->state == CONN_UP) {
        lost(c, false, false);
    } else {
        link_conn_close(c);
    }
}

static void on_written(uv_write_t *request, int status)
{
    struct write *w = request->data;
    struct conn *c = w->conn;
    dt_text_clear(&w->bytes);
    free(w);
    c->writing = false;
    if (c->state == CONN_CLOSED) {
        return;
    }
    if (status < 0) {
        write_failed(c, status);
    } else {
        link_conn_flush(c);
    }
}

static void on_shutdown(uv_shutdown_t *request, int status)
{
    (void)status;
    free(request);
}

static struct item *pop(struct conn *c)
{
    struct items *q = c->urgent.first != NULL ? &c->urgent : &c->usual;
    struct item *i = q->first;
    if (i != NULL) {
        q->first = i->next;
        if (q->first == NULL) {
            q->last = &q->first;
        }
        c->queued -= i->size;
    }
    return i;
}

/* Encrypts what is queued, up to a batch: later messages can still be overtaken by urgent ones. */
static void fill(struct conn *c)
{
    struct item *i;
    if (c->secure.stage != SECURE_OPEN || (c->state != CONN_UP && c->state != CONN_LEAVING)) {
        return;
    }
    while (c->out.size < batch_bytes && (i = pop(c)) != NULL) {
        secure_put(&c->secure, i->bytes, i->size, &c->out);
        free(i);
    }
    if (c->state == CONN_LEAVING && !c->said_end && c->urgent.first == NULL && c->usual.first == NULL) {
        c->said_end = true;
        secure_put_end(&c->secure, &c->out);
    }
}

static void shut(struct conn *c)
{
    uv_shutdown_t *request = dt_alloc(sizeof *request);
    c->shut = true;
    if (uv_shutdown(request, (uv_stream_t *)&c->handle, on_shutdown) != 0) {
        free(request);
        link_conn_close(c);
    }
}

void link_conn_flush(struct conn *c)
{
    if (c->overflow && c->state == CONN_UP) {
        char host[LOOKUP_NAME_BYTES];
        dt_log(DT_LOG_WARN, "link", "%s does not read: link reset", lookup_host((struct sockaddr *)&c->from, host, sizeof host));
        lost(c, false, false);
        return;
    }
    while (c->state != CONN_CLOSED && c->state != CONN_CONNECTING && !c->writing && !c->failed) {
        fill(c);
        if (c->out.size == 0) {
            if (c->said_end && !c->shut) {
                shut(c);
            }
            break;
        }
        uv_buf_t buf = uv_buf_init(c->out.data, (unsigned)c->out.size);
        int rc = uv_try_write((uv_stream_t *)&c->handle, &buf, 1);
        if (rc < 0 && rc != UV_EAGAIN) {
            write_failed(c, rc);
            return;
        }
        size_t sent = rc > 0 ? (size_t)rc : 0;
        if (sent < c->out.size) {
            struct write *w = dt_alloc(sizeof *w);
            *w = (struct write){.conn = c, .bytes = c->out};
            w->request.data = w;
            dt_text_init(&c->out);
            buf = uv_buf_init(w->bytes.data + sent, (unsigned)(w->bytes.size - sent));
            c->writing = true;
            rc = uv_write(&w->request, (uv_stream_t *)&c->handle, &buf, 1, on_written);
            if (rc != 0) {
                dt_text_clear(&w->bytes);
                free(w);
                c->writing = false;
                write_failed(c, rc);
            }
            return;
        }
        dt_text_clear(&c->out);
    }
}

static void on_flush(uv_prepare_t *handle)
{
    struct link *l = handle->data;
    while (l->dirty != NULL) {
        struct conn *c = l->dirty;
        l->dirty = c->next_dirty;
        c->is_dirty = false;
        link_conn_flush(c);
    }
}

int link_send(struct link *l, uint64_t peer, const void *bytes, size_t size, bool urgent)
{
    struct conn *c = link_find(l, peer);
    if (l->closing || c == NULL || size > l->options.frame_bytes || c->overflow) {
        return -1;
    }
    if (c->queued + size > l->options.queue_bytes) {
        c->overflow = true;
        mark_dirty(c);
        return -1;
    }
    struct item *i = dt_alloc(sizeof *i + size);
    i->size = size;
    if (size > 0) {
        memcpy(i->bytes, bytes, size);
    }
    struct items *q = urgent ? &c->urgent : &c->usual;
    *q->last = i;
    q->last = &i->next;
    c->queued += size;
    mark_dirty(c);
    return 0;
}

/* ---- up, down, refused ---- */

/* A connection that is up goes in order: no hook. */
static void leave(struct conn *c)
{
    struct link *l = c->link;
    remove_peer(l, c);
    set_state(c, CONN_LEAVING);
    c->until_s = link_now(l) + fmax(3 / l->options.time_scale, 1);
    list_add(l, c);
    mark_dirty(c);
}

/* A connection that was up is gone. ask: it was reset, which does not prove that the process is gone. */
static void lost(struct conn *c, bool dead, bool ask)
{
    struct link *l = c->link;
    uint64_t peer = c->secure.peer_id;
    remove_peer(l, c);
    bool asked = ask && probe_open(l, c);
    link_conn_close(c);
    if (!asked && !l->closing) {
        l->options.hooks.down(l->options.hooks.user, peer, dead);
    }
}

static void be_up(struct conn *c)
{
    struct link *l = c->link;
    uint64_t peer = c->secure.peer_id;
    struct conn *old = link_find(l, peer);
    struct dial *d = c->dial;
    bool waited = probe_forget(l, peer);
    c->dial = NULL;
    if (d != NULL) {
        dial_end(d, NULL);
    }
    if (old != NULL) {
        leave(old);
    }
    list_remove(l, c);
    set_state(c, CONN_UP);
    c->until_s = 0;
    remember(l, c);
    if (old != NULL || waited) {
        l->options.hooks.down(l->options.hooks.user, peer, false);
    }
    if (l->closing || link_find(l, peer) != NULL) {
        link_conn_close(c);
        return;
    }
    add_peer(l, c);
    char host[LOOKUP_NAME_BYTES];
    l->options.hooks.up(l->options.hooks.user, peer, lookup_host((struct sockaddr *)&c->from, host, sizeof host));
}

static struct stranger *stranger_of(struct link *l, const struct sockaddr_storage *host)
{
    struct stranger *oldest = &l->strangers[0];
    for (int i = 0; i < LINK_STRANGERS; i++) {
        struct stranger *s = &l->strangers[i];
        if (s->host.ss_family != AF_UNSPEC && lookup_same_host((struct sockaddr *)&s->host, (const struct sockaddr *)host)) {
            return s;
        }
        oldest = s->window_s < oldest->window_s ? s : oldest;
    }
    *oldest = (struct stranger){.host = *host, .line_s = -line_interval_s};
    return oldest;
}

/* One line per host and minute; the connection is kept for a second, so that guessing is slow. */
static void refuse(struct conn *c, const char *why)
{
    struct link *l = c->link;
    double now_s = link_now(l);
    struct stranger *s = stranger_of(l, &c->from);
    l->refused++;
    if (now_s - s->window_s >= 1) {
        s->window_s = now_s;
        s->in_window = 0;
    }
    s->in_window++;
    if (now_s - s->line_s >= line_interval_s) {
        char host[LOOKUP_NAME_BYTES];
        dt_log(DT_LOG_WARN, "link", "connection from %s refused: %s; since the last line %d more",
               lookup_name((struct sockaddr *)&c->from, host, sizeof host), why, s->unsaid);
        s->line_s = now_s;
        s->unsaid = 0;
    } else {
        s->unsaid++;
    }
    set_state(c, CONN_REFUSED);
    c->until_s = now_s + 1 / l->options.time_scale;
    (void)uv_read_stop((uv_stream_t *)&c->handle);
}

/* A connection that was never up ends. */
static void give_up(struct conn *c, const struct dt_error *err)
{
    if (!c->secure.client) {
        refuse(c, err->text);
        return;
    }
    struct dt_error named = *err;
    char name[LOOKUP_NAME_BYTES];
    (void)dt_wrap(&named, "%s", lookup_name((struct sockaddr *)&c->from, name, sizeof name));
    dial_lost(c, &named);
    link_conn_close(c);
}

/* ---- decisions ---- */

/* Our own attempt with this peer that waits for its answer. */
static struct conn *proved(const struct link *l, uint64_t peer)
{
    for (struct conn *c = l->first; c != NULL; c = c->next) {
        if (c->secure.client && c->secure.stage == SECURE_ANSWER && c->secure.peer_id == peer) {
            return c;
        }
    }
    return NULL;
}

/* The server has said who it is. */
static void choose_as_client(struct conn *c)
{
    struct link *l = c->link;
    uint64_t peer = c->secure.peer_id;
    struct dt_error err;
    if (c->dial->peer != 0 && c->dial->peer != peer) {
        (void)dt_fail(&err, DT_PEER, "another agent of the job answers there");
        give_up(c, &err);
    } else if (link_find(l, peer) != NULL || proved(l, peer) != NULL) {
        dial_end(c->dial, NULL);
    } else {
        const struct known *k = find_known(l, peer);
        struct dial *d = c->dial;
        for (struct conn *other = l->first, *next; other != NULL; other = next) { /* this address has won */
            next = other->next;
            if (other->dial == d && other != c) {
                other->dial = NULL;
                d->live--;
                link_conn_close(other);
            }
        }
        d->next_address = d->list.count;
        secure_prove(&c->secure, k != NULL ? k->session : NULL, &c->out);
    }
}

/* The client has proved who it is. */
static void choose_as_server(struct conn *c)
{
    struct link *l = c->link;
    uint64_t peer = c->secure.peer_id;
    struct conn *up = link_find(l, peer), *own = proved(l, peer);
    bool taken = true;
    if (l->options.id < peer) {
        const struct conn *ours = up != NULL && up->secure.client ? up : own;
        taken = ours == NULL || memcmp(ours->secure.session, c->secure.peer_last, SECURE_SESSION_BYTES) == 0;
        if (taken && own != NULL && own->dial != NULL) {
            dial_end(own->dial, NULL);
        }
    }
    secure_answer(&c->secure, taken, &c->out);
    if (taken) {
        be_up(c);
    } else {
        set_state(c, CONN_LEAVING);
        c->said_end = true; /* the answer says it all */
        c->until_s = link_now(l) + fmax(3 / l->options.time_scale, 1);
    }
}

/* ---- reading ---- */

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    struct conn *c = handle->data;
    (void)suggested;
    *buf = uv_buf_init(c->link->buffer, LINK_READ_BYTES);
}

/* Acts on whatever the bytes mean, as long as the connection listens. */
static void digest(struct conn *c)
{
    struct link *l = c->link;
    while (c->state == CONN_GREETING || c->state == CONN_UP) {
        const uint8_t *data = NULL;
        size_t size = 0;
        struct dt_error err;
        switch (secure_next(&c->secure, &c->out, &data, &size, &err)) {
        case SECURE_MORE:
            link_conn_flush(c);
            return;
        case SECURE_ASKED:
            (c->secure.client ? choose_as_client : choose_as_server)(c);
            break;
        case SECURE_UP:
            be_up(c);
            break;
        case SECURE_DUPLICATE:
            dial_end(c->dial, NULL);
            return;
        case SECURE_FRAME:
            l->options.hooks.message(l->options.hooks.user, c->secure.peer_id, data, size);
            break;
        case SECURE_END:
            c->shut = true; /* the peer is leaving: an orderly end is what it waits for */
            remove_peer(l, c);
            set_state(c, CONN_LEAVING);
            link_conn_close(c);
            if (!l->closing) {
                l->options.hooks.down(l->options.hooks.user, c->secure.peer_id, false);
            }
            return;
        case SECURE_BAD:
            if (c->state == CONN_UP) {
                char name[LOOKUP_NAME_BYTES];
                dt_log(DT_LOG_WARN, "link", "%s %s: link reset", lookup_name((struct sockaddr *)&c->from, name, sizeof name), err.text);
                lost(c, false, false);
            } else {
                give_up(c, &err);
                if (c->state == CONN_REFUSED) {
                    link_conn_flush(c);
                }
            }
            return;
        }
    }
    if (c->state == CONN_LEAVING) {
        link_conn_flush(c);
    }
}

static void ended(struct conn *c, int status)
{
    bool reset = c->reset || status == UV_ECONNRESET || status == UV_EPIPE;
    if (c->state == CONN_UP) {
        lost(c, status == UV_EOF && !reset, reset);
        return;
    }
    if (c->state == CONN_GREETING && c->secure.client) {
        struct dt_error err;
        (void)dt_fail(&err, DT_PEER,
                      c->secure.stage == SECURE_ANSWER ? "refused our proof: the key files differ"
                                                       : "closed the connection; no agent of this job, or it is ending");
        give_up(c, &err);
        return;
    }
    link_conn_close(c);
}

static void on_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct conn *c = stream->data;
    if (size == 0 || c->state == CONN_CLOSED) {
        return;
    }
    if (size < 0) {
        ended(c, (int)size);
    } else if (c->state == CONN_GREETING || c->state == CONN_UP) {
        secure_feed(&c->secure, buf->base, (size_t)size);
        digest(c);
    }
}

static void drop_oldest(struct link *l)
{
    for (struct conn *c = l->last; c != NULL; c = c->previous) {
        if (is_half_open(c)) {
            link_conn_close(c);
            return;
        }
    }
}

bool link_take(void *user, int fd, const void *first, size_t size, const char *from)
{
    struct link *l = user;
    struct conn *c = l->closing ? NULL : link_conn_new(l, false);
    socklen_t length = sizeof c->from;
    (void)from;
    if (c == NULL) {
        return false;
    }
    if (getpeername(fd, (struct sockaddr *)&c->from, &length) != 0 || uv_tcp_open(&c->handle, fd) != 0) {
        link_conn_close(c);
        return false;
    }
    lookup_unmap(&c->from);
    set_state(c, CONN_GREETING);
    double now_s = link_now(l);
    c->until_s = now_s + l->options.handshake_s;
    link_conn_tune(c);
    const struct stranger *s = stranger_of(l, &c->from);
    if (now_s - s->window_s < 1 && s->in_window >= refusals_per_s) {
        link_conn_close(c);
        return true;
    }
    if (l->accepted_count > l->options.half_open_count) {
        drop_oldest(l);
    }
    if (c->state == CONN_GREETING && link_conn_read(c) == 0) {
        secure_feed(&c->secure, first, size);
        digest(c);
    }
    return true;
}

bool link_allow(void *user, const struct sockaddr *from)
{
    const struct link *l = user;
    for (int i = 0; i < l->known_count; i++) {
        if (lookup_same_host((const struct sockaddr *)&l->known[i].host, from)) {
            return true;
        }
    }
    return endpoint_is_local(from);
}

/* ---- time ---- */

static void expire(struct conn *c)
{
    struct dt_error err;
    if (c->state == CONN_CONNECTING || c->state == CONN_GREETING) {
        (void)dt_fail(&err, DT_TIMEOUT, c->state == CONN_CONNECTING ? "connect: no answer" : "did not finish the handshake in time");
        if (c->secure.client) {
            give_up(c, &err);
        } else {
            refuse(c, err.text);
        }
    } else {
        link_conn_close(c);
    }
}

static void close_rest(struct link *l)
{
    while (l->first != NULL) {
        link_conn_close(l->first);
    }
    if (!uv_is_closing((uv_handle_t *)&l->sweep)) {
        uv_close((uv_handle_t *)&l->sweep, on_own_closed);
        uv_close((uv_handle_t *)&l->flush, on_own_closed);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    struct link *l = timer->data;
    double now_s = link_now(l);
    for (struct conn *c = l->first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->until_s > 0 && now_s > c->until_s) {
            expire(c);
        }
    }
    if (l->closing) {
        if (l->first == NULL || now_s > l->close_at_s) {
            close_rest(l);
        }
        return;
    }
    dial_sweep(l, now_s);
    if (!l->closing && l->first == NULL && l->dials == NULL && l->probes == NULL) {
        (void)uv_timer_stop(&l->sweep);
    }
}

void link_watch(struct link *l)
{
    if (!uv_is_closing((uv_handle_t *)&l->sweep) && !uv_is_active((uv_handle_t *)&l->sweep)) {
        (void)uv_timer_start(&l->sweep, on_sweep, 0, LINK_SWEEP_MS);
    }
}

/* ---- the rest of the interface ---- */

static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int link_open(struct link **out, uv_loop_t *loop, const struct link_options *options, struct dt_error *err)
{
    struct link *l = dt_alloc(sizeof *l);
    struct link_options *o = &l->options;
    *o = *options;
    o->frame_bytes = o->frame_bytes > 0 ? o->frame_bytes : 65536;
    o->queue_bytes = o->queue_bytes > 0 ? o->queue_bytes : (size_t)4 << 20;
    o->half_open_count = o->half_open_count > 0 ? o->half_open_count : 2048;
    o->dead_s = fmax(o->dead_s > 0 ? o->dead_s : 15, 1);
    o->time_scale = o->time_scale > 0 ? o->time_scale : 1;
    o->handshake_s = o->handshake_s > 0 ? o->handshake_s : fmax(10 / o->time_scale, 3);
    if (secure_self_init(&l->self, o->id, o->port, o->run_id, &o->key, o->frame_bytes, err) != 0) {
        free(l);
        return -1;
    }
    o->run_id = NULL;
    l->loop = loop;
    raise_file_limit();
    (void)uv_timer_init(loop, &l->sweep);
    (void)uv_prepare_init(loop, &l->flush);
    l->sweep.data = l->flush.data = l;
    l->handles = 2;
    (void)uv_prepare_start(&l->flush, on_flush);
    uv_unref((uv_handle_t *)&l->flush);
    *out = l;
    return 0;
}

void link_drop(struct link *l, uint64_t peer)
{
    struct conn *c = link_find(l, peer);
    (void)probe_forget(l, peer);
    for (struct dial *d = l->dials, *next; d != NULL; d = next) {
        next = d->next;
        if (peer != 0 && d->peer == peer) {
            dial_end(d, NULL);
        }
    }
    if (c != NULL) {
        leave(c);
    }
}

bool link_is_up(const struct link *l, uint64_t peer)
{
    return link_find(l, peer) != NULL;
}

int link_count(const struct link *l)
{
    return l->peer_count;
}

int link_port(const struct link *l, uint64_t peer)
{
    const struct conn *c = link_find(l, peer);
    return c != NULL ? c->secure.peer_port : 0;
}

int link_local_address(const struct link *l, uint64_t peer, char *out, size_t out_bytes)
{
    const struct conn *c = link_find(l, peer);
    struct sockaddr_storage at = {0};
    int size = sizeof at;
    if (c == NULL || uv_tcp_getsockname(&c->handle, (struct sockaddr *)&at, &size) != 0) {
        return -1;
    }
    (void)lookup_host((struct sockaddr *)&at, out, out_bytes);
    return 0;
}

void link_close(struct link *l, void (*closed)(void *user), void *user)
{
    l->closing = true;
    l->closed = closed;
    l->closed_user = user;
    l->close_at_s = link_now(l) + fmax(3 / l->options.time_scale, 1);
    dial_close_all(l);
    for (struct conn *c = l->first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->state != CONN_LEAVING) {
            link_conn_close(c);
        }
    }
    while (l->peer_count > 0) {
        leave(l->peers[l->peer_count - 1]);
    }
    if (l->first == NULL) {
        close_rest(l);
    } else {
        link_watch(l);
    }
}

void link_stats(const struct link *l, struct dt_text *out)
{
    size_t held = 0;
    int connecting = 0;
    for (const struct conn *c = l->first; c != NULL; c = c->next) {
        held += sizeof *c + secure_held(&c->secure) + c->out.capacity;
        connecting += c->state == CONN_CONNECTING;
    }
    for (int i = 0; i < l->peer_count; i++) {
        const struct conn *c = l->peers[i];
        held += sizeof *c + secure_held(&c->secure) + c->out.capacity + c->queued;
    }
    dt_text_printf(out, "{\"links\":%d,\"connecting\":%d,\"half_open\":%d,\"refused\":%llu,\"bytes\":%zu}", l->peer_count, connecting,
                   l->accepted_count, (unsigned long long)l->refused, held);
}
