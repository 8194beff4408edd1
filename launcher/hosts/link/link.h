/* Links between agents: at most one per pair, over TCP, encrypted (secure.h), on the port that
 * the worker store uses too. libuv; runs on the loop's thread alone.
 *
 * A peer counts as dead only when its kernel said so: its end of a link was closed without a
 * goodbye. A reset is told with whether its port refuses connections (asked for up to 3 s),
 * which somebody in between may answer, too. Agents never close a link without a goodbye while
 * they live (where none can be sent they reset it). */
#ifndef DT_LAUNCHER_HOSTS_LINK_LINK_H
#define DT_LAUNCHER_HOSTS_LINK_LINK_H

#include "base/error.h"
#include "base/text.h"
#include "launcher/net/lookup.h"
#include "launcher/hosts/link/secure.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

enum link_end {
    LINK_LOST,  /* the peer may live */
    LINK_ENDED, /* its kernel closed the link in order: the process is gone, and all that it had
                 * sent has come */
    LINK_RESET  /* reset, and its port refuses, or is another agent's: if it is of this machine,
                 * its process is gone, and something that it sent may be lost */
};

struct link_hooks { /* called from the loop only, never from within a call below; they may call
                     * anything below */
    void *user;
    /* A link with this agent is there; host: its numeric address. A second link of the same peer
     * replaces the first, after down. */
    void (*up)(void *user, uint64_t peer, const char *host);
    /* It is gone. Not called after link_drop, link_refuse and link_close. */
    void (*down)(void *user, uint64_t peer, enum link_end end);
    void (*message)(void *user, uint64_t peer, const void *bytes, size_t size);
    /* A link_connect came to nothing; err tells refused, no answer, look-up and wrong key apart.
     * May be null. */
    void (*failed)(void *user, uint64_t peer, const struct dt_error *err);
    /* Whoever answered a link_connect runs another version: trying on will not help. May be
     * null. failed follows. */
    void (*other_version)(void *user, const struct dt_error *err);
};

struct link_options {
    uint64_t id; /* our own, not 0 */
    int port;    /* where we listen on all addresses; 0: on none, or not on all */
    const char *run_id;
    const struct secure_key *key; /* of the job; link_open takes a copy. Null: the key of zeros */
    size_t frame_bytes;           /* longest message; 0: 64 KiB */
    size_t queue_bytes;           /* unsent messages per peer; above it the link is reset; 0: 4
                                   * MiB */
    int half_open_count;          /* accepted connections in their handshake; above it the oldest
                                   * goes; 0: 2048 */
    double dead_s;                /* unacknowledged bytes and silent networks end a link after
                                   * this; 0: 15 s */
    double time_scale;            /* divides the bounds that are not given; 0: 1 */
    double handshake_s;           /* 0: 10 s / time_scale, at least 3 s */
    lookup_resolver *resolver;    /* null: getaddrinfo */
    struct link_hooks hooks;
};

struct link;

/* The options are copied. Raises the soft limit of open files. */
int link_open(struct link **out, uv_loop_t *loop, const struct link_options *options, struct dt_error *err);
/* Makes a link with `peer` (0: whoever answers there), trying all addresses; nothing when there
 * is one, or when the same is already under way. Whoever answered there before counts as there
 * while its link lasts. */
void link_connect(struct link *l, uint64_t peer, const char *host, int port);
void link_connect_list(struct link *l, uint64_t peer, const struct lookup_list *list);
/* A connection that store_server took: this is its `take`, with the link as user. fd is the
 * link's. */
bool link_take(void *user, int fd, const void *first, size_t size, const char *from);
/* Whether an agent that proved itself came from there, whatever the port, and is still of the
 * job: its link is up, or was lost less than dead_s ago. An agent that said goodbye is not. This
 * is store_access's is_joined, with the link as user. */
bool link_is_joined(void *user, const struct sockaddr *from);
/* Queues a copy; urgent ones go before all others. -1: no link, or too long. Written when the
 * loop goes on. */
int link_send(struct link *l, uint64_t peer, const void *bytes, size_t size, bool urgent);
/* Sends what is queued and a goodbye, then closes: the peer sees down, not dead. Also ends
 * attempts to connect to it. */
void link_drop(struct link *l, uint64_t peer);
/* The same for a peer that may come again: its host is of the job for as long as one whose link
 * was lost. */
void link_refuse(struct link *l, uint64_t peer);
/* We listen at another port from now on, too: what peers are told. */
void link_set_port(struct link *l, int port);
bool link_is_up(const struct link *l, uint64_t peer);
int link_count(const struct link *l);
/* The port at which the peer listens, as it said; 0: none, or no link. */
int link_port(const struct link *l, uint64_t peer);
/* Our own address on the link with peer, numeric: the one to publish to it. */
int link_local_address(const struct link *l, uint64_t peer, char *out, size_t out_bytes);
/* Goodbye to all, at most 3 s / time_scale (at least 1 s) for it to get away; then `closed` (may
 * be null) is called and l is gone. */
void link_close(struct link *l, void (*closed)(void *user), void *user);
/* One JSON object: links, connecting, half-open, refused, bytes held. */
void link_stats(const struct link *l, struct dt_text *out);

#endif
