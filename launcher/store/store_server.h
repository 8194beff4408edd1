/* The libuv front of the store table: accepts connections, parses requests, answers, wakes. One
 * port serves workers and agents: a first byte 0x00 is a store client; a connection that begins
 * with anything else is handed to `take`, or dropped when nobody takes it. Runs on the loop's
 * thread alone. Bad, slow and silent clients are dropped with one log line; others do not
 * notice. */
#ifndef DT_LAUNCHER_STORE_STORE_SERVER_H
#define DT_LAUNCHER_STORE_STORE_SERVER_H

#include "base/error.h"
#include "base/text.h"
#include "collectives/net.h"
#include "collectives/store_table.h"
#include "launcher/store/store_access.h"

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

enum { STORE_CLIENTS = 65536 }; /* of whom nobody said how many they are */

struct store_server_options {
    const char *host; /* name or literal to listen on; null or "": all addresses, IPv6 and IPv4 */
    int port;         /* or 0 */
    struct dt_ports range;
    int backlog;         /* 0: 4096 */
    size_t output_bytes; /* of unread answers, with which a client may still ask for more; 0: 16
                          * MiB */
    size_t client_count; /* connections at once; above it the newest goes that has said nothing
                          * yet, else one of whoever has most; 0: 65536 */
    size_t fresh_count;  /* connections without a handshake; above it the oldest goes, for
                          * whoever has something to say says it at once; 0: 4096 */
    double hello_s;      /* time for the first byte and the handshake; 0: 30 s */
    struct dt_store_limits limits;
    /* A connection whose first byte is not 0x00. Returns true when taken: fd (non-blocking,
     * close-on-exec) is then the callee's, `first` are the bytes already read (copy them).
     * `from` is the address of the peer. May be null. */
    bool (*take)(void *user, int fd, const void *first, size_t size, const char *from);
    void *user;
    struct store_access_options access; /* who may use the store: asked at a client's first byte.
                                         * All zeros: our own user and root, on this machine */
    int listen_fd;                      /* above 0: a socket that listens already (non-blocking,
                                         * close-on-exec), used instead of host and port; ours on
                                         * success */
};

struct store_server;

/* Listens, with the soft limit of open files raised to the hard one. The options are copied. */
int store_server_open(struct store_server **out, uv_loop_t *loop, const struct store_server_options *options,
                      struct dt_error *err);
int store_server_port(const struct store_server *s);
/* It serves everybody who reaches it (store_access_options.open). */
bool store_server_is_open(const struct store_server *s);
/* How many ranks there are, from now on: connections are limited to 4 for each and 1024. */
void store_server_expect(struct store_server *s, int world_size);
/* Serves at a second port as well: fd listens already, as listen_fd. On success it is ours. */
int store_server_listen(struct store_server *s, int fd, struct dt_error *err);
/* A new round: all store clients are dropped (also those in the accept queue), the table is
 * emptied; same port. Connections that have not shown their first byte, and those taken, stay. */
void store_server_reset(struct store_server *s);
/* Closes clients and listener; `closed` (may be null) is called from the loop when all handles
 * are gone and s is freed. */
void store_server_close(struct store_server *s, void (*closed)(void *user), void *user);
/* From now on `ping` hears of every PING that a client of this machine sends: PyTorch's clients
 * and ours say their process id with it, first thing. */
void store_server_on_ping(struct store_server *s, void (*ping)(void *user, int pid), void *user);
struct store_server_counts {
    size_t clients, bytes; /* of keys and values */
    int64_t keys;
    uint64_t requests, accepted, dropped;
    uint64_t taken;  /* connections that speak something else and were handed over */
    uint64_t rounds; /* how often store_server_reset began a new one */
};
void store_server_count(const struct store_server *s, struct store_server_counts *out);
/* Appends two members of a JSON object: requests by name, and waits by key: how many, the
 * oldest's peer, missing keys and age. */
void store_server_details(const struct store_server *s, struct dt_text *out);

#endif
