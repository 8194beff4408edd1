/* A sign of life is a change: of the pulse count, of CPU time, of the time of the last output. So neither the wall clock nor a pause
 * of the whole machine can make a worker look silent that is not. */
#include "launcher/watch.h"

#include "launcher/guard.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SLOW_PHASE 10

static double limit_of(const struct worker *one, const struct watch_options *o)
{
    double limit_s = o->limit_s;
    if (o->pages && one->page != NULL) {
        enum dt_phase phase = (enum dt_phase)atomic_load(&one->page->phase);
        limit_s = limit_s > 0 ? limit_s : (double)atomic_load(&one->page->pulse_limit_ms) / 1e3;
        limit_s *= phase == DT_PHASE_START || phase == DT_PHASE_SAVE || phase == DT_PHASE_EXIT ? SLOW_PHASE : 1; /* files, devices, first calls */
    }
    return limit_s;
}

static void notice(struct worker *one, int local_rank, const struct watch_options *o, double now_s)
{
    double pulse = 0, cpu_s = 0;
    if (o->pages && one->page != NULL) {
        pulse = (double)atomic_load(&one->page->pulse_count);
    } else {
        cpu_s = guard_cpu_s(one->pid);
        pulse = o->output_s != NULL ? o->output_s(o->user, local_rank) : 0;
    }
    /* More than one tick of the kernel; less than before when a child of the worker has ended. */
    bool computed = cpu_s > one->seen_cpu_s + 0.015 || cpu_s < one->seen_cpu_s;
    if (pulse > one->seen_sign || pulse < one->seen_sign || computed) {
        one->seen_s = now_s;
        one->seen_sign = pulse;
        one->seen_cpu_s = cpu_s;
    }
}

static void describe(const struct worker *one, const struct watch_options *o, double silent_s, struct dt_text *out)
{
    if (!o->pages || one->page == NULL) {
        dt_text_printf(out, "no output and no CPU time for %.1f s (--hang_timeout=%g)", silent_s, o->limit_s);
        return;
    }
    struct dt_page *p = one->page;
    char name[sizeof p->collective_name];
    memcpy(name, p->collective_name, sizeof name);
    name[sizeof name - 1] = 0;
    dt_text_printf(out, "no pulse for %.1f s at step %lld, phase %s", silent_s, (long long)atomic_load(&p->step),
                   dt_phase_name((enum dt_phase)atomic_load(&p->phase)));
    if (name[0] != 0) {
        dt_text_printf(out, ", %s collective %lld %s", atomic_load(&p->in_collective) != 0 ? "in" : "last",
                       (long long)atomic_load(&p->collective_count), name);
    }
}

static bool is_stopped(pid_t pid)
{
    char path[64], text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    text[size > 0 ? size : 0] = 0;
    const char *end = strrchr(text, ')');
    return end != NULL && (end[2] == 'T' || end[2] == 't');
}

/* Of several silent ones the cause is the one that cannot run; then one that is not waiting for others; then the one that is behind. */
static bool more_suspect(const struct worker *a, const struct worker *b, bool pages)
{
    bool a_stopped = is_stopped(a->pid), b_stopped = is_stopped(b->pid);
    if (a_stopped != b_stopped || !pages || a->page == NULL || b->page == NULL) {
        return a_stopped && !b_stopped;
    }
    bool a_waits = atomic_load(&a->page->in_collective) != 0, b_waits = atomic_load(&b->page->in_collective) != 0;
    if (a_waits != b_waits) {
        return b_waits;
    }
    return atomic_load(&a->page->collective_count) < atomic_load(&b->page->collective_count);
}

int watch_look(struct workers *w, const struct watch_options *o, double now_s, struct dt_text *out)
{
    int found = -1;
    for (int i = 0; i < w->count; i++) {
        struct worker *one = &w->list[i];
        if (!one->running || one->blamed) {
            continue;
        }
        notice(one, i, o, now_s);
        double limit_s = limit_of(one, o);
        if (limit_s > 0 && now_s - one->seen_s > limit_s && (found < 0 || more_suspect(one, &w->list[found], o->pages))) {
            found = i;
        }
    }
    if (found >= 0) {
        describe(&w->list[found], o, now_s - w->list[found].seen_s, out);
        if (is_stopped(w->list[found].pid)) {
            dt_text_puts(out, ", stopped by somebody (state T)");
        }
        w->list[found].blamed = true;
    }
    return found;
}

void watch_forgive(struct workers *w, double now_s)
{
    for (int i = 0; i < w->count; i++) {
        w->list[i].seen_s = now_s;
    }
}
