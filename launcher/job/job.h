/* The agent process of one host: struct job is its state, which the files of this folder share. */
#ifndef DT_LAUNCHER_JOB_JOB_H
#define DT_LAUNCHER_JOB_JOB_H

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

#define JOB_STUCK_S 10.0 /* after KILL: it hangs in the kernel */
/* events of one turn that are not yet handled; each worker's end is handled at once */
#define QUEUE 64

struct job_binding { /* of one worker, with --numa_binding */
    struct cpus cpus;
    int sharers; /* workers of this host that may run on one of these CPUs, itself included */
};

/* What belongs to one round, and begins anew with the next. */
struct round {
    struct place place;
    struct hosts_meeting meeting;
    char no_start[512]; /* why the workers could not be started; "": they could */
    bool told_failed;   /* its failure, to hosts */
    bool ending;        /* the workers have been told to end */
    bool killed;        /* or killed */
    /* When the last worker ended while something that they had started ran on; 0: nothing is left
     * of them, or they run. */
    double left_since_s;
    bool left_told;                     /* what is left has been told to end */
    bool gone_posted;                   /* nothing is left, and the agent hears of it */
    double ending_since_s, grace_end_s; /* lines about the wait count from, and to, these */
};

/* Events on their way to the agent. */
struct job_queue {
    struct {
        enum agent_event event;
        int value;
    } list[QUEUE];
    int posted, taken; /* counted over all rounds */
    bool draining;
    bool reaping; /* exits have been taken that the agent does not know of yet */
};

struct job_signals { /* signals.c */
    uv_poll_t poll;
    int fd;
    int count[65]; /* by the guard's hand */
};

struct job_timers { /* timers.c */
    uv_timer_t grace, patience, news, barrier, sweep, watch, late;
};

/* The end that somebody asked for. */
struct stop {
    int wish;   /* signal that asked us to stop; 0: none */
    int signal; /* that made the job stop, perhaps another host's; 0: unknown */
    /* A scheduler repeats its signals: only INT, which comes from a person, insists when it comes
     * again. */
    bool scheduled;
    bool left;            /* this host goes alone: the others go on without it */
    bool alone;           /* then no other host was here */
    bool guard_gone;      /* the guard was killed; nobody asked us to stop */
    int64_t saved_before; /* newest checkpoint when workers were last told to end; -1: none */
};

/* Workers that hang, and timers that they set themselves (watchdog.c). */
struct watching {
    struct watch_options options;
    struct ras *ras;           /* NCCL is asked what the ranks of a worker that hangs do; null: not now */
    int hung;                  /* local rank of that worker */
    struct timer_file *timers; /* null: not asked for */
};

/* The cause of a failed round that is still to be said (say.c). */
struct late_cause {
    bool late, due;  /* kept back, as another host may know better; to be said now at the latest */
    bool seen;       /* what was seen here first has been said meanwhile */
    int round, used; /* the round that it belongs to, and restarts used then */
};

/* What people have been told. */
struct said {
    int lost_round;        /* whose end because of another host was said before its workers ended */
    int elsewhere_round;   /* the same, before or after */
    bool failure;          /* a failure, in events.jsonl, which is kept for it */
    char record_lost[512]; /* why a failure could not be written there; "": it could */
    bool backlog;          /* the queue of the worker store is short */
};

struct memory_kills { /* of workers of this host by the kernel */
    bool seen, again; /* one; the last one and the one before it in the same step */
    int64_t step;     /* of the last one */
};

struct job {
    /* what was asked for */
    const struct options *o;
    char *const *env;
    bool is_train; /* the bundled program that saves when told to */
    bool on_gpus;  /* `train` computes there */
    /* the loop and what comes to it */
    uv_loop_t loop;
    struct job_signals signals;
    struct leash leash; /* of an agent that --hostfile started */
    struct job_timers timer;
    struct job_queue queue;
    /* decisions */
    struct hosts *hosts; /* null: not open yet */
    struct agent agent;
    struct round round;
    struct stop stop;
    bool exiting; /* the loop ends, with `code` */
    int code;
    /* the workers of this host */
    struct workers workers;
    struct job_binding *bindings; /* (nproc); null: workers run where we may */
    int null_fd;                  /* standard input of workers that are not given ours */
    char *entry_point;            /* what the workers' argv begins with, once they were started */
    struct watching watching;
    struct failures failures;
    struct memory_kills oom;
    /* words and files */
    struct logs *logs;
    char *output_dir, *events_path;
    struct late_cause cause;
    struct said said;
    struct status *status;    /* null: nobody can ask */
    struct exporter *metrics; /* null: not asked for, or not to be had */
    double begin_s, join_s;   /* of the process; since when it waits for a round */
    int torch_rounds;         /* told by job_torch_round */
};

/* ---- job.c ---- */

/* Puts an event for the agent in the queue; carries out what is queued; takes the exits of
 * workers. */
void job_post(struct job *job, enum agent_event event, int value);
void job_drain(struct job *job);
void job_reap(struct job *job);
/* For hosts_open: what hosts answer becomes events for the agent. */
struct hosts_hooks job_hosts_hooks(struct job *job);
/* The agent's first word: its host waits for a round. */
void job_join(struct job *job);

/* ---- timers.c, left.c ---- */

/* All timers, stopped; each has its callback in timer_cb. */
void job_open_timers(struct job *job);
/* How long workers may take to end. */
double job_grace_s(const struct job *job);
/* Workers, or what is left of them, have so long to end, with a line about it after two seconds
 * or ten; the lines alone. */
void job_start_grace(struct job *job, double seconds);
void job_start_patience(struct job *job);
/* The round ends because of the worker that hangs, unless it has ended otherwise. */
void job_hung_end(struct job *job);
/* All workers of the round have ended. True while something that they started runs, which is told
 * to end and ended in its time; looks again by itself. */
bool job_await_left(struct job *job);
/* Appends "pid 12 (cat), ...": what that is. */
void job_add_left(struct dt_text *out);

/* ---- spawn.c, signals.c ---- */

/* Starts the workers of the round in job->round.place; if one cannot be started, says so and posts
 * AGENT_ON_NO_START. */
void job_spawn(struct job *job);

/* Blocks the signals and opens job->signals.fd; watches it on the loop, and whoever launched us
 * (--hostfile). */
int job_open_signals(struct job *job, struct dt_error *err);
int job_watch_signals(struct job *job, struct dt_error *err);

/* ---- say.c ---- */

/* One line of events.jsonl; fmt gives the inside of a JSON object. */
void job_event(struct job *job, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Fills what is known of the round's first failure, for the coordinator: weak, out_of_memory,
 * at_step, and the cause, which is *out and lives as long as it. */
void job_first_failure(struct job *job, struct event *e, struct cause *out);
/* All workers of a failed round have ended: one cause line and what happens next, or the whole
 * report when this was the end. */
void job_say_cause(struct job *job);
/* A round ends because of another host when all workers here have ended with 0 already: why,
 * unless it has been said. */
void job_say_elsewhere(struct job *job);
/* What was seen here, while the cause is kept back. */
void job_say_first_seen(const struct job *job);
/* A cause that was kept back, because another host may know better, is said now. */
void job_say_late(struct job *job);
/* The round ends because of another host: at once, as the workers here may take their time. */
void job_say_lost(struct job *job);
/* Some workers have ended with 0, others run on: for whom we wait. */
void job_say_waiting(const struct job *job);
/* All were told to end: for whom we wait, and how long. */
void job_say_ending(const struct job *job);
/* All save, because a host will leave: which one. */
void job_say_pause(struct job *job);
/* The last word: after a stop, or of restarts that brought nothing. */
void job_say_end(const struct job *job);

/* ---- watchdog.c ---- */

/* Opens what torchrun's variables ask for, and names what has no effect. watching.options must be
 * filled in already. */
int job_watchdog_open(struct job *job, struct dt_error *err);
/* Asks NCCL what its ranks do, if it is there; false: it is not. Else job_hung_end is called,
 * with the answer or when it has taken too long. */
bool job_ask_nccl(struct job *job);
/* Says what NCCL answered, if it did. */
void job_say_nccl(struct job *job);
/* The worker that is pid, or that pid comes from: each leads a session. Null: none of ours. */
struct worker *job_worker_of(struct job *job, pid_t pid);

/* ---- starts.c, torch_events.c, numa_binding.c, failed_check.c ---- */

/* How long workers take from their start until they are ready for each other.
 * open: the store is there. say: the round is over. */
void job_starts_open(struct job *job);
void job_starts_say(struct job *job);
/* --event_log_handler=console: the workers of a round were started; the job is over. */
void job_torch_round(struct job *job);
void job_torch_end(const struct job *job);
/* Finds job->bindings, if they are asked for. Returns -1 to go on, or the exit code
 * when they cannot be had, which is said then. */
int job_numa_open(struct job *job);
/* Tells the other hosts of the job, for some seconds, that this one cannot take part: its check
 * of the job failed with that code, and it has said why. */
void job_tell_failed_check(const struct options *o, int code, int signal_fd);

/* ---- status.c ---- */

/* This host waits beside a round of the other hosts. */
bool job_is_spare(const struct job *job);
/* Appends what the metrics endpoint shows; user is the job. */
void job_metrics(void *user, struct dt_text *out);
/* Appends what `dtrun --status` is told; user is the job. */
void job_status(void *user, struct dt_text *out);
/* What our workers do, a JSON object per line; user is the job, as in the next two. */
void job_status_rows(void *user, struct dt_text *out);
/* Before job_status: asks the other hosts. Then: they have answered. */
bool job_status_ask(void *user);
void job_status_gathered(void *user);

#endif
