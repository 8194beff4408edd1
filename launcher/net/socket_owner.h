/* Which user has the socket at the other end of a TCP connection, if that is in our network
 * namespace. The kernel is asked for this one connection (NETLINK_SOCK_DIAG, some 5 us, no
 * rights needed), or, where it does not answer such questions, /proc/net/tcp is read. */
#ifndef DT_LAUNCHER_NET_SOCKET_OWNER_H
#define DT_LAUNCHER_NET_SOCKET_OWNER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

enum socket_owner {
    SOCKET_OWNER_FOUND,
    SOCKET_OWNER_NONE,   /* no process of this network namespace has that end: another one's, or
                          * it is closed already */
    SOCKET_OWNER_UNTOLD, /* nothing here tells */
};

struct socket_owners {
    int fd;       /* of the questions; -1: they are not answered here */
    bool by_proc; /* /proc/net/tcp shows our sockets */
    uint32_t sequence;
};

/* listen_fd: a listening socket of ours. Only what finds that one is asked later. */
void socket_owners_open(struct socket_owners *o, int listen_fd);
void socket_owners_close(struct socket_owners *o);
/* Who has the socket whose own address is `at` and whose peer's is `peer`. *user is set when it
 * is found, as this process's user namespace shows it. interface: index of the one that the
 * socket may be bound to; 0: that of a link-local address, else none. */
enum socket_owner socket_owner_find(struct socket_owners *o, const struct sockaddr *at, const struct sockaddr *peer,
                                    unsigned interface, unsigned *user);

#endif
