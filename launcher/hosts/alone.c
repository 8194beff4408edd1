/* A job on one host. Its coordinator lives in this process, and no other host takes part in
 * decisions. */
#include "launcher/hosts/hosts_private.h"

#include "base/clock.h"
#include "launcher/net/endpoint.h"
#include "launcher/net/lookup.h"
#include "launcher/output/console.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SELF 0       /* this host's number at the coordinator */
#define LOOKUP_S 5.0 /* look-up of the name of the store's host */

struct alone {
    struct hosts base;
    uv_timer_t wake; /* fires when the coordinator asked to be called */
    struct coordinator coordinator;
    struct actions actions;
    struct hosts_meeting meeting;
};

/* ---- rounds ---- */

/* Each round begins with an empty store. */
static void begin_round(struct alone *a, const struct place *p)
{
    if (p->round > 1) {
        store_server_reset(a->base.store);
    }
    store_server_expect(a->base.store, p->world_size);
    (void)snprintf(a->meeting.sizes, sizeof a->meeting.sizes, "%d", p->local_world_size);
}

static void tell(struct hosts *h, const struct event *told)
{
    struct alone *a = (struct alone *)h;
    struct event e = *told;
    e.node = SELF;
    coordinator_step(&a->coordinator, &e, dt_now_s(), &a->actions);
    for (int i = 0; i < a->actions.count; i++) {
        const struct action *one = &a->actions.list[i];
        bool start = one->kind == ACTION_START;
        if (start) {
            begin_round(a, &one->place);
        }
        h->hooks.act(h->hooks.user, one, start ? &a->meeting : NULL);
    }
    if (a->actions.wake_s > 0) {
        double wait_s = a->actions.wake_s - dt_now_s();
        (void)uv_timer_start(&a->wake, a->wake.timer_cb, dt_milliseconds(wait_s), 0);
    }
}

static void on_wake(uv_timer_t *timer)
{
    struct hosts *h = timer->data;
    tell(h, &(struct event){.kind = EVENT_TICK});
    h->hooks.settle(h->hooks.user);
}

static struct hosts_view view(const struct hosts *h)
{
    const struct coordinator *c = &((const struct alone *)h)->coordinator;
    return (struct hosts_view){.alone = true,
                               .restarts_used = c->history.restarts_used,
                               .restarts_after_failure = c->history.restarts_used,
                               .no_progress = c->history.no_progress,
                               .best_step = c->history.best_step};
}

static void status(const struct hosts *h, struct dt_text *out)
{
    (void)h;
    dt_text_puts(out, "\"role\":\"alone\",\"members\":[]");
}

/* ---- begin and end ---- */

/* Names the option whose address belongs to no interface of this host. Another try would fail in
 * the same way. */
static int explain_host(const struct options *o, struct dt_error *err)
{
    bool local = o->rdzv.local_addr != NULL && strcmp(o->rdzv.local_addr, o->rdzv.master_addr) == 0;
    bool endpoint = strcmp(options_source(o, OPTION_rdzv_endpoint), "default") != 0;
    err->status = DT_INVALID;
    return dt_wrap(err, "%s",
                   options_source(o, local      ? OPTION_local_addr
                                     : endpoint ? OPTION_rdzv_endpoint
                                                : OPTION_master_addr));
}

/* Whether no name server knows the host. Workers of one host can meet without a name. So an unknown
 * name, such as that of a pod that has just started, should delay no job. */
static bool is_unknown_name(const char *host)
{
    struct lookup_list list;
    struct dt_error why;
    if (lookup_within(host, 0, LOOKUP_S, NULL, &list, &why) == 0) {
        return false;
    }
    console_say("dtrun: warning: %s; the workers of this one host meet at 127.0.0.1\n", why.text);
    return true;
}

static int open_store(struct alone *a, uv_loop_t *loop, struct dt_error *err)
{
    const struct options *o = a->base.o;
    char *host = a->meeting.master_addr;
    (void)snprintf(host, sizeof a->meeting.master_addr, "%s", o->rdzv.master_addr);
    struct store_server_options s = {.host = host,
                                     .port = o->rdzv.master_port,
                                     .range = {o->rdzv.port_lo, o->rdzv.port_hi, 0},
                                     .access = {.users = o->store.users, .user_count = o->store.user_count}};
    if (store_server_open(&a->base.store, loop, &s, err) == 0) {
        return 0;
    }
    /* no other host has to know the address */
    bool own_address = o->rdzv.local_addr != NULL && strcmp(o->rdzv.local_addr, o->rdzv.master_addr) == 0;
    if ((err->status == DT_NOT_FOUND || err->status == DT_TIMEOUT) && !own_address && is_unknown_name(host)) {
        (void)snprintf(host, sizeof a->meeting.master_addr, "127.0.0.1");
        if (store_server_open(&a->base.store, loop, &s, err) == 0) {
            return 0;
        }
    }
    if (err->status == DT_NOT_FOUND) {
        return explain_host(o, err);
    }
    bool range = o->rdzv.master_port == 0 && o->rdzv.port_hi > 0 && err->status == DT_IO;
    return range ? dt_wrap(err, "%s", options_source(o, OPTION_port_range)) : -1;
}

/* Workers that meet on a loopback interface that is down would try until their own timeout. A
 * user's program may do without the interface; `train` and the other bundled programs cannot. */
static int check_loopback(const struct options *o, struct dt_error *err)
{
    if (strcmp(o->rdzv.master_addr, "127.0.0.1") != 0 || !endpoint_loopback_is_down()) {
        return 0;
    }
    if (o->program.bundled != NULL) {
        return dt_fail(err, DT_INVALID,
                       "the loopback interface is down, and the ranks of this host meet there: ip link set lo up");
    }
    console_say("dtrun: warning: the loopback interface is down, and workers that meet at 127.0.0.1 will not: ip link "
                "set lo up\n");
    return 0;
}

static void close_alone(struct hosts *h)
{
    if (h->store != NULL) {
        store_server_close(h->store, NULL, NULL);
    }
    uv_close((uv_handle_t *)&((struct alone *)h)->wake, NULL);
}

static void free_alone(struct hosts *h)
{
    free(h);
}

static const struct hosts_ops ops = {
    .tell = tell, .view = view, .status = status, .close = close_alone, .free = free_alone};

int alone_open(struct hosts **out, uv_loop_t *loop, const struct options *o, const struct hosts_hooks *hooks,
               struct dt_error *err)
{
    struct alone *a = dt_alloc(sizeof *a);
    a->base = (struct hosts){.ops = &ops, .o = o, .hooks = *hooks};
    *out = &a->base;
    (void)uv_timer_init(loop, &a->wake);
    a->wake.data = a;
    a->wake.timer_cb = on_wake;
    dt_text_random(a->meeting.launch);
    coordinator_init(&a->coordinator,
                     &(struct coordinator_options){.nodes_min = o->world.nnodes_min,
                                                   .nodes_max = o->world.nnodes_max,
                                                   .restarts_max = o->restarts.most,
                                                   .join_timeout_s = o->rdzv.join_timeout_s,
                                                   .last_call_s = o->rdzv.last_call_s,
                                                   .watch_progress = bundled_trains(o->program.bundled)});
    if (check_loopback(o, err) != 0 || open_store(a, loop, err) != 0) {
        return -1;
    }
    a->meeting.master_port = store_server_port(a->base.store);
    return 0;
}
