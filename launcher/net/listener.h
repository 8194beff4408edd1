/* A listening socket on a libuv loop: calls back for each connection. libuv's own listener would
 * wrap each in a stream. When the open files run out, who waits in the queue is refused with one
 * line per ten seconds, for otherwise the loop would turn without end. */
#ifndef DT_LAUNCHER_NET_LISTENER_H
#define DT_LAUNCHER_NET_LISTENER_H

#include "base/error.h"

#include <uv.h>

struct listener {
    uv_poll_t handle; /* first: a pointer to it is one to the listener */
    int fd;
    int spare_fd; /* given up for a moment when there are no more open files */
    double warned_s;
    void (*connected)(void *user, int fd); /* fd: non-blocking, close-on-exec, the callee's */
    void (*closed)(void *user);
    void *user;
};

/* fd is bound; it listens afterwards and belongs to l on success, to the caller otherwise. l
 * must stay until listener_close has called back. */
int listener_open(struct listener *l, uv_loop_t *loop, int fd, int backlog, void (*connected)(void *user, int fd),
                  void *user, struct dt_error *err);
/* The next connection of the queue, without a callback; -1 when there is none. */
int listener_next(struct listener *l);
/* Closes the socket; `closed` is called from the loop with l->user when l may go. */
void listener_close(struct listener *l, void (*closed)(void *user));

#endif
