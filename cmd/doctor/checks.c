/* The table of checks, and those about one machine at a time: what was chosen, CPUs, memory,
 * limits. Those about the ways between machines are in doctor_checks_net.c. A check says one
 * line (of several things that are wrong, one each), with what to do where it is not well. */
#include "cmd/doctor/checks.h"

#include "cmd/doctor/look.h"
#include "launcher/workers/cpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1024.0 * 1024.0)
#define GIB (1024.0 * MIB)

static void check_ranks(const struct doctor_view *v, struct doctor_report *r)
{
    int missing = 0;
    struct dt_text text;
    dt_text_init(&text);
    for (int i = 0; i < v->rank_count; i++) {
        if (!v->ranks[i].here && ++missing <= 8) {
            dt_text_printf(&text, "%s %d", missing > 1 ? "," : "", i);
        }
    }
    if (missing > 0) {
        doctor_say(r, DOCTOR_FAIL, "look at the first lines of their output, and whether their hosts reach MASTER_ADDR",
                   "no word from rank%s%s%s", missing > 1 ? "s" : "", dt_text_str(&text), missing > 8 ? ", ..." : "");
    } else if (v->alone) {
        doctor_say(r, DOCTOR_INFO, NULL,
                   "alone; dtrun --nproc_per_node=2 doctor also looks at the store and at sums across ranks");
    } else {
        doctor_say(r, DOCTOR_OK, NULL, "all %d answered", v->rank_count);
    }
    dt_text_clear(&text);
    for (int i = 0; i < v->rank_count; i++) {
        char late[64];
        if (v->ranks[i].here && facts_get(&v->ranks[i].facts, "late", late, sizeof late) != NULL) {
            doctor_say(r, DOCTOR_FAIL, "a file system or a resolver of this host hangs",
                       "rank %d: looking at %s did not come back", i, late);
        }
    }
}

/* A value that should be the same everywhere, and matters little else. */
static void say_same(const struct doctor_view *v, struct doctor_report *r, const char *name, const char *before,
                     enum doctor_level other, const char *advice)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, before);
    int different = view_values(v, name, &text);
    doctor_say(r, different > 1 ? other : DOCTOR_OK, different > 1 ? advice : NULL, "%s", dt_text_str(&text));
    dt_text_clear(&text);
}

static void check_version(const struct doctor_view *v, struct doctor_report *r)
{
    say_same(v, r, "version", "", DOCTOR_FAIL, "install the same version on all hosts");
}

static void check_system(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    dt_text_init(&text);
    dt_text_puts(&text, "Linux ");
    int different = view_values(v, "kernel", &text);
    dt_text_puts(&text, ", ");
    int machines = view_values(v, "machine", &text);
    dt_text_puts(&text, ", glibc ");
    int libcs = view_values(v, "libc", &text);
    bool warn = machines > 1 || libcs > 1;
    doctor_say(r, warn ? DOCTOR_WARN : DOCTOR_OK,
               warn ? "programs built on one of them may not run on the other, nor give the same bits" : NULL, "%s%s",
               dt_text_str(&text), different > 1 && !warn ? " (kernels differ; that is no harm)" : "");
    dt_text_clear(&text);
}

static void check_choices(const struct doctor_view *v, struct doctor_report *r)
{
    char text[512];
    if (facts_get(view_host(v, 0), "choices_error", text, sizeof text) != NULL) {
        doctor_say(r, DOCTOR_FAIL, NULL, "dtrun would refuse to start here: %s", text);
    } else if (facts_get(view_host(v, 0), "choices", text, sizeof text) != NULL) {
        doctor_say(r, DOCTOR_OK, NULL, "%s%s", v->alone ? "dtrun would take " : "", text);
    }
}

static void check_scheduler(const struct doctor_view *v, struct doctor_report *r)
{
    char text[512];
    if (facts_get(view_host(v, 0), "scheduler", text, sizeof text) != NULL) {
        doctor_say(r, DOCTOR_OK, NULL, "%s", text);
    }
}

static void check_python(const struct doctor_view *v, struct doctor_report *r)
{
    for (int h = 0; h < v->host_count; h++) {
        char text[256];
        if (facts_get(view_host(v, h), "python_error", text, sizeof text) != NULL) {
            doctor_say(r, DOCTOR_WARN, "needed for scripts, not for train", "%s: %s", v->hosts[h].name, text);
            return;
        }
    }
    say_same(v, r, "python", "", DOCTOR_WARN,
             "scripts may run under different versions; set PYTHON_EXEC, or activate the same environment");
}

static void check_cpu(const struct doctor_view *v, struct doctor_report *r)
{
    say_same(v, r, "cpu", "", DOCTOR_WARN,
             "the slowest host sets the pace, and math libraries may differ in the last bit");
}

/* The machine that a host is on: several agents may share one, each is a host then. */
static bool same_machine(const struct doctor_view *v, int one, int other)
{
    char a[64], b[64];
    bool known = facts_get(view_host(v, one), "boot", a, sizeof a) != NULL &&
                 facts_get(view_host(v, other), "boot", b, sizeof b) != NULL;
    return one == other || (known && a[0] != '\0' && strcmp(a, b) == 0);
}

/* Ranks on the machine of a host, and the cores that they have together; cores -1: not known. */
static void count_cores(const struct doctor_view *v, int host, int *ranks, int *cores)
{
    enum { TEXT_BYTES = 2048 };
    struct cpus all = {{0}}, one;
    struct dt_error hidden;
    double quota = 0;
    bool bounded = true;
    *ranks = *cores = 0;
    for (int h = 0; h < v->host_count; h++) {
        double of_host = -1;
        for (int r = 0; r < v->rank_count; r++) {
            char text[TEXT_BYTES];
            const struct facts *f = &v->ranks[r].facts;
            if (!v->ranks[r].here || v->ranks[r].group != v->hosts[h].group || !same_machine(v, h, host)) {
                continue;
            }
            if (facts_get(f, "cores", text, sizeof text) == NULL || cpus_parse(&one, text, &hidden) != 0) {
                *cores = -1;
                return;
            }
            cpus_unite(&all, &one);
            double usable = facts_number(f, "cores_usable", -1);
            if (usable > 0 && usable < facts_number(f, "cores_allowed", -1)) {
                of_host = usable; /* of the control group, which the ranks of a host share */
            }
            ++*ranks;
        }
        bounded = bounded && (of_host > 0 || !same_machine(v, h, host));
        quota += of_host > 0 ? of_host : 0;
    }
    *cores = cpus_count(&all);
    *cores = bounded && quota < *cores ? (int)quota : *cores;
}

static void check_cores(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    char advice[160] = "";
    int said = 0;
    dt_text_init(&text);
    for (int h = 0; h < v->host_count; h++) {
        int ranks, cores;
        bool seen = false;
        for (int k = 0; k < h && !seen; k++) {
            seen = same_machine(v, k, h);
        }
        count_cores(v, h, &ranks, &cores);
        if (seen || cores < 0) {
            continue;
        }
        if (said++ < 4) {
            dt_text_printf(&text, "%s%s: %d rank%s on %d core%s", said > 1 ? "; " : "", v->hosts[h].name, ranks,
                           ranks == 1 ? "" : "s", cores, cores == 1 ? "" : "s");
        }
        if (ranks > cores && advice[0] == '\0') {
            (void)snprintf(advice, sizeof advice,
                           "ranks that share a core wait for each other at every sum: at most %d rank%s there, or more "
                           "CPUs for the job",
                           cores, cores == 1 ? "" : "s");
        }
    }
    doctor_say(r, advice[0] != '\0' ? DOCTOR_WARN : DOCTOR_OK, advice, "%s",
               said > 0 ? dt_text_str(&text) : "not known");
    dt_text_clear(&text);
}

static void check_threads(const struct doctor_view *v, struct doctor_report *r)
{
    char value[32];
    bool set = false;
    for (int h = 0; h < v->host_count; h++) {
        double threads = facts_number(view_host(v, h), "omp", 1);
        int ranks, cores;
        set = set || facts_get(view_host(v, h), "omp", value, sizeof value) != NULL;
        count_cores(v, h, &ranks, &cores);
        if (cores > 0 && threads > 1 && threads * ranks > cores) {
            doctor_say(r, DOCTOR_WARN, "lower OMP_NUM_THREADS, or unset it",
                       "%s: OMP_NUM_THREADS=%.0f, times %d ranks, is more than its %d cores", v->hosts[h].name, threads,
                       ranks, cores);
            return;
        }
    }
    if (!set) {
        doctor_say(r, DOCTOR_OK, NULL, "OMP_NUM_THREADS is not set");
        return;
    }
    say_same(v, r, "omp", "OMP_NUM_THREADS ", DOCTOR_WARN, "set OMP_NUM_THREADS alike on all hosts");
}

static void check_memory(const struct doctor_view *v, struct doctor_report *r)
{
    struct dt_text text;
    bool little = false;
    dt_text_init(&text);
    for (int h = 0; h < v->host_count; h++) {
        char size[32], cap[32];
        double free_bytes = facts_number(view_host(v, h), "memory_free", -1),
               limit = facts_number(view_host(v, h), "memory_limit", -1);
        double usable = limit >= 0 && limit < free_bytes ? limit : free_bytes;
        little = little || (usable >= 0 && usable < 256 * MIB * v->hosts[h].ranks);
        if (h < 4) {
            dt_text_printf(&text, "%s%s: %s%s", h > 0 ? "; " : "", v->hosts[h].name,
                           free_bytes < 0 ? "not known" : dt_text_bytes(free_bytes, size, sizeof size),
                           free_bytes < 0 ? "" : " free");
            if (limit >= 0) {
                dt_text_printf(&text, ", control group allows %s", dt_text_bytes(limit, cap, sizeof cap));
            }
        }
    }
    doctor_say(r, little ? DOCTOR_WARN : DOCTOR_OK,
               little ? "less than 256 MiB for each rank: ask the scheduler or container for more" : NULL, "%s",
               dt_text_str(&text));
    dt_text_clear(&text);
}

static void check_overcommit(const struct doctor_view *v, struct doctor_report *r)
{
    for (int h = 0; h < v->host_count; h++) {
        if (facts_number(view_host(v, h), "overcommit", 0) >= 2 ||
            facts_number(view_host(v, h), "address_space", -1) >= 0) {
            doctor_say(r, DOCTOR_WARN,
                       "memory that is only reserved counts: sysctl vm.overcommit_memory=0, ulimit -v unlimited",
                       "%s: vm.overcommit_memory is %.0f, ulimit -v is %s", v->hosts[h].name,
                       facts_number(view_host(v, h), "overcommit", 0),
                       facts_number(view_host(v, h), "address_space", -1) >= 0 ? "set" : "unlimited");
            return;
        }
    }
    doctor_say(r, DOCTOR_OK, NULL, "not limited");
}

/* A limit whose least value is judged: below `least` it is a failure, below `good` a warning;
 * negative: unlimited. */
static void say_limit(const struct doctor_view *v, struct doctor_report *r, const char *name, double least, double good,
                      const char *advice)
{
    struct dt_text text;
    int host = 0;
    double value = view_least(v, name, &host);
    dt_text_init(&text);
    int different = view_values(v, name, &text);
    if (value < 0) {
        doctor_say(r, DOCTOR_OK, NULL, different == 0 ? "not known" : "unlimited");
    } else if (value < good) {
        doctor_say(r, value < least ? DOCTOR_FAIL : DOCTOR_WARN, advice, "%s%s%.0f, should be at least %.0f",
                   different > 1 ? v->hosts[host].name : "", different > 1 ? ": " : "", value, good);
    } else {
        doctor_say(r, DOCTOR_OK, NULL, "%s", dt_text_str(&text));
    }
    dt_text_clear(&text);
}

static int most_ranks(const struct doctor_view *v)
{
    int most = 1;
    for (int h = 0; h < v->host_count; h++) {
        most = v->hosts[h].ranks > most ? v->hosts[h].ranks : most;
    }
    return most;
}

/* A rank has a connection to its store and, with gloo, to every other rank; the files of its
 * data come on top. */
static void check_files(const struct doctor_view *v, struct doctor_report *r)
{
    double needed = v->rank_count + 64.0;
    say_limit(v, r, "files", needed, needed + 896 > 1024 ? needed + 896 : 1024,
              "ulimit -n 65536, or LimitNOFILE= in the scheduler's unit");
}

static void check_processes(const struct doctor_view *v, struct doctor_report *r)
{
    double needed = 64.0 * most_ranks(v);
    if (facts_number(view_host(v, 0), "root", 0) == 1) { /* it does not count for root; the
                                                          * control group's does */
        say_limit(v, r, "pids_limit", 8.0 * most_ranks(v), needed,
                  "raise the control group's pids.max (docker run --pids-limit, TasksMax=)");
        return;
    }
    double pids = view_least(v, "pids_limit", NULL), processes = view_least(v, "processes", NULL);
    bool group = pids >= 0 && (processes < 0 || pids < processes);
    say_limit(v, r, group ? "pids_limit" : "processes", 8.0 * most_ranks(v), needed,
              group ? "raise the control group's pids.max (docker run --pids-limit, TasksMax=)"
                    : "ulimit -u 65536; threads of all ranks count");
}

static void check_locked(const struct doctor_view *v, struct doctor_report *r)
{
    char size[32];
    double value = view_least(v, "locked", NULL);
    bool rdma = false;
    for (int h = 0; h < v->host_count; h++) {
        rdma = rdma || facts_number(view_host(v, h), "rdma", 0) == 1;
    }
    if (value >= 0 && rdma) {
        doctor_say(r, DOCTOR_WARN, "InfiniBand pins its buffers: ulimit -l unlimited, or LimitMEMLOCK=infinity", "%s",
                   dt_text_bytes(value, size, sizeof size));
    } else {
        doctor_say(r, DOCTOR_OK, NULL, "%s%s", value < 0 ? "unlimited" : dt_text_bytes(value, size, sizeof size),
                   value < 0 ? "" : ", enough without InfiniBand");
    }
}

static void check_shm(const struct doctor_view *v, struct doctor_report *r)
{
    char size[32], left[32];
    int host = 0;
    double all = view_least(v, "shm", &host);
    if (all < 0) {
        doctor_say(r, DOCTOR_WARN, "PyTorch's data loaders need it: mount a tmpfs there", "/dev/shm is not there");
        return;
    }
    double free_bytes = facts_number(view_host(v, host), "shm_free", 0);
    bool small = all < 256 * MIB, full = free_bytes < 64 * MIB;
    doctor_say(r, small || full ? DOCTOR_WARN : DOCTOR_OK,
               small ? "PyTorch's data loaders die of SIGBUS: docker run --shm-size=8g, or an emptyDir of medium Memory"
               : full ? "remove what earlier runs left in /dev/shm"
                      : NULL,
               "%s%s%s, %s free", v->host_count > 1 ? v->hosts[host].name : "", v->host_count > 1 ? ": " : "",
               dt_text_bytes(all, size, sizeof size), dt_text_bytes(free_bytes, left, sizeof left));
}

static void check_tmp(const struct doctor_view *v, struct doctor_report *r)
{
    char size[32], path[256], error[128];
    int host = 0;
    double least = view_least(v, "tmp_free", &host);
    for (int h = 0; h < v->host_count; h++) {
        if (facts_get(view_host(v, h), "tmp_error", error, sizeof error) != NULL) {
            (void)facts_get(view_host(v, h), "tmp", path, sizeof path);
            doctor_say(r, DOCTOR_FAIL, "set TMPDIR to a folder that can be written", "%s: %s: %s", v->hosts[h].name,
                       path, error);
            return;
        }
    }
    if (facts_get(view_host(v, host), "tmp", path, sizeof path) == NULL || least < 0) {
        doctor_say(r, DOCTOR_OK, NULL, "not known");
        return;
    }
    bool little = least < 64 * MIB;
    doctor_say(r, little ? DOCTOR_WARN : DOCTOR_OK,
               little ? "logs go there by default: make room, or use --log_dir" : NULL, "%s%s%s: %s free",
               v->host_count > 1 ? v->hosts[host].name : "", v->host_count > 1 ? ": " : "", path,
               dt_text_bytes(least, size, sizeof size));
}

/* To check one more thing: a function, and a row here. The order is that of the report. */
static const struct {
    const char *group, *name;
    doctor_check *check;
    bool in_job; /* only under dtrun */
} rows[] = {
    {"job", "ranks", check_ranks, false},
    {"job", "choices", check_choices, false},
    {"job", "scheduler", check_scheduler, false},
    {"environment", "dtrun", check_version, false},
    {"environment", "system", check_system, false},
    {"environment", "python", check_python, false},
    {"environment", "clock", check_clock, false},
    {"devices", "CPU", check_cpu, false},
    {"devices", "cores", check_cores, false},
    {"devices", "threads", check_threads, false},
    {"devices", "memory", check_memory, false},
    {"devices", "GPUs", check_gpus, false},
    {"devices", "GPU driver", check_gpu_driver, false},
    {"devices", "GPU libraries", check_gpu_libraries, false},
    {"devices", "GPU modes", check_gpu_modes, false},
    {"devices", "GPU memory", check_gpu_memory, false},
    {"devices", "GPU errors", check_gpu_errors, false},
    {"devices", "GPU clocks", check_gpu_clocks, false},
    {"devices", "GPU links", check_gpu_links, false},
    {"limits", "open files", check_files, false},
    {"limits", "processes", check_processes, false},
    {"limits", "locked memory", check_locked, false},
    {"limits", "reserving memory", check_overcommit, false},
    {"limits", "shared memory", check_shm, false},
    {"limits", "temporary files", check_tmp, false},
    {"limits", "somaxconn", check_backlog, false},
    {"names", "own name", check_name, false},
    {"names", "MASTER_ADDR", check_master, true},
    {"names", "interfaces", check_interfaces, false},
    {"names", "MTU", check_mtu, false},
    {"ports", "listening", check_port, false},
    {"ports", "outgoing", check_outgoing, false},
    {"ports", "usual", check_usual_ports, false},
    {"store", "round trip", check_store, true},
    {"hosts", "messages", check_pairs, true},
    {"sums", "all-reduce", check_sums, true},
};

void doctor_judge(const struct doctor_view *v, struct doctor_report *r)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (!rows[i].in_job || !v->alone) {
            r->group = rows[i].group;
            r->check = rows[i].name;
            rows[i].check(v, r);
        }
    }
}
