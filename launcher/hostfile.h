/* What --hostfile starts: the hosts, how many workers each gets, and the command line of each host's agent. Pure but for reading the file. */
#ifndef DT_LAUNCHER_HOSTFILE_H
#define DT_LAUNCHER_HOSTFILE_H

#include "launcher/options_table.h"

/* Reads o->hostfile and fills in what follows for the launching host: o->hosts, nnodes, run id, the endpoint. Fails with DT_INVALID. */
int hostfile_read(struct options *o, const struct given *g, struct dt_error *err);
/* The words of host i's agent, in o's arena, null-terminated: our own program and options, then what makes it that host, then PROGRAM. The last of
 * two options counts, so ours come later. */
char **hostfile_agent(struct options *o, int i);
/* The same as one line for the shell that ssh gives it to: it goes to our folder first. */
void hostfile_line(struct options *o, int i, struct dt_text *out);
/* o->ssh cut at blanks, the host's name, and the line; null-terminated, in o's arena. */
char **hostfile_ssh(struct options *o, int i);
/* For --dry_run. */
void hostfile_describe(struct options *o, struct dt_text *out);
/* Whether a variable of ours is given to the agents: what steers programs and libraries, not what belongs to this host. */
bool hostfile_passes(const char *variable);

#endif
