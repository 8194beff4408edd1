/* The table of options, and what follows from it alone: help, completion scripts, names of
 * variables. */
#include "launcher/options/rendezvous.h"

#include "launcher/options/cluster.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct options, member)

/* clang-format off */
#define ROW(id, ...) [OPTION_##id] = {#id, __VA_ARGS__}
const struct option_row option_rows[OPTION_COUNT] = {
    /* how many */
    ROW(nproc_per_node, 0, OPTION_VALUE, OPTION_TORCH, NULL, "1", "N|gpu|cpu|auto", "workers on this host", true, option_parse_nproc, 0, 1, OPTIONS_MAX_LOCAL),
    ROW(num_processes, 0, OPTION_VALUE, OPTION_OURS, NULL, NULL, "N", "workers of all hosts together, as accelerate counts them, instead of --nproc_per_node", false, NULL, 0, 0, 0),
    ROW(config_file, 0, OPTION_VALUE, OPTION_OURS, NULL, NULL, "FILE", "accelerate's configuration: num_processes, num_machines, machine_rank, main_process_ip, main_process_port and rdzv_backend stand in for options that are not given; train reads the rest", false, option_parse_text, AT(accelerate.path), 0, 0),
    ROW(nnodes, 0, OPTION_VALUE, OPTION_TORCH, NULL, "1:1", "N|MIN:MAX", "number of hosts; MIN:MAX: as many as there are", false, option_parse_nnodes, 0, 0, 0),
    ROW(node_rank, 0, OPTION_VALUE, OPTION_TORCH, NULL, "0", "N", "number of this host; with c10d and etcd-v3 where it would like to stand in its first round", false, option_parse_int, AT(world.node_rank), 0, 65535),
    ROW(role, 0, OPTION_VALUE, OPTION_TORCH, NULL, "default", "NAME", "name of the workers, in prefixes and ROLE_NAME", false, option_parse_role, 0, 0, 0),
    ROW(standalone, 0, OPTION_FLAG, OPTION_TORCH, NULL, NULL, NULL, "one host, any free port, a run id of its own", true, option_parse_flag, AT(rdzv.standalone), 0, 0),
    /* what */
    ROW(module, 'm', OPTION_FLAG, OPTION_TORCH, NULL, NULL, NULL, "PROGRAM is a Python module (python3 -u -m)", true, NULL, 0, 0, 0),
    ROW(no_python, 0, OPTION_FLAG, OPTION_TORCH, NULL, NULL, NULL, "run PROGRAM as it is, also when it ends in .py", false, NULL, 0, 0, 0),
    ROW(run_path, 0, OPTION_FLAG, OPTION_TORCH, NULL, NULL, NULL, "PROGRAM is a Python script, run by runpy.run_path in a Python of its own per worker", false, NULL, 0, 0, 0),
    ROW(start_method, 0, OPTION_VALUE, OPTION_TORCH, NULL, "spawn", "spawn|fork|forkserver", "no effect: workers are always programs of their own, never forks of a Python launcher", false, option_parse_ignored, 0, 0, 0),
    ROW(dry_run, 0, OPTION_FLAG, OPTION_OURS, NULL, NULL, NULL, "print what would be started and where values came from", true, NULL, 0, 0, 0),
    /* restarts and ends */
    ROW(max_restarts, 0, OPTION_VALUE, OPTION_TORCH, NULL, "0", "N", "restarts after failed workers (3 for train)", true, option_parse_int, AT(restarts.most), 0, 1000000),
    ROW(monitor_interval, 0, OPTION_VALUE, OPTION_TORCH, NULL, "0.1", "SECONDS", "no effect: the kernel tells of a worker's end at once, nothing is polled", false, option_parse_seconds, AT(restarts.monitor_interval_s), 1e-6, 86400),
    ROW(shutdown_timeout, 0, OPTION_VALUE, OPTION_TORCH, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30", "SECONDS", "grace between TERM and KILL", true, option_parse_seconds, AT(stop.shutdown_timeout_s), 0, 86400),
    ROW(exit_barrier, 0, OPTION_VALUE, OPTION_OURS, NULL, "30", "SECONDS", "ranks of train that wait so long for one that has ended are stopped; of other programs: said", false, option_parse_seconds, AT(stop.exit_barrier_s), 1e-3, 864000),
    ROW(hang_timeout, 0, OPTION_VALUE, OPTION_OURS, NULL, "0", "SECONDS", "a worker that writes nothing and computes nothing for so long hangs; 0: off", false, option_parse_seconds, AT(restarts.hang_timeout_s), 0, 864000),
    ROW(exit_code, 0, OPTION_VALUE, OPTION_OURS, NULL, "launcher", "launcher|worker", "what a failed job ends with: 1, or the worker's code", false, option_parse_second_word, AT(stop.exit_code_worker), 0, 0),
    ROW(permanent_exit_codes, 0, OPTION_VALUE, OPTION_OURS, NULL, "", "LIST", "codes of workers after which no restart helps", false, option_parse_codes, 0, 0, 0),
    ROW(requeue_exit_code, 0, OPTION_VALUE, OPTION_OURS, NULL, "75", "N", "code for: stopped on request, state saved", false, option_parse_int, AT(requeue.exit_code), 1, 255),
    ROW(requeue, 0, OPTION_VALUE, OPTION_OURS, NULL, "auto", "auto|on|off", "after a saved stop, ask SLURM or LSF to run the job again; auto: a batch job warned by USR1 or USR2", false, option_parse_word, AT(requeue.when), 0, 0),
    ROW(signals_to_handle, 0, OPTION_VALUE, OPTION_TORCH, NULL, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "NAMES", "signals that are passed on to the workers, also those ignored when dtrun was started", false, option_parse_signals, 0, 0, 0),
    ROW(time_scale, 0, OPTION_VALUE, OPTION_OURS, NULL, "1", "F", "divides all time bounds (for tests)", false, option_parse_number, AT(time_scale), 1e-3, 1e6),
    /* output */
    ROW(redirects, 'r', OPTION_VALUE, OPTION_TORCH, NULL, "0", "MASK", "streams to files: 1 stdout, 2 stderr, 3 both, 0:1,1:3", true, option_parse_mask, AT(output.redirects), 0, 0),
    ROW(tee, 't', OPTION_VALUE, OPTION_TORCH, NULL, "0", "MASK", "streams to files and to the console, with prefixes", true, option_parse_mask, AT(output.tee), 0, 0),
    ROW(log_dir, 0, OPTION_VALUE, OPTION_TORCH, NULL, NULL, "DIR", "where log files go (a folder in the temporary one)", true, option_parse_text, AT(output.log_dir), 0, 0),
    ROW(local_ranks_filter, 0, OPTION_VALUE, OPTION_TORCH, NULL, "", "LIST", "show only these local ranks on the console", true, option_parse_filter, 0, 0, 0),
    ROW(ranks_filter, 0, OPTION_VALUE, OPTION_OURS, NULL, "", "LIST", "show only these ranks of the whole job on the console, whatever host they are on", false, option_parse_ranks, 0, 0, 0),
    ROW(log_line_prefix_template, 0, OPTION_VALUE, OPTION_TORCH, "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", NULL, "TEXT", "prefix of teed lines: ${role_name} ${local_rank} ${rank} ${hostname} ${group_rank} ${world_size}", false, option_parse_text, AT(output.prefix_template), 0, 0),
    ROW(duplicate_stdout_filters, 0, OPTION_VALUE, OPTION_TORCH, NULL, NULL, "LIST", "teed lines with one of these strings also go to filtered_stdout.log", false, option_parse_list, AT(output.stdout_filters), 0, 0),
    ROW(duplicate_stderr_filters, 0, OPTION_VALUE, OPTION_TORCH, NULL, NULL, "LIST", "the same for stderr", false, option_parse_list, AT(output.stderr_filters), 0, 0),
    ROW(event_log_handler, 0, OPTION_VALUE, OPTION_TORCH, NULL, "null", "null|console|dynamic_rendezvous", "console: torchrun's events on stderr as JSON; ours are in events.jsonl always", false, option_parse_second_word, AT(output.torch_events), 0, 0),
    ROW(logs_specs, 0, OPTION_VALUE, OPTION_TORCH_ONLY, NULL, "default", "NAME", "Python plug-ins cannot exist here; only: default", false, option_parse_ignored, 0, 0, 0),
    ROW(stdin, 0, OPTION_VALUE, OPTION_OURS, NULL, "0", "RANK|all|none", "who reads the launcher's standard input: this rank of the job (for the others it is empty), all, or none; with --hostfile nobody", false, option_parse_stdin, 0, 0, 0),
    /* rendezvous */
    ROW(rdzv_backend, 0, OPTION_VALUE, OPTION_TORCH, NULL, "static", RENDEZVOUS_NAMES, RENDEZVOUS_HELP, false, option_parse_backend, AT(rdzv.backend), 0, 0),
    ROW(rdzv_endpoint, 0, OPTION_VALUE, OPTION_TORCH, NULL, "", "HOST[:PORT]", "where hosts meet (etcd: several, with commas); with static also MASTER_ADDR, MASTER_PORT", false, option_parse_text, AT(rdzv.endpoint), 0, 0),
    ROW(rdzv_id, 0, OPTION_VALUE, OPTION_TORCH, NULL, "none", "ID", "name of the run: letters, digits and . _ -", false, option_parse_run_id, 0, 0, 0),
    ROW(master_addr, 0, OPTION_VALUE, OPTION_TORCH, NULL, "127.0.0.1", "HOST", "address of the store (static, with --master_port)", false, option_parse_text, AT(rdzv.master_addr), 0, 0),
    ROW(master_port, 0, OPTION_VALUE, OPTION_TORCH, NULL, "0", "PORT", "port of the store (static); 0: any free one", true, option_parse_int, AT(rdzv.master_port), 0, 65535),
    ROW(local_addr, 0, OPTION_VALUE, OPTION_TORCH, NULL, NULL, "HOST", "address by which other hosts reach this one", false, option_parse_text, AT(rdzv.local_addr), 0, 0),
    ROW(port_range, 0, OPTION_VALUE, OPTION_OURS, NULL, "any", "LO-HI", "bounds the ports that are opened, but for one that is given (that of the endpoint, --master_port)", false, option_parse_ports, 0, 0, 0),
    ROW(join_timeout, 0, OPTION_VALUE, OPTION_OURS, NULL, "600", "SECONDS", "how long hosts may take to meet", false, option_parse_seconds, AT(rdzv.join_timeout_s), 1e-3, 864000),
    ROW(last_call, 0, OPTION_VALUE, OPTION_OURS, NULL, "30", "SECONDS", "wait for more hosts after the minimum is there; before a first round of fewer than MAX at least 0.4 of --dead_after", false, option_parse_seconds, AT(rdzv.last_call_s), 0, 864000),
    ROW(dead_after, 0, OPTION_VALUE, OPTION_OURS, NULL, "15", "SECONDS", "a host that is silent for so long is lost", false, option_parse_seconds, AT(rdzv.dead_after_s), 1e-3, 864000),
    ROW(rdzv_conf, 0, OPTION_VALUE, OPTION_TORCH, NULL, "", "K=V,...", RENDEZVOUS_CONF_HELP, false, option_parse_conf, AT(rdzv.conf), 0, 0),
    ROW(key_file, 0, OPTION_VALUE, OPTION_OURS, NULL, NULL, "FILE", "key that the hosts of one job prove to each other", false, option_parse_text, AT(rdzv.key_file), 0, 0),
    ROW(store_users, 0, OPTION_VALUE, OPTION_OURS, NULL, "", "USER,...", "users whose processes on this host may use the store, besides yours and root: of workers that run as another user", false, option_parse_users, 0, 0, 0),
    ROW(hostfile, 0, OPTION_VALUE, OPTION_OURS, NULL, NULL, "FILE", "start the agents on these hosts over ssh, lines: host slots=N; --nnodes=N takes the first N", false, option_parse_text, AT(ssh.hostfile), 0, 0),
    ROW(include, 'i', OPTION_VALUE, OPTION_OURS, NULL, NULL, "HOST[:SLOT,...]@...", "only these hosts of --hostfile and, where slots are named, only those, as CUDA_VISIBLE_DEVICES", false, option_parse_text, AT(ssh.include), 0, 0),
    ROW(exclude, 'e', OPTION_VALUE, OPTION_OURS, NULL, NULL, "HOST[:SLOT,...]@...", "all hosts and slots of --hostfile but these", false, option_parse_text, AT(ssh.exclude), 0, 0),
    ROW(ssh, 0, OPTION_VALUE, OPTION_OURS, NULL, "ssh -o BatchMode=yes -o ServerAliveInterval=5", "COMMAND", "what reaches a host of --hostfile: COMMAND HOST LINE", false, option_parse_text, AT(ssh.command), 0, 0),
    ROW(leash, 0, OPTION_FLAG, OPTION_TORCH_ONLY, NULL, NULL, NULL, NULL, false, option_parse_flag, AT(leash.on), 0, 0),
    ROW(export, 'x', OPTION_VALUE, OPTION_OURS, NULL, NULL, "NAME[=VALUE],...", "variables for the workers, of all hosts with --hostfile, beside those that go there anyway (NCCL_*, TORCH_*, OMP_*, ...); may be given again", false, option_parse_export, 0, 0, 0),
    ROW(status, 0, OPTION_MAYBE, OPTION_TORCH_ONLY, NULL, NULL, "RUN_ID", "what your jobs on this host are doing", true, NULL, 0, 0, 0),
    ROW(json, 0, OPTION_FLAG, OPTION_TORCH_ONLY, NULL, NULL, NULL, "with --status: one JSON object per job", false, option_parse_flag, AT(query.json), 0, 0),
    ROW(metrics_endpoint, 0, OPTION_VALUE, OPTION_OURS, NULL, NULL, "[HOST:]PORT", "this host's part of the job for Prometheus, at http://HOST:PORT/metrics; HOST: 127.0.0.1, 0.0.0.0 for everybody; port 0: a free one, which is said", false, option_parse_metrics, 0, 0, 0),
    ROW(serve_store, 0, OPTION_VALUE, OPTION_OURS, NULL, NULL, "HOST[:PORT]", "run the worker store alone until INT or TERM, at another than a loopback address for everybody; no port, or 0: a free one, of --port_range", false, option_parse_text, AT(store.serve), 0, 0),
    /* devices and surroundings */
    ROW(virtual_local_rank, 0, OPTION_FLAG, OPTION_TORCH, NULL, NULL, NULL, "each worker sees one GPU, as device 0, and LOCAL_RANK=0", false, option_parse_flag, AT(devices.virtual_local_rank), 0, 0),
    ROW(numa_binding, 0, OPTION_VALUE, OPTION_TORCH_ONLY, NULL, NULL, "node|socket|exclusive|core-complex", "bind each worker to CPUs near the GPU of its local rank; without GPUs, evenly over the NUMA nodes", false, option_parse_word, AT(devices.numa_binding), 0, 0),
    ROW(cluster, 0, OPTION_VALUE, OPTION_OURS, NULL, NULL, "NAME", "take this scheduler's variables instead of detecting one", false, option_parse_text, AT(cluster), 0, 0),
    /* about dtrun */
    ROW(print_completion, 0, OPTION_VALUE, OPTION_TORCH_ONLY, NULL, NULL, "bash|zsh|tcsh", "print a completion script", false, option_parse_word, AT(completion), 0, 0),
    ROW(help, 'h', OPTION_MAYBE, OPTION_TORCH_ONLY, NULL, NULL, "all", "this screen; --help=all shows every option", true, NULL, 0, 0, 0),
    ROW(version, 0, OPTION_FLAG, OPTION_TORCH_ONLY, NULL, NULL, NULL, "version of dtrun", true, NULL, 0, 0, 0),
};
/* clang-format on */

/* 0 when equal; - and _ are the same. */
static bool same_name(const char *a, const char *b)
{
    for (; *a != '\0' && *b != '\0'; a++, b++) {
        if ((*a == '-' ? '_' : *a) != (*b == '-' ? '_' : *b)) {
            return false;
        }
    }
    return *a == *b;
}

int option_find(const char *name)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (same_name(name, option_rows[i].name)) {
            return i;
        }
    }
    return -1;
}

bool option_variable(const struct option_row *row, char *out, size_t out_bytes)
{
    if (row->family == OPTION_TORCH_ONLY) {
        return false;
    }
    size_t n = (size_t)snprintf(out, out_bytes, "%s%s", row->family == OPTION_OURS ? "DTRUN_" : "PET_", row->name);
    for (size_t i = 0; i < n && i < out_bytes; i++) {
        out[i] = (char)toupper((unsigned char)out[i]);
    }
    return true;
}

static void help_row(struct dt_text *out, const struct option_row *row, bool all)
{
    enum { COLUMN = 30 };
    char left[128];
    char letter[8] = "";
    if (row->letter != 0) {
        (void)snprintf(letter, sizeof letter, "-%c, ", row->letter);
    }
    const char *open = row->arity == OPTION_MAYBE ? "[=" : "=";
    int n = snprintf(left, sizeof left, "  %s--%s%s%s%s", letter, row->name, row->shown != NULL ? open : "",
                     row->shown != NULL ? row->shown : "", row->arity == OPTION_MAYBE ? "]" : "");
    dt_text_puts(out, left);
    if (n + 2 > COLUMN) {
        dt_text_printf(out, "\n%*s", COLUMN, "");
    } else {
        dt_text_printf(out, "%*s", COLUMN - n, "");
    }
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, row->help);
    char variable[64];
    if (all && row->fallback != NULL && row->fallback[0] != '\0') {
        dt_text_printf(&text, " [%s]", row->fallback);
    }
    if (all && option_variable(row, variable, sizeof variable)) {
        dt_text_printf(&text, " %s", variable);
    }
    dt_text_wrap(out, dt_text_str(&text), COLUMN);
    dt_text_clear(&text);
}

void options_help(struct dt_text *out, bool all)
{
    dt_text_puts(out, "usage: dtrun [options] PROGRAM [args]\n"
                      "Starts PROGRAM once per worker, with RANK, WORLD_SIZE, MASTER_ADDR and the rest\n"
                      "of torchrun's variables, and ends or restarts all together. PROGRAM is train,\n"
                      "bench, a Python script (run by python3 -u), or any other program.\n\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (option_rows[i].help != NULL && (all || option_rows[i].common)) {
            help_row(out, &option_rows[i], all);
        }
    }
    if (all) {
        dt_text_printf(out,
                       "\nNames may be written with - or _, and shortened while unambiguous. A variable\n"
                       "named in capitals sets an option that the command line does not. accelerate's\n"
                       "--num_machines, --machine_rank, --main_process_ip and --main_process_port mean\n"
                       "--nnodes, --node_rank, --master_addr and --master_port.\n"
                       "Clusters: %s.\n",
                       cluster_names());
    } else {
        dt_text_puts(out, "\nexample: dtrun --nproc_per_node=4 train job.json\n");
    }
}

void options_completion(struct dt_text *out, const char *shell)
{
    struct dt_text names;
    dt_text_init(&names);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (option_rows[i].help != NULL) {
            dt_text_printf(&names, "%s--%s%s", names.size > 0 ? " " : "", option_rows[i].name,
                           option_rows[i].arity == OPTION_VALUE ? "=" : "");
        }
    }
    if (strcmp(shell, "tcsh") == 0) {
        dt_text_printf(out, "complete dtrun 'c/--/(%s)/' 'p/*/f/'\n", dt_text_str(&names));
    } else {
        if (strcmp(shell, "zsh") == 0) {
            dt_text_puts(out, "#compdef dtrun\nautoload -U +X bashcompinit && bashcompinit\n");
        }
        dt_text_printf(out,
                       "_dtrun() {\n"
                       "    local word=${COMP_WORDS[COMP_CWORD]}\n"
                       "    case $word in\n"
                       "    -*) COMPREPLY=($(compgen -W '%s' -- \"$word\")); [[ ${COMPREPLY[0]} == *= ]] && compopt -o "
                       "nospace ;;\n"
                       "    *) COMPREPLY=($(compgen -W 'train bench' -- \"$word\") $(compgen -f -- \"$word\")) ;;\n"
                       "    esac\n"
                       "}\n"
                       "complete -F _dtrun dtrun\n",
                       dt_text_str(&names));
    }
    dt_text_clear(&names);
}
