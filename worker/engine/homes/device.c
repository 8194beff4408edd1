/* The device: an array lies in the plan, and whatever works on it works in place. */
#include "worker/engine/homes/home.h"

#include <assert.h>

static void add(struct home *h, struct plan *p, enum plan_purpose purpose, enum plan_memory memory, size_t size_bytes,
                size_t most_bytes)
{
    (void)most_bytes;
    h->piece = plan_add(p, purpose, memory, size_bytes);
}

static int open_device(struct home *h, struct world *w, const struct plan *p, struct dt_error *err)
{
    (void)w;
    (void)err;
    h->state = plan_at(p, h->piece);
    return 0;
}

static void *bring(struct home *h, size_t at, size_t size_bytes, enum home_use use, struct dt_stream *user)
{
    (void)size_bytes;
    (void)use;
    (void)user;
    return (char *)h->state + at;
}

static void back(struct home *h, size_t at, size_t size_bytes, struct dt_stream *after)
{
    (void)h;
    (void)at;
    (void)size_bytes;
    (void)after;
}

static void close_device(struct home *h)
{
    h->state = NULL;
}

void *home_device_at(const struct home *h)
{
    assert(h->ops == &home_device);
    return h->state;
}

const struct home_ops home_device = {
    .name = "device", .plan = add, .open = open_device, .bring = bring, .back = back, .close = close_device};
