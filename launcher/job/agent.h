/* One node's agent: a table of states and events. A pure step: what happened comes in, what is
 * to be done goes out, in order; it knows no process, clock or socket. job.c feeds it and
 * carries out what it says; the coordinator decides about rounds. */
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
    AGENT_ON_START,      /* coordinator: a round begins */
    AGENT_ON_END,        /* coordinator: the round is over */
    AGENT_ON_STOP,       /* coordinator: let the workers save and stop; value: exit code as far
                          * as nothing is saved; COORDINATOR_KILL: now */
    AGENT_ON_PAUSE,      /* coordinator: the same, and join again; value: as STOP */
    AGENT_ON_LEAVE,      /* coordinator: the job goes on without this node; value: exit code as
                          * far as nothing is saved */
    AGENT_ON_VERDICT,    /* coordinator: the job is over; value: exit code */
    AGENT_ON_WORKER_OK,  /* a worker ended with 0 */
    AGENT_ON_WORKER_75,  /* a bundled worker has saved and stopped */
    AGENT_ON_WORKER_BAD, /* a worker failed; value: exit code, negative for a signal */
    AGENT_ON_NO_START,   /* a worker could not be started; value: exit code of the job */
    AGENT_ON_GONE,       /* the last worker and all that it started are gone */
    AGENT_ON_GRACE,      /* the time to end by themselves is over */
    AGENT_ON_SIGNAL,     /* the user or the scheduler wants us to stop; value: the signal */
    AGENT_ON_INSIST,     /* they ask again, and want no worker of any host to be waited for;
                          * value: the signal */
    AGENT_ON_NOW,        /* the guard is dead, or nobody waits for this host any more: it ends,
                          * for the others it is lost; value: the signal */
    AGENT_EVENT_COUNT
};
/* what the caller does, in this order */
enum agent_do {
    AGENT_DO_SPAWN,       /* start the workers of the round */
    AGENT_DO_ORDER_STOP,  /* on the pages: save and stop; programs without a page's
                           * ear get the signal `signal` */
    AGENT_DO_ORDER_ABORT, /* on the pages: the round is over */
    AGENT_DO_TERM,        /* the signal `signal` to each worker's group */
    AGENT_DO_KILL,        /* KILL to each worker's group and every descendant */
    AGENT_DO_GRACE,       /* AGENT_ON_GRACE after the grace time; not again when it
                           * is running */
    AGENT_DO_TELL_JOIN,   /* EVENT_JOIN to the coordinator, and so on */
    AGENT_DO_TELL_FAILED,
    AGENT_DO_TELL_DONE,
    AGENT_DO_TELL_STOPPED, /* code: `failure_code`, as TELL_FAILED */
    AGENT_DO_TELL_STOP,    /* code: 128 + the signal of the event; `code` when a stop
                            * that went round is told again */
    AGENT_DO_TELL_KILL,    /* the same with COORDINATOR_KILL */
    AGENT_DO_EXIT          /* with `code` */
};
#define AGENT_MAX_DO 6

struct agent_options {
    bool bundled;               /* codes 75, 100 and 111 mean what they say, and pages are
                                 * listened to */
    bool exit_code_worker;      /* the job ends with the first failing worker's code, not with 1 */
    const int *permanent_codes; /* more codes that forbid a restart; borrowed */
    int permanent_code_count;
};
struct agent {
    struct agent_options options;
    enum agent_state state;
    bool stop_wanted; /* a stop went round: what ends now is no failure */
    bool pausing;     /* it was a pause: the job goes on */
    bool orphaned;    /* whoever let the stop go round is lost: the next leader hears of it when
                       * the workers are gone */
    bool insisted;    /* all hosts were told to kill their workers */
    bool verdict;     /* the job is over with `code` */
    bool leaving;     /* for this node only */
    bool saved;       /* some worker ended with 75 */
    bool unsaved;     /* some worker ended otherwise than with 0 or 75 while stopping */
    int ok_count;     /* workers that ended with 0 in this round */
    int code;
    /* of the failure told last */
    enum failure_kind failure;
    int failure_code;
    /* out of one step */
    int signal;
    int do_count;
    enum agent_do todo[AGENT_MAX_DO];
};

/* Begins in JOINING; the caller tells the coordinator EVENT_JOIN itself. */
void agent_init(struct agent *a, const struct agent_options *options);
/* One event; a->todo holds what is to be done. An event that means nothing in the present state
 * changes nothing. */
void agent_step(struct agent *a, enum agent_event event, int value);
/* Whether the workers of the newest round have saved, and are gone. */
bool agent_has_saved(const struct agent *a);
const char *agent_state_name(enum agent_state state);

#endif
