/* What device.c and stream.c share: the device with its table of streams, and how results of the
 * runtime become errors. */
#ifndef DT_KERNELS_CUDA_STREAM_H
#define DT_KERNELS_CUDA_STREAM_H

#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#define DT_CUDA_STREAMS 64 /* open at a time, and those that failed */

/* How a stream stands. It outlives its stream when that failed: events recorded there still
 * tell. `life` counts the streams that had this place; an event of an earlier one was recorded
 * on a stream that ended well. */
struct cuda_lane {
    uint64_t life;
    bool used, failed;
    bool copies; /* brings and takes data: who waits for it waits for no peer */
    struct dt_error why;
    struct dt_cuda_fault *fault;    /* of the open stream, or null */
    struct cuda_stream *timed;      /* it, when its waits are timed */
    uint64_t recorded;              /* events so far */
    uint64_t done;                  /* of these the host knows that they came through well */
    uint64_t fails_from;            /* failed: records from this one on carry it */
    uint64_t seen[DT_CUDA_STREAMS]; /* of each other lane: the latest record that this stream
                                     * waits for */
};

struct cuda_stream;

struct cuda_device {
    int index, sm_count, shared_bytes;
    int capability; /* 90: compute capability 9.0 */
    int least_priority, greatest_priority;
    char name[160];       /* "GPU 0 (NVIDIA H200, bus 0000:3b:00.0)", for messages */
    cudaStream_t own;     /* clears new memory */
    pthread_mutex_t lock; /* of the lanes; nobody calls the runtime while he holds it: functions
                           * of streams take it */
    bool any_failed;      /* atomic: a look at all lanes is worth it */
    struct cuda_lane lanes[DT_CUDA_STREAMS];
    struct cuda_shares *shares; /* share.c */
};

/* Makes the device the calling thread's. */
void cuda_device_use(const struct cuda_device *c);
/* Sets err to "what: GPU...: cause" with a status by the kind of the error. -1. Takes the
 * runtime's last error away. */
int cuda_fail(const struct cuda_device *c, struct dt_error *err, cudaError_t rc, const char *what);
/* errors.c: what to do about it, with "; " before it, or "". */
const char *cuda_advice(cudaError_t rc);

extern const struct dt_device_sharing dt_cuda_sharing; /* share.c */
extern const struct dt_device_graphs dt_cuda_graphs;   /* graph.c */
int cuda_shares_open(struct cuda_device *c, struct dt_error *err);
void cuda_shares_close(struct cuda_device *c);

/* stream.c: rows of dt_cuda_device_ops */
int cuda_stream_open(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err);
void cuda_stream_close(struct dt_stream *s);
void *cuda_native(struct dt_stream *s);
void cuda_copy(struct dt_stream *s, void *dst, const void *src, size_t size_bytes);
void cuda_guard(struct dt_stream *s, void *p, size_t size_bytes);
void cuda_call(struct dt_stream *s, dt_stream_fn *fn, const void *args, size_t args_bytes);
void cuda_stream_fail(struct dt_stream *s, const struct dt_error *why);
bool cuda_stream_failed(struct dt_stream *s, struct dt_error *err);

/* event.c: rows of dt_cuda_device_ops */
int cuda_event_open(struct dt_device *d, struct dt_event **out, struct dt_error *err);
void cuda_event_close(struct dt_event *e);
void cuda_record(struct dt_event *e, struct dt_stream *s);
void cuda_wait(struct dt_event *e, struct dt_stream *s);
int cuda_sync(struct dt_event *e, double timeout_s, struct dt_error *err);

/* failure.c: how failures travel. All take the device's lock. */
int cuda_lane_take(struct cuda_device *c, struct dt_cuda_fault *fault); /* a free place, or -1 */
/* its stream is closed, its work has run */
void cuda_lane_leave(struct cuda_device *c, int lane);
/* Fails the lane; records from `from` on carry it (0: all that are not known to be through). The
 * first failure stays. */
void cuda_lane_fail(struct cuda_device *c, int lane, uint64_t from, const struct dt_error *why);
/* Has it failed, by itself, by a fault that a kernel wrote, or by a stream that it waits for? */
bool cuda_lane_failed(struct cuda_device *c, int lane, struct dt_error *err);
/* The number of the next record. */
uint64_t cuda_lane_record(struct cuda_device *c, int lane, uint64_t *life);
/* The lane waits for another's record. */
void cuda_lane_wait(struct cuda_device *c, int lane, int of, uint64_t life, uint64_t record);
/* The record came through: 0, or -1 and why its stream had failed before. */
int cuda_lane_verdict(struct cuda_device *c, int lane, uint64_t life, uint64_t record, struct dt_error *err);

/* event.c: how long a stream has waited for others, from pairs of events around each wait.
 * Streams of priority 0 have it: those that compute. */
struct cuda_times;
int cuda_times_open(struct cuda_stream *s);
void cuda_times_close(struct cuda_stream *s);

struct cuda_stream {
    struct dt_stream base;
    struct cuda_device *device;
    cudaStream_t native;
    int lane;
    void *work;
    struct dt_cuda_fault *fault;
    struct cuda_times *times; /* null: nobody asks how long it waits */
    struct cuda_call *calls;  /* ring of host functions */
    uint64_t call_count, called;
    bool capturing; /* graph.c; only the thread that drives the stream looks at the next three */
    pthread_t capturer;
    struct dt_error refused; /* the first operation that could not be captured */
};

/* stream.c: takes what the runtime returned when work was enqueued. A refusal fails the stream,
 * and everything recorded from then on carries the failure. During a capture the refusal is only
 * kept. */
void cuda_check(struct cuda_stream *s, cudaError_t rc, const char *what);

#endif
