/* Streams: enqueueing work, and functions that the host runs in stream order. */
#include "kernels/cuda/stream.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CALLS 256 /* functions of one stream that may be pending */

struct cuda_call {
    struct cuda_stream *stream;
    dt_stream_fn *fn;
    uint64_t record; /* number of the first event recorded after it */
    _Alignas(16) unsigned char args[DT_CALL_ARGS_MAX];
};

int cuda_stream_open(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err)
{
    struct cuda_device *c = d->impl;
    cuda_device_use(c);
    struct cuda_stream *s = calloc(1, sizeof *s);
    if (s == NULL || (s->calls = calloc(CALLS, sizeof *s->calls)) == NULL) {
        free(s);
        return dt_fail_errno(err, "stream");
    }
    s->base.device = d;
    s->device = c;
    s->lane = -1;
    /* in the runtime, a lower number has a higher priority */
    int wanted = c->least_priority - priority;
    wanted = wanted < c->greatest_priority ? c->greatest_priority
             : wanted > c->least_priority  ? c->least_priority
                                           : wanted;
    cudaError_t rc = cudaStreamCreateWithPriority(&s->native, cudaStreamNonBlocking, wanted);
    /* below 0 a stream is for copies only, and needs no work memory */
    if (rc == cudaSuccess && priority >= 0) {
        rc = cudaMalloc(&s->work, DT_CUDA_WORK_BYTES);
    }
    if (rc == cudaSuccess) {
        rc = cudaHostAlloc((void **)&s->fault, sizeof *s->fault, cudaHostAllocDefault);
    }
    if (rc != cudaSuccess) {
        (void)cuda_fail(c, err, rc, "stream");
        cuda_stream_close(&s->base);
        return -1;
    }
    memset(s->fault, 0, sizeof *s->fault);
    s->lane = cuda_lane_take(c, s->fault);
    if (s->lane < 0 || (priority == 0 && cuda_times_open(s) != 0)) {
        cuda_stream_close(&s->base);
        return dt_fail(err, DT_INTERNAL, "stream: more than %d are open or have failed", DT_CUDA_STREAMS);
    }
    pthread_mutex_lock(&c->lock);
    c->lanes[s->lane].copies = priority < 0;
    c->lanes[s->lane].timed = s->times != NULL ? s : NULL;
    pthread_mutex_unlock(&c->lock);
    *out = &s->base;
    return 0;
}

void cuda_stream_close(struct dt_stream *base)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    cuda_device_use(s->device);
    if (s->native != NULL) {
        (void)cudaStreamSynchronize(s->native);
    }
    if (s->lane >= 0) {
        cuda_lane_leave(s->device, s->lane);
    }
    cuda_times_close(s);
    if (s->native != NULL) {
        (void)cudaStreamDestroy(s->native);
    }
    if (s->work != NULL) {
        (void)cudaFree(s->work);
    }
    if (s->fault != NULL) {
        (void)cudaFreeHost(s->fault);
    }
    (void)cudaGetLastError();
    free(s->calls);
    free(s);
}

void *cuda_native(struct dt_stream *s)
{
    return ((struct cuda_stream *)s)->native;
}

/* Notes that an operation could not be captured. The capture will be dropped, and the stream has
 * not failed. */
static void refuse(struct cuda_stream *s, const struct dt_error *why)
{
    if (s->refused.status == DT_OK) {
        s->refused = *why;
    }
}

void cuda_stream_fail(struct dt_stream *base, const struct dt_error *why)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    /* the capturing thread means the capture; other threads mean the stream */
    if (__atomic_load_n(&s->capturing, __ATOMIC_ACQUIRE) && pthread_equal(s->capturer, pthread_self()) != 0) {
        refuse(s, why);
        return;
    }
    cuda_lane_fail(s->device, s->lane, 0, why);
}

bool cuda_stream_failed(struct dt_stream *base, struct dt_error *err)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    return cuda_lane_failed(s->device, s->lane, err);
}

/* ---- kernels ---- */

bool dt_cuda_begin(struct dt_stream *base, struct dt_cuda_launch *out)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    if (cuda_lane_failed(s->device, s->lane, NULL) || (s->capturing && s->refused.status != DT_OK)) {
        return false;
    }
    if (s->work == NULL) {
        dt_stream_fail(base, DT_INTERNAL, "a kernel on a stream for copies");
        return false;
    }
    cuda_device_use(s->device);
    *out = (struct dt_cuda_launch){.native = s->native,
                                   .work = s->work,
                                   .fault = s->fault,
                                   .sm_count = s->device->sm_count,
                                   .shared_bytes = s->device->shared_bytes};
    return true;
}

/* (The thread that drives the stream counts its records, and that is this thread.) */
void cuda_check(struct cuda_stream *s, cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess) {
        struct dt_error why = {0};
        (void)cuda_fail(s->device, &why, rc, what);
        if (s->capturing) {
            refuse(s, &why);
            return;
        }
        cuda_lane_fail(s->device, s->lane, s->device->lanes[s->lane].recorded + 1, &why);
    }
}

void dt_cuda_end(struct dt_stream *base, const char *kernel)
{
    cuda_check((struct cuda_stream *)base, cudaGetLastError(), kernel);
}

bool dt_cuda_broken(struct dt_stream *base, const char *what, struct dt_error *err)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    if (s->capturing) { /* a query would break the capture */
        return false;
    }
    cuda_device_use(s->device);
    cudaError_t rc = cudaStreamQuery(s->native);
    (void)cudaGetLastError();
    if (rc == cudaSuccess || rc == cudaErrorNotReady) {
        return false;
    }
    (void)cuda_fail(s->device, err, rc, what);
    return true;
}

void cuda_copy(struct dt_stream *base, void *dst, const void *src, size_t size_bytes)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    if (size_bytes > 0 && dst != src && !cuda_lane_failed(s->device, s->lane, NULL)) {
        cuda_device_use(s->device);
        cuda_check(s, cudaMemcpyAsync(dst, src, size_bytes, cudaMemcpyDefault, s->native), "copy");
    }
}

void cuda_guard(struct dt_stream *base, void *p, size_t size_bytes)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    if (!cuda_lane_failed(s->device, s->lane, NULL)) {
        cuda_device_use(s->device);
        cuda_check(s, cudaMemsetAsync(p, 0xff, size_bytes, s->native), "guard");
    }
}

/* ---- functions of the host ---- */

/* Runs on a thread of the runtime, which may not call the runtime. */
static void CUDART_CB run_call(void *argument)
{
    struct cuda_call *x = argument;
    struct cuda_stream *s = x->stream;
    struct dt_error err = {0};
    if (!cuda_lane_failed(s->device, s->lane, NULL) && x->fn(&s->base, x->args, &err) != 0) {
        cuda_lane_fail(s->device, s->lane, x->record, &err);
    }
    __atomic_add_fetch(&s->called, 1, __ATOMIC_RELEASE);
}

/* Waits until the ring has room. False: the device has failed and runs no functions any more. */
static bool wait_for_room(struct cuda_stream *s)
{
    while (s->call_count - __atomic_load_n(&s->called, __ATOMIC_ACQUIRE) == CALLS) {
        cudaError_t rc = cudaStreamQuery(s->native);
        (void)cudaGetLastError(); /* a query of unfinished work counts as an error */
        if (rc != cudaSuccess && rc != cudaErrorNotReady) {
            cuda_check(s, rc, "call");
            return false;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return true;
}

void cuda_call(struct dt_stream *base, dt_stream_fn *fn, const void *args, size_t args_bytes)
{
    struct cuda_stream *s = (struct cuda_stream *)base;
    assert(args_bytes <= DT_CALL_ARGS_MAX);
    cuda_device_use(s->device);
    if (cuda_lane_failed(s->device, s->lane, NULL) || !wait_for_room(s)) {
        return;
    }
    struct cuda_call *x = &s->calls[s->call_count % CALLS];
    x->stream = s;
    x->fn = fn;
    x->record = s->device->lanes[s->lane].recorded + 1;
    if (args_bytes > 0) {
        memcpy(x->args, args, args_bytes);
    }
    cudaError_t rc = cudaLaunchHostFunc(s->native, run_call, x);
    s->call_count += rc == cudaSuccess;
    cuda_check(s, rc, "call");
}
