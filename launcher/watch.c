/* A sign of life is a change: of the pulse count, of CPU time, of the time of the last output. So neither the wall clock nor a pause
 * of the whole machine can make a worker look silent that is not. */
#include "launcher/watch.h"

#include "launcher/guard.h"

#include <string.h>

static double limit_of(const struct worker *one, const struct watch_options *o)
{
    if (o->limit_s > 0 || !o->pages || one->page == NULL) {
        return o->limit_s;
    }
    return (double)atomic_load(&one->page->pulse_limit_ms) / 1e3;
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

int watch_look(struct workers *w, const struct watch_options *o, double now_s, struct dt_text *out)
{
    int found = -1;
    bool found_waits = false;
    for (int i = 0; i < w->count; i++) {
        struct worker *one = &w->list[i];
        if (!one->running || one->blamed) {
            continue;
        }
        notice(one, i, o, now_s);
        double limit_s = limit_of(one, o);
        bool waits = o->pages && one->page != NULL && atomic_load(&one->page->in_collective) != 0;
        if (limit_s > 0 && now_s - one->seen_s > limit_s && (found < 0 || (found_waits && !waits))) {
            found = i;
            found_waits = waits;
        }
    }
    if (found >= 0) {
        describe(&w->list[found], o, now_s - w->list[found].seen_s, out);
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
