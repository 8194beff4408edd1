/* An event is two counters: records put into streams, and records that ran. They lie in pages of a
 * memfd, so that another process can wait for them. */
#include "tests/softgpu/event.h"

#include "tests/softgpu/lock.h"
#include "tests/softgpu/sanitize.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct softgpu_lock lock;
static struct softgpu_event_state *table;
static int table_fd = -1;
static int event_count; /* atomic; includes events of other processes */

static struct softgpu_event *event_of(cudaEvent_t e, const char *function)
{
    struct softgpu_event *x = (struct softgpu_event *)e;
    if (x == nullptr || x->magic != SOFTGPU_EVENT_MAGIC) {
        softgpu_refuse(cudaErrorInvalidResourceHandle, "%s: no event, or it was destroyed", function);
        return nullptr;
    }
    return x;
}

/* A free slot in the table; -1: none. */
static int take_slot(void)
{
    int slot = -1;
    softgpu_lock(&lock);
    if (table == nullptr) {
        table_fd = memfd_create("softgpu-events", MFD_CLOEXEC);
        void *p = table_fd >= 0 && ftruncate(table_fd, SOFTGPU_EVENTS_BYTES) == 0
                      ? mmap(nullptr, SOFTGPU_EVENTS_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0)
                      : MAP_FAILED;
        table = p != MAP_FAILED ? (struct softgpu_event_state *)p : nullptr;
    }
    for (int i = 0; table != nullptr && slot < 0 && i < SOFTGPU_EVENTS; i++) {
        if (table[i].used == 0) {
            memset(&table[i], 0, sizeof table[i]);
            table[i].used = 1;
            slot = i;
        }
    }
    softgpu_unlock(&lock);
    return slot;
}

int softgpu_event_table(void)
{
    return table_fd;
}

struct softgpu_event *softgpu_event_make(struct softgpu_event_state *state, int slot, unsigned flags)
{
    struct softgpu_event *e = (struct softgpu_event *)calloc(1, sizeof *e);
    e->magic = SOFTGPU_EVENT_MAGIC;
    e->state = state;
    e->slot = slot;
    e->flags = flags;
    (void)__atomic_add_fetch(&event_count, 1, __ATOMIC_RELAXED);
    return e;
}

int softgpu_events(void)
{
    return __atomic_load_n(&event_count, __ATOMIC_RELAXED);
}

/* A wait whose record or stream is in a capture. A captured stream can wait only for nodes of its
 * own graph, and the order of the graph ensures that anyway. */
static cudaError_t wait_captured(struct softgpu_stream *s, const struct softgpu_event *e)
{
    uint64_t own = softgpu_capture_of(s);
    cudaError_t rc = own != 0 ? softgpu_capture_state(s) : cudaSuccess;
    if (rc != cudaSuccess || (own != 0 && e->captured == own)) {
        return rc;
    }
    if (own != 0) {
        bool recorded = e->captured != 0 || __atomic_load_n(&e->state->recorded, __ATOMIC_ACQUIRE) > 0;
        return recorded ? softgpu_capture_break(own, e->captured == 0 ? cudaErrorStreamCaptureIsolation
                                                                      : cudaErrorStreamCaptureMerge)
                        : cudaSuccess;
    }
    return softgpu_capture_lives(e->captured)
               ? softgpu_refuse(cudaErrorNotSupported,
                                "cudaStreamWaitEvent: a capture over several streams is not faked")
               : softgpu_error(cudaErrorCapturedEvent);
}

extern "C" {

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    cudaError_t rc = softgpu_enter("cudaEventCreateWithFlags");
    if (rc != cudaSuccess) {
        return rc;
    }
    if ((flags & cudaEventInterprocess) && !(flags & cudaEventDisableTiming)) {
        return softgpu_refuse(cudaErrorInvalidValue,
                              "cudaEventCreateWithFlags: cudaEventInterprocess needs cudaEventDisableTiming");
    }
    int slot = take_slot();
    if (slot < 0) {
        return softgpu_error(cudaErrorMemoryAllocation);
    }
    *out = (cudaEvent_t)softgpu_event_make(&table[slot], slot, flags);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    cudaError_t rc = softgpu_enter("cudaEventDestroy");
    struct softgpu_event *e = rc == cudaSuccess ? event_of(event, "cudaEventDestroy") : nullptr;
    if (e == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (e->map != nullptr) {
        munmap(e->map, SOFTGPU_EVENTS_BYTES);
    } else {
        /* Streams may still hold records and waits of the event, which the real runtime allows. The
         * slot is reused after they have run. */
        softgpu_wait_all();
        __atomic_store_n(&e->state->used, 0, __ATOMIC_RELEASE);
    }
    e->magic = 0;
    (void)__atomic_sub_fetch(&event_count, 1, __ATOMIC_RELAXED);
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    cudaError_t rc = softgpu_enter("cudaEventRecord");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaEventRecord") : nullptr;
    struct softgpu_event *e = s != nullptr ? event_of(event, "cudaEventRecord") : nullptr;
    if (e == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    e->captured = softgpu_capture_of(s);
    if (e->captured != 0) { /* a node of the graph, for which nothing outside can wait */
        return softgpu_capture_state(s);
    }
    struct softgpu_entry x = {};
    x.kind = SOFTGPU_RECORD;
    x.name = "record";
    x.event.state = e->state;
    x.event.count = __atomic_add_fetch(&e->state->recorded, 1, __ATOMIC_ACQ_REL);
    return softgpu_put(s, &x, nullptr, 0);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    cudaError_t rc = softgpu_enter("cudaStreamWaitEvent");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaStreamWaitEvent") : nullptr;
    struct softgpu_event *e = s != nullptr ? event_of(event, "cudaStreamWaitEvent") : nullptr;
    if (e == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (e->captured != 0 || softgpu_capture_of(s) != 0) {
        return wait_captured(s, e);
    }
    if (softgpu_setting("SOFTGPU_FORGET_WAITS", 0) != 0) {
        return cudaSuccess;
    }
    struct softgpu_entry x = {};
    x.kind = SOFTGPU_WAIT;
    x.name = "wait";
    x.event.state = e->state;
    x.event.count = __atomic_load_n(&e->state->recorded, __ATOMIC_ACQUIRE);
    return softgpu_put(s, &x, nullptr, 0);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaError_t rc = softgpu_enter_uncaptured("cudaEventQuery");
    struct softgpu_event *e = rc == cudaSuccess ? event_of(event, "cudaEventQuery") : nullptr;
    if (e == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    /* a node of a graph cannot be queried; the attempt breaks the capture */
    if (e->captured != 0) {
        return softgpu_capture_break(e->captured, cudaErrorCapturedEvent);
    }
    uint32_t recorded = __atomic_load_n(&e->state->recorded, __ATOMIC_ACQUIRE);
    if ((int32_t)(__atomic_load_n(&e->state->done, __ATOMIC_ACQUIRE) - recorded) < 0) {
        return softgpu_error(cudaErrorNotReady);
    }
    tsan_acquire(e->state->clock);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    cudaError_t rc = softgpu_enter_uncaptured("cudaEventSynchronize");
    struct softgpu_event *e = rc == cudaSuccess ? event_of(event, "cudaEventSynchronize") : nullptr;
    if (e == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    /* a node of a graph cannot be waited for; the attempt breaks the capture */
    if (e->captured != 0) {
        return softgpu_capture_break(e->captured, cudaErrorCapturedEvent);
    }
    uint32_t recorded = __atomic_load_n(&e->state->recorded, __ATOMIC_ACQUIRE), done;
    while ((int32_t)((done = __atomic_load_n(&e->state->done, __ATOMIC_ACQUIRE)) - recorded) < 0) {
        softgpu_word_wait(&e->state->done, done);
    }
    tsan_acquire(e->state->clock);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end)
{
    cudaError_t rc = cudaEventQuery(begin);
    rc = rc == cudaSuccess ? cudaEventQuery(end) : rc;
    if (rc != cudaSuccess) {
        return rc;
    }
    const struct softgpu_event *a = (struct softgpu_event *)begin, *b = (struct softgpu_event *)end;
    if (((a->flags | b->flags) & cudaEventDisableTiming) || a->state->recorded == 0 || b->state->recorded == 0) {
        return softgpu_refuse(cudaErrorInvalidResourceHandle,
                              "cudaEventElapsedTime: an event without timing, or never recorded");
    }
    *ms = (float)((double)(b->state->time_ns - a->state->time_ns) * 1e-6);
    return cudaSuccess;
}
}
