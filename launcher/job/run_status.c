/* The state of the agent's process as JSON, for `dtrun --status` (status.h). Reads the pages and
 * /proc; changes nothing. */
#include "base/clock.h"
#include "base/gpu/nvml.h"
#include "launcher/workers/process.h"
#include "launcher/job/run_parts.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { COMMAND_BYTES = 4096 };

bool run_is_spare(const struct run *r)
{
    return r->agent.state == AGENT_JOINING && hosts_view(r->hosts).spare;
}

static void add_string(struct dt_text *out, const char *key, const char *value)
{
    if (value != NULL) {
        dt_text_printf(out, ",\"%s\":", key);
        dt_text_json(out, value, strlen(value));
    }
}

static void add_command(const struct options *o, struct dt_text *out)
{
    struct dt_text command;
    dt_text_init(&command);
    dt_text_puts(&command, o->program);
    for (int i = 0; i < o->arg_count && command.size < COMMAND_BYTES; i++) {
        dt_text_printf(&command, " %s", o->args[i]);
    }
    dt_text_puts(out, ",\"command\":");
    dt_text_json(out, dt_text_str(&command), command.size < COMMAND_BYTES ? command.size : COMMAND_BYTES);
    dt_text_clear(&command);
}

static void add_known(struct dt_text *out, const char *name, double value)
{
    if (value >= 0) {
        dt_text_printf(out, ",\"%s\":%.10g", name, value);
    }
}

/* What the worker's look at its GPU found; nothing where there is none. */
static void add_gpu(const struct dt_page_look *p, struct dt_text *out)
{
    char why[160];
    if (p->gpu.memory_total_bytes <= 0) {
        return;
    }
    dt_text_puts(out, ",\"gpu\":{\"bus\":");
    dt_text_json(out, p->gpu.bus, strlen(p->gpu.bus));
    add_known(out, "busy", p->gpu.busy);
    add_known(out, "memory_bytes", p->gpu.memory_bytes);
    add_known(out, "memory_total_bytes", p->gpu.memory_total_bytes);
    add_known(out, "clock_mhz", p->gpu.clock_mhz);
    add_known(out, "clock_max_mhz", p->gpu.clock_max_mhz);
    add_known(out, "temperature", p->gpu.temperature);
    add_known(out, "power_w", p->gpu.power_w);
    add_string(out, "slowed_by", dt_nvml_throttle_text(p->gpu.throttle, false, why, sizeof why));
    if (p->gpu.xid != 0) {
        dt_text_printf(out, ",\"xid\":%d", p->gpu.xid);
    }
    dt_text_puts(out, "}");
}

/* What the worker itself says; a program that knows no page says nothing. */
static void add_page(const struct dt_page *page, double now_s, struct dt_text *out)
{
    struct dt_page_look p;
    dt_page_read(page, now_s, &p);
    if (!p.known) {
        return;
    }
    dt_text_printf(out,
                   ",\"step\":%lld,\"micro_step\":%lld,\"saved_step\":%lld,\"phase\":\"%s\",\"pulse_s\":%.1f,\"in_"
                   "collective\":%s,\"collective_count\":%lld",
                   (long long)p.step, (long long)p.micro_step, (long long)p.saved_step, dt_phase_name(p.phase),
                   p.pulse_age_s, p.in_collective ? "true" : "false", (long long)p.collective_count);
    if (p.data_s + p.compute_s + p.communication_s > 0) {
        dt_text_printf(out, ",\"data_s\":%.6f,\"compute_s\":%.6f,\"communication_s\":%.6f", p.data_s, p.compute_s,
                       p.communication_s);
    }
    if (p.collective_name[0] != '\0') {
        add_string(out, "collective", p.collective_name);
        dt_text_printf(out, ",\"collective_s\":%.1f", p.collective_age_s);
    }
    add_gpu(&p, out);
}

static void add_rank(const struct run *r, int i, double now_s, struct dt_text *out)
{
    const struct worker *one = &r->workers.list[i];
    dt_text_printf(out, "{\"rank\":%d", r->place.rank + i);
    add_string(out, "host", r->failures.host);
    dt_text_printf(out, ",\"local_rank\":%d,\"pid\":%d,\"running\":%s", r->o->local_first + i, (int)one->pid,
                   one->running ? "true" : "false");
    if (!one->running) {
        dt_text_printf(out, ",\"exit_code\":%d}", workers_code(one->status));
        return;
    }
    struct process_look look;
    if (process_look(one->pid, &look)) {
        dt_text_printf(out, ",\"state\":\"%c\",\"cpu_s\":%.2f,\"memory_bytes\":%.0f,\"threads\":%d", look.state,
                       look.user_s + look.system_s, look.resident_bytes, look.thread_count);
    }
    dt_text_printf(out, ",\"up_s\":%.1f", now_s - one->start_s);
    double output_s = logs_last_output_s(r->logs, i);
    if (output_s > 0) {
        dt_text_printf(out, ",\"output_s\":%.1f", now_s - output_s);
    }
    add_page(one->page, now_s, out);
    dt_text_puts(out, "}");
}

void run_status_rows(void *user, struct dt_text *out)
{
    const struct run *r = user;
    double now_s = dt_now_s();
    for (int i = 0; i < r->workers.count && r->place.round > 0; i++) {
        add_rank(r, i, now_s, out);
        dt_text_puts(out, "\n");
    }
}

bool run_status_ask(void *user)
{
    struct run *r = user;
    return hosts_gather(r->hosts);
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

/* Signals that ask for nothing here, as whoever started us had them ignored; nothing mostly. */
static void add_ignored(const struct options *o, struct dt_text *out)
{
    static const int usual[] = {SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP};
    int count = 0;
    sigset_t wishes;
    process_wishes(o->signals, &wishes);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (sigismember(&wishes, usual[i]) == 0) {
            dt_text_printf(out, "%s\"%s\"", count++ == 0 ? ",\"ignored_signals\":[" : ",", sigabbrev_np(usual[i]));
        }
    }
    dt_text_puts(out, count > 0 ? "]" : "");
}

void run_status(void *user, struct dt_text *out)
{
    const struct run *r = user;
    const struct options *o = r->o;
    const struct place *p = &r->place;
    double now_s = dt_now_s();
    bool spare = run_is_spare(r);
    dt_text_printf(out,
                   "{\"format\":1,\"state\":\"%s\",\"round\":%d,\"restarts\":%d,\"max_restarts\":%d,\"pid\":%d,\"guard_"
                   "pid\":%d,\"up_s\":%.1f",
                   spare ? "spare" : agent_state_name(r->agent.state), p->round, hosts_view(r->hosts).restarts_used,
                   o->max_restarts, (int)getpid(), (int)getppid(), now_s - r->begin_s);
    add_string(out, "run_id", o->run_id);
    add_string(out, "host", r->failures.host);
    add_command(o, out);
    add_ignored(o, out);
    add_string(out, "log_dir", logs_has_files(r->logs) ? logs_dir(r->logs) : NULL);
    add_string(out, "output_dir", r->output_dir);
    dt_text_printf(out, ",\"hosts\":%d,\"min_hosts\":%d,\"max_hosts\":%d,\"group_rank\":%d,\"world_size\":%d,",
                   p->group_world_size, o->nnodes_min, o->nnodes_max, p->group_rank, p->world_size);
    hosts_status(r->hosts, out);
    struct dt_text rows;
    dt_text_init(&rows);
    run_status_rows(user, &rows);
    hosts_rows(r->hosts, &rows);
    dt_text_puts(out, ",\"ranks\":[");
    add_elements(&rows, out);
    dt_text_clear(&rows);
    dt_text_printf(out, "],\"store_port\":%d,\"store\":", store_server_port(hosts_store(r->hosts)));
    store_server_stats(hosts_store(r->hosts), out);
    dt_text_puts(out, "}");
}
