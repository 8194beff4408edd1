/* A table of kernels in front of a device's own: each row notes the call, what it costs at least
 * (cost.h), and how long the device takes for it. */
#ifndef DT_KERNELS_METER_H
#define DT_KERNELS_METER_H

#include "kernels/cost.h"
#include "kernels/timer.h"

#include <stdint.h>

struct dt_metered { /* one call */
    int row;        /* of DT_METER_ROWS */
    struct dt_cost cost;
    struct dt_timer *timer;
};

struct dt_meter {
    struct dt_kernels table; /* first: a row finds the meter by its stream's device */
    const struct dt_kernels *inner;
    struct dt_device *device;
    struct dt_metered *calls; /* since begin */
    int64_t count, room;      /* room: calls that have a timer */
};

/* Rows of struct dt_kernels, and their names. What matmul_epilogue refuses is no call; what is
 * done in its place is. */
enum {
    DT_METER_ROWS = 1 /* matmul_epilogue */
#define KERNEL(name, types) +1
#include "kernels/rows.def"
};
const char *dt_meter_name(int row);

void dt_meter_open(struct dt_meter *m, struct dt_device *d);
/* From begin to end what is asked of the device's kernels goes through the meter, and the calls
 * before it are forgotten: all of them have run. One thread puts work into the device's streams
 * meanwhile. */
void dt_meter_begin(struct dt_meter *m);
void dt_meter_end(struct dt_meter *m);
/* All calls have run. Harmless on a zeroed struct. */
void dt_meter_close(struct dt_meter *m);

#endif
