/* What a helper process of ours prints before the first round, while signals are heard. */
#ifndef DT_LAUNCHER_WORKERS_CAPTURE_H
#define DT_LAUNCHER_WORKERS_CAPTURE_H

#include "base/text.h"

#include <sys/types.h>

#define CAPTURE_GOING_ON (-1)
#define CAPTURE_LATE (-2)

/* Waits for the end of pid, which leads a session, and appends what comes on fd (negative:
 * nothing is read), at most 16 MiB of it. Signals arrive on signal_fd (a signalfd). Returns
 * CAPTURE_GOING_ON with its *status as wait gives it; 128 + n after a signal that asks us to
 * stop, of which it was killed; CAPTURE_LATE when it was killed because it took longer than
 * limit_s (0: it may take for ever), and perhaps even that has not ended it. `name`, where it is
 * given: every line_s seconds a line says that it still runs, and where. */
int capture(int fd, int signal_fd, pid_t pid, double limit_s, const char *name, double line_s, struct dt_text *text,
            int *status);

#endif
