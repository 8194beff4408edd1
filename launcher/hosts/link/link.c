/* Opening, closing, the sweep, and questions about the link. Connections that are not up are in one
 * list, which the sweep checks. Connections that are up are in an array sorted by the peer's id,
 * and cost nothing while idle: no timer, no buffer. Calls only queue work; the loop does it (the
 * prepare handle). So no hook is ever called from within a call. */
#include "launcher/hosts/link/link_private.h"

#include "base/clock.h"
#include "base/file.h"

#include <math.h>
#include <stdlib.h>

double link_now(const struct link *l)
{
    (void)l;
    return dt_now_s();
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
    free(l->hosts);
    for (int i = 0; i < LINK_REACHED; i++) {
        free(l->reached[i].host);
    }
    sodium_memzero(&l->self, sizeof l->self);
    free(l);
    if (closed != NULL) {
        closed(user);
    }
}

static void on_own_closed(uv_handle_t *handle)
{
    link_handle_closed(handle->data);
}

/* ---- time ---- */

/* time between two rounds in which waiting connections are read again, newest first, because the
 * older ones have had a turn */
#define LOOK_S 0.2

static void expire(struct conn *c)
{
    const struct link *l = c->link;
    struct dt_error err;
    if (c->state == CONN_CONNECTING || c->state == CONN_GREETING) {
        bool silent =
            c->state == CONN_GREETING && c->secure.client && c->secure.stage == SECURE_HELLO && c->secure.in.size == 0;
        /* an agent answers at once, so another program probably listens at the port */
        if (silent) {
            (void)dt_fail(
                &err, DT_IN_USE,
                "took the connection and said nothing for %.0f s, so no agent of dtrun is there, or a stopped one; "
                "end the program that has this port, or give all hosts another port",
                l->options.handshake_s);
        } else {
            (void)dt_fail(&err, DT_TIMEOUT,
                          c->state == CONN_CONNECTING ? "connect: no answer" : "did not finish the handshake in time");
        }
        if (c->secure.client) {
            conn_give_up(c, &err);
        } else {
            conn_refuse(c, err.text);
        }
    } else {
        conn_close(c);
    }
}

void link_close_rest(struct link *l)
{
    while (l->first != NULL) {
        conn_close(l->first);
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
    bool again = now_s - l->looked_s >= LOOK_S;
    l->looked_s = again ? now_s : l->looked_s;
    for (struct conn *c = l->first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->until_s > 0 && now_s > c->until_s) {
            expire(c);
        } else if (c->waits && again) {
            conn_look_again(c);
        }
    }
    if (l->closing) {
        if (l->first == NULL || now_s > l->close_at_s) {
            link_close_rest(l);
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

void link_hurry(struct link *l)
{
    if (!uv_is_closing((uv_handle_t *)&l->sweep)) {
        (void)uv_timer_start(&l->sweep, on_sweep, 0, LINK_SWEEP_MS);
    }
}

/* ---- the rest of the interface ---- */

static void on_flush(uv_prepare_t *handle)
{
    conn_flush_all(handle->data);
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
    if (secure_self_init(&l->self, o->id, o->port, o->run_id, o->key, o->frame_bytes, err) != 0) {
        free(l);
        return -1;
    }
    o->run_id = NULL;
    o->key = NULL;
    l->loop = loop;
    (void)dt_file_raise_limit();
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
    bool up = link_is_up(l, peer);
    link_refuse(l, peer);
    if (up) {
        known_gone(l, peer, true);
    }
}

void link_refuse(struct link *l, uint64_t peer)
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
        known_gone(l, peer, false);
        conn_leave(c);
    }
}

void link_set_port(struct link *l, int port)
{
    l->options.port = l->self.port = port;
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
            conn_close(c);
        }
    }
    while (l->peer_count > 0) {
        conn_leave(l->peers[l->peer_count - 1]);
    }
    if (l->first == NULL) {
        link_close_rest(l);
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
    dt_text_printf(out, "{\"links\":%d,\"connecting\":%d,\"half_open\":%d,\"refused\":%llu,\"bytes\":%zu}",
                   l->peer_count, connecting, l->accepted_count, (unsigned long long)l->refused, held);
}
