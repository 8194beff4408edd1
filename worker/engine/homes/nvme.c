/* Files on disks: one of each array and rank in each folder of offload.nvme_path. Where the device
 * computes in the host's memory, blocks go straight to the room, by two threads of this home; beside a
 * device with memory of its own they go through pinned memory of the room's size, by two streams of
 * the device. */
#include "worker/engine/homes/transfer.h"
#include "worker/engine/homes/windows.h"

#include "base/text.h"
#include "kernels/simulated.h"

#include <stdlib.h>
#include <string.h>

struct nvme {
    struct striped files;
    struct transfer *reads, *writes;
    struct dt_device threads; /* its streams are threads whatever those of the device are */
    bool own_threads;
    bool simulated; /* the device, whose streams run nothing */
    struct dt_stream *in, *out;
    char *staging; /* null: the room is the host's memory */
    struct windows *windows;
};

static size_t stripe_bytes(const struct home *h)
{
    return (h->settings->portion_bytes + TRANSFER_PAGE_BYTES - 1) / TRANSFER_PAGE_BYTES * TRANSFER_PAGE_BYTES;
}

static void plan_nvme(struct home *h, struct plan *p, enum plan_purpose purpose, enum plan_memory memory,
                      size_t size_bytes, size_t most_bytes)
{
    const struct job_offload *o = h->settings->job;
    size_t room_bytes = windows_room_bytes(h->settings, size_bytes, most_bytes);
    h->size_bytes = size_bytes;
    h->most_bytes = most_bytes;
    h->piece = plan_add(p, purpose, memory, room_bytes);
    h->host_piece = plan_add(p, PLAN_STAGING, PLAN_PINNED, h->settings->own_memory ? room_bytes : 0);
    h->what = plan_purpose_name(purpose);
    p->moved_bytes += 2.0 * (double)size_bytes;
    for (int i = 0; i < o->nvme_path.count; i++) {
        p->file_bytes += striped_share(o, i, stripe_bytes(h), size_bytes);
    }
}

struct move {
    struct nvme *nvme;
    char *memory;
    size_t at, size_bytes;
    bool write;
};

static int run_move(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    const struct move *m = args;
    return transfer_run(m->write ? m->nvme->writes : m->nvme->reads, &m->nvme->files, m->write, m->memory, m->at,
                        m->size_bytes, err);
}

/* Enqueues a transfer between memory and files. */
static void enqueue_move(struct nvme *x, struct dt_stream *s, const struct move *m)
{
    if (x->simulated) {
        dt_simulated_move(s, m->size_bytes);
    } else {
        dt_stream_call(s, run_move, m, sizeof *m);
    }
}

static void read_in(void *context, struct dt_stream *s, char *place, size_t offset, size_t at, size_t size_bytes)
{
    struct nvme *x = context;
    struct move m = {x, x->staging != NULL ? x->staging + offset : place, at, size_bytes, false};
    enqueue_move(x, s, &m);
    if (x->staging != NULL) {
        dt_stream_copy(s, place, m.memory, size_bytes);
    }
}

static void write_out(void *context, struct dt_stream *s, const char *place, size_t offset, size_t at,
                      size_t size_bytes)
{
    struct nvme *x = context;
    struct move m = {x, x->staging != NULL ? x->staging + offset : (char *)place, at, size_bytes, true};
    if (x->staging != NULL) {
        dt_stream_copy(s, m.memory, place, size_bytes);
    }
    enqueue_move(x, s, &m);
}

static int open_nvme(struct home *h, struct world *w, const struct plan *p, struct dt_error *err)
{
    if (h->size_bytes == 0) {
        return 0;
    }
    struct nvme *x = h->state = dt_alloc(sizeof *x);
    x->staging = plan_at(p, h->host_piece);
    if (w->device->host_memory) {
        if (dt_device_open(&x->threads, "cpu", &(struct dt_device_options){.streams = DT_STREAMS_THREAD}, err) != 0) {
            return -1;
        }
        x->own_threads = true;
    }
    x->simulated = strcmp(w->device->ops->name, "simulated") == 0;
    if (!x->simulated &&
        (striped_open(&x->files, h->settings->job, h->what, stripe_bytes(h), h->size_bytes, err) != 0 ||
         transfer_open(&x->reads, h->settings->job, err) != 0 ||
         transfer_open(&x->writes, h->settings->job, err) != 0)) {
        return -1;
    }
    if (x->own_threads
            ? dt_stream_open(&x->threads, 0, &x->in, err) != 0 || dt_stream_open(&x->threads, 0, &x->out, err) != 0
            : world_open_homes(w, err) != 0) {
        return -1;
    }
    x->in = x->own_threads ? x->in : w->homes_in;
    x->out = x->own_threads ? x->out : w->homes_out;
    return windows_open(&x->windows, h, w, plan_at(p, h->piece), x->in, x->out,
                        &(struct windows_rest){x, read_in, write_out}, err);
}

static void *bring(struct home *h, size_t at, size_t size_bytes, enum home_use use, struct dt_stream *user)
{
    struct nvme *x = h->state;
    return windows_bring(x != NULL ? x->windows : NULL, at, size_bytes, use, user);
}

static void back(struct home *h, size_t at, size_t size_bytes, struct dt_stream *after)
{
    struct nvme *x = h->state;
    windows_back(x != NULL ? x->windows : NULL, at, size_bytes, after);
}

static void ahead(struct home *h, size_t at, size_t size_bytes)
{
    struct nvme *x = h->state;
    windows_ahead(x != NULL ? x->windows : NULL, at, size_bytes);
}

static void *empty(struct home *h, struct dt_stream *user)
{
    struct nvme *x = h->state;
    return x != NULL ? windows_empty(x->windows, user) : NULL;
}

static void close_nvme(struct home *h)
{
    struct nvme *x = h->state;
    if (x != NULL) {
        windows_close(x->windows); /* waits for what is under way */
        if (x->own_threads) {
            dt_stream_close(x->in);
            dt_stream_close(x->out);
        }
        transfer_close(x->reads);
        transfer_close(x->writes);
        striped_close(&x->files);
        if (x->own_threads) {
            dt_device_close(&x->threads);
        }
        free(x);
    }
    h->state = NULL;
}

const struct home_ops home_nvme = {.name = "nvme",
                                   .portion = HOME_PORTION,
                                   .plan = plan_nvme,
                                   .open = open_nvme,
                                   .bring = bring,
                                   .back = back,
                                   .ahead = ahead,
                                   .empty = empty,
                                   .close = close_nvme};
