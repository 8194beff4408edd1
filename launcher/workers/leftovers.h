/* Finds what jobs have left on this machine. Guard and agent end all processes that their workers
 * have started. If both are killed at once, no living process has those among its descendants. But
 * their environment still tells whose they were. The guard's sweeper ends them. If the sweeper was
 * killed, too, the next start reports them. */
#ifndef DT_LAUNCHER_WORKERS_LEFTOVERS_H
#define DT_LAUNCHER_WORKERS_LEFTOVERS_H

#include <stdbool.h>
#include <sys/types.h>

/* its name; not "dtrun", so that it survives when a user kills all processes of that name, which is
 * the case it is for */
#define LEFTOVERS_SWEEPER "rank-sweeper"

/* zero but for the times */
struct leftovers {
    double begun_s;   /* start of this job */
    double look_at_s; /* time of the next look */
    bool seen, done;
};

/* Looks at the first time, and again a second later, because killed processes may still be ending.
 * The second look prints the remains to descriptor 2. A look walks through all processes of the
 * machine. It is skipped if another job's look began after this job and found nothing. Returns the
 * seconds until there is more to do (INFINITY: nothing). */
double leftovers_step(struct leftovers *l, pid_t agent, double now_s);
/* Call it if the job failed before the second look: looks once more, in case the job failed because
 * of the remains. */
void leftovers_end(struct leftovers *l, pid_t agent);

/* Kills this user's processes that come from workers of the agent, by their environment, if they
 * are children of `reaper`, which adopts orphans. Processes below those become its children
 * next. A process with another parent stays, because it belongs to that parent; for example, a
 * job that a worker submitted. Adds to *killed. Returns how many processes of the first two
 * kinds there were. */
int leftovers_kill(pid_t agent, pid_t reaper, int *killed);

#endif
