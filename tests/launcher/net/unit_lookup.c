/* covers: launcher/net/lookup.c */
/* Look-ups: literals, names that are slow or unknown, giving up, and the order in which
 * addresses are tried. */
#include "launcher/net/lookup.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct sockaddr_storage address(const char *host, int port)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)(void *)&a;
    struct sockaddr_in *four = (struct sockaddr_in *)(void *)&a;
    if (strchr(host, ':') != NULL) {
        six->sin6_family = AF_INET6;
        assert_int_equal(inet_pton(AF_INET6, host, &six->sin6_addr), 1);
    } else {
        four->sin_family = AF_INET;
        assert_int_equal(inet_pton(AF_INET, host, &four->sin_addr), 1);
    }
    lookup_set_port((struct sockaddr *)&a, port);
    return a;
}

struct answer {
    int calls, rc;
    struct lookup_list list;
    struct dt_error err;
};

static void on_done(void *user, const struct lookup_list *list, const struct dt_error *err)
{
    struct answer *a = user;
    a->calls++;
    a->rc = list != NULL ? 0 : -1;
    if (list != NULL) {
        a->list = *list;
    } else {
        a->err = *err;
    }
}

static void answers_literals_and_unknown_names(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct lookup *l;
    struct dt_error err;
    struct answer four = {0}, six = {0}, none = {0};
    char name[LOOKUP_NAME_BYTES];
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(lookup_open(&l, &loop, "127.0.0.1", 29400, NULL, on_done, &four, &err), 0);
    assert_int_equal(lookup_open(&l, &loop, "::1", 29400, NULL, on_done, &six, &err), 0);
    assert_int_equal(lookup_open(&l, &loop, "no..such..name", 1, NULL, on_done, &none, &err), 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_true(four.calls == 1 && six.calls == 1 && none.calls == 1);
    assert_true(four.rc == 0 && four.list.count == 1 && none.rc == -1);
    assert_string_equal(lookup_name((struct sockaddr *)&four.list.addresses[0], name, sizeof name), "127.0.0.1:29400");
    assert_non_null(strstr(none.err.text, "no..such..name"));
    if (six.rc == 0) { /* machines without IPv6 may not even parse it */
        assert_string_equal(lookup_name((struct sockaddr *)&six.list.addresses[0], name, sizeof name), "[::1]:29400");
    }
}

/* One pair per test: a resolver that the test before gave up may still be on its way out of its
 * own. */
static sem_t holds[3], begun_ones[3], *hold, *begun;
static int pairs;

static void new_pair(void)
{
    hold = &holds[pairs];
    begun = &begun_ones[pairs++];
    assert_int_equal(sem_init(hold, 0, 0) | sem_init(begun, 0, 0), 0);
}

static int slow(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
    (void)host;
    sem_t *mine = hold;
    (void)sem_post(begun);
    while (sem_wait(mine) != 0) {
    }
    return getaddrinfo("127.0.0.1", service, hints, found);
}

static void on_tick(uv_timer_t *timer)
{
    int *ticks = timer->data;
    if (++*ticks == 5) {
        uv_close((uv_handle_t *)timer, NULL);
        (void)sem_post(hold);
    }
}

static void a_slow_resolver_blocks_nobody(void **state)
{
    (void)state;
    uv_loop_t loop;
    uv_timer_t timer;
    struct lookup *l;
    struct dt_error err;
    struct answer a = {0};
    int ticks = 0;
    new_pair();
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(lookup_open(&l, &loop, "slow", 7, slow, on_done, &a, &err), 0);
    assert_int_equal(uv_timer_init(&loop, &timer), 0);
    timer.data = &ticks;
    assert_int_equal(uv_timer_start(&timer, on_tick, 1, 1), 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_true(ticks == 5 && a.calls == 1 && a.rc == 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void giving_up_ends_the_loop_at_once(void **state)
{
    (void)state;
    uv_loop_t loop;
    struct lookup *l;
    struct dt_error err;
    struct answer a = {0};
    new_pair();
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(lookup_open(&l, &loop, "slow", 7, slow, on_done, &a, &err), 0);
    while (sem_wait(begun) != 0) {
    }
    lookup_close(l); /* the resolver is still thinking */
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(a.calls, 0);
    (void)sem_post(hold);
}

static void a_start_waits_for_a_name_only_so_long(void **state)
{
    (void)state;
    struct lookup_list list = {0};
    struct dt_error err;
    char name[LOOKUP_NAME_BYTES];
    new_pair();
    assert_int_equal(lookup_within("slow", 7, 0.01, slow, &list, &err), -1);
    assert_int_equal(err.status, DT_TIMEOUT);
    assert_non_null(strstr(err.text, "slow: name look-up: no answer yet"));
    (void)sem_post(hold); /* the thread ends by itself */
    (void)sem_post(hold);
    assert_int_equal(lookup_within("slow", 7, 60, slow, &list, &err), 0);
    assert_string_equal(lookup_name((struct sockaddr *)&list.addresses[0], name, sizeof name), "127.0.0.1:7");
    assert_int_equal(lookup_within("no..such..name", 7, 60, NULL, &list, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);
}

/* Link-local addresses mean something on one interface only. */
static void a_scope_stays_with_its_address(void **state)
{
    (void)state;
    struct lookup_list lo, none;
    struct dt_error err;
    char name[LOOKUP_NAME_BYTES];
    if (lookup_now("fe80::1%lo", 29400, &lo, &err) != 0 || lookup_now("fe80::1", 29400, &none, &err) != 0) {
        skip();
    }
    assert_string_equal(lookup_name((struct sockaddr *)&lo.addresses[0], name, sizeof name), "[fe80::1%lo]:29400");
    assert_true(((struct sockaddr_in6 *)(void *)&lo.addresses[0])->sin6_scope_id != 0);
    assert_true(lookup_same_host((struct sockaddr *)&lo.addresses[0], (struct sockaddr *)&none.addresses[0]));
    struct sockaddr_storage other = lo.addresses[0];
    ((struct sockaddr_in6 *)(void *)&other)->sin6_scope_id++;
    assert_false(lookup_same_host((struct sockaddr *)&lo.addresses[0], (struct sockaddr *)&other));
}

static void families_take_turns(void **state)
{
    (void)state;
    static const char *const in[] = {"2001:db8::1", "2001:db8::2", "2001:db8::1", "10.0.0.1", "10.0.0.2", "10.0.0.3"};
    static const char *const expected[] = {"2001:db8::1", "10.0.0.1", "2001:db8::2", "10.0.0.2", "10.0.0.3"};
    struct lookup_list list = {0};
    char host[LOOKUP_NAME_BYTES];
    for (size_t i = 0; i < 6; i++) {
        list.addresses[list.count++] = address(in[i], 1);
    }
    lookup_order(&list);
    assert_int_equal(list.count, 5);
    for (int i = 0; i < 5; i++) {
        assert_string_equal(lookup_host((struct sockaddr *)&list.addresses[i], host, sizeof host), expected[i]);
    }
}

static void addresses_compare_by_host(void **state)
{
    (void)state;
    struct sockaddr_storage a = address("10.0.0.1", 1), b = address("::ffff:10.0.0.1", 2), c = address("10.0.0.2", 1),
                            d = address("::1", 1);
    char host[LOOKUP_NAME_BYTES];
    assert_true(lookup_same_host((struct sockaddr *)&a, (struct sockaddr *)&b));
    assert_false(lookup_same_host((struct sockaddr *)&a, (struct sockaddr *)&c));
    assert_false(lookup_same_host((struct sockaddr *)&a, (struct sockaddr *)&d));
    assert_string_equal(lookup_host((struct sockaddr *)&b, host, sizeof host), "10.0.0.1");
    lookup_unmap(&b);
    assert_true(b.ss_family == AF_INET && lookup_port((struct sockaddr *)&b) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_literals_and_unknown_names), cmocka_unit_test(a_slow_resolver_blocks_nobody),
        cmocka_unit_test(giving_up_ends_the_loop_at_once),    cmocka_unit_test(families_take_turns),
        cmocka_unit_test(addresses_compare_by_host),          cmocka_unit_test(a_start_waits_for_a_name_only_so_long),
        cmocka_unit_test(a_scope_stays_with_its_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
