/* Folders of the log files: LOG_DIR/RUNID_xxxxxxxx/attempt_N. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_TREE_H
#define DT_LAUNCHER_OUTPUT_LOG_TREE_H

#include "base/error.h"

/* Makes the run's folder (mode 0700) in log_dir, or in a new folder of the temporary one when
 * log_dir is null or empty; *base is then that folder, null otherwise. The temporary one is the
 * first that can be written of $TMPDIR, $TEMP, $TMP, /tmp, /var/tmp, /usr/tmp and the current
 * one, as for Python. Returns an absolute path, null on failure (DT_INVALID, or DT_FULL or
 * DT_NO_MEMORY where another try may work); the caller frees both. */
char *log_tree_open(const char *log_dir, const char *run_id, char **base, struct dt_error *err);
/* Makes dir/attempt_N, or attempt_N.2, .3 ... when that is there; the caller frees. Null on
 * failure. */
char *log_tree_attempt(const char *dir, int restart_count, struct dt_error *err);

#endif
