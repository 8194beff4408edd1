/* Decides about rounds: which nodes are in a round, when the round is complete, when it is over,
 * and when the job is over. A pure function from one event to a list of actions, which the caller
 * carries out. It has no clock, no socket and no process. A node is a small number that the caller
 * chooses (one per connection). The same code serves one node and a thousand. The restart budget
 * belongs to the job, not to a node. */
#ifndef DT_LAUNCHER_ROUNDS_COORDINATOR_H
#define DT_LAUNCHER_ROUNDS_COORDINATOR_H

#include <stdbool.h>
#include <stdint.h>

#define COORDINATOR_MAX_NODES 10240 /* node numbers are below this, too */
#define COORDINATOR_ROLE_BYTES 64
#define COORDINATOR_HOST_BYTES 64
/* 128 + KILL: code of the second STOP (event or action). The workers are killed now. */
#define COORDINATOR_KILL 137
/* After so many restarts without progress another restart will not help. Progress is a later step,
 * or a later saved step. */
#define COORDINATOR_NO_PROGRESS 3

enum event_kind {
    EVENT_JOIN,    /* a node has no workers and waits for a round; sent again after each round */
    EVENT_FAILED,  /* a worker of the node failed in `round`; `failure` and `code` say how */
    EVENT_DONE,    /* all workers of the node ended with 0 in `round` */
    EVENT_STOPPED, /* the node's workers are gone after a stop; `code`: the node's exit code */
    /* the job was asked to stop; `code`: 128 + signal, the exit code if nothing is saved */
    EVENT_STOP,
    EVENT_LOST, /* contact with the node was lost */
    EVENT_TICK, /* time has passed; the coordinator asked for this event with actions.wake_s */
    /* all hosts of the next round have reached each other, so it begins now. The caller creates
     * this event, and only while `doubtful` is set. */
    EVENT_MET
};
enum failure_kind {
    FAILURE_PLAIN,     /* another try may work; costs one restart */
    FAILURE_PERMANENT, /* another try would fail in the same way: the job ends with `code` */
    FAILURE_START      /* the workers could not be started: the job ends with `code` */
};
struct event {
    enum event_kind kind;
    int node, round;
    /* JOIN */
    int local_world_size;
    int64_t order; /* sort key of the nodes; equal orders are sorted by `node` */
    /* the node was in a round with this order. Nodes that were never in a round exchange their
     * orders, sorted by preference and then by host. */
    bool placed;
    int preference;   /* smallest first; -1 comes before all others */
    const char *host; /* copied; sorted so that n7 comes before n66; may be null */
    const char *role; /* copied */
    bool returns;     /* the node was in a round of this job under another leader */
    /* FAILED, STOPPED, STOP */
    enum failure_kind failure;
    int code;
    int64_t step, saved_step;  /* how far the round came; -1: unknown or nothing */
    const struct cause *cause; /* FAILED: for the other hosts; not stored here; may be null */
    bool weak;                 /* FAILED: the worker failed only because it lost its peers */
    bool saved;                /* STOP: the node's workers have saved and are gone */
    /* FAILED: the kernel killed the worker for lack of memory in step `at_step` (-1: before the
     * first) */
    bool out_of_memory;
    int64_t at_step;
};

enum action_kind {
    ACTION_START, /* begin `place.round` */
    ACTION_END,   /* the round is over: end the workers, then join again */
    ACTION_STOP,  /* let the workers save and stop, then send EVENT_STOPPED */
    /* end this node's workers with the signal and exit with `code`; the other nodes go on.
     * EVENT_LOST follows. */
    ACTION_LEAVE,
    /* like STOP, but the job goes on: when all nodes have sent EVENT_STOPPED, END follows */
    ACTION_PAUSE,
    ACTION_FINISH, /* the job is over: end the workers, exit with `code` */
    ACTION_REFUSE  /* the node gets no place: exit with `code` */
};
struct place { /* a node's place in a round */
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
    double wake_s; /* when the caller must send EVENT_TICK; 0: no need */
    struct action list[2 * COORDINATOR_MAX_NODES];
};

struct coordinator_options {
    int nodes_min, nodes_max, restarts_max;
    double join_timeout_s, last_call_s;
    /* a node that is asked to stop leaves an elastic job while enough other nodes are here;
     * otherwise the whole job stops */
    bool leave;
    /* with `leave`: only TERM makes a single node leave. All nodes save before it leaves, because
     * each holds a part of the state. */
    bool save;
    /* steps are known: end with 100 when restarts make no progress, or when memory runs out in the
     * same step again */
    bool watch_progress;
};
enum node_state {
    NODE_WAITING,
    NODE_IN,
    NODE_DONE,
    NODE_STOPPED,
    NODE_LEFT, /* was told to leave and has no workers; the coordinator waits for its loss */
    NODE_STATE_COUNT
};
struct coordinator_node {
    enum node_state state;
    bool member;  /* is in the newest round */
    bool returns; /* waits for the next round, and was in a round under another leader */
    bool leaving; /* was told to leave, or will be told when its workers have saved */
    bool doubted; /* was in the round whose end is doubtful */
    int node, local_world_size;
    int64_t order;
    bool placed;
    int preference;
    char role[COORDINATOR_ROLE_BYTES], host[COORDINATOR_HOST_BYTES];
};
/* The numbers that decide whether a failure costs a restart or ends the job. A new leader takes them
 * over. */
struct run_history {
    int restarts_used;             /* rounds that ended because a worker failed */
    int no_progress;               /* restarts in a row after which the run came no further */
    int64_t best_step, best_saved; /* -1: none yet */
    bool oom_seen;                 /* a worker was killed for lack of memory, most recently in step oom_step */
    int64_t oom_step;
};
struct coordinator {
    struct coordinator_options options;
    int round;    /* the newest round; 1 is the first; 0: none yet */
    bool running; /* the newest round is not over */
    struct run_history history;
    bool stopping, finished;
    bool pausing;            /* all nodes of the round save, because some of them will leave */
    int code;                /* exit code of the job, when stopping or finished */
    double waiting_since_s;  /* when the first node of the next round came; -1: no node came */
    double complete_since_s; /* when enough nodes were here; -1: too few nodes are here */
    /* set by the caller: no round of fewer than all nodes begins before, because other nodes may be
     * on their way; 0: no limit */
    double alone_from_s;
    /* set by the caller, who then sends EVENT_TICK: no round begins before; 0: no limit */
    double hold_until_s;

    /* The last round ended because a worker lost its peers. Its end costs no restart if a lost
     * host, or two hosts that cannot reach each other, are found before the next round begins. */
    bool doubtful;
    /* a restart was counted. If not, the job ends with doubt_code unless such a loss is found. */
    bool doubt_counted;
    int doubt_code;        /* exit code of that failure */
    int doubt_no_progress; /* no_progress before that failure */

    int node_count, state_counts[NODE_STATE_COUNT];
    struct coordinator_node nodes[COORDINATOR_MAX_NODES];
    /* index of a node in `nodes`, plus 1; 0: the node is not here */
    int place_of[COORDINATOR_MAX_NODES];

    /* scratch for a new round */
    struct coordinator_node *order[COORDINATOR_MAX_NODES]; /* nodes of the new round, by order */
    struct coordinator_node *fresh[COORDINATOR_MAX_NODES]; /* nodes that were never in a round */
    int64_t fresh_orders[COORDINATOR_MAX_NODES];           /* the orders of these nodes */
    int by_role[COORDINATOR_MAX_NODES];                    /* indices of `order`, sorted by role */
};

void coordinator_init(struct coordinator *c, const struct coordinator_options *options);
/* Returns null when the node is not here. */
const struct coordinator_node *coordinator_find(const struct coordinator *c, int node);
/* When a round of fewer than all nodes may begin, if the minimum is here. */
double coordinator_last_call_end(const struct coordinator *c);
/* Notes that two nodes cannot reach each other. Returns true if this explains the end of the last
 * round, which was doubtful; that end then costs no restart. */
bool coordinator_note_unreachable(struct coordinator *c, int node, int other);
/* Whether the last round may have ended because its workers lost this node. */
bool coordinator_doubts(const struct coordinator *c, int node);
/* now_s: a monotonic clock, in seconds. */
void coordinator_step(struct coordinator *c, const struct event *e, double now_s, struct actions *out);

#endif
