/* Leading: the coordinator's events and actions travel as messages. When a round begins,
 * member_prepare.c; how long we lead, member_term.c. */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct member_peer *peer_of_node(struct member *m, int node)
{
    struct member_peer *p =
        node > MEMBER_OWN_NODE && node < COORDINATOR_MAX_NODES ? member_find(m, m->nodes->ids[node]) : NULL;
    return p != NULL && p->joined && p->node == node ? p : NULL;
}

void member_send_action(struct member *m, struct member_peer *p, const struct action *a)
{
    struct message out = {.kind = MESSAGE_ACTION, .action = *a, .record = m->record, .info = {.order = p->info.order}};
    if (a->kind == ACTION_START) {
        memcpy(out.text, m->sizes, sizeof out.text);
    }
    member_send(m, p->id, &out);
}

void member_refuse(struct member *m, struct member_peer *p, int code, const char *text)
{
    struct message out = {.kind = MESSAGE_REFUSE, .code = code};
    (void)snprintf(out.text, sizeof out.text, "%s", text);
    member_send(m, p->id, &out);
}

/* An action for one node, ours or another's. */
void member_deliver(struct member *m, const struct action *a)
{
    if (a->node == MEMBER_OWN_NODE) {
        if (a->kind == ACTION_START) {
            m->waiting = false;
            member_forget_past_cause(m);
            m->last_round = m->record.round;
        }
        m->hooks.act(m->hooks.user, a, &m->record, a->kind == ACTION_START ? m->sizes : NULL);
        return;
    }
    struct member_peer *p = peer_of_node(m, a->node);
    if (p != NULL && a->kind == ACTION_REFUSE) {
        member_refuse(m, p, a->code, "this run takes no more nodes: it is over, or as large as can be");
    } else if (p != NULL) {
        member_send_action(m, p, a);
    }
}

const struct peer_info *member_info_of_node(struct member *m, int node)
{
    struct member_peer *p = peer_of_node(m, node);
    return node == MEMBER_OWN_NODE ? &m->options.self : p != NULL ? &p->info : NULL;
}

/* ---- the coordinator ---- */

static void hold_start(struct member *m, const struct action *a)
{
    if (m->start_count == m->start_capacity) {
        m->start_capacity = m->start_capacity * 2 + 16;
        m->starts = dt_realloc(m->starts, (size_t)m->start_capacity * sizeof *m->starts);
    }
    m->nodes->start_of[a->node] = m->start_count;
    m->starts[m->start_count++] = *a;
}

bool member_drop_start(struct member *m, int node)
{
    int at = m->nodes->start_of[node];
    if (at >= m->start_count || m->starts[at].node != node) {
        return false;
    }
    struct action last = m->starts[--m->start_count]; /* all others go as well: their order does
                                                       * not matter any more */
    m->starts[at] = last;
    m->nodes->start_of[last.node] = at;
    return true;
}

/* A node whose START was held back still waits: for the coordinator it joins again. */
static void join_again(struct member *m, int node, double now_s)
{
    const struct coordinator_node *n = coordinator_find(m->coordinator, node);
    if (n != NULL) {
        struct coordinator_node was = *n;
        struct event e = {.kind = EVENT_JOIN,
                          .node = node,
                          .local_world_size = was.local_world_size,
                          .order = was.order,
                          .placed = was.placed,
                          .preference = was.preference,
                          .host = was.host,
                          .role = was.role};
        member_lead_step(m, &e, now_s);
    }
}

/* Why a round ends that a host leaves, or first saves: everybody hears it before its workers do. */
static void tell_leaving(struct member *m, int node, const struct actions *list, bool was_running)
{
    const struct coordinator *c = m->coordinator;
    const struct action *pause = NULL, *leave = NULL;
    int stay = 0;
    for (int i = 0; i < list->count; i++) {
        pause = list->list[i].kind == ACTION_PAUSE ? &list->list[i] : pause;
        leave = list->list[i].kind == ACTION_LEAVE ? &list->list[i] : leave;
    }
    if (pause == NULL && (leave == NULL || !was_running || c->running)) {
        return;
    }
    const struct peer_info *who = member_info_of_node(m, node);
    struct member_peer *p = peer_of_node(m, node);
    for (int i = 0; i < c->node_count; i++) {
        stay += !c->nodes[i].leaving;
    }
    char text[256], next[CAUSE_NEXT_BYTES];
    (void)snprintf(text, sizeof text, "host %s (pid %d): %s", who != NULL ? who->host : "?", who != NULL ? who->pid : 0,
                   pause != NULL ? "was asked to stop: all save, then it leaves" : "left");
    (void)snprintf(next, sizeof next, "going on with %d of %d hosts (minimum %d)", stay, c->options.nodes_max,
                   c->options.nodes_min);
    bool set = member_set_host_cause(m, text, next);
    if (p != NULL) {
        p->leave_told = set;
    }
}

/* The same for a round that ends so that a host can take part in the next one. */
static void tell_joining(struct member *m, int node)
{
    char text[128];
    const struct peer_info *who = member_info_of_node(m, node);
    (void)snprintf(text, sizeof text, "host %s joins", who != NULL ? who->host : "?");
    (void)member_set_host_cause(m, text, "");
}

/* A new round: who never was in one may have another order now. */
static void note_orders(struct member *m)
{
    const struct coordinator *c = m->coordinator;
    for (int i = 0; i < c->node_count; i++) {
        struct member_peer *p = peer_of_node(m, c->nodes[i].node);
        if (c->nodes[i].node == MEMBER_OWN_NODE) {
            m->options.self.order = c->nodes[i].order;
        } else if (p != NULL && p->info.order != c->nodes[i].order) {
            p->info.order = c->nodes[i].order;
            member_note_order(m, p);
        }
    }
}

void member_lead_step(struct member *m, const struct event *e, double now_s)
{
    struct actions *out = m->actions;
    bool was_running = m->coordinator->running;
    coordinator_step(m->coordinator, e, now_s, out);
    m->wake_s = out->wake_s;
    int again_count = 0, start_count = 0, *again = NULL, finish = -1, stop_count = 0, stop_code = 0, *stop = NULL;
    int count = out->count;
    tell_leaving(m, e->node, out, was_running);
    if (e->kind == EVENT_JOIN && was_running && !m->coordinator->running) {
        tell_joining(m, e->node);
    }
    for (int i = 0; i < count; i++) {
        const struct action *a = &out->list[i];
        if (a->kind == ACTION_FINISH) {
            finish = a->code;
        } else if (a->kind == ACTION_START) {
            start_count += start_count == 0 ? (m->start_count = 0, 1) : 1;
            hold_start(m, a);
        } else if ((a->kind == ACTION_END || a->kind == ACTION_PAUSE) && member_drop_start(m, a->node)) {
            again = dt_realloc(again, (size_t)(again_count + 1) * sizeof *again);
            again[again_count++] = a->node;
        } else if (a->kind == ACTION_STOP && member_drop_start(m, a->node)) { /* it had not begun: nothing to stop */
            stop = dt_realloc(stop, (size_t)(stop_count + 1) * sizeof *stop);
            stop[stop_count++] = a->node;
            stop_code = a->code;
        } else {
            if (a->kind == ACTION_LEAVE) {
                (void)member_drop_start(m, a->node);
            }
            member_deliver(m, a);
        }
    }
    if (finish >= 0 && !m->record.finished) {
        m->start_count = 0;
        m->record.finished = true;
        m->record.code = finish;
        member_prepare(m);
    } else if (start_count > 0) {
        note_orders(m);
        m->fenced = true;
        m->reaching = false;
        member_begin_when_free(m);
    } else if (again_count + stop_count > 0 && m->start_count == 0) {
        m->preparing = false;
    }
    for (int i = 0; i < again_count && m->role == MEMBER_LEADING; i++) {
        join_again(m, again[i], now_s);
    }
    for (int i = 0; i < stop_count && m->role == MEMBER_LEADING; i++) {
        struct event stopped = {
            .kind = EVENT_STOPPED, .node = stop[i], .round = m->coordinator->round, .code = stop_code};
        member_lead_step(m, &stopped, now_s);
    }
    free(stop);
    free(again);
}

static void note_failure(struct member *m, const struct event *e)
{
    if (e->kind == EVENT_FAILED && e->cause != NULL && e->round == m->record.round) {
        (void)member_set_cause(m, e->round, e->cause);
    }
}

void member_own_event(struct member *m, const struct event *e, double now_s)
{
    struct event own = *e;
    if (m->record.finished) {
        return;
    }
    own.node = MEMBER_OWN_NODE;
    note_failure(m, &own);
    if (e->kind == EVENT_JOIN) {
        own.placed = m->options.self.order >= 0;
        own.preference = -1; /* of those who begin: the workers' store is here */
        if (m->options.self.order < 0) {
            m->options.self.order = m->record.next_order++;
        }
        own.order = m->options.self.order;
        own.role = m->join_role;
        own.returns = m->last_round > 0;
    }
    member_lead_step(m, &own, now_s);
}

void member_on_leading(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    if (in->kind == MESSAGE_REACH) {
        member_on_reach(m, p, in);
        return;
    }
    if (in->kind == MESSAGE_ACK) {
        p->acked_term = in->term;
        p->acked_round = in->round;
        p->acked_finished = in->finished;
        p->told = p->told || in->term == m->record.term; /* it holds what we hold */
        member_check_prepared(m);
        return;
    }
    bool stop = in->event.kind == EVENT_STOP; /* is of no round */
    if (stop && p->apart != 0) {              /* the job runs without it */
        struct action leave = {.kind = ACTION_LEAVE, .code = in->event.code};
        member_send_action(m, p, &leave);
    }
    if (!p->joined || (in->term != m->record.term && !stop)) {
        return; /* what ended in a round of another leader is no news */
    }
    struct event e = in->event;
    e.node = p->node;
    e.order = p->info.order;
    e.placed = true; /* a JOIN that comes so was led before, into a round */
    e.role = in->role;
    note_failure(m, &e);
    member_lead_step(m, &e, now_s);
}

/* Links that ended while we slept say more about us than about their other ends: who lost whom
 * is known when we have a leader again, or lead on. */
static void tell_sleep(struct member *m, bool ends, double slept_s)
{
    static const char next[] = "the other hosts may have gone on without it";
    char text[256];
    (void)snprintf(text, sizeof text, "host %s (pid %d): was stopped or asleep for %.1f s", m->options.self.host,
                   m->options.self.pid, slept_s);
    bool set = ends && member_set_host_cause(m, text, next);
    if (m->waiting && !m->sleep_told) {
        member_say_cause(m, text, next, set);
        m->sleep_told = true;
    }
}

/* With what happens next. run.c says it with the workers' end, when there are any. */
static void tell_loss(struct member *m, const struct member_peer *gone, bool was_in, double now_s)
{
    const struct coordinator *c = m->coordinator;
    bool doubted = coordinator_doubts(c, gone->node); /* a worker lost its peers before we lost
                                                       * their host */
    char text[512], next[CAUSE_NEXT_BYTES] = "";
    double slept_s = member_slept_s(m, now_s);
    if (slept_s > 0 && !gone->left && !member_is_dead(m, gone->id)) {
        tell_sleep(m, (was_in && c->running) || doubted, slept_s);
        return;
    }
    int left = c->node_count - 1,
        n = snprintf(text, sizeof text, "host %s (pid %d): ", gone->info.host, gone->info.pid);
    if (now_s - gone->heard_s >= m->options.dead_s) {
        (void)snprintf(text + n, sizeof text - (size_t)n, "no heartbeat for %.1f s, last seen at %s",
                       now_s - gone->heard_s, gone->info.address);
    } else {
        (void)snprintf(text + n, sizeof text - (size_t)n, "%s",
                       gone->left                    ? "left"
                       : member_is_dead(m, gone->id) ? "its dtrun is gone"
                                                     : "the connection with it was lost");
    }
    if (!c->stopping && !c->finished && left >= c->options.nodes_min) {
        (void)snprintf(next, sizeof next, "going on with %d of %d hosts (minimum %d)", left, c->options.nodes_max,
                       c->options.nodes_min);
    } else if (!c->stopping && !c->finished) {
        (void)snprintf(next, sizeof next, "%d of at least %d hosts are here: waiting up to %.0f s for more", left,
                       c->options.nodes_min, c->options.join_timeout_s);
    }
    bool set = ((was_in && c->running) || doubted) && member_set_host_cause(m, text, next);
    if (!gone->leave_told && (!was_in || m->waiting)) {
        member_say_cause(m, text, next, set);
    }
}

/* It lives, but takes no part in the round that is to begin. */
void member_put_out(struct member *m, struct member_peer *p, double now_s)
{
    struct event e = {.kind = EVENT_LOST, .node = p->node};
    p->joined = false;
    p->node = -1;
    (void)member_drop_start(m, e.node);
    member_lead_step(m, &e, now_s);
    if (m->role == MEMBER_LEADING) {
        m->nodes->unused[m->nodes->unused_count++] = e.node;
    }
}

void member_lost_peer(struct member *m, const struct member_peer *gone, double now_s)
{
    if (m->nodes != NULL && gone->info.host[0] != 0 && m->record.round > 0) {
        member_note_loss(m, &gone->info);
    }
    if (gone->joined) {
        const struct coordinator_node *n = coordinator_find(m->coordinator, gone->node);
        bool waits = member_drop_start(m, gone->node) || (n != NULL && n->state == NODE_WAITING);
        if (!waits && !member_is_dead(m, gone->id)) {
            member_fence(m, gone->id,
                         gone->heard_s + m->options.dead_s > now_s ? gone->heard_s + m->options.dead_s : now_s);
        }
        bool was_in = !waits && n != NULL && n->state == NODE_IN;
        struct event e = {.kind = EVENT_LOST, .node = gone->node};
        member_add_ghost(m, gone);
        tell_loss(m, gone, was_in, now_s);
        member_lead_step(m, &e, now_s);
        if (m->role == MEMBER_LEADING) {
            m->nodes->unused[m->nodes->unused_count++] = gone->node;
        }
    }
    if (m->role == MEMBER_LEADING) {
        member_begin_when_free(m);
        member_check_prepared(m);
    }
}
