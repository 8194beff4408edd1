/* Runs the first collectives before anything depends on them. They show whether the ranks reach
 * each other, and how much memory the connections take. */
#include "base/clock.h"
#include "base/page.h"
#include "collectives/comm.h"
#include "kernels/device.h"

#define LOOK_S 0.1 /* between two looks at the peers, while waiting for a stream */
#define END_S 30.0 /* longest wait for a stream whose communicator was aborted */

/* Waits for an event. Fails when a peer is lost, the round ends, or open_timeout_s is over. */
static int await(struct dt_comm *c, struct dt_event *e, struct dt_stream *s, struct dt_error *err)
{
    double until_s = dt_now_s() + c->open_timeout_s;
    while (dt_event_sync(e, LOOK_S, err) != 0) {
        if (err->status != DT_TIMEOUT || dt_stream_failed(s, err) || dt_comm_poll(c, err) != 0) {
            return -1;
        }
        if (c->page != NULL && atomic_load(&c->page->order) == DT_ORDER_ABORT) {
            return dt_fail(err, DT_STOPPED, "%s: the round is over", c->name);
        }
        if (dt_now_s() > until_s) {
            return dt_fail(err, DT_TIMEOUT, "%s: the first collectives are not done after %.0f s", c->name,
                           c->open_timeout_s);
        }
    }
    return dt_comm_poll(c, err);
}

static int await_all(struct dt_comm *c, struct dt_stream *s, struct dt_error *err)
{
    struct dt_event *e = NULL;
    if (dt_event_open(c->device, &e, err) != 0) {
        return -1;
    }
    dt_event_record(e, s);
    int rc = await(c, e, s, err);
    dt_event_close(e);
    return rc;
}

int dt_comm_connect(struct dt_comm *c, unsigned kinds, size_t bytes, struct dt_stream *s, struct dt_error *err)
{
    if (!c->ops->connects_late || c->size == 1) {
        return 0;
    }
    size_t slice = bytes / sizeof(float) / (size_t)c->size;
    const int64_t counts[] = {1, slice > 1 ? (int64_t)slice : 1};
    size_t size_bytes = (size_t)counts[1] * (size_t)c->size * sizeof(float);
    const struct dt_comm_stats before = c->stats;
    void *memory = NULL;
    if (dt_device_alloc(c->device, DT_MEMORY_DEVICE, size_bytes, &memory, err) != 0) {
        return -1;
    }
    float *all = memory;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (int kind = DT_ALL_REDUCE; kind <= DT_BROADCAST; kind++) {
            bool slices = kind == DT_REDUCE_SCATTER || kind == DT_ALL_GATHER;
            float *own = all + (slices ? c->rank * counts[i] : 0);
            const struct dt_collective x = {.kind = (enum dt_coll)kind,
                                            .op = DT_SUM,
                                            .name = "connect",
                                            .in = kind == DT_REDUCE_SCATTER ? all : own,
                                            .out = kind == DT_ALL_GATHER ? all : own,
                                            .count = slices ? counts[i] : counts[i] * c->size,
                                            .type = DT_F32};
            if ((kinds >> kind & 1) != 0) {
                dt_comm_start(c, &x, s);
            }
        }
    }
    int rc = await_all(c, s, err);
    struct dt_error late;
    if (rc != 0) {
        dt_comm_abort(c);
        if (dt_stream_finish(s, END_S, &late) != 0 && late.status == DT_TIMEOUT) {
            return rc; /* keep the memory: the backend may still write there */
        }
    }
    c->stats = before;
    dt_device_free(c->device, DT_MEMORY_DEVICE, memory, size_bytes);
    return rc;
}
