/* covers: launcher/rounds */
/* Whole clusters on simulated time (tests/lib/cluster.h): in every schedule one round trains at a
 * time, places fit together, the budget's arithmetic holds, nobody is left behind, and once
 * faults stop the job ends as it should. DTRUN_SCHEDULES=N runs N schedules, DTRUN_SEED=S begins
 * at seed S, DTRUN_CROWDS=N runs N schedules of ten thousand agents. DTRUN_VERBOSE=1 tells what
 * happens, DTRUN_TRACE=1 every message as well; both for DTRUN_SCHEDULES=1.
 * run: computes
 * run: timeout 3600 */
#include "tests/lib/cluster.h"
#include "tests/lib/schedules.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/text.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef DT_SANITIZED
enum { SCHEDULES = 200, CROWDS = 1, CROWD = 1000 };
#else
enum { SCHEDULES = 500, CROWDS = 1, CROWD = 10000 };
#endif

/* ---- small clusters, many faults ---- */

static int waited_in_vain;

enum { PLAIN, FILTERS, SIGNALS, SAVES, STUBBORN, SHORT, WHOLE, SLEEPS, SPARES, FAILS, LATE, MIXED, PEERS };

/* What went wrong, or null. */
static const char *one_schedule(uint64_t seed, int kind)
{
    static char why[1024];
    int count = (kind == SLEEPS ? 3 : 1) + (int)(seed % (kind == SLEEPS ? 10 : 8)),
        min = 1 + (int)(seed / 8 % (uint64_t)count);
    /* what it costs may end the job */
    bool stopped = kind == STUBBORN || kind == SLEEPS, costs = kind == PEERS && seed % 2 == 0;
    /* some of all that there is */
    uint64_t bits = kind == MIXED ? seed * 0x9e3779b97f4a7c15ull >> 40 : 0;
    cluster_open(&(struct cluster_options){
        .seed = seed,
        .count = count,
        .min = min,
        .max = kind == SPARES || (bits & 1) != 0 ? min + (count - min) / 2 : count,
        .restarts = stopped || (kind == PEERS && !costs) ? 100
                    : kind == FAILS                      ? 1
                                                         : 3, /* workers that their guard ended
                                                               * count, too */
        .start_s = 2,
        .filters = kind == FILTERS || (bits & 2) != 0,
        .signals = kind == SIGNALS || kind == SAVES || (bits & 12) == 12,
        .save = kind == SAVES || (bits & 28) == 28,
        .stubborn = stopped || (bits & (32 | 256)) != 0,
        .failures = kind == FAILS || (bits & 64) != 0,
        .join_timeout_s = kind == FAILS ? 40 : 0,
        .link_s = kind == LATE || (bits & 128) != 0 ? 6 : 0,
        .sleeps = kind == SLEEPS || (bits & 256) != 0,
        .fault_every_s = (kind == SLEEPS && seed % 2 == 0) || (bits & 512) != 0 ? 4 : 0,
        .last_call_s = kind == SHORT || kind == WHOLE || (bits & 1024) != 0 ? 0.5 + (double)(seed % 5) : 0,
        .whole = kind == WHOLE,
        .peers = kind == PEERS,
        .overtakes = (bits & 2048) != 0,
        .faults_until_s = 1 + (double)(seed * 7919 % 89)});
    bool ended = cluster_run(3000);
    int well = schedule_count_codes(count, 0);
    why[0] = 0;
    if (cluster_broken() != NULL) {
        (void)snprintf(why, sizeof why, "%s", cluster_broken());
    } else if (!ended) {
        schedule_list_left(count, why, sizeof why);
    } else if (kind == SIGNALS || kind == SAVES || kind == FAILS || kind == MIXED ||
               costs) { /* who was asked, and whether anybody goes on, decides the codes */
        why[0] = 0;
    } else if (well == 0 && !(2 * min <= count && cluster_totals()->kills > 0)) {
        /* Faults were free (lost nodes) or within the budget (failed workers). But where two
         * halves could both go on, and an agent died that others could not hear at its end, they
         * cannot know whether it had gone on with somebody else: they wait for join_timeout, and
         * end with 111. */
        (void)snprintf(why, sizeof why, "nobody ended with 0");
    } else if (well == 0) {
        waited_in_vain++;
        if (schedule_count_codes(count, DT_EXIT_TEMPORARY) < count) {
            (void)snprintf(why, sizeof why, "an agent waited in vain, and did not end with 111");
        }
    }
    if (getenv("DTRUN_VERBOSE") != NULL) {
        cluster_show_leaders();
    }
    cluster_close();
    return why[0] != 0 ? why : NULL;
}

/* Schedules that once broke a promise. */
static const struct {
    uint64_t seed;
    int kind;
    const char *what;
} found[] = {
    {84779, PLAIN,
     "an agent that died by a reset counted as one whose every record was known, so the round it had begun was begun "
     "again"},
    {37429, PLAIN, "leaders of two runs, neither of which had a round, each waited for the other's hosts"},
    {4242, SIGNALS,
     "a stop went round, its coordinator died, and its agents ended the next one's round as if it had asked them to"},
    {103034, PLAIN,
     "a leader whom nobody answered any more ended the job by itself, and the others began the round again"},
    {1253, SPARES,
     "who took the place of a leader began anew with hosts that only waited beside its round, before the survivors' "
     "call"},
    {906923, LATE,
     "one that led nobody and followed another counted a host that ended by a reset as one whose every record it knew"},
    {100395, STUBBORN, "the same while the others' workers took long"},
    {17228, MIXED, "one whose leader gave their run up and began another took that one's end for its own run's"},
    {22406, FILTERS,
     "two agents led in one term, as the vote of one that had died since was known to nobody: followers went to and "
     "fro for ever"},
    {18667, SPARES, "the same"},
    {34533, STUBBORN,
     "a link that led nowhere any more, with an agent that had died, buried the one that was started in its place"},
};

static void run_schedules(uint64_t count, int kind)
{
    uint64_t first = (uint64_t)schedule_setting("DTRUN_SEED", 1);
    int failed = 0;
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
        const char *why = one_schedule(found[i].seed, found[i].kind);
        if (why != NULL) {
            fail_msg("seed %llu: %s: %s", (unsigned long long)found[i].seed, found[i].what, why);
        }
    }
    print_message("schedules: seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + count - 1));
    for (uint64_t seed = first; seed < first + count; seed++) {
        const char *why = one_schedule(seed, kind);
        if (why != NULL && failed++ < 400) {
            print_error("seed %llu: %s\n", (unsigned long long)seed, why);
        }
    }
    if (waited_in_vain > 2 + (int)count / 100) { /* less than one in a thousand, usually */
        fail_msg("%d of %llu schedules waited in vain", waited_in_vain, (unsigned long long)count);
    }
    if (failed > 0) {
        fail_msg("%d of %llu schedules", failed, (unsigned long long)count);
    }
}

static void schedules_hold_the_promises(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), PLAIN);
}

static void and_when_filters_answer_for_hosts(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), FILTERS);
}

static void and_when_hosts_are_asked_to_stop(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES) / 4, SIGNALS);
}

static void and_when_all_save_before_one_leaves(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES) / 4, SAVES);
}

static void and_when_workers_do_not_end_and_agents_are_stopped(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), STUBBORN);
}

static void and_when_agents_sleep_for_minutes_and_a_part_heals(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES) / 4, SLEEPS);
}

static void and_with_a_short_last_call(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), SHORT);
}

static void and_when_more_hosts_are_there_than_a_round_takes(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), SPARES);
}

static void and_when_the_job_fails_or_waits_too_long(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), FAILS);
}

static void and_when_links_come_up_late(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), LATE);
}

static void and_when_workers_lose_their_peers(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), PEERS);
}

static void and_when_all_that_happens_at_once(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), MIXED);
}

/* Hosts die and return, whoever held the endpoint among them, and all can reach each other:
 * survivors and those who remember nothing are one run. */
static void and_who_returns_never_begins_a_run_beside_another(void **state)
{
    (void)state;
    run_schedules((uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES), WHOLE);
}

static void expect_one_run(uint64_t seed, int count)
{
    if (cluster_broken() != NULL) {
        fail_msg("seed %llu: %s", (unsigned long long)seed, cluster_broken());
    }
    for (int i = 0; i < count; i++) {
        const struct record *r = &cluster_agent(i).member->record;
        if (!cluster_agent(i).running ||
            memcmp(r->nonce, cluster_agent(0).member->record.nonce, sizeof r->nonce) != 0) {
            fail_msg("seed %llu: agent %d is not in the round of the others", (unsigned long long)seed, i);
        }
    }
}

/* What a supervisor does: whoever held the endpoint is started again at once, and its last call
 * is shorter than anything. */
static void a_restarted_holder_of_the_endpoint_joins_the_survivors(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        cluster_open(&(struct cluster_options){.seed = seed,
                                               .count = 3,
                                               .min = 1,
                                               .max = 3,
                                               .restarts = 3,
                                               .start_s = 0.1,
                                               .work_s = 500,
                                               .last_call_s = 0.5 + (double)(seed % 4)});
        (void)cluster_run(15);
        expect_one_run(seed, 3);
        cluster_kill(0, 0.1 + (double)(seed % 7) / 2);
        (void)cluster_run(60);
        expect_one_run(seed, 3);
        /* the survivors' one */
        assert_true(cluster_agent(1).member->record.nonce[0] == ((uint64_t)1 << 32 | 1));
        cluster_close();
    }
}

/* Cut off from them it cannot know, and begins anew; when they hear of each other, it is given
 * up. Or theirs, when there are more beside the returned one. */
static void of_two_runs_one_is_given_up(void **state)
{
    (void)state;
    int alone = 0, more = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        bool away = seed % 2 == 0; /* only one survives, and two return */
        cluster_open(&(struct cluster_options){.seed = seed,
                                               .count = 3,
                                               .min = 1,
                                               .max = 3,
                                               .restarts = 3,
                                               .start_s = 0.1,
                                               .work_s = 500,
                                               .last_call_s = 3});
        (void)cluster_run(15);
        expect_one_run(seed, 3);
        uint64_t nonce = cluster_agent(1).member->record.nonce[0];
        cluster_kill(0, 20);
        (void)cluster_run(20); /* now they know each other's end, if it comes */
        if (away) {
            cluster_kill(2, 15);
        }
        (void)cluster_run(34);
        cluster_isolate(away ? 1 : 0);
        (void)cluster_run(80);
        if (cluster_agent(0).running && cluster_agent(1).running &&
            cluster_agent(0).member->record.nonce[0] != cluster_agent(1).member->record.nonce[0]) {
            alone += !away;
            more += away;
            cluster_heal();
            (void)cluster_run(80 + 16);
            expect_one_run(seed, 3);
            assert_true((cluster_agent(1).member->record.nonce[0] == nonce) == !away);
        }
        cluster_close();
    }
    print_message("two runs after a cut: %d with the survivors stronger, %d with the new one\n", alone, more);
    assert_true(alone > 40 && more > 40);
}

/* The run that is given up has a leader and those who follow it: all go over. Its leader may be
 * another one than who holds the endpoint. */
static void followers_of_a_run_that_is_given_up_go_over(void **state)
{
    (void)state;
    int tried = 0, led_elsewhere = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        cluster_open(&(struct cluster_options){.seed = seed,
                                               .count = 6,
                                               .min = 1,
                                               .max = 6,
                                               .restarts = 3,
                                               .start_s = 0.1,
                                               .work_s = 500,
                                               .last_call_s = 3});
        (void)cluster_run(15);
        expect_one_run(seed, 6);
        uint64_t nonce = cluster_agent(1).member->record.nonce[0];
        cluster_kill(4, 20);
        cluster_kill(5, 20);
        (void)cluster_run(20);
        cluster_kill(0, 10);
        (void)cluster_run(28);
        cluster_split(1 | 1 << 4 | 1 << 5);
        (void)cluster_run(60);
        if (seed % 2 == 0) { /* of the new run 4 or 5 leads, and 0 follows */
            cluster_kill(0, 3);
            (void)cluster_run(100);
        }
        int there = cluster_agent(0).running + cluster_agent(4).running + cluster_agent(5).running;
        if (cluster_agent(1).running && there > 1 && cluster_agent(4).member->record.nonce[0] != nonce) {
            tried++;
            led_elsewhere += cluster_agent(0).member->role == MEMBER_FOLLOWING;
            cluster_heal();
            (void)cluster_run(cluster_totals()->now_s + 16);
            expect_one_run(seed, 6);
            assert_true(cluster_agent(0).member->record.nonce[0] == nonce || there == 3);
        }
        cluster_close();
    }
    print_message("runs given up with followers: %d; of these led by another one than who holds the endpoint: %d\n",
                  tried, led_elsewhere);
    assert_true(tried > 60 && led_elsewhere > 20);
}

/* Nothing else happens: all save, the one that was asked ends with 75, the others finish. */
static void who_is_asked_leaves_when_all_have_saved(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        int asked = (int)(seed % 4);
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 4, .min = 1, .max = 4, .signals = true, .save = true, .work_s = 40});
        (void)cluster_run(30);
        assert_true(cluster_agent(asked).running);
        cluster_signal(asked);
        bool ended = cluster_run(300);
        if (cluster_broken() != NULL || !ended) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, cluster_broken() != NULL ? cluster_broken() : "no end");
        }
        for (int i = 0; i < 4; i++) {
            assert_int_equal(cluster_agent(i).code, i == asked ? DT_EXIT_STOPPED : 0);
        }
        assert_int_equal(cluster_totals()->rounds, 2);
        cluster_close();
    }
}

static int leader_of(int from, int count)
{
    for (int i = from; i < count; i++) {
        struct cluster_agent a = cluster_agent(i);
        if (a.alive && a.member->role == MEMBER_LEADING) {
            return i;
        }
    }
    return -1;
}

/* Of three hosts, of which all are needed, one is not there: before the first round, or since it
 * died and led them. Whichever of the others is asked to stop, all who are there end, at once. */
static void who_waits_for_a_round_can_be_asked_to_stop(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        bool begun = seed % 2 == 0;
        int missing = begun ? 0 : 2;
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 3, .min = 3, .max = 3, .restarts = 3, .start_s = 0.1, .work_s = 500});
        if (begun) {
            (void)cluster_run(15);
            cluster_kill(missing, -1);
        } else {
            cluster_isolate(missing);
        }
        (void)cluster_run(60);
        int leader = leader_of(0, 3), other = 3 - missing - leader;
        cluster_signal(seed % 4 < 2 ? other : leader);
        (void)cluster_run(65);
        if (cluster_broken() != NULL || cluster_agent(leader).code != 128 + SIGTERM ||
            cluster_agent(other).code != 128 + SIGTERM) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken() : "somebody waits on");
        }
        cluster_close();
    }
}

/* Two hosts cannot reach each other, so the round runs without one of them. */
static void who_is_left_out_can_be_asked_to_stop(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 3, .min = 2, .max = 3, .restarts = 3, .start_s = 0.1, .work_s = 500});
        cluster_cut(1, 2);
        (void)cluster_run(30);
        int out = cluster_agent(1).running ? 2 : 1;
        assert_true(cluster_agent(0).running && cluster_agent(3 - out).running && !cluster_agent(out).running);
        cluster_signal(out);
        (void)cluster_run(35);
        if (cluster_broken() != NULL || cluster_agent(out).code != 128 + SIGTERM || !cluster_agent(0).running ||
            !cluster_agent(3 - out).running) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken() : "it waits on, or the others do not");
        }
        cluster_close();
    }
}

/* The agents of which workers run, as bits. */
static unsigned running_of(int count)
{
    unsigned there = 0;
    for (int i = 0; i < count; i++) {
        there |= cluster_agent(i).running ? 1u << i : 0;
    }
    return there;
}

/* All of these run, and nobody else, before end_s. */
static bool cluster_runs(unsigned who, int count, double end_s)
{
    while (running_of(count) != who && cluster_broken() == NULL && cluster_totals()->now_s <= end_s &&
           !cluster_run_steps(1)) {
    }
    return running_of(count) == who && cluster_broken() == NULL;
}

static void expect_unused(uint64_t seed, int count)
{
    for (int i = 0; i < count; i++) {
        if (cluster_agent(i).running && cluster_agent(i).member->record.history.restarts_used != 0) {
            fail_msg("seed %llu: %d restarts used", (unsigned long long)seed,
                     cluster_agent(i).member->record.history.restarts_used);
        }
    }
}

/* Their link comes and goes, and each time a worker loses its peers: an elastic job goes on
 * without one of them, whatever is left of its budget. */
static void hosts_that_cannot_reach_each_other_cost_no_restart(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        cluster_open(&(struct cluster_options){.seed = seed,
                                               .count = 3,
                                               .min = 2,
                                               .max = 3,
                                               .restarts = seed % 2 == 0 ? 3 : 0,
                                               .start_s = 0.1,
                                               .work_s = 5000});
        bool runs = cluster_runs(7, 3, 20);
        for (int turn = 0; turn < 5 && runs; turn++) {
            cluster_part(1, 2);
            cluster_lose_peers(1 + (int)(seed / 2 % 2));
            runs = cluster_runs(0, 3, cluster_totals()->now_s + 20);
            runs = runs &&
                   (cluster_runs(3, 3, cluster_totals()->now_s + 20) || cluster_runs(5, 3, cluster_totals()->now_s));
            expect_unused(seed, 3);
            const struct member_cause *cause =
                member_cause(cluster_agent(0).member, cluster_agent(0).member->cause.round);
            assert_true(cause != NULL && cause->cause.kind == CAUSE_HOST && cause->said);
            assert_non_null(strstr(cause->text, "cannot reach each other; going on without h"));
            cluster_heal();
            /* who came back three times stays for a minute first */
            runs = runs && cluster_runs(7, 3, cluster_totals()->now_s + 100);
            expect_unused(seed, 3);
        }
        if (!runs) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken() : "it does not go on");
        }
        cluster_close();
    }
}

static void a_fixed_job_waits_for_them_and_goes_on(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        cluster_open(&(struct cluster_options){.seed = seed,
                                               .count = 3,
                                               .min = 3,
                                               .max = 3,
                                               .restarts = seed % 2 == 0 ? 3 : 0,
                                               .start_s = 0.1,
                                               .work_s = 5000});
        bool runs = cluster_runs(7, 3, 20);
        for (int turn = 0; turn < 5 && runs; turn++) {
            cluster_part(1, 2);
            cluster_lose_peers(1 + (int)(seed / 2 % 2));
            (void)cluster_run(cluster_totals()->now_s + 20);
            assert_false(cluster_agent(0).running || cluster_agent(1).running || cluster_agent(2).running);
            cluster_heal();
            runs = cluster_runs(7, 3, cluster_totals()->now_s + 20);
            expect_unused(seed, 3);
        }
        if (!runs) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken() : "it does not go on");
        }
        cluster_close();
    }
}

static void lost_peers_cost_a_restart_when_all_are_there(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 3, .min = 2, .max = 3, .restarts = 2, .start_s = 0.1, .work_s = 5000});
        for (int used = 0; used < 3; used++) {
            assert_true(cluster_runs(7, 3, cluster_totals()->now_s + 20));
            assert_int_equal(cluster_agent(1).member->record.history.restarts_used, used);
            cluster_lose_peers(1 + (int)(seed % 2));
            while (running_of(3) == 7 && !cluster_run_steps(1)) {
            }
        }
        bool ended = cluster_run(cluster_totals()->now_s + 20);
        if (cluster_broken() != NULL || !ended || schedule_count_codes(3, 1) < 3) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken()
                     : ended                  ? "codes"
                                              : "no end");
        }
        cluster_close();
    }
}

/* One of four hosts is asked to leave, and the coordinator dies before it has let that one go:
 * the others go on without both. */
static void a_wish_to_stop_outlives_the_coordinator(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        cluster_open(&(struct cluster_options){.seed = seed,
                                               .count = 4,
                                               .min = 2,
                                               .max = 4,
                                               .restarts = 3,
                                               .start_s = 0.1,
                                               .work_s = 30,
                                               .signals = true,
                                               .save = seed % 2 == 0});
        (void)cluster_run(15);
        cluster_signal(1);
        (void)cluster_run(15 + 0.02 * (double)(seed / 2));
        cluster_kill(0, -1);
        bool ended = cluster_run(300);
        int code = cluster_agent(1).code;
        if (cluster_broken() != NULL || !ended || schedule_count_codes(4, 0) != 2 ||
            (code != 128 + SIGTERM && code != DT_EXIT_STOPPED)) {
            fail_msg("seed %llu: %s, %d", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken()
                     : ended                  ? "codes"
                                              : "no end",
                     code);
        }
        cluster_close();
    }
}

/* Nothing else happens: the verdict is one for all, whatever had been saved by then; all must
 * have saved for 75. */
static void who_insists_ends_all_alike(void **state)
{
    (void)state;
    int saved = 0, killed = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        int asked = (int)(seed % 4);
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 4, .min = 4, .max = 4, .signals = true, .save = true, .work_s = 60});
        (void)cluster_run(30);
        assert_true(cluster_agent(asked).running);
        cluster_signal(asked);
        (void)cluster_run_steps((long)(seed / 4 % 50));
        cluster_insist(asked);
        bool ended = cluster_run(35);
        if (cluster_broken() != NULL || !ended) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, cluster_broken() != NULL ? cluster_broken() : "no end");
        }
        int code = cluster_agent(asked).code;
        if ((code != DT_EXIT_STOPPED && code != 128 + SIGTERM) || schedule_count_codes(4, code) < 4) {
            fail_msg("seed %llu: codes %d, %d, %d, %d", (unsigned long long)seed, cluster_agent(0).code,
                     cluster_agent(1).code, cluster_agent(2).code, cluster_agent(3).code);
        }
        saved += code == DT_EXIT_STOPPED;
        killed += code != DT_EXIT_STOPPED;
        cluster_close();
    }
    print_message("insisted on: %d ended with all saved, %d without\n", saved, killed);
    assert_true(saved > 10 && killed > 10);
}

/* Two hosts; one is done, and its agent sleeps while the other one ends the job. It has its
 * leader's last words when it wakes up. */
static void who_sleeps_through_the_end_reads_how_it_ended(void **state)
{
    (void)state;
    int tried = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        cluster_open(
            &(struct cluster_options){.seed = seed, .count = 2, .min = 2, .max = 2, .start_s = 1, .work_s = 20});
        while (cluster_agent(1).state != AGENT_FINISHING && cluster_broken() == NULL && !cluster_agent(0).finished) {
            (void)cluster_run_steps(1);
        }
        if (cluster_agent(0).running) {
            tried++;
            cluster_stop(1, 11 + (double)(seed % 20));
        }
        bool ended = cluster_run(100);
        if (cluster_broken() != NULL || !ended || schedule_count_codes(2, 0) < 2) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, cluster_broken() != NULL ? cluster_broken() : "no end");
        }
        cluster_close();
    }
    assert_true(tried > 20);
}

/* C-3: whoever leads dies before each single thing that happens from the start to the first
 * round's workers, one after the other; nobody starts workers of a round that others do not
 * know. Seeds are delays: which message comes first. */
static void a_coordinator_dies_at_each_state_change(void **state)
{
    (void)state;
    int killed_at = 0, knew = 0, began = 0;
    for (uint64_t seed = 1; seed <= 6; seed++) {
        bool running = false;
        for (long step = 1; !running; step++) {
            cluster_open(&(struct cluster_options){
                .seed = seed, .count = 3, .min = 2, .max = 3, .restarts = 3, .start_s = 1, .work_s = 5});
            (void)cluster_run_steps(step);
            int leader = -1, all = 0;
            for (int i = 0; i < 3; i++) {
                struct cluster_agent a = cluster_agent(i);
                leader = a.alive && a.member->role == MEMBER_LEADING ? i : leader;
                all += a.running;
            }
            running = all == 3;
            began += all > 0 && !running;
            if (leader >= 0) {
                bool known = true; /* who never heard of a round that began has nothing to go on
                                    * with when the endpoint is gone */
                for (int i = 0; i < 3; i++) {
                    struct cluster_agent a = cluster_agent(i);
                    known =
                        known && (i == leader || (a.alive && a.member->record.round > 0 && a.member->record.committed));
                }
                killed_at++;
                knew += known;
                cluster_kill(leader, step % 2 == 0 ? 1 : -1);
                bool ended = cluster_run(2000);
                if (cluster_broken() != NULL || !ended) {
                    fail_msg("seed %llu, killed before step %ld: %s", (unsigned long long)seed, step,
                             ended ? cluster_broken() : "no end");
                }
                for (int i = 0; i < 3; i++) {
                    int code = cluster_agent(i).code;
                    if (code != 0 && i != leader && (known || code != DT_EXIT_TEMPORARY)) {
                        fail_msg("seed %llu, killed before step %ld: agent %d ended with %d", (unsigned long long)seed,
                                 step, i, code);
                    }
                }
            }
            cluster_close();
        }
    }
    assert_true(killed_at > 100 && knew > 5 && began > 6); /* also when some had begun, and
                                                            * others had not */
    print_message("killed at %d state changes; at %d the others knew the round, at %d some workers ran\n", killed_at,
                  knew, began);
}

static int running_count(void)
{
    int n = 0;
    for (int i = 0; i < 4; i++) {
        n += cluster_agent(i).running;
    }
    return n;
}

/* The same between two rounds, and one of the hosts that are left is cut off in that moment: it
 * may run what the dead one told it, and hears of nothing. */
static void and_one_host_is_cut_off_with_it(void **state)
{
    (void)state;
    int tried = 0, alone = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        for (int cut = 1; cut < 4; cut++) {
            bool over = false;
            for (long step = 1; !over; step++) {
                cluster_open(&(struct cluster_options){
                    .seed = seed, .count = 4, .min = 2, .max = 4, .restarts = 3, .start_s = 1, .work_s = 60});
                while (running_count() < 4) {
                    (void)cluster_run_steps(1);
                }
                (void)cluster_run(cluster_totals()->now_s + 2);
                cluster_fail_worker(cut % 3 + 1);
                while (running_count() == 4) {
                    (void)cluster_run_steps(1);
                }
                (void)cluster_run_steps(step);
                over = running_count() == 4;
                alone += cluster_agent(cut).running && running_count() < 4;
                cluster_isolate(cut);
                cluster_kill(0, -1);
                (void)cluster_run(cluster_totals()->now_s + 60);
                cluster_heal();
                bool ended = cluster_run(3000);
                if (cluster_broken() != NULL || !ended) {
                    fail_msg("seed %llu, %d cut off, killed before step %ld: %s", (unsigned long long)seed, cut, step,
                             cluster_broken() != NULL ? cluster_broken() : "no end");
                }
                tried++;
                cluster_close();
            }
        }
    }
    print_message("killed and cut at %d state changes; at %d the one cut off ran, and others did not\n", tried, alone);
    assert_true(tried > 200 && alone > 20);
}

/* Of five hosts two are away for a while, and the others' round has begun at its leader when
 * that one is cut off: who is elected by all others cannot know that it began. Then one of its
 * voters changes sides. The next round needs a quorum of that one's council, or both sides go
 * on. */
static void a_round_that_may_have_begun_is_not_passed_over(void **state)
{
    (void)state;
    int tried = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 5, .min = 2, .max = 5, .restarts = 3, .start_s = 0.1, .work_s = 500});
        (void)cluster_run(15);
        int old = leader_of(0, 5);
        assert_int_equal(old, 0);
        cluster_isolate(1);
        cluster_isolate(2);
        while (cluster_agent(0).member->record.round < 2 || !cluster_agent(0).member->record.committed) {
            (void)cluster_run_steps(1);
        }
        bool alone = !cluster_agent(3).running && !cluster_agent(4).running;
        cluster_heal();
        cluster_split(1);
        double end_s = cluster_totals()->now_s + 60;
        while (cluster_broken() == NULL && leader_of(1, 5) < 0 && cluster_totals()->now_s < end_s) {
            (void)cluster_run_steps(1);
        }
        int next = leader_of(1, 5);
        if (alone && next >= 3) {
            tried++;
            cluster_split(1 | 1 << (next == 3 ? 4 : 3));
            (void)cluster_run(cluster_totals()->now_s + 100);
            if (cluster_broken() != NULL) {
                fail_msg("seed %llu: %s", (unsigned long long)seed, cluster_broken());
            }
        }
        cluster_close();
    }
    print_message("a leader that could not know whether a round had begun: %d\n", tried);
    assert_true(tried > 10);
}

/* A host that came to the first coordinator as a newcomer knows all that this one kept. */
static void of_two_hosts_one_goes_on_when_the_coordinator_dies(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 2, .min = 1, .max = 2, .restarts = 3, .start_s = 0.1, .work_s = 500});
        (void)cluster_run(20);
        assert_int_equal(leader_of(0, 2), 0);
        cluster_kill(0, -1);
        (void)cluster_run(20 + 25);
        if (cluster_broken() != NULL || !cluster_agent(1).running) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken() : "it waits");
        }
        cluster_close();
    }
}

/* 2 comes to 0, which holds the endpoint and follows 1, just before 1 dies: it is linked with 0 before that one leads. Then 0 dies as well. */
static void who_came_before_its_coordinator_led_goes_on_without_it(void **state)
{
    (void)state;
    int tried = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 3, .min = 1, .max = 3, .restarts = 3, .start_s = 0.1, .work_s = 500});
        cluster_isolate(2);
        (void)cluster_run(15);
        cluster_kill(0, 1);
        (void)cluster_run(45);
        assert_true(cluster_agent(0).running && cluster_agent(1).running);
        cluster_heal();
        while (cluster_agent(2).member->peer_count == 0) {
            assert_false(cluster_run_steps(1));
        }
        bool seeks = cluster_agent(2).member->role == MEMBER_SEEKING && cluster_agent(1).member->role == MEMBER_LEADING;
        cluster_kill(1, -1);
        (void)cluster_run(75);
        if (seeks && cluster_agent(0).running && cluster_agent(2).running) {
            tried++;
            cluster_kill(0, -1);
            (void)cluster_run(75 + 30);
            if (cluster_broken() != NULL || !cluster_agent(2).running) {
                fail_msg("seed %llu: %s", (unsigned long long)seed,
                         cluster_broken() != NULL ? cluster_broken() : "it waits");
            }
        }
        cluster_close();
    }
    print_message("linked with a coordinator before it led: %d\n", tried);
    assert_true(tried > 10);
}

/* The first round is prepared with 1, which sleeps; 2 and 3 come meanwhile and cannot reach 1,
 * so the round begins without it. When 0 is gone, 1 may not go on with the round that did not
 * begin. */
static void who_was_in_a_round_that_is_given_up_hears_of_the_next_one(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 4, .min = 1, .max = 4, .restarts = 3, .start_s = 0.1, .work_s = 500});
        cluster_isolate(2);
        cluster_isolate(3);
        while (cluster_agent(1).member->record.nonce[0] == 0 || !cluster_agent(0).member->leading.preparing) {
            assert_false(cluster_run_steps(1));
        }
        cluster_stop(1, 3);
        cluster_heal();
        cluster_cut(1, 2);
        cluster_cut(1, 3);
        (void)cluster_run(30);
        assert_true(cluster_agent(0).running && cluster_agent(2).running && cluster_agent(3).running &&
                    !cluster_agent(1).running);
        assert_int_equal(cluster_agent(0).member->record.before_count, 1);
        cluster_kill(0, -1);
        (void)cluster_run(100);
        if (cluster_broken() != NULL || !cluster_agent(2).running || !cluster_agent(3).running) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     cluster_broken() != NULL ? cluster_broken() : "the others do not go on");
        }
        cluster_close();
    }
}

/* A second round is prepared with 3; that has come to 3 alone when 0 dies, and 1 begins another
 * one with hosts that come. 3, away meanwhile, is a spare of it. When 1 is gone as well, 3 may
 * not go on with what it kept. */
static void who_keeps_a_round_that_came_to_nothing_hears_of_the_one_in_its_place(void **state)
{
    (void)state;
    int tried = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 5, .min = 1, .max = 3, .restarts = 3, .start_s = 0.1, .work_s = 500});
        for (int i = 2; i < 5; i++) {
            cluster_isolate(i);
        }
        (void)cluster_run(15);
        cluster_heal();
        cluster_isolate(2);
        cluster_isolate(4);
        while (cluster_agent(3).member->record.round < 2) {
            assert_false(cluster_run_steps(1));
        }
        bool alone = cluster_agent(1).member->record.round == 1;
        double now_s = cluster_totals()->now_s;
        cluster_kill(0, 2);
        cluster_heal();
        for (int i = 1; i < 5; i++) {
            if (i != 3) {
                cluster_cut(3, i);
            }
        }
        (void)cluster_run(now_s + 0.1); /* it hears of that end */
        cluster_cut(3, 0);
        (void)cluster_run(now_s + 13);
        alone = alone && cluster_agent(0).running + cluster_agent(1).running + cluster_agent(2).running +
                                 cluster_agent(4).running ==
                             3;
        cluster_heal();
        (void)cluster_run(now_s + 30);
        if (alone && cluster_agent(1).member->role == MEMBER_LEADING && cluster_agent(3).member->node.spare) {
            tried++;
            cluster_kill(1, -1);
            (void)cluster_run(now_s + 90);
        }
        if (cluster_broken() != NULL) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, cluster_broken());
        }
        cluster_close();
    }
    print_message("a spare host that kept a round which came to nothing: %d\n", tried);
    assert_true(tried > 10);
}

/* ---- ten thousand agents ---- */

/* What does not depend on the seed: a first round, its leader dies in it, a council member dies
 * in the next, a worker fails. */
static void one_crowd(uint64_t seed, int count)
{
    char why[1024];
    int min = seed % 2 == 0 ? count : count - count / 10;
    double begun_s = dt_now_s();
    cluster_open(&(struct cluster_options){.seed = seed,
                                           .count = count,
                                           .min = min,
                                           .max = count,
                                           .restarts = 3,
                                           .start_s = 3,
                                           .work_s = 12,
                                           .faults_until_s = 40,
                                           .fault_every_s = 20});
    (void)cluster_run(6);
    cluster_kill(0, 1);
    (void)cluster_run(12);
    cluster_kill(1, 2);
    bool ended = cluster_run(3000);
    const struct cluster_totals *t = cluster_totals();
    if (cluster_broken() != NULL) {
        fail_msg("crowd %llu: %s", (unsigned long long)seed, cluster_broken());
    }
    if (!ended) {
        schedule_list_left(count, why, sizeof why);
        fail_msg("crowd %llu: %s", (unsigned long long)seed, why);
    }
    int well = schedule_count_codes(count, 0);
    print_message("crowd %llu: %d agents, %.1f s simulated in %.1f s; %ld steps, %ld messages, %ld links, %d rounds, "
                  "%d kills; %d ended with 0\n",
                  (unsigned long long)seed, count, t->now_s, dt_now_s() - begun_s, t->steps, t->messages, t->links,
                  t->rounds, t->kills, well);
    assert_true(well + t->kills >= min);      /* who comes back when the job is over finds nobody */
    assert_true(t->links < 64 * (long)count); /* to the leaders and their councils, not all to
                                               * all */
    cluster_close();
}

static void crowds_come_through(void **state)
{
    (void)state;
    uint64_t first = (uint64_t)schedule_setting("DTRUN_SEED", 1),
             count = (uint64_t)schedule_setting("DTRUN_CROWDS", CROWDS);
    for (uint64_t seed = first; seed < first + count; seed++) {
        one_crowd(seed, (int)schedule_setting("DTRUN_CROWD", CROWD));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_hold_the_promises),
        cmocka_unit_test(and_when_filters_answer_for_hosts),
        cmocka_unit_test(and_when_hosts_are_asked_to_stop),
        cmocka_unit_test(and_when_all_save_before_one_leaves),
        cmocka_unit_test(and_when_workers_do_not_end_and_agents_are_stopped),
        cmocka_unit_test(and_when_agents_sleep_for_minutes_and_a_part_heals),
        cmocka_unit_test(and_with_a_short_last_call),
        cmocka_unit_test(and_when_more_hosts_are_there_than_a_round_takes),
        cmocka_unit_test(and_when_the_job_fails_or_waits_too_long),
        cmocka_unit_test(and_when_links_come_up_late),
        cmocka_unit_test(and_when_workers_lose_their_peers),
        cmocka_unit_test(and_when_all_that_happens_at_once),
        cmocka_unit_test(and_who_returns_never_begins_a_run_beside_another),
        cmocka_unit_test(a_restarted_holder_of_the_endpoint_joins_the_survivors),
        cmocka_unit_test(of_two_runs_one_is_given_up),
        cmocka_unit_test(followers_of_a_run_that_is_given_up_go_over),
        cmocka_unit_test(who_is_asked_leaves_when_all_have_saved),
        cmocka_unit_test(who_waits_for_a_round_can_be_asked_to_stop),
        cmocka_unit_test(who_is_left_out_can_be_asked_to_stop),
        cmocka_unit_test(hosts_that_cannot_reach_each_other_cost_no_restart),
        cmocka_unit_test(a_fixed_job_waits_for_them_and_goes_on),
        cmocka_unit_test(lost_peers_cost_a_restart_when_all_are_there),
        cmocka_unit_test(a_wish_to_stop_outlives_the_coordinator),
        cmocka_unit_test(who_insists_ends_all_alike),
        cmocka_unit_test(who_sleeps_through_the_end_reads_how_it_ended),
        cmocka_unit_test(a_coordinator_dies_at_each_state_change),
        cmocka_unit_test(and_one_host_is_cut_off_with_it),
        cmocka_unit_test(a_round_that_may_have_begun_is_not_passed_over),
        cmocka_unit_test(of_two_hosts_one_goes_on_when_the_coordinator_dies),
        cmocka_unit_test(who_came_before_its_coordinator_led_goes_on_without_it),
        cmocka_unit_test(who_was_in_a_round_that_is_given_up_hears_of_the_next_one),
        cmocka_unit_test(who_keeps_a_round_that_came_to_nothing_hears_of_the_one_in_its_place),
        cmocka_unit_test(crowds_come_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
