/* One rank: every collective is a copy, or nothing. */
#include "collectives/backends.h"

#include "base/text.h"
#include "kernels/device.h"

#include <stdlib.h>
#include <string.h>

/* Arenas are chained so that close finds them. */
struct block {
    struct block *next;
    void *memory;
    size_t size_bytes;
};

static int offer(struct dt_comm *c, char ticket[DT_COMM_TICKET_BYTES], struct dt_error *err)
{
    (void)c, (void)err;
    ticket[0] = 0;
    return 0;
}

static int open_solo(struct dt_comm *c, const char *ticket, struct dt_error *err)
{
    (void)c, (void)ticket, (void)err;
    return 0;
}

static int alloc(struct dt_comm *c, size_t size_bytes, void **out, struct dt_error *err)
{
    void *p = NULL;
    if (c->device != NULL) {
        if (dt_device_alloc(c->device, DT_MEMORY_DEVICE, size_bytes, &p, err) != 0) {
            return -1;
        }
    } else if (posix_memalign(&p, 4096, size_bytes + (size_bytes == 0)) != 0) {
        return dt_fail(err, DT_NO_MEMORY, "%s: no memory for an arena of %zu bytes", c->name, size_bytes);
    }
    if (c->device == NULL) {
        memset(p, 0, size_bytes);
    }
    struct block *b = dt_alloc(sizeof(*b));
    *b = (struct block){c->state, p, size_bytes};
    c->state = b;
    *out = p;
    return 0;
}

static int run(struct dt_comm *c, const struct dt_collective *x, int64_t number, double timeout_s, struct dt_error *err)
{
    (void)c, (void)number, (void)timeout_s, (void)err;
    if (x->kind != DT_BARRIER && x->count > 0 && x->out != x->in) {
        memcpy(x->out, x->in, (size_t)x->count * dt_dtype_size(x->type));
    }
    return 0;
}

static int poll_solo(struct dt_comm *c, struct dt_error *err)
{
    (void)c, (void)err;
    return 0;
}

static void abort_solo(struct dt_comm *c)
{
    (void)c;
}

static void close_solo(struct dt_comm *c)
{
    struct block *b = c->state;
    while (b != NULL) {
        struct block *next = b->next;
        if (c->device != NULL) {
            dt_device_free(c->device, DT_MEMORY_DEVICE, b->memory, b->size_bytes);
        } else {
            free(b->memory);
        }
        free(b);
        b = next;
    }
    c->state = NULL;
}

const struct dt_comm_ops dt_comm_solo = {"solo",     false, offer, open_solo, alloc, run,  poll_solo, abort_solo,
                                         close_solo, NULL,  NULL,  NULL,      NULL,  NULL, NULL,      false};
