/* Shared by device.c and stream.c: the device with its table of streams, and how the runtime's
 * results become errors. */
#ifndef DT_KERNELS_CUDA_STREAM_H
#define DT_KERNELS_CUDA_STREAM_H

#include "kernels/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#define DT_CUDA_STREAMS 64 /* streams that are open or have failed */

/* The state of a stream. If a stream failed, its lane outlives it, so that events recorded on it
 * still report the failure. `life` counts the streams that have used this lane. An event with an
 * older life was recorded on a stream that ended well. */
struct cuda_lane {
    uint64_t life;
    bool used, failed;
    bool copies; /* the stream only copies data, so waiting for it is not waiting for a peer */
    struct dt_error why;
    struct dt_cuda_fault *fault; /* that of the open stream, or null */
    struct cuda_stream *timed;   /* the open stream, if its waits are timed */
    uint64_t recorded;           /* number of events so far */
    /* number of the last event that the host knows to have been reached without failure */
    uint64_t done;
    uint64_t fails_from; /* if failed: records from this one on carry the failure */
    /* of each other lane: the latest record that this stream waits for */
    uint64_t seen[DT_CUDA_STREAMS];
};

struct cuda_stream;

struct cuda_device {
    int index, sm_count, shared_bytes;
    int capability; /* 90: compute capability 9.0 */
    int least_priority, greatest_priority;
    char name[160];   /* "GPU 0 (NVIDIA H200, bus 0000:3b:00.0)", for messages */
    cudaStream_t own; /* for clearing new memory */
    /* guards the lanes. Do not call the runtime with it held: functions that the runtime runs take
     * it. */
    pthread_mutex_t lock;
    bool any_failed; /* atomic; false: no lane needs to be looked at */
    struct cuda_lane lanes[DT_CUDA_STREAMS];
    struct cuda_shares *shares; /* share.c */
};

/* Makes the device the calling thread's current one. */
void cuda_device_use(const struct cuda_device *c);
/* Sets err to "what: GPU...: cause", with a status by the kind of the error, and clears the
 * runtime's last error. Returns -1. */
int cuda_fail(const struct cuda_device *c, struct dt_error *err, cudaError_t rc, const char *what);
/* errors.c: advice about the error with "; " before it, or "". */
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

/* failure.c: how failures go from stream to stream. All functions take the device's lock. */
int cuda_lane_take(struct cuda_device *c, struct dt_cuda_fault *fault); /* a free lane, or -1 */
/* call it when the stream is closed and its work has run */
void cuda_lane_leave(struct cuda_device *c, int lane);
/* Fails the lane. Records from `from` on carry the failure (0: all that are not known to be
 * complete). The first failure is kept. */
void cuda_lane_fail(struct cuda_device *c, int lane, uint64_t from, const struct dt_error *why);
/* True if the lane has failed: by itself, by a fault that a kernel wrote, or through a stream that
 * it waits for. */
bool cuda_lane_failed(struct cuda_device *c, int lane, struct dt_error *err);
/* Returns the number of the next record. */
uint64_t cuda_lane_record(struct cuda_device *c, int lane, uint64_t *life);
/* Notes that the lane waits for a record of another lane. */
void cuda_lane_wait(struct cuda_device *c, int lane, int of, uint64_t life, uint64_t record);
/* Call it when the record was reached. 0, or -1 with the earlier failure of its stream. */
int cuda_lane_verdict(struct cuda_device *c, int lane, uint64_t life, uint64_t record, struct dt_error *err);

/* event.c: the time that a stream has waited for others, by pairs of events around each wait. Only
 * streams of priority 0, which compute, have it. */
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
    struct cuda_times *times; /* null: waits are not timed */
    struct cuda_call *calls;  /* ring of functions for the host */
    uint64_t call_count, called;
    bool capturing; /* graph.c; only the thread that drives the stream uses this and the next two */
    pthread_t capturer;
    struct dt_error refused; /* the first operation that could not be captured */
};

/* stream.c: handles the runtime's result of enqueuing work. An error fails the stream, and
 * everything recorded from then on carries the failure. During a capture the error is only kept. */
void cuda_check(struct cuda_stream *s, cudaError_t rc, const char *what);

#endif
