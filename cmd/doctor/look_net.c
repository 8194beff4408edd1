/* This host's names, interfaces and ports. */
#include "cmd/doctor/look.h"

#include "base/clock.h"
#include "base/file.h"
#include "launcher/net/endpoint.h"
#include "launcher/options/options.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOOK_UP_S 5.0

/* NAME_addresses, NAME_seconds, or NAME_error. */
static void set_addresses(struct facts *f, const char *name, const char *host, struct lookup_list *list)
{
    struct dt_error err;
    char key[48];
    double start_s = dt_now_s();
    int rc = lookup_within(host, 1, LOOK_UP_S, NULL, list, &err);
    (void)snprintf(key, sizeof key, "%s_seconds", name);
    facts_set(f, key, "%.3f", dt_now_s() - start_s);
    (void)snprintf(key, sizeof key, "%s_%s", name, rc == 0 ? "addresses" : "error");
    if (rc != 0) {
        list->count = 0;
        facts_set(f, key, "%s", err.status == DT_TIMEOUT ? "no answer of the resolver" : err.text);
        return;
    }
    struct dt_text text;
    dt_text_init(&text);
    for (int i = 0; i < list->count; i++) {
        char address[64];
        dt_text_printf(&text, "%s%s", i > 0 ? " " : "",
                       lookup_host((const struct sockaddr *)&list->addresses[i], address, sizeof address));
    }
    facts_set(f, key, "%s", dt_text_str(&text));
    dt_text_clear(&text);
}

/* The interface that has an address, and its MTU; asked of the kernel, since /sys may be that of
 * another network namespace. */
static void set_interface_of(struct facts *f, const char *address)
{
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        return;
    }
    for (struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
        char text[64];
        if (a->ifa_addr == NULL || (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6) ||
            strcmp(lookup_host(a->ifa_addr, text, sizeof text), address) != 0) {
            continue;
        }
        struct ifreq r = {0};
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        (void)snprintf(r.ifr_name, sizeof r.ifr_name, "%s", a->ifa_name);
        facts_set(f, "interface", "%s", a->ifa_name);
        if (fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0) {
            facts_set(f, "mtu", "%d", r.ifr_mtu);
        }
        if (fd >= 0) {
            (void)close(fd);
        }
        break;
    }
    freeifaddrs(all);
}

static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* The address at which others reach this host: as given, or by the route to MASTER_ADDR. A
 * host's own name may lead to loopback; then the default route decides. */
static void set_route(struct facts *f, char *const *env, const char *master, const struct lookup_list *list)
{
    const char *given = options_getenv(env, "DTRUN_LOCAL_ADDR");
    struct sockaddr_in other = {.sin_family = AF_INET, .sin_port = htons(9)};
    char address[64] = "127.0.0.1", outside[64];
    (void)inet_pton(AF_INET, "192.0.2.1", &other.sin_addr);
    if (given != NULL && given[0] != '\0') {
        (void)snprintf(address, sizeof address, "%s", given);
    } else if (master == NULL) {
        (void)endpoint_route((const struct sockaddr *)&other, address, sizeof address, NULL);
    } else if (list->count > 0 &&
               endpoint_route((const struct sockaddr *)&list->addresses[0], address, sizeof address, NULL) == 0 &&
               is_loopback(address) && !is_loopback(master) && strcmp(master, "localhost") != 0 &&
               endpoint_route((const struct sockaddr *)&other, outside, sizeof outside, NULL) == 0) {
        (void)snprintf(address, sizeof address, "%s", outside);
    }
    facts_set(f, "address", "%s", address);
    set_interface_of(f, address);
}

void look_interfaces(struct facts *f, char *const *env)
{
    static const char *const variables[] = {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"};
    struct dt_text text;
    struct ifaddrs *all = NULL;
    int count = 0;
    dt_text_init(&text);
    if (getifaddrs(&all) != 0) {
        all = NULL;
    }
    for (struct ifaddrs *a = all; a != NULL; a = a->ifa_next) {
        char address[64];
        int family = a->ifa_addr != NULL ? a->ifa_addr->sa_family : 0;
        if ((family != AF_INET && family != AF_INET6) || (a->ifa_flags & IFF_LOOPBACK) != 0 ||
            (a->ifa_flags & IFF_UP) == 0) {
            continue;
        }
        (void)lookup_host(a->ifa_addr, address, sizeof address);
        if (strncmp(address, "fe80:", 5) == 0) { /* every interface has one */
            continue;
        }
        dt_text_printf(&text, "%s%s %s", text.size > 0 ? ", " : "", a->ifa_name, address);
        count++;
    }
    facts_set(f, "interfaces", "%s", dt_text_str(&text));
    facts_set(f, "interface_count", "%d", count);
    facts_set(f, "loopback", "%s", endpoint_loopback_is_down() ? "down" : "up");
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *value = options_getenv(env, variables[i]);
        char names[256], *rest = names;
        (void)snprintf(names, sizeof names, "%s", value != NULL ? value : "");
        rest += names[0] == '^' || names[0] == '=';
        bool exact = rest > names, found = value == NULL || names[0] == '\0' || names[0] == '^';
        for (char *one; !found && (one = strsep(&rest, ",")) != NULL;) {
            /* a prefix, as NCCL takes it */
            for (struct ifaddrs *a = all; a != NULL && !found; a = a->ifa_next) {
                found = exact ? strcmp(a->ifa_name, one) == 0 : strncmp(a->ifa_name, one, strlen(one)) == 0;
            }
        }
        if (!found) {
            facts_set(f, "interface_missing", "%s=%s", variables[i], value);
        }
    }
    if (all != NULL) {
        freeifaddrs(all);
    }
    dt_text_clear(&text);
}

void look_names(struct facts *f, char *const *env)
{
    struct lookup_list list = {0};
    const char *master = options_getenv(env, "MASTER_ADDR");
    char host[128] = "";
    (void)gethostname(host, sizeof host - 1);
    set_addresses(f, "own", host, &list);
    if (master != NULL && options_getenv(env, "RANK") != NULL) {
        facts_set(f, "master", "%s", master);
        set_addresses(f, "master", master, &list);
        set_route(f, env, master, &list);
    } else {
        set_route(f, env, NULL, &list);
    }
}

void look_ports(struct facts *f, char *const *env)
{
    struct dt_text text;
    struct dt_error err;
    const char *range = options_getenv(env, "DTRUN_PORT_RANGE");
    int lo = 0, hi = 0, fd = -1, port = 0;
    dt_text_init(&text);
    char after;
    bool given = range != NULL && range[0] != '\0';
    if (given && (sscanf(range, "%d-%d%c", &lo, &hi, &after) != 2 || lo < 1 || hi < lo || hi > 65535)) {
        facts_set(f, "port_error", "DTRUN_PORT_RANGE: %.40s: not LO-HI with 1 <= LO <= HI <= 65535", range);
        lo = hi = 0;
    } else if (given) {
        facts_set(f, "port_range", "%d-%d", lo, hi);
    }
    if (endpoint_listen(0, &(struct dt_ports){lo, hi, 0}, &fd, &port, &err) != 0) {
        facts_set(f, "port_error", "%s", err.text);
    } else {
        (void)close(fd);
    }
    if (dt_file_read("/proc/sys/net/ipv4/ip_local_port_range", 64, &text, NULL) == 0 &&
        sscanf(dt_text_str(&text), "%d %d", &lo, &hi) == 2) {
        facts_set(f, "outgoing_ports", "%d", hi - lo + 1);
    }
    dt_text_clear(&text);
    if (options_getenv(env, "RANK") != NULL) {
        return; /* the job itself has its port */
    }
    static const int usual[] = {29400, 29500};
    for (size_t i = 0; i < 2; i++) {
        char key[32], owner[128];
        (void)snprintf(key, sizeof key, "port_%d", usual[i]);
        if (endpoint_port_owner(usual[i], owner, sizeof owner)) {
            facts_set(f, key, "%s", owner);
        }
    }
}
