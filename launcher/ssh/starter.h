/* The launching host of --hostfile: starts an agent on each host over ssh, shows the agents'
 * output, passes signals on, and ends the agents. */
#ifndef DT_LAUNCHER_SSH_STARTER_H
#define DT_LAUNCHER_SSH_STARTER_H

#include "launcher/options/options.h"

/* Runs the job to its end. Returns the exit code. A host whose ssh ends without a code of dtrun's
 * is lost. The job goes on while --nnodes has its minimum, else it is stopped with 111. */
int starter_run(struct options *o, char *const *env);

#endif
