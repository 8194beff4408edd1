/* Decides who may use the store. The torch protocol has no key, so the kernel tells who connects. A
 * process of this machine must belong to our user, to root or to a user that the job names. Another
 * machine must be one of the job. */
#ifndef DT_LAUNCHER_STORE_STORE_ACCESS_H
#define DT_LAUNCHER_STORE_STORE_ACCESS_H

#include "base/error.h"
#include "launcher/net/socket_owner.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct store_access_options {
    /* Whether a machine of the job has this address now. Null: the job has this machine alone. */
    bool (*is_joined)(void *user, const struct sockaddr *from);
    void *user;
    const unsigned *users; /* --store_users; belongs to the caller */
    int user_count;
    bool open; /* --serve_store: admits everybody, unless it listens at a loopback address */
};

/* owner of a connection; all zeros: not known yet */
struct store_guest {
    uint8_t address[16]; /* zeros for a process of this machine */
    unsigned user;       /* user on this machine */
    bool is_here;
};

struct ifaddrs;
struct store_access {
    struct store_access_options options;
    struct socket_owners owners;
    unsigned self;
    bool everybody, said;
    struct ifaddrs *interfaces; /* interfaces at the time looked_s */
    double looked_s;
};

/* listen_fd: the store's listening socket. The options are copied. */
void store_access_open(struct store_access *a, const struct store_access_options *options, int listen_fd);
void store_access_close(struct store_access *a);
/* Checks whether the peer of fd, an accepted connection, may use the store. Returns 0 with the
 * owner in *out, or -1 with the reason. */
int store_access_check(struct store_access *a, int fd, struct store_guest *out, struct dt_error *err);

#endif
