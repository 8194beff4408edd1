/* The endpoint's port, for the agents of its host that do not hold it: it was taken when they
 * came (perhaps by an outgoing connection that happened to get it), its holder died, or its name
 * meant nothing yet. A claim tries again, until it listens there. */
#ifndef DT_LAUNCHER_HOSTS_CLAIM_H
#define DT_LAUNCHER_HOSTS_CLAIM_H

#include "launcher/net/lookup.h"

struct claim_options {
    const char *host; /* the endpoint's; must outlive the claim, as user */
    int port;
    double every_s; /* between two tries; 0: 1 s */
    lookup_resolver *resolver;
    void *user;
    /* From the loop, once: fd listens at the endpoint (non-blocking, close-on-exec) and is the
     * callee's. The claim is over; close it. */
    void (*got)(void *user, int fd, const struct lookup_list *list);
};

struct claim;

/* list: the endpoint's addresses; null: looked up in the background, and again while that fails. */
void claim_open(struct claim **out, uv_loop_t *loop, const struct claim_options *options,
                const struct lookup_list *list);
void claim_close(struct claim *c);

#endif
