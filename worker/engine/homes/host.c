/* The host's memory beside a device that has its own: the array is pinned memory of the plan, and
 * copies between it and the room run on two streams of the device. */
#include "worker/engine/homes/windows.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

struct host {
    char *array;
    struct dt_stream *in, *out; /* the world's */
    struct windows *windows;
};

static void plan_host(struct home *h, struct plan *p, enum plan_purpose purpose, enum plan_memory memory,
                      size_t size_bytes, size_t most_bytes)
{
    h->size_bytes = size_bytes;
    h->most_bytes = most_bytes;
    h->piece = plan_add(p, purpose, memory, windows_room_bytes(h->settings, size_bytes, most_bytes));
    h->host_piece = plan_add(p, PLAN_HOST, PLAN_PINNED, size_bytes);
}

static void copy_in(void *context, struct dt_stream *s, char *place, size_t offset, size_t at, size_t size_bytes)
{
    (void)offset;
    dt_stream_copy(s, place, ((struct host *)context)->array + at, size_bytes);
}

static void copy_out(void *context, struct dt_stream *s, const char *place, size_t offset, size_t at, size_t size_bytes)
{
    (void)offset;
    dt_stream_copy(s, ((struct host *)context)->array + at, place, size_bytes);
}

static int open_host(struct home *h, struct world *w, const struct plan *p, struct dt_error *err)
{
    if (h->size_bytes == 0) {
        return 0;
    }
    struct host *x = h->state = dt_alloc(sizeof *x);
    x->array = plan_at(p, h->host_piece);
    if (world_open_homes(w, err) != 0) {
        return -1;
    }
    x->in = w->homes_in;
    x->out = w->homes_out;
    return windows_open(&x->windows, h, w, plan_at(p, h->piece), x->in, x->out,
                        &(struct windows_rest){x, copy_in, copy_out}, err);
}

static void *bring(struct home *h, size_t at, size_t size_bytes, enum home_use use, struct dt_stream *user)
{
    struct host *x = h->state;
    return windows_bring(x != NULL ? x->windows : NULL, at, size_bytes, use, user);
}

static void back(struct home *h, size_t at, size_t size_bytes, struct dt_stream *after)
{
    struct host *x = h->state;
    windows_back(x != NULL ? x->windows : NULL, at, size_bytes, after);
}

static void ahead(struct home *h, size_t at, size_t size_bytes)
{
    struct host *x = h->state;
    windows_ahead(x != NULL ? x->windows : NULL, at, size_bytes);
}

static void *empty(struct home *h, struct dt_stream *user)
{
    struct host *x = h->state;
    return x != NULL ? windows_empty(x->windows, user) : NULL;
}

static void close_host(struct home *h)
{
    struct host *x = h->state;
    if (x != NULL) {
        windows_close(x->windows);
        free(x);
    }
    h->state = NULL;
}

const struct home_ops home_host = {.name = "host",
                                   .portion = HOME_PORTION,
                                   .plan = plan_host,
                                   .open = open_host,
                                   .bring = bring,
                                   .back = back,
                                   .ahead = ahead,
                                   .empty = empty,
                                   .close = close_host};
