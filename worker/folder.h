/* The folders a run writes to, looked at before anything is started. */
#ifndef DT_WORKER_FOLDER_H
#define DT_WORKER_FOLDER_H

#include "base/error.h"

/* Can `path` be made (or written to, where it is there already)? Looks at the nearest folder that exists and makes nothing. key: what messages call it,
 * "output_dir". The error says what to do. */
int folder_check(const char *key, const char *path, struct dt_error *err);

#endif
