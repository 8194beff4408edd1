/* Variables for the workers: which of ours go to the agents of --hostfile, and what --export
 * adds. Values never stand in a command line of ours: they travel over the leash (leash.h), and
 * --dry_run hides those that look secret. */
#ifndef DT_LAUNCHER_OPTIONS_EXPORTS_H
#define DT_LAUNCHER_OPTIONS_EXPORTS_H

#include "launcher/options/options.h"

/* --export with a name alone: the variable is set here. Fails with DT_INVALID. */
int exports_check(const struct options *o, char *const *env, struct dt_error *err);
/* Adds NAME=VALUE, as --export would, unless that names it. */
void exports_add(struct options *o, const char *variable);
/* --export names this variable, with a value or without. */
bool exports_names(const struct options *o, const char *name);
/* Puts each NAME=VALUE of --export into our environment, from which workers and agents get it. */
int exports_apply(const struct options *o, struct dt_error *err);
/* Overwrites the values where they stand in argv, which everybody may read. */
void exports_hide(const struct options *o);
/* "NAME=VALUE" of our environment is given to the agents: what steers programs and libraries,
 * not what belongs to this host; and what --export names. */
bool exports_passes(const struct options *o, const char *variable);
/* "NAME=VALUE" may come over a leash. */
bool exports_is_variable(const char *text);
/* Appends "NAME=VALUE" as a shell would take it, the value as (hidden) where it looks secret, or
 * --export has it behind such a value in one list. */
void exports_show(const struct options *o, const char *variable, struct dt_text *out);

#endif
