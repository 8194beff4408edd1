/* What people are told: who is silent, for whom a round waits, why one ended; and how long our
 * workers may live, which is told to the guard. */
#include "launcher/rounds/member_parts.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- silence ---- */

/* Says once that a peer on whom a round depends is silent. Returns when to look again. */
static double look_at(struct member *m, struct member_peer *p, double now_s)
{
    /* who sleeps hears nobody */
    double since_s = fmax(p->heard_s, m->awake_s), silent_s = now_s - since_s, suspect_s = m->options.dead_s / 3;
    if (!p->suspect && silent_s >= suspect_s) {
        p->suspect = true;
        member_say(m, "host %s: suspect: no heartbeat for %.1f s; counts as lost after %.0f s", p->info.host, silent_s,
                   m->options.dead_s);
    }
    return p->suspect ? now_s + m->options.dead_s : since_s + suspect_s;
}

double member_slept_s(const struct member *m, double now_s)
{
    bool lately = m->awake_s > 0 && now_s < m->awake_s + m->options.lease_s;
    /* its last beat was older than that */
    return lately && m->slept_s + m->options.beat_s >= m->options.lease_s ? m->slept_s : 0;
}

double member_watch_silence(struct member *m, double now_s)
{
    double next_s = now_s + m->options.dead_s;
    for (int i = 0; i < m->peer_count; i++) {
        struct member_peer *p = &m->peers[i];
        if (m->role == MEMBER_LEADING ? p->joined : m->role == MEMBER_FOLLOWING && p->id == m->leader) {
            double look_s = look_at(m, p, now_s);
            next_s = look_s < next_s ? look_s : next_s;
        }
    }
    return next_s;
}

void member_heard(struct member *m, struct member_peer *p, double now_s)
{
    if (p->suspect) {
        p->suspect = false;
        member_say(m, "host %s: suspect for %.1f s, back", p->info.host, now_s - p->heard_s);
    }
    p->heard_s = now_s;
}

/* ---- how long workers may live ---- */

struct since {
    double s;
};

/* When a peer answered us last, in our time; its link may have ended since. */
static bool answered_since(const struct member *m, uint64_t id, const void *arg)
{
    const struct since *since = arg;
    const struct member_peer *p = member_find(m, id);
    if (p != NULL && p->lease_s >= since->s) {
        return true;
    }
    for (int i = 0; i < MEMBER_GHOSTS; i++) {
        if (m->ghosts[i].id == id && m->ghosts[i].lease_s >= since->s) {
            return true;
        }
    }
    return false;
}

bool member_heard_quorum(const struct member *m, double since_s)
{
    struct since since = {since_s};
    return member_quorum(m, &m->record, answered_since, &since);
}

bool member_leads(const struct member *m, double now_s)
{
    return m->role == MEMBER_LEADING && !m->record.finished && member_heard_quorum(m, now_s - m->options.lease_s);
}

void member_add_ghost(struct member *m, const struct member_peer *p)
{
    if (p->lease_s > 0) {
        m->ghosts[m->ghost_count++ % MEMBER_GHOSTS] = (struct member_ghost){p->id, p->lease_s};
    }
}

/* The newest time at which a quorum knew that we lead. */
static double led_until(const struct member *m, double now_s)
{
    double newest_s = now_s - m->options.lease_s;
    if (member_heard_quorum(m, now_s)) {
        return now_s; /* we are one by ourselves */
    }
    for (int i = 0; i < m->record.council_count + m->record.before_count; i++) {
        uint64_t id =
            i < m->record.council_count ? m->record.council[i].id : m->record.before[i - m->record.council_count].id;
        const struct member_peer *p = member_find(m, id);
        if (p != NULL && p->lease_s > newest_s && member_heard_quorum(m, p->lease_s)) {
            newest_s = p->lease_s;
        }
    }
    return newest_s;
}

double member_workers_s(const struct member *m)
{
    return m->options.lease_s + 0.6 * (m->options.dead_s - m->options.lease_s);
}

/* The others may begin a round without us dead_s after they heard us last; there is time left
 * for whoever does not end when told to. */
double member_workers_until(struct member *m, double now_s)
{
    if (m->role == MEMBER_OVER && m->record.finished) {
        m->workers_until_s = 0; /* there is no other round to disturb */
    } else if (m->role == MEMBER_FOLLOWING && !m->workers_left) {
        m->workers_until_s = m->lease_s + member_workers_s(m);
    } else if (m->role == MEMBER_LEADING && !m->workers_left) {
        m->workers_until_s = led_until(m, now_s) + member_workers_s(m);
    }
    return m->workers_until_s;
}

/* ---- why a round ended ---- */

void member_forget_past_cause(struct member *m)
{
    if (m->cause.past) {
        memset(&m->cause, 0, sizeof m->cause);
    }
}

bool member_set_cause(struct member *m, int round, const struct cause *cause)
{
    struct member_cause *known = &m->cause;
    member_forget_past_cause(m);
    /* until now only from ranks that were told */
    bool heard = cause->kind == CAUSE_PEER && cause_is_heard(&known->cause) && !cause_is_heard(cause);
    bool weaker = known->round == round && known->cause.kind != CAUSE_NONE &&
                  (known->cause.kind != CAUSE_PEER || (cause->kind == CAUSE_PEER && !heard));
    if (weaker || round < known->round || cause->kind == CAUSE_NONE) {
        return false;
    }
    struct message out = {.kind = MESSAGE_CAUSE, .round = round, .cause = *cause};
    struct dt_text line;
    dt_text_init(&line);
    cause_add_line(cause, &line);
    dt_text_printf(&line, "%s%s", cause->next[0] != '\0' ? "; " : "", cause->next);
    *known = (struct member_cause){.round = round, .cause = *cause};
    (void)snprintf(known->text, sizeof known->text, "%s", dt_text_str(&line));
    dt_text_make_harmless(known->text, false); /* a worker may have said it, and it goes to a
                                                * terminal */
    dt_text_clear(&line);
    for (int i = 0; i < m->peer_count && m->role == MEMBER_LEADING; i++) {
        if (m->peers[i].joined) {
            member_send(m, m->peers[i].id, &out);
        }
    }
    return true;
}

bool member_set_host_cause(struct member *m, const char *words, const char *next)
{
    struct cause cause = {.kind = CAUSE_HOST, .rank = -1, .step = -1, .digest = dt_digest(words), .whole = true};
    (void)snprintf(cause.words, sizeof cause.words, "%s", words);
    (void)snprintf(cause.next, sizeof cause.next, "%s", next);
    return member_set_cause(m, m->record.round, &cause);
}

void member_say_cause(struct member *m, const char *words, const char *next, bool set)
{
    member_say(m, "%s%s%s", words, next[0] != '\0' ? "; " : "", next);
    m->cause.said = m->cause.said || set;
}

const struct member_cause *member_cause(const struct member *m, int round)
{
    return m->cause.round == round && m->cause.cause.kind != CAUSE_NONE ? &m->cause : NULL;
}

/* ---- for whom a round waits ---- */

static const char *host_of_node(const struct member *m, int node)
{
    const struct member_peer *p = member_find(m, m->nodes->ids[node]);
    return p != NULL && p->joined && p->node == node ? p->info.host : m->options.self.host;
}

/* Those that still have workers, or all. */
static void add_hosts(const struct member *m, const char *before, bool ending, struct dt_text *out)
{
    const struct coordinator *c = m->coordinator;
    int shown = 0;
    for (int i = 0; i < c->node_count; i++) {
        if ((!ending || c->nodes[i].state == NODE_IN) && shown++ < 8) {
            dt_text_printf(out, "%s%s", shown == 1 ? before : " ", host_of_node(m, c->nodes[i].node));
        }
    }
    dt_text_puts(out, shown > 8 ? " ..." : "");
}

void member_missing(const struct member *m, struct dt_text *out)
{
    const struct record *r = &m->record;
    const char *before = "; not heard from: ";
    int shown = 0;
    for (int64_t order = 0; m->firm_order && order < m->options.rounds.nodes_max && shown < 8; order++) {
        bool here = order == m->options.self.order;
        for (int i = 0; i < m->peer_count && !here; i++) {
            here = m->peers[i].joined && m->peers[i].info.order == order;
        }
        if (!here) {
            dt_text_printf(out, "%snode %lld", shown++ == 0 ? before : ", ", (long long)order);
        }
    }
    for (int k = 0; k < r->council_count && !m->firm_order && r->round > 0; k++) {
        const struct member_peer *p = member_find(m, r->council[k].id);
        if (r->council[k].id != m->options.self.id && !peer_is_witness(&r->council[k]) && (p == NULL || !p->joined)) {
            dt_text_printf(out, "%s%s", shown++ == 0 ? before : " ", r->council[k].host);
        }
    }
}

static double left(double until_s, double now_s)
{
    return until_s > now_s ? until_s - now_s : 0;
}

void member_wait_text(struct member *m, char *text, size_t size)
{
    const struct coordinator *c = m->coordinator;
    const struct coordinator_options *o = &c->options;
    int waiting = c->state_counts[NODE_WAITING];
    struct dt_text out;
    dt_text_init(&out);
    dt_text_printf(&out, "%d of ", c->node_count);
    dt_text_printf(&out, o->nodes_min != o->nodes_max ? "%d to %d here" : "%d here", o->nodes_min, o->nodes_max);
    add_hosts(m, " (", false, &out);
    dt_text_puts(&out, c->node_count > 0 ? ")" : "");
    char apart[256];
    if (member_apart_text(m, apart, sizeof apart) != NULL) {
        dt_text_printf(&out, "; %s, %.0f s left", apart, left(m->reach_since_s + o->join_timeout_s, m->now_s));
    } else if (m->fenced) {
        dt_text_printf(&out, "; %.0f s left until the workers of lost hosts are gone for certain",
                       left(member_fenced_until(m), m->now_s));
    } else if (c->state_counts[NODE_IN] > 0) {
        add_hosts(m, "; workers still end at ", true, &out);
    } else if (waiting < o->nodes_min) {
        dt_text_printf(&out, "; %.0f s left", left(c->waiting_since_s + o->join_timeout_s, m->now_s));
    } else if (c->complete_since_s >= 0) {
        dt_text_printf(&out, "; last call: %.0f s left", left(coordinator_last_call_end(c), m->now_s));
    }
    if (c->hold_until_s > m->now_s) {
        dt_text_printf(&out, "; a host of another run of this name is here: %.0f s left for whoever leads that",
                       left(c->hold_until_s, m->now_s));
    }
    if (c->node_count < o->nodes_max) {
        member_missing(m, &out);
    }
    (void)snprintf(text, size, "%s", dt_text_str(&out));
    dt_text_clear(&out);
}
