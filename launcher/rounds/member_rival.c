/* Two runs of one name: who holds the endpoint began anew, as it remembers nothing, while
 * survivors of its run before went on. They cannot be told from hosts that are gone as long as
 * nothing is heard of them. When two leaders hear of each other, the run with more hosts goes
 * on, then the one with the higher round, then the smaller nonce; the other one's leader ends
 * its round and joins, and so do those who followed it. Where there is a witness, it decides. */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"

#include <stdio.h>
#include <string.h>

int member_claim(const struct member *m)
{
    const struct coordinator *c = m->coordinator;
    bool ends = m->record.finished || c->finished || c->stopping;
    return m->witness.id == 0 && !ends && member_leads(m, m->now_s) ? c->node_count : 0;
}

/* Whether the run of a beat goes on and not ours. Both leaders decide by what each told the
 * other. */
static bool is_weaker(const struct member *m, const struct message *in)
{
    bool begun = member_has_begun(m->record.round, m->record.committed),
         theirs = member_has_begun(in->round, in->granted);
    int own = member_claim(m);
    if (!begun || !theirs) {
        return theirs; /* of two that have not begun nobody yields: one of them will begin, or
                        * find the other */
    }
    if (own != in->members) {
        return own < in->members;
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

/* Our round ends, and those who are in it hear why and where to go. */
static void yield(struct member *m, const struct member_peer *to, const struct message *in)
{
    char text[512];
    int own = member_claim(m);
    struct message out = {.kind = MESSAGE_YIELD, .info = in->info};
    (void)snprintf(text, sizeof text,
                   "host %s (pid %d): leads another run of this name, with %d %s in round %d; this one, with %d %s in "
                   "round %d, ends and joins it",
                   in->info.host, in->info.pid, in->members, hosts(in->members), in->round, own, hosts(own),
                   m->record.round);
    if (out.info.address[0] == '\0') { /* where we see it */
        memcpy(out.info.address, to->info.address, sizeof out.info.address);
    }
    bool set = member_set_host_cause(m, text, "");
    if (m->waiting) {
        member_say_cause(m, text, "", set);
    }
    for (int i = 0; i < m->peer_count; i++) {
        if (m->peers[i].joined && m->peers[i].id != to->id) {
            member_send(m, m->peers[i].id, &out);
        }
    }
}

/* There is no room for what we promised in one run more. */
static bool may_give_up(struct member *m)
{
    if (m->past_count < MEMBER_PAST) {
        return true;
    }
    member_act(m, ACTION_REFUSE, DT_EXIT_TEMPORARY,
               "another run of this name goes on, and this host has left too many already; start it again");
    return false;
}

/* A leader hears of another run's. */
static bool yields(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    int own = member_claim(m);
    p->stamp = in->stamp > p->stamp ? in->stamp : p->stamp;
    p->elsewhere = true;
    if (own == 0 || in->members == 0) {
        return false; /* one of them is at its end */
    }
    /* said before it heard us, or before we slept */
    if (in->echo <= 0 || now_s - in->echo > 2 * m->options.beat_s) {
        member_beat(m, p->id);
        return false;
    }
    if (is_weaker(m, in)) {
        return true;
    }
    if (!p->rival_told && member_has_begun(in->round, in->granted)) {
        p->rival_told = true;
        member_say(m,
                   "host %s (pid %d): led another run of this name, with %d %s in round %d; it ends and joins this "
                   "one, with %d %s in round %d",
                   in->info.host, in->info.pid, in->members, hosts(in->members), in->round, own, hosts(own),
                   m->record.round);
    }
    return false;
}

bool member_leaves_run(struct member *m, struct member_peer *p, const struct message *in, double now_s)
{
    bool begun = member_has_begun(in->round, in->granted);
    const struct peer_info *leader = member_leader(m);
    if (m->role == MEMBER_SEEKING) {
        return !begun && member_hopeless(m, now_s);
    }
    if (m->role == MEMBER_LEADING && yields(m, p, in, now_s) && may_give_up(m)) {
        yield(m, p, in);
        return true;
    }
    /* they have to hear of each other */
    if (m->role == MEMBER_FOLLOWING && begun && in->members > 0 && leader != NULL) {
        struct message out = {.kind = MESSAGE_REDIRECT, .info = *leader};
        member_send(m, p->id, &out);
    }
    return false;
}

void member_on_yield(struct member *m, const struct message *in, double now_s)
{
    if (!may_give_up(m)) {
        return;
    }
    if (m->waiting && m->cause.round == m->record.round && !m->cause.said) {
        member_say_cause(m, m->cause.text, "", true);
    }
    member_lose_leader(m, true, now_s);
    if (m->role != MEMBER_SEEKING) {
        return; /* it was asked to stop */
    }
    member_change_run(m, (const uint64_t[2]){0, 0});
    if (member_find(m, in->info.id) != NULL) {
        member_send_join(m, in->info.id);
    } else {
        m->hooks.connect(m->hooks.user, &in->info);
    }
}

void member_hold_for_others(struct member *m, double now_s)
{
    struct coordinator *c = m->coordinator;
    bool any = false;
    if (m->witness.id != 0 || m->record.round > 0) {
        return;
    }
    for (int i = 0; i < m->peer_count; i++) {
        any = any || m->peers[i].elsewhere;
    }
    if (any && m->others_since_s <= 0) {
        m->others_since_s = now_s;
    }
    double until_s = any ? m->others_since_s + 2 * m->options.dead_s : m->strays ? c->alone_from_s : 0;
    if (until_s != c->hold_until_s) {
        struct event e = {.kind = EVENT_TICK, .node = -1};
        c->hold_until_s = until_s;
        member_lead_step(m, &e, now_s);
    }
}
