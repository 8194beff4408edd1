/* A term as the leader: how it begins, what time brings, and when the leader must stand down. */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long workers of unknown nodes may still live. If all our voters say that they heard nothing
 * of the previous leader for dead_s, that leader stood down lease_s after it last heard one of
 * them. Its last answer gave its nodes time from then on. Otherwise the leader may have led until
 * now. */
static double unknown_workers_s(const struct member *m)
{
    const struct member_options *o = &m->options;
    return m->seeking.votes_silent ? o->lease_s + member_workers_s(m) - o->dead_s + o->beat_s : o->dead_s;
}

/* The coordinator continues from the record. */
static void restore_coordinator(struct member *m)
{
    struct coordinator *c = m->leading.coordinator;
    const struct record *r = &m->record;
    coordinator_init(c, &m->options.rounds);
    c->round = r->round;
    c->history = r->history;
}

static void free_leading(struct member *m)
{
    free(m->leading.coordinator);
    free(m->leading.actions);
    free(m->leading.nodes);
    free(m->leading.starts);
}

void member_begin_leading(struct member *m, double now_s)
{
    struct record *r = &m->record;
    member_mark_all_predecessors_dead(m);
    free_leading(m);
    m->leading = (struct member_leading){
        .coordinator = dt_alloc(sizeof *m->leading.coordinator),
        .actions = dt_alloc(sizeof *m->leading.actions),
        .nodes = dt_alloc(sizeof *m->leading.nodes),
        .beat_at_s = now_s,
        .call_at_s = now_s,
        .leader_fenced = r->round > 0 && m->seeking.votes_silent,
        .fence_until_s = r->round > 0 ? now_s + unknown_workers_s(m) : 0,
    };
    m->leading.nodes->next = MEMBER_OWN_NODE + 1;
    restore_coordinator(m);
    m->role = MEMBER_LEADING;
    m->following = (struct member_following){0};
    m->kept.promised = r->term;
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].joined = false;
        m->peers[i].node = -1;
        m->peers[i].heard_s = now_s;
        m->peers[i].acked_term = 0;
        m->peers[i].returned = false;
        m->peers[i].lease_s = now_s;
    }
    m->witness.heard_s = now_s; /* the next round waits for the witness anyway */
    for (int i = 0; i < r->council_count; i++) {
        if (peer_is_witness(&r->council[i])) {
            /* our witness may be that of an earlier run, if the store was not asked since */
            m->witness.info = r->council[i];
        }
    }
    if (r->round == 0 && m->witness.info.id == 0) { /* a witness knows every run */
        m->leading.coordinator->alone_from_s = now_s + MEMBER_ALONE * m->options.beat_s;
        m->leading.coordinator->hold_until_s = m->other_run_seen ? m->leading.coordinator->alone_from_s : 0;
    }
    for (int i = 0; i < m->peer_count; i++) {
        member_beat(m, m->peers[i].id);
    }
    if (r->finished) { /* the previous leader decided the end, and may not have told any host */
        member_prepare(m);
        return;
    }
    if (!r->committed) {
        m->leading.inherited = true;
        member_send_prepare(m);
        member_check_prepared(m);
    }
    if (m->node.waiting) {
        struct event e = m->node.join;
        e.role = m->node.join_role;
        member_own_event(m, &e, now_s);
    }
}

void member_lead(struct member *m, double now_s)
{
    struct record first;
    m->now_s = now_s;
    m->holds_endpoint = true;
    member_first_record(m, &first);
    m->kept.run_count++;
    m->other_run_seen = m->other_run_seen || m->record.nonce[0] != 0;
    member_change_run(m, first.nonce);
    m->record = first;
    member_begin_leading(m, now_s);
}

void member_first_record(const struct member *m, struct record *out)
{
    *out = (struct record){.nonce = {m->options.nonce[0], m->options.nonce[1] + m->kept.run_count},
                           .term = 1,
                           .leader = m->options.self.id,
                           .history = {.best_step = -1, .best_saved = -1},
                           .committed = true,
                           .council_count = 1,
                           .council = {m->options.self}};
    /* an order from a leader belongs to another run */
    out->council[0].order = m->node.firm_order ? m->options.self.order : -1;
    out->next_order = out->council[0].order + 1;
    member_add_witness(m, out);
}

void member_witness(struct member *m, const struct peer_info *witness)
{
    m->witness.info = *witness;
}

void member_stop_leading(struct member *m)
{
    free_leading(m);
    m->leading = (struct member_leading){0};
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].joined = false;
        m->peers[i].node = -1;
    }
}

/* Whether the node waits beside a round that runs without it. */
static bool is_spare(const struct member *m, int node)
{
    const struct coordinator_node *n = coordinator_find(m->leading.coordinator, node);
    return m->leading.coordinator->running && n != NULL && n->state == NODE_WAITING;
}

void member_beat(struct member *m, uint64_t peer)
{
    const struct member_peer *p = member_find(m, peer);
    struct message out = {.kind = MESSAGE_BEAT,
                          .beat = {.info = m->options.self,
                                   .nonce = {m->record.nonce[0], m->record.nonce[1]},
                                   .round = m->record.round,
                                   .committed = m->record.committed,
                                   .spare = p != NULL && p->joined && is_spare(m, p->node),
                                   .hosts = member_hosts_led(m),
                                   .stamp = m->now_s,
                                   .echo = p != NULL ? p->stamp : 0}};
    char *text = out.beat.wait_text;
    size_t text_bytes = sizeof out.beat.wait_text;
    if (p != NULL && p->cannot_reach != 0) {
        (void)snprintf(text, text_bytes,
                       "this one and another host of the round cannot reach each other; it runs without this one");
    } else if (p != NULL && p->held_until_s > m->now_s) {
        (void)snprintf(text, text_bytes,
                       "this one came back 3 times within 10 minutes: %.0f s left until it has stayed for 60 s",
                       p->held_until_s - m->now_s);
    } else if (!m->leading.coordinator->running || m->leading.fenced) {
        memcpy(text, m->node.wait_text, sizeof m->node.wait_text);
    }
    member_send(m, peer, &out);
}

void member_stand_down(struct member *m, const char *why, double seconds, double now_s)
{
    char text[128];
    m->following.heard_s = now_s - m->options.lease_s;
    (void)snprintf(text, sizeof text, why, seconds);
    bool set = member_set_host_cause(m, text, "");
    if (m->node.waiting) {
        member_say_cause(m, text, "", set);
    }
    member_stop_leading(m);
    member_lose_leader(m, false, now_s);
    m->seeking.lost_silent = false; /* we may have led until now */
}

double member_tick_leading(struct member *m, double now_s)
{
    for (int i = m->peer_count - 1; i >= 0; i--) {
        const struct member_peer *p = &m->peers[i];
        if (now_s - p->heard_s >= m->options.dead_s) {
            uint64_t id = p->id;
            m->hooks.drop(m->hooks.user, id);
            member_down(m, id, MEMBER_LOST, now_s);
            if (m->role != MEMBER_LEADING) {
                return now_s;
            }
            i = i < m->peer_count ? i : m->peer_count;
        }
    }
    if (m->leading.finish_at_s > 0) {
        if (now_s >= m->leading.finish_at_s) {
            member_finish_now(m);
        }
        return m->leading.finish_at_s;
    }
    if (!member_heard_quorum(m, now_s - m->options.lease_s)) {
        double slept_s = member_slept_s(m, now_s);
        member_stand_down(m,
                          slept_s > 0
                              ? "this host was stopped or asleep for %.1f s: the others may have gone on without it"
                              : "too few of the other hosts answered within %.0f s: they may go on without this one",
                          slept_s > 0 ? slept_s : m->options.lease_s, now_s);
        return now_s;
    }
    if (m->options.witness_s > 0 && now_s - m->witness.heard_s >= m->options.witness_s &&
        m->leading.coordinator->running && !m->leading.preparing) {
        member_stand_down(m, "no answer of etcd for %.0f s: another run of this name may begin", m->options.witness_s,
                          now_s);
        return now_s;
    }
    if (now_s >= m->leading.beat_at_s) {
        m->node.spare = is_spare(m, MEMBER_OWN_NODE);
        member_wait_text(m, m->node.wait_text, sizeof m->node.wait_text);
        m->leading.beat_at_s = now_s + m->options.beat_s;
        for (int i = 0; i < m->peer_count; i++) {
            member_beat(m, m->peers[i].id);
        }
        if (m->leading.preparing || m->leading.inherited) {
            member_send_prepare(m);
            /* all agents may have answered while we heard too few of them */
            member_check_prepared(m);
            if (m->role != MEMBER_LEADING) {
                return now_s;
            }
        }
        member_refuse_spares(m, now_s);
        member_hold_for_others(m, now_s);
        member_tick_reach(m, now_s);
        if (m->role != MEMBER_LEADING) {
            return now_s;
        }
    }
    if (now_s >= m->leading.call_at_s) { /* the holder of the endpoint may not know of us */
        m->leading.call_at_s = now_s + (m->witness.info.id != 0 ? 5 : 1) * m->options.beat_s;
        m->hooks.connect(m->hooks.user, NULL);
    }
    double wake_s = fmax(m->leading.wake_s, m->sleep.awake_s > 0 ? m->sleep.awake_s + m->options.beat_s : 0);
    if (m->leading.fenced) {
        member_begin_when_free(m);
    }
    if (m->leading.wake_s > 0 && now_s >= wake_s) {
        struct event e = {.kind = EVENT_TICK, .node = -1};
        member_lead_step(m, &e, now_s);
    }
    if (m->role != MEMBER_LEADING) {
        return now_s;
    }
    wake_s = fmax(m->leading.wake_s, wake_s);
    double next_s = m->leading.wake_s > 0 && wake_s < m->leading.beat_at_s ? wake_s : m->leading.beat_at_s,
           free_s = m->leading.fenced ? member_fenced_until(m) : next_s;
    /* other reasons to wait end with an event, or are checked with each beat */
    return free_s > now_s && free_s < next_s ? free_s : next_s;
}
