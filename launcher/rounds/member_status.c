/* For `dtrun --status`: the hosts of a job that one agent knows. A leader knows all hosts; a
 * follower knows its leader and the council. */
#include "launcher/rounds/member_parts.h"

#include <string.h>

enum { SHOWN = 1024 };

static void add_host(struct dt_text *out, const struct peer_info *who, const char *state, int workers, double heard_s)
{
    if (peer_is_witness(who)) {
        dt_text_puts(out, "{\"witness\":true");
    } else {
        dt_text_printf(out, "{\"id\":\"%016llx\"", (unsigned long long)who->id);
    }
    dt_text_puts(out, ",\"host\":");
    dt_text_json(out, who->host, strlen(who->host));
    dt_text_puts(out, ",\"address\":");
    dt_text_json(out, who->address, strlen(who->address));
    dt_text_printf(out, ",\"pid\":%d,\"order\":%lld,\"state\":\"%s\",\"workers\":%d", who->pid, (long long)who->order,
                   state, workers);
    if (heard_s >= 0) {
        dt_text_printf(out, ",\"heard_s\":%.1f", heard_s);
    }
    dt_text_puts(out, "}\n");
}

static const char *name_of_state(enum node_state state)
{
    switch (state) {
    case NODE_WAITING:
        return "waiting";
    case NODE_IN:
        return "in the round";
    case NODE_DONE:
        return "done";
    case NODE_STOPPED:
        return "stopped";
    case NODE_LEFT:
        return "leaving";
    case NODE_STATE_COUNT:
        break;
    }
    return "unknown";
}

static void add_led(const struct member *m, double now_s, struct dt_text *out)
{
    const struct coordinator *c = m->leading.coordinator;
    for (int i = 0; i < c->node_count && i < SHOWN; i++) {
        const struct coordinator_node *n = &c->nodes[i];
        struct peer_info who = m->options.self;
        double heard_s = -1;
        for (int k = 0; k < m->peer_count; k++) {
            if (m->peers[k].joined && m->peers[k].node == n->node) {
                who = m->peers[k].info;
                heard_s = now_s - m->peers[k].heard_s;
            }
        }
        who.order = n->order;
        add_host(out, &who, name_of_state(n->state), n->local_world_size, heard_s);
    }
    if (m->witness.info.id != 0) {
        add_host(out, &m->witness.info, "in the council", 0, now_s - m->witness.heard_s);
    }
}

void member_hosts(const struct member *m, double now_s, struct dt_text *out)
{
    const struct peer_info *leader = member_leader(m);
    if (m->role == MEMBER_LEADING && m->leading.coordinator != NULL) {
        add_led(m, now_s, out);
    } else if (m->role == MEMBER_FOLLOWING && leader != NULL) {
        add_host(out, leader, "leading", 0, now_s - m->following.heard_s);
        for (int i = 0; i < m->record.council_count; i++) {
            const struct peer_info *who = &m->record.council[i];
            if (who->id != leader->id) {
                add_host(out, who, who->id == m->options.self.id ? "this one" : "in the council", 0, -1);
            }
        }
    }
}

static const char *name_of_role(enum member_role role)
{
    switch (role) {
    case MEMBER_SEEKING:
        return "seeking the others";
    case MEMBER_FOLLOWING:
        return "following";
    case MEMBER_LEADING:
        return "leading";
    case MEMBER_OVER:
        return "at the end";
    }
    return "unknown";
}

void member_status(const struct member *m, struct dt_text *out)
{
    dt_text_printf(out, "\"role\":\"%s\",\"term\":%llu", name_of_role(m->role),
                   /* the high bits count from 0 */
                   (unsigned long long)(m->record.term >> MEMBER_TERM_BITS) + 1);
}
