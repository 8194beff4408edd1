/* Folders of the log files: LOG_DIR/RUNID_xxxxxxxx/attempt_N. */
#ifndef DT_LAUNCHER_OUTPUT_LOG_TREE_H
#define DT_LAUNCHER_OUTPUT_LOG_TREE_H

#include "base/error.h"

/* Makes the run's folder (mode 0700) in log_dir. If log_dir is null or empty, makes it in a new
 * folder of the temporary folder, and *base is that new folder; else *base is null. As for Python,
 * the temporary folder is the first writable one of $TMPDIR, $TEMP, $TMP, /tmp, /var/tmp, /usr/tmp
 * and the current folder. Returns an absolute path; the caller frees it and *base. Null on failure:
 * DT_FULL or DT_NO_MEMORY where another try may work, else DT_INVALID. */
char *log_tree_open(const char *log_dir, const char *run_id, char **base, struct dt_error *err);
/* Makes dir/attempt_N, or attempt_N.2, .3 ... if that exists. The caller frees the path. Null on
 * failure. */
char *log_tree_attempt(const char *dir, int restart_count, struct dt_error *err);

#endif
