/* What the member of a job on several hosts wants becomes frames, connections and actions. */
#include "launcher/hosts/several_private.h"

#include "base/clock.h"
#include "base/log.h"
#include "collectives/net.h"
#include "launcher/net/endpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void several_send(void *user, uint64_t peer, const struct message *m)
{
    struct several *s = user;
    if (s->etcd != NULL && witness_is(etcd_witness_end(s->etcd), peer)) {
        witness_send(etcd_witness_end(s->etcd), m);
        return;
    }
    if (m->kind == MESSAGE_JOIN) {
        s->out_join = *m;
        s->out_join.wall_s = dt_wall_s();
        m = &s->out_join;
    }
    dt_text_reset(&s->out);
    message_encode(m, &s->out);
    if (link_send(s->link, peer, s->out.data, s->out.size, m->kind == MESSAGE_BEAT || m->kind == MESSAGE_BEAT_ACK) !=
        0) {
        dt_log(DT_LOG_DEBUG, "nodes", "%s to %016llx: not sent", message_name(m->kind), (unsigned long long)peer);
    }
}

static const struct peer_info *leader_of(const struct several *s, const struct record *r)
{
    for (int i = 0; i < r->council_count; i++) {
        if (r->council[i].id == r->leader) {
            return &r->council[i];
        }
    }
    return r->leader == s->member.options.self.id ? &s->member.options.self : NULL;
}

/* Another host's address, as this host uses it: the scope of a link-local address is an interface
 * of that host, and has to be one of ours here. */
static const char *from_here(const struct several *s, const char *address, char *out, size_t out_bytes)
{
    const char *theirs = strchr(address, '%'), *ours = strchr(s->member.options.self.address, '%');
    if (theirs == NULL || ours == NULL) {
        return address;
    }
    (void)snprintf(out, out_bytes, "%.*s%s", (int)(theirs - address), address, ours);
    return out;
}

/* An address of this host that leads here from this host, too: a translated one, which leads
 * other hosts here, may not. */
static const char *own_way(const struct several *s, const char *address, bool endpoint, char *out, size_t out_bytes)
{
    struct lookup_list list;
    struct dt_error ignored;
    if (endpoint ? !s->place.translated : dt_net_is_here(address)) {
        return address;
    }
    /* a number: nobody is asked */
    bool known = endpoint || lookup_now(address, s->base.o->master_port, &list, &ignored) == 0;
    const struct lookup_list *to = endpoint ? &s->place.endpoint : &list;
    bool routed = known && to->count > 0 &&
                  endpoint_route((const struct sockaddr *)&to->addresses[0], out, out_bytes, &ignored) == 0;
    return routed ? out : address;
}

/* MASTER_ADDR of the workers here. While node rank 0 leads at a static endpoint, it is what this
 * host was told, as with torchrun; else the address at which others reach the leader. */
static const char *address_of_store(const struct several *s, const struct peer_info *leader, char *out,
                                    size_t out_bytes)
{
    const char *written = s->base.o->master_addr;
    bool first =
        strcmp(s->base.o->rdzv_backend, "static") == 0 && leader->order == 0 && leader->port == s->base.o->master_port;
    bool any = strcmp(written, "0.0.0.0") == 0 || strcmp(written, "::") == 0;
    const char *theirs = first && !any ? written : from_here(s, leader->address, out, out_bytes);
    return leader->id == s->member.options.self.id ? own_way(s, theirs, theirs == written, out, out_bytes) : theirs;
}

void several_find_holder(struct several *s)
{
    const struct member *m = &s->member;
    bool met = m->coordinator != NULL || (m->role != MEMBER_SEEKING && m->wait_text[0] != '\0'), found = false;
    for (int i = 0; i < s->place.endpoint.count && !met && !found && s->etcd == NULL; i++) {
        found = endpoint_is_local((const struct sockaddr *)&s->place.endpoint.addresses[i]) &&
                endpoint_port_owner(s->base.o->master_port, s->wait.holder, sizeof s->wait.holder);
    }
    s->wait.holder[0] = (char)(found ? s->wait.holder[0] : '\0');
}

/* Where the workers of the round that starts meet. */
static void meet(struct several *s, const struct record *record, const char *sizes)
{
    char store[LOOKUP_NAME_BYTES];
    const struct peer_info *leader = leader_of(s, record);
    const uint64_t *nonce = s->member.record.nonce;
    struct hosts_meeting *m = &s->meeting;
    (void)snprintf(m->launch, sizeof m->launch, "%016" PRIx64 "%016" PRIx64, nonce[0], nonce[1]);
    (void)snprintf(m->master_addr, sizeof m->master_addr, "%s",
                   leader != NULL ? address_of_store(s, leader, store, sizeof store) : s->base.o->master_addr);
    m->master_port = leader != NULL ? leader->port : 0;
    (void)snprintf(m->sizes, sizeof m->sizes, "%s", sizes);
}

static void act(void *user, const struct action *a, const struct record *record, const char *why)
{
    struct several *s = user;
    struct action last;
    if (a->kind == ACTION_FINISH && a->code == DT_EXIT_TEMPORARY && s->wait.since_s >= 0) {
        struct dt_text line;
        dt_text_init(&line);
        several_find_holder(s);
        hosts_wait_too_few(&s->wait, &s->member, s->base.o, &line);
        several_say(dt_text_str(&line));
        dt_text_clear(&line);
        if (hosts_wait_is_key(&s->wait, &s->member)) {
            last = *a;
            last.code = DT_EXIT_USAGE;
            a = &last;
        }
    }
    s->wait.since_s = a->kind == ACTION_START ? -1 : s->wait.since_s;
    if (a->kind == ACTION_REFUSE && why != NULL && why[0] != '\0' && s->base.o->check_code == 0) {
        several_say(why);
    }
    if (a->kind == ACTION_START) {
        meet(s, record, why != NULL ? why : "");
    }
    s->base.hooks.act(s->base.hooks.user, a, a->kind == ACTION_START ? &s->meeting : NULL);
}

/* Each round begins with an empty store, whether this agent's own host is in it or not. */
static void serve(void *user, int world_size)
{
    struct several *s = user;
    if (s->store_used) {
        store_server_reset(s->base.store);
    }
    s->store_used = true;
    store_server_expect(s->base.store, world_size);
}

void several_end_at_once(struct several *s, int code, const char *why)
{
    if (s->member.role == MEMBER_SEEKING && s->member.record.round == 0 && s->wait.since_s >= 0) {
        struct action end = {.kind = ACTION_REFUSE, .code = code};
        act(s, &end, &s->member.record, why);
        s->member.role = MEMBER_OVER;
    }
}

static void connect_to(void *user, const struct peer_info *to)
{
    struct several *s = user;
    char address[LOOKUP_NAME_BYTES];
    if (s->etcd != NULL && (to == NULL || peer_is_witness(to))) {
        witness_ask(etcd_witness_end(s->etcd));
    } else if (to != NULL) {
        link_connect(s->link, to->id, from_here(s, to->address, address, sizeof address), to->port);
    } else if (!s->place.hosts) {
        link_connect(s->link, 0, s->base.o->master_addr, s->base.o->master_port);
    }
}

static void drop(void *user, uint64_t peer)
{
    struct several *s = user;
    if (s->etcd != NULL && witness_is(etcd_witness_end(s->etcd), peer)) {
        witness_drop(etcd_witness_end(s->etcd));
        return;
    }
    link_drop(s->link, peer);
}

static void knocked(void *user, uint64_t peer, enum knock_end end)
{
    struct several *s = user;
    bool open = end == KNOCK_OPEN;
    dt_log(DT_LOG_INFO, "nodes", "%016llx %s", (unsigned long long)peer,
           open ? "takes connections" : "takes no connections");
    member_knocked(&s->member, peer, open, dt_now_s());
    several_moved(s);
}

static void knock(void *user, const struct peer_info *at)
{
    struct several *s = user;
    char address[LOOKUP_NAME_BYTES];
    knock_open(&s->knocks, s->tick.loop, at->id, from_here(s, at->address, address, sizeof address), at->port,
               s->base.o->dead_after_s / 5, knocked, s);
}

static void member_line(void *user, const char *line)
{
    (void)user;
    several_say(line);
}

struct member_hooks several_member_hooks(struct several *s)
{
    return (struct member_hooks){.user = s,
                                 .send = several_send,
                                 .act = act,
                                 .connect = connect_to,
                                 .serve = serve,
                                 .drop = drop,
                                 .say = member_line,
                                 .knock = knock};
}
