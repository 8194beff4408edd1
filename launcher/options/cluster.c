/* The table of environments: a row names the variables of one scheduler or launcher. A new one
 * is a row; where its list of hosts has a form of its own, also a reader in hostlist.c. */
#include "launcher/options/cluster.h"

#include "base/file.h"
#include "launcher/options/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES ((size_t)16 << 20)

enum form {
    FORM_NONE,
    FORM_SLURM,
    FORM_FILE, /* the variable names a file with a host per slot */
    FORM_LSF   /* the same, or it is MCPU_HOSTS; one slot may be of the host that launches, which
                * has no part in the job */
};

/* One environment. `sign` gives it away; `launch` is set only where its own launcher started us
 * (null: wherever the sign is). A value has up to three variables, the first one that is set
 * counts. */
struct row {
    const char *name, *sign, *launch;
    enum form form;
    bool only_forced; /* its variables are too common to be a sign */
    const char *variables[CLUSTER_VALUE_COUNT][3];
};
static const char mcpu_hosts[] = "LSB_MCPU_HOSTS";

/* The order of rows is the order of detection. What is written for torchrun (PET_*) comes first;
 * a scheduler's own launcher (mpirun, jsrun) before the allocation it runs in; PMI last, for
 * srun sets its variables too. */
static const struct row rows[] = {
    {.name = "kubeflow",
     .sign = "PET_NNODES",
     .variables = {[CLUSTER_NODE_COUNT] = {"PET_NNODES"},
                   [CLUSTER_NODE_RANK] = {"PET_NODE_RANK", "JOB_COMPLETION_INDEX"},
                   [CLUSTER_MASTER_ADDR] = {"PET_MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"PET_MASTER_PORT"}}},
    {.name = "mpi", /* Open MPI; inside a SLURM or PBS job the id comes from there */
     .sign = "OMPI_COMM_WORLD_SIZE",
     .variables = {[CLUSTER_TASK_COUNT] = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
                   [CLUSTER_TASK_RANK] = {"OMPI_COMM_WORLD_LOCAL_RANK"},
                   [CLUSTER_TASK_TOTAL] = {"OMPI_COMM_WORLD_SIZE"},
                   [CLUSTER_TASK_INDEX] = {"OMPI_COMM_WORLD_RANK"},
                   [CLUSTER_JOB_ID] = {"SLURM_JOB_ID", "PBS_JOBID"},
                   [CLUSTER_STEP_ID] = {"PMIX_NAMESPACE"},
                   [CLUSTER_RESTARTS] = {"SLURM_RESTART_COUNT"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "mpi", /* Hydra: MPICH, Intel MPI */
     .sign = "MPI_LOCALNRANKS",
     .variables = {[CLUSTER_TASK_COUNT] = {"MPI_LOCALNRANKS"},
                   [CLUSTER_TASK_RANK] = {"MPI_LOCALRANKID"},
                   [CLUSTER_TASK_TOTAL] = {"PMI_SIZE"},
                   [CLUSTER_TASK_INDEX] = {"PMI_RANK"},
                   [CLUSTER_JOB_ID] = {"SLURM_JOB_ID", "PBS_JOBID"},
                   [CLUSTER_RESTARTS] = {"SLURM_RESTART_COUNT"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "slurm",
     .sign = "SLURM_JOB_ID",
     .launch = "SLURM_STEP_NODELIST",
     .form = FORM_SLURM,
     .variables = {[CLUSTER_NODE_COUNT] = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES"},
                   [CLUSTER_NODE_RANK] = {"SLURM_NODEID"},
                   [CLUSTER_TASK_COUNT] = {"SLURM_STEP_TASKS_PER_NODE"},
                   [CLUSTER_TASK_RANK] = {"SLURM_LOCALID"},
                   [CLUSTER_TASK_TOTAL] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
                   [CLUSTER_TASK_INDEX] = {"SLURM_PROCID"},
                   [CLUSTER_JOB_ID] = {"SLURM_JOB_ID"},
                   [CLUSTER_STEP_ID] = {"SLURM_STEP_ID", "SLURM_STEPID"},
                   [CLUSTER_RESTARTS] = {"SLURM_RESTART_COUNT"},
                   [CLUSTER_NODES] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "lsf",
     .sign = "LSB_JOBID",
     .launch = "JSM_NAMESPACE_RANK",
     .form = FORM_LSF,
     .variables = {[CLUSTER_TASK_COUNT] = {"JSM_NAMESPACE_LOCAL_SIZE"},
                   [CLUSTER_TASK_RANK] = {"JSM_NAMESPACE_LOCAL_RANK"},
                   [CLUSTER_TASK_TOTAL] = {"JSM_NAMESPACE_SIZE"},
                   [CLUSTER_TASK_INDEX] = {"JSM_NAMESPACE_RANK"},
                   [CLUSTER_JOB_ID] = {"LSB_JOBID"},
                   [CLUSTER_STEP_ID] = {"LSB_JOBINDEX"},
                   /* MCPU_HOSTS needs no file on every host */
                   [CLUSTER_NODES] = {"LSB_DJOB_RANKFILE", mcpu_hosts, "LSB_DJOB_HOSTFILE"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "pbs", /* nothing tells a batch script from what pbsdsh or ssh started:
                     * --cluster=pbs does */
     .sign = "PBS_JOBID",
     .launch = "",
     .form = FORM_FILE,
     .variables = {[CLUSTER_NODE_RANK] = {"PBS_NODENUM"}, /* of whatever pbsdsh starts; 0 in the
                                                           * batch script */
                   [CLUSTER_JOB_ID] = {"PBS_JOBID"},
                   [CLUSTER_STEP_ID] = {"PBS_ARRAY_INDEX"},
                   [CLUSTER_NODES] = {"PBS_NODEFILE"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "flux", /* how many tasks a host has, and the host's number, follow from how many
                      * there are in all */
     .sign = "FLUX_JOB_ID",
     .launch = "FLUX_TASK_RANK",
     .variables = {[CLUSTER_NODE_COUNT] = {"FLUX_JOB_NNODES"},
                   [CLUSTER_TASK_RANK] = {"FLUX_TASK_LOCAL_ID"},
                   [CLUSTER_TASK_TOTAL] = {"FLUX_JOB_SIZE"},
                   [CLUSTER_TASK_INDEX] = {"FLUX_TASK_RANK"},
                   [CLUSTER_JOB_ID] = {"FLUX_JOB_ID"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "kubernetes", /* an indexed Job, a JobSet: the number of pods comes from --nnodes */
     .sign = "JOB_COMPLETION_INDEX",
     .variables = {[CLUSTER_NODE_RANK] = {"JOB_COMPLETION_INDEX"}}},
    {.name = "pytorchjob",
     .sign = "WORLD_SIZE",
     .only_forced = true,
     .variables = {[CLUSTER_NODE_COUNT] = {"WORLD_SIZE"},
                   [CLUSTER_NODE_RANK] = {"RANK"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "mpi",
     .sign = "PMI_SIZE",
     .variables = {[CLUSTER_TASK_TOTAL] = {"PMI_SIZE"},
                   [CLUSTER_TASK_INDEX] = {"PMI_RANK"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
    {.name = "mpi", /* PMIx alone knows our number, not how many there are */
     .sign = "PMIX_RANK",
     .variables = {[CLUSTER_TASK_INDEX] = {"PMIX_RANK"},
                   [CLUSTER_STEP_ID] = {"PMIX_NAMESPACE"},
                   [CLUSTER_MASTER_ADDR] = {"MASTER_ADDR"},
                   [CLUSTER_MASTER_PORT] = {"MASTER_PORT"}}},
};
static const size_t row_count = sizeof rows / sizeof rows[0];

const char *cluster_names(void)
{
    return "slurm lsf pbs flux mpi kubeflow kubernetes pytorchjob none";
}

static bool is_name(const char *word)
{
    size_t n = strlen(word);
    for (const char *p = cluster_names(); *p != '\0'; p += strcspn(p, " "), p += *p == ' ') {
        if (strcspn(p, " ") == n && memcmp(p, word, n) == 0) {
            return true;
        }
    }
    return false;
}

/* Text of a value, with *from its variable; null when no variable is set, or it is empty. */
static const char *look_up(const struct row *row, enum cluster_value what, char *const *env, const char **from)
{
    for (int i = 0; i < 3 && row->variables[what][i] != NULL; i++) {
        const char *text = options_getenv(env, row->variables[what][i]);
        if (text != NULL && text[0] != '\0') {
            *from = row->variables[what][i];
            return text;
        }
    }
    return NULL;
}

/* The same for a number from lo to a million; `fallback`, and no variable, for anything else. Of
 * "1:4" it is the second, and *least the first. */
static int number_of_range(struct cluster *c, const struct row *row, enum cluster_value what, char *const *env, int lo,
                           int fallback, int *least)
{
    int first = -1, second = -1;
    char after = '\0', end = '\0';
    const char *text = look_up(row, what, env, &c->from[what]);
    int found = text != NULL && strlen(text) <= 64 ? sscanf(text, "%7d%c%7d%c", &first, &after, &second, &end) : 0;
    bool range = found == 3 && after == ':', valid = range || found == 1;
    int value = range ? second : first;
    if (!valid || first < lo || value < first || value > 1000000) {
        c->unread[what] = text != NULL ? c->from[what] : NULL;
        c->from[what] = NULL;
        *least = 0;
        return fallback;
    }
    *least = range ? first : 0;
    return value;
}

static int number(struct cluster *c, const struct row *row, enum cluster_value what, char *const *env, int lo,
                  int fallback)
{
    int ignored;
    return number_of_range(c, row, what, env, lo, fallback, &ignored);
}

/* Array tasks and parts of a heterogeneous job have job ids of their own, under which they
 * cannot be asked for everywhere. */
static void read_requeue(struct cluster_requeue *q, char *const *env)
{
    const char *job = options_getenv(env, "SLURM_JOB_ID");
    const char *whole = options_getenv(env, "SLURM_HET_JOB_ID");
    const char *array = options_getenv(env, "SLURM_ARRAY_JOB_ID");
    const char *task = options_getenv(env, "SLURM_ARRAY_TASK_ID");
    const char *kind = options_getenv(env, "ENVIRONMENT");
    if (job != NULL) {
        *q = (struct cluster_requeue){
            .program = "scontrol", .verb = "requeue", .batch = kind != NULL && strcmp(kind, "BATCH") == 0};
        (void)(array != NULL && task != NULL ? snprintf(q->id, sizeof q->id, "%.60s_%.60s", array, task)
                                             : snprintf(q->id, sizeof q->id, "%.100s", whole != NULL ? whole : job));
        return;
    }
    job = options_getenv(env, "LSB_JOBID");
    task = options_getenv(env, "LSB_JOBINDEX");
    if (job != NULL) {
        *q = (struct cluster_requeue){.program = "brequeue", .batch = options_getenv(env, "LSB_INTERACTIVE") == NULL};
        (void)(task != NULL && strcmp(task, "0") != 0 ? snprintf(q->id, sizeof q->id, "%.60s[%.60s]", job, task)
                                                      : snprintf(q->id, sizeof q->id, "%.100s", job));
    }
}

static void read_row(struct cluster *c, const struct row *row, char *const *env, bool forced)
{
    const char **from = c->from;
    c->name = row->name;
    /* A worker of another launcher inherits the variables of its host, but only that launcher
     * was started by the scheduler. */
    bool below = options_getenv(env, "TORCHELASTIC_RUN_ID") != NULL && options_getenv(env, "GROUP_RANK") != NULL;
    c->launched = !below && (row->launch == NULL || forced ||
                             (row->launch[0] != '\0' && options_getenv(env, row->launch) != NULL));
    c->node_count = number_of_range(c, row, CLUSTER_NODE_COUNT, env, 1, 1, &c->node_least);
    c->node_rank = number(c, row, CLUSTER_NODE_RANK, env, 0, 0);
    c->restart_count = number(c, row, CLUSTER_RESTARTS, env, 0, 0);
    c->job_id = look_up(row, CLUSTER_JOB_ID, env, &from[CLUSTER_JOB_ID]);
    c->step_id = look_up(row, CLUSTER_STEP_ID, env, &from[CLUSTER_STEP_ID]);
    c->nodes = look_up(row, CLUSTER_NODES, env, &from[CLUSTER_NODES]);
    if (!c->launched) {
        return; /* tasks and an address are for whoever was started by the launcher */
    }
    c->task_rank = number(c, row, CLUSTER_TASK_RANK, env, 0, 0);
    c->task_total = number(c, row, CLUSTER_TASK_TOTAL, env, 1, 1);
    c->task_index = number(c, row, CLUSTER_TASK_INDEX, env, 0, 0);
    c->master_addr = look_up(row, CLUSTER_MASTER_ADDR, env, &from[CLUSTER_MASTER_ADDR]);
    c->master_port = number(c, row, CLUSTER_MASTER_PORT, env, 1, 0);
    const char *tasks = look_up(row, CLUSTER_TASK_COUNT, env, &from[CLUSTER_TASK_COUNT]);
    c->task_count = tasks != NULL ? hostlist_count_at(tasks, row->form == FORM_SLURM ? c->node_rank : 0) : -1;
    if (c->task_count < 1) {
        c->task_count = 1;
        from[CLUSTER_TASK_COUNT] = NULL;
    }
    if (from[CLUSTER_TASK_TOTAL] == NULL) {
        return;
    }
    /* With a task per host, tasks are hosts; of several per host (alike on all) we know how many
     * from how many hosts, or the other way round. */
    if (from[CLUSTER_NODE_COUNT] == NULL) {
        c->node_count = (c->task_total + c->task_count - 1) / c->task_count;
        from[CLUSTER_NODE_COUNT] = from[CLUSTER_TASK_TOTAL];
    } else if (from[CLUSTER_TASK_COUNT] == NULL && c->task_total % c->node_count == 0) {
        c->task_count = c->task_total / c->node_count;
        from[CLUSTER_TASK_COUNT] = from[CLUSTER_NODE_COUNT];
    }
    /* else hosts differ, and nobody says how */
    if (from[CLUSTER_NODE_RANK] == NULL && c->task_count * c->node_count >= c->task_total) {
        c->node_rank = c->task_index / c->task_count;
        from[CLUSTER_NODE_RANK] = from[CLUSTER_TASK_INDEX];
    }
}

int cluster_read(struct cluster *out, char *const *env, const char *forced, struct dt_error *err)
{
    struct cluster c = {.name = "none", .node_count = 1, .task_count = 1, .task_total = 1};
    const struct row *found = NULL;
    if (forced != NULL && !is_name(forced)) {
        return dt_fail(err, DT_INVALID, "%.60s: must be one of %s", forced, cluster_names());
    }
    bool none = forced != NULL && strcmp(forced, "none") == 0;
    for (size_t i = 0; i < row_count && found == NULL && !none; i++) {
        bool wanted = forced != NULL ? strcmp(forced, rows[i].name) == 0 : !rows[i].only_forced;
        if (wanted && options_getenv(env, rows[i].sign) != NULL) {
            found = &rows[i];
        }
    }
    if (forced != NULL && found == NULL && !none) {
        return dt_fail(err, DT_INVALID, "%s: none of its variables is set here; leave the option out, or use none",
                       forced);
    }
    if (found != NULL) {
        read_row(&c, found, env, forced != NULL);
        read_requeue(&c.requeue, env);
    }
    *out = c;
    return 0;
}

/* ---- hosts ---- */

static enum form form_of(const struct cluster *c)
{
    for (size_t i = 0; i < row_count; i++) {
        if (strcmp(rows[i].name, c->name) == 0 && rows[i].form != FORM_NONE) {
            return rows[i].form;
        }
    }
    return FORM_NONE;
}

/* jsrun's launch host stands first, once. Where a host's own launcher (blaunch) was used, the
 * first host has its share like the others. */
static void drop_launch_host(const struct cluster *c, struct hostlist *l)
{
    bool drop = l->count > 1 && l->hosts[0].slots == 1;
    for (size_t i = 1; i < l->count; i++) {
        drop = drop && l->hosts[i].slots > 1;
    }
    if (drop || (l->count > 1 && c->from[CLUSTER_TASK_TOTAL] != NULL)) {
        hostlist_drop_first_slot(l);
    }
}

int cluster_hosts(const struct cluster *c, struct hostlist *out, struct dt_error *err)
{
    enum form form = form_of(c);
    if (form == FORM_NONE || c->nodes == NULL) {
        return dt_fail(err, DT_NOT_FOUND, "%s: it does not say which hosts there are", c->name);
    }
    if (form == FORM_SLURM) {
        return hostlist_read_slurm(out, c->nodes, err) != 0 ? dt_wrap(err, "%s", c->from[CLUSTER_NODES]) : 0;
    }
    int result;
    if (strcmp(c->from[CLUSTER_NODES], mcpu_hosts) == 0) {
        result = hostlist_read_counts(out, c->nodes, err);
    } else {
        struct dt_text text;
        dt_text_init(&text);
        result = dt_file_read(c->nodes, FILE_BYTES, &text, err);
        if (result == 0 &&
            (hostlist_check_text(&text, err) != 0 || hostlist_read_words(out, dt_text_str(&text), err) != 0)) {
            result = dt_wrap(err, "%.200s", c->nodes);
        }
        dt_text_clear(&text);
    }
    if (result == 0 && form == FORM_LSF) {
        drop_launch_host(c, out);
    }
    return result != 0 ? dt_wrap(err, "%s", c->from[CLUSTER_NODES]) : 0;
}

int cluster_place(struct cluster *c, const char *host_name, struct dt_error *err)
{
    enum form form = form_of(c);
    if ((form != FORM_FILE && form != FORM_LSF) || c->nodes == NULL ||
        (c->from[CLUSTER_NODE_COUNT] != NULL && c->task_count == 1)) {
        return 0;
    }
    struct hostlist hosts;
    hostlist_init(&hosts);
    if (cluster_hosts(c, &hosts, err) != 0) {
        return -1;
    }
    int place = hostlist_find(&hosts, host_name);
    size_t count = hosts.count;
    hostlist_clear(&hosts);
    /* a name that differs is no harm then */
    bool numbered = c->from[CLUSTER_NODE_RANK] != NULL && (size_t)c->node_rank < count;
    if (place < 0 && c->launched && !numbered) {
        return dt_fail(err, DT_NOT_FOUND, "%s: %.60s is not one of its %zu hosts; use --node_rank, or --cluster=none",
                       c->from[CLUSTER_NODES], host_name, count);
    }
    c->node_count = (int)count;
    c->from[CLUSTER_NODE_COUNT] = c->from[CLUSTER_NODES];
    if (place >= 0 || !numbered) {
        c->node_rank = place < 0 ? 0 : place;
        c->from[CLUSTER_NODE_RANK] = c->from[CLUSTER_NODES];
    }
    return 0;
}

bool cluster_task_per_worker(const struct cluster *c)
{
    bool more_tasks =
        c->from[CLUSTER_NODE_COUNT] != NULL && c->from[CLUSTER_TASK_TOTAL] != NULL && c->task_total > c->node_count;
    return c->launched && (c->task_count > 1 || more_tasks);
}

/* ---- names and ports ---- */

/* First number in a text, at most nine digits of its end ("1234567890" -> 234567890); 0 without
 * one. */
static long digits_of(const char *text)
{
    long value = 0;
    if (text == NULL) {
        return 0;
    }
    for (text += strcspn(text, "0123456789"); *text >= '0' && *text <= '9'; text++) {
        value = (10 * value + (*text - '0')) % 1000000000;
    }
    return value;
}

void cluster_run_id(const struct cluster *c, struct dt_text *out)
{
    if (c->job_id == NULL) {
        return;
    }
    dt_text_printf(out, "%s-%.100s", c->name, c->job_id);
    if (c->step_id != NULL) {
        dt_text_printf(out, ".%.100s", c->step_id);
    }
    if (c->restart_count > 0) {
        dt_text_printf(out, "-r%d", c->restart_count);
    }
}

int cluster_port(const struct cluster *c)
{
    if (c->master_port != 0) {
        return c->master_port <= 65535 ? c->master_port : 0;
    }
    return c->job_id == NULL ? 0 : (int)(15000 + (digits_of(c->job_id) + 101 * digits_of(c->step_id)) % 10000);
}

/* ---- what people read ---- */

void cluster_one_per_host(const struct cluster *c, struct dt_text *out)
{
    static const char *const lines[][2] = {{"slurm", "srun --ntasks-per-node=1"},
                                           {"lsf", "jsrun --rs_per_host=1 --tasks_per_rs=1"},
                                           {"mpi", "mpirun --map-by ppr:1:node"},
                                           {"flux", "flux run --tasks-per-node=1"}};
    bool hosts_known =
        c->from[CLUSTER_NODE_COUNT] != NULL && c->from[CLUSTER_NODE_COUNT] != c->from[CLUSTER_TASK_TOTAL];
    dt_text_printf(out, "%s: it started %d tasks on ", c->name, hosts_known ? c->task_total : c->task_count);
    if (hosts_known) {
        dt_text_printf(out, "%d host%s", c->node_count, c->node_count == 1 ? "" : "s");
    } else {
        dt_text_puts(out, "this host");
    }
    dt_text_puts(out, ", and each is a launcher of its own; start one per host");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        if (strcmp(lines[i][0], c->name) == 0) {
            dt_text_printf(out, ": %s", lines[i][1]);
        }
    }
}

/* WORLD_SIZE and RANK that nobody of us set: a container file or an old PyTorchJob counts pods
 * with them. */
static void warn_inherited(const struct cluster *c, const struct cluster_choice *chosen, char *const *env,
                           struct dt_text *out)
{
    const char *world = options_getenv(env, "WORLD_SIZE");
    const char *rank = options_getenv(env, "RANK");
    long long value;
    if (world == NULL || strcmp(c->name, "pytorchjob") == 0 || options_getenv(env, "TORCHELASTIC_RUN_ID") != NULL) {
        return;
    }
    if (dt_parse_int64(world, &value) && value == (long long)chosen->nnodes_max * chosen->nproc) {
        return;
    }
    dt_text_printf(out, "dtrun: WORLD_SIZE=%.20s", world);
    if (rank != NULL) {
        dt_text_printf(out, " and RANK=%.20s", rank);
    }
    dt_text_printf(out,
                   " are inherited and not used: this job has %d host%s with %d worker%s each; if they count hosts: "
                   "--cluster=pytorchjob\n",
                   chosen->nnodes_max, chosen->nnodes_max == 1 ? "" : "s", chosen->nproc,
                   chosen->nproc == 1 ? "" : "s");
}

void cluster_warn(const struct cluster *c, const struct cluster_choice *chosen, char *const *env, struct dt_text *out)
{
    const char *count_from = c->from[CLUSTER_NODE_COUNT];
    const char *rank_from = c->from[CLUSTER_NODE_RANK];
    bool per_worker = cluster_task_per_worker(c);
    if (per_worker && c->task_index == 0 && c->task_rank == 0) {
        dt_text_puts(out, "dtrun: ");
        cluster_one_per_host(c, out);
        dt_text_puts(out, "\n");
    }
    if (c->launched && !per_worker && chosen->nnodes_from != NULL && count_from != NULL &&
        strcmp(chosen->nnodes_from, count_from) != 0 && c->node_count != chosen->nnodes_max) {
        dt_text_printf(out, "dtrun: number of hosts: %s says %d, %s says %d; %s counts\n", chosen->nnodes_from,
                       chosen->nnodes_max, count_from, c->node_count, chosen->nnodes_from);
    } else if (!c->launched && c->node_count > 1 && chosen->nnodes_max == 1) {
        dt_text_printf(out, "dtrun: %s: %d hosts are allocated (%s), this run uses one%s\n", c->name, c->node_count,
                       count_from,
                       strcmp(c->name, "slurm") == 0 ? "; to use all: srun --ntasks-per-node=1 dtrun ..." : "");
    }
    if (c->launched && !per_worker && chosen->nnodes_max > 1 && chosen->node_rank_from != NULL && rank_from != NULL &&
        strcmp(chosen->node_rank_from, rank_from) != 0 && c->node_rank != chosen->node_rank) {
        dt_text_printf(out, "dtrun: number of this host: %s says %d, %s says %d; %s counts\n", chosen->node_rank_from,
                       chosen->node_rank, rank_from, c->node_rank, chosen->node_rank_from);
    }
    warn_inherited(c, chosen, env, out);
}

static void describe(const struct cluster *c, enum cluster_value what, const char *label, const char *text, int value,
                     struct dt_text *out)
{
    if (c->from[what] == NULL) {
        return;
    }
    if (text != NULL) {
        dt_text_printf(out, "          %s %.200s (%s)\n", label, text, c->from[what]);
    } else {
        dt_text_printf(out, "          %s %d (%s)\n", label, value, c->from[what]);
    }
}

void cluster_describe(const struct cluster *c, struct dt_text *out)
{
    dt_text_printf(out, "cluster   %s%s\n", c->name,
                   strcmp(c->name, "none") == 0 || c->launched ? "" : ", not started by its launcher");
    describe(c, CLUSTER_JOB_ID, "job", c->job_id, 0, out);
    describe(c, CLUSTER_STEP_ID, "step", c->step_id, 0, out);
    describe(c, CLUSTER_RESTARTS, "started again", NULL, c->restart_count, out);
    char range[32];
    (void)snprintf(range, sizeof range, "%d to %d", c->node_least, c->node_count);
    describe(c, CLUSTER_NODE_COUNT, "hosts", c->node_least > 0 && c->node_least < c->node_count ? range : NULL,
             c->node_count, out);
    describe(c, CLUSTER_NODE_RANK, "this host", NULL, c->node_rank, out);
    describe(c, CLUSTER_NODES, "list", c->nodes, 0, out);
    describe(c, CLUSTER_TASK_COUNT, "tasks on this host", NULL, c->task_count, out);
    describe(c, CLUSTER_TASK_RANK, "this task on this host", NULL, c->task_rank, out);
    describe(c, CLUSTER_TASK_TOTAL, "tasks", NULL, c->task_total, out);
    describe(c, CLUSTER_TASK_INDEX, "this task", NULL, c->task_index, out);
    describe(c, CLUSTER_MASTER_ADDR, "address", c->master_addr, 0, out);
    describe(c, CLUSTER_MASTER_PORT, "port", NULL, c->master_port, out);
    if (c->requeue.program[0] != '\0') {
        dt_text_printf(out, "          run again by %s%s%s %s%s\n", c->requeue.program,
                       c->requeue.verb[0] != '\0' ? " " : "", c->requeue.verb, c->requeue.id,
                       c->requeue.batch ? "" : ", if it were a batch job");
    }
}
