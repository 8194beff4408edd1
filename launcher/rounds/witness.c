/* An agent's end of the witness: read the store, decide (witness_step.c), put, reply. */
#include "launcher/rounds/witness.h"

#include "base/error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* in units of dead_s; survivors that can elect another leader have done so within 25/15 of
 * dead_s */
#define LEADERLESS_DEAD 2

void witness_open(struct witness_end *e, struct member *member, const struct witness_options *options)
{
    *e = (struct witness_end){.options = *options, .member = member};
    e->messages = dt_alloc(MESSAGE_KIND_COUNT * sizeof *e->messages);
    e->served = dt_alloc(sizeof *e->served);
    e->answer = dt_alloc(sizeof *e->answer);
    dt_text_init(&e->state);
    dt_text_init(&e->beat);
}

void witness_clear(struct witness_end *e)
{
    free(e->messages);
    free(e->served);
    free(e->answer);
    dt_text_clear(&e->state);
    dt_text_clear(&e->beat);
    *e = (struct witness_end){0};
}

static void call(struct witness_end *e, bool put_state, bool put_beat)
{
    struct witness_call c = {.put_state = put_state,
                             .put_beat = put_beat,
                             .state_revision = e->state_revision,
                             .beat_revision = e->beat_revision,
                             .state = &e->state,
                             .beat = &e->beat,
                             .last = put_state && e->answer->next.record.finished};
    e->busy = true;
    e->options.call(e->options.user, &c);
}

static bool is_waiting(const struct witness_end *e)
{
    bool any = e->asked;
    for (int k = 0; k < MESSAGE_KIND_COUNT; k++) {
        any = any || e->waits[k];
    }
    return any;
}

static void go_on(struct witness_end *e)
{
    if (!e->busy && !e->deciding && is_waiting(e)) {
        call(e, false, false);
    }
}

bool witness_is(const struct witness_end *e, uint64_t peer)
{
    return e->now.id != 0 && peer == e->now.id;
}

void witness_send(struct witness_end *e, const struct message *m)
{
    bool answered =
        m->kind == MESSAGE_JOIN || m->kind == MESSAGE_PREPARE || m->kind == MESSAGE_BEAT || m->kind == MESSAGE_VOTE_ASK;
    bool beaten = m->kind == MESSAGE_BEAT && m->beat.stamp - e->beaten_s < e->options.beat_every_s &&
                  m->term == e->beaten_term && m->beat.round == e->beaten_round &&
                  m->beat.committed == e->beaten_committed;
    if (!e->up || !answered || beaten) {
        return;
    }
    e->messages[m->kind] = *m;
    e->waits[m->kind] = true;
    go_on(e);
}

void witness_ask(struct witness_end *e)
{
    e->asked = true;
    go_on(e);
}

void witness_drop(struct witness_end *e)
{
    e->up = false;
    memset(e->waits, 0, sizeof e->waits);
}

void witness_tick(struct witness_end *e, double now_s)
{
    const struct record *r = &e->member->record;
    if (e->member->role != MEMBER_FOLLOWING || now_s - e->answered_s < e->options.dead_s / 5) {
        return;
    }
    for (int i = 0; i < r->council_count; i++) {
        if (r->council[i].id == e->member->options.self.id) {
            witness_ask(e);
            return;
        }
    }
}

/* Whether our member would begin a run here, if allowed. It has room for its promises in only a few
 * earlier runs. */
static bool wants_a_run(const struct witness_end *e)
{
    const struct member *m = e->member;
    return m->role == MEMBER_SEEKING && m->node.waiting && (m->record.round == 0 || m->kept.past_count < MEMBER_PAST);
}

/* ---- the leader of an earlier run ---- */

/* The agent that began the round in the store; null: this agent began it, or the council does not
 * name the leader. */
static const struct peer_info *leader_before(const struct witness_end *e)
{
    const struct record *r = &e->now.record;
    const struct peer_info *found = NULL;
    for (int i = 0; i < r->council_count && r->leader != e->member->options.self.id; i++) {
        found = r->council[i].id == r->leader ? &r->council[i] : found;
    }
    return found;
}

void witness_refused(struct witness_end *e, uint64_t agent, double now_s)
{
    if (e->gone != agent) {
        e->gone = agent;
        e->gone_since_s = now_s;
    }
}

/* Looks for that leader, if it ran on our machine. If our own agent listens at the leader's port,
 * it is the leader's successor. */
static void look_for_leader(struct witness_end *e, double now_s)
{
    const struct peer_info *self = &e->member->options.self, *p = leader_before(e);
    if (p == NULL || p->pid == 0 || p->machine == 0 || p->machine != self->machine || e->gone == p->id) {
        return;
    }
    if (p->port == self->port && p->address[0] != '\0' && strcmp(p->address, self->address) == 0) {
        witness_refused(e, p->id, now_s);
    } else if (e->options.probe_port != NULL) {
        e->options.probe_port(e->options.user, p);
    }
}

/* Since when that leader is gone for certain; infinity: unknown, or other hosts of its run are here
 * and may go on. */
static double leaderless_since(const struct witness_end *e)
{
    const struct record *r = &e->now.record;
    const struct peer_info *p = leader_before(e);
    for (int i = 0; i < r->council_count; i++) {
        if (r->council[i].id != e->now.id && member_find(e->member, r->council[i].id) != NULL) {
            return INFINITY;
        }
    }
    return p == NULL ? INFINITY : p->pid == 0 ? 0 : p->id == e->gone ? e->gone_since_s : INFINITY;
}

/* Marks that leader as gone, for agents on other machines that would begin a run. Returns true if a
 * call is under way. */
static bool mark_gone(struct witness_end *e, double now_s)
{
    const struct peer_info *p = leader_before(e);
    struct witness_answer *a = e->answer;
    bool silent = now_s >= fmax(e->beat_since_s, leaderless_since(e)) + e->options.dead_s;
    if (!wants_a_run(e) || e->state_revision == 0 || p == NULL || p->pid == 0 || !silent) {
        return false;
    }
    a->next = e->now;
    a->next.record.council[p - e->now.record.council].pid = 0;
    a->put_state = true;
    a->put_beat = false;
    a->reply_count = 0;
    e->served->kind = 0;
    dt_text_reset(&e->state);
    witness_encode(&a->next, &e->state);
    call(e, true, false);
    return true;
}

/* ---- another run ---- */

static double abandoned_at(const struct witness_end *e)
{
    double since_s = e->state_since_s > e->beat_since_s ? e->state_since_s : e->beat_since_s;
    const struct record *r = &e->now.record;
    if (r->round == 0 && r->leader == e->member->options.self.id) {
        return 0; /* we began this run ourselves, and the answer was lost */
    }
    bool nothing = e->state_revision == 0, fresh = e->member->record.round == 0;
    if (nothing) {
        /* A host that was in a round of the vanished run may be the only one that does not know how
         * the run ended. */
        return fresh ? 0 : since_s + e->options.abandoned_s;
    }
    if (r->finished && e->now.clear) {
        return 0;
    }
    if (r->round == 0 || r->finished) {
        return since_s + e->options.dead_s + (r->finished ? e->options.linger_s : 0);
    }
    return fmin(since_s + e->options.abandoned_s,
                fmax(e->beat_since_s, leaderless_since(e)) + LEADERLESS_DEAD * e->options.dead_s);
}

double witness_free_at(const struct witness_end *e)
{
    return wants_a_run(e) && e->stored ? abandoned_at(e) : 0;
}

static void put_beat_text(struct witness_end *e)
{
    dt_text_reset(&e->beat);
    dt_text_printf(&e->beat, "%016llx", (unsigned long long)e->member->options.self.id);
}

/* Returns true if a call is under way. */
static bool begin_a_run(struct witness_end *e, double now_s)
{
    if (!wants_a_run(e) || now_s < abandoned_at(e)) {
        return false;
    }
    struct message_witness *next = &e->answer->next;
    *next = (struct message_witness){
        .id = (e->member->options.nonce[1] ^ (e->member->kept.run_count + 1) * 0x9e3779b97f4a7c15ull) | 1};
    struct peer_info info = witness_info(next->id);
    member_witness(e->member, &info);
    member_first_record(e->member, &next->record);
    next->promised = next->record.term;
    dt_text_reset(&e->state);
    witness_encode(next, &e->state);
    put_beat_text(e);
    e->beginning = true;
    call(e, true, true);
    return true;
}

/* Whether the store has less than it had: its data were deleted, or replaced by an older copy.
 * Another run in the store counts only if it has a round. */
static bool is_lost(const struct witness_end *e, const struct witness_result *r, const struct message_witness *w)
{
    const struct message_witness *had = &e->now;
    /* agents that did not know the verdict elected a member that leads */
    bool over = had->record.finished && e->member->role != MEMBER_LEADING;
    /* the store drops a finished run after some time */
    if (!e->stored || had->id == 0 || over) {
        return false;
    }
    bool older = w->promised < had->promised || record_newer(&had->record, &w->record);
    return r->state_revision == 0 || (w->id == had->id ? older : had->record.round > 0 && w->record.round == 0);
}

/* Whether the store has another run without a round, while our member's run has one. An agent that
 * found the store empty began the other run. */
static bool is_only_begun(const struct witness_end *e, const struct message_witness *w)
{
    const struct record *own = &e->member->record;
    return w->record.round == 0 && !w->record.finished && own->round > 0 &&
           memcmp(w->record.nonce, own->nonce, sizeof own->nonce) != 0;
}

/* The id of the witness in the council of a record; 0: there is none. */
static uint64_t witness_of(const struct record *r)
{
    for (int i = 0; i < r->council_count; i++) {
        if (peer_is_witness(&r->council[i])) {
            return r->council[i].id;
        }
    }
    return 0;
}

/* Rewrites the witness as a follower of our member, which leads for certain. Such a leader knows
 * everything that matters of the lost state, because no agent was elected against it, with the vote
 * of the witness or without. This may replace a run without a round; the leader of that run then
 * finds that no witness keeps its first round. No other agent can rewrite the witness, which has no
 * vote until then. Returns true if a call is under way. */
static bool rewrite(struct witness_end *e, bool only_begun, double now_s)
{
    const struct member *m = e->member;
    uint64_t id = only_begun ? witness_of(&m->record) : e->now.id;
    if (id == 0 || (!only_begun && m->witness.info.id != id) || !member_leads(m, now_s)) {
        return false;
    }
    e->answer->next = (struct message_witness){.id = id, .promised = m->record.term, .record = m->record};
    dt_text_reset(&e->state);
    witness_encode(&e->answer->next, &e->state);
    put_beat_text(e);
    e->rewriting = true;
    call(e, true, true);
    return true;
}

/* Handles a store that lost its data. Returns true if there is nothing to decide now. */
static bool handle_loss(struct witness_end *e, double now_s)
{
    bool seeks = e->member->role == MEMBER_SEEKING;
    if (rewrite(e, false, now_s)) {
        return true;
    }
    if (seeks && !e->loss_told && e->member->record.round > 0) {
        e->loss_told = true;
        e->options.say(e->options.user, "etcd lost what it kept of this run: whoever leads the others writes it anew; "
                                        "if nobody does, another run begins");
    }
    e->asked = e->asked && seeks && e->state_revision == 0;
    memset(e->waits, 0, sizeof e->waits);
    return !seeks;
}

/* Notes that the store has this witness from now on. */
static void meet(struct witness_end *e, const struct message_witness *w, double now_s)
{
    if (e->up && w->id != e->now.id) {
        witness_drop(e);
        if (e->member->record.round > 0 &&
            memcmp(w->record.nonce, e->member->record.nonce, sizeof w->record.nonce) != 0) {
            e->options.say(e->options.user, "etcd: another run of this name has begun");
        }
        member_down(e->member, e->now.id, MEMBER_LOST, now_s);
    }
    if (w != &e->now) {
        e->now = *w;
    }
    struct peer_info info = witness_info(e->now.id);
    member_witness(e->member, &info);
}

static void link_up(struct witness_end *e, double now_s)
{
    if (!e->up && e->now.id != 0) {
        struct peer_info info = witness_info(e->now.id);
        e->up = true;
        member_up(e->member, &info, now_s);
    }
}

/* Handles messages and replies until something must be put. */
static void serve(struct witness_end *e, double now_s)
{
    if (begin_a_run(e, now_s) || mark_gone(e, now_s)) {
        return;
    }
    if (e->asked) {
        e->asked = false;
        link_up(e, now_s);
    }
    for (int k = 0; k < MESSAGE_KIND_COUNT; k++) {
        if (!e->waits[k] || !e->up || e->state_revision == 0) {
            e->waits[k] = false;
            continue;
        }
        uint64_t self = e->member->options.self.id;
        bool silent = now_s - e->beat_since_s >= e->options.dead_s;
        bool leaderless = silent || e->leader == self || member_is_dead(e->member, e->leader);
        struct witness_answer *a = e->answer;
        witness_step(&e->now, leaderless, self, &e->messages[k], a);
        if (a->reply_count > 0 && a->replies[0].kind == MESSAGE_VOTE) {
            a->replies[0].vote.silent = silent;
        }
        if (a->put_state || a->put_beat) {
            *e->served = e->messages[k];
            e->waits[k] = false;
            dt_text_reset(&e->state);
            witness_encode(&a->next, &e->state);
            put_beat_text(e);
            call(e, a->put_state, a->put_beat);
            return;
        }
        e->waits[k] = false;
        for (int i = 0; i < a->reply_count; i++) {
            member_message(e->member, e->now.id, &a->replies[i], now_s);
        }
    }
}

static void on_put(struct witness_end *e, bool state, bool beat, int64_t revision, double now_s)
{
    struct witness_answer *a = e->answer;
    uint64_t self = e->member->options.self.id;
    if (state) {
        e->state_revision = revision;
        e->state_since_s = now_s;
    }
    if (beat) {
        e->beat_revision = revision;
        e->beat_since_s = now_s;
        e->leader = self;
    }
    e->loss_told = false;
    meet(e, &a->next, now_s);
    if (e->rewriting) {
        e->rewriting = false;
        e->options.say(e->options.user, "etcd had lost what it kept of this run: written anew, the job goes on");
        link_up(e, now_s);
        serve(e, now_s);
        return;
    }
    if (e->beginning) {
        e->beginning = e->asked = false;
        if (wants_a_run(e)) {
            /* Otherwise the member found a leader while the answer was on its way. Of the two runs,
             * the one that got further will replace the other. */
            member_lead(e->member, now_s);
        }
        link_up(e, now_s);
        serve(e, now_s);
        return;
    }
    const struct message *m = e->served;
    if (m->kind == MESSAGE_BEAT) {
        e->beaten_s = m->beat.stamp;
        e->beaten_term = m->term;
        e->beaten_round = m->beat.round;
        e->beaten_committed = m->beat.committed;
    }
    e->served->kind = 0;
    for (int i = 0; i < a->reply_count; i++) {
        member_message(e->member, e->now.id, &a->replies[i], now_s);
    }
    serve(e, now_s);
}

static void on_read(struct witness_end *e, const struct witness_result *r, double now_s)
{
    struct message_witness w = {0};
    struct dt_error err;
    if (r->state_revision != 0 && witness_decode(&w, r->state->data, r->state->size, &err) != 0) {
        char line[640];
        (void)snprintf(line, sizeof line, "etcd: what it keeps for this run is none of ours: %s", err.text);
        if (!e->doubtful) {
            e->options.say(e->options.user, line);
        }
        e->doubtful = true;
        e->asked = false;
        memset(e->waits, 0, sizeof e->waits);
        return;
    }
    if (!e->stored || r->state_revision != e->state_revision) {
        e->state_since_s = now_s;
    }
    if (!e->stored || r->beat_revision != e->beat_revision) {
        e->beat_since_s = now_s;
    }
    bool lost = is_lost(e, r, &w);
    e->stored = true;
    e->state_revision = r->state_revision;
    e->beat_revision = r->beat_revision;
    e->leader = r->beat_revision != 0 ? strtoull(dt_text_str(r->beat), NULL, 16) : 0;
    if ((lost && handle_loss(e, now_s)) ||
        (r->state_revision != 0 && is_only_begun(e, &w) && rewrite(e, true, now_s))) {
        return;
    }
    meet(e, r->state_revision != 0 ? &w : &e->now, now_s);
    if (wants_a_run(e) && e->state_revision != 0) {
        look_for_leader(e, now_s);
    }
    serve(e, now_s);
}

void witness_answered(struct witness_end *e, const struct witness_result *r, double now_s)
{
    e->busy = false;
    e->deciding = true;
    if (r->failed) { /* the member sends again what matters */
        e->served->kind = 0;
        e->beginning = e->rewriting = e->asked = false;
        memset(e->waits, 0, sizeof e->waits);
    } else if (r->put) {
        e->answered_s = now_s;
        bool both = e->beginning || e->rewriting;
        on_put(e, both || e->answer->put_state, both || e->answer->put_beat, r->revision, now_s);
    } else {
        enum message_kind k = e->served->kind;
        if (k != 0 && !e->waits[k]) { /* the store changed meanwhile: try again */
            e->messages[k] = *e->served;
            e->waits[k] = true;
        }
        e->served->kind = 0;
        e->beginning = e->rewriting = false;
        e->answered_s = now_s;
        on_read(e, r, now_s);
    }
    e->deciding = false;
    go_on(e); /* the member may have sent more meanwhile */
}
