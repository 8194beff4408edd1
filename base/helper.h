/* Helper processes: what may hang or crash (a driver, a command of the scheduler, a program's look
 * at its job) is done by a process of its own, within a time. */
#ifndef DT_BASE_HELPER_H
#define DT_BASE_HELPER_H

#include "base/error.h"
#include "base/text.h"

#include <sys/types.h>

enum dt_helper_output {
    DT_HELPER_READ,  /* its standard output is read by dt_helper_wait */
    DT_HELPER_SHOWN, /* it writes where we write */
    DT_HELPER_SILENT /* its standard input and output are /dev/null */
};

struct dt_helper_task {
    /* a function, which prints its answer; its value is the exit code */
    int (*run)(void *user);
    void *user;
    /* or, where that is null, a program: found in PATH where its path has no slash */
    const char *path;
    char *const *argv, *const *envp;
    enum dt_helper_output output; /* of a program; standard error is ours in any case */
};

struct dt_helper {
    pid_t pid; /* leads a session, and is killed when we end */
    int fd;    /* what it writes is read here; -1: nothing is */
};

/* Starts it. A program gets default signals, none of them blocked. On failure err says why, a program
 * that cannot be executed too (DT_IO, or DT_NOT_FOUND); nothing runs then. */
int dt_helper_start(struct dt_helper *h, const struct dt_helper_task *task, struct dt_error *err);

enum { DT_HELPER_ENDED = -1, DT_HELPER_LATE = -2 };

struct dt_helper_wait {
    double limit_s; /* 0: it may take for ever */
    int signal_fd;  /* a signalfd whose signals are heard meanwhile, or -1 */
    /* or null; called every line_s seconds while it runs, with the seconds so far */
    void (*on_line)(pid_t pid, double since_s, void *user);
    void *user;
    double line_s;
};

/* Waits for its end, appends what it writes to `out` (16 MiB of it at most; a child of its own that
 * still holds the pipe is not waited for), and closes fd. Returns DT_HELPER_ENDED with its *status as
 * wait gives it; 128 + n after a signal that asks us to stop, of which it was killed; DT_HELPER_LATE
 * when it was killed because it took longer than limit_s. Everything in its session's group is killed
 * with it, and it is reaped, but for a process that hangs in the kernel. */
int dt_helper_wait(struct dt_helper *h, const struct dt_helper_wait *how, struct dt_text *out, int *status);

/* Both in one, without signals and lines. Returns 0 with *status; -1 with err (DT_TIMEOUT: "no answer
 * in N s"). */
int dt_helper_run(const struct dt_helper_task *task, double limit_s, struct dt_text *out, int *status,
                  struct dt_error *err);

#endif
