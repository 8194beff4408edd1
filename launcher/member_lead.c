/* Leading: the coordinator's events and actions travel as messages; a round begins, and the job ends, only when the council keeps the record of it. */
#include "launcher/member_parts.h"

#include "base/error.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OWN_NODE = 0 };

static struct member_peer *peer_of_node(struct member *m, int node)
{
    struct member_peer *p = node > OWN_NODE && node < COORDINATOR_MAX_NODES ? member_find(m, m->nodes->ids[node]) : NULL;
    return p != NULL && p->joined && p->node == node ? p : NULL;
}

static void send_action(struct member *m, struct member_peer *p, const struct action *a)
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
static void deliver(struct member *m, const struct action *a)
{
    if (a->node == OWN_NODE) {
        if (a->kind == ACTION_START) {
            m->waiting = false;
            m->last_round = m->record.round;
        }
        m->hooks.act(m->hooks.user, a, &m->record, a->kind == ACTION_START ? m->sizes : NULL);
        return;
    }
    struct member_peer *p = peer_of_node(m, a->node);
    if (p != NULL && a->kind == ACTION_REFUSE) {
        member_refuse(m, p, a->code, "this run takes no more nodes: it is over, or as large as can be");
    } else if (p != NULL) {
        send_action(m, p, a);
    }
}

/* ---- what must be kept before it happens ---- */

static bool has_acked(const struct member *m, uint64_t id, const void *arg)
{
    const struct record *r = arg;
    const struct member_peer *p = member_find(m, id);
    return p != NULL && p->acked_term == r->term && p->acked_round == r->round && p->acked_finished == r->finished;
}

static void finish_now(struct member *m)
{
    struct action a = {.kind = ACTION_FINISH, .code = m->record.code};
    m->preparing = false;
    for (int i = 0; i < m->peer_count; i++) { /* also those who follow us but were not taken in yet */
        send_action(m, &m->peers[i], &a);
    }
    m->role = MEMBER_OVER;
    m->waiting = false;
    m->hooks.act(m->hooks.user, &a, &m->record, NULL);
}

static void fence(struct member *m, uint64_t id, double until_s)
{
    if (m->fence_count < MEMBER_FENCES) {
        m->fences[m->fence_count++] = (struct member_fence){id, until_s};
    } else if (until_s > m->fence_until_s) {
        m->fence_until_s = until_s;
    }
}

void member_unfence(struct member *m, uint64_t id)
{
    for (int i = m->fence_count - 1; i >= 0; i--) {
        if (m->fences[i].id == id) {
            m->fences[i] = m->fences[--m->fence_count];
        }
    }
}

/* When the workers of all lost nodes are gone for certain; a time in the past: now. */
double member_fenced_until(struct member *m)
{
    const struct record *r = &m->record;
    double until_s = m->fence_until_s;
    if (until_s > m->now_s && r->committed) { /* everybody who was in the last round may be accounted for */
        int known = m->last_round == r->round && m->waiting;
        for (int i = 0; i < m->peer_count; i++) {
            known += m->peers[i].joined && m->peers[i].returned;
        }
        for (int i = 0; i < r->council_count; i++) {
            known += r->council[i].id != m->options.self.id && member_is_dead(m, r->council[i].id);
        }
        if (known >= r->members) {
            m->fence_until_s = until_s = 0;
        }
    }
    for (int i = 0; i < m->fence_count; i++) {
        until_s = m->fences[i].until_s > until_s ? m->fences[i].until_s : until_s;
    }
    return until_s;
}

/* All of the new council hold the record (unless the job ends: then a quorum), and a quorum of the one before. */
static void check_prepared(struct member *m)
{
    const struct record *r = &m->record;
    if (!m->preparing || !member_quorum(m, r, has_acked, r)) {
        return;
    }
    for (int i = 0; i < r->council_count && !r->finished; i++) {
        if (r->council[i].id != m->options.self.id && !has_acked(m, r->council[i].id, r)) {
            return;
        }
    }
    if (r->finished) {
        finish_now(m);
        return;
    }
    m->preparing = false;
    m->record.committed = true;
    m->fence_count = 0;
    m->fence_until_s = 0;
    for (int i = 0; i < m->peer_count; i++) {
        m->peers[i].returned = false;
    }
    int count = m->start_count;
    m->start_count = 0;
    for (int i = 0; i < count; i++) {
        deliver(m, &m->starts[i]);
    }
}

/* Again with each beat, to those who have not answered: their link may be another one by now. */
static void send_prepare(struct member *m)
{
    struct message out = {.kind = MESSAGE_PREPARE, .record = m->record};
    const struct record *r = &m->record;
    for (int k = 0; k < r->council_count + r->before_count; k++) {
        uint64_t id = k < r->council_count ? r->council[k].id : r->before[k - r->council_count].id;
        if (id != m->options.self.id && member_find(m, id) != NULL && !has_acked(m, id, r)) {
            member_send(m, id, &out);
        }
    }
}

static void prepare(struct member *m)
{
    m->preparing = true;
    send_prepare(m);
    check_prepared(m);
}

const struct peer_info *member_info_of_node(struct member *m, int node)
{
    struct member_peer *p = peer_of_node(m, node);
    return node == OWN_NODE ? &m->options.self : p != NULL ? &p->info : NULL;
}

/* Workers of the round's hosts, in the order of their ranks; nothing when it does not fit. */
static void note_sizes(struct member *m)
{
    int *by_group = dt_alloc(((size_t)m->start_count + 1) * sizeof *by_group);
    struct dt_text text;
    dt_text_init(&text);
    for (int i = 0; i < m->start_count; i++) {
        const struct place *p = &m->starts[i].place;
        if (p->group_rank >= 0 && p->group_rank < m->start_count) {
            by_group[p->group_rank] = p->local_world_size;
        }
    }
    for (int i = 0, n; i < m->start_count; i += n) {
        for (n = 1; i + n < m->start_count && by_group[i + n] == by_group[i]; n++) {
        }
        dt_text_printf(&text, "%s%d", i > 0 ? "," : "", by_group[i]);
        if (n > 1) {
            dt_text_printf(&text, "(x%d)", n);
        }
    }
    memset(m->sizes, 0, sizeof m->sizes);
    if (text.size < sizeof m->sizes) {
        memcpy(m->sizes, dt_text_str(&text), text.size);
    }
    dt_text_clear(&text);
    free(by_group);
}

static void add_witness(const struct member *m, struct record *r)
{
    if (m->witness.id != 0) {
        r->council[r->council_count++] = m->witness;
    }
}

/* The record of the round that the held-back STARTs begin. The council: its first nodes, the leader among them in any case. */
static void prepare_round(struct member *m)
{
    struct record *r = &m->record;
    const struct coordinator *c = m->coordinator;
    if (r->committed) {
        memcpy(r->before, r->council, sizeof r->before);
        r->before_count = r->council_count;
        r->before_leader = r->leader;
    }
    r->council_count = 0;
    bool with_self = false;
    int most = m->witness.id != 0 ? MESSAGE_COUNCIL - 1 : MESSAGE_COUNCIL;
    for (int i = 0; i < m->start_count && r->council_count < most; i++) {
        const struct peer_info *info = member_info_of_node(m, m->starts[i].node);
        if (info != NULL) {
            with_self = with_self || info->id == m->options.self.id;
            r->council[r->council_count++] = *info;
        }
    }
    if (!with_self) {
        r->council_count -= r->council_count == most;
        r->council[r->council_count++] = m->options.self;
    }
    add_witness(m, r);
    r->leader = m->options.self.id;
    r->committed = false;
    r->members = m->start_count;
    r->round = c->round;
    r->restarts_used = c->restarts_used;
    r->no_progress = c->no_progress;
    r->best_step = c->best_step;
    r->best_saved = c->best_saved;
    r->oom_seen = c->oom_seen;
    r->oom_step = c->oom_step;
    note_sizes(m);
    prepare(m);
}

/* A round does not begin while workers of lost nodes may still run, and hosts in it cannot reach each other. */
void member_begin_when_free(struct member *m)
{
    if (m->fenced && m->start_count == 0) {
        m->fenced = false;
    }
    if (m->fenced && member_fenced_until(m) <= m->now_s && member_all_reached(m)) {
        m->fenced = m->reaching = false;
        prepare_round(m);
    }
}

/* ---- the coordinator ---- */

static void hold_start(struct member *m, const struct action *a)
{
    if (m->start_count == m->start_capacity) {
        m->start_capacity = m->start_capacity * 2 + 16;
        m->starts = dt_realloc(m->starts, (size_t)m->start_capacity * sizeof *m->starts);
    }
    m->starts[m->start_count++] = *a;
}

bool member_drop_start(struct member *m, int node)
{
    for (int i = 0; i < m->start_count; i++) {
        if (m->starts[i].node == node) {
            memmove(&m->starts[i], &m->starts[i + 1], (size_t)(m->start_count - i - 1) * sizeof *m->starts);
            m->start_count--;
            return true;
        }
    }
    return false;
}

/* A node whose START was held back still waits: for the coordinator it joins again. */
static void join_again(struct member *m, int node, double now_s)
{
    const struct coordinator_node *n = coordinator_find(m->coordinator, node);
    if (n != NULL) {
        char role[COORDINATOR_ROLE_BYTES];
        memcpy(role, n->role, sizeof role);
        struct event e = {.kind = EVENT_JOIN, .node = node, .local_world_size = n->local_world_size, .order = n->order, .role = role};
        member_lead_step(m, &e, now_s);
    }
}

/* Why a round ends that a host leaves, or first saves: everybody hears it before its workers do. */
static void tell_leaving(struct member *m, const struct actions *list, bool was_running)
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
    const struct peer_info *who = NULL;
    for (int i = 0; i < c->node_count; i++) {
        stay += !c->nodes[i].leaving;
        who = who == NULL && c->nodes[i].leaving ? member_info_of_node(m, c->nodes[i].node) : who;
    }
    char text[256];
    (void)snprintf(text, sizeof text, "host %s (pid %d): %s; going on with %d of %d hosts (minimum %d)", who != NULL ? who->host : "?",
                   who != NULL ? who->pid : 0, pause != NULL ? "was asked to stop: all save, then it leaves" : "left", stay, c->options.nodes_max,
                   c->options.nodes_min);
    member_set_cause(m, m->record.round, CAUSE_HOST, text);
}

void member_lead_step(struct member *m, const struct event *e, double now_s)
{
    struct actions *out = m->actions;
    bool was_running = m->coordinator->running;
    coordinator_step(m->coordinator, e, now_s, out);
    m->wake_s = out->wake_s;
    int again_count = 0, start_count = 0, *again = NULL, finish = -1, stop_count = 0, stop_code = 0, *stop = NULL;
    int count = out->count;
    tell_leaving(m, out, was_running);
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
            deliver(m, a);
        }
    }
    if (finish >= 0 && !m->record.finished) {
        m->start_count = 0;
        m->record.finished = true;
        m->record.code = finish;
        prepare(m);
    } else if (start_count > 0) {
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
        struct event stopped = {.kind = EVENT_STOPPED, .node = stop[i], .round = m->coordinator->round, .code = stop_code};
        member_lead_step(m, &stopped, now_s);
    }
    free(stop);
    free(again);
}

static void note_failure(struct member *m, const struct event *e)
{
    if (e->kind == EVENT_FAILED && e->why != NULL && e->round == m->record.round) {
        member_set_cause(m, e->round, e->weak ? CAUSE_PEER : CAUSE_FAILED, e->why);
    }
}

void member_own_event(struct member *m, const struct event *e, double now_s)
{
    struct event own = *e;
    if (m->finish_at_s > 0) {
        return;
    }
    own.node = OWN_NODE;
    note_failure(m, &own);
    if (e->kind == EVENT_JOIN) {
        if (m->options.self.order < 0) {
            m->options.self.order = m->record.next_order++;
        }
        own.order = m->options.self.order;
        own.role = m->join_role;
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
        check_prepared(m);
        return;
    }
    if (!p->joined || in->term != m->record.term) {
        return; /* what ended in a round of another leader is no news */
    }
    struct event e = in->event;
    e.node = p->node;
    e.order = p->info.order;
    e.role = in->role;
    note_failure(m, &e);
    member_lead_step(m, &e, now_s);
}

/* With what happens next. run.c says it with the workers' end, when there are any. */
static void tell_loss(struct member *m, const struct member_peer *gone, bool was_in, double now_s)
{
    const struct coordinator *c = m->coordinator;
    char text[512];
    int left = c->node_count - 1, n = snprintf(text, sizeof text, "host %s (pid %d): ", gone->info.host, gone->info.pid);
    if (now_s - gone->heard_s >= m->options.dead_s) {
        n += snprintf(text + n, sizeof text - (size_t)n, "no heartbeat for %.1f s, last seen at %s", now_s - gone->heard_s, gone->info.address);
    } else {
        n += snprintf(text + n, sizeof text - (size_t)n, "%s",
                      gone->left                    ? "left"
                      : member_is_dead(m, gone->id) ? "its dtrun is gone"
                                                    : "the connection with it was lost");
    }
    if (!c->stopping && !c->finished && left >= c->options.nodes_min) {
        (void)snprintf(text + n, sizeof text - (size_t)n, "; going on with %d of %d hosts (minimum %d)", left, c->options.nodes_max,
                       c->options.nodes_min);
    } else if (!c->stopping && !c->finished) {
        (void)snprintf(text + n, sizeof text - (size_t)n, "; %d of at least %d hosts are here: waiting up to %.0f s for more", left,
                       c->options.nodes_min, c->options.join_timeout_s);
    }
    if (was_in && (c->running || c->doubtful)) { /* doubtful: a worker lost its peers before we lost their host */
        member_set_cause(m, m->record.round, CAUSE_HOST, text);
    }
    const struct coordinator_node *node = coordinator_find(c, gone->node);
    bool told = node != NULL && node->leaving && m->cause.round == m->record.round; /* when it was asked */
    if (!told && (!was_in || m->waiting)) {
        member_say(m, "%s", text);
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
            fence(m, gone->id, gone->heard_s + m->options.dead_s > now_s ? gone->heard_s + m->options.dead_s : now_s);
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
        check_prepared(m);
    }
}

/* ---- terms ---- */

/* The leader died in between the verdict and telling it. The council knows, the others come looking for us: we stay for them. */
static void stay_to_tell(struct member *m, double now_s)
{
    const struct record *r = &m->record;
    int agents = r->council_count;
    for (int i = 0; i < r->council_count; i++) {
        agents -= peer_is_witness(&r->council[i]);
    }
    if (r->members <= agents) {
        finish_now(m);
        return;
    }
    m->finish_at_s = now_s + 4 * m->options.beat_s;
    for (int i = 0; i < m->peer_count; i++) {
        if (m->peers[i].same_run) {
            member_tell_end(m, &m->peers[i], true);
        }
    }
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
    m->nodes->next = OWN_NODE + 1;
    m->start_count = 0;
    m->preparing = false;
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
    m->fence_count = m->ghost_count = 0;
    memset(m->ghosts, 0, sizeof m->ghosts);
    m->fenced = m->reaching = false;
    m->fence_until_s = r->round > 0 ? now_s + m->options.dead_s : 0;
    m->finish_at_s = 0;
    if (r->finished) {
        stay_to_tell(m, now_s);
        return;
    }
    for (int i = 0; i < m->peer_count; i++) {
        member_beat(m, m->peers[i].id);
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
    out->council[0].order = m->firm_order ? m->options.self.order : -1; /* one that was given belongs to another run */
    out->next_order = out->council[0].order + 1;
    add_witness(m, out);
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
    m->preparing = m->fenced = m->reaching = false;
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
                          .nonce = {m->record.nonce[0], m->record.nonce[1]}};
    out.count = p != NULL && p->joined && is_spare(m, p->node) ? -1 : 0;
    if (p != NULL && p->apart != 0) {
        (void)snprintf(out.text, sizeof out.text, "this one and another host of the round cannot reach each other; it runs without this one");
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
    member_set_cause(m, m->record.round, CAUSE_HOST, text);
    if (m->waiting) {
        member_say(m, "%s", text);
    }
    member_stop_leading(m);
    member_lose_leader(m, false, now_s);
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
            finish_now(m);
        }
        return m->finish_at_s;
    }
    if (!member_heard_quorum(m, now_s - m->options.lease_s)) {
        if (m->record.finished) {
            finish_now(m); /* the verdict stands, whoever hears it */
            return now_s;
        }
        member_stand_down(m, "too few of the other hosts answered within %.0f s: they may go on without this one", m->options.lease_s, now_s);
        return now_s;
    }
    if (m->options.witness_s > 0 && now_s - m->witness_heard_s >= m->options.witness_s && m->coordinator->running && !m->preparing) {
        member_stand_down(m, "no answer of etcd for %.0f s: another run of this name may begin", m->options.witness_s, now_s);
        return now_s;
    }
    if (now_s >= m->beat_at_s) {
        m->spare = is_spare(m, OWN_NODE);
        member_wait_text(m, m->wait_text, sizeof m->wait_text);
        m->beat_at_s = now_s + m->options.beat_s;
        for (int i = 0; i < m->peer_count; i++) {
            member_beat(m, m->peers[i].id);
        }
        if (m->preparing) {
            send_prepare(m);
        }
        member_tick_reach(m, now_s);
        if (m->role != MEMBER_LEADING) {
            return now_s;
        }
    }
    if (now_s >= m->call_at_s) { /* whoever holds the endpoint now may not know of us */
        m->call_at_s = now_s + 5 * m->options.beat_s;
        m->hooks.connect(m->hooks.user, NULL);
    }
    if (m->fenced) {
        member_begin_when_free(m);
    }
    if (m->wake_s > 0 && now_s >= m->wake_s) {
        struct event e = {.kind = EVENT_TICK, .node = -1};
        member_lead_step(m, &e, now_s);
    }
    if (m->role != MEMBER_LEADING) {
        return now_s;
    }
    double next_s = m->wake_s > 0 && m->wake_s < m->beat_at_s ? m->wake_s : m->beat_at_s, free_s = m->fenced ? member_fenced_until(m) : next_s;
    return free_s < next_s ? free_s : next_s;
}
