/* A job on several hosts, as one agent sees it: the member (rounds/member.h) with its links, its
 * clock and the endpoint, and the workers' store on the same port. Hooks of the link become calls
 * of the member (several_links.c). Hooks of the member become frames and actions
 * (several_member.c). No hook of the member calls the member: the link queues frames, and the job
 * queues actions. One timer serves the member; another prints a line while we wait. */
#include "launcher/hosts/several_private.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "collectives/net.h"
#include "launcher/hosts/machine.h"
#include "launcher/output/console.h"
#include "launcher/workers/guard.h"
#include "launcher/options/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

_Static_assert(MESSAGE_LOCAL_MAX == OPTIONS_MAX_LOCAL && COORDINATOR_MAX_NODES == OPTIONS_MAX_NODES,
               "what may be asked for may be said");

static const double wait_line_s = 10; /* between two lines of one wait */

void several_say(const char *line)
{
    console_say("dtrun: %s\n", line);
}

static void follow_up(struct several *s)
{
    guard_workers_until(member_workers_until(&s->member, dt_now_s()));
    if (!uv_is_closing((uv_handle_t *)&s->tick)) {
        (void)uv_timer_start(&s->tick, s->tick.timer_cb, 0, 0);
    }
}

void several_moved(struct several *s)
{
    follow_up(s);
    s->base.hooks.settle(s->base.hooks.user);
}

static void on_tick(uv_timer_t *timer)
{
    struct several *s = timer->data;
    double wait_s = member_tick(&s->member, dt_now_s()) - dt_now_s();
    guard_workers_until(member_workers_until(&s->member, dt_now_s()));
    uv_update_time(timer->loop);
    (void)uv_timer_start(timer, on_tick, dt_milliseconds(wait_s < 3600 ? wait_s : 3600), 0);
    s->base.hooks.settle(s->base.hooks.user);
}

/* ---- gathering what all workers do (query/gather.h) ---- */

static void own_rows(void *user, struct dt_text *out)
{
    const struct several *s = user;
    if (s->base.hooks.rows != NULL) {
        s->base.hooks.rows(s->base.hooks.user, out);
    }
}

static void gathered(void *user)
{
    const struct several *s = user;
    if (s->base.hooks.gathered != NULL) {
        s->base.hooks.gathered(s->base.hooks.user);
    }
}

/* ---- from etcd ---- */

static void on_etcd_moved(void *user)
{
    several_moved(user);
}

static void on_etcd_trouble(void *user, const char *why)
{
    struct several *s = user;
    hosts_wait_trouble(&s->wait, why != NULL ? why : "", 0);
}

static void on_leader_probed(void *user, uint64_t peer, enum port_probe_end end)
{
    struct several *s = user;
    if (end == PORT_REFUSED) {
        dt_log(DT_LOG_INFO, "nodes", "%016llx is gone: nobody listens where it did", (unsigned long long)peer);
        witness_refused(etcd_witness_end(s->etcd), peer, dt_now_s());
    }
}

/* Only if the address belongs to this machine now. If another machine has it, a refused connection
 * proves nothing. */
static void probe_leader(void *user, const struct peer_info *at)
{
    struct several *s = user;
    if (dt_net_is_here(at->address)) {
        port_probe_open(&s->probes, s->tick.loop, at->id, at->address, at->port, s->base.o->rdzv.dead_after_s / 5,
                        on_leader_probed, s);
    }
}

static void on_etcd_refused(void *user, const char *why)
{
    several_end_at_once(user, DT_EXIT_PERMANENT, why);
}

/* ---- waiting ---- */

static void on_news(uv_timer_t *timer)
{
    struct several *s = timer->data;
    if (s->wait.since_s < 0 || s->member.role == MEMBER_OVER) {
        return;
    }
    struct dt_text line;
    dt_text_init(&line);
    several_find_holder(s);
    hosts_wait_line(&s->wait, &s->member, s->base.o, s->etcd != NULL ? witness_free_at(etcd_witness_end(s->etcd)) : 0,
                    &line);
    several_say(dt_text_str(&line));
    dt_text_clear(&line);
}

static void start_news(struct several *s)
{
    uint64_t every_ms = dt_milliseconds(wait_line_s / s->base.o->time_scale);
    uv_update_time(s->news.loop);
    (void)uv_timer_start(&s->news, on_news, every_ms, every_ms);
}

/* ---- the network ---- */

static int random_bytes(void *out, size_t size, struct dt_error *err)
{
    return getrandom(out, size, 0) == (ssize_t)size ? 0 : dt_fail_errno(err, "random numbers");
}

static int open_network_with(struct several *s, uv_loop_t *loop, struct member_options *m, const struct secure_key *key,
                             struct dt_error *err)
{
    const struct options *o = s->base.o;
    if (random_bytes(&m->self.id, sizeof m->self.id, err) != 0 || random_bytes(m->nonce, sizeof m->nonce, err) != 0) {
        return -1;
    }
    m->self.id += m->self.id == 0;
    m->self.machine = machine_id();
    s->open_s = dt_now_s();
    s->refused_s = s->open_s - SEVERAL_REFUSED_LINE_S;
    int fd = hosts_place_open(&s->place, o, &m->self, s->wait.trouble, sizeof s->wait.trouble, err);
    if (fd < 0) {
        return -1;
    }
    struct link_options l = {.id = m->self.id,
                             .port = m->self.port,
                             .run_id = o->rdzv.run_id,
                             .key = key,
                             .dead_s = o->rdzv.dead_after_s,
                             .time_scale = o->time_scale,
                             .hooks = several_link_hooks(s)};
    if (link_open(&s->link, loop, &l, err) != 0) {
        (void)close(fd);
        return -1;
    }
    struct store_server_options store = {
        .listen_fd = fd,
        .take = link_take,
        .user = s->link,
        .access = {
            .is_joined = link_is_joined, .user = s->link, .users = o->store.users, .user_count = o->store.user_count}};
    if (store_server_open(&s->base.store, loop, &store, err) != 0) {
        (void)close(fd);
        return -1;
    }
    /* Only the holder of the endpoint warns, once per job. Other hosts can reach even a loopback
     * endpoint (net/endpoint.c). */
    if (!key->given && o->check_code == 0 && (s->place.hosts || o->rdzv.etcd.endpoint_count > 0)) {
        console_say("dtrun: %s\n", secure_no_key_warning());
    }
    return 0;
}

static int open_network(struct several *s, uv_loop_t *loop, struct member_options *m, struct dt_error *err)
{
    struct secure_key key;
    int result =
        secure_key_read(&key, s->base.o->rdzv.key_file, err) == 0 ? open_network_with(s, loop, m, &key, err) : -1;
    sodium_memzero(&key, sizeof key);
    return result;
}

/* ---- calls of the job ---- */

static void tell(struct hosts *h, const struct event *e)
{
    struct several *s = (struct several *)h;
    double now_s = dt_now_s();
    if (e->kind == EVENT_JOIN && s->wait.since_s < 0) {
        s->wait.since_s = now_s;
        if (h->o->check_code == 0) { /* after a failed check this host waits for no round */
            start_news(s);
        }
    }
    member_event(&s->member, e, now_s);
    follow_up(s);
}

static struct hosts_view view(const struct hosts *h)
{
    const struct member *m = &((const struct several *)h)->member;
    const struct coordinator *c = m->leading.coordinator; /* null: another host leads, or no host */
    const char *address = m->options.self.address;
    const struct run_history *history = c != NULL ? &c->history : &m->record.history;
    return (struct hosts_view){.others = true,
                               .alone = c != NULL && c->node_count <= 1,
                               .spare = m->node.spare,
                               .restarts_used = history->restarts_used,
                               .restarts_after_failure = history->restarts_used + (c == NULL),
                               .no_progress = history->no_progress,
                               .best_step = history->best_step,
                               .address = address[0] != '\0' ? address : NULL};
}

static struct hosts_cause cause(const struct hosts *h, int round)
{
    const struct member_cause *c = member_cause(&((const struct several *)h)->member, round);
    if (c == NULL) {
        return (struct hosts_cause){0};
    }
    bool weak = c->cause.kind == CAUSE_PEER;
    return (struct hosts_cause){.cause = &c->cause,
                                .text = c->text,
                                .weak = weak,
                                .failed = weak || c->cause.kind == CAUSE_FAILED,
                                .said = c->said};
}

static bool gather(struct hosts *h)
{
    return gather_begin(((struct several *)h)->gather);
}

static void status(const struct hosts *h, struct dt_text *out)
{
    const struct several *s = (const struct several *)h;
    member_status(&s->member, out);
    dt_text_puts(out, ",\"members\":[");
    gather_members(s->gather, dt_now_s(), out);
    dt_text_puts(out, "]");
}

static void rows(const struct hosts *h, struct dt_text *out)
{
    gather_rows(((const struct several *)h)->gather, out);
}

/* ---- end ---- */

static void on_look(uv_timer_t *timer)
{
    (void)timer;
}

static void await_others(struct hosts *h)
{
    struct several *s = (struct several *)h;
    double end_s = dt_now_s() + h->o->rdzv.dead_after_s / 3;
    (void)uv_timer_start(&s->news, on_look, 50, 50);
    while (s->etcd != NULL && !member_end_run(&s->member, dt_now_s()) && dt_now_s() < end_s) {
        (void)uv_run(s->tick.loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&s->news);
}

static void close_several(struct hosts *h)
{
    struct several *s = (struct several *)h;
    if (h->store != NULL) {
        store_server_close(h->store, NULL, NULL);
    }
    if (s->link != NULL) {
        member_leave(&s->member);
        link_close(s->link, NULL, NULL);
    }
    if (s->watch != NULL) {
        endpoint_watch_close(s->watch);
    }
    if (s->etcd != NULL) {
        etcd_witness_close(s->etcd);
    }
    gather_close(s->gather);
    port_probe_close_all(&s->probes);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&s->news, NULL);
}

static void free_several(struct hosts *h)
{
    struct several *s = (struct several *)h;
    member_clear(&s->member);
    dt_text_clear(&s->out);
    free(s);
}

/* ---- begin ---- */

static const struct hosts_ops ops = {.tell = tell,
                                     .view = view,
                                     .cause = cause,
                                     .gather = gather,
                                     .status = status,
                                     .rows = rows,
                                     .await_others = await_others,
                                     .close = close_several,
                                     .free = free_several};

static void fill_member_options(const struct options *o, struct member_options *m)
{
    bool is_static = o->rdzv.row->by_rank, is_train = bundled_trains(o->program.bundled);
    *m = (struct member_options){
        .rounds = {.nodes_min = o->world.nnodes_min,
                   .nodes_max = o->world.nnodes_max,
                   .restarts_max = o->restarts.most,
                   .join_timeout_s = o->rdzv.join_timeout_s,
                   .last_call_s = o->rdzv.last_call_s,
                   .leave = o->program.bundled == NULL || is_train,
                   .save = is_train,
                   .watch_progress = is_train},
        .beat_s = o->rdzv.dead_after_s / 15,
        .lease_s = o->rdzv.dead_after_s * 2 / 3,
        .dead_s = o->rdzv.dead_after_s,
        .closed_ok = o->program.bundled == NULL,
        .retry_s = 0.5 / o->time_scale,
        .witness_s = o->rdzv.etcd.endpoint_count > 0 ? WITNESS_S * o->rdzv.dead_after_s : 0,
        .preference = strcmp(options_source(o, OPTION_node_rank), "default") != 0 ? o->world.node_rank : -1,
        .self = {.order = is_static ? o->world.node_rank : -1, .pid = (int)getpid()}};
    hosts_digest(o, m->digest, sizeof m->digest);
    (void)gethostname(m->self.host, sizeof m->self.host - 1);
    dt_text_make_harmless(m->self.host, false);
}

/* The member takes part from now on. If this host holds the endpoint, the member leads; otherwise
 * it seeks a leader, and the watch takes the endpoint's port once it is free on this host. */
static int begin(struct several *s, uv_loop_t *loop, const struct member_options *m, struct dt_error *err)
{
    const struct options *o = s->base.o;
    struct member_hooks hooks = several_member_hooks(s);
    struct etcd_witness_hooks e = {.user = s,
                                   .moved = on_etcd_moved,
                                   .trouble = on_etcd_trouble,
                                   .refused = on_etcd_refused,
                                   .probe_port = probe_leader};
    member_init(&s->member, m, &hooks);
    if (o->rdzv.etcd.endpoint_count > 0 && etcd_witness_open(&s->etcd, loop, o, &s->member, &e, err) != 0) {
        return -1;
    }
    (s->place.hosts ? member_lead : member_seek)(&s->member, dt_now_s());
    if (!s->place.hosts && hosts_endpoint_choice(o) != ENDPOINT_JOIN) {
        struct endpoint_watch_options c = {.host = o->rdzv.master_addr,
                                           .port = o->rdzv.master_port,
                                           .every_s = 1 / o->time_scale,
                                           .user = s,
                                           .got = several_endpoint_got};
        endpoint_watch_open(&s->watch, loop, &c, s->place.endpoint.count > 0 ? &s->place.endpoint : NULL);
    }
    follow_up(s);
    return 0;
}

int several_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
                 struct dt_error *err)
{
    struct several *s = dt_alloc(sizeof *s);
    struct member_options *m = dt_alloc(sizeof *m);
    s->base = (struct hosts){.ops = &ops, .o = o, .hooks = *hooks};
    *out = &s->base;
    s->wait.since_s = -1;
    dt_text_init(&s->out);
    fill_member_options(o, m);
    (void)uv_timer_init(loop, &s->tick);
    (void)uv_timer_init(loop, &s->news);
    s->tick.data = s->news.data = s;
    s->tick.timer_cb = on_tick;
    gather_open(&s->gather, loop, &s->member,
                &(struct gather_hooks){.user = s, .send = several_send, .rows = own_rows, .done = gathered});
    int result = open_network(s, loop, m, err) == 0 ? begin(s, loop, m, err) : -1;
    free(m);
    return result;
}
