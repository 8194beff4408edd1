/* A term: how an agent begins to lead, what it does with time while it leads, and when it may
 * not go on. */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long workers of nodes that we know nothing of may live on. Whoever led them heard none of
 * our voters in the dead_s before they voted, if they all say so: it stood down lease_s after it
 * heard one of them, and what it answered last gave its nodes time from then on. Else it may
 * have led until now. */
static double unknown_workers_s(const struct member *m)
{
    const struct member_options *o = &m->options;
    return m->votes_silent ? o->lease_s + member_workers_s(m) - o->dead_s + o->beat_s : o->dead_s;
}

void member_begin_leading(struct member *m, double now_s)
{
    struct record *r = &m->record;
    member_bury_all_predecessors(m);
    free(m->coordinator);
    m->coordinator = dt_alloc(sizeof *m->coordinator);
    m->actions = m->actions != NULL ? m->actions : dt_alloc(sizeof *m->actions);
    coordinator_init(m->coordinator, &m->options.rounds);
    m->coordinator->round = r->round;
    m->coordinator->restarts_used = r->restarts_used;
    m->coordinator->no_progress = r->no_progress;
    m->coordinator->best_step = r->best_step;
    m->coordinator->best_saved = r->best_saved;
    m->coordinator->oom_seen = r->oom_seen;
    m->coordinator->oom_step = r->oom_step;
    m->role = MEMBER_LEADING;
    m->leader = m->joined = 0;
    m->promised = r->term;
    free(m->nodes);
    m->nodes = dt_alloc(sizeof *m->nodes);
    m->nodes->next = MEMBER_OWN_NODE + 1;
    m->start_count = 0;
    m->preparing = m->inherited = false;
    m->wake_s = 0;
    m->beat_at_s = now_s;
    m->call_at_s = now_s;
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].joined = false;
        m->peers[i].node = -1;
        m->peers[i].heard_s = now_s;
        m->peers[i].acked_term = 0;
        m->peers[i].returned = false;
        m->peers[i].lease_s = now_s;
    }
    m->witness_heard_s = now_s; /* the next round has to wait for it anyway */
    for (int i = 0; i < r->council_count; i++) {
        if (peer_is_witness(&r->council[i])) { /* ours may be that of a run before, if the store
                                                * was not asked since */
            m->witness = r->council[i];
        }
    }
    m->fence_count = m->ghost_count = 0;
    memset(m->ghosts, 0, sizeof m->ghosts);
    m->fenced = m->reaching = false;
    m->leader_fenced = r->round > 0 && m->votes_silent;
    m->fence_until_s = r->round > 0 ? now_s + unknown_workers_s(m) : 0;
    m->finish_at_s = 0;
    m->others_since_s = 0;
    if (r->round == 0 && m->witness.id == 0) { /* a witness knows every run */
        m->coordinator->alone_from_s = now_s + MEMBER_ALONE * m->options.beat_s;
        m->coordinator->hold_until_s = m->strays ? m->coordinator->alone_from_s : 0;
    }
    for (int i = 0; i < m->peer_count; i++) {
        member_beat(m, m->peers[i].id);
    }
    if (r->finished) { /* the leader before decided that, and may not have told anybody that it
                        * stands */
        member_prepare(m);
        return;
    }
    if (!r->committed) {
        m->inherited = true;
        member_send_prepare(m);
        member_check_prepared(m);
    }
    if (m->waiting) {
        struct event e = m->join;
        e.role = m->join_role;
        member_own_event(m, &e, now_s);
    }
}

void member_lead(struct member *m, double now_s)
{
    struct record first;
    m->now_s = now_s;
    m->holds_endpoint = true;
    member_first_record(m, &first);
    m->run_count++;
    m->strays = m->strays || m->record.nonce[0] != 0;
    member_change_run(m, first.nonce);
    m->record = first;
    member_begin_leading(m, now_s);
}

void member_first_record(const struct member *m, struct record *out)
{
    *out = (struct record){.nonce = {m->options.nonce[0], m->options.nonce[1] + m->run_count},
                           .term = 1,
                           .leader = m->options.self.id,
                           .best_step = -1,
                           .best_saved = -1,
                           .committed = true,
                           .council_count = 1,
                           .council = {m->options.self}};
    /* one that was given belongs to another run */
    out->council[0].order = m->firm_order ? m->options.self.order : -1;
    out->next_order = out->council[0].order + 1;
    member_add_witness(m, out);
}

void member_witness(struct member *m, const struct peer_info *witness)
{
    m->witness = *witness;
}

void member_stop_leading(struct member *m)
{
    free(m->coordinator);
    free(m->nodes);
    m->coordinator = NULL;
    m->nodes = NULL;
    m->start_count = 0;
    m->preparing = m->inherited = m->fenced = m->reaching = false;
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].joined = false;
        m->peers[i].node = -1;
    }
}

/* It waits beside a round that runs without it. */
static bool is_spare(const struct member *m, int node)
{
    const struct coordinator_node *n = coordinator_find(m->coordinator, node);
    return m->coordinator->running && n != NULL && n->state == NODE_WAITING;
}

void member_beat(struct member *m, uint64_t peer)
{
    const struct member_peer *p = member_find(m, peer);
    struct message out = {.kind = MESSAGE_BEAT,
                          .info = m->options.self,
                          .stamp = m->now_s,
                          .echo = p != NULL ? p->stamp : 0,
                          .round = m->record.round,
                          .granted = m->record.committed,
                          .members = member_claim(m),
                          .nonce = {m->record.nonce[0], m->record.nonce[1]}};
    out.count = p != NULL && p->joined && is_spare(m, p->node) ? -1 : 0;
    if (p != NULL && p->apart != 0) {
        (void)snprintf(out.text, sizeof out.text,
                       "this one and another host of the round cannot reach each other; it runs without this one");
    } else if (p != NULL && p->held_until_s > m->now_s) {
        (void)snprintf(out.text, sizeof out.text,
                       "this one came back 3 times within 10 minutes: %.0f s left until it has stayed for 60 s",
                       p->held_until_s - m->now_s);
    } else if (!m->coordinator->running || m->fenced) {
        memcpy(out.text, m->wait_text, sizeof m->wait_text);
    }
    member_send(m, peer, &out);
}

/* We may not be the leader any more. */
void member_stand_down(struct member *m, const char *why, double seconds, double now_s)
{
    char text[128];
    m->leader_heard_s = now_s - m->options.lease_s;
    (void)snprintf(text, sizeof text, why, seconds);
    bool set = member_set_host_cause(m, text, "");
    if (m->waiting) {
        member_say_cause(m, text, "", set);
    }
    member_stop_leading(m);
    member_lose_leader(m, false, now_s);
    m->lost_silent = false; /* we may have led until now */
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
    if (m->finish_at_s > 0) {
        if (now_s >= m->finish_at_s) {
            member_finish_now(m);
        }
        return m->finish_at_s;
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
    if (m->options.witness_s > 0 && now_s - m->witness_heard_s >= m->options.witness_s && m->coordinator->running &&
        !m->preparing) {
        member_stand_down(m, "no answer of etcd for %.0f s: another run of this name may begin", m->options.witness_s,
                          now_s);
        return now_s;
    }
    if (now_s >= m->beat_at_s) {
        m->spare = is_spare(m, MEMBER_OWN_NODE);
        member_wait_text(m, m->wait_text, sizeof m->wait_text);
        m->beat_at_s = now_s + m->options.beat_s;
        for (int i = 0; i < m->peer_count; i++) {
            member_beat(m, m->peers[i].id);
        }
        if (m->preparing || m->inherited) {
            member_send_prepare(m);
            member_check_prepared(m); /* all may have answered while too few were heard */
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
    if (now_s >= m->call_at_s) { /* whoever holds the endpoint now may not know of us */
        m->call_at_s = now_s + (m->witness.id != 0 ? 5 : 1) * m->options.beat_s;
        m->hooks.connect(m->hooks.user, NULL);
    }
    double wake_s = fmax(m->wake_s, m->awake_s > 0 ? m->awake_s + m->options.beat_s : 0);
    if (m->fenced) {
        member_begin_when_free(m);
    }
    if (m->wake_s > 0 && now_s >= wake_s) {
        struct event e = {.kind = EVENT_TICK, .node = -1};
        member_lead_step(m, &e, now_s);
    }
    if (m->role != MEMBER_LEADING) {
        return now_s;
    }
    wake_s = fmax(m->wake_s, wake_s);
    double next_s = m->wake_s > 0 && wake_s < m->beat_at_s ? wake_s : m->beat_at_s,
           free_s = m->fenced ? member_fenced_until(m) : next_s;
    return free_s > now_s && free_s < next_s ? free_s : next_s; /* what else a round waits for is
                                                                 * an event, or looked at with
                                                                 * each beat */
}
