/* A row of the meter's table finds the meter, notes the call, begins its timer, calls the device's
 * own row, and ends the timer. */
#include "kernels/meter.h"

#include "base/text.h"

#include <stdlib.h>

#define KERNEL(name, types) ROW_##name,
enum row {
#include "kernels/rows.def"
#define CONVOLUTION(name) ROW_##name,
#include "kernels/convolutions.def"
    ROW_matmul_epilogue
};

static const char *const names[DT_METER_ROWS] = {
#define KERNEL(name, types) #name,
#include "kernels/rows.def"
#define CONVOLUTION(name) #name,
#include "kernels/convolutions.def"
    "matmul_epilogue"};

const char *dt_meter_name(int row)
{
    return names[row];
}

static struct dt_meter *meter_of(struct dt_stream *s)
{
    return (struct dt_meter *)(uintptr_t)s->device->kernels;
}

/* Null: the call has no timer, and the stream has failed. */
static struct dt_metered *begin(struct dt_meter *m, struct dt_stream *s, enum row row, struct dt_cost cost)
{
    struct dt_error err;
    if (m->count == m->room) {
        m->calls = dt_realloc(m->calls, (size_t)(m->room + 1) * sizeof *m->calls);
        if (dt_timer_open(m->device, &m->calls[m->room].timer, &err) != 0) {
            dt_stream_fail(s, err.status, "%s", err.text);
            return NULL;
        }
        m->room++;
    }
    struct dt_metered *call = &m->calls[m->count++];
    call->row = (int)row;
    call->cost = cost;
    dt_timer_begin(call->timer, s);
    return call;
}

static void end(struct dt_metered *call, struct dt_stream *s)
{
    if (call != NULL) {
        dt_timer_end(call->timer, s);
    }
}

#define KERNEL(name, types)                                                                                            \
    static void metered_##name(struct dt_stream *s, const struct dt_##name##_args *a)                                  \
    {                                                                                                                  \
        struct dt_meter *m = meter_of(s);                                                                              \
        struct dt_metered *call = begin(m, s, ROW_##name, dt_cost_##name(a));                                          \
        m->inner->name(s, a);                                                                                          \
        end(call, s);                                                                                                  \
    }
#include "kernels/rows.def"

/* A call that is refused leaves nothing. */
#define OPTIONAL(name, args_of, cost_of)                                                                               \
    static bool metered_##name(struct dt_stream *s, const struct args_of *a)                                           \
    {                                                                                                                  \
        struct dt_meter *m = meter_of(s);                                                                              \
        struct dt_metered *call = begin(m, s, ROW_##name, cost_of(a));                                                 \
        bool done = m->inner->name(s, a);                                                                              \
        if (done) {                                                                                                    \
            end(call, s);                                                                                              \
        } else if (call != NULL) {                                                                                     \
            m->count--;                                                                                                \
        }                                                                                                              \
        return done;                                                                                                   \
    }
OPTIONAL(matmul_epilogue, dt_matmul_args, dt_cost_matmul)
#define CONVOLUTION(name) OPTIONAL(name, dt_##name##_args, dt_cost_##name)
#include "kernels/convolutions.def"

void dt_meter_open(struct dt_meter *m, struct dt_device *d)
{
    const struct dt_kernels *k = d->kernels;
    *m = (struct dt_meter){.inner = k, .device = d};
    m->table = (struct dt_kernels){.name = k->name,
#define KERNEL(row, types) .row = metered_##row,
#include "kernels/rows.def"
#define CONVOLUTION(row) .row = k->row != NULL ? metered_##row : NULL,
#include "kernels/convolutions.def"
                                   .matmul_epilogue = k->matmul_epilogue != NULL ? metered_matmul_epilogue : NULL};
}

void dt_meter_begin(struct dt_meter *m)
{
    m->count = 0;
    m->device->kernels = &m->table;
}

void dt_meter_end(struct dt_meter *m)
{
    m->device->kernels = m->inner;
}

void dt_meter_close(struct dt_meter *m)
{
    for (int64_t i = 0; i < m->room; i++) {
        dt_timer_close(m->calls[i].timer);
    }
    free(m->calls);
    *m = (struct dt_meter){.room = 0};
}
