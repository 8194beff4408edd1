/* Tries to get the endpoint's port, for an agent of its host that does not hold it: the port was
 * taken when the agent came (perhaps by an outgoing connection that happened to get it), its holder
 * died, or its name was not known yet. The watch tries until it listens there. */
#ifndef DT_LAUNCHER_HOSTS_ENDPOINT_WATCH_H
#define DT_LAUNCHER_HOSTS_ENDPOINT_WATCH_H

#include "launcher/net/lookup.h"

struct endpoint_watch_options {
    const char *host; /* name of the endpoint; must outlive the watch, as user */
    int port;
    double every_s; /* between two tries; 0: 1 s */
    lookup_resolver *resolver;
    void *user;
    /* Called once, from the loop. fd listens at the endpoint (non-blocking, close-on-exec) and
     * belongs to the callee, which closes the watch. */
    void (*got)(void *user, int fd, const struct lookup_list *list);
};

struct endpoint_watch;

/* list: the endpoint's addresses; null: they are looked up in the background, again and again until
 * that succeeds. */
void endpoint_watch_open(struct endpoint_watch **out, uv_loop_t *loop, const struct endpoint_watch_options *options,
                         const struct lookup_list *list);
void endpoint_watch_close(struct endpoint_watch *c);

#endif
