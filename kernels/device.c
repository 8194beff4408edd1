/* Front of the devices: the table of names, and calls that hand over to the backend's ops. */
#include "kernels/device.h"

#include "kernels/cpu/cpu.h"
#ifdef DT_CUDA
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/timer.h"
#endif
#include "base/text.h"
#include "kernels/kernels.h"
#include "kernels/timer.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(DT_SANITIZED)
#define GUARD_ALWAYS true
#else
#define GUARD_ALWAYS false
#endif

struct device_row {
    const char *name;
    const struct dt_device_ops *ops;
    const struct dt_kernels *(*kernels)(struct dt_error *err);
    enum dt_dtype real;
    bool host_memory;
    const struct dt_timer_ops *timer;
};

static const struct dt_kernels *twin32(struct dt_error *err)
{
    (void)err;
    return dt_kernels_twin(DT_F32);
}

static const struct dt_kernels *twin64(struct dt_error *err)
{
    (void)err;
    return dt_kernels_twin(DT_F64);
}

#ifdef DT_CUDA
static const struct dt_kernels *cuda(struct dt_error *err)
{
    (void)err;
    return &dt_kernels_cuda;
}
#endif

static const struct device_row rows[] = {
    {"cpu", &dt_cpu_device_ops, dt_kernels_cpu, DT_F32, true, NULL},
#ifdef DT_CUDA
    {"cuda", &dt_cuda_device_ops, cuda, DT_F32, false, &dt_cuda_timer},
#endif
    {"twin32", &dt_cpu_device_ops, twin32, DT_F32, true, NULL},
    {"twin64", &dt_cpu_device_ops, twin64, DT_F64, true, NULL},
    {"apart", &dt_cpu_device_ops, dt_kernels_cpu, DT_F32, false, NULL},
};

static const struct device_row *find_row(const char *name, struct dt_error *err)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            return &rows[i];
        }
    }
    (void)(strcmp(name, "cuda") == 0
               ? dt_fail(err, DT_INVALID,
                         "device cuda: this build has none; build it where nvcc is, or with make CUDA=PREFIX")
               : dt_fail(err, DT_INVALID, "device %s: unknown; devices are cpu, cuda, twin32, twin64, apart", name));
    return NULL;
}

bool dt_device_known(const char *name)
{
    return find_row(name, NULL) != NULL;
}

int dt_device_count(const char *name, int *out, struct dt_error *err)
{
    const struct device_row *row = find_row(name, err);
    *out = 1;
    return row == NULL ? -1 : row->ops->count != NULL ? row->ops->count(out, err) : 0;
}

bool dt_device_place(const char *name, int index, struct dt_device_place *out)
{
    const struct device_row *row = find_row(name, NULL);
    return row != NULL && row->ops->place != NULL && row->ops->place(index, out);
}

const struct dt_timer_ops *dt_device_timer(const struct dt_device *d)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].ops == d->ops) {
            return rows[i].timer;
        }
    }
    return NULL;
}

bool dt_device_memory(struct dt_device *d, size_t *free_bytes, size_t *total_bytes)
{
    return d->ops->memory != NULL && d->ops->memory(d, free_bytes, total_bytes);
}

double dt_device_peak(struct dt_device *d, enum dt_dtype type)
{
    return d->ops->peak != NULL ? d->ops->peak(d, type) : 0;
}

int dt_device_open(struct dt_device *d, const char *name, const struct dt_device_options *options, struct dt_error *err)
{
    const struct dt_device_options none = {0};
    const struct device_row *row = find_row(name, err);
    if (row == NULL) {
        return -1;
    }
    const struct dt_kernels *kernels = row->kernels(err);
    if (kernels == NULL) {
        return -1;
    }
    struct dt_device opened = {.ops = row->ops, .kernels = kernels, .real = row->real, .host_memory = row->host_memory};
    opened.options = options != NULL ? *options : none;
    *d = opened;
    if (d->ops->open(d, &opened.options, err) != 0) {
        memset(d, 0, sizeof *d);
        return -1;
    }
    return 0;
}

void dt_device_close(struct dt_device *d)
{
    if (d->ops != NULL) {
        d->ops->close(d);
    }
    memset(d, 0, sizeof *d);
}

void dt_device_use(struct dt_device *d)
{
    if (d->ops->use != NULL) {
        d->ops->use(d);
    }
}

int dt_device_alloc(struct dt_device *d, enum dt_memory kind, size_t size_bytes, void **out, struct dt_error *err)
{
    return d->ops->alloc(d, kind, size_bytes, out, err);
}

/* What a handle begins with; what the device itself says of the memory follows. */
struct head {
    pid_t process;
    void *base;
    size_t size_bytes;
};
_Static_assert(sizeof(struct head) + DT_DEVICE_OWN_BYTES <= DT_DEVICE_HANDLE_BYTES, "a handle fits");

/* Memory of this process that was exported: ranks that are its threads are given an address of
 * this list only, whatever a handle says. */
struct exported {
    void *base;
    size_t size_bytes;
    struct exported *next;
};

static pthread_mutex_t exports_lock = PTHREAD_MUTEX_INITIALIZER;
static struct exported *exports; /* under the lock */

/* Where memory at `base` is, or would be added. Under the lock. */
static struct exported **exports_find(const void *base)
{
    struct exported **at = &exports;
    while (*at != NULL && (*at)->base != base) {
        at = &(*at)->next;
    }
    return at;
}

static void exports_add(void *base, size_t size_bytes)
{
    struct exported *x = dt_alloc(sizeof *x);
    *x = (struct exported){base, size_bytes, NULL};
    (void)pthread_mutex_lock(&exports_lock);
    *exports_find(NULL) = x; /* none is at null: the end */
    (void)pthread_mutex_unlock(&exports_lock);
}

static bool exports_have(const void *base, size_t size_bytes)
{
    (void)pthread_mutex_lock(&exports_lock);
    const struct exported *x = *exports_find(base);
    bool have = x != NULL && x->size_bytes == size_bytes;
    (void)pthread_mutex_unlock(&exports_lock);
    return have;
}

static void exports_remove(const void *base)
{
    (void)pthread_mutex_lock(&exports_lock);
    struct exported **at = exports_find(base), *x = *at;
    if (x != NULL) {
        *at = x->next;
        free(x);
    }
    (void)pthread_mutex_unlock(&exports_lock);
}

void dt_device_free(struct dt_device *d, enum dt_memory kind, void *p, size_t size_bytes)
{
    if (p != NULL) {
        exports_remove(p);
        d->ops->free(d, kind, p, size_bytes);
    }
}

int dt_stream_open(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err)
{
    return d->ops->stream_open(d, priority, out, err);
}

void dt_stream_close(struct dt_stream *s)
{
    if (s != NULL) {
        s->device->ops->stream_close(s);
    }
}

void *dt_stream_native(struct dt_stream *s)
{
    return s->device->ops->native(s);
}

void dt_stream_copy(struct dt_stream *s, void *dst, const void *src, size_t size_bytes)
{
    s->device->ops->copy(s, dst, src, size_bytes);
}

void dt_stream_call(struct dt_stream *s, dt_stream_fn *fn, const void *args, size_t args_bytes)
{
    s->device->ops->call(s, fn, args, args_bytes);
}

void dt_stream_fail(struct dt_stream *s, enum dt_status status, const char *fmt, ...)
{
    struct dt_error why = {0};
    va_list args;
    va_start(args, fmt);
    dt_fail_v(&why, status, fmt, args);
    va_end(args);
    s->device->ops->fail(s, &why);
}

void dt_stream_fail_with(struct dt_stream *s, const struct dt_error *why)
{
    s->device->ops->fail(s, why);
}

double dt_stream_waited_s(const struct dt_stream *s)
{
    double seconds;
    __atomic_load(&s->waited_s, &seconds, __ATOMIC_RELAXED);
    return seconds;
}

void dt_stream_add_wait(struct dt_stream *s, double seconds)
{
    seconds += dt_stream_waited_s(s);
    __atomic_store(&s->waited_s, &seconds, __ATOMIC_RELAXED);
}

bool dt_stream_failed(struct dt_stream *s, struct dt_error *err)
{
    return s->device->ops->failed(s, err);
}

int dt_stream_finish(struct dt_stream *s, double timeout_s, struct dt_error *err)
{
    struct dt_event *e = NULL;
    if (dt_event_open(s->device, &e, err) != 0) {
        return -1;
    }
    dt_event_record(e, s);
    int rc = dt_event_sync(e, timeout_s, err);
    dt_event_close(e);
    return rc;
}

int dt_event_open(struct dt_device *d, struct dt_event **out, struct dt_error *err)
{
    return d->ops->event_open(d, out, err);
}

void dt_event_close(struct dt_event *e)
{
    if (e != NULL) {
        e->device->ops->event_close(e);
    }
}

void dt_event_record(struct dt_event *e, struct dt_stream *s)
{
    s->device->ops->record(e, s);
}

void dt_event_wait(struct dt_event *e, struct dt_stream *s)
{
    s->device->ops->wait(e, s);
}

int dt_event_sync(struct dt_event *e, double timeout_s, struct dt_error *err)
{
    return e->device->ops->sync(e, timeout_s, err);
}

static int no_sharing(const struct dt_device *d, struct dt_error *err)
{
    return dt_fail(err, DT_INVALID, "device %s: its memory cannot be shared between ranks", d->ops->name);
}

int dt_device_export(struct dt_device *d, void *base, size_t size_bytes, char handle[DT_DEVICE_HANDLE_BYTES],
                     struct dt_error *err)
{
    struct head head;
    memset(&head, 0, sizeof head);
    head.process = getpid();
    head.base = base;
    head.size_bytes = size_bytes;
    memset(handle, 0, DT_DEVICE_HANDLE_BYTES);
    memcpy(handle, &head, sizeof head);
    if (d->ops->sharing == NULL) {
        return no_sharing(d, err);
    }
    if (d->ops->sharing->export_memory(d, base, handle + DT_DEVICE_HANDLE_BYTES - DT_DEVICE_OWN_BYTES, err) != 0) {
        return -1;
    }
    exports_add(base, size_bytes);
    return 0;
}

int dt_device_import(struct dt_device *d, const char handle[DT_DEVICE_HANDLE_BYTES], size_t size_bytes, void **out,
                     struct dt_error *err)
{
    struct head head;
    memcpy(&head, handle, sizeof head);
    if (d->ops->sharing == NULL) {
        return no_sharing(d, err);
    }
    if (head.size_bytes != size_bytes || (head.process == getpid() && !exports_have(head.base, size_bytes))) {
        return dt_fail(err, DT_INVALID, "device %s: a handle that names no memory of %zu bytes of another rank",
                       d->ops->name, size_bytes);
    }
    if (head.process == getpid()) {
        *out = head.base;
        return 0;
    }
    return d->ops->sharing->import_memory(d, handle + DT_DEVICE_HANDLE_BYTES - DT_DEVICE_OWN_BYTES, out, err);
}

bool dt_device_has_graphs(const struct dt_device *d)
{
    return d->ops->graphs != NULL;
}

int dt_graph_begin(struct dt_stream *s, struct dt_error *err)
{
    const struct dt_device_graphs *graphs = s->device->ops->graphs;
    return graphs != NULL ? graphs->begin(s, err)
                          : dt_fail(err, DT_NOT_FOUND, "graph: device %s has none", s->device->ops->name);
}

int dt_graph_end(struct dt_stream *s, struct dt_graph **out, struct dt_error *err)
{
    return s->device->ops->graphs->end(s, out, err);
}

void dt_graph_launch(struct dt_graph *g)
{
    g->stream->device->ops->graphs->launch(g);
}

void dt_graph_close(struct dt_graph *g)
{
    if (g != NULL) {
        g->stream->device->ops->graphs->close(g);
    }
}

void dt_device_release(struct dt_device *d, void *imported)
{
    d->ops->sharing->release(d, imported);
}

int dt_device_pin(struct dt_device *d, void *host, size_t size_bytes, struct dt_error *err)
{
    return d->ops->sharing != NULL ? d->ops->sharing->pin(d, host, size_bytes, err) : no_sharing(d, err);
}

void dt_device_unpin(struct dt_device *d, void *host)
{
    d->ops->sharing->unpin(d, host);
}

void dt_stream_write_word(struct dt_stream *s, uint32_t *at, uint32_t value)
{
    s->device->ops->sharing->write_word(s, at, value);
}

void dt_stream_wait_word(struct dt_stream *s, uint32_t *at, uint32_t value)
{
    s->device->ops->sharing->wait_word(s, at, value);
}

struct guarded {
    void *p;
    size_t size_bytes;
};

static int guard_now(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    const struct guarded *g = args;
    memset(g->p, 0xff, g->size_bytes); /* a NaN in every float type */
    return 0;
}

static pthread_once_t guard_asked = PTHREAD_ONCE_INIT;
static bool guard_wanted;

static void ask_for_guard(void)
{
    const char *wanted = getenv("DTRUN_GUARD");
    guard_wanted = GUARD_ALWAYS || (wanted != NULL && strcmp(wanted, "1") == 0);
}

void dt_guard(struct dt_stream *s, void *p, size_t size_bytes)
{
    (void)pthread_once(&guard_asked, ask_for_guard);
    if (!guard_wanted) {
        return;
    }
    struct guarded g = {p, size_bytes};
    if (s != NULL && s->device->ops->guard != NULL) {
        s->device->ops->guard(s, p, size_bytes);
    } else if (s == NULL) {
        guard_now(NULL, &g, NULL);
    } else {
        dt_stream_call(s, guard_now, &g, sizeof g);
    }
}
