#include "kernels/timer.h"

#include "base/clock.h"

#include <stdlib.h>

struct host_timer {
    struct dt_timer base;
    double begin_s, end_s;
};

static int note_now(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    (void)err;
    **(double **)args = dt_now_s();
    return 0;
}

static void note(struct dt_stream *s, double *at)
{
    dt_stream_call(s, note_now, &at, sizeof at);
}

int dt_timer_open(struct dt_device *d, struct dt_timer **out, struct dt_error *err)
{
    const struct dt_timer_ops *ops = dt_device_timer(d);
    if (ops != NULL) {
        return ops->open(d, out, err);
    }
    struct host_timer *t = calloc(1, sizeof *t);
    if (t == NULL) {
        return dt_fail_errno(err, "timer");
    }
    t->base.device = d;
    *out = &t->base;
    return 0;
}

void dt_timer_close(struct dt_timer *t)
{
    const struct dt_timer_ops *ops = t != NULL ? dt_device_timer(t->device) : NULL;
    if (ops != NULL) {
        ops->close(t);
    } else {
        free(t);
    }
}

void dt_timer_begin(struct dt_timer *t, struct dt_stream *s)
{
    const struct dt_timer_ops *ops = dt_device_timer(t->device);
    if (ops != NULL) {
        ops->begin(t, s);
    } else {
        note(s, &((struct host_timer *)t)->begin_s);
    }
}

void dt_timer_end(struct dt_timer *t, struct dt_stream *s)
{
    const struct dt_timer_ops *ops = dt_device_timer(t->device);
    if (ops != NULL) {
        ops->end(t, s);
    } else {
        note(s, &((struct host_timer *)t)->end_s);
    }
}

double dt_timer_s(const struct dt_timer *t)
{
    const struct dt_timer_ops *ops = dt_device_timer(t->device);
    const struct host_timer *host = (const struct host_timer *)t;
    return ops != NULL ? ops->seconds(t) : host->end_s > host->begin_s ? host->end_s - host->begin_s : 0;
}

bool dt_timer_since(const struct dt_timer *t, const struct dt_timer *origin, double *seconds)
{
    const struct dt_timer_ops *ops = dt_device_timer(t->device);
    if (ops != NULL) {
        return ops->since(t, origin, seconds);
    }
    double from_s = ((const struct host_timer *)origin)->begin_s, begin_s = ((const struct host_timer *)t)->begin_s;
    *seconds = begin_s - from_s;
    return from_s > 0 && begin_s > 0;
}
