/* torchrun's watchdog (TORCHELASTIC_ENABLE_FILE_TIMER=1): workers write one line of JSON per
 * timer to a FIFO; a process whose timer is over gets the signal that it asked for itself. Lines
 * come from workers: bounded, and only processes of our workers are signalled. */
#ifndef DT_LAUNCHER_WORKERS_TIMER_FILE_H
#define DT_LAUNCHER_WORKERS_TIMER_FILE_H

#include "base/error.h"

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

struct timer_file;

struct timer_file_hooks {
    void *user;
    bool (*is_ours)(void *user, pid_t pid);
    /* A timer of pid is over; `signal` goes to it next (0: it wanted none). scope: its name for
     * the timer. */
    void (*expired)(void *user, pid_t pid, int signal, const char *scope);
};

/* Makes the FIFO (mode 0600): path, or a new name in the temporary folder when it is null. A
 * FIFO that is there is replaced, anything else is not. */
int timer_file_open(struct timer_file **out, uv_loop_t *loop, const char *path, const struct timer_file_hooks *hooks,
                    struct dt_error *err);
const char *timer_file_path(const struct timer_file *t);
/* A new round: timers of the old one are forgotten. */
void timer_file_reset(struct timer_file *t);
/* Removes the FIFO and closes; run the loop until its handles are closed, which frees t. */
void timer_file_close(struct timer_file *t);

#endif
