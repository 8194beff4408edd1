/* Tells which user owns the socket at the other end of a TCP connection, if that end is in our
 * network namespace. Asks the kernel for this one connection (NETLINK_SOCK_DIAG, some 5 us, no
 * rights needed). Where the kernel does not answer, reads /proc/net/tcp. */
#ifndef DT_LAUNCHER_NET_SOCKET_OWNER_H
#define DT_LAUNCHER_NET_SOCKET_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum socket_owner {
    SOCKET_OWNER_FOUND,
    /* no process of this network namespace has that end: it is in another namespace, or closed
     * already */
    SOCKET_OWNER_NONE,
    SOCKET_OWNER_UNTOLD, /* this system does not tell */
};

struct socket_owners {
    int fd;       /* netlink socket; -1: not available here */
    bool by_proc; /* /proc/net/tcp shows our sockets */
    uint32_t sequence;
};

/* listen_fd: a listening socket of ours. Only a method that finds this socket is used later. */
void socket_owners_open(struct socket_owners *o, int listen_fd);
void socket_owners_close(struct socket_owners *o);
/* Finds the owner of the socket with own address `at` and peer address `peer`. *user is set when
 * found, as seen from this process's user namespace. interface: index of the interface that the
 * socket may be bound to; 0: that of a link-local address, else none. */
enum socket_owner socket_owner_find(struct socket_owners *o, const struct sockaddr *at, const struct sockaddr *peer,
                                    unsigned interface, unsigned *user);

#endif
