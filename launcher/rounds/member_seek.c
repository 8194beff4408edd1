/* Seeking a leader, asking for a place in a round, and following the leader. */
#include "launcher/rounds/member_parts.h"

#include <math.h>
#include <string.h>

void member_send_join(struct member *m, uint64_t peer)
{
    struct message out = {.kind = MESSAGE_JOIN,
                          .join = {.info = m->options.self,
                                   .order_binds = m->node.firm_order,
                                   .local_world_size = m->node.join.local_world_size,
                                   .last_round = m->node.last_round,
                                   .stamp = m->now_s,
                                   .seek_count = m->node.seek_count,
                                   .preference = m->options.preference}};
    if (!m->node.waiting) {
        return;
    }
    memcpy(out.join.role, m->node.join_role, sizeof out.join.role);
    memcpy(out.join.digest, m->options.digest, sizeof out.join.digest);
    if (m->record.round > 0) { /* before the first round our node is not bound to a run */
        memcpy(out.join.nonce, m->record.nonce, sizeof out.join.nonce);
    }
    member_send(m, peer, &out);
    if (m->node.stop_code != 0) {
        struct event e = {.kind = EVENT_STOP,
                          .round = m->node.last_round,
                          .code = m->node.stop_code,
                          .saved = m->node.stop_saved,
                          .role = m->node.join_role};
        struct message stop;
        message_set_event(&stop, &e);
        member_send(m, peer, &stop);
    }
}

static void seek(struct member *m, double vote_after_s, bool silent, double now_s)
{
    int place = member_place_of(m->record.council, m->record.council_count, m->options.self.id);
    m->role = MEMBER_SEEKING;
    m->following = (struct member_following){0};
    m->seeking = (struct member_seeking){.since_s = now_s,
                                         .vote_after_s = vote_after_s,
                                         .lost_silent = silent,
                                         .campaign_at_s = fmax(vote_after_s, now_s) +
                                                          0.2 * m->options.beat_s * (place > 0 ? place : 0)};
    m->node.wait_text[0] = '\0';
    m->node.spare = false;
    m->node.seek_count++;
    m->node.retry_at_s = now_s;
}

/* No agent leads us any more, so our workers may not go on. */
void member_lose_leader(struct member *m, bool dead, double now_s)
{
    seek(m, dead ? now_s : m->following.heard_s + m->options.dead_s, !dead, now_s);
    if (!m->node.waiting) {
        m->node.workers_left = true;
        member_act(m, ACTION_END, 0, NULL);
    } else if (m->node.stop_code != 0) {
        /* The leader knew that we were asked to stop, and is gone. Our workers are gone, too. */
        member_act(m, ACTION_FINISH, m->node.stop_saved ? DT_EXIT_STOPPED : m->node.stop_code, NULL);
    }
}

void member_seek(struct member *m, double now_s)
{
    m->now_s = now_s;
    seek(m, now_s, false, now_s); /* there never was a leader */
}

/* Whether this agent keeps the record. Such agents have links with each other. */
static bool is_keeper(const struct member *m)
{
    const struct record *r = &m->record;
    return member_place_of(r->council, r->council_count, m->options.self.id) >= 0 ||
           member_place_of(r->before, r->before_count, m->options.self.id) >= 0;
}

/* Agents that keep no record need only their leader. They close the links that they opened to find
 * it, because ten thousand links to each keeper would have no use. */
void member_drop_other_links(struct member *m)
{
    for (int i = m->peer_count - 1; i >= 0 && !is_keeper(m); i--) {
        if (m->peers[i].id != m->following.leader) {
            m->hooks.drop(m->hooks.user, m->peers[i].id);
            member_remove_peer(m, &m->peers[i]);
        }
    }
}

void member_hold(struct member *m, double now_s)
{
    m->holds_endpoint = true;
    if (m->role == MEMBER_SEEKING && m->record.round == 0) {
        member_lead(m, now_s);
    }
}

void member_follow(struct member *m, uint64_t leader, uint64_t term, double now_s)
{
    /* The same agent may lead again in a later term, without our noticing the gap. */
    bool other = m->following.leader != leader || m->role != MEMBER_FOLLOWING || m->following.term != term;
    if (m->role == MEMBER_LEADING) {
        member_stop_leading(m);
    }
    m->role = MEMBER_FOLLOWING;
    m->seeking.term = 0;
    if (other) { /* no worker of ours runs under this leader yet */
        m->following = (struct member_following){.leader = leader, .term = term, .lease_s = now_s};
    }
    m->following.heard_s = now_s;
    if (other && !m->node.waiting && m->following.joined != leader) {
        m->node.workers_left = true;
        /* the workers belong to a round that this leader did not begin */
        member_act(m, ACTION_END, 0, NULL);
    }
    if (m->node.waiting && m->following.joined != leader) {
        m->following.joined = leader;
        member_send_join(m, leader);
    }
    if (other) {
        member_drop_other_links(m);
    }
}

/* Connects to agents that may know a leader, and asks the linked agents for a place. A keeper looks
 * for all other keepers, because keepers elect. The other agents may be thousands, so each of them
 * looks for only two more keepers per attempt. */
static void look_around(struct member *m)
{
    const struct record *r = &m->record;
    int count = r->council_count + r->before_count, tries = is_keeper(m) ? count : count < 2 ? count : 2;
    m->hooks.connect(m->hooks.user, NULL);
    for (int i = 0; i < tries; i++) {
        int k = (int)((m->options.self.id % 1009 + m->look_count++) % (uint64_t)count);
        const struct peer_info *p = k < r->council_count ? &r->council[k] : &r->before[k - r->council_count];
        if (p->id != m->options.self.id && !member_is_dead(m, p->id) && member_find(m, p->id) == NULL) {
            m->hooks.connect(m->hooks.user, p);
        }
    }
    for (int i = 0; i < m->peer_count && i < 2 * MESSAGE_COUNCIL; i++) {
        member_send_join(m, m->peers[i].id);
    }
}

/* The time until the next attempt. All hosts of a job begin at about the same time, and the holder
 * of the endpoint may begin to listen just after our attempt. So before the first round the next
 * attempt comes soon, and later attempts come less and less often. */
static double pause_of(const struct member *m, double now_s)
{
    double most_s = m->options.retry_s, pause_s = fmax((now_s - m->seeking.since_s) / 2, most_s / 50);
    return m->record.round == 0 ? fmin(pause_s, most_s) : most_s;
}

/* Whether we may begin a new run with other hosts. No agent of our run was reachable for long, and
 * our run cannot go on elsewhere beside a new one. A host that was never in a round has nothing to
 * wait for. */
bool member_hopeless(const struct member *m, double now_s)
{
    return m->node.waiting && now_s - m->seeking.since_s > 2 * m->options.dead_s &&
           (m->record.round == 0 ||
            (2 * m->options.rounds.nodes_min > m->options.rounds.nodes_max && m->kept.past_count < MEMBER_PAST));
}

double member_tick_seeking(struct member *m, double now_s)
{
    /* if there is a witness, no run begins without it */
    if (m->holds_endpoint && m->witness.info.id == 0 && member_hopeless(m, now_s)) {
        member_lead(m, now_s);
        return now_s;
    }
    if (m->options.rounds.join_timeout_s > 0 && now_s - m->seeking.since_s >= m->options.rounds.join_timeout_s) {
        member_say(m,
                   m->record.round == 0 ? "no host that leads this run was found within %.0f s"
                                        : "nobody leads this run, and none could be elected within %.0f s",
                   m->options.rounds.join_timeout_s);
        member_act(m, ACTION_FINISH, DT_EXIT_TEMPORARY, NULL);
        return now_s + 3600;
    }
    if (now_s >= m->node.retry_at_s) {
        m->node.retry_at_s = now_s + pause_of(m, now_s);
        look_around(m);
    }
    if (m->role == MEMBER_SEEKING && now_s >= m->seeking.campaign_at_s) {
        member_campaign(m, now_s);
    }
    if (m->role != MEMBER_SEEKING) {
        return now_s;
    }
    return m->node.retry_at_s < m->seeking.campaign_at_s ? m->node.retry_at_s : m->seeking.campaign_at_s;
}
