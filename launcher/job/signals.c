/* Who may ask the agent for something: signals, through a descriptor, with the sender's pid; and
 * the launching host of --hostfile. What comes of it is the agent's business (agent.h); a
 * child's end is a signal, too. */
#include "base/clock.h"
#include "base/log.h"
#include "launcher/output/console.h"
#include "launcher/workers/guard.h"
#include "launcher/job/job.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* Ctrl-Z: the workers' sessions do not hear of it, so we stop them, then ourselves; the guard
 * follows. Nobody's time runs meanwhile. */
static void suspend(struct run *r)
{
    double start_s = dt_now_s();
    workers_signal(&r->workers, SIGSTOP);
    (void)raise(SIGSTOP);
    workers_signal(&r->workers, SIGCONT);
    double now_s = dt_now_s();
    uv_update_time(&r->loop);
    watch_forgive(&r->workers, now_s);
    if (uv_is_active((uv_handle_t *)&r->grace)) {
        r->grace_end_s += now_s - start_s;
        (void)uv_timer_start(&r->grace, r->grace.timer_cb, (uint64_t)((r->grace_end_s - now_s) * 1e3) + 1, 0);
    }
}

static void take_signal(struct run *r, const struct signalfd_siginfo *info)
{
    int n = (int)info->ssi_signo;
    if (n == SIGCHLD) {
        run_reap(r);
        return;
    }
    if (!guard_alive()) { /* our parent-death signal: no time for anything */
        r->wish = SIGTERM;
        r->guard_gone = true;
        run_post(r, AGENT_ON_NOW, SIGTERM);
        return;
    }
    bool by_guard = (pid_t)info->ssi_pid == getppid();
    r->signal_count[n] += by_guard;
    if (n == SIGTSTP) {
        suspend(r);
    } else if ((n == SIGUSR1 || n == SIGUSR2) && !r->is_train && !r->o->signals[n] &&
               (r->workers.running_count > 0 || r->place.round > 0)) {
        workers_signal(&r->workers, n); /* the program's own business */
        if (r->workers.running_count > 0) {
            console_say("dtrun: host %s: %s: passed on to %d worker%s\n", r->failures.host,
                        n == SIGUSR1 ? "USR1" : "USR2", r->workers.running_count,
                        r->workers.running_count == 1 ? "" : "s");
        }
    } else if (n == SIGCONT) {
        return;
    } else if (r->wish == 0) {
        r->wish = n;
        dt_log(DT_LOG_INFO, "agent", "signal %d", n);
        run_post(r, AGENT_ON_SIGNAL, n);
    } else if (r->signal_count[n] > 1 && (n == SIGINT || !r->scheduled)) {
        run_post(r, AGENT_ON_INSIST, n);
    } else {
        dt_log(DT_LOG_INFO, "agent", "signal %d while stopping because of signal %d", n, r->wish);
    }
}

static void on_signals(uv_poll_t *handle, int status, int events)
{
    struct run *r = handle->data;
    struct signalfd_siginfo info;
    (void)status;
    (void)events;
    while (read(r->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        take_signal(r, &info);
        run_drain(r);
    }
}

int run_open_signals(struct run *r, struct dt_error *err)
{
    sigset_t set;
    process_wishes(r->o->signals, &set);
    (void)sigaddset(&set, SIGCONT);
    (void)sigaddset(&set, SIGCHLD);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGTTOU, SIG_IGN);
    (void)sigprocmask(SIG_SETMASK, &set, NULL);
    r->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return r->signal_fd >= 0 ? 0 : dt_fail_errno(err, "signals");
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

/* Nobody waits for this host any more: for the others it is lost. */
static void on_leash_gone(void *user, const char *cause)
{
    struct run *r = user;
    if (r->exiting) {
        return;
    }
    console_say("dtrun: host %s: the launching host is gone (%s): ending the workers here\n", r->failures.host, cause);
    r->wish = SIGHUP;
    run_post(r, AGENT_ON_NOW, SIGHUP);
    run_drain(r);
}

int run_watch_signals(struct run *r, struct dt_error *err)
{
    int failed = uv_poll_init(&r->loop, &r->signals, r->signal_fd);
    r->signals.data = r;
    if (failed != 0 || (failed = uv_poll_start(&r->signals, UV_READABLE, on_signals)) != 0) {
        return dt_fail(err, DT_IO, "signals: %s", uv_strerror(failed));
    }
    if (r->o->leash_fd < 0) {
        return 0;
    }
    r->leash = (struct leash){.signal = on_leash_signal, .gone = on_leash_gone, .user = r};
    return leash_watch(&r->leash, &r->loop, r->o->leash_fd, 2 * r->o->dead_after_s, err);
}
