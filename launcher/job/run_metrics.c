/* The state of the agent's process for the metrics endpoint (exporter.h): a row for each number,
 * of the job as this host sees it, of the agent's process, and of each worker of this host.
 * Names and units follow Prometheus' conventions. Reads the pages and /proc; changes nothing. */
#include "base/clock.h"
#include "launcher/query/exporter.h"
#include "launcher/workers/process.h"
#include "launcher/job/run_parts.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum known { /* what must be known of a worker for a row to have a value: bits */
             KNOWN_ALWAYS = 0,
             KNOWN_ENDED = 1,   /* it was started, and does not run any more */
             KNOWN_PROCESS = 2, /* it runs, and /proc tells of it */
             KNOWN_OUTPUT = 4,
             KNOWN_PAGE = 8,     /* it runs a program that writes its page, and has begun to */
             KNOWN_LEARNED = 16, /* a step is complete */
             KNOWN_PACE = 32,    /* ten are */
             KNOWN_GPU = 64
};

struct row {
    const char *name, *type, *help;
    size_t offset; /* of a double in one of the structs below */
    enum known needs;
};

/* ---- the job and the agent ---- */

struct job_numbers {
    double round, restarts, max_restarts, hosts, min_hosts, max_hosts, group_rank, world_size, local_world_size, up_s;
    double clients, keys, bytes, requests, dropped, cpu_s, resident_bytes;
};
#define AT(member) offsetof(struct job_numbers, member), KNOWN_ALWAYS
static const struct row job_rows[] = {
    {"dtrun_round", "gauge", "Number of the newest round that this host was in; 0: none yet.", AT(round)},
    {"dtrun_restarts", "gauge",
     "Restarts that failed workers have cost the job; one may be taken back when a lost host was the cause.",
     AT(restarts)},
    {"dtrun_max_restarts", "gauge", "Restarts that the job may use (--max_restarts).", AT(max_restarts)},
    {"dtrun_hosts", "gauge", "Hosts in the round; 0: this one is in none.", AT(hosts)},
    {"dtrun_min_hosts", "gauge", "Hosts that a round needs (--nnodes).", AT(min_hosts)},
    {"dtrun_max_hosts", "gauge", "Hosts that a round takes (--nnodes).", AT(max_hosts)},
    {"dtrun_group_rank", "gauge", "Number of this host in the round; -1: it is in none.", AT(group_rank)},
    {"dtrun_world_size", "gauge", "Workers of the round on all hosts; 0: this host is in none.", AT(world_size)},
    {"dtrun_local_world_size", "gauge", "Workers that this agent starts.", AT(local_world_size)},
    {"dtrun_up_seconds", "gauge", "Time since the agent began.", AT(up_s)},
    {"dtrun_store_clients", "gauge", "Connections at this agent's store.", AT(clients)},
    {"dtrun_store_keys", "gauge", "Keys in this agent's store.", AT(keys)},
    {"dtrun_store_bytes", "gauge", "Keys and values in this agent's store.", AT(bytes)},
    {"dtrun_store_requests_total", "counter", "Requests that this agent's store has served.", AT(requests)},
    {"dtrun_store_dropped_total", "counter", "Connections that this agent's store has dropped.", AT(dropped)},
    {"process_cpu_seconds_total", "counter", "User and system time of the agent.", AT(cpu_s)},
    {"process_resident_memory_bytes", "gauge", "Memory of the agent.", AT(resident_bytes)},
};
#undef AT

/* While it waits for one, what is known of the last round says nothing any more. */
static bool is_in_round(const struct run *r)
{
    return r->place.round > 0 && r->agent.state != AGENT_JOINING;
}

static struct job_numbers look_at_job(const struct run *r, double now_s)
{
    struct process_look process;
    struct store_server_counts store;
    const struct place *p = &r->place;
    (void)process_look(getpid(), &process);
    store_server_count(hosts_store(r->hosts), &store);
    return (struct job_numbers){
        .round = p->round,
        .restarts = hosts_view(r->hosts).restarts_used,
        .max_restarts = r->o->max_restarts,
        .hosts = is_in_round(r) ? p->group_world_size : 0,
        .min_hosts = r->o->nnodes_min,
        .max_hosts = r->o->nnodes_max,
        .group_rank = is_in_round(r) ? p->group_rank : -1,
        .world_size = is_in_round(r) ? p->world_size : 0,
        .local_world_size = r->o->nproc,
        .up_s = now_s - r->begin_s,
        .clients = (double)store.clients,
        .keys = (double)store.keys,
        .bytes = (double)store.bytes,
        .requests = (double)store.requests,
        .dropped = (double)store.dropped,
        .cpu_s = process.user_s + process.system_s,
        .resident_bytes = process.resident_bytes,
    };
}

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
    dt_text_puts(out, ",program="); /* not its arguments, which may hold what is nobody's
                                     * business */
    exporter_label(out, r->o->program);
    dt_text_puts(out, "} 1\n");
    exporter_head(out, "dtrun_state", "gauge", "1 for the state that the agent is in.");
    for (int s = 0; s < AGENT_STATE_COUNT; s++) {
        dt_text_printf(out, "dtrun_state{state=\"%s\"} %d\n", agent_state_name((enum agent_state)s),
                       !spare && (int)r->agent.state == s);
    }
    dt_text_printf(out, "dtrun_state{state=\"spare\"} %d\n", spare);
}

/* ---- the workers ---- */

struct worker_numbers {
    int known; /* bits of enum known */
    double running, exit_code, up_s, cpu_s, resident_bytes, threads, output_age_s;
    double pulse_age_s, step, saved_step, in_collective, collectives, loss, grad_norm, lr, tokens_per_s, data_s,
        compute_s, communication_s;
    /* below 0: not known */
    double gpu_busy, gpu_memory_bytes, gpu_memory_total_bytes, gpu_clock_hz, gpu_temperature, gpu_power_w, gpu_xid;
};
#define AT(member) offsetof(struct worker_numbers, member)
static const struct row worker_rows[] = {
    {"dtrun_worker_running", "gauge", "1 while the worker runs; 0 also before it does.", AT(running), KNOWN_ALWAYS},
    {"dtrun_worker_exit_code", "gauge", "How it ended in this round; negative: by that signal.", AT(exit_code),
     KNOWN_ENDED},
    {"dtrun_worker_up_seconds", "gauge", "Time since it was started.", AT(up_s), KNOWN_PROCESS},
    {"dtrun_worker_cpu_seconds_total", "counter", "User and system time of its process.", AT(cpu_s), KNOWN_PROCESS},
    {"dtrun_worker_resident_memory_bytes", "gauge", "Memory of its process.", AT(resident_bytes), KNOWN_PROCESS},
    {"dtrun_worker_threads", "gauge", "Threads of its process.", AT(threads), KNOWN_PROCESS},
    {"dtrun_worker_output_age_seconds", "gauge", "Time since it last wrote something that came through the launcher.",
     AT(output_age_s), KNOWN_OUTPUT},
    {"dtrun_worker_pulse_age_seconds", "gauge", "Time since its last sign of life.", AT(pulse_age_s), KNOWN_PAGE},
    {"dtrun_worker_step", "gauge", "Optimizer step; -1 before the first.", AT(step), KNOWN_PAGE},
    {"dtrun_worker_saved_step", "gauge", "Newest complete checkpoint; -1: none.", AT(saved_step), KNOWN_PAGE},
    {"dtrun_worker_in_collective", "gauge", "1 while it waits for its peers.", AT(in_collective), KNOWN_PAGE},
    {"dtrun_worker_collectives_total", "counter", "Collectives that it has started in this round.", AT(collectives),
     KNOWN_PAGE},
    {"dtrun_worker_loss", "gauge", "Loss of the newest step.", AT(loss), KNOWN_LEARNED},
    {"dtrun_worker_grad_norm", "gauge", "Norm of the gradients of the newest step.", AT(grad_norm), KNOWN_LEARNED},
    {"dtrun_worker_learning_rate", "gauge", "Learning rate of the newest step.", AT(lr), KNOWN_LEARNED},
    {"dtrun_worker_tokens_per_second", "gauge", "Tokens of all ranks in the newest step, by its time.",
     AT(tokens_per_s), KNOWN_LEARNED},
    {"dtrun_worker_data_seconds", "gauge", "Waiting for data in a step, mean of ten.", AT(data_s), KNOWN_PACE},
    {"dtrun_worker_compute_seconds", "gauge", "Computing in a step, mean of ten.", AT(compute_s), KNOWN_PACE},
    {"dtrun_worker_communication_seconds", "gauge", "Waiting for peers in a step, mean of ten.", AT(communication_s),
     KNOWN_PACE},
    {"dtrun_worker_gpu_busy_ratio", "gauge", "Share of the time in which its GPU ran kernels.", AT(gpu_busy),
     KNOWN_GPU},
    {"dtrun_worker_gpu_memory_used_bytes", "gauge", "Memory of its GPU that is in use.", AT(gpu_memory_bytes),
     KNOWN_GPU},
    {"dtrun_worker_gpu_memory_bytes", "gauge", "Memory of its GPU.", AT(gpu_memory_total_bytes), KNOWN_GPU},
    {"dtrun_worker_gpu_clock_hertz", "gauge", "Clock of its GPU.", AT(gpu_clock_hz), KNOWN_GPU},
    {"dtrun_worker_gpu_temperature_celsius", "gauge", "Temperature of its GPU.", AT(gpu_temperature), KNOWN_GPU},
    {"dtrun_worker_gpu_power_watts", "gauge", "Power that its GPU draws.", AT(gpu_power_w), KNOWN_GPU},
    {"dtrun_worker_gpu_xid", "gauge", "Newest error that the driver told of its GPU; 0: none.", AT(gpu_xid), KNOWN_GPU},
};
#undef AT

static void look_at_page(struct worker_numbers *n, const struct dt_page_look *p)
{
    n->known |= KNOWN_PAGE | (p->learned_step >= 0 ? KNOWN_LEARNED : 0);
    n->pulse_age_s = p->pulse_age_s;
    n->step = (double)p->step;
    n->saved_step = (double)p->saved_step;
    n->in_collective = p->in_collective;
    n->collectives = (double)p->collective_count;
    n->loss = p->loss;
    n->grad_norm = p->grad_norm;
    n->lr = p->lr;
    n->tokens_per_s = p->tokens_per_s;
    n->data_s = p->data_s;
    n->compute_s = p->compute_s;
    n->communication_s = p->communication_s;
    n->known |= n->data_s + n->compute_s + n->communication_s > 0 ? KNOWN_PACE : 0;
    if (p->gpu.memory_total_bytes > 0) {
        n->known |= KNOWN_GPU;
        n->gpu_busy = p->gpu.busy;
        n->gpu_memory_bytes = p->gpu.memory_bytes;
        n->gpu_memory_total_bytes = p->gpu.memory_total_bytes;
        n->gpu_clock_hz = p->gpu.clock_mhz * 1e6;
        n->gpu_temperature = p->gpu.temperature;
        n->gpu_power_w = p->gpu.power_w;
        n->gpu_xid = p->gpu.xid;
    }
}

static struct worker_numbers look_at_worker(const struct run *r, int i, double now_s)
{
    const struct worker *w = &r->workers.list[i];
    struct worker_numbers n = {.running = w->running, .exit_code = workers_code(w->status), .up_s = now_s - w->start_s};
    struct process_look process;
    struct dt_page_look page;
    double output_s = logs_last_output_s(r->logs, i);
    n.known = (w->pid != 0 && !w->running ? KNOWN_ENDED : 0) | (output_s > 0 ? KNOWN_OUTPUT : 0);
    n.output_age_s = now_s - output_s;
    if (w->running && process_look(w->pid, &process)) {
        n.known |= KNOWN_PROCESS;
        n.cpu_s = process.user_s + process.system_s;
        n.resident_bytes = process.resident_bytes;
        n.threads = process.thread_count;
    }
    dt_page_read(w->page, now_s, &page);
    if (w->running && page.known) {
        look_at_page(&n, &page);
    }
    return n;
}

static double number_at(const void *numbers, const struct row *row)
{
    double value;
    memcpy(&value, (const char *)numbers + row->offset, sizeof value);
    return value;
}

/* All values of a metric stand together, as the format wants it. */
static void add_worker_row(const struct run *r, const struct row *row, const struct worker_numbers *list, int count,
                           struct dt_text *out)
{
    bool any = false;
    for (int i = 0; i < count; i++) {
        double value = number_at(&list[i], row);
        bool known = (list[i].known & (int)row->needs) == (int)row->needs && (row->needs != KNOWN_GPU || value >= 0);
        if (known && !any) {
            exporter_head(out, row->name, row->type, row->help);
        }
        any = any || known;
        if (known) {
            dt_text_printf(out, "%s{rank=\"%d\",local_rank=\"%d\"}", row->name, r->place.rank + i,
                           r->o->local_first + i);
            exporter_value(out, value);
        }
    }
}

void run_metrics(void *user, struct dt_text *out)
{
    const struct run *r = user;
    double now_s = dt_now_s();
    struct job_numbers job = look_at_job(r, now_s);
    int count = is_in_round(r) ? r->workers.count : 0;
    struct worker_numbers *list = dt_alloc((size_t)(count + 1) * sizeof *list);
    add_labels(r, out);
    for (size_t i = 0; i < sizeof job_rows / sizeof job_rows[0]; i++) {
        exporter_head(out, job_rows[i].name, job_rows[i].type, job_rows[i].help);
        dt_text_puts(out, job_rows[i].name);
        exporter_value(out, number_at(&job, &job_rows[i]));
    }
    for (int i = 0; i < count; i++) {
        list[i] = look_at_worker(r, i, now_s);
    }
    for (size_t i = 0; i < sizeof worker_rows / sizeof worker_rows[0]; i++) {
        add_worker_row(r, &worker_rows[i], list, count, out);
    }
    free(list);
}
