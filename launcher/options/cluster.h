/* Where we are: which scheduler's or launcher's variables surround us. A row per environment;
 * the order of rows is the order of detection. Reads variables, and the file with hosts that LSF
 * and PBS name; says where each value came from. */
#ifndef DT_LAUNCHER_OPTIONS_CLUSTER_H
#define DT_LAUNCHER_OPTIONS_CLUSTER_H

#include "base/error.h"
#include "base/text.h"
#include "launcher/options/hostlist.h"

/* What a row can say; cluster.from[] has the variable of each. */
enum cluster_value {
    CLUSTER_NODE_COUNT,
    CLUSTER_NODE_RANK,
    CLUSTER_TASK_COUNT,
    CLUSTER_TASK_RANK,
    CLUSTER_TASK_TOTAL,
    CLUSTER_TASK_INDEX,
    CLUSTER_JOB_ID,
    CLUSTER_STEP_ID,
    CLUSTER_RESTARTS,
    CLUSTER_NODES,
    CLUSTER_MASTER_ADDR,
    CLUSTER_MASTER_PORT,
    CLUSTER_VALUE_COUNT
};

/* How its scheduler is asked to run this job again. */
struct cluster_requeue {
    char program[16], verb[16], id[160]; /* "scontrol" "requeue" "77_4"; program "": it cannot be
                                          * asked */
    bool batch;                          /* this is a batch job, which alone can be run again */
};
struct cluster {
    const char *name; /* "kubeflow", "slurm", "lsf", "pbs", "flux", "mpi", "kubernetes",
                       * "pytorchjob", "none" */
    bool launched;    /* the scheduler's own launcher started this process on every host of the
                       * job, so hosts and ranks below count; false in a batch script, which runs
                       * on one host of its allocation, and below another launcher */
    int node_count;   /* of the launch, else of the allocation; 1 where unknown; of "2:4" the
                       * second one */
    int node_least;   /* the first one; 0: it says no range */
    int node_rank;    /* of this host, 0 where unknown */
    int task_count;   /* tasks that the scheduler itself started on this host: > 1 means that
                       * every task would be a launcher; 1 where unknown */
    int task_rank;    /* which of them we are */
    int task_total;   /* of all hosts, and which we are; 1 and 0 where unknown */
    int task_index;
    int restart_count;   /* how often the scheduler has started this job again */
    const char *job_id;  /* points into the environment, as do the next ones; or null */
    const char *step_id; /* step or array index: tells launches inside one job id apart */
    const char *nodes;   /* the scheduler's list of hosts, unparsed, or the file that holds it */
    const char *master_addr;
    int master_port; /* 0: unknown */
    struct cluster_requeue requeue;
    /* The variable that a value came from; null: from none, the value is a default. */
    const char *from[CLUSTER_VALUE_COUNT];
    /* The variable that was set to what is no such number, so that the value is a default; null:
     * none was. */
    const char *unread[CLUSTER_VALUE_COUNT];
};

/* Detects, or takes the row called `forced` (null: detect). Fails for an unknown name, or a
 * forced row none of whose variables is set. Numbers that are no numbers count as unset, and are
 * in out->unread. */
int cluster_read(struct cluster *out, char *const *env, const char *forced, struct dt_error *err);
/* Hosts of the launch in the scheduler's order, into an empty list. Fails when there is no list
 * (DT_NOT_FOUND), or it cannot be read. */
int cluster_hosts(const struct cluster *c, struct hostlist *out, struct dt_error *err);
/* Where the scheduler says only which hosts there are (LSF, PBS): takes node_count and node_rank
 * from the list, looking for host_name. Does nothing where variables said them. Fails like
 * cluster_hosts, or when host_name is not in the list. */
int cluster_place(struct cluster *c, const char *host_name, struct dt_error *err);

/* The scheduler started more tasks than there are hosts, so that each task is a launcher with a
 * worker of its own. */
bool cluster_task_per_worker(const struct cluster *c);
/* A name of this launch, the same on all its hosts and different for every other one:
 * "slurm-77.0", "slurm-77.0-r1" when started again. Appends nothing when there is no job id. */
void cluster_run_id(const struct cluster *c, struct dt_text *out);
/* The port where the hosts of this launch meet: as given, else from 15000 to 24999 by job and
 * step (the job id's last four digits);
 * 0 when there is no job id. */
int cluster_port(const struct cluster *c);

/* What the launcher settled on, for the comparison with what surrounds it. */
struct cluster_choice {
    int nnodes_max, node_rank, nproc;
    const char *nnodes_from, *node_rank_from; /* option or variable; null: the default, or the
                                               * cluster itself */
};
/* One line per thing that two sources say differently: both values, and which one counts.
 * Nothing when all agree. */
void cluster_warn(const struct cluster *c, const struct cluster_choice *chosen, char *const *env, struct dt_text *out);
/* "it started 4 tasks on 2 hosts, and each is a launcher of its own; start one per host: srun
 * --ntasks-per-node=1". */
void cluster_one_per_host(const struct cluster *c, struct dt_text *out);
/* The values that are known and their variables, a line each, for --dry_run. */
void cluster_describe(const struct cluster *c, struct dt_text *out);
/* Known names separated by " ", for messages and help. */
const char *cluster_names(void);

#endif
