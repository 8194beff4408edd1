#include "launcher/hosts/wait.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

bool hosts_wait_key_refused(struct hosts_wait *w, const char *why, uint32_t digest, double now_s, double time_scale)
{
    double long_s = HOSTS_WAIT_KEY_S / time_scale;
    bool follows = w->row_refusals > 0 && now_s - w->row_newest_s <= long_s / 6;
    (void)snprintf(w->key, sizeof w->key, "%s", why);
    w->key_digest = digest;
    w->key_refusals++;
    w->row_refusals = follows ? w->row_refusals + 1 : 1;
    w->row_since_s = follows ? w->row_since_s : now_s;
    w->row_newest_s = now_s;
    return w->row_refusals >= HOSTS_WAIT_REFUSALS && now_s - w->row_since_s >= long_s;
}

void hosts_wait_trouble(struct hosts_wait *w, const char *text, uint32_t digest)
{
    (void)snprintf(w->trouble, sizeof w->trouble, "%s", text);
    w->trouble_digest = digest;
}

void hosts_wait_met(struct hosts_wait *w)
{
    hosts_wait_trouble(w, "", 0);
    w->key_refusals = w->row_refusals = 0;
}

bool hosts_wait_is_key(const struct hosts_wait *w, const struct member *m)
{
    return w->key_refusals >= HOSTS_WAIT_REFUSALS && m->record.round == 0;
}

/* Why nobody answers: the newest trouble, unless that is what an endpoint does who heard our
 * wrong key too often. */
static const char *why_of(const struct hosts_wait *w, const struct member *m)
{
    return hosts_wait_is_key(w, m) ? w->key : w->trouble;
}

/* The same, without the endpoint's address where that has been said just before. */
static const char *why_at_endpoint(const struct hosts_wait *w, const struct member *m, const struct options *o)
{
    const char *why = why_of(w, m);
    char address[300];
    bool six = strchr(o->master_addr, ':') != NULL;
    int n = snprintf(address, sizeof address, "%s%s%s:%d: ", six ? "[" : "", o->master_addr, six ? "]" : "",
                     o->master_port);
    bool same = n > 0 && n < (int)sizeof address && strncmp(why, address, (size_t)n) == 0;
    return why + (same ? n : 0);
}

/* It may be no agent. */
static void add_holder(const struct hosts_wait *w, const struct member *m, struct dt_text *out)
{
    if (w->holder[0] != '\0' && !hosts_wait_is_key(w, m)) {
        dt_text_printf(out, "; the port is held by %s", w->holder);
    }
}

void hosts_wait_endpoint(const struct hosts_wait *w, const struct member *m, const struct options *o,
                         struct dt_text *out)
{
    const char *why = why_at_endpoint(w, m, o);
    bool is_static = strcmp(o->rdzv_backend, "static") == 0; /* then the host that was to listen
                                                              * has a number */
    dt_text_printf(out, "endpoint %s port %d%s: %s", o->master_addr, o->master_port,
                   is_static && o->node_rank != 0 ? ", of node rank 0" : "", why[0] != '\0' ? why : "no answer");
    add_holder(w, m, out);
}

void hosts_wait_too_few(const struct hosts_wait *w, const struct member *m, const struct options *o,
                        struct dt_text *out)
{
    const struct member_cause *lost = member_cause(m, m->record.round);
    uint32_t said = 0; /* the digest of what is in `out` */
    if (m->coordinator != NULL) {
        const char *why = why_of(w, m);
        dt_text_printf(out, "%d of %d hosts came within %.0f s (--join_timeout)", m->coordinator->node_count,
                       o->nnodes_min, o->join_timeout_s);
        dt_text_printf(out, "%s%s", why[0] != '\0' ? ": " : "", why);
        said = hosts_wait_is_key(w, m) ? w->key_digest : w->trouble_digest;
        if (lost == NULL) { /* else that one is named */
            member_missing(m, out);
        }
    } else if (m->wait_text[0] != '\0') {
        dt_text_printf(out, "too few hosts within %.0f s (--join_timeout): %s", o->join_timeout_s, m->wait_text);
    } else {
        hosts_wait_endpoint(w, m, o, out);
        said = hosts_wait_is_key(w, m) ? w->key_digest : w->trouble_digest;
    }
    if (lost == NULL && w->denied[0] != '\0' && said != w->denied_digest) {
        dt_text_printf(out, "; refused before: %s", w->denied);
    } else if (lost != NULL && lost->round > 0) {
        dt_text_printf(out, "; first cause: round %d ended: ", lost->round);
        cause_add_line(&lost->cause, out); /* what was to come next is past */
    } else if (lost != NULL) {
        dt_text_printf(out, "; cause: %s", lost->text);
    }
}

/* Hosts that may know a coordinator, when the endpoint does not. */
static void add_council(const struct member *m, struct dt_text *line)
{
    const struct record *r = &m->record;
    for (int i = 0, shown = 0; i < r->council_count && r->round > 0; i++) {
        if (r->council[i].id != m->options.self.id && !peer_is_witness(&r->council[i])) {
            dt_text_printf(line, "%s%s", shown++ == 0 ? "; asking " : " ", r->council[i].host);
        }
    }
}

void hosts_wait_line(const struct hosts_wait *w, const struct member *m, const struct options *o, double free_s,
                     struct dt_text *out)
{
    double now_s = dt_now_s(), waited_s = now_s - w->since_s;
    if (m->spare) {
        dt_text_printf(out,
                       "this host is a spare for %.0f s: the job of run id %s runs with as many hosts as may be, and "
                       "it takes part when one is lost; "
                       "a job of its own "
                       "needs another --rdzv_id",
                       waited_s, o->run_id);
        return;
    }
    if (m->role != MEMBER_SEEKING) {
        dt_text_printf(out, "waiting %.0f s for hosts: %s", waited_s, m->wait_text);
        return;
    }
    double left_s = m->seek_since_s + o->join_timeout_s - now_s;
    dt_text_printf(out, "waiting %.0f s for the endpoint %s port %d, %.0f s left", waited_s, o->master_addr,
                   o->master_port, left_s > 0 ? left_s : 0);
    add_council(m, out);
    const char *why = why_at_endpoint(w, m, o);
    dt_text_printf(out, "%s%s", why[0] != '\0' ? ": " : "", why);
    add_holder(w, m, out);
    if (free_s > now_s) {
        dt_text_printf(out,
                       "; hosts of a run before may still train: if none says a word, another run begins in %.0f s",
                       free_s - now_s);
    }
}
