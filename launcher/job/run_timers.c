/* What happens because time has passed: a worker's grace is over, a rank is silent, a round
 * takes its time to end. */
#include "base/clock.h"
#include "launcher/job/run_parts.h"
#include "launcher/output/console.h"

#include <signal.h>
#include <stdio.h>

#define NEWS_S 2.0 /* so long nothing is said of what workers have left behind */
/* a bundled worker that was told to leave its waits has nothing to save */
#define ABORT_GRACE_S 5.0
/* a save must be done so long before the KILL: hosts have yet to agree */
#define SAVED_BEFORE_S 5.0
#define WAIT_LINE_S 10.0  /* between two lines about a wait */
#define WISHED_LINE_S 2.0 /* to the first one after a signal to us */

void run_start_patience(struct run *r)
{
    if (!uv_is_active((uv_handle_t *)&r->patience)) {
        /* a person waits, or does not see why */
        bool soon = r->wish != 0 || r->workers.running_count == 0;
        uint64_t every_ms = (uint64_t)(WAIT_LINE_S / r->o->time_scale * 1e3) + 1;
        uint64_t first_ms = soon ? (uint64_t)(WISHED_LINE_S / r->o->time_scale * 1e3) + 1 : every_ms;
        r->ending_since_s = dt_now_s();
        uv_update_time(&r->loop);
        (void)uv_timer_start(&r->patience, r->patience.timer_cb, first_ms, every_ms);
    }
}

void run_start_grace(struct run *r, double seconds)
{
    r->grace_end_s = dt_now_s() + seconds;
    uv_update_time(&r->loop);
    (void)uv_timer_start(&r->grace, r->grace.timer_cb, (uint64_t)(seconds * 1e3), 0);
    run_start_patience(r);
}

double run_grace_s(const struct run *r)
{
    bool nothing_to_save =
        r->agent.options.bundled && !r->agent.stop_wanted && r->o->shutdown_timeout_s > ABORT_GRACE_S;
    bool saves = r->is_train && r->agent.stop_wanted;
    double grace_s = r->o->shutdown_timeout_s, rest_s = SAVED_BEFORE_S / r->o->time_scale;
    return nothing_to_save ? ABORT_GRACE_S : saves ? grace_s - (rest_s < grace_s / 4 ? rest_s : grace_s / 4) : grace_s;
}

/* Ranks of train that are still in the save that a stop asked for: said once, with what a save
 * takes here. */
static bool say_save_dropped(const struct run *r)
{
    struct dt_page_look slow = {.step = 0}, page;
    double now_s = dt_now_s();
    int count = 0;
    long long saved = -1; /* by rank 0 first of all */
    for (int i = 0; i < r->workers.count; i++) {
        dt_page_read(r->workers.list[i].page, now_s, &page);
        saved = page.saved_step > saved ? page.saved_step : saved;
        if (r->workers.list[i].running && page.phase == DT_PHASE_SAVE) {
            slow = count == 0 ? page : slow;
            count++;
        }
    }
    if (!r->is_train || !r->agent.stop_wanted || count == 0 || saved >= slow.step) {
        return false;
    }
    char stays[64] = "nothing was saved before";
    struct dt_text line;
    dt_text_init(&line);
    if (saved >= 0) {
        (void)snprintf(stays, sizeof stays, "step %lld stays", saved);
    }
    dt_text_printf(
        &line,
        "dtrun: host %s: the save of step %lld, %.1f s old, was not done %.1f s after the stop: it is dropped, %s; ",
        r->failures.host, (long long)slow.step, slow.save_age_s, run_grace_s(r), stays);
    if (slow.save_s > 0) {
        dt_text_printf(&line, "the one before took %.1f s here; ", slow.save_s);
    }
    dt_text_printf(&line,
                   "make --shutdown_timeout (%g s), and the scheduler's time between its warning and KILL, longer\n",
                   r->o->shutdown_timeout_s);
    console_write(dt_text_str(&line), line.size);
    dt_text_clear(&line);
    return count == r->workers.running_count;
}

static void on_grace(uv_timer_t *timer)
{
    struct run *r = timer->data;
    if (r->killed) {
        console_say("dtrun: host %s: %d workers%s: not gone %g s after KILL: they hang in the kernel (state D); going "
                    "on without them\n",
                    r->failures.host, r->workers.running_count,
                    r->left_since_s > 0 ? ", but processes that they started" : "", RUN_STUCK_S);
        r->code = r->agent.verdict || (r->agent.stop_wanted && !r->agent.pausing) ? r->agent.code : DT_EXIT_FAILED;
        r->exiting = true;
        uv_stop(&r->loop);
        return;
    }
    bool all_save = say_save_dropped(r);
    for (int i = 0; i < r->workers.count && !all_save; i++) {
        if (r->workers.list[i].running) {
            console_say(
                "dtrun: host %s rank %d (local %d, pid %d): still there after %g s (--shutdown_timeout); killing it\n",
                r->failures.host, r->place.rank + i, i, (int)r->workers.list[i].pid, run_grace_s(r));
        }
    }
    if (r->left_since_s > 0) {
        struct dt_text left;
        dt_text_init(&left);
        run_add_left(&left);
        console_say("dtrun: host %s: what the workers had started is still there after %g s (--shutdown_timeout), and "
                    "is killed: %s\n",
                    r->failures.host, run_grace_s(r), dt_text_str(&left));
        dt_text_clear(&left);
    }
    run_post(r, AGENT_ON_GRACE, 0);
    run_drain(r);
}

static void on_patience(uv_timer_t *timer)
{
    const struct run *r = timer->data;
    if (r->workers.running_count > 0 || r->left_since_s > 0) {
        run_say_ending(r);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    run_drain(timer->data);
}

/* The round takes its time to end: say at least what was seen first. */
static void on_news(uv_timer_t *timer)
{
    struct run *r = timer->data;
    struct dt_text line;
    if (r->failures.count == 0 || (r->workers.running_count == 0 && r->left_since_s == 0)) {
        return;
    }
    /* mostly it is over in a moment */
    if (r->workers.running_count == 0 && dt_now_s() - r->left_since_s < NEWS_S / r->o->time_scale) {
        (void)uv_timer_start(timer, timer->timer_cb, (uint64_t)(NEWS_S / r->o->time_scale * 1e3) + 1, 0);
        return;
    }
    dt_text_init(&line);
    report_cause(r->failures.list, 1, 0, &line);
    if (r->workers.running_count > 0) {
        dt_text_printf(&line, " (first seen); waiting up to %g s for %d other rank%s to end", run_grace_s(r),
                       r->workers.running_count, r->workers.running_count == 1 ? "" : "s");
    } else {
        dt_text_printf(&line, " (first seen); waiting up to %g s for what the workers had started to end",
                       run_grace_s(r));
    }
    console_say("%s\n", dt_text_str(&line));
    dt_text_clear(&line);
}

void run_hung_end(struct run *r)
{
    const struct worker *one = &r->workers.list[r->hung];
    bool hangs = r->agent.state == AGENT_RUNNING && one->running && one->blamed;
    run_say_nccl(r);
    ras_close(r->ras);
    r->ras = NULL;
    if (hangs) {
        (void)kill(-one->pid, SIGKILL);
        run_post(r, one->deaf ? AGENT_ON_NO_START : AGENT_ON_WORKER_BAD, one->deaf ? DT_EXIT_FAILED : -SIGKILL);
        run_drain(r);
    }
}

static void on_watch(uv_timer_t *timer)
{
    struct run *r = timer->data;
    struct dt_text words;
    if (r->agent.state != AGENT_RUNNING || r->ras != NULL) {
        return;
    }
    dt_text_init(&words);
    int i = watch_look(&r->workers, &r->watch_options, dt_now_s(), &words);
    if (i >= 0) { /* it is the cause, also of what happens while NCCL is asked */
        struct worker *one = &r->workers.list[i];
        one->status = SIGKILL; /* what it will be */
        failures_add(&r->failures, one, i, r->place.rank + i, false, dt_text_str(&words));
        r->hung = i;
        if (!run_ask_nccl(r)) {
            run_hung_end(r);
        }
    }
    dt_text_clear(&words);
}

/* Any program may let some of its workers end before others, as under torchrun: it is said once.
 * Ranks of train end together, but for files that rank 0 writes last; so whoever waits for a
 * rank that has ended waits for ever. */
static void on_barrier(uv_timer_t *timer)
{
    struct run *r = timer->data;
    struct dt_text words;
    if (r->agent.state != AGENT_RUNNING || r->workers.running_count == 0) {
        return;
    }
    if (!r->is_train) {
        run_say_waiting(r);
        return;
    }
    dt_text_init(&words);
    int i = watch_barrier(&r->workers, r->o->exit_barrier_s, dt_now_s(), &words);
    if (i >= 0) {
        failures_add(&r->failures, &r->workers.list[i], i, r->place.rank + i, false, dt_text_str(&words));
        run_post(r, AGENT_ON_WORKER_BAD, DT_EXIT_FAILED);
        run_drain(r);
    } else {
        (void)uv_timer_start(timer, timer->timer_cb, 1000, 0);
    }
    dt_text_clear(&words);
}

/* The host of the first cause may be slow to say so, or lost, which shows after dead_after_s:
 * meanwhile what was seen here. */
static void on_late(uv_timer_t *timer)
{
    struct run *r = timer->data;
    if (r->cause_late && !r->cause_seen) {
        r->cause_seen = true;
        run_say_first_seen(r);
        (void)uv_timer_start(timer, timer->timer_cb, (uint64_t)(r->o->dead_after_s * 1e3), 0);
        return;
    }
    run_say_late(r);
}

static void open_timer(struct run *r, uv_timer_t *timer, uv_timer_cb callback)
{
    (void)uv_timer_init(&r->loop, timer);
    timer->data = r;
    timer->timer_cb = callback;
}

void run_open_timers(struct run *r)
{
    open_timer(r, &r->grace, on_grace);
    open_timer(r, &r->patience, on_patience);
    open_timer(r, &r->news, on_news);
    open_timer(r, &r->barrier, on_barrier);
    open_timer(r, &r->sweep, on_sweep);
    open_timer(r, &r->watch, on_watch);
    open_timer(r, &r->late, on_late);
}
