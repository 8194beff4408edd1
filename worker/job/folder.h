/* Checks of the folders that a run writes to, before anything is started. */
#ifndef DT_WORKER_JOB_FOLDER_H
#define DT_WORKER_JOB_FOLDER_H

#include "base/error.h"

#include <stdbool.h>

/* In the folder of checkpoints: what is kept of the Hugging Face folder that the run began with
 * (checkpoints/origin.h). */
#define ORIGIN_FOLDER "origin"

/* Fails if `path` cannot be created, or cannot be written to if it exists. Looks at the nearest
 * existing folder and creates nothing. key: its name in messages, "output_dir". The error says what
 * to do. */
int folder_check(const char *key, const char *path, struct dt_error *err);
/* DT_INVALID if a folder has the name of a file that the run writes, or a file that of a folder.
 * anew: existing files will be set aside first, so they are not checked. */
int folder_check_names(const char *output_dir, const char *checkpoint_dir, bool anew, struct dt_error *err);
/* Follows symbolic links in the last part of a path to the folder's own name. The lock and the
 * folders set aside are named by it, so each folder must have only one. A link is not followed if
 * another user may have made it, or if nothing can be created beside its target: a mount, or a
 * folder that is not ours. Links in earlier parts do not matter. The caller frees the result. */
char *folder_follow(const char *path);

#endif
