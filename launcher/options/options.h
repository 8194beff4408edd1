/* The command line and the variables of the launcher: `dtrun [options] PROGRAM [args]`,
 * torchrun's options and our own. Pure: reads argv and an environment, starts nothing, prints
 * nothing. Only `gpu`, `cpu` and `auto` look at the machine. The rows of options_table.c say
 * everything about an option: spelling, variable, default, parser, help, whether it works yet. */
#ifndef DT_LAUNCHER_OPTIONS_OPTIONS_H
#define DT_LAUNCHER_OPTIONS_OPTIONS_H

#include "base/arena.h"
#include "base/error.h"
#include "base/text.h"
#include "launcher/options/bundled.h"
#include "launcher/options/cluster.h"

#include <stdbool.h>
#include <stdint.h>

#define OPTIONS_MAX_LOCAL 4096  /* workers of one node */
#define OPTIONS_MAX_NODES 10240 /* as many as a coordinator takes */
#define OPTIONS_ROLE_BYTES 64   /* with its NUL; as much as a coordinator keeps */
#define OPTIONS_MAX_CODES 64

/* All options, by their names: a row of options_table.c for each. */
/* clang-format off */
#define OPTIONS_ALL(X) \
    X(nproc_per_node) X(num_processes) X(config_file) X(nnodes) X(node_rank) X(role) X(standalone) X(module) X(no_python) X(run_path) \
    X(start_method) X(dry_run) X(max_restarts) X(monitor_interval) X(shutdown_timeout) X(exit_barrier) \
    X(hang_timeout) X(exit_code) X(permanent_exit_codes) X(requeue_exit_code) X(requeue) X(signals_to_handle) \
    X(time_scale) X(redirects) X(tee) X(log_dir) X(local_ranks_filter) X(ranks_filter) \
    X(log_line_prefix_template) X(duplicate_stdout_filters) X(duplicate_stderr_filters) X(event_log_handler) \
    X(logs_specs) X(stdin) X(rdzv_backend) X(rdzv_endpoint) X(rdzv_id) X(master_addr) X(master_port) \
    X(local_addr) X(port_range) X(join_timeout) X(last_call) X(dead_after) X(rdzv_conf) X(key_file) X(store_users) X(hostfile) \
    X(include) X(exclude) X(ssh) X(leash) X(export) X(status) X(json) X(metrics_endpoint) X(serve_store) \
    X(virtual_local_rank) X(numa_binding) X(cluster) X(print_completion) X(help) X(version)
/* clang-format on */
#define OPTION_ID(name) OPTION_##name,
enum option { OPTIONS_ALL(OPTION_ID) OPTION_COUNT };
#undef OPTION_ID

enum options_action {
    OPTIONS_RUN,
    OPTIONS_HELP,
    OPTIONS_HELP_ALL,
    OPTIONS_VERSION,
    OPTIONS_DRY_RUN,
    OPTIONS_COMPLETION,
    OPTIONS_SERVE_STORE,
    OPTIONS_STATUS,
    OPTIONS_HOSTFILE
};
enum options_entry {
    OPTIONS_ENTRY_PROGRAM, /* run as it is: --no_python, or a program that is no .py file */
    OPTIONS_ENTRY_PYTHON,  /* interpreter -u script */
    OPTIONS_ENTRY_MODULE,  /* interpreter -u -m module */
    OPTIONS_ENTRY_RUN_PATH /* interpreter -u, and runpy.run_path(script) in it */
};
enum options_source { OPTIONS_FROM_DEFAULT, OPTIONS_FROM_CLUSTER, OPTIONS_FROM_VARIABLE, OPTIONS_FROM_COMMAND_LINE };
enum options_stream { OPTIONS_STDOUT = 1, OPTIONS_STDERR = 2 }; /* bits of the masks below */

enum options_stdin { OPTIONS_STDIN_ALL = -1, OPTIONS_STDIN_NONE = -2 };

struct options_host { /* of --hostfile */
    char *name;
    int slots;           /* 0: the file does not say */
    const char *nproc;   /* what its agent gets as --nproc_per_node */
    const char *devices; /* slots that --include or --exclude left, "0,2"; null: all */
};

/* What is started. */
struct options_program {
    enum options_entry entry;
    char *name;  /* script, module or program as written; null only for help and version */
    char **args; /* its arguments, null-terminated; ${local_rank} not yet replaced (env_command does it) */
    int arg_count;
    const struct bundled *bundled; /* its row, perhaps given by its path; null: a program of others */
};

/* How many hosts and workers, and which of them we are. */
struct options_world {
    int nnodes_min, nnodes_max;
    int nproc;        /* workers on this node, 1..OPTIONS_MAX_LOCAL */
    char *nproc_text; /* as written: 4, gpu, cpu, auto */
    char *role;
    int node_rank;
    /* Where the scheduler started an agent per worker: our worker's number among all of this
     * host (total 0: it did not), and the host's number among the hosts (count 0: not known). */
    int local_first, local_total, host_number, host_count;
};

struct options_etcd { /* the first endpoint is master_addr, master_port as well */
    char *hosts[8];
    int ports[8], endpoint_count;          /* 0: another back end */
    char *protocol;                        /* http or https */
    char *cacert, *cert, *key, *user_file; /* or null */
    char *prefix;                          /* of keys */
};

/* Where and how hosts meet. With one node the worker store listens on master_addr:master_port; with
 * several, hosts meet there. */
struct options_rdzv {
    bool standalone;                 /* asked for, or what a plain single-node job becomes */
    char *backend, *endpoint, *conf; /* as written; backend `c10d` when standalone */
    const struct rendezvous *row;    /* of the back end (rendezvous.h); never null */
    char *run_id;                    /* --rdzv_id; a random UUID when standalone */
    char *master_addr;               /* MASTER_ADDR, never in brackets; 127.0.0.1 unless static with an
                                      * address or an endpoint */
    int master_port;                 /* 0: any free one */
    char *local_addr;                /* or null */
    int is_host;                     /* c10d on several hosts: 1 holds the endpoint, 0 does not, -1: as
                                      * addresses say */
    char *key_file;                  /* or null */
    struct options_etcd etcd;        /* of the row etcd-v3 */
    double join_timeout_s, last_call_s, dead_after_s;
    int port_lo, port_hi; /* --port_range; 0,0: any */
};

/* The launching host of --hostfile. */
struct options_ssh {
    char *hostfile, *command; /* null: no such job; what reaches a host */
    char *include, *exclude;  /* filters of its hosts, or null */
    struct options_host *host_list;
    int host_list_count;
    char **own_words; /* the options as given on the command line, for the agents; without
                       * --dry_run and --export */
    int own_word_count;
};

/* One of its agents. */
struct options_leash {
    bool on;
    int fd;
    bool key; /* key_file is what came over the leash */
};

/* --export */
struct options_exports {
    char **list; /* NAME or NAME=VALUE, those of the command line or else of the variable; of two of a
                  * name the last one counts */
    int *items;  /* the number of each in its list, from 1 */
    int count;
    char **words; /* as they stand in argv */
    int word_count;
};

struct options_restarts {
    int most;
    double monitor_interval_s;
    double hang_timeout_s; /* 0: off */
    /* a worker's codes that forbid a restart */
    int permanent_codes[OPTIONS_MAX_CODES], permanent_code_count;
};

/* How a job ends. */
struct options_stop {
    double shutdown_timeout_s; /* between TERM and KILL, on every stop path */
    double exit_barrier_s;     /* between the first worker's end with 0 and a word about the others */
    bool exit_code_worker;     /* --exit_code=worker: the first failing worker's code comes out */
    bool signals[65];          /* signals[n]: --signals_to_handle; default TERM INT HUP QUIT */
    char *signals_text;        /* as written, for TORCHELASTIC_SIGNALS_TO_HANDLE */
};

/* accelerate's file, --config_file: what is not an option of ours. */
struct options_accelerate {
    const char *path;      /* or null */
    int64_t rank;          /* machine_rank */
    const char *rank_from; /* its place, or null: the file does not say it */
    const char *kind;      /* distributed_type, where it has a block: FSDP, DEEPSPEED; or null */
    const char *precision; /* mixed_precision, or null */
    bool cpu;              /* use_cpu */
};

/* A scheduler's job that is to run again. */
struct options_requeue {
    char *when;    /* auto, on, off */
    int exit_code; /* what a saved stop ends with; 75 */
};

/* PyTorch's store. */
struct options_store {
    unsigned users[OPTIONS_MAX_CODES]; /* --store_users */
    int user_count;
    char *serve; /* --serve_store as written; its host and port are in master_addr and master_port */
};

/* What workers read and write, and what is shown of it. */
struct options_output {
    char *log_dir; /* or null: a new folder in the temporary directory; "/dev/null": no files at all */
    uint8_t redirects[OPTIONS_MAX_LOCAL], tee[OPTIONS_MAX_LOCAL]; /* enum options_stream bits by local rank */
    bool filtered;                                                /* --local_ranks_filter given */
    bool shown[OPTIONS_MAX_LOCAL];                                /* passes the filter; all true without one */
    int *ranks, rank_count;                                       /* --ranks_filter; count 0: none */
    char **stdout_filters, **stderr_filters; /* --duplicate_*_filters, null-terminated; null: none */
    char *prefix_template;                   /* --log_line_prefix_template or its variable; null: [role0]: */
    int stdin_rank;                          /* of the whole job: who reads our standard input; or enum options_stdin */
    bool torch_events;                       /* --event_log_handler=console */
};

/* What is told about jobs. */
struct options_query {
    char *status_run;   /* with --status: run id, or null for all */
    bool json;          /* with --status */
    char *metrics_host; /* --metrics_endpoint, never in brackets; null: none */
    int metrics_port;   /* 0: any free one */
};

/* What each worker gets of this host. */
struct options_devices {
    bool virtual_local_rank;
    char *numa_binding; /* or null */
};

struct options {
    enum options_action action;
    struct options_program program;
    struct options_world world;
    struct options_rdzv rdzv;
    struct options_ssh ssh;
    struct options_leash leash;
    struct options_exports exports;
    struct options_accelerate accelerate;
    struct options_restarts restarts;
    struct options_stop stop;
    struct options_requeue requeue;
    struct options_store store;
    struct options_output output;
    struct options_query query;
    struct options_devices devices;
    double time_scale; /* already applied to every duration of this struct, for bounds that are not
                        * options */
    int check_code;    /* never read from anywhere: the check of the job failed with it, and other hosts
                        * are told (failed_check.c) */
    char *cluster;     /* --cluster=NAME, or null: detect */
    struct cluster here;
    char *completion;                           /* shell of --print_completion */
    struct dt_text warnings;                    /* one line each, ready to print on stderr */
    enum options_source sources[OPTION_COUNT];  /* options_source reads it */
    const char *source_variables[OPTION_COUNT]; /* which variable, where it is not the row's own:
                                                 * the cluster's, or torchrun's other one */
    struct dt_arena arena;
};

/* Reads argv[1..] and env (null-terminated NAME=VALUE; only options' variables are looked at).
 * On success the caller clears o; on failure it is already cleared. err->text is one line
 * without the leading "dtrun: "; status DT_INVALID means exit 2. */
int options_read(struct options *o, int argc, char **argv, char **env, struct dt_error *err);
void options_clear(struct options *o);

/* Help as text of at most 80 columns: the common options (one screen), or all of them with their
 * defaults. */
void options_help(struct dt_text *out, bool all);
/* A completion script for bash, zsh or tcsh; shell is o->completion, already checked. */
void options_completion(struct dt_text *out, const char *shell);
/* What --dry_run prints: hosts, workers, store, restarts, where the values that matter came
 * from, and the variables of a worker. */
void options_describe(const struct options *o, char *const *env, struct dt_text *out);
/* Where the value of an option came from: "--nproc_per_node", "PET_NPROC_PER_NODE",
 * "SLURM_STEP_NUM_NODES" or "default". */
const char *options_source(const struct options *o, enum option option);

/* Value of NAME in an environment, or null. */
const char *options_getenv(char *const *env, const char *name);
/* GPUs that workers could use: CUDA_VISIBLE_DEVICES up to the first invalid entry, else those
 * that the driver (NVML) lets us use, else the /dev/nvidiaN that exist. */
int options_gpu_count(char *const *env);
/* More workers on this host than CUDA_VISIBLE_DEVICES names GPUs: a warning, for whether a
 * program uses them is not known; DT_INVALID with --virtual_local_rank, which gives each worker
 * one of them (of HIP_VISIBLE_DEVICES, where there is that). */
int options_check_gpus(struct options *o, int workers, char *const *env, struct dt_error *err);
/* CPUs of this process's affinity mask, bounded by the control group's quota; at least 1. */
int options_cpu_count(void);

#endif
