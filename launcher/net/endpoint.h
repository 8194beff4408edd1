/* Which agent hosts the rendezvous: the one on whose machine the endpoint's address is and which
 * gets its port. Addresses are compared with those of all interfaces. An address that is routed
 * here without an interface is recognized by binding it. */
#ifndef DT_LAUNCHER_NET_ENDPOINT_H
#define DT_LAUNCHER_NET_ENDPOINT_H

#include "base/error.h"
#include "base/text.h"
#include "collectives/net.h"
#include "launcher/net/lookup.h"

#include <stdbool.h>
#include <sys/types.h>

enum endpoint_choice {
    ENDPOINT_AUTO, /* by address, and by which agent binds first */
    ENDPOINT_HOST, /* static, node rank 0: a port that is taken is an error */
    ENDPOINT_JOIN  /* static, another node rank */
};

struct endpoint {
    bool hosts, ours; /* ours: an address of the endpoint is one of this machine */
    /* when hosting: a socket that listens on all addresses, for store_server (listen_fd); else
     * -1 */
    int fd;
    int port;
    char why[256]; /* the reason, in words for users */
};

struct ifaddrs;
/* True for loopback, for "any", and for the addresses of all interfaces. */
bool endpoint_is_local(const struct sockaddr *a);
/* Like endpoint_is_local, with the interfaces from getifaddrs; null: none. */
bool endpoint_is_among(const struct ifaddrs *interfaces, const struct sockaddr *a);
bool endpoint_is_loopback(const struct sockaddr *a);
/* Decides whether this agent hosts. list: the endpoint's addresses. If the port is taken,
 * ENDPOINT_AUTO joins, because another agent of this machine was first. If an outgoing connection
 * happens to have the port, no agent hosts, and endpoint_watch.h tries again.
 * Errors: ENDPOINT_HOST when another process listens at the port. An address that is elsewhere is
 * no error; only `why` tells. */
int endpoint_decide(struct endpoint *out, enum endpoint_choice choice, const struct lookup_list *list, int port,
                    struct dt_error *err);
/* Listens at the endpoint's port if one of its addresses is here. Errors: DT_NOT_FOUND when the
 * endpoint is elsewhere; DT_IO when the port is taken, without naming the owner. */
int endpoint_take(const struct lookup_list *list, int port, int *fd, struct dt_error *err);
/* Makes a socket that listens on all addresses (IPv6 and IPv4, else IPv4): at port, or the first
 * free port of the range (port 0), or any port. */
int endpoint_listen(int port, const struct dt_ports *range, int *fd, int *port_out, struct dt_error *err);
/* The address by which this machine reaches `to`: the one to publish to peers on that side. No
 * packet is sent. */
int endpoint_route(const struct sockaddr *to, char *out, size_t out_bytes, struct dt_error *err);
/* Whether 127.0.0.1 cannot be reached, as in a network namespace that was not set up. */
bool endpoint_loopback_is_down(void);
/* The address to publish before any peer is known: the endpoint's own address if it is local and no
 * loopback address, else the source address of the route to the endpoint. *warning (may be null) is
 * set to a line when only this machine can reach the address. */
int endpoint_published(const struct lookup_list *list, char *out, size_t out_bytes, const char **warning,
                       struct dt_error *err);
/* Writes "pid 123 (python3)" for the process that listens on a TCP port, or "a process of another
 * user". False when no process listens. */
bool endpoint_port_owner(int port, char *out, size_t out_bytes);
/* Whether every process that listens on the TCP port satisfies is_ours, and at least one does.
 * *out: the address of the first listener. */
bool endpoint_listeners_are(int port, bool (*is_ours)(void *user, pid_t pid), void *user, struct sockaddr_storage *out);

#endif
