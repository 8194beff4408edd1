/* The table of environments: a row names the variables of one scheduler or launcher. A new one is a row; parsing lists of hosts
 * is left to whoever needs several. */
#include "launcher/cluster.h"

#include "launcher/options.h"

#include <stdio.h>
#include <string.h>

/* One environment: the variable that gives it away, and the variables that say what we want to know; null: it has none. */
struct row {
    const char *name;
    const char *sign;
    const char *node_count, *node_rank, *task_count, *task_rank, *job_id, *nodes;
};

/* The order of rows is the order of detection. What a user sets on purpose (pytorchjob's and torchelastic's PET_NNODES) comes first; a scheduler's
 * own launcher (srun, jsrun, mpirun) before the allocation it runs in. */
static const struct row rows[] = {
    {"pytorchjob", "PET_NNODES", "PET_NNODES", "PET_NODE_RANK", NULL, NULL, NULL, NULL},
    {"mpi", "OMPI_COMM_WORLD_SIZE", NULL, NULL, "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", NULL, NULL},
    {"mpi", "MPI_LOCALNRANKS", NULL, NULL, "MPI_LOCALNRANKS", "MPI_LOCALRANKID", NULL, NULL},
    {"slurm", "SLURM_JOB_ID", "SLURM_NNODES", "SLURM_NODEID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_LOCALID", "SLURM_JOB_ID", "SLURM_JOB_NODELIST"},
    {"lsf", "LSB_JOBID", NULL, NULL, "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "LSB_JOBID", "LSB_HOSTS"},
    {"pbs", "PBS_JOBID", "PBS_NUM_NODES", "PBS_NODENUM", NULL, NULL, "PBS_JOBID", "PBS_NODEFILE"},
    {"mpi", "PMI_SIZE", NULL, NULL, NULL, NULL, NULL, NULL},
};
static const size_t row_count = sizeof rows / sizeof rows[0];

const char *cluster_names(void)
{
    return "slurm lsf pbs mpi pytorchjob none";
}

/* First number in the variable ("4", "4(x2)", "2:4"); `fallback` when it is unset or no number. */
static int number(char *const *env, const char *name, int fallback)
{
    const char *text = name != NULL ? options_getenv(env, name) : NULL;
    int value;
    return text != NULL && strlen(text) < 4096 && sscanf(text, "%7d", &value) == 1 && value >= 0 ? value : fallback;
}

static bool is_name(const char *word)
{
    size_t n = strlen(word);
    for (const char *p = cluster_names(); *p != '\0'; p += p[strcspn(p, " ")] == ' ' ? strcspn(p, " ") + 1 : strcspn(p, " ")) {
        if (strcspn(p, " ") == n && memcmp(p, word, n) == 0) {
            return true;
        }
    }
    return false;
}

int cluster_read(struct cluster *out, char *const *env, const char *forced, struct dt_error *err)
{
    struct cluster c = {"none", 1, 0, 1, 0, NULL, NULL};
    const struct row *found = NULL;
    if (forced != NULL && !is_name(forced)) {
        return dt_fail(err, DT_INVALID, "%.60s: must be one of %s", forced, cluster_names());
    }
    bool none = forced != NULL && strcmp(forced, "none") == 0;
    for (size_t i = 0; i < row_count && found == NULL && !none; i++) {
        if (options_getenv(env, rows[i].sign) != NULL && (forced == NULL || strcmp(forced, rows[i].name) == 0)) {
            found = &rows[i];
        }
    }
    if (forced != NULL && found == NULL && !none) {
        return dt_fail(err, DT_INVALID, "%s: none of its variables is set here; leave the option out, or use none", forced);
    }
    if (found != NULL) {
        c.name = found->name;
        c.node_count = number(env, found->node_count, 1);
        c.node_rank = number(env, found->node_rank, 0);
        c.task_count = number(env, found->task_count, 1);
        c.task_rank = number(env, found->task_rank, 0);
        c.job_id = found->job_id != NULL ? options_getenv(env, found->job_id) : NULL;
        c.nodes = found->nodes != NULL ? options_getenv(env, found->nodes) : NULL;
        if (c.node_count < 1) {
            c.node_count = 1;
        }
        if (c.task_count < 1) {
            c.task_count = 1;
        }
    }
    *out = c;
    return 0;
}

void cluster_warn(const struct cluster *c, int nnodes_max, struct dt_text *out)
{
    if (c->task_count > 1 && c->task_rank == 0) {
        dt_text_printf(out, "dtrun: %s: it started %d tasks on this host, and each is a launcher of its own; start one per host%s\n", c->name,
                       c->task_count, strcmp(c->name, "slurm") == 0 ? ": srun --ntasks-per-node=1" : "");
    }
    if (c->node_count > 1 && nnodes_max == 1 && strcmp(c->name, "pytorchjob") != 0) {
        dt_text_printf(out, "dtrun: %s: %d hosts are allocated, this run uses one (--nnodes=1)\n", c->name, c->node_count);
    }
}
