/* Shared by the parts of the store server: store_server.c (requests, connections, open and close),
 * store_clients.c (lists of clients, their end, their answers), store_crowd.c (too many
 * connections). */
#ifndef DT_LAUNCHER_STORE_STORE_PRIVATE_H
#define DT_LAUNCHER_STORE_STORE_PRIVATE_H

#include "collectives/wire.h"
#include "launcher/net/listener.h"
#include "launcher/store/store_server.h"
#include "launcher/net/strangers.h"

enum { STORE_READ_BYTES = 65536, STORE_LISTENERS = 2 };
enum { STORE_DIRTY_MOST = 256 }; /* clients with answers; then these are sent before more is read */

struct store_client {
    uv_poll_t handle;
    int fd;
    struct store_server *server;
    struct store_client *next, *previous; /* in the list fresh or active */
    bool is_fresh, is_dirty, closing;
    bool looks;      /* the client polls for its answers (DT_WIRE_LOOKS) */
    int unasked;     /* reads since the last request that has an answer */
    size_t dirty_at; /* index in the server's list `dirty`, if is_dirty */
    /* the socket took no more, or this client has had its turn: the rest of output waits until the
     * socket is writable */
    bool is_full;
    double since_s;
    int pid;                  /* from its last PING; 0: none */
    struct store_guest guest; /* owner, once the handshake has begun */
    struct dt_wire_parser parser;
    size_t held; /* memory of parser and output at the last count */
    struct dt_store_waiter waiter;
    struct dt_wire_output output;
};

_Static_assert(sizeof(struct store_client) <= 4096, "thousands may be idle");

struct store_list {
    struct store_client *first, *last;
    size_t count;
};

struct store_server {
    struct store_server_options options;
    uv_loop_t *loop;
    struct listener listeners[STORE_LISTENERS];
    int listener_count;
    uv_timer_t timer;
    uv_check_t read; /* runs when the loop has read all ready sockets */
    int port;
    int handles; /* not closed yet: listeners, timer, check, clients */
    bool closing;
    void (*closed)(void *user);
    void *closed_user;
    struct dt_store_table *table;
    struct store_list fresh, active;
    struct store_client **dirty; /* clients with answers to send; null: the client has gone */
    size_t dirty_count, dirty_capacity;
    /* a client was served that polls for answers, so the next request may come at once */
    bool soon;
    bool streams;   /* such a client also streams requests without answers */
    size_t held;    /* memory of all clients: unfinished requests and unsent answers */
    double crowd_s; /* time of the last line about too many connections */
    int crowd_unsaid;
    struct strangers strangers;
    struct store_access access;
    void (*ping)(void *user, int pid); /* null: no listener for pings */
    void *ping_user;
    uint64_t accepted, dropped, taken, rounds, requests[DT_WIRE_QUERY_COUNT];
    char buffer[STORE_READ_BYTES]; /* receive buffer of all clients */
};

void store_list_add(struct store_list *l, struct store_client *c);
void store_list_remove(struct store_list *l, struct store_client *c);

/* Counts one handle less. The last handle frees a server that closes. */
void store_handle_closed(struct store_server *s);

bool store_client_address(const struct store_client *c, struct sockaddr_storage *from);
/* "host:port" for messages. Returns out. */
const char *store_client_name(const struct store_client *c, char *out, size_t out_bytes);
/* Logs that a client is dropped, at most once a minute for each host, which may try a thousand
 * times. A finished handshake exempts no host from this, because it proves nothing. */
void store_client_say_dropped(struct store_client *c, const char *why);
/* Removes a client from all lists; its socket stays open. */
void store_client_leave(struct store_client *c);
/* Closes a client, and logs the reason unless why is null. A second call does nothing. */
void store_client_drop(struct store_client *c, const char *why);

/* Watches the socket for requests, and for room when is_full. */
void store_client_watch(struct store_client *c, bool is_full);
/* Handles the events of the socket (store_server.c). */
void store_client_event(uv_poll_t *handle, int status, int events);

/* The client has answers: store_server_flush will send them. */
void store_client_mark(struct store_client *c);
/* A waiter's `ready`: appends the answer for its client. */
void store_client_woken(struct dt_store_waiter *w);
/* Sends as much as the socket takes. May drop the client. */
void store_client_send(struct store_client *c);
/* Sends the answers of all marked clients. */
void store_server_flush(struct store_server *s);

/* Close another connection if there are too many: after a connection came (came), and after one has
 * finished its handshake (greeted). The newest itself is never closed. */
void store_crowd_came(struct store_server *s, struct store_client *newest);
void store_crowd_greeted(struct store_server *s, struct store_client *newest);

/* Counts the client's memory again. */
void store_client_count(struct store_client *c);

#endif
