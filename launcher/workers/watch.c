/* A sign of life is a change: of the pulse count; of CPU time, of the bytes written, of the time
 * of the last output. So neither the wall clock nor a pause of the whole machine can make a
 * worker look silent that is not. */
#include "launcher/workers/watch.h"

#include "launcher/workers/guard.h"
#include "launcher/workers/process.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOW_PHASE 10
/* for one that waits for peers: the agent that has the silent one, maybe of another host, is
 * first to name it */
#define WAITING 1.25
#define MARK_S 5.0
/* CPU time between two looks that is no sign of life: what a signal costs; and, of a core, what
 * threads of libraries use that look around now and then. Gloo's looks a hundred times a second,
 * for 0.4 % (measured), and a rank may have several. */
#define COMPUTED_S 1e-3
#define COMPUTED_SHARE 2e-2
#define STALL_S 5.0 /* a look that is so much late */

static struct dt_page_look page_of(const struct worker *one)
{
    struct dt_page_look look;
    dt_page_read(one->page, 0, &look);
    return look;
}

static bool waits_for_peers(const struct worker *one)
{
    return page_of(one).in_collective;
}

static double limit_of(const struct worker *one, const struct watch_options *o)
{
    double limit_s = o->limit_s;
    if (o->pages && one->page != NULL) {
        struct dt_page_look look = page_of(one);
        limit_s = limit_s > 0 ? limit_s : look.pulse_limit_s;
        limit_s *= look.phase == DT_PHASE_START || look.phase == DT_PHASE_SAVE || look.phase == DT_PHASE_EXIT
                       ? SLOW_PHASE
                       : 1; /* files, devices, first calls */
        limit_s *= waits_for_peers(one) ? WAITING : 1;
    }
    /* A worker that saves may take as long as its disk does, but not while it is stopped. */
    return one->is_stopped && o->stopped_s > 0 && limit_s > o->stopped_s ? o->stopped_s : limit_s;
}

/* before_s: the look before this one. */
static void notice(struct worker *one, int local_rank, const struct watch_options *o, double before_s, double now_s)
{
    double pulse = 0;
    struct process_use *use = &one->use, *seen = &one->seen_use, before = one->use;
    if (o->pages && one->page != NULL) {
        pulse = (double)page_of(one).pulse_count;
    } else {
        *use = guard_use(one->pid);
        pulse = o->output_s != NULL ? o->output_s(o->user, local_rank) : 0;
    }
    double span_s = fmax(0, now_s - fmax(before_s, one->start_s));
    /* one that is kept from the CPU would compute */
    double active_s = use->cpu_s - before.cpu_s + fmax(0, use->waited_s - before.waited_s);
    /* less than before: a child has ended */
    bool computed = active_s > COMPUTED_S + COMPUTED_SHARE * span_s || use->cpu_s < before.cpu_s;
    bool wrote = use->written_bytes != seen->written_bytes;
    if (pulse > one->seen_sign || pulse < one->seen_sign || computed || wrote) {
        one->seen_s = now_s;
        one->seen_sign = pulse;
        *seen = *use;
    }
}

static void describe(const struct worker *one, const struct watch_options *o, double silent_s, struct dt_text *out)
{
    if (!o->pages || one->page == NULL) {
        double used_ms = (one->use.cpu_s - one->seen_use.cpu_s) * 1e3;
        /* it writes to what it was given, past us */
        bool unseen = one->use.hides_writes && one->seen_sign <= 0;
        dt_text_puts(out, unseen ? "" : "no output and ");
        dt_text_printf(out, used_ms < 0.01 ? "no CPU time" : "%.2f ms of CPU time", used_ms);
        dt_text_printf(out, " for %.1f s%s (--hang_timeout=%g)", silent_s,
                       unseen ? ", and what it writes cannot be seen" : "", o->limit_s);
        return;
    }
    struct dt_page_look p = page_of(one);
    dt_text_printf(out, "no pulse for %.1f s at step %lld, phase %s", silent_s, (long long)p.step,
                   dt_phase_name(p.phase));
    if (p.collective_name[0] != '\0') {
        dt_text_printf(out, ", %s collective %lld %s", p.in_collective ? "in" : "last", (long long)p.collective_count,
                       p.collective_name);
    }
}

/* What it does instead, as far as the kernel tells: computing in a circle and waiting for
 * something look alike from outside. */
static void describe_process(const struct worker *one, double now_s, struct dt_text *out)
{
    struct process_look look;
    if (!process_look(one->pid, &look)) {
        return;
    }
    double user_s = look.user_s - one->marks[0].user_s, system_s = look.system_s - one->marks[0].system_s;
    double span_s = now_s - one->marks[0].at_s;
    dt_text_printf(out, "; in the last %.1f s: %.1f s user, %.1f s system time: ", span_s, user_s, system_s);
    if (look.state == 'T' || look.state == 't') {
        dt_text_printf(out, "stopped by somebody (state %c)", look.state);
    } else if (user_s + system_s > span_s / 2) {
        dt_text_printf(out, "it spins (state %c)", look.state);
    } else if (look.state == 'R') { /* where it waits most of the time, it is not now */
        dt_text_puts(out, "it waits most of the time (now state R)");
    } else {
        struct dt_text where;
        dt_text_init(&where);
        bool named = process_where(one->pid, &where) > 0;
        dt_text_printf(out, "it waits (state %c)%s%s", look.state,
                       where.size == 0 ? ""
                       : named         ? " in "
                                       : "; ",
                       dt_text_str(&where));
        dt_text_clear(&where);
    }
}

/* Looks what the kernel says of a worker: is it silent, and stopped? And two marks of its CPU
 * time: both at its last sign of life, or its start, while that is near; later the older one is
 * MARK_S to 2 * MARK_S ago. So there is always one to measure from, however few looks there
 * were. */
static void look_at_process(struct worker *one, double now_s)
{
    struct process_look look;
    bool silent = now_s - one->seen_s > 1e-9;
    one->is_stopped = false;
    if (!process_look(one->pid, &look)) {
        return;
    }
    one->is_stopped = silent && look.state == 'T'; /* t: a debugger's, who may take his time */
    struct worker_mark mark = {.at_s = now_s, .user_s = look.user_s, .system_s = look.system_s};
    if (!silent) {
        one->marks[0] = one->marks[1] = mark;
    } else if (now_s - one->marks[1].at_s >= MARK_S) {
        one->marks[0] = one->marks[1];
        one->marks[1] = mark;
    }
}

/* Of several silent ones the cause is the one that cannot run; then one that is not waiting for
 * others; then the one that is behind. */
static bool more_suspect(const struct worker *a, const struct worker *b, bool pages)
{
    if (a->is_stopped != b->is_stopped || !pages || a->page == NULL || b->page == NULL) {
        return a->is_stopped && !b->is_stopped;
    }
    bool a_waits = waits_for_peers(a), b_waits = waits_for_peers(b);
    if (a_waits != b_waits) {
        return b_waits;
    }
    return page_of(a).collective_count < page_of(b).collective_count;
}

/* ---- several silent programs that we know nothing of ---- */

enum { OTHERS = 8 }; /* that are told */
/* within so long workers that wait for each other fall silent, looked at once a second */
#define SKEW_S 4.0

struct silent {
    int index;
    bool over;   /* about as long as it may be */
    char *place; /* in the kernel, "" where that is not known */
};

/* Those that have been silent for more than half of their time. The caller frees places and
 * list. */
static struct silent *find_silent(const struct workers *w, const struct watch_options *o, double now_s, int *count)
{
    struct silent *list = dt_alloc((size_t)w->count * sizeof *list);
    *count = 0;
    for (int i = 0; i < w->count; i++) {
        const struct worker *one = &w->list[i];
        double limit_s = limit_of(one, o), silent_s = now_s - one->seen_s, over_s = fmax(limit_s / 2, limit_s - SKEW_S);
        if (one->running && !one->blamed && silent_s > limit_s / 2) {
            struct dt_text where;
            dt_text_init(&where);
            size_t place = process_where(one->pid, &where);
            list[(*count)++] =
                (struct silent){.index = i,
                                .over = silent_s > over_s,
                                .place = dt_format("%.*s", (int)(place > 0 ? place : where.size), dt_text_str(&where))};
            dt_text_clear(&where);
        }
    }
    return list;
}

static int count_alike(const struct silent *list, int count, int i)
{
    int alike = 0;
    for (int k = 0; k < count; k++) {
        alike += strcmp(list[i].place, list[k].place) == 0;
    }
    return alike;
}

/* Who waits for a peer does so where the others do: the one whose place, if it is known, the
 * fewest share; `found` where that does not tell them apart. */
static int odd_one(const struct silent *list, int count, int found)
{
    int best = found, least = count + 1;
    for (int i = 0; i < count; i++) {
        int alike = count_alike(list, count, i);
        bool first = list[i].index == found;
        if ((first || (list[i].over && list[i].place[0] != '\0')) && (alike < least || (alike == least && first))) {
            least = alike;
            best = list[i].index;
        }
    }
    return best;
}

/* "; silent, too: local ranks 0, 2 in futex_do_wait; local rank 3 in do_wait". */
static void describe_others(const struct silent *list, int count, int found, struct dt_text *out)
{
    int said = 0;
    for (int i = 0; i < count && said < OTHERS; i++) {
        int alike = 0;
        bool again = list[i].index == found;
        for (int k = 0; k < count && !again; k++) {
            bool same = list[k].index != found && strcmp(list[k].place, list[i].place) == 0;
            again = same && k < i;
            alike += same;
        }
        if (again) {
            continue;
        }
        dt_text_printf(out, "; %slocal rank%s", said == 0 ? "silent, too: " : "", alike == 1 ? "" : "s");
        for (int k = i, n = 0; k < count; k++) {
            if (list[k].index != found && strcmp(list[k].place, list[i].place) == 0) {
                if (said++ < OTHERS) {
                    dt_text_printf(out, "%s%d", n++ == 0 ? " " : ", ", list[k].index);
                }
            }
        }
        dt_text_printf(out, "%s%s%s", said > OTHERS ? " ..." : "", list[i].place[0] != '\0' ? " in " : "",
                       list[i].place);
    }
}

/* Some worker of ours still has time and waits for nobody: those that wait in a collective may
 * wait for it. */
static bool others_have_time(const struct workers *w, const struct watch_options *o, double now_s)
{
    for (int i = 0; i < w->count && o->pages; i++) {
        const struct worker *one = &w->list[i];
        bool counts =
            one->running && !one->blamed && one->page != NULL && !waits_for_peers(one) && limit_of(one, o) > 0;
        if (counts && now_s - one->seen_s <= limit_of(one, o)) {
            return true;
        }
    }
    return false;
}

/* It sleeps in the kernel, deaf to every signal, for longer than it may. */
static bool is_deaf(struct worker *one, double limit_s, double now_s)
{
    struct process_look look;
    if (limit_s <= 0 || !process_look(one->pid, &look) || look.state != 'D') {
        one->deaf_since_s = 0;
        return false;
    }
    one->deaf_since_s = one->deaf_since_s > 0 ? one->deaf_since_s : now_s;
    return now_s - one->deaf_since_s > limit_s;
}

/* A look that comes much too late: this process stood still, so others probably did, a paused
 * container or machine. */
static void forgive_stall(struct workers *w, const struct watch_options *o, double now_s)
{
    double late_s = w->looked_s > 0 && o->look_s > 0 ? now_s - w->looked_s - o->look_s : 0;
    for (int i = 0; i < w->count && late_s > STALL_S; i++) {
        w->list[i].seen_s = fmin(w->list[i].seen_s + late_s, now_s);
    }
}

int watch_look(struct workers *w, const struct watch_options *o, double now_s, struct dt_text *out)
{
    int found = -1;
    double before_s = w->looked_s;
    forgive_stall(w, o, now_s);
    w->looked_s = now_s;
    for (int i = 0; i < w->count; i++) {
        struct worker *one = &w->list[i];
        if (!one->running || one->blamed) {
            continue;
        }
        if (is_deaf(one, o->deaf_s, now_s)) {
            dt_text_printf(out, "in uninterruptible sleep for %.1f s (TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=%g)",
                           now_s - one->deaf_since_s, o->deaf_s);
            describe_process(one, now_s, out);
            one->blamed = one->deaf = true;
            return i;
        }
        notice(one, i, o, before_s, now_s);
        look_at_process(one, now_s);
    }
    bool excused = others_have_time(w, o, now_s);
    for (int i = 0; i < w->count; i++) {
        struct worker *one = &w->list[i];
        double limit_s = one->running && !one->blamed ? limit_of(one, o) : 0;
        if (excused && waits_for_peers(one) && !one->is_stopped) {
            continue;
        }
        if (limit_s > 0 && now_s - one->seen_s > limit_s &&
            (found < 0 || more_suspect(one, &w->list[found], o->pages))) {
            found = i;
        }
    }
    if (found < 0) {
        return -1;
    }
    int silent_count = 0;
    struct silent *silent = o->pages ? NULL : find_silent(w, o, now_s, &silent_count);
    found = silent_count > 0 && !w->list[found].is_stopped ? odd_one(silent, silent_count, found) : found;
    describe(&w->list[found], o, now_s - w->list[found].seen_s, out);
    describe_process(&w->list[found], now_s, out);
    describe_others(silent, silent_count, found, out);
    for (int i = 0; i < silent_count; i++) {
        free(silent[i].place);
    }
    free(silent);
    w->list[found].blamed = true;
    return found;
}

static const char *step_words(long long step, char out[32])
{
    (void)snprintf(out, 32, step < 0 ? "before its first step" : "at step %lld", step);
    return out;
}

int watch_barrier(const struct workers *w, double barrier_s, double now_s, struct dt_text *out)
{
    int first = -1, still = -1, count = 0;
    for (int i = 0; i < w->count; i++) {
        const struct worker *one = &w->list[i];
        bool ended = !one->running && one->status == 0 && one->page != NULL;
        if (ended && (first < 0 || one->end_s < w->list[first].end_s)) {
            first = i;
        }
    }
    if (first < 0 || now_s - w->list[first].end_s < barrier_s) {
        return -1;
    }
    struct dt_page_look gone = page_of(&w->list[first]), other;
    for (int i = 0; i < w->count; i++) {
        const struct worker *one = &w->list[i];
        if (one->running && one->page != NULL) {
            other = page_of(one);
            bool writes = gone.phase == DT_PHASE_EXIT && other.step == gone.step && !other.in_collective;
            still = writes ? still : i;
            count += !writes;
        }
    }
    if (still < 0) {
        return -1;
    }
    other = page_of(&w->list[still]);
    char begun[32], others[32];
    dt_text_printf(out, "ended with exit code 0 %s; %.0f s later %d other rank%s still %s and cannot finish without it",
                   step_words(gone.step, begun), now_s - w->list[first].end_s, count, count == 1 ? " is" : "s are",
                   step_words(other.step, others));
    return first;
}

void watch_forgive(struct workers *w, double now_s)
{
    for (int i = 0; i < w->count; i++) {
        w->list[i].seen_s = now_s;
        w->list[i].deaf_since_s = 0;
        w->list[i].is_stopped = false;
        if (w->list[i].running) {
            look_at_process(&w->list[i], now_s);
        }
    }
}
