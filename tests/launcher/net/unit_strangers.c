/* covers: launcher/net/strangers.c launcher/net/lookup.c */
/* Lines and guesses of hosts that are refused, on a clock of our own. */
#include "launcher/net/strangers.h"

#include "launcher/net/lookup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static struct sockaddr_storage host_of(int number)
{
    struct lookup_list list;
    struct dt_error err;
    char text[32];
    (void)snprintf(text, sizeof text, "10.0.%d.%d", number / 256, number % 256);
    assert_int_equal(lookup_now(text, 1000 + number, &list, &err), 0);
    return list.addresses[0];
}

static char more[STRANGERS_MORE_BYTES];

static bool refuse(struct strangers *t, int number, double now_s)
{
    struct sockaddr_storage host = host_of(number);
    return strangers_refused(t, (struct sockaddr *)&host, now_s, more);
}

static void gone(struct strangers *t, int number, bool guess, double now_s)
{
    struct sockaddr_storage host = host_of(number);
    strangers_gone(t, (struct sockaddr *)&host, guess, false, now_s);
}

static bool may(const struct strangers *t, int number, bool proof, double now_s)
{
    struct sockaddr_storage host = host_of(number);
    return strangers_may(t, (struct sockaddr *)&host, proof, false, now_s);
}

static void one_line_per_host_and_minute(void **state)
{
    (void)state;
    struct strangers t = {0};
    assert_true(refuse(&t, 1, 5));
    assert_string_equal(more, "");
    for (int i = 0; i < 100; i++) {
        assert_false(refuse(&t, 1, 5 + 0.5 * i));
    }
    assert_true(refuse(&t, 2, 30.123456789)); /* another host */
    assert_true(refuse(&t, 1, 65));
    assert_string_equal(more, "; since the last line 100 more");
    assert_false(refuse(&t, 1, 66));
    assert_true(may(&t, 1, false, 66)); /* garbage is cheap */
}

/* Whoever has many addresses: some are named, then comes a number. */
static void so_many_lines_in_a_minute_for_all(void **state)
{
    (void)state;
    struct strangers t = {0};
    int lines = 0, last = 0;
    for (int i = 0; i < 5000; i++) {
        bool said = refuse(&t, i, 100 + 1e-3 * i);
        lines += said;
        last = said ? i : last;
        if (said && lines == STRANGERS_LINES) {
            assert_string_equal(more, "; for 60 s no other host is named");
        }
    }
    assert_int_equal(lines, STRANGERS_LINES);
    assert_int_equal(last, STRANGERS_LINES - 1);
    assert_false(refuse(&t, 7000, 159));
    assert_true(refuse(&t, 7000, 161));
    char expected[STRANGERS_MORE_BYTES];
    (void)snprintf(expected, sizeof expected, "; %d of other hosts were not said", 5000 - STRANGERS_LINES + 1);
    assert_string_equal(more, expected);
    assert_true(refuse(&t, 7001, 162));
    assert_string_equal(more, "");
}

static void an_ipv6_network_is_one_host(void **state)
{
    (void)state;
    struct strangers t = {0};
    struct lookup_list list;
    struct dt_error err;
    static const char *const names[] = {"2001:db8:1:2::1", "2001:db8:1:2:ffff:ffff:ffff:ffff", "2001:db8:1:3::1",
                                        "::ffff:10.0.0.1", "10.0.0.1"};
    static const bool said[] = {true, false, true, true, false};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(lookup_now(names[i], 1000, &list, &err), 0);
        assert_int_equal(strangers_refused(&t, (struct sockaddr *)&list.addresses[0], 7, more), said[i]);
    }
}

static void all_loopback_addresses_share_what_is_looked_at(void **state)
{
    (void)state;
    struct strangers t = {0};
    struct lookup_list list;
    struct dt_error err;
    static const char *const names[] = {"127.0.0.1", "127.9.8.7", "::ffff:127.0.0.2", "::1", "128.0.0.1"};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(lookup_now(names[i], 1000, &list, &err), 0);
        const struct sockaddr *host = (struct sockaddr *)&list.addresses[0];
        assert_int_equal(strangers_may(&t, host, true, false, 7), i == 0 || i == 4);
        for (int k = 0; k < STRANGERS_PER_S; k++) {
            strangers_gone(&t, host, true, false, 7);
        }
        assert_true(strangers_refused(&t, host, 7, more)); /* but each has its line */
    }
}

/* Many connections may be let through before the first of them is counted. */
static void one_host_does_not_use_up_the_share_of_all(void **state)
{
    (void)state;
    struct strangers t = {0};
    for (int i = 0; i < 10 * STRANGERS_ALL * STRANGERS_HELLOS_PER_S; i++) {
        gone(&t, 1, i % 2 == 0, 7.5);
    }
    assert_false(may(&t, 1, true, 7.6) || may(&t, 1, false, 7.6));
    assert_true(may(&t, 2, true, 7.6) && may(&t, 2, false, 7.6));
}

/* An agent that has been here has a second share at its own address, and no more: others hear
 * its id. */
static void agents_have_a_share_at_their_address(void **state)
{
    (void)state;
    struct strangers t = {0};
    struct sockaddr_storage one = host_of(1), two = host_of(2);
    const struct sockaddr *at = (struct sockaddr *)&one, *other = (struct sockaddr *)&two;
    for (int i = 0; i < 2 * STRANGERS_PER_S; i++) {
        assert_true(strangers_may(&t, at, true, true, 7.5));
        assert_int_equal(may(&t, 1, true, 7.5), i < STRANGERS_PER_S);
        strangers_gone(&t, at, true, true, 7.5);
    }
    assert_false(strangers_may(&t, at, true, true, 7.6));
    for (int i = 0; i < STRANGERS_ALL * STRANGERS_PER_S; i++) { /* strangers elsewhere use up
                                                                 * what is for all */
        gone(&t, 100 + i, true, 7.6);
    }
    assert_true(strangers_may(&t, other, true, true, 7.7));
    assert_false(may(&t, 2, true, 7.7));
    assert_true(strangers_may(&t, at, true, true, 8.7));
}

static void ten_guesses_per_host_and_second(void **state)
{
    (void)state;
    struct strangers t = {0};
    for (int i = 0; i < STRANGERS_PER_S; i++) {
        assert_true(may(&t, 1, true, 7.0 + 0.05 * i));
        gone(&t, 1, true, 7.0 + 0.05 * i);
    }
    assert_false(may(&t, 1, true, 7.9));
    assert_true(may(&t, 1, false, 7.9)); /* hellos are not guesses */
    assert_true(may(&t, 2, true, 7.9));
    assert_true(may(&t, 1, true, 8.1));
}

/* Agents that found another way leave a hello behind, too: so many in a second are none of
 * those. */
static void hellos_without_a_proof_are_counted_apart(void **state)
{
    (void)state;
    struct strangers t = {0};
    for (int i = 0; i < STRANGERS_HELLOS_PER_S; i++) {
        assert_true(may(&t, 1, false, 7.0 + 0.001 * i));
        gone(&t, 1, false, 7.0 + 0.001 * i);
    }
    assert_false(may(&t, 1, false, 7.9));
    assert_true(may(&t, 1, true, 7.9)); /* whoever has come so far proves itself */
    assert_true(may(&t, 2, false, 7.9));
    assert_true(may(&t, 1, false, 8.1));
    gone(&t, 1, false, 8.1); /* a new second */
    assert_true(may(&t, 1, false, 8.2));
}

/* Beyond the table, too; but not for agents that have been here. */
static void all_hosts_together_have_a_limit(void **state)
{
    (void)state;
    struct strangers t = {0};
    struct sockaddr_storage host = host_of(1);
    const struct sockaddr *at = (struct sockaddr *)&host;
    for (int i = 0; i < STRANGERS_ALL * STRANGERS_PER_S; i++) {
        assert_true(may(&t, 20000, true, 7.5));
        gone(&t, i, true, 7 + 1e-3 * i);
    }
    assert_false(may(&t, 20000, true, 7.5));
    assert_true(strangers_may(&t, at, true, true, 7.5));
    assert_true(may(&t, 20000, true, 8.5));
    for (int i = 0; i < STRANGERS_ALL * STRANGERS_HELLOS_PER_S; i++) {
        assert_true(may(&t, 20000, false, 9.5));
        gone(&t, i, false, 9 + 1e-4 * i);
    }
    assert_false(may(&t, 20000, false, 9.5));
    assert_true(strangers_may(&t, at, false, true, 9.5));
    /* their share has an end as well */
    for (int i = 0; i < STRANGERS_ALL * STRANGERS_HELLOS_PER_S; i++) {
        strangers_gone(&t, at, false, true, 9.6);
    }
    assert_false(strangers_may(&t, at, false, true, 9.7));
    assert_true(strangers_may(&t, at, false, true, 10.7));
}

static void the_table_does_not_grow(void **state)
{
    (void)state;
    struct strangers t = {0};
    for (int i = 0; i < 10000; i++) { /* a pushy one among many keeps its place */
        double now_s = 10 + 1e-3 * i;
        (void)refuse(&t, i, now_s);
        gone(&t, 20000, true, now_s);
    }
    assert_false(may(&t, 20000, true, 19.999));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_line_per_host_and_minute),
        cmocka_unit_test(so_many_lines_in_a_minute_for_all),
        cmocka_unit_test(an_ipv6_network_is_one_host),
        cmocka_unit_test(all_loopback_addresses_share_what_is_looked_at),
        cmocka_unit_test(one_host_does_not_use_up_the_share_of_all),
        cmocka_unit_test(agents_have_a_share_at_their_address),
        cmocka_unit_test(ten_guesses_per_host_and_second),
        cmocka_unit_test(hellos_without_a_proof_are_counted_apart),
        cmocka_unit_test(all_hosts_together_have_a_limit),
        cmocka_unit_test(the_table_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
