/* Serves short requests at a listening socket: each connection sends one request, gets one answer,
 * and ends. Used for questions about a job, which must not suffer from them. So the number of
 * connections, the size of a request and the time of a connection are limited, and the loop never
 * blocks. The user gives requests their meaning (status.c, exporter.c). */
#ifndef DT_LAUNCHER_NET_REQUEST_SERVER_H
#define DT_LAUNCHER_NET_REQUEST_SERVER_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <uv.h>

/* An answer is shared by the connections that asked the same, and freed with its last user. */
struct request_answer {
    struct dt_text text;
    int users;
};
/* The caller is the first user: it passes the answer on, or releases it. */
struct request_answer *request_answer_make(void);
void request_answer_release(struct request_answer *a); /* null is allowed */

enum request_verdict {
    REQUEST_MORE,  /* the request is not complete */
    REQUEST_DROP,  /* not a valid request: close */
    REQUEST_LATER, /* request_server_ready will be called */
    REQUEST_ANSWER /* *answer is set; the connection releases it */
};

struct request_server_options {
    int places;           /* connections served at once */
    size_t request_bytes; /* limit: requests are shorter */
    double timeout_s;     /* limit for a connection from beginning to end */
    /* When all places are taken, a new connection closes the oldest one if that is older than this.
     * 0: new connections wait. */
    double evict_after_s;
    /* Reads the request as far as it has come. fd: the connection, from which the peer's address
     * can be had. Not called again once it has returned something other than REQUEST_MORE. */
    enum request_verdict (*take)(void *user, int fd, const char *request, size_t size, struct request_answer **answer);
    void *user;
};

struct request_server;

/* fd: a bound UNIX or TCP socket. On success it belongs to a, else to the caller. */
int request_server_open(struct request_server **out, uv_loop_t *loop, int fd,
                        const struct request_server_options *options, struct dt_error *err);
/* Whether any connection waits for request_server_ready. */
bool request_server_waits(const struct request_server *a);
/* Sends the answer to all connections that were told REQUEST_LATER. Takes over the answer. */
void request_server_ready(struct request_server *a, struct request_answer *answer);
/* Closes all. Run the loop until the handles are closed; then a is freed. */
void request_server_close(struct request_server *a);

#endif
