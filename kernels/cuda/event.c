/* Events: an event of the runtime, and the number of its record in its stream's lane (failure.c).
 * The host waits by polling, so that it can give up at its deadline. */
#include "base/clock.h"
#include "kernels/cuda/stream.h"

#include <stdlib.h>

struct cuda_event {
    struct dt_event base;
    struct cuda_device *device;
    cudaEvent_t native;
    int lane; /* lane of the last record; -1: none */
    uint64_t life, record;
};

/* ---- how long a stream waits ---- */

enum { TIMES = 512 }; /* waits of one stream that may be in progress; the time of further waits
                       * is not measured */

struct cuda_times {
    /* against the thread that drives the stream, and threads that wait for its events */
    pthread_mutex_t lock;
    cudaEvent_t around[TIMES][2];
    uint64_t made, put, taken; /* made: pairs made, all of them at the first wait; 0 before */
    bool tried;
};

int cuda_times_open(struct cuda_stream *s)
{
    s->times = calloc(1, sizeof *s->times);
    if (s->times != NULL) {
        pthread_mutex_init(&s->times->lock, NULL);
    }
    return s->times != NULL ? 0 : -1;
}

void cuda_times_close(struct cuda_stream *s)
{
    struct cuda_times *x = s->times;
    if (x == NULL) {
        return;
    }
    for (uint64_t i = 0; i < x->made; i++) {
        (void)cudaEventDestroy(x->around[i][0]);
        (void)cudaEventDestroy(x->around[i][1]);
    }
    pthread_mutex_destroy(&x->lock);
    free(x);
    s->times = NULL;
}

/* Adds up the waits that are over. Call it with the lock held. */
static void take_times(struct cuda_stream *s)
{
    struct cuda_times *x = s->times;
    for (float ms = 0; x->taken < x->put; x->taken++) {
        cudaEvent_t *around = x->around[x->taken % x->made];
        if (cudaEventQuery(around[1]) != cudaSuccess ||
            cudaEventElapsedTime(&ms, around[0], around[1]) != cudaSuccess) {
            (void)cudaGetLastError();
            return;
        }
        dt_stream_add_wait(&s->base, (double)ms * 1e-3);
    }
}

/* Makes all pairs at once, so that no later step makes any. Makes fewer if the runtime refuses. */
static void make_times(struct cuda_times *x)
{
    x->tried = true;
    while (x->made < TIMES && cudaEventCreateWithFlags(&x->around[x->made][0], cudaEventDefault) == cudaSuccess) {
        if (cudaEventCreateWithFlags(&x->around[x->made][1], cudaEventDefault) != cudaSuccess) {
            (void)cudaEventDestroy(x->around[x->made][0]);
            break;
        }
        x->made++;
    }
    (void)cudaGetLastError();
}

/* Returns the next free pair; null: there is none. Call it with the lock held. */
static cudaEvent_t *next_times(struct cuda_times *x)
{
    if (!x->tried) {
        make_times(x);
    }
    return x->put - x->taken == x->made ? NULL : x->around[x->put % x->made];
}

/* The stream waits for an event of another stream. A pair of events around the wait measures its
 * time. */
static cudaError_t wait_timed(struct cuda_stream *s, cudaEvent_t event)
{
    struct cuda_times *x = s->times;
    pthread_mutex_lock(&x->lock);
    take_times(s);
    cudaEvent_t *around = next_times(x);
    bool timed = around != NULL && cudaEventRecord(around[0], s->native) == cudaSuccess;
    cudaError_t rc = cudaStreamWaitEvent(s->native, event, 0);
    x->put += timed && rc == cudaSuccess && cudaEventRecord(around[1], s->native) == cudaSuccess;
    pthread_mutex_unlock(&x->lock);
    return rc;
}

/* After the host has waited for a record: adds up the waits of its stream. */
static void settle_times(struct cuda_device *c, int lane, uint64_t life)
{
    pthread_mutex_lock(&c->lock);
    struct cuda_stream *s = c->lanes[lane].life == life ? c->lanes[lane].timed : NULL;
    pthread_mutex_unlock(&c->lock);
    if (s != NULL) {
        pthread_mutex_lock(&s->times->lock);
        take_times(s);
        pthread_mutex_unlock(&s->times->lock);
    }
}

/* ---- the rows ---- */

int cuda_event_open(struct dt_device *d, struct dt_event **out, struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    cuda_device_use(c);
    struct cuda_event *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return dt_fail_errno(err, "event");
    }
    cudaError_t rc = cudaEventCreateWithFlags(&e->native, cudaEventDisableTiming);
    if (rc != cudaSuccess) {
        free(e);
        return cuda_fail(c, err, rc, "event");
    }
    e->base.device = d;
    e->device = c;
    e->lane = -1;
    *out = &e->base;
    return 0;
}

void cuda_event_close(struct dt_event *base)
{
    struct cuda_event *e = (struct cuda_event *)base;
    cuda_device_use(e->device);
    /* CUDA frees it once its record was reached, so a device that hangs blocks no thread here */
    (void)cudaEventDestroy(e->native);
    (void)cudaGetLastError();
    free(e);
}

void cuda_record(struct dt_event *base, struct dt_stream *stream)
{
    struct cuda_event *e = (struct cuda_event *)base;
    struct cuda_stream *s = (struct cuda_stream *)stream;
    cuda_device_use(e->device);
    cudaError_t rc = cudaEventRecord(e->native, s->native);
    e->lane = s->lane;
    e->record = cuda_lane_record(e->device, s->lane, &e->life);
    if (rc != cudaSuccess) {
        struct dt_error why = {0};
        (void)cuda_fail(e->device, &why, rc, "event");
        cuda_lane_fail(e->device, s->lane, e->record, &why);
    }
}

void cuda_wait(struct dt_event *base, struct dt_stream *stream)
{
    struct cuda_event *e = (struct cuda_event *)base;
    struct cuda_stream *s = (struct cuda_stream *)stream;
    if (e->lane < 0) {
        return;
    }
    cuda_device_use(e->device);
    bool timed = s->times != NULL && s->device == e->device && s->lane != e->lane && !e->device->lanes[e->lane].copies;
    cudaError_t rc = timed ? wait_timed(s, e->native) : cudaStreamWaitEvent(s->native, e->native, 0);
    if (rc != cudaSuccess) {
        struct dt_error why = {0};
        (void)cuda_fail(e->device, &why, rc, "event");
        cuda_lane_fail(e->device, s->lane, 0, &why);
    }
    if (s->device == e->device && s->lane != e->lane) {
        cuda_lane_wait(e->device, s->lane, e->lane, e->life, e->record);
    }
}

int cuda_sync(struct dt_event *base, double timeout_s, struct dt_error *err)
{
    struct cuda_event *e = (struct cuda_event *)base;
    if (e->lane < 0) {
        return 0;
    }
    cuda_device_use(e->device);
    double begin_s = dt_now_s();
    cudaError_t rc;
    while ((rc = cudaEventQuery(e->native)) == cudaErrorNotReady) {
        (void)cudaGetLastError(); /* a query of unfinished work may count as an error */
        double waited_s = dt_now_s() - begin_s;
        if (timeout_s >= 0 && waited_s >= timeout_s) {
            return dt_fail(err, DT_TIMEOUT, "device: work is not done after %.3g s", timeout_s);
        }
        /* Short waits spin. Long ones poll 20000 times a second at first, and 2000 times in the
         * end. */
        if (waited_s > 50e-6) {
            double pause_s = waited_s * 0.02 < 50e-6 ? 50e-6 : waited_s * 0.02 > 500e-6 ? 500e-6 : waited_s * 0.02;
            dt_sleep_s(pause_s);
        }
    }
    if (rc != cudaSuccess) {
        struct dt_error why = {0};
        (void)cuda_fail(e->device, &why, rc, "device");
        cuda_lane_fail(e->device, e->lane, 0, &why);
    }
    settle_times(e->device, e->lane, e->life);
    return cuda_lane_verdict(e->device, e->lane, e->life, e->record, err);
}
