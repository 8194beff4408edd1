/* What every member does: messages, links and time. Being without a leader is in member_seek.c,
 * elections and records in member_elect.c, leading in member_lead.c. */
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
    m->record.best_step = m->record.best_saved = -1;
    m->firm_order = options->self.order >= 0;
}

void member_clear(struct member *m)
{
    free(m->peers);
    free(m->slots);
    free(m->nodes);
    free(m->coordinator);
    free(m->actions);
    free(m->starts);
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
        m->waiting = false;
    }
    m->hooks.act(m->hooks.user, &a, &m->record, why);
}

struct member_past *member_find_past(struct member *m, const uint64_t *nonce)
{
    for (int i = 0; i < m->past_count; i++) {
        if (memcmp(nonce, m->past[i].record.nonce, sizeof m->past[i].record.nonce) == 0) {
            return &m->past[i];
        }
    }
    return NULL;
}

/* What we promised and keep in a run before is not forgotten: should we come back to it, it
 * counts again. */
void member_change_run(struct member *m, const uint64_t *nonce)
{
    struct member_past was = {m->record, m->promised}, *back = member_find_past(m, nonce);
    if (back != NULL) {
        m->record = back->record;
        m->promised = back->promised;
        *back = m->past[--m->past_count];
    } else {
        m->record = (struct record){.nonce = {nonce[0], nonce[1]}, .best_step = -1, .best_saved = -1};
        m->promised = 0;
    }
    m->campaigned = m->promised;
    m->last_round = 0;
    m->cause.past = true; /* it is still to be said */
    m->options.self.order = m->firm_order ? m->options.self.order : -1;
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].told = false;
    }
    m->told_term = 0;
    if (was.record.round > 0) {
        m->past[m->past_count++] = was;
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
    return m->role == MEMBER_FOLLOWING && m->leader_info.id == m->leader ? &m->leader_info : NULL;
}

/* ---- messages ---- */

/* Whether a run ever had a round: a first one that was only prepared may come to nothing, and
 * whoever waits may still come to be in it. */
bool member_has_begun(int round, bool committed)
{
    return round > 1 || (round == 1 && committed);
}

/* A leader's beat. Another run's leader is followed by one that never began a round; by others
 * only as member_rival.c says. */
static void on_beat(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    bool same = memcmp(in->nonce, m->record.nonce, sizeof in->nonce) == 0;
    if (m->role == MEMBER_OVER) {
        return;
    }
    if (!same && m->record.round > 0 && !member_leaves_run(m, member_find(m, peer), in, now_s)) {
        if (m->role == MEMBER_FOLLOWING && peer == m->leader) { /* it gave our run up: what it
                                                                 * says next is of its new one */
            member_lose_leader(m, true, now_s);
        }
        return;
    }
    if (same && (in->term < m->record.term || member_refuse_old_term(m, peer, in))) {
        return;
    }
    if (m->role == MEMBER_LEADING && (same ? in->term <= m->record.term : in->round == 0)) {
        return;
    }
    if (!same) {
        member_change_run(m, in->nonce);
    }
    if (in->granted && in->term == m->record.term && in->round == m->record.round) {
        m->record.committed = true;
    }
    member_follow(m, peer, in->term, now_s);
    m->leader_info = in->info;
    struct member_peer *p = member_find(m, peer);
    memcpy(p->info.host, in->info.host, sizeof p->info.host); /* the link knew its address only */
    m->spare = in->count < 0;
    (void)snprintf(m->wait_text, sizeof m->wait_text, "%.255s", in->text);
    m->leader_stamp = in->stamp > m->leader_stamp ? in->stamp : m->leader_stamp;
    m->echo_s = in->echo > m->echo_s ? in->echo : m->echo_s;
    m->lease_s = m->echo_s > m->lease_s ? m->echo_s : m->lease_s;
    struct message out = {.kind = MESSAGE_BEAT_ACK, .term = in->term, .stamp = now_s, .echo = m->leader_stamp};
    member_send(m, peer, &out);
}

/* Our round is over without its leader; run.c says so with the workers' end, when there are any. */
static void tell_loss(struct member *m, const char *text)
{
    bool set = member_set_host_cause(m, text, "");
    if (m->waiting) {
        member_say_cause(m, text, "", set);
    }
}

/* It has not heard us for so long that it may count us among the lost. */
static void give_up_leader(struct member *m, double now_s)
{
    uint64_t leader = m->leader;
    char text[256];
    (void)snprintf(text, sizeof text, "host %s: no answer from this coordinator for %.1f s; looking for another one",
                   m->leader_info.id == leader ? m->leader_info.host : "?", now_s - m->lease_s);
    tell_loss(m, text);
    m->hooks.drop(m->hooks.user, leader);
    member_down(m, leader, MEMBER_LOST, now_s);
}

static void on_action(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    if (m->role != MEMBER_FOLLOWING || peer != m->leader || in->term < m->promised) {
        return;
    }
    if (in->action.kind == ACTION_START) {
        if (!m->waiting) {
            return;
        }
        if (now_s - m->echo_s >= m->options.lease_s) { /* too late: the leader has given us up
                                                        * meanwhile, or will hear that we begin
                                                        * anew */
            give_up_leader(m, now_s);
            return;
        }
        m->lease_s = m->echo_s; /* whenever we came to follow it: what we read may be old */
        member_keep(m, &in->record, peer);
        member_forget_past_cause(m);
        member_let_others_go(m);
        m->last_round = in->record.round;
        m->options.self.order = in->info.order;
        m->waiting = false;
    }
    if (in->action.kind == ACTION_FINISH) {
        m->role = MEMBER_OVER;
        m->waiting = false;
        m->record.finished = m->verdict = true;
        m->record.code = in->action.code;
    }
    if ((in->action.kind == ACTION_END || in->action.kind == ACTION_PAUSE) && m->waiting) {
        return; /* we had not begun it */
    }
    m->hooks.act(m->hooks.user, &in->action, &m->record, in->action.kind == ACTION_START ? in->text : NULL);
}

/* To a node that asks when the run is over: one of it hears the verdict, which it may have
 * missed with its leader; a newcomer is too late. */
void member_tell_end(struct member *m, const struct member_peer *p, bool of_this_run)
{
    struct message out = {.kind = MESSAGE_REFUSE, .code = DT_EXIT_TEMPORARY};
    if (of_this_run) {
        out.finished = true;
        memcpy(out.nonce, m->record.nonce, sizeof out.nonce);
        out.code = m->record.code;
    } else {
        (void)snprintf(out.text, sizeof out.text, "this run ended");
    }
    member_send(m, p->id, &out);
}

static void on_join_elsewhere(struct member *m, const struct member_peer *p, const struct message *in)
{
    uint64_t peer = p->id;
    const struct peer_info *leader = member_leader(m);
    if (m->verdict) { /* who ends without one knows nothing of the others */
        member_tell_end(m, p, memcmp(in->nonce, m->record.nonce, sizeof in->nonce) == 0);
    } else if (leader != NULL && leader->id != peer) {
        struct message out = {.kind = MESSAGE_REDIRECT, .info = *leader};
        member_send(m, peer, &out);
    }
}

static void on_redirect(struct member *m, const struct message *in)
{
    bool lonely = m->role == MEMBER_LEADING && m->record.round == 0;
    if (m->role == MEMBER_LEADING && !lonely && member_find(m, in->info.id) == NULL &&
        in->info.id != m->options.self.id && !member_is_dead(m, in->info.id)) {
        m->hooks.connect(m->hooks.user, &in->info); /* it leads another run */
    }
    if ((m->role != MEMBER_SEEKING && !lonely) || in->info.id == m->options.self.id || member_is_dead(m, in->info.id)) {
        return;
    }
    if (member_find(m, in->info.id) == NULL) {
        m->hooks.connect(m->hooks.user, &in->info);
    } else {
        member_send_join(m, in->info.id);
    }
}

/* A witness that names another run, which goes on, tells for certain that ours is over. If our
 * node never was in a round of it, it may join that one. */
static void on_refuse(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    bool led = m->role == MEMBER_LEADING, by_witness = peer == m->witness.id;
    bool named = in->nonce[0] != 0 || in->nonce[1] != 0,
         other = named && memcmp(in->nonce, m->record.nonce, sizeof in->nonce) != 0;
    if (in->finished && !other && m->role != MEMBER_OVER) { /* the verdict stands, whoever tells
                                                             * it: a quorum kept it */
        /* else our leader says so now */
        if (m->role != MEMBER_FOLLOWING || m->waiting || now_s - m->lease_s >= m->options.lease_s) {
            member_say(m, "the other hosts ended the job, with exit code %d", in->code);
        }
        member_stop_leading(m);
        m->record.finished = m->verdict = true;
        m->record.code = in->code;
        member_act(m, ACTION_REFUSE, in->code, in->text);
        return;
    }
    if (by_witness && named && !other) {
        return; /* it was asked before we came over to the run that it keeps */
    }
    if (led && by_witness) {
        member_stand_down(m, "another run of this name began while etcd was away from this host for more than %.0f s",
                          m->options.dead_s, now_s);
    }
    if (m->role == MEMBER_SEEKING && by_witness && other && m->last_round == 0 && m->past_count < MEMBER_PAST) {
        m->campaign = 0;
        member_change_run(m, (const uint64_t[2]){0, 0});
    } else if (!led && (m->role == MEMBER_SEEKING || (m->role == MEMBER_FOLLOWING && peer == m->leader))) {
        member_act(m, ACTION_REFUSE, in->code, in->text);
    }
}

static void note_time(struct member *m, double now_s)
{
    m->now_s = now_s;
    if (m->due_s > 0 && now_s - m->due_s > m->options.beat_s && now_s - m->awake_s > 10 * m->options.beat_s) {
        m->awake_s = now_s; /* what came meanwhile has not been read yet */
        m->slept_s = now_s - m->due_s;
        m->sleep_told = false;
    }
}

int member_check(const struct member *m, const struct message *in, double now_s, struct dt_error *err)
{
    const struct place *p = &in->action.place;
    if ((in->kind == MESSAGE_BEAT || in->kind == MESSAGE_BEAT_ACK) && in->echo > now_s) {
        return dt_fail(err, DT_INVALID, "%s message: it echoes what this host will say in %.3g s",
                       message_name(in->kind), in->echo - now_s);
    }
    if (in->kind != MESSAGE_ACTION || in->action.kind != ACTION_START || !m->waiting) {
        return 0;
    }
    if (p->local_world_size != m->join.local_world_size) {
        return dt_fail(err, DT_INVALID, "action message: start of %d workers on this host, which has %d",
                       p->local_world_size, m->join.local_world_size);
    }
    if (p->group_world_size > m->options.rounds.nodes_max) {
        return dt_fail(err, DT_INVALID, "action message: start of a round of %d hosts, of which there are at most %d",
                       p->group_world_size, m->options.rounds.nodes_max);
    }
    return 0;
}

void member_message(struct member *m, uint64_t peer, const struct message *in, double now_s)
{
    struct member_peer *p = member_find(m, peer);
    note_time(m, now_s);
    if (p == NULL) {
        return;
    }
    member_heard(m, p, now_s);
    switch (in->kind) {
    case MESSAGE_JOIN:
        if (m->role == MEMBER_LEADING) {
            member_on_join(m, p, in, now_s);
        } else {
            on_join_elsewhere(m, p, in);
        }
        break;
    case MESSAGE_REFUSE:
        on_refuse(m, peer, in, now_s);
        break;
    case MESSAGE_REDIRECT:
        on_redirect(m, in);
        break;
    case MESSAGE_PREPARE:
        member_on_prepare(m, peer, in, now_s);
        break;
    case MESSAGE_PROBE:
        if (m->role == MEMBER_FOLLOWING && peer == m->leader) {
            member_on_probe(m, in);
        }
        break;
    case MESSAGE_REACH:
    case MESSAGE_ACK:
    case MESSAGE_EVENT:
        if (m->role == MEMBER_LEADING) {
            member_on_leading(m, p, in, now_s);
        }
        break;
    case MESSAGE_ACTION:
        on_action(m, peer, in, now_s);
        break;
    case MESSAGE_BEAT:
        on_beat(m, peer, in, now_s);
        break;
    case MESSAGE_VOTE_ASK:
        member_on_vote_ask(m, peer, in, now_s);
        break;
    case MESSAGE_VOTE:
        member_on_vote(m, peer, in, now_s);
        break;
    case MESSAGE_KEEP:
        member_on_keep(m, p, in, now_s);
        break;
    case MESSAGE_BYE:
        p->left = true;
        member_down(m, peer, MEMBER_ENDED, now_s);
        break;
    case MESSAGE_CAUSE:
        if (m->role == MEMBER_FOLLOWING && peer == m->leader) {
            (void)member_set_cause(m, in->round, &in->cause);
        }
        break;
    case MESSAGE_YIELD:
        if (m->role == MEMBER_FOLLOWING && peer == m->leader) {
            member_on_yield(m, in, now_s);
        }
        break;
    case MESSAGE_BEAT_ACK:
        p->stamp = in->stamp > p->stamp ? in->stamp : p->stamp;
        p->lease_s =
            m->role == MEMBER_LEADING && in->term == m->record.term && in->echo > p->lease_s ? in->echo : p->lease_s;
        m->witness_heard_s = peer == m->witness.id && p->lease_s > m->witness_heard_s ? p->lease_s : m->witness_heard_s;
        break;
    case MESSAGE_STATUS_ASK: /* gather.c */
    case MESSAGE_STATUS:
    case MESSAGE_KIND_COUNT:
        break;
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
    struct message keep = {.kind = MESSAGE_KEEP, .info = m->options.self, .record = m->record};
    if (m->role == MEMBER_LEADING) { /* before the record: whoever comes to our run by that beat
                                      * keeps it */
        member_beat(m, peer);
    }
    member_send(m, peer, &keep);
    if (m->role == MEMBER_SEEKING) {
        member_send_join(m, peer);
    } else if (m->role == MEMBER_FOLLOWING && m->waiting && peer != m->leader) {
        member_say_reached(m, peer);
    }
}

/* Whether we know all records that it kept. Not after a reset, where the newest may be lost; but
 * while beats went to and fro between a leader and who follows it, they had one round. */
static bool knew_all(const struct member *m, const struct member_peer *p, enum member_end end, double now_s)
{
    bool led = m->role == MEMBER_LEADING ? p->joined : m->role == MEMBER_FOLLOWING && p->id == m->leader;
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
        end = MEMBER_LOST; /* a packet filter, or a translator of addresses that has forgotten the
                            * link, does the same for a host whose workers run on */
    }
    if (end != MEMBER_LOST) {
        member_bury(m, peer, knew_all(m, p, end, now_s));
    }
    struct member_peer gone = *p;
    member_remove_peer(m, p);
    if (m->role == MEMBER_OVER && gone.joined && end == MEMBER_LOST) {
        m->unclear = true;
    } else if (m->role == MEMBER_LEADING) {
        member_lost_peer(m, &gone, now_s);
    } else if (m->role == MEMBER_FOLLOWING && peer == m->leader) {
        char text[256];
        (void)snprintf(text, sizeof text, "host %s (pid %d), the coordinator, %s; looking for another one",
                       m->leader_info.host, m->leader_info.pid,
                       gone.left            ? "left"
                       : end != MEMBER_LOST ? "is gone"
                                            : "cannot be reached");
        tell_loss(m, text);
        member_lose_leader(m, end != MEMBER_LOST, now_s);
    } else if (m->role == MEMBER_SEEKING) {
        member_count_votes(m, now_s); /* one less to ask */
    }
}

static void take_event(struct member *m, const struct event *e, double now_s)
{
    if (e->kind == EVENT_JOIN) {
        m->join = *e;
        (void)snprintf(m->join_role, sizeof m->join_role, "%s", e->role != NULL ? e->role : "");
        m->join.role = NULL;
        m->waiting = true;
        m->workers_left = false;
    }
    if (e->kind == EVENT_STOP && e->code != COORDINATOR_KILL) {
        m->stop_code = e->code;
        m->stop_saved = e->saved;
    }
    if (m->role == MEMBER_LEADING) {
        member_own_event(m, e, now_s);
        return;
    }
    if (m->role == MEMBER_FOLLOWING) {
        if (e->kind == EVENT_JOIN && m->joined != m->leader) {
            m->joined = m->leader;
            member_send_join(m, m->leader);
            return;
        }
        struct message out = {.kind = MESSAGE_EVENT, .event = *e};
        member_send(m, m->leader, &out);
        return;
    }
    if (m->role == MEMBER_SEEKING && e->kind == EVENT_STOP) {
        member_act(m, ACTION_FINISH, e->saved ? DT_EXIT_STOPPED : m->stop_code, NULL);
    } else if (m->role == MEMBER_SEEKING && e->kind != EVENT_JOIN) {
        member_act(m, ACTION_END, 0, NULL); /* whatever ended, it ended in a round that is over */
    }
}

void member_event(struct member *m, const struct event *e, double now_s)
{
    note_time(m, now_s);
    take_event(m, e, now_s);
    /* a leader is told with our wish to join */
    bool again = e->kind == EVENT_JOIN && m->stop_code != 0 && m->role != MEMBER_FOLLOWING;
    if (again) {
        struct event stop = {.kind = EVENT_STOP, .round = m->last_round, .code = m->stop_code, .saved = m->stop_saved};
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
        if (now_s - m->lease_s >= m->options.lease_s) {
            /* its last words may not have been read yet; the guard does not wait */
            if (m->awake_s > 0 && now_s < m->awake_s + m->options.beat_s) {
                return m->awake_s + m->options.beat_s;
            }
            give_up_leader(m, now_s);
            return now_s;
        }
        if (m->waiting && now_s >= m->retry_at_s) { /* the leader may have been unable to take us */
            m->retry_at_s = now_s + 5 * m->options.beat_s;
            member_send_join(m, m->leader);
        }
        look_s = look_s < m->lease_s + m->options.lease_s ? look_s : m->lease_s + m->options.lease_s;
        return m->waiting && m->retry_at_s < look_s ? m->retry_at_s : look_s;
    case MEMBER_OVER:
        break;
    }
    return now_s + 3600;
}

double member_tick(struct member *m, double now_s)
{
    note_time(m, now_s);
    m->due_s = tick(m, now_s);
    return m->due_s;
}

void member_leave(struct member *m)
{
    struct message out = {.kind = MESSAGE_BYE};
    for (int i = 0; i < m->peer_count; i++) {
        if (m->verdict && m->peers[i].same_run) { /* one that slept hears it when nobody is left
                                                   * to ask */
            member_tell_end(m, &m->peers[i], true);
        }
        member_send(m, m->peers[i].id, &out);
    }
    m->role = MEMBER_OVER;
}
