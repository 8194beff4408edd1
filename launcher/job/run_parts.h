/* What the parts of run share: the state of the agent process, and what is said to people and
 * written to events.jsonl. */
#ifndef DT_LAUNCHER_JOB_RUN_PARTS_H
#define DT_LAUNCHER_JOB_RUN_PARTS_H

#include "launcher/job/agent.h"
#include "launcher/rounds/coordinator.h"
#include "launcher/workers/cpus.h"
#include "launcher/job/failures.h"
#include "launcher/ssh/leash.h"
#include "launcher/output/logs.h"
#include "launcher/query/exporter.h"
#include "launcher/hosts/hosts.h"
#include "launcher/options/options.h"
#include "launcher/workers/ras.h"
#include "launcher/query/status.h"
#include "launcher/store/store_server.h"
#include "launcher/workers/timer_file.h"
#include "launcher/workers/watch.h"
#include "launcher/workers/workers.h"

#include <uv.h>

#define RUN_STUCK_S 10.0 /* after KILL: it hangs in the kernel */
/* events of one turn that are not yet handled; each worker's end is handled at once */
#define QUEUE 64

struct run_binding { /* of one worker, with --numa_binding */
    struct cpus cpus;
    int sharers; /* workers of this host that may run on one of these CPUs, itself included */
};

struct run {
    const struct options *o;
    char *const *env;
    uv_loop_t loop;
    uv_poll_t signals;
    struct leash leash; /* of an agent that --hostfile started */
    uv_timer_t grace, patience, news, barrier, sweep, watch, late;
    int signal_fd;
    int null_fd;          /* standard input of workers that are not given ours */
    int signal_count[65]; /* by the guard's hand */
    bool is_train;        /* the bundled program that saves when told to */
    struct workers workers;
    struct run_binding *bindings; /* (nproc); null: workers run where we may */
    struct watch_options watch_options;
    struct agent agent;
    struct hosts *hosts;          /* null: not open yet */
    struct place place;           /* of the round */
    struct hosts_meeting meeting; /* of the round */
    struct logs *logs;
    struct status *status;     /* null: nobody can ask */
    struct exporter *metrics;  /* null: not asked for, or not to be had */
    struct timer_file *timers; /* null: not asked for */
    struct ras *ras;           /* a worker hangs, and NCCL is asked what its ranks do; null: not
                                * now */
    int hung;                  /* its local rank */
    double begin_s, join_s;    /* of the process; since when it waits for a round */
    int torch_rounds;          /* told by run_torch_round */
    char *entry_point;         /* what the workers' argv begins with, once they were started */
    struct failures failures;
    bool told_failed;         /* the round's failure, to whoever leads */
    bool oom_seen, oom_again; /* a worker of ours was killed for memory, the last one in step
                               * oom_step; and the one before it in the same step */
    int64_t oom_step;
    bool cause_late, cause_due;  /* its cause is still to be said; now at the latest */
    bool cause_seen;             /* what was seen here first has been said meanwhile */
    int cause_round, cause_used; /* the round that it belongs to, and restarts used then */
    int lost_round;              /* whose end because of another host has been said, before its
                                  * workers ended */
    int elsewhere_round;         /* the same, before or after */
    bool backlog_said;           /* the queue of the worker store is short */
    char no_start[512];          /* why the workers of the round could not be started */
    bool on_gpus;                /* `train` computes there */
    char *output_dir, *events_path;
    bool left;             /* this host goes alone: the others go on without it */
    bool alone;            /* then no other host was here */
    bool guard_gone;       /* it was killed; nobody asked us to stop */
    bool failure_told;     /* in events.jsonl, which is kept for it */
    char record_lost[512]; /* why a failure could not be written there; "": it could */
    struct {
        enum agent_event event;
        int value;
    } queue[QUEUE];
    int queued, taken;
    int wish;        /* signal that asked us to stop, 0: none */
    int stop_signal; /* that made the job stop, perhaps another host's; 0: unknown */
    bool scheduled;  /* a scheduler repeats its signals: only INT, which comes from a person,
                      * insists when it comes again */
    bool draining;
    bool reaping;         /* exits have been taken that the agent does not know of yet */
    bool ending;          /* the workers have been told */
    int64_t saved_before; /* newest checkpoint that they knew of then; -1: none */
    bool gone_posted;     /* of this round */
    bool killed, exiting;
    double left_since_s; /* the last worker has ended then, but not all that they had started; 0:
                          * nothing is left of them, or they run */
    bool left_told;      /* it has been told to end */
    double grace_end_s, ending_since_s;
    int code;
};

/* ---- run.c ---- */

/* Puts an event for the agent in the queue; carries out what is queued; takes the exits of
 * workers. */
void run_post(struct run *r, enum agent_event event, int value);
void run_drain(struct run *r);
void run_reap(struct run *r);
/* How long workers may take to end. */
double run_grace_s(const struct run *r);
/* Workers, or what is left of them, have so long to end, with a line about it after two seconds
 * or ten; the lines alone. */
void run_start_grace(struct run *r, double seconds);
void run_start_patience(struct run *r);
/* run_left.c: all workers of the round have ended. True while something that they started runs,
 * which is told to end and ended in its time; looks again by itself. */
bool run_await_left(struct run *r);
/* Appends "pid 12 (cat), ...": what that is. */
void run_add_left(struct dt_text *out);

/* run_check.c: tells the other hosts of the job, for some seconds, that this one cannot take
 * part: its check of the job failed with that code, and it has said why. */
void run_tell_failed_check(const struct options *o, int code, int signal_fd);

/* ---- run_spawn.c, run_signals.c, run_timers.c ---- */

/* Starts the workers of the round in r->place; if one cannot be started, says so and posts
 * AGENT_ON_NO_START. */
void run_spawn(struct run *r);

/* Blocks the signals and opens r->signal_fd; watches it on the loop, and whoever launched us
 * (--hostfile). */
int run_open_signals(struct run *r, struct dt_error *err);
int run_watch_signals(struct run *r, struct dt_error *err);
/* All timers, stopped; each has its callback in timer_cb. */
void run_open_timers(struct run *r);

/* ---- run_say.c and others ---- */

/* One line of events.jsonl; fmt gives the inside of a JSON object. */
void run_event(struct run *r, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* What is known of the round's first failure, for the coordinator: weak, out_of_memory, at_step,
 * and why, which the caller frees. */
void run_first_failure(struct run *r, struct event *e, struct cause *out);
/* All workers of a failed round have ended: one cause line and what happens next, or the whole
 * report when this was the end. */
void run_say_cause(struct run *r);
/* A round ends because of another host when all workers here have ended with 0 already: why,
 * unless it has been said. */
void run_say_elsewhere(struct run *r);
/* What was seen here, while the cause is kept back. */
void run_say_first_seen(const struct run *r);
/* A cause that was kept back, because another host may know better, is said now. */
void run_say_late(struct run *r);
/* The round ends because of another host: at once, as the workers here may take their time. */
void run_say_lost(struct run *r);
/* Some workers have ended with 0, others run on: for whom we wait. */
void run_say_waiting(const struct run *r);
/* All were told to end: for whom we wait, and how long. */
void run_say_ending(const struct run *r);
/* All save, because a host will leave: which one. */
void run_say_pause(struct run *r);
/* The last word: after a stop, or of restarts that brought nothing. */
void run_say_end(const struct run *r);
/* Opens what torchrun's variables ask for, and names what has no effect. watch_options must be
 * filled in already. */
int run_watchdog_open(struct run *r, struct dt_error *err);
/* Asks NCCL what its ranks do, if it is there; false: it is not. Else run_hung_end is called,
 * with the answer or when it has taken too long. */
bool run_ask_nccl(struct run *r);
/* Says what NCCL answered, if it did. */
void run_say_nccl(struct run *r);
/* run_timers.c: the round ends because of the worker that hangs, unless it has ended otherwise. */
void run_hung_end(struct run *r);
/* The worker that is pid, or that pid comes from: each leads a session. Null: none of ours. */
struct worker *run_worker_of(struct run *r, pid_t pid);
/* run_starts.c: how long workers take from their start until they are ready for each other.
 * open: the store is there. say: the round is over. */
void run_starts_open(struct run *r);
void run_starts_say(struct run *r);
/* --event_log_handler=console: the workers of a round were started; the job is over. */
void run_torch_round(struct run *r);
void run_torch_end(const struct run *r);
/* run_numa.c: finds r->bindings, if they are asked for. Returns -1 to go on, or the exit code
 * when they cannot be had, which is said then. */
int run_numa_open(struct run *r);
/* It waits beside a round of the other hosts. */
bool run_is_spare(const struct run *r);
/* Appends what the metrics endpoint shows; user is the run. */
void run_metrics(void *user, struct dt_text *out);
/* Appends what `dtrun --status` is told; user is the run. */
void run_status(void *user, struct dt_text *out);
/* What our workers do, a JSON object per line; user is the run, as in the next two. */
void run_status_rows(void *user, struct dt_text *out);
/* Before run_status: asks the other hosts. Then: they have answered. */
bool run_status_ask(void *user);
void run_status_gathered(void *user);

#endif
