/* Without a leader, and with one: seeking, how we ask for a place in a round, whom we follow. */
#include "launcher/rounds/member_parts.h"

#include <math.h>
#include <string.h>

void member_send_join(struct member *m, uint64_t peer)
{
    struct message out = {.kind = MESSAGE_JOIN, .info = m->options.self, .local_world_size = m->join.local_world_size};
    if (!m->waiting) {
        return;
    }
    memcpy(out.role, m->join_role, sizeof out.role);
    memcpy(out.text, m->options.digest, sizeof out.text);
    if (m->record.round > 0) { /* before that, nothing binds us to a run */
        memcpy(out.nonce, m->record.nonce, sizeof out.nonce);
    }
    out.granted = m->firm_order;
    out.round = m->last_round;
    out.stamp = m->now_s;
    out.count = m->seek_count;
    out.preference = m->options.preference;
    member_send(m, peer, &out);
    if (m->stop_code != 0) {
        struct message stop = {.kind = MESSAGE_EVENT,
                               .event = {.kind = EVENT_STOP,
                                         .round = m->last_round,
                                         .code = m->stop_code,
                                         .saved = m->stop_saved,
                                         .role = m->join_role}};
        member_send(m, peer, &stop);
    }
}

static void seek(struct member *m, double now_s)
{
    int place = member_place_of(m->record.council, m->record.council_count, m->options.self.id);
    m->role = MEMBER_SEEKING;
    m->wait_text[0] = '\0';
    m->spare = false;
    m->seek_count++;
    m->leader = m->joined = m->campaign = 0;
    m->seek_since_s = now_s;
    m->retry_at_s = now_s;
    m->campaign_at_s =
        (m->vote_after_s > now_s ? m->vote_after_s : now_s) + 0.2 * m->options.beat_s * (place > 0 ? place : 0);
}

/* Nobody leads us any more: our workers may not go on. */
void member_lose_leader(struct member *m, bool dead, double now_s)
{
    m->vote_after_s = dead ? now_s : m->leader_heard_s + m->options.dead_s;
    m->lost_silent = !dead;
    seek(m, now_s);
    if (!m->waiting) {
        m->workers_left = true;
        member_act(m, ACTION_END, 0, NULL);
    } else if (m->stop_code != 0) { /* it knew, and is gone: nothing of ours runs any more */
        member_act(m, ACTION_FINISH, m->stop_saved ? DT_EXIT_STOPPED : m->stop_code, NULL);
    }
}

void member_seek(struct member *m, double now_s)
{
    m->now_s = now_s;
    m->vote_after_s = now_s; /* there never was one */
    m->lost_silent = false;
    seek(m, now_s);
}

/* Whether we keep the state: those who do are linked with each other. */
static bool is_keeper(const struct member *m)
{
    const struct record *r = &m->record;
    return member_place_of(r->council, r->council_count, m->options.self.id) >= 0 ||
           member_place_of(r->before, r->before_count, m->options.self.id) >= 0;
}

/* All others need their leader only. What they opened to find it is closed again: ten thousand
 * links to each keeper would stay for nothing. */
void member_let_others_go(struct member *m)
{
    for (int i = m->peer_count - 1; i >= 0 && !is_keeper(m); i--) {
        if (m->peers[i].id != m->leader) {
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
    /* the same agent may lead again without our news */
    bool other = m->leader != leader || m->role != MEMBER_FOLLOWING || m->leader_term != term;
    if (m->role == MEMBER_LEADING) {
        member_stop_leading(m);
    }
    m->joined = other ? 0 : m->joined;
    m->leader_term = term;
    m->role = MEMBER_FOLLOWING;
    m->leader = leader;
    m->leader_heard_s = now_s;
    m->lease_s = other ? now_s : m->lease_s; /* no worker of ours runs under it yet */
    m->echo_s = other ? 0 : m->echo_s;
    m->leader_stamp = other ? 0 : m->leader_stamp;
    m->campaign = 0;
    if (other && !m->waiting && m->joined != leader) {
        m->workers_left = true;
        member_act(m, ACTION_END, 0, NULL); /* of a round that this leader did not begin */
    }
    if (m->waiting && m->joined != leader) {
        m->joined = leader;
        member_send_join(m, leader);
    }
    if (other) {
        member_let_others_go(m);
    }
}

/* Links to those who may know a leader, and our wish to those that are there. Keepers look for
 * all of them, as they elect; the others, who may be thousands, for two more at each try. */
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

/* Until we look around again. All hosts of a job begin at about the same time, and whoever holds
 * the endpoint may listen a moment after we asked: before the first round we ask again soon,
 * then less and less often. */
static double pause_of(const struct member *m, double now_s)
{
    double most_s = m->options.retry_s, pause_s = fmax((now_s - m->seek_since_s) / 2, most_s / 50);
    return m->record.round == 0 ? fmin(pause_s, most_s) : most_s;
}

/* Nobody of our run can be reached for long, and it cannot go on anywhere beside a new one: we
 * may begin anew with the others. Whoever never was in a round has nothing to hope for. */
bool member_hopeless(const struct member *m, double now_s)
{
    return m->waiting && now_s - m->seek_since_s > 2 * m->options.dead_s &&
           (m->record.round == 0 ||
            (2 * m->options.rounds.nodes_min > m->options.rounds.nodes_max && m->past_count < MEMBER_PAST));
}

double member_tick_seeking(struct member *m, double now_s)
{
    /* where there is a witness, nobody begins without it */
    if (m->holds_endpoint && m->witness.id == 0 && member_hopeless(m, now_s)) {
        member_lead(m, now_s);
        return now_s;
    }
    if (m->options.rounds.join_timeout_s > 0 && now_s - m->seek_since_s >= m->options.rounds.join_timeout_s) {
        member_say(m,
                   m->record.round == 0 ? "no host that leads this run was found within %.0f s"
                                        : "nobody leads this run, and none could be elected within %.0f s",
                   m->options.rounds.join_timeout_s);
        member_act(m, ACTION_FINISH, DT_EXIT_TEMPORARY, NULL);
        return now_s + 3600;
    }
    if (now_s >= m->retry_at_s) {
        m->retry_at_s = now_s + pause_of(m, now_s);
        look_around(m);
    }
    if (m->role == MEMBER_SEEKING && now_s >= m->campaign_at_s) {
        member_campaign(m, now_s);
    }
    if (m->role != MEMBER_SEEKING) {
        return now_s;
    }
    return m->retry_at_s < m->campaign_at_s ? m->retry_at_s : m->campaign_at_s;
}
