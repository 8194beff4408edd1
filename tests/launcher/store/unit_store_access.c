/* covers: launcher/store/store_access.c */
/* Who may use the store, asked of real connections over loopback; with a process of another user
 * where this test runs as root. */
#include "launcher/store/store_access.h"

#include "base/log.h"
#include "launcher/net/lookup.h"

#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { stranger = 65534, wait_ms = 60000 };

static bool yes(void *user, const struct sockaddr *from)
{
    (void)user;
    (void)from;
    return true;
}

/* Listens at a literal; the address with its port goes to `at`. */
static int listen_at(const char *host, struct sockaddr_storage *at)
{
    struct lookup_list list;
    struct dt_error err;
    socklen_t size = sizeof *at;
    int off = 0;
    assert_int_equal(lookup_now(host, 0, &list, &err), 0);
    const struct sockaddr *a = (const struct sockaddr *)&list.addresses[0];
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (a->sa_family == AF_INET6) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    assert_true(bind(fd, a, lookup_size(a)) == 0 && listen(fd, 16) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &size), 0);
    return fd;
}

static int connect_bound(const char *host, int port, const char *device)
{
    struct lookup_list list;
    struct dt_error err;
    assert_int_equal(lookup_now(host, port, &list, &err), 0);
    const struct sockaddr *a = (const struct sockaddr *)&list.addresses[0];
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (device != NULL) {
        assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, (socklen_t)strlen(device)), 0);
    }
    assert_int_equal(connect(fd, a, lookup_size(a)), 0);
    return fd;
}

static int connect_to(const char *host, int port)
{
    return connect_bound(host, port, NULL);
}

/* The same by a process of another user, which ends when *leash is closed. */
static pid_t connect_as_stranger(const char *host, int port, int *leash)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        (void)close(ends[1]);
        if (setgid(stranger) != 0 || setuid(stranger) != 0) {
            _exit(1);
        }
        int fd = connect_to(host, port);
        (void)read(ends[0], &byte, 1);
        (void)close(fd);
        _exit(0);
    }
    assert_true(pid > 0);
    (void)close(ends[0]);
    *leash = ends[1];
    return pid;
}

static int accept_one(int listener)
{
    struct pollfd p = {.fd = listener, .events = POLLIN};
    assert_int_equal(poll(&p, 1, wait_ms), 1);
    int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    return fd;
}

/* The three ways to know: as opened, by /proc alone, by nothing. */
static void forget_ways(struct store_access *a, int way)
{
    if (way > 0) {
        socket_owners_close(&a->owners);
        a->owners.by_proc = way == 1;
    }
}

static const struct {
    const char *listen, *connect;
} families[] = {{"127.0.0.1", "127.0.0.1"}, {"::1", "::1"}, {"::", "127.0.0.1"}, {"127.0.0.1", "::ffff:127.0.0.1"}};

static bool can_listen(const char *host)
{
    struct lookup_list list;
    struct dt_error err;
    int fd = lookup_now(host, 0, &list, &err) == 0 ? socket(list.addresses[0].ss_family, SOCK_STREAM, 0) : -1;
    bool can = fd >= 0 &&
               bind(fd, (struct sockaddr *)&list.addresses[0], lookup_size((struct sockaddr *)&list.addresses[0])) == 0;
    (void)close(fd);
    return can;
}

static void our_own_user_is_served(void **state)
{
    (void)state;
    for (int i = 0; i < 4 * 3; i++) {
        struct sockaddr_storage at = {0};
        struct store_access a;
        struct store_guest guest;
        struct dt_error err = {0};
        if (!can_listen(families[i / 3].listen)) {
            continue;
        }
        int listener = listen_at(families[i / 3].listen, &at);
        store_access_open(&a, &(struct store_access_options){0}, listener);
        assert_true(a.owners.fd >= 0 || a.owners.by_proc);
        forget_ways(&a, i % 3);
        int client = connect_to(families[i / 3].connect, lookup_port((struct sockaddr *)&at)),
            fd = accept_one(listener);
        if (store_access_check(&a, fd, &guest, &err) != 0) {
            fail_msg("%s to %s, way %d: %s", families[i / 3].connect, families[i / 3].listen, i % 3, err.text);
        }
        assert_true(guest.is_here);
        assert_int_equal(guest.user, i % 3 == 2 ? 0 : geteuid());
        (void)close(client);
        (void)close(fd);
        (void)close(listener);
        store_access_close(&a);
    }
}

static void another_user_is_refused_unless_named(void **state)
{
    (void)state;
    static const unsigned users[] = {7, stranger};
    if (geteuid() != 0) {
        skip();
    }
    for (int i = 0; i < 4 * 2; i++) {
        struct sockaddr_storage at = {0};
        struct store_access a;
        struct store_guest guest;
        struct dt_error err = {0};
        int leash;
        if (!can_listen(families[i / 2].listen)) {
            continue;
        }
        int listener = listen_at(families[i / 2].listen, &at);
        store_access_open(&a, &(struct store_access_options){.is_joined = yes, .users = users, .user_count = 1},
                          listener);
        forget_ways(&a, i % 2);
        pid_t pid = connect_as_stranger(families[i / 2].connect, lookup_port((struct sockaddr *)&at), &leash);
        int fd = accept_one(listener);
        assert_int_equal(store_access_check(&a, fd, &guest, &err), -1);
        assert_non_null(strstr(err.text, "belongs to user 65534 of this host"));
        assert_non_null(strstr(err.text, "--store_users=65534"));
        a.options.user_count = 2;
        assert_int_equal(store_access_check(&a, fd, &guest, &err), 0);
        assert_true(guest.is_here && guest.user == stranger);
        (void)close(leash);
        (void)waitpid(pid, NULL, 0);
        (void)close(fd);
        (void)close(listener);
        store_access_close(&a);
    }
}

/* A network namespace for this process, with a pair of interfaces; false: not here. */
static bool enter_network(void)
{
    static const char *const commands =
        "ip link set lo up && ip link add d0 type veth peer name d1 && ip link set d1 up && ip link set d0 up &&"
        "ip addr add 10.99.0.1/24 dev d0 && ip addr add fd00:99::1/64 dev d0 nodad &&"
        "ip addr add fe80::99/64 dev d0 nodad";
    return unshare(CLONE_NEWNET) == 0 && system(commands) == 0; /* NOLINT */
}

/* The kernel knows such sockets by their interface alone: one of a link-local address, and one
 * that its process has bound. */
static void bound_sockets_are_found(void)
{
    if (!enter_network()) {
        _exit(2);
    }
    const struct {
        const char *address, *device;
    } cases[] = {{"fe80::99%d0", NULL}, {"fe80::99%d0", "d0"}, {"fd00:99::1", NULL},
                 {"fd00:99::1", "d0"},  {"10.99.0.1", NULL},   {"10.99.0.1", "d0"},
                 {"127.0.0.1", "lo"},   {"127.0.0.5", "lo"},   {"::1", "lo"}};
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        struct sockaddr_storage at = {0};
        struct store_access a;
        struct store_guest guest;
        struct dt_error err = {0};
        int listener = listen_at(cases[i / 2].address, &at);
        store_access_open(&a, &(struct store_access_options){0}, listener);
        forget_ways(&a, (int)i % 2);
        int client = connect_bound(cases[i / 2].address, lookup_port((struct sockaddr *)&at), cases[i / 2].device),
            fd = accept_one(listener);
        if (store_access_check(&a, fd, &guest, &err) != 0 || !guest.is_here || guest.user != geteuid()) {
            (void)fprintf(stderr, "%s at %s: %s\n", cases[i / 2].address,
                          cases[i / 2].device != NULL ? cases[i / 2].device : "any", err.text);
            _exit(1);
        }
        (void)close(client);
        (void)close(fd);
        (void)close(listener);
        store_access_close(&a);
    }
    _exit(0);
}

static void a_socket_of_one_interface_is_found(void **state)
{
    (void)state;
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        bound_sockets_are_found();
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 2) {
        skip(); /* no rights to make a network */
    }
    assert_int_equal(status, 0);
}

/* The kernel shows a socket whose process has closed it as one of root. */
static void who_has_gone_is_nobody(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct sockaddr_storage at = {0};
        struct linger now = {.l_onoff = 1};
        struct store_access a;
        struct store_guest guest;
        struct dt_error err = {0};
        int listener = listen_at("127.0.0.1", &at);
        store_access_open(&a, &(struct store_access_options){.is_joined = yes}, listener);
        forget_ways(&a, i % 2);
        int client = connect_to("127.0.0.1", lookup_port((struct sockaddr *)&at)), fd = accept_one(listener);
        if (i >= 2) { /* with a reset: the kernel has nothing of it */
            (void)setsockopt(client, SOL_SOCKET, SO_LINGER, &now, sizeof now);
        }
        (void)close(client);
        assert_int_equal(store_access_check(&a, fd, &guest, &err), -1);
        (void)close(fd);
        (void)close(listener);
        store_access_close(&a);
    }
}

/* --serve_store: at a loopback address it is as any other store, elsewhere it is there for
 * everybody. */
static void an_open_store_serves_everybody_beyond_loopback(void **state)
{
    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    for (int i = 0; i < 2; i++) {
        struct sockaddr_storage at = {0};
        struct store_access a;
        struct store_guest guest;
        struct dt_error err = {0};
        int leash, listener = listen_at(i == 0 ? "127.0.0.1" : "0.0.0.0", &at);
        store_access_open(&a, &(struct store_access_options){.open = true}, listener);
        pid_t pid = connect_as_stranger("127.0.0.1", lookup_port((struct sockaddr *)&at), &leash);
        int fd = accept_one(listener);
        assert_int_equal(store_access_check(&a, fd, &guest, &err), i == 0 ? -1 : 0);
        (void)close(leash);
        (void)waitpid(pid, NULL, 0);
        (void)close(fd);
        (void)close(listener);
        store_access_close(&a);
    }
}

int main(void)
{
    (void)signal(SIGPIPE, SIG_IGN);
    dt_log_open(DT_LOG_ERROR, -1, 2);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(our_own_user_is_served),
        cmocka_unit_test(another_user_is_refused_unless_named),
        cmocka_unit_test(a_socket_of_one_interface_is_found),
        cmocka_unit_test(who_has_gone_is_nobody),
        cmocka_unit_test(an_open_store_serves_everybody_beyond_loopback),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
