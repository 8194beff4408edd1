/* From rows to values (command line over variable over default), then what follows from several
 * options together: which store, which run id, how many workers, what PROGRAM is. Words and
 * variables become rows in options_words.c; values of their own are in options_values.c. */
#include "base/file.h"
#include "launcher/options/env.h"
#include "launcher/options/exports.h"
#include "launcher/options/hostfile.h"
#include "launcher/options/options_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

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
    if (port > 0 && o->port_hi > 0 && (port < o->port_lo || port > o->port_hi)) {
        return dt_fail(err, DT_INVALID,
                       "%s: port %d is not in %s=%d-%d; give a port of that range, or 0 for any free one in it",
                       g->spelled[option], port, g->spelled[OPTION_port_range], o->port_lo, o->port_hi);
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
    if (option_parse_endpoint(&o->arena, o->serve_store, &o->master_addr, &port, err) != 0) {
        return dt_wrap(err, "%s", g->spelled[OPTION_serve_store]);
    }
    o->master_port = port < 0 ? 0 : port;
    if (check_port_range(o, g, OPTION_serve_store, o->master_port, err) != 0) {
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
            o->json = true;
        } else if (id[0] != '\0' || argv[i][0] == '-') {
            return dt_fail(err, DT_INVALID, "--status: %s: one run id at most; usage: dtrun --status [RUN_ID] [--json]",
                           option_show(argv[i], shown));
        } else {
            id = argv[i];
        }
    }
    o->status_run = id[0] != '\0' ? dt_arena_strdup(&o->arena, id) : NULL;
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
    bool is_static = strcmp(o->rdzv_backend, "static") == 0,
         has_endpoint = o->rdzv_endpoint[strspn(o->rdzv_endpoint, " ")] != '\0';
    if (o->nnodes_max > 1 && o->standalone) {
        return dt_fail(err, DT_INVALID, "--standalone: is for one host; leave it out, or use --nnodes=1");
    }
    /* it would look for rank 0 there */
    bool meets = is_static && !o->standalone && (has_endpoint || g->value[OPTION_master_port] != NULL);
    if (o->nnodes_max == 1 && !meets && o->node_rank > 0) {
        option_warn(o, "%s: %d: not used; the job has one host", g->spelled[OPTION_node_rank], o->node_rank);
        o->node_rank = 0;
    }
    if ((o->nnodes_max == 1 || is_static) && o->node_rank >= o->nnodes_max) {
        return dt_fail(err, DT_INVALID, "%s: %d: must be below --nnodes (%d)", g->spelled[OPTION_node_rank],
                       o->node_rank, o->nnodes_max);
    }
    return 0;
}

static char *random_uuid(struct dt_arena *arena)
{
    unsigned char b[16];
    if (getrandom(b, sizeof b, 0) != (ssize_t)sizeof b) {
        memset(b, 0, sizeof b);
    }
    b[6] = (unsigned char)((b[6] & 0x0f) | 0x40);
    b[8] = (unsigned char)((b[8] & 0x3f) | 0x80);
    return dt_arena_printf(arena, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1],
                           b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static const char *in_brackets(struct options *o, const char *address)
{
    bool bare = strchr(address, ':') != NULL && address[0] != '[';
    return bare ? dt_arena_printf(&o->arena, "[%s]", address) : address;
}

/* --master_addr that was given and says another host than --rdzv_endpoint. used: which counts,
 * in words. */
static void warn_address(struct options *o, const struct given *g, const char *host, const char *used)
{
    int row = OPTION_master_addr;
    char shown[64];
    if (host != NULL && g->value[row] != NULL &&
        strcasecmp(in_brackets(o, o->master_addr), in_brackets(o, host)) != 0) {
        option_warn(o, "%s: %s: not used; %s", g->spelled[row], option_show(o->master_addr, shown), used);
    }
}

static const char *endpoint_says(struct options *o, const struct given *g, const char *host)
{
    return dt_arena_printf(&o->arena, "%s says %s", g->spelled[OPTION_rdzv_endpoint], host);
}

/* Where several hosts meet, into master_addr and master_port. host: of --rdzv_endpoint, or null. */
static int choose_endpoint(struct options *o, const struct given *g, char *const *env, char *host, int endpoint_port,
                           struct dt_error *err)
{
    bool is_static = strcmp(o->rdzv_backend, "static") == 0;
    int ignored = -1;
    if (is_static && host == NULL) {
        const char *address = in_brackets(o, o->master_addr);
        endpoint_port = g->value[OPTION_master_port] != NULL ? o->master_port : 29500;
        if (g->value[OPTION_master_addr] == NULL) {
            /* torchrun does not read it either */
            const char *exported = options_getenv(env, "MASTER_ADDR");
            char shown[64];
            if (exported != NULL && exported[0] != '\0') {
                option_warn(o,
                            "--master_addr: not given, and MASTER_ADDR is not read: each host looks for the others on "
                            "itself; add --master_addr=%s",
                            option_show(exported, shown));
            } else {
                option_warn(o, "--master_addr: not given: each host looks for the others on itself");
            }
        }
        if (option_parse_endpoint(&o->arena, address, &host, &ignored, err) != 0) {
            return dt_wrap(err, "%s",
                           g->value[OPTION_master_addr] != NULL ? g->spelled[OPTION_master_addr] : "--master_addr");
        }
    } else if (host != NULL) {
        warn_address(o, g, host, endpoint_says(o, g, host));
    } else {
        return dt_fail(
            err, DT_INVALID,
            "--rdzv_endpoint: not given; the hosts of a c10d job meet at one; example: --rdzv_endpoint=host0:29400");
    }
    if (endpoint_port < 0 && is_static) {
        return dt_fail(err, DT_INVALID,
                       "%s: needs a port with the static backend; example: --rdzv_endpoint=%.100s:29500",
                       g->spelled[OPTION_rdzv_endpoint], in_brackets(o, host));
    }
    o->master_addr = host;
    o->master_port = endpoint_port < 0 ? 29400 : endpoint_port;
    if (o->master_port == 0) {
        return dt_fail(err, DT_INVALID,
                       "port 0: several hosts need a port that all know; example: --rdzv_endpoint=%.100s:29500",
                       in_brackets(o, host));
    }
    return 0;
}

/* Name and password of user_file are for whoever listens on the way. To another host they go so
 * only where somebody says that it may be. */
static int check_plain_password(struct options *o, const char *conf, bool said, struct dt_error *err)
{
    const struct options_etcd *e = &o->etcd;
    const char *host = e->hosts[0];
    bool away = false;
    for (int i = 0; i < e->endpoint_count && !away; i++) {
        away = strncmp(e->hosts[i], "127.", 4) != 0 && strcmp(e->hosts[i], "::1") != 0 &&
               strcmp(e->hosts[i], "localhost") != 0;
        host = away ? e->hosts[i] : host;
    }
    if (away && !said) {
        return dt_fail(err, DT_INVALID,
                       "%s: user_file: without https name and password go to %.100s in plain text; add protocol=https, "
                       "or protocol=http where the "
                       "network is to be trusted",
                       conf, host);
    }
    option_warn(o, "%s: user_file: name and password go to %.100s in plain text, without https", conf, host);
    return 0;
}

/* --rdzv_endpoint=HOST[:PORT],... and what --rdzv_conf says of etcd. */
static int choose_etcd(struct options *o, const struct given *g, struct dt_error *err)
{
    struct options_etcd *e = &o->etcd;
    const char *endpoint = g->spelled[OPTION_rdzv_endpoint], *conf = g->spelled[OPTION_rdzv_conf];
    char *rest = dt_arena_strdup(&o->arena, o->rdzv_endpoint[strspn(o->rdzv_endpoint, " ")] != '\0' ? o->rdzv_endpoint
                                                                                                    : "localhost");
    bool said = e->protocol != NULL;
    e->protocol = said ? e->protocol : dt_arena_strdup(&o->arena, "http");
    e->prefix = e->prefix != NULL ? e->prefix : dt_arena_strdup(&o->arena, "/dtrun");
    bool tls = strcmp(e->protocol, "https") == 0;
    if (!tls && strcmp(e->protocol, "http") != 0) {
        return dt_fail(err, DT_INVALID, "%s: protocol: %.60s: must be http or https", conf, e->protocol);
    }
    if (!tls && (e->cacert != NULL || e->cert != NULL || e->key != NULL)) {
        return dt_fail(err, DT_INVALID, "%s: cacert, cert and key: need protocol=https", conf);
    }
    if ((e->cert == NULL) != (e->key == NULL)) {
        return dt_fail(err, DT_INVALID, "%s: cert and key: need each other", conf);
    }
    for (char *one; (one = strsep(&rest, ",")) != NULL;) {
        if (e->endpoint_count == (int)(sizeof e->hosts / sizeof e->hosts[0])) {
            return dt_fail(err, DT_INVALID, "%s: at most %d endpoints", endpoint, e->endpoint_count);
        }
        int i = e->endpoint_count++;
        if (option_parse_endpoint(&o->arena, one, &e->hosts[i], &e->ports[i], err) != 0) {
            return dt_wrap(err, "%s", endpoint);
        }
        e->ports[i] = e->ports[i] > 0 ? e->ports[i] : 2379;
    }
    o->master_addr = e->hosts[0];
    o->master_port = e->ports[0];
    return !tls && e->user_file != NULL ? check_plain_password(o, conf, said, err) : 0;
}

/* Which store the workers are told: torchrun.md's rules for one host, with loopback where
 * nothing else is asked for. */
static int choose_store(struct options *o, const struct given *g, char *const *env, struct dt_error *err)
{
    int backend = OPTION_rdzv_backend;
    int endpoint = OPTION_rdzv_endpoint;
    int address = OPTION_master_addr;
    int port = OPTION_master_port;
    bool is_static = strcmp(o->rdzv_backend, "static") == 0;
    char shown[64];
    bool is_etcd = strcmp(o->rdzv_backend, "etcd-v3") == 0;
    if (!o->standalone && !is_static && !is_etcd && strcmp(o->rdzv_backend, "c10d") != 0) {
        bool old = strcmp(o->rdzv_backend, "etcd") == 0 || strcmp(o->rdzv_backend, "etcd-v2") == 0;
        return dt_fail(err, DT_INVALID, "%s: %s: %s", g->spelled[backend], option_show(o->rdzv_backend, shown),
                       old ? "not supported: needs etcd's version 2, which newer ones do not have; use c10d or etcd-v3"
                           : "unknown backend; must be static, c10d or etcd-v3");
    }
    if (is_etcd && !o->standalone && o->nnodes_max > 1) {
        return choose_etcd(o, g, err);
    }
    bool has_endpoint = o->rdzv_endpoint[strspn(o->rdzv_endpoint, " ")] != '\0';
    char *host = NULL;
    int endpoint_port = -1;
    if (has_endpoint && !o->standalone && !is_etcd &&
        option_parse_endpoint(&o->arena, o->rdzv_endpoint, &host, &endpoint_port, err) != 0) {
        return dt_wrap(err, "%s", g->spelled[endpoint]);
    }
    if (o->nnodes_max > 1) {
        return choose_endpoint(o, g, env, host, endpoint_port, err);
    }
    if (is_static && !has_endpoint && g->value[port] == NULL && !o->standalone) {
        o->standalone = true; /* as torchrun does since 2.15; an id that was given is kept */
    } else if (o->standalone) {
        o->run_id = NULL;
    }
    if (o->standalone) {
        o->rdzv_backend = dt_arena_strdup(&o->arena, "c10d");
        o->rdzv_endpoint = dt_arena_strdup(&o->arena, "localhost:0");
        if (o->run_id == NULL || g->value[OPTION_rdzv_id] == NULL) {
            o->run_id = random_uuid(&o->arena);
        }
    }
    if (o->standalone || !is_static) {
        const char *store = o->local_addr != NULL && o->local_addr[0] != '\0' ? o->local_addr : "127.0.0.1";
        warn_address(o, g, host, dt_arena_printf(&o->arena, "the workers of one host meet at %s", store));
        o->master_addr = dt_arena_strdup(&o->arena, store);
        o->master_port = 0;
        return 0;
    }
    if (!has_endpoint) {
        return option_parse_endpoint(&o->arena, in_brackets(o, o->master_addr), &o->master_addr, &endpoint_port, err) !=
                       0
                   ? dt_wrap(err, "%s", g->value[address] != NULL ? g->spelled[address] : "--master_addr")
                   : 0;
    }
    if (endpoint_port < 0) {
        return dt_fail(err, DT_INVALID,
                       "%s: %s: needs a port with the static backend; example: --rdzv_endpoint=%.100s:29500",
                       g->spelled[endpoint], option_show(o->rdzv_endpoint, shown), host);
    }
    warn_address(o, g, host, endpoint_says(o, g, host));
    o->master_addr = host;
    o->master_port = endpoint_port;
    return 0;
}

static int count_workers(struct options *o, const struct given *g, char **env, struct dt_error *err)
{
    bool gpu = strcmp(o->nproc_text, "gpu") == 0;
    bool any = strcmp(o->nproc_text, "auto") == 0;
    if (gpu || any) {
        o->nproc = options_gpu_count(env);
    }
    if (gpu && o->nproc == 0) {
        return dt_fail(err, DT_INVALID,
                       "%s: gpu: no GPU here (CUDA_VISIBLE_DEVICES, NVML, /dev/nvidia*); use a number, cpu or auto",
                       g->spelled[OPTION_nproc_per_node]);
    }
    if ((any && o->nproc == 0) || strcmp(o->nproc_text, "cpu") == 0) {
        o->nproc = options_cpu_count();
    }
    if (o->nproc > OPTIONS_MAX_LOCAL) {
        o->nproc = OPTIONS_MAX_LOCAL;
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
    o->program = dt_arena_strdup(&o->arena, argv[first]);
    /* the first "--" is ours, before the program or right behind it, as torchrun's parser has it */
    bool dashes = first > 1 && strcmp(argv[first - 1], "--") == 0;
    int from = first + 1 + (!dashes && first + 1 < argc && strcmp(argv[first + 1], "--") == 0);
    o->arg_count = argc - from;
    o->args = dt_arena_alloc(&o->arena, ((size_t)o->arg_count + 1) * sizeof *o->args);
    for (int i = 0; i < o->arg_count; i++) {
        o->args[i] = dt_arena_strdup(&o->arena, argv[from + i]);
    }
    bool python = ends_with(o->program, ".py") || ends_with(o->program, ".pyc") || ends_with(o->program, ".pyz") ||
                  is_python_folder(o->program);
    o->entry = run_path               ? OPTIONS_ENTRY_RUN_PATH
               : module               ? OPTIONS_ENTRY_MODULE
               : python && !no_python ? OPTIONS_ENTRY_PYTHON
                                      : OPTIONS_ENTRY_PROGRAM;
    const char *bundled = o->entry == OPTIONS_ENTRY_PROGRAM ? env_bundled(&o->arena, o->program) : NULL;
    if (bundled != NULL) {
        o->bundled = true;
        o->program = dt_arena_strdup(&o->arena, bundled); /* without a path that was given */
    }
    if (o->bundled && strcmp(o->program, "train") == 0 && g->value[OPTION_max_restarts] == NULL) {
        o->max_restarts = 3;
    }
    return 0;
}

static void scale_times(struct options *o)
{
    double *times[] = {&o->shutdown_timeout_s, &o->exit_barrier_s, &o->hang_timeout_s,
                       &o->join_timeout_s,     &o->last_call_s,    &o->dead_after_s};
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
        check_port_range(o, g, OPTION_metrics_endpoint, o->metrics_port, err) != 0 ||
        read_program(o, g, argc, argv, first, err) != 0) {
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
        o->json = g->value[OPTION_json] != NULL;
        return read_status(o, g, argc, argv, first, err);
    }
    option_read_variables(o, g, env);
    if (option_read_cluster(o, g, env, err) != 0 || read_values(o, g, err) != 0) {
        return -1;
    }
    if (o->completion != NULL) {
        o->action = OPTIONS_COMPLETION;
        return 0;
    }
    if (o->serve_store != NULL) {
        return read_serve_store(o, g, first < argc ? argv[first] : NULL, err);
    }
    if (o->json) {
        return dt_fail(err, DT_INVALID, "--json: goes with --status only");
    }
    if ((o->include != NULL || o->exclude != NULL) && o->hostfile == NULL && !o->leashed) {
        return dt_fail(err, DT_INVALID, "%s: chooses hosts of a file; add --hostfile=FILE",
                       g->spelled[o->include != NULL ? OPTION_include : OPTION_exclude]);
    }
    if (exports_check(o, env, err) != 0) {
        return -1;
    }
    if (o->hostfile != NULL && !o->leashed) {
        return read_launching(o, g, argc, argv, first, err);
    }
    bool dry = false;
    if (flag_on(g, OPTION_dry_run, &dry, err) != 0 || check_hosts(o, g, err) != 0 ||
        choose_store(o, g, env, err) != 0 || count_workers(o, g, env, err) != 0 ||
        read_program(o, g, argc, argv, first, err) != 0) {
        return -1;
    }
    if (option_check_cluster(o, g, env, err) != 0 ||
        check_port_range(o, g, OPTION_metrics_endpoint, o->metrics_port, err) != 0 ||
        options_check_gpus(o, o->local_total > 0 ? o->local_total : o->nproc, env, err) != 0) {
        return -1;
    }
    if (o->nnodes_max == 1 && o->local_total == 0 && o->stdin_rank >= o->nproc) {
        return dt_fail(err, DT_INVALID, "%s: %d: must be a rank of the job, 0 to %d", g->spelled[OPTION_stdin],
                       o->stdin_rank, o->nproc - 1);
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
