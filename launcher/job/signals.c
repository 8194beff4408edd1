/* Requests to the agent: signals, which come through a descriptor with the sender's pid, and the
 * launching host of --hostfile. The agent's table decides what follows (agent.h). The end of a
 * child is a signal, too. */
#include "base/clock.h"
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/workers/guard.h"
#include "launcher/job/job.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Ctrl-Z. The workers' sessions do not get it, so we stop them, then ourselves; the guard follows.
 * The stopped time counts against nobody. */
static void suspend(struct job *job)
{
    double start_s = dt_now_s();
    workers_signal(&job->workers, SIGSTOP);
    (void)raise(SIGSTOP);
    workers_signal(&job->workers, SIGCONT);
    double now_s = dt_now_s();
    uv_update_time(&job->loop);
    watch_forgive(&job->workers, now_s);
    if (uv_is_active((uv_handle_t *)&job->timer.grace)) {
        job->round.grace_end_s += now_s - start_s;
        (void)uv_timer_start(&job->timer.grace, job->timer.grace.timer_cb,
                             (uint64_t)((job->round.grace_end_s - now_s) * 1e3) + 1, 0);
    }
}

static void take_signal(struct job *job, const struct signalfd_siginfo *info)
{
    int n = (int)info->ssi_signo;
    if (n == SIGCHLD) {
        job_reap(job);
        return;
    }
    if (!guard_alive()) { /* our parent-death signal: there is no time for anything */
        job->stop.wish = SIGTERM;
        job->stop.guard_gone = true;
        job_post(job, AGENT_ON_NOW, SIGTERM);
        return;
    }
    bool by_guard = (pid_t)info->ssi_pid == getppid();
    job->signals.count[n] += by_guard;
    if (n == SIGTSTP) {
        suspend(job);
    } else if ((n == SIGUSR1 || n == SIGUSR2) && !job->is_train && !job->o->signals[n] &&
               (job->workers.running_count > 0 || job->round.place.round > 0)) {
        workers_signal(&job->workers, n); /* meant for the program */
        if (job->workers.running_count > 0) {
            console_say("dtrun: host %s: %s: passed on to %d worker%s\n", job->failures.host,
                        n == SIGUSR1 ? "USR1" : "USR2", job->workers.running_count,
                        job->workers.running_count == 1 ? "" : "s");
        }
    } else if (n == SIGCONT) {
        return;
    } else if (job->stop.wish == 0) {
        job->stop.wish = n;
        dt_log(DT_LOG_INFO, "agent", "signal %d", n);
        job_post(job, AGENT_ON_SIGNAL, n);
    } else if (job->signals.count[n] > 1 && (n == SIGINT || !job->stop.scheduled)) {
        job_post(job, AGENT_ON_INSIST, n);
    } else {
        dt_log(DT_LOG_INFO, "agent", "signal %d while stopping because of signal %d", n, job->stop.wish);
    }
}

static void on_signals(uv_poll_t *handle, int status, int events)
{
    struct job *job = handle->data;
    struct signalfd_siginfo info;
    (void)status;
    (void)events;
    while (read(job->signals.fd, &info, sizeof info) == (ssize_t)sizeof info) {
        take_signal(job, &info);
        job_drain(job);
    }
}

int job_open_signals(struct job *job, struct dt_error *err)
{
    sigset_t set;
    process_wishes(job->o->signals, &set);
    (void)sigaddset(&set, SIGCONT);
    (void)sigaddset(&set, SIGCHLD);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGTTOU, SIG_IGN);
    (void)sigprocmask(SIG_SETMASK, &set, NULL);
    job->signals.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return job->signals.fd >= 0 ? 0 : dt_fail_errno(err, "signals");
}

/* ---- the launching host of --hostfile ---- */

static void on_leash_signal(void *user, int number)
{
    (void)user;
    if (guard_alive()) {               /* our parent is another process otherwise, and we end
                                        * anyway */
        (void)kill(getppid(), number); /* the guard hands it to us as the shell's */
    }
}

/* No launching host waits for this host any more. For the other hosts it is lost. */
static void on_leash_gone(void *user, const char *cause)
{
    struct job *job = user;
    if (job->exiting) {
        return;
    }
    console_say("dtrun: host %s: the launching host is gone (%s): ending the workers here\n", job->failures.host,
                cause);
    job->stop.wish = SIGHUP;
    job_post(job, AGENT_ON_NOW, SIGHUP);
    job_drain(job);
}

int job_watch_signals(struct job *job, struct dt_error *err)
{
    int failed = uv_poll_init(&job->loop, &job->signals.poll, job->signals.fd);
    job->signals.poll.data = job;
    if (failed != 0 || (failed = uv_poll_start(&job->signals.poll, UV_READABLE, on_signals)) != 0) {
        return dt_fail(err, DT_IO, "signals: %s", uv_strerror(failed));
    }
    if (job->o->leash_fd < 0) {
        return 0;
    }
    job->leash = (struct leash){.signal = on_leash_signal, .gone = on_leash_gone, .user = job};
    return leash_watch(&job->leash, &job->loop, job->o->leash_fd, 2 * job->o->dead_after_s, err);
}
