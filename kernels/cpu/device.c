/* The CPU as a device: host memory; streams that are threads with a queue, or that work at once in
 * the caller; events. An event counts its records. The stream that reaches a record sets `done` to
 * that record's number. A wait names the number it needs. */
#include "base/clock.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define QUEUE_LENGTH 256
#define HUGE_BYTES ((size_t)2 << 20)

struct cpu_device {
    struct dt_pool *pool;
};

struct cpu_event {
    struct dt_event base;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* number of the last record that was enqueued, and of the last that was reached */
    uint64_t recorded, done;
    bool failed; /* state of the stream at `done` */
    struct dt_error why;
};

enum entry_kind { ENTRY_CALL, ENTRY_RECORD, ENTRY_WAIT };

struct entry {
    enum entry_kind kind;
    dt_stream_fn *fn;
    struct cpu_event *event;
    uint64_t record;
    _Alignas(16) unsigned char args[DT_CALL_ARGS_MAX];
};

struct cpu_stream {
    struct dt_stream base;
    bool threaded, closing, failed;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct dt_error why;
    uint64_t put, taken; /* number of entries so far */
    struct entry *queue; /* null when inline */
};

/* ---- memory ---- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Maps large blocks, so that they begin on a huge page. Touches each page now, so that the first
 * step does not. */
static void *map_large(size_t size_bytes)
{
    size_t size = round_up(size_bytes, HUGE_BYTES);
    char *p = mmap(NULL, size + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return NULL;
    }
    char *begin = (char *)round_up((size_t)p, HUGE_BYTES);
    if (begin != p) {
        munmap(p, (size_t)(begin - p));
    }
    size_t tail = HUGE_BYTES - (size_t)(begin - p);
    if (tail > 0) {
        munmap(begin + size, tail);
    }
    madvise(begin, size, MADV_HUGEPAGE);
    for (size_t i = 0; i < size_bytes; i += 4096) {
        ((volatile char *)begin)[i] = 0;
    }
    return begin;
}

static int cpu_alloc(struct dt_device *d, enum dt_memory kind, size_t size_bytes, void **out, struct dt_error *err)
{
    (void)d, (void)kind;
    void *p = NULL;
    if (size_bytes >= HUGE_BYTES) {
        p = map_large(size_bytes);
    } else {
        size_t size = round_up(size_bytes > 0 ? size_bytes : 1, 64);
        p = aligned_alloc(64, size);
        if (p != NULL) {
            memset(p, 0, size);
        }
    }
    if (p == NULL) {
        return dt_fail(err, DT_NO_MEMORY, "memory: cannot get %zu bytes", size_bytes);
    }
    *out = p;
    return 0;
}

static void cpu_free(struct dt_device *d, enum dt_memory kind, void *p, size_t size_bytes)
{
    (void)d, (void)kind;
    if (size_bytes >= HUGE_BYTES) {
        munmap(p, round_up(size_bytes, HUGE_BYTES));
    } else {
        free(p);
    }
}

struct work_memory {
    void *p;
    size_t size_bytes;
};
static __thread struct work_memory work_memory[DT_WORK_COUNT];
static pthread_key_t work_key;
static pthread_once_t work_once = PTHREAD_ONCE_INIT;

static void free_work(void *all)
{
    struct work_memory *w = all;
    for (int i = 0; i < DT_WORK_COUNT; i++) {
        free(w[i].p);
        w[i] = (struct work_memory){0};
    }
}

static void make_work_key(void)
{
    pthread_key_create(&work_key, free_work);
}

void *dt_cpu_work(enum dt_work slot, size_t size_bytes)
{
    struct work_memory *w = &work_memory[slot];
    if (w->size_bytes < size_bytes) {
        pthread_once(&work_once, make_work_key);
        pthread_setspecific(work_key, work_memory);
        free(w->p);
        w->size_bytes = round_up(size_bytes, 4096);
        w->p = aligned_alloc(64, w->size_bytes);
        if (w->p == NULL) {
            abort(); /* work memory of one tile: without it nothing else would work either */
        }
    }
    return w->p;
}

/* ---- failure ---- */

static void cpu_fail(struct dt_stream *base, const struct dt_error *why)
{
    struct cpu_stream *s = (struct cpu_stream *)base;
    pthread_mutex_lock(&s->lock);
    if (!s->failed) {
        s->failed = true;
        s->why = *why;
    }
    pthread_mutex_unlock(&s->lock);
}

static bool cpu_failed(struct dt_stream *base, struct dt_error *err)
{
    struct cpu_stream *s = (struct cpu_stream *)base;
    pthread_mutex_lock(&s->lock);
    bool failed = s->failed;
    if (failed && err != NULL) {
        *err = s->why;
    }
    pthread_mutex_unlock(&s->lock);
    return failed;
}

/* ---- running entries ---- */

static void run_call(struct cpu_stream *s, dt_stream_fn *fn, void *args)
{
    struct dt_error err = {0};
    if (!cpu_failed(&s->base, NULL) && fn(&s->base, args, &err) != 0) {
        cpu_fail(&s->base, &err);
    }
}

static void run_record(struct cpu_stream *s, struct cpu_event *e, uint64_t record)
{
    struct dt_error why = {0};
    bool failed = cpu_failed(&s->base, &why);
    pthread_mutex_lock(&e->lock);
    if (record > e->done) {
        e->done = record;
        e->failed = failed;
        if (failed) {
            e->why = why;
        }
    }
    pthread_cond_broadcast(&e->changed);
    pthread_mutex_unlock(&e->lock);
}

/* Waits until the stream has reached `record`. False on a timeout (timeout_s < 0: no limit). */
static bool await_record(struct cpu_event *e, uint64_t record, double timeout_s)
{
    double end_s = timeout_s >= 0 ? dt_now_s() + timeout_s : 0;
    struct timespec until = dt_timespec(end_s);
    while (e->done < record) {
        if (timeout_s < 0) {
            pthread_cond_wait(&e->changed, &e->lock);
        } else if (pthread_cond_timedwait(&e->changed, &e->lock, &until) == ETIMEDOUT &&
                   dt_now_s() >= end_s) { /* by CLOCK_MONOTONIC, so that setting the wall clock
                                           * changes no timeout */
            return e->done >= record;
        }
    }
    return true;
}

static void run_wait(struct cpu_stream *s, struct cpu_event *e, uint64_t record)
{
    pthread_mutex_lock(&e->lock);
    if (e->done < record) {
        double begin_s = dt_now_s();
        await_record(e, record, -1);
        dt_stream_add_wait(&s->base, dt_now_s() - begin_s);
    }
    bool failed = e->failed;
    struct dt_error why = e->why;
    pthread_mutex_unlock(&e->lock);
    if (failed) {
        cpu_fail(&s->base, &why);
    }
}

static void run_entry(struct cpu_stream *s, struct entry *x)
{
    switch (x->kind) {
    case ENTRY_CALL:
        run_call(s, x->fn, x->args);
        break;
    case ENTRY_RECORD:
        run_record(s, x->event, x->record);
        break;
    case ENTRY_WAIT:
        run_wait(s, x->event, x->record);
        break;
    }
}

static void *stream_main(void *arg)
{
    struct cpu_stream *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->taken == s->put && !s->closing) {
            pthread_cond_wait(&s->changed, &s->lock);
        }
        if (s->taken == s->put) {
            break;
        }
        pthread_mutex_unlock(&s->lock);
        run_entry(s, &s->queue[s->taken % QUEUE_LENGTH]);
        pthread_mutex_lock(&s->lock);
        s->taken++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static void put_entry(struct cpu_stream *s, const struct entry *head, const void *args, size_t args_bytes)
{
    pthread_mutex_lock(&s->lock);
    while (s->put - s->taken == QUEUE_LENGTH) {
        pthread_cond_wait(&s->changed, &s->lock);
    }
    struct entry *x = &s->queue[s->put % QUEUE_LENGTH];
    x->kind = head->kind;
    x->fn = head->fn;
    x->event = head->event;
    x->record = head->record;
    if (args_bytes > 0) {
        memcpy(x->args, args, args_bytes);
    }
    s->put++;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- streams ---- */

static int cpu_stream_open(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err)
{
    (void)priority;
    struct cpu_stream *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return dt_fail_errno(err, "stream");
    }
    s->base.device = d;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    if (d->options.streams == DT_STREAMS_THREAD) {
        s->queue = aligned_alloc(64, round_up(QUEUE_LENGTH * sizeof(struct entry), 64));
        if (s->queue == NULL || pthread_create(&s->thread, NULL, stream_main, s) != 0) {
            free(s->queue);
            free(s);
            return dt_fail(err, DT_NO_MEMORY, "stream: cannot start its thread");
        }
        s->threaded = true;
    }
    *out = &s->base;
    return 0;
}

static void cpu_stream_close(struct dt_stream *base)
{
    struct cpu_stream *s = (struct cpu_stream *)base;
    if (s->threaded) {
        pthread_mutex_lock(&s->lock);
        s->closing = true;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->queue);
    free(s);
}

static void *cpu_native(struct dt_stream *s)
{
    (void)s;
    return NULL;
}

static void cpu_call(struct dt_stream *base, dt_stream_fn *fn, const void *args, size_t args_bytes)
{
    struct cpu_stream *s = (struct cpu_stream *)base;
    assert(args_bytes <= DT_CALL_ARGS_MAX);
    if (s->threaded) {
        put_entry(s, &(struct entry){.kind = ENTRY_CALL, .fn = fn}, args, args_bytes);
    } else {
        _Alignas(16) unsigned char own[DT_CALL_ARGS_MAX];
        if (args_bytes > 0) {
            memcpy(own, args, args_bytes);
        }
        run_call(s, fn, own);
    }
}

struct copy_args {
    void *dst;
    const void *src;
    size_t size_bytes;
};

static int run_copy(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    const struct copy_args *c = args;
    if (c->size_bytes > 0) {
        memmove(c->dst, c->src, c->size_bytes);
    }
    return 0;
}

static void cpu_copy(struct dt_stream *s, void *dst, const void *src, size_t size_bytes)
{
    struct copy_args c = {dst, src, size_bytes};
    cpu_call(s, run_copy, &c, sizeof c);
}

/* ---- events ---- */

static int cpu_event_open(struct dt_device *d, struct dt_event **out, struct dt_error *err)
{
    struct cpu_event *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return dt_fail_errno(err, "event");
    }
    e->base.device = d;
    pthread_mutex_init(&e->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&e->changed, &attr);
    pthread_condattr_destroy(&attr);
    *out = &e->base;
    return 0;
}

/* Waits for the last record, because a stream may still use the event until then. */
static void cpu_event_close(struct dt_event *base)
{
    struct cpu_event *e = (struct cpu_event *)base;
    pthread_mutex_lock(&e->lock);
    await_record(e, e->recorded, -1);
    pthread_mutex_unlock(&e->lock);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

static void cpu_record(struct dt_event *base, struct dt_stream *stream)
{
    struct cpu_event *e = (struct cpu_event *)base;
    struct cpu_stream *s = (struct cpu_stream *)stream;
    pthread_mutex_lock(&e->lock);
    uint64_t record = ++e->recorded;
    pthread_mutex_unlock(&e->lock);
    if (s->threaded) {
        put_entry(s, &(struct entry){.kind = ENTRY_RECORD, .event = e, .record = record}, NULL, 0);
    } else {
        run_record(s, e, record);
    }
}

static void cpu_wait(struct dt_event *base, struct dt_stream *stream)
{
    struct cpu_event *e = (struct cpu_event *)base;
    struct cpu_stream *s = (struct cpu_stream *)stream;
    pthread_mutex_lock(&e->lock);
    uint64_t record = e->recorded;
    pthread_mutex_unlock(&e->lock);
    if (record == 0) {
        return;
    }
    if (s->threaded) {
        put_entry(s, &(struct entry){.kind = ENTRY_WAIT, .event = e, .record = record}, NULL, 0);
    } else {
        run_wait(s, e, record);
    }
}

static int cpu_sync(struct dt_event *base, double timeout_s, struct dt_error *err)
{
    struct cpu_event *e = (struct cpu_event *)base;
    int rc = 0;
    pthread_mutex_lock(&e->lock);
    if (!await_record(e, e->recorded, timeout_s)) {
        rc = dt_fail(err, DT_TIMEOUT, "device: work is not done after %.3g s", timeout_s);
    } else if (e->failed) {
        if (err != NULL) {
            *err = e->why;
        }
        rc = -1;
    }
    pthread_mutex_unlock(&e->lock);
    return rc;
}

/* ---- the device ---- */

struct dt_pool *dt_cpu_pool(struct dt_stream *s)
{
    return ((struct cpu_device *)s->device->impl)->pool;
}

static int core_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1;
    }
    return CPU_COUNT(&set);
}

static int choose_streams(struct dt_device_options *o, struct dt_error *err)
{
    if (o->streams != DT_STREAMS_AUTO) {
        return 0;
    }
    const char *wanted = getenv("DTRUN_STREAMS");
    if (wanted == NULL || *wanted == '\0') {
        o->streams = core_count() > o->local_rank_count * o->thread_count ? DT_STREAMS_THREAD : DT_STREAMS_INLINE;
    } else if (strcmp(wanted, "thread") == 0) {
        o->streams = DT_STREAMS_THREAD;
    } else if (strcmp(wanted, "inline") == 0) {
        o->streams = DT_STREAMS_INLINE;
    } else {
        return dt_fail(err, DT_INVALID, "DTRUN_STREAMS=%s: not known; use thread or inline", wanted);
    }
    return 0;
}

static int cpu_open(struct dt_device *d, const struct dt_device_options *options, struct dt_error *err)
{
    struct dt_device_options o = *options;
    o.thread_count = o.thread_count > 0 ? o.thread_count : 1;
    o.local_rank_count = o.local_rank_count > 0 ? o.local_rank_count : 1;
    if (choose_streams(&o, err) != 0) {
        return -1;
    }
    struct cpu_device *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return dt_fail_errno(err, "device cpu");
    }
    if (dt_pool_open(&c->pool, o.thread_count, err) != 0) {
        free(c);
        return -1;
    }
    d->options = o;
    d->impl = c;
    return 0;
}

static void cpu_close(struct dt_device *d)
{
    struct cpu_device *c = d->impl;
    dt_pool_close(c->pool);
    free(c);
}

const struct dt_device_ops dt_cpu_device_ops = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .stream_open = cpu_stream_open,
    .stream_close = cpu_stream_close,
    .event_open = cpu_event_open,
    .event_close = cpu_event_close,
    .native = cpu_native,
    .copy = cpu_copy,
    .call = cpu_call,
    .fail = cpu_fail,
    .failed = cpu_failed,
    .record = cpu_record,
    .wait = cpu_wait,
    .sync = cpu_sync,
    .sharing = &dt_cpu_sharing,
};
