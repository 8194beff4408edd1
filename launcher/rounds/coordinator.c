/* One function per kind of event. After every event two questions follow: can a round begin, and is
 * the job over? Events of older rounds come late and change nothing, because those rounds were
 * ended already. */
#include "launcher/rounds/coordinator.h"

#include "base/error.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void coordinator_init(struct coordinator *c, const struct coordinator_options *options)
{
    /* the tables behind take a megabyte, most of which is never touched */
    memset(c, 0, offsetof(struct coordinator, nodes));
    memset(c->place_of, 0, sizeof c->place_of);
    c->options = *options;
    c->waiting_since_s = c->complete_since_s = -1;
    c->history.best_step = c->history.best_saved = -1;
}

const struct coordinator_node *coordinator_find(const struct coordinator *c, int node)
{
    return node < 0 || node >= COORDINATOR_MAX_NODES || c->place_of[node] == 0 ? NULL
                                                                               : &c->nodes[c->place_of[node] - 1];
}

static struct coordinator_node *find(struct coordinator *c, int node)
{
    return (struct coordinator_node *)coordinator_find(c, node);
}

static int count_of(const struct coordinator *c, enum node_state state)
{
    return c->state_counts[state];
}

static void set_state(struct coordinator *c, struct coordinator_node *n, enum node_state state)
{
    c->state_counts[n->state]--;
    c->state_counts[state]++;
    n->state = state;
}

static struct action *add(struct actions *out, enum action_kind kind, int node, int code)
{
    struct action *a = &out->list[out->count++];
    memset(a, 0, sizeof *a);
    a->kind = kind;
    a->node = node;
    a->code = code;
    return a;
}

/* The job is over. Every node that is here is told once. */
static void finish(struct coordinator *c, int code, struct actions *out)
{
    if (c->finished) {
        return;
    }
    c->finished = true;
    c->running = false;
    c->code = code;
    for (int i = 0; i < c->node_count; i++) {
        (void)add(out, ACTION_FINISH, c->nodes[i].node, code);
    }
}

/* Ends the round on all nodes that still run it. Node `except` knows already (-1: no node does).
 * The nodes join again when their workers are gone. */
static void end_round(struct coordinator *c, int except, struct actions *out)
{
    c->running = c->pausing = false;
    for (int i = 0; i < c->node_count; i++) {
        struct coordinator_node *n = &c->nodes[i];
        /* NODE_STOPPED: during a pause */
        if (n->state != NODE_IN && n->state != NODE_DONE && n->state != NODE_STOPPED) {
            continue;
        }
        set_state(c, n, NODE_IN);
        if (n->node != except) {
            (void)add(out, ACTION_END, n->node, 0);
        }
    }
}

static void on_join(struct coordinator *c, const struct event *e, double now_s, struct actions *out)
{
    struct coordinator_node *n = find(c, e->node);
    bool full =
             n == NULL && (c->node_count == COORDINATOR_MAX_NODES || e->node < 0 || e->node >= COORDINATOR_MAX_NODES),
         over = c->finished || (n == NULL && c->stopping);
    if (c->finished && n != NULL) { /* the node is told of the end, or was told */
        return;
    }
    if (full || over) {
        (void)add(out, ACTION_REFUSE, e->node, over ? c->code : DT_EXIT_TEMPORARY);
        return;
    }
    /* the node's workers were being ended when the stop came, so they count as stopped */
    if (c->stopping) {
        set_state(c, n, NODE_STOPPED);
        return;
    }
    if (n != NULL && n->leaving) { /* the node's workers are gone */
        set_state(c, n, NODE_LEFT);
        (void)add(out, ACTION_LEAVE, n->node, 128 + SIGTERM);
        return;
    }
    if (n == NULL) {
        n = &c->nodes[c->node_count++];
        memset(n, 0, sizeof *n); /* state: NODE_WAITING */
        c->state_counts[NODE_WAITING]++;
        c->place_of[e->node] = c->node_count;
    }
    n->node = e->node;
    set_state(c, n, NODE_WAITING);
    n->local_world_size = e->local_world_size;
    n->order = e->order;
    n->placed = e->placed;
    n->preference = e->preference;
    n->returns = n->returns || e->returns;
    (void)snprintf(n->role, sizeof n->role, "%s", e->role != NULL ? e->role : "");
    (void)snprintf(n->host, sizeof n->host, "%s", e->host != NULL ? e->host : "");
    if (c->waiting_since_s < 0) {
        c->waiting_since_s = now_s;
    }
    if (c->running && !c->pausing && !n->member && count_of(c, NODE_IN) < c->options.nodes_max &&
        count_of(c, NODE_DONE) == 0) {
        end_round(c, -1, out); /* there is room for the new node; this costs no restart */
    }
}

static bool made_progress(struct coordinator *c, const struct event *e)
{
    bool further = e->step > c->history.best_step || e->saved_step > c->history.best_saved;
    c->history.best_step = e->step > c->history.best_step ? e->step : c->history.best_step;
    c->history.best_saved = e->saved_step > c->history.best_saved ? e->saved_step : c->history.best_saved;
    return further;
}

/* Two workers in a row were killed for lack of memory in the same step. The next worker would be
 * killed there, too. */
static bool out_of_memory_again(struct coordinator *c, const struct event *e)
{
    bool again = e->out_of_memory && c->history.oom_seen && c->history.oom_step == e->at_step;
    if (e->out_of_memory) {
        c->history.oom_seen = true;
        c->history.oom_step = e->at_step;
    }
    return again;
}

/* The hosts lost each other, so the failure of the workers costs nothing. Gives back the counted
 * restart. */
static void refund_restart(struct coordinator *c)
{
    c->history.restarts_used -= c->doubt_counted;
    c->history.no_progress = c->doubt_no_progress;
    c->doubtful = false;
}

bool coordinator_doubts(const struct coordinator *c, int node)
{
    const struct coordinator_node *n = coordinator_find(c, node);
    return c->doubtful && n != NULL && n->doubted;
}

bool coordinator_note_unreachable(struct coordinator *c, int node, int other)
{
    /* only nodes that were in that round can have ended it */
    bool both = coordinator_doubts(c, node) && coordinator_doubts(c, other);
    if (both) {
        refund_restart(c);
    }
    return both;
}

/* No host was lost, or a worker failed by itself. The counted restart stays counted. */
static void end_doubt(struct coordinator *c, struct actions *out)
{
    bool ends = c->doubtful && !c->doubt_counted;
    c->doubtful = false;
    if (ends) {
        finish(c, c->doubt_code, out);
    }
}

static void on_failed(struct coordinator *c, const struct event *e, struct actions *out)
{
    if (c->doubtful && !e->weak && e->round == c->round && !c->stopping) {
        end_doubt(c, out);
    }
    if (c->finished || !c->running || e->round != c->round) {
        return; /* the first failure of a round was counted; this failure follows from it */
    }
    if (c->stopping) {
        return; /* EVENT_STOPPED will come */
    }
    if (e->failure != FAILURE_PLAIN) {
        finish(c, e->code, out);
        return;
    }
    bool further = made_progress(c, e), again = out_of_memory_again(c, e);
    c->doubt_no_progress = c->history.no_progress;
    c->history.no_progress = c->round == 1 || further ? 0 : c->history.no_progress + 1;
    bool permanent = c->options.watch_progress && (again || c->history.no_progress >= COORDINATOR_NO_PROGRESS),
         ends = permanent || c->history.restarts_used >= c->options.restarts_max;
    /* the host of the lost peers may be gone without our knowledge */
    c->doubtful = e->weak && count_of(c, NODE_IN) > 1;
    c->doubt_counted = !ends;
    c->doubt_code = permanent ? DT_EXIT_PERMANENT : e->code;
    if (ends && !c->doubtful) {
        finish(c, c->doubt_code, out);
        return;
    }
    c->history.restarts_used += c->doubt_counted;
    for (int i = 0; i < c->node_count; i++) {
        c->nodes[i].doubted = c->nodes[i].member;
    }
    end_round(c, e->node, out);
}

/* Whether a node that is asked to stop leaves alone while the job goes on. Enough other nodes must
 * be here and stay. A node that came back to a new leader may also leave, because the other nodes
 * of its round are on their way. */
static bool may_leave(const struct coordinator *c, const struct coordinator_node *n, int code)
{
    int others = 0;
    if (c->options.save && code != 128 + SIGTERM) {
        /* INT from a person, or a scheduler's warning that time is up, concerns the whole job */
        return false;
    }
    for (int i = 0; i < c->node_count; i++) {
        const struct coordinator_node *x = &c->nodes[i];
        others += x != n && !x->leaving &&
                  (x->state == NODE_IN || x->state == NODE_WAITING || (x->state == NODE_STOPPED && c->pausing));
    }
    return c->options.leave && c->options.nodes_min < c->options.nodes_max &&
           (n->returns || others >= c->options.nodes_min);
}

/* All nodes save before one leaves, because each holds a part of the state. The job goes on. */
static void pause_round(struct coordinator *c, struct actions *out)
{
    for (int i = 0; i < c->node_count && !c->pausing; i++) {
        if (c->nodes[i].state == NODE_IN) {
            (void)add(out, ACTION_PAUSE, c->nodes[i].node, 128 + SIGTERM);
        }
    }
    c->pausing = true;
}

/* A second request to stop: workers are killed at once. A leaving node ends alone. The exit code
 * stays that of the first request. */
static void on_kill(struct coordinator *c, const struct coordinator_node *n, struct actions *out)
{
    for (int i = 0; i < c->node_count && c->stopping && !c->finished && n != NULL && !n->leaving; i++) {
        if (c->nodes[i].state == NODE_IN) {
            (void)add(out, ACTION_STOP, c->nodes[i].node, COORDINATOR_KILL);
        }
    }
}

static void on_stop(struct coordinator *c, const struct event *e, struct actions *out)
{
    struct coordinator_node *n = find(c, e->node);
    if (e->code == COORDINATOR_KILL) {
        on_kill(c, n, out);
        return;
    }
    if (c->stopping || c->finished || (n != NULL && n->leaving)) {
        return;
    }
    int code = e->saved && !c->running ? DT_EXIT_STOPPED : e->code;
    if (n != NULL && may_leave(c, n, e->code)) {
        n->leaving = true;
        if (c->options.save && c->running && (n->state == NODE_IN || n->state == NODE_STOPPED)) {
            pause_round(c, out); /* the node is told to leave when it joins again */
            return;
        }
        (void)add(out, ACTION_LEAVE, n->node, code);
        if (n->state == NODE_WAITING) {
            set_state(c, n, NODE_LEFT);
        } else if (n->state == NODE_IN && c->running) {
            /* costs no restart; the next round waits until the leaving node is lost */
            end_round(c, n->node, out);
        }
        return;
    }
    if (count_of(c, NODE_IN) == 0) { /* no workers run */
        finish(c, code, out);
        return;
    }
    c->stopping = true;
    /* in a pause some nodes may have saved already */
    c->code = count_of(c, NODE_STOPPED) > 0 ? c->code : code;
    for (int i = 0; i < c->node_count; i++) {
        if (c->nodes[i].state == NODE_IN) {
            (void)add(out, ACTION_STOP, c->nodes[i].node, e->code);
        }
    }
}

static void on_gone(struct coordinator *c, const struct event *e, struct actions *out)
{
    struct coordinator_node *n = find(c, e->node);
    if (n == NULL) {
        return;
    }
    bool was_in = n->state == NODE_IN;
    if (coordinator_doubts(c, e->node)) {
        refund_restart(c);
    }
    c->state_counts[n->state]--;
    c->place_of[e->node] = 0;
    c->node_count--;
    if (n != &c->nodes[c->node_count]) {
        *n = c->nodes[c->node_count];
        c->place_of[n->node] = (int)(n - c->nodes) + 1;
    }
    if (was_in && c->running && !c->stopping && !c->finished) {
        end_round(c, -1, out); /* costs no restart */
    }
}

static int by_order(const void *a, const void *b)
{
    const struct coordinator_node *x = *(const struct coordinator_node *const *)a,
                                  *y = *(const struct coordinator_node *const *)b;
    if (x->order != y->order) {
        return x->order < y->order ? -1 : 1;
    }
    return (x->node > y->node) - (x->node < y->node);
}

static int by_role(const void *a, const void *b, void *user)
{
    struct coordinator_node *const *in = user;
    int x = *(const int *)a, y = *(const int *)b, by_name = strcmp(in[x]->role, in[y]->role);
    return by_name != 0 ? by_name : (x > y) - (x < y);
}

static int by_preference(const void *a, const void *b)
{
    const struct coordinator_node *x = *(const struct coordinator_node *const *)a,
                                  *y = *(const struct coordinator_node *const *)b;
    int by_name = strverscmp(x->host, y->host);
    if (x->preference != y->preference) {
        return x->preference < y->preference ? -1 : 1;
    }
    return by_name != 0 ? by_name : by_order(a, b);
}

/* Gives places to new nodes. The first `count` entries of c->order are sorted by order. The nodes
 * among them that were never in a round exchange places and orders with each other. A node that was
 * in a round keeps its rank ahead of all nodes that came later. */
static void place_fresh(struct coordinator *c, int count)
{
    int fresh = 0;
    for (int i = 0; i < count; i++) {
        if (!c->order[i]->placed) {
            c->fresh[fresh] = c->order[i];
            c->fresh_orders[fresh++] = c->order[i]->order;
        }
    }
    qsort(c->fresh, (size_t)fresh, sizeof c->fresh[0], by_preference);
    for (int i = 0; i < fresh; i++) {
        c->fresh[i]->order = c->fresh_orders[i];
    }
    for (int i = 0, k = 0; i < count; i++) {
        c->order[i] = c->order[i]->placed ? c->order[i] : c->fresh[k++];
    }
}

/* Ranks are contiguous per node and follow the group ranks. Role ranks do the same within a role.
 * Only the first nodes_max nodes get a place. */
static void start_round(struct coordinator *c, struct actions *out)
{
    struct coordinator_node **in = c->order;
    int count = 0, world_size = 0, first = out->count;
    for (int i = 0; i < c->node_count; i++) {
        c->nodes[i].member = c->nodes[i].returns = false;
        if (c->nodes[i].state == NODE_WAITING) {
            in[count++] = &c->nodes[i];
        }
    }
    qsort(in, (size_t)count, sizeof *in, by_order);
    place_fresh(c, count);
    count = count > c->options.nodes_max ? c->options.nodes_max : count;
    c->round++;
    c->running = true;
    c->waiting_since_s = c->complete_since_s = -1;
    for (int i = 0; i < count; i++) {
        set_state(c, in[i], NODE_IN);
        in[i]->member = true;
        c->by_role[i] = i;
        add(out, ACTION_START, in[i]->node, 0)->place = (struct place){.round = c->round,
                                                                       .restarts_used = c->history.restarts_used,
                                                                       .group_rank = i,
                                                                       .group_world_size = count,
                                                                       .rank = world_size,
                                                                       .local_world_size = in[i]->local_world_size};
        world_size += in[i]->local_world_size;
    }
    qsort_r(c->by_role, (size_t)count, sizeof c->by_role[0], by_role, in);
    for (int i = 0, end; i < count; i = end) {
        int role_world_size = 0;
        for (end = i; end < count && strcmp(in[c->by_role[i]]->role, in[c->by_role[end]]->role) == 0; end++) {
            out->list[first + c->by_role[end]].place.role_rank = role_world_size;
            role_world_size += in[c->by_role[end]]->local_world_size;
        }
        for (int k = i; k < end; k++) {
            out->list[first + c->by_role[k]].place.role_world_size = role_world_size;
        }
    }
    for (int i = first; i < out->count; i++) {
        out->list[i].place.world_size = world_size;
    }
}

/* Begins the round if it may begin now; otherwise asks for a tick at that time. */
static void start_from(struct coordinator *c, double from_s, double now_s, struct actions *out)
{
    from_s = from_s > c->hold_until_s ? from_s : c->hold_until_s;
    if (now_s >= from_s) {
        start_round(c, out);
    } else {
        out->wake_s = from_s;
    }
}

double coordinator_last_call_end(const struct coordinator *c)
{
    double end_s = c->complete_since_s + c->options.last_call_s;
    return end_s > c->alone_from_s ? end_s : c->alone_from_s;
}

/* A round begins at once when all nodes are here. With fewer nodes, but at least the minimum, it
 * begins after the last call, or when no other node of the previous round can still come. */
static void maybe_start(struct coordinator *c, double now_s, struct actions *out)
{
    int waiting = count_of(c, NODE_WAITING), in = count_of(c, NODE_IN) + count_of(c, NODE_LEFT);
    if (c->running || c->stopping || c->finished || waiting == 0) {
        return;
    }
    if (waiting >= c->options.nodes_max && in == 0) {
        start_from(c, now_s, now_s, out);
        return;
    }
    if (waiting < c->options.nodes_min) {
        c->complete_since_s = -1;
        out->wake_s = c->waiting_since_s + c->options.join_timeout_s;
        if (now_s >= out->wake_s) {
            out->wake_s = 0;
            finish(c, DT_EXIT_TEMPORARY, out);
        }
        return;
    }
    if (c->complete_since_s < 0) {
        c->complete_since_s = now_s;
    }
    if (in > 0) {
        /* Workers of the previous round may still run on that node. The node will join again,
         * leave, or be lost. */
        return;
    }
    bool all_back = c->round > 0;
    for (int i = 0; i < c->node_count && all_back; i++) {
        /* after a new node came, the whole last call is left for more new nodes */
        all_back = c->nodes[i].state != NODE_WAITING || c->nodes[i].member || c->nodes[i].returns;
    }
    start_from(c, all_back ? now_s : coordinator_last_call_end(c), now_s, out);
}

/* After all nodes have saved, a node that was asked to leave does so when it joins again. The other
 * nodes begin the next round. This costs no restart. */
static void maybe_go_on(struct coordinator *c, struct actions *out)
{
    /* the workers finished: this was the last step */
    bool done = count_of(c, NODE_DONE) > 0 && count_of(c, NODE_STOPPED) == 0;
    if (c->pausing && !c->stopping && !c->finished && count_of(c, NODE_IN) == 0 && !done) {
        end_round(c, -1, out);
    }
}

/* The job is done when every node of the round is done. A stop is done when no node runs any
 * more. */
static void maybe_finish(struct coordinator *c, struct actions *out)
{
    if (c->finished || count_of(c, NODE_IN) > 0) {
        return;
    }
    if (c->running && count_of(c, NODE_DONE) > 0 && count_of(c, NODE_STOPPED) == 0) {
        finish(c, DT_EXIT_DONE, out);
    } else if (c->stopping || count_of(c, NODE_STOPPED) > 0) {
        finish(c, c->code, out);
    }
}

void coordinator_step(struct coordinator *c, const struct event *e, double now_s, struct actions *out)
{
    out->count = 0;
    out->wake_s = 0;
    struct coordinator_node *n = find(c, e->node);
    bool current = n != NULL && n->state == NODE_IN && e->round == c->round && c->running;
    switch (e->kind) {
    case EVENT_JOIN:
        on_join(c, e, now_s, out);
        break;
    case EVENT_FAILED:
        on_failed(c, e, out);
        break;
    case EVENT_DONE:
        if (current) {
            set_state(c, n, NODE_DONE);
        }
        break;
    case EVENT_STOPPED:
        if (current) {
            set_state(c, n, NODE_STOPPED);
            if (count_of(c, NODE_STOPPED) == 1 || e->code != DT_EXIT_STOPPED) {
                c->code = e->code; /* the exit code says "saved" only if all nodes say so */
            }
            c->stopping = !c->pausing || c->stopping;
        }
        break;
    case EVENT_STOP:
        on_stop(c, e, out);
        break;
    case EVENT_LOST:
        on_gone(c, e, out);
        break;
    case EVENT_TICK:
        break;
    case EVENT_MET:
        end_doubt(c, out);
        break;
    }
    maybe_go_on(c, out);
    maybe_finish(c, out);
    maybe_start(c, now_s, out);
}
