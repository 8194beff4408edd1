/* Runs `train --plan --json` once on this host before the first round of the bundled `train`. A job
 * that cannot run ends here, before anything is started, and dtrun learns where the run keeps its
 * files. No training key is read. */
#ifndef DT_LAUNCHER_JOB_PLAN_H
#define DT_LAUNCHER_JOB_PLAN_H

#include "launcher/options/options.h"
#include "launcher/workers/workers.h"

/* For --dry_run: `train --print-config` reads the job like the plan, but does not look at this
 * host. Its output is dropped; it prints errors itself. Returns its exit code, which is 0 also
 * if the arguments ask for something else than training, or DT_EXIT_TEMPORARY if it cannot be
 * started. */
int plan_check_job(const struct options *o, char *const *env);
/* Runs it and waits; signals arrive on signal_fd (a signalfd). Returns -1 to go on, with
 * *output_dir (or null; the caller frees) and *on_gpus, whether workers compute on GPUs,
 * otherwise the exit code of dtrun: the plan's own when it failed, 128 + n after a signal, 0
 * when its output is all that was wanted. */
int plan_run(const struct options *o, const struct workers *w, char *const *env, int signal_fd, char **output_dir,
             bool *on_gpus);

#endif
