/* covers: launcher/job/agent.c */
/* The agent's table, without a process: what happens in which state, in which order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "launcher/job/agent.h"

#include <signal.h>
#include <string.h>

static void expect(const struct agent *a, enum agent_state state, int count, ...)
{
    va_list args;
    assert_int_equal(a->state, state);
    assert_int_equal(a->do_count, count);
    va_start(args, count);
    for (int i = 0; i < count; i++) {
        assert_int_equal(a->todo[i], va_arg(args, int));
    }
    va_end(args);
}

static struct agent running(bool bundled)
{
    struct agent a;
    agent_init(&a, &(struct agent_options){.bundled = bundled});
    agent_step(&a, AGENT_ON_START, 0);
    expect(&a, AGENT_RUNNING, 1, AGENT_DO_SPAWN);
    return a;
}

static void all_succeed(void **state)
{
    (void)state;
    struct agent a = running(false);
    agent_step(&a, AGENT_ON_WORKER_OK, 0);
    agent_step(&a, AGENT_ON_WORKER_OK, 0);
    expect(&a, AGENT_RUNNING, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_TELL_DONE);
    agent_step(&a, AGENT_ON_VERDICT, 0);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_EXIT);
    assert_int_equal(a.code, 0);
}

static void a_failure_ends_the_round_and_the_next_begins(void **state)
{
    (void)state;
    struct agent a = running(false);
    agent_step(&a, AGENT_ON_WORKER_BAD, -9);
    expect(&a, AGENT_STOPPING, 4, AGENT_DO_ORDER_ABORT, AGENT_DO_TERM, AGENT_DO_GRACE, AGENT_DO_TELL_FAILED);
    assert_int_equal(a.signal, SIGTERM);
    assert_int_equal(a.failure, FAILURE_PLAIN);
    assert_int_equal(a.failure_code, 1);
    agent_step(&a, AGENT_ON_WORKER_BAD, -15);
    expect(&a, AGENT_STOPPING, 0);
    agent_step(&a, AGENT_ON_GRACE, 0);
    expect(&a, AGENT_STOPPING, 1, AGENT_DO_KILL);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_JOINING, 1, AGENT_DO_TELL_JOIN);
    agent_step(&a, AGENT_ON_START, 0);
    expect(&a, AGENT_RUNNING, 1, AGENT_DO_SPAWN);
}

static void the_last_failure_ends_the_job(void **state)
{
    (void)state;
    struct agent a = running(false);
    agent_step(&a, AGENT_ON_WORKER_BAD, 17);
    agent_step(&a, AGENT_ON_VERDICT, 1);
    expect(&a, AGENT_STOPPING, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_EXIT);
    assert_int_equal(a.code, 1);
}

static void codes_of_failures(void **state)
{
    (void)state;
    static const int listed[] = {93};
    static const struct {
        bool bundled, pass;
        int value;
        enum failure_kind kind;
        int code;
    } rows[] = {
        {false, false, 17, FAILURE_PLAIN, 1},       {false, true, 17, FAILURE_PLAIN, 17},
        {false, true, -9, FAILURE_PLAIN, 137},      {false, false, 100, FAILURE_PLAIN, 1},
        {true, false, 100, FAILURE_PERMANENT, 100}, {true, false, 111, FAILURE_PLAIN, 1},
        {true, false, 2, FAILURE_PERMANENT, 2},     {false, false, 93, FAILURE_PERMANENT, 93},
        {true, false, -11, FAILURE_PLAIN, 1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct agent a;
        agent_init(&a, &(struct agent_options){.bundled = rows[i].bundled,
                                               .exit_code_worker = rows[i].pass,
                                               .permanent_codes = listed,
                                               .permanent_code_count = 1});
        agent_step(&a, AGENT_ON_START, 0);
        agent_step(&a, AGENT_ON_WORKER_BAD, rows[i].value);
        assert_int_equal(a.failure, rows[i].kind);
        assert_int_equal(a.failure_code, rows[i].code);
    }
}

static void nothing_could_be_started(void **state)
{
    (void)state;
    struct agent a = running(false);
    agent_step(&a, AGENT_ON_NO_START, 2);
    assert_int_equal(a.failure, FAILURE_START);
    assert_int_equal(a.failure_code, 2);
    agent_step(&a, AGENT_ON_VERDICT, 2);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_EXIT);
    assert_int_equal(a.code, 2);
}

/* A stop: the wish goes to the coordinator, its order comes back; what the workers end with
 * decides. */
static int code_after_stop(bool bundled, const enum agent_event *ends, int count)
{
    struct agent a = running(bundled);
    agent_step(&a, AGENT_ON_SIGNAL, SIGINT);
    expect(&a, AGENT_RUNNING, 1, AGENT_DO_TELL_STOP);
    agent_step(&a, AGENT_ON_STOP, 130);
    expect(&a, AGENT_STOPPING, 2, AGENT_DO_ORDER_STOP, AGENT_DO_GRACE);
    assert_int_equal(a.signal, SIGINT);
    for (int i = 0; i < count; i++) {
        agent_step(&a, ends[i], -15);
    }
    agent_step(&a, AGENT_ON_GONE, 0);
    assert_int_equal(a.state, AGENT_FINISHING);
    assert_int_equal(a.todo[0], a.failure_code == 0 ? AGENT_DO_TELL_DONE : AGENT_DO_TELL_STOPPED);
    return a.failure_code;
}

static void stops(void **state)
{
    (void)state;
    const enum agent_event saved[] = {AGENT_ON_WORKER_75, AGENT_ON_WORKER_75},
                           mixed[] = {AGENT_ON_WORKER_75, AGENT_ON_WORKER_BAD},
                           ok[] = {AGENT_ON_WORKER_OK, AGENT_ON_WORKER_OK}, bad[] = {AGENT_ON_WORKER_BAD};
    assert_int_equal(code_after_stop(true, saved, 2), 75);
    assert_int_equal(code_after_stop(true, mixed, 2), 130);
    assert_int_equal(code_after_stop(true, ok, 2), 0);
    assert_int_equal(code_after_stop(true, bad, 1), 130);
    assert_int_equal(code_after_stop(false, ok, 2), 130);
    assert_int_equal(code_after_stop(false, bad, 1), 130);
}

/* The coordinator of a stop is lost: its successor hears of the stop; should a round begin all
 * the same, that one was not asked to stop. */
static void a_stop_outlives_its_coordinator(void **state)
{
    (void)state;
    struct agent a = running(false);
    agent_step(&a, AGENT_ON_STOP, 143);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_TELL_STOPPED);
    agent_step(&a, AGENT_ON_END, 0);
    expect(&a, AGENT_JOINING, 2, AGENT_DO_TELL_JOIN, AGENT_DO_TELL_STOP);
    assert_int_equal(a.code, 143);
    agent_step(&a, AGENT_ON_START, 0);
    agent_step(&a, AGENT_ON_END, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_JOINING, 1, AGENT_DO_TELL_JOIN);

    for (int saved = 0; saved < 2; saved++) { /* while the workers are still ending: they may,
                                               * and the successor hears of it then */
        a = running(true);
        agent_step(&a, AGENT_ON_STOP, 143);
        agent_step(&a, AGENT_ON_END, 0);
        expect(&a, AGENT_STOPPING, 0);
        agent_step(&a, saved ? AGENT_ON_WORKER_75 : AGENT_ON_WORKER_BAD, 1);
        agent_step(&a, AGENT_ON_GONE, 0);
        expect(&a, AGENT_JOINING, 2, AGENT_DO_TELL_JOIN, AGENT_DO_TELL_STOP);
        assert_int_equal(agent_has_saved(&a), saved);
        assert_int_equal(a.code, 143);
        agent_step(&a, AGENT_ON_START, 0);
        agent_step(&a, AGENT_ON_STOP, 130);
        agent_step(&a, AGENT_ON_GONE, 0);
        expect(&a, AGENT_FINISHING, 1, AGENT_DO_TELL_DONE); /* that coordinator is another one */
    }
}

/* All save, one leaves: the others join again, and do not tell the next coordinator of a stop. */
static void a_pause(void **state)
{
    (void)state;
    struct agent a = running(true);
    agent_step(&a, AGENT_ON_PAUSE, 143);
    expect(&a, AGENT_STOPPING, 2, AGENT_DO_ORDER_STOP, AGENT_DO_GRACE);
    agent_step(&a, AGENT_ON_WORKER_75, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_TELL_STOPPED);
    assert_int_equal(a.failure_code, 75);
    agent_step(&a, AGENT_ON_END, 0);
    expect(&a, AGENT_JOINING, 1, AGENT_DO_TELL_JOIN);
    struct agent leaver = a;
    agent_step(&leaver, AGENT_ON_LEAVE, 143);
    expect(&leaver, AGENT_FINISHING, 1, AGENT_DO_EXIT);
    assert_int_equal(leaver.code, 75);
    agent_step(&a, AGENT_ON_START, 0);
    assert_false(agent_has_saved(&a));

    agent_step(&a, AGENT_ON_PAUSE, 143); /* a host is lost meanwhile */
    agent_step(&a, AGENT_ON_END, 0);
    expect(&a, AGENT_STOPPING, 3, AGENT_DO_ORDER_ABORT, AGENT_DO_TERM, AGENT_DO_GRACE);
    agent_step(&a, AGENT_ON_WORKER_BAD, 111);
    expect(&a, AGENT_STOPPING, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_JOINING, 1, AGENT_DO_TELL_JOIN);
    agent_step(&a, AGENT_ON_LEAVE, 143);
    assert_int_equal(a.code, 143);

    a = running(true); /* the whole job after all */
    agent_step(&a, AGENT_ON_PAUSE, 143);
    agent_step(&a, AGENT_ON_STOP, 130);
    expect(&a, AGENT_STOPPING, 0);
    agent_step(&a, AGENT_ON_END, 0);
    expect(&a, AGENT_STOPPING, 0);
    agent_step(&a, AGENT_ON_WORKER_75, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_JOINING, 2, AGENT_DO_TELL_JOIN, AGENT_DO_TELL_STOP);
}

static void a_crash_while_saving_frees_the_others(void **state)
{
    (void)state;
    struct agent a = running(true);
    agent_step(&a, AGENT_ON_STOP, 143);
    agent_step(&a, AGENT_ON_WORKER_BAD, -11);
    expect(&a, AGENT_STOPPING, 2, AGENT_DO_ORDER_ABORT, AGENT_DO_TERM);
    agent_step(&a, AGENT_ON_WORKER_BAD, 111);
    expect(&a, AGENT_STOPPING, 0);
}

static void workers_that_stop_by_themselves(void **state)
{
    (void)state;
    struct agent a = running(true);
    agent_step(&a, AGENT_ON_WORKER_75, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_TELL_STOPPED);
    assert_int_equal(a.failure_code, 75);
}

/* Where nothing runs there is no end of workers to wait for. */
static void now_ends_in_every_state(void **state)
{
    (void)state;
    for (int s = 0; s < AGENT_STATE_COUNT; s++) {
        struct agent a = running(true);
        a.state = (enum agent_state)s;
        agent_step(&a, AGENT_ON_NOW, SIGINT);
        if (s == AGENT_RUNNING || s == AGENT_STOPPING) {
            expect(&a, AGENT_STOPPING, 1, AGENT_DO_KILL);
            agent_step(&a, AGENT_ON_GONE, 0);
        }
        expect(&a, AGENT_FINISHING, 1, AGENT_DO_EXIT);
        assert_int_equal(a.code, 130);
    }
}

/* The first time all hosts are told, and the verdict is the coordinator's; the next time this
 * one ends at once. */
static void insisting_kills_everywhere(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) { /* before the answer to the wish is there */
        struct agent a = running(true);
        agent_step(&a, AGENT_ON_SIGNAL, SIGINT);
        agent_step(&a, early ? AGENT_ON_INSIST : AGENT_ON_STOP, early ? SIGINT : 130);
        agent_step(&a, early ? AGENT_ON_STOP : AGENT_ON_INSIST, early ? 130 : SIGINT);
        expect(&a, AGENT_STOPPING, early ? 0 : 2, AGENT_DO_TELL_KILL, AGENT_DO_KILL);
        agent_step(&a, AGENT_ON_STOP, COORDINATOR_KILL); /* the coordinator tells us, too */
        expect(&a, AGENT_STOPPING, 1, AGENT_DO_KILL);
        struct agent again = a;
        agent_step(&a, AGENT_ON_WORKER_BAD, -9);
        agent_step(&a, AGENT_ON_GONE, 0);
        expect(&a, AGENT_FINISHING, 1, AGENT_DO_TELL_STOPPED);
        assert_int_equal(a.failure_code, 130);
        agent_step(&again, AGENT_ON_INSIST, SIGINT);
        expect(&again, AGENT_STOPPING, 1, AGENT_DO_KILL);
        agent_step(&again, AGENT_ON_GONE, 0);
        expect(&again, AGENT_FINISHING, 1, AGENT_DO_EXIT);
        agent_step(&a, AGENT_ON_VERDICT, 130);
        expect(&a, AGENT_FINISHING, 1, AGENT_DO_EXIT);
        assert_true(a.code == 130 && again.code == 130);
    }

    struct agent a = running(true); /* our workers have saved, others have not yet */
    agent_step(&a, AGENT_ON_STOP, 130);
    agent_step(&a, AGENT_ON_WORKER_75, 0);
    agent_step(&a, AGENT_ON_GONE, 0);
    agent_step(&a, AGENT_ON_INSIST, SIGINT);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_TELL_KILL);
    agent_step(&a, AGENT_ON_INSIST, SIGINT);
    expect(&a, AGENT_FINISHING, 1, AGENT_DO_EXIT);
    assert_int_equal(a.code, 75);

    agent_init(&a, &(struct agent_options){.bundled = true}); /* no round yet */
    agent_step(&a, AGENT_ON_INSIST, SIGINT);
    expect(&a, AGENT_FINISHING, 2, AGENT_DO_TELL_KILL, AGENT_DO_EXIT);
    assert_int_equal(a.code, 130);
}

/* Who leaves alone does not end the others; nor does a pause, which they will get over; and
 * whoever lost its coordinator has nobody to tell. */
static void insisting_alone(void **state)
{
    (void)state;
    static const enum agent_event how[][2] = {
        {AGENT_ON_LEAVE, AGENT_ON_LEAVE}, {AGENT_ON_PAUSE, AGENT_ON_PAUSE}, {AGENT_ON_STOP, AGENT_ON_END}};
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        struct agent a = running(false);
        agent_step(&a, how[i][0], 130);
        agent_step(&a, how[i][1], 130);
        agent_step(&a, AGENT_ON_INSIST, SIGINT);
        expect(&a, AGENT_STOPPING, 1, AGENT_DO_KILL);
        agent_step(&a, AGENT_ON_GONE, 0);
        expect(&a, AGENT_FINISHING, 1, AGENT_DO_EXIT);
        assert_int_equal(a.code, 130);
    }
}

static void a_node_that_is_done_waits_and_can_be_called_back(void **state)
{
    (void)state;
    struct agent a = running(false);
    agent_step(&a, AGENT_ON_GONE, 0);
    agent_step(&a, AGENT_ON_END, 0);
    expect(&a, AGENT_JOINING, 1, AGENT_DO_TELL_JOIN);
}

/* Any sequence of events is survived, and an exit is only ever said when no worker can run. */
static void random_events(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int run = 0; run < 20000; run++) {
        struct agent a;
        agent_init(&a, &(struct agent_options){.bundled = run % 2 == 0});
        for (int i = 0; i < 30; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            enum agent_state before = a.state;
            enum agent_event e = (enum agent_event)((seed >> 33) % AGENT_EVENT_COUNT);
            agent_step(&a, e, (int)(seed >> 60));
            for (int k = 0; k < a.do_count; k++) {
                assert_true(a.todo[k] != AGENT_DO_EXIT || e == AGENT_ON_GONE || before == AGENT_JOINING ||
                            before == AGENT_FINISHING);
                assert_true(a.todo[k] != AGENT_DO_SPAWN || before == AGENT_JOINING);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_succeed),
        cmocka_unit_test(a_failure_ends_the_round_and_the_next_begins),
        cmocka_unit_test(the_last_failure_ends_the_job),
        cmocka_unit_test(codes_of_failures),
        cmocka_unit_test(nothing_could_be_started),
        cmocka_unit_test(stops),
        cmocka_unit_test(a_stop_outlives_its_coordinator),
        cmocka_unit_test(a_pause),
        cmocka_unit_test(a_crash_while_saving_frees_the_others),
        cmocka_unit_test(workers_that_stop_by_themselves),
        cmocka_unit_test(now_ends_in_every_state),
        cmocka_unit_test(insisting_kills_everywhere),
        cmocka_unit_test(insisting_alone),
        cmocka_unit_test(a_node_that_is_done_waits_and_can_be_called_back),
        cmocka_unit_test(random_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
