/* Who hosts the rendezvous: the agent on whose machine the endpoint's address is and who gets
 * its port. Addresses are compared with those of all interfaces; where that is no proof
 * (addresses that are routed here without an interface), binding the address is. */
#ifndef DT_LAUNCHER_NET_ENDPOINT_H
#define DT_LAUNCHER_NET_ENDPOINT_H

#include "base/error.h"
#include "base/text.h"
#include "collectives/net.h"
#include "launcher/net/lookup.h"

#include <stdbool.h>
#include <sys/types.h>

enum endpoint_choice {
    ENDPOINT_AUTO, /* by address and by who binds first */
    ENDPOINT_HOST, /* static, node rank 0: a port that is taken is an error */
    ENDPOINT_JOIN  /* static, another node rank */
};

struct endpoint {
    bool hosts, ours; /* ours: an address of the endpoint is one of this machine */
    int fd;           /* when hosting: listens on all addresses; give it to store_server
                       * (listen_fd). Else -1 */
    int port;
    char why[256]; /* for people */
};

struct ifaddrs;
/* True for loopback, for "any", and for the addresses of all interfaces. */
bool endpoint_is_local(const struct sockaddr *a);
/* The same, with the interfaces that getifaddrs showed; null: none. */
bool endpoint_is_among(const struct ifaddrs *interfaces, const struct sockaddr *a);
bool endpoint_is_loopback(const struct sockaddr *a);
/* list: the endpoint's addresses. A taken port makes ENDPOINT_AUTO a joiner: another agent of
 * this machine was first. A port that an outgoing connection happens to have makes nobody a
 * host: endpoint_watch.h tries again. Errors: ENDPOINT_HOST at whose port somebody listens; that
 * its address is elsewhere only `why` says. */
int endpoint_decide(struct endpoint *out, enum endpoint_choice choice, const struct lookup_list *list, int port,
                    struct dt_error *err);
/* The endpoint's port if one of its addresses is here and nobody has it; asks nobody who does.
 * Errors: DT_NOT_FOUND when it is elsewhere. */
int endpoint_take(const struct lookup_list *list, int port, int *fd, struct dt_error *err);
/* A listening socket on all addresses (IPv6 and IPv4, else IPv4): port, or the first free one of
 * the range (port 0), or any. */
int endpoint_listen(int port, const struct dt_ports *range, int *fd, int *port_out, struct dt_error *err);
/* The address by which this machine reaches `to`: the one to publish to peers on that side.
 * Sends nothing. */
int endpoint_route(const struct sockaddr *to, char *out, size_t out_bytes, struct dt_error *err);
/* Nothing reaches 127.0.0.1, as in a network namespace that nobody has set up. */
bool endpoint_loopback_is_down(void);
/* What to publish before any peer is known: the endpoint's own address if it is here and no
 * loopback; else that of the route to it. *warning (may be null) is set to a line when only this
 * machine can reach the address. */
int endpoint_published(const struct lookup_list *list, char *out, size_t out_bytes, const char **warning,
                       struct dt_error *err);
/* "pid 123 (python3)" of who listens on a TCP port, or "a process of another user"; false when
 * nobody does. */
bool endpoint_port_owner(int port, char *out, size_t out_bytes);
/* Somebody listens on that TCP port, and all who do are processes for which is_ours is true;
 * *out: where the first one can be reached. */
bool endpoint_listeners_are(int port, bool (*is_ours)(void *user, pid_t pid), void *user, struct sockaddr_storage *out);

#endif
