/* Serves the store table on a libuv loop: accepts connections, parses requests, answers, and wakes
 * waiters. One port serves workers and agents. A store client begins with the byte 0x00; any other
 * connection is handed to `take`, or dropped. All runs on the loop's thread. Bad, slow and silent
 * clients are dropped with one log line, and do not disturb the others. */
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

enum { STORE_CLIENTS = 65536 }; /* default limit, when the number of ranks is not known */

struct store_server_options {
    const char *host; /* name or literal to listen on; null or "": all addresses, IPv6 and IPv4 */
    int port;         /* 0: any port of the range */
    struct dt_ports range;
    int backlog; /* 0: 4096 */
    /* limit of unread answers, above which a client may not ask more; 0: 16 MiB */
    size_t output_bytes;
    /* limit of connections. Above it closes the newest connection that has sent nothing, else one
     * of the owner with the most. 0: 65536 */
    size_t client_count;
    /* limit of connections without a handshake. Above it closes the oldest, because a real client
     * speaks at once. 0: 4096 */
    size_t fresh_count;
    double hello_s; /* time for the first byte and the handshake; 0: 30 s */
    struct dt_store_limits limits;
    /* Called for a connection whose first byte is not 0x00; may be null. first: the bytes already
     * read (copy them). from: the address of the peer. If it returns true, fd (non-blocking,
     * close-on-exec) belongs to the callee. */
    bool (*take)(void *user, int fd, const void *first, size_t size, const char *from);
    void *user;
    /* who may use the store, checked at a client's first byte. All zeros: our own user and root, on
     * this machine */
    struct store_access_options access;
    /* above 0: a socket that listens already (non-blocking, close-on-exec), instead of host and
     * port. On success it belongs to the server */
    int listen_fd;
};

struct store_server;

/* Listens, and raises the soft limit of open files to the hard one. The options are copied. */
int store_server_open(struct store_server **out, uv_loop_t *loop, const struct store_server_options *options,
                      struct dt_error *err);
int store_server_port(const struct store_server *s);
/* Whether the store serves everybody who reaches it (store_access_options.open). */
bool store_server_is_open(const struct store_server *s);
/* Sets the number of ranks: connections are limited to 4 for each rank, plus 1024. */
void store_server_expect(struct store_server *s, int world_size);
/* Serves at a second port as well. fd listens already, as listen_fd; on success it belongs to the
 * server. */
int store_server_listen(struct store_server *s, int fd, struct dt_error *err);
/* Begins a new round: drops all store clients (also those in the accept queue) and empties the
 * table. The port stays, and so do connections whose first byte has not come and those handed to
 * `take`. */
void store_server_reset(struct store_server *s);
/* Closes clients and listener; `closed` (may be null) is called from the loop when all handles
 * are gone and s is freed. */
void store_server_close(struct store_server *s, void (*closed)(void *user), void *user);
/* Sets the function that hears of every PING from a client of this machine. PyTorch's clients and
 * ours send their process id in a PING first of all. */
void store_server_on_ping(struct store_server *s, void (*ping)(void *user, int pid), void *user);
struct store_server_counts {
    size_t clients, bytes; /* bytes of keys and values */
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
