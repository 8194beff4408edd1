/* All events are handled on one loop in one thread. Signals come through a descriptor with the
 * sender's pid. So a signal that a scheduler sends to each of our processes is not mistaken for a
 * user's second request. Exits of children are a signal, too: nothing polls.
 *
 *   SIGCHLD ─▶ reap ─▶ agent_step ─▶ todo: order, signal, kill, spawn, exit
 *                        │  ▲
 *             hosts_tell ▼  │ start, end, stop, verdict: hooks.act
 *                        hosts */
#include "launcher/job/job.h"

#include "base/clock.h"
#include "base/log.h"
#include "launcher/workers/guard.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>

/* The first line about a failure waits so long, because by then the round may be over and its cause
 * known. */
#define SETTLE_S 0.1

void job_post(struct job *job, enum agent_event event, int value)
{
    assert(job->queue.posted - job->queue.taken < QUEUE);
    job->queue.list[job->queue.posted % QUEUE].event = event;
    job->queue.list[job->queue.posted++ % QUEUE].value = value;
}

/* ---- events from processes ---- */

static void worker_ended(struct job *job, int i, bool ended_by_us)
{
    const struct worker *one = &job->workers.list[i];
    int code = workers_code(one->status);
    if (code == -SIGKILL && !job->round.killed && !guard_workers_overdue()) {
        /* not our signal: another sender ended it while the round was being ended, perhaps for the
         * same reason */
        ended_by_us = false;
    }
    logs_finish(job->logs, i);
    dt_log(DT_LOG_INFO, "agent", "round %d local %d pid %d ended with %d", job->round.place.round, i, (int)one->pid,
           code);
    if (code == 0) {
        if (!uv_is_active((uv_handle_t *)&job->timer.barrier)) {
            (void)uv_timer_start(&job->timer.barrier, job->timer.barrier.timer_cb,
                                 (uint64_t)(job->o->exit_barrier_s * 1e3) + 1, 0);
        }
        job_post(job, AGENT_ON_WORKER_OK, 0);
    } else if (job->agent.options.bundled && code == DT_EXIT_STOPPED) {
        job_post(job, AGENT_ON_WORKER_75, 0);
    } else {
        if (!one->blamed) { /* a silent worker was recorded when it was named */
            failures_add(&job->failures, one, i, job->round.place.rank + i, ended_by_us,
                         code < 0 && one->note[0] != 0 ? one->note : NULL);
        }
        if (!ended_by_us && !uv_is_active((uv_handle_t *)&job->timer.news)) {
            (void)uv_timer_start(&job->timer.news, job->timer.news.timer_cb, (uint64_t)(SETTLE_S * 1e3), 0);
        }
        job_post(job, AGENT_ON_WORKER_BAD, code);
    }
    job_drain(job);
}

/* Reaps all exits before it handles the first one: a worker that ended before we sent any signal
 * ended by itself. */
void job_reap(struct job *job)
{
    bool was_ending = job->round.ending || guard_workers_overdue();
    job->queue.reaping = true;
    bool *ended = dt_alloc((size_t)job->workers.count * sizeof *ended);
    int rank, status;
    pid_t pid;
    do {
        rank = workers_reap(&job->workers, &pid, &status);
        if (rank >= 0) {
            ended[rank] = true;
        }
    } while (pid > 0);
    for (int i = 0; i < job->workers.count; i++) {
        if (ended[i]) {
            worker_ended(job, i, was_ending);
        }
    }
    free(ended);
    job->queue.reaping = false;
    job_drain(job);
}

/* The round has ended when no worker runs and none of the processes that they started is left. */
static void check_gone(struct job *job)
{
    bool over = job->agent.state == AGENT_RUNNING || job->agent.state == AGENT_STOPPING;
    if (!over || job->queue.reaping || job->workers.running_count > 0 || job->round.gone_posted) {
        return;
    }
    if (job_await_left(job)) {
        return;
    }
    (void)uv_timer_stop(&job->timer.sweep);
    (void)uv_timer_stop(&job->timer.grace);
    (void)uv_timer_stop(&job->timer.patience);
    (void)uv_timer_stop(&job->timer.news);
    (void)uv_timer_stop(&job->timer.barrier);
    job->round.gone_posted = true;
    job_starts_say(job);
    failures_progress(&job->failures, &job->workers);
    job_post(job, AGENT_ON_GONE, 0);
}

/* ---- actions of the agent ---- */

/* From now on workers end because they were told to, and what they save is new. */
static void begin_ending(struct job *job)
{
    if (!job->round.ending) {
        job->round.ending = true;
        failures_progress(&job->failures, &job->workers);
        job->stop.saved_before = job->failures.saved_step;
    }
}

static void end_workers(struct job *job, int n)
{
    begin_ending(job);
    workers_signal(&job->workers, n);
    workers_signal(&job->workers, SIGCONT); /* a stopped process does not handle TERM */
}

static void kill_all(struct job *job)
{
    begin_ending(job);
    workers_signal(&job->workers, SIGKILL);
    (void)guard_kill_descendants();
    if (!job->round.killed) {
        job->round.killed = true;
        job_start_grace(job, JOB_STUCK_S);
    }
}

static void order_stop(struct job *job)
{
    if (job->is_train) {
        begin_ending(job);
        workers_order(&job->workers, DT_ORDER_STOP);
        /* a stopped worker could not save, and the others would wait for it */
        workers_signal(&job->workers, SIGCONT);
    } else {
        end_workers(job, job->agent.signal);
    }
}

static void exit_job(struct job *job)
{
    job_say_late(job);
    job->code = job->agent.code;
    if (job->code != DT_EXIT_DONE && job->code != DT_EXIT_STOPPED) {
        job_say_elsewhere(job);
    }
    job->exiting = true;
    uv_stop(&job->loop);
}

static void do_one(struct job *job, enum agent_do what)
{
    struct event e = {.round = job->round.place.round,
                      .local_world_size = job->o->nproc,
                      .order = job->o->node_rank,
                      .role = job->o->role,
                      .failure = job->agent.failure,
                      .code = job->agent.failure_code};
    struct cause cause;
    switch (what) {
    case AGENT_DO_SPAWN:
        job_spawn(job);
        return;
    case AGENT_DO_ORDER_STOP:
        order_stop(job);
        return;
    case AGENT_DO_ORDER_ABORT:
        begin_ending(job);
        workers_order(&job->workers, DT_ORDER_ABORT);
        return;
    case AGENT_DO_TERM:
        end_workers(job, job->agent.signal);
        return;
    case AGENT_DO_KILL:
        kill_all(job);
        return;
    case AGENT_DO_GRACE:
        if (!uv_is_active((uv_handle_t *)&job->timer.grace)) {
            job_start_grace(job, job_grace_s(job));
        }
        return;
    case AGENT_DO_EXIT:
        exit_job(job);
        return;
    case AGENT_DO_TELL_JOIN:
        job->join_s = dt_now_s();
        e.kind = EVENT_JOIN;
        break;
    case AGENT_DO_TELL_FAILED:
        job->round.told_failed = true;
        e.kind = EVENT_FAILED;
        failures_progress(&job->failures, &job->workers);
        job_first_failure(job, &e, &cause);
        e.step = job->failures.step;
        e.saved_step = job->failures.saved_step;
        break;
    case AGENT_DO_TELL_DONE:
        e.kind = EVENT_DONE;
        break;
    case AGENT_DO_TELL_STOPPED:
        e.kind = EVENT_STOPPED;
        break;
    case AGENT_DO_TELL_STOP:
        e.kind = EVENT_STOP;
        e.code = job->stop.wish != 0 ? 128 + job->stop.wish : job->agent.code;
        e.saved = agent_has_saved(&job->agent);
        break;
    case AGENT_DO_TELL_KILL:
        e.kind = EVENT_STOP;
        e.code = COORDINATOR_KILL;
        break;
    }
    hosts_tell(job->hosts, &e);
    /* the leader that was told may be gone, and a round would begin without the stop */
    if (what == AGENT_DO_TELL_JOIN && job->stop.wish != 0 && !job->exiting) {
        e.kind = EVENT_STOP;
        e.code = 128 + job->stop.wish;
        e.saved = agent_has_saved(&job->agent);
        hosts_tell(job->hosts, &e);
    }
}

/* A worker failed by itself while the round was being ended because of other hosts. Those may only
 * have lost it, or have ended with its error, so its cause counts more. */
static void tell_late_failure(struct job *job)
{
    struct event e = {
        .kind = EVENT_FAILED, .round = job->round.place.round, .code = DT_EXIT_FAILED, .step = -1, .saved_step = -1};
    if (job->round.told_failed || job->agent.stop_wanted || job->agent.verdict || job->failures.count == 0) {
        return;
    }
    struct cause cause;
    bool told_others = failures_own_up(&job->failures, hosts_cause(job->hosts, job->round.place.round).cause);
    job_first_failure(job, &e, &cause);
    if ((!e.weak || told_others) && !job->failures.list[job->failures.root].stopped_by_us) {
        hosts_tell(job->hosts, &e);
    }
}

void job_drain(struct job *job)
{
    if (job->queue.draining) {
        return;
    }
    job->queue.draining = true;
    do {
        while (job->queue.taken < job->queue.posted && !job->exiting) {
            int at = job->queue.taken++ % QUEUE;
            bool gone = job->queue.list[at].event == AGENT_ON_GONE;
            agent_step(&job->agent, job->queue.list[at].event, job->queue.list[at].value);
            dt_log(DT_LOG_DEBUG, "agent", "event %d value %d state %s", (int)job->queue.list[at].event,
                   job->queue.list[at].value, agent_state_name(job->agent.state));
            if (gone) {
                tell_late_failure(job);
                job_say_cause(job);
            }
            for (int i = 0; i < job->agent.do_count; i++) {
                do_one(job, job->agent.todo[i]);
            }
        }
        check_gone(job);
    } while (job->queue.taken < job->queue.posted && !job->exiting);
    job->queue.draining = false;
}

/* ---- actions of the hosts ---- */

static void on_act(void *user, const struct action *a, const struct hosts_meeting *meeting)
{
    struct job *job = user;
    switch (a->kind) {
    case ACTION_START:
        job->round = (struct round){.place = a->place, .meeting = *meeting};
        job_post(job, AGENT_ON_START, 0);
        break;
    case ACTION_END:
        job_say_lost(job);
        if (job->agent.state == AGENT_FINISHING) {
            job_say_elsewhere(job);
        }
        job_post(job, AGENT_ON_END, 0);
        break;
    case ACTION_STOP:
        job->stop.signal = a->code == COORDINATOR_KILL ? job->stop.signal : a->code > 128 ? a->code - 128 : 0;
        job_post(job, AGENT_ON_STOP, a->code);
        break;
    case ACTION_PAUSE:
        job_say_pause(job);
        job_post(job, AGENT_ON_PAUSE, a->code);
        break;
    case ACTION_LEAVE:
        job->stop.left = true;
        job->stop.alone = hosts_view(job->hosts).alone;
        job->stop.signal = a->code > 128 ? a->code - 128 : 0;
        job_post(job, AGENT_ON_LEAVE, a->code);
        break;
    case ACTION_FINISH:
    case ACTION_REFUSE:
        job_post(job, AGENT_ON_VERDICT, a->code);
        break;
    }
}

static void on_settle(void *user)
{
    job_drain(user);
}

struct hosts_hooks job_hosts_hooks(struct job *job)
{
    return (struct hosts_hooks){
        .user = job, .act = on_act, .settle = on_settle, .rows = job_status_rows, .gathered = job_status_gathered};
}

void job_join(struct job *job)
{
    do_one(job, AGENT_DO_TELL_JOIN);
    job_drain(job);
}
