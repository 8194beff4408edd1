/* Short questions at a listening socket: each connection sends one request, is given one answer,
 * and ends. For who asks how a job is; a job does not suffer from them: so many are served at
 * once, a request has so many bytes, whoever has not asked, or not read its answer, after a
 * while is dropped, and the loop never waits. What a request means is for its user (status.c,
 * exporter.c). */
#ifndef DT_LAUNCHER_NET_REQUEST_SERVER_H
#define DT_LAUNCHER_NET_REQUEST_SERVER_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <uv.h>

/* May go to several connections, as it is the same for all; goes with the last user. */
struct request_answer {
    struct dt_text text;
    int users;
};
/* One user: the caller, who gives it away or lets it go. */
struct request_answer *request_answer_make(void);
void request_answer_release(struct request_answer *a); /* null is harmless */

enum request_verdict {
    REQUEST_MORE,  /* not the whole request yet */
    REQUEST_DROP,  /* none of ours */
    REQUEST_LATER, /* request_server_ready will be called */
    REQUEST_ANSWER /* *answer is it, and the connection's to let go */
};

struct request_server_options {
    int places;           /* served at once */
    size_t request_bytes; /* a request is shorter */
    double timeout_s;     /* for a connection from its beginning to its end */
    double evict_after_s; /* where all places are taken, the oldest connection ends for one that
                           * comes, if it is older than this; 0: who comes waits */
    /* What has come so far on fd, whose other end may be asked for. Not called again after
     * another answer than REQUEST_MORE. */
    enum request_verdict (*take)(void *user, int fd, const char *request, size_t size, struct request_answer **answer);
    void *user;
};

struct request_server;

/* fd: bound, of a UNIX or TCP socket; it is a's on success, the caller's otherwise. */
int request_server_open(struct request_server **out, uv_loop_t *loop, int fd,
                        const struct request_server_options *options, struct dt_error *err);
/* Whether any connection waits for request_server_ready. */
bool request_server_waits(const struct request_server *a);
/* All who were told "later" get this answer, which is a's to let go. */
void request_server_ready(struct request_server *a, struct request_answer *answer);
/* Run the loop until its handles are closed, which frees a. */
void request_server_close(struct request_server *a);

#endif
