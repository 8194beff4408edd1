/* Shared by the parts of a link: link.c (open, close, sweep), link_conn.c (one connection and its
 * queues), link_greet.c (handshakes, decisions, incoming messages), link_known.c (peers),
 * link_dial.c (attempts to connect, and probes of peers whose link was reset). */
#ifndef DT_LAUNCHER_HOSTS_LINK_LINK_PRIVATE_H
#define DT_LAUNCHER_HOSTS_LINK_LINK_PRIVATE_H

#include "launcher/hosts/link/link.h"
#include "launcher/net/strangers.h"

enum { LINK_READ_BYTES = 65536, LINK_SWEEP_MS = 50, LINK_KNOWN_MAX = 4096, LINK_REACHED = 4 };

enum conn_state {
    CONN_CONNECTING,
    CONN_GREETING, /* in its handshake */
    CONN_REFUSED,  /* refused; kept for a second, so that guessing keys is slow */
    CONN_UP,
    CONN_LEAVING, /* has said goodbye, and waits for the peer to close */
    CONN_CLOSED   /* waits for libuv to close the handle */
};

struct item { /* a queued message */
    struct item *next;
    size_t size;
    uint8_t bytes[];
};
struct items {
    struct item *first, **last;
};

struct conn {
    uv_tcp_t handle;
    struct link *link;
    struct conn *next, *previous; /* in the list of unsettled connections, which are not up */
    struct conn *next_dirty;
    struct dial *dial; /* the attempt that made it, until it is up */
    enum conn_state state;
    bool waits; /* received bytes wait for the next second */
    bool listed, is_dirty, writing, said_end, shut, reset, overflow, failed;
    double until_s; /* deadline of this state; 0: none */
    struct sockaddr_storage from;
    struct secure secure;
    struct items urgent, usual;
    size_t queued;      /* bytes of both queues */
    struct dt_text out; /* encrypted, ready to be written */
};

_Static_assert(sizeof(struct conn) <= 4096, "thousands may be idle");

struct dial {
    struct dial *next;
    struct link *link;
    uint64_t peer;
    char *host; /* null: the addresses are in list */
    int port;
    struct lookup *lookup; /* the running look-up, or null */
    bool looked_up, told;
    double lookup_s; /* when the look-up began */
    struct lookup_list list;
    int next_address, live; /* live: connections under way */
    double next_at_s, until_s;
    struct dt_error err; /* error of the address tried last */
};

struct probe { /* checks whether the process of a reset link still runs */
    struct probe *next;
    struct link *link;
    uv_tcp_t handle;
    uv_connect_t request;
    uint64_t peer; /* 0: the link no longer waits for the result */
    struct sockaddr_storage to;
    struct secure secure;
    /* again_at_s: when the next connection begins, after one that ended; 0: not set */
    double until_s, again_at_s;
};

struct known { /* agents that have proved themselves, at most LINK_KNOWN_MAX */
    uint64_t id;
    uint8_t session[SECURE_SESSION_BYTES]; /* the newest session */
};

/* An address from which a peer came. It is part of the job while the peer is up, and then until
 * until_s. */
struct known_host {
    uint8_t address[16];
    uint64_t peer;
    double until_s;
};

struct reached { /* the agent that answered a connection whose peer was not known */
    char *host;
    int port;
    uint64_t peer;
};

struct link {
    uv_loop_t *loop;
    struct link_options options;
    struct secure_self self;
    uv_timer_t sweep;
    uv_prepare_t flush;
    int handles;
    bool closing;
    double close_at_s;
    void (*closed)(void *user);
    void *closed_user;
    struct conn *first, *last; /* unsettled connections, newest first */
    int accepted_count;        /* accepted ones among them, in GREETING or REFUSED */
    struct conn **peers;       /* connections that are up, sorted by id */
    int peer_count, peer_capacity;
    struct conn *dirty;
    struct dial *dials;
    struct probe *probes;
    struct reached reached[LINK_REACHED]; /* ring buffer */
    unsigned reached_next;
    struct known *known;
    int known_count, known_capacity, known_next;
    struct known_host *hosts; /* sorted by address, then by peer */
    int host_count, host_capacity;
    struct strangers strangers;
    double looked_s; /* time when waiting connections were last read */
    uint64_t refused;
    char buffer[LINK_READ_BYTES];
};

/* link.c */
void link_handle_closed(struct link *l);
void link_close_rest(struct link *l);
double link_now(const struct link *l);
void link_watch(struct link *l); /* starts the sweep */
void link_hurry(struct link *l); /* starts the sweep at once */
/* link_conn.c */
/* family: of the address to connect to; AF_UNSPEC for a connection to accept. Null with libuv's
 * *result when there can be no socket. */
struct conn *conn_new(struct link *l, bool client, int family, int *result);
void conn_close(struct conn *c);
/* makes closing send a reset, and leaves no trace of the connection */
void conn_reset_at_close(const uv_tcp_t *handle);
void conn_list(struct link *l, struct conn *c); /* adds it to the list of unsettled connections */
void conn_unlist(struct link *l, struct conn *c);
bool conn_is_half_open(const struct conn *c);
void conn_set_state(struct conn *c, enum conn_state state);
void conn_tune(struct conn *c);
void conn_flush(struct conn *c);
void conn_flush_all(struct link *l);
void conn_leave(struct conn *c); /* closes in order; for a connection that is up, without a hook */
/* link_greet.c */
int conn_read(struct conn *c);
/* A connection that was up has ended. ask: the end was a reset, which does not prove that the
 * process is gone. */
void conn_lost(struct conn *c, bool dead, bool ask);
void conn_refuse(struct conn *c, const char *why);
void conn_look_again(struct conn *c); /* handles bytes that have waited */
/* ends a connection that was never up */
void conn_give_up(struct conn *c, const struct dt_error *err);
/* link_known.c */
struct conn *link_find(const struct link *l, uint64_t peer);
void link_add(struct link *l, struct conn *c);
void link_remove(struct link *l, const struct conn *c);
/* A peer is no longer up. said: one of the two sides said goodbye, so the peer's addresses are no
 * longer part of the job. Else they stay part of it until the host would count as dead. */
void known_gone(struct link *l, uint64_t peer, bool said);
/* Whether this peer has proved itself from that address. */
bool known_came_from(const struct link *l, uint64_t peer, const struct sockaddr *from);
struct known *known_find(const struct link *l, uint64_t id);
void known_add(struct link *l, const struct conn *c);
/* link_dial.c */
/* one connection of an attempt failed */
void dial_lost(struct conn *c, const struct dt_error *err);
/* err null: the attempt has succeeded */
void dial_end(struct dial *d, const struct dt_error *err);
/* ends attempts to reach this peer, because a link with it is or will be up */
void dial_met(struct dial *d, uint64_t peer);
void dial_sweep(struct link *l, double now_s);
void dial_close_all(struct link *l);
/* Begins to probe the peer's port. False: the port is not known. */
bool probe_open(struct link *l, const struct conn *c);
/* Cancels a probe of the peer. Returns whether there was one. */
bool probe_forget(struct link *l, uint64_t peer);

#endif
