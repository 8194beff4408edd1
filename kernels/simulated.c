/* A kernel takes what cost.h counts, at the rates of the GPU's data sheet, times `slowness`, and a copy from or to
 * the host's memory its bytes. Other copies and functions of the host take no time: in a step they are small. */
#include "kernels/simulated.h"

#include "base/text.h"
#include "kernels/cost.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LAUNCH_S 2.0e-6 /* between two kernels of a stream */

struct host_room {
    const char *at;
    size_t size_bytes;
};

struct simulated_device {
    const struct dt_gpu_sheet *gpu;
    double flops_per_s, kernels_s, flops;
    double moved_bytes;
    struct busy { /* when the disks are busy: spans that do not touch, in order */
        double begin_s, end_s;
    } * busy;
    size_t busy_count, busy_room;
    struct host_room *rooms; /* of the host's memory, `room_count` */
    size_t room_count;
};

struct simulated_stream {
    struct dt_stream base;
    double at_s;
};

struct simulated_event {
    struct dt_event base;
    double at_s;
};

/* ---- kernels ---- */

#define KERNEL(name, types) ROW_##name,
enum row {
#include "kernels/rows.def"
#define CONVOLUTION(name) ROW_##name,
#include "kernels/convolutions.def"
    ROW_matmul_epilogue,
    ROW_COUNT
};

/* Measured time over the least time by the data sheet, on an H100 (docs/benchmarks.md, "GPUs"): the clock
 * falls under load, tiles do not fit, sums have an order. Rows that are not here: PASS. */
#define PASS 1.2 /* a copy has 0.89 of the sheet's rate, and a kernel 0.93 of a copy's */
static const double slowness[ROW_COUNT] = {[ROW_matmul] = 1.36,
                                           [ROW_matmul_epilogue] = 2.0,
                                           [ROW_attention] = 3.2,
                                           [ROW_attention_backward] = 4.8,
                                           [ROW_convolution] = 2,
                                           [ROW_convolution_input] = 2,
                                           [ROW_convolution_weights] = 2,
                                           [ROW_column_sum] = 1.2,
                                           [ROW_cross_entropy] = 1.3,
                                           [ROW_batch_norm] = 1.8,
                                           [ROW_batch_norm_backward] = 2.6,
                                           [ROW_batch_moments] = 3.7};

static void take(struct dt_stream *s, enum row row, struct dt_cost cost)
{
    struct simulated_device *d = s->device->impl;
    double slow = slowness[row] > 0 ? slowness[row] : PASS;
    double moves_s = cost.bytes / d->gpu->memory_bytes_per_s * (cost.flops > 0 ? PASS : slow);
    double computes_s = cost.flops / d->flops_per_s * slow;
    double kernel_s = LAUNCH_S + (computes_s > moves_s ? computes_s : moves_s);
    dt_simulated_busy(s, kernel_s);
    d->kernels_s += kernel_s;
    d->flops += cost.flops;
}

#define KERNEL(name, types)                                                                                            \
    static void run_##name(struct dt_stream *s, const struct dt_##name##_args *a)                                      \
    {                                                                                                                  \
        take(s, ROW_##name, dt_cost_##name(a));                                                                        \
    }
#include "kernels/rows.def"

#define OPTIONAL(name, args_of, cost_of)                                                                               \
    static bool run_##name(struct dt_stream *s, const struct args_of *a)                                               \
    {                                                                                                                  \
        take(s, ROW_##name, cost_of(a));                                                                               \
        return true;                                                                                                   \
    }
OPTIONAL(matmul_epilogue, dt_matmul_args, dt_cost_matmul)
#define CONVOLUTION(name) OPTIONAL(name, dt_##name##_args, dt_cost_##name)
#include "kernels/convolutions.def"

static const struct dt_kernels kernels = {.name = "simulated",
#define KERNEL(row, types) .row = run_##row,
#include "kernels/rows.def"
#define CONVOLUTION(row) .row = run_##row,
#include "kernels/convolutions.def"
                                          .matmul_epilogue = run_matmul_epilogue};

/* ---- memory: room in the address space ---- */

static int alloc_room(struct dt_device *d, enum dt_memory kind, size_t size_bytes, void **out, struct dt_error *err)
{
    struct simulated_device *x = d->impl;
    *out = mmap(NULL, size_bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*out == MAP_FAILED) {
        return dt_fail_errno(err, "no room for %zu bytes in the address space", size_bytes);
    }
    if (kind != DT_MEMORY_DEVICE) {
        x->rooms = dt_realloc(x->rooms, (x->room_count + 1) * sizeof *x->rooms);
        x->rooms[x->room_count++] = (struct host_room){*out, size_bytes};
    }
    return 0;
}

static void free_room(struct dt_device *d, enum dt_memory kind, void *p, size_t size_bytes)
{
    (void)d, (void)kind;
    (void)munmap(p, size_bytes + 1);
}

/* ---- streams and events ---- */

static int open_stream(struct dt_device *d, int priority, struct dt_stream **out, struct dt_error *err)
{
    (void)priority, (void)err;
    struct simulated_stream *s = dt_alloc(sizeof *s);
    *s = (struct simulated_stream){.base.device = d};
    *out = &s->base;
    return 0;
}

static void close_stream(struct dt_stream *s)
{
    free(s);
}

static int open_event(struct dt_device *d, struct dt_event **out, struct dt_error *err)
{
    (void)err;
    struct simulated_event *e = dt_alloc(sizeof *e);
    *e = (struct simulated_event){.base.device = d};
    *out = &e->base;
    return 0;
}

static void close_event(struct dt_event *e)
{
    free(e);
}

static void record(struct dt_event *e, struct dt_stream *s)
{
    ((struct simulated_event *)e)->at_s = dt_simulated_s(s);
}

static void await(struct dt_event *e, struct dt_stream *s)
{
    double at_s = ((struct simulated_event *)e)->at_s, late_s = at_s - dt_simulated_s(s);
    dt_simulated_busy(s, late_s > 0 ? late_s : 0);
}

static int sync_event(struct dt_event *e, double timeout_s, struct dt_error *err)
{
    (void)e, (void)timeout_s, (void)err;
    return 0;
}

static void *no_native(struct dt_stream *s)
{
    (void)s;
    return NULL;
}

static bool is_host(const struct simulated_device *d, const char *p)
{
    for (size_t i = 0; i < d->room_count; i++) {
        if (p >= d->rooms[i].at && p < d->rooms[i].at + d->rooms[i].size_bytes) {
            return true;
        }
    }
    return false;
}

static void copy_slowly(struct dt_stream *s, void *dst, const void *src, size_t size_bytes)
{
    const struct simulated_device *d = s->device->impl;
    if (d->gpu->host_bytes_per_s > 0 && is_host(d, dst) != is_host(d, src)) {
        dt_simulated_busy(s, (double)size_bytes / d->gpu->host_bytes_per_s);
    }
}

static void guard_nothing(struct dt_stream *s, void *p, size_t size_bytes)
{
    (void)s, (void)p, (void)size_bytes;
}

static void call_nothing(struct dt_stream *s, dt_stream_fn *fn, const void *args, size_t args_bytes)
{
    (void)s, (void)fn, (void)args, (void)args_bytes;
}

static void fail_nothing(struct dt_stream *s, const struct dt_error *why)
{
    (void)s, (void)why;
}

static bool never_failed(struct dt_stream *s, struct dt_error *err)
{
    (void)s, (void)err;
    return false;
}

static void close_device(struct dt_device *d)
{
    free(((struct simulated_device *)d->impl)->rooms);
    free(((struct simulated_device *)d->impl)->busy);
    free(d->impl);
}

static const struct dt_device_ops ops = {.name = "simulated",
                                         .close = close_device,
                                         .alloc = alloc_room,
                                         .free = free_room,
                                         .stream_open = open_stream,
                                         .stream_close = close_stream,
                                         .event_open = open_event,
                                         .event_close = close_event,
                                         .native = no_native,
                                         .copy = copy_slowly,
                                         .guard = guard_nothing,
                                         .call = call_nothing,
                                         .fail = fail_nothing,
                                         .failed = never_failed,
                                         .record = record,
                                         .wait = await,
                                         .sync = sync_event};

void dt_simulated_open(struct dt_device *d, const struct dt_gpu_sheet *gpu, enum dt_dtype products)
{
    struct simulated_device *s = dt_alloc(sizeof *s);
    *s = (struct simulated_device){.gpu = gpu, .flops_per_s = products == DT_F32 ? gpu->fp32_flops : gpu->bf16_flops};
    *d = (struct dt_device){.ops = &ops, .kernels = &kernels, .real = DT_F32, .impl = s};
}

double dt_simulated_s(const struct dt_stream *s)
{
    return ((const struct simulated_stream *)s)->at_s;
}

void dt_simulated_busy(struct dt_stream *s, double seconds)
{
    ((struct simulated_stream *)s)->at_s += seconds;
}

/* Takes what is free of the disks from a time on, until it is `seconds`; returns when. Streams are not enqueued in the
 * order of their clocks, so spans behind that time may be taken. */
static double take_disks(struct simulated_device *d, double from_s, double seconds)
{
    size_t first = d->busy_count, end;
    while (first > 0 && d->busy[first - 1].end_s >= from_s) {
        first--;
    }
    double at_s = from_s;
    for (end = first; end < d->busy_count && d->busy[end].begin_s <= at_s + seconds; end++) {
        double free_s = d->busy[end].begin_s - at_s;
        seconds -= free_s > 0 ? free_s : 0;
        at_s = d->busy[end].end_s;
    }
    at_s += seconds;
    struct busy whole = {end > first && d->busy[first].begin_s < from_s ? d->busy[first].begin_s : from_s, at_s};
    if (d->busy_count == d->busy_room) {
        d->busy_room = d->busy_room * 2 + 64;
        d->busy = dt_realloc(d->busy, d->busy_room * sizeof *d->busy);
    }
    memmove(&d->busy[first + 1], &d->busy[end], (d->busy_count - end) * sizeof *d->busy);
    d->busy[first] = whole;
    d->busy_count -= end - first;
    d->busy_count++;
    return at_s;
}

void dt_simulated_move(struct dt_stream *s, size_t size_bytes)
{
    struct simulated_device *d = s->device->impl;
    d->moved_bytes += (double)size_bytes;
    if (d->gpu->disk_bytes_per_s > 0) {
        ((struct simulated_stream *)s)->at_s =
            take_disks(d, dt_simulated_s(s), (double)size_bytes / d->gpu->disk_bytes_per_s);
    }
}

double dt_simulated_moved_bytes(const struct dt_device *d)
{
    return ((const struct simulated_device *)d->impl)->moved_bytes;
}

double dt_simulated_kernels_s(const struct dt_device *d)
{
    return ((const struct simulated_device *)d->impl)->kernels_s;
}

double dt_simulated_flops(const struct dt_device *d)
{
    return ((const struct simulated_device *)d->impl)->flops;
}
