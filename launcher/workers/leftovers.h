/* What a job has left on this machine. Guard and agent end all that its workers have started;
 * when both are killed at once, nobody is left who has it among his descendants. Its environment
 * still says whose it was: the guard's sweeper ends it, and the next start names what is left of
 * a job of which that was killed, too. */
#ifndef DT_LAUNCHER_WORKERS_LEFTOVERS_H
#define DT_LAUNCHER_WORKERS_LEFTOVERS_H

#include <stdbool.h>
#include <sys/types.h>

/* its name: not ours, so whoever kills all that is called dtrun leaves it for just that */
#define LEFTOVERS_SWEEPER "rank-sweeper"

/* zeroed but for the times */
struct leftovers {
    double begun_s;   /* of this job */
    double look_at_s; /* the first look */
    bool seen, done;
};

/* Looks when it is time, and a second later again, as what has just been killed may still be on
 * its way; says then what is left on descriptor 2. A look goes through all processes of the
 * machine; where another job's look began after this one and found nothing, there is nothing to
 * be found. Returns for how many seconds there is nothing to do (INFINITY: for ever). */
double leftovers_step(struct leftovers *l, pid_t agent, double now_s);
/* The job has failed before that: a short look now, in case it failed because of them. */
void leftovers_end(struct leftovers *l, pid_t agent);

/* Kills the processes of this user that come from workers of that agent, by their environment,
 * and are children of `reaper` now, who gets those whose parents are gone. Those below them are
 * its children next. What has another parent belongs to somebody, as a job that a worker
 * submitted does, and stays. Adds to *killed; returns how many there were of the first two
 * kinds. */
int leftovers_kill(pid_t agent, pid_t reaper, int *killed);

#endif
