/* Links between agents: at most one per pair, over TCP, encrypted (secure.h), on the port that the
 * worker store also uses. Runs on the thread of the libuv loop alone.
 * A peer counts as dead only when its kernel says so: its end of a link was closed without a
 * goodbye. After a reset, the link first asks for up to 3 s whether the peer's port refuses
 * connections, which a machine in between may answer, too. A living agent never closes a link
 * without a goodbye; where it cannot send one it resets the link. */
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
    LINK_LOST, /* the peer may be alive */
    /* the peer's kernel closed the link in order: the process has ended, and all that it sent has
     * arrived */
    LINK_ENDED,
    /* the link was reset, and the peer's port refuses connections or belongs to another agent. If
     * the peer is on this machine, its process has ended; bytes that it sent may be lost */
    LINK_RESET
};

/* Called from the loop only, never from within a call below. Hooks may call anything below. */
struct link_hooks {
    void *user;
    /* A link with this agent is up. host: its numeric address. A second link with the same peer
     * replaces the first, after down. */
    void (*up)(void *user, uint64_t peer, const char *host);
    /* The link is down. Not called after link_drop, link_refuse and link_close. */
    void (*down)(void *user, uint64_t peer, enum link_end end);
    void (*message)(void *user, uint64_t peer, const void *bytes, size_t size);
    /* A link_connect failed. err tells a refusal, no answer, a failed look-up and a wrong key
     * apart. May be null. */
    void (*failed)(void *user, uint64_t peer, const struct dt_error *err);
    /* The agent that answered a link_connect runs another version, so trying again will not help.
     * failed follows. May be null. */
    void (*other_version)(void *user, const struct dt_error *err);
};

struct link_options {
    uint64_t id; /* id of this agent, not 0 */
    int port;    /* port at which this agent listens on all addresses; 0: none */
    const char *run_id;
    const struct secure_key *key; /* key of the job; link_open copies it. Null: the key of zeros */
    size_t frame_bytes;           /* longest message; 0: 64 KiB */
    /* limit of unsent messages per peer; above it the link is reset; 0: 4 MiB */
    size_t queue_bytes;
    /* limit of accepted connections in their handshake; above it the oldest is closed; 0: 2048 */
    int half_open_count;
    /* a link ends after so long with unacknowledged bytes or a silent network; 0: 15 s */
    double dead_s;
    double time_scale;         /* divides the limits that are not given; 0: 1 */
    double handshake_s;        /* 0: 10 s / time_scale, at least 3 s */
    lookup_resolver *resolver; /* null: getaddrinfo */
    struct link_hooks hooks;
};

struct link;

/* The options are copied. Raises the soft limit of open files. */
int link_open(struct link **out, uv_loop_t *loop, const struct link_options *options, struct dt_error *err);
/* Makes a link with `peer` (0: any agent that answers), trying all addresses. Does nothing when the
 * link is up, or when the same attempt is under way. With peer 0, an agent that answered there
 * before counts as found while its link is up. */
void link_connect(struct link *l, uint64_t peer, const char *host, int port);
void link_connect_list(struct link *l, uint64_t peer, const struct lookup_list *list);
/* Takes a connection from store_server, as its `take`; user is the link. fd belongs to the link. */
bool link_take(void *user, int fd, const void *first, size_t size, const char *from);
/* Whether an agent of the job has proved itself from this address (any port): its link is up, or
 * was lost less than dead_s ago. An agent that said goodbye does not count. Serves as
 * store_access's is_joined; user is the link. */
bool link_is_joined(void *user, const struct sockaddr *from);
/* Queues a copy of the message, which the loop sends. Urgent messages go before all others. -1: no
 * link, or the message is too long. */
int link_send(struct link *l, uint64_t peer, const void *bytes, size_t size, bool urgent);
/* Sends the queued messages and a goodbye, then closes. The peer sees down, not dead. Also ends
 * attempts to connect to the peer. */
void link_drop(struct link *l, uint64_t peer);
/* Like link_drop, for a peer that may come again: its host stays part of the job as long as a host
 * whose link was lost. */
void link_refuse(struct link *l, uint64_t peer);
/* Sets the port at which this agent listens from now on, which new peers are told. */
void link_set_port(struct link *l, int port);
bool link_is_up(const struct link *l, uint64_t peer);
int link_count(const struct link *l);
/* The port at which the peer says it listens; 0: none, or no link. */
int link_port(const struct link *l, uint64_t peer);
/* This agent's numeric address on the link with peer: the one to publish to that peer. */
int link_local_address(const struct link *l, uint64_t peer, char *out, size_t out_bytes);
/* Says goodbye to all peers, for at most 3 s / time_scale (at least 1 s). Then calls `closed` (may
 * be null) and frees l. */
void link_close(struct link *l, void (*closed)(void *user), void *user);
/* One JSON object: links, connecting, half-open, refused, bytes held. */
void link_stats(const struct link *l, struct dt_text *out);

#endif
