/* covers: launcher/rounds launcher/hosts/etcd */
/* The witness: what it grants and keeps; and whole clusters that meet at it on simulated time
 * (tests/lib/cluster.h), with a store that is away, slow, or loses answers: in every schedule one
 * round trains at a time, of whatever run. DTRUN_SCHEDULES=N runs N schedules, DTRUN_SEED=S
 * begins at seed S. run: computes run: timeout 1200 */
#include "launcher/rounds/witness.h"
#include "tests/lib/cluster.h"
#include "tests/lib/schedules.h"

#include "base/error.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef DT_SANITIZED
enum { SCHEDULES = 100 };
#else
enum { SCHEDULES = 400 };
#endif

/* ---- the step ---- */

enum { A = 11, B = 12, W = 99 };
static struct message_witness w;
static struct witness_answer answer;
static struct message ask;

static void keep(uint64_t promised, uint64_t term, int round)
{
    w = (struct message_witness){
        .id = W,
        .promised = promised,
        .record = {.nonce = {5, 6},
                   .term = term,
                   .round = round,
                   .leader = A,
                   .members = 2,
                   .history = {.best_step = -1, .best_saved = -1},
                   .council_count = 3,
                   .council = {{.id = B, .port = 2, .host = "b"}, {.id = A, .port = 1, .host = "a"}, witness_info(W)}}};
}

static void say(enum message_kind kind, uint64_t term, bool leaderless)
{
    ask.kind = kind;
    ask.term = term;
    witness_step(&w, leaderless, B, &ask, &answer);
}

static void votes_once_and_for_what_is_as_new(void **state)
{
    (void)state;
    static const struct {
        uint64_t promised, own_term, term, record_term;
        int own_round, record_round;
        bool elects, leaderless, granted;
    } rows[] = {
        {3, 3, 4, 3, 2, 2, true, true, true},   {3, 3, 4, 3, 2, 2, true, false, false}, /* it follows somebody */
        {4, 3, 4, 3, 2, 2, true, true, false}, /* another has its vote of term 4 */
        {3, 3, 4, 3, 3, 2, true, true, false}, /* the candidate missed a round */
        {3, 3, 4, 3, 1, 2, true, true, true},   {3, 4, 4, 3, 2, 2, true, true, false},
        {3, 3, 4, 3, 2, 2, false, true, false}, /* others' votes are missing: nothing is kept, or
                                                 * it would look as if somebody led */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        keep(rows[i].promised, rows[i].own_term, rows[i].own_round);
        ask = (struct message){.vote_ask = {.record = w.record, .decisive = rows[i].elects}};
        ask.vote_ask.record.term = rows[i].record_term;
        ask.vote_ask.record.round = rows[i].record_round;
        say(MESSAGE_VOTE_ASK, rows[i].term, rows[i].leaderless);
        assert_int_equal(answer.reply_count, 1);
        assert_int_equal(answer.replies[0].kind, MESSAGE_VOTE);
        if (answer.replies[0].vote.yes != rows[i].granted || answer.put_state != rows[i].granted || answer.put_beat) {
            fail_msg("row %zu", i);
        }
        assert_int_equal(answer.next.promised, rows[i].granted ? rows[i].term : rows[i].promised);
        /* a candidate that knows less learns it */
        assert_int_equal(answer.replies[0].vote.record.round, rows[i].own_round);
    }
}

static void keeps_a_newer_record_and_follows_its_leader(void **state)
{
    (void)state;
    keep(3, 3, 2);
    ask = (struct message){.prepare = {.record = w.record}};
    ask.prepare.record.round = 3;
    say(MESSAGE_PREPARE, 3, false);
    assert_true(answer.put_state && answer.put_beat && answer.next.record.round == 3);
    assert_int_equal(answer.replies[0].kind, MESSAGE_ACK);
    assert_int_equal(answer.replies[0].ack.round, 3);
    ask.prepare.record.round = 1; /* an older one */
    say(MESSAGE_PREPARE, 3, false);
    assert_true(answer.reply_count == 0 && !answer.put_state);
    keep(4, 3, 2);
    ask.prepare.record.round = 3;
    say(MESSAGE_PREPARE, 3, false); /* of a leader that another one follows */
    assert_true(!answer.put_state && !answer.put_beat);
    assert_int_equal(answer.replies[0].kind, MESSAGE_VOTE);
    assert_int_equal(answer.replies[0].term, 4);
    assert_false(answer.replies[0].vote.yes);
    ask.prepare.record.nonce[0]++;
    ask.kind = MESSAGE_PREPARE;
    witness_step(&w, true, A, &ask, &answer); /* of another run */
    assert_true(answer.reply_count == 1 && answer.replies[0].kind == MESSAGE_REFUSE && !answer.put_state);
}

static void answers_beats_of_the_newest_leader(void **state)
{
    (void)state;
    keep(3, 3, 2);
    ask = (struct message){.beat = {.nonce = {5, 6}, .round = 2, .committed = true, .stamp = 7.5}};
    say(MESSAGE_BEAT, 3, false);
    assert_true(answer.put_beat && answer.put_state && answer.next.record.committed);
    assert_int_equal(answer.replies[0].kind, MESSAGE_BEAT_ACK);
    assert_true(answer.replies[0].beat_ack.echo == 7.5);
    w = answer.next;
    say(MESSAGE_BEAT, 3, false);
    assert_true(answer.put_beat && !answer.put_state);
    say(MESSAGE_BEAT, 5, false); /* elected without its vote */
    assert_int_equal(answer.next.promised, 5);
    w = answer.next;
    say(MESSAGE_BEAT, 3, false);
    assert_true(!answer.put_beat && answer.replies[0].kind == MESSAGE_VOTE && answer.replies[0].term == 5);
}

static void tells_who_comes_where_to_go(void **state)
{
    (void)state;
    keep(3, 3, 2);
    ask = (struct message){0};
    ask.kind = MESSAGE_JOIN;
    witness_step(&w, false, 77, &ask, &answer);
    assert_int_equal(answer.reply_count, 2); /* not to the witness */
    assert_int_equal(answer.replies[0].kind, MESSAGE_REDIRECT);
    assert_int_equal(answer.replies[0].redirect.id, A); /* the leader first */
    assert_int_equal(answer.replies[1].redirect.id, B);
    ask.join.nonce[0] = 1; /* of another run */
    witness_step(&w, false, 77, &ask, &answer);
    assert_int_equal(answer.replies[0].kind, MESSAGE_REFUSE);
    assert_int_equal(answer.replies[0].refuse.code, DT_EXIT_TEMPORARY);
    assert_memory_equal(answer.replies[0].refuse.nonce, w.record.nonce, sizeof w.record.nonce);
    w.record.round = 0; /* one that has not begun: who never was in a round may come over, and
                         * who was may hear of the other one yet */
    witness_step(&w, false, 77, &ask, &answer);
    assert_true(answer.reply_count == 1 && answer.replies[0].kind == MESSAGE_REFUSE);
    ask.join.last_round = 1;
    witness_step(&w, false, 77, &ask, &answer);
    assert_int_equal(answer.reply_count, 0);
    w.record.round = 2;
    w.record.finished = true;
    w.record.code = 3;
    witness_step(&w, false, 77, &ask, &answer);
    assert_int_equal(answer.replies[0].refuse.nonce[0], 0);        /* nothing to join */
    memcpy(ask.join.nonce, w.record.nonce, sizeof ask.join.nonce); /* it missed the verdict */
    witness_step(&w, false, 77, &ask, &answer);
    assert_true(answer.replies[0].kind == MESSAGE_REFUSE && answer.replies[0].refuse.finished &&
                answer.replies[0].refuse.code == 3);
    assert_memory_equal(answer.replies[0].refuse.nonce, w.record.nonce, sizeof w.record.nonce);
    memset(ask.join.nonce, 0, sizeof ask.join.nonce);
    witness_step(&w, false, 77, &ask, &answer);
    assert_int_equal(answer.reply_count, 0); /* a newcomer waits for the next run */
}

static void bytes_come_back(void **state)
{
    (void)state;
    struct dt_text bytes;
    struct dt_error err;
    struct message_witness back;
    dt_text_init(&bytes);
    keep(0x1234567890abcdef, 7, 3);
    witness_encode(&w, &bytes);
    assert_int_equal(witness_decode(&back, bytes.data, bytes.size, &err), 0);
    assert_true(back.id == w.id && back.promised == w.promised && back.record.round == 3 &&
                back.record.council[1].id == A);
    for (size_t size = 0; size < bytes.size; size++) {
        assert_int_equal(witness_decode(&back, bytes.data, size, &err), -1);
    }
    dt_text_clear(&bytes);
}

/* ---- clusters ---- */

static int waited_in_vain;

enum { PLAIN, STUBBORN, WIPES, SLEEPS, JOBS, STUBBORN_JOBS };

static const char *one_schedule(uint64_t seed, int kind)
{
    static char why[512];
    bool many = kind == JOBS || kind == STUBBORN_JOBS; /* of nine, a council does not know all */
    int count = many ? 1 + (int)(seed % 9) : 1 + (int)(seed % 6), min = 1 + (int)(seed / 6 % (uint64_t)count);
    bool stopped = kind == STUBBORN || kind == SLEEPS || kind == STUBBORN_JOBS, jobs = many;
    cluster_open(&(struct cluster_options){.seed = seed,
                                           .count = count,
                                           .min = min,
                                           .max = count,
                                           .restarts = jobs      ? (int)(seed % 3)
                                                       : stopped ? 100
                                                                 : 3, /* workers that their guard ended count, too */
                                           .start_s = 2,
                                           .witness = true,
                                           .stubborn = stopped,
                                           .sleeps = kind == SLEEPS,
                                           .wipes = kind == WIPES,
                                           .jobs = jobs ? 4 : 0,
                                           .last_call_s = jobs ? 0.5 + (double)(seed % 3) : 0,
                                           .machines = jobs && seed / 2 % 2 == 0,
                                           .failures = jobs,
                                           .signals = jobs && seed % 2 == 0,
                                           .faults_until_s = 1 + (double)(seed * 7919 % 89)});
    bool ended = cluster_run(3000);
    why[0] = 0;
    if (cluster_broken() != NULL) {
        (void)snprintf(why, sizeof why, "%s", cluster_broken());
    } else if (!ended) {
        schedule_list_left(count, why, sizeof why);
    } else if (jobs) { /* each in its own way */
    } else if (schedule_count_codes(count, 0) == 0) {
        waited_in_vain++; /* too few came back of those who could know: see unit_member.c */
        if (schedule_count_codes(count, DT_EXIT_TEMPORARY) < count) {
            (void)snprintf(why, sizeof why, "nobody ended with 0, and not all with 111");
        }
    }
    cluster_close();
    return why[0] != 0 ? why : NULL;
}

/* Schedules in which somebody waited for ever: leaders whose run was replaced; one that had all
 * acknowledgements while it heard too few; one elected by those whom the verdict did not reach,
 * when the verdict had vanished; one who was elected while the store was away, and knew the
 * witness of the run before. */
static const struct {
    uint64_t seed;
    int kind;
} found[] = {{3359, PLAIN}, {8624, PLAIN}, {17192, PLAIN}, {77191, PLAIN}, {87154, WIPES}, {18087, JOBS}};

/* Others in which all waited in vain: for survivors who asked for votes that could not elect
 * them; for a run that newcomers had begun in a store which had lost the one that the others
 * still had. */
static const struct {
    uint64_t seed;
    int kind;
} in_vain[] = {{979, PLAIN}, {494, PLAIN}, {549, PLAIN}, {189, STUBBORN}, {657, SLEEPS}, {896, WIPES}, {268, WIPES}};

static void run_schedules(int kind)
{
    uint64_t first = (uint64_t)schedule_setting("DTRUN_SEED", 1),
             count = (uint64_t)schedule_setting("DTRUN_SCHEDULES", SCHEDULES);
    int failed = 0;
    waited_in_vain = 0;
    print_message("schedules: seeds %llu to %llu\n", (unsigned long long)first,
                  (unsigned long long)(first + count - 1));
    for (uint64_t seed = first; seed < first + count; seed++) {
        const char *why = one_schedule(seed, kind);
        if (why != NULL && failed++ < 40) {
            print_error("seed %llu (%d agents, minimum %d): %s\n", (unsigned long long)seed, 1 + (int)(seed % 6),
                        1 + (int)(seed / 6 % (1 + seed % 6)), why);
        }
    }
    print_message("%d of %llu waited in vain\n", waited_in_vain, (unsigned long long)count);
    assert_int_equal(failed, 0);
    assert_true(waited_in_vain <= 1 + (int)count / 1000);
}

static void schedules_hold_the_promises(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++) {
        const char *why = one_schedule(found[i].seed, found[i].kind);
        if (why != NULL) {
            fail_msg("seed %llu: %s", (unsigned long long)found[i].seed, why);
        }
    }
    waited_in_vain = 0;
    for (size_t i = 0; i < sizeof in_vain / sizeof in_vain[0]; i++) {
        assert_null(one_schedule(in_vain[i].seed, in_vain[i].kind));
        assert_int_equal(waited_in_vain, 0);
    }
    run_schedules(PLAIN);
}

static void and_when_workers_do_not_end_and_agents_are_stopped(void **state)
{
    (void)state;
    run_schedules(STUBBORN);
}

/* The next jobs of the same name begin where the ones before have just ended, or failed, or were
 * stopped. */
static void and_when_one_job_follows_another(void **state)
{
    (void)state;
    run_schedules(JOBS);
    run_schedules(STUBBORN_JOBS);
}

static void and_when_agents_sleep_for_minutes_and_a_part_heals(void **state)
{
    (void)state;
    run_schedules(SLEEPS);
}

/* Of one run, in each schedule. Whoever comes to a store that lost all cannot know of another
 * one. */
static void and_when_the_store_loses_what_it_has(void **state)
{
    (void)state;
    run_schedules(WIPES);
}

/* The leader writes it anew, at once; then one of two hosts can be lost as before. */
static void a_store_that_lost_all_is_written_anew(void **state)
{
    (void)state;
    for (int older = 0; older < 2; older++) {
        cluster_open(&(struct cluster_options){
            .seed = 7, .count = 2, .min = 1, .max = 2, .restarts = 3, .start_s = 1, .work_s = 200, .witness = true});
        (void)cluster_run(0.5);
        cluster_store_copy();
        (void)cluster_run(20);
        int rounds = cluster_totals()->rounds, leader = cluster_agent(0).member->role == MEMBER_LEADING ? 0 : 1;
        cluster_store_wipe(older == 0);
        (void)cluster_run(30);
        assert_int_equal(cluster_totals()->rounds, rounds);
        cluster_isolate(leader);
        (void)cluster_run(80);
        assert_true(cluster_agent(1 - leader).running && !cluster_agent(leader).running);
        cluster_heal();
        assert_true(cluster_run(1000));
        assert_null(cluster_broken());
        assert_int_equal(schedule_count_codes(2, 0), 2);
        cluster_close();
    }
}

/* Four hosts: the leader is cut off from all others, not from the store, when it has decided the
 * end. That alone is no verdict: the others know nothing of it. */
static void what_a_leader_told_the_witness_alone_is_no_verdict(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 4, .min = 2, .max = 4, .restarts = 3, .start_s = 1, .work_s = 20, .witness = true});
        int leader = -1;
        while (leader < 0) {
            assert_false(cluster_run_steps(1));
            for (int i = 0; i < 4; i++) {
                leader = cluster_agent(i).member->role == MEMBER_LEADING && cluster_agent(i).member->record.finished
                             ? i
                             : leader;
            }
        }
        cluster_split(1u << leader);
        (void)cluster_run(cluster_totals()->now_s + 8);
        for (int i = 0; i < 4; i++) {
            if (i != leader) {
                cluster_store_cut(i);
            }
        }
        (void)cluster_run(cluster_totals()->now_s + 25);
        cluster_heal();
        bool ended = cluster_run(1000);
        if (cluster_broken() != NULL || !ended) {
            fail_msg("seed %llu: %s", (unsigned long long)seed, cluster_broken() != NULL ? cluster_broken() : "no end");
        }
        assert_int_equal(schedule_count_codes(4, 0), 4);
        cluster_close();
    }
}

/* Two hosts; the leader is cut off without a word of its kernel. */
static void one_of_two_goes_on(void **state)
{
    (void)state;
    cluster_open(&(struct cluster_options){
        .seed = 7, .count = 2, .min = 1, .max = 2, .restarts = 3, .start_s = 1, .work_s = 100, .witness = true});
    (void)cluster_run(20);
    int leader = cluster_agent(0).member->role == MEMBER_LEADING ? 0 : 1;
    assert_true(cluster_agent(0).running && cluster_agent(1).running);
    cluster_isolate(leader);
    (void)cluster_run(80);
    assert_null(cluster_broken());
    assert_true(cluster_agent(1 - leader).running && !cluster_agent(leader).running);
    assert_int_equal(cluster_agent(1 - leader).member->role, MEMBER_LEADING);
    cluster_heal();
    assert_true(cluster_run(1000));
    assert_null(cluster_broken());
    assert_int_equal(schedule_count_codes(2, 0), 2);
    cluster_close();
}

/* The store is away: nobody notices, but a new round waits. */
static void a_store_that_is_away_ends_nothing(void **state)
{
    (void)state;
    cluster_open(&(struct cluster_options){
        .seed = 3, .count = 3, .min = 3, .max = 3, .restarts = 3, .start_s = 1, .work_s = 150, .witness = true});
    (void)cluster_run(20);
    int rounds = cluster_totals()->rounds;
    cluster_store_down(true);
    (void)cluster_run(120);
    assert_int_equal(cluster_totals()->rounds, rounds);
    assert_true(cluster_agent(0).running && cluster_agent(1).running && cluster_agent(2).running);
    cluster_fail_worker(1);
    (void)cluster_run(160);
    assert_int_equal(cluster_totals()->rounds, rounds);
    cluster_store_down(false);
    assert_true(cluster_run(1000));
    assert_null(cluster_broken());
    assert_int_equal(cluster_totals()->rounds, rounds + 1);
    assert_int_equal(schedule_count_codes(3, 0), 3);
    cluster_close();
}

/* All die at once; whoever is started anew begins another run, but not before workers that
 * nobody sees must be gone. Of the machine that is never seen again, nobody knows. */
static void a_forsaken_run_is_taken_over(void **state)
{
    (void)state;
    cluster_open(&(struct cluster_options){.seed = 5,
                                           .count = 2,
                                           .min = 1,
                                           .max = 2,
                                           .restarts = 3,
                                           .start_s = 1,
                                           .work_s = 30,
                                           .witness = true,
                                           .machines = true});
    (void)cluster_run(10);
    assert_true(cluster_agent(0).running && cluster_agent(1).running);
    cluster_kill(0, 5);
    cluster_kill(1, -1);
    int rounds = cluster_totals()->rounds;
    (void)cluster_run(10 + 15 * WITNESS_S);
    assert_int_equal(cluster_totals()->rounds, rounds);
    assert_true(cluster_run(10 + 15 * WITNESS_ABANDONED + 120));
    assert_null(cluster_broken());
    assert_int_equal(schedule_count_codes(2, 0), 1);
    cluster_close();
}

/* Who is on the machine of the killed leader knows that it is gone, and tells those on others. */
static void a_killed_run_is_followed_soon_by_one_on_its_machine(void **state)
{
    (void)state;
    for (int machines = 0; machines < 2; machines++) {
        for (int back = 1 + machines; back <= 2; back++) {
            cluster_open(&(struct cluster_options){.seed = 5,
                                                   .count = 2,
                                                   .min = 1,
                                                   .max = 2,
                                                   .restarts = 3,
                                                   .start_s = 1,
                                                   .work_s = 60,
                                                   .witness = true,
                                                   .machines = machines == 1});
            (void)cluster_run(10);
            assert_true(cluster_agent(0).running && cluster_agent(1).running);
            cluster_kill(0, 5);
            cluster_kill(1, back == 2 ? 7 : -1);
            int rounds = cluster_totals()->rounds;
            (void)cluster_run(10 + 2 * 15);
            assert_int_equal(cluster_totals()->rounds, rounds); /* others of it may go on without
                                                                 * their leader */
            (void)cluster_run(10 + 5 * 15);
            assert_in_range(cluster_totals()->rounds, rounds + 1, rounds + 2);
            assert_int_equal(cluster_agent(0).running + cluster_agent(1).running, back);
            assert_true(cluster_run(1000));
            assert_null(cluster_broken());
            cluster_close();
        }
    }
}

/* The job ends, and its leader loses a host that may still run something: in a job that failed
 * one that had heard the verdict, in one that was asked to stop one that had not. The next job
 * waits. */
static void a_host_that_is_lost_at_the_end_is_waited_for(void **state)
{
    (void)state;
    int lost = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        bool fails = seed % 2 == 0;
        cluster_open(&(struct cluster_options){.seed = seed,
                                               .count = 2,
                                               .min = 1,
                                               .max = 2,
                                               .start_s = 1,
                                               .work_s = 60,
                                               .last_call_s = 0.5,
                                               .failures = true,
                                               .witness = true,
                                               .stubborn = true,
                                               .machines = true,
                                               .jobs = 2});
        for (double at_s = 8; at_s < 60 && !(cluster_agent(0).running && cluster_agent(1).running); at_s += 4) {
            (void)cluster_run(at_s);
        }
        int leader = cluster_agent(0).member->role == MEMBER_LEADING ? 0 : 1;
        assert_true(cluster_agent(0).running && cluster_agent(1).running);
        if (fails) {
            cluster_fail_worker(leader);
        } else {
            cluster_signal(leader);
        }
        while (fails && cluster_agent(1 - leader).state == AGENT_RUNNING && !cluster_run_steps(1)) {
        }
        cluster_isolate(1 - leader);
        cluster_part(0, 1);
        lost += cluster_agent(1 - leader).running;
        (void)cluster_run(cluster_totals()->now_s + 90);
        assert_null(cluster_broken());
        cluster_heal();
        (void)cluster_run(1000);
        assert_null(cluster_broken());
        cluster_close();
    }
    assert_in_range(lost, 100, 200);
}

/* After the end, however it came, the next job begins at once. */
static void a_job_that_ended_is_followed_at_once(void **state)
{
    (void)state;
    for (int how = 0; how < 4; how++) { /* all went well; a worker failed; the job was asked to
                                         * stop; before its first round */
        cluster_open(&(struct cluster_options){.seed = 5,
                                               .count = 3,
                                               .min = 3,
                                               .max = 3,
                                               .start_s = how == 3 ? 40 : 1,
                                               .work_s = how == 0 ? 10 : 60,
                                               .failures = true,
                                               .witness = true,
                                               .machines = true,
                                               .jobs = 2});
        (void)cluster_run(how == 3 ? 4 : 8);
        int rounds = cluster_totals()->rounds;
        assert_int_equal(rounds, how != 3);
        if (how == 1) {
            cluster_fail_worker(1);
        } else if (how >= 2) {
            for (int i = 0; i < 3; i++) {
                cluster_signal(i);
            }
        }
        (void)cluster_run(how == 3 ? 64 : how == 0 ? 28 : 24);
        assert_int_equal(cluster_totals()->rounds, rounds + 1);
        assert_true(cluster_agent(0).running && cluster_agent(1).running && cluster_agent(2).running);
        assert_true(how == 3 || cluster_run(1000)); /* else not all were asked, and some have a
                                                     * job more to do */
        assert_null(cluster_broken());
        assert_int_equal(how == 3 ? 3 : schedule_count_codes(3, 0), 3);
        cluster_close();
    }
}

/* The first coordinator dies while it prepares the first round, whatever of it has arrived. The
 * other host knows of that round but cannot be elected: only the dead one could say how it
 * ended. It asks on and on, and does not keep the newcomer from beginning by that. */
static void a_survivor_that_cannot_be_elected_keeps_nobody_waiting(void **state)
{
    (void)state;
    int vain = 0, known = 0;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        cluster_open(&(struct cluster_options){
            .seed = seed, .count = 2, .min = 2, .max = 2, .restarts = 3, .start_s = 1, .work_s = 30, .witness = true});
        int follower = -1;
        while (follower < 0 && !cluster_run_steps(1)) {
            for (int i = 0; i < 2; i++) {
                const struct cluster_agent a = cluster_agent(i);
                if (a.member != NULL && a.member->role == MEMBER_FOLLOWING && a.member->record.round == 1) {
                    follower = i;
                }
            }
        }
        assert_in_range(follower, 0, 1);
        known += !cluster_agent(follower).member->record.committed;
        cluster_kill(1 - follower, 15);
        assert_true(cluster_run(3000));
        assert_null(cluster_broken());
        vain += schedule_count_codes(2, 0) != 2;
        cluster_close();
    }
    assert_int_equal(vain, 0);
    assert_in_range(known, 10, 20);
}

/* Of two hosts one is lost without a word while the store is away, which has lost all when it is
 * back: the other one begins another run. It remembers what it promised in the runs before, and
 * there is room for a few. */
static void runs_that_are_given_up_are_a_few(void **state)
{
    (void)state;
    cluster_open(&(struct cluster_options){
        .seed = 2, .count = 2, .min = 1, .max = 2, .work_s = 1e6, .witness = true, .wipes = true});
    (void)cluster_run(30);
    int given_up = 0;
    for (; cluster_agent(0).running && given_up < 2 * MEMBER_PAST; given_up++) {
        assert_true(cluster_agent(1).running);
        double now_s = cluster_totals()->now_s;
        cluster_store_down(true);
        cluster_isolate(1);
        cluster_kill(1, 400);
        (void)cluster_run(now_s + 30);
        assert_false(cluster_agent(0).running);
        cluster_store_wipe(true);
        cluster_store_down(false);
        (void)cluster_run(now_s + 390);
        cluster_heal();
        (void)cluster_run(now_s + 440);
    }
    assert_int_equal(given_up, MEMBER_PAST + 1);
    assert_int_equal(cluster_agent(0).member->kept.past_count, MEMBER_PAST);
    assert_null(cluster_broken());
    cluster_close();
}

/* Away for longer than another run would wait. */
static void a_leader_without_its_witness_stands_down(void **state)
{
    (void)state;
    cluster_open(&(struct cluster_options){
        .seed = 9, .count = 3, .min = 2, .max = 3, .restarts = 3, .start_s = 1, .work_s = 900, .witness = true});
    (void)cluster_run(20);
    cluster_store_down(true);
    (void)cluster_run(20 + 15 * (WITNESS_S - 2));
    assert_true(cluster_agent(0).running && cluster_agent(1).running && cluster_agent(2).running);
    (void)cluster_run(20 + 15 * (WITNESS_S + 2));
    assert_false(cluster_agent(0).running || cluster_agent(1).running || cluster_agent(2).running);
    cluster_store_down(false);
    assert_true(cluster_run(3000));
    assert_null(cluster_broken());
    assert_int_equal(schedule_count_codes(3, 0), 3);
    cluster_close();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(votes_once_and_for_what_is_as_new),
        cmocka_unit_test(keeps_a_newer_record_and_follows_its_leader),
        cmocka_unit_test(answers_beats_of_the_newest_leader),
        cmocka_unit_test(tells_who_comes_where_to_go),
        cmocka_unit_test(bytes_come_back),
        cmocka_unit_test(what_a_leader_told_the_witness_alone_is_no_verdict),
        cmocka_unit_test(one_of_two_goes_on),
        cmocka_unit_test(a_store_that_is_away_ends_nothing),
        cmocka_unit_test(a_forsaken_run_is_taken_over),
        cmocka_unit_test(a_killed_run_is_followed_soon_by_one_on_its_machine),
        cmocka_unit_test(a_job_that_ended_is_followed_at_once),
        cmocka_unit_test(a_host_that_is_lost_at_the_end_is_waited_for),
        cmocka_unit_test(a_survivor_that_cannot_be_elected_keeps_nobody_waiting),
        cmocka_unit_test(runs_that_are_given_up_are_a_few),
        cmocka_unit_test(a_leader_without_its_witness_stands_down),
        cmocka_unit_test(schedules_hold_the_promises),
        cmocka_unit_test(and_when_workers_do_not_end_and_agents_are_stopped),
        cmocka_unit_test(and_when_one_job_follows_another),
        cmocka_unit_test(and_when_agents_sleep_for_minutes_and_a_part_heals),
        cmocka_unit_test(and_when_the_store_loses_what_it_has),
        cmocka_unit_test(a_store_that_lost_all_is_written_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
