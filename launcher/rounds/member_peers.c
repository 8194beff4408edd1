/* Linked agents, agents that are gone for certain, and quorums of agents that may live. */
#include "launcher/rounds/member_parts.h"

#include "base/text.h"

#include <string.h>

static int slot_after(const struct member *m, uint64_t id, int slot)
{
    int first = (int)((id * 0x9e3779b97f4a7c15ull) >> 40) & (m->slot_count - 1);
    return slot < 0 ? first : (slot + 1) & (m->slot_count - 1);
}

/* The slot of the id, or the free slot where the id belongs. */
static int slot_of(const struct member *m, uint64_t id)
{
    int slot = slot_after(m, id, -1);
    while (m->slots[slot] != 0 && m->peers[m->slots[slot] - 1].id != id) {
        slot = slot_after(m, id, slot);
    }
    return slot;
}

struct member_peer *member_find(const struct member *m, uint64_t id)
{
    int at = m->slot_count > 0 ? m->slots[slot_of(m, id)] : 0;
    return at > 0 ? &m->peers[at - 1] : NULL;
}

static void index_peers(struct member *m)
{
    memset(m->slots, 0, (size_t)m->slot_count * sizeof *m->slots);
    for (int i = 0; i < m->peer_count; i++) {
        m->slots[slot_of(m, m->peers[i].id)] = i + 1;
    }
}

struct member_peer *member_add_peer(struct member *m, uint64_t id)
{
    if (m->peer_count == m->peer_capacity) {
        m->peer_capacity = m->peer_capacity * 2 + 16;
        m->peers = dt_realloc(m->peers, (size_t)m->peer_capacity * sizeof *m->peers);
    }
    if (2 * (m->peer_count + 1) > m->slot_count) {
        m->slot_count = m->slot_count > 0 ? 2 * m->slot_count : 32;
        m->slots = dt_realloc(m->slots, (size_t)m->slot_count * sizeof *m->slots);
        index_peers(m);
    }
    struct member_peer *p = &m->peers[m->peer_count++];
    *p = (struct member_peer){.id = id, .node = -1};
    m->slots[slot_of(m, id)] = m->peer_count;
    return p;
}

void member_remove_peer(struct member *m, struct member_peer *p)
{
    int last = m->peer_count - 1, free_slot = slot_of(m, p->id), mask = m->slot_count - 1;
    m->slots[slot_of(m, m->peers[last].id)] = (int)(p - m->peers) + 1;
    m->slots[free_slot] = 0;
    *p = m->peers[last];
    m->peer_count--;
    /* linear probing: every entry must be reachable from its first slot */
    for (int slot = (free_slot + 1) & mask; m->slots[slot] != 0; slot = (slot + 1) & mask) {
        int first = slot_after(m, m->peers[m->slots[slot] - 1].id, -1);
        if (((slot - first) & mask) >= ((slot - free_slot) & mask)) {
            m->slots[free_slot] = m->slots[slot];
            m->slots[slot] = 0;
            free_slot = slot;
        }
    }
}

static struct member_dead *find_dead(const struct member *m, uint64_t id)
{
    int count = m->dead_count < MEMBER_DEAD ? m->dead_count : MEMBER_DEAD;
    for (int i = 0; i < count; i++) {
        if (m->dead[i].id == id) {
            return (struct member_dead *)&m->dead[i];
        }
    }
    return NULL;
}

bool member_is_dead(const struct member *m, uint64_t id)
{
    return find_dead(m, id) != NULL;
}

void member_mark_dead(struct member *m, uint64_t id, bool told)
{
    struct member_dead *d = find_dead(m, id);
    if (d == NULL) {
        d = &m->dead[m->dead_count++ % MEMBER_DEAD];
        *d = (struct member_dead){.id = id};
    }
    d->told = d->told || told;
}

bool member_same_machine(const struct peer_info *a, const struct peer_info *b)
{
    return a->machine != 0 && a->machine == b->machine;
}

/* The process `here` listens where an agent of the council listened, so that agent is gone. Both
 * must be on the same machine, because containers of two hosts may have the same address. */
void member_mark_predecessors_dead(struct member *m, const struct peer_info *here)
{
    const struct record *r = &m->record;
    for (int k = 0; k < r->council_count + r->before_count; k++) {
        const struct peer_info *p = k < r->council_count ? &r->council[k] : &r->before[k - r->council_count];
        if (p->id != here->id && p->address[0] != 0 && p->port == here->port && member_same_machine(p, here) &&
            strcmp(p->address, here->address) == 0) {
            member_mark_dead(m, p->id, false);
        }
    }
}

/* Does this for all linked agents, after the council has changed. An agent that was silent for two
 * beats may itself be the predecessor, whose end we did not see. */
void member_mark_all_predecessors_dead(struct member *m)
{
    member_mark_predecessors_dead(m, &m->options.self);
    for (int i = 0; i < m->peer_count; i++) {
        if (m->now_s - m->peers[i].heard_s < 2 * m->options.beat_s) {
            member_mark_predecessors_dead(m, &m->peers[i].info);
        }
    }
}

/* Whether more than half of the agents that may live are there, or half of them with the leader of
 * that council. */
static bool quorum_of(const struct member *m, const struct peer_info *council, int count, uint64_t leader,
                      member_has *has, const void *arg)
{
    int alive = 0, have = 0;
    bool with_leader = false;
    for (int i = 0; i < count; i++) {
        bool here = council[i].id == m->options.self.id || has(m, council[i].id, arg);
        const struct member_dead *dead = here ? NULL : find_dead(m, council[i].id);
        if (dead != NULL && dead->told) {
            continue;
        }
        alive++;
        have += here;
        with_leader = with_leader || (here && council[i].id == leader);
    }
    return alive == 0 || 2 * have > alive || (2 * have == alive && with_leader);
}

bool member_quorum(const struct member *m, const struct record *r, member_has *has, const void *arg)
{
    return quorum_of(m, r->council, r->council_count, r->leader, has, arg) &&
           (r->committed || r->before_count == 0 ||
            quorum_of(m, r->before, r->before_count, r->before_leader, has, arg));
}
