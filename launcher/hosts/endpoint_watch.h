/* Tries to get the endpoint's port, for an agent on the endpoint's host that does not hold it. The
 * port may have been taken when the agent came (perhaps by an outgoing connection that happened to
 * get it), its holder may have died, or the endpoint's name was unknown. The watch tries until it
 * listens at the port. */
#ifndef DT_LAUNCHER_HOSTS_ENDPOINT_WATCH_H
#define DT_LAUNCHER_HOSTS_ENDPOINT_WATCH_H

#include "launcher/net/lookup.h"

struct endpoint_watch_options {
    const char *host; /* name of the endpoint; like `user`, it must outlive the watch */
    int port;
    double every_s; /* between two tries; 0: 1 s */
    lookup_resolver *resolver;
    void *user;
    /* Called once, from the loop. fd listens at the endpoint (non-blocking, close-on-exec) and
     * belongs to the callee, which closes the watch. */
    void (*got)(void *user, int fd, const struct lookup_list *list);
};

struct endpoint_watch;

/* list: the endpoint's addresses. Null: the watch looks them up in the background until it finds
 * them. */
void endpoint_watch_open(struct endpoint_watch **out, uv_loop_t *loop, const struct endpoint_watch_options *options,
                         const struct lookup_list *list);
void endpoint_watch_close(struct endpoint_watch *c);

#endif
