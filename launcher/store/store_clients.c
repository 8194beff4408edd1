/* Answers are gathered per client, and sent together when the loop has been through the
 * sockets that were ready, in the order in which they came about; what a socket does not take at
 * once waits in `output` until it is writable. A client is closed by store_client_drop() at any
 * point; its memory goes when libuv has closed the handle, and until then `closing` keeps
 * everybody off it. */
#include "launcher/store/store_private.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "launcher/net/lookup.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- lists and the end of clients ---- */

void store_list_add(struct store_list *l, struct store_client *c)
{
    c->previous = NULL;
    c->next = l->first;
    *(l->first != NULL ? &l->first->previous : &l->last) = c;
    l->first = c;
    l->count++;
}

void store_list_remove(struct store_list *l, struct store_client *c)
{
    *(c->previous != NULL ? &c->previous->next : &l->first) = c->next;
    *(c->next != NULL ? &c->next->previous : &l->last) = c->previous;
    l->count--;
}

void store_handle_closed(struct store_server *s)
{
    if (--s->handles > 0 || !s->closing) {
        return;
    }
    void (*closed)(void *user) = s->closed;
    void *user = s->closed_user;
    dt_store_table_close(s->table);
    store_access_close(&s->access);
    free(s->dirty);
    free(s);
    if (closed != NULL) {
        closed(user);
    }
}

static void on_client_closed(uv_handle_t *handle)
{
    struct store_client *c = handle->data;
    struct store_server *s = c->server;
    dt_wire_parser_clear(&c->parser);
    free(c);
    store_handle_closed(s);
}

bool store_client_address(const struct store_client *c, struct sockaddr_storage *from)
{
    socklen_t size = sizeof *from;
    return getpeername(c->fd, (struct sockaddr *)from, &size) == 0;
}

const char *store_client_name(const struct store_client *c, char *out, size_t out_bytes)
{
    struct sockaddr_storage from = {0};
    (void)store_client_address(c, &from);
    return lookup_name((struct sockaddr *)&from, out, out_bytes);
}

void store_client_say_dropped(struct store_client *c, const char *why)
{
    struct store_server *s = c->server;
    struct sockaddr_storage from = {0};
    char name[320], more[STRANGERS_MORE_BYTES];
    (void)store_client_name(c, name, sizeof name);
    if (store_client_address(c, &from) &&
        strangers_refused(&s->strangers, (struct sockaddr *)&from, dt_now_s(), more)) {
        dt_log(DT_LOG_WARN, "store", "%s %s dropped: %s%s", c->is_fresh ? "connection from" : "client", name, why,
               more);
    }
}

void store_client_leave(struct store_client *c)
{
    struct store_server *s = c->server;
    c->closing = true;
    s->held -= c->held;
    c->held = 0;
    dt_store_table_cancel(s->table, &c->waiter);
    dt_wire_output_clear(&c->output, s->table);
    store_list_remove(c->is_fresh ? &s->fresh : &s->active, c);
    if (c->is_dirty) {
        s->dirty[c->dirty_at] = NULL;
        c->is_dirty = false;
    }
    uv_close((uv_handle_t *)&c->handle, on_client_closed); /* libuv no longer looks at the socket
                                                            * from here on */
}

void store_client_drop(struct store_client *c, const char *why)
{
    if (c->closing) {
        return;
    }
    if (why != NULL) {
        store_client_say_dropped(c, why);
        c->server->dropped++;
    }
    store_client_leave(c);
    (void)close(c->fd);
}

/* ---- answers ---- */

enum {
    SEND_PIECES = 256,
    SEND_BYTES = 512 << 10
}; /* of one client, then the others have their
    * turn */

void store_client_count(struct store_client *c)
{
    size_t held = dt_wire_parser_held(&c->parser) + dt_wire_output_held(&c->output);
    c->server->held += held - c->held;
    c->held = held;
}

void store_client_mark(struct store_client *c)
{
    struct store_server *s = c->server;
    if (c->is_dirty || c->closing) {
        return;
    }
    if (s->dirty_count == s->dirty_capacity) {
        s->dirty_capacity = s->dirty_capacity > 0 ? s->dirty_capacity * 2 : 64;
        s->dirty = dt_realloc(s->dirty, s->dirty_capacity * sizeof *s->dirty);
    }
    c->is_dirty = true;
    c->dirty_at = s->dirty_count;
    s->dirty[s->dirty_count++] = c;
}

void store_client_woken(struct dt_store_waiter *w)
{
    struct store_client *c = w->user;
    dt_wire_put_u8(&c->output.text, DT_WIRE_STOP_WAITING);
    store_client_mark(c);
}

void store_client_watch(struct store_client *c, bool is_full)
{
    c->is_full = is_full;
    int rc = uv_poll_start(&c->handle, UV_READABLE | (is_full ? UV_WRITABLE : 0), store_client_event);
    if (rc != 0) {
        store_client_drop(c, uv_strerror(rc));
    }
}

void store_client_send(struct store_client *c)
{
    struct iovec pieces[SEND_PIECES];
    struct msghdr message = {.msg_iov = pieces};
    message.msg_iovlen = (size_t)dt_wire_output_gather(&c->output, pieces, SEND_PIECES, SEND_BYTES);
    ssize_t sent = message.msg_iovlen > 0 ? sendmsg(c->fd, &message, MSG_NOSIGNAL) : 0;
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        store_client_drop(c, errno == EPIPE || errno == ECONNRESET ? NULL : strerror(errno));
        return;
    }
    dt_wire_output_sent(&c->output, c->server->table, sent > 0 ? (size_t)sent : 0);
    store_client_count(c);
    bool is_full = dt_wire_output_unsent(&c->output) > 0;
    if (c->is_full != is_full) {
        store_client_watch(c, is_full);
    }
}

void store_server_flush(struct store_server *s)
{
    for (size_t i = 0; i < s->dirty_count; i++) {
        struct store_client *c = s->dirty[i];
        if (c != NULL) {
            c->is_dirty = false;
        }
        if (c != NULL && !c->is_full) {
            store_client_send(c);
        }
    }
    s->dirty_count = 0;
}
