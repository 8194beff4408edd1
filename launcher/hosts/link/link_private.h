/* Between the parts of a link: link.c (the whole, the sweep), link_conn.c (one connection and
 * its queues), link_greet.c (handshakes, decisions, what comes in), link_known.c (peers),
 * link_dial.c (attempts to connect, and probes of peers whose link was reset). */
#ifndef DT_LAUNCHER_HOSTS_LINK_LINK_PRIVATE_H
#define DT_LAUNCHER_HOSTS_LINK_LINK_PRIVATE_H

#include "launcher/hosts/link/link.h"
#include "launcher/net/strangers.h"

enum { LINK_READ_BYTES = 65536, LINK_SWEEP_MS = 50, LINK_KNOWN_MAX = 4096, LINK_REACHED = 4 };

enum conn_state {
    CONN_CONNECTING,
    CONN_GREETING, /* handshake */
    CONN_REFUSED,  /* kept a second, so that guessing keys is slow */
    CONN_UP,
    CONN_LEAVING, /* goodbye said, waits for the other side to close */
    CONN_CLOSED   /* until libuv gives the handle back */
};

struct item { /* a message to be sent */
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
    struct conn *next, *previous; /* of unsettled: not up */
    struct conn *next_dirty;
    struct dial *dial; /* that made it, until it is up */
    enum conn_state state;
    bool waits; /* what it said is not looked at before the next second */
    bool listed, is_dirty, writing, said_end, shut, reset, overflow, failed;
    double until_s; /* when what it does must be done; 0: no limit */
    struct sockaddr_storage from;
    struct secure secure;
    struct items urgent, usual;
    size_t queued;      /* bytes of both */
    struct dt_text out; /* ready to be written */
};

_Static_assert(sizeof(struct conn) <= 4096, "thousands may be idle");

struct dial {
    struct dial *next;
    struct link *link;
    uint64_t peer;
    char *host; /* null: by list */
    int port;
    struct lookup *lookup; /* under way */
    bool looked_up, told;
    double lookup_s; /* when the look-up began */
    struct lookup_list list;
    int next_address, live; /* connections under way */
    double next_at_s, until_s;
    struct dt_error err; /* of the address tried last */
};

struct probe { /* a link was reset: is its process still there? */
    struct probe *next;
    struct link *link;
    uv_tcp_t handle;
    uv_connect_t request;
    uint64_t peer; /* 0: nobody waits for it */
    struct sockaddr_storage to;
    struct secure secure;
    double until_s, again_at_s; /* again_at_s above 0: the connection ended, the next one begins
                                 * then */
};

struct known { /* agents that proved themselves, as many as LINK_KNOWN_MAX */
    uint64_t id;
    uint8_t session[SECURE_SESSION_BYTES]; /* newest */
};

struct known_host { /* an address from which a peer came: of the job while that peer is up, and
                     * until until_s after it was lost */
    uint8_t address[16];
    uint64_t peer;
    double until_s;
};

struct reached { /* who answered when we connected without knowing whom to expect */
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
    struct conn *first, *last; /* unsettled, newest first */
    int accepted_count;        /* of them, accepted ones in GREETING or REFUSED */
    struct conn **peers;       /* up, sorted by id */
    int peer_count, peer_capacity;
    struct conn *dirty;
    struct dial *dials;
    struct probe *probes;
    struct reached reached[LINK_REACHED]; /* a ring */
    unsigned reached_next;
    struct known *known;
    int known_count, known_capacity, known_next;
    struct known_host *hosts; /* sorted by address, then by peer */
    int host_count, host_capacity;
    struct strangers strangers;
    double looked_s; /* at those who wait */
    uint64_t refused;
    char buffer[LINK_READ_BYTES];
};

/* link.c */
void link_handle_closed(struct link *l);
void link_close_rest(struct link *l);
double link_now(const struct link *l);
void link_watch(struct link *l); /* the sweep is needed */
void link_hurry(struct link *l); /* at once */
/* link_conn.c */
struct conn *conn_new(struct link *l, bool client); /* null: too many open files */
void conn_close(struct conn *c);
void conn_reset_at_close(const uv_tcp_t *handle); /* and leave nothing of it */
void conn_list(struct link *l, struct conn *c);   /* into the list of the unsettled */
void conn_unlist(struct link *l, struct conn *c);
bool conn_is_half_open(const struct conn *c);
void conn_set_state(struct conn *c, enum conn_state state);
void conn_tune(struct conn *c);
void conn_flush(struct conn *c);
void conn_flush_all(struct link *l);
void conn_leave(struct conn *c); /* one that is up goes in order: no hook */
/* link_greet.c */
int conn_read(struct conn *c);
/* One that was up is gone. ask: it was reset, which does not prove that the process is gone. */
void conn_lost(struct conn *c, bool dead, bool ask);
void conn_refuse(struct conn *c, const char *why);
void conn_look_again(struct conn *c);                          /* one that waits */
void conn_give_up(struct conn *c, const struct dt_error *err); /* one that was never up ends */
/* link_known.c */
struct conn *link_find(const struct link *l, uint64_t peer);
void link_add(struct link *l, struct conn *c);
void link_remove(struct link *l, const struct conn *c);
/* A peer is no longer up. Said: it said goodbye, or we did, so where it came from is no longer
 * of the job; else it is until that host would be dead. */
void known_gone(struct link *l, uint64_t peer, bool said);
/* Whether this peer has proved itself from that address. */
bool known_came_from(const struct link *l, uint64_t peer, const struct sockaddr *from);
struct known *known_find(const struct link *l, uint64_t id);
void known_add(struct link *l, const struct conn *c);
/* link_dial.c */
void dial_lost(struct conn *c, const struct dt_error *err); /* one connection of a dial came to
                                                             * nothing */
void dial_end(struct dial *d, const struct dt_error *err);  /* err null: done, nothing to tell */
void dial_met(struct dial *d, uint64_t peer);               /* the same: a link with this peer
                                                             * is, or will be, there */
void dial_sweep(struct link *l, double now_s);
void dial_close_all(struct link *l);
/* Asks the peer's port; false: it has none that we know. */
bool probe_open(struct link *l, const struct conn *c);
/* Nobody waits for the answer any more; whether somebody did. */
bool probe_forget(struct link *l, uint64_t peer);

#endif
