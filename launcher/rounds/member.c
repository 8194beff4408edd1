/* What every member does: messages, links and time. Seeking a leader is in member_seek.c, elections
 * and records in member_elect.c, leading in member_lead.c. */
#include "launcher/rounds/member.h"

#include "launcher/rounds/member_parts.h"

#include "base/error.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void member_init(struct member *m, const struct member_options *options, const struct member_hooks *hooks)
{
    memset(m, 0, sizeof *m);
    m->options = *options;
    m->hooks = *hooks;
    m->record.history.best_step = m->record.history.best_saved = -1;
    m->node.firm_order = options->self.order >= 0;
}

void member_clear(struct member *m)
{
    member_stop_leading(m);
    free(m->peers);
    free(m->slots);
    memset(m, 0, sizeof *m);
}

void member_say(struct member *m, const char *fmt, ...)
{
    char line[512];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    m->hooks.say(m->hooks.user, line);
}

void member_act(struct member *m, enum action_kind kind, int code, const char *why)
{
    struct action a = {.kind = kind, .code = code};
    if (kind == ACTION_FINISH || kind == ACTION_REFUSE) {
        m->role = MEMBER_OVER;
        m->node.waiting = false;
    }
    m->hooks.act(m->hooks.user, &a, &m->record, why);
}

struct member_past *member_find_past(struct member *m, const uint64_t *nonce)
{
    for (int i = 0; i < m->kept.past_count; i++) {
        if (memcmp(nonce, m->kept.past[i].record.nonce, sizeof m->kept.past[i].record.nonce) == 0) {
            return &m->kept.past[i];
        }
    }
    return NULL;
}

/* The promises and the record of the previous run are not forgotten. They count again if the agent
 * comes back to that run. */
void member_change_run(struct member *m, const uint64_t *nonce)
{
    struct member_past was = {m->record, m->kept.promised}, *back = member_find_past(m, nonce);
    if (back != NULL) {
        m->record = back->record;
        m->kept.promised = back->promised;
        *back = m->kept.past[--m->kept.past_count];
    } else {
        m->record = (struct record){.nonce = {nonce[0], nonce[1]}, .history = {.best_step = -1, .best_saved = -1}};
        m->kept.promised = 0;
    }
    m->kept.campaigned = m->kept.promised;
    m->node.last_round = 0;
    m->cause.past = true; /* people were not told yet */
    m->options.self.order = m->node.firm_order ? m->options.self.order : -1;
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].told = false;
    }
    m->kept.told.term = 0;
    if (was.record.round > 0) {
        m->kept.past[m->kept.past_count++] = was;
    }
}

void member_send(struct member *m, uint64_t peer, struct message *message)
{
    if (message->term == 0) {
        message->term = m->record.term;
    }
    m->hooks.send(m->hooks.user, peer, message);
}

int member_place_of(const struct peer_info *list, int count, uint64_t id)
{
    for (int i = 0; i < count; i++) {
        if (list[i].id == id) {
            return i;
        }
    }
    return -1;
}

const struct peer_info *member_leader(const struct member *m)
{
    if (m->role == MEMBER_LEADING) {
        return &m->options.self;
    }
    return m->role == MEMBER_FOLLOWING && m->leader_info.id == m->following.leader ? &m->leader_info : NULL;
}

/* ---- messages ---- */

/* Whether a run ever had a round. A first round that was only prepared may fail to begin, and
 * another host may still join it. */
bool member_has_begun(int round, bool committed)
{
    return round > 1 || (round == 1 && committed);
}

/* An agent that never began a round follows the leader of another run. All others do so only as
 * member_rival.c says. */
static void on_beat(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct message_beat *beat = &in->beat;
    uint64_t peer = p->id;
    bool same = memcmp(beat->nonce, m->record.nonce, sizeof beat->nonce) == 0;
    if (!same && m->record.round > 0 && !member_leaves_run(m, p, beat, now_s)) {
        if (m->role == MEMBER_FOLLOWING && peer == m->following.leader) {
            /* the leader gave our run up; its next messages are about its new run */
            member_lose_leader(m, true, now_s);
        }
        return;
    }
    if (same && (in->term < m->record.term || member_refuse_old_term(m, peer, in->term))) {
        return;
    }
    if (m->role == MEMBER_LEADING && (same ? in->term <= m->record.term : beat->round == 0)) {
        return;
    }
    if (!same) {
        member_change_run(m, beat->nonce);
    }
    if (beat->committed && in->term == m->record.term && beat->round == m->record.round) {
        m->record.committed = true;
    }
    member_follow(m, peer, in->term, now_s);
    struct member_following *f = &m->following;
    m->leader_info = beat->info;
    p = member_find(m, peer); /* links may have been closed, and peers moved */
    /* the link knew only the address of the host */
    memcpy(p->info.host, beat->info.host, sizeof p->info.host);
    m->node.spare = beat->spare;
    (void)snprintf(m->node.wait_text, sizeof m->node.wait_text, "%.255s", beat->wait_text);
    f->stamp = fmax(f->stamp, beat->stamp);
    f->echo_s = fmax(f->echo_s, beat->echo);
    f->lease_s = fmax(f->lease_s, f->echo_s);
    struct message out = {.kind = MESSAGE_BEAT_ACK, .term = in->term, .beat_ack = {.stamp = now_s, .echo = f->stamp}};
    member_send(m, peer, &out);
}

static void on_beat_ack(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    (void)now_s;
    p->stamp = fmax(p->stamp, in->beat_ack.stamp);
    if (m->role == MEMBER_LEADING && in->term == m->record.term) {
        p->lease_s = fmax(p->lease_s, in->beat_ack.echo);
    }
    if (p->id == m->witness.info.id) {
        m->witness.heard_s = fmax(m->witness.heard_s, p->lease_s);
    }
}

/* Notes why our round ended without its leader. If there are workers, the job prints the reason
 * when they end. */
static void tell_loss(struct member *m, const char *text)
{
    bool set = member_set_host_cause(m, text, "");
    if (m->node.waiting) {
        member_say_cause(m, text, "", set);
    }
}

/* Gives up a leader that has not heard us for so long that it may count us as lost. */
static void give_up_leader(struct member *m, double now_s)
{
    uint64_t leader = m->following.leader;
    char text[256];
    (void)snprintf(text, sizeof text, "host %s: no answer from this coordinator for %.1f s; looking for another one",
                   m->leader_info.id == leader ? m->leader_info.host : "?", now_s - m->following.lease_s);
    tell_loss(m, text);
    m->hooks.drop(m->hooks.user, leader);
    member_down(m, leader, MEMBER_LOST, now_s);
}

/* Returns true if our node begins the round of a START. */
static bool takes_start(struct member *m, uint64_t leader, const struct message_action *start, double now_s)
{
    if (!m->node.waiting) {
        return false;
    }
    if (now_s - m->following.echo_s >= m->options.lease_s) {
        /* too late: the leader has given us up meanwhile, or will hear that we start over */
        give_up_leader(m, now_s);
        return false;
    }
    /* not the time when we began to follow, because this message may be old */
    m->following.lease_s = m->following.echo_s;
    member_keep(m, &start->record, leader);
    member_forget_past_cause(m);
    member_drop_other_links(m);
    m->node.last_round = start->record.round;
    m->options.self.order = start->order;
    m->node.waiting = false;
    return true;
}

static void on_action(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct action *a = &in->action.action;
    bool starts = a->kind == ACTION_START;
    if (in->term < m->kept.promised || (starts && !takes_start(m, p->id, &in->action, now_s))) {
        return;
    }
    if (a->kind == ACTION_FINISH) {
        m->role = MEMBER_OVER;
        m->node.waiting = false;
        m->record.finished = m->kept.verdict = true;
        m->record.code = a->code;
    }
    if ((a->kind == ACTION_END || a->kind == ACTION_PAUSE) && m->node.waiting) {
        return; /* our node had not begun that round */
    }
    m->hooks.act(m->hooks.user, a, &m->record, starts ? in->action.sizes : NULL);
}

void member_tell_end(struct member *m, const struct member_peer *p, bool of_this_run)
{
    struct message out = {.kind = MESSAGE_REFUSE, .refuse = {.code = DT_EXIT_TEMPORARY}};
    struct message_refuse *refuse = &out.refuse;
    if (of_this_run) {
        refuse->finished = true;
        memcpy(refuse->nonce, m->record.nonce, sizeof refuse->nonce);
        refuse->code = m->record.code;
    } else {
        (void)snprintf(refuse->text, sizeof refuse->text, "this run ended");
    }
    member_send(m, p->id, &out);
}

/* Answers a JOIN while we do not lead. An agent that ended without a verdict does not know how the
 * others fare. */
static void on_join(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct peer_info *leader = member_leader(m);
    (void)now_s;
    if (m->kept.verdict) {
        member_tell_end(m, p, memcmp(in->join.nonce, m->record.nonce, sizeof in->join.nonce) == 0);
    } else if (leader != NULL && leader->id != p->id) {
        struct message out = {.kind = MESSAGE_REDIRECT, .redirect = *leader};
        member_send(m, p->id, &out);
    }
}

static void on_redirect(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct peer_info *to = &in->redirect;
    bool has_round = m->role == MEMBER_LEADING && m->record.round > 0, linked = member_find(m, to->id) != NULL;
    (void)p, (void)now_s;
    if (to->id == m->options.self.id || member_is_dead(m, to->id)) {
        return;
    }
    if (!linked) { /* if we lead a round already, that agent leads another run */
        m->hooks.connect(m->hooks.user, to);
    } else if (!has_round) {
        member_send_join(m, to->id);
    }
}

/* A quorum kept the verdict, so it stands whichever agent sends it. */
static void take_verdict(struct member *m, const struct message_refuse *in, double now_s)
{
    /* otherwise our leader tells people now */
    if (m->role != MEMBER_FOLLOWING || m->node.waiting || now_s - m->following.lease_s >= m->options.lease_s) {
        member_say(m, "the other hosts ended the job, with exit code %d", in->code);
    }
    member_stop_leading(m);
    m->record.finished = m->kept.verdict = true;
    m->record.code = in->code;
    member_act(m, ACTION_REFUSE, in->code, in->text);
}

/* We are refused. A witness that names another run, which goes on, knows for certain that our run
 * is over. A node that was never in a round of our run may join that other run. */
static void on_refuse(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct message_refuse *no = &in->refuse;
    bool led = m->role == MEMBER_LEADING, by_witness = p->id == m->witness.info.id,
         by_leader = m->role == MEMBER_FOLLOWING && p->id == m->following.leader;
    bool named = no->nonce[0] != 0 || no->nonce[1] != 0,
         other = named && memcmp(no->nonce, m->record.nonce, sizeof no->nonce) != 0;
    if (no->finished && !other) {
        take_verdict(m, no, now_s);
        return;
    }
    if (by_witness && named && !other) {
        return; /* the witness answered a message from before we joined the run that it keeps */
    }
    if (led && by_witness) {
        member_stand_down(m, "another run of this name began while etcd was away from this host for more than %.0f s",
                          m->options.dead_s, now_s);
    }
    if (m->role == MEMBER_SEEKING && by_witness && other && m->node.last_round == 0 &&
        m->kept.past_count < MEMBER_PAST) {
        m->seeking.term = 0;
        member_change_run(m, (const uint64_t[2]){0, 0});
    } else if (!led && (m->role == MEMBER_SEEKING || by_leader)) {
        member_act(m, ACTION_REFUSE, no->code, no->text);
    }
}

static void on_bye(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    (void)in;
    p->left = true;
    member_down(m, p->id, MEMBER_ENDED, now_s);
}

static void on_cause(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    (void)p, (void)now_s;
    (void)member_set_cause(m, in->cause.round, &in->cause.cause);
}

static void note_time(struct member *m, double now_s)
{
    m->now_s = now_s;
    if (m->sleep.due_s > 0 && now_s - m->sleep.due_s > m->options.beat_s &&
        now_s - m->sleep.awake_s > 10 * m->options.beat_s) {
        m->sleep.awake_s = now_s; /* the messages of the time between are not read yet */
        m->sleep.slept_s = now_s - m->sleep.due_s;
        m->sleep.told = false;
    }
}

int member_check(const struct member *m, const struct message *in, double now_s, struct dt_error *err)
{
    const struct action *a = &in->action.action;
    double echo = in->kind == MESSAGE_BEAT ? in->beat.echo : in->kind == MESSAGE_BEAT_ACK ? in->beat_ack.echo : 0;
    if (echo > now_s) {
        return dt_fail(err, DT_INVALID, "%s message: it echoes what this host will say in %.3g s",
                       message_name(in->kind), echo - now_s);
    }
    if (in->kind != MESSAGE_ACTION || a->kind != ACTION_START || !m->node.waiting) {
        return 0;
    }
    if (a->place.local_world_size != m->node.join.local_world_size) {
        return dt_fail(err, DT_INVALID, "action message: start of %d workers on this host, which has %d",
                       a->place.local_world_size, m->node.join.local_world_size);
    }
    if (a->place.group_world_size > m->options.rounds.nodes_max) {
        return dt_fail(err, DT_INVALID, "action message: start of a round of %d hosts, of which there are at most %d",
                       a->place.group_world_size, m->options.rounds.nodes_max);
    }
    return 0;
}

#define ALIVE(h) [MEMBER_SEEKING] = h, [MEMBER_FOLLOWING] = h, [MEMBER_LEADING] = h
#define ALWAYS(h) ALIVE(h), [MEMBER_OVER] = h

/* The handler of a message in each role. A role without a handler ignores the message. of_leader:
 * only our leader may send the message. */
static const struct {
    bool of_leader;
    member_handler *in[MEMBER_ROLE_COUNT];
} handlers[MESSAGE_KIND_COUNT] = {
    [MESSAGE_JOIN] = {.in = {[MEMBER_SEEKING] = on_join,
                             [MEMBER_FOLLOWING] = on_join,
                             [MEMBER_LEADING] = member_on_join,
                             [MEMBER_OVER] = on_join}},
    [MESSAGE_REFUSE] = {.in = {ALIVE(on_refuse)}},
    [MESSAGE_REDIRECT] = {.in = {[MEMBER_SEEKING] = on_redirect, [MEMBER_LEADING] = on_redirect}},
    [MESSAGE_PREPARE] = {.in = {ALWAYS(member_on_prepare)}},
    [MESSAGE_ACK] = {.in = {[MEMBER_LEADING] = member_on_ack}},
    [MESSAGE_EVENT] = {.in = {[MEMBER_LEADING] = member_on_event}},
    [MESSAGE_ACTION] = {.of_leader = true, .in = {[MEMBER_FOLLOWING] = on_action}},
    [MESSAGE_BEAT] = {.in = {ALIVE(on_beat)}},
    [MESSAGE_BEAT_ACK] = {.in = {ALWAYS(on_beat_ack)}},
    [MESSAGE_VOTE_ASK] = {.in = {ALWAYS(member_on_vote_ask)}},
    [MESSAGE_VOTE] = {.in = {[MEMBER_SEEKING] = member_on_vote, [MEMBER_LEADING] = member_on_vote}},
    [MESSAGE_KEEP] = {.in = {ALWAYS(member_on_keep)}},
    [MESSAGE_BYE] = {.in = {ALWAYS(on_bye)}},
    [MESSAGE_PROBE] = {.of_leader = true, .in = {[MEMBER_FOLLOWING] = member_on_probe}},
    [MESSAGE_REACH] = {.in = {[MEMBER_LEADING] = member_on_reach}},
    [MESSAGE_CAUSE] = {.of_leader = true, .in = {[MEMBER_FOLLOWING] = on_cause}},
    [MESSAGE_YIELD] = {.of_leader = true, .in = {[MEMBER_FOLLOWING] = member_on_yield}},
    /* gather.c handles STATUS_ASK and STATUS */
};

void member_message(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    struct member_peer *p = member_find(m, peer);
    note_time(m, now_s);
    if (p == NULL) {
        return;
    }
    member_heard(m, p, now_s);
    member_handler *handler = handlers[in->kind].in[m->role];
    if (handler != NULL && (!handlers[in->kind].of_leader || peer == m->following.leader)) {
        handler(m, p, in, now_s);
    }
}

/* ---- links and time ---- */

void member_up(struct member *m, const struct peer_info *who, double now_s)
{
    uint64_t peer = who->id;
    note_time(m, now_s);
    if (peer == m->options.self.id || member_find(m, peer) != NULL) {
        return;
    }
    struct member_peer *p = member_add_peer(m, peer);
    p->heard_s = now_s;
    p->info = *who;
    struct message keep = {.kind = MESSAGE_KEEP, .keep = {.info = m->options.self, .record = m->record}};
    if (m->role == MEMBER_LEADING) {
        /* the beat goes before the record: an agent that joins our run by this beat then keeps the
         * record */
        member_beat(m, peer);
    }
    member_send(m, peer, &keep);
    if (m->role == MEMBER_SEEKING) {
        member_send_join(m, peer);
    } else if (m->role == MEMBER_FOLLOWING && m->node.waiting && peer != m->following.leader) {
        member_say_reached(m, peer);
    }
}

/* Whether we know all records that the peer kept. After a reset its newest record may be lost.
 * But while beats passed in both directions between a leader and its follower, both had the same
 * round. */
static bool knew_all(const struct member *m, const struct member_peer *p, enum member_end end, double now_s)
{
    bool led = m->role == MEMBER_LEADING ? p->joined : m->role == MEMBER_FOLLOWING && p->id == m->following.leader;
    return p->told && (end == MEMBER_ENDED || (led && now_s - p->heard_s < m->options.lease_s));
}

void member_down(struct member *m, uint64_t peer, enum member_end end, double now_s)
{
    note_time(m, now_s);
    struct member_peer *p = member_find(m, peer);
    if (p == NULL) {
        return;
    }
    if (end == MEMBER_RESET && !member_same_machine(&p->info, &m->options.self)) {
        /* A packet filter, or an address translator that forgot the link, can also reset the link
         * of a host whose workers go on. */
        end = MEMBER_LOST;
    }
    if (end != MEMBER_LOST) {
        member_mark_dead(m, peer, knew_all(m, p, end, now_s));
    }
    struct member_peer gone = *p;
    member_remove_peer(m, p);
    if (m->role == MEMBER_OVER && gone.joined && end == MEMBER_LOST) {
        m->witness.unclear = true;
    } else if (m->role == MEMBER_LEADING) {
        member_lost_peer(m, &gone, now_s);
    } else if (m->role == MEMBER_FOLLOWING && peer == m->following.leader) {
        char text[256];
        (void)snprintf(text, sizeof text, "host %s (pid %d), the coordinator, %s; looking for another one",
                       m->leader_info.host, m->leader_info.pid,
                       gone.left            ? "left"
                       : end != MEMBER_LOST ? "is gone"
                                            : "cannot be reached");
        tell_loss(m, text);
        member_lose_leader(m, end != MEMBER_LOST, now_s);
    } else if (m->role == MEMBER_SEEKING) {
        member_count_votes(m, now_s); /* there is one voter less to wait for */
    }
}

static void take_event(struct member *m, const struct event *e, double now_s)
{
    if (e->kind == EVENT_JOIN) {
        m->node.join = *e;
        (void)snprintf(m->node.join_role, sizeof m->node.join_role, "%s", e->role != NULL ? e->role : "");
        m->node.join.role = NULL;
        m->node.waiting = true;
        m->node.workers_left = false;
    }
    if (e->kind == EVENT_STOP && e->code != COORDINATOR_KILL) {
        m->node.stop_code = e->code;
        m->node.stop_saved = e->saved;
    }
    if (m->role == MEMBER_LEADING) {
        member_own_event(m, e, now_s);
        return;
    }
    if (m->role == MEMBER_FOLLOWING) {
        if (e->kind == EVENT_JOIN && m->following.joined != m->following.leader) {
            m->following.joined = m->following.leader;
            member_send_join(m, m->following.leader);
            return;
        }
        struct message out;
        message_set_event(&out, e);
        member_send(m, m->following.leader, &out);
        return;
    }
    if (m->role == MEMBER_SEEKING && e->kind == EVENT_STOP) {
        member_act(m, ACTION_FINISH, e->saved ? DT_EXIT_STOPPED : m->node.stop_code, NULL);
    } else if (m->role == MEMBER_SEEKING && e->kind != EVENT_JOIN) {
        member_act(m, ACTION_END, 0, NULL); /* the event belongs to a round that is over */
    }
}

void member_event(struct member *m, const struct event *e, double now_s)
{
    note_time(m, now_s);
    take_event(m, e, now_s);
    /* a leader that we follow learns of the stop with our JOIN */
    bool again = e->kind == EVENT_JOIN && m->node.stop_code != 0 && m->role != MEMBER_FOLLOWING;
    if (again) {
        struct event stop = {
            .kind = EVENT_STOP, .round = m->node.last_round, .code = m->node.stop_code, .saved = m->node.stop_saved};
        take_event(m, &stop, now_s);
    }
}

static double tick(struct member *m, double now_s)
{
    double look_s = member_watch_silence(m, now_s);
    switch (m->role) {
    case MEMBER_SEEKING:
        return member_tick_seeking(m, now_s);
    case MEMBER_LEADING:
        return member_tick_leading(m, now_s);
    case MEMBER_FOLLOWING:
        if (now_s - m->following.lease_s >= m->options.lease_s) {
            /* The last messages of the leader may not be read yet. The guard does not wait for
             * them. */
            if (m->sleep.awake_s > 0 && now_s < m->sleep.awake_s + m->options.beat_s) {
                return m->sleep.awake_s + m->options.beat_s;
            }
            give_up_leader(m, now_s);
            return now_s;
        }
        if (m->node.waiting && now_s >= m->node.retry_at_s) {
            /* the leader may have been unable to give us a place */
            m->node.retry_at_s = now_s + 5 * m->options.beat_s;
            member_send_join(m, m->following.leader);
        }
        look_s =
            look_s < m->following.lease_s + m->options.lease_s ? look_s : m->following.lease_s + m->options.lease_s;
        return m->node.waiting && m->node.retry_at_s < look_s ? m->node.retry_at_s : look_s;
    case MEMBER_OVER:
        break;
    }
    return now_s + 3600;
}

double member_tick(struct member *m, double now_s)
{
    note_time(m, now_s);
    m->sleep.due_s = tick(m, now_s);
    return m->sleep.due_s;
}

void member_leave(struct member *m)
{
    struct message out = {.kind = MESSAGE_BYE};
    for (int i = 0; i < m->peer_count; i++) {
        if (m->kept.verdict && m->peers[i].same_run) {
            /* a host that sleeps now gets the verdict even if no agent is left to ask */
            member_tell_end(m, &m->peers[i], true);
        }
        member_send(m, m->peers[i].id, &out);
    }
    m->role = MEMBER_OVER;
}
