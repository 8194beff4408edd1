/* What comes in: the handshake, who is refused, which of two connections with a peer becomes the
 * link, messages, and the end.
 *
 * Two agents may connect to each other at once. The one with the smaller id decides: as a server
 * by its answer, as a client by sending its proof, and it prefers what it began itself, unless
 * the other side says (last session) that it had that link already and lost it. */
#include "launcher/hosts/link/link_private.h"

#include "base/log.h"

#include <math.h>
#include <string.h>
#include <sys/socket.h>

enum {
    HALF_OPEN_BYTES = 4096
}; /* that a stranger may hold; a hello, a proof and their keys are
    * less */

/* ---- up, down, refused ---- */

void conn_lost(struct conn *c, bool dead, bool ask)
{
    struct link *l = c->link;
    uint64_t peer = c->secure.peer_id;
    link_remove(l, c);
    known_gone(l, peer, false);
    bool asked = ask && probe_open(l, c);
    conn_close(c);
    if (!asked && !l->closing) {
        l->options.hooks.down(l->options.hooks.user, peer, dead ? LINK_ENDED : LINK_LOST);
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
        dial_met(d, peer);
    }
    if (old != NULL) {
        conn_leave(old);
    }
    conn_unlist(l, c);
    conn_set_state(c, CONN_UP);
    c->until_s = 0;
    known_add(l, c);
    if (old != NULL || waited) {
        l->options.hooks.down(l->options.hooks.user, peer, LINK_LOST);
    }
    if (l->closing || link_find(l, peer) != NULL) {
        conn_close(c);
        return;
    }
    link_add(l, c);
    char host[LOOKUP_NAME_BYTES];
    l->options.hooks.up(l->options.hooks.user, peer, lookup_host((struct sockaddr *)&c->from, host, sizeof host));
}

/* Its hello names an agent that has proved itself from this address: its link was lost. Whoever
 * connects to that agent hears its id, so the address counts, too. */
static bool is_proven(const struct conn *c)
{
    return known_came_from(c->link, secure_claimed_id(&c->secure), (const struct sockaddr *)&c->from);
}

/* It ends without a proof that fits: what was looked at is counted, if it cost more than a look. */
static void count_gone(const struct conn *c)
{
    if (!c->secure.client && (c->secure.stage == SECURE_PROOF || c->secure.wrong_key)) {
        strangers_gone(&c->link->strangers, (const struct sockaddr *)&c->from, c->secure.wrong_key, is_proven(c),
                       link_now(c->link));
    }
}

/* The connection is kept for a second, so that guessing is slow. */
void conn_refuse(struct conn *c, const char *why)
{
    struct link *l = c->link;
    double now_s = link_now(l);
    char host[LOOKUP_NAME_BYTES], more[STRANGERS_MORE_BYTES];
    bool own = c->secure.peer_id == l->options.id; /* we called an endpoint that we hold
                                                    * meanwhile */
    l->refused += !own;
    if (!own && strangers_refused(&l->strangers, (struct sockaddr *)&c->from, now_s, more)) {
        dt_log(DT_LOG_WARN, "link", "connection from %s refused: %s%s",
               lookup_name((struct sockaddr *)&c->from, host, sizeof host), why, more);
    }
    count_gone(c);
    c->waits = false;
    conn_set_state(c, CONN_REFUSED);
    c->until_s = now_s + 1 / l->options.time_scale;
    (void)uv_read_stop((uv_stream_t *)&c->handle);
}

void conn_give_up(struct conn *c, const struct dt_error *err)
{
    if (!c->secure.client) {
        conn_refuse(c, err->text);
        return;
    }
    struct dt_error named = *err;
    char name[LOOKUP_NAME_BYTES];
    (void)dt_wrap(&named, "%s", lookup_name((struct sockaddr *)&c->from, name, sizeof name));
    if (c->secure.other_version && !c->link->closing && c->link->options.hooks.other_version != NULL) {
        c->link->options.hooks.other_version(c->link->options.hooks.user, &named);
    }
    dial_lost(c, &named);
    conn_close(c);
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
        conn_give_up(c, &err);
    } else if (link_find(l, peer) != NULL || proved(l, peer) != NULL) {
        dial_met(c->dial, peer);
    } else {
        const struct known *k = known_find(l, peer);
        struct dial *d = c->dial;
        /* this address has won */
        for (struct conn *other = l->first, *next; other != NULL; other = next) {
            next = other->next;
            if (other->dial == d && other != c) {
                other->dial = NULL;
                d->live--;
                conn_close(other);
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
            dial_met(own->dial, peer);
        }
    }
    secure_answer(&c->secure, taken, &c->out);
    if (taken) {
        be_up(c);
    } else {
        conn_set_state(c, CONN_LEAVING);
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

/* Strangers may cost us so much in a second, and what they say beyond that waits. A host's own
 * agent is among them, as long as it has not come in. */
static bool must_wait(const struct conn *c)
{
    const struct strangers *t = &c->link->strangers;
    const struct sockaddr *from = (const struct sockaddr *)&c->from;
    double now_s = link_now(c->link);
    bool proof = c->secure.stage == SECURE_PROOF;
    return conn_is_half_open(c) && !strangers_may(t, from, proof, is_proven(c), now_s);
}

/* Acts on whatever the bytes mean, as long as the connection listens. */
static void digest(struct conn *c)
{
    struct link *l = c->link;
    while (c->state == CONN_GREETING || c->state == CONN_UP) {
        c->waits = must_wait(c);
        if (c->waits) {
            break;
        }
        const uint8_t *data = NULL;
        size_t size = 0;
        struct dt_error err;
        switch (secure_next(&c->secure, &c->out, &data, &size, &err)) {
        case SECURE_MORE:
            conn_flush(c);
            return;
        case SECURE_ASKED:
            (c->secure.client ? choose_as_client : choose_as_server)(c);
            break;
        case SECURE_UP:
            be_up(c);
            break;
        case SECURE_DUPLICATE:
            dial_met(c->dial, c->secure.peer_id);
            return;
        case SECURE_FRAME:
            l->options.hooks.message(l->options.hooks.user, c->secure.peer_id, data, size);
            break;
        case SECURE_END:
            c->shut = true; /* the peer is leaving: an orderly end is what it waits for */
            link_remove(l, c);
            /* else it has taken a newer link that we began */
            known_gone(l, c->secure.peer_id, proved(l, c->secure.peer_id) == NULL);
            conn_set_state(c, CONN_LEAVING);
            conn_close(c);
            if (!l->closing) {
                l->options.hooks.down(l->options.hooks.user, c->secure.peer_id, LINK_LOST);
            }
            return;
        case SECURE_BAD:
            if (c->state == CONN_UP) {
                char name[LOOKUP_NAME_BYTES];
                dt_log(DT_LOG_WARN, "link", "%s %s: link reset",
                       lookup_name((struct sockaddr *)&c->from, name, sizeof name), err.text);
                conn_lost(c, false, false);
            } else {
                conn_give_up(c, &err);
                if (c->state == CONN_REFUSED) {
                    conn_flush(c);
                }
            }
            return;
        }
    }
    if (c->state == CONN_LEAVING) {
        conn_flush(c);
    }
}

void conn_look_again(struct conn *c)
{
    digest(c);
}

static void ended(struct conn *c, int status)
{
    bool reset = c->reset || status == UV_ECONNRESET || status == UV_EPIPE;
    if (c->state == CONN_UP) {
        conn_lost(c, status == UV_EOF && !reset, reset);
        return;
    }
    if (c->state == CONN_GREETING && c->secure.client) {
        struct dt_error err;
        /* without one it can only be in a hurry */
        bool refused = c->secure.stage == SECURE_ANSWER && c->secure.self->key.given;
        (void)dt_fail(&err, refused ? DT_INVALID : DT_PEER,
                      refused ? "refused our proof: the key files differ, or it is ending"
                              : "closed the connection; no agent of this job, or it is ending");
        conn_give_up(c, &err);
        return;
    }
    if (c->state == CONN_GREETING && link_find(c->link, c->secure.peer_id) == NULL) {
        count_gone(c);
    }
    conn_close(c);
}

/* Strangers say no more than a hello and a proof. */
static void take_bytes(struct conn *c, const void *bytes, size_t size)
{
    if (conn_is_half_open(c) && size + secure_held(&c->secure) > HALF_OPEN_BYTES) {
        conn_refuse(c, "says more than a hello and a proof");
        return;
    }
    secure_feed(&c->secure, bytes, size);
    digest(c);
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
        take_bytes(c, buf->base, (size_t)size);
    }
}

static void drop_oldest(struct link *l)
{
    for (struct conn *c = l->last; c != NULL; c = c->previous) {
        if (conn_is_half_open(c)) {
            if (c->state == CONN_GREETING) {
                count_gone(c);
            }
            conn_close(c);
            return;
        }
    }
}

int conn_read(struct conn *c)
{
    int rc = uv_read_start((uv_stream_t *)&c->handle, on_alloc, on_read);
    if (rc != 0) {
        struct dt_error err;
        (void)dt_fail(&err, DT_IO, "read: %s", uv_strerror(rc));
        dial_lost(c, &err);
        conn_close(c);
    }
    return rc;
}

bool link_take(void *user, int fd, const void *first, size_t size, const char *from)
{
    struct link *l = user;
    struct conn *c = l->closing ? NULL : conn_new(l, false);
    socklen_t length = sizeof c->from;
    (void)from;
    if (c == NULL) {
        return false;
    }
    if (getpeername(fd, (struct sockaddr *)&c->from, &length) != 0 || uv_tcp_open(&c->handle, fd) != 0) {
        conn_close(c);
        return false;
    }
    lookup_unmap(&c->from);
    conn_set_state(c, CONN_GREETING);
    c->until_s = link_now(l) + l->options.handshake_s;
    conn_tune(c);
    if (l->accepted_count > l->options.half_open_count) {
        drop_oldest(l);
    }
    if (c->state == CONN_GREETING && conn_read(c) == 0) {
        take_bytes(c, first, size);
    }
    return true;
}
