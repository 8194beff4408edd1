/* A table of kernels in front of a device's own. Each row notes the call, its least cost (cost.h),
 * and the time that the device takes for it. */
#ifndef DT_KERNELS_METER_H
#define DT_KERNELS_METER_H

#include "kernels/cost.h"
#include "kernels/timer.h"

#include <stdint.h>

struct dt_metered { /* one call */
    int row;        /* index of the row, below DT_METER_ROWS */
    struct dt_cost cost;
    struct dt_timer *timer;
};

struct dt_meter {
    struct dt_kernels table; /* first member: a row finds the meter by its stream's device */
    const struct dt_kernels *inner;
    struct dt_device *device;
    struct dt_metered *calls; /* since begin */
    int64_t count, room;      /* room: number of calls that have a timer */
};

/* Rows of the meter: those of rows.def, and the optional functions of a table. A call that one of
 * these refuses does not count; the calls that replace it do. */
enum {
    DT_METER_ROWS = 1 /* matmul_epilogue */
#define KERNEL(name, types) +1
#include "kernels/rows.def"
#define CONVOLUTION(name) +1
#include "kernels/convolutions.def"
};
const char *dt_meter_name(int row);

void dt_meter_open(struct dt_meter *m, struct dt_device *d);
/* Between begin and end, calls of the device's kernels go through the meter. begin forgets
 * earlier calls, all of which must have run. Meanwhile only one thread may enqueue on the
 * device's streams. */
void dt_meter_begin(struct dt_meter *m);
void dt_meter_end(struct dt_meter *m);
/* All calls must have run. Allowed on a zeroed struct. */
void dt_meter_close(struct dt_meter *m);

#endif
