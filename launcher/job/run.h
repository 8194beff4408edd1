/* The agent process: one libuv loop that turns exits, signals and times into events, and does what
 * the agent's table and the coordinator (hosts/hosts.h) decide. */
#ifndef DT_LAUNCHER_JOB_RUN_H
#define DT_LAUNCHER_JOB_RUN_H

#include "launcher/options/options.h"

/* Runs the job to its end in the calling process, which guard_open has made the agent. env: the
 * environment of workers. Returns the exit code of dtrun. Everything was printed on stderr. */
int run_job(const struct options *o, char *const *env);

#endif
