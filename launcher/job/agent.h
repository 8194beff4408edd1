/* The agent of one node: a table of states and events. It is pure: events come in, and a list of
 * things to do goes out, in order. It knows no process, clock or socket. job.c gives it events and
 * does what it lists. The coordinator decides about rounds. */
#ifndef DT_LAUNCHER_JOB_AGENT_H
#define DT_LAUNCHER_JOB_AGENT_H

#include "launcher/rounds/coordinator.h"

#include <stdbool.h>
#include <stdint.h>

enum agent_state {
    AGENT_JOINING,   /* no workers; waits for a round */
    AGENT_RUNNING,   /* workers run */
    AGENT_STOPPING,  /* workers are being ended */
    AGENT_FINISHING, /* no workers; waits for the verdict, or has it */
    AGENT_STATE_COUNT
};
enum agent_event {
    AGENT_ON_START, /* coordinator: a round begins */
    AGENT_ON_END,   /* coordinator: the round is over */
    /* coordinator: let the workers save and stop; value: exit code if not all is saved;
     * COORDINATOR_KILL: kill them now */
    AGENT_ON_STOP,
    AGENT_ON_PAUSE, /* coordinator: like STOP, then join again; value: as for STOP */
    /* coordinator: the job goes on without this node; value: exit code if not all is saved */
    AGENT_ON_LEAVE,
    AGENT_ON_VERDICT,    /* coordinator: the job is over; value: exit code */
    AGENT_ON_WORKER_OK,  /* a worker ended with 0 */
    AGENT_ON_WORKER_75,  /* a bundled worker has saved and stopped */
    AGENT_ON_WORKER_BAD, /* a worker failed; value: exit code, negative for a signal */
    AGENT_ON_NO_START,   /* a worker could not be started; value: exit code of the job */
    AGENT_ON_GONE,       /* the last worker and all processes that workers started are gone */
    AGENT_ON_GRACE,      /* the workers' time to end by themselves is over */
    AGENT_ON_SIGNAL,     /* the user or the scheduler asks dtrun to stop; value: the signal */
    /* they ask a second time: workers of all hosts are killed; value: the signal */
    AGENT_ON_INSIST,
    /* the guard is dead, or the launching host is gone: this host ends now and is lost for the
     * others; value: the signal */
    AGENT_ON_NOW,
    AGENT_EVENT_COUNT
};
/* what the caller must do, in this order */
enum agent_do {
    AGENT_DO_SPAWN, /* start the workers of the round */
    /* write the order to save and stop on the pages; send `signal` to programs that do not read
     * their page */
    AGENT_DO_ORDER_STOP,
    AGENT_DO_ORDER_ABORT, /* write on the pages that the round is over */
    AGENT_DO_TERM,        /* send `signal` to each worker's group */
    AGENT_DO_KILL,        /* send KILL to each worker's group and every descendant */
    /* send AGENT_ON_GRACE after the grace time; has no effect while that time runs */
    AGENT_DO_GRACE,
    AGENT_DO_TELL_JOIN, /* send EVENT_JOIN to the coordinator; likewise below */
    AGENT_DO_TELL_FAILED,
    AGENT_DO_TELL_DONE,
    AGENT_DO_TELL_STOPPED, /* code: `failure_code`, as TELL_FAILED */
    /* code: 128 + the signal of the event; `code` if an earlier stop is repeated */
    AGENT_DO_TELL_STOP,
    AGENT_DO_TELL_KILL, /* the same with COORDINATOR_KILL */
    AGENT_DO_EXIT       /* exit with `code` */
};
#define AGENT_MAX_DO 6

struct agent_options {
    /* codes 75, 100 and 111 have their meaning, and workers read their pages */
    bool bundled;
    bool exit_code_worker;      /* the job ends with the first failing worker's code, not with 1 */
    const int *permanent_codes; /* more exit codes that forbid a restart; borrowed */
    int permanent_code_count;
};
struct agent {
    struct agent_options options;
    enum agent_state state;
    bool stop_wanted; /* all hosts stop, so an end now is no failure */
    bool pausing;     /* the stop is a pause: the job goes on */
    /* the coordinator that ordered the stop is lost: the next leader is told when the workers are
     * gone */
    bool orphaned;
    bool insisted; /* all hosts were told to kill their workers */
    bool verdict;  /* the job is over with `code` */
    bool leaving;  /* `verdict` concerns this node only */
    bool saved;    /* some worker ended with 75 */
    bool unsaved;  /* some worker ended with another code than 0 or 75 while stopping */
    int ok_count;  /* workers that ended with 0 in this round */
    int code;
    /* of the newest failure */
    enum failure_kind failure;
    int failure_code;
    /* output of one step */
    int signal;
    int do_count;
    enum agent_do todo[AGENT_MAX_DO];
};

/* Begins in JOINING. The caller sends the coordinator EVENT_JOIN itself. */
void agent_init(struct agent *a, const struct agent_options *options);
/* Handles one event; a->todo then lists what to do. An event without meaning in the current state
 * changes nothing. */
void agent_step(struct agent *a, enum agent_event event, int value);
/* Whether the workers of the newest round have saved and are gone. */
bool agent_has_saved(const struct agent *a);
const char *agent_state_name(enum agent_state state);

#endif
