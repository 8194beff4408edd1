/* The worker processes of one round: starts them, signals them, notices their ends. Each worker
 * leads its own session and dies with the agent (parent-death signal). This file knows nothing of
 * rounds, budgets or logs. */
#ifndef DT_LAUNCHER_WORKERS_WORKERS_H
#define DT_LAUNCHER_WORKERS_WORKERS_H

#include "base/error.h"
#include "base/page.h"
#include "launcher/workers/cpus.h"
#include "launcher/workers/process.h"

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

struct worker_mark { /* the CPU time used until a time */
    double at_s, user_s, system_s;
};
struct worker {
    pid_t pid;    /* 0: not started */
    bool running; /* started and not yet reaped */
    bool told;    /* its group was sent a signal to end while it ran */
    bool blamed;  /* it was ended because it was silent */
    bool deaf;    /* it hung in the kernel, too, so no restart helps */
    int status;   /* from wait, once reaped */
    struct dt_page *page;
    int page_fd;
    double start_s, end_s;
    double cpu_s;     /* used with its children, once reaped */
    double contact_s; /* time of its first message to the store; 0: none known */
    char note[160];   /* why it is about to end, if another part ends it; "": it is not */
    /* the watch: when anything last changed, and what it was */
    double seen_s;
    double seen_sign;                 /* count of pulses; or time of its latest output through us */
    struct process_use seen_use, use; /* at that time; at the newest look */
    bool is_stopped;                  /* silent, and in state T (stopped) */
    /* the watch measures CPU time from these; the older one first */
    struct worker_mark marks[2];
    double deaf_since_s; /* start of its uninterruptible sleep; 0: not in one */
};
struct workers {
    struct worker *list;
    /* The memory of the workers' snapshots (base/snapshots.h), which outlives them; -1: none. It ends with
     * this process, however that ends. */
    int snapshot_fd;
    int count, running_count;
    /* soft limit of open files for workers: the one that dtrun was started with */
    struct rlimit files;
    double looked_s; /* time of the watch's newest look; 0: none yet */
};

/* Makes room for `count` workers, and for links with `hosts` others, because any host may become
 * the leader. Raises our own soft limit of open files to the hard limit. DT_INVALID if even that is
 * too small. */
int workers_open(struct workers *w, int count, int hosts, struct dt_error *err);
/* Creates a page for each worker of the round. */
int workers_begin(struct workers *w, int round, struct dt_error *err);
struct spawn {
    const char *path;
    char *const *argv, *const *envp;
    int stdin_fd, stdout_fd, stderr_fd; /* -1: dtrun's own; the caller closes them */
    const struct cpus *cpus;            /* CPUs on which it may run; null: those of dtrun */
};
/* Starts one worker. Returns when its program runs or could not be executed. DT_INVALID if another
 * try would fail in the same way (no such file, not executable, arguments too long), otherwise
 * DT_IO. The error names the path and the reason. */
int workers_spawn(struct workers *w, int local_rank, const struct spawn *s, struct dt_error *err);
/* The same for a process that is not a worker (`train --plan`), without a page. */
int workers_spawn_plain(const struct workers *w, const struct spawn *s, pid_t *pid, struct dt_error *err);
/* Reaps one process. Returns its local rank, or -1 if it is not a worker; *pid and *status describe
 * it. *pid 0: no process has ended. *pid -1: there is no child left. */
int workers_reap(struct workers *w, pid_t *pid, int *status);
/* Sends signal n to the group of every running worker. */
void workers_signal(struct workers *w, int n);
/* Writes the order on the pages of all running workers, and wakes those that wait on their page. */
void workers_order(struct workers *w, enum dt_order order);
/* Ends the round: frees the pages. All must have been reaped. */
void workers_end(struct workers *w);
void workers_close(struct workers *w);
/* Exit code, or minus the number of the signal. */
int workers_code(int status);

#endif
