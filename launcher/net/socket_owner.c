/* A socket that its process has closed, and that only the kernel still holds, is shown with user 0.
 * Such a socket has no inode. */
#include "launcher/net/socket_owner.h"

#include "launcher/net/lookup.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct sockaddr_storage plain(const struct sockaddr *a)
{
    struct sockaddr_storage copy = {0};
    memcpy(&copy, a, lookup_size(a));
    lookup_unmap(&copy);
    return copy;
}

/* ---- by NETLINK_SOCK_DIAG ---- */

static void put_address(const struct sockaddr_storage *a, __be32 out[4], __be16 *port)
{
    const struct sockaddr_in *four = (const struct sockaddr_in *)a;
    const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)a;
    if (a->ss_family == AF_INET6) {
        memcpy(out, &six->sin6_addr, sizeof six->sin6_addr);
        *port = six->sin6_port;
    } else {
        memcpy(out, &four->sin_addr, sizeof four->sin_addr);
        *port = four->sin_port;
    }
}

/* Reads the kernel's answer, which is there when send returns. Returns 0 or an errno. */
static int read_answer(const struct socket_owners *o, struct inet_diag_msg *out)
{
    union {
        struct nlmsghdr header;
        char bytes[4096];
    } in;
    for (;;) {
        ssize_t size = recv(o->fd, &in, sizeof in, MSG_DONTWAIT);
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size < (ssize_t)sizeof in.header) {
            return size < 0 ? errno : EPROTO;
        }
        if (in.header.nlmsg_seq != o->sequence) { /* answer to an earlier request */
            continue;
        }
        const struct nlmsgerr *failure = NLMSG_DATA(&in.header);
        if (in.header.nlmsg_type == NLMSG_ERROR && size >= (ssize_t)NLMSG_LENGTH(sizeof failure->error)) {
            return failure->error < 0 ? -failure->error : EPROTO;
        }
        if (in.header.nlmsg_type != SOCK_DIAG_BY_FAMILY || size < (ssize_t)NLMSG_LENGTH(sizeof *out)) {
            return EPROTO;
        }
        memcpy(out, NLMSG_DATA(&in.header), sizeof *out);
        return 0;
    }
}

/* A socket with a link-local address, or bound to an interface, is only found with that interface.
 * All others are found with any. */
static __u32 interface_of(const struct sockaddr_storage *at, unsigned interface)
{
    return interface == 0 && at->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)at)->sin6_scope_id : interface;
}

/* Returns 0 or an errno; ENOENT: no such socket. If no connection matches, the kernel answers with
 * the listener at the port, which is not taken for a match. */
static int ask(struct socket_owners *o, const struct sockaddr_storage *at, const struct sockaddr_storage *peer,
               unsigned interface, struct inet_diag_msg *out)
{
    struct {
        struct nlmsghdr header;
        struct inet_diag_req_v2 body;
    } q = {{.nlmsg_len = sizeof q,
            .nlmsg_type = SOCK_DIAG_BY_FAMILY,
            .nlmsg_flags = NLM_F_REQUEST,
            .nlmsg_seq = ++o->sequence},
           {.sdiag_family = (__u8)at->ss_family,
            .sdiag_protocol = IPPROTO_TCP,
            .idiag_states = ~0u,
            .id = {.idiag_if = interface_of(at, interface), .idiag_cookie = {INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE}}}};
    put_address(at, q.body.id.idiag_src, &q.body.id.idiag_sport);
    put_address(peer, q.body.id.idiag_dst, &q.body.id.idiag_dport);
    if (send(o->fd, &q, sizeof q, MSG_DONTWAIT) != (ssize_t)sizeof q) {
        return errno;
    }
    int code = read_answer(o, out);
    bool same =
        code == 0 && out->id.idiag_sport == q.body.id.idiag_sport && out->id.idiag_dport == q.body.id.idiag_dport;
    return code != 0 || same ? code : ENOENT;
}

/* ---- by /proc/net/tcp ---- */

/* Formats an address as these files do: each 32-bit word in the machine's byte order. wide: an IPv4
 * address as IPv6. */
static void print_end(const struct sockaddr_storage *a, bool wide, char out[40])
{
    uint32_t words[4];
    int first = a->ss_family == AF_INET && !wide ? 3 : 0, size = 0;
    lookup_bytes((const struct sockaddr *)a, (uint8_t *)words);
    for (int i = first; i < 4; i++) {
        size += snprintf(out + size, 40 - (size_t)size, "%08X", words[i]);
    }
    (void)snprintf(out + size, 40 - (size_t)size, ":%04X", (unsigned)lookup_port((const struct sockaddr *)a));
}

static bool look(const char *path, const struct sockaddr_storage *at, const struct sockaddr_storage *peer, bool wide,
                 unsigned *user)
{
    char line[512], own[40], other[40], seen[2][40];
    bool found = false;
    FILE *f = fopen(path, "re");
    print_end(at, wide, own);
    print_end(peer, wide, other);
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
        unsigned id = 0;
        unsigned long inode = 0;
        found = sscanf(line, " %*d: %39s %39s %*x %*s %*s %*s %u %*u %lu", seen[0], seen[1], &id, &inode) == 4 &&
                inode != 0 && strcmp(seen[0], own) == 0 && strcmp(seen[1], other) == 0;
        *user = found ? id : *user;
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return found;
}

static bool look_at_both(const struct sockaddr_storage *at, const struct sockaddr_storage *peer, unsigned *user)
{
    bool four = at->ss_family == AF_INET; /* an IPv6 socket may have IPv4 addresses, too */
    return (four && look("/proc/net/tcp", at, peer, false, user)) || look("/proc/net/tcp6", at, peer, four, user);
}

/* ---- either way ---- */

void socket_owners_open(struct socket_owners *o, int listen_fd)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    struct inet_diag_msg found;
    unsigned user = 0;
    (void)getsockname(listen_fd, (struct sockaddr *)&at, &size);
    struct sockaddr_storage own = plain((struct sockaddr *)&at), nobody = {.ss_family = own.ss_family};
    *o = (struct socket_owners){.fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)};
    if (o->fd >= 0 && ask(o, &own, &nobody, 0, &found) != 0) {
        socket_owners_close(o);
    }
    o->by_proc = o->fd < 0 && look_at_both(&own, &nobody, &user);
}

void socket_owners_close(struct socket_owners *o)
{
    if (o->fd >= 0) {
        (void)close(o->fd);
    }
    o->fd = -1;
}

enum socket_owner socket_owner_find(struct socket_owners *o, const struct sockaddr *at, const struct sockaddr *peer,
                                    unsigned interface, unsigned *user)
{
    struct sockaddr_storage own = plain(at), other = plain(peer);
    struct inet_diag_msg found;
    int code = o->fd >= 0 ? ask(o, &own, &other, interface, &found) : 0;
    if (o->fd >= 0 && code == 0 && found.idiag_inode != 0) {
        *user = found.idiag_uid;
        return SOCKET_OWNER_FOUND;
    }
    if (o->fd < 0 && !o->by_proc) {
        return SOCKET_OWNER_UNTOLD;
    }
    /* for example, the kernel had no memory for the request */
    bool ask_proc = o->by_proc || (code != 0 && code != ENOENT);
    return ask_proc && look_at_both(&own, &other, user) ? SOCKET_OWNER_FOUND : SOCKET_OWNER_NONE;
}
