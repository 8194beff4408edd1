/* Measures how long the work between begin and end takes on a stream, by the device's own clock.
 * Measuring makes nothing wait. */
#ifndef DT_KERNELS_TIMER_H
#define DT_KERNELS_TIMER_H

#include "kernels/device.h"

/* The first member of a backend's own struct. */
struct dt_timer {
    struct dt_device *device;
};

int dt_timer_open(struct dt_device *d, struct dt_timer **out, struct dt_error *err);
/* The stream must have passed the timer. Null is allowed. */
void dt_timer_close(struct dt_timer *t);
void dt_timer_begin(struct dt_timer *t, struct dt_stream *s);
void dt_timer_end(struct dt_timer *t, struct dt_stream *s);
/* Seconds from the last begin to the last end. 0: the host has not yet waited for work after
 * both. */
double dt_timer_s(const struct dt_timer *t);
/* Seconds from the last begin of `origin`, on any stream of the device, to the last begin of t.
 * False: one of them has not run. */
bool dt_timer_since(const struct dt_timer *t, const struct dt_timer *origin, double *seconds);

/* For devices with a clock of their own. On others a function on the stream reads the host's
 * clock. */
struct dt_timer_ops {
    int (*open)(struct dt_device *d, struct dt_timer **out, struct dt_error *err);
    void (*close)(struct dt_timer *t);
    void (*begin)(struct dt_timer *t, struct dt_stream *s);
    void (*end)(struct dt_timer *t, struct dt_stream *s);
    double (*seconds)(const struct dt_timer *t);
    bool (*since)(const struct dt_timer *t, const struct dt_timer *origin, double *seconds);
};
/* device.c, by its table of names. Null: the device has no clock of its own. */
const struct dt_timer_ops *dt_device_timer(const struct dt_device *d);

#endif
