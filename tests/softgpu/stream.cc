/* Streams: each has an OS thread with a queue, so that work really runs later. A third of the
 * entries are delayed by up to SOFTGPU_DELAY_US, chosen by SOFTGPU_SEED. A missing event wait then
 * shows as wrong numbers. */
#include "tests/softgpu/lock.h"
#include "tests/softgpu/runtime.h"
#include "tests/softgpu/sanitize.h"
#include "tests/softgpu/softgpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { QUEUE = 1024, STREAMS_MAX = 256 };
static const uint64_t MAGIC = 0x736f667467707531u;

struct slot {
    struct softgpu_entry entry;
    alignas(16) unsigned char call[SOFTGPU_CALL_MAX]; /* a kernel's arguments */
};

struct softgpu_stream {
    uint64_t magic;
    struct softgpu_lock lock;
    uint32_t put, taken, closing;          /* counts of entries */
    uint32_t awaiting_put, awaiting_taken; /* threads that sleep until the count changes */
    int device, priority;
    uint64_t random;
    pthread_t thread;
    char clock[8]; /* orders the entries before the thread that waits for the stream */
    struct slot *queue;
    struct softgpu_capture *capture;
};

static struct softgpu_lock list_lock;
static struct softgpu_stream *streams[STREAMS_MAX];
static uint64_t stream_count;
static __thread bool on_stream; /* this thread runs a stream's entries */
/* an error that stays: nothing runs any more, and every call returns it */
static uint32_t lost;

static struct {
    const char *name; /* name of the entries that are held */
    uint32_t held;    /* an entry is held now */
    uint32_t on;
} hold;

/* ---- the stream's thread ---- */

void softgpu_delay(uint64_t *random)
{
    long limit_us = softgpu_setting("SOFTGPU_DELAY_US", 0);
    *random = *random * 6364136223846793005u + 1442695040888963407u;
    uint64_t r = *random >> 33;
    if (limit_us > 0 && r % 3 == 0) {
        long us = (long)(r / 3 % (uint64_t)limit_us);
        struct timespec t = {us / 1000000, us % 1000000 * 1000};
        nanosleep(&t, nullptr);
    }
}

/* Like strstr, which the thread sanitizer would intercept. */
static bool contains(const volatile char *text, const volatile char *part)
{
    for (; *text != '\0'; text++) {
        int i = 0;
        while (part[i] != '\0' && text[i] == part[i]) {
            i++;
        }
        if (part[i] == '\0') {
            return true;
        }
    }
    return false;
}

static void pass_hold(const char *name)
{
    while (__atomic_load_n(&hold.on, __ATOMIC_ACQUIRE) != 0 && contains(name, hold.name)) {
        __atomic_store_n(&hold.held, 1, __ATOMIC_RELEASE);
        softgpu_word_wait(&hold.on, 1);
    }
}

void softgpu_hold(const char *name)
{
    hold.name = name;
    __atomic_store_n(&hold.held, 0, __ATOMIC_RELEASE);
    __atomic_store_n(&hold.on, 1, __ATOMIC_RELEASE);
}

int softgpu_held(void)
{
    return (int)__atomic_load_n(&hold.held, __ATOMIC_ACQUIRE);
}

void softgpu_go_on(void)
{
    __atomic_store_n(&hold.on, 0, __ATOMIC_RELEASE);
    softgpu_word_wake(&hold.on);
}

static void run_record(const struct softgpu_entry *e)
{
    struct softgpu_event_state *x = e->event.state;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    x->time_ns = now.tv_sec * 1000000000L + now.tv_nsec;
    tsan_release(x->clock);
    uint32_t done = __atomic_load_n(&x->done, __ATOMIC_ACQUIRE);
    while ((int32_t)(e->event.count - done) > 0 &&
           !__atomic_compare_exchange_n(&x->done, &done, e->event.count, false, __ATOMIC_RELEASE, __ATOMIC_ACQUIRE)) {
    }
    softgpu_counted_wake(&x->done, &x->waiting);
}

static void run_wait(const struct softgpu_entry *e)
{
    struct softgpu_event_state *x = e->event.state;
    uint32_t done;
    while ((int32_t)((done = __atomic_load_n(&x->done, __ATOMIC_ACQUIRE)) - e->event.count) < 0) {
        softgpu_counted_wait(&x->done, done, &x->waiting);
    }
    tsan_acquire(x->clock);
}

/* SOFTGPU_LOST_COPY=BYTES: whether this is the copy to the host that finds the device broken, the
 * first of so many bytes or more. */
static bool breaks(const struct softgpu_entry *e)
{
    long limit = e->kind == SOFTGPU_COPY ? softgpu_setting("SOFTGPU_LOST_COPY", 0) : 0;
    return limit > 0 && e->copy.size_bytes >= (size_t)limit && softgpu_find(e->copy.dst, 1, nullptr) == SOFTGPU_PINNED;
}

/* SOFTGPU_COPY_US: how long a copy of 1 KiB or more to the host takes. */
static void take_time(const struct softgpu_entry *e)
{
    long us = e->copy.size_bytes >= 1024 ? softgpu_setting("SOFTGPU_COPY_US", 0) : 0;
    if (us > 0 && softgpu_find(e->copy.dst, 1, nullptr) == SOFTGPU_PINNED) {
        usleep((useconds_t)us);
    }
}

static void run_node(const struct softgpu_entry *e, const void *call, void *stream);

static void run_entry(struct softgpu_stream *s, const struct softgpu_entry *e, const void *call)
{
    if (__atomic_load_n(&lost, __ATOMIC_ACQUIRE) == 0 && breaks(e)) {
        __atomic_store_n(&lost, 1, __ATOMIC_RELEASE);
    }
    if (__atomic_load_n(&lost, __ATOMIC_ACQUIRE) != 0) {
        return;
    }
    switch (e->kind) {
    case SOFTGPU_KERNEL: {
        struct softgpu_work w = {e->name, e->kernel.run, call, e->kernel.grid, e->kernel.block, e->kernel.shared_bytes};
        softgpu_execute(&w);
        break;
    }
    case SOFTGPU_COPY:
        take_time(e);
        softgpu_copy_bytes(e->copy.dst, e->copy.src, e->copy.size_bytes);
        break;
    case SOFTGPU_SET:
        softgpu_set_bytes(e->set.dst, e->set.value, e->set.size_bytes);
        break;
    case SOFTGPU_HOST:
        e->host.fn(e->host.argument);
        break;
    case SOFTGPU_RECORD:
        run_record(e);
        break;
    case SOFTGPU_WAIT:
        run_wait(e);
        break;
    case SOFTGPU_GRAPH:
        softgpu_graph_run(e->graph, run_node, s);
        break;
    }
}

/* Nodes are delayed as entries are. */
static void run_node(const struct softgpu_entry *e, const void *call, void *stream)
{
    struct softgpu_stream *s = (struct softgpu_stream *)stream;
    softgpu_delay(&s->random);
    pass_hold(e->name);
    run_entry(s, e, call);
}

static void release_entry(const struct softgpu_entry *e)
{
    if (e->kind == SOFTGPU_HOST && e->host.release != nullptr) {
        e->host.release(e->host.argument);
    }
    if (e->kind == SOFTGPU_GRAPH) {
        softgpu_graph_drop(e->graph);
    }
}

static void *stream_main(void *argument)
{
    struct softgpu_stream *s = (struct softgpu_stream *)argument;
    on_stream = true;
    for (;;) {
        uint32_t put = __atomic_load_n(&s->put, __ATOMIC_ACQUIRE);
        if (put == s->taken) {
            if (__atomic_load_n(&s->closing, __ATOMIC_ACQUIRE) != 0) {
                softgpu_execute_no_more();
                return nullptr;
            }
            softgpu_counted_wait(&s->put, put, &s->awaiting_put);
            continue;
        }
        struct slot *x = &s->queue[s->taken % QUEUE];
        struct softgpu_entry *e = &x->entry;
        softgpu_delay(&s->random);
        pass_hold(e->name);
        tsan_acquire(e->clock);
        run_entry(s, e, x->call);
        release_entry(e);
        tsan_release(s->clock);
        __atomic_store_n(&s->taken, s->taken + 1, __ATOMIC_RELEASE);
        softgpu_counted_wake(&s->taken, &s->awaiting_taken);
    }
}

/* ---- the host's side ---- */

struct softgpu_stream *softgpu_stream(cudaStream_t s, const char *function)
{
    if (s == nullptr || s == cudaStreamLegacy || s == cudaStreamPerThread) {
        softgpu_refuse(cudaErrorInvalidResourceHandle, "%s: the default stream; name one", function);
        return nullptr;
    }
    struct softgpu_stream *found = nullptr;
    softgpu_lock(&list_lock);
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (streams[i] == (struct softgpu_stream *)s) {
            found = streams[i];
        }
    }
    softgpu_unlock(&list_lock);
    if (found == nullptr) {
        softgpu_refuse(cudaErrorInvalidResourceHandle, "%s: no such stream, or it was destroyed", function);
    }
    return found;
}

int softgpu_stream_device(const struct softgpu_stream *s)
{
    return s->device;
}

int softgpu_streams(void)
{
    int count = 0;
    softgpu_lock(&list_lock);
    for (int i = 0; i < STREAMS_MAX; i++) {
        count += streams[i] != nullptr;
    }
    softgpu_unlock(&list_lock);
    return count;
}

static void wait_taken(struct softgpu_stream *s, uint32_t until)
{
    uint32_t taken;
    while ((int32_t)((taken = __atomic_load_n(&s->taken, __ATOMIC_ACQUIRE)) - until) < 0) {
        softgpu_counted_wait(&s->taken, taken, &s->awaiting_taken);
    }
}

cudaError_t softgpu_put(struct softgpu_stream *s, const struct softgpu_entry *e, const void *call, size_t call_bytes)
{
    softgpu_lock(&s->lock);
    if (s->capture != nullptr) {
        cudaError_t rc = softgpu_capture_take(s, e, call, call_bytes);
        softgpu_unlock(&s->lock);
        return rc;
    }
    uint32_t put = s->put;
    wait_taken(s, put - QUEUE + 1);
    struct slot *x = &s->queue[put % QUEUE];
    x->entry = *e;
    for (size_t i = 0; i < call_bytes; i++) {
        x->call[i] = ((const unsigned char *)call)[i];
    }
    tsan_release(x->entry.clock);
    __atomic_store_n(&s->put, put + 1, __ATOMIC_RELEASE);
    softgpu_counted_wake(&s->put, &s->awaiting_put);
    softgpu_unlock(&s->lock);
    return cudaSuccess;
}

cudaError_t softgpu_put_work(cudaStream_t stream, const char *function, cudaHostFn_t fn, void *argument,
                             cudaHostFn_t release)
{
    cudaError_t rc = softgpu_enter(function);
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, function) : nullptr;
    if (rc == cudaSuccess) {
        struct softgpu_entry e = {};
        e.kind = SOFTGPU_HOST;
        e.name = "host function";
        e.host.fn = fn;
        e.host.argument = argument;
        e.host.release = release;
        rc = s != nullptr ? softgpu_put(s, &e, nullptr, 0) : cudaErrorInvalidResourceHandle;
    }
    if (rc != cudaSuccess && release != nullptr) {
        release(argument);
    }
    return rc;
}

struct softgpu_capture **softgpu_stream_capture(struct softgpu_stream *s)
{
    return &s->capture;
}

void softgpu_wait_all(void)
{
    for (int i = 0; i < STREAMS_MAX; i++) {
        if (__atomic_load_n(&streams[i], __ATOMIC_ACQUIRE) == nullptr) {
            continue;
        }
        softgpu_lock(&list_lock);
        struct softgpu_stream *s = streams[i];
        uint32_t put = s != nullptr ? __atomic_load_n(&s->put, __ATOMIC_ACQUIRE) : 0;
        softgpu_unlock(&list_lock);
        if (s != nullptr) {
            wait_taken(s, put);
            tsan_acquire(s->clock);
        }
    }
}

static cudaError_t open_stream(cudaStream_t *out, int priority)
{
    struct softgpu_stream *s = (struct softgpu_stream *)calloc(1, sizeof *s);
    s->magic = MAGIC;
    cudaGetDevice(&s->device);
    s->priority = priority;
    s->queue = (struct slot *)mmap(nullptr, sizeof *s->queue * QUEUE, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    softgpu_lock(&list_lock);
    s->random = (uint64_t)softgpu_setting("SOFTGPU_SEED", 0) * 1000 + stream_count++;
    int at = 0;
    while (at < STREAMS_MAX && streams[at] != nullptr) {
        at++;
    }
    bool ok = at < STREAMS_MAX && s->queue != MAP_FAILED && pthread_create(&s->thread, nullptr, stream_main, s) == 0;
    if (ok) {
        streams[at] = s;
    }
    softgpu_unlock(&list_lock);
    if (!ok) {
        return softgpu_error(cudaErrorMemoryAllocation);
    }
    *out = (cudaStream_t)s;
    return cudaSuccess;
}

extern "C" {

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return softgpu_enter("cudaDeviceGetStreamPriorityRange");
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    cudaError_t rc = softgpu_enter("cudaStreamCreateWithPriority");
    if (rc != cudaSuccess) {
        return rc;
    }
    if (flags != cudaStreamNonBlocking) {
        return softgpu_refuse(cudaErrorInvalidValue, "cudaStreamCreateWithPriority: not cudaStreamNonBlocking");
    }
    return open_stream(out, priority < -5 ? -5 : priority > 0 ? 0 : priority);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    struct softgpu_stream *s = softgpu_stream(stream, "cudaStreamGetPriority");
    if (s == nullptr) {
        return cudaErrorInvalidResourceHandle;
    }
    *priority = s->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t rc = softgpu_enter("cudaStreamDestroy");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaStreamDestroy") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (s->capture != nullptr) {
        return softgpu_refuse(cudaErrorStreamCaptureUnsupported, "cudaStreamDestroy: the stream captures");
    }
    softgpu_lock(&list_lock);
    for (int i = 0; i < STREAMS_MAX; i++) {
        streams[i] = streams[i] == s ? nullptr : streams[i];
    }
    softgpu_unlock(&list_lock);
    __atomic_store_n(&s->closing, 1, __ATOMIC_RELEASE);
    softgpu_word_wake(&s->put);
    pthread_join(s->thread, nullptr); /* entries in the queue still run */
    munmap(s->queue, sizeof *s->queue * QUEUE);
    free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t rc = softgpu_enter_uncaptured("cudaStreamSynchronize");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaStreamSynchronize") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (softgpu_capture_of(s) != 0) {
        return softgpu_capture_break(softgpu_capture_of(s), cudaErrorStreamCaptureUnsupported);
    }
    wait_taken(s, __atomic_load_n(&s->put, __ATOMIC_ACQUIRE));
    tsan_acquire(s->clock);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t rc = softgpu_enter("cudaStreamQuery");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaStreamQuery") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    if (softgpu_capture_of(s) != 0) {
        return softgpu_capture_break(softgpu_capture_of(s), cudaErrorStreamCaptureUnsupported);
    }
    if (__atomic_load_n(&s->taken, __ATOMIC_ACQUIRE) != __atomic_load_n(&s->put, __ATOMIC_ACQUIRE)) {
        return softgpu_error(cudaErrorNotReady);
    }
    tsan_acquire(s->clock);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    cudaError_t rc = softgpu_enter_uncaptured("cudaDeviceSynchronize");
    if (rc == cudaSuccess) {
        softgpu_wait_all();
    }
    return rc;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *argument)
{
    cudaError_t rc = softgpu_enter("cudaLaunchHostFunc");
    struct softgpu_stream *s = rc == cudaSuccess ? softgpu_stream(stream, "cudaLaunchHostFunc") : nullptr;
    if (s == nullptr) {
        return rc == cudaSuccess ? cudaErrorInvalidResourceHandle : rc;
    }
    struct softgpu_entry e = {};
    e.kind = SOFTGPU_HOST;
    e.name = "host function";
    e.host.fn = fn;
    e.host.argument = argument;
    return softgpu_put(s, &e, nullptr, 0);
}
}

cudaError_t softgpu_enter(const char *function)
{
    softgpu_setup_by_name(function);
    if (on_stream) {
        return softgpu_refuse(cudaErrorNotPermitted, "%s: called by a host function of a stream", function);
    }
    if (__atomic_load_n(&lost, __ATOMIC_ACQUIRE) != 0) {
        return softgpu_error(cudaErrorIllegalAddress);
    }
    return softgpu_error(softgpu_fails(function));
}
