/* Who hosts: addresses of this machine and of others, the first to bind, ports that are taken, routes, owners of ports. */
#include "launcher/endpoint.h"

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
    struct dt_text text;
    assert_true(is_local("127.0.0.1") && is_local("127.9.8.7") && is_local("0.0.0.0"));
    assert_false(is_local("192.0.2.1")); /* of nobody */
    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *i = all; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr != NULL && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6)) {
            assert_true(endpoint_is_local(i->ifa_addr));
        }
    }
    freeifaddrs(all);
    dt_text_init(&text);
    endpoint_text(&text);
    assert_non_null(strstr(dt_text_str(&text), "127.0.0.1"));
    dt_text_clear(&text);
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
    assert_non_null(strstr(second.why, expected));
    assert_int_equal(endpoint_decide(&second, ENDPOINT_HOST, &list, first.port, &err), -1); /* static: an error, with the owner */
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
    assert_int_equal(endpoint_decide(&e, ENDPOINT_HOST, &far, 0, &err), 0); /* told to host: does, and says that it looks odd */
    assert_true(e.hosts);
    assert_non_null(strstr(e.why, "although"));
    (void)close(e.fd);
}

static void listens_in_a_range(void **state)
{
    (void)state;
    struct dt_error err;
    int fd = -1, port = 0, second = -1, second_port = 0;
    assert_int_equal(endpoint_listen(0, 0, 0, &fd, &port, &err), 0);
    assert_int_equal(endpoint_listen(0, port, port, &second, &second_port, &err), -1);
    assert_non_null(strstr(err.text, "--port_range"));
    assert_int_equal(endpoint_listen(port, 0, 0, &second, &second_port, &err), -1);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_its_own_addresses), cmocka_unit_test(the_first_to_bind_hosts), cmocka_unit_test(others_join),
        cmocka_unit_test(listens_in_a_range),      cmocka_unit_test(publishes_the_route),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
