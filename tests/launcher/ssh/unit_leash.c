/* covers: launcher/ssh/leash.c */
/* The agent's end of --hostfile's leash: signals, an end, a silence, and a sleep of our own that
 * is none. */
#include "base/clock.h"
#include "launcher/ssh/leash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define SILENCE_S 0.2

struct end {
    struct leash leash;
    uv_loop_t loop;
    int out; /* the launching host's side */
    int signalled, gone_count;
    char cause[64];
};

static void on_signal(void *user, int number)
{
    ((struct end *)user)->signalled = number;
}

static void on_gone(void *user, const char *cause)
{
    struct end *e = user;
    e->gone_count++;
    (void)snprintf(e->cause, sizeof e->cause, "%s", cause);
}

static void begin(struct end *e)
{
    int pipes[2];
    struct dt_error err;
    memset(e, 0, sizeof *e);
    assert_int_equal(pipe(pipes), 0);
    e->out = pipes[1];
    assert_int_equal(uv_loop_init(&e->loop), 0);
    e->leash.signal = on_signal;
    e->leash.gone = on_gone;
    e->leash.user = e;
    assert_int_equal(leash_watch(&e->leash, &e->loop, pipes[0], SILENCE_S, &err), 0);
}

static void finish(struct end *e)
{
    leash_close(&e->leash);
    (void)uv_run(&e->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&e->loop), 0);
    (void)close(e->leash.fd);
    if (e->out >= 0) {
        (void)close(e->out);
    }
}

static void say(struct end *e, const char *record)
{
    assert_int_equal(write(e->out, record, strlen(record) + 1), (ssize_t)strlen(record) + 1);
}

static void run_for(struct end *e, double seconds)
{
    double end_s = dt_now_s() + seconds;
    while (dt_now_s() < end_s) {
        (void)uv_run(&e->loop, UV_RUN_NOWAIT);
        dt_sleep_s(0.002);
    }
}

static void passes_signals_on(void **state)
{
    struct end e;
    (void)state;
    begin(&e);
    say(&e, "beat");
    say(&e, "signal 15");
    run_for(&e, SILENCE_S / 4);
    assert_int_equal(e.signalled, 15);
    assert_int_equal(e.gone_count, 0);
    finish(&e);
}

static void an_end_is_told_once(void **state)
{
    struct end e;
    (void)state;
    begin(&e);
    (void)close(e.out);
    e.out = -1;
    run_for(&e, SILENCE_S * 2);
    assert_int_equal(e.gone_count, 1);
    assert_string_equal(e.cause, "its connection has ended");
    finish(&e);
}

static void so_is_a_silence(void **state)
{
    struct end e;
    (void)state;
    begin(&e);
    run_for(&e, SILENCE_S * 3);
    assert_int_equal(e.gone_count, 1);
    assert_string_equal(e.cause, "nothing was heard of it");
    finish(&e);
}

/* A host that was stopped finds its timer over and the beats of that time unread. */
static void our_own_sleep_is_none(void **state)
{
    struct end e;
    (void)state;
    begin(&e);
    run_for(&e, SILENCE_S / 4);
    say(&e, "beat");
    dt_sleep_s(SILENCE_S * 2);
    run_for(&e, SILENCE_S / 4);
    assert_int_equal(e.gone_count, 0);
    run_for(&e, SILENCE_S * 2); /* and a real one is noticed after it */
    assert_int_equal(e.gone_count, 1);
    finish(&e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_signals_on),
        cmocka_unit_test(an_end_is_told_once),
        cmocka_unit_test(so_is_a_silence),
        cmocka_unit_test(our_own_sleep_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
