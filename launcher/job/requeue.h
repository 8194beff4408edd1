/* A job that was stopped on request with its state saved is given back to the scheduler, to be
 * run again. */
#ifndef DT_LAUNCHER_JOB_REQUEUE_H
#define DT_LAUNCHER_JOB_REQUEUE_H

#include "launcher/options/options.h"

/* Whether --requeue asks for it after a stop by `signal` (0: unknown). auto: in a batch job
 * warned by USR1 or USR2; a TERM may come from whoever cancelled the job. */
bool requeue_wanted(const struct options *o, int signal);
/* Runs the scheduler's command and waits for it, at most 20 s. Fails with the command and what
 * became of it. */
int requeue_ask(const struct options *o, char *const *env, struct dt_error *err);

#endif
