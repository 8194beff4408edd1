/* Lines and guesses of hosts that are refused, on a clock of our own. */
#include "launcher/strangers.h"

#include "launcher/lookup.h"

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

static bool refuse(struct strangers *t, int number, bool guess, double now_s, int *unsaid)
{
    struct sockaddr_storage host = host_of(number);
    return strangers_refused(t, (struct sockaddr *)&host, guess, now_s, unsaid);
}

static void gone(struct strangers *t, int host, double now_s)
{
    struct sockaddr_storage a = host_of(host);
    strangers_gone(t, (struct sockaddr *)&a, now_s);
}

static bool is_pushy(const struct strangers *t, int number, double now_s)
{
    struct sockaddr_storage host = host_of(number);
    return strangers_is_pushy(t, (struct sockaddr *)&host, now_s);
}

static void one_line_per_host_and_minute(void **state)
{
    (void)state;
    struct strangers t = {0};
    int unsaid = -1;
    assert_true(refuse(&t, 1, false, 5, &unsaid));
    assert_int_equal(unsaid, 0);
    for (int i = 0; i < 100; i++) {
        assert_false(refuse(&t, 1, false, 5 + 0.5 * i, &unsaid));
    }
    assert_true(refuse(&t, 2, false, 30.123456789, &unsaid)); /* another host */
    assert_true(refuse(&t, 1, false, 65, &unsaid));
    assert_int_equal(unsaid, 100);
    assert_false(refuse(&t, 1, false, 66, &unsaid));
    assert_false(is_pushy(&t, 1, 66)); /* garbage is cheap */
}

static void ten_guesses_per_host_and_second(void **state)
{
    (void)state;
    struct strangers t = {0};
    int unsaid;
    for (int i = 0; i < STRANGERS_PER_S; i++) {
        assert_false(is_pushy(&t, 1, 7.0 + 0.05 * i));
        (void)refuse(&t, 1, true, 7.0 + 0.05 * i, &unsaid);
    }
    assert_true(is_pushy(&t, 1, 7.9));
    assert_false(is_pushy(&t, 2, 7.9));
    assert_false(is_pushy(&t, 1, 8.1));
}

/* Agents that found another way leave a hello behind, too: a hundred in a second are none of those. */
static void hellos_without_a_proof_are_counted_apart(void **state)
{
    (void)state;
    struct strangers t = {0};
    for (int i = 0; i < STRANGERS_HELLOS_PER_S; i++) {
        assert_false(is_pushy(&t, 1, 7.0 + 0.005 * i));
        gone(&t, 1, 7.0 + 0.005 * i);
    }
    assert_true(is_pushy(&t, 1, 7.9));
    assert_false(is_pushy(&t, 2, 7.9));
    assert_false(is_pushy(&t, 1, 8.1));
    gone(&t, 1, 8.1); /* a new second */
    assert_false(is_pushy(&t, 1, 8.2));
}

static void the_table_does_not_grow(void **state)
{
    (void)state;
    struct strangers t = {0};
    int unsaid;
    for (int i = 0; i < 10000; i++) { /* a pushy one among many keeps its place */
        (void)refuse(&t, i, false, 10 + 1e-3 * i, &unsaid);
        (void)refuse(&t, 20000, true, 10 + 1e-3 * i, &unsaid);
    }
    assert_true(is_pushy(&t, 20000, 19.999));
    assert_false(refuse(&t, 20000, false, 20, &unsaid));
    assert_int_equal(unsaid, 9999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_line_per_host_and_minute),
        cmocka_unit_test(ten_guesses_per_host_and_second),
        cmocka_unit_test(hellos_without_a_proof_are_counted_apart),
        cmocka_unit_test(the_table_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
