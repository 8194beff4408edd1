#include "worker/engine/timeline.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "kernels/timer.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

struct span {
    enum timeline_lane lane;
    const char *what, *of;
    int64_t step;
    struct dt_timer *timer;
};

struct timeline {
    struct world *world;
    int64_t first, steps, step; /* step: what is enqueued belongs to it; 0: to none of the
                                 * timeline's */
    bool over;
    struct dt_timer *origin;
    double began_us; /* origin, since 1970 */
    struct span *spans;
    int count, most, left_out;
};

static const char *name_of(enum timeline_lane lane)
{
    switch (lane) {
    case TIMELINE_COMPUTE:
        return "compute";
    case TIMELINE_COMMUNICATION:
        return "communication";
    case TIMELINE_GATHERING:
        return "gathering";
    case TIMELINE_COPY:
        return "batches";
    case TIMELINE_LANES:
        break;
    }
    return "unknown";
}

int timeline_open(struct timeline **out, struct world *w, int64_t first, int64_t steps, int spans, struct dt_error *err)
{
    struct timeline *t = dt_alloc(sizeof *t);
    *t = (struct timeline){
        .world = w, .first = first, .steps = steps, .most = spans, .spans = dt_alloc((size_t)spans * sizeof *t->spans)};
    int rc = dt_timer_open(w->device, &t->origin, err);
    for (int i = 0; i < spans && rc == 0; i++) { /* all of them now: steps make nothing */
        rc = dt_timer_open(w->device, &t->spans[i].timer, err);
    }
    if (rc == 0) {
        dt_timer_begin(t->origin, w->compute);
    }
    if (rc != 0 || dt_stream_finish(w->compute, 60, err) != 0) {
        timeline_close(t);
        return -1;
    }
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    t->began_us = (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
    *out = t;
    return 0;
}

void timeline_close(struct timeline *t)
{
    if (t != NULL) {
        for (int i = 0; i < t->most; i++) {
            dt_timer_close(t->spans[i].timer);
        }
        dt_timer_close(t->origin);
        free(t->spans);
        free(t);
    }
}

void timeline_step(struct timeline *t, int64_t step)
{
    if (t != NULL) {
        t->step = step >= t->first && step < t->first + t->steps ? step : 0;
    }
}

int timeline_begin(struct timeline *t, enum timeline_lane lane, struct dt_stream *s, const char *what, const char *of)
{
    if (t == NULL || t->step == 0) {
        return -1;
    }
    if (t->count == t->most) {
        t->left_out++;
        return -1;
    }
    struct span *x = &t->spans[t->count];
    *x = (struct span){lane, what, of, t->step, x->timer};
    dt_timer_begin(x->timer, s);
    return t->count++;
}

void timeline_end(struct timeline *t, int span, struct dt_stream *s)
{
    if (span >= 0) {
        dt_timer_end(t->spans[span].timer, s);
    }
}

bool timeline_over(struct timeline *t, int64_t done)
{
    if (t == NULL || t->over || t->count == 0 || done < t->first + t->steps) {
        return false;
    }
    return t->over = true;
}

static void put_name(struct dt_text *out, const char *what, int rank, int lane, const char *name)
{
    dt_text_printf(out, "{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n", what,
                   rank, lane, name);
}

int timeline_write(struct timeline *t, const char *path, struct dt_error *err)
{
    int rank = t->world->rank, missing = t->left_out;
    struct dt_text out;
    char name[32];
    dt_text_init(&out);
    (void)snprintf(name, sizeof name, "rank %d", rank);
    dt_text_puts(&out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
    put_name(&out, "process_name", rank, 0, name);
    for (int i = 0; i < TIMELINE_LANES; i++) {
        put_name(&out, "thread_name", rank, i, name_of((enum timeline_lane)i));
    }
    for (int i = 0; i < t->count; i++) {
        const struct span *x = &t->spans[i];
        double begin_s, after_s;
        if (!dt_timer_since(t->spans[0].timer, t->origin, &begin_s) ||
            !dt_timer_since(x->timer, t->spans[0].timer, &after_s)) {
            missing++;
            continue;
        }
        begin_s += after_s; /* devices tell long times less exactly than short ones: what is
                             * inexact is the same for all */
        dt_text_printf(&out,
                       "{\"name\":\"%s%s%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"args\":{"
                       "\"step\":%lld}},\n",
                       x->what, x->of != NULL ? " " : "", x->of != NULL ? x->of : "", rank, (int)x->lane,
                       t->began_us + begin_s * 1e6, dt_timer_s(x->timer) * 1e6, (long long)x->step);
    }
    dt_text_printf(&out, "{\"name\":\"missing\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"count\":%d}}\n]}\n", rank, missing);
    int rc = dt_file_write(path, out.data, out.size, err);
    dt_text_clear(&out);
    return rc;
}
