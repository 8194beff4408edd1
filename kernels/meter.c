/* A row of the table: find the meter, note the call, begin its timer, call the device's own row,
 * end the timer. */
#include "kernels/meter.h"

#include "base/text.h"

#include <stddef.h>
#include <stdlib.h>

#define ROW_OF(kernel) ROW_##kernel,
#define NAME_OF(kernel) [ROW_##kernel] = #kernel,
enum row { DT_COST_ROWS(ROW_OF) ROW_matmul_epilogue, ROW_adamw_many };
static const char *const names[DT_METER_ROWS] = {DT_COST_ROWS(NAME_OF) NAME_OF(matmul_epilogue) NAME_OF(adamw_many)};

_Static_assert(sizeof(struct dt_kernels) == offsetof(struct dt_kernels, fill) + DT_METER_ROWS * sizeof(void (*)(void)),
               "a row of struct dt_kernels is not metered: add it to DT_COST_ROWS (cost.h)");

const char *dt_meter_name(int row)
{
    return names[row];
}

static struct dt_meter *meter_of(struct dt_stream *s)
{
    return (struct dt_meter *)(uintptr_t)s->device->kernels;
}

/* Null: it has no timer, and the stream has failed. */
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

#define METERED(kernel)                                                                                                \
    static void metered_##kernel(struct dt_stream *s, const struct dt_##kernel##_args *a)                              \
    {                                                                                                                  \
        struct dt_meter *m = meter_of(s);                                                                              \
        struct dt_metered *call = begin(m, s, ROW_##kernel, dt_cost_##kernel(a));                                      \
        m->inner->kernel(s, a);                                                                                        \
        end(call, s);                                                                                                  \
    }
DT_COST_ROWS(METERED)

static void metered_adamw_many(struct dt_stream *s, const struct dt_adamw_args *each, int count)
{
    struct dt_meter *m = meter_of(s);
    struct dt_metered *call = begin(m, s, ROW_adamw_many, dt_cost_adamw_many(each, count));
    m->inner->adamw_many(s, each, count);
    end(call, s);
}

static bool metered_matmul_epilogue(struct dt_stream *s, const struct dt_matmul_args *a)
{
    struct dt_meter *m = meter_of(s);
    struct dt_metered *call = begin(m, s, ROW_matmul_epilogue, dt_cost_matmul(a));
    bool done = m->inner->matmul_epilogue(s, a);
    if (done) {
        end(call, s);
    } else if (call != NULL) {
        m->count--;
    }
    return done;
}

void dt_meter_open(struct dt_meter *m, struct dt_device *d)
{
    *m = (struct dt_meter){.inner = d->kernels, .device = d, .table.name = d->kernels->name};
    const struct dt_kernels *k = m->inner;
#define SET(kernel) m->table.kernel = k->kernel != NULL ? metered_##kernel : NULL;
    DT_COST_ROWS(SET)
    SET(matmul_epilogue)
    SET(adamw_many)
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
