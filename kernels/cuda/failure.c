/* How a failure goes from stream to stream. The device does not know of it: work that is in its
 * queues runs to the end, on whatever its memory holds by then. The host handles it here: it
 * enqueues nothing more on a stream that failed. Every event recorded after the failure, on this
 * stream or on one that waits for it, reports the failure to its waiters. So no result that
 * comes after a failure is used.
 *
 *     a   | kernel | call fails | record 7 | kernel
 *            from record 7 on, a's events carry the failure
 *     b   | kernel | wait for a's record 7 | kernel | record 3
 *            b waits for a's record 7, so b has failed, and its record 3 carries the failure
 *
 * Some failures have no known place: dt_stream_fail from outside, a fault that a kernel wrote,
 * an error that waiting finds. They count for all records that the host does not know to be
 * complete. An error that breaks a device is reported by the next call that enqueues work, so
 * after its place. So a later failure may move the first failed record back; the text of the
 * first failure is kept. */
#include "kernels/cuda/stream.h"

#include <string.h>

static void fail_locked(struct cuda_device *c, int lane, uint64_t from, const struct dt_error *why)
{
    struct cuda_lane *x = &c->lanes[lane];
    from = from > x->done + 1 ? from : x->done + 1;
    if (x->failed) {
        x->fails_from = from < x->fails_from ? from : x->fails_from;
        return;
    }
    x->failed = true;
    x->why = *why;
    x->fails_from = from;
    __atomic_store_n(&c->any_failed, true, __ATOMIC_RELEASE);
}

/* Collects faults that kernels wrote, and failures that lanes pass on to others, until nothing
 * changes. */
static void settle(struct cuda_device *c)
{
    for (int i = 0; i < DT_CUDA_STREAMS; i++) {
        struct cuda_lane *x = &c->lanes[i];
        struct dt_error why = {0};
        if (x->used && !x->failed && x->fault != NULL && dt_cuda_fault_read(x->fault, &why) != 0) {
            fail_locked(c, i, 0, &why);
        }
    }
    bool changed = c->any_failed;
    while (changed) {
        changed = false;
        for (int i = 0; i < DT_CUDA_STREAMS; i++) {
            for (int j = 0; j < DT_CUDA_STREAMS && c->lanes[i].used && !c->lanes[i].failed; j++) {
                const struct cuda_lane *from = &c->lanes[j];
                if (from->failed && c->lanes[i].seen[j] >= from->fails_from) {
                    fail_locked(c, i, 0, &from->why);
                    changed = true;
                }
            }
        }
    }
}

int cuda_lane_take(struct cuda_device *c, struct dt_cuda_fault *fault)
{
    int found = -1;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < DT_CUDA_STREAMS && found < 0; i++) {
        struct cuda_lane *x = &c->lanes[i];
        if (!x->used && !x->failed) {
            uint64_t life = x->life + 1;
            memset(x, 0, sizeof *x);
            x->life = life;
            x->used = true;
            x->fault = fault;
            for (int j = 0; j < DT_CUDA_STREAMS; j++) {
                c->lanes[j].seen[i] = 0;
            }
            found = i;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return found;
}

void cuda_lane_leave(struct cuda_device *c, int lane)
{
    pthread_mutex_lock(&c->lock);
    settle(c);
    c->lanes[lane].used = false;
    c->lanes[lane].fault = NULL;
    c->lanes[lane].timed = NULL;
    pthread_mutex_unlock(&c->lock);
}

void cuda_lane_fail(struct cuda_device *c, int lane, uint64_t from, const struct dt_error *why)
{
    pthread_mutex_lock(&c->lock);
    settle(c);
    fail_locked(c, lane, from, why);
    pthread_mutex_unlock(&c->lock);
}

bool cuda_lane_failed(struct cuda_device *c, int lane, struct dt_error *err)
{
    const struct cuda_lane *x = &c->lanes[lane];
    if (!__atomic_load_n(&c->any_failed, __ATOMIC_ACQUIRE) &&
        __atomic_load_n(&x->fault->kind, __ATOMIC_ACQUIRE) == DT_CUDA_NO_FAULT) {
        return false; /* the common case, asked by every kernel: two loads */
    }
    pthread_mutex_lock(&c->lock);
    settle(c);
    bool failed = x->failed;
    if (failed && err != NULL) {
        *err = x->why;
    }
    pthread_mutex_unlock(&c->lock);
    return failed;
}

uint64_t cuda_lane_record(struct cuda_device *c, int lane, uint64_t *life)
{
    pthread_mutex_lock(&c->lock);
    uint64_t record = ++c->lanes[lane].recorded;
    *life = c->lanes[lane].life;
    pthread_mutex_unlock(&c->lock);
    return record;
}

void cuda_lane_wait(struct cuda_device *c, int lane, int of, uint64_t life, uint64_t record)
{
    pthread_mutex_lock(&c->lock);
    if (c->lanes[of].life == life && c->lanes[lane].seen[of] < record) {
        c->lanes[lane].seen[of] = record;
    }
    pthread_mutex_unlock(&c->lock);
}

int cuda_lane_verdict(struct cuda_device *c, int lane, uint64_t life, uint64_t record, struct dt_error *err)
{
    int rc = 0;
    pthread_mutex_lock(&c->lock);
    struct cuda_lane *x = &c->lanes[lane];
    if (x->life == life) {
        settle(c);
        if (x->failed && record >= x->fails_from) {
            if (err != NULL) {
                *err = x->why;
            }
            rc = -1;
        } else if (record > x->done) {
            x->done = record;
        }
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}
