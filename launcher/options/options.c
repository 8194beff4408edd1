/* From rows to values (command line over variable over default), then what follows from several
 * options together: how many workers, what PROGRAM is. Where hosts meet is in rendezvous.c. Words and
 * variables become rows in options_words.c; values of their own are in options_values.c. */
#include "base/file.h"
#include "launcher/options/env.h"
#include "launcher/options/exports.h"
#include "launcher/options/hostfile.h"
#include "launcher/options/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *options_getenv(char *const *env, const char *name)
{
    size_t n = strlen(name);
    for (; env != NULL && *env != NULL; env++) {
        if (strncmp(*env, name, n) == 0 && (*env)[n] == '=') {
            return *env + n + 1;
        }
    }
    return NULL;
}

/* A port that is given must be one of --port_range, which may be the site's. */
static int check_port_range(const struct options *o, const struct given *g, enum option option, int port,
                            struct dt_error *err)
{
    if (port > 0 && o->rdzv.port_hi > 0 && (port < o->rdzv.port_lo || port > o->rdzv.port_hi)) {
        return dt_fail(err, DT_INVALID,
                       "%s: port %d is not in %s=%d-%d; give a port of that range, or 0 for any free one in it",
                       g->spelled[option], port, g->spelled[OPTION_port_range], o->rdzv.port_lo, o->rdzv.port_hi);
    }
    return 0;
}

/* --serve_store: nothing else matters. `program`: the first word after the options, or null. */
static int read_serve_store(struct options *o, const struct given *g, const char *program, struct dt_error *err)
{
    char shown[64];
    int port = -1;
    if (program != NULL) {
        return dt_fail(err, DT_INVALID, "%s: serves the store and runs no program; leave out %s",
                       g->spelled[OPTION_serve_store], option_show(program, shown));
    }
    if (option_parse_endpoint(&o->arena, o->store.serve, &o->rdzv.master_addr, &port, err) != 0) {
        return dt_wrap(err, "%s", g->spelled[OPTION_serve_store]);
    }
    o->rdzv.master_port = port < 0 ? 0 : port;
    if (check_port_range(o, g, OPTION_serve_store, o->rdzv.master_port, err) != 0) {
        return -1;
    }
    o->action = OPTIONS_SERVE_STORE;
    return 0;
}

/* --status [RUN_ID] [--json], in any order. */
static int read_status(struct options *o, const struct given *g, int argc, char **argv, int first, struct dt_error *err)
{
    const char *id = g->value[OPTION_status];
    for (int i = first; i < argc; i++) {
        char shown[64];
        if (strcmp(argv[i], "--json") == 0) {
            o->query.json = true;
        } else if (id[0] != '\0' || argv[i][0] == '-') {
            return dt_fail(err, DT_INVALID, "--status: %s: one run id at most; usage: dtrun --status [RUN_ID] [--json]",
                           option_show(argv[i], shown));
        } else {
            id = argv[i];
        }
    }
    o->query.status_run = id[0] != '\0' ? dt_arena_strdup(&o->arena, id) : NULL;
    o->action = OPTIONS_STATUS;
    return 0;
}

/* Sets *on when the flag is given and not 0; a variable that is no number is an error. */
static int flag_on(const struct given *g, enum option row, bool *on, struct dt_error *err)
{
    long long value = 0;
    if (g->value[row] != NULL && !dt_parse_int64(g->value[row], &value)) {
        char shown[64];
        return dt_fail(err, DT_INVALID, "%s: %s: must be a number, 0 or 1", g->spelled[row],
                       option_show(g->value[row], shown));
    }
    *on = value != 0;
    return 0;
}

/* Parsers of all rows, in their order: given values, else defaults. */
static int read_values(struct options *o, struct given *g, struct dt_error *err)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        const struct option_row *row = &option_rows[i];
        const char *value = g->value[i];
        bool on;
        if (value != NULL && row->arity == OPTION_FLAG && flag_on(g, (enum option)i, &on, err) != 0) {
            return -1;
        }
        value = value != NULL ? value : row->fallback;
        if (value != NULL && row->parse != NULL && row->parse(o, row, value, err) != 0) {
            return dt_wrap(err, "%s", g->value[i] != NULL ? g->spelled[i] : row->name);
        }
    }
    return 0;
}

static int check_hosts(struct options *o, const struct given *g, struct dt_error *err)
{
    bool by_rank = o->rdzv.row->by_rank, has_endpoint = o->rdzv.endpoint[strspn(o->rdzv.endpoint, " ")] != '\0';
    if (o->world.nnodes_max > 1 && o->rdzv.standalone) {
        return dt_fail(err, DT_INVALID, "--standalone: is for one host; leave it out, or use --nnodes=1");
    }
    /* it would look for rank 0 there */
    bool meets = by_rank && !o->rdzv.standalone && (has_endpoint || g->value[OPTION_master_port] != NULL);
    if (o->world.nnodes_max == 1 && !meets && o->world.node_rank > 0) {
        option_warn(o, "%s: %d: not used; the job has one host", g->spelled[OPTION_node_rank], o->world.node_rank);
        o->world.node_rank = 0;
    }
    if ((o->world.nnodes_max == 1 || by_rank) && o->world.node_rank >= o->world.nnodes_max) {
        return dt_fail(err, DT_INVALID, "%s: %d: must be below --nnodes (%d)", g->spelled[OPTION_node_rank],
                       o->world.node_rank, o->world.nnodes_max);
    }
    return 0;
}

static int count_workers(struct options *o, const struct given *g, char **env, struct dt_error *err)
{
    bool gpu = strcmp(o->world.nproc_text, "gpu") == 0;
    bool any = strcmp(o->world.nproc_text, "auto") == 0;
    if (gpu || any) {
        o->world.nproc = options_gpu_count(env);
    }
    if (gpu && o->world.nproc == 0) {
        return dt_fail(err, DT_INVALID,
                       "%s: gpu: no GPU here (CUDA_VISIBLE_DEVICES, NVML, /dev/nvidia*); use a number, cpu or auto",
                       g->spelled[OPTION_nproc_per_node]);
    }
    if ((any && o->world.nproc == 0) || strcmp(o->world.nproc_text, "cpu") == 0) {
        o->world.nproc = options_cpu_count();
    }
    if (o->world.nproc > OPTIONS_MAX_LOCAL) {
        o->world.nproc = OPTIONS_MAX_LOCAL;
    }
    return 0;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s);
    size_t k = strlen(end);
    return n > k && strcmp(s + n - k, end) == 0;
}

/* A folder that Python runs as a program. By a path with a slash only: a plain name is looked
 * for in PATH, and may be one of our own. */
static bool is_python_folder(const char *path)
{
    char *main = dt_format("%s/__main__.py", path);
    bool is_path = strchr(path, '/') != NULL || strcmp(path, ".") == 0 || strcmp(path, "..") == 0;
    bool found = is_path && dt_file_exists(main);
    free(main);
    return found;
}

/* What PROGRAM is. */
static int read_program(struct options *o, const struct given *g, int argc, char **argv, int first,
                        struct dt_error *err)
{
    bool module = false, no_python = false, run_path = false;
    if (flag_on(g, OPTION_module, &module, err) != 0 || flag_on(g, OPTION_no_python, &no_python, err) != 0 ||
        flag_on(g, OPTION_run_path, &run_path, err) != 0) {
        return -1;
    }
    if (run_path && (module || no_python)) { /* as torchrun does, which says nothing */
        option_warn(o, "%s: not used; %s runs PROGRAM as a script",
                    g->spelled[module ? OPTION_module : OPTION_no_python], g->spelled[OPTION_run_path]);
    } else if (module && no_python) {
        return dt_fail(err, DT_INVALID, "--module: cannot go with --no_python; leave one out");
    }
    if (first >= argc || argv[first][0] == '\0') {
        return dt_fail(err, DT_INVALID, "no PROGRAM given; usage: dtrun [options] PROGRAM [args], see dtrun --help");
    }
    o->program.name = dt_arena_strdup(&o->arena, argv[first]);
    /* the first "--" is ours, before the program or right behind it, as torchrun's parser has it */
    bool dashes = first > 1 && strcmp(argv[first - 1], "--") == 0;
    int from = first + 1 + (!dashes && first + 1 < argc && strcmp(argv[first + 1], "--") == 0);
    o->program.arg_count = argc - from;
    o->program.args = dt_arena_alloc(&o->arena, ((size_t)o->program.arg_count + 1) * sizeof *o->program.args);
    for (int i = 0; i < o->program.arg_count; i++) {
        o->program.args[i] = dt_arena_strdup(&o->arena, argv[from + i]);
    }
    bool python = ends_with(o->program.name, ".py") || ends_with(o->program.name, ".pyc") ||
                  ends_with(o->program.name, ".pyz") || is_python_folder(o->program.name);
    o->program.entry = run_path               ? OPTIONS_ENTRY_RUN_PATH
                       : module               ? OPTIONS_ENTRY_MODULE
                       : python && !no_python ? OPTIONS_ENTRY_PYTHON
                                              : OPTIONS_ENTRY_PROGRAM;
    o->program.bundled = o->program.entry == OPTIONS_ENTRY_PROGRAM ? bundled_find(&o->arena, o->program.name) : NULL;
    if (o->program.bundled != NULL) {
        o->program.name = dt_arena_strdup(&o->arena, o->program.bundled->name); /* without a path that was given */
        o->restarts.most = g->value[OPTION_max_restarts] == NULL ? o->program.bundled->max_restarts : o->restarts.most;
    }
    return 0;
}

static void scale_times(struct options *o)
{
    double *times[] = {&o->stop.shutdown_timeout_s, &o->stop.exit_barrier_s, &o->restarts.hang_timeout_s,
                       &o->rdzv.join_timeout_s,     &o->rdzv.last_call_s,    &o->rdzv.dead_after_s};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        *times[i] /= o->time_scale;
    }
}

/* --hostfile: what the agents are told; they read the rest of the options themselves. */
static int read_launching(struct options *o, const struct given *g, int argc, char **argv, int first,
                          struct dt_error *err)
{
    bool dry = false;
    if (flag_on(g, OPTION_dry_run, &dry, err) != 0 || hostfile_read(o, g, err) != 0 ||
        check_port_range(o, g, OPTION_metrics_endpoint, o->query.metrics_port, err) != 0 ||
        read_program(o, g, argc, argv, first, err) != 0 || option_pass_accelerate(o, g, err) != 0) {
        return -1;
    }
    scale_times(o);
    o->action = dry ? OPTIONS_DRY_RUN : OPTIONS_HOSTFILE;
    return 0;
}

static int read_all(struct options *o, struct given *g, int argc, char **argv, char **env, struct dt_error *err)
{
    int first = argc;
    if (option_read_words(o, g, argc, argv, &first, err) != 0 || o->action != OPTIONS_RUN) {
        return o->action != OPTIONS_RUN ? 0 : -1;
    }
    if (g->value[OPTION_status] != NULL) {
        o->query.json = g->value[OPTION_json] != NULL;
        return read_status(o, g, argc, argv, first, err);
    }
    if (option_read_accelerate(o, g, env, err) != 0) {
        return -1;
    }
    option_read_variables(o, g, env);
    if (option_read_cluster(o, g, env, err) != 0 || option_read_accelerate_rank(o, g, err) != 0 ||
        read_values(o, g, err) != 0) {
        return -1;
    }
    if (o->completion != NULL) {
        o->action = OPTIONS_COMPLETION;
        return 0;
    }
    if (o->store.serve != NULL) {
        return read_serve_store(o, g, first < argc ? argv[first] : NULL, err);
    }
    if (o->query.json) {
        return dt_fail(err, DT_INVALID, "--json: goes with --status only");
    }
    if ((o->ssh.include != NULL || o->ssh.exclude != NULL) && o->ssh.hostfile == NULL && !o->leash.on) {
        return dt_fail(err, DT_INVALID, "%s: chooses hosts of a file; add --hostfile=FILE",
                       g->spelled[o->ssh.include != NULL ? OPTION_include : OPTION_exclude]);
    }
    if (exports_check(o, env, err) != 0) {
        return -1;
    }
    if (o->ssh.hostfile != NULL && !o->leash.on) {
        return read_launching(o, g, argc, argv, first, err);
    }
    bool dry = false;
    if (flag_on(g, OPTION_dry_run, &dry, err) != 0 || check_hosts(o, g, err) != 0 ||
        rendezvous_choose(o, g, env, err) != 0 || count_workers(o, g, env, err) != 0 ||
        read_program(o, g, argc, argv, first, err) != 0 || option_pass_accelerate(o, g, err) != 0) {
        return -1;
    }
    if (option_check_cluster(o, g, env, err) != 0 ||
        check_port_range(o, g, OPTION_metrics_endpoint, o->query.metrics_port, err) != 0 ||
        options_check_gpus(o, o->world.local_total > 0 ? o->world.local_total : o->world.nproc, env, err) != 0) {
        return -1;
    }
    if (o->world.nnodes_max == 1 && o->world.local_total == 0 && o->output.stdin_rank >= o->world.nproc) {
        return dt_fail(err, DT_INVALID, "%s: %d: must be a rank of the job, 0 to %d", g->spelled[OPTION_stdin],
                       o->output.stdin_rank, o->world.nproc - 1);
    }
    scale_times(o);
    o->action = dry ? OPTIONS_DRY_RUN : OPTIONS_RUN;
    return 0;
}

int options_read(struct options *o, int argc, char **argv, char **env, struct dt_error *err)
{
    memset(o, 0, sizeof *o);
    dt_arena_init(&o->arena);
    dt_text_init(&o->warnings);
    struct given *g = dt_alloc(sizeof *g);
    int result = read_all(o, g, argc, argv, env, err);
    free(g);
    if (result != 0) {
        options_clear(o);
    }
    return result;
}

void options_clear(struct options *o)
{
    dt_arena_clear(&o->arena);
    dt_text_clear(&o->warnings);
    memset(o, 0, sizeof *o);
}

const char *options_source(const struct options *o, enum option row)
{
    static _Thread_local char text[72];
    if (o->sources[row] == OPTIONS_FROM_DEFAULT) {
        return "default";
    }
    if (o->source_variables[row] != NULL) {
        return o->source_variables[row];
    }
    if (o->sources[row] == OPTIONS_FROM_COMMAND_LINE || !option_variable(&option_rows[row], text, sizeof text)) {
        (void)snprintf(text, sizeof text, "--%s", option_rows[row].name);
    }
    return text;
}
