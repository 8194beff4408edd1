/* Processes that workers started and left when the last of them ended: filters of their output,
 * programs under a wrapper that took TERM first, background work. A round is over, and the job
 * ends, only when none of them runs any more. Until then they may end by themselves. How long they
 * have, and when they are told to end, depends on how the workers ended. */
#include "base/clock.h"
#include "launcher/workers/guard.h"
#include "launcher/job/job.h"
#include "launcher/output/console.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { LEFT_MAX = 1024, NAMED = 4 };

/* a round is being ended: what ends when a pipe of its worker is closed needs no TERM */
#define SETTLE_LEFT_S 1.0
#define TOLD_S 5.0 /* all is well, but it was told to end: from TERM to KILL */
#define LOOK_S 0.02
#define LATER_S 0.1

/* "pid 12 (cat), pid 13 (python3), ..." */
static void add_names(const pid_t *list, int count, struct dt_text *out)
{
    for (int i = 0; i < count && i < NAMED; i++) {
        char path[64], name[64];
        (void)snprintf(path, sizeof path, "/proc/%d/comm", (int)list[i]);
        process_read(path, name, sizeof name);
        name[strcspn(name, "\n")] = '\0';
        dt_text_make_harmless(name, false); /* a process chooses it */
        dt_text_printf(out, "%spid %d (%s)", i > 0 ? ", " : "", (int)list[i], name);
    }
    dt_text_puts(out, count > NAMED ? ", ..." : "");
}

void job_add_left(struct dt_text *out)
{
    pid_t list[LEFT_MAX] = {0};
    bool dying;
    int count = guard_descendants(list, LEFT_MAX, &dying);
    add_names(list, count, out);
}

/* Whether all workers of the round ended with 0 and no stop was requested. */
static bool ended_well(const struct job *job)
{
    return job->agent.state == AGENT_RUNNING;
}

/* Whether a signal to its worker's group reached the process, too. */
static bool was_told(const struct job *job, pid_t pid)
{
    pid_t group = getpgid(pid);
    bool told = false;
    for (int k = 0; k < job->workers.count && !told; k++) {
        told = job->workers.list[k].told && job->workers.list[k].pid == group;
    }
    return told;
}

/* Processes that were told to end are not told again, because many programs take a second signal
 * for "at once". The exception are processes that did not get it: a script's background processes
 * ignore INT. */
static void tell(const struct job *job, const pid_t *list, int count)
{
    int n = ended_well(job) || job->agent.signal == 0 ? SIGTERM : job->agent.signal;
    for (int i = 0; i < count; i++) {
        bool deaf = process_ignores(list[i], n);
        if ((deaf || !was_told(job, list[i])) && kill(list[i], deaf ? SIGTERM : n) == 0) {
            (void)kill(list[i], SIGCONT);
        }
    }
}

static void say_told(const struct job *job, const pid_t *list, int count, double waited_s)
{
    struct dt_text line;
    dt_text_init(&line);
    dt_text_printf(&line,
                   "dtrun: host %s: what the workers had started still runs %.0f s after they ended, and is ended with "
                   "TERM (--shutdown_timeout): ",
                   job->failures.host, waited_s);
    add_names(list, count, &line);
    console_say("%s\n", dt_text_str(&line));
    dt_text_clear(&line);
}

bool job_await_left(struct job *job)
{
    pid_t list[LEFT_MAX];
    bool dying;
    int count = guard_descendants(list, LEFT_MAX, &dying);
    double now_s = dt_now_s(), grace_s = job->o->shutdown_timeout_s;
    if (count == 0 && !dying) {
        return false;
    }
    if (job->round.left_since_s == 0) {
        job->round.left_since_s = now_s;
        if (ended_well(job)) {
            job->round.grace_end_s = now_s + grace_s;
        }
        job_start_patience(job);
    }
    bool well = ended_well(job);
    double told_s = well ? grace_s : fmin(SETTLE_LEFT_S / job->o->time_scale, grace_s),
           waited_s = now_s - job->round.left_since_s;
    if (!well && !job->round.killed && !uv_is_active((uv_handle_t *)&job->timer.grace)) {
        job_start_grace(job, job_grace_s(job));
    }
    if (count > 0 && !job->round.left_told && !job->round.killed && waited_s >= told_s) {
        job->round.left_told = true;
        if (well) {
            say_told(job, list, count, waited_s);
        }
        tell(job, list, count);
    }
    if (job->round.killed || (well && waited_s >= told_s + fmin(TOLD_S / job->o->time_scale, grace_s))) {
        (void)guard_kill_descendants();
        if (!job->round.killed) {
            job->round.killed = true;
            job_start_grace(job, JOB_STUCK_S);
        }
    }
    (void)uv_timer_start(&job->timer.sweep, job->timer.sweep.timer_cb,
                         (uint64_t)((waited_s < 1 ? LOOK_S : LATER_S) * 1e3), 0);
    return true;
}
