/* How long the work between begin and end takes on a stream, by the device's own clock. Nothing
 * waits for it. */
#ifndef DT_KERNELS_TIMER_H
#define DT_KERNELS_TIMER_H

#include "kernels/device.h"

/* The first member of a backend's own struct. */
struct dt_timer {
    struct dt_device *device;
};

int dt_timer_open(struct dt_device *d, struct dt_timer **out, struct dt_error *err);
/* The stream has run past it. Null is harmless. */
void dt_timer_close(struct dt_timer *t);
void dt_timer_begin(struct dt_timer *t, struct dt_stream *s);
void dt_timer_end(struct dt_timer *t, struct dt_stream *s);
/* Seconds from the last begin to the last end. 0: the host has not yet waited for work behind
 * both. */
double dt_timer_s(const struct dt_timer *t);
/* Seconds from the last begin of `origin`, on whichever stream of the device, to the last begin
 * of t. False: one of them has not run. */
bool dt_timer_since(const struct dt_timer *t, const struct dt_timer *origin, double *seconds);

/* Of a device with a clock of its own; on others a function on the stream looks at the host's. */
struct dt_timer_ops {
    int (*open)(struct dt_device *d, struct dt_timer **out, struct dt_error *err);
    void (*close)(struct dt_timer *t);
    void (*begin)(struct dt_timer *t, struct dt_stream *s);
    void (*end)(struct dt_timer *t, struct dt_stream *s);
    double (*seconds)(const struct dt_timer *t);
    bool (*since)(const struct dt_timer *t, const struct dt_timer *origin, double *seconds);
};
/* device.c, by its table of names. Null: none of its own. */
const struct dt_timer_ops *dt_device_timer(const struct dt_device *d);

#endif
