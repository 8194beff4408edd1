/* covers: launcher/net/endpoint.c */
/* Who hosts: addresses of this machine and of others, the first to bind, ports that are taken,
 * routes, owners of ports. */
#include "launcher/hosts/claim.h"
#include "launcher/net/endpoint.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct lookup_list list_of(const char *host)
{
    struct lookup_list list;
    struct dt_error err;
    assert_int_equal(lookup_now(host, 0, &list, &err), 0);
    return list;
}

static bool is_local(const char *host)
{
    struct lookup_list list = list_of(host);
    return endpoint_is_local((struct sockaddr *)&list.addresses[0]);
}

static void knows_its_own_addresses(void **state)
{
    (void)state;
    struct ifaddrs *all = NULL;
    assert_true(is_local("127.0.0.1") && is_local("127.9.8.7") && is_local("0.0.0.0"));
    assert_false(is_local("192.0.2.1")); /* of nobody */
    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr != NULL && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6)) {
            assert_true(endpoint_is_local(i->ifa_addr));
        }
    }
    freeifaddrs(all);
}

static void the_first_to_bind_hosts(void **state)
{
    (void)state;
    struct lookup_list list = list_of("127.0.0.1");
    struct endpoint first, second;
    struct dt_error err;
    char owner[128], expected[64];
    assert_int_equal(endpoint_decide(&first, ENDPOINT_AUTO, &list, 0, &err), 0);
    assert_true(first.hosts && first.fd >= 0 && first.port > 0);
    assert_int_equal(endpoint_decide(&second, ENDPOINT_AUTO, &list, first.port, &err), 0);
    assert_false(second.hosts);
    assert_int_equal(second.fd, -1);
    (void)snprintf(expected, sizeof expected, "pid %d ", (int)getpid());
    assert_non_null(strstr(second.why, "held by another process"));
    /* static: an error, with the owner */
    assert_int_equal(endpoint_decide(&second, ENDPOINT_HOST, &list, first.port, &err), -1);
    assert_non_null(strstr(err.text, expected));
    assert_true(endpoint_port_owner(first.port, owner, sizeof owner));
    assert_non_null(strstr(owner, expected));
    (void)close(first.fd);
}

static void others_join(void **state)
{
    (void)state;
    struct lookup_list far = list_of("192.0.2.1"), here = list_of("127.0.0.1");
    struct endpoint e;
    struct dt_error err;
    assert_int_equal(endpoint_decide(&e, ENDPOINT_AUTO, &far, 0, &err), 0);
    assert_false(e.hosts);
    assert_int_equal(endpoint_decide(&e, ENDPOINT_JOIN, &here, 0, &err), 0);
    assert_false(e.hosts);
    /* told to host: does, and says that it looks odd */
    assert_int_equal(endpoint_decide(&e, ENDPOINT_HOST, &far, 0, &err), 0);
    assert_true(e.hosts);
    assert_non_null(strstr(e.why, "although"));
    assert_false(e.ours);
    (void)close(e.fd);
}

static void listens_in_a_range(void **state)
{
    (void)state;
    struct dt_error err;
    int fd = -1, port = 0, second = -1, second_port = 0;
    assert_int_equal(endpoint_listen(0, &(struct dt_ports){0}, &fd, &port, &err), 0);
    assert_int_equal(endpoint_listen(0, &(struct dt_ports){port, port, 0}, &second, &second_port, &err), -1);
    assert_non_null(strstr(err.text, "--port_range"));
    assert_int_equal(endpoint_listen(port, &(struct dt_ports){0}, &second, &second_port, &err), -1);
    assert_non_null(strstr(err.text, "already in use by pid"));
    (void)close(fd);
}

static void publishes_the_route(void **state)
{
    (void)state;
    struct lookup_list here = list_of("127.0.0.1"), any = list_of("0.0.0.0");
    struct dt_error err;
    char text[LOOKUP_NAME_BYTES];
    const char *warning = NULL;
    assert_int_equal(endpoint_route((struct sockaddr *)&here.addresses[0], text, sizeof text, &err), 0);
    assert_string_equal(text, "127.0.0.1");
    assert_int_equal(endpoint_published(&here, text, sizeof text, &warning, &err), 0);
    assert_string_equal(text, "127.0.0.1");
    assert_non_null(warning);
    assert_int_equal(endpoint_published(&any, text, sizeof text, &warning, &err), 0);
    assert_true(is_local(text));
}

/* ---- a port that is free later ---- */

struct claimed {
    int count, fd;
};

static void on_got(void *user, int fd, const struct lookup_list *list)
{
    struct claimed *c = user;
    assert_true(list->count > 0);
    c->count++;
    c->fd = fd;
}

static int connect_from(const struct endpoint *to)
{
    struct sockaddr_in here = {
        .sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_port = htons((uint16_t)to->port)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&here, sizeof here), 0);
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &size), 0);
    return ntohs(at.sin_port);
}

static void wait_for(uv_loop_t *loop, const int *count)
{
    for (double until_s = dt_now_s() + 60; *count == 0;) {
        assert_true(dt_now_s() < until_s);
        (void)uv_run(loop, UV_RUN_ONCE);
    }
}

static void an_outgoing_connection_keeps_a_port_for_a_while(void **state)
{
    (void)state;
    struct lookup_list here = list_of("127.0.0.1"), far = list_of("192.0.2.1");
    struct endpoint other, e;
    struct dt_error err;
    struct claimed c = {.fd = -1};
    struct claim *claim;
    uv_loop_t loop;
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    assert_int_equal(endpoint_decide(&other, ENDPOINT_HOST, &here, 0, &err), 0);
    int outgoing = connect_from(&other), port = port_of(outgoing), fd = -1;
    for (int choice = ENDPOINT_AUTO; choice <= ENDPOINT_HOST; choice++) {
        assert_int_equal(endpoint_decide(&e, (enum endpoint_choice)choice, &here, port, &err), 0);
        assert_true(!e.hosts && e.fd == -1 && strstr(e.why, "outgoing connection") != NULL);
    }
    assert_int_equal(endpoint_take(&here, port, &fd, &err), -1);
    assert_int_equal(endpoint_take(&far, 0, &fd, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
    assert_int_equal(uv_loop_init(&loop), 0);
    struct claim_options o = {.host = "127.0.0.1", .port = port, .every_s = 0.01, .user = &c, .got = on_got};
    claim_open(&claim, &loop, &o, &here);
    for (int i = 0; i < 10; i++) {
        (void)uv_run(&loop, UV_RUN_ONCE);
    }
    assert_int_equal(c.count, 0);
    (void)setsockopt(outgoing, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    (void)close(outgoing);
    wait_for(&loop, &c.count);
    claim_close(claim);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_true(c.count == 1 && port_of(c.fd) == port);
    (void)close(c.fd);
    (void)close(other.fd);
}

static int asked;

static int late_resolver(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    (void)host;
    return __atomic_add_fetch(&asked, 1, __ATOMIC_SEQ_CST) < 4 ? EAI_NONAME
                                                               : getaddrinfo("127.0.0.1", service, hints, found);
}

static void a_name_may_be_known_later(void **state)
{
    (void)state;
    struct claimed c = {.fd = -1}, never = {.fd = -1};
    struct claim *claim, *given_up;
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    struct claim_options o = {
        .host = "late", .port = 0, .every_s = 0.01, .resolver = late_resolver, .user = &c, .got = on_got};
    claim_open(&claim, &loop, &o, NULL);
    wait_for(&loop, &c.count);
    assert_int_equal(asked, 4);
    o.user = &never;
    claim_open(&given_up, &loop, &o, NULL);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    claim_close(given_up); /* with a look-up under way */
    claim_close(claim);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(never.count, 0);
    (void)close(c.fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_own_addresses),
        cmocka_unit_test(the_first_to_bind_hosts),
        cmocka_unit_test(others_join),
        cmocka_unit_test(an_outgoing_connection_keeps_a_port_for_a_while),
        cmocka_unit_test(a_name_may_be_known_later),
        cmocka_unit_test(listens_in_a_range),
        cmocka_unit_test(publishes_the_route),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
