/* Attempts to connect. After the look-up, the addresses are tried in order, each a quarter of a
 * second after the one before (happy eyeballs, RFC 8305). The first address at which an agent of
 * the job answers wins. An address at which another program listens only costs its turn. */
#include "launcher/hosts/link/link_private.h"

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double stagger_s = 0.25, probe_s = 3, probe_pause_s = 0.1, lookup_news_s = 5;

static struct dial *find_dial(struct link *l, uint64_t peer, const char *host, int port)
{
    for (struct dial *d = l->dials; d != NULL; d = d->next) {
        if (peer != 0
                ? d->peer == peer
                : d->peer == 0 && d->host != NULL && host != NULL && strcmp(d->host, host) == 0 && d->port == port) {
            return d;
        }
    }
    return NULL;
}

void dial_end(struct dial *d, const struct dt_error *err)
{
    struct link *l = d->link;
    struct dt_error copy = err != NULL ? *err : (struct dt_error){0};
    uint64_t peer = d->peer;
    for (struct conn *c = l->first, *next; c != NULL; c = next) {
        next = c->next;
        if (c->dial == d) {
            c->dial = NULL;
            conn_close(c);
        }
    }
    struct dial **place = &l->dials;
    while (*place != d) {
        place = &(*place)->next;
    }
    *place = d->next;
    if (d->lookup != NULL) {
        lookup_close(d->lookup);
    }
    free(d->host);
    free(d);
    if (err != NULL && !l->closing && l->options.hooks.failed != NULL) {
        l->options.hooks.failed(l->options.hooks.user, peer, &copy);
    }
}

static struct reached *find_reached(struct link *l, const char *host, int port)
{
    for (int i = 0; i < LINK_REACHED; i++) {
        struct reached *r = &l->reached[i];
        if (r->host != NULL && r->port == port && strcmp(r->host, host) == 0) {
            return r;
        }
    }
    return NULL;
}

void dial_met(struct dial *d, uint64_t peer)
{
    struct link *l = d->link;
    if (d->peer == 0 && d->host != NULL) {
        struct reached *r = find_reached(l, d->host, d->port);
        if (r == NULL) {
            r = &l->reached[l->reached_next++ % LINK_REACHED];
            free(r->host);
            *r = (struct reached){.host = dt_strdup(d->host), .port = d->port};
        }
        r->peer = peer;
    }
    dial_end(d, NULL);
}

void dial_lost(struct conn *c, const struct dt_error *err)
{
    struct dial *d = c->dial;
    c->dial = NULL;
    if (d != NULL) {
        d->live--;
        d->err = *err;
        d->next_at_s = 0;
        link_hurry(d->link); /* try the next address now */
    }
}

/* Whether a socket is connected with itself. The kernel may do so when nobody listens at a port of
 * this machine, if it chose that port for our end. The socket is reset, because it must not occupy
 * a port at which an agent may want to listen. */
static bool is_own_end(const uv_tcp_t *handle)
{
    struct sockaddr_storage ours = {0}, theirs = {0};
    int ours_size = sizeof ours, theirs_size = sizeof theirs;
    bool own = uv_tcp_getsockname(handle, (struct sockaddr *)&ours, &ours_size) == 0 &&
               uv_tcp_getpeername(handle, (struct sockaddr *)&theirs, &theirs_size) == 0 &&
               lookup_same_host((struct sockaddr *)&ours, (struct sockaddr *)&theirs) &&
               lookup_port((struct sockaddr *)&ours) == lookup_port((struct sockaddr *)&theirs);
    if (own) {
        conn_reset_at_close(handle);
    }
    return own;
}

static void on_connect(uv_connect_t *request, int status)
{
    struct conn *c = request->data;
    free(request);
    if (c->state != CONN_CONNECTING) {
        return;
    }
    status = status == 0 && is_own_end(&c->handle) ? UV_ECONNREFUSED : status;
    if (status != 0) {
        struct dt_error err;
        char name[LOOKUP_NAME_BYTES];
        (void)lookup_name((struct sockaddr *)&c->from, name, sizeof name);
        bool silent = status == UV_ETIMEDOUT || status == UV_EHOSTUNREACH || status == UV_ENETUNREACH;
        (void)dt_fail(&err, silent ? DT_TIMEOUT : DT_PEER, "%s: connect: %s%s", name, uv_strerror(status),
                      status == UV_ECONNREFUSED ? "; nobody listens there" : "");
        dial_lost(c, &err);
        conn_close(c);
        return;
    }
    c->state = CONN_GREETING;
    conn_tune(c);
    secure_begin(&c->secure, &c->out);
    if (conn_read(c) == 0) {
        conn_flush(c);
    }
}

/* Tries the next address. */
static void connect_next(struct dial *d, double now_s)
{
    struct link *l = d->link;
    const struct sockaddr_storage *to = &d->list.addresses[d->next_address++];
    d->next_at_s = now_s + stagger_s;
    char name[LOOKUP_NAME_BYTES];
    int rc;
    struct conn *c = conn_new(l, true, to->ss_family, &rc);
    if (c == NULL) {
        (void)dt_fail(&d->err, DT_IO, "%s: connect: %s", lookup_name((const struct sockaddr *)to, name, sizeof name),
                      uv_strerror(rc));
        return;
    }
    c->dial = d;
    c->from = *to;
    c->state = CONN_CONNECTING;
    c->until_s = now_s + l->options.handshake_s;
    d->live++;
    uv_connect_t *request = dt_alloc(sizeof *request);
    request->data = c;
    rc = uv_tcp_connect(request, &c->handle, (const struct sockaddr *)to, on_connect);
    if (rc != 0) {
        struct dt_error err;
        (void)dt_fail(&err, DT_IO, "%s: connect: %s", lookup_name((const struct sockaddr *)to, name, sizeof name),
                      uv_strerror(rc));
        free(request);
        dial_lost(c, &err);
        conn_close(c);
    }
}

static void on_lookup(void *user, const struct lookup_list *list, const struct dt_error *err)
{
    struct dial *d = user;
    d->lookup = NULL;
    if (list == NULL) {
        dial_end(d, err);
        return;
    }
    d->list = *list;
    d->looked_up = true;
    d->until_s = link_now(d->link) + d->link->options.handshake_s * (1 + list->count);
    link_hurry(d->link);
}

/* A name server does not answer: reports this once, and the attempt goes on. */
static bool tell_slow(struct dial *d, double now_s)
{
    struct link *l = d->link;
    struct dt_error err;
    if (d->told || now_s - d->lookup_s < lookup_news_s / l->options.time_scale || l->options.hooks.failed == NULL) {
        return false;
    }
    d->told = true;
    (void)dt_fail(&err, DT_TIMEOUT, "%s: name look-up: no answer yet after %.0f s", d->host, now_s - d->lookup_s);
    l->options.hooks.failed(l->options.hooks.user, d->peer, &err);
    return true;
}

/* Does one step of an attempt. False when the list of attempts may have changed. */
static bool advance(struct dial *d, double now_s)
{
    struct link *l = d->link;
    if (d->host != NULL && !d->looked_up && d->lookup == NULL) {
        struct dt_error err;
        if (lookup_open(&d->lookup, l->loop, d->host, d->port, l->options.resolver, on_lookup, d, &err) != 0) {
            dial_end(d, &err);
            return false;
        }
        d->lookup_s = now_s;
    }
    if (d->lookup != NULL) {
        return !tell_slow(d, now_s);
    }
    while (d->next_address < d->list.count && (d->live == 0 || now_s >= d->next_at_s)) {
        connect_next(d, now_s);
    }
    if (d->live == 0 && d->next_address == d->list.count) {
        struct dt_error err = d->err;
        char first[LOOKUP_NAME_BYTES];
        bool same = d->host != NULL && d->list.count == 1 &&
                    strcmp(lookup_host((struct sockaddr *)&d->list.addresses[0], first, sizeof first), d->host) == 0;
        /* the message names the address already */
        if (d->host != NULL && d->list.count > 0 && !same) {
            (void)dt_wrap(&err, "%s", d->host);
        }
        dial_end(d, &err);
        return false;
    }
    return true;
}

static void add_dial(struct link *l, struct dial *d)
{
    d->link = l;
    (void)dt_fail(&d->err, DT_NOT_FOUND, "no address to connect to");
    d->next = l->dials;
    l->dials = d;
    link_hurry(l);
}

void link_connect(struct link *l, uint64_t peer, const char *host, int port)
{
    const struct reached *before = peer == 0 ? find_reached(l, host, port) : NULL;
    uint64_t expected = before != NULL ? before->peer : peer;
    if (l->closing || peer == l->options.id || (expected != 0 && link_find(l, expected) != NULL) ||
        find_dial(l, peer, host, port) != NULL) {
        return;
    }
    struct dial *d = dt_alloc(sizeof *d);
    *d = (struct dial){.peer = peer, .host = dt_strdup(host), .port = port};
    add_dial(l, d);
}

void link_connect_list(struct link *l, uint64_t peer, const struct lookup_list *list)
{
    if (l->closing || peer == l->options.id ||
        (peer != 0 && (link_find(l, peer) != NULL || find_dial(l, peer, NULL, 0) != NULL))) {
        return;
    }
    struct dial *d = dt_alloc(sizeof *d);
    *d = (struct dial){.peer = peer, .list = *list, .looked_up = true};
    add_dial(l, d);
}

/* ---- probes ----
 * A link was reset. The peer is gone if its port refuses on this machine, or if another agent of
 * the job answers there. If the peer itself answers, or nobody does, it counts as alive. The
 * listener of a dying process may accept connections and then reset them, so a connection that ends
 * without an answer is tried again. */

static void on_probe_closed(uv_handle_t *handle)
{
    struct probe *p = handle->data;
    struct link *l = p->link;
    secure_clear(&p->secure);
    free(p);
    link_handle_closed(l);
}

/* Closes the probe, and calls down if the link still waits for the result. */
static void settle(struct probe *p, enum link_end end)
{
    struct link *l = p->link;
    uint64_t peer = p->peer;
    struct probe **place = &l->probes;
    while (*place != p) {
        place = &(*place)->next;
    }
    *place = p->next;
    p->peer = 0;
    uv_close((uv_handle_t *)&p->handle, on_probe_closed);
    if (peer != 0 && !l->closing) {
        l->options.hooks.down(l->options.hooks.user, peer, end);
    }
}

static void try_again_soon(struct probe *p)
{
    (void)uv_read_stop((uv_stream_t *)&p->handle);
    p->again_at_s = link_now(p->link) + probe_pause_s;
}

static void on_probe_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    const struct probe *p = handle->data;
    (void)suggested;
    *buf = uv_buf_init(p->link->buffer, LINK_READ_BYTES);
}

static void on_probe_read(uv_stream_t *stream, ssize_t size, const uv_buf_t *buf)
{
    struct probe *p = stream->data;
    struct dt_text none;
    const uint8_t *data;
    size_t data_size;
    struct dt_error err;
    if (size < 0) {
        try_again_soon(p);
        return;
    }
    secure_feed(&p->secure, buf->base, (size_t)size);
    dt_text_init(&none);
    enum secure_event event = secure_next(&p->secure, &none, &data, &data_size, &err);
    dt_text_clear(&none);
    if (event != SECURE_MORE) {
        settle(p, event == SECURE_ASKED && p->secure.peer_id != p->peer ? LINK_RESET : LINK_LOST);
    }
}

static void on_probe(uv_connect_t *request, int status)
{
    struct probe *p = request->data;
    if (uv_is_closing((uv_handle_t *)&p->handle)) {
        return;
    }
    if (status == UV_ECONNREFUSED || (status == 0 && is_own_end(&p->handle))) {
        settle(p, LINK_RESET);
        return;
    }
    if (status != 0) {
        try_again_soon(p);
        return;
    }
    struct dt_text hello;
    dt_text_init(&hello);
    secure_begin(&p->secure, &hello); /* an agent answers with its own hello */
    uv_buf_t buf = uv_buf_init(hello.data, (unsigned)hello.size);
    bool sent = uv_try_write((uv_stream_t *)&p->handle, &buf, 1) > 0;
    dt_text_clear(&hello);
    if (!sent || uv_read_start((uv_stream_t *)&p->handle, on_probe_alloc, on_probe_read) != 0) {
        try_again_soon(p);
    }
}

static bool start_probe(struct link *l, uint64_t peer, const struct sockaddr_storage *to, double until_s)
{
    struct probe *p = dt_alloc(sizeof *p);
    *p = (struct probe){.link = l, .peer = peer, .to = *to, .until_s = until_s};
    if (uv_tcp_init(l->loop, &p->handle) != 0) {
        free(p);
        return false;
    }
    l->handles++;
    secure_init(&p->secure, &l->self, true);
    p->handle.data = p->request.data = p;
    p->next = l->probes;
    l->probes = p;
    if (uv_tcp_connect(&p->request, &p->handle, (const struct sockaddr *)to, on_probe) != 0) {
        try_again_soon(p);
    }
    link_watch(l);
    return true;
}

bool probe_open(struct link *l, const struct conn *c)
{
    /* the address that we connected to, or the one at which the peer says it listens */
    struct sockaddr_storage to = c->from;
    if (!c->secure.client) {
        if (c->secure.peer_port == 0) {
            return false;
        }
        lookup_set_port((struct sockaddr *)&to, c->secure.peer_port);
    }
    return start_probe(l, c->secure.peer_id, &to, link_now(l) + probe_s);
}

static void probe_again(struct probe *p)
{
    struct probe old = *p;
    p->peer = 0;
    settle(p, LINK_LOST);
    if (!start_probe(old.link, old.peer, &old.to, old.until_s)) {
        old.link->options.hooks.down(old.link->options.hooks.user, old.peer, LINK_LOST);
    }
}

bool probe_forget(struct link *l, uint64_t peer)
{
    for (struct probe *p = l->probes; p != NULL; p = p->next) {
        if (p->peer == peer) {
            p->peer = 0;
            settle(p, LINK_LOST);
            return true;
        }
    }
    return false;
}

/* ---- for the sweep ---- */

/* Advances one attempt. False when the list may have changed. */
static bool sweep_dial(struct dial *d, double now_s)
{
    if (d->until_s > 0 && now_s > d->until_s) {
        struct dt_error err = d->err;
        dial_end(d, &err);
        return false;
    }
    return advance(d, now_s);
}

static bool sweep_probe(struct probe *p, double now_s)
{
    if (now_s > p->until_s) {
        settle(p, LINK_LOST);
        return false;
    }
    if (p->again_at_s > 0 && now_s > p->again_at_s) {
        probe_again(p);
        return false;
    }
    return true;
}

void dial_sweep(struct link *l, double now_s)
{
    struct dial *d = l->dials;
    while (d != NULL) { /* a hook may have changed the list: start again */
        d = sweep_dial(d, now_s) ? d->next : l->dials;
    }
    struct probe *p = l->probes;
    while (p != NULL) {
        p = sweep_probe(p, now_s) ? p->next : l->probes;
    }
}

void dial_close_all(struct link *l)
{
    while (l->dials != NULL) {
        dial_end(l->dials, NULL);
    }
    while (l->probes != NULL) {
        settle(l->probes, LINK_LOST);
    }
}
