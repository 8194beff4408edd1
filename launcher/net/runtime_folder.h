/* The folder of this user's jobs on this host: DTRUN_RUNTIME_DIR, or XDG_RUNTIME_DIR/dtrun, or
 * /tmp/dtrun-UID. Each agent has a socket in it. */
#ifndef DT_LAUNCHER_NET_RUNTIME_FOLDER_H
#define DT_LAUNCHER_NET_RUNTIME_FOLDER_H

#include "base/error.h"

#include <stdbool.h>

/* The longest name of a socket in it: PID-RANDOM.sock. */
#define RUNTIME_FOLDER_SOCKET "4194304-0123456789ab.sock"

/* The folders where sockets may be: index 0, 1 ... until null; the caller frees. */
char *runtime_folder(int index);
/* Fails unless path is a folder of ours that nobody else may enter, and short enough for a socket
 * in it. `make`: makes it first. */
int runtime_folder_check(const char *path, bool make, struct dt_error *err);

#endif
