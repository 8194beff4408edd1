/* Short questions at a listening socket: each connection sends one request, is given one answer,
 * and ends. For who asks how a job is; a job does not suffer from them: so many are served at
 * once, a request has so many bytes, whoever has not asked, or not read its answer, after a
 * while is dropped, and the loop never waits. What a request means is for its user (status.c,
 * exporter.c). */
#ifndef DT_LAUNCHER_NET_ASKED_H
#define DT_LAUNCHER_NET_ASKED_H

#include "base/error.h"
#include "base/text.h"

#include <stdbool.h>
#include <uv.h>

/* May go to several connections, as it is the same for all; goes with the last user. */
struct asked_answer {
    struct dt_text text;
    int users;
};
/* One user: the caller, who gives it away or lets it go. */
struct asked_answer *asked_answer_make(void);
void asked_answer_let_go(struct asked_answer *a); /* null is harmless */

enum asked_take {
    ASKED_MORE,  /* not the whole request yet */
    ASKED_DROP,  /* none of ours */
    ASKED_LATER, /* asked_ready will be called */
    ASKED_ANSWER /* *answer is it, and the connection's to let go */
};

struct asked_options {
    int places;           /* served at once */
    size_t request_bytes; /* a request is shorter */
    double slow_s;        /* for a connection from its beginning to its end */
    double gives_way_s;   /* where all places are taken, the oldest connection ends for one that
                           * comes, if it is older than this; 0: who comes waits */
    /* What has come so far on fd, whose other end may be asked for. Not called again after
     * another answer than ASKED_MORE. */
    enum asked_take (*take)(void *user, int fd, const char *request, size_t size, struct asked_answer **answer);
    void *user;
};

struct asked;

/* fd: bound, of a UNIX or TCP socket; it is a's on success, the caller's otherwise. */
int asked_open(struct asked **out, uv_loop_t *loop, int fd, const struct asked_options *options, struct dt_error *err);
/* Whether any connection waits for asked_ready. */
bool asked_waits(const struct asked *a);
/* All who were told "later" get this answer, which is a's to let go. */
void asked_ready(struct asked *a, struct asked_answer *answer);
/* Run the loop until its handles are closed, which frees a. */
void asked_close(struct asked *a);

#endif
