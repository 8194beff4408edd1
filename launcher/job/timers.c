/* Events of time: a worker's grace is over, a rank is silent, a round takes long to end. */
#include "base/clock.h"
#include "launcher/job/job.h"
#include "launcher/output/console.h"

#include <signal.h>
#include <stdio.h>

#define NEWS_S 2.0 /* processes that workers left are not mentioned before this time */
/* a bundled worker that was told to leave its waits has nothing to save */
#define ABORT_GRACE_S 5.0
/* time between the end of a save and KILL, in which hosts must agree */
#define SAVED_BEFORE_S 5.0
#define WAIT_LINE_S 10.0  /* between two lines of one wait */
#define WISHED_LINE_S 2.0 /* until the first line after a signal to dtrun */

void job_start_patience(struct job *job)
{
    if (!uv_is_active((uv_handle_t *)&job->timer.patience)) {
        /* a person waits, or does not see why */
        bool soon = job->stop.wish != 0 || job->workers.running_count == 0;
        uint64_t every_ms = (uint64_t)(WAIT_LINE_S / job->o->time_scale * 1e3) + 1;
        uint64_t first_ms = soon ? (uint64_t)(WISHED_LINE_S / job->o->time_scale * 1e3) + 1 : every_ms;
        job->round.ending_since_s = dt_now_s();
        uv_update_time(&job->loop);
        (void)uv_timer_start(&job->timer.patience, job->timer.patience.timer_cb, first_ms, every_ms);
    }
}

void job_start_grace(struct job *job, double seconds)
{
    job->round.grace_end_s = dt_now_s() + seconds;
    uv_update_time(&job->loop);
    (void)uv_timer_start(&job->timer.grace, job->timer.grace.timer_cb, (uint64_t)(seconds * 1e3), 0);
    job_start_patience(job);
}

double job_grace_s(const struct job *job)
{
    bool nothing_to_save =
        job->agent.options.bundled && !job->agent.stop_wanted && job->o->shutdown_timeout_s > ABORT_GRACE_S;
    bool saves = job->is_train && job->agent.stop_wanted;
    double grace_s = job->o->shutdown_timeout_s, rest_s = SAVED_BEFORE_S / job->o->time_scale;
    return nothing_to_save ? ABORT_GRACE_S : saves ? grace_s - (rest_s < grace_s / 4 ? rest_s : grace_s / 4) : grace_s;
}

/* Ranks of train are still in the save that a stop requested. Prints that once, with the time that
 * a save takes here. */
static bool say_save_dropped(const struct job *job)
{
    struct dt_page_look slow = {.step = 0}, page;
    double now_s = dt_now_s();
    int count = 0;
    long long saved = -1; /* by rank 0 first of all */
    for (int i = 0; i < job->workers.count; i++) {
        dt_page_read(job->workers.list[i].page, now_s, &page);
        saved = page.saved_step > saved ? page.saved_step : saved;
        if (job->workers.list[i].running && page.phase == DT_PHASE_SAVE) {
            slow = count == 0 ? page : slow;
            count++;
        }
    }
    if (!job->is_train || !job->agent.stop_wanted || count == 0 || saved >= slow.step) {
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
        job->failures.host, (long long)slow.step, slow.save_age_s, job_grace_s(job), stays);
    if (slow.save_s > 0) {
        dt_text_printf(&line, "the one before took %.1f s here; ", slow.save_s);
    }
    dt_text_printf(&line,
                   "make --shutdown_timeout (%g s), and the scheduler's time between its warning and KILL, longer\n",
                   job->o->shutdown_timeout_s);
    console_write(dt_text_str(&line), line.size);
    dt_text_clear(&line);
    return count == job->workers.running_count;
}

static void on_grace(uv_timer_t *timer)
{
    struct job *job = timer->data;
    if (job->round.killed) {
        console_say("dtrun: host %s: %d workers%s: not gone %g s after KILL: they hang in the kernel (state D); going "
                    "on without them\n",
                    job->failures.host, job->workers.running_count,
                    job->round.left_since_s > 0 ? ", but processes that they started" : "", JOB_STUCK_S);
        job->code =
            job->agent.verdict || (job->agent.stop_wanted && !job->agent.pausing) ? job->agent.code : DT_EXIT_FAILED;
        job->exiting = true;
        uv_stop(&job->loop);
        return;
    }
    bool all_save = say_save_dropped(job);
    for (int i = 0; i < job->workers.count && !all_save; i++) {
        if (job->workers.list[i].running) {
            console_say(
                "dtrun: host %s rank %d (local %d, pid %d): still there after %g s (--shutdown_timeout); killing it\n",
                job->failures.host, job->round.place.rank + i, i, (int)job->workers.list[i].pid, job_grace_s(job));
        }
    }
    if (job->round.left_since_s > 0) {
        struct dt_text left;
        dt_text_init(&left);
        job_add_left(&left);
        console_say("dtrun: host %s: what the workers had started is still there after %g s (--shutdown_timeout), and "
                    "is killed: %s\n",
                    job->failures.host, job_grace_s(job), dt_text_str(&left));
        dt_text_clear(&left);
    }
    job_post(job, AGENT_ON_GRACE, 0);
    job_drain(job);
}

static void on_patience(uv_timer_t *timer)
{
    const struct job *job = timer->data;
    if (job->workers.running_count > 0 || job->round.left_since_s > 0) {
        job_say_ending(job);
    }
}

static void on_sweep(uv_timer_t *timer)
{
    job_drain(timer->data);
}

/* The round takes long to end, so prints the local observation. */
static void on_news(uv_timer_t *timer)
{
    struct job *job = timer->data;
    struct dt_text line;
    if (job->failures.count == 0 || (job->workers.running_count == 0 && job->round.left_since_s == 0)) {
        return;
    }
    /* mostly it is over in a moment */
    if (job->workers.running_count == 0 && dt_now_s() - job->round.left_since_s < NEWS_S / job->o->time_scale) {
        (void)uv_timer_start(timer, timer->timer_cb, (uint64_t)(NEWS_S / job->o->time_scale * 1e3) + 1, 0);
        return;
    }
    dt_text_init(&line);
    report_cause(job->failures.list, 1, 0, &line);
    if (job->workers.running_count > 0) {
        dt_text_printf(&line, " (first seen); waiting up to %g s for %d other rank%s to end", job_grace_s(job),
                       job->workers.running_count, job->workers.running_count == 1 ? "" : "s");
    } else {
        dt_text_printf(&line, " (first seen); waiting up to %g s for what the workers had started to end",
                       job_grace_s(job));
    }
    console_say("%s\n", dt_text_str(&line));
    dt_text_clear(&line);
}

void job_hung_end(struct job *job)
{
    const struct worker *one = &job->workers.list[job->watching.hung];
    bool hangs = job->agent.state == AGENT_RUNNING && one->running && one->blamed;
    job_say_nccl(job);
    ras_close(job->watching.ras);
    job->watching.ras = NULL;
    if (hangs) {
        (void)kill(-one->pid, SIGKILL);
        job_post(job, one->deaf ? AGENT_ON_NO_START : AGENT_ON_WORKER_BAD, one->deaf ? DT_EXIT_FAILED : -SIGKILL);
        job_drain(job);
    }
}

static void on_watch(uv_timer_t *timer)
{
    struct job *job = timer->data;
    struct dt_text words;
    if (job->agent.state != AGENT_RUNNING || job->watching.ras != NULL) {
        return;
    }
    dt_text_init(&words);
    int i = watch_look(&job->workers, &job->watching.options, dt_now_s(), &words);
    if (i >= 0) { /* it is the cause, also of what happens while NCCL is asked */
        struct worker *one = &job->workers.list[i];
        one->status = SIGKILL; /* what it will be */
        failures_add(&job->failures, one, i, job->round.place.rank + i, false, dt_text_str(&words));
        job->watching.hung = i;
        if (!job_ask_nccl(job)) {
            job_hung_end(job);
        }
    }
    dt_text_clear(&words);
}

/* Any program may let some workers end before others, as under torchrun; that is printed once.
 * Ranks of train end together, except that rank 0 writes files last. So a rank that waits for an
 * ended rank waits for ever. */
static void on_barrier(uv_timer_t *timer)
{
    struct job *job = timer->data;
    struct dt_text words;
    if (job->agent.state != AGENT_RUNNING || job->workers.running_count == 0) {
        return;
    }
    if (!job->is_train) {
        job_say_waiting(job);
        return;
    }
    dt_text_init(&words);
    int i = watch_barrier(&job->workers, job->o->exit_barrier_s, dt_now_s(), &words);
    if (i >= 0) {
        failures_add(&job->failures, &job->workers.list[i], i, job->round.place.rank + i, false, dt_text_str(&words));
        job_post(job, AGENT_ON_WORKER_BAD, DT_EXIT_FAILED);
        job_drain(job);
    } else {
        (void)uv_timer_start(timer, timer->timer_cb, 1000, 0);
    }
    dt_text_clear(&words);
}

/* The host of the first cause may be slow to report it, or lost, which is known after dead_after_s.
 * Meanwhile the local observation is printed. */
static void on_late(uv_timer_t *timer)
{
    struct job *job = timer->data;
    if (job->cause.late && !job->cause.seen) {
        job->cause.seen = true;
        job_say_first_seen(job);
        (void)uv_timer_start(timer, timer->timer_cb, (uint64_t)(job->o->dead_after_s * 1e3), 0);
        return;
    }
    job_say_late(job);
}

static void open_timer(struct job *job, uv_timer_t *timer, uv_timer_cb callback)
{
    (void)uv_timer_init(&job->loop, timer);
    timer->data = job;
    timer->timer_cb = callback;
}

void job_open_timers(struct job *job)
{
    open_timer(job, &job->timer.grace, on_grace);
    open_timer(job, &job->timer.patience, on_patience);
    open_timer(job, &job->timer.news, on_news);
    open_timer(job, &job->timer.barrier, on_barrier);
    open_timer(job, &job->timer.sweep, on_sweep);
    open_timer(job, &job->timer.watch, on_watch);
    open_timer(job, &job->timer.late, on_late);
}
