/* Blocking TCP sockets with deadlines. Every call returns by its deadline (absolute, dt_now_s), or
 * soon after the page's order has become DT_ORDER_ABORT (DT_STOPPED). Errors read `host:port: what:
 * cause`. The sockets themselves are non-blocking, close-on-exec and without Nagle's delay. */
#ifndef DT_COLLECTIVES_NET_H
#define DT_COLLECTIVES_NET_H

#include "base/error.h"
#include "base/page.h"

#include <stdbool.h>
#include <stddef.h>

struct dt_net {
    int fd;               /* -1: closed */
    struct dt_page *page; /* or null */
    char name[288];       /* "host:port" of the peer ("[addr]:port" for IPv6) */
};

/* Connects to the first address that answers, IPv6 or IPv4. Refused connections, unreachable hosts
 * and failed name look-ups are tried again until the deadline. */
int dt_net_connect(struct dt_net *n, const char *host, int port, double deadline_s, struct dt_page *page,
                   struct dt_error *err);
/* Text for a port that this user may not use. Its status is DT_INVALID, since a restart would be
 * denied, too. */
#define DT_NET_DENIED                                                                                                  \
    "permission denied: ports below 1024 (net.ipv4.ip_unprivileged_port_start) are for root and "                      \
    "CAP_NET_BIND_SERVICE; choose another port"

/* Listens at host; null: at all addresses. port 0: the system chooses; *port_out is the port.
 * backlog 0: 4096. DT_NOT_FOUND: no host of that name, or it is another host. DT_TIMEOUT: no name
 * server answers. */
int dt_net_listen(struct dt_net *n, const char *host, int port, int backlog, struct dt_page *page, int *port_out,
                  struct dt_error *err);
/* Ports lo..hi, tried from lo + first on, cyclically. lo 0: the system chooses. Processes with
 * different values of first do not compete for the same port. */
struct dt_ports {
    int lo, hi, first; /* first: any number from 0 on */
};
/* Ports lo..hi, with `last` tried last if it is among them. Use it when another process may want
 * `last`. */
struct dt_ports dt_ports_but(int lo, int hi, int last);
/* Like dt_net_listen, at the first of these ports that is free. */
int dt_net_listen_within(struct dt_net *n, const char *host, const struct dt_ports *ports, int backlog,
                         struct dt_page *page, int *port_out, struct dt_error *err);
/* True if this machine can listen at the host's address, or if that cannot be found out. False for
 * an address that a router or a container's bridge translates to ours. */
bool dt_net_is_here(const char *host);
int dt_net_accept(struct dt_net *listener, struct dt_net *out, double deadline_s, struct dt_error *err);
/* Writes or reads all bytes. A closed connection is DT_PEER. */
int dt_net_write(struct dt_net *n, const void *data, size_t size, double deadline_s, struct dt_error *err);
int dt_net_read(struct dt_net *n, void *data, size_t size, double deadline_s, struct dt_error *err);
/* Reads what has arrived: at least one byte and at most size. */
int dt_net_read_some(struct dt_net *n, void *data, size_t size, size_t *got, double deadline_s, struct dt_error *err);
/* Our own address on this connection, as a literal without port. `out` has at least 64 bytes. */
int dt_net_local_address(const struct dt_net *n, char *out, size_t out_bytes, struct dt_error *err);
void dt_net_close(struct dt_net *n);
/* "host:port", with brackets around an IPv6 literal. Returns out. */
char *dt_net_name(const char *host, int port, char *out, size_t out_bytes);

#endif
