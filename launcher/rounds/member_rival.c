/* Two runs of one name. The holder of the endpoint began a new run because it remembers nothing,
 * while survivors of its former run went on. While it hears nothing of the survivors, it cannot
 * know that they live. When the two leaders hear of each other, the run with more hosts goes on. Of
 * runs with equally many hosts, the one with the higher round goes on, then the one with the
 * smaller nonce. The other leader ends its round and joins that run, and so do its followers. If
 * there is a witness, the witness decides. */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

int member_hosts_led(const struct member *m)
{
    const struct coordinator *c = m->leading.coordinator;
    bool ends = m->record.finished || c->finished || c->stopping;
    return m->witness.info.id == 0 && !ends && member_leads(m, m->now_s) ? c->node_count : 0;
}

/* Whether the run of the beat goes on and ours does not. Both leaders decide by the same numbers,
 * which they exchanged. */
static bool is_weaker(const struct member *m, const struct message_beat *in)
{
    bool begun = member_has_begun(m->record.round, m->record.committed),
         theirs = member_has_begun(in->round, in->committed);
    int own = member_hosts_led(m);
    if (!begun || !theirs) {
        /* of two runs without a round neither yields: one will begin, or find the other */
        return theirs;
    }
    if (own != in->hosts) {
        return own < in->hosts;
    }
    if (m->record.round != in->round) {
        return m->record.round < in->round;
    }
    return memcmp(m->record.nonce, in->nonce, sizeof in->nonce) > 0;
}

static const char *hosts(int count)
{
    return count == 1 ? "host" : "hosts";
}

/* Ends our round. Its hosts are told the reason, and which leader to join. */
static void yield(struct member *m, const struct member_peer *to, const struct message_beat *in)
{
    char text[512];
    int own = member_hosts_led(m);
    struct message out = {.kind = MESSAGE_YIELD, .yield = in->info};
    (void)snprintf(text, sizeof text,
                   "host %s (pid %d): leads another run of this name, with %d %s in round %d; this one, with %d %s in "
                   "round %d, ends and joins it",
                   in->info.host, in->info.pid, in->hosts, hosts(in->hosts), in->round, own, hosts(own),
                   m->record.round);
    if (out.yield.address[0] == '\0') { /* no address: use the one of our link */
        memcpy(out.yield.address, to->info.address, sizeof out.yield.address);
    }
    bool set = member_set_host_cause(m, text, "");
    if (m->node.waiting) {
        member_say_cause(m, text, "", set);
    }
    for (int i = 0; i < m->peer_count; i++) {
        if (m->peers[i].joined && m->peers[i].id != to->id) {
            member_send(m, m->peers[i].id, &out);
        }
    }
}

/* Whether there is room to keep our promises in one more run. If not, our node ends with a
 * message. */
static bool may_give_up(struct member *m)
{
    if (m->kept.past_count < MEMBER_PAST) {
        return true;
    }
    member_act(m, ACTION_REFUSE, DT_EXIT_TEMPORARY,
               "another run of this name goes on, and this host has left too many already; start it again");
    return false;
}

/* Whether we, the leader, yield to the leader of another run. */
static bool yields(struct member *m, struct member_peer *p, const struct message_beat *in, double now_s)
{
    int own = member_hosts_led(m);
    p->stamp = in->stamp > p->stamp ? in->stamp : p->stamp;
    p->in_other_run = true;
    if (own == 0 || in->hosts == 0) {
        return false; /* one of the two runs is ending */
    }
    /* that leader sent this before it heard us, or before we slept */
    if (in->echo <= 0 || now_s - in->echo > 2 * m->options.beat_s) {
        member_beat(m, p->id);
        return false;
    }
    if (is_weaker(m, in)) {
        return true;
    }
    if (!p->rival_told && member_has_begun(in->round, in->committed)) {
        p->rival_told = true;
        member_say(m,
                   "host %s (pid %d): led another run of this name, with %d %s in round %d; it ends and joins this "
                   "one, with %d %s in round %d",
                   in->info.host, in->info.pid, in->hosts, hosts(in->hosts), in->round, own, hosts(own),
                   m->record.round);
    }
    return false;
}

bool member_leaves_run(struct member *m, struct member_peer *p, const struct message_beat *in, double now_s)
{
    bool begun = member_has_begun(in->round, in->committed);
    const struct peer_info *leader = member_leader(m);
    if (m->role == MEMBER_SEEKING) {
        return !begun && member_hopeless(m, now_s);
    }
    if (m->role == MEMBER_LEADING && yields(m, p, in, now_s) && may_give_up(m)) {
        yield(m, p, in);
        return true;
    }
    /* the two leaders must hear of each other */
    if (m->role == MEMBER_FOLLOWING && begun && in->hosts > 0 && leader != NULL) {
        struct message out = {.kind = MESSAGE_REDIRECT, .redirect = *leader};
        member_send(m, p->id, &out);
    }
    return false;
}

void member_on_yield(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    const struct peer_info *to = &in->yield;
    (void)p;
    if (!may_give_up(m)) {
        return;
    }
    if (m->node.waiting && m->cause.round == m->record.round && !m->cause.said) {
        member_say_cause(m, m->cause.text, "", true);
    }
    member_lose_leader(m, true, now_s);
    if (m->role != MEMBER_SEEKING) {
        return; /* our node was asked to stop, and has ended */
    }
    member_change_run(m, (const uint64_t[2]){0, 0});
    if (member_find(m, to->id) != NULL) {
        member_send_join(m, to->id);
    } else {
        m->hooks.connect(m->hooks.user, to);
    }
}

void member_hold_for_others(struct member *m, double now_s)
{
    struct coordinator *c = m->leading.coordinator;
    bool any = false;
    if (m->witness.info.id != 0 || m->record.round > 0) {
        return;
    }
    for (int i = 0; i < m->peer_count; i++) {
        any = any || m->peers[i].in_other_run;
    }
    if (any && m->leading.others_since_s <= 0) {
        m->leading.others_since_s = now_s;
    }
    double until_s = any ? m->leading.others_since_s + 2 * m->options.dead_s : m->other_run_seen ? c->alone_from_s : 0;
    if (until_s != c->hold_until_s) {
        struct event e = {.kind = EVENT_TICK, .node = -1};
        c->hold_until_s = until_s;
        member_lead_step(m, &e, now_s);
    }
}
