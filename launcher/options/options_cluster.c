/* Between the table of environments and the options: what the scheduler says stands in for
 * options that were not given, before their values are parsed, so that it is checked by the same
 * rules. */
#include "launcher/options/options_table.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void give_from_cluster(struct options *o, struct given *g, enum option row, const char *value,
                              const char *variable)
{
    g->value[row] = value;
    (void)snprintf(g->spelled[row], sizeof g->spelled[row], "%.70s", variable);
    o->sources[row] = OPTIONS_FROM_CLUSTER;
    o->source_variables[row] = variable;
}

/* HOST:PORT where the hosts of the launch meet, or null when the scheduler does not say.
 * *variable: what said it. */
static char *cluster_endpoint(struct options *o, const struct given *g, const char **variable, struct dt_error *err)
{
    struct hostlist hosts;
    const char *asked = g->value[OPTION_master_port];
    int port = cluster_port(&o->here);
    const char *host = o->here.master_addr;
    *variable = o->here.from[host != NULL ? CLUSTER_MASTER_ADDR : CLUSTER_NODES];
    hostlist_init(&hosts);
    bool listed = cluster_hosts(&o->here, &hosts, err) == 0;
    if (host == NULL && listed) {
        host = dt_arena_strdup(&o->arena, hosts.hosts[0].name);
    } else if (listed && strchr(host, ':') == NULL && host[strspn(host, "0123456789.")] != '\0' &&
               hostlist_find(&hosts, host) != 0) { /* a name; addresses are not compared */
        option_warn(o, "where hosts meet: %s says %.100s, rank 0 of %s is %.100s; %s counts", *variable, host,
                    o->here.from[CLUSTER_NODES], hosts.hosts[0].name, *variable);
    }
    hostlist_clear(&hosts);
    if (host == NULL) {
        return NULL;
    }
    bool bare = strchr(host, ':') != NULL && host[0] != '[';
    char number[16];
    (void)snprintf(number, sizeof number, "%d", port != 0 ? port : 29500); /* torchrun's */
    return dt_arena_printf(&o->arena, "%s%s%s:%s", bare ? "[" : "", host, bare ? "]" : "",
                           asked != NULL ? asked : number);
}

/* What says which host this is: where neither hosts nor tasks are counted, the number of the
 * task is all there is. */
static enum cluster_value number_here(const struct cluster *c)
{
    bool uncounted = c->from[CLUSTER_NODE_COUNT] == NULL && c->from[CLUSTER_TASK_TOTAL] == NULL;
    bool by_task = cluster_task_per_worker(c) || (uncounted && c->from[CLUSTER_NODE_RANK] == NULL);
    return by_task ? CLUSTER_TASK_INDEX : CLUSTER_NODE_RANK;
}

/* Hosts whose numbers cannot be read, or that are numbered but not counted, would each be taken
 * for a job of one host. */
static int check_place(const struct options *o, const struct given *g, char *const *env, struct dt_error *err)
{
    static const enum cluster_value counts[] = {CLUSTER_NODE_COUNT, CLUSTER_TASK_TOTAL},
                                    numbers[] = {CLUSTER_NODE_RANK, CLUSTER_TASK_INDEX};
    const struct cluster *c = &o->here;
    enum cluster_value what = number_here(c);
    bool counted = g->value[OPTION_nnodes] != NULL, numbered = g->value[OPTION_node_rank] != NULL;
    for (int i = 0; i < 2; i++) {
        const char *variable = !counted && c->unread[counts[i]] != NULL ? c->unread[counts[i]]
                               : !numbered                              ? c->unread[numbers[i]]
                                                                        : NULL;
        char shown[64];
        if (variable != NULL) {
            return dt_fail(err, DT_INVALID, "%s: %s: must be a number; correct it, or add --cluster=none", variable,
                           option_show(options_getenv(env, variable), shown));
        }
    }
    int number = what == CLUSTER_TASK_INDEX ? c->task_index : c->node_rank;
    if (!counted && number > 0 && c->from[what] != NULL && c->from[CLUSTER_NODE_COUNT] == NULL &&
        c->from[CLUSTER_TASK_TOTAL] == NULL) {
        return dt_fail(err, DT_INVALID, "%s: %d: of how many hosts? add --nnodes=N; N=1: a job of its own",
                       c->from[what], number);
    }
    return 0;
}

int option_read_cluster(struct options *o, struct given *g, char *const *env, struct dt_error *err)
{
    struct cluster *c = &o->here;
    bool launching = g->value[OPTION_hostfile] != NULL; /* the file says all hosts */
    const char *forced = launching ? "none" : g->value[OPTION_cluster];
    const char *nnodes = g->value[OPTION_nnodes];
    char host_name[256] = "";
    if (cluster_read(c, env, forced, err) != 0) {
        return dt_wrap(err, "%s", g->spelled[OPTION_cluster]);
    }
    (void)gethostname(host_name, sizeof host_name - 1);
    if (cluster_place(c, host_name, err) != 0 && c->launched && nnodes == NULL) {
        return -1;
    }
    const char *nproc = g->value[OPTION_nproc_per_node];
    bool per_worker = cluster_task_per_worker(c);
    if (per_worker && nproc != NULL && strcmp(nproc, "1") != 0) {
        return 0; /* option_check_cluster says what is wrong with that */
    }
    bool alone = g->value[OPTION_standalone] != NULL ||
                 (nnodes != NULL && (strcmp(nnodes, "1") == 0 || strcmp(nnodes, "1:1") == 0));
    if (c->launched && !alone && check_place(o, g, env, err) != 0) {
        return -1;
    }
    int agents = per_worker ? c->task_total : c->node_count; /* several tasks on a host: each is
                                                              * a host to the job */
    if (!c->launched || alone || (nnodes == NULL && agents == 1)) {
        return 0;
    }
    if (nnodes == NULL) {
        const char *variable = c->from[per_worker ? CLUSTER_TASK_TOTAL : CLUSTER_NODE_COUNT];
        give_from_cluster(o, g, OPTION_nnodes, dt_arena_printf(&o->arena, "%d", agents), variable);
        /* the workers of a host are one group, whoever started them */
        if (per_worker && c->from[CLUSTER_TASK_COUNT] != NULL) {
            if (c->task_rank >= c->task_count) {
                return dt_fail(err, DT_INVALID,
                               "%s: this is task %d of this host (%s), where %s and %s leave %d for each; start one "
                               "launcher per host",
                               c->name, c->task_rank, c->from[CLUSTER_TASK_RANK], c->from[CLUSTER_TASK_TOTAL],
                               c->from[CLUSTER_TASK_COUNT], c->task_count);
            }
            o->world.local_first = c->task_rank;
            o->world.local_total = c->task_count;
            bool numbered =
                c->from[CLUSTER_NODE_RANK] != NULL && c->from[CLUSTER_NODE_RANK] != c->from[CLUSTER_TASK_INDEX];
            o->world.host_number = numbered ? c->node_rank : 0;
            o->world.host_count = numbered ? c->node_count : c->task_count == c->task_total;
        }
    }
    enum cluster_value rank = number_here(c);
    if (g->value[OPTION_node_rank] == NULL && c->from[rank] != NULL) {
        int number = rank == CLUSTER_TASK_INDEX ? c->task_index : c->node_rank;
        give_from_cluster(o, g, OPTION_node_rank, dt_arena_printf(&o->arena, "%d", number), c->from[rank]);
    }
    const char *variable;
    char *endpoint = NULL;
    struct dt_error unread = {.status = DT_OK};
    bool asked = g->value[OPTION_rdzv_endpoint] != NULL || g->value[OPTION_master_addr] != NULL;
    if (!asked) {
        endpoint = cluster_endpoint(o, g, &variable, &unread);
    }
    bool no_port = c->unread[CLUSTER_MASTER_PORT] != NULL || c->master_port > 65535;
    if (endpoint != NULL && no_port && g->value[OPTION_master_port] == NULL) {
        char shown[64];
        const char *name =
            c->unread[CLUSTER_MASTER_PORT] != NULL ? c->unread[CLUSTER_MASTER_PORT] : c->from[CLUSTER_MASTER_PORT];
        return dt_fail(err, DT_INVALID,
                       "%s: %s: must be a port, 1 to 65535; correct or unset it, or add --master_port=PORT", name,
                       option_show(options_getenv(env, name), shown));
    }
    if (endpoint != NULL) {
        give_from_cluster(o, g, OPTION_rdzv_endpoint, endpoint, variable);
    } else if (!asked && unread.status == DT_INVALID) { /* the list of hosts is there, and cannot
                                                         * be read */
        return dt_fail(err, DT_INVALID, "%s: %.400s; or add --rdzv_endpoint=HOST:PORT", c->name, unread.text);
    } else if (!asked && c->from[CLUSTER_TASK_TOTAL] != NULL && c->task_total > c->task_count) {
        return dt_fail(err, DT_INVALID,
                       "%s: it does not say on which host rank 0 is; add --rdzv_endpoint=HOST:PORT, or MASTER_ADDR to "
                       "the environment",
                       c->name);
    }
    struct dt_text id;
    dt_text_init(&id);
    cluster_run_id(c, &id);
    if (id.size > 0 && g->value[OPTION_rdzv_id] == NULL) {
        give_from_cluster(o, g, OPTION_rdzv_id, dt_arena_strdup(&o->arena, dt_text_str(&id)), c->from[CLUSTER_JOB_ID]);
    }
    dt_text_clear(&id);
    return 0;
}

int option_check_cluster(struct options *o, const struct given *g, char *const *env, struct dt_error *err)
{
    int nnodes = OPTION_nnodes;
    int rank = OPTION_node_rank;
    struct cluster_choice chosen = {
        .nnodes_max = o->world.nnodes_max,
        .node_rank = o->world.node_rank,
        .nproc = o->world.nproc,
        .nnodes_from = o->sources[nnodes] > OPTIONS_FROM_CLUSTER ? g->spelled[nnodes] : NULL,
        .node_rank_from = o->sources[rank] > OPTIONS_FROM_CLUSTER ? g->spelled[rank] : NULL};
    if (cluster_task_per_worker(&o->here) && o->world.nproc > 1) {
        struct dt_text text;
        dt_text_init(&text);
        cluster_one_per_host(&o->here, &text);
        (void)dt_fail(err, DT_INVALID, "%s; or leave out --nproc_per_node, or use --cluster=none for separate jobs",
                      dt_text_str(&text));
        dt_text_clear(&text);
        return -1;
    }
    if (strcmp(o->requeue.when, "on") == 0 && o->here.requeue.program[0] == '\0') {
        return dt_fail(err, DT_INVALID, "%s: on: there is no scheduler here that could run the job again (slurm, lsf)",
                       g->spelled[OPTION_requeue]);
    }
    if (o->cluster == NULL || strcmp(o->cluster, "none") != 0) {
        cluster_warn(&o->here, &chosen, env, &o->warnings);
    }
    return 0;
}
