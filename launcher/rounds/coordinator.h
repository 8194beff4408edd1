/* Rounds: which nodes are in, when a round is complete, when it is over, when the job is. A pure
 * step from one event to a list of actions: no clock, no socket, no process; whoever calls it
 * carries the actions out. A node is a small number that the caller chose (its connection); the
 * same step serves one node and a thousand. The restart budget is the job's, not the node's. */
#ifndef DT_LAUNCHER_ROUNDS_COORDINATOR_H
#define DT_LAUNCHER_ROUNDS_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#define COORDINATOR_MAX_NODES 10240 /* and their numbers are below it */
#define COORDINATOR_ROLE_BYTES 64
#define COORDINATOR_HOST_BYTES 64
/* 128 + KILL: code of a STOP, event or action, after another one: whoever asked insists, workers
 * are killed now */
#define COORDINATOR_KILL 137
/* so many restarts without a newer saved step or a longer run: another one will not help */
#define COORDINATOR_NO_PROGRESS 3

enum event_kind {
    EVENT_JOIN,    /* a node has no workers and waits for a round; again after each round */
    EVENT_FAILED,  /* a worker of the node failed in `round`; `failure` and `code` say how */
    EVENT_DONE,    /* all workers of the node ended with 0 in `round` */
    EVENT_STOPPED, /* the node's workers are gone after a stop; `code` is what it would exit with */
    EVENT_STOP,    /* somebody asked the job to stop; `code` as far as nothing is saved (128 +
                    * signal) */
    EVENT_LOST,    /* no more word from the node */
    EVENT_TICK,    /* time has passed; asked for by actions.wake_s */
    EVENT_MET      /* all hosts of the round that is to begin have reached each other: now it
                    * begins. From the caller itself, and needed only when `doubtful` */
};
enum failure_kind {
    FAILURE_PLAIN,     /* another try may work; costs one restart */
    FAILURE_PERMANENT, /* another try fails the same way: the job ends with `code` */
    FAILURE_START      /* the workers could not even be started: the job ends with `code` */
};
struct event {
    enum event_kind kind;
    int node, round;
    /* JOIN */
    int local_world_size;
    int64_t order;    /* nodes are numbered by it, then by `node` */
    bool placed;      /* it was in a round with this order; those who never were change theirs
                       * with each other, by the next two */
    int preference;   /* smallest first; -1: before all others */
    const char *host; /* copied; n7 comes before n66; may be null */
    const char *role; /* copied */
    bool returns;     /* it was in a round of this job that another leader began */
    /* FAILED, STOPPED, STOP */
    enum failure_kind failure;
    int code;
    int64_t step, saved_step;  /* how far the round came; -1: unknown or nothing */
    const struct cause *cause; /* FAILED: for the other hosts; not kept here; may be null */
    bool weak;                 /* FAILED: the worker merely lost its peers */
    bool saved;                /* STOP: the node's workers have saved and are gone */
    bool out_of_memory;        /* FAILED: the kernel killed the worker for memory, in step
                               * `at_step` (-1: before the first) */
    int64_t at_step;
};

enum action_kind {
    ACTION_START,  /* begin `place.round` */
    ACTION_END,    /* the round is over: end the workers, then join again */
    ACTION_STOP,   /* let the workers save and stop, then say EVENT_STOPPED */
    ACTION_LEAVE,  /* end the workers with the signal and exit with `code`, alone: the others go
                    * on; then comes EVENT_LOST */
    ACTION_PAUSE,  /* as STOP; when all nodes have said EVENT_STOPPED, END follows: the round is
                    * over, the job goes on */
    ACTION_FINISH, /* the job is over: end what runs, exit with `code` */
    ACTION_REFUSE  /* the node cannot be taken: exit with `code` */
};
struct place { /* of a node in a round */
    int round, restarts_used;
    int group_rank, group_world_size;
    int rank, world_size;           /* of the node's first worker */
    int role_rank, role_world_size; /* of the node's first worker */
    int local_world_size;
};
struct action {
    enum action_kind kind;
    int node, code;
    struct place place; /* START */
};
struct actions { /* owned by the caller; emptied by each step */
    int count;
    double wake_s; /* send EVENT_TICK then; 0: no need */
    struct action list[2 * COORDINATOR_MAX_NODES];
};

struct coordinator_options {
    int nodes_min, nodes_max, restarts_max;
    double join_timeout_s, last_call_s;
    bool leave;          /* who is asked to stop leaves an elastic job, as long as enough others
                          * are there; else the whole job stops */
    bool save;           /* with leave: only TERM asks one node; all nodes save before it leaves,
                          * for each holds a part of what is to be saved */
    bool watch_progress; /* steps are known: end with 100 when restarts do not get further, or
                          * when the memory does not suffice again */
};
enum node_state {
    NODE_WAITING,
    NODE_IN,
    NODE_DONE,
    NODE_STOPPED,
    NODE_LEFT, /* has no workers and was told to leave: only its end is awaited */
    NODE_STATE_COUNT
};
struct coordinator_node {
    enum node_state state;
    bool member;  /* of the newest round */
    bool returns; /* it waits for the next round since it was in one of another leader's */
    bool leaving; /* was told so, or will be when its workers have saved */
    bool doubted; /* was in the round whose end is doubtful */
    int node, local_world_size;
    int64_t order;
    bool placed;
    int preference;
    char role[COORDINATOR_ROLE_BYTES], host[COORDINATOR_HOST_BYTES];
};
struct coordinator {
    struct coordinator_options options;
    int round;         /* newest, 1 is the first, 0: none yet */
    int restarts_used; /* rounds lost to a failed worker */
    bool running;      /* the newest round is not over */
    bool stopping, finished;
    bool pausing;            /* all nodes of the round save, because some of them will leave */
    int code;                /* of the end, when stopping or finished */
    double waiting_since_s;  /* first node of the next round; -1: nobody */
    double complete_since_s; /* minimum reached; -1: not */
    double alone_from_s;     /* set by the caller: no round of fewer than all before it, others
                              * may be on their way; 0: at any time */
    double hold_until_s;     /* set by the caller: no round before it; 0: at any time. EVENT_TICK
                              * when it is another one */
    int64_t best_step, best_saved;
    int no_progress;
    bool doubtful;         /* the last round ended because a worker lost its peers: when it turns
                            * out, before the next one begins, that a host was lost or that two
                            * cannot reach each other, that costs no restart */
    bool doubt_counted;    /* a restart was counted for it; else it is the job's end, with
                            * doubt_code, unless that turns out */
    int doubt_code;        /* of that failure */
    int doubt_no_progress; /* before it */
    bool oom_seen;         /* a worker was killed for memory; the last one in step oom_step */
    int64_t oom_step;
    int node_count, state_counts[NODE_STATE_COUNT];
    struct coordinator_node nodes[COORDINATOR_MAX_NODES];
    int place_of[COORDINATOR_MAX_NODES];                   /* of a node in `nodes`, plus 1; 0: it
                                                            * is not here */
    struct coordinator_node *order[COORDINATOR_MAX_NODES]; /* scratch: of a new round, by order */
    struct coordinator_node *fresh[COORDINATOR_MAX_NODES]; /* scratch: those of `order` that
                                                            * never were in a round */
    int64_t fresh_orders[COORDINATOR_MAX_NODES];           /* scratch: theirs */
    int by_role[COORDINATOR_MAX_NODES];                    /* scratch: places in `order`, by role */
};

void coordinator_init(struct coordinator *c, const struct coordinator_options *options);
/* Null: it is not here. */
const struct coordinator_node *coordinator_find(const struct coordinator *c, int node);
/* When a round of fewer than all may begin, once the minimum is there. */
double coordinator_last_call_end(const struct coordinator *c);
/* These two cannot reach each other. True: so that is why the last round ended, whose end was
 * doubtful; it costs no restart any more. */
bool coordinator_apart(struct coordinator *c, int node, int other);
/* Whether the last round ended, as far as is known, because its workers lost this node. */
bool coordinator_doubts(const struct coordinator *c, int node);
/* now_s: monotonic. */
void coordinator_step(struct coordinator *c, const struct event *e, double now_s, struct actions *out);

#endif
