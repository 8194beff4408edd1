/* How the leader answers a JOIN: it refuses the host, makes it wait, or makes it a node of the next
 * round. */
#include "launcher/rounds/member_parts.h"

#include "base/error.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int new_node(struct member *m, uint64_t id)
{
    struct member_nodes *n = m->leading.nodes;
    int node = n->unused_count > 0 ? n->unused[--n->unused_count] : n->next < COORDINATOR_MAX_NODES ? n->next++ : -1;
    if (node >= 0) {
        n->ids[node] = id;
    }
    return node;
}

enum {
    ALIKE_BYTES = 60, /* a longer common start of two lines is not shown */
    SHOWN_BYTES = 150 /* of the rest, so much is shown */
};

/* One side of a difference. Of a long line: its name, and the text from `from` on. */
static void show_line(char *out, size_t out_bytes, const char *line, int size, int from)
{
    int name = (int)strcspn(line, " \n"), rest = size - from;
    if (size == 0) { /* the other side has one more line */
        (void)snprintf(out, out_bytes, "nothing");
        return;
    }
    (void)snprintf(out, out_bytes, "%.*s%s%.*s%s", from > 0 ? name : 0, line, from > 0 ? " ..." : "",
                   rest < SHOWN_BYTES ? rest : SHOWN_BYTES, line + from, rest > SHOWN_BYTES ? "..." : "");
}

/* Shows the lines in which the digests differ. */
static void compare_digests(const char *ours, const char *theirs, char *out, size_t out_bytes)
{
    char here[2 * SHOWN_BYTES], there[2 * SHOWN_BYTES];
    size_t used = 0;
    out[0] = 0;
    while (*ours != 0 || *theirs != 0) {
        int a = (int)strcspn(ours, "\n"), b = (int)strcspn(theirs, "\n"), alike = 0, from = 0;
        for (; alike < a && alike < b && ours[alike] == theirs[alike]; alike++) {
            from = ours[alike] == ' ' ? alike : from; /* the start of a word */
        }
        if ((alike < a || alike < b) && used < out_bytes) {
            from = alike > ALIKE_BYTES ? from : 0;
            show_line(here, sizeof here, ours, a, from);
            show_line(there, sizeof there, theirs, b, from);
            int n = snprintf(out + used, out_bytes - used, "%s%s here, %s there", used > 0 ? "; " : "", here, there);
            used += n > 0 ? (size_t)n : 0;
        }
        ours += a + (ours[a] == '\n');
        theirs += b + (theirs[b] == '\n');
    }
}

/* The agent that has this node rank already; null: none. */
static const struct peer_info *same_order(const struct member *m, const struct member_peer *p, int64_t order)
{
    if (order == m->options.self.order) {
        return &m->options.self;
    }
    if (order < (int64_t)(sizeof m->leading.nodes->order_ids / sizeof m->leading.nodes->order_ids[0])) {
        const struct member_peer *had = member_find(m, m->leading.nodes->order_ids[order]);
        return had != NULL && had->joined && had->id != p->id && had->info.order == order ? &had->info : NULL;
    }
    for (int i = 0; i < m->peer_count; i++) {
        if (m->peers[i].joined && m->peers[i].id != p->id && m->peers[i].info.order == order) {
            return &m->peers[i].info;
        }
    }
    return NULL;
}

/* Ends the job, which can begin neither with this host nor without it. */
static void end_all(struct member *m, int code, const char *text)
{
    for (int i = 0; i < m->peer_count; i++) {
        if (m->peers[i].joined) {
            member_refuse(m, &m->peers[i], code, text);
        }
    }
    member_act(m, ACTION_REFUSE, code, text);
}

/* The exit code of a host's failed check of the job, from its digest; 0: the check did not fail. */
static int failed_check(const char *digest)
{
    const char *line = strstr(digest, MEMBER_FAILED_CHECK);
    int code = line != NULL ? atoi(line + strlen(MEMBER_FAILED_CHECK)) : 0;
    return code > 0 && code <= 128 ? code : 0;
}

static bool can_never_begin(const struct member *m)
{
    return m->record.round == 0 && m->options.rounds.nodes_min == m->options.rounds.nodes_max;
}

/* Refuses a host because its check of the job failed, or ours did. The output of the failed host
 * gives the reason. */
static void refuse_failed(struct member *m, struct member_peer *p, const struct message_join *in, int ours, int theirs)
{
    char text[MESSAGE_TEXT_BYTES];
    int code = theirs > 0 ? theirs : ours;
    (void)snprintf(text, sizeof text, "host %s cannot take part: " MEMBER_FAILED_CHECK "%d; its own output says why",
                   theirs > 0 ? in->info.host : m->options.self.host, code);
    member_refuse(m, p, code, text);
    m->node.told_count += p->seek_count != in->seek_count;
    if (ours > 0) { /* our agent stays, to tell the other hosts */
        p->seek_count = in->seek_count;
        if (m->node.told_count >= m->options.rounds.nodes_max - 1) {
            member_act(m, ACTION_REFUSE, ours, text);
        }
        return;
    }
    if (can_never_begin(m)) {
        end_all(m, code, text);
    } else if (p->seek_count != in->seek_count) {
        member_say(m, "%.400s", text);
    }
    p->seek_count = in->seek_count;
}

/* Whether neither job has a run id and the two run different things. */
static bool is_another_job(const char *ours, const char *theirs)
{
    const char *a = strstr(ours, MEMBER_UNNAMED), *b = strstr(theirs, MEMBER_UNNAMED);
    size_t n = a != NULL ? strcspn(a, "\n") : 0;
    return a != NULL && b != NULL && (strcspn(b, "\n") != n || strncmp(a, b, n) != 0);
}

/* In the text for the other host, "here" means that host. In our own text, "here" means ours. */
static void refuse_different(struct member *m, struct member_peer *p, const struct message_join *in)
{
    char text[MESSAGE_TEXT_BYTES], told[MESSAGE_TEXT_BYTES];
    int ours = failed_check(m->options.digest), theirs = failed_check(in->digest);
    if (ours > 0 || theirs > 0) {
        refuse_failed(m, p, in, ours, theirs);
        return;
    }
    bool other_job = is_another_job(m->options.digest, in->digest);
    compare_digests(in->digest, m->options.digest, text, sizeof text);
    (void)snprintf(told, sizeof told, "started differently from host %s: %.1700s; start all alike%s",
                   m->options.self.host, text, other_job ? ", or give each job an --rdzv_id of its own" : "");
    member_refuse(m, p, DT_EXIT_USAGE, told);
    compare_digests(m->options.digest, in->digest, text, sizeof text);
    if (can_never_begin(m) && !other_job) {
        (void)snprintf(told, sizeof told, "host %s was started differently: %.1800s", in->info.host, text);
        end_all(m, DT_EXIT_USAGE, told);
    } else if (p->seek_count != in->seek_count) {
        /* only once: the host asks several times before it gets our answer */
        member_say(m, "host %s: refused: %.400s", in->info.host, text);
    }
    p->seek_count = in->seek_count;
}

/* A job without a run id refuses hosts that would only wait beside a round without a place for
 * them. Such a host may belong to another job, which would end without having run anything. But the
 * host may also replace a host whose death was not noticed yet. A host that is silent when the
 * newcomer comes counts as lost dead_s later, so the newcomer is refused only after that. */
void member_refuse_spares(struct member *m, double now_s)
{
    bool unnamed = strstr(m->options.digest, MEMBER_UNNAMED) != NULL, suspect = false;
    for (int i = 0; i < m->peer_count; i++) {
        suspect = suspect || (m->peers[i].joined && m->peers[i].suspect);
    }
    for (int i = m->peer_count - 1; i >= 0 && unnamed && m->role == MEMBER_LEADING && m->leading.coordinator->running &&
                                    !m->leading.coordinator->pausing;
         i--) {
        struct member_peer *p = &m->peers[i];
        const struct coordinator_node *n = p->joined ? coordinator_find(m->leading.coordinator, p->node) : NULL;
        bool waits = n != NULL && n->state == NODE_WAITING && !n->placed;
        p->spare_since_s = !waits ? 0 : p->spare_since_s > 0 ? p->spare_since_s : now_s;
        if (waits && !suspect && now_s - p->spare_since_s >= m->options.dead_s) {
            member_refuse(m, p, DT_EXIT_TEMPORARY,
                          "a job without --rdzv_id runs at this etcd, and has as many hosts as may be: give another "
                          "job, or spare hosts, an --rdzv_id");
            member_exclude(m, p, now_s);
        }
    }
}

static struct member_return *return_of(struct member *m, const struct peer_info *info)
{
    int ring = (int)(sizeof m->leading.nodes->returns / sizeof m->leading.nodes->returns[0]),
        count = m->leading.nodes->return_count < ring ? m->leading.nodes->return_count : ring;
    for (int i = 0; i < count; i++) {
        if (strcmp(m->leading.nodes->returns[i].host, info->host) == 0 &&
            strcmp(m->leading.nodes->returns[i].address, info->address) == 0) {
            return &m->leading.nodes->returns[i];
        }
    }
    return NULL;
}

void member_note_loss(struct member *m, const struct peer_info *info)
{
    struct member_return *r = return_of(m, info);
    if (r == NULL) {
        r = &m->leading.nodes->returns[m->leading.nodes->return_count++ %
                                       (int)(sizeof m->leading.nodes->returns / sizeof m->leading.nodes->returns[0])];
        memset(r, 0, sizeof *r);
        memcpy(r->host, info->host, sizeof r->host);
        memcpy(r->address, info->address, sizeof r->address);
    }
    r->away = true;
}

/* A host that came back three times within ten minutes must stay for a minute before it gets a
 * place, because each loss and each return ends a round. The host asks again. */
static bool must_stay_first(struct member *m, struct member_peer *p, const struct peer_info *info, double now_s)
{
    struct member_return *r = return_of(m, info);
    if (r == NULL) {
        return false;
    }
    if (r->away) {
        r->away = false;
        r->at_s[r->count++ % 3] = now_s;
        if (r->count >= 3 && now_s - r->at_s[r->count % 3] <= 600) {
            r->held_until_s = now_s + 60;
            member_say(m, "host %s came back 3 times within 10 minutes: it is taken in when it has stayed for 60 s",
                       info->host);
        }
    }
    /* a host without which there are too few gets its place at once */
    bool held = now_s < r->held_until_s && m->leading.coordinator->node_count >= m->options.rounds.nodes_min;
    p->held_until_s = held ? r->held_until_s : 0;
    return held;
}

void member_note_order(struct member *m, const struct member_peer *p)
{
    if (p->info.order >= 0 &&
        p->info.order < (int64_t)(sizeof m->leading.nodes->order_ids / sizeof m->leading.nodes->order_ids[0])) {
        m->leading.nodes->order_ids[p->info.order] = p->id;
    }
}

void member_on_join(struct member *m, struct member_peer *p, const struct message *message, double now_s)
{
    const struct message_join *in = &message->join;
    char text[MESSAGE_TEXT_BYTES];
    int64_t order = in->info.order;
    bool placed, returns = in->nonce[0] != 0 || in->nonce[1] != 0;
    if (returns && memcmp(in->nonce, m->record.nonce, sizeof in->nonce) != 0) {
        if (!member_has_begun(m->record.round, m->record.committed)) {
            /* The host's run is older than ours. The surviving hosts of that run will send us to
             * their leader. */
            member_beat(m, p->id);
            return;
        }
        member_refuse(m, p, DT_EXIT_TEMPORARY, "this run ended; another one of the same name has begun");
        return;
    }
    if (m->kept.verdict) {
        member_tell_end(m, p, returns);
    }
    if (m->record.finished) {
        /* the host follows us, and gets the verdict when a quorum keeps it */
        return;
    }
    if (strcmp(in->digest, m->options.digest) != 0) {
        refuse_different(m, p, in);
        return;
    }
    const struct peer_info *other = order >= 0 ? same_order(m, p, order) : NULL;
    if (other != NULL && !in->order_binds) {
        order = -1; /* a leader unknown to us gave this order */
    } else if (other != NULL) {
        const struct member_peer *holder = member_find(m, other->id);
        if (holder != NULL && now_s - holder->heard_s > 3 * m->options.beat_s) {
            /* The holder may be this agent's predecessor on the host, whose end we have not seen.
             * The agent asks again. */
            return;
        }
        (void)snprintf(text, sizeof text,
                       "--node_rank=%lld: host %s, pid %d, has this node rank already; give each host its own, 0 to %d",
                       (long long)order, other->host, other->pid, m->options.rounds.nodes_max - 1);
        member_refuse(m, p, DT_EXIT_USAGE, text);
        return;
    }
    if (p->joined && in->seek_count == p->seek_count) {
        return; /* a repeated JOIN, sent before our answer arrived */
    }
    if (p->joined) { /* the host had no leader meanwhile, and has ended its workers */
        (void)member_drop_start(m, p->node);
        struct event lost = {.kind = EVENT_LOST, .node = p->node};
        member_lead_step(m, &lost, now_s);
        if (m->role != MEMBER_LEADING) {
            return;
        }
    }
    member_unfence(m, p->id); /* a node that waits for a round has no workers */
    if (member_stays_excluded(m, p) || must_stay_first(m, p, &in->info, now_s)) {
        member_beat(m, p->id);
        return;
    }
    p->seek_count = in->seek_count;
    placed = order >= 0;
    order = order < 0 && p->joined ? p->info.order : order;
    p->info = in->info;
    p->info.id = p->id;
    p->info.order = order;
    if (order < 0) {
        p->info.order = m->record.next_order++;
    } else if (order >= m->record.next_order) {
        m->record.next_order = order + 1;
    }
    member_note_order(m, p);
    p->node = p->node >= 0 ? p->node : new_node(m, p->id);
    if (p->node < 0) {
        member_refuse(m, p, DT_EXIT_TEMPORARY, "this run is as large as can be");
        return;
    }
    p->joined = true;
    p->in_other_run = false;
    p->stamp = in->stamp > p->stamp ? in->stamp : p->stamp;
    p->lease_s = p->lease_s > 0 ? p->lease_s : now_s;
    if (returns && in->last_round == m->record.round) {
        p->returned = true;
    }
    member_beat(m, p->id);
    struct event e = {.kind = EVENT_JOIN,
                      .node = p->node,
                      .local_world_size = in->local_world_size,
                      .order = p->info.order,
                      .placed = placed,
                      .preference = in->preference < 0 ? INT_MAX : in->preference,
                      .host = p->info.host,
                      .role = in->role,
                      .returns = returns && in->last_round > 0};
    member_lead_step(m, &e, now_s);
    if (m->role == MEMBER_LEADING) {
        member_hold_for_others(m, now_s);
    }
    if (m->role == MEMBER_LEADING) {
        member_begin_when_free(m);
    }
}
