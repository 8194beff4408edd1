/* Who may use the store, decided here alone. The torch protocol has no key, so the kernel says
 * who comes: a process of this machine must be our user's, root's or of a user that the job
 * names; another machine must be one of the job. */
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
    const unsigned *users; /* --store_users; the caller's */
    int user_count;
    bool open; /* --serve_store: where it does not listen at a loopback address, everybody who
                * reaches it */
};

/* whose a connection is; all zeros: not known yet */
struct store_guest {
    uint8_t address[16]; /* zeros for a process of this machine */
    unsigned user;       /* of this machine */
    bool is_here;
};

struct ifaddrs;
struct store_access {
    struct store_access_options options;
    struct socket_owners owners;
    unsigned self;
    bool everybody, said;
    struct ifaddrs *interfaces; /* as they were at looked_s */
    double looked_s;
};

/* listen_fd: where the store listens. The options are copied. */
void store_access_open(struct store_access *a, const struct store_access_options *options, int listen_fd);
void store_access_close(struct store_access *a);
/* Whether the other end of fd, a connection that the store accepted, may use it. 0, and *out
 * says whose it is; or -1 with the reason. */
int store_access_check(struct store_access *a, int fd, struct store_guest *out, struct dt_error *err);

#endif
