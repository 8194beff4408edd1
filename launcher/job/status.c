/* Snapshots of the agent process for `dtrun --status` and the metrics endpoint (numbers.h). Reads
 * the pages and /proc, and changes nothing. */
#include "base/clock.h"
#include "base/gpu/nvml.h"
#include "launcher/job/job.h"
#include "launcher/query/numbers.h"
#include "launcher/workers/process.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_BYTES = 4096 };

bool job_is_spare(const struct job *job)
{
    return job->agent.state == AGENT_JOINING && hosts_view(job->hosts).spare;
}

/* While this host waits for a round, the numbers of its last round mean nothing. */
static bool is_in_round(const struct job *job)
{
    return job->round.place.round > 0 && job->agent.state != AGENT_JOINING;
}

/* ---- snapshots ---- */

static struct job_numbers look_at_job(const struct job *job, double now_s)
{
    const struct place *p = &job->round.place;
    bool now = is_in_round(job);
    struct job_numbers n = {.format = 1,
                            .state = job_is_spare(job) ? "spare" : agent_state_name(job->agent.state),
                            .round = p->round,
                            .restarts = hosts_view(job->hosts).restarts_used,
                            .max_restarts = job->o->max_restarts,
                            .pid = (int)getpid(),
                            .guard_pid = (int)getppid(),
                            .up_s = now_s - job->begin_s,
                            .run_id = job->o->run_id,
                            .host = job->failures.host,
                            .log_dir = logs_has_files(job->logs) ? logs_dir(job->logs) : NULL,
                            .output_dir = job->output_dir,
                            .hosts = p->group_world_size,
                            .group_rank = p->group_rank,
                            .world_size = p->world_size,
                            .hosts_now = now ? p->group_world_size : 0,
                            .group_rank_now = now ? p->group_rank : -1,
                            .ranks_now = now ? p->world_size : 0,
                            .min_hosts = job->o->nnodes_min,
                            .max_hosts = job->o->nnodes_max,
                            .local_world_size = job->o->nproc};
    store_server_count(hosts_store(job->hosts), &n.store);
    (void)process_look(getpid(), &n.agent);
    n.agent_cpu_s = n.agent.user_s + n.agent.system_s;
    return n;
}

/* Reads the worker's page. A program without support for the page writes nothing there. */
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

static struct rank_numbers look_at_rank(const struct job *job, int i, double now_s)
{
    const struct worker *w = &job->workers.list[i];
    double output_s = logs_last_output_s(job->logs, i);
    struct rank_numbers n = {.rank = job->round.place.rank + i,
                             .local_rank = job->o->local_first + i,
                             .pid = (int)w->pid,
                             .exit_code = workers_code(w->status),
                             .host = job->failures.host,
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

void job_status_rows(void *user, struct dt_text *out)
{
    const struct job *job = user;
    double now_s = dt_now_s();
    for (int i = 0; i < job->workers.count && job->round.place.round > 0; i++) {
        struct rank_numbers n = look_at_rank(job, i, now_s);
        numbers_rank_json(&n, out);
        dt_text_puts(out, "\n");
    }
}

bool job_status_ask(void *user)
{
    struct job *job = user;
    return hosts_gather(job->hosts);
}

void job_status_gathered(void *user)
{
    struct job *job = user;
    if (job->status != NULL) {
        status_ready(job->status);
    }
}

/* Turns lines into the elements of an array. */
static void add_elements(const struct dt_text *lines, struct dt_text *out)
{
    const char *p = dt_text_str(lines);
    for (size_t n; *p != '\0'; p += n + (p[n] == '\n')) {
        n = strcspn(p, "\n");
        dt_text_puts(out, p == dt_text_str(lines) ? "" : ",");
        dt_text_add(out, p, n);
    }
}

/* Appends an array of the stop signals that have no effect, because dtrun was started with them
 * ignored. Usually there are none, and nothing is appended. */
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

void job_status(void *user, struct dt_text *out)
{
    const struct job *job = user;
    struct job_numbers n = look_at_job(job, dt_now_s());
    struct dt_text command, ignored, rows;
    dt_text_init(&command);
    dt_text_init(&ignored);
    dt_text_init(&rows);
    add_command(job->o, &command);
    add_ignored(job->o, &ignored);
    n.command = dt_text_str(&command);
    n.ignored_signals = ignored.size > 0 ? dt_text_str(&ignored) : NULL;
    dt_text_puts(out, "{");
    numbers_json(NUMBERS_JOB, &n, 0, out);
    dt_text_puts(out, ",");
    hosts_status(job->hosts, out);
    job_status_rows(user, &rows);
    hosts_rows(job->hosts, &rows);
    dt_text_puts(out, ",\"ranks\":[");
    add_elements(&rows, out);
    dt_text_printf(out, "],\"store_port\":%d,\"store\":", store_server_port(hosts_store(job->hosts)));
    numbers_store_json(hosts_store(job->hosts), out);
    dt_text_puts(out, "}");
    dt_text_clear(&command);
    dt_text_clear(&ignored);
    dt_text_clear(&rows);
}

/* ---- for the metrics endpoint ---- */

static void add_labels(const struct job *job, struct dt_text *out)
{
    bool spare = job_is_spare(job);
    exporter_head(out, "dtrun_info", "gauge", "The job and this host, as labels.");
    dt_text_puts(out, "dtrun_info{version=\"" DT_VERSION "\",run_id=");
    exporter_label(out, job->o->run_id);
    dt_text_puts(out, ",host=");
    exporter_label(out, job->failures.host);
    dt_text_puts(out, ",role=");
    exporter_label(out, job->o->role);
    dt_text_puts(out, ",program="); /* without the arguments, which may hold secrets */
    exporter_label(out, job->o->program);
    dt_text_puts(out, "} 1\n");
    exporter_head(out, "dtrun_state", "gauge", "1 for the state that the agent is in.");
    for (int s = 0; s < AGENT_STATE_COUNT; s++) {
        dt_text_printf(out, "dtrun_state{state=\"%s\"} %d\n", agent_state_name((enum agent_state)s),
                       !spare && (int)job->agent.state == s);
    }
    dt_text_printf(out, "dtrun_state{state=\"spare\"} %d\n", spare);
}

void job_metrics(void *user, struct dt_text *out)
{
    const struct job *job = user;
    double now_s = dt_now_s();
    struct job_numbers n = look_at_job(job, now_s);
    int count = is_in_round(job) ? job->workers.count : 0;
    struct rank_numbers *ranks = dt_alloc((size_t)(count + 1) * sizeof *ranks);
    for (int i = 0; i < count; i++) {
        ranks[i] = look_at_rank(job, i, now_s);
    }
    add_labels(job, out);
    numbers_job_metrics(&n, out);
    numbers_rank_metrics(ranks, count, out);
    free(ranks);
}
