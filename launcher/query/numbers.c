/* The order of the rows is the order in JSON, metrics and columns. A number has two rows if its
 * places in JSON and among the metrics differ, or if its value differs while this host is in no
 * round. */
#include "launcher/query/numbers.h"

#include "launcher/query/exporter.h"

#include <string.h>

/* ---- the table ---- */

#define TYPE(member)                                                                                                   \
    _Generic((member),                                                                                                 \
        bool: NUMBER_BOOL,                                                                                             \
        char: NUMBER_CHAR,                                                                                             \
        int: NUMBER_INT,                                                                                               \
        int64_t: NUMBER_INT64,                                                                                         \
        size_t: NUMBER_UINT64,                                                                                         \
        unsigned long long: NUMBER_UINT64,                                                                             \
        double: NUMBER_DOUBLE,                                                                                         \
        const char *: NUMBER_TEXT,                                                                                     \
        char *: NUMBER_ARRAY)
#define PLACE(snapshot, member) .at = offsetof(struct snapshot, member), .type = TYPE(((struct snapshot *)NULL)->member)
#define GAUGE(name, text) .metric = (name), .help = (text)
#define COUNTER(name, text) .metric = (name), .help = (text), .counter = true
#define COLUMN(text, one_host, hosts, gpus, form) .column = {(text), {one_host, hosts, gpus}, form}

#define JOB(member) PLACE(job_numbers, member)
static const struct number job_rows[] = {
    {"format", JOB(format)},
    {"state", JOB(state)},
    {"round", JOB(round), GAUGE("dtrun_round", "Number of the newest round that this host was in; 0: none yet.")},
    {"restarts", JOB(restarts),
     GAUGE("dtrun_restarts",
           "Restarts that failed workers have cost the job; one may be taken back when a lost host was the cause.")},
    {"max_restarts", JOB(max_restarts), GAUGE("dtrun_max_restarts", "Restarts that the job may use (--max_restarts).")},
    {"pid", JOB(pid)},
    {"guard_pid", JOB(guard_pid)},
    {"up_s", JOB(up_s), .decimals = 1},
    {"run_id", JOB(run_id)},
    {"host", JOB(host)},
    {"command", JOB(command)},
    {"ignored_signals", JOB(ignored_signals), .raw = true},
    {"log_dir", JOB(log_dir)},
    {"output_dir", JOB(output_dir)},
    {"hosts", JOB(hosts)},
    {NULL, JOB(hosts_now), GAUGE("dtrun_hosts", "Hosts in the round; 0: this one is in none.")},
    {"min_hosts", JOB(min_hosts), GAUGE("dtrun_min_hosts", "Hosts that a round needs (--nnodes).")},
    {"max_hosts", JOB(max_hosts), GAUGE("dtrun_max_hosts", "Hosts that a round takes (--nnodes).")},
    {"group_rank", JOB(group_rank)},
    {NULL, JOB(group_rank_now), GAUGE("dtrun_group_rank", "Number of this host in the round; -1: it is in none.")},
    {"world_size", JOB(world_size)},
    {NULL, JOB(ranks_now), GAUGE("dtrun_world_size", "Workers of the round on all hosts; 0: this host is in none.")},
    {NULL, JOB(local_world_size), GAUGE("dtrun_local_world_size", "Workers that this agent starts.")},
    {NULL, JOB(up_s), GAUGE("dtrun_up_seconds", "Time since the agent began.")},
};

static const struct number store_rows[] = {
    {"clients", JOB(store.clients), GAUGE("dtrun_store_clients", "Connections at this agent's store.")},
    {"accepted", JOB(store.accepted)},
    {"dropped", JOB(store.dropped)},
    {"taken", JOB(store.taken)},
    {"rounds", JOB(store.rounds)},
    {"keys", JOB(store.keys), GAUGE("dtrun_store_keys", "Keys in this agent's store.")},
    {"bytes", JOB(store.bytes), GAUGE("dtrun_store_bytes", "Keys and values in this agent's store.")},
    {NULL, JOB(store.requests), COUNTER("dtrun_store_requests_total", "Requests that this agent's store has served.")},
    {NULL, JOB(store.dropped),
     COUNTER("dtrun_store_dropped_total", "Connections that this agent's store has dropped.")},
};

static const struct number agent_rows[] = {
    {NULL, JOB(agent_cpu_s), COUNTER("process_cpu_seconds_total", "User and system time of the agent.")},
    {NULL, JOB(agent.resident_bytes), GAUGE("process_resident_memory_bytes", "Memory of the agent.")},
};

#define RANK(member) PLACE(rank_numbers, member)
static const struct number rank_rows[] = {
    {"rank", RANK(rank), COLUMN("rank", 5, 6, 6, CELL_NUMBER)},
    {"host", RANK(host), COLUMN("host", 0, -12, 0, CELL_TEXT)},
    {"local_rank", RANK(local_rank), COLUMN("local", 0, 5, 0, CELL_NUMBER)},
    {"pid", RANK(pid), COLUMN("pid", 7, 7, 0, CELL_NUMBER)},
    {"running", RANK(running), GAUGE("dtrun_worker_running", "1 while the worker runs; 0 also before it does.")},
    {"exit_code", RANK(exit_code), .needs = RANK_ENDED,
     GAUGE("dtrun_worker_exit_code", "How it ended in this round; negative: by that signal.")},
    {NULL, RANK(up_s), .needs = RANK_PROCESS, GAUGE("dtrun_worker_up_seconds", "Time since it was started.")},
    {"state", RANK(process.state), .needs = RANK_PROCESS, COLUMN("S", 1, 1, 0, CELL_TEXT)},
    {"cpu_s", RANK(cpu_s), .needs = RANK_PROCESS, .decimals = 2,
     COUNTER("dtrun_worker_cpu_seconds_total", "User and system time of its process."),
     COLUMN("cpu s", 6, 0, 0, CELL_NUMBER), .column.decimals = 1},
    {"memory_bytes", RANK(process.resident_bytes), .needs = RANK_PROCESS,
     GAUGE("dtrun_worker_resident_memory_bytes", "Memory of its process."), COLUMN("memory", 9, 0, 0, CELL_BYTES)},
    {"threads", RANK(process.thread_count), .needs = RANK_PROCESS,
     GAUGE("dtrun_worker_threads", "Threads of its process.")},
    {"up_s", RANK(up_s), .needs = RANK_RUNS, .decimals = 1},
    {"output_s", RANK(output_age_s), .needs = RANK_OUTPUT, .decimals = 1,
     GAUGE("dtrun_worker_output_age_seconds", "Time since it last wrote something that came through the launcher.")},
    {NULL, RANK(page.pulse_age_s), .needs = RANK_PAGE,
     GAUGE("dtrun_worker_pulse_age_seconds", "Time since its last sign of life.")},
    {"step", RANK(page.step), .needs = RANK_PAGE, GAUGE("dtrun_worker_step", "Optimizer step; -1 before the first."),
     COLUMN("step", 8, 8, 0, CELL_COUNT)},
    {.type = NUMBER_INT, .needs = RANK_PACE, COLUMN("busy", 4, 4, 0, CELL_BUSY)},
    {"micro_step", RANK(page.micro_step), .needs = RANK_PAGE},
    {"saved_step", RANK(page.saved_step), .needs = RANK_PAGE,
     GAUGE("dtrun_worker_saved_step", "Newest complete checkpoint; -1: none.")},
    {"phase", RANK(phase), .needs = RANK_PAGE},
    {"pulse_s", RANK(page.pulse_age_s), .needs = RANK_PAGE, .decimals = 1, COLUMN("pulse", 0, 7, 0, CELL_AGE)},
    {"in_collective", RANK(page.in_collective), .needs = RANK_PAGE,
     GAUGE("dtrun_worker_in_collective", "1 while it waits for its peers.")},
    {"collective_count", RANK(page.collective_count), .needs = RANK_PAGE,
     COUNTER("dtrun_worker_collectives_total", "Collectives that it has started in this round.")},
    {NULL, RANK(page.loss), .needs = RANK_LEARNED, GAUGE("dtrun_worker_loss", "Loss of the newest step.")},
    {NULL, RANK(page.grad_norm), .needs = RANK_LEARNED,
     GAUGE("dtrun_worker_grad_norm", "Norm of the gradients of the newest step.")},
    {NULL, RANK(page.lr), .needs = RANK_LEARNED,
     GAUGE("dtrun_worker_learning_rate", "Learning rate of the newest step.")},
    {NULL, RANK(page.tokens_per_s), .needs = RANK_LEARNED, .optional = true,
     GAUGE("dtrun_worker_tokens_per_second", "Tokens of all ranks in the newest step, by its time.")},
    {NULL, RANK(page.samples_per_s), .needs = RANK_LEARNED, .optional = true,
     GAUGE("dtrun_worker_samples_per_second",
           "Samples of all ranks in the newest step, by its time, where they are no sequences.")},
    {"data_s", RANK(page.data_s), .needs = RANK_PACE, .decimals = 6,
     GAUGE("dtrun_worker_data_seconds", "Waiting for data in a step, mean of ten.")},
    {"compute_s", RANK(page.compute_s), .needs = RANK_PACE, .decimals = 6,
     GAUGE("dtrun_worker_compute_seconds", "Computing in a step, mean of ten.")},
    {"communication_s", RANK(page.communication_s), .needs = RANK_PACE, .decimals = 6,
     GAUGE("dtrun_worker_communication_seconds", "Waiting for peers in a step, mean of ten.")},
    {"collective", RANK(page.collective_name), .needs = RANK_COLLECTIVE},
    {"collective_s", RANK(page.collective_age_s), .needs = RANK_COLLECTIVE, .decimals = 1},
};

#define GPU(member) PLACE(rank_numbers, member), .needs = RANK_GPU, .decimals = NUMBER_SHORTEST, .optional = true
static const struct number gpu_rows[] = {
    {"bus", GPU(page.gpu.bus), COLUMN("gpu", 0, 0, -12, CELL_TEXT)},
    {"busy", GPU(page.gpu.busy),
     GAUGE("dtrun_worker_gpu_busy_ratio", "Share of the time in which its GPU ran kernels."),
     COLUMN("busy", 0, 0, 4, CELL_PERCENT)},
    {"memory_bytes", GPU(page.gpu.memory_bytes),
     GAUGE("dtrun_worker_gpu_memory_used_bytes", "Memory of its GPU that is in use."), COLUMN("", 0, 0, 9, CELL_BYTES)},
    {"memory_total_bytes", GPU(page.gpu.memory_total_bytes),
     GAUGE("dtrun_worker_gpu_memory_bytes", "Memory of its GPU."), COLUMN("memory", 0, 0, 11, CELL_OF_BYTES)},
    {"clock_mhz", GPU(page.gpu.clock_mhz), GAUGE("dtrun_worker_gpu_clock_hertz", "Clock of its GPU."),
     .metric_scale = 1e6, COLUMN("MHz", 0, 0, 5, CELL_OR_DASH)},
    {"clock_max_mhz", GPU(page.gpu.clock_max_mhz)},
    {"temperature", GPU(page.gpu.temperature), GAUGE("dtrun_worker_gpu_temperature_celsius", "Temperature of its GPU."),
     COLUMN("C", 0, 0, 3, CELL_OR_DASH)},
    {"power_w", GPU(page.gpu.power_w), GAUGE("dtrun_worker_gpu_power_watts", "Power that its GPU draws.")},
    {"slowed_by", GPU(slowed_by)},
    {"xid", GPU(page.gpu.xid), .not_zero = true,
     GAUGE("dtrun_worker_gpu_xid", "Newest error that the driver told of its GPU; 0: none.")},
};

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

const struct number *numbers_rows(enum numbers_table table, size_t *count)
{
    switch (table) {
    case NUMBERS_JOB:
        *count = COUNT(job_rows);
        return job_rows;
    case NUMBERS_STORE:
        *count = COUNT(store_rows);
        return store_rows;
    case NUMBERS_AGENT:
        *count = COUNT(agent_rows);
        return agent_rows;
    case NUMBERS_RANK:
        *count = COUNT(rank_rows);
        return rank_rows;
    case NUMBERS_GPU:
        break;
    }
    *count = COUNT(gpu_rows);
    return gpu_rows;
}

/* ---- values ---- */

/* Null: the value is not text, or absent. `one` is the buffer for a single character. */
static const char *text_at(const void *snapshot, const struct number *n, char one[2])
{
    const char *at = (const char *)snapshot + n->at;
    const char *text = NULL;
    if (n->type == NUMBER_TEXT) {
        memcpy(&text, at, sizeof text);
    } else if (n->type == NUMBER_ARRAY) {
        text = at;
    } else if (n->type == NUMBER_CHAR) {
        one[0] = *at;
        one[1] = '\0';
        text = one;
    }
    return text;
}

static double value_at(const void *snapshot, const struct number *n)
{
    const void *at = (const char *)snapshot + n->at;
    switch (n->type) {
    case NUMBER_BOOL:
        return *(const bool *)at;
    case NUMBER_INT:
        return *(const int *)at;
    case NUMBER_INT64:
        return (double)*(const int64_t *)at;
    case NUMBER_UINT64:
        return (double)*(const uint64_t *)at;
    case NUMBER_DOUBLE:
        return *(const double *)at;
    case NUMBER_CHAR:
    case NUMBER_TEXT:
    case NUMBER_ARRAY:
        break;
    }
    return 0;
}

static bool is_text(const struct number *n)
{
    return n->type == NUMBER_TEXT || n->type == NUMBER_ARRAY || n->type == NUMBER_CHAR;
}

static bool is_known(const struct number *n, unsigned known, double value)
{
    return (known & n->needs) == n->needs && (!n->optional || is_text(n) || value >= 0);
}

/* ---- JSON ---- */

static void add_key(struct dt_text *out, const char *key)
{
    bool first = out->size > 0 && out->data[out->size - 1] == '{';
    dt_text_printf(out, "%s\"%s\":", first ? "" : ",", key);
}

static void add_text(struct dt_text *out, const struct number *n, const char *text)
{
    if (text == NULL) {
        return;
    }
    add_key(out, n->key);
    if (n->raw) {
        dt_text_puts(out, text);
    } else {
        dt_text_json(out, text, strlen(text));
    }
}

static void add_value(struct dt_text *out, const struct number *n, double value)
{
    add_key(out, n->key);
    if (n->type == NUMBER_BOOL) {
        dt_text_puts(out, value > 0 ? "true" : "false");
    } else if (n->decimals == NUMBER_SHORTEST) {
        dt_text_printf(out, "%.10g", value);
    } else {
        dt_text_printf(out, "%.*f", n->decimals, value);
    }
}

void numbers_json(enum numbers_table table, const void *snapshot, unsigned known, struct dt_text *out)
{
    size_t count;
    char one[2];
    const struct number *rows = numbers_rows(table, &count);
    for (const struct number *n = rows; n < rows + count; n++) {
        double value = value_at(snapshot, n);
        if (n->key == NULL || !is_known(n, known, value) || (n->not_zero && value <= 0)) {
            continue;
        }
        if (is_text(n)) {
            add_text(out, n, text_at(snapshot, n, one));
        } else {
            add_value(out, n, value);
        }
    }
}

void numbers_store_json(const struct store_server *store, struct dt_text *out)
{
    struct job_numbers n = {0};
    store_server_count(store, &n.store);
    dt_text_puts(out, "{");
    numbers_json(NUMBERS_STORE, &n, 0, out);
    dt_text_puts(out, ",");
    store_server_details(store, out);
    dt_text_puts(out, "}");
}

void numbers_rank_json(const struct rank_numbers *rank, struct dt_text *out)
{
    unsigned known = rank->running ? rank->known : rank->known & RANK_ENDED;
    dt_text_puts(out, "{");
    numbers_json(NUMBERS_RANK, rank, known, out);
    if ((known & RANK_GPU) != 0) {
        dt_text_puts(out, ",\"gpu\":{");
        numbers_json(NUMBERS_GPU, rank, known, out);
        dt_text_puts(out, "}");
    }
    dt_text_puts(out, "}");
}

/* ---- metrics ---- */

static void add_head(struct dt_text *out, const struct number *n)
{
    exporter_head(out, n->metric, n->counter ? "counter" : "gauge", n->help);
}

static void add_metric_value(struct dt_text *out, const struct number *n, double value)
{
    exporter_value(out, n->metric_scale > 0 ? value * n->metric_scale : value);
}

void numbers_job_metrics(const struct job_numbers *job, struct dt_text *out)
{
    for (enum numbers_table table = NUMBERS_JOB; table <= NUMBERS_AGENT; table++) {
        size_t count;
        const struct number *rows = numbers_rows(table, &count);
        for (const struct number *n = rows; n < rows + count; n++) {
            if (n->metric != NULL) {
                add_head(out, n);
                dt_text_puts(out, n->metric);
                add_metric_value(out, n, value_at(job, n));
            }
        }
    }
}

static void add_rank_metric(const struct number *n, const struct rank_numbers *ranks, int count, struct dt_text *out)
{
    bool any = false;
    for (const struct rank_numbers *r = ranks; r < ranks + count; r++) {
        double value = value_at(r, n);
        if (!is_known(n, r->known, value)) {
            continue;
        }
        if (!any) {
            add_head(out, n);
        }
        any = true;
        dt_text_printf(out, "%s{rank=\"%d\",local_rank=\"%d\"}", n->metric, r->rank, r->local_rank);
        add_metric_value(out, n, value);
    }
}

void numbers_rank_metrics(const struct rank_numbers *ranks, int count, struct dt_text *out)
{
    for (enum numbers_table table = NUMBERS_RANK; table <= NUMBERS_GPU; table++) {
        size_t row_count;
        const struct number *rows = numbers_rows(table, &row_count);
        for (const struct number *n = rows; n < rows + row_count; n++) {
            if (n->metric != NULL) {
                add_rank_metric(n, ranks, count, out);
            }
        }
    }
}
