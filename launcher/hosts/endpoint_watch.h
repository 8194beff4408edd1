/* The endpoint's port, for the agents of its host that do not hold it: it was taken when they
 * came (perhaps by an outgoing connection that happened to get it), its holder died, or its name
 * meant nothing yet. A watch tries again, until it listens there. */
#ifndef DT_LAUNCHER_HOSTS_ENDPOINT_WATCH_H
#define DT_LAUNCHER_HOSTS_ENDPOINT_WATCH_H

#include "launcher/net/lookup.h"

struct endpoint_watch_options {
    const char *host; /* the endpoint's; must outlive the watch, as user */
    int port;
    double every_s; /* between two tries; 0: 1 s */
    lookup_resolver *resolver;
    void *user;
    /* From the loop, once: fd listens at the endpoint (non-blocking, close-on-exec) and is the
     * callee's. The watch is over; close it. */
    void (*got)(void *user, int fd, const struct lookup_list *list);
};

struct endpoint_watch;

/* list: the endpoint's addresses; null: looked up in the background, and again while that fails. */
void endpoint_watch_open(struct endpoint_watch **out, uv_loop_t *loop, const struct endpoint_watch_options *options,
                         const struct lookup_list *list);
void endpoint_watch_close(struct endpoint_watch *c);

#endif
