/* Between the parts of the store server: store_server.c (requests, connections, the whole),
 * store_clients.c (lists of clients, how they end, what they are sent), store_crowd.c (who goes
 * when there are too many). */
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
    struct store_client *next, *previous; /* of fresh or active */
    bool is_fresh, is_dirty, closing;
    bool looks;      /* DT_WIRE_LOOKS */
    int unasked;     /* reads, since the last request that has an answer */
    size_t dirty_at; /* its place in the server's list, while it is dirty */
    bool is_full;    /* the socket took no more, or this client has had its turn: the rest of
                      * output goes when it is writable */
    double since_s;
    int pid;                  /* as its last PING said; 0: it said none */
    struct store_guest guest; /* whose it is, once it has begun as clients do */
    struct dt_wire_parser parser;
    size_t held; /* memory of parser and output when last counted */
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
    uv_check_t read; /* the loop has been through the sockets that were ready */
    int port;
    int handles; /* not closed yet: listeners, timer, check, clients */
    bool closing;
    void (*closed)(void *user);
    void *closed_user;
    struct dt_store_table *table;
    struct store_list fresh, active;
    struct store_client **dirty; /* with answers to send; null: it is gone */
    size_t dirty_count, dirty_capacity;
    bool soon;      /* since the loop last looked at the sockets, one was served that asks on at
                     * once */
    bool streams;   /* and one that has sent nothing for a while that has an answer */
    size_t held;    /* memory of all clients: unfinished requests and unsent answers */
    double crowd_s; /* last line about too many connections, and how many were closed since */
    int crowd_unsaid;
    struct strangers strangers;
    struct store_access access;
    void (*ping)(void *user, int pid); /* null: nobody asks */
    void *ping_user;
    uint64_t accepted, dropped, taken, rounds, requests[DT_WIRE_QUERY_COUNT];
    char buffer[STORE_READ_BYTES]; /* reads of all clients */
};

void store_list_add(struct store_list *l, struct store_client *c);
void store_list_remove(struct store_list *l, struct store_client *c);

/* One handle fewer: with the last one of a server that closes, it is freed. */
void store_handle_closed(struct store_server *s);

bool store_client_address(const struct store_client *c, struct sockaddr_storage *from);
/* "host:port" for messages. Returns out. */
const char *store_client_name(const struct store_client *c, char *out, size_t out_bytes);
/* The line about a client that goes: of each host, which may try a thousand times, one a minute.
 * That it has greeted as clients do proves nothing. */
void store_client_say_dropped(struct store_client *c, const char *why);
/* Takes a client out of everything but its socket. */
void store_client_leave(struct store_client *c);
/* Closes a client, saying why in one line unless why is null. Harmless twice. */
void store_client_drop(struct store_client *c, const char *why);

/* Watches the socket for requests, and for room when is_full. */
void store_client_watch(struct store_client *c, bool is_full);
/* What it is watched for has come about (store_server.c). */
void store_client_event(uv_poll_t *handle, int status, int events);

/* It has answers to send: store_server_flush sends them. */
void store_client_mark(struct store_client *c);
/* A waiter's `ready`: its client is told. */
void store_client_woken(struct dt_store_waiter *w);
/* Sends what the socket takes. May drop the client. */
void store_client_send(struct store_client *c);
/* The same of all that have answers. */
void store_server_flush(struct store_server *s);

/* A connection came, or one has begun as clients do and is served: who goes for it, if there are
 * too many. Never the newest itself. */
void store_crowd_came(struct store_server *s, struct store_client *newest);
void store_crowd_greeted(struct store_server *s, struct store_client *newest);

/* Counts its memory anew. */
void store_client_count(struct store_client *c);

#endif
