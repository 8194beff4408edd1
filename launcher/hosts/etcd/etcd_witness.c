/* A call of the witness's end becomes one transaction; the record of a run that is over is put
 * under a lease first, so that nothing stays. */
#include "launcher/hosts/etcd/etcd_witness.h"

#include "base/clock.h"
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/hosts/etcd/etcd.h"

#include <stdlib.h>
#include <string.h>

static const double last_words_dead =
    4; /* a finished run is remembered for so many dead_s, beyond the time in which its hosts may
        * end what they ran */
static const double say_after_dead = 0.7; /* silence of etcd is said after so many */

struct etcd_witness {
    struct etcd_witness_hooks hooks;
    struct witness_end witness;
    struct etcd *etcd;
    uv_timer_t timer;
    double dead_s, linger_s, answered_s, grace_s;
    int endpoint_count, refusals; /* since the last answer */
    bool closing, closed, said;
    char *state_key, *beat_key;
    struct witness_call call; /* waits for its lease */
};

static void send_txn(struct etcd_witness *n, int64_t lease);

static void free_it(uv_handle_t *handle)
{
    struct etcd_witness *n = handle->data;
    witness_clear(&n->witness);
    free(n->state_key);
    free(n->beat_key);
    free(n);
}

static void end(struct etcd_witness *n)
{
    if (!n->closed) {
        n->closed = true;
        etcd_close(n->etcd);
        uv_close((uv_handle_t *)&n->timer, free_it);
    }
}

static void say(void *user, const char *line)
{
    (void)user;
    console_say("dtrun: %s\n", line);
}

/* ---- answers ---- */

static void on_failed(struct etcd_witness *n, const struct dt_error *err)
{
    struct witness_result r = {.failed = true};
    double now_s = dt_now_s();
    dt_log(DT_LOG_DEBUG, "nodes", "%s", err->text);
    witness_answered(&n->witness, &r, now_s);
    if (n->closing) {
        return;
    }
    n->hooks.trouble(n->hooks.user, err->text);
    /* each of them was asked */
    if (err->status == DT_INVALID && ++n->refusals >= n->endpoint_count) {
        n->hooks.refused(n->hooks.user, err->text);
    }
    if (!n->said && n->witness.stored && now_s - n->answered_s >= say_after_dead * n->dead_s) {
        n->said = true;
        console_say("dtrun: %s; workers go on, a new round waits for it\n", err->text);
    }
    n->hooks.moved(n->hooks.user);
}

static void on_txn(void *user, const struct etcd_result *result, const struct dt_error *err)
{
    struct etcd_witness *n = user;
    if (result == NULL) {
        on_failed(n, err);
    } else {
        bool put = result->succeeded && (n->call.put_state || n->call.put_beat);
        struct witness_result r = {.put = put,
                                   .revision = result->revision,
                                   .state_revision = result->values[0].revision,
                                   .beat_revision = result->values[1].revision,
                                   .state = &result->values[0].bytes,
                                   .beat = &result->values[1].bytes};
        n->answered_s = dt_now_s();
        n->refusals = 0;
        if (n->said) {
            n->said = false;
            say(n, "etcd answers again");
        }
        witness_answered(&n->witness, &r, n->answered_s);
        if (!n->closing) {
            n->hooks.trouble(n->hooks.user, NULL);
            n->hooks.moved(n->hooks.user);
        }
    }
    if (n->closing && !etcd_is_busy(n->etcd)) {
        end(n);
    }
}

static void on_lease(void *user, const struct etcd_result *result, const struct dt_error *err)
{
    struct etcd_witness *n = user;
    if (result == NULL) {
        on_txn(n, NULL, err);
    } else {
        send_txn(n, result->lease);
    }
}

/* ---- calls ---- */

static void send_txn(struct etcd_witness *n, int64_t lease)
{
    const struct witness_call *c = &n->call;
    bool puts = c->put_state || c->put_beat;
    struct etcd_txn txn = {.key_count = 2,
                           .keys = {{.key = n->state_key, .compare = puts, .revision = c->state_revision},
                                    {.key = n->beat_key, .compare = puts, .revision = c->beat_revision}},
                           .lease = lease};
    if (c->put_state) {
        txn.keys[0].put = c->state->data;
        txn.keys[0].put_bytes = c->state->size;
    }
    if (c->put_beat) {
        txn.keys[1].put = c->beat->data;
        txn.keys[1].put_bytes = c->beat->size;
    }
    etcd_txn(n->etcd, &txn, on_txn, n);
}

static void call(void *user, const struct witness_call *c)
{
    struct etcd_witness *n = user;
    n->call = *c;
    if (c->last) {
        etcd_grant(n->etcd, last_words_dead * n->dead_s + n->linger_s, on_lease, n);
    } else {
        send_txn(n, 0);
    }
}

static void knock(void *user, const struct peer_info *at)
{
    struct etcd_witness *n = user;
    n->hooks.knock(n->hooks.user, at);
}

struct witness_end *etcd_witness_end(struct etcd_witness *n)
{
    return &n->witness;
}

static void on_time(uv_timer_t *timer)
{
    struct etcd_witness *n = timer->data;
    witness_tick(&n->witness, dt_now_s());
}

/* ---- begin and end ---- */

int etcd_witness_open(struct etcd_witness **out, uv_loop_t *loop, const struct options *o, struct member *member,
                      const struct etcd_witness_hooks *hooks, struct dt_error *err)
{
    struct etcd_witness *n = dt_alloc(sizeof *n);
    struct etcd_options e = {.endpoint_count = o->etcd.endpoint_count,
                             .tls = strcmp(o->etcd.protocol, "https") == 0,
                             .cacert = o->etcd.cacert,
                             .cert = o->etcd.cert,
                             .key = o->etcd.key,
                             .user_file = o->etcd.user_file};
    for (int i = 0; i < o->etcd.endpoint_count; i++) {
        e.endpoints[i].host = o->etcd.hosts[i];
        e.endpoints[i].port = o->etcd.ports[i];
    }
    if (etcd_open(&n->etcd, loop, &e, err) != 0) {
        free(n);
        return -1;
    }
    const char *prefix = o->etcd.prefix;
    n->hooks = *hooks;
    n->dead_s = o->dead_after_s;
    n->linger_s = o->shutdown_timeout_s;
    n->endpoint_count = o->etcd.endpoint_count;
    n->grace_s = 5 / o->time_scale > 1 ? 5 / o->time_scale : 1;
    n->state_key = dt_format("%s/%s/witness", prefix, o->run_id);
    n->beat_key = dt_format("%s/%s/beat", prefix, o->run_id);
    struct witness_options w = {.dead_s = o->dead_after_s,
                                .forsaken_s = WITNESS_FORSAKEN * o->dead_after_s,
                                .linger_s = o->shutdown_timeout_s,
                                .beat_every_s = o->dead_after_s / 6,
                                .user = n,
                                .call = call,
                                .say = say,
                                .knock = knock};
    witness_open(&n->witness, member, &w);
    (void)uv_timer_init(loop, &n->timer);
    n->timer.data = n;
    uint64_t every_ms = (uint64_t)(o->dead_after_s / 5 * 1e3) + 1;
    (void)uv_timer_start(&n->timer, on_time, every_ms, every_ms);
    *out = n;
    return 0;
}

static void on_late(uv_timer_t *timer)
{
    end(timer->data);
}

void etcd_witness_close(struct etcd_witness *n)
{
    n->closing = true;
    if (!etcd_is_busy(n->etcd)) {
        end(n);
        return;
    }
    (void)uv_timer_start(&n->timer, on_late, (uint64_t)(n->grace_s * 1e3), 0);
}
