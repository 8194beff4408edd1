/* Hooks of the link become calls of the member, hooks of the member become frames and actions.
 * The member is never called from within one of its hooks: frames are queued by the link,
 * actions by run.c. One timer serves the member; another says for whom we wait. */
#include "launcher/hosts/nodes.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "collectives/net.h"
#include "launcher/hosts/claim.h"
#include "launcher/output/console.h"
#include "launcher/net/endpoint.h"
#include "launcher/query/gather.h"
#include "launcher/workers/guard.h"
#include "launcher/net/knock.h"
#include "launcher/hosts/link/link.h"
#include "launcher/hosts/machine.h"
#include "launcher/rounds/member.h"
#include "launcher/hosts/etcd/nodes_etcd.h"
#include "launcher/hosts/nodes_place.h"
#include "launcher/hosts/nodes_wait.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define SKEWED_NOTED 16

_Static_assert(MESSAGE_LOCAL_MAX == OPTIONS_MAX_LOCAL && COORDINATOR_MAX_NODES == OPTIONS_MAX_NODES,
               "what may be asked for may be said");

static const double skew_s = 30;        /* between two clocks; what a message may be on its way
                                         * is no skew */
static const double wait_line_s = 10;   /* between two lines about a wait */
static const double refused_line_s = 5; /* between two lines about messages that were refused */
static const double name_line_s = 5;    /* a name that means nothing is told after this */

struct nodes {
    const struct options *o;
    struct nodes_hooks hooks;
    struct member member;
    struct link *link;
    struct store_server *store;
    struct gather *gather;
    struct knock *knocks;
    struct claim *claim;     /* on the endpoint's port, while somebody else has it */
    struct nodes_etcd *etcd; /* in place of the endpoint; or null */
    uv_timer_t tick, news;
    struct nodes_place place;
    struct nodes_wait wait;
    double open_s;
    double refused_s;  /* a message was, and was said to be */
    bool told_name;    /* that the endpoint's means nothing */
    bool store_used;   /* by workers of a round */
    struct message in; /* decoded */
    struct message out_join;
    uint64_t skewed[SKEWED_NOTED]; /* peers whose clock was said to be off */
    int skewed_count;
    struct dt_text out; /* encoded */
};

static void say(const char *line)
{
    console_say("dtrun: %s\n", line);
}

/* The member's deadlines may be others now: before anything is started by what it said. */
static void follow_up(struct nodes *n)
{
    guard_workers_until(member_workers_until(&n->member, dt_now_s()));
    if (!uv_is_closing((uv_handle_t *)&n->tick)) {
        (void)uv_timer_start(&n->tick, n->tick.timer_cb, 0, 0);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct nodes *n = timer->data;
    double wait_s = member_tick(&n->member, dt_now_s()) - dt_now_s();
    guard_workers_until(member_workers_until(&n->member, dt_now_s()));
    uv_update_time(timer->loop);
    (void)uv_timer_start(timer, on_tick, (uint64_t)((wait_s > 0 ? wait_s < 3600 ? wait_s : 3600 : 0) * 1e3) + 1, 0);
    n->hooks.settle(n->hooks.user);
}

/* ---- from the links ---- */

/* Where a peer came is where peers come: when all that we know is a loopback address, and when
 * it is what the endpoint's name is on this host, which may be another one for others (a
 * container's own name). */
static void learn_address(struct nodes *n, uint64_t peer, const char *host)
{
    struct peer_info *self = &n->member.options.self;
    char local[sizeof self->address];
    bool others_reach = !nodes_is_loopback(self->address),
         named = n->place.by_name && n->member.record.round == 0 && strcmp(host, self->address) != 0;
    if ((others_reach && !named) || link_local_address(n->link, peer, local, sizeof local) != 0 ||
        strcmp(local, self->address) == 0 || (nodes_is_loopback(local) && self->address[0] != '\0')) {
        n->place.by_name = n->place.by_name && !named;
        return;
    }
    if (others_reach) {
        n->place.by_name = false;
        console_say("dtrun: warning: %s is %s on this host, but another one came to %s: all are told that one; "
                    "--local_addr=ADDRESS names "
                    "another\n",
                    n->o->master_addr, self->address, local);
    }
    memcpy(self->address, local, sizeof local);
}

static void on_up(void *user, uint64_t peer, const char *host)
{
    struct nodes *n = user;
    struct peer_info who = {.id = peer, .order = -1, .port = link_port(n->link, peer)};
    (void)snprintf(who.host, sizeof who.host, "%s", host);
    (void)snprintf(who.address, sizeof who.address, "%s", host);
    learn_address(n, peer, host);
    nodes_wait_met(&n->wait);
    dt_log(DT_LOG_INFO, "nodes", "link with %016llx at %s port %d", (unsigned long long)peer, host, who.port);
    member_up(&n->member, &who, dt_now_s());
    follow_up(n);
    n->hooks.settle(n->hooks.user);
}

static enum member_end end_of(enum link_end end)
{
    switch (end) {
    case LINK_LOST:
        return MEMBER_LOST;
    case LINK_ENDED:
        return MEMBER_ENDED;
    case LINK_RESET:
        return MEMBER_RESET;
    }
    return MEMBER_LOST;
}

static void on_down(void *user, uint64_t peer, enum link_end end)
{
    struct nodes *n = user;
    const char *how = end == LINK_ENDED ? ": its process is gone" : end == LINK_RESET ? ": reset, and refused" : "";
    dt_log(DT_LOG_INFO, "nodes", "link with %016llx is down%s", (unsigned long long)peer, how);
    member_down(&n->member, peer, end_of(end), dt_now_s());
    follow_up(n);
    n->hooks.settle(n->hooks.user);
}

/* For people only: times in logs and files of that host differ from ours. Once per peer, of a
 * few. */
static void note_skew(struct nodes *n, uint64_t peer, const struct message_join *join)
{
    double ahead_s = join->clock_s - dt_wall_s();
    bool told = n->skewed_count == SKEWED_NOTED || join->clock_s <= 0 || n->member.role != MEMBER_LEADING;
    for (int i = 0; i < n->skewed_count; i++) {
        told = told || n->skewed[i] == peer;
    }
    if (told || fabs(ahead_s) < skew_s) {
        return;
    }
    n->skewed[n->skewed_count++] = peer;
    console_say("dtrun: host %s: its clock is %.0f s %s that of host %s; times in its logs differ by this, nothing "
                "else depends on it\n",
                join->info.host, fabs(ahead_s), ahead_s > 0 ? "ahead of" : "behind", n->member.options.self.host);
}

/* What it said is no message of ours: it may come again, with a new link. */
static void refuse_message(struct nodes *n, uint64_t peer, const struct dt_error *err)
{
    const struct member_peer *p = member_find(&n->member, peer);
    double now_s = dt_now_s();
    if (now_s - n->refused_s >= refused_line_s) {
        n->refused_s = now_s;
        console_say("dtrun: warning: host %s (%s): %s; the link with it is closed\n", p != NULL ? p->info.host : "?",
                    p != NULL ? p->info.address : "?", err->text);
    }
    link_refuse(n->link, peer);
    on_down(n, peer, LINK_LOST);
}

static void on_message(void *user, uint64_t peer, const void *bytes, size_t size)
{
    struct nodes *n = user;
    struct dt_error err;
    if (message_decode(&n->in, bytes, size, &err) != 0 || member_check(&n->member, &n->in, dt_now_s(), &err) != 0) {
        refuse_message(n, peer, &err);
        return;
    }
    dt_log(DT_LOG_DEBUG, "nodes", "%s from %016llx", message_name(n->in.kind), (unsigned long long)peer);
    if (gather_message(n->gather, peer, &n->in)) {
        return;
    }
    if (n->in.kind == MESSAGE_JOIN) {
        note_skew(n, peer, &n->in.join);
    }
    member_message(&n->member, peer, &n->in, dt_now_s());
    follow_up(n);
    n->hooks.settle(n->hooks.user);
}

/* ---- from the member ---- */

static void send_message(void *user, uint64_t peer, const struct message *m)
{
    struct nodes *n = user;
    if (n->etcd != NULL && witness_is(nodes_etcd_witness(n->etcd), peer)) {
        witness_send(nodes_etcd_witness(n->etcd), m);
        return;
    }
    if (m->kind == MESSAGE_JOIN) {
        n->out_join = *m;
        n->out_join.join.clock_s = dt_wall_s();
        m = &n->out_join;
    }
    dt_text_reset(&n->out);
    message_encode(m, &n->out);
    if (link_send(n->link, peer, n->out.data, n->out.size, m->kind == MESSAGE_BEAT || m->kind == MESSAGE_BEAT_ACK) !=
        0) {
        dt_log(DT_LOG_DEBUG, "nodes", "%s to %016llx: not sent", message_name(m->kind), (unsigned long long)peer);
    }
}

static const struct peer_info *leader_of(const struct nodes *n, const struct record *r)
{
    for (int i = 0; i < r->council_count; i++) {
        if (r->council[i].id == r->leader) {
            return &r->council[i];
        }
    }
    return r->leader == n->member.options.self.id ? &n->member.options.self : NULL;
}

/* An address of another host: the scope of a link-local one is an interface of that host, and
 * here it is one of ours. */
static const char *from_here(const struct nodes *n, const char *address, char *out, size_t out_bytes)
{
    const char *theirs = strchr(address, '%'), *ours = strchr(n->member.options.self.address, '%');
    if (theirs == NULL || ours == NULL) {
        return address;
    }
    (void)snprintf(out, out_bytes, "%.*s%s", (int)(theirs - address), address, ours);
    return out;
}

/* An address of this host, when others are led here by a translated one: it may lead nowhere
 * from here. */
static const char *own_way(const struct nodes *n, const char *address, bool endpoint, char *out, size_t out_bytes)
{
    struct lookup_list list;
    struct dt_error ignored;
    if (endpoint ? !n->place.translated : dt_net_is_here(address)) {
        return address;
    }
    /* a number: nobody is asked */
    bool known = endpoint || lookup_now(address, n->o->master_port, &list, &ignored) == 0;
    const struct lookup_list *to = endpoint ? &n->place.endpoint : &list;
    bool routed = known && to->count > 0 &&
                  endpoint_route((const struct sockaddr *)&to->addresses[0], out, out_bytes, &ignored) == 0;
    return routed ? out : address;
}

/* With a static endpoint it is what this host was told, as with torchrun, while node rank 0
 * leads; else the address at which others reach the leader. */
static const char *address_of_store(const struct nodes *n, const struct peer_info *leader, char *out, size_t out_bytes)
{
    const char *written = n->o->master_addr;
    bool first = strcmp(n->o->rdzv_backend, "static") == 0 && leader->order == 0 && leader->port == n->o->master_port;
    bool any = strcmp(written, "0.0.0.0") == 0 || strcmp(written, "::") == 0;
    const char *theirs = first && !any ? written : from_here(n, leader->address, out, out_bytes);
    return leader->id == n->member.options.self.id ? own_way(n, theirs, theirs == written, out, out_bytes) : theirs;
}

/* Where no agent has answered. Asked anew each time: whoever has the port now may be another
 * one. */
static void find_holder(struct nodes *n)
{
    const struct member *m = &n->member;
    bool met = m->leading.coordinator != NULL || (m->role != MEMBER_SEEKING && m->node.wait_text[0] != '\0'),
         found = false;
    for (int i = 0; i < n->place.endpoint.count && !met && !found && n->etcd == NULL; i++) {
        found = endpoint_is_local((const struct sockaddr *)&n->place.endpoint.addresses[i]) &&
                endpoint_port_owner(n->o->master_port, n->wait.holder, sizeof n->wait.holder);
    }
    n->wait.holder[0] = (char)(found ? n->wait.holder[0] : '\0');
}

static void act(void *user, const struct action *a, const struct record *record, const char *why)
{
    char store[LOOKUP_NAME_BYTES];
    struct nodes *n = user;
    const struct peer_info *leader = a->kind == ACTION_START ? leader_of(n, record) : NULL;
    struct action last;
    if (a->kind == ACTION_FINISH && a->code == DT_EXIT_TEMPORARY && n->wait.since_s >= 0) {
        struct dt_text line;
        dt_text_init(&line);
        find_holder(n);
        nodes_wait_too_few(&n->wait, &n->member, n->o, &line);
        say(dt_text_str(&line));
        dt_text_clear(&line);
        if (nodes_wait_is_key(&n->wait, &n->member)) {
            last = *a;
            last.code = DT_EXIT_USAGE;
            a = &last;
        }
    }
    n->wait.since_s = a->kind == ACTION_START ? -1 : n->wait.since_s;
    if (a->kind == ACTION_REFUSE && why != NULL && why[0] != '\0' && n->o->check_code == 0) {
        say(why);
    }
    n->hooks.act(n->hooks.user, a, leader != NULL ? address_of_store(n, leader, store, sizeof store) : NULL,
                 leader != NULL ? leader->port : 0, a->kind == ACTION_START && why != NULL ? why : "");
}

/* Each round begins with an empty store, whether this agent's own node is in it or not. */
static void serve(void *user, int world_size)
{
    struct nodes *n = user;
    if (n->store_used) {
        store_server_reset(n->store);
    }
    n->store_used = true;
    store_server_expect(n->store, world_size);
}

/* Before the first round nothing is lost by it. */
static void end_at_once(struct nodes *n, int code, const char *why)
{
    if (n->member.role == MEMBER_SEEKING && n->member.record.round == 0 && n->wait.since_s >= 0) {
        struct action end = {.kind = ACTION_REFUSE, .code = code};
        act(n, &end, &n->member.record, why);
        n->member.role = MEMBER_OVER;
    }
}

static void on_other_version(void *user, const struct dt_error *err)
{
    struct nodes *n = user;
    end_at_once(n, DT_EXIT_USAGE, err->text);
    n->hooks.settle(n->hooks.user);
}

static void end_for_key(struct nodes *n)
{
    struct dt_text line;
    dt_text_init(&line);
    nodes_wait_endpoint(&n->wait, &n->member, n->o, &line);
    end_at_once(n, DT_EXIT_USAGE, dt_text_str(&line));
    dt_text_clear(&line);
    n->hooks.settle(n->hooks.user);
}

static void on_failed(void *user, uint64_t peer, const struct dt_error *err)
{
    struct nodes *n = user;
    dt_log(DT_LOG_DEBUG, "nodes", "connect %016llx: %s", (unsigned long long)peer, err->text);
    /* another key; another run or program */
    bool refused = err->status == DT_INVALID || err->status == DT_IN_USE;
    /* the endpoint that we hold is in no trouble */
    if (peer == 0 && (!n->place.hosts || refused)) {
        (void)snprintf(n->wait.trouble, sizeof n->wait.trouble, "%s", err->text);
        bool sure =
            err->status == DT_INVALID && nodes_wait_key_refused(&n->wait, err->text, dt_now_s(), n->o->time_scale);
        bool denied = refused && strcmp(n->wait.trouble, n->wait.denied) != 0;
        if (denied) { /* waiting will hardly help */
            memcpy(n->wait.denied, n->wait.trouble, sizeof n->wait.denied);
            say(n->wait.trouble);
        } else if (n->place.endpoint.count == 0 && !n->told_name &&
                   dt_now_s() - n->open_s >= name_line_s / n->o->time_scale) {
            n->told_name = true;
            console_say("dtrun: endpoint %s; trying on\n", n->wait.trouble);
        }
        if (sure) {
            end_for_key(n);
        }
    }
}

static void connect_to(void *user, const struct peer_info *to)
{
    struct nodes *n = user;
    char address[LOOKUP_NAME_BYTES];
    if (n->etcd != NULL && (to == NULL || peer_is_witness(to))) {
        witness_ask(nodes_etcd_witness(n->etcd));
    } else if (to != NULL) {
        link_connect(n->link, to->id, from_here(n, to->address, address, sizeof address), to->port);
    } else if (!n->place.hosts) {
        link_connect(n->link, 0, n->o->master_addr, n->o->master_port);
    }
}

static void drop(void *user, uint64_t peer)
{
    struct nodes *n = user;
    if (n->etcd != NULL && witness_is(nodes_etcd_witness(n->etcd), peer)) {
        witness_drop(nodes_etcd_witness(n->etcd));
        return;
    }
    link_drop(n->link, peer);
}

static void knocked(void *user, uint64_t peer, enum knock_end end)
{
    struct nodes *n = user;
    bool open = end == KNOCK_OPEN;
    dt_log(DT_LOG_INFO, "nodes", "%016llx %s", (unsigned long long)peer,
           open ? "takes connections" : "takes no connections");
    member_knocked(&n->member, peer, open, dt_now_s());
    follow_up(n);
    n->hooks.settle(n->hooks.user);
}

static void knock(void *user, const struct peer_info *at)
{
    struct nodes *n = user;
    char address[LOOKUP_NAME_BYTES];
    knock_open(&n->knocks, n->tick.loop, at->id, from_here(n, at->address, address, sizeof address), at->port,
               n->o->dead_after_s / 5, knocked, n);
}

static void own_rows(void *user, struct dt_text *out)
{
    const struct nodes *n = user;
    if (n->hooks.rows != NULL) {
        n->hooks.rows(n->hooks.user, out);
    }
}

static void gathered(void *user)
{
    const struct nodes *n = user;
    if (n->hooks.gathered != NULL) {
        n->hooks.gathered(n->hooks.user);
    }
}

static void member_line(void *user, const char *line)
{
    (void)user;
    say(line);
}

/* ---- from etcd ---- */

static void on_etcd_moved(void *user)
{
    struct nodes *n = user;
    follow_up(n);
    n->hooks.settle(n->hooks.user);
}

static void on_etcd_trouble(void *user, const char *why)
{
    struct nodes *n = user;
    (void)snprintf(n->wait.trouble, sizeof n->wait.trouble, "%s", why != NULL ? why : "");
}

static void on_forsaken(void *user, uint64_t peer, enum knock_end end)
{
    struct nodes *n = user;
    if (end == KNOCK_REFUSED) {
        dt_log(DT_LOG_INFO, "nodes", "%016llx is gone: nobody listens where it did", (unsigned long long)peer);
        witness_refused(nodes_etcd_witness(n->etcd), peer, dt_now_s());
    }
}

/* An address that went to another machine meanwhile proves nothing. */
static void on_etcd_knock(void *user, const struct peer_info *at)
{
    struct nodes *n = user;
    if (dt_net_is_here(at->address)) {
        knock_open(&n->knocks, n->tick.loop, at->id, at->address, at->port, n->o->dead_after_s / 5, on_forsaken, n);
    }
}

static void on_etcd_refused(void *user, const char *why)
{
    end_at_once(user, DT_EXIT_PERMANENT, why);
}

static void on_news(uv_timer_t *timer)
{
    struct nodes *n = timer->data;
    if (n->wait.since_s < 0 || n->member.role == MEMBER_OVER) {
        return;
    }
    struct dt_text line;
    dt_text_init(&line);
    find_holder(n);
    nodes_wait_line(&n->wait, &n->member, n->o, n->etcd != NULL ? witness_free_at(nodes_etcd_witness(n->etcd)) : 0,
                    &line);
    say(dt_text_str(&line));
    dt_text_clear(&line);
}

static void start_news(struct nodes *n)
{
    uint64_t every_ms = (uint64_t)(wait_line_s / n->o->time_scale * 1e3) + 1;
    uv_update_time(n->news.loop);
    (void)uv_timer_start(&n->news, on_news, every_ms, every_ms);
}

/* ---- begin ---- */

/* The endpoint's port is ours now: whoever comes late finds the job again. */
static void on_claimed(void *user, int fd, const struct lookup_list *list)
{
    struct nodes *n = user;
    struct dt_error err;
    claim_close(n->claim);
    n->claim = NULL;
    if (n->member.role == MEMBER_OVER) { /* its holder just ended the job */
        (void)close(fd);
        return;
    }
    if (store_server_listen(n->store, fd, &err) != 0) {
        dt_log(DT_LOG_WARN, "nodes", "endpoint %s port %d: %s", n->o->master_addr, n->o->master_port, err.text);
        (void)close(fd);
        return;
    }
    console_say("dtrun: endpoint %s port %d: held by this host now\n", n->o->master_addr, n->o->master_port);
    struct peer_info *self = &n->member.options.self;
    n->place.endpoint = *list;
    n->place.hosts = true;
    n->wait.trouble[0] = '\0'; /* was with the endpoint of somebody else */
    self->port = n->o->master_port;
    link_set_port(n->link, self->port);
    if (self->address[0] == '\0') {
        (void)endpoint_published(list, self->address, sizeof self->address, NULL, &err);
    }
    member_hold(&n->member, dt_now_s());
    follow_up(n);
    n->hooks.settle(n->hooks.user);
}

static int random_bytes(void *out, size_t size, struct dt_error *err)
{
    return getrandom(out, size, 0) == (ssize_t)size ? 0 : dt_fail_errno(err, "random numbers");
}

static int open_network_with(struct nodes *n, uv_loop_t *loop, struct member_options *m, const struct secure_key *key,
                             struct dt_error *err)
{
    const struct options *o = n->o;
    if (random_bytes(&m->self.id, sizeof m->self.id, err) != 0 || random_bytes(m->nonce, sizeof m->nonce, err) != 0) {
        return -1;
    }
    m->self.id += m->self.id == 0;
    m->self.machine = machine_id();
    n->open_s = dt_now_s();
    n->refused_s = n->open_s - refused_line_s;
    int fd = nodes_place_open(&n->place, o, &m->self, n->wait.trouble, sizeof n->wait.trouble, err);
    if (fd < 0) {
        return -1;
    }
    struct link_options l = {.id = m->self.id,
                             .port = m->self.port,
                             .run_id = o->run_id,
                             .key = key,
                             .dead_s = o->dead_after_s,
                             .time_scale = o->time_scale,
                             .hooks = {.user = n,
                                       .up = on_up,
                                       .down = on_down,
                                       .message = on_message,
                                       .failed = on_failed,
                                       .other_version = on_other_version}};
    if (link_open(&n->link, loop, &l, err) != 0) {
        (void)close(fd);
        return -1;
    }
    struct store_server_options s = {
        .listen_fd = fd,
        .take = link_take,
        .user = n->link,
        .access = {
            .is_joined = link_is_joined, .user = n->link, .users = o->store_users, .user_count = o->store_user_count}};
    if (store_server_open(&n->store, loop, &s, err) != 0) {
        (void)close(fd);
        return -1;
    }
    /* once per job where somebody holds the endpoint */
    if (!key->given && n->o->check_code == 0 && (n->place.hosts || o->etcd.endpoint_count > 0)) {
        console_say("dtrun: %s\n", secure_no_key_warning()); /* a loopback endpoint is open to
                                                              * others, too (endpoint.c) */
    }
    return 0;
}

static int open_network(struct nodes *n, uv_loop_t *loop, struct member_options *m, struct dt_error *err)
{
    struct secure_key key;
    int result = secure_key_read(&key, n->o->key_file, err) == 0 ? open_network_with(n, loop, m, &key, err) : -1;
    sodium_memzero(&key, sizeof key);
    return result;
}

int nodes_open(struct nodes **out, uv_loop_t *loop, const struct options *o, const struct nodes_hooks *hooks,
               struct dt_error *err)
{
    struct nodes *n = dt_alloc(sizeof *n);
    bool is_static = strcmp(o->rdzv_backend, "static") == 0, is_train = o->bundled && strcmp(o->program, "train") == 0;
    struct member_options *m = dt_alloc(sizeof *m);
    *m = (struct member_options){.rounds = {.nodes_min = o->nnodes_min,
                                            .nodes_max = o->nnodes_max,
                                            .restarts_max = o->max_restarts,
                                            .join_timeout_s = o->join_timeout_s,
                                            .last_call_s = o->last_call_s,
                                            .leave = !o->bundled || is_train,
                                            .save = is_train,
                                            .watch_progress = is_train},
                                 .beat_s = o->dead_after_s / 15,
                                 .lease_s = o->dead_after_s * 2 / 3,
                                 .dead_s = o->dead_after_s,
                                 .closed_ok = !o->bundled,
                                 .retry_s = 0.5 / o->time_scale,
                                 .witness_s = o->etcd.endpoint_count > 0 ? WITNESS_S * o->dead_after_s : 0,
                                 .preference =
                                     strcmp(options_source(o, OPTION_node_rank), "default") != 0 ? o->node_rank : -1,
                                 .self = {.order = is_static ? o->node_rank : -1, .pid = (int)getpid()}};
    n->o = o;
    n->hooks = *hooks;
    n->wait.since_s = -1;
    dt_text_init(&n->out);
    nodes_digest(o, m->digest, sizeof m->digest);
    (void)gethostname(m->self.host, sizeof m->self.host - 1);
    dt_text_make_harmless(m->self.host, false);
    (void)uv_timer_init(loop, &n->tick);
    (void)uv_timer_init(loop, &n->news);
    n->tick.data = n->news.data = n;
    n->tick.timer_cb = on_tick;
    gather_open(&n->gather, loop, &n->member,
                &(struct gather_hooks){.user = n, .send = send_message, .rows = own_rows, .done = gathered});
    int result = open_network(n, loop, m, err);
    if (result == 0) {
        struct member_hooks h = {.user = n,
                                 .send = send_message,
                                 .act = act,
                                 .connect = connect_to,
                                 .serve = serve,
                                 .drop = drop,
                                 .say = member_line,
                                 .knock = knock};
        member_init(&n->member, m, &h);
        struct nodes_etcd_hooks e = {.user = n,
                                     .moved = on_etcd_moved,
                                     .trouble = on_etcd_trouble,
                                     .refused = on_etcd_refused,
                                     .knock = on_etcd_knock};
        result = o->etcd.endpoint_count > 0 ? nodes_etcd_open(&n->etcd, loop, o, &n->member, &e, err) : 0;
    }
    if (result == 0) {
        (n->place.hosts ? member_lead : member_seek)(&n->member, dt_now_s());
        if (!n->place.hosts && nodes_choice(o) != ENDPOINT_JOIN) {
            struct claim_options c = {.host = o->master_addr,
                                      .port = o->master_port,
                                      .every_s = 1 / o->time_scale,
                                      .user = n,
                                      .got = on_claimed};
            claim_open(&n->claim, loop, &c, n->place.endpoint.count > 0 ? &n->place.endpoint : NULL);
        }
        follow_up(n);
    }
    free(m);
    *out = n; /* nodes_close and nodes_free in any case: there are handles */
    return result;
}

struct store_server *nodes_store(const struct nodes *n)
{
    return n->store;
}

const char *nodes_address(const struct nodes *n)
{
    const char *address = n->member.options.self.address;
    return address[0] != '\0' ? address : NULL;
}

void nodes_launch(const struct nodes *n, char out[33])
{
    const uint64_t *nonce = n->member.record.nonce;
    (void)snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, nonce[0], nonce[1]);
}

void nodes_tell(struct nodes *n, const struct event *e)
{
    double now_s = dt_now_s();
    if (e->kind == EVENT_JOIN && n->wait.since_s < 0) {
        n->wait.since_s = now_s;
        if (n->o->check_code == 0) { /* else it waits for nobody */
            start_news(n);
        }
    }
    member_event(&n->member, e, now_s);
    follow_up(n);
}

int nodes_restarts_used(const struct nodes *n, bool failed)
{
    const struct member *m = &n->member;
    return m->leading.coordinator != NULL ? m->leading.coordinator->restarts_used : m->record.restarts_used + failed;
}

int nodes_no_progress(const struct nodes *n, int64_t *best_step)
{
    const struct member *m = &n->member;
    *best_step = m->leading.coordinator != NULL ? m->leading.coordinator->best_step : m->record.best_step;
    return m->leading.coordinator != NULL ? m->leading.coordinator->no_progress : m->record.no_progress;
}

bool nodes_gather(struct nodes *n)
{
    return gather_begin(n->gather);
}

void nodes_status(const struct nodes *n, struct dt_text *out)
{
    member_status(&n->member, out);
    dt_text_puts(out, ",\"members\":[");
    gather_members(n->gather, dt_now_s(), out);
    dt_text_puts(out, "]");
}

bool nodes_is_alone(const struct nodes *n)
{
    return n->member.leading.coordinator != NULL && n->member.leading.coordinator->node_count <= 1;
}

bool nodes_is_spare(const struct nodes *n)
{
    return n->member.node.spare;
}

void nodes_rows(const struct nodes *n, struct dt_text *out)
{
    gather_rows(n->gather, out);
}

const char *nodes_cause(const struct nodes *n, int round, bool *weak, bool *failed)
{
    const struct member_cause *c = member_cause(&n->member, round);
    *weak = c != NULL && c->kind == CAUSE_PEER;
    *failed = c != NULL && (c->kind == CAUSE_FAILED || *weak);
    return c != NULL ? c->text : NULL;
}

bool nodes_cause_said(const struct nodes *n, int round)
{
    const struct member_cause *c = member_cause(&n->member, round);
    return c != NULL && c->said;
}

/* ---- end ---- */

static void on_look(uv_timer_t *timer)
{
    (void)timer;
}

void nodes_await_others(struct nodes *n)
{
    double end_s = dt_now_s() + n->o->dead_after_s / 3;
    (void)uv_timer_start(&n->news, on_look, 50, 50);
    while (n->etcd != NULL && !member_end_run(&n->member, dt_now_s()) && dt_now_s() < end_s) {
        (void)uv_run(n->tick.loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&n->news);
}

void nodes_close(struct nodes *n)
{
    if (n->store != NULL) {
        store_server_close(n->store, NULL, NULL);
    }
    if (n->link != NULL) {
        member_leave(&n->member);
        link_close(n->link, NULL, NULL);
    }
    if (n->claim != NULL) {
        claim_close(n->claim);
    }
    if (n->etcd != NULL) {
        nodes_etcd_close(n->etcd);
    }
    gather_close(n->gather);
    knock_close_all(&n->knocks);
    uv_close((uv_handle_t *)&n->tick, NULL);
    uv_close((uv_handle_t *)&n->news, NULL);
}

void nodes_free(struct nodes *n)
{
    member_clear(&n->member);
    dt_text_clear(&n->out);
    free(n);
}
