/* Records that must be kept before they take effect. A round begins, and the job ends, only when
 * the council keeps the record of it. Also, a round does not begin before the workers of lost hosts
 * are gone for certain (fences). */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool has_acked(const struct member *m, uint64_t id, const void *arg)
{
    const struct record *r = arg;
    const struct member_peer *p = member_find(m, id);
    return p != NULL && p->acked_term == r->term && p->acked_round == r->round && p->acked_finished == r->finished;
}

static bool has_acked_or_is_witness(const struct member *m, uint64_t id, const void *arg)
{
    return (m->witness.info.id != 0 && id == m->witness.info.id) || has_acked(m, id, arg);
}

void member_finish_now(struct member *m)
{
    struct action a = {.kind = ACTION_FINISH, .code = m->record.code};
    m->leading.preparing = false;
    m->kept.verdict = true;
    for (int i = 0; i < m->peer_count; i++) {
        /* agents that follow us but have no place yet are told, too */
        member_send_action(m, &m->peers[i], &a);
    }
    m->role = MEMBER_OVER;
    m->node.waiting = false;
    m->hooks.act(m->hooks.user, &a, &m->record, NULL);
}

bool member_is_clear(struct member *m)
{
    const struct coordinator *c = m->leading.coordinator;
    if (c == NULL || !c->finished || m->witness.unclear || member_fenced_until(m) > m->now_s) {
        return false;
    }
    for (int i = 0; i < c->node_count; i++) {
        bool own = c->nodes[i].node == MEMBER_OWN_NODE,
             here = own ? m->role != MEMBER_OVER : member_info_of_node(m, c->nodes[i].node) != NULL;
        if (c->nodes[i].state == NODE_IN && here) {
            return false;
        }
    }
    return true;
}

bool member_end_run(struct member *m, double now_s)
{
    m->now_s = now_s;
    if (m->role != MEMBER_OVER || !m->kept.verdict || m->witness.info.id == 0 || m->leading.coordinator == NULL ||
        !m->leading.coordinator->finished || m->witness.clear_told || m->witness.unclear) {
        return true;
    }
    if (!member_is_clear(m)) {
        return false;
    }
    struct message out = {.kind = MESSAGE_PREPARE, .prepare = {.clear = true, .record = m->record}};
    m->witness.clear_told = true;
    member_send(m, m->witness.info.id, &out);
    return true;
}

/* The witness tells the end of the job at once to agents that ask. So it gets the record only when
 * a quorum keeps the end, at least together with the witness. */
static void tell_witness(struct member *m)
{
    const struct record *r = &m->record;
    struct message out = {.kind = MESSAGE_PREPARE, .prepare = {.clear = member_is_clear(m), .record = *r}};
    if (m->witness.info.id != 0 && !has_acked(m, m->witness.info.id, r) &&
        member_quorum(m, r, has_acked_or_is_witness, r)) {
        m->witness.clear_told = out.prepare.clear;
        member_send(m, m->witness.info.id, &out);
    }
}

/* A quorum keeps the end of the job. A leader that was elected when the job was over stays a while
 * for the hosts outside the council, which will ask for the verdict. */
static void tell_verdict(struct member *m)
{
    const struct record *r = &m->record;
    int agents = r->council_count;
    for (int i = 0; i < r->council_count; i++) {
        agents -= peer_is_witness(&r->council[i]);
    }
    if (m->leading.coordinator->finished || r->members <= agents) {
        member_finish_now(m);
        return;
    }
    m->leading.preparing = false;
    m->kept.verdict = true;
    m->leading.finish_at_s = m->now_s + 4 * m->options.beat_s;
    for (int i = 0; i < m->peer_count; i++) {
        if (m->peers[i].same_run) {
            member_tell_end(m, &m->peers[i], true);
        }
    }
}

void member_fence(struct member *m, uint64_t id, double until_s)
{
    if (m->leading.fence_count < MEMBER_FENCES) {
        m->leading.fences[m->leading.fence_count++] = (struct member_fence){id, until_s};
    } else if (until_s > m->leading.fence_until_s) {
        m->leading.fence_until_s = until_s;
    }
}

void member_unfence(struct member *m, uint64_t id)
{
    for (int i = m->leading.fence_count - 1; i >= 0; i--) {
        if (m->leading.fences[i].id == id) {
            m->leading.fences[i] = m->leading.fences[--m->leading.fence_count];
        }
    }
}

static bool has_returned(const struct member *m, uint64_t id)
{
    const struct member_peer *p = member_find(m, id);
    return p != NULL && p->joined && p->returned;
}

/* When the workers of all lost nodes are gone for certain. A time in the past means that they are
 * gone. */
double member_fenced_until(struct member *m)
{
    const struct record *r = &m->record;
    double until_s = m->leading.fence_until_s;
    /* maybe all hosts of the last round are accounted for */
    if (until_s > m->now_s && r->committed) {
        int known = m->node.last_round == r->round && m->node.waiting;
        for (int i = 0; i < m->peer_count; i++) {
            known += m->peers[i].joined && m->peers[i].returned;
        }
        for (int i = 0; i < r->council_count; i++) {
            uint64_t id = r->council[i].id;
            bool led = id == r->leader,
                 gone = member_is_dead(m, id) || (led && m->leading.leader_fenced && !has_returned(m, id));
            known += id != m->options.self.id && gone && (!led || r->leader_in);
        }
        if (known >= r->members) {
            m->leading.fence_until_s = until_s = 0;
        }
    }
    for (int i = 0; i < m->leading.fence_count; i++) {
        until_s = m->leading.fences[i].until_s > until_s ? m->leading.fences[i].until_s : until_s;
    }
    return until_s;
}

/* Goes on when all members of the new council and a quorum of the previous council keep the record.
 * When the job ends, a quorum of the new council is enough. */
void member_check_prepared(struct member *m)
{
    const struct record *r = &m->record;
    if (!m->leading.preparing && !m->leading.inherited) {
        return;
    }
    if (r->finished) {
        tell_witness(m);
    }
    if (!member_quorum(m, r, has_acked, r)) {
        return;
    }
    m->leading.inherited = false;
    if (!m->leading.preparing) {
        /* every agent that can be elected knows that round, or a later one of ours */
        m->record.committed = true;
        member_begin_when_free(m);
        return;
    }
    for (int i = 0; i < r->council_count && !r->finished; i++) {
        if (r->council[i].id != m->options.self.id && !has_acked(m, r->council[i].id, r)) {
            return;
        }
    }
    if (r->finished) {
        tell_verdict(m);
        return;
    }
    if (!member_heard_quorum(m, m->now_s - m->options.lease_s)) {
        /* This process slept and now reads old messages. Others may have begun a round. */
        return;
    }
    m->leading.preparing = false;
    m->record.committed = true;
    m->leading.fence_count = 0;
    m->leading.fence_until_s = 0;
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].returned = false;
    }
    int count = m->leading.start_count;
    m->leading.start_count = 0;
    if (count > 0 && m->hooks.serve != NULL) {
        m->hooks.serve(m->hooks.user, m->leading.starts[0].place.world_size);
    }
    for (int i = 0; i < count; i++) {
        member_deliver(m, &m->leading.starts[i]);
    }
}

/* Asks the agents that have not answered. Every beat repeats this, because an agent may have a new
 * link by now. This function does not ask the witness to keep the job's end; tell_witness does. */
void member_send_prepare(struct member *m)
{
    struct message out = {.kind = MESSAGE_PREPARE, .prepare = {.record = m->record}};
    const struct record *r = &m->record;
    for (int k = 0; k < r->council_count + r->before_count; k++) {
        uint64_t id = k < r->council_count ? r->council[k].id : r->before[k - r->council_count].id;
        bool late = r->finished && id == m->witness.info.id;
        if (id != m->options.self.id && !late && member_find(m, id) != NULL && !has_acked(m, id, r)) {
            member_send(m, id, &out);
        }
    }
}

void member_prepare(struct member *m)
{
    m->leading.preparing = true;
    member_send_prepare(m);
    member_check_prepared(m);
}

/* Notes how many workers the hosts of the round have, by group rank. The text stays empty if it
 * does not fit. */
static void note_sizes(struct member *m)
{
    int *by_group = dt_alloc(((size_t)m->leading.start_count + 1) * sizeof *by_group);
    struct dt_text text;
    dt_text_init(&text);
    for (int i = 0; i < m->leading.start_count; i++) {
        const struct place *p = &m->leading.starts[i].place;
        if (p->group_rank >= 0 && p->group_rank < m->leading.start_count) {
            by_group[p->group_rank] = p->local_world_size;
        }
    }
    for (int i = 0, n; i < m->leading.start_count; i += n) {
        for (n = 1; i + n < m->leading.start_count && by_group[i + n] == by_group[i]; n++) {
        }
        dt_text_printf(&text, "%s%d", i > 0 ? "," : "", by_group[i]);
        if (n > 1) {
            dt_text_printf(&text, "(x%d)", n);
        }
    }
    memset(m->leading.sizes, 0, sizeof m->leading.sizes);
    if (text.size < sizeof m->leading.sizes) {
        memcpy(m->leading.sizes, dt_text_str(&text), text.size);
    }
    dt_text_clear(&text);
    free(by_group);
}

void member_add_witness(const struct member *m, struct record *r)
{
    if (m->witness.info.id != 0) {
        r->council[r->council_count++] = m->witness.info;
    }
}

/* Prepares the record of the round that the held-back STARTs begin. The council consists of the
 * round's first nodes, and always includes the leader. */
static void prepare_round(struct member *m)
{
    struct record *r = &m->record, was = *r;
    const struct coordinator *c = m->leading.coordinator;
    if (r->committed) {
        /* a round that is not committed did not begin, so the council before it stays */
        memcpy(r->before, r->council, sizeof r->before);
        r->before_count = r->council_count;
        r->before_leader = r->leader;
    }
    r->council_count = 0;
    bool with_self = false;
    int most = m->witness.info.id != 0 ? MESSAGE_COUNCIL - 1 : MESSAGE_COUNCIL;
    for (int i = 0; i < m->leading.start_count && r->council_count < most; i++) {
        const struct peer_info *info = member_info_of_node(m, m->leading.starts[i].node);
        if (info != NULL) {
            with_self = with_self || info->id == m->options.self.id;
            r->council[r->council_count++] = *info;
        }
    }
    if (!with_self) {
        r->council_count -= r->council_count == most;
        r->council[r->council_count++] = m->options.self;
    }
    member_add_witness(m, r);
    r->leader = m->options.self.id;
    r->committed = false;
    r->members = m->leading.start_count;
    r->leader_in = false;
    for (int i = 0; i < m->leading.start_count; i++) {
        r->leader_in = r->leader_in || m->leading.starts[i].node == MEMBER_OWN_NODE;
    }
    r->round = c->round;
    r->history = c->history;
    for (int i = 0; i < m->leading.start_count; i++) {
        /* a restart may have been given back while the round waited */
        m->leading.starts[i].place.restarts_used = c->history.restarts_used;
    }
    note_sizes(m);
    member_tell_others(m, &was);
    member_prepare(m);
}

/* Begins the round unless workers of lost nodes may still run, or hosts of the round have not
 * reached each other. */
void member_begin_when_free(struct member *m)
{
    if (m->leading.fenced && m->leading.start_count == 0) {
        m->leading.fenced = false;
    }
    if (m->leading.fenced && !m->leading.inherited && member_fenced_until(m) <= m->now_s && member_all_reached(m)) {
        m->leading.fenced = m->leading.reaching = false;
        if (m->leading.coordinator->doubtful) {
            /* no host was lost, and all hosts reach each other, so the job may end here */
            struct event met = {.kind = EVENT_MET, .node = -1};
            member_lead_step(m, &met, m->now_s);
        }
        if (m->role == MEMBER_LEADING && !m->record.finished) {
            prepare_round(m);
        }
    }
}
