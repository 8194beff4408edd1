/* The agents are ordinary ones: a static rendezvous, whose node ranks are the lines of the file.
 * Only what nobody can know beforehand, a port and a run id, is made up here. */
#include "launcher/options/hostfile.h"

#include "base/file.h"
#include "launcher/net/endpoint.h"
#include "launcher/options/env.h"
#include "launcher/options/exports.h"
#include "launcher/net/lookup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define FILE_BYTES ((size_t)16 << 20)
#define PORT_LO 15000 /* where agents meet unless told: below the ports of outgoing connections */
#define PORT_HI 29999
#define LOOKUP_S 5.0 /* of the name of a host alone in its file; ssh would ask for it, too */

_Static_assert(HOSTLIST_MAX_WORKERS == OPTIONS_MAX_LOCAL, "slots of a host are its --nproc_per_node");

static uint32_t random_number(void)
{
    uint32_t n = 0;
    (void)getrandom(&n, sizeof n, 0);
    return n;
}

static const char *given(const struct given *g, enum option option)
{
    return g->value[option];
}

/* Workers of each host: the file's slots; where it says none, or fewer are asked for,
 * --nproc_per_node. */
static int count_workers(struct options *o, const struct given *g, struct dt_error *err)
{
    int row = OPTION_nproc_per_node;
    long long asked = 0;
    bool number = g->value[row] != NULL && dt_parse_int64(g->value[row], &asked);
    for (int i = 0; i < o->host_list_count; i++) {
        struct options_host *h = &o->host_list[i];
        if (number && h->slots > 0 && asked > h->slots) {
            return dt_fail(err, DT_INVALID,
                           "%s: %lld: host %s has %d slots in %.200s; lower it, or give the host more slots",
                           g->spelled[row], asked, h->name, h->slots, o->hostfile);
        }
        h->nproc = h->slots == 0 || g->value[row] != NULL ? o->nproc_text : dt_arena_printf(&o->arena, "%d", h->slots);
    }
    return 0;
}

static const char *list_devices(struct options *o, const struct hostlist_host *h)
{
    struct dt_text text;
    dt_text_init(&text);
    for (int i = 0; h->chosen != NULL && i < h->slots; i++) {
        dt_text_printf(&text, "%s%d", i > 0 ? "," : "", h->chosen[i]);
    }
    const char *devices = h->chosen != NULL ? dt_arena_strdup(&o->arena, dt_text_str(&text)) : NULL;
    dt_text_clear(&text);
    return devices;
}

/* --include, --exclude. */
static int filter_hosts(const struct options *o, const struct given *g, struct hostlist *l, struct dt_error *err)
{
    const char *include = g->spelled[OPTION_include], *exclude = g->spelled[OPTION_exclude];
    if (o->include != NULL && o->exclude != NULL) {
        return dt_fail(err, DT_INVALID, "%s and %s: are mutually exclusive; leave one out", include, exclude);
    }
    if (o->include == NULL && o->exclude == NULL) {
        return 0;
    }
    bool keeps = o->include != NULL;
    return hostlist_filter(l, keeps ? o->include : o->exclude, !keeps, err) != 0
               ? dt_wrap(err, "%s", keeps ? include : exclude)
               : 0;
}

static int choose_hosts(struct options *o, const struct given *g, const struct hostlist *l, struct dt_error *err)
{
    int row = OPTION_nnodes;
    if (g->value[row] == NULL) {
        o->nnodes_min = o->nnodes_max = (int)l->count;
    } else if (o->nnodes_min > (int)l->count) {
        return dt_fail(err, DT_INVALID, "%s: %d hosts: %.200s has %zu", g->spelled[row], o->nnodes_min, o->hostfile,
                       l->count);
    }
    o->host_list_count = o->nnodes_max < (int)l->count ? o->nnodes_max : (int)l->count;
    o->host_list = dt_arena_alloc(&o->arena, (size_t)o->host_list_count * sizeof *o->host_list);
    for (int i = 0; i < o->host_list_count; i++) {
        o->host_list[i] = (struct options_host){.name = dt_arena_strdup(&o->arena, l->hosts[i].name),
                                                .slots = l->hosts[i].slots,
                                                .devices = list_devices(o, &l->hosts[i])};
    }
    for (int i = 0; i < o->host_list_count; i++) {
        if (o->host_list[i].devices != NULL && exports_names(o, "CUDA_VISIBLE_DEVICES")) {
            return dt_fail(
                err, DT_INVALID,
                "%s: CUDA_VISIBLE_DEVICES: each host has its own by the slots that were chosen; leave one out",
                g->spelled[OPTION_export]);
        }
    }
    return count_workers(o, g, err);
}

/* Where the agents meet: as given, else the first host at a port by chance, so that two jobs do
 * not choose the same. */
static void choose_endpoint(struct options *o, const struct given *g)
{
    if (given(g, OPTION_rdzv_endpoint) != NULL) {
        return;
    }
    int lo = o->port_lo > 0 ? o->port_lo : PORT_LO, hi = o->port_lo > 0 ? o->port_hi : PORT_HI;
    int port = given(g, OPTION_master_port) != NULL && o->master_port > 0
                   ? o->master_port
                   : lo + (int)(random_number() % (uint32_t)(hi - lo + 1));
    const char *host = given(g, OPTION_master_addr) != NULL ? o->master_addr : o->host_list[0].name;
    bool bare = strchr(host, ':') != NULL && host[0] != '[';
    o->rdzv_endpoint = dt_arena_printf(&o->arena, "%s%s%s:%d", bare ? "[" : "", host, bare ? "]" : "", port);
}

int hostfile_read(struct options *o, const struct given *g, struct dt_error *err)
{
    static const enum option single[] = {OPTION_standalone, OPTION_node_rank, OPTION_local_addr};
    const char *spelled = g->spelled[OPTION_hostfile];
    for (size_t i = 0; i < sizeof single / sizeof single[0]; i++) {
        if (given(g, single[i]) != NULL) {
            return dt_fail(err, DT_INVALID, "%s: is for one host, %s for several; leave one out", g->spelled[single[i]],
                           spelled);
        }
    }
    if (given(g, OPTION_stdin) != NULL && o->stdin_rank != OPTIONS_STDIN_NONE) {
        return dt_fail(err, DT_INVALID, "%s: %.20s: with %s workers have no standard input; leave it out, or say none",
                       g->spelled[OPTION_stdin], given(g, OPTION_stdin), spelled);
    }
    if (o->ssh[strspn(o->ssh, " ")] == '\0') {
        return dt_fail(err, DT_INVALID, "%s: (empty): needs a command; example: --ssh='ssh -p 2222'",
                       g->spelled[OPTION_ssh]);
    }
    struct dt_text text;
    struct hostlist l;
    dt_text_init(&text);
    hostlist_init(&l);
    int result = dt_file_read(o->hostfile, FILE_BYTES, &text, err);
    if (result != 0 && err->status == DT_NOT_FOUND) {
        (void)dt_fail(err, DT_INVALID, "%.200s: No such file or directory; make it, one line per host: NAME slots=N",
                      o->hostfile);
    } else if (result == 0) {
        bool read = hostlist_check_text(&text, err) == 0 && hostlist_read_hostfile(&l, dt_text_str(&text), err) == 0;
        result = !read ? dt_wrap(err, "%.200s", o->hostfile) : filter_hosts(o, g, &l, err);
        result = result == 0 ? choose_hosts(o, g, &l, err) : -1;
    }
    if (result == 0 && given(g, OPTION_rdzv_id) == NULL) {
        o->run_id = dt_arena_printf(&o->arena, "hostfile-%08x%08x", random_number(), random_number());
    }
    if (result == 0) {
        choose_endpoint(o, g);
    } else {
        err->status = DT_INVALID;
        (void)dt_wrap(err, "%s", spelled);
    }
    dt_text_clear(&text);
    hostlist_clear(&l);
    return result;
}

/* The words of host i's agent, in o's arena, null-terminated: our own program and options, then
 * what makes it that host, then PROGRAM. The last of two options counts, so ours come later. */
static char **agent_words(struct options *o, int i)
{
    struct dt_arena *a = &o->arena;
    char **words = dt_arena_alloc(a, ((size_t)o->own_word_count + (size_t)o->arg_count + 16) * sizeof *words);
    char *dir = dt_file_program_dir();
    size_t n = 0;
    words[n++] = dir != NULL ? dt_arena_printf(a, "%s/dtrun", dir) : dt_arena_strdup(a, "dtrun");
    free(dir);
    words[n++] = dt_arena_strdup(a, "--leash");
    for (int k = 0; k < o->own_word_count; k++) {
        words[n++] = o->own_words[k];
    }
    words[n++] = dt_arena_strdup(a, "--cluster=none");
    words[n++] = dt_arena_printf(a, "--nproc_per_node=%s", o->host_list[i].nproc);
    words[n++] = dt_arena_printf(a, "--nnodes=%d:%d", o->nnodes_min, o->nnodes_max);
    if (o->nnodes_max > 1) {
        words[n++] = dt_arena_printf(a, "--node_rank=%d", i);
        words[n++] = dt_arena_printf(a, "--rdzv_endpoint=%s", o->rdzv_endpoint);
    }
    words[n++] = dt_arena_printf(a, "--rdzv_id=%s", o->run_id);
    words[n++] = dt_arena_strdup(a, "--");
    words[n++] = o->program;
    for (int k = 0; k < o->arg_count; k++) {
        words[n++] = o->args[k];
    }
    words[n] = NULL;
    return words;
}

/* The same as one line for the shell that ssh gives it to: it goes to our folder first. */
static void add_line(struct options *o, int i, struct dt_text *out)
{
    char folder[4096];
    if (getcwd(folder, sizeof folder) != NULL) {
        dt_text_puts(out, "cd");
        options_quote(out, folder);
        dt_text_puts(out, " && ");
    }
    dt_text_puts(out, "exec");
    if (o->host_list[i].devices != NULL) {
        dt_text_printf(out, " env CUDA_VISIBLE_DEVICES=%s", o->host_list[i].devices);
    }
    for (char **w = agent_words(o, i); *w != NULL; w++) {
        options_quote(out, *w);
    }
}

/* By its name, or an address that it leads to. A name that nobody answers for is one that only
 * ssh knows. */
static bool is_this_host(const char *name)
{
    char own[256] = "";
    struct lookup_list list;
    struct dt_error ignored;
    (void)gethostname(own, sizeof own - 1);
    if (strcmp(name, "localhost") == 0 || strcmp(name, own) == 0) {
        return true;
    }
    bool here = lookup_within(name, 0, LOOKUP_S, NULL, &list, &ignored) == 0;
    for (int i = 0; here && i < list.count; i++) {
        here = endpoint_is_local((const struct sockaddr *)&list.addresses[i]);
    }
    return here;
}

/* Nobody needs an sshd to start what runs here alone; who names a command has a reason. */
static bool needs_no_ssh(const struct options *o)
{
    return o->host_list_count == 1 && o->sources[OPTION_ssh] == OPTIONS_FROM_DEFAULT &&
           is_this_host(o->host_list[0].name);
}

char **hostfile_ssh(struct options *o, int i)
{
    struct dt_text line;
    bool here = needs_no_ssh(o);
    char **words = dt_arena_alloc(&o->arena, (strlen(o->ssh) / 2 + 5) * sizeof *words);
    size_t n = 0;
    for (const char *p = o->ssh + strspn(o->ssh, " "); *p != '\0' && !here; p += strspn(p, " ")) {
        size_t size = strcspn(p, " ");
        words[n++] = dt_arena_printf(&o->arena, "%.*s", (int)size, p);
        p += size;
    }
    dt_text_init(&line);
    add_line(o, i, &line);
    words[n++] = here ? dt_arena_strdup(&o->arena, "/bin/sh") : o->host_list[i].name;
    if (here) {
        words[n++] = dt_arena_strdup(&o->arena, "-c");
    }
    words[n++] = dt_arena_strdup(&o->arena, dt_text_str(&line));
    words[n] = NULL;
    dt_text_clear(&line);
    return words;
}

/* ---- --dry_run ---- */

/* " (--hostfile, --include, --nnodes)": those of the options that were given; OPTION_COUNT ends
 * them. */
static void add_sources(const struct options *o, const enum option *list, const char *otherwise, struct dt_text *out)
{
    bool any = false;
    for (; *list != OPTION_COUNT; list++) {
        if (o->sources[*list] != OPTIONS_FROM_DEFAULT) {
            dt_text_printf(out, "%s%s", any ? ", " : " (", options_source(o, *list));
            any = true;
        }
    }
    dt_text_printf(out, any ? ")" : " (%s)", otherwise);
}

static void describe_endpoint(const struct options *o, struct dt_text *out)
{
    static const enum option whole[] = {OPTION_rdzv_endpoint, OPTION_COUNT},
                             host[] = {OPTION_master_addr, OPTION_COUNT}, port[] = {OPTION_master_port, OPTION_COUNT},
                             range[] = {OPTION_port_range, OPTION_COUNT};
    if (o->nnodes_max == 1) {
        dt_text_puts(out, "\nendpoint  none needed");
        return;
    }
    dt_text_printf(out, "\nendpoint  %s", o->rdzv_endpoint);
    if (o->sources[OPTION_rdzv_endpoint] != OPTIONS_FROM_DEFAULT) {
        add_sources(o, whole, "", out);
        return;
    }
    dt_text_puts(out, ": host");
    add_sources(o, host, "the first one", out);
    dt_text_puts(out, ", port");
    add_sources(o, o->master_port > 0 ? port : range, "made up", out);
}

/* Workers of each host, "4,2,1", and of all; 0 where a host counts them itself (gpu, cpu, auto). */
static int add_sizes(const struct options *o, struct dt_text *out)
{
    long long total = 0, count;
    for (int i = 0; i < o->host_list_count; i++) {
        if (!dt_parse_int64(o->host_list[i].nproc, &count)) {
            return 0;
        }
        dt_text_printf(out, "%s%lld", i > 0 ? "," : "", count);
        total += count;
    }
    return (int)total;
}

/* The environment that host i's agent is given, in o's arena. */
static char **agent_env(struct options *o, int i, char *const *env)
{
    size_t n = 0, room = 2;
    for (char *const *e = env; *e != NULL; e++) {
        room++;
    }
    char **list = dt_arena_alloc(&o->arena, room * sizeof *list);
    for (char *const *e = env; *e != NULL; e++) {
        if (exports_passes(o, *e)) {
            list[n++] = *e;
        }
    }
    if (o->host_list[i].devices != NULL) {
        list[n++] = dt_arena_printf(&o->arena, "CUDA_VISIBLE_DEVICES=%s", o->host_list[i].devices);
    }
    list[n] = NULL;
    return list;
}

/* The variables of host i's first worker, by the options as its agent reads them. */
static void list_variables(struct options *o, int i, int rank, int total, const char *sizes, char *const *env,
                           struct dt_text *out)
{
    struct options *agent = dt_alloc(sizeof *agent);
    char **words = agent_words(o, i), **variables = agent_env(o, i, env);
    int count = 0;
    while (words[count] != NULL) {
        count++;
    }
    struct dt_error err;
    int result = options_read(agent, count, words, variables, &err);
    if (result == 0) {
        struct env_worker w = {.round = 1,
                               .local_world_size = agent->nproc,
                               .rank = rank,
                               .world_size = total,
                               .group_rank = i,
                               .group_world_size = o->host_list_count,
                               .role_rank = rank,
                               .role_world_size = total,
                               .master_addr = agent->master_addr,
                               .master_port = agent->master_port,
                               .use_agent_store = true,
                               .sizes = sizes};
        result = options_list_variables(agent, &w, variables, out, &err);
        options_clear(agent);
    }
    if (result != 0) {
        dt_text_printf(out, "          %s\n", err.text);
    }
    free(agent);
}

static void describe_host(struct options *o, int i, int rank, int total, struct dt_text *out)
{
    const struct options_host *h = &o->host_list[i];
    int count = atoi(h->nproc);
    dt_text_printf(out, "host %d    %s, %s worker%s", i, h->name, h->nproc, count == 1 ? "" : "s");
    dt_text_printf(out, " (%s)",
                   h->slots > 0 && h->nproc != o->nproc_text ? "its slots" : options_source(o, OPTION_nproc_per_node));
    if (total > 0) {
        dt_text_printf(out, count > 1 ? ", ranks %d to %d" : ", rank %d", rank, rank + count - 1);
    }
    dt_text_puts(out, ":");
    for (char **w = hostfile_ssh(o, i); *w != NULL; w++) {
        options_quote(out, *w);
    }
    dt_text_puts(out, "\n");
}

void hostfile_describe(struct options *o, char *const *env, struct dt_text *out)
{
    static const enum option hosts[] = {OPTION_hostfile, OPTION_include, OPTION_exclude, OPTION_nnodes, OPTION_COUNT},
                             id[] = {OPTION_rdzv_id, OPTION_COUNT};
    struct dt_text sizes;
    dt_text_init(&sizes);
    int total = add_sizes(o, &sizes), rank = 0;
    bool by_rank = o->nnodes_max == 1 || strcmp(o->rdzv_backend, "static") == 0;
    dt_text_printf(out, "hosts     %d of %s", o->host_list_count, o->hostfile);
    add_sources(o, hosts, "", out);
    if (o->nnodes_min != o->nnodes_max) {
        dt_text_printf(out, ", goes on with %d", o->nnodes_min);
    }
    describe_endpoint(o, out);
    dt_text_printf(out, "\nrun id    %s", o->run_id);
    add_sources(o, id, "made up", out);
    dt_text_printf(out, "\nkey       %s", o->key_file != NULL ? o->key_file : "a new one");
    dt_text_printf(out, o->key_file != NULL ? " (%s)\n" : "\n", options_source(o, OPTION_key_file));
    dt_text_puts(out, "variables that go from here to every host\n");
    for (char *const *e = env; *e != NULL; e++) {
        if (exports_passes(o, *e)) {
            dt_text_puts(out, "          ");
            exports_show(o, *e, out);
            dt_text_puts(out, "\n");
        }
    }
    if (total == 0) {
        dt_text_puts(out, "ranks     are given when each host has counted its workers, and with them the variables\n");
    } else {
        dt_text_printf(out, "ranks     as below%s, with the variables of each host's first worker\n",
                       !by_rank                         ? " if all hosts come in this order"
                       : o->nnodes_min != o->nnodes_max ? " if all hosts come"
                                                        : "");
    }
    for (int i = 0; i < o->host_list_count; i++) {
        describe_host(o, i, rank, total, out);
        if (o->host_list[i].devices != NULL) {
            dt_text_printf(out, "          CUDA_VISIBLE_DEVICES=%s\n", o->host_list[i].devices);
        }
        if (total > 0) {
            list_variables(o, i, rank, total, dt_text_str(&sizes), env, out);
        }
        rank += atoi(o->host_list[i].nproc);
    }
    dt_text_clear(&sizes);
}
