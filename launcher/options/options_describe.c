/* What --dry_run prints: what would be started, where, with which variables, and who said so. */
#include "launcher/options/env.h"
#include "launcher/options/exports.h"
#include "launcher/options/rendezvous.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void options_quote(struct dt_text *out, const char *word)
{
    dt_text_puts(out, " ");
    dt_text_shell(out, word);
}

/* Which of several options said it: the one that was not left out. */
static const char *source_of(const struct options *o, const enum option *list)
{
    for (; list[1] != OPTION_COUNT && o->sources[*list] == OPTIONS_FROM_DEFAULT; list++) {
    }
    return options_source(o, *list);
}

static void describe_meeting(const struct options *o, struct dt_text *out)
{
    static const enum option list[] = {OPTION_rdzv_endpoint, OPTION_master_addr, OPTION_master_port, OPTION_COUNT};
    if (o->world.nnodes_max > 1) {
        dt_text_printf(out, "endpoint  %s port %d, %s (%s)\n", o->rdzv.master_addr, o->rdzv.master_port,
                       o->rdzv.row->name, source_of(o, list));
    } else if (o->rdzv.master_port != 0) {
        dt_text_printf(out, "store     %s port %d (%s)\n", o->rdzv.master_addr, o->rdzv.master_port,
                       source_of(o, list));
    } else if (o->rdzv.port_hi != 0) {
        dt_text_printf(out, "store     %s, a free port from %d to %d (%s)\n", o->rdzv.master_addr, o->rdzv.port_lo,
                       o->rdzv.port_hi, options_source(o, OPTION_port_range));
    } else {
        dt_text_printf(out, "store     %s, any free port\n", o->rdzv.master_addr);
    }
}

/* The hosts by name and their ranks, where the scheduler says them and the ranks follow from
 * their order. */
static void describe_hosts(const struct options *o, struct dt_text *out)
{
    enum { SHOWN = 16 };
    struct hostlist hosts;
    struct dt_error ignored;
    int each = o->world.nproc;
    hostlist_init(&hosts);
    bool by_order = o->world.nnodes_max > 1 && o->world.nnodes_min == o->world.nnodes_max && o->rdzv.row->by_rank &&
                    o->world.local_total == 0;
    if (by_order && cluster_hosts(&o->here, &hosts, &ignored) == 0 && hosts.count == (size_t)o->world.nnodes_max) {
        dt_text_puts(out, "on       ");
        for (int i = 0; i < o->world.nnodes_max && i < SHOWN; i++) {
            dt_text_printf(out, "%s %s (rank%s %d", i > 0 ? "," : "", hosts.hosts[i].name, each > 1 ? "s" : "",
                           i * each);
            dt_text_printf(out, each > 1 ? " to %d)" : ")", i * each + each - 1);
        }
        dt_text_printf(out, o->world.nnodes_max > SHOWN ? " and %d more\n" : "\n", o->world.nnodes_max - SHOWN);
    }
    hostlist_clear(&hosts);
}

int options_list_variables(const struct options *o, const struct env_worker *w, char *const *env, struct dt_text *out,
                           struct dt_error *err)
{
    struct dt_arena arena;
    char **list;
    dt_arena_init(&arena);
    int result = env_build(o, w, env, &arena, &list, err);
    for (char **e = result == 0 ? list : NULL; e != NULL && *e != NULL; e++) {
        const char *equals = strchr(*e, '=');
        bool inherited = false;
        for (char *const *k = env; *k != NULL && !inherited; k++) {
            inherited = *k == *e;
        }
        if (!inherited && equals[1] != '\0') {
            dt_text_printf(out, "          %s\n", strcmp(*e, "MASTER_PORT=0") == 0 ? "MASTER_PORT=(a free port)" : *e);
        }
    }
    dt_arena_clear(&arena);
    return result;
}

/* The first worker of this host, as the first round would start it. */
static void describe_worker(const struct options *o, char *const *env, struct dt_text *out)
{
    struct dt_error err;
    struct dt_text variables;
    bool by_rank = o->world.nnodes_max == 1 || o->rdzv.row->by_rank;
    int node = by_rank && o->world.nnodes_max > 1 ? o->world.node_rank : 0, size = o->world.nproc * o->world.nnodes_max;
    struct env_worker w = {.round = 1,
                           .local_rank = o->world.local_first,
                           .local_world_size = o->world.local_total > 0 ? o->world.local_total : o->world.nproc,
                           .rank = node * o->world.nproc,
                           .world_size = size,
                           .group_rank = o->world.host_count > 0 ? o->world.host_number : node,
                           .group_world_size = o->world.host_count > 0 ? o->world.host_count : o->world.nnodes_max,
                           .role_rank = node * o->world.nproc,
                           .role_world_size = size,
                           .master_addr = o->rdzv.master_addr,
                           .master_port = o->rdzv.master_port,
                           .use_agent_store = true};
    char sizes[48];
    (void)snprintf(sizes, sizeof sizes, "%d(x%d)", o->world.nproc, o->world.nnodes_max);
    w.sizes = o->world.local_total > 0 ? NULL : sizes;
    dt_text_init(&variables);
    if (options_list_variables(o, &w, env, &variables, &err) != 0) {
        dt_text_printf(out, "variables %s\n", err.text);
        dt_text_clear(&variables);
        return;
    }
    dt_text_puts(out, "variables of the first worker here");
    if (!by_rank || o->world.nnodes_min != o->world.nnodes_max) {
        dt_text_puts(out, ", if all hosts come in this order; ranks and sizes are given when they meet");
    } else if (o->world.nnodes_max > 1) {
        dt_text_puts(out, ", if all hosts have as many");
    }
    dt_text_printf(out, "\n%s", dt_text_str(&variables));
    dt_text_clear(&variables);
}

void options_describe(const struct options *o, char *const *env, struct dt_text *out)
{
    dt_text_puts(out, "command  ");
    if (o->program.entry != OPTIONS_ENTRY_PROGRAM) {
        dt_text_puts(out, o->program.entry == OPTIONS_ENTRY_MODULE ? " python3 -u -m" : " python3 -u");
    }
    if (o->program.entry == OPTIONS_ENTRY_RUN_PATH) {
        dt_text_puts(out, " -c");
        options_quote(out, ENV_RUN_PATH);
    }
    options_quote(out, o->program.name);
    for (int i = 0; i < o->program.arg_count; i++) {
        options_quote(out, o->program.args[i]);
    }
    dt_text_printf(out, "\nhosts     %d", o->world.nnodes_min);
    if (o->world.nnodes_max > o->world.nnodes_min) {
        dt_text_printf(out, " to %d", o->world.nnodes_max);
    }
    dt_text_printf(out, " (%s)\n", options_source(o, OPTION_nnodes));
    dt_text_printf(out, "workers   %d", o->world.nproc);
    if (!isdigit((unsigned char)o->world.nproc_text[0])) {
        dt_text_printf(out, ", %s", o->world.nproc_text);
    }
    dt_text_printf(out, " (%s), role %s\n", options_source(o, OPTION_nproc_per_node), o->world.role);
    if (o->world.nnodes_max > 1 && o->rdzv.row->by_rank) {
        dt_text_printf(out, "this host %d (%s)\n", o->world.node_rank, options_source(o, OPTION_node_rank));
    }
    describe_hosts(o, out);
    bool made = o->rdzv.standalone && o->sources[OPTION_rdzv_id] == OPTIONS_FROM_DEFAULT;
    dt_text_printf(out, "run id    %s (%s)\n", o->rdzv.run_id, made ? "made up" : options_source(o, OPTION_rdzv_id));
    describe_meeting(o, out);
    dt_text_printf(out, "restarts  %d (%s)\n", o->restarts.most, options_source(o, OPTION_max_restarts));
    dt_text_printf(out, "stop      %g s between TERM and KILL (%s)\n", o->stop.shutdown_timeout_s,
                   options_source(o, OPTION_shutdown_timeout));
    if (o->query.metrics_host != NULL) {
        char port[16] = "a free port";
        (void)snprintf(port, sizeof port, o->query.metrics_port > 0 ? "port %d" : "a free port", o->query.metrics_port);
        dt_text_printf(out, "metrics   %s %s (%s)\n", o->query.metrics_host, port,
                       options_source(o, OPTION_metrics_endpoint));
    }
    if (o->devices.numa_binding != NULL) {
        dt_text_printf(out, "binding   by %s (--numa_binding)\n", o->devices.numa_binding);
    }
    for (int i = 0; i < o->exports.count; i++) {
        dt_text_puts(out, i == 0 ? "exported  " : "          ");
        exports_show(o, o->exports.list[i], out);
        dt_text_puts(out, "\n");
    }
    bool files = false;
    for (int i = 0; i < o->world.nproc; i++) {
        files = files || o->output.redirects[i] != 0 || o->output.tee[i] != 0;
    }
    dt_text_printf(out, "output    %s\n",
                   files                                            ? "to log files as --redirects and --tee say"
                   : o->output.filtered || o->output.rank_count > 0 ? "of some ranks only"
                                                                    : "inherited");
    dt_text_printf(out, "logs      %s (%s)\n",
                   o->output.log_dir != NULL ? o->output.log_dir : "a new folder in the temporary one",
                   options_source(o, OPTION_log_dir));
    cluster_describe(&o->here, out);
    describe_worker(o, env, out);
}
