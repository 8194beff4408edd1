/* The argument vector and the environment of one worker, exactly as torchrun sets them, plus our
 * DTRUN_*. Pure but for the look-up of the program (env_command). */
#ifndef DT_LAUNCHER_OPTIONS_ENV_H
#define DT_LAUNCHER_OPTIONS_ENV_H

#include "launcher/options/options.h"

struct env_worker {
    int round;          /* 1 for the first */
    int restart_count;  /* failures so far; names attempt_N */
    const char *launch; /* DTRUN_LAUNCH: which launch of this run id; null: none yet */
    int local_rank, local_world_size;
    int rank, world_size;
    int group_rank, group_world_size; /* nodes */
    int role_rank, role_world_size;
    const char *master_addr;
    const char *local_addr; /* where others reach this host; null: as --local_addr says */
    int master_port;
    const char *sizes;      /* workers of each host, "8(x3),4", for DTRUN_HOST_OF_RANK; null or
                             * "": not known */
    bool use_agent_store;   /* the agent serves the store: True except where the rank-0 worker
                             * must */
    const char *page;       /* DTRUN_PAGE; null: none */
    const char *snapshots;  /* DTRUN_SNAPSHOTS; null: none */
    const char *error_file; /* "" or null: none */
    const char *log_dir;    /* this worker's folder, DTRUN_LOG_DIR; null: none */
    const char *output_dir; /* DTRUN_OUTPUT_DIR; null: none */
    int cpu_sharers;        /* DTRUN_CPU_SHARERS: workers of this host, itself included, that may
                             * run on its CPUs; 0: all of them */
    const char *timer_file; /* TORCHELASTIC_TIMER_FILE; null: left as inherited */
};

/* The whole environment: what is inherited, with the worker's own variables in place of stale
 * ones, each name once. Strings and the null-terminated array live in `arena`. Fails when
 * --virtual_local_rank finds too few devices. */
int env_build(const struct options *o, const struct env_worker *w, char *const *inherited, struct dt_arena *arena,
              char ***out, struct dt_error *err);
/* Appends what the launcher settled on and which option or variable said it: "hosts 2
 * (--nnodes), workers 2 (PET_NPROC_PER_NODE), ...". `doctor` gets it as DTRUN_CHOICES. */
void env_choices(const struct options *o, struct dt_text *out);
/* True when OMP_NUM_THREADS=1 is put into the environment of several workers; print
 * env_omp_warning() once then. */
bool env_sets_omp(const struct options *o, char *const *inherited);
const char *env_omp_warning(void);

/* Python's string.Template.safe_substitute: $name and ${name} of the pairs {name, value} are
 * replaced, $$ becomes $, the rest stays. */
void env_substitute(struct dt_text *out, const char *text, const char *const (*pairs)[2], size_t pair_count);

/* A worker gets this variable from env_build, for reasons of its own: what surrounds dtrun does
 * not count. */
bool env_is_ours(const char *name);

/* --run_path: what Python is given by -c, before the script and its arguments; to the script,
 * argv looks as if Python ran it itself. */
#define ENV_RUN_PATH "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"

/* argv of a local rank, with ${local_rank} replaced as Python's safe templates do,
 * null-terminated; argv[0] is a path or a name with the program found: with a slash as given,
 * the bundled programs in dtrun's own folder or ../libexec/dtrun, then PATH. *path is what to
 * execute. Fails (DT_NOT_FOUND) with a line that says where it looked. Call it once with local
 * rank 0 before starting anything. */
int env_command(const struct options *o, int local_rank, char *const *inherited, struct dt_arena *arena, char **path,
                char ***argv, struct dt_error *err);

#endif
