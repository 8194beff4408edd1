/* accelerate's words for the launcher: its file (--config_file), and num_processes, which counts the
 * workers of all hosts. They stand in for options of ours that were not given, as the scheduler's do, and
 * come before variables: the file was named. What a file says of training is handed on to `train`. */
#include "launcher/options/exports.h"
#include "launcher/options/options_table.h"

#include "base/config.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A file, and the values that the launcher reads of it. */
struct file {
    struct dt_config *c;
    const char *name; /* without its folder */
    int64_t processes, machines, rank, port;
    const char *ip, *backend;
};

#define PORT 65535
static const struct dt_rule count = {.type = DT_RULE_INTEGER, .min = -1, .max = 1e9, .null = true, .null_value = -1};
static const struct dt_rule hosts = {.type = DT_RULE_INTEGER, .min = 1, .max = OPTIONS_MAX_NODES};
static const struct dt_rule number = {.type = DT_RULE_INTEGER, .min = 0, .max = OPTIONS_MAX_NODES, .null = true};
static const struct dt_rule port = {.type = DT_RULE_INTEGER, .min = 0, .max = PORT, .null = true, .null_value = -1};
static const struct dt_rule text = {.type = DT_RULE_STRING, .null = true};

#define AT(member) offsetof(struct file, member)
static const struct dt_field fields[] = {
    {"num_processes", "null", "workers of all hosts", AT(processes), &count},
    {"num_machines", "1", "hosts", AT(machines), &hosts},
    {"machine_rank", "0", "number of this host", AT(rank), &number},
    {"main_process_ip", "null", "where hosts meet", AT(ip), &text},
    {"main_process_port", "null", "the port there", AT(port), &port},
    {"rdzv_backend", "null", "how they meet", AT(backend), &text},
    {0},
};
#undef AT

/* accelerate's other keys: of training, which `train` reads, or without a meaning here. */
static const char *const others[] = {"compute_environment",
                                     "distributed_type",
                                     "mixed_precision",
                                     "use_cpu",
                                     "debug",
                                     "same_network",
                                     "commands",
                                     "downcast_bf16",
                                     "tpu_use_cluster",
                                     "tpu_use_sudo",
                                     "tpu_env",
                                     "tpu_name",
                                     "tpu_zone",
                                     "dynamo_backend",
                                     "dynamo_config",
                                     "fsdp_config",
                                     "deepspeed_config",
                                     "megatron_lm_config",
                                     "mpirun_config",
                                     "fp8_config",
                                     "gpu_ids",
                                     "max_restarts",
                                     "main_training_function",
                                     "parallelism_config",
                                     "enable_cpu_affinity",
                                     "gradient_accumulation_steps",
                                     NULL};

static const char *word_at(const struct file *f, const char *key)
{
    const char *word = cJSON_GetStringValue(dt_config_value(f->c, key));
    return word != NULL ? word : "";
}

/* "fsdp.yaml:12:1: num_processes" */
static const char *place(struct options *o, const struct file *f, const char *key)
{
    const char *where = dt_config_where(f->c, key), *slash = where != NULL ? strrchr(where, '/') : NULL;
    return dt_arena_printf(&o->arena, "%s: %s", slash != NULL ? slash + 1 : where != NULL ? where : f->name, key);
}

/* The option's value, unless the command line has one, which counts: both are named where they differ. */
static void give(struct options *o, struct given *g, enum option row, const char *from, const char *value,
                 char *const *env)
{
    char variable[64];
    const char *set =
        option_variable(&option_rows[row], variable, sizeof variable) ? options_getenv(env, variable) : NULL;
    if (g->value[row] != NULL) {
        if (strcmp(g->value[row], value) != 0) {
            option_warn(o, "%s: %s, but %s: %s: the command line counts", from, value, g->spelled[row], g->value[row]);
        }
        return;
    }
    if (set != NULL && strcmp(set, value) != 0 && row != OPTION_nnodes) { /* which cluster_warn says */
        option_warn(o, "%s: %s, but %s: %.60s: the file counts", from, value, variable, set);
    }
    g->value[row] = value;
    (void)snprintf(g->spelled[row], sizeof g->spelled[row], "%.70s", from);
    o->sources[row] = OPTIONS_FROM_VARIABLE;
    o->source_variables[row] = dt_arena_strdup(&o->arena, from);
}

static void take_back(struct options *o, struct given *g, enum option row)
{
    g->value[row] = NULL;
    o->sources[row] = OPTIONS_FROM_DEFAULT;
    o->source_variables[row] = NULL;
}

/* Hosts of the job as they are given, 1 without; 0 for a range. */
static long long host_count(const struct given *g)
{
    long long n = 1;
    const char *value = g->value[OPTION_nnodes];
    return value == NULL || (dt_parse_int64(value, &n) && n > 0) ? n : 0;
}

/* Workers of each host, by a number of all of them. */
static int give_processes(struct options *o, struct given *g, const char *from, long long all, char *const *env,
                          struct dt_error *err)
{
    long long machines = host_count(g);
    if (machines == 0) {
        return dt_fail(
            err, DT_INVALID,
            "%s: counts the workers of all hosts, whose number %s leaves open; give --nproc_per_node instead", from,
            g->spelled[OPTION_nnodes]);
    }
    if (all % machines != 0) {
        return dt_fail(err, DT_INVALID, "%s: %lld: not a multiple of the %lld hosts (%s)", from, all, machines,
                       g->spelled[OPTION_nnodes]);
    }
    give(o, g, OPTION_nproc_per_node, from, dt_arena_printf(&o->arena, "%lld", all / machines), env);
    return 0;
}

/* ---- the file ---- */

static int give_count(struct options *o, struct given *g, const struct file *f, char *const *env, struct dt_error *err)
{
    const char *kind = word_at(f, "distributed_type"), *from = place(o, f, "num_processes");
    if (g->value[OPTION_num_processes] != NULL) {
        long long other = 0;
        if (f->processes > 0 && dt_parse_int64(g->value[OPTION_num_processes], &other) && other != f->processes) {
            option_warn(o, "%s: %" PRId64 ", but %s: %s: that counts", from, f->processes,
                        g->spelled[OPTION_num_processes], g->value[OPTION_num_processes]);
        }
        return 0;
    }
    if (f->processes > 0) {
        return give_processes(o, g, from, f->processes, env, err);
    }
    bool alone = *kind == 0 || strcasecmp(kind, "NO") == 0; /* otherwise as many as there are GPUs */
    give(o, g, OPTION_nproc_per_node, from, alone ? "1" : "auto", env);
    return 0;
}

/* accelerate gives the address as that of the store, or as an endpoint, by the back end. */
static void give_meeting(struct options *o, struct given *g, const struct file *f, char *const *env)
{
    if (f->backend != NULL) {
        give(o, g, OPTION_rdzv_backend, place(o, f, "rdzv_backend"), f->backend, env);
    }
    if (f->port >= 0) {
        give(o, g, OPTION_master_port, place(o, f, "main_process_port"),
             dt_arena_printf(&o->arena, "%" PRId64, f->port), env);
    }
    if (f->ip != NULL && host_count(g) != 1 && g->value[OPTION_rdzv_endpoint] == NULL) {
        give(o, g, OPTION_master_addr, place(o, f, "main_process_ip"), f->ip, env);
    }
}

/* GPUs by number are the environment's. */
static int check_gpus(const struct options *o, const struct file *f, char *const *env, struct dt_error *err)
{
    const cJSON *ids = dt_config_value(f->c, "gpu_ids");
    const char *visible = options_getenv(env, "CUDA_VISIBLE_DEVICES"), *word = cJSON_GetStringValue(ids);
    char digits[16] = "";
    if (cJSON_IsNumber(ids)) {
        (void)snprintf(digits, sizeof digits, "%d", ids->valueint);
        word = digits;
    }
    (void)o;
    return word == NULL || strcasecmp(word, "all") == 0 || (visible != NULL && strcmp(visible, word) == 0)
               ? 0
               : dt_fail(err, DT_INVALID, "%s: gpu_ids: not read; set CUDA_VISIBLE_DEVICES=%.60s",
                         dt_config_where(f->c, "gpu_ids"), word);
}

static int give_all(struct options *o, struct given *g, const struct file *f, char *const *env, struct dt_error *err)
{
    if (g->value[OPTION_leash] != NULL) { /* the launching host has read it */
        return 0;
    }
    bool several = dt_config_where(f->c, "num_machines") != NULL && g->value[OPTION_standalone] == NULL;
    if (several) {
        give(o, g, OPTION_nnodes, place(o, f, "num_machines"), dt_arena_printf(&o->arena, "%" PRId64, f->machines),
             env);
    }
    if (g->value[OPTION_nproc_per_node] == NULL || f->processes > 0) {
        if (give_count(o, g, f, env, err) != 0) {
            return -1;
        }
    }
    give_meeting(o, g, f, env);
    o->accelerate.rank = f->rank;
    o->accelerate.rank_from = dt_config_where(f->c, "machine_rank") != NULL ? place(o, f, "machine_rank") : NULL;
    return check_gpus(o, f, env, err);
}

/* Variables that programs with accelerate read of its launcher. */
static void keep_training(struct options *o, const struct file *f)
{
    const char *kind = word_at(f, "distributed_type"), *precision = word_at(f, "mixed_precision");
    bool block = strcasecmp(kind, "FSDP") == 0 || strcasecmp(kind, "DEEPSPEED") == 0;
    o->accelerate.kind = block ? dt_arena_strdup(&o->arena, kind) : NULL;
    char *plain = *precision != 0 ? dt_arena_strdup(&o->arena, precision) : NULL;
    for (char *p = plain; p != NULL && *p != '\0'; p++) {
        *p = (char)tolower((unsigned char)*p);
    }
    o->accelerate.precision = plain;
    o->accelerate.cpu = cJSON_IsTrue(dt_config_value(f->c, "use_cpu"));
}

static int read_file(struct options *o, struct given *g, char *const *env, struct dt_error *err)
{
    const char *path = g->value[OPTION_config_file], *slash = strrchr(path, '/');
    struct file f = {.name = slash != NULL ? slash + 1 : path};
    if (dt_config_open(&f.c, path, &o->arena, err) != 0) {
        return dt_wrap(err, "%s", g->spelled[OPTION_config_file]);
    }
    int wrong = dt_config_read(f.c, "", fields, &f);
    for (int i = 0; others[i] != NULL; i++) {
        dt_config_known(f.c, others[i]);
        dt_config_pass(f.c, others[i]);
    }
    if (dt_config_value(f.c, "distributed_type") == NULL) {
        dt_config_problem(f.c, "distributed_type", "missing; add one of NO, MULTI_GPU, MULTI_CPU, FSDP, DEEPSPEED");
    }
    int result = wrong == 0 ? give_all(o, g, &f, env, err) : 0;
    keep_training(o, &f);
    struct dt_text problems;
    struct dt_error found;
    dt_text_init(&problems);
    if (dt_config_close(f.c, &problems, &found) != 0 && result == 0) { /* the first, in one line */
        const char *first = dt_text_str(&problems);
        result = dt_fail(err, DT_INVALID, "%.*s", (int)strcspn(first, "\n"), first);
    }
    dt_text_clear(&problems);
    return result;
}

/* ---- words ---- */

/* By a back end without ranks, --main_process_ip is where hosts meet. */
static void meet_at_main(struct options *o, struct given *g)
{
    const char *backend = g->value[OPTION_rdzv_backend], *ip = g->value[OPTION_master_addr],
               *main_port = g->value[OPTION_master_port];
    bool by_rank = backend == NULL || strcmp(backend, "static") == 0, alone = host_count(g) == 1;
    bool theirs = ip != NULL && strstr(g->spelled[OPTION_master_addr], "main_process_ip") != NULL;
    if (by_rank || !theirs || g->value[OPTION_rdzv_endpoint] != NULL) {
        return;
    }
    if (!alone) {
        bool bare = strchr(ip, ':') != NULL && ip[0] != '[';
        g->value[OPTION_rdzv_endpoint] =
            dt_arena_printf(&o->arena, "%s%s%s%s%s", bare ? "[" : "", ip, bare ? "]" : "", main_port != NULL ? ":" : "",
                            main_port != NULL ? main_port : "");
        memcpy(g->spelled[OPTION_rdzv_endpoint], g->spelled[OPTION_master_addr], sizeof g->spelled[0]);
        o->sources[OPTION_rdzv_endpoint] = o->sources[OPTION_master_addr];
        o->source_variables[OPTION_rdzv_endpoint] = o->source_variables[OPTION_master_addr];
    }
    take_back(o, g, OPTION_master_addr);
    take_back(o, g, OPTION_master_port);
}

/* Our two options, of which others follow, from their variables. */
static void read_variables(struct options *o, struct given *g, char *const *env)
{
    static const enum option rows[] = {OPTION_config_file, OPTION_num_processes};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char name[64];
        const char *value =
            option_variable(&option_rows[rows[i]], name, sizeof name) ? options_getenv(env, name) : NULL;
        if (g->value[rows[i]] == NULL && value != NULL) {
            g->value[rows[i]] = value;
            (void)snprintf(g->spelled[rows[i]], sizeof g->spelled[0], "%s", name);
            o->sources[rows[i]] = OPTIONS_FROM_VARIABLE;
        }
    }
}

int option_read_accelerate(struct options *o, struct given *g, char *const *env, struct dt_error *err)
{
    read_variables(o, g, env);
    const char *all = g->value[OPTION_num_processes];
    if (g->value[OPTION_config_file] != NULL && read_file(o, g, env, err) != 0) {
        return -1;
    }
    if (all != NULL) {
        long long n = 0;
        char shown[64];
        if (!dt_parse_int64(all, &n) || n < 1) {
            return dt_fail(err, DT_INVALID, "%s: %s: must be a number of workers, 1 or more",
                           g->spelled[OPTION_num_processes], option_show(all, shown));
        }
        const char *each = g->value[OPTION_nproc_per_node];
        if (each != NULL && o->sources[OPTION_nproc_per_node] == OPTIONS_FROM_COMMAND_LINE) {
            return dt_fail(
                err, DT_INVALID, "%s: counts the workers of all hosts, and %s %s those of each; leave one out",
                g->spelled[OPTION_num_processes], g->spelled[OPTION_nproc_per_node], option_show(each, shown));
        }
        if (give_processes(o, g, g->spelled[OPTION_num_processes], n, env, err) != 0) {
            return -1;
        }
    }
    meet_at_main(o, g);
    return 0;
}

int option_read_accelerate_rank(struct options *o, struct given *g, struct dt_error *err)
{
    long long machines = host_count(g);
    const char *backend = g->value[OPTION_rdzv_backend], *from = o->accelerate.rank_from;
    bool by_rank = backend == NULL || strcmp(backend, "static") == 0;
    (void)err;
    if (from == NULL || machines < 2) {
        return 0;
    }
    char number_text[16];
    (void)snprintf(number_text, sizeof number_text, "%d", (int)o->accelerate.rank);
    const char *given = g->value[OPTION_node_rank];
    if (given != NULL && strcmp(given, number_text) != 0 && o->accelerate.rank != 0) {
        option_warn(o, "%s: %s, but %s: %s: that counts", from, number_text, g->spelled[OPTION_node_rank], given);
    } else if (given == NULL && by_rank) {
        g->value[OPTION_node_rank] = dt_arena_strdup(&o->arena, number_text);
        (void)snprintf(g->spelled[OPTION_node_rank], sizeof g->spelled[0], "%.70s", from);
        o->sources[OPTION_node_rank] = OPTIONS_FROM_VARIABLE;
        o->source_variables[OPTION_node_rank] = from;
    } else if (given == NULL && o->accelerate.rank != 0) {
        option_warn(o, "%s: %s: no effect with %s, which numbers the hosts", from, number_text, backend);
    }
    return 0;
}

static bool has_config(const struct options *o)
{
    for (int i = 0; i < o->program.arg_count; i++) {
        if (strcmp(o->program.args[i], "--config") == 0 || strncmp(o->program.args[i], "--config=", 9) == 0) {
            return true;
        }
    }
    return false;
}

int option_pass_accelerate(struct options *o, const struct given *g, struct dt_error *err)
{
    const char *path = g->value[OPTION_config_file];
    bool trains = o->program.bundled != NULL && o->program.bundled->trains,
         launches = o->ssh.hostfile != NULL && !o->leash.on;
    if (path == NULL) {
        return 0;
    }
    if (!trains && o->accelerate.kind != NULL) {
        return dt_fail(err, DT_INVALID,
                       "%s: distributed_type %s: only train reads its block; start %.60s by accelerate launch",
                       g->spelled[OPTION_config_file], o->accelerate.kind, o->program.name);
    }
    if (trains && !launches && !has_config(o)) { /* agents read the file themselves */
        enum { MORE = 6 };
        char **args = dt_arena_alloc(&o->arena, ((size_t)o->program.arg_count + MORE + 1) * sizeof *args);
        memcpy(args, o->program.args, (size_t)o->program.arg_count * sizeof *args);
        const char *const more[MORE] = {"--config", path, /* the numbers that count here are no contradiction there */
                                        "--set",    "accelerate.num_processes=null",
                                        "--set",    "accelerate.num_machines=null"};
        for (int i = 0; i < MORE; i++) {
            args[o->program.arg_count++] = dt_arena_strdup(&o->arena, more[i]);
        }
        args[o->program.arg_count] = NULL;
        o->program.args = args;
    }
    if (!trains && o->accelerate.precision != NULL) {
        exports_add(o, dt_arena_printf(&o->arena, "ACCELERATE_MIXED_PRECISION=%s", o->accelerate.precision));
    }
    if (!trains && o->accelerate.cpu) {
        exports_add(o, "ACCELERATE_USE_CPU=true");
    }
    return 0;
}
