/* What --hostfile starts: the hosts, how many workers each gets, and the command line of each
 * host's agent. Pure but for reading the file, and asking whether the only host is this one. */
#ifndef DT_LAUNCHER_OPTIONS_HOSTFILE_H
#define DT_LAUNCHER_OPTIONS_HOSTFILE_H

#include "launcher/options/options_table.h"

/* Reads o->hostfile and fills in what follows for the launching host: o->hosts, nnodes, run id,
 * the endpoint. Fails with DT_INVALID. */
int hostfile_read(struct options *o, const struct given *g, struct dt_error *err);
/* o->ssh cut at blanks, the host's name, and the line; null-terminated, in o's arena. A shell
 * and the line where this host alone is meant, and nobody gave --ssh. */
char **hostfile_ssh(struct options *o, int i);
/* For --dry_run: the hosts, what is started on each, its ranks and the variables of its first
 * worker. env: of the launching host. */
void hostfile_describe(struct options *o, char *const *env, struct dt_text *out);

#endif
