/* A job that was stopped on request with its state saved is given back to the scheduler, which runs
 * it again. */
#ifndef DT_LAUNCHER_JOB_REQUEUE_H
#define DT_LAUNCHER_JOB_REQUEUE_H

#include "launcher/options/options.h"

/* Whether --requeue applies after a stop by `signal` (0: unknown). auto: in a batch job that got a
 * warning by USR1 or USR2. TERM does not count, because it may mean that the job was cancelled. */
bool requeue_wanted(const struct options *o, int signal);
/* Runs the scheduler's command and waits for it, at most 20 s. The error names the command and how
 * it ended. */
int requeue_ask(const struct options *o, char *const *env, struct dt_error *err);

#endif
