/* Interfaces are listed at most once a second, because thousands of workers may come at once. */
#include "launcher/store/store_access.h"

#include "base/clock.h"
#include "base/log.h"
#include "launcher/net/endpoint.h"
#include "launcher/net/lookup.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <string.h>
#include <unistd.h>

static const double look_again_s = 1;

void store_access_open(struct store_access *a, const struct store_access_options *options, int listen_fd)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    *a = (struct store_access){.options = *options, .self = geteuid(), .looked_s = -look_again_s};
    socket_owners_open(&a->owners, listen_fd);
    a->everybody = options->open && getsockname(listen_fd, (struct sockaddr *)&at, &size) == 0 &&
                   !endpoint_is_loopback((struct sockaddr *)&at);
}

void store_access_close(struct store_access *a)
{
    socket_owners_close(&a->owners);
    freeifaddrs(a->interfaces);
    a->interfaces = NULL;
}

static void list_interfaces(struct store_access *a)
{
    double now_s = dt_now_s();
    if (now_s - a->looked_s >= look_again_s) {
        freeifaddrs(a->interfaces);
        if (getifaddrs(&a->interfaces) != 0) {
            a->interfaces = NULL;
        }
        a->looked_s = now_s;
    }
}

static bool is_here(struct store_access *a, const struct sockaddr *from)
{
    if (!endpoint_is_loopback(from)) {
        list_interfaces(a);
    }
    return endpoint_is_among(a->interfaces, from);
}

/* Index of the interface that has an address of ours; 0: none has it. */
static unsigned interface_at(struct store_access *a, const struct sockaddr *from)
{
    if (endpoint_is_loopback(from)) {
        return if_nametoindex("lo");
    }
    list_interfaces(a);
    for (const struct ifaddrs *i = a->interfaces; i != NULL; i = i->ifa_next) {
        int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
        if ((family == AF_INET || family == AF_INET6) && lookup_same_host(i->ifa_addr, from)) {
            return if_nametoindex(i->ifa_name);
        }
    }
    return 0;
}

/* Asks at most twice. A client whose socket is bound to an interface is only found with that
 * interface, which is the one of its address. */
static enum socket_owner find_owner(struct store_access *a, const struct sockaddr *from, const struct sockaddr *to,
                                    unsigned *user)
{
    enum socket_owner found = socket_owner_find(&a->owners, from, to, 0, user);
    unsigned interface = found == SOCKET_OWNER_NONE && !a->owners.by_proc ? interface_at(a, from) : 0;
    return interface != 0 ? socket_owner_find(&a->owners, from, to, interface, user) : found;
}

static bool is_named(const struct store_access *a, unsigned user)
{
    bool named = user == 0 || user == a->self;
    for (int i = 0; i < a->options.user_count && !named; i++) {
        named = a->options.users[i] == user;
    }
    return named;
}

/* Checks a process of this machine. Where the system does not tell users apart, as in a sandbox
 * without /proc, all are admitted; else no job could start there. */
static int check_user(struct store_access *a, const struct sockaddr *from, const struct sockaddr *to,
                      struct store_guest *out, struct dt_error *err)
{
    unsigned user = 0;
    enum socket_owner found = find_owner(a, from, to, &user);
    if (found == SOCKET_OWNER_NONE) {
        return dt_fail(err, DT_INVALID,
                       "no process of this host has its other end: closed at once, or of another network namespace "
                       "with our address");
    }
    if (found == SOCKET_OWNER_UNTOLD && !a->said) {
        a->said = true;
        dt_log(DT_LOG_WARN, "store",
               "this system does not tell whose a connection is (no NETLINK_SOCK_DIAG, no /proc/net/tcp): every user "
               "of this host may use the store");
    }
    if (found == SOCKET_OWNER_FOUND && !is_named(a, user)) {
        return dt_fail(err, DT_INVALID,
                       "it belongs to user %u of this host, and the store serves user %u%s; for workers that run as "
                       "another user: --store_users=%u",
                       user, a->self, a->self != 0 ? " and root" : "", user);
    }
    out->is_here = true;
    out->user = user;
    return 0;
}

int store_access_check(struct store_access *a, int fd, struct store_guest *out, struct dt_error *err)
{
    struct sockaddr_storage from = {0}, to = {0};
    const struct sockaddr *there = (const struct sockaddr *)&from;
    socklen_t size = sizeof from, own_size = sizeof to;
    *out = (struct store_guest){0};
    if (getpeername(fd, (struct sockaddr *)&from, &size) != 0 ||
        getsockname(fd, (struct sockaddr *)&to, &own_size) != 0) {
        return dt_fail_errno(err, "its address");
    }
    lookup_unmap(&from);
    /* also true for an address that is routed here without an interface */
    bool same = lookup_same_host(there, (struct sockaddr *)&to);
    if (!a->everybody && (same || is_here(a, there))) {
        return check_user(a, there, (struct sockaddr *)&to, out, err);
    }
    lookup_bytes(there, out->address);
    if (a->everybody || (a->options.is_joined != NULL && a->options.is_joined(a->options.user, there))) {
        return 0;
    }
    return dt_fail(err, DT_INVALID,
                   a->options.is_joined != NULL ? "its host is not part of the job"
                                                : "it comes from another host, and this job has one host");
}
