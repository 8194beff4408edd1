/* Tells local addresses by getifaddrs, and proves them by bind and listen. Finds routes by a
 * connected UDP socket, and the owner of a taken port in /proc. */
#include "launcher/net/endpoint.h"

#include "base/file.h"
#include "base/proc.h"
#include "collectives/net.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_any(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET6) {
        return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
    }
    return ((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr == htonl(INADDR_ANY);
}

bool endpoint_is_loopback(const struct sockaddr *a)
{
    struct sockaddr_storage copy = {0};
    memcpy(&copy, a, lookup_size(a));
    lookup_unmap(&copy);
    if (copy.ss_family == AF_INET6) {
        return IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)(void *)&copy)->sin6_addr);
    }
    return ntohl(((struct sockaddr_in *)(void *)&copy)->sin_addr.s_addr) >> 24 == 127;
}

bool endpoint_is_among(const struct ifaddrs *interfaces, const struct sockaddr *a)
{
    bool found = is_any(a) || endpoint_is_loopback(a);
    for (const struct ifaddrs *i = interfaces; i != NULL && !found; i = i->ifa_next) {
        int family = i->ifa_addr != NULL ? i->ifa_addr->sa_family : AF_UNSPEC;
        found = (family == AF_INET || family == AF_INET6) && lookup_same_host(i->ifa_addr, a);
    }
    return found;
}

bool endpoint_is_local(const struct sockaddr *a)
{
    struct ifaddrs *all = NULL;
    if (endpoint_is_among(NULL, a)) {
        return true;
    }
    bool found = getifaddrs(&all) == 0 && endpoint_is_among(all, a);
    freeifaddrs(all);
    return found;
}

/* ---- binding ---- */

/* Binds and listens. Listening is the proof: with SO_REUSEADDR two sockets may bind the same port,
 * but only one can listen. Returns the socket, or -1 with errno. */
static int listen_at(const struct sockaddr *a, bool both)
{
    int on = 1, off = both ? 0 : 1;
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->sa_family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, a, lookup_size(a)) != 0 || listen(fd, 4096) != 0) {
        int code = errno;
        (void)close(fd);
        errno = code;
        return -1;
    }
    return fd;
}

/* Listens on all addresses even when the endpoint is a loopback address. A host may call itself
 * localhost, as older PyTorchJobs do, while the others come by the host's name. */
static int listen_on_all(int port)
{
    struct sockaddr_in6 six = {
        .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_ANY)}, .sin_port = htons((uint16_t)port)};
    int fd = listen_at((struct sockaddr *)&six, true);
    return fd < 0 && errno != EADDRINUSE && errno != EACCES ? listen_at((struct sockaddr *)&four, false) : fd;
}

static int port_of(int fd)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    return getsockname(fd, (struct sockaddr *)&at, &size) == 0 ? lookup_port((struct sockaddr *)&at) : 0;
}

static int fail_port(int port, struct dt_error *err)
{
    char owner[128];
    int code = errno;
    if (code == EADDRINUSE && endpoint_port_owner(port, owner, sizeof owner)) {
        return dt_fail(err, DT_IO, "port %d: already in use by %s; end it, or choose another port", port, owner);
    }
    if (code == EACCES) { /* a second try would be denied, too */
        return dt_fail(err, DT_INVALID, "port %d: listen: " DT_NET_DENIED, port);
    }
    errno = code;
    return dt_fail_errno(err, "port %d: listen", port);
}

int endpoint_listen(int port, const struct dt_ports *range, int *fd, int *port_out, struct dt_error *err)
{
    int made = -1;
    if (port > 0 || range->lo <= 0) {
        made = listen_on_all(port);
    } else {
        int span = range->hi - range->lo + 1;
        for (int i = 0; made < 0 && i < span; i++) {
            made = listen_on_all(range->lo + (range->first % span + i) % span);
        }
        if (made < 0) {
            return dt_fail(err, DT_IO, "--port_range: no free port in %d-%d", range->lo, range->hi);
        }
    }
    if (made < 0) {
        return fail_port(port, err);
    }
    *fd = made;
    *port_out = port_of(made);
    return 0;
}

/* ---- who listens ---- */

enum { LISTENERS = 256 };

struct listener {
    unsigned long inode;
    struct sockaddr_storage at;
};

static void read_address(const char *hex, int port, struct sockaddr_storage *out)
{
    struct sockaddr_in *in4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)out;
    bool six = strlen(hex) > 8;
    uint32_t words[4] = {0};
    memset(out, 0, sizeof *out);
    /* /proc prints each 32-bit word of the address in the machine's byte order */
    for (int i = 0; i < (six ? 4 : 1); i++) {
        char word[9];
        (void)snprintf(word, sizeof word, "%.8s", hex + (size_t)8 * (size_t)i);
        words[i] = (uint32_t)strtoul(word, NULL, 16);
    }
    if (six) {
        in6->sin6_family = AF_INET6;
        memcpy(&in6->sin6_addr, words, sizeof in6->sin6_addr);
    } else {
        in4->sin_family = AF_INET;
        in4->sin_addr.s_addr = words[0];
    }
    lookup_set_port((struct sockaddr *)out, port);
}

/* Finds the sockets in /proc/net/tcp or tcp6 that listen on the port, at most `room`. Several
 * processes may listen at one port by SO_REUSEPORT. Returns the number found. */
static int find_listeners(const char *path, int port, struct listener *out, int room)
{
    char line[512], address[33];
    int count = 0;
    FILE *f = fopen(path, "re");
    while (f != NULL && count < room && fgets(line, sizeof line, f) != NULL) {
        unsigned local_port = 0, state = 0;
        unsigned long inode = 0;
        if (sscanf(line, " %*d: %32[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*u %lu", address, &local_port,
                   &state, &inode) == 4 &&
            (int)local_port == port && state == 0x0a) {
            out[count].inode = inode;
            read_address(address, port, &out[count++].at);
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return count;
}

static int find_all_listeners(int port, struct listener *out, int room)
{
    /* tcp6 first, because agents listen there */
    int count = find_listeners("/proc/net/tcp6", port, out, room);
    return count + find_listeners("/proc/net/tcp", port, out + count, room - count);
}

/* ---- whose the endpoint is ---- */

/* Whether the address is local although no interface has it (ip route add local): then it can be
 * bound. Under ip_nonlocal_bind foreign addresses can be bound, too, so binding proves nothing. */
static bool can_bind(const struct sockaddr *a)
{
    struct dt_text text;
    dt_text_init(&text);
    bool anything = dt_file_read(a->sa_family == AF_INET6 ? "/proc/sys/net/ipv6/ip_nonlocal_bind"
                                                          : "/proc/sys/net/ipv4/ip_nonlocal_bind",
                                 64, &text, NULL) == 0 &&
                    dt_text_str(&text)[0] == '1';
    dt_text_clear(&text);
    if (anything) {
        return false;
    }
    struct sockaddr_storage copy = {0};
    memcpy(&copy, a, lookup_size(a));
    lookup_set_port((struct sockaddr *)&copy, 0);
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&copy, lookup_size(a)) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return bound;
}

/* The first address that is one of this machine, or null. */
static const struct sockaddr *find_ours(const struct lookup_list *list)
{
    for (int i = 0; i < list->count; i++) {
        const struct sockaddr *a = (const struct sockaddr *)&list->addresses[i];
        if (endpoint_is_local(a) || can_bind(a)) {
            return a;
        }
    }
    return NULL;
}

int endpoint_take(const struct lookup_list *list, int port, int *fd, struct dt_error *err)
{
    if (find_ours(list) == NULL) {
        return dt_fail(err, DT_NOT_FOUND, "port %d: the endpoint's address is not of this machine", port);
    }
    int made = listen_on_all(port);
    if (made < 0) {
        return dt_fail_errno(err, "port %d: listen", port);
    }
    *fd = made;
    return 0;
}

int endpoint_decide(struct endpoint *out, enum endpoint_choice choice, const struct lookup_list *list, int port,
                    struct dt_error *err)
{
    *out = (struct endpoint){.fd = -1, .port = port};
    char name[LOOKUP_NAME_BYTES];
    const struct sockaddr *ours = choice != ENDPOINT_JOIN ? find_ours(list) : NULL;
    if (choice == ENDPOINT_JOIN || (choice == ENDPOINT_AUTO && ours == NULL)) {
        (void)snprintf(out->why, sizeof out->why,
                       choice == ENDPOINT_JOIN ? "node rank 0 hosts" : "the endpoint's address is not of this machine");
        return 0;
    }
    out->fd = listen_on_all(port);
    if (out->fd < 0 && errno == EADDRINUSE) {
        /* finding the owner would mean reading the open files of all processes */
        struct listener first;
        bool listens = find_all_listeners(port, &first, 1) > 0;
        if (choice == ENDPOINT_AUTO || !listens) {
            (void)snprintf(out->why, sizeof out->why, "port %d is held by %s", port,
                           listens ? "another process" : "an outgoing connection");
            return 0;
        }
        errno = EADDRINUSE;
    }
    if (out->fd < 0) {
        return fail_port(port, err);
    }
    out->hosts = true;
    out->ours = ours != NULL;
    out->port = port_of(out->fd);
    if (ours != NULL) {
        (void)snprintf(out->why, sizeof out->why, "%s is an address of this machine",
                       lookup_host(ours, name, sizeof name));
    } else {
        (void)snprintf(out->why, sizeof out->why,
                       "node rank 0 hosts, although no address of the endpoint is one of this machine");
    }
    return 0;
}

/* ---- routes ---- */

int endpoint_route(const struct sockaddr *to, char *out, size_t out_bytes, struct dt_error *err)
{
    struct sockaddr_storage target = {0}, from = {0};
    socklen_t size = sizeof from;
    char name[LOOKUP_NAME_BYTES];
    memcpy(&target, to, lookup_size(to));
    lookup_unmap(&target);
    if (lookup_port((struct sockaddr *)&target) == 0) {
        lookup_set_port((struct sockaddr *)&target, 9);
    }
    int fd = socket(target.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&target, lookup_size((struct sockaddr *)&target)) != 0 ||
        getsockname(fd, (struct sockaddr *)&from, &size) != 0) {
        (void)dt_fail_errno(err, "%s: no route", lookup_host((struct sockaddr *)&target, name, sizeof name));
        if (fd >= 0) {
            (void)close(fd);
        }
        return -1;
    }
    (void)close(fd);
    (void)lookup_host((struct sockaddr *)&from, out, out_bytes);
    return 0;
}

bool endpoint_loopback_is_down(void)
{
    struct ifaddrs *all = NULL;
    bool seen = false, up = false;
    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (const struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
        bool loopback = (a->ifa_flags & IFF_LOOPBACK) != 0;
        seen = seen || loopback;
        up = up || (loopback && (a->ifa_flags & IFF_UP) != 0);
    }
    freeifaddrs(all);
    return seen && !up;
}

int endpoint_published(const struct lookup_list *list, char *out, size_t out_bytes, const char **warning,
                       struct dt_error *err)
{
    if (warning != NULL) {
        *warning = NULL;
    }
    for (int i = 0; i < list->count; i++) {
        const struct sockaddr *a = (const struct sockaddr *)&list->addresses[i];
        if (!is_any(a) && !endpoint_is_loopback(a) && endpoint_is_local(a)) {
            (void)lookup_host(a, out, out_bytes);
            return 0;
        }
    }
    for (int i = 0; i < list->count; i++) {
        const struct sockaddr *a = (const struct sockaddr *)&list->addresses[i];
        if (!is_any(a) && endpoint_route(a, out, out_bytes, err) == 0) {
            if (endpoint_is_loopback(a) && warning != NULL) {
                *warning =
                    "warning: the endpoint is a loopback address, at which other hosts find themselves, not this one";
            }
            return 0;
        }
    }
    /* The endpoint is "any", or no address has a route: take the way out of this machine, to
     * 192.0.2.1, which nobody has. */
    struct sockaddr_in far = {.sin_family = AF_INET, .sin_addr = {htonl(0xc0000201)}, .sin_port = htons(9)};
    if (endpoint_route((struct sockaddr *)&far, out, out_bytes, err) == 0) {
        return 0;
    }
    (void)snprintf(out, out_bytes, "127.0.0.1");
    if (warning != NULL) {
        *warning = "warning: this machine has no route to others: only its own agents can join";
    }
    return 0;
}

/* ---- who has the port ---- */

static bool has_socket(const char *pid, unsigned long inode)
{
    char path[300], wanted[64], target[64];
    (void)snprintf(path, sizeof path, "/proc/%s/fd", pid);
    (void)snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
    DIR *d = opendir(path);
    bool found = false;
    const struct dirent *e;
    while (d != NULL && !found && (e = readdir(d)) != NULL) {
        ssize_t size = readlinkat(dirfd(d), e->d_name, target, sizeof target - 1);
        target[size > 0 ? size : 0] = '\0';
        found = strcmp(target, wanted) == 0;
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return found;
}

bool endpoint_port_owner(int port, char *out, size_t out_bytes)
{
    struct listener first;
    if (find_all_listeners(port, &first, 1) == 0) {
        return false;
    }
    (void)snprintf(out, out_bytes, "a process of another user");
    DIR *d = opendir("/proc");
    const struct dirent *e;
    bool found = false;
    while (d != NULL && !found && (e = readdir(d)) != NULL) {
        if (isdigit((unsigned char)e->d_name[0]) && has_socket(e->d_name, first.inode)) {
            char name[DT_PROC_NAME_BYTES];
            (void)snprintf(out, out_bytes, "pid %s (%s)", e->d_name, dt_proc_name((pid_t)atoi(e->d_name), name));
            /* prefer the agent: its guard has the same open files */
            found = strcmp(name, "dtrun") != 0;
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return true;
}

bool endpoint_listeners_are(int port, bool (*is_ours)(void *user, pid_t pid), void *user, struct sockaddr_storage *out)
{
    struct listener all[LISTENERS];
    int count = find_all_listeners(port, all, LISTENERS), left = count;
    if (count == 0 || count == LISTENERS) {
        return false;
    }
    *out = all[0].at;
    DIR *d = opendir("/proc");
    const struct dirent *e;
    while (d != NULL && left > 0 && (e = readdir(d)) != NULL) {
        bool looked = isdigit((unsigned char)e->d_name[0]) && is_ours(user, (pid_t)atoi(e->d_name));
        for (int i = 0; i < count && looked; i++) {
            if (all[i].inode != 0 && has_socket(e->d_name, all[i].inode)) {
                all[i].inode = 0;
                left--;
            }
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    return left == 0;
}
