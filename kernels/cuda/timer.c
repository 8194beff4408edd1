/* Timers: pairs of the runtime's events that record the time. */
#include "kernels/cuda/timer.h"

#include "kernels/cuda/stream.h"

#include <stdlib.h>

struct cuda_timer {
    struct dt_timer base;
    cudaEvent_t begin, end;
};

static void close_timer(struct dt_timer *base)
{
    struct cuda_timer *t = (struct cuda_timer *)base;
    cuda_device_use(base->device->impl);
    (void)(t->begin != NULL ? cudaEventDestroy(t->begin) : cudaSuccess);
    (void)(t->end != NULL ? cudaEventDestroy(t->end) : cudaSuccess);
    (void)cudaGetLastError();
    free(t);
}

static int open_timer(struct dt_device *d, struct dt_timer **out, struct dt_error *err)
{
    struct cuda_timer *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return dt_fail_errno(err, "timer");
    }
    t->base.device = d;
    cuda_device_use(d->impl);
    cudaError_t rc = cudaEventCreateWithFlags(&t->begin, cudaEventDefault);
    rc = rc == cudaSuccess ? cudaEventCreateWithFlags(&t->end, cudaEventDefault) : rc;
    if (rc != cudaSuccess) {
        (void)cuda_fail(d->impl, err, rc, "timer");
        close_timer(&t->base);
        return -1;
    }
    *out = &t->base;
    return 0;
}

static void record(cudaEvent_t event, struct dt_stream *base)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    cuda_device_use(s->device);
    cuda_check(s, cudaEventRecord(event, s->native), "timer");
}

static void begin(struct dt_timer *t, struct dt_stream *s)
{
    record(((struct cuda_timer *)t)->begin, s);
}

static void end(struct dt_timer *t, struct dt_stream *s)
{
    record(((struct cuda_timer *)t)->end, s);
}

static bool between(const struct dt_timer *base, cudaEvent_t from, cudaEvent_t to, double *seconds)
{
    float ms = 0;
    cuda_device_use(base->device->impl);
    bool known = cudaEventElapsedTime(&ms, from, to) == cudaSuccess;
    (void)(known ? cudaSuccess : cudaGetLastError());
    *seconds = (double)ms * 1e-3;
    return known;
}

static double seconds(const struct dt_timer *base)
{
    const struct cuda_timer *t = (const struct cuda_timer *)base;
    double took_s;
    return between(base, t->begin, t->end, &took_s) ? took_s : 0;
}

static bool since(const struct dt_timer *t, const struct dt_timer *origin, double *seconds)
{
    return between(t, ((const struct cuda_timer *)origin)->begin, ((const struct cuda_timer *)t)->begin, seconds);
}

const struct dt_timer_ops dt_cuda_timer = {
    .open = open_timer, .close = close_timer, .begin = begin, .end = end, .seconds = seconds, .since = since};
