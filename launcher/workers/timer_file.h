/* torchrun's watchdog (TORCHELASTIC_ENABLE_FILE_TIMER=1). Workers write one line of JSON per timer
 * to a FIFO. A process whose timer expires gets the signal that it requested itself. Lines come
 * from workers, so they are bounded, and only processes of our workers are signalled. */
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
    /* A timer of pid has expired; `signal` will be sent to the process (0: no signal). scope: the
     * process's name for the timer. */
    void (*expired)(void *user, pid_t pid, int signal, const char *scope);
};

/* Creates the FIFO (mode 0600) at path, or with a new name in the temporary folder if path is null.
 * An existing FIFO is replaced; any other file is not. */
int timer_file_open(struct timer_file **out, uv_loop_t *loop, const char *path, const struct timer_file_hooks *hooks,
                    struct dt_error *err);
const char *timer_file_path(const struct timer_file *t);
/* Begins a new round: forgets the timers of the old one. */
void timer_file_reset(struct timer_file *t);
/* Removes the FIFO and closes. Run the loop until the handles are closed; then t is freed. */
void timer_file_close(struct timer_file *t);

#endif
