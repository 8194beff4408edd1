/* The table of what is looked at, and the rows about this machine: versions, choices, CPUs,
 * memory, limits, folders, clock. Names, interfaces and ports are in doctor_look_net.c. A row
 * only reads; one that the machine does not answer leaves its facts out. */
#include "cmd/doctor/look.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/file.h"
#include "launcher/workers/cpus.h"
#include "launcher/options/env.h"
#include "launcher/options/options.h"

#include <errno.h>
#include <gnu/libc-version.h>
#include <pthread.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <unistd.h>

#define FILE_BYTES ((size_t)1 << 20)
#define NO_LIMIT 1e18 /* memory limits of control groups above it are none */

double look_size_after(const char *text, const char *key)
{
    size_t n = strlen(key);
    for (const char *line = text; line != NULL && *line != '\0';
         line = strchr(line, '\n'), line = line != NULL ? line + 1 : NULL) {
        double value;
        char unit[8] = "";
        if (strncmp(line, key, n) == 0 && line[n] == ':') {
            return sscanf(line + n + 1, " %lf %7s", &value, unit) >= 1 ? value * (strcmp(unit, "kB") == 0 ? 1024 : 1)
                                                                       : -1;
        }
    }
    return -1;
}

int look_cpu_list(const char *text, uint8_t *set, int bytes)
{
    memset(set, 0, (size_t)bytes);
    int count = 0;
    for (; *text != '\0' && *text != '\n'; text += *text == ',') {
        int lo, hi, used = 0;
        if (sscanf(text, "%6d%n", &lo, &used) != 1 || lo < 0) {
            return -1;
        }
        text += used;
        hi = lo;
        if (*text == '-') {
            if (sscanf(text, "-%6d%n", &hi, &used) != 1) {
                return -1;
            }
            text += used;
        }
        if (hi < lo || hi >= bytes * 8 || (*text != ',' && *text != '\0' && *text != '\n')) {
            return -1;
        }
        for (int i = lo; i <= hi; i++) {
            count += (set[i / 8] >> (i % 8) & 1) == 0;
            set[i / 8] |= (uint8_t)(1 << (i % 8));
        }
    }
    return count;
}

/* A file of /proc or /sys as text; "" when it cannot be read. */
static void read_text(const char *path, struct dt_text *out)
{
    dt_text_reset(out);
    if (dt_file_read(path, FILE_BYTES, out, NULL) != 0) {
        dt_text_reset(out);
    }
}

static bool read_number(const char *path, double *out)
{
    struct dt_text text;
    dt_text_init(&text);
    read_text(path, &text);
    char *end = text.data != NULL ? strchr(text.data, '\n') : NULL;
    if (end != NULL) {
        *end = '\0';
    }
    bool well = dt_parse_double(dt_text_str(&text), out);
    dt_text_clear(&text);
    return well;
}

static void set_number_of(struct facts *f, const char *name, const char *path)
{
    double value;
    if (read_number(path, &value)) {
        facts_set(f, name, "%.17g", value);
    }
}

static void look_versions(struct facts *f, char *const *env)
{
    (void)env;
    struct utsname u;
    struct dt_text boot;
    dt_text_init(&boot);
    read_text("/proc/sys/kernel/random/boot_id", &boot); /* the same for all containers of a
                                                          * machine */
    facts_set(f, "boot", "%.*s", (int)strcspn(dt_text_str(&boot), "\n"), dt_text_str(&boot));
    dt_text_clear(&boot);
    facts_set(f, "version", "%s", DT_VERSION);
    facts_set(f, "libc", "%s", gnu_get_libc_version());
    if (uname(&u) == 0) {
        facts_set(f, "kernel", "%s", u.release);
        facts_set(f, "machine", "%s", u.machine);
        facts_set(f, "host", "%.60s", u.nodename);
    }
}

/* Variables that dtrun gives a worker: not what surrounds the launcher. */
static bool is_ours(const char *variable)
{
    static const char *const begins[] = {"TORCHELASTIC_", "GROUP_", "ROLE_",       "LOCAL_",
                                         "MASTER_",       "RANK=",  "WORLD_SIZE=", "DTRUN_"};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++) {
        if (strncmp(variable, begins[i], strlen(begins[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* "slurm, job 77 (SLURM_JOB_ID), hosts 2 (SLURM_NNODES)": the lines of --dry_run, joined. */
static void set_cluster(struct facts *f, const struct cluster *c)
{
    struct dt_text lines, joined;
    dt_text_init(&lines);
    dt_text_init(&joined);
    cluster_describe(c, &lines);
    char *rest = lines.data;
    for (char *line; rest != NULL && (line = strsep(&rest, "\n")) != NULL;) {
        if (strlen(line) > 10) {
            dt_text_printf(&joined, "%s%s", joined.size > 0 ? ", " : "", line + 10);
        }
    }
    facts_set(f, "scheduler", "%s", dt_text_str(&joined));
    dt_text_clear(&lines);
    dt_text_clear(&joined);
}

/* The launcher's choices and their sources: as the launcher told this worker, or, without a
 * launcher, as it would choose here. */
static void look_launch(struct facts *f, char *const *env)
{
    const char *choices = options_getenv(env, "DTRUN_CHOICES");
    struct dt_error err;
    struct cluster cluster;
    size_t count = 0, kept = 0;
    while (env[count] != NULL) {
        count++;
    }
    char **outer = dt_alloc((count + 1) * sizeof *outer);
    for (size_t i = 0; i < count; i++) {
        if (choices == NULL || !is_ours(env[i])) {
            outer[kept++] = env[i];
        }
    }
    if (cluster_read(&cluster, outer, NULL, &err) == 0) {
        set_cluster(f, &cluster);
    }
    if (choices != NULL) {
        facts_set(f, "choices", "%s", choices);
    } else {
        struct options o;
        char *argv[] = {(char[]){"dtrun"}, (char[]){"doctor"}, NULL};
        if (options_read(&o, 2, argv, outer, &err) != 0) {
            facts_set(f, "choices_error", "%s", err.text);
        } else {
            struct dt_text text;
            dt_text_init(&text);
            env_choices(&o, &text);
            facts_set(f, "choices", "%s", dt_text_str(&text));
            dt_text_clear(&text);
            options_clear(&o);
        }
    }
    free(outer);
}

static void look_python(struct facts *f, char *const *env)
{
    struct options o = {.entry = OPTIONS_ENTRY_MODULE, .program = (char[]){"none"}};
    struct dt_arena arena;
    struct dt_error err;
    char *path, **argv;
    dt_arena_init(&arena);
    if (env_command(&o, 0, env, &arena, &path, &argv, &err) == 0) {
        facts_set(f, "python", "%s", path);
    } else {
        facts_set(f, "python_error", "%s", err.text);
    }
    dt_arena_clear(&arena);
}

/* "0-3,8" of an affinity mask. */
static void set_cores(struct facts *f)
{
    struct cpus allowed;
    struct dt_text text;
    if (cpus_allowed(&allowed, NULL) != 0) {
        return;
    }
    dt_text_init(&text);
    cpus_print(&allowed, &text);
    facts_set(f, "cores", "%s", dt_text_str(&text));
    facts_set(f, "cores_allowed", "%d", cpus_count(&allowed));
    dt_text_clear(&text);
}

static void look_cpus(struct facts *f, char *const *env)
{
    struct dt_text text;
    const char *omp = options_getenv(env, "OMP_NUM_THREADS");
    dt_text_init(&text);
    set_cores(f);
    facts_set(f, "cores_usable", "%d", options_cpu_count()); /* bounded by the control group's
                                                              * quota */
    read_text("/proc/cpuinfo", &text);
    const char *model = strstr(dt_text_str(&text), "model name");
    model = model != NULL ? strchr(model, ':') : NULL;
    if (model != NULL) {
        facts_set(f, "cpu", "%.*s", (int)strcspn(model + 2, "\n"), model + 2);
    }
    if (omp != NULL) {
        facts_set(f, "omp", "%s", omp);
    }
    dt_text_clear(&text);
}

/* The least of a limit over the control groups around this process; -1: none. */
static double group_limit(const char *controller, const char *name_2, const char *name_1)
{
    struct dt_cgroup folders[DT_CGROUP_MAX];
    double least = -1;
    int count = dt_cgroup_folders(controller, folders);
    for (int i = 0; i < count; i++) {
        double value;
        char *path = dt_format("%s/%s", folders[i].path, folders[i].version_2 ? name_2 : name_1);
        if (read_number(path, &value) && value < NO_LIMIT && (least < 0 || value < least)) {
            least = value;
        }
        free(path);
    }
    return least;
}

static void look_memory(struct facts *f, char *const *env)
{
    (void)env;
    struct dt_text text;
    dt_text_init(&text);
    read_text("/proc/meminfo", &text);
    facts_set(f, "memory", "%.0f", look_size_after(dt_text_str(&text), "MemTotal"));
    facts_set(f, "memory_free", "%.0f", look_size_after(dt_text_str(&text), "MemAvailable"));
    facts_set(f, "memory_limit", "%.0f", group_limit("memory", "memory.max", "memory.limit_in_bytes"));
    facts_set(f, "pids_limit", "%.0f", group_limit("pids", "pids.max", "pids.max"));
    set_number_of(f, "overcommit", "/proc/sys/vm/overcommit_memory");
    dt_text_clear(&text);
}

static void look_limits(struct facts *f, char *const *env)
{
    (void)env;
    static const struct {
        const char *name;
        __rlimit_resource_t what;
    } limits[] = {{"files", RLIMIT_NOFILE},
                  {"processes", RLIMIT_NPROC},
                  {"locked", RLIMIT_MEMLOCK},
                  {"address_space", RLIMIT_AS}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct rlimit l;
        if (getrlimit(limits[i].what, &l) == 0) { /* -1: unlimited */
            char hard[32];
            (void)snprintf(hard, sizeof hard, "%s_hard", limits[i].name);
            facts_set(f, limits[i].name, "%.0f", l.rlim_cur == RLIM_INFINITY ? -1 : (double)l.rlim_cur);
            facts_set(f, hard, "%.0f", l.rlim_max == RLIM_INFINITY ? -1 : (double)l.rlim_max);
        }
    }
    facts_set(f, "root", "%d", geteuid() == 0);
    facts_set(f, "rdma", "%d", dt_file_exists("/sys/class/infiniband"));
    set_number_of(f, "backlog", "/proc/sys/net/core/somaxconn");
}

static void look_folders(struct facts *f, char *const *env)
{
    const char *tmp = options_getenv(env, "TMPDIR");
    struct statvfs s;
    tmp = tmp != NULL && tmp[0] != '\0' ? tmp : "/tmp";
    if (statvfs("/dev/shm", &s) == 0) {
        facts_set(f, "shm", "%.0f", (double)s.f_blocks * (double)s.f_frsize);
        facts_set(f, "shm_free", "%.0f", (double)s.f_bavail * (double)s.f_frsize);
    }
    facts_set(f, "tmp", "%s", tmp);
    facts_set(f, "tmp_free", "%.0f", dt_file_free_bytes(tmp));
    char *path = dt_format("%s/dtrun-doctor-XXXXXX", tmp);
    int fd = mkstemp(path);
    if (fd < 0) {
        facts_set(f, "tmp_error", "%s", strerror(errno));
    } else {
        (void)close(fd);
        (void)unlink(path);
    }
    free(path);
}

static void look_clock(struct facts *f, char *const *env)
{
    (void)env;
    struct timex t = {0};
    int state = adjtimex(&t);
    if (state >= 0) {
        facts_set(f, "clock_synchronised", "%d", state != TIME_ERROR && (t.status & STA_UNSYNC) == 0);
    }
}

/* To look at one more thing: a function, and a row here. */
static const struct {
    const char *name; /* in the message when it does not come back */
    void (*look)(struct facts *f, char *const *env);
} rows[] = {
    {"versions", look_versions},
    {"the launcher's choices", look_launch},
    {"python", look_python},
    {"CPUs", look_cpus},
    {"memory", look_memory},
    {"limits", look_limits},
    {"clock", look_clock},
    {"interfaces", look_interfaces},
    {"names", look_names},
    {"ports", look_ports},
    {"GPUs", look_gpus},
    {"CUDA", look_cuda},
    {"temporary folders", look_folders},
};

/* Shared by the thread that looks and the one that waits for it; freed by whoever is last. */
struct looking {
    pthread_mutex_t lock;
    int done; /* an eventfd: a descriptor can be waited for by any clock */
    struct facts facts;
    size_t row; /* that is being looked at; all: done */
    int users;
    char *const *env;
};

static void leave(struct looking *l)
{
    bool last = --l->users == 0;
    (void)pthread_mutex_unlock(&l->lock);
    if (last) {
        facts_clear(&l->facts);
        (void)close(l->done);
        (void)pthread_mutex_destroy(&l->lock);
        free(l);
    }
}

static void *look_at_all(void *arg)
{
    struct looking *l = arg;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct facts own;
        facts_init(&own);
        rows[i].look(&own, l->env);
        (void)pthread_mutex_lock(&l->lock);
        facts_add(&l->facts, dt_text_str(&own.lines));
        l->row = i + 1;
        (void)pthread_mutex_unlock(&l->lock);
        facts_clear(&own);
    }
    (void)pthread_mutex_lock(&l->lock);
    (void)eventfd_write(l->done, 1);
    leave(l);
    return NULL;
}

void doctor_look(struct facts *f, char *const *env, double seconds)
{
    struct looking *l = dt_alloc(sizeof *l);
    pthread_t thread;
    *l = (struct looking){.done = eventfd(0, EFD_CLOEXEC), .users = 2, .env = env};
    facts_init(&l->facts);
    (void)pthread_mutex_init(&l->lock, NULL);
    double end_s = dt_now_s() + seconds;
    if (pthread_create(&thread, NULL, look_at_all, l) != 0) { /* ulimit -u is small: then without
                                                               * a deadline */
        (void)look_at_all(l);
    } else {
        (void)pthread_detach(thread);
    }
    struct pollfd wait = {.fd = l->done, .events = POLLIN};
    for (double left_s = end_s - dt_now_s(); left_s > 0 && poll(&wait, 1, (int)(left_s * 1e3) + 1) < 0;
         left_s = end_s - dt_now_s()) {
    }
    (void)pthread_mutex_lock(&l->lock);
    facts_add(f, dt_text_str(&l->facts.lines));
    if (l->row < sizeof rows / sizeof rows[0]) {
        facts_set(f, "late", "%s", rows[l->row].name);
    }
    leave(l);
}
