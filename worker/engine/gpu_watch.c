/* The thread and who watches share one struct; the last of them frees it, so a thread that hangs
 * in the driver is left behind. */
#include "worker/engine/gpu_watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/gpu/nvml.h"
#include "base/text.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE_S 1.0
#define THROTTLE_S 5.0
#define THROTTLE_AGAIN_S 600.0
#define START_S 2.0   /* NVML takes its time to start, and a step may fail before */
#define EXPLAIN_S 0.3 /* the driver's word may come a little after the error that a call gave */
#define RECENT_S 60.0

struct throttle {
    double since_s, said_s; /* 0: not now; never */
};

struct gpu_watch {
    pthread_mutex_t lock;
    pthread_cond_t told;
    int users;
    bool stop;
    struct dt_page *page;      /* null: closed */
    struct dt_stream *compute; /* null: closed */
    char bus[32], uuid[64], name[160], serial[32];
    bool sampled, lost;
    struct gpu_sample sample;
    int xid; /* the worst so far: one that ends the GPU before others, else the latest; -1: none */
    double xid_s;
};

static void leave(struct gpu_watch *w)
{
    bool last = --w->users == 0;
    (void)pthread_cond_broadcast(&w->told);
    (void)pthread_mutex_unlock(&w->lock);
    if (last) {
        (void)pthread_cond_destroy(&w->told);
        (void)pthread_mutex_destroy(&w->lock);
        free(w);
    }
}

/* ---- the thread ---- */

static double known(int64_t value, double unit)
{
    return value < 0 ? -1 : (double)value * unit;
}

/* Our own number must be among them: of a container the driver may give other ones. */
static double others(struct dt_nvml *n, struct dt_nvml_gpu *gpu)
{
    enum { ROOM = 64 };
    struct dt_nvml_process users[ROOM];
    double bytes = 0;
    bool own = false;
    int count = dt_nvml_processes(n, gpu, users, ROOM);
    for (int i = 0; i < count && i < ROOM; i++) {
        own = own || users[i].pid == getpid();
        bytes += users[i].pid != getpid() && users[i].bytes > 0 ? (double)users[i].bytes : 0;
    }
    return own ? bytes : -1;
}

static struct gpu_sample take_sample(struct gpu_watch *w, struct dt_nvml *n, struct dt_nvml_gpu *gpu)
{
    struct gpu_sample s = {.busy = known(dt_nvml_value(n, gpu, DT_NVML_BUSY), 0.01),
                           .memory_bytes = known(dt_nvml_value(n, gpu, DT_NVML_MEMORY_USED), 1),
                           .memory_total_bytes = known(dt_nvml_value(n, gpu, DT_NVML_MEMORY_TOTAL), 1),
                           .others_bytes = others(n, gpu),
                           .clock_mhz = known(dt_nvml_value(n, gpu, DT_NVML_CLOCK), 1),
                           .clock_max_mhz = known(dt_nvml_value(n, gpu, DT_NVML_CLOCK_MAX), 1),
                           .temperature = known(dt_nvml_value(n, gpu, DT_NVML_TEMPERATURE), 1),
                           .power_w = known(dt_nvml_value(n, gpu, DT_NVML_POWER), 1e-3),
                           .throttle = dt_nvml_value(n, gpu, DT_NVML_THROTTLE)};
    (void)pthread_mutex_lock(&w->lock);
    w->sample = s;
    w->sampled = true;
    (void)pthread_cond_broadcast(&w->told);
    if (w->page != NULL) {
        struct dt_page_gpu *p = &w->page->gpu;
        atomic_store(&p->busy, s.busy);
        atomic_store(&p->memory_bytes, s.memory_bytes);
        atomic_store(&p->memory_total_bytes, s.memory_total_bytes);
        atomic_store(&p->clock_mhz, s.clock_mhz);
        atomic_store(&p->clock_max_mhz, s.clock_max_mhz);
        atomic_store(&p->temperature, s.temperature);
        atomic_store(&p->power_w, s.power_w);
        atomic_store(&p->throttle, s.throttle);
        (void)snprintf(p->bus, sizeof p->bus, "%s", w->bus);
    }
    (void)pthread_mutex_unlock(&w->lock);
    return s;
}

/* A GPU that heat or lack of power holds back sets the pace for all ranks: said when it lasts,
 * and not more often than now and then. */
static void tell_throttle(const struct gpu_watch *w, const struct gpu_sample *s, struct throttle *t)
{
    char why[160];
    double now_s = dt_now_s();
    if (dt_nvml_throttle_text(s->throttle, true, why, sizeof why)[0] == '\0') {
        t->since_s = 0;
        return;
    }
    t->since_s = t->since_s > 0 ? t->since_s : now_s;
    if (now_s - t->since_s >= THROTTLE_S && (t->said_s == 0 || now_s - t->said_s >= THROTTLE_AGAIN_S)) {
        t->said_s = now_s;
        dt_log(DT_LOG_WARN, "gpu", "%s: slowed down by %s for %.0f s: %.0f of %.0f MHz, %.0f C", w->name, why,
               now_s - t->since_s, s->clock_mhz, s->clock_max_mhz, s->temperature);
    }
}

static void describe(int xid, char *out, size_t out_bytes)
{
    const char *text = xid == 0 ? "double-bit error of memory (ECC)" : dt_nvml_xid_text(xid);
    if (xid == 0) {
        (void)snprintf(out, out_bytes, "%s", text);
    } else {
        (void)snprintf(out, out_bytes, "Xid %d%s%s%s", xid, text != NULL ? " (" : "", text != NULL ? text : "",
                       text != NULL ? ")" : "");
    }
}

/* Nothing that this rank waits for on its GPU comes any more. words: what of the driver's is in
 * `what`. The lock is held. */
static void end(const struct gpu_watch *w, const char *what, const char *advice, unsigned words)
{
    struct dt_error why;
    if (w->compute != NULL) {
        (void)dt_fail(&why, DT_IO, "%s: %s%s", w->name, what, advice);
        why.device = DT_DEVICE_FAILED | words;
        dt_stream_fail_with(w->compute, &why);
    }
}

/* Of a GPU that MIG cut, what hit a neighbour is none of ours. An error of memory whose part is
 * not said may be a neighbour's: if ours used it, an Xid tells. */
static void take_event(struct gpu_watch *w, const struct dt_nvml_event *e, enum dt_nvml_whose whose)
{
    char what[128];
    bool ends = e->xid == 0 ? whose == DT_NVML_OURS : dt_nvml_xid_ends_gpu(e->xid);
    if (whose == DT_NVML_OTHERS) {
        return;
    }
    describe(e->xid, what, sizeof what);
    dt_log(DT_LOG_WARN, "gpu", "%s: %s", w->name, what);
    (void)pthread_mutex_lock(&w->lock);
    if (ends || w->xid <= 0 || !dt_nvml_xid_ends_gpu(w->xid)) {
        w->xid = e->xid;
        w->xid_s = dt_now_s();
    }
    if (w->page != NULL) {
        atomic_store(&w->page->gpu.xid, e->xid == 0 ? 48 : e->xid); /* that is its number */
    }
    if (ends) {
        end(w, what, "; the host needs a look: nvidia-smi, dmesg", DT_DEVICE_DRIVER);
    }
    (void)pthread_cond_broadcast(&w->told);
    (void)pthread_mutex_unlock(&w->lock);
}

/* A GPU may be lost without a word of the driver. True: it is. */
static bool is_lost(struct gpu_watch *w, struct dt_nvml *n, struct dt_nvml_gpu *gpu)
{
    struct dt_error err;
    if (dt_nvml_health(n, gpu, &err) == 0) {
        return false;
    }
    const char *cause = strchr(err.text, ':');
    (void)pthread_mutex_lock(&w->lock);
    w->lost = true;
    end(w, cause != NULL ? cause + 2 : err.text, "", 0);
    (void)pthread_mutex_unlock(&w->lock);
    return true;
}

static bool stopped(struct gpu_watch *w)
{
    (void)pthread_mutex_lock(&w->lock);
    bool stop = w->stop;
    (void)pthread_mutex_unlock(&w->lock);
    return stop;
}

/* Where the driver tells of no errors, the time until the next sample passes here. False:
 * closed. */
static bool pause_for(struct gpu_watch *w, double seconds)
{
    struct timespec until = dt_timespec(dt_now_s() + seconds);
    (void)pthread_mutex_lock(&w->lock);
    while (!w->stop && pthread_cond_timedwait(&w->told, &w->lock, &until) != ETIMEDOUT) {
    }
    bool stop = w->stop;
    (void)pthread_mutex_unlock(&w->lock);
    return !stop;
}

/* The part of a GPU that MIG cut, or the whole one. Errors are told of whole ones only. */
static struct dt_nvml_gpu *find(struct dt_nvml *n, const struct gpu_watch *w, struct dt_nvml_gpu **whole)
{
    char id[72];
    struct dt_error err;
    (void)snprintf(id, sizeof id, "MIG-%s", w->uuid);
    *whole = dt_nvml_find(n, w->bus, &err);
    struct dt_nvml_gpu *part = dt_nvml_find(n, id, &err);
    return part != NULL ? part : *whole;
}

static void *watch(void *argument)
{
    struct gpu_watch *w = argument;
    struct dt_nvml *n = NULL;
    struct dt_nvml_gpu *gpu = NULL, *whole = NULL;
    struct dt_error err;
    if (dt_nvml_open(&n, &err) == 0) {
        gpu = find(n, w, &whole);
    }
    char serial[32] = "";
    if (whole != NULL) {
        (void)dt_nvml_serial(n, whole, serial, sizeof serial);
    }
    (void)pthread_mutex_lock(&w->lock);
    memcpy(w->serial, serial, sizeof w->serial);
    (void)pthread_mutex_unlock(&w->lock);
    bool events = whole != NULL && dt_nvml_watch(n, &whole, 1, &err) == 0;
    struct throttle throttle = {0, 0};
    double next_s = 0;
    while (gpu != NULL && !stopped(w)) {
        struct dt_nvml_event e;
        double now_s = dt_now_s();
        if (now_s >= next_s) {
            if (is_lost(w, n, gpu)) {
                break;
            }
            struct gpu_sample s = take_sample(w, n, gpu);
            tell_throttle(w, &s, &throttle);
            next_s = now_s + SAMPLE_S;
        }
        double left_s = next_s - dt_now_s() > 0.01 ? next_s - dt_now_s() : 0.01;
        /* short waits: whoever closes has not to wait */
        int rc = events ? dt_nvml_wait(n, left_s < 0.1 ? left_s : 0.1, &e) : 0;
        if (rc > 0) {
            take_event(w, &e, dt_nvml_event_whose(n, gpu, &e));
        } else if (rc < 0) { /* no more of them; or the GPU is lost: that is asked at once */
            events = false;
            next_s = 0;
            continue;
        }
        if (!events && !pause_for(w, left_s)) {
            break;
        }
    }
    dt_nvml_close(n);
    (void)pthread_mutex_lock(&w->lock);
    leave(w);
    return NULL;
}

/* ---- here ---- */

struct gpu_watch *gpu_watch_open(struct dt_device *device, struct dt_page *page, struct dt_stream *compute)
{
    struct dt_device_place place;
    pthread_t thread;
    pthread_condattr_t clock;
    if (!dt_device_place(device->ops->name, device->options.index, &place)) {
        return NULL;
    }
    struct gpu_watch *w = dt_alloc(sizeof *w);
    w->page = page;
    w->compute = compute;
    w->users = 2;
    w->xid = -1;
    (void)snprintf(w->bus, sizeof w->bus, "%s", place.bus);
    (void)snprintf(w->uuid, sizeof w->uuid, "%s", place.uuid);
    (void)snprintf(w->name, sizeof w->name, "%s", place.name);
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_condattr_init(&clock);
    (void)pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&w->told, &clock);
    (void)pthread_condattr_destroy(&clock);
    if (pthread_create(&thread, NULL, watch, w) != 0) {
        w->users = 1;
        gpu_watch_close(w);
        return NULL;
    }
    (void)pthread_detach(thread);
    return w;
}

bool gpu_watch_sample(struct gpu_watch *w, struct gpu_sample *out)
{
    if (w == NULL) {
        return false;
    }
    (void)pthread_mutex_lock(&w->lock);
    bool there = w->sampled;
    *out = w->sample;
    (void)pthread_mutex_unlock(&w->lock);
    return there;
}

/* Waits for an error that the thread hears of, or for its first sample where that is enough:
 * until the time is over or the thread has left. Under the lock. */
static void wait_for_word(struct gpu_watch *w, bool sample_is_enough, double seconds)
{
    struct timespec until = dt_timespec(dt_now_s() + seconds);
    while (!w->lost && w->xid < 0 && !(sample_is_enough && w->sampled) && w->users == 2 &&
           pthread_cond_timedwait(&w->told, &w->lock, &until) != ETIMEDOUT) {
    }
}

void gpu_watch_explain(struct gpu_watch *w, struct dt_error *err, bool patient)
{
    char what[128], serial[32];
    if (w == NULL || err->status != DT_IO || (err->device & DT_DEVICE_FAILED) == 0) {
        return;
    }
    bool said = (err->device & DT_DEVICE_DRIVER) != 0, numbered = (err->device & DT_DEVICE_SERIAL) != 0;
    (void)pthread_mutex_lock(&w->lock);
    if (patient && !said) {
        wait_for_word(w, true, START_S);
        wait_for_word(w, false, EXPLAIN_S);
    }
    bool recent = !said && w->xid >= 0 && dt_now_s() - w->xid_s < RECENT_S;
    describe(w->xid, what, sizeof what);
    memcpy(serial, w->serial, sizeof serial);
    (void)pthread_mutex_unlock(&w->lock);
    numbered = numbered || serial[0] == '\0';
    size_t size = strlen(err->text);
    (void)snprintf(err->text + size, sizeof err->text - size, "%s%s%s%s", numbered ? "" : "; serial number ",
                   numbered ? "" : serial, recent ? "; the driver says: " : "", recent ? what : "");
    err->device |= DT_DEVICE_SERIAL | (recent ? DT_DEVICE_DRIVER : 0);
}

void gpu_watch_close(struct gpu_watch *w)
{
    if (w == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&w->lock);
    w->stop = true;
    w->page = NULL;
    w->compute = NULL;
    (void)pthread_cond_broadcast(&w->told);
    leave(w);
}
