/* covers: launcher/options */
/* The table of environments: what each scheduler's variables mean, who wins where they differ,
 * and what is said about it. */
#include "launcher/options/cluster.h"

#include "launcher/options/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct dt_error err;

/* An environment from words separated by blanks (at most 30), valid until the next call. */
static char **environment(const char *words)
{
    static char copy[2048];
    static char *env[32];
    int n = 0;
    assert_true(strlen(words) < sizeof copy);
    (void)strcpy(copy, words);
    for (char *p = copy, *word; (word = strsep(&p, " ")) != NULL && n < 31;) {
        env[n++] = word;
    }
    env[n] = NULL;
    return env;
}

static struct cluster detect(const char *words, const char *forced)
{
    struct cluster c;
    assert_int_equal(cluster_read(&c, environment(words), forced, &err), 0);
    return c;
}

#define SRUN                                                                                                           \
    "SLURM_JOB_ID=771234 SLURM_STEP_ID=0 SLURM_NNODES=4 SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST=a[07-08] "          \
    "SLURM_JOB_NODELIST=a[07-10] "                                                                                     \
    "SLURM_NODEID=1 SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=1(x2)"
#define OMPI "OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_RANK=5 OMPI_COMM_WORLD_LOCAL_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1"

/* Environment, forced row; then name, launched, nodes, node rank, tasks here, total, index,
 * restarts. */
static void test_rows(void **state)
{
    static const struct {
        const char *env, *forced, *name;
        bool launched;
        int nodes, rank, tasks, total, index, restarts;
    } cases[] = {
        {"HOME=/", NULL, "none", false, 1, 0, 1, 1, 0, 0},
        {"WORLD_SIZE=4 RANK=2 MASTER_ADDR=x", NULL, "none", false, 1, 0, 1, 1, 0, 0},
        {SRUN, "none", "none", false, 1, 0, 1, 1, 0, 0},
        {SRUN, NULL, "slurm", true, 2, 1, 1, 2, 1, 0},
        {"SLURM_JOB_ID=7 SLURM_NNODES=4 SLURM_NODEID=0 SLURM_RESTART_COUNT=2", NULL, "slurm", false, 4, 0, 1, 1, 0,
         2}, /* batch script */
        {"SLURM_JOB_ID=7 SLURM_NNODES=1 SLURM_STEP_NODELIST=a SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=4 "
         "SLURM_NTASKS=4 SLURM_PROCID=3",
         NULL, "slurm", true, 1, 0, 4, 4, 3, 0},
        {"SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a[1-3] SLURM_NNODES=3 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=4(x2),2 "
         "SLURM_NTASKS=10 SLURM_PROCID=9",
         NULL, "slurm", true, 3, 2, 2, 10, 9, 0},
        {"SLURM_JOB_ID=7 SLURM_NNODES=x SLURM_NODEID=-1 SLURM_RESTART_COUNT=", NULL, "slurm", false, 1, 0, 1, 1, 0, 0},
        {SRUN " TORCHELASTIC_RUN_ID=x GROUP_RANK=0", NULL, "slurm", false, 2, 1, 1, 1, 0,
         0},                                                  /* below another launcher */
        {SRUN " " OMPI, NULL, "mpi", true, 2, 1, 4, 8, 5, 0}, /* mpirun inside a SLURM job */
        {SRUN " " OMPI, "slurm", "slurm", true, 2, 1, 1, 2, 1, 0},
        {SRUN " PMI_SIZE=2 PMI_RANK=1", NULL, "slurm", true, 2, 1, 1, 2, 1, 0}, /* srun --mpi=pmi2 */
        {SRUN " PET_NNODES=3 PET_NODE_RANK=2", NULL, "kubeflow", true, 3, 2, 1, 1, 0, 0},
        {"PET_NNODES=1:4 PET_RDZV_BACKEND=c10d", NULL, "kubeflow", true, 4, 0, 1, 1, 0, 0},
        {"PET_NNODES=4:1 PET_RDZV_BACKEND=c10d", NULL, "kubeflow", true, 1, 0, 1, 1, 0, 0},
        {"OMPI_COMM_WORLD_SIZE=3 OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0",
         NULL, "mpi", true, 3, 2, 1, 3, 2, 0},
        {"MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_SIZE=4 PMI_RANK=3", NULL, "mpi", true, 2, 1, 2, 4, 3, 0},
        {"PMI_SIZE=4 PMI_RANK=3", NULL, "mpi", true, 4, 3, 1, 4, 3, 0},
        {"PMIX_RANK=3", NULL, "mpi", true, 1, 0, 1, 1, 3, 0},
        {"LSB_JOBID=5 LSB_HOSTS=a", NULL, "lsf", false, 1, 0, 1, 1, 0, 0},
        {"LSB_JOBID=5 JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=0", NULL, "lsf", true, 2, 1, 1,
         2, 1, 0},
        {"PBS_JOBID=12.server PBS_NODEFILE=/none", NULL, "pbs", false, 1, 0, 1, 1, 0, 0},
        {"PBS_JOBID=12.server PBS_NODEFILE=/none", "pbs", "pbs", true, 1, 0, 1, 1, 0, 0},
        {"FLUX_JOB_ID=f7 FLUX_JOB_SIZE=3 FLUX_TASK_RANK=2 FLUX_TASK_LOCAL_ID=0", NULL, "flux", true, 3, 2, 1, 3, 2, 0},
        {"FLUX_JOB_ID=f7 FLUX_JOB_SIZE=3", NULL, "flux", false, 1, 0, 1, 1, 0, 0},
        {"FLUX_JOB_ID=f7 FLUX_JOB_SIZE=3 FLUX_JOB_NNODES=3 FLUX_TASK_RANK=2 FLUX_TASK_LOCAL_ID=0", NULL, "flux", true,
         3, 2, 1, 3, 2, 0},
        {"FLUX_JOB_ID=f7 FLUX_JOB_SIZE=6 FLUX_JOB_NNODES=3 FLUX_TASK_RANK=5 FLUX_TASK_LOCAL_ID=1", NULL, "flux", true,
         3, 2, 2, 6, 5, 0},
        {"FLUX_JOB_ID=f7 FLUX_JOB_SIZE=5 FLUX_JOB_NNODES=3 FLUX_TASK_RANK=4 FLUX_TASK_LOCAL_ID=0", NULL, "flux", true,
         3, 0, 1, 5, 4, 0},
        {"PBS_JOBID=12.server PBS_NODENUM=3", "pbs", "pbs", true, 1, 3, 1, 1, 0, 0},
        {"JOB_COMPLETION_INDEX=3", NULL, "kubernetes", true, 1, 3, 1, 1, 0, 0},
        {"WORLD_SIZE=4 RANK=2 MASTER_ADDR=x MASTER_PORT=23456", "pytorchjob", "pytorchjob", true, 4, 2, 1, 1, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cluster c = detect(cases[i].env, cases[i].forced);
        if (strcmp(c.name, cases[i].name) != 0 || c.launched != cases[i].launched || c.node_count != cases[i].nodes ||
            c.node_rank != cases[i].rank || c.task_count != cases[i].tasks || c.task_total != cases[i].total ||
            c.task_index != cases[i].index || c.restart_count != cases[i].restarts) {
            fail_msg("case %zu: %s: %s launched %d nodes %d rank %d tasks %d total %d index %d restarts %d", i,
                     cases[i].env, c.name, c.launched, c.node_count, c.node_rank, c.task_count, c.task_total,
                     c.task_index, c.restart_count);
        }
    }
    struct cluster c;
    assert_int_equal(cluster_read(&c, environment("HOME=/"), "zeus", &err), -1);
    assert_string_equal(err.text, "zeus: must be one of slurm lsf pbs flux mpi kubeflow kubernetes pytorchjob none");
    assert_int_equal(cluster_read(&c, environment(SRUN), "pbs", &err), -1);
    assert_string_equal(err.text, "pbs: none of its variables is set here; leave the option out, or use none");
}

static void expect_id(const char *words, const char *id, int port)
{
    struct cluster c = detect(words, NULL);
    struct dt_text text;
    dt_text_init(&text);
    cluster_run_id(&c, &text);
    assert_string_equal(dt_text_str(&text), id);
    assert_int_equal(cluster_port(&c), port);
    dt_text_clear(&text);
}

static void test_ids_stay_apart(void **state)
{
    (void)state;
    expect_id("HOME=/", "", 0);
    expect_id(SRUN, "slurm-771234.0", 16234);
    expect_id(SRUN " SLURM_RESTART_COUNT=1", "slurm-771234.0-r1", 16234);
    expect_id("SLURM_JOB_ID=771234 SLURM_STEP_ID=1", "slurm-771234.1", 16335);
    expect_id(SRUN " MASTER_PORT=4000", "slurm-771234.0", 4000);
    expect_id("LSB_JOBID=99 LSB_JOBINDEX=3", "lsf-99.3", 15402);
    expect_id("PBS_JOBID=123[4].server PBS_ARRAY_INDEX=4", "pbs-123[4].server.4", 15527);
}

/* Whatever a row says is shown with the variable that said it: each one of an environment in
 * which all values differ. */
static void test_each_value_is_shown_with_its_variable(void **state)
{
    static const char *const environments[][2] = {
        {SRUN " SLURM_RESTART_COUNT=1 MASTER_ADDR=x MASTER_PORT=4000", NULL},
        {OMPI " PBS_JOBID=7 PMIX_NAMESPACE=ns MASTER_ADDR=x MASTER_PORT=4000", NULL},
        {"MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 PMI_SIZE=4 PMI_RANK=3 MASTER_ADDR=x", NULL},
        {"LSB_JOBID=5 LSB_JOBINDEX=2 LSB_DJOB_RANKFILE=/none JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 "
         "JSM_NAMESPACE_LOCAL_RANK=0 "
         "JSM_NAMESPACE_LOCAL_SIZE=1",
         NULL},
        {"PBS_JOBID=12 PBS_ARRAY_INDEX=3 PBS_NODENUM=1 PBS_NODEFILE=/none", "pbs"},
        {"LSB_JOBID=5 LSB_MCPU_HOSTS=a", "lsf"},
        {"LSB_JOBID=5 LSB_DJOB_HOSTFILE=/none", "lsf"},
        {"PET_NNODES=3 PET_NODE_RANK=2 PET_MASTER_ADDR=x PET_MASTER_PORT=4000", NULL},
        {"FLUX_JOB_ID=f7 FLUX_JOB_SIZE=3 FLUX_JOB_NNODES=3 FLUX_TASK_RANK=2 FLUX_TASK_LOCAL_ID=0", NULL},
        {"JOB_COMPLETION_INDEX=3", NULL},
        {"WORLD_SIZE=4 RANK=2 MASTER_ADDR=x MASTER_PORT=23456", "pytorchjob"},
        {"PMIX_RANK=3 PMIX_NAMESPACE=ns", NULL},
    };
    (void)state;
    for (size_t i = 0; i < sizeof environments / sizeof environments[0]; i++) {
        struct cluster c = detect(environments[i][0], environments[i][1]);
        struct dt_text text;
        dt_text_init(&text);
        cluster_describe(&c, &text);
        for (int what = 0; what < CLUSTER_VALUE_COUNT; what++) {
            char named[64];
            (void)snprintf(named, sizeof named, " (%s)\n", c.from[what] != NULL ? c.from[what] : "");
            if (c.from[what] != NULL && strstr(dt_text_str(&text), named) == NULL) {
                fail_msg("%s: %s is not shown:\n%s", environments[i][0], c.from[what], dt_text_str(&text));
            }
        }
        dt_text_clear(&text);
    }
}

static void expect_warning(const char *words, struct cluster_choice chosen, const char *expected)
{
    struct cluster c = detect(words, NULL);
    struct dt_text text;
    dt_text_init(&text);
    cluster_warn(&c, &chosen, environment(words), &text);
    assert_string_equal(dt_text_str(&text), expected);
    dt_text_clear(&text);
}

static void test_conflicts(void **state)
{
    (void)state;
    struct cluster_choice one = {.nnodes_max = 1, .nproc = 4};
    struct cluster_choice one_said = {.nnodes_max = 1, .nproc = 4, .nnodes_from = "--nnodes"};
    struct cluster_choice two_said = {
        .nnodes_max = 2, .nproc = 1, .node_rank = 0, .nnodes_from = "--nnodes", .node_rank_from = "--node_rank"};
    expect_warning("HOME=/", one, "");
    expect_warning(SRUN, one_said,
                   "dtrun: number of hosts: --nnodes says 1, SLURM_STEP_NUM_NODES says 2; --nnodes counts\n");
    expect_warning(SRUN, two_said,
                   "dtrun: number of this host: --node_rank says 0, SLURM_NODEID says 1; --node_rank counts\n");
    two_said.node_rank = 1;
    expect_warning(SRUN, two_said, "");
    expect_warning("PET_NNODES=1:2", two_said, ""); /* as many at most */
    expect_warning("SLURM_JOB_ID=7 SLURM_NNODES=2", one,
                   "dtrun: slurm: 2 hosts are allocated (SLURM_NNODES), this run uses one; to use all: srun "
                   "--ntasks-per-node=1 dtrun ...\n");
    expect_warning("SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a SLURM_STEP_TASKS_PER_NODE=4", one,
                   "dtrun: slurm: it started 4 tasks on this host, and each is a launcher of its own; start one per "
                   "host: srun --ntasks-per-node=1\n");
    /* the first one said it */
    expect_warning("SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a SLURM_STEP_TASKS_PER_NODE=4 SLURM_LOCALID=1", one, "");
    expect_warning("WORLD_SIZE=2 RANK=1", one,
                   "dtrun: WORLD_SIZE=2 and RANK=1 are inherited and not used: this job has 1 host with 4 workers "
                   "each; if they count hosts: "
                   "--cluster=pytorchjob\n");
    expect_warning("WORLD_SIZE=4", one, "");
    expect_warning("WORLD_SIZE=2 RANK=1 TORCHELASTIC_RUN_ID=x", one, "");
}

static void write_file(char path[64], const char *text)
{
    (void)strcpy(path, "/tmp/dtrun-cluster-XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(close(fd), 0);
}

static void test_hosts(void **state)
{
    (void)state;
    struct hostlist l;
    char path[64], words[256];
    hostlist_init(&l);
    struct cluster c = detect(SRUN, NULL);
    assert_int_equal(cluster_hosts(&c, &l, &err), 0);
    assert_true(l.count == 2 && strcmp(l.hosts[0].name, "a07") == 0);
    hostlist_clear(&l);
    c = detect("SLURM_JOB_ID=1 SLURM_JOB_NODELIST=a[1", NULL);
    assert_int_equal(cluster_hosts(&c, &l, &err), -1);
    assert_string_equal(err.text, "SLURM_JOB_NODELIST: a[1: a bracket is not closed");
    c = detect(OMPI, NULL);
    assert_int_equal(cluster_hosts(&c, &l, &err), -1);
    assert_int_equal(err.status, DT_NOT_FOUND);

    write_file(path, "n1\nn1\nn2\nn3\n");
    (void)snprintf(words, sizeof words, "PBS_JOBID=1 PBS_NODEFILE=%s", path);
    c = detect(words, NULL); /* a batch script: what is allocated, no matter where it runs */
    assert_int_equal(cluster_place(&c, "elsewhere", &err), 0);
    assert_true(c.node_count == 3 && c.node_rank == 0 && strcmp(c.from[CLUSTER_NODE_COUNT], "PBS_NODEFILE") == 0);
    c = detect(words, "pbs");
    assert_int_equal(cluster_place(&c, "n2.site", &err), 0);
    assert_true(c.node_count == 3 && c.node_rank == 1);
    c = detect(words, "pbs");
    assert_int_equal(cluster_place(&c, "elsewhere", &err), -1);
    assert_string_equal(err.text,
                        "PBS_NODEFILE: elsewhere is not one of its 3 hosts; use --node_rank, or --cluster=none");
    /* a host of another name than in the list */
    (void)snprintf(words, sizeof words, "PBS_JOBID=1 PBS_NODEFILE=%s PBS_NODENUM=2", path);
    c = detect(words, "pbs");
    assert_int_equal(cluster_place(&c, "elsewhere", &err), 0);
    assert_true(c.node_count == 3 && c.node_rank == 2 && strcmp(c.from[CLUSTER_NODE_RANK], "PBS_NODENUM") == 0);
    c = detect(words, "pbs"); /* its name counts where it is there: the first of the list is
                               * where hosts meet */
    assert_int_equal(cluster_place(&c, "n1", &err), 0);
    assert_true(c.node_rank == 0 && strcmp(c.from[CLUSTER_NODE_RANK], "PBS_NODEFILE") == 0);
    (void)snprintf(words, sizeof words, "PBS_JOBID=1 PBS_NODEFILE=%s PBS_NODENUM=3", path);
    c = detect(words, "pbs");
    assert_int_equal(cluster_place(&c, "elsewhere", &err), -1);
    assert_int_equal(unlink(path), 0);
    c = detect(words, "pbs");
    assert_int_equal(cluster_place(&c, "n2", &err), -1);

    write_file(path, "n0\nn1\nn1\nn2\nn2\n"); /* PBS lists no launch host */
    (void)snprintf(words, sizeof words, "PBS_JOBID=1 PBS_NODEFILE=%s", path);
    c = detect(words, "pbs");
    assert_int_equal(cluster_place(&c, "n0", &err), 0);
    assert_true(c.node_count == 3 && c.node_rank == 0);
    assert_int_equal(unlink(path), 0);

    write_file(path, "launch\nn1\nn1\nn2\nn2\n"); /* LSF: the first line has no part in the job */
    (void)snprintf(words, sizeof words, "LSB_JOBID=1 LSB_DJOB_RANKFILE=%s", path);
    c = detect(words, NULL);
    assert_int_equal(cluster_place(&c, "n2", &err), 0);
    assert_true(c.node_count == 2 && c.node_rank == 1);
    assert_int_equal(cluster_hosts(&c, &l, &err), 0);
    assert_true(l.count == 2 && strcmp(l.hosts[0].name, "n1") == 0);
    hostlist_clear(&l);
    assert_int_equal(unlink(path), 0);
}

/* The lists of LSF: what stands first is the launch host of a machine with jsrun, which has one
 * slot, or one of the hosts. */
static void test_hosts_of_lsf(void **state)
{
    static const struct {
        const char *rankfile, *hostfile, *mcpu, *more; /* null: not set; in place of blanks,
                                                        * commas */
        const char *forced, *from, *hosts;             /* "a:1 b:2" */
        int rank;                                      /* of host "b" */
    } cases[] = {
        {NULL, NULL, "a,4,b,2", "", "lsf", "LSB_MCPU_HOSTS", "a:4 b:2", 1},
        {NULL, NULL, "launch,1,a,4,b,4", "", "lsf", "LSB_MCPU_HOSTS", "a:4 b:4", 1},
        {NULL, NULL, "a,1,b,1", "", "lsf", "LSB_MCPU_HOSTS", "a:1 b:1", 1},
        {NULL, NULL, "launch,1,a,1,b,1", " JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=0", NULL,
         "LSB_MCPU_HOSTS", "a:1 b:1", 1},
        {NULL, "a\na\nb\nb\n", NULL, "", "lsf", "LSB_DJOB_HOSTFILE", "a:2 b:2", 1},
        {NULL, "a\nb\n", NULL, "", "lsf", "LSB_DJOB_HOSTFILE", "a:1 b:1", 1},
        {NULL, "launch\na\na\nb\nb\n", NULL, "", NULL, "LSB_DJOB_HOSTFILE", "a:2 b:2", 1},
        {"b\nb\na\na\n", "a\nb\n", "a,1,b,1", "", "lsf", "LSB_DJOB_RANKFILE", "b:2 a:2", 0},
        {NULL, "x\n", "b,2,a,2", "", "lsf", "LSB_MCPU_HOSTS", "b:2 a:2", 0},
        {NULL, NULL, "b,8", "", "lsf", "LSB_MCPU_HOSTS", "b:8", 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char rankfile[64], hostfile[64], mcpu[64], words[512], found[256] = "";
        size_t used = 0;
        struct hostlist l;
        used += (size_t)snprintf(words, sizeof words, "LSB_JOBID=1%s", cases[i].more);
        if (cases[i].rankfile != NULL) {
            write_file(rankfile, cases[i].rankfile);
            used += (size_t)snprintf(words + used, sizeof words - used, " LSB_DJOB_RANKFILE=%s", rankfile);
        }
        if (cases[i].hostfile != NULL) {
            write_file(hostfile, cases[i].hostfile);
            used += (size_t)snprintf(words + used, sizeof words - used, " LSB_DJOB_HOSTFILE=%s", hostfile);
        }
        if (cases[i].mcpu != NULL) {
            (void)snprintf(mcpu, sizeof mcpu, "%s", cases[i].mcpu);
            (void)snprintf(words + used, sizeof words - used, " LSB_MCPU_HOSTS=%s", mcpu);
        }
        struct cluster c = detect(words, cases[i].forced);
        hostlist_init(&l);
        if (cluster_hosts(&c, &l, &err) != 0 || cluster_place(&c, "b", &err) != 0) {
            fail_msg("case %zu: %s", i, err.text);
        }
        for (size_t k = 0; k < l.count; k++) {
            size_t n = strlen(found);
            (void)snprintf(found + n, sizeof found - n, "%s%s:%d", k > 0 ? " " : "", l.hosts[k].name, l.hosts[k].slots);
        }
        assert_string_equal(found, cases[i].hosts);
        assert_string_equal(c.from[CLUSTER_NODES], cases[i].from);
        assert_true(c.node_count == (int)l.count && c.node_rank == cases[i].rank);
        hostlist_clear(&l);
        assert_true(cases[i].rankfile == NULL || unlink(rankfile) == 0);
        assert_true(cases[i].hostfile == NULL || unlink(hostfile) == 0);
    }
    struct hostlist l;
    hostlist_init(&l);
    struct cluster c = detect("LSB_JOBID=1 LSB_MCPU_HOSTS=a,b", "lsf");
    assert_int_equal(cluster_hosts(&c, &l, &err), -1);
    assert_string_equal(err.text, "LSB_MCPU_HOSTS: a,b: after a host its number of slots is wanted, from 1 to 65536");
}

/* What the options make of it. */
static void test_options_take_them(void **state)
{
    (void)state;
    static struct options o;
    char *plain[] = {"dtrun", "p", NULL};
    char *four[] = {"dtrun", "--nproc_per_node=4", "p", NULL};
    char *one[] = {"dtrun", "--nnodes=1", "p", NULL};
    char *job_only[] = {"dtrun", "--cluster=none", "--nproc_per_node=4", "p", NULL};
    assert_int_equal(
        options_read(
            &o, 2, plain,
            environment("SLURM_JOB_ID=7 SLURM_NNODES=1 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=a SLURM_NODEID=0 "
                        "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1"),
            &err),
        0);
    assert_true(o.nnodes_max == 1 && o.standalone && o.warnings.size == 0);
    assert_string_equal(o.here.name, "slurm");
    options_clear(&o);
    assert_int_equal(options_read(&o, 3, one, environment(SRUN), &err), 0);
    assert_true(o.nnodes_max == 1 && o.standalone && o.node_rank == 0);
    assert_string_equal(dt_text_str(&o.warnings),
                        "dtrun: number of hosts: --nnodes says 1, SLURM_STEP_NUM_NODES says 2; --nnodes counts\n");
    options_clear(&o);
    assert_int_equal(options_read(&o, 3, four,
                                  environment("SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a SLURM_STEP_TASKS_PER_NODE=4"),
                                  &err),
                     -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(
        err.text, "slurm: it started 4 tasks on this host, and each is a launcher of its own; start one per host: srun "
                  "--ntasks-per-node=1"));
    assert_int_equal(options_read(&o, 4, job_only,
                                  environment("SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a SLURM_STEP_TASKS_PER_NODE=4"),
                                  &err),
                     0);
    assert_int_equal(o.warnings.size, 0);
    options_clear(&o);
    assert_int_equal(options_read(&o, 2, plain, environment(SRUN), &err), 0);
    assert_true(o.nnodes_min == 2 && o.nnodes_max == 2 && o.node_rank == 1 && o.master_port == 16234 &&
                o.local_total == 0);
    assert_string_equal(o.master_addr, "a07");
    assert_string_equal(o.run_id, "slurm-771234.0");
    assert_string_equal(options_source(&o, OPTION_nnodes), "SLURM_STEP_NUM_NODES");
    options_clear(&o);
}

/* A task per worker: each is an agent, and the workers of a host know each other as if one agent
 * had started them. */
static void test_a_task_per_worker(void **state)
{
    static const struct {
        const char *env;
        int nnodes, rank, first, total, host, hosts;
    } cases[] = {
        {"SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a[1-2] SLURM_NNODES=2 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2(x2) "
         "SLURM_NTASKS=4 SLURM_PROCID=3 "
         "SLURM_LOCALID=1",
         4, 3, 1, 2, 1, 2},
        /* the host that has only one task must see it alike */
        {"SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a[1-2] SLURM_NNODES=2 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE=2,1 "
         "SLURM_NTASKS=3 SLURM_PROCID=2 "
         "SLURM_LOCALID=0",
         3, 2, 0, 1, 1, 2},
        {"SLURM_JOB_ID=7 SLURM_STEP_NODELIST=a SLURM_NNODES=1 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=2 "
         "SLURM_NTASKS=2 SLURM_PROCID=1 "
         "SLURM_LOCALID=1",
         2, 1, 1, 2, 0, 1},
        /* mpirun says nothing of hosts: by core and by node number alike */
        {OMPI " MASTER_ADDR=a MASTER_PORT=3", 8, 5, 1, 4, 0, 0},
        /* flux says how many hosts, but not which one this is: tasks may be dealt out in blocks
         * or in turn */
        {"FLUX_JOB_ID=f FLUX_JOB_SIZE=6 FLUX_JOB_NNODES=3 FLUX_TASK_RANK=5 FLUX_TASK_LOCAL_ID=1 MASTER_ADDR=a", 6, 5, 1,
         2, 0, 0},
        {"FLUX_JOB_ID=f FLUX_JOB_SIZE=2 FLUX_JOB_NNODES=1 FLUX_TASK_RANK=1 FLUX_TASK_LOCAL_ID=1 MASTER_ADDR=a", 2, 1, 1,
         2, 0, 1},
        {"FLUX_JOB_ID=f FLUX_JOB_SIZE=3 FLUX_JOB_NNODES=3 FLUX_TASK_RANK=2 FLUX_TASK_LOCAL_ID=0 MASTER_ADDR=a", 3, 2, 0,
         0, 0, 0},
        /* not alike on all: nobody says how many are here, and each is a host */
        {"FLUX_JOB_ID=f FLUX_JOB_SIZE=5 FLUX_JOB_NNODES=3 FLUX_TASK_RANK=3 FLUX_TASK_LOCAL_ID=1 MASTER_ADDR=a", 5, 3, 0,
         0, 0, 0},
    };
    static struct options o;
    char *plain[] = {"dtrun", "p", NULL};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(options_read(&o, 2, plain, environment(cases[i].env), &err), 0);
        if (o.nnodes_min != cases[i].nnodes || o.nnodes_max != cases[i].nnodes || o.node_rank != cases[i].rank ||
            o.local_first != cases[i].first || o.local_total != cases[i].total || o.host_number != cases[i].host ||
            o.host_count != cases[i].hosts) {
            fail_msg("case %zu: nnodes %d rank %d local %d of %d host %d of %d", i, o.nnodes_max, o.node_rank,
                     o.local_first, o.local_total, o.host_number, o.host_count);
        }
        options_clear(&o);
    }
    assert_int_equal(
        options_read(
            &o, 2, plain,
            environment(
                "FLUX_JOB_ID=f FLUX_JOB_SIZE=4 FLUX_JOB_NNODES=2 FLUX_TASK_RANK=2 FLUX_TASK_LOCAL_ID=2 MASTER_ADDR=a"),
            &err),
        -1);
    assert_string_equal(err.text, "flux: this is task 2 of this host (FLUX_TASK_LOCAL_ID), where FLUX_JOB_SIZE and "
                                  "FLUX_JOB_NNODES leave 2 for each; start one "
                                  "launcher per host");
}

static void expect_requeue(const char *words, const char *command, bool batch)
{
    char found[256];
    struct cluster c = detect(words, NULL);
    (void)snprintf(found, sizeof found, "%s %s %s", c.requeue.program, c.requeue.verb, c.requeue.id);
    assert_string_equal(found, command);
    assert_int_equal(c.requeue.batch, batch);
}

static void test_what_is_run_again(void **state)
{
    static struct options o;
    char *on[] = {"dtrun", "--requeue=on", "p", NULL};
    (void)state;
    expect_requeue(SRUN, "scontrol requeue 771234", false); /* salloc */
    expect_requeue(SRUN " ENVIRONMENT=BATCH", "scontrol requeue 771234", true);
    expect_requeue(SRUN " ENVIRONMENT=BATCH SLURM_ARRAY_JOB_ID=771230 SLURM_ARRAY_TASK_ID=4",
                   "scontrol requeue 771230_4", true);
    expect_requeue(SRUN " ENVIRONMENT=BATCH SLURM_HET_JOB_ID=771233", "scontrol requeue 771233", true);
    expect_requeue("SLURM_JOB_ID=7 ENVIRONMENT=BATCH", "scontrol requeue 7", true);
    expect_requeue("LSB_JOBID=5 LSB_JOBINDEX=0", "brequeue  5", true);
    expect_requeue("LSB_JOBID=5 LSB_JOBINDEX=3", "brequeue  5[3]", true);
    expect_requeue("LSB_JOBID=5 LSB_INTERACTIVE=Y", "brequeue  5", false);
    expect_requeue("JOB_COMPLETION_INDEX=0", "  ", false);
    assert_int_equal(options_read(&o, 3, on, environment("JOB_COMPLETION_INDEX=0"), &err), -1);
    assert_string_equal(err.text,
                        "--requeue: on: there is no scheduler here that could run the job again (slurm, lsf)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_each_value_is_shown_with_its_variable),
        cmocka_unit_test(test_ids_stay_apart),
        cmocka_unit_test(test_conflicts),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_hosts_of_lsf),
        cmocka_unit_test(test_options_take_them),
        cmocka_unit_test(test_a_task_per_worker),
        cmocka_unit_test(test_what_is_run_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
