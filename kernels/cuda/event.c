/* Events: the runtime's, and the number of the record that stands in its stream's lane (failure.c). The host waits by asking again and again, so
 * that it can give up at its deadline. */
#include "base/clock.h"
#include "kernels/cuda/stream.h"

#include <stdlib.h>
#include <time.h>

struct cuda_event {
    struct dt_event base;
    struct cuda_device *device;
    cudaEvent_t native;
    int lane; /* of the last record, -1: none */
    uint64_t life, record;
};

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
    (void)cudaEventDestroy(e->native); /* CUDA lets go of it when its record was reached: a device that hangs holds nobody here */
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
    cudaError_t rc = cudaStreamWaitEvent(s->native, e->native, 0);
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
        (void)cudaGetLastError(); /* where this counts as an error */
        double waited_s = dt_now_s() - begin_s;
        if (timeout_s >= 0 && waited_s >= timeout_s) {
            return dt_fail(err, DT_TIMEOUT, "device: work is not done after %.3g s", timeout_s);
        }
        if (waited_s > 50e-6) { /* short waits spin, long ones ask 20000 times a second at first, 2000 times in the end */
            double pause_s = waited_s * 0.02 < 50e-6 ? 50e-6 : waited_s * 0.02 > 500e-6 ? 500e-6 : waited_s * 0.02;
            nanosleep(&(struct timespec){.tv_nsec = (long)(pause_s * 1e9)}, NULL);
        }
    }
    if (rc != cudaSuccess) {
        struct dt_error why = {0};
        (void)cuda_fail(e->device, &why, rc, "device");
        cuda_lane_fail(e->device, e->lane, 0, &why);
    }
    return cuda_lane_verdict(e->device, e->lane, e->life, e->record, err);
}
