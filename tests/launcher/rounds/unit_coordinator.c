/* covers: launcher/rounds/coordinator.c */
/* Rounds as a pure step: tables of events and actions, then thousands of random histories with a
 * few things that always hold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "launcher/rounds/coordinator.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static struct coordinator c;
static struct actions out;

static void open_with(int nodes_min, int nodes_max, int restarts_max, bool watch_progress)
{
    coordinator_init(&c, &(struct coordinator_options){.nodes_min = nodes_min,
                                                       .nodes_max = nodes_max,
                                                       .restarts_max = restarts_max,
                                                       .join_timeout_s = 600,
                                                       .last_call_s = 30,
                                                       .watch_progress = watch_progress});
}

static void join(int node, double now_s)
{
    coordinator_step(
        &c,
        &(struct event){
            .kind = EVENT_JOIN, .node = node, .local_world_size = 2 + node, .order = -node, .role = "default"},
        now_s, &out);
}

static void send(enum event_kind kind, int node, int code, double now_s)
{
    coordinator_step(
        &c, &(struct event){.kind = kind, .node = node, .round = c.round, .code = code, .step = -1, .saved_step = -1},
        now_s, &out);
}

static int count_of(enum action_kind kind)
{
    int count = 0;
    for (int i = 0; i < out.count; i++) {
        count += out.list[i].kind == kind;
    }
    return count;
}

static void one_node(void **state)
{
    (void)state;
    open_with(1, 1, 1, false);
    join(0, 0);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.list[0].kind, ACTION_START);
    struct place p = out.list[0].place;
    assert_int_equal(p.round, 1);
    assert_int_equal(p.world_size, 2);
    assert_int_equal(p.group_world_size, 1);
    send(EVENT_FAILED, 0, 1, 1);
    assert_int_equal(out.count, 0); /* it ends its workers itself, and comes again */
    join(0, 2);
    assert_int_equal(out.list[0].kind, ACTION_START);
    assert_int_equal(out.list[0].place.round, 2);
    assert_int_equal(out.list[0].place.restarts_used, 1);
    send(EVENT_FAILED, 0, 1, 3); /* the budget is used up */
    assert_int_equal(out.list[0].kind, ACTION_FINISH);
    assert_int_equal(out.list[0].code, 1);
}

/* The hosts of the newest START list in the order of their ranks, "a b ". */
static const char *ranked(const char *const *hosts)
{
    static char text[256];
    text[0] = '\0';
    for (int rank = 0; rank < out.count; rank++) {
        for (int i = 0; i < out.count; i++) {
            if (out.list[i].kind == ACTION_START && out.list[i].place.group_rank == rank) {
                size_t used = strlen(text);
                (void)snprintf(text + used, sizeof text - used, "%s ", hosts[out.list[i].node]);
            }
        }
    }
    return text;
}

static void join_as(int node, const char *host, int preference, int64_t order, bool placed, double now_s)
{
    struct event e = {.kind = EVENT_JOIN,
                      .node = node,
                      .local_world_size = 1,
                      .order = order,
                      .role = "default",
                      .placed = placed,
                      .preference = preference,
                      .host = host};
    coordinator_step(&c, &e, now_s, &out);
}

/* Orders are those of arrival. Who was in a round keeps its own, whatever its name is. */
static void hosts_are_numbered_by_preference_then_by_name(void **state)
{
    (void)state;
    static const char *const hosts[] = {"z", "n66", "n7", "n6", "b", "b", "a", "n2"};
    open_with(1, 8, 1, false);
    c.options.last_call_s = 1;
    join_as(1, hosts[1], INT_MAX, 0, false, 0);
    join_as(0, hosts[0], -1, 1, false, 0); /* who leads */
    join_as(2, hosts[2], INT_MAX, 2, false, 0);
    join_as(3, hosts[3], INT_MAX, 3, false, 0);
    join_as(4, hosts[4], 1, 4, false, 0);
    join_as(5, hosts[5], 0, 5, false, 0);
    send(EVENT_TICK, -1, 0, 2);
    assert_string_equal(ranked(hosts), "z b b n6 n7 n66 ");
    assert_int_equal(coordinator_find(&c, 5)->order, 1); /* the host with preference 0 */
    assert_int_equal(coordinator_find(&c, 1)->order, 5);
    send(EVENT_LOST, 0, 0, 3);
    for (int node = 1; node <= 5; node++) {
        join_as(node, hosts[node], 0, coordinator_find(&c, node)->order, true, 3);
    }
    assert_string_equal(ranked(hosts), "b b n6 n7 n66 ");
    join_as(7, hosts[7], INT_MAX, 6, false, 4);
    join_as(6, hosts[6], INT_MAX, 7, false, 4);
    for (int node = 1; node <= 5; node++) {
        join_as(node, hosts[node], 0, coordinator_find(&c, node)->order, true, 4);
    }
    send(EVENT_TICK, -1, 0, 6);
    assert_string_equal(ranked(hosts), "b b n6 n7 n66 a n2 ");
    assert_int_equal(coordinator_find(&c, 5)->order, 1);
}

/* Equal ones keep the order in which they came. */
static void hosts_of_one_name_are_numbered_as_they_come(void **state)
{
    (void)state;
    static const char *const hosts[] = {"0", "1", "2"};
    open_with(3, 3, 1, false);
    join_as(2, "n", INT_MAX, 0, false, 0);
    join_as(0, "n", INT_MAX, 1, false, 0);
    join_as(1, "n", INT_MAX, 2, false, 0);
    assert_string_equal(ranked(hosts), "2 0 1 ");
}

/* A leader after the first one: who was in a round before need not be waited for again, whoever
 * comes for the first time is followed by others. */
static void those_who_return_need_no_last_call(void **state)
{
    (void)state;
    struct event e = {.kind = EVENT_JOIN, .local_world_size = 2, .role = "default", .returns = true};
    open_with(1, 4, 1, false);
    c.round = 3;
    coordinator_step(&c, &e, 0, &out);
    assert_int_equal(count_of(ACTION_START), 1);
    open_with(2, 4, 1, false);
    c.round = 3;
    coordinator_step(&c, &e, 0, &out);
    assert_int_equal(out.count, 0);
    join(1, 1);
    assert_int_equal(out.count, 0);
    assert_true(out.wake_s == 31);
    e.node = 2;
    coordinator_step(&c, &e, 2, &out);
    assert_int_equal(out.count, 0);
    coordinator_step(&c, &(struct event){.kind = EVENT_TICK, .node = -1}, 31, &out);
    assert_int_equal(count_of(ACTION_START), 3);
    join(3, 32); /* of this leader's round now: a newcomer ends it, as always */
    assert_int_equal(count_of(ACTION_END), 3);
}

/* What the caller knows of hosts that may be on their way: nobody begins with fewer than all
 * before, or nobody at all. */
static void a_round_waits_for_what_the_caller_says(void **state)
{
    (void)state;
    struct event tick = {.kind = EVENT_TICK, .node = -1};
    open_with(1, 3, 1, false);
    c.options.last_call_s = 1;
    c.alone_from_s = 6;
    join(0, 0);
    assert_true(out.wake_s == 6);
    coordinator_step(&c, &tick, 5.9, &out);
    assert_int_equal(count_of(ACTION_START), 0);
    coordinator_step(&c, &tick, 6, &out);
    assert_int_equal(count_of(ACTION_START), 1);
    open_with(1, 2, 1, false);
    c.alone_from_s = 6;
    join(0, 0);
    join(1, 0);
    assert_int_equal(count_of(ACTION_START), 2); /* all are here */
    open_with(1, 2, 1, false);
    c.hold_until_s = 9;
    join(0, 0);
    join(1, 0);
    assert_int_equal(count_of(ACTION_START), 0);
    assert_true(out.wake_s == 9);
    c.hold_until_s = 0;
    coordinator_step(&c, &tick, 1, &out);
    assert_int_equal(count_of(ACTION_START), 2);
}

static void done(void **state)
{
    (void)state;
    open_with(2, 2, 0, false);
    join(0, 0);
    assert_int_equal(out.count, 0);
    assert_true(out.wake_s > 0);
    join(1, 1);
    assert_int_equal(count_of(ACTION_START), 2);
    assert_int_equal(out.list[0].node, 1); /* the lower order comes first */
    assert_int_equal(out.list[0].place.rank, 0);
    assert_int_equal(out.list[1].place.rank, 3);
    assert_int_equal(out.list[1].place.world_size, 5);
    send(EVENT_DONE, 0, 0, 2);
    assert_int_equal(out.count, 0);
    send(EVENT_DONE, 1, 0, 3);
    assert_int_equal(count_of(ACTION_FINISH), 2);
    assert_int_equal(out.list[0].code, 0);
}

static void one_failure_counts_once(void **state)
{
    (void)state;
    open_with(2, 2, 3, false);
    join(0, 0);
    join(1, 0);
    send(EVENT_FAILED, 0, 1, 1);
    assert_int_equal(count_of(ACTION_END), 1);
    assert_int_equal(out.list[0].node, 1);
    send(EVENT_FAILED, 1, 1, 1); /* it lost its peer */
    assert_int_equal(out.count, 0);
    assert_int_equal(c.history.restarts_used, 1);
    join(1, 2);
    join(0, 2);
    assert_int_equal(count_of(ACTION_START), 2);
    assert_int_equal(out.list[0].place.restarts_used, 1);
    /* late news of the first round */
    coordinator_step(&c, &(struct event){.kind = EVENT_FAILED, .node = 0, .round = 1}, 3, &out);
    assert_int_equal(out.count, 0);
    assert_int_equal(c.history.restarts_used, 1);
}

static void failed(int node, bool weak, double now_s)
{
    coordinator_step(&c,
                     &(struct event){.kind = EVENT_FAILED,
                                     .node = node,
                                     .round = c.round,
                                     .code = 111,
                                     .step = -1,
                                     .saved_step = -1,
                                     .weak = weak},
                     now_s, &out);
}

/* A worker loses its peers before we hear that their host is gone: that costs no restart,
 * whatever is heard first, and however many are left. */
static void a_lost_host_costs_no_restart_when_its_peers_speak_first(void **state)
{
    (void)state;
    for (int restarts_max = 0; restarts_max < 2; restarts_max++) {
        for (int joined = 0; joined < 2; joined++) {
            open_with(1, 2, restarts_max, true);
            join(0, 0);
            join(1, 0);
            for (int i = 1; i <= 2 * COORDINATOR_NO_PROGRESS; i++) {
                failed(0, true, i);
                assert_int_equal(count_of(ACTION_END), 1);
                if (joined) {
                    join(0, i);
                }
                assert_int_equal(count_of(ACTION_FINISH), 0);
                send(EVENT_LOST, 1, 0, i);
                if (!joined) {
                    join(0, i);
                }
                assert_int_equal(count_of(ACTION_START), 1);
                assert_int_equal(out.list[0].place.restarts_used, 0);
                assert_int_equal(c.history.no_progress, 0);
                join(1, i); /* it comes back: a round with both */
                assert_int_equal(count_of(ACTION_END), 1);
                join(0, i);
                assert_int_equal(count_of(ACTION_START), 2);
            }
        }
    }
}

/* Who lost its peers counts when all are still there, and when one of them says that it failed
 * by itself. */
static void lost_peers_count_when_no_host_is_lost(void **state)
{
    (void)state;
    open_with(1, 2, 1, false);
    join(0, 0);
    join(1, 0);
    failed(0, true, 1);
    join(0, 1);
    join(1, 1);
    assert_int_equal(count_of(ACTION_START), 2);
    assert_int_equal(out.list[0].place.restarts_used, 1);
    send(EVENT_MET, -1, 0, 1);
    assert_int_equal(out.count, 0);
    send(EVENT_LOST, 1, 0, 1); /* later than that, it is another matter */
    join(0, 1);
    assert_int_equal(out.list[0].place.restarts_used, 1);
    join(1, 1);
    join(0, 1);
    failed(0, true, 2); /* the budget is used up; it ends when all have come again and reach each
                         * other */
    assert_int_equal(count_of(ACTION_END), 1);
    join(1, 2);
    join(0, 2);
    assert_int_equal(count_of(ACTION_FINISH), 0); /* they may be unable to reach each other */
    send(EVENT_MET, -1, 0, 2);
    assert_int_equal(count_of(ACTION_FINISH), 2);
    assert_int_equal(out.list[0].code, 111);

    for (int restarts_max = 0; restarts_max < 2; restarts_max++) {
        open_with(1, 2, restarts_max, false);
        join(0, 0);
        join(1, 0);
        failed(0, true, 1);
        failed(1, false, 1);
        assert_int_equal(count_of(ACTION_FINISH), restarts_max == 0 ? 2 : 0);
        send(EVENT_LOST, 1, 0, 2);
        assert_int_equal(c.history.restarts_used, restarts_max);
    }
}

/* Two of three cannot reach each other, and both were in the round: no restart, also when none
 * is left. A newcomer ended nothing. */
static void hosts_that_cannot_reach_each_other_cost_no_restart(void **state)
{
    (void)state;
    for (int restarts_max = 0; restarts_max < 2; restarts_max++) {
        open_with(2, 3, restarts_max, true);
        for (int i = 0; i < 3; i++) {
            join(i, 0);
        }
        for (int turn = 1; turn <= 2 * COORDINATOR_NO_PROGRESS; turn++) {
            failed(2, true, turn);
            for (int i = 0; i < 3; i++) {
                join(i, turn);
            }
            assert_int_equal(count_of(ACTION_START), 3);
            assert_false(coordinator_note_unreachable(&c, 1, 7));
            assert_true(coordinator_note_unreachable(&c, 1, 2));
            assert_false(coordinator_note_unreachable(&c, 1, 2)); /* once */
            assert_true(c.history.restarts_used == 0 && c.history.no_progress == 0);
            send(EVENT_LOST, 2, 0, turn);
            join(0, turn);
            join(1, turn);
            assert_int_equal(count_of(ACTION_START), 2);
            assert_int_equal(out.list[0].place.restarts_used, 0);
            send(EVENT_MET, -1, 0, turn);
            assert_int_equal(out.count, 0);
            join(2, turn);
            join(0, turn);
            join(1, turn);
            assert_int_equal(count_of(ACTION_START), 3);
        }
    }
    open_with(2, 3, 1, false);
    join(0, 0);
    join(1, 0);
    send(EVENT_TICK, -1, 0, 31);
    assert_int_equal(count_of(ACTION_START), 2);
    failed(1, true, 32);
    join(2, 32);
    join(0, 32);
    join(1, 32);
    assert_int_equal(count_of(ACTION_START), 3);
    assert_false(coordinator_note_unreachable(&c, 1, 2));
    send(EVENT_LOST, 2, 0, 33);
    join(0, 33);
    join(1, 33);
    assert_int_equal(out.list[0].place.restarts_used, 1);
}

static void permanent_and_unstartable_end_the_job(void **state)
{
    (void)state;
    for (int kind = FAILURE_PERMANENT; kind <= FAILURE_START; kind++) {
        open_with(1, 1, 5, false);
        join(0, 0);
        coordinator_step(
            &c, &(struct event){.kind = EVENT_FAILED, .round = 1, .failure = (enum failure_kind)kind, .code = 100}, 1,
            &out);
        assert_int_equal(out.list[0].kind, ACTION_FINISH);
        assert_int_equal(out.list[0].code, 100);
    }
}

static void restarts_without_progress(void **state)
{
    (void)state;
    open_with(1, 1, 100, true);
    for (int i = 0; i < 10; i++) { /* as long as each round comes further, there is no end to it */
        join(0, i);
        assert_int_equal(count_of(ACTION_START), 1);
        coordinator_step(
            &c, &(struct event){.kind = EVENT_FAILED, .round = c.round, .code = 1, .step = 10 + i, .saved_step = -1}, i,
            &out);
        assert_int_equal(out.count, 0);
    }
    for (int i = 0; i < 3; i++) {
        join(0, 20 + i);
        coordinator_step(
            &c, &(struct event){.kind = EVENT_FAILED, .round = c.round, .code = 1, .step = 5, .saved_step = -1}, 20 + i,
            &out);
    }
    assert_int_equal(out.list[0].kind, ACTION_FINISH);
    assert_int_equal(out.list[0].code, DT_EXIT_PERMANENT);
}

/* The second time in the same step is the last; another step is another matter, and so is a
 * failure of another kind between two. */
static void out_of_memory_in_the_same_step(void **state)
{
    static const struct {
        bool oom;
        int step;
        bool end;
    } tries[] = {{true, 5, false}, {true, 7, false},  {false, 7, false},
                 {true, 8, false}, {false, 2, false}, {true, 8, true}};
    (void)state;
    for (int known = 0; known < 2; known++) {
        open_with(1, 1, 100, known == 1);
        for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
            join(0, (double)i);
            assert_int_equal(count_of(ACTION_START), 1);
            struct event e = {.kind = EVENT_FAILED, .round = c.round, .code = 1, .step = (int64_t)i, .saved_step = -1};
            e.out_of_memory = tries[i].oom;
            e.at_step = tries[i].step;
            coordinator_step(&c, &e, (double)i, &out);
            assert_int_equal(count_of(ACTION_FINISH), known == 1 && tries[i].end);
        }
        assert_int_equal(c.finished, known == 1);
        assert_int_equal(c.code, known == 1 ? DT_EXIT_PERMANENT : 0);
    }
}

static void stop_while_running_and_while_waiting(void **state)
{
    (void)state;
    open_with(2, 2, 0, false);
    join(0, 0);
    join(1, 0);
    send(EVENT_STOP, 0, 143, 1);
    assert_int_equal(count_of(ACTION_STOP), 2);
    send(EVENT_FAILED, 1, 1, 1);
    assert_int_equal(out.count, 0);
    send(EVENT_STOPPED, 0, 75, 2);
    send(EVENT_STOPPED, 1, 75, 3);
    assert_int_equal(count_of(ACTION_FINISH), 2);
    assert_int_equal(out.list[0].code, 75);

    open_with(2, 2, 0, false);
    join(0, 0);
    join(1, 0);
    send(EVENT_STOP, 0, 143, 1);
    send(EVENT_STOPPED, 0, 75, 2);
    send(EVENT_STOPPED, 1, 143, 3); /* one could not save: nothing is saved */
    assert_int_equal(out.list[0].code, 143);

    open_with(2, 2, 0, false);
    join(0, 0);
    send(EVENT_STOP, 0, 130, 1);
    assert_int_equal(out.list[0].kind, ACTION_FINISH);
    assert_int_equal(out.list[0].code, 130);
}

/* Whoever still has workers kills them, for whoever insists; the end is that of the stop. */
static void insisting_kills_on_all_nodes(void **state)
{
    (void)state;
    open_with(3, 3, 0, false);
    for (int i = 0; i < 3; i++) {
        join(i, 0);
    }
    send(EVENT_STOP, 1, COORDINATOR_KILL, 1); /* without a stop before it is no news: that one
                                               * was told to another leader */
    assert_int_equal(out.count, 0);
    send(EVENT_STOP, 1, 130, 1);
    send(EVENT_STOPPED, 1, 75, 2);
    send(EVENT_STOP, 1, COORDINATOR_KILL, 2);
    assert_int_equal(count_of(ACTION_STOP), 2);
    assert_true(out.list[0].node == 0 && out.list[1].node == 2);
    assert_true(out.list[0].code == COORDINATOR_KILL && out.list[1].code == COORDINATOR_KILL);
    send(EVENT_STOPPED, 0, 130, 3);
    send(EVENT_STOPPED, 2, 75, 3);
    assert_int_equal(count_of(ACTION_FINISH), 3);
    assert_int_equal(out.list[0].code, 130);
    send(EVENT_STOP, 1, COORDINATOR_KILL, 4);
    assert_int_equal(out.count, 0);

    open_with(1, 3, 0, false); /* who leaves alone ends alone */
    c.options.leave = true;
    for (int i = 0; i < 3; i++) {
        join(i, 0);
    }
    send(EVENT_STOP, 1, 130, 1);
    assert_int_equal(count_of(ACTION_LEAVE), 1);
    send(EVENT_STOP, 0, 130, 1);
    assert_int_equal(count_of(ACTION_LEAVE), 1);
    send(EVENT_STOP, 2, 130, 1); /* the last one: the whole job */
    send(EVENT_STOP, 0, COORDINATOR_KILL, 2);
    assert_int_equal(count_of(ACTION_STOP), 0);
}

/* Who is asked to stop leaves an elastic job alone, while enough are left. */
static void nodes_leave_until_the_minimum(void **state)
{
    (void)state;
    open_with(1, 3, 0, false);
    c.options.leave = true;
    for (int i = 0; i < 3; i++) {
        join(i, 0);
    }
    assert_int_equal(count_of(ACTION_START), 3);
    send(EVENT_STOP, 1, 143, 1);
    assert_int_equal(count_of(ACTION_LEAVE), 1);
    assert_int_equal(out.list[0].node, 1);
    assert_int_equal(out.list[0].code, 143);
    assert_int_equal(count_of(ACTION_END), 2);
    send(EVENT_STOP, 1, 143, 1); /* again: no news */
    assert_int_equal(out.count, 0);
    join(0, 2);
    join(2, 2);
    assert_int_equal(out.count, 0); /* its workers may still run */
    send(EVENT_LOST, 1, 0, 3);
    assert_int_equal(count_of(ACTION_START), 2);
    assert_int_equal(c.history.restarts_used, 0);
    send(EVENT_STOP, 0, 143, 4);
    assert_int_equal(count_of(ACTION_LEAVE), 1);
    send(EVENT_STOP, 2, 143, 4); /* the last one: nobody is left to go on */
    assert_int_equal(count_of(ACTION_LEAVE), 0);
    send(EVENT_LOST, 0, 0, 5);
    join(2, 5);
    assert_int_equal(count_of(ACTION_START), 0);
    assert_int_equal(count_of(ACTION_FINISH), 1);
    assert_int_equal(out.list[0].code, 143);

    open_with(1, 2, 0, false); /* one that waits as a spare goes at once; the round does not
                                * notice */
    c.options.leave = true;
    join(0, 0);
    join(1, 0);
    join(2, 1);
    send(EVENT_STOP, 2, 143, 2);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.list[0].kind, ACTION_LEAVE);

    open_with(2, 2, 0, false); /* a fixed job stops as a whole */
    c.options.leave = true;
    join(0, 0);
    join(1, 0);
    send(EVENT_STOP, 1, 143, 1);
    assert_int_equal(count_of(ACTION_STOP), 2);
}

/* It is the first one that comes to the next leader: the others of its round will, too. A
 * newcomer's wish, before there are enough, is the job's end. */
static void who_comes_to_a_new_leader_leaves_alone(void **state)
{
    (void)state;
    for (int returns = 0; returns < 2; returns++) {
        struct event e = {.kind = EVENT_JOIN, .local_world_size = 2, .role = "default", .returns = returns};
        open_with(2, 4, 0, false);
        c.options.leave = true;
        c.round = 3;
        coordinator_step(&c, &e, 0, &out);
        send(EVENT_STOP, 0, 143, 1);
        assert_int_equal(out.count, 1);
        assert_int_equal(out.list[0].kind, returns ? ACTION_LEAVE : ACTION_FINISH);
        assert_int_equal(out.list[0].code, 143);
    }
}

static void open_saving(int nodes_min, int nodes)
{
    open_with(nodes_min, nodes, 0, false);
    c.options.leave = c.options.save = true;
    for (int i = 0; i < nodes; i++) {
        join(i, 0);
    }
    assert_int_equal(count_of(ACTION_START), nodes);
}

/* Where each node holds a part of the state, all save before one leaves; that costs no restart. */
static void all_save_before_one_leaves(void **state)
{
    (void)state;
    open_saving(2, 3);
    send(EVENT_STOP, 1, 143, 1);
    assert_int_equal(count_of(ACTION_PAUSE), 3);
    assert_int_equal(out.count, 3);
    send(EVENT_STOPPED, 1, 75, 2);
    send(EVENT_STOPPED, 0, 75, 2);
    join(3, 2); /* a newcomer disturbs no save */
    assert_int_equal(out.count, 0);
    send(EVENT_STOPPED, 2, 75, 2);
    assert_int_equal(count_of(ACTION_END), 3);
    assert_int_equal(out.count, 3);
    join(0, 3);
    join(1, 3);
    assert_int_equal(out.count, 1);
    assert_int_equal(out.list[0].kind, ACTION_LEAVE);
    assert_int_equal(out.list[0].node, 1);
    join(2, 3);
    assert_int_equal(out.count, 0); /* it may lead, and is about to end */
    send(EVENT_LOST, 1, 0, 4);
    assert_int_equal(count_of(ACTION_START), 3); /* with the newcomer */
    assert_int_equal(c.history.restarts_used, 0);
}

static void a_pause_that_fails_or_becomes_a_stop(void **state)
{
    (void)state;
    open_saving(1, 3); /* one is lost while all save: the others need not try */
    send(EVENT_STOP, 2, 143, 1);
    send(EVENT_STOPPED, 2, 75, 1);
    send(EVENT_LOST, 1, 0, 2);
    assert_int_equal(count_of(ACTION_END), 2);
    join(2, 3);
    assert_int_equal(count_of(ACTION_LEAVE), 1);
    join(0, 3);
    send(EVENT_LOST, 2, 0, 4);
    assert_int_equal(count_of(ACTION_START), 1);

    open_saving(1, 2); /* it was the last step */
    send(EVENT_STOP, 0, 143, 1);
    send(EVENT_DONE, 0, 0, 2);
    send(EVENT_DONE, 1, 0, 2);
    assert_int_equal(count_of(ACTION_FINISH), 2);
    assert_int_equal(out.list[0].code, 0);

    open_saving(1, 2); /* the last one is asked, too: what was saved before counts */
    send(EVENT_STOP, 0, 143, 1);
    send(EVENT_STOPPED, 0, 75, 2);
    send(EVENT_STOP, 1, 143, 2);
    assert_int_equal(count_of(ACTION_STOP), 1);
    send(EVENT_STOPPED, 1, 75, 2);
    assert_int_equal(count_of(ACTION_FINISH), 2);
    assert_int_equal(out.list[0].code, 75);

    open_saving(1, 2); /* the same when it has saved already, and waits */
    send(EVENT_STOP, 0, 143, 1);
    send(EVENT_STOPPED, 0, 75, 2);
    send(EVENT_STOPPED, 1, 75, 2);
    join(0, 3);
    join(1, 3);
    coordinator_step(&c, &(struct event){.kind = EVENT_STOP, .node = 1, .round = c.round, .code = 143, .saved = true},
                     3, &out);
    assert_int_equal(count_of(ACTION_FINISH), 2);
    assert_int_equal(out.list[0].code, 75);

    open_saving(1, 3); /* a person's wish, or a time that is over, is about the job */
    send(EVENT_STOP, 0, 130, 1);
    assert_int_equal(count_of(ACTION_STOP), 3);
}

static void a_stop_between_two_rounds_ends_the_job(void **state)
{
    (void)state;
    open_with(1, 1, 3, false);
    join(0, 0);
    send(EVENT_FAILED, 0, 1, 1);
    send(EVENT_STOP, 0, 130, 1); /* its workers are still being ended */
    join(0, 2);
    assert_int_equal(count_of(ACTION_START), 0);
    assert_int_equal(count_of(ACTION_FINISH), 1);
    assert_int_equal(out.list[0].code, 130);
}

static void elastic(void **state)
{
    (void)state;
    open_with(1, 3, 0, false);
    join(0, 0);
    assert_int_equal(out.count, 0);
    assert_true(out.wake_s > 29 && out.wake_s < 31);
    join(1, 10);
    send(EVENT_TICK, 0, 0, 29.9);
    assert_int_equal(out.count, 0);
    send(EVENT_TICK, 0, 0, 30.1);
    assert_int_equal(count_of(ACTION_START), 2);
    join(2, 50); /* room for a third: a new round, free of charge */
    assert_int_equal(count_of(ACTION_END), 2);
    join(0, 51);
    join(1, 52);
    assert_int_equal(count_of(ACTION_START), 3);
    assert_int_equal(c.history.restarts_used, 0);
    join(3, 60); /* a spare waits */
    assert_int_equal(out.count, 0);
    send(EVENT_LOST, 1, 0, 70);
    assert_int_equal(count_of(ACTION_END), 2);
    join(0, 71);
    join(2, 72); /* with the spare there are three */
    assert_int_equal(count_of(ACTION_START), 3);
    assert_int_equal(c.history.restarts_used, 0);
    send(EVENT_LOST, 3, 0, 80);
    join(0, 81);
    assert_int_equal(out.count, 0);
    join(2, 81); /* all who were there and live are back: no last call */
    assert_int_equal(count_of(ACTION_START), 2);
}

static void nobody_else_comes(void **state)
{
    (void)state;
    open_with(2, 2, 0, false);
    join(0, 0);
    send(EVENT_TICK, 0, 0, 599);
    assert_int_equal(out.count, 0);
    send(EVENT_TICK, 0, 0, 600.5);
    assert_int_equal(out.list[0].kind, ACTION_FINISH);
    assert_int_equal(out.list[0].code, DT_EXIT_TEMPORARY);
    join(0, 700); /* it was told how the job ended */
    assert_int_equal(out.count, 0);
    join(1, 700);
    assert_int_equal(out.list[0].kind, ACTION_REFUSE);
}

static void roles(void **state)
{
    (void)state;
    open_with(3, 3, 0, false);
    const char *const names[] = {"actor", "learner", "actor"};
    for (int i = 0; i < 3; i++) {
        coordinator_step(
            &c, &(struct event){.kind = EVENT_JOIN, .node = i, .local_world_size = i + 1, .order = i, .role = names[i]},
            0, &out);
    }
    const int rank[] = {0, 1, 3}, role_rank[] = {0, 0, 1}, role_size[] = {4, 2, 4};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(out.list[i].place.rank, rank[i]);
        assert_int_equal(out.list[i].place.role_rank, role_rank[i]);
        assert_int_equal(out.list[i].place.role_world_size, role_size[i]);
    }
}

/* Nodes that do as they are told, in a random order, with losses: a node is started only when it
 * waits, rounds grow by one, ranks tile the world, and the budget is never exceeded. */
static void random_histories(void **state)
{
    (void)state;
    enum { NODES = 5 };
    uint64_t seed = 7;
    for (int history = 0; history < 3000; history++) {
        enum { AWAY, WAITING, RUNNING, ENDING, OVER } node[NODES] = {AWAY};
        double now_s = 0;
        int round = 0;
        open_with(1 + history % 3, 3 + history % 3, history % 4, false);
        for (int i = 0; i < 60; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            int k = (int)((seed >> 33) % NODES), what = (int)((seed >> 40) % 8);
            struct event e = {.node = k,
                              .round = c.round,
                              .local_world_size = 1 + k,
                              .order = k,
                              .role = "r",
                              .step = -1,
                              .saved_step = -1};
            now_s += (double)((seed >> 50) % 40);
            if (what == 0 && node[k] != AWAY) {
                e.kind = EVENT_LOST;
                node[k] = AWAY;
            } else if (node[k] == AWAY || node[k] == ENDING) {
                e.kind = EVENT_JOIN;
                node[k] = WAITING;
            } else if (node[k] == RUNNING && what == 1) {
                e.kind = EVENT_FAILED;
                e.code = 1;
                node[k] = ENDING;
            } else {
                e.kind = EVENT_TICK;
            }
            coordinator_step(&c, &e, now_s, &out);
            int ranks = 0, starts = 0;
            for (int a = 0; a < out.count; a++) {
                struct action *x = &out.list[a];
                if (x->kind == ACTION_START) {
                    assert_int_equal(node[x->node], WAITING);
                    assert_int_equal(x->place.rank, ranks);
                    assert_int_equal(x->place.group_rank, starts++);
                    assert_int_equal(x->place.round, round + 1);
                    ranks += x->place.local_world_size;
                    node[x->node] = RUNNING;
                    assert_true(x->place.restarts_used <= history % 4);
                } else if (x->kind == ACTION_END) {
                    assert_true(node[x->node] == RUNNING || node[x->node] == ENDING);
                    node[x->node] = ENDING;
                } else {
                    node[x->node] = OVER;
                }
            }
            if (starts > 0) {
                round++;
                assert_true(starts >= 1 + history % 3 && starts <= 3 + history % 3);
                for (int k2 = 0; k2 < NODES; k2++) { /* nobody of the round before still runs */
                    int started = 0;
                    for (int a = 0; a < out.count; a++) {
                        started += out.list[a].kind == ACTION_START && out.list[a].node == k2;
                    }
                    assert_true(node[k2] != RUNNING || started == 1);
                }
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node),
        cmocka_unit_test(hosts_are_numbered_by_preference_then_by_name),
        cmocka_unit_test(hosts_of_one_name_are_numbered_as_they_come),
        cmocka_unit_test(those_who_return_need_no_last_call),
        cmocka_unit_test(a_round_waits_for_what_the_caller_says),
        cmocka_unit_test(done),
        cmocka_unit_test(one_failure_counts_once),
        cmocka_unit_test(a_lost_host_costs_no_restart_when_its_peers_speak_first),
        cmocka_unit_test(lost_peers_count_when_no_host_is_lost),
        cmocka_unit_test(hosts_that_cannot_reach_each_other_cost_no_restart),
        cmocka_unit_test(permanent_and_unstartable_end_the_job),
        cmocka_unit_test(restarts_without_progress),
        cmocka_unit_test(out_of_memory_in_the_same_step),
        cmocka_unit_test(stop_while_running_and_while_waiting),
        cmocka_unit_test(insisting_kills_on_all_nodes),
        cmocka_unit_test(nodes_leave_until_the_minimum),
        cmocka_unit_test(who_comes_to_a_new_leader_leaves_alone),
        cmocka_unit_test(all_save_before_one_leaves),
        cmocka_unit_test(a_pause_that_fails_or_becomes_a_stop),
        cmocka_unit_test(a_stop_between_two_rounds_ends_the_job),
        cmocka_unit_test(elastic),
        cmocka_unit_test(nobody_else_comes),
        cmocka_unit_test(roles),
        cmocka_unit_test(random_histories),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
