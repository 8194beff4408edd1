/* covers: launcher/rounds/member.c */
/* One agent alone, without the others around it, mostly as the leader: ten thousand nodes,
 * refusals, what those who wait are told, hosts that come and go. */
#include "base/error.h"
#include "launcher/rounds/member.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

/* Host "a" of a job of `min` to `max` hosts: as one that seeks the job, and as its first leader. */
static struct member_options seeker_of(int min, int max)
{
    return (struct member_options){.rounds = {.nodes_min = min, .nodes_max = max, .join_timeout_s = 600},
                                   .beat_s = 1,
                                   .lease_s = 10,
                                   .dead_s = 15,
                                   .retry_s = 0.5,
                                   .self = {.id = 1, .order = -1, .port = 1, .host = "a"}};
}

static struct member_options leader_of(int min, int max)
{
    struct member_options o = seeker_of(min, max);
    o.rounds.restarts_max = 3;
    o.rounds.last_call_s = 8;
    o.nonce[0] = 1;
    o.nonce[1] = 2;
    return o;
}

/* ---- one leader and very many others ---- */

enum { MANY = 10000 };
static struct {
    struct member member;
    struct message ack;
    bool acks[MANY], started[MANY];
    int own_starts, start_count, world_size;
} many;

static void many_send(void *user, uint64_t peer, const struct message *m)
{
    (void)user;
    if (m->kind == MESSAGE_PREPARE) {
        many.acks[peer - 2] = true;
        many.ack = (struct message){.kind = MESSAGE_ACK, .term = m->record.term, .round = m->record.round};
    } else if (m->kind == MESSAGE_ACTION && m->action.kind == ACTION_START && !many.started[peer - 2]) {
        many.started[peer - 2] = true;
        many.start_count++;
        many.world_size = m->action.place.world_size;
    }
}

static void many_act(void *user, const struct action *a, const struct record *record, const char *why)
{
    (void)user, (void)record, (void)why;
    many.own_starts += a->kind == ACTION_START;
}

static void nothing_connect(void *user, const struct peer_info *to)
{
    (void)user, (void)to;
}

static void nothing_drop(void *user, uint64_t peer)
{
    (void)user, (void)peer;
}

static void nothing_say(void *user, const char *line)
{
    (void)user, (void)line;
}

static void ten_thousand_nodes_join(void **state)
{
    (void)state;
    struct member_options o = leader_of(MANY, MANY);
    struct member_hooks h = {
        .send = many_send, .act = many_act, .connect = nothing_connect, .drop = nothing_drop, .say = nothing_say};
    static struct message join;
    clock_t begun = clock();
    member_init(&many.member, &o, &h);
    member_lead(&many.member, 1);
    member_event(&many.member,
                 &(struct event){.kind = EVENT_JOIN, .local_world_size = 8, .order = -1, .role = "default"}, 1);
    for (int i = 0; i < MANY - 1; i++) {
        struct peer_info info = {.id = (uint64_t)i + 2, .order = -1, .port = 1 + i};
        join =
            (struct message){.kind = MESSAGE_JOIN, .info = info, .local_world_size = 8, .role = "default", .count = 1};
        member_up(&many.member, &info, 2);
        member_message(&many.member, info.id, &join, 2);
    }
    for (int i = 0; i < MANY - 1; i++) {
        if (many.acks[i]) {
            member_message(&many.member, (uint64_t)i + 2, &many.ack, 3);
        }
    }
    assert_int_equal(many.own_starts, 1);
    assert_int_equal(many.start_count, MANY - 1);
    assert_int_equal(many.world_size, 8 * MANY);
    for (int i = 0; i < MANY - 1; i++) {
        member_down(&many.member, (uint64_t)i + 2, MEMBER_ENDED, 4);
    }
    assert_int_equal(many.member.peer_count, 0);
    print_message("one round of %d nodes, and their end: %.2f s of CPU\n", MANY,
                  (double)(clock() - begun) / CLOCKS_PER_SEC);
    member_clear(&many.member);
}

/* ---- a leader and what it answers ---- */

static struct {
    struct member member;
    struct message refused, beat;
    int refusals, code, yielded, own_starts, served, served_world;
    int kept_round[10]; /* of the last record that peer i was told of */
    uint64_t kept_term[10];
    int rank[10]; /* that peer i was told, and its order */
    int64_t order[10];
    char why[MESSAGE_TEXT_BYTES], said[512];
} lead;

static void lead_send(void *user, uint64_t peer, const struct message *m)
{
    (void)user;
    if (m->kind == MESSAGE_REFUSE) {
        lead.refused = *m;
        lead.refusals++;
    } else if (m->kind == MESSAGE_BEAT) {
        lead.beat = *m;
    } else if (m->kind == MESSAGE_KEEP && peer < 10) {
        lead.kept_round[peer] = m->record.round;
        lead.kept_term[peer] = m->record.term;
    } else if (m->kind == MESSAGE_ACTION && m->action.kind == ACTION_START && peer < 10) {
        lead.rank[peer] = m->action.place.group_rank;
        lead.order[peer] = m->info.order;
    }
    lead.yielded += m->kind == MESSAGE_YIELD && peer == 2 && m->info.id == 9;
}

static void lead_act(void *user, const struct action *a, const struct record *record, const char *why)
{
    (void)user, (void)record;
    lead.code = a->kind == ACTION_REFUSE ? a->code : lead.code;
    lead.own_starts += a->kind == ACTION_START;
    (void)snprintf(lead.why, sizeof lead.why, "%s", why != NULL ? why : "");
}

static void lead_say(void *user, const char *line)
{
    (void)user;
    (void)snprintf(lead.said, sizeof lead.said, "%s", line);
}

static void lead_serve(void *user, int world_size)
{
    (void)user;
    lead.served++;
    lead.served_world = world_size;
}

/* Our own node, with one worker, waits for a round. */
static void join_self(struct member *m, double now_s)
{
    member_event(m, &(struct event){.kind = EVENT_JOIN, .local_world_size = 1, .order = -1, .role = "default"}, now_s);
}

static const struct member_hooks lead_hooks = {.send = lead_send,
                                               .act = lead_act,
                                               .connect = nothing_connect,
                                               .serve = lead_serve,
                                               .drop = nothing_drop,
                                               .say = lead_say};

static void begin_lead(int min, int max)
{
    struct member_options o = leader_of(min, max);
    (void)snprintf(o.digest, sizeof o.digest, "nnodes 3\ncommand a");
    memset(&lead, 0, sizeof lead);
    member_init(&lead.member, &o, &lead_hooks);
    member_lead(&lead.member, 1);
    join_self(&lead.member, 1);
}

static void come(uint64_t id, const char *host, int64_t order, const char *digest, double now_s)
{
    static struct message join;
    struct peer_info info = {.id = id, .order = order, .port = (int)id, .pid = 40 + (int)id};
    (void)snprintf(info.host, sizeof info.host, "%s", host);
    join = (struct message){.kind = MESSAGE_JOIN,
                            .info = info,
                            .granted = order >= 0,
                            .local_world_size = 1,
                            .role = "default",
                            .count = 1};
    (void)snprintf(join.text, sizeof join.text, "%s", digest);
    member_up(&lead.member, &info, now_s);
    member_message(&lead.member, id, &join, now_s);
}

/* In --status each host has a state, also the one that was told to leave and has not left yet. */
static void every_state_of_a_host_has_a_name(void **state)
{
    (void)state;
    static const char *const names[] = {"waiting", "in the round", "done", "stopped", "leaving"};
    begin_lead(2, 3);
    for (int s = 0; s < NODE_STATE_COUNT; s++) {
        char expected[64];
        struct dt_text out = {0};
        lead.member.coordinator->nodes[0].state = (enum node_state)s;
        member_hosts(&lead.member, 2, &out);
        (void)snprintf(expected, sizeof expected, "\"state\":\"%s\"", names[s]);
        assert_non_null(strstr(dt_text_str(&out), expected));
        dt_text_clear(&out);
    }
    member_clear(&lead.member);
}

static void other_options_are_refused(void **state)
{
    (void)state;
    begin_lead(2, 3);
    come(2, "b", -1, "nnodes 3\ncommand b", 2);
    assert_int_equal(lead.refused.code, DT_EXIT_USAGE);
    assert_string_equal(lead.refused.text,
                        "started differently from host a: command b here, command a there; start all alike");
    assert_int_equal(lead.code, 0); /* others may do */
    member_clear(&lead.member);
    begin_lead(3, 3);
    come(2, "b", -1, "nnodes 3\ncommand a", 2);
    come(3, "c", -1, "nnodes 4\ncommand a", 2);
    assert_int_equal(lead.refusals, 2); /* it cannot begin without c: everybody ends */
    assert_int_equal(lead.code, DT_EXIT_USAGE);
    assert_string_equal(lead.why, "host c was started differently: nnodes 3 here, nnodes 4 there");
    member_clear(&lead.member);
}

/* What of the council waits for its answers. */
static void acknowledge(int round, double now_s)
{
    struct message ack = {.kind = MESSAGE_ACK, .term = 1, .round = round};
    for (int i = 0; i < lead.member.peer_count; i++) {
        member_message(&lead.member, lead.member.peers[i].id, &ack, now_s);
    }
}

/* Ticks, in which all hosts but this one give signs of life and keep what is to be kept. */
static void wait_without(uint64_t dead, double from_s, double to_s)
{
    for (double now_s = from_s; now_s < to_s; now_s++) {
        for (int i = 0; i < lead.member.peer_count; i++) {
            uint64_t peer = lead.member.peers[i].id;
            if (peer != dead) {
                struct message ack = {.kind = MESSAGE_ACK, .term = 1, .round = lead.member.record.round};
                member_message(&lead.member, peer,
                               &(struct message){.kind = MESSAGE_BEAT_ACK, .term = 1, .echo = now_s - 0.1}, now_s);
                member_message(&lead.member, peer, &ack, now_s);
            }
        }
        (void)member_tick(&lead.member, now_s);
    }
}

/* Of two jobs that were not given names the first one goes on. Who would only wait beside it is
 * told so, as it may be of another one that is run alike. */
static void jobs_without_names_do_not_mix(void **state)
{
    (void)state;
    static const char red[] = "nnodes 3\n" MEMBER_UNNAMED "red", blue[] = "nnodes 3\n" MEMBER_UNNAMED "blue";
    for (int named = 0; named < 2; named++) {
        const char *own = named ? "nnodes 3\ncommand red" : red;
        begin_lead(2, 2);
        (void)snprintf(lead.member.options.digest, sizeof lead.member.options.digest, "%s", own);
        if (!named) {
            come(2, "b", -1, blue, 2);
            assert_int_equal(lead.refused.code, DT_EXIT_USAGE);
            assert_string_equal(lead.refused.text,
                                "started differently from host a: " MEMBER_UNNAMED "blue here, " MEMBER_UNNAMED
                                "red there; start all alike, or give each job an --rdzv_id of its own");
            assert_int_equal(lead.code, 0);
            lead.refusals = 0;
        }
        come(3, "c", -1, own, 3);
        come(4, "d", -1, own, 3);
        assert_int_equal(lead.refusals, 0); /* no round yet: c may be lost before it begins */
        for (double now_s = 4; now_s < 12 && lead.member.coordinator->running == 0; now_s++) {
            (void)member_tick(&lead.member, now_s);
        }
        assert_true(lead.member.coordinator->running);
        acknowledge(1, 12);
        wait_without(0, 12, 26);
        assert_int_equal(lead.refusals, 0); /* it may be here for a host whose death nobody has
                                             * noticed yet */
        wait_without(0, 26, 28);
        assert_int_equal(lead.refusals, named ? 0 : 1);
        assert_true(named ||
                    (lead.refused.code == DT_EXIT_TEMPORARY && strstr(lead.refused.text, "--rdzv_id") != NULL));
        member_clear(&lead.member);
    }
}

/* Without a name as well the host that a scheduler sends for a dead one is taken in: it comes
 * before the death is noticed. */
static void a_replacement_waits_until_the_death_is_noticed(void **state)
{
    (void)state;
    static const char red[] = "nnodes 3\n" MEMBER_UNNAMED "red";
    begin_lead(2, 3);
    (void)snprintf(lead.member.options.digest, sizeof lead.member.options.digest, "%s", red);
    come(2, "b", -1, red, 2);
    come(3, "c", -1, red, 2);
    member_message(&lead.member, 3, &(struct message){.kind = MESSAGE_REACH, .info = {.id = 2, .order = -1}}, 2);
    acknowledge(1, 2);
    assert_true(lead.member.coordinator->running && lead.member.record.round == 1);
    wait_without(0, 2, 4); /* c dies */
    come(4, "d", -1, red, 5);
    wait_without(3, 5, 40);
    assert_int_equal(lead.refusals, 0);
    assert_true(lead.member.role == MEMBER_LEADING && member_find(&lead.member, 3) == NULL);
    assert_false(lead.member.coordinator->running); /* the next round has a place for d */
    assert_true(member_find(&lead.member, 4)->joined);
    member_clear(&lead.member);
}

/* Of long lines what differs is shown, and not the rest. */
static void a_difference_late_in_a_line_is_shown(void **state)
{
    (void)state;
    char ours[700] = "arguments", theirs[sizeof ours];
    for (size_t used = strlen(ours); used < 600; used += 10) {
        (void)snprintf(ours + used, sizeof ours - used, " --set a=%d", 1);
    }
    (void)snprintf(theirs, sizeof theirs, "%s --set b=2 c", ours);
    (void)snprintf(ours + strlen(ours), sizeof ours - strlen(ours), " --set b=1 c");
    begin_lead(2, 3);
    (void)snprintf(lead.member.options.digest, sizeof lead.member.options.digest, "%s", ours);
    come(2, "b", -1, theirs, 2);
    assert_string_equal(
        lead.refused.text,
        "started differently from host a: arguments ... b=2 c here, arguments ... b=1 c there; start all alike");
    memset(ours + 9, 'o', 500);
    memset(theirs + 9, 't', 500);
    (void)snprintf(lead.member.options.digest, sizeof lead.member.options.digest, "%s\nlast 1", ours);
    (void)snprintf(theirs + strlen(theirs), sizeof theirs - strlen(theirs), "\nlast 2");
    come(3, "c", -1, theirs, 2);
    assert_non_null(strstr(lead.said, "ttt... there; last 1 here, last 2 there"));
    member_clear(&lead.member);
}

static void a_node_rank_belongs_to_one(void **state)
{
    (void)state;
    begin_lead(3, 3);
    come(2, "b", 7, "nnodes 3\ncommand a", 2);
    come(3, "c", 7, "nnodes 3\ncommand a", 3);
    assert_int_equal(lead.refused.code, DT_EXIT_USAGE);
    assert_string_equal(lead.refused.text,
                        "--node_rank=7: host b, pid 42, has this node rank already; give each host its own, 0 to 2");
    lead.refusals = 0;
    come(4, "b", 7, "nnodes 3\ncommand a", 12); /* nothing came from b for long: it may be dead,
                                                 * and this its successor */
    assert_int_equal(lead.refusals, 0);
    member_clear(&lead.member);
}

static void those_who_wait_are_told_for_what(void **state)
{
    (void)state;
    begin_lead(3, 3);
    (void)member_tick(&lead.member, 2);
    come(2, "b", -1, "nnodes 3\ncommand a", 2);
    for (double now_s = 3; now_s <= 13; now_s++) {
        (void)member_tick(&lead.member, now_s);
    }
    assert_string_equal(lead.beat.text, "2 of 3 here (a b); 588 s left");
    assert_string_equal(lead.said, "host b: suspect: no heartbeat for 5.0 s; counts as lost after 15 s");
    member_message(&lead.member, 2, &(struct message){.kind = MESSAGE_BEAT_ACK, .term = 1}, 13.5);
    assert_string_equal(lead.said, "host b: suspect for 11.5 s, back");
    member_clear(&lead.member);
}

static void who_comes_and_goes_has_to_stay(void **state)
{
    (void)state;
    begin_lead(1, 3);
    (void)member_tick(&lead.member, 20); /* the last call is over: it begins alone */
    assert_int_equal(lead.member.record.round, 1);
    for (int i = 0; i < 4; i++) {
        come(2 + (uint64_t)i, "b", -1, "nnodes 3\ncommand a", 21 + i);
        assert_int_equal(lead.member.coordinator->state_counts[NODE_WAITING], i < 3);
        member_down(&lead.member, 2 + (uint64_t)i, MEMBER_ENDED, 21.5 + i);
    }
    come(9, "b", -1, "nnodes 3\ncommand a", 100); /* it came again, and has not stayed */
    assert_int_equal(lead.member.coordinator->state_counts[NODE_WAITING], 0);
    assert_non_null(strstr(lead.beat.text, "came back 3 times within 10 minutes: "));
    come(10, "c", -1, "nnodes 3\ncommand a", 100); /* another host */
    assert_int_equal(lead.member.coordinator->state_counts[NODE_WAITING], 1);
    member_clear(&lead.member);
}

/* Its own node waits, as others have smaller orders; their workers find their store here all the
 * same. */
static void a_round_without_its_leader_has_a_store(void **state)
{
    (void)state;
    begin_lead(2, 2);
    lead.member.options.self.order = 5; /* it was not the first one to lead */
    join_self(&lead.member, 1);
    come(2, "b", 0, "nnodes 3\ncommand a", 2);
    acknowledge(1, 2);
    assert_int_equal(lead.own_starts, 1);
    assert_int_equal(lead.served, 1);
    come(3, "c", 1, "nnodes 3\ncommand a", 3);
    struct message failed = {.kind = MESSAGE_EVENT,
                             .term = 1,
                             .event = {.kind = EVENT_FAILED, .round = 1, .code = 1, .step = -1, .saved_step = -1}};
    struct message again = {
        .kind = MESSAGE_EVENT, .term = 1, .event = {.kind = EVENT_JOIN, .local_world_size = 3}, .role = "default"};
    member_message(&lead.member, 2, &failed, 4);
    member_message(&lead.member, 2, &again, 4);
    join_self(&lead.member, 4);
    member_message(&lead.member, 3, &(struct message){.kind = MESSAGE_REACH, .info = {.id = 2, .order = -1}}, 4);
    acknowledge(2, 4);
    assert_true(lead.member.record.committed && lead.member.record.round == 2);
    assert_int_equal(lead.own_starts, 1);
    assert_int_equal(lead.served, 2);
    assert_int_equal(lead.served_world, 4);
    member_clear(&lead.member);
}

static void come_with(uint64_t id, const char *host, int preference, double now_s)
{
    static struct message join;
    struct peer_info info = {.id = id, .order = -1, .port = (int)id, .pid = 40 + (int)id};
    (void)snprintf(info.host, sizeof info.host, "%s", host);
    join = (struct message){.kind = MESSAGE_JOIN,
                            .info = info,
                            .local_world_size = 1,
                            .role = "default",
                            .count = 1,
                            .preference = preference};
    (void)snprintf(join.text, sizeof join.text, "nnodes 3\ncommand a");
    member_up(&lead.member, &info, now_s);
    member_message(&lead.member, id, &join, now_s);
}

/* The workers' store is at the leader: rank 0 begins there. The record holds the orders that
 * were told. */
static void who_leads_comes_first_then_preferences_and_names(void **state)
{
    (void)state;
    begin_lead(6, 6);
    come_with(2, "n66", -1, 2);
    come_with(3, "n7", -1, 2);
    come_with(4, "n6", -1, 2);
    come_with(5, "z", 0, 2);
    come_with(6, "c", 7, 2);
    for (uint64_t id = 2; id <= 6; id++) { /* all reach all */
        for (uint64_t other = 2; other <= 6; other++) {
            member_message(&lead.member, id,
                           &(struct message){.kind = MESSAGE_REACH, .info = {.id = other, .order = -1}}, 2);
        }
    }
    acknowledge(1, 2);
    assert_int_equal(lead.own_starts, 1);
    assert_int_equal(lead.member.options.self.order, 0);
    static const int ranks[] = {0, 0, 5, 4, 3, 1, 2};
    for (int id = 2; id <= 6; id++) {
        assert_int_equal(lead.rank[id], ranks[id]);
        assert_int_equal(lead.order[id], ranks[id]);
    }
    for (int i = 0; i < 6; i++) {
        assert_int_equal(lead.member.record.council[i].order, i);
    }
    assert_int_equal(lead.member.record.next_order, 6);
    member_clear(&lead.member);
}

/* Its timers are due before it has read who joined meanwhile. */
static void who_slept_reads_before_it_begins_alone(void **state)
{
    (void)state;
    begin_lead(1, 3);
    double due_s = member_tick(&lead.member, 2);
    assert_true(due_s < 4);
    (void)member_tick(&lead.member, 20);
    assert_int_equal(lead.member.coordinator->round, 0);
    come(2, "b", -1, "nnodes 3\ncommand a", 20.2);
    (void)member_tick(&lead.member, 21.1);
    assert_int_equal(lead.member.coordinator->round, 1);
    assert_int_equal(lead.member.coordinator->state_counts[NODE_IN], 2);
    member_clear(&lead.member);
}

/* Its process was stopped: what ended meanwhile, or was not heard, says nothing about the
 * others. Round 1 of three hosts; it sleeps from 6 s on. */
static void who_slept_blames_nobody(void **state)
{
    (void)state;
    static const char *const words =
        "host a (pid 0): was stopped or asleep for 13.0 s; the other hosts may have gone on without it";
    for (int first = 0; first < 3; first++) { /* what happens first when it wakes: a link's end,
                                               * the timer, or that of a link that ended before
                                               * it slept */
        begin_lead(2, 3);
        come(2, "b", -1, "nnodes 3\ncommand a", 1);
        come(3, "c", -1, "nnodes 3\ncommand a", 1);
        member_message(&lead.member, 3, &(struct message){.kind = MESSAGE_REACH, .info = {.id = 2, .order = -1}}, 1);
        acknowledge(1, 1);
        assert_int_equal(lead.own_starts, 1);
        for (double now_s = 1; now_s <= 6; now_s++) {
            for (uint64_t id = 2; id <= 3; id++) {
                member_message(&lead.member, id,
                               &(struct message){.kind = MESSAGE_BEAT_ACK, .term = 1, .echo = now_s - 0.1}, now_s);
            }
            (void)member_tick(&lead.member, now_s);
        }
        lead.said[0] = 0;
        if (first == 2) {
            member_down(&lead.member, 2, MEMBER_LOST, 6.5);
            assert_string_equal(
                member_cause(&lead.member, 1)->text,
                "host b (pid 42): the connection with it was lost; going on with 2 of 3 hosts (minimum 2)");
            member_clear(&lead.member);
            continue;
        }
        if (first == 0) {
            /* was not read before */
            member_message(&lead.member, 2, &(struct message){.kind = MESSAGE_BEAT_ACK, .term = 1, .echo = 6}, 20);
            member_down(&lead.member, 2, MEMBER_LOST, 20);
            assert_string_equal(member_cause(&lead.member, 1)->text, words);
        }
        (void)member_tick(&lead.member, 20);
        assert_string_equal(lead.said, "");
        assert_int_equal(lead.member.role, MEMBER_SEEKING);
        assert_non_null(strstr(member_cause(&lead.member, 1)->text, "was stopped or asleep for 13.0 s"));
        member_clear(&lead.member);
    }
}

/* ---- what the others know of us when we are gone ---- */

static struct record record_of(uint64_t term, int round, const uint64_t *council, int count)
{
    struct record r = {.nonce = {1, 2},
                       .term = term,
                       .leader = council[0],
                       .round = round,
                       .committed = true,
                       .members = count,
                       .council_count = count};
    for (int i = 0; i < count; i++) {
        r.council[i] = (struct peer_info){.id = council[i], .port = (int)council[i]};
    }
    return r;
}

static void keeps(uint64_t peer, const struct record *r, double now_s)
{
    static struct message keep;
    keep =
        (struct message){.kind = MESSAGE_KEEP, .term = r->term, .info = {.id = peer, .port = (int)peer}, .record = *r};
    if (member_find(&lead.member, peer) == NULL) {
        member_up(&lead.member, &keep.info, now_s);
    }
    member_message(&lead.member, peer, &keep, now_s);
}

/* Host 2 may lead by a council that has us in it, as 3 might, which is in no council with us; 4
 * and 5 make the next round. Whoever tells us of that one,
 * 2 has to hear it from us before we end. */
static void who_counts_us_hears_what_we_keep(void **state)
{
    (void)state;
    static const uint64_t old[] = {2, 1, 6}, others[] = {3, 7}, next[] = {4, 1, 5};
    struct record second = record_of(2, 2, old, 3), third = record_of(3, 3, next, 3),
                  apart = record_of(2, 2, others, 2);
    for (int by_leader = 0; by_leader < 2; by_leader++) {
        begin_lead(1, 3);
        keeps(2, &second, 2);
        keeps(3, &apart, 2);
        if (by_leader) {
            struct message prepare = {.kind = MESSAGE_PREPARE, .term = 3, .record = third};
            member_up(&lead.member, &third.council[0], 2.5);
            member_message(&lead.member, 4, &prepare, 2.5);
        } else {
            keeps(5, &third, 2.5);
        }
        assert_int_equal(lead.member.record.round, 3);
        assert_int_equal(lead.kept_round[2], 3);
        assert_int_equal(lead.kept_round[3], 2); /* as its link came up */
        member_clear(&lead.member);
    }
}

/* 6 was elected with the record of the round that 2 led, and goes on from it. 2, whom it may not reach, would be a quorum without us and 6. */
static void who_led_that_round_before_hears_it_too(void **state)
{
    (void)state;
    static const uint64_t old[] = {2, 1, 6};
    struct record second = record_of(2, 2, old, 3), third = second;
    struct message prepare = {.kind = MESSAGE_PREPARE, .term = 3};
    third.term = 3;
    third.finished = true;
    prepare.record = third;
    begin_lead(1, 3);
    keeps(2, &second, 2);
    member_up(&lead.member, &second.council[2], 2.5);
    member_message(&lead.member, 6, &prepare, 2.5);
    assert_true(lead.member.record.term == 3 && lead.member.record.leader == 2);
    assert_int_equal(lead.kept_term[2], 3);
    member_clear(&lead.member);
}

/* The verdict ends whoever hears it of its own run, whatever it does, and goes on to those that
 * it is linked with. */
static void the_end_is_told_on(void **state)
{
    (void)state;
    static const uint64_t both[] = {1, 2};
    struct record first = record_of(1, 1, both, 2);
    begin_lead(1, 3);
    keeps(2, &first, 2);
    member_message(&lead.member, 2,
                   &(struct message){.kind = MESSAGE_REFUSE, .finished = true, .nonce = {5, 5}, .code = 7}, 3);
    assert_int_equal(lead.member.role, MEMBER_LEADING);
    member_message(&lead.member, 2,
                   &(struct message){.kind = MESSAGE_REFUSE, .finished = true, .nonce = {1, 2}, .code = 7}, 3);
    assert_int_equal(lead.member.role, MEMBER_OVER);
    assert_int_equal(lead.code, 7);
    assert_string_equal(lead.said, "the other hosts ended the job, with exit code 7");
    assert_int_equal(lead.refusals, 0);
    member_leave(&lead.member);
    assert_true(lead.refusals == 1 && lead.refused.finished && lead.refused.code == 7 && lead.refused.nonce[0] == 1);
    member_clear(&lead.member);

    begin_lead(1, 3); /* nobody decided anything: who leaves says no more than that */
    keeps(2, &first, 2);
    member_leave(&lead.member);
    assert_int_equal(lead.refusals, 0);
    member_clear(&lead.member);
}

/* Its leader is lost, its workers still end, and it is asked to stop: that is its own end, not
 * the run's. Others of the run ask it for a leader meanwhile. */
static void who_ends_by_itself_refuses_nobody(void **state)
{
    (void)state;
    static const uint64_t both[] = {1, 2};
    static struct message join;
    struct member m;
    struct member_options o = seeker_of(1, 2);
    memset(&lead, 0, sizeof lead);
    member_init(&m, &o, &lead_hooks);
    m.record = record_of(1, 1, both, 2);
    member_seek(&m, 10);
    member_event(&m, &(struct event){.kind = EVENT_STOP, .code = 143}, 11);
    assert_int_equal(m.role, MEMBER_OVER);
    member_up(&m, &m.record.council[1], 12);
    for (uint64_t run = 0; run < 2; run++) { /* a newcomer asks, and one of this run */
        join = (struct message){
            .kind = MESSAGE_JOIN, .info = m.record.council[1], .nonce = {run, 2 * run}, .local_world_size = 1};
        member_message(&m, 2, &join, 12);
        assert_int_equal(lead.refusals, 0);
    }
    member_clear(&m);
}

/* ---- another run of the same name ---- */

/* A host that was in a round of another run, which may go on: its leader may come, too. */
static void who_remembers_nothing_waits_for_survivors(void **state)
{
    (void)state;
    static struct message keep;
    for (int stays = 0; stays < 2; stays++) {
        begin_lead(1, 3);
        struct peer_info b = {.id = 2, .port = 2, .host = "b"};
        keep = (struct message){
            .kind = MESSAGE_KEEP, .info = b, .record = {.nonce = {7, 7}, .term = 3, .round = 2, .committed = true}};
        member_up(&lead.member, &b, 5);
        member_message(&lead.member, 2, &keep, 5);
        double now_s = 5;
        while (lead.member.coordinator->round == 0 && now_s < 100) {
            member_message(&lead.member, 2, &(struct message){.kind = MESSAGE_BEAT_ACK, .term = 1}, now_s);
            if (stays == 0 && now_s >= 12 && now_s < 12.5) {
                member_down(&lead.member, 2, MEMBER_LOST, now_s);
            }
            (void)member_tick(&lead.member, now_s += 0.25);
        }
        /* twice dead_s, or when it is gone */
        assert_in_range((int)now_s, stays ? 34 : 12, stays ? 36 : 14);
        member_clear(&lead.member);
    }
}

static struct message rival_beat(int round, int members, double echo_s, uint64_t nonce)
{
    return (struct message){.kind = MESSAGE_BEAT,
                            .term = 4,
                            .round = round,
                            .granted = true,
                            .members = members,
                            .stamp = 1000,
                            .echo = echo_s,
                            .nonce = {nonce, nonce},
                            .info = {.id = 9, .order = 0, .port = 9, .host = "z", .address = "10.0.0.9", .pid = 77}};
}

/* More hosts, then the higher round, then the nonce; and only by what was said after it heard
 * us. Ours: run {1, 2}, 2 hosts, round 1. */
static void one_of_two_leaders_yields(void **state)
{
    (void)state;
    static const struct {
        int round, members;
        double echo_s;
        uint64_t nonce;
        bool yields;
    } cases[] = {
        {1, 3, 29.9, 7, true},  {1, 1, 29.9, 7, false}, {9, 1, 29.9, 7, false}, {2, 2, 29.9, 7, true},
        {1, 2, 29.9, 7, false}, {1, 2, 29.9, 0, true},  {9, 9, 20.0, 7, false}, {9, 9, 0, 7, false},
        {9, 0, 29.9, 7, false}, {0, 9, 29.9, 7, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct message beat = rival_beat(cases[i].round, cases[i].members, cases[i].echo_s, cases[i].nonce);
        struct peer_info z = {.id = 9, .port = 9, .host = "z"};
        begin_lead(2, 2);
        come(2, "b", -1, "nnodes 3\ncommand a", 2);
        struct record *r = &lead.member.record;
        member_message(&lead.member, 2, &(struct message){.kind = MESSAGE_ACK, .term = r->term, .round = r->round}, 2);
        assert_true(r->round == 1 && r->committed);
        member_message(&lead.member, 2, &(struct message){.kind = MESSAGE_BEAT_ACK, .term = 1, .echo = 29}, 29);
        member_up(&lead.member, &z, 30);
        member_message(&lead.member, 9, &beat, 30);
        if ((lead.member.role == MEMBER_FOLLOWING) != cases[i].yields || (lead.yielded == 1) != cases[i].yields) {
            fail_msg("case %zu: role %d, told %d", i, (int)lead.member.role, lead.yielded);
        }
        if (cases[i].yields) {
            char text[256];
            (void)snprintf(text, sizeof text,
                           "host z (pid 77): leads another run of this name, with %d hosts in round %d; this one, with "
                           "2 hosts in round 1, ends and joins it",
                           cases[i].members, cases[i].round);
            assert_string_equal(member_cause(&lead.member, 1)->text, text);
        } else if (cases[i].members > 0 && cases[i].round > 0 && cases[i].echo_s > 20) {
            assert_non_null(strstr(lead.said, "host z (pid 77): led another run of this name"));
        }
        member_clear(&lead.member);
    }
}

/* ---- who is gone for certain ---- */

/* Two hosts in a round; then an agent of this id and machine says hello from the same address
 * and port, and what the second one says is lost. */
static void replace_second(uint64_t id, uint64_t machine)
{
    static struct message keep;
    begin_lead(2, 2);
    come(2, "b", -1, "nnodes 3\ncommand a", 2);
    struct record *r = &lead.member.record;
    member_message(&lead.member, 2, &(struct message){.kind = MESSAGE_ACK, .term = r->term, .round = r->round}, 2);
    assert_int_equal(r->council_count, 2);
    assert_true(r->committed);
    (void)snprintf(r->council[1].address, sizeof r->council[1].address, "172.17.0.2");
    r->council[1].machine = 5;
    struct peer_info info = r->council[1];
    info.id = id;
    info.machine = 0; /* what a link knows */
    member_up(&lead.member, &info, 3);
    keep = (struct message){.kind = MESSAGE_KEEP, .info = info};
    keep.info.machine = machine;
    member_message(&lead.member, id, &keep, 3);
}

/* Each docker host gives its containers the same addresses. */
static void one_address_is_not_one_host(void **state)
{
    (void)state;
    for (uint64_t machine = 0; machine < 10; machine++) {
        replace_second(3, machine);
        assert_int_equal(member_is_dead(&lead.member, 2), machine == 5);
        member_clear(&lead.member);
    }
}

/* A packet filter gives it as well. */
static void a_reset_is_a_death_on_this_machine_only(void **state)
{
    (void)state;
    static const enum member_end ends[] = {MEMBER_LOST, MEMBER_RESET, MEMBER_ENDED};
    for (int end = 0; end < 3; end++) {
        for (uint64_t own = 0; own < 10; own++) {
            replace_second(3, 7);
            lead.member.options.self.machine = own;
            member_down(&lead.member, 3, ends[end], 4);
            assert_int_equal(member_is_dead(&lead.member, 3),
                             ends[end] == MEMBER_ENDED || (ends[end] == MEMBER_RESET && own == 7));
            member_clear(&lead.member);
        }
    }
}

/* ---- one that seeks ---- */

static int tries;

static void count_connect(void *user, const struct peer_info *to)
{
    (void)user;
    tries += to == NULL;
}

/* Looks at the endpoint until end_s; the time of the last look. */
static double seek_until(struct member *m, double from_s, double end_s)
{
    double last_s = -1;
    for (double now_s = from_s, next_s; now_s < end_s; now_s = next_s) {
        int before = tries;
        next_s = member_tick(m, now_s);
        last_s = tries > before ? now_s : last_s;
        assert_true(next_s > now_s);
    }
    return last_s;
}

/* The endpoint may be there a moment later: soon found, and a job of many hosts does not drown
 * it. */
static void a_seeker_asks_again_soon_then_seldom(void **state)
{
    (void)state;
    struct member m;
    struct member_options o = seeker_of(2, 2);
    struct member_hooks h = lead_hooks;
    h.connect = count_connect;
    member_init(&m, &o, &h);
    member_seek(&m, 1);
    double last_s = seek_until(&m, 1, 1.1);
    assert_true(tries >= 4);
    assert_true(last_s > 1.05); /* for as long as we have been waiting, we wait at most as much
                                 * again */
    (void)seek_until(&m, 1.1, 3);
    tries = 0;
    (void)seek_until(&m, 3, 13);
    assert_in_range(tries, 19, 21); /* one in retry_s */
    member_clear(&m);
}

/* What only the receiver can judge: its own workers, the job's hosts, its own clock. */
static void messages_that_do_not_fit_us_are_refused(void **state)
{
    (void)state;
    static const struct place fits = {
        .round = 1, .group_world_size = 2, .world_size = 2, .role_world_size = 2, .local_world_size = 1};
    struct member m;
    struct member_options o = seeker_of(2, 9);
    struct dt_error err;
    struct message start = {.kind = MESSAGE_ACTION, .action = {.kind = ACTION_START, .place = fits}};
    memset(&lead, 0, sizeof lead);
    member_init(&m, &o, &lead_hooks);
    member_seek(&m, 10);
    join_self(&m, 10);
    assert_int_equal(member_check(&m, &start, 10, &err), 0);
    start.action.place.local_world_size = 2;
    assert_int_equal(member_check(&m, &start, 10, &err), -1);
    assert_string_equal(err.text, "action message: start of 2 workers on this host, which has 1");
    start.action.place = fits;
    start.action.place.group_world_size = 1 + o.rounds.nodes_max;
    assert_int_equal(member_check(&m, &start, 10, &err), -1);
    assert_non_null(strstr(err.text, "start of a round of "));
    start.action.kind = ACTION_END; /* its place means nothing */
    assert_int_equal(member_check(&m, &start, 10, &err), 0);
    /* our leases end by what is echoed */
    for (enum message_kind kind = MESSAGE_BEAT; kind <= MESSAGE_BEAT_ACK; kind++) {
        assert_int_equal(member_check(&m, &(struct message){.kind = kind, .stamp = 99, .echo = 10}, 10, &err), 0);
        assert_int_equal(member_check(&m, &(struct message){.kind = kind, .stamp = 1, .echo = 10.5}, 10, &err), -1);
        assert_non_null(strstr(err.text, "it echoes what this host will say in 0.5 s"));
    }
    member_clear(&m);
}

/* The new leader had its JOIN, and gave it up since: what both said before it slept is read when
 * it wakes. */
static void who_slept_starts_nothing_of_before(void **state)
{
    (void)state;
    struct member m;
    struct member_options o = seeker_of(2, 9);
    struct peer_info leader = {.id = 2, .order = 0, .host = "b"};
    struct message beat = {.kind = MESSAGE_BEAT, .term = 1, .info = leader, .stamp = 50, .nonce = {3, 4}};
    struct message start = {.kind = MESSAGE_ACTION, .term = 1, .action = {.kind = ACTION_START, .place = {.round = 2}}};
    start.record = (struct record){.nonce = {3, 4}, .term = 1, .round = 2, .leader = 2};
    for (int slept = 0; slept < 2; slept++) {
        double now_s = slept ? 70 : 10.5;
        memset(&lead, 0, sizeof lead);
        member_init(&m, &o, &lead_hooks);
        member_seek(&m, 10);
        join_self(&m, 10);
        member_up(&m, &leader, 10); /* and says JOIN, of 10 s */
        beat.echo = 0;
        member_message(&m, 2, &beat, now_s); /* the first one of its term */
        beat.echo = 10;
        member_message(&m, 2, &beat, now_s);
        member_message(&m, 2, &start, now_s);
        assert_int_equal(lead.own_starts, !slept);
        assert_int_equal(m.role, slept ? MEMBER_SEEKING : MEMBER_FOLLOWING);
        if (!slept) {
            /* the leader counts from the same moment, or a later one */
            assert_true(member_workers_until(&m, now_s) < 10 + o.dead_s);
        }
        member_clear(&m);
    }
}

/* A first round was prepared, and came to nothing; meanwhile etcd keeps another run. Whoever was
 * in a round of the old one ends with it. */
static void who_never_was_in_a_round_joins_the_run_that_etcd_keeps(void **state)
{
    (void)state;
    struct member m;
    struct member_options o = seeker_of(2, 9);
    struct peer_info witness = {.id = 9, .order = -1, .host = "etcd"};
    static const struct {
        int last_round;
        uint64_t nonce;
        int code;
    } rows[] = {{0, 5, 0}, {1, 5, DT_EXIT_TEMPORARY}, {0, 0, DT_EXIT_TEMPORARY}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct message refuse = {
            .kind = MESSAGE_REFUSE, .term = 1, .code = DT_EXIT_TEMPORARY, .nonce = {rows[i].nonce, 6}};
        refuse.nonce[1] = rows[i].nonce != 0 ? 6 : 0;
        memset(&lead, 0, sizeof lead);
        member_init(&m, &o, &lead_hooks);
        m.record = (struct record){
            .nonce = {3, 4}, .term = 1, .round = 1, .leader = 2, .council_count = 1, .council = {o.self}};
        m.last_round = rows[i].last_round;
        member_witness(&m, &witness);
        member_seek(&m, 10);
        join_self(&m, 10);
        member_up(&m, &witness, 10);
        member_message(&m, 9, &refuse, 11);
        assert_int_equal(lead.code, rows[i].code);
        assert_int_equal(m.role, rows[i].code != 0 ? MEMBER_OVER : MEMBER_SEEKING);
        assert_int_equal(m.record.round, rows[i].code != 0 ? 1 : 0);
        member_clear(&m);
    }
}

/* A beat overtakes what its sender said before it led. */
static void who_asked_for_a_vote_and_leads_since_is_followed_on(void **state)
{
    (void)state;
    static const uint64_t both[] = {2, 1};
    struct member m;
    struct member_options o = seeker_of(1, 2);
    static struct message ask;
    memset(&lead, 0, sizeof lead);
    member_init(&m, &o, &lead_hooks);
    m.record = record_of(1, 1, both, 2);
    member_seek(&m, 10);
    join_self(&m, 10);
    member_up(&m, &m.record.council[0], 10);
    member_message(
        &m, 2, &(struct message){.kind = MESSAGE_BEAT, .term = 2, .info = m.record.council[0], .nonce = {1, 2}}, 11);
    for (uint64_t term = 2; term <= 3; term++) {
        assert_int_equal(m.role, MEMBER_FOLLOWING);
        ask = (struct message){.kind = MESSAGE_VOTE_ASK, .term = term, .record = m.record};
        member_message(&m, 2, &ask, 11);
    }
    assert_true(m.role == MEMBER_SEEKING && m.promised == 3); /* it asks for the next term: it
                                                               * does not lead any more */
    member_clear(&m);
}

/* What it read of the store before it came over to the run that is kept there. */
static void a_refusal_for_the_sake_of_our_own_run_is_old(void **state)
{
    (void)state;
    struct member m;
    struct member_options o = seeker_of(1, 2);
    struct peer_info witness = {.id = 9, .order = -1, .host = "etcd"};
    static const uint64_t both[] = {1, 2};
    memset(&lead, 0, sizeof lead);
    member_init(&m, &o, &lead_hooks);
    m.record = record_of(1, 1, both, 2);
    member_witness(&m, &witness);
    member_seek(&m, 10);
    join_self(&m, 10);
    member_up(&m, &witness, 10);
    struct message refuse = {.kind = MESSAGE_REFUSE, .term = 1, .code = DT_EXIT_TEMPORARY, .nonce = {1, 2}};
    member_message(&m, 9, &refuse, 11);
    assert_true(m.role == MEMBER_SEEKING && lead.code == 0);
    refuse.nonce[0] = 7; /* another run is there */
    m.last_round = 1;
    member_message(&m, 9, &refuse, 11);
    assert_true(m.role == MEMBER_OVER && lead.code == DT_EXIT_TEMPORARY);
    member_clear(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_thousand_nodes_join),
        cmocka_unit_test(every_state_of_a_host_has_a_name),
        cmocka_unit_test(other_options_are_refused),
        cmocka_unit_test(jobs_without_names_do_not_mix),
        cmocka_unit_test(a_replacement_waits_until_the_death_is_noticed),
        cmocka_unit_test(a_difference_late_in_a_line_is_shown),
        cmocka_unit_test(a_node_rank_belongs_to_one),
        cmocka_unit_test(those_who_wait_are_told_for_what),
        cmocka_unit_test(one_address_is_not_one_host),
        cmocka_unit_test(a_reset_is_a_death_on_this_machine_only),
        cmocka_unit_test(a_round_without_its_leader_has_a_store),
        cmocka_unit_test(who_leads_comes_first_then_preferences_and_names),
        cmocka_unit_test(who_slept_reads_before_it_begins_alone),
        cmocka_unit_test(who_slept_blames_nobody),
        cmocka_unit_test(who_counts_us_hears_what_we_keep),
        cmocka_unit_test(who_led_that_round_before_hears_it_too),
        cmocka_unit_test(the_end_is_told_on),
        cmocka_unit_test(who_ends_by_itself_refuses_nobody),
        cmocka_unit_test(who_remembers_nothing_waits_for_survivors),
        cmocka_unit_test(one_of_two_leaders_yields),
        cmocka_unit_test(who_comes_and_goes_has_to_stay),
        cmocka_unit_test(a_seeker_asks_again_soon_then_seldom),
        cmocka_unit_test(messages_that_do_not_fit_us_are_refused),
        cmocka_unit_test(who_slept_starts_nothing_of_before),
        cmocka_unit_test(who_never_was_in_a_round_joins_the_run_that_etcd_keeps),
        cmocka_unit_test(who_asked_for_a_vote_and_leads_since_is_followed_on),
        cmocka_unit_test(a_refusal_for_the_sake_of_our_own_run_is_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
