/* One connection, from the socket to libuv's close callback, and the messages that it sends.
 * Messages wait in two queues, urgent ones first. They are encrypted when they are written, so an
 * urgent message overtakes all that have not left. */
#include "launcher/hosts/link/link_private.h"

#include "base/log.h"

#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { batch_bytes = 65536 };

void conn_list(struct link *l, struct conn *c)
{
    c->previous = NULL;
    c->next = l->first;
    *(l->first != NULL ? &l->first->previous : &l->last) = c;
    l->first = c;
    c->listed = true;
    link_watch(l);
}

void conn_unlist(struct link *l, struct conn *c)
{
    if (c->listed) {
        *(c->previous != NULL ? &c->previous->next : &l->first) = c->next;
        *(c->next != NULL ? &c->next->previous : &l->last) = c->previous;
        c->listed = false;
    }
}

bool conn_is_half_open(const struct conn *c)
{
    return !c->secure.client && (c->state == CONN_GREETING || c->state == CONN_REFUSED);
}

void conn_set_state(struct conn *c, enum conn_state state)
{
    c->link->accepted_count -= conn_is_half_open(c);
    c->state = state;
    c->link->accepted_count += conn_is_half_open(c);
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

static void on_conn_closed(uv_handle_t *handle)
{
    struct conn *c = handle->data;
    struct link *l = c->link;
    secure_clear(&c->secure);
    dt_text_clear(&c->out);
    free(c);
    if (l->closing && l->first == NULL) {
        link_close_rest(l);
    }
    link_handle_closed(l);
}

/* Bytes of a TCP segment, headers left out. Segments of this size pass ways that silently drop
 * larger packets, so the hosts of such a way stay together and doctor can tell what is wrong. Both
 * ends keep to the least size that one of them names. */
static void limit_segments(const uv_tcp_t *handle)
{
    int fd, bytes = 1220; /* what the least MTU of IPv6 leaves */
    if (uv_fileno((const uv_handle_t *)handle, &fd) == 0) {
        (void)setsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &bytes, sizeof bytes);
    }
}

struct conn *conn_new(struct link *l, bool client, int family, int *result)
{
    struct conn *c = dt_alloc(sizeof *c);
    c->link = l;
    c->urgent.last = &c->urgent.first;
    c->usual.last = &c->usual.first;
    c->handle.data = c;
    c->state = CONN_CONNECTING;
    secure_init(&c->secure, &l->self, client);
    *result = uv_tcp_init_ex(l->loop, &c->handle, (unsigned)family);
    if (*result != 0) {
        free(c);
        return NULL;
    }
    limit_segments(&c->handle);
    l->handles++;
    conn_list(l, c);
    return c;
}

void conn_reset_at_close(const uv_tcp_t *handle)
{
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    int fd;
    if (uv_fileno((const uv_handle_t *)handle, &fd) == 0) {
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
}

void conn_close(struct conn *c)
{
    struct link *l = c->link;
    if (c->state == CONN_CLOSED) {
        return;
    }
    bool may_be_up = c->state == CONN_UP || (c->secure.client && c->secure.stage == SECURE_ANSWER) ||
                     (c->state == CONN_LEAVING && !c->shut);
    if (may_be_up) {
        /* closing in order without a goodbye would mean that this agent is dead */
        conn_reset_at_close(&c->handle);
    }
    conn_set_state(c, CONN_CLOSED);
    conn_unlist(l, c);
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

void conn_tune(struct conn *c)
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

/* A reset may have overtaken the peer's last bytes, so the read side decides. A broken pipe is a
 * reset after the end of the peer's stream (Linux, tcp_reset). That end came in order and can still
 * be read. */
static void write_failed(struct conn *c, int status)
{
    c->failed = true;
    if (status == UV_EPIPE || status == UV_ECONNRESET) {
        c->reset = c->reset || status == UV_ECONNRESET;
    } else if (c->state == CONN_UP) {
        conn_lost(c, false, false);
    } else {
        conn_close(c);
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
        conn_flush(c);
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

/* Encrypts at most one batch of queued messages, so that urgent messages can still overtake the
 * others. */
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
        conn_close(c);
    }
}

void conn_flush(struct conn *c)
{
    if (c->overflow && c->state == CONN_UP) {
        char host[LOOKUP_NAME_BYTES];
        dt_log(DT_LOG_WARN, "link", "%s does not read: link reset",
               lookup_host((struct sockaddr *)&c->from, host, sizeof host));
        conn_lost(c, false, false);
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

void conn_flush_all(struct link *l)
{
    while (l->dirty != NULL) {
        struct conn *c = l->dirty;
        l->dirty = c->next_dirty;
        c->is_dirty = false;
        conn_flush(c);
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

void conn_leave(struct conn *c)
{
    struct link *l = c->link;
    link_remove(l, c);
    conn_set_state(c, CONN_LEAVING);
    c->until_s = link_now(l) + fmax(3 / l->options.time_scale, 1);
    conn_list(l, c);
    mark_dirty(c);
}
