/* The launching host of --hostfile: starts an agent on each host over ssh, shows what they
 * write, passes signals on, ends them all. */
#ifndef DT_LAUNCHER_SSH_STARTER_H
#define DT_LAUNCHER_SSH_STARTER_H

#include "launcher/options/options.h"

/* Runs the job to its end; the exit code. A host whose ssh ends without a code of dtrun's is
 * lost: the job goes on while --nnodes has its minimum, and is stopped otherwise (111). */
int starter_run(struct options *o, char *const *env);

#endif
