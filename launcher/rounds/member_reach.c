/* Workers of any two hosts talk to each other, but agents of two followers need not. So before a
 * round begins, its leader makes the followers connect to each other. If two hosts cannot connect,
 * one of them is excluded if the job may go on without it; otherwise the round waits. A host that
 * takes connections from no host (its ports are closed, and it opened the link to its leader) is an
 * exception. Agents need only its link to the leader, and only the program knows which connections
 * its workers need. Rounds of more than MEMBER_REACH hosts begin without these attempts; their
 * workers will find such pairs. */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

static const struct peer_info *info_of(const struct member *m, uint64_t id)
{
    const struct member_peer *p = member_find(m, id);
    return p != NULL && p->joined ? &p->info : NULL;
}

/* The later node of a pair connects to the earlier node, as its workers will. */
static void ask(struct member *m)
{
    for (int i = 0; i < m->leading.pair_count; i++) {
        const struct peer_info *low = info_of(m, m->leading.pairs[i].low);
        if (!m->leading.pairs[i].reached && low != NULL) {
            struct message out = {.kind = MESSAGE_PROBE, .probe = *low};
            member_send(m, m->leading.pairs[i].high, &out);
        }
    }
}

static void list_pairs(struct member *m)
{
    m->leading.pair_count = 0;
    for (int j = 0; j < m->leading.start_count; j++) {
        const struct peer_info *high = member_info_of_node(m, m->leading.starts[j].node);
        for (int i = 0; i < j; i++) {
            const struct peer_info *low = member_info_of_node(m, m->leading.starts[i].node);
            if (low != NULL && high != NULL && low->id != m->options.self.id && high->id != m->options.self.id) {
                m->leading.pairs[m->leading.pair_count++] = (struct member_pair){.low = low->id, .high = high->id};
            }
        }
    }
}

static const struct member_pair *unreached(const struct member *m)
{
    for (int i = 0; i < m->leading.pair_count; i++) {
        if (!m->leading.pairs[i].reached) {
            return &m->leading.pairs[i];
        }
    }
    return NULL;
}

bool member_all_reached(struct member *m)
{
    if (m->leading.start_count > MEMBER_REACH) {
        return true;
    }
    if (!m->leading.reaching) {
        for (int i = 0; i < m->peer_count; i++) {
            m->peers[i].port_state =
                m->peers[i].port_state == MEMBER_PORT_PROBING ? MEMBER_PORT_PROBING : MEMBER_PORT_UNKNOWN;
        }
        m->leading.reaching = true;
        m->leading.reach_since_s = m->now_s;
        list_pairs(m);
        ask(m);
    }
    return unreached(m) == NULL;
}

const char *member_unreachable_text(const struct member *m, char *text, size_t size)
{
    const struct member_pair *pair = m->leading.reaching && m->leading.fenced ? unreached(m) : NULL;
    const struct peer_info *a = pair != NULL ? info_of(m, pair->low) : NULL,
                           *b = pair != NULL ? info_of(m, pair->high) : NULL;
    if (a == NULL || b == NULL || m->now_s - m->leading.reach_since_s < m->options.beat_s) {
        return NULL;
    }
    (void)snprintf(text, size, "hosts %s and %s cannot reach each other", a->host, b->host);
    return text;
}

/* Counts a pair as reached if one of its hosts takes connections from no host. Returns true while a
 * host is being tried. */
static bool skip_closed_ports(struct member *m)
{
    bool asking = false;
    for (int i = 0; i < m->leading.pair_count && m->options.closed_ok && m->hooks.probe_port != NULL; i++) {
        struct member_pair *pair = &m->leading.pairs[i];
        /* the other host of the pair connects to this one */
        struct member_peer *p = member_find(m, pair->low);
        if (pair->reached || p == NULL || !p->joined) {
            continue;
        }
        if (p->port_state == MEMBER_PORT_UNKNOWN) {
            p->port_state = MEMBER_PORT_PROBING;
            m->hooks.probe_port(m->hooks.user, &p->info);
        }
        asking = asking || p->port_state == MEMBER_PORT_PROBING;
        pair->reached = p->port_state == MEMBER_PORT_CLOSED;
        if (pair->reached && !p->port_told) {
            p->port_told = true;
            member_say(m,
                       "host %s: takes no connections from other hosts; going on, but this job would not survive the "
                       "loss of host %s, which all are "
                       "linked with",
                       p->info.host, m->options.self.host);
        }
    }
    return asking;
}

void member_port_probed(struct member *m, uint64_t peer, bool open, double now_s)
{
    struct member_peer *p = member_find(m, peer);
    m->now_s = now_s;
    if (p == NULL || p->port_state != MEMBER_PORT_PROBING) {
        return;
    }
    p->port_state = open ? MEMBER_PORT_OPEN : MEMBER_PORT_CLOSED;
    if (m->role == MEMBER_LEADING && m->leading.reaching && m->leading.fenced) {
        (void)skip_closed_ports(m);
        member_begin_when_free(m);
    }
}

/* The host with the most unreached hosts; of several the last one. *other: one of its unreached
 * hosts. */
static struct member_peer *worst_connected(const struct member *m, uint64_t *other)
{
    struct member_peer *worst = NULL;
    int most = 0;
    for (int k = 0; k < m->leading.start_count; k++) {
        const struct peer_info *info = member_info_of_node((struct member *)m, m->leading.starts[k].node);
        int missed = 0;
        uint64_t whom = 0;
        for (int i = 0; info != NULL && i < m->leading.pair_count; i++) {
            const struct member_pair *p = &m->leading.pairs[i];
            if (!p->reached && (p->low == info->id || p->high == info->id)) {
                missed++;
                whom = p->low == info->id ? p->high : p->low;
            }
        }
        if (missed > 0 && missed >= most) {
            most = missed;
            worst = member_find(m, info->id);
            *other = whom;
        }
    }
    return worst;
}

/* Notes that the two hosts cannot reach each other. If both were in the previous round, and that
 * round ended because workers lost their peers, this is the cause, and it costs no restart. All
 * hosts are told before the next round begins. */
static bool ended_a_round(struct member *m, const struct member_peer *p, uint64_t other, const char *words,
                          const char *next)
{
    const struct member_peer *o = member_find(m, other);
    if (o == NULL || !coordinator_note_unreachable(m->leading.coordinator, p->node, o->node)) {
        return false;
    }
    (void)member_set_host_cause(m, words, next);
    return true;
}

void member_tick_reach(struct member *m, double now_s)
{
    char text[256], next[CAUSE_NEXT_BYTES];
    if (!m->leading.reaching || !m->leading.fenced) {
        return;
    }
    ask(m);
    const struct coordinator *c = m->leading.coordinator;
    uint64_t other = 0;
    bool asking = now_s - m->leading.reach_since_s >= m->options.beat_s && skip_closed_ports(m);
    if (unreached(m) == NULL) {
        member_begin_when_free(m);
        return;
    }
    struct member_peer *p =
        !asking && now_s - m->leading.reach_since_s >= m->options.dead_s / 3 ? worst_connected(m, &other) : NULL;
    if (p == NULL || member_unreachable_text(m, text, sizeof text) == NULL) {
        return;
    }
    if (c->node_count - 1 >= c->options.nodes_min) {
        (void)snprintf(next, sizeof next, "going on without %s, with %d of %d hosts (minimum %d)", p->info.host,
                       c->node_count - 1, c->options.nodes_max, c->options.nodes_min);
        bool ended = ended_a_round(m, p, other, text, next);
        if (ended) {
            member_note_loss(m, &p->info);
        }
        member_say_cause(m, text, next, ended);
        p->cannot_reach = other;
        member_exclude(m, p, now_s);
        return;
    }
    (void)ended_a_round(m, p, other, text, "");
    if (now_s - m->leading.reach_since_s >= c->options.join_timeout_s) {
        (void)member_set_host_cause(m, text, "");
        struct event e = {
            .kind = EVENT_FAILED, .node = 0, .round = c->round, .failure = FAILURE_START, .code = DT_EXIT_TEMPORARY};
        member_lead_step(m, &e, now_s);
    }
}

bool member_stays_excluded(struct member *m, struct member_peer *p)
{
    const struct peer_info *other = p->cannot_reach != 0 ? info_of(m, p->cannot_reach) : NULL;
    if (other == NULL) {
        p->cannot_reach = 0;
        return false;
    }
    struct message out = {.kind = MESSAGE_PROBE, .probe = *other};
    member_send(m, p->id, &out);
    return true;
}

void member_on_reach(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    uint64_t other = in->reach.id;
    (void)now_s;
    if (p->cannot_reach == other) {
        p->cannot_reach = 0; /* the host sends another JOIN soon */
    }
    for (int i = 0; i < m->leading.pair_count; i++) {
        struct member_pair *pair = &m->leading.pairs[i];
        pair->reached =
            pair->reached || (pair->high == p->id && pair->low == other) || (pair->low == p->id && pair->high == other);
    }
    member_begin_when_free(m);
}

/* A follower reports to its leader that it has a link with the peer. */
void member_say_reached(struct member *m, uint64_t peer)
{
    struct message out = {.kind = MESSAGE_REACH, .reach = {.id = peer}};
    member_send(m, m->following.leader, &out);
}

void member_on_probe(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct peer_info *other = &in->probe;
    (void)p, (void)now_s;
    if (other->id == m->options.self.id || !m->node.waiting) {
        return;
    }
    if (member_find(m, other->id) != NULL) {
        member_say_reached(m, other->id);
    } else {
        m->hooks.connect(m->hooks.user, other);
    }
}
