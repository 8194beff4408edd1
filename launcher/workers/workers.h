/* The worker processes of one round: starting them, signalling them, noticing their ends. Each
 * is the leader of its own session and dies with the agent (parent-death signal). Knows nothing
 * of rounds, budgets or logs. */
#ifndef DT_LAUNCHER_WORKERS_WORKERS_H
#define DT_LAUNCHER_WORKERS_WORKERS_H

#include "base/error.h"
#include "base/page.h"
#include "launcher/workers/cpus.h"
#include "launcher/workers/process.h"

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

struct worker_mark { /* how much CPU time it had used then */
    double at_s, user_s, system_s;
};
struct worker {
    pid_t pid;    /* 0: not started */
    bool running; /* started and not yet reaped */
    bool told;    /* its group was sent a signal to end, while it ran */
    bool blamed;  /* we ended it because it was silent */
    bool deaf;    /* and it hung in the kernel: no restart helps */
    int status;   /* as wait gives it, once reaped */
    struct dt_page *page;
    int page_fd;
    double start_s, end_s;
    double cpu_s;     /* what it had used with its children, once reaped */
    double contact_s; /* its first word to the store; 0: none that we know of */
    char note[160];   /* why it is about to end, when somebody else ends it; empty: nobody does */
    /* the watch: when anything last changed, and what it was */
    double seen_s;
    double seen_sign;                 /* pulses; or when it last wrote something that came
                                       * through us */
    struct process_use seen_use, use; /* then, and at the newest look */
    bool is_stopped;                  /* silent, and in state T */
    struct worker_mark marks[2];      /* from which the time it uses is measured; the older one
                                       * first */
    double deaf_since_s;              /* in uninterruptible sleep; 0: it is not */
};
struct workers {
    struct worker *list;
    int count, running_count;
    struct rlimit files; /* soft limit of open files that workers get: the one we were started
                          * with */
    double looked_s;     /* the newest look of the watch; 0: none yet */
};

/* Room for `count` workers, and for links with `hosts` others: any host may come to lead. Raises
 * our own soft limit of open files to the hard one; DT_INVALID when even that cannot do. */
int workers_open(struct workers *w, int count, int hosts, struct dt_error *err);
/* A page for each worker of the round. */
int workers_begin(struct workers *w, int round, struct dt_error *err);
struct spawn {
    const char *path;
    char *const *argv, *const *envp;
    int stdin_fd, stdout_fd, stderr_fd; /* -1: ours; closed by the caller */
    const struct cpus *cpus;            /* where it may run; null: where we may */
};
/* Starts one worker; returns when its program runs or could not be executed. Status DT_INVALID
 * when another try fails the same way (no such file, not executable, arguments too long), DT_IO
 * otherwise. The text names the path and the reason. */
int workers_spawn(struct workers *w, int local_rank, const struct spawn *s, struct dt_error *err);
/* The same for a process that is no worker (`train --plan`): without a page. */
int workers_spawn_plain(const struct workers *w, const struct spawn *s, pid_t *pid, struct dt_error *err);
/* Takes one exit status; the local rank, or -1 for a process that is no worker (*pid and *status
 * tell). 0 in *pid: nothing more to take now;
 * -1 in *pid: and there is no child left at all. */
int workers_reap(struct workers *w, pid_t *pid, int *status);
/* Signal n to the group of every running worker. */
void workers_signal(struct workers *w, int n);
/* The order, on the pages of all running workers; wakes those that wait on it. */
void workers_order(struct workers *w, enum dt_order order);
/* Ends the round: frees the pages. All must have been reaped. */
void workers_end(struct workers *w);
void workers_close(struct workers *w);
/* Exit code, negative for a signal. */
int workers_code(int status);

#endif
