/* The agent process at work: one libuv loop that turns exits, signals and times into events and
 * carries out what the agent's table and the coordinator say. One host per job so far: the
 * coordinator is a struct beside the agent, not yet behind a link. */
#ifndef DT_LAUNCHER_JOB_RUN_H
#define DT_LAUNCHER_JOB_RUN_H

#include "launcher/options/options.h"

/* Runs the job to its end in the calling process, which guard_open has made the agent. env is
 * what workers inherit. Returns the exit code of dtrun; everything there is to say has been said
 * on stderr. */
int run_job(const struct options *o, char *const *env);

#endif
