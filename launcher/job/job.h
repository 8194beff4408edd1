/* The agent process of one host. struct job is its state, which the files of this folder share. */
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

#define JOB_STUCK_S 10.0 /* after KILL: a process that lives longer hangs in the kernel */
/* most unhandled events of one wake-up; each worker's end is handled at once */
#define QUEUE 64

struct job_binding { /* the CPUs of one worker, with --numa_binding */
    struct cpus cpus;
    int sharers; /* workers of this host, with itself, that may run on one of these CPUs */
};

/* State of one round; the next round resets it. */
struct round {
    struct place place;
    struct hosts_meeting meeting;
    char no_start[512]; /* why the workers could not be started; "": no such failure */
    bool told_failed;   /* hosts were told of its failure */
    bool ending;        /* the workers were told to end */
    bool killed;        /* the workers were killed */
    /* When the last worker ended while a process that they had started still ran; 0: workers run,
     * or no such process is left. */
    double left_since_s;
    bool left_told;                     /* those processes were told to end */
    bool gone_posted;                   /* none is left, and the agent gets AGENT_ON_GONE */
    double ending_since_s, grace_end_s; /* start and end of the wait, for lines about it */
};

/* Events on their way to the agent's table. */
struct job_queue {
    struct {
        enum agent_event event;
        int value;
    } list[QUEUE];
    int posted, taken; /* counts over all rounds */
    bool draining;
    bool reaping; /* exits were reaped that the table does not know of yet */
};

struct job_signals { /* signals.c */
    uv_poll_t poll;
    int fd;
    int count[65]; /* signals forwarded by the guard */
};

struct job_timers { /* timers.c */
    uv_timer_t grace, patience, news, barrier, sweep, watch, late;
};

/* A stop that was requested. */
struct stop {
    int wish;   /* signal that asked us to stop; 0: none */
    int signal; /* signal that stopped the job, perhaps on another host; 0: unknown */
    /* A scheduler repeats its signals. So only INT, which comes from a person, counts as a second
     * request when it comes again. */
    bool scheduled;
    bool left;            /* only this host leaves; the others go on without it */
    bool alone;           /* no other host was here at that time */
    bool guard_gone;      /* the guard was killed; nobody asked dtrun to stop */
    int64_t saved_before; /* newest checkpoint when workers were last told to end; -1: none */
};

/* Watches workers that hang, and timers that workers set themselves (watchdog.c). */
struct watching {
    struct watch_options options;
    /* the question to NCCL about the ranks of a hanging worker; null: none under way */
    struct ras *ras;
    int hung;                  /* local rank of that worker */
    struct timer_file *timers; /* null: not used */
};

/* A cause of a failed round that was not printed yet (say.c). */
struct late_cause {
    bool late, due;  /* delayed, because another host may know better; print it now */
    bool seen;       /* the local observation was printed meanwhile */
    int round, used; /* its round, and the restarts used then */
};

/* What was printed. */
struct said {
    /* round whose end because of another host was printed before its workers ended */
    int lost_round;
    int elsewhere_round;   /* the same, before or after the end */
    bool failure;          /* a failure is in events.jsonl, so that file is kept */
    char record_lost[512]; /* why a failure could not be written to events.jsonl; "": it could */
    bool backlog;          /* people were told that the worker store's queue is short */
};

struct memory_kills { /* workers of this host that the kernel killed for lack of memory */
    bool seen, again; /* there was one; the newest one was in the same step as the one before */
    int64_t step;     /* step of the newest one */
};

struct job {
    /* options */
    const struct options *o;
    char *const *env;
    bool is_train; /* the program is the bundled `train`, which saves when told to */
    bool on_gpus;  /* `train` computes on GPUs */
    /* the loop and its inputs */
    uv_loop_t loop;
    struct job_signals signals;
    struct leash leash; /* in an agent that --hostfile started */
    struct job_timers timer;
    struct job_queue queue;
    /* decisions */
    struct hosts *hosts; /* null: not open */
    struct agent agent;
    struct round round;
    struct stop stop;
    bool exiting; /* the loop ends, and `code` is the exit code */
    int code;
    /* the workers of this host */
    struct workers workers;
    struct job_binding *bindings; /* (nproc); null: workers run where dtrun may */
    int null_fd;                  /* standard input of workers that do not get ours */
    char *entry_point;            /* start of the workers' argv, once they were started */
    struct watching watching;
    struct failures failures;
    struct memory_kills oom;
    /* texts and files */
    struct logs *logs;
    char *output_dir, *events_path;
    struct late_cause cause;
    struct said said;
    struct status *status;    /* null: no status socket */
    struct exporter *metrics; /* null: not used, or it could not be opened */
    double begin_s, join_s;   /* start of the process; since when it waits for a round */
    int torch_rounds;         /* counted by job_torch_round */
};

/* ---- job.c ---- */

/* Queues an event for the agent, handles the queue, and takes the exits of workers. */
void job_post(struct job *job, enum agent_event event, int value);
void job_drain(struct job *job);
void job_reap(struct job *job);
/* For hosts_open: turns the hosts' actions into events for the agent. */
struct hosts_hooks job_hosts_hooks(struct job *job);
/* Sends the agent's first event: its host waits for a round. */
void job_join(struct job *job);

/* ---- timers.c, left.c ---- */

/* Initializes all timers, stopped; each has its callback in timer_cb. */
void job_open_timers(struct job *job);
/* How long workers may take to end. */
double job_grace_s(const struct job *job);
/* Gives workers, or the processes they left, so much time to end, with a line about it after two or
 * ten seconds. The second function only prints those lines. */
void job_start_grace(struct job *job, double seconds);
void job_start_patience(struct job *job);
/* Ends the round because of the hanging worker, unless it has ended otherwise. */
void job_hung_end(struct job *job);
/* Call it when all workers of the round have ended. Returns true while a process runs that they
 * started. That process is told to end, and is killed in time; the check repeats itself. */
bool job_await_left(struct job *job);
/* Appends these processes: "pid 12 (cat), ...". */
void job_add_left(struct dt_text *out);

/* ---- spawn.c, signals.c ---- */

/* Starts the workers of the round in job->round.place. If one cannot be started, prints the reason
 * and posts AGENT_ON_NO_START. */
void job_spawn(struct job *job);

/* Blocks the signals and opens job->signals.fd. Watches it on the loop, and the launching host of
 * --hostfile. */
int job_open_signals(struct job *job, struct dt_error *err);
int job_watch_signals(struct job *job, struct dt_error *err);

/* ---- say.c ---- */

/* Writes one line to events.jsonl; fmt is the inside of a JSON object. */
void job_event(struct job *job, const char *what, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Fills in the round's first failure for the coordinator: weak, out_of_memory, at_step, and the
 * cause, which is *out and must live as long as *e. */
void job_first_failure(struct job *job, struct event *e, struct cause *out);
/* Call it when all workers of a failed round have ended: prints one cause line and what happens
 * next, or the whole report if the job ends. */
void job_say_cause(struct job *job);
/* Prints why a round ends because of another host after all workers here ended with 0, unless it
 * was printed. */
void job_say_elsewhere(struct job *job);
/* Prints the local observation while the cause is delayed. */
void job_say_first_seen(const struct job *job);
/* Prints a cause that was delayed because another host might know better. */
void job_say_late(struct job *job);
/* Prints at once that the round ends because of another host, because the workers here may take
 * time to end. */
void job_say_lost(struct job *job);
/* Some workers have ended with 0: prints which workers still run. */
void job_say_waiting(const struct job *job);
/* All workers were told to end: prints which ones still run, and how long they have. */
void job_say_ending(const struct job *job);
/* All hosts save because one will leave: prints which one. */
void job_say_pause(struct job *job);
/* Prints the last line of a job: after a stop, or after restarts without progress. */
void job_say_end(const struct job *job);

/* ---- watchdog.c ---- */

/* Opens what torchrun's variables ask for, and names variables without effect. watching.options
 * must be filled in. */
int job_watchdog_open(struct job *job, struct dt_error *err);
/* Asks NCCL for the state of its ranks. Returns false if NCCL is not there. Otherwise job_hung_end
 * is called when the answer came or the time is over. */
bool job_ask_nccl(struct job *job);
/* Prints NCCL's answer, if there is one. */
void job_say_nccl(struct job *job);
/* The worker with this pid, or the worker that started it (each leads a session). Null: none of
 * ours. */
struct worker *job_worker_of(struct job *job, pid_t pid);

/* ---- starts.c, torch_events.c, numa_binding.c, failed_check.c ---- */

/* Measures the time from the workers' start until they are ready for each other. open: call it when
 * the store is there. say: prints the times, when the round is over. */
void job_starts_open(struct job *job);
void job_starts_say(struct job *job);
/* --event_log_handler=console: call it when the workers of a round were started, and when the job
 * is over. */
void job_torch_round(struct job *job);
void job_torch_end(const struct job *job);
/* Finds job->bindings if --numa_binding is set. Returns -1 to go on, or the exit code if binding is
 * impossible; the reason was printed. */
int job_numa_open(struct job *job);
/* Tells the other hosts, for some seconds, that this host cannot take part. Its check of the job
 * failed with this code, and has printed the reason. */
void job_tell_failed_check(const struct options *o, int code, int signal_fd);

/* ---- status.c ---- */

/* Whether this host waits beside a round of the other hosts. */
bool job_is_spare(const struct job *job);
/* Appends the text of the metrics endpoint; user is the job. */
void job_metrics(void *user, struct dt_text *out);
/* Appends the answer to `dtrun --status`; user is the job. */
void job_status(void *user, struct dt_text *out);
/* Appends what our workers do, one JSON object per line; user is the job, also in the next two
 * functions. */
void job_status_rows(void *user, struct dt_text *out);
/* Asks the other hosts before job_status. The second function: they have answered. */
bool job_status_ask(void *user);
void job_status_gathered(void *user);

#endif
