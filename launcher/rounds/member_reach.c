/* Workers of any two hosts talk to each other, agents of two followers need not: so before a
 * round begins, its leader lets them try. Who cannot be reached is left out when the job may go
 * on without it; otherwise the round waits. A host that takes connections from nobody (its ports
 * are closed, and it has a link because it called its leader) is no such case: the agents need
 * no more than that link, and what the workers need only their program knows. For rounds of up
 * to MEMBER_REACH hosts: a larger one learns it from its workers. */
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

/* The later one calls, as its workers will. */
static void ask(struct member *m)
{
    for (int i = 0; i < m->pair_count; i++) {
        const struct peer_info *low = info_of(m, m->pairs[i].low);
        if (!m->pairs[i].reached && low != NULL) {
            struct message out = {.kind = MESSAGE_PROBE, .info = *low};
            member_send(m, m->pairs[i].high, &out);
        }
    }
}

static void list_pairs(struct member *m)
{
    m->pair_count = 0;
    for (int j = 0; j < m->start_count; j++) {
        const struct peer_info *high = member_info_of_node(m, m->starts[j].node);
        for (int i = 0; i < j; i++) {
            const struct peer_info *low = member_info_of_node(m, m->starts[i].node);
            if (low != NULL && high != NULL && low->id != m->options.self.id && high->id != m->options.self.id) {
                m->pairs[m->pair_count++] = (struct member_pair){.low = low->id, .high = high->id};
            }
        }
    }
}

static const struct member_pair *unreached(const struct member *m)
{
    for (int i = 0; i < m->pair_count; i++) {
        if (!m->pairs[i].reached) {
            return &m->pairs[i];
        }
    }
    return NULL;
}

bool member_all_reached(struct member *m)
{
    if (m->start_count > MEMBER_REACH) {
        return true;
    }
    if (!m->reaching) {
        for (int i = 0; i < m->peer_count; i++) {
            m->peers[i].door = m->peers[i].door == DOOR_ASKED ? DOOR_ASKED : DOOR_UNKNOWN;
        }
        m->reaching = true;
        m->reach_since_s = m->now_s;
        list_pairs(m);
        ask(m);
    }
    return unreached(m) == NULL;
}

const char *member_apart_text(const struct member *m, char *text, size_t size)
{
    const struct member_pair *pair = m->reaching && m->fenced ? unreached(m) : NULL;
    const struct peer_info *a = pair != NULL ? info_of(m, pair->low) : NULL,
                           *b = pair != NULL ? info_of(m, pair->high) : NULL;
    if (a == NULL || b == NULL || m->now_s - m->reach_since_s < m->options.beat_s) {
        return NULL;
    }
    (void)snprintf(text, size, "hosts %s and %s cannot reach each other", a->host, b->host);
    return text;
}

/* Pairs of which one takes connections from nobody, not even from us. True: that is still being
 * asked. */
static bool excuse_closed(struct member *m)
{
    bool asking = false;
    for (int i = 0; i < m->pair_count && m->options.closed_ok && m->hooks.knock != NULL; i++) {
        struct member_pair *pair = &m->pairs[i];
        struct member_peer *p = member_find(m, pair->low); /* the other one calls it */
        if (pair->reached || p == NULL || !p->joined) {
            continue;
        }
        if (p->door == DOOR_UNKNOWN) {
            p->door = DOOR_ASKED;
            m->hooks.knock(m->hooks.user, &p->info);
        }
        asking = asking || p->door == DOOR_ASKED;
        pair->reached = p->door == DOOR_CLOSED;
        if (pair->reached && !p->door_told) {
            p->door_told = true;
            member_say(m,
                       "host %s: takes no connections from other hosts; going on, but this job would not survive the "
                       "loss of host %s, which all are "
                       "linked with",
                       p->info.host, m->options.self.host);
        }
    }
    return asking;
}

void member_knocked(struct member *m, uint64_t peer, bool open, double now_s)
{
    struct member_peer *p = member_find(m, peer);
    m->now_s = now_s;
    if (p == NULL || p->door != DOOR_ASKED) {
        return;
    }
    p->door = open ? DOOR_OPEN : DOOR_CLOSED;
    if (m->role == MEMBER_LEADING && m->reaching && m->fenced) {
        (void)excuse_closed(m);
        member_begin_when_free(m);
    }
}

/* Whoever misses most of the others; of several the one that came last. */
static struct member_peer *loneliest(const struct member *m, uint64_t *other)
{
    struct member_peer *worst = NULL;
    int most = 0;
    for (int k = 0; k < m->start_count; k++) {
        const struct peer_info *info = member_info_of_node((struct member *)m, m->starts[k].node);
        int missed = 0;
        uint64_t whom = 0;
        for (int i = 0; info != NULL && i < m->pair_count; i++) {
            const struct member_pair *p = &m->pairs[i];
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

/* They were in the round before, and its workers lost their peers: that is why, and costs no
 * restart. Everybody hears it before the next round begins. */
static bool ended_a_round(struct member *m, const struct member_peer *p, uint64_t other, const char *words,
                          const char *next)
{
    const struct member_peer *o = member_find(m, other);
    if (o == NULL || !coordinator_apart(m->coordinator, p->node, o->node)) {
        return false;
    }
    (void)member_set_host_cause(m, words, next);
    return true;
}

void member_tick_reach(struct member *m, double now_s)
{
    char text[256], next[CAUSE_NEXT_BYTES];
    if (!m->reaching || !m->fenced) {
        return;
    }
    ask(m);
    const struct coordinator *c = m->coordinator;
    uint64_t other = 0;
    bool asking = now_s - m->reach_since_s >= m->options.beat_s && excuse_closed(m);
    if (unreached(m) == NULL) {
        member_begin_when_free(m);
        return;
    }
    struct member_peer *p = !asking && now_s - m->reach_since_s >= m->options.dead_s / 3 ? loneliest(m, &other) : NULL;
    if (p == NULL || member_apart_text(m, text, sizeof text) == NULL) {
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
        p->apart = other;
        member_put_out(m, p, now_s);
        return;
    }
    (void)ended_a_round(m, p, other, text, "");
    if (now_s - m->reach_since_s >= c->options.join_timeout_s) {
        (void)member_set_host_cause(m, text, "");
        struct event e = {
            .kind = EVENT_FAILED, .node = 0, .round = c->round, .failure = FAILURE_START, .code = DT_EXIT_TEMPORARY};
        member_lead_step(m, &e, now_s);
    }
}

bool member_stays_apart(struct member *m, struct member_peer *p)
{
    const struct peer_info *other = p->apart != 0 ? info_of(m, p->apart) : NULL;
    if (other == NULL) {
        p->apart = 0;
        return false;
    }
    struct message out = {.kind = MESSAGE_PROBE, .info = *other};
    member_send(m, p->id, &out);
    return true;
}

/* From a follower: it has a link with `info`. */
void member_on_reach(struct member *m, struct member_peer *p, const struct message *in)
{
    if (p->apart == in->info.id) {
        p->apart = 0; /* it asks again soon */
    }
    for (int i = 0; i < m->pair_count; i++) {
        struct member_pair *pair = &m->pairs[i];
        pair->reached = pair->reached || (pair->high == p->id && pair->low == in->info.id) ||
                        (pair->low == p->id && pair->high == in->info.id);
    }
    member_begin_when_free(m);
}

/* At a follower. */
void member_say_reached(struct member *m, uint64_t peer)
{
    struct message out = {.kind = MESSAGE_REACH, .info = {.id = peer, .order = -1}};
    member_send(m, m->leader, &out);
}

void member_on_probe(struct member *m, const struct message *in)
{
    if (in->info.id == m->options.self.id || !m->waiting) {
        return;
    }
    if (member_find(m, in->info.id) != NULL) {
        member_say_reached(m, in->info.id);
    } else {
        m->hooks.connect(m->hooks.user, &in->info);
    }
}
