/* Where we are: which scheduler's or launcher's variables surround us. A row per environment; the order of rows is the order of
 * detection. Only reads variables. */
#ifndef DT_LAUNCHER_CLUSTER_H
#define DT_LAUNCHER_CLUSTER_H

#include "base/error.h"
#include "base/text.h"

struct cluster {
    const char *name;   /* "slurm", "lsf", "pbs", "mpi", "pytorchjob", "none" */
    int node_count;     /* of the allocation or the launch; 1 where unknown */
    int node_rank;      /* of this host, 0 where unknown */
    int task_count;     /* tasks that the scheduler itself started on this host: > 1 means that every task would be a launcher; 1 where unknown */
    int task_rank;      /* which of them we are */
    const char *job_id; /* points into the environment; or null */
    const char *nodes;  /* the scheduler's list of hosts, unparsed; or null */
};

/* Detects, or takes the row called `forced` (null: detect). Fails for an unknown name, or a forced row none of whose variables is set.
 * Numbers that are no numbers count as unset. */
int cluster_read(struct cluster *out, char *const *env, const char *forced, struct dt_error *err);
/* A warning when the surroundings and one single-node launcher do not fit together (several tasks per host, several hosts), or nothing. */
void cluster_warn(const struct cluster *c, int nnodes_max, struct dt_text *out);
/* Known names separated by " ", for messages and help. */
const char *cluster_names(void);

#endif
