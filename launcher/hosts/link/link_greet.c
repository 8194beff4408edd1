/* Incoming bytes: the handshake, refusals, the choice between two connections with one peer,
 * messages, and the end.
 * Two agents may connect to each other at once. The agent with the smaller id then decides: by its
 * answer as server, or by sending its proof as client. It prefers the connection that it began
 * itself. It takes the other one if the other side says (last session) that it had that link
 * already and lost it. */
#include "launcher/hosts/link/link_private.h"

#include "base/log.h"

#include <math.h>
#include <string.h>
#include <sys/socket.h>

enum {
    HALF_OPEN_BYTES = 4096
}; /* limit of bytes that a stranger may make us hold; more than a hello, a proof and their keys */

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

/* Whether the hello names an agent that has proved itself from this address, so it may be that
 * agent after a lost link. The address must fit, because every agent that connects learns the
 * id. */
static bool is_proven(const struct conn *c)
{
    return known_came_from(c->link, secure_claimed_id(&c->secure), (const struct sockaddr *)&c->from);
}

/* Counts a connection that ends without a valid proof, if it cost us an answer. */
static void count_gone(const struct conn *c)
{
    if (!c->secure.client && (c->secure.stage == SECURE_PROOF || c->secure.wrong_key)) {
        strangers_gone(&c->link->strangers, (const struct sockaddr *)&c->from, c->secure.wrong_key, is_proven(c),
                       link_now(c->link));
    }
}

/* Refuses the connection, but keeps it for a second, so that guessing keys is slow. */
void conn_refuse(struct conn *c, const char *why)
{
    struct link *l = c->link;
    double now_s = link_now(l);
    char host[LOOKUP_NAME_BYTES], more[STRANGERS_MORE_BYTES];
    /* we called an endpoint that belongs to us by now */
    bool own = c->secure.peer_id == l->options.id;
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

/* Our own attempt with this peer that has sent its proof and waits for the answer. */
static struct conn *proved(const struct link *l, uint64_t peer)
{
    for (struct conn *c = l->first; c != NULL; c = c->next) {
        if (c->secure.client && c->secure.stage == SECURE_ANSWER && c->secure.peer_id == peer) {
            return c;
        }
    }
    return NULL;
}

/* Client: the server's hello has come, so the peer's id is known. */
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
        /* the attempt's other addresses are no longer needed */
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

/* Server: the client has proved its identity. */
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
        c->said_end = true; /* the answer includes the goodbye */
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

/* Whether the bytes of a stranger must wait. Strangers may cost only so much in a second. Every
 * agent of the job is a stranger until it has proved itself. */
static bool must_wait(const struct conn *c)
{
    const struct strangers *t = &c->link->strangers;
    const struct sockaddr *from = (const struct sockaddr *)&c->from;
    double now_s = link_now(c->link);
    bool proof = c->secure.stage == SECURE_PROOF;
    return conn_is_half_open(c) && !strangers_may(t, from, proof, is_proven(c), now_s);
}

/* Handles the received bytes, as long as the connection is open. */
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
            c->shut = true; /* the peer is leaving, and waits for us to close in order */
            link_remove(l, c);
            /* if our own attempt waits for its answer, the peer has taken that newer connection */
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
        /* without a key file no proof is wrong, so the agent is ending */
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

/* Takes bytes that have come. Strangers may send no more than a hello and a proof. */
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
    int result;
    struct conn *c = l->closing ? NULL : conn_new(l, false, AF_UNSPEC, &result);
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
