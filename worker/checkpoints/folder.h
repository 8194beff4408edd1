/* The folders a run writes to, looked at before anything is started. */
#ifndef DT_WORKER_CHECKPOINTS_FOLDER_H
#define DT_WORKER_CHECKPOINTS_FOLDER_H

#include "base/error.h"

#include <stdbool.h>

/* Can `path` be made (or written to, where it is there already)? Looks at the nearest folder
 * that exists and makes nothing. key: what messages call it, "output_dir". The error says what
 * to do. */
int folder_check(const char *key, const char *path, struct dt_error *err);
/* DT_INVALID when a folder has the name of a file that the run writes there, or a file that of a
 * folder. anew: what is there will be set aside first. */
int folder_check_names(const char *output_dir, const char *checkpoint_dir, bool anew, struct dt_error *err);
/* Where a folder's own name is: a path whose last part is a symbolic link leads on, for what
 * lies beside a folder (its lock, what is set aside) is named by it, and each folder must have
 * one such name. A link stays when somebody else may have put it there, and when nothing can be
 * made beside what it leads to: a mount, or a place that is not ours. Links further up need no
 * care. The caller frees. */
char *folder_follow(const char *path);

#endif
