/* Snapshots of the agent's process, for `dtrun --status` and the metrics endpoint (numbers.h).
 * Reads the pages and /proc; changes nothing. */
#include "base/clock.h"
#include "base/gpu/nvml.h"
#include "launcher/job/run_parts.h"
#include "launcher/query/numbers.h"
#include "launcher/workers/process.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_BYTES = 4096 };

bool run_is_spare(const struct run *r)
{
    return r->nodes != NULL && r->agent.state == AGENT_JOINING && nodes_is_spare(r->nodes);
}

/* While it waits for one, what is known of the last round says nothing any more. */
static bool is_in_round(const struct run *r)
{
    return r->place.round > 0 && r->agent.state != AGENT_JOINING;
}

/* ---- snapshots ---- */

static struct job_numbers look_at_job(const struct run *r, double now_s)
{
    const struct place *p = &r->place;
    bool now = is_in_round(r);
    struct job_numbers n = {.format = 1,
                            .state = run_is_spare(r) ? "spare" : agent_state_name(r->agent.state),
                            .round = p->round,
                            .restarts = run_restarts_used(r, false),
                            .max_restarts = r->o->max_restarts,
                            .pid = (int)getpid(),
                            .guard_pid = (int)getppid(),
                            .up_s = now_s - r->begin_s,
                            .run_id = r->o->run_id,
                            .host = r->failures.host,
                            .log_dir = logs_has_files(r->logs) ? logs_dir(r->logs) : NULL,
                            .output_dir = r->output_dir,
                            .hosts = p->group_world_size,
                            .group_rank = p->group_rank,
                            .world_size = p->world_size,
                            .hosts_now = now ? p->group_world_size : 0,
                            .group_rank_now = now ? p->group_rank : -1,
                            .ranks_now = now ? p->world_size : 0,
                            .min_hosts = r->o->nnodes_min,
                            .max_hosts = r->o->nnodes_max,
                            .local_world_size = r->o->nproc};
    store_server_count(r->store, &n.store);
    (void)process_look(getpid(), &n.agent);
    n.agent_cpu_s = n.agent.user_s + n.agent.system_s;
    return n;
}

/* What the worker itself says; a program that knows no page says nothing. */
static void look_at_page(struct rank_numbers *n, const struct dt_page *page, double now_s)
{
    struct dt_page_look *p = &n->page;
    dt_page_read(page, now_s, p);
    if (!p->known) {
        return;
    }
    n->phase = dt_phase_name(p->phase);
    n->known |= RANK_PAGE | (p->learned_step >= 0 ? RANK_LEARNED : 0) |
                (p->data_s + p->compute_s + p->communication_s > 0 ? RANK_PACE : 0) |
                (p->collective_name[0] != '\0' ? RANK_COLLECTIVE : 0) | (p->gpu.memory_total_bytes > 0 ? RANK_GPU : 0);
    (void)dt_nvml_throttle_text(p->gpu.throttle, false, n->slowed_by, sizeof n->slowed_by);
}

static struct rank_numbers look_at_rank(const struct run *r, int i, double now_s)
{
    const struct worker *w = &r->workers.list[i];
    double output_s = logs_last_output_s(r->logs, i);
    struct rank_numbers n = {.rank = r->place.rank + i,
                             .local_rank = r->o->local_first + i,
                             .pid = (int)w->pid,
                             .exit_code = workers_code(w->status),
                             .host = r->failures.host,
                             .running = w->running,
                             .up_s = now_s - w->start_s,
                             .output_age_s = now_s - output_s};
    n.known = (w->running ? RANK_RUNS : w->pid != 0 ? RANK_ENDED : 0) | (output_s > 0 ? RANK_OUTPUT : 0);
    if (!w->running) {
        return n;
    }
    if (process_look(w->pid, &n.process)) {
        n.known |= RANK_PROCESS;
        n.cpu_s = n.process.user_s + n.process.system_s;
    }
    look_at_page(&n, w->page, now_s);
    return n;
}

/* ---- for `dtrun --status` ---- */

static void add_command(const struct options *o, struct dt_text *out)
{
    dt_text_puts(out, o->program);
    for (int i = 0; i < o->arg_count && out->size < COMMAND_BYTES; i++) {
        dt_text_printf(out, " %s", o->args[i]);
    }
    if (out->size > COMMAND_BYTES) {
        out->size = COMMAND_BYTES;
        out->data[out->size] = '\0';
    }
}

void run_status_rows(void *user, struct dt_text *out)
{
    const struct run *r = user;
    double now_s = dt_now_s();
    for (int i = 0; i < r->workers.count && r->place.round > 0; i++) {
        struct rank_numbers n = look_at_rank(r, i, now_s);
        numbers_rank_json(&n, out);
        dt_text_puts(out, "\n");
    }
}

bool run_status_ask(void *user)
{
    struct run *r = user;
    return r->nodes != NULL && nodes_gather(r->nodes);
}

void run_status_gathered(void *user)
{
    struct run *r = user;
    if (r->status != NULL) {
        status_ready(r->status);
    }
}

/* Lines as the elements of an array. */
static void add_elements(const struct dt_text *lines, struct dt_text *out)
{
    const char *p = dt_text_str(lines);
    for (size_t n; *p != '\0'; p += n + (p[n] == '\n')) {
        n = strcspn(p, "\n");
        dt_text_puts(out, p == dt_text_str(lines) ? "" : ",");
        dt_text_add(out, p, n);
    }
}

/* Appends an array of the signals that ask for nothing here, because dtrun was started with them
 * ignored; nothing where there are none, as mostly. */
static void add_ignored(const struct options *o, struct dt_text *out)
{
    static const int usual[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
    sigset_t wishes;
    process_wishes(o->signals, &wishes);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (sigismember(&wishes, usual[i]) == 0) {
            dt_text_printf(out, "%s\"%s\"", out->size == 0 ? "[" : ",", sigabbrev_np(usual[i]));
        }
    }
    dt_text_puts(out, out->size > 0 ? "]" : "");
}

void run_status(void *user, struct dt_text *out)
{
    const struct run *r = user;
    struct job_numbers n = look_at_job(r, dt_now_s());
    struct dt_text command, ignored, rows;
    dt_text_init(&command);
    dt_text_init(&ignored);
    dt_text_init(&rows);
    add_command(r->o, &command);
    add_ignored(r->o, &ignored);
    n.command = dt_text_str(&command);
    n.ignored_signals = ignored.size > 0 ? dt_text_str(&ignored) : NULL;
    dt_text_puts(out, "{");
    numbers_json(NUMBERS_JOB, &n, 0, out);
    dt_text_puts(out, ",");
    if (r->nodes != NULL) {
        nodes_status(r->nodes, out);
    } else {
        dt_text_puts(out, "\"role\":\"alone\",\"members\":[]");
    }
    run_status_rows(user, &rows);
    if (r->nodes != NULL) {
        nodes_rows(r->nodes, &rows);
    }
    dt_text_puts(out, ",\"ranks\":[");
    add_elements(&rows, out);
    dt_text_printf(out, "],\"store_port\":%d,\"store\":", store_server_port(r->store));
    numbers_store_json(r->store, out);
    dt_text_puts(out, "}");
    dt_text_clear(&command);
    dt_text_clear(&ignored);
    dt_text_clear(&rows);
}

/* ---- for the metrics endpoint ---- */

static void add_labels(const struct run *r, struct dt_text *out)
{
    bool spare = run_is_spare(r);
    exporter_head(out, "dtrun_info", "gauge", "The job and this host, as labels.");
    dt_text_puts(out, "dtrun_info{version=\"" DT_VERSION "\",run_id=");
    exporter_label(out, r->o->run_id);
    dt_text_puts(out, ",host=");
    exporter_label(out, r->failures.host);
    dt_text_puts(out, ",role=");
    exporter_label(out, r->o->role);
    dt_text_puts(out, ",program="); /* without its arguments, which may hold secrets */
    exporter_label(out, r->o->program);
    dt_text_puts(out, "} 1\n");
    exporter_head(out, "dtrun_state", "gauge", "1 for the state that the agent is in.");
    for (int s = 0; s < AGENT_STATE_COUNT; s++) {
        dt_text_printf(out, "dtrun_state{state=\"%s\"} %d\n", agent_state_name((enum agent_state)s),
                       !spare && (int)r->agent.state == s);
    }
    dt_text_printf(out, "dtrun_state{state=\"spare\"} %d\n", spare);
}

void run_metrics(void *user, struct dt_text *out)
{
    const struct run *r = user;
    double now_s = dt_now_s();
    struct job_numbers job = look_at_job(r, now_s);
    int count = is_in_round(r) ? r->workers.count : 0;
    struct rank_numbers *ranks = dt_alloc((size_t)(count + 1) * sizeof *ranks);
    for (int i = 0; i < count; i++) {
        ranks[i] = look_at_rank(r, i, now_s);
    }
    add_labels(r, out);
    numbers_job_metrics(&job, out);
    numbers_rank_metrics(ranks, count, out);
    free(ranks);
}
