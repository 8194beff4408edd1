/* Who may lead next, and the record by which that is decided: a member gives its vote once per
 * term, to one that knows no less than itself, and a leader's newest record is kept by a quorum
 * before anything follows from it. */
#include "launcher/rounds/member_parts.h"

#include <string.h>

/* In one of the councils whose quorums it needs. */
static bool is_in(const struct record *r, uint64_t id)
{
    return member_place_of(r->council, r->council_count, id) >= 0 ||
           member_place_of(r->before, r->before_count, id) >= 0;
}

/* ---- elections ---- */

static bool has_vote(const struct member *m, uint64_t id, const void *arg)
{
    (void)arg;
    for (int i = 0; i < m->vote_count; i++) {
        if (m->votes[i] == id) {
            return true;
        }
    }
    return false;
}

static bool has_vote_or_is_witness(const struct member *m, uint64_t id, const void *arg)
{
    return (m->witness.id != 0 && id == m->witness.id) || has_vote(m, id, arg);
}

/* granted: with this vote it is elected. A witness gives its vote for nothing less: it counts as
 * a sign of life of the run. */
static void ask_for_vote(struct member *m, uint64_t peer)
{
    struct message out = {.kind = MESSAGE_VOTE_ASK,
                          .term = m->campaign,
                          .granted = member_quorum(m, &m->record, has_vote_or_is_witness, NULL),
                          .record = m->record};
    member_send(m, peer, &out);
}

void member_count_votes(struct member *m, double now_s)
{
    if (m->campaign != 0 && member_quorum(m, &m->record, has_vote, NULL)) {
        m->record.term = m->campaign;
        m->campaign = 0;
        member_begin_leading(m, now_s);
    }
}

/* A term later than `term` that nobody else asks for: a count, and who asks. Two leaders of one
 * term could take followers from each other for ever, and quorums do not keep them apart: of a
 * voter that died in between the others know every record, but not its vote. */
static uint64_t next_term(const struct member *m, uint64_t term)
{
    return ((term >> MEMBER_TERM_BITS) + 1) << MEMBER_TERM_BITS |
           (m->options.self.id * 0x9e3779b97f4a7c15ull) >> (64 - MEMBER_TERM_BITS);
}

void member_campaign(struct member *m, double now_s)
{
    const struct record *r = &m->record;
    int place = member_place_of(r->council, r->council_count, m->options.self.id);
    member_bury_all_predecessors(m);
    m->campaign_at_s = now_s + m->options.beat_s * (1 + 0.2 * (place > 0 ? place : 0));
    if (place < 0 || r->nonce[0] == 0) {
        return; /* not one of those that hold the state */
    }
    uint64_t newest = m->promised > r->term ? m->promised : r->term;
    m->campaigned = m->campaign = next_term(m, newest > m->campaigned ? newest : m->campaigned);
    m->vote_count = 0;
    m->votes_silent = m->lost_silent;
    for (int i = 0; i < m->peer_count; i++) {
        uint64_t id = m->peers[i].id;
        if (is_in(r, id)) {
            ask_for_vote(m, id);
        }
    }
    member_count_votes(m, now_s);
}

void member_on_vote_ask(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    if (m->role == MEMBER_SEEKING && m->record.round == 0 && member_find_past(m, in->record.nonce) != NULL) {
        member_change_run(m, in->record.nonce); /* nothing came of the new run, and the old one
                                                 * is not lost */
    }
    struct message out = {.kind = MESSAGE_VOTE, .term = in->term, .record = m->record};
    if (memcmp(in->record.nonce, m->record.nonce, sizeof in->record.nonce) != 0) {
        return;
    }
    /* it does not lead any more */
    if (m->role == MEMBER_FOLLOWING && m->leader == peer && in->term > m->leader_term) {
        member_lose_leader(m, true, now_s);
    }
    const struct peer_info *leader = member_leader(m);
    if (leader != NULL && m->role != MEMBER_SEEKING && leader->id != peer) {
        struct message redirect = {.kind = MESSAGE_REDIRECT, .info = *leader};
        member_send(m, peer, &redirect);
        return;
    }
    out.granted = m->role == MEMBER_SEEKING && now_s >= m->vote_after_s && record_grants(m->promised, &m->record, in);
    if (out.granted) {
        m->promised = in->term;
        m->campaign = 0;
        out.count = m->lost_silent;
    }
    member_send(m, peer, &out);
}

void member_on_vote(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    if (memcmp(in->record.nonce, m->record.nonce, sizeof in->record.nonce) != 0) {
        return;
    }
    /* its vote went to another meanwhile: we need a newer term */
    if (m->role == MEMBER_LEADING && !in->granted && in->term > m->record.term) {
        m->promised = in->term > m->promised ? in->term : m->promised;
        member_stop_leading(m);
        member_lose_leader(m, true, now_s);
    }
    if (m->role != MEMBER_SEEKING) {
        return;
    }
    if (record_newer(&in->record, &m->record)) {
        member_keep(m, &in->record, peer); /* somebody knows more: ask again with that */
        m->campaign = 0;
        return;
    }
    if (in->granted && in->term == m->campaign && !has_vote(m, peer, NULL) && m->vote_count < 2 * MESSAGE_COUNCIL) {
        m->votes[m->vote_count++] = peer;
        m->votes_silent = m->votes_silent && in->count == 1;
        member_count_votes(m, now_s);
        if (m->campaign != 0 && m->witness.id != 0 && !has_vote(m, m->witness.id, NULL)) {
            ask_for_vote(m, m->witness.id);
        }
    }
}

/* ---- records ---- */

bool member_refuse_old_term(struct member *m, uint64_t peer, const struct message *in)
{
    if (in->term >= m->promised) {
        return false;
    }
    struct message out = {.kind = MESSAGE_VOTE, .term = m->promised, .record = m->record};
    member_send(m, peer, &out);
    return true;
}

void member_tell_others(struct member *m, const struct record *was)
{
    struct message out = {.kind = MESSAGE_KEEP, .term = m->record.term, .info = m->options.self, .record = m->record};
    for (int i = 0; i < m->peer_count; i++) {
        const struct member_peer *p = &m->peers[i];
        if ((p->counts_us || is_in(was, p->id)) && !is_in(&m->record, p->id)) {
            member_send(m, p->id, &out);
        }
    }
}

/* To everybody linked who keeps records with us, by *r, by our own record or by theirs. Who led
 * its round need not be who leads with it now. */
static void tell(struct member *m, const struct record *r, uint64_t from)
{
    m->told_term = r->term;
    m->told_round = r->round;
    m->told_finished = r->finished;
    struct message out = {.kind = MESSAGE_KEEP, .term = r->term, .info = m->options.self, .record = *r};
    for (int i = 0; i < m->peer_count; i++) {
        const struct member_peer *p = &m->peers[i];
        if (p->id != from && (p->counts_us || is_in(r, p->id) || is_in(&m->record, p->id))) {
            member_send(m, p->id, &out);
        }
    }
}

void member_keep(struct member *m, const struct record *r, uint64_t from)
{
    bool told = m->told_term == r->term && m->told_round == r->round && m->told_finished == r->finished;
    if (!told && (is_in(r, m->options.self.id) || is_in(&m->record, m->options.self.id))) {
        tell(m, r, from);
    }
    m->record = *r;
}

void member_on_keep(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    bool same = memcmp(in->record.nonce, m->record.nonce, sizeof m->record.nonce) == 0;
    p->info.machine = in->info.machine; /* the link does not know it */
    member_bury_predecessors(m, &p->info);
    p->same_run = same;
    p->counts_us = same && member_place_of(in->record.council, in->record.council_count, p->id) >= 0 &&
                   is_in(&in->record, m->options.self.id);
    p->elsewhere = !same && member_has_begun(in->record.round, in->record.committed) && !in->record.finished;
    m->strays = m->strays || (!same && in->record.nonce[0] != 0);
    if (m->role == MEMBER_LEADING && (p->elsewhere || m->strays)) {
        member_hold_for_others(m, now_s);
    }
    /* as we kept ours, we did not know that it does */
    if (p->counts_us && record_newer(&m->record, &in->record)) {
        struct message out = {.kind = MESSAGE_KEEP, .info = m->options.self, .record = m->record};
        member_send(m, p->id, &out);
    }
    /* of another run: what it kept of ours before, we cannot know */
    p->told = same || (in->record.nonce[0] == 0 && in->record.nonce[1] == 0);
    if (!same || m->role == MEMBER_OVER || in->record.round == 0 || !record_newer(&in->record, &m->record)) {
        return;
    }
    if (m->role == MEMBER_LEADING && in->record.term == m->record.term) {
        return; /* our own, on its way back */
    }
    member_keep(m, &in->record, p->id);
    m->promised = in->record.term > m->promised ? in->record.term : m->promised;
    m->campaign = 0;
    if (m->role == MEMBER_LEADING) { /* another one leads since */
        m->leader_heard_s = now_s;
        member_stop_leading(m);
        member_lose_leader(m, true, now_s);
    }
}

void member_on_prepare(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    bool same = memcmp(in->record.nonce, m->record.nonce, sizeof m->record.nonce) == 0;
    if (!same || member_refuse_old_term(m, peer, in) || in->record.term != in->term ||
        record_newer(&m->record, &in->record)) {
        return;
    }
    member_keep(m, &in->record, peer);
    member_find(m, peer)->told = true; /* it keeps what we keep */
    if (m->role != MEMBER_LEADING && m->role != MEMBER_OVER) {
        member_follow(m, peer, in->term, now_s);
    }
    struct message out = {
        .kind = MESSAGE_ACK, .term = in->term, .round = in->record.round, .finished = in->record.finished};
    member_send(m, peer, &out);
}
