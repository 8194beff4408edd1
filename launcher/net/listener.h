/* A listening socket on a libuv loop, which calls back for each connection. libuv's own listener
 * would wrap each connection in a stream. When the process runs out of open files, waiting
 * connections are refused, or else the loop would spin; one line per ten seconds tells. */
#ifndef DT_LAUNCHER_NET_LISTENER_H
#define DT_LAUNCHER_NET_LISTENER_H

#include "base/error.h"

#include <uv.h>

struct listener {
    uv_poll_t handle; /* first member: both have the same address */
    int fd;
    int spare_fd; /* closed for a moment when no more files can be opened */
    double warned_s;
    void (*connected)(void *user, int fd); /* fd: non-blocking, close-on-exec, the callee's */
    void (*closed)(void *user);
    void *user;
};

/* fd is bound; listener_open makes it listen. On success fd belongs to l, else to the caller. l
 * must stay until listener_close has called back. */
int listener_open(struct listener *l, uv_loop_t *loop, int fd, int backlog, void (*connected)(void *user, int fd),
                  void *user, struct dt_error *err);
/* The next connection of the queue, without a callback; -1 when there is none. */
int listener_next(struct listener *l);
/* Closes the socket; `closed` is called from the loop with l->user when l may go. */
void listener_close(struct listener *l, void (*closed)(void *user));

#endif
