/* Elections, and the records that decide them. A member votes once per term, for an agent that
 * knows no less than the member itself. A quorum keeps a leader's newest record before the leader
 * acts on it. */
#include "launcher/rounds/member_parts.h"

#include <string.h>

/* Whether the agent is in one of the councils whose quorums the record needs. */
static bool is_in(const struct record *r, uint64_t id)
{
    return member_place_of(r->council, r->council_count, id) >= 0 ||
           member_place_of(r->before, r->before_count, id) >= 0;
}

/* ---- elections ---- */

static bool has_vote(const struct member *m, uint64_t id, const void *arg)
{
    (void)arg;
    for (int i = 0; i < m->seeking.vote_count; i++) {
        if (m->seeking.votes[i] == id) {
            return true;
        }
    }
    return false;
}

static bool has_vote_or_is_witness(const struct member *m, uint64_t id, const void *arg)
{
    return (m->witness.info.id != 0 && id == m->witness.info.id) || has_vote(m, id, arg);
}

/* A witness is asked to vote only where its vote decides, because its vote counts as a sign of life
 * of the run. */
static void ask_for_vote(struct member *m, uint64_t peer)
{
    struct message out = {
        .kind = MESSAGE_VOTE_ASK,
        .term = m->seeking.term,
        .vote_ask = {.decisive = member_quorum(m, &m->record, has_vote_or_is_witness, NULL), .record = m->record}};
    member_send(m, peer, &out);
}

void member_count_votes(struct member *m, double now_s)
{
    if (m->seeking.term != 0 && member_quorum(m, &m->record, has_vote, NULL)) {
        m->record.term = m->seeking.term;
        m->seeking.term = 0;
        member_begin_leading(m, now_s);
    }
}

/* Returns a term later than `term` that no other agent asks for: a count, and bits of this agent's
 * id. Two leaders of one term could take followers from each other for ever. Quorums do not prevent
 * that: if a voter dies between the elections, the other agents know all its records, but not its
 * vote. */
static uint64_t next_term(const struct member *m, uint64_t term)
{
    return ((term >> MEMBER_TERM_BITS) + 1) << MEMBER_TERM_BITS |
           (m->options.self.id * 0x9e3779b97f4a7c15ull) >> (64 - MEMBER_TERM_BITS);
}

void member_campaign(struct member *m, double now_s)
{
    const struct record *r = &m->record;
    int place = member_place_of(r->council, r->council_count, m->options.self.id);
    member_mark_all_predecessors_dead(m);
    m->seeking.campaign_at_s = now_s + m->options.beat_s * (1 + 0.2 * (place > 0 ? place : 0));
    if (place < 0 || r->nonce[0] == 0) {
        return; /* our agent does not keep the record */
    }
    uint64_t newest = m->kept.promised > r->term ? m->kept.promised : r->term;
    m->kept.campaigned = m->seeking.term = next_term(m, newest > m->kept.campaigned ? newest : m->kept.campaigned);
    m->seeking.vote_count = 0;
    m->seeking.votes_silent = m->seeking.lost_silent;
    for (int i = 0; i < m->peer_count; i++) {
        uint64_t id = m->peers[i].id;
        if (is_in(r, id)) {
            ask_for_vote(m, id);
        }
    }
    member_count_votes(m, now_s);
}

void member_on_vote_ask(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct record *theirs = &in->vote_ask.record;
    uint64_t peer = p->id;
    if (m->role == MEMBER_SEEKING && m->record.round == 0 && member_find_past(m, theirs->nonce) != NULL) {
        /* the new run never began a round, and we still have the old run's record */
        member_change_run(m, theirs->nonce);
    }
    struct message out = {.kind = MESSAGE_VOTE, .term = in->term, .vote = {.record = m->record}};
    if (memcmp(theirs->nonce, m->record.nonce, sizeof theirs->nonce) != 0) {
        return;
    }
    /* our leader asks for votes, so it does not lead any more */
    if (m->role == MEMBER_FOLLOWING && m->following.leader == peer && in->term > m->following.term) {
        member_lose_leader(m, true, now_s);
    }
    const struct peer_info *leader = member_leader(m);
    if (leader != NULL && m->role != MEMBER_SEEKING && leader->id != peer) {
        struct message redirect = {.kind = MESSAGE_REDIRECT, .redirect = *leader};
        member_send(m, peer, &redirect);
        return;
    }
    if (m->role == MEMBER_SEEKING && now_s >= m->seeking.vote_after_s &&
        record_grants(m->kept.promised, &m->record, in)) {
        m->kept.promised = in->term;
        m->seeking.term = 0;
        out.vote.yes = true;
        out.vote.silent = m->seeking.lost_silent;
    }
    member_send(m, peer, &out);
}

static void count_vote(struct member *m, uint64_t peer, const struct message_vote *vote, double now_s)
{
    struct member_seeking *s = &m->seeking;
    if (has_vote(m, peer, NULL) || s->vote_count == 2 * MESSAGE_COUNCIL) {
        return;
    }
    s->votes[s->vote_count++] = peer;
    s->votes_silent = s->votes_silent && vote->silent;
    member_count_votes(m, now_s);
    if (s->term != 0 && m->witness.info.id != 0 && !has_vote(m, m->witness.info.id, NULL)) {
        ask_for_vote(m, m->witness.info.id);
    }
}

void member_on_vote(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct message_vote *vote = &in->vote;
    if (memcmp(vote->record.nonce, m->record.nonce, sizeof vote->record.nonce) != 0) {
        return;
    }
    /* the voter voted for another agent meanwhile, so we need a newer term */
    if (m->role == MEMBER_LEADING && !vote->yes && in->term > m->record.term) {
        m->kept.promised = in->term > m->kept.promised ? in->term : m->kept.promised;
        member_stop_leading(m);
        member_lose_leader(m, true, now_s);
    }
    if (m->role != MEMBER_SEEKING) {
        return;
    }
    if (record_newer(&vote->record, &m->record)) {
        member_keep(m, &vote->record, p->id); /* the voter knows more: ask again with its record */
        m->seeking.term = 0;
    } else if (vote->yes && in->term == m->seeking.term) {
        count_vote(m, p->id, vote, now_s);
    }
}

/* ---- records ---- */

bool member_refuse_old_term(struct member *m, uint64_t peer, uint64_t term)
{
    if (term >= m->kept.promised) {
        return false;
    }
    struct message out = {.kind = MESSAGE_VOTE, .term = m->kept.promised, .vote = {.record = m->record}};
    member_send(m, peer, &out);
    return true;
}

void member_tell_others(struct member *m, const struct record *was)
{
    struct message out = {
        .kind = MESSAGE_KEEP, .term = m->record.term, .keep = {.info = m->options.self, .record = m->record}};
    for (int i = 0; i < m->peer_count; i++) {
        const struct member_peer *p = &m->peers[i];
        if ((p->counts_us || is_in(was, p->id)) && !is_in(&m->record, p->id)) {
            member_send(m, p->id, &out);
        }
    }
}

/* Sends *r to every linked agent that keeps records with us: by *r, by our own record, or by its
 * own record. That includes the leader of the round in *r, which need not be the agent that sent
 * *r. */
static void tell(struct member *m, const struct record *r, uint64_t from)
{
    m->kept.told.term = r->term;
    m->kept.told.round = r->round;
    m->kept.told.finished = r->finished;
    struct message out = {.kind = MESSAGE_KEEP, .term = r->term, .keep = {.info = m->options.self, .record = *r}};
    for (int i = 0; i < m->peer_count; i++) {
        const struct member_peer *p = &m->peers[i];
        if (p->id != from && (p->counts_us || is_in(r, p->id) || is_in(&m->record, p->id))) {
            member_send(m, p->id, &out);
        }
    }
}

void member_keep(struct member *m, const struct record *r, uint64_t from)
{
    bool told = m->kept.told.term == r->term && m->kept.told.round == r->round && m->kept.told.finished == r->finished;
    if (!told && (is_in(r, m->options.self.id) || is_in(&m->record, m->options.self.id))) {
        tell(m, r, from);
    }
    m->record = *r;
}

void member_on_keep(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct record *theirs = &in->keep.record;
    bool same = memcmp(theirs->nonce, m->record.nonce, sizeof theirs->nonce) == 0;
    p->info.machine = in->keep.info.machine; /* the link does not know the machine */
    member_mark_predecessors_dead(m, &p->info);
    p->same_run = same;
    p->counts_us = same && member_place_of(theirs->council, theirs->council_count, p->id) >= 0 &&
                   is_in(theirs, m->options.self.id);
    p->in_other_run = !same && member_has_begun(theirs->round, theirs->committed) && !theirs->finished;
    m->other_run_seen = m->other_run_seen || (!same && theirs->nonce[0] != 0);
    if (m->role == MEMBER_LEADING && (p->in_other_run || m->other_run_seen)) {
        member_hold_for_others(m, now_s);
    }
    /* when we began to keep our record, we did not know that this agent counts our vote */
    if (p->counts_us && record_newer(&m->record, theirs)) {
        struct message out = {.kind = MESSAGE_KEEP, .keep = {.info = m->options.self, .record = m->record}};
        member_send(m, p->id, &out);
    }
    /* we cannot know which records of our run an agent of another run kept before */
    p->told = same || (theirs->nonce[0] == 0 && theirs->nonce[1] == 0);
    if (!same || m->role == MEMBER_OVER || theirs->round == 0 || !record_newer(theirs, &m->record)) {
        return;
    }
    if (m->role == MEMBER_LEADING && theirs->term == m->record.term) {
        return; /* our own record came back */
    }
    member_keep(m, theirs, p->id);
    m->kept.promised = theirs->term > m->kept.promised ? theirs->term : m->kept.promised;
    m->seeking.term = 0;
    if (m->role == MEMBER_LEADING) { /* another agent has become the leader */
        m->following.heard_s = now_s;
        member_stop_leading(m);
        member_lose_leader(m, true, now_s);
    }
}

void member_on_prepare(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct record *r = &in->prepare.record;
    uint64_t peer = p->id;
    bool same = memcmp(r->nonce, m->record.nonce, sizeof r->nonce) == 0;
    if (!same || member_refuse_old_term(m, peer, in->term) || r->term != in->term || record_newer(&m->record, r)) {
        return;
    }
    member_keep(m, r, peer);
    p->told = true; /* the sender keeps the same record as we do */
    if (m->role != MEMBER_LEADING && m->role != MEMBER_OVER) {
        member_follow(m, peer, in->term, now_s);
    }
    struct message out = {.kind = MESSAGE_ACK, .term = in->term, .ack = {.round = r->round, .finished = r->finished}};
    member_send(m, peer, &out);
}
