#include "launcher/workers/leftovers.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "launcher/net/runtime_folder.h"
#include "launcher/output/console.h"
#include "launcher/workers/process.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RUNS = 8, NAMED = 8, NUMBERED = 1024, ENVIRON_BYTES = 4 << 20, DEPTH = 64 };

static const double again_s = 1, soon_s = 0.2;

/* The value of a variable in the text of /proc/PID/environ; null: not set. */
static const char *value_of(const struct dt_text *environ_text, const char *name)
{
    size_t size = strlen(name);
    for (size_t at = 0; at < environ_text->size; at += strlen(environ_text->data + at) + 1) {
        if (strncmp(environ_text->data + at, name, size) == 0 && environ_text->data[at + size] == '=') {
            return environ_text->data + at + size + 1;
        }
    }
    return NULL;
}

/* The agent that DTRUN_PAGE names (base/page.h) is gone; its number may be another process's by
 * now. */
static bool has_lost_its_agent(const char *page)
{
    char name[DT_PROC_NAME_BYTES];
    int pid;
    return sscanf(page, "/proc/%d/fd/", &pid) == 1 && strcmp(dt_proc_name((pid_t)pid, name), "dtrun-agent") != 0;
}

/* Whether the process is the same user's, in the same PID namespace. */
static bool is_of_ours(const char *pid)
{
    char path[300];
    struct stat st, theirs, ours;
    (void)snprintf(path, sizeof path, "/proc/%s", pid);
    if (stat(path, &st) != 0 || st.st_uid != geteuid()) {
        return false;
    }
    (void)snprintf(path, sizeof path, "/proc/%s/ns/pid", pid);
    return stat(path, &theirs) == 0 && stat("/proc/self/ns/pid", &ours) == 0 && theirs.st_ino == ours.st_ino &&
           theirs.st_dev == ours.st_dev;
}

static bool read_environ(const char *pid, struct dt_text *out)
{
    char path[300];
    dt_text_reset(out);
    (void)snprintf(path, sizeof path, "/proc/%s/environ", pid);
    return dt_file_read(path, ENVIRON_BYTES, out, NULL) == 0 && out->size > 0;
}

/* The remains of one run. */
struct remains {
    char run_id[160]; /* text about the run id; "" if it cannot be shown */
    int count;
    struct dt_text who, numbers;
};

/* "1 process of an earlier job (run id x) outlived dtrun, ...". */
static void tell(const struct remains *m, struct dt_text *out)
{
    char host[256] = "";
    (void)gethostname(host, sizeof host - 1);
    dt_text_printf(out,
                   "dtrun: host %s: %d process%s of an earlier job%s outlived dtrun, which was killed with its guard: "
                   "%s; end %s with: kill%s%s\n",
                   host, m->count, m->count == 1 ? "" : "es", m->run_id, dt_text_str(&m->who),
                   m->count == 1 ? "it" : "them", dt_text_str(&m->numbers), m->count > NUMBERED ? " ..." : "");
}

/* The remains of that run id. The last entry takes all that find no place. */
static struct remains *remains_of(struct remains *list, int *used, const char *id)
{
    char run_id[160] = "";
    if (strspn(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == strlen(id)) {
        (void)snprintf(run_id, sizeof run_id, " (run id %.128s)", id);
    }
    for (int i = 0; i < *used; i++) {
        if (strcmp(list[i].run_id, run_id) == 0) {
            return &list[i];
        }
    }
    struct remains *m = &list[*used];
    if (*used == RUNS - 1) {
        run_id[0] = '\0';
    } else {
        ++*used;
    }
    (void)strcpy(m->run_id, run_id);
    return m;
}

static void add_process(struct remains *m, pid_t pid)
{
    char name[DT_PROC_NAME_BYTES];
    struct dt_list names = {.text = &m->who, .most = NAMED, .count = m->count};
    dt_list_add(&names, "pid %d (%s)", (int)pid, dt_proc_name(pid, name));
    if (m->count++ < NUMBERED) { /* a command that can be run as it is */
        dt_text_printf(&m->numbers, " %d", (int)pid);
    }
}

/* Finds the next process in /proc that comes from a worker of a job, by its environment, among
 * processes of this user and PID namespace. Reads its environment into env. Returns its DTRUN_PAGE,
 * or null at the end. */
static const char *next_of_a_job(DIR *all, struct dt_text *env, pid_t *pid)
{
    for (const struct dirent *e; all != NULL && (e = readdir(all)) != NULL;) {
        *pid = isdigit((unsigned char)e->d_name[0]) ? (pid_t)atoi(e->d_name) : 0;
        const char *page = *pid != 0 && *pid != getpid() && is_of_ours(e->d_name) && read_environ(e->d_name, env)
                               ? value_of(env, "DTRUN_PAGE")
                               : NULL;
        if (page != NULL) {
            return page;
        }
    }
    return NULL;
}

static DIR *open_proc(void)
{
    return process_numbers_are_ours() ? opendir("/proc") : NULL;
}

static void close_proc(DIR *all)
{
    if (all != NULL) {
        (void)closedir(all);
    }
}

/* Finds processes whose agent is gone, other than `agent` and the caller. Returns their number (-1:
 * /proc cannot be read). Appends a line for each run id that names up to 8 processes and the
 * command to end them. */
static int find(pid_t agent, struct dt_text *out)
{
    pid_t pid;
    /* set if a worker submitted this job with its environment; the process that started us has it,
     * too */
    const char *page, *own = getenv("DTRUN_PAGE");
    struct remains list[RUNS] = {0};
    struct dt_text env;
    dt_text_init(&env);
    DIR *all = open_proc();
    int used = 0, count = all != NULL ? 0 : -1;
    while ((page = next_of_a_job(all, &env, &pid)) != NULL) {
        /* every worker has a run id; without one DTRUN_PAGE was set by something else */
        const char *run_id = value_of(&env, "TORCHELASTIC_RUN_ID");
        if (pid != agent && run_id != NULL && (own == NULL || strcmp(page, own) != 0) && has_lost_its_agent(page)) {
            add_process(remains_of(list, &used, run_id), pid);
            count++;
        }
    }
    close_proc(all);
    for (int i = 0; i < RUNS; i++) {
        if (list[i].count > 0) {
            tell(&list[i], out);
        }
        dt_text_clear(&list[i].who);
        dt_text_clear(&list[i].numbers);
    }
    dt_text_clear(&env);
    return count;
}

/* Whether the process comes from a worker of the agent whose pages have this prefix. */
static bool comes_from(pid_t pid, const char *prefix, struct dt_text *env)
{
    char number[16];
    (void)snprintf(number, sizeof number, "%d", (int)pid);
    const char *page = is_of_ours(number) && read_environ(number, env) ? value_of(env, "DTRUN_PAGE") : NULL;
    return page != NULL && strncmp(page, prefix, strlen(prefix)) == 0;
}

/* Whether all ancestors of the process up to the reaper come from the same agent. A process with
 * another parent belongs to that parent. */
static bool is_below(pid_t parent, pid_t reaper, const char *prefix, struct dt_text *env)
{
    struct dt_proc_look look;
    for (int depth = 0; depth < DEPTH && parent != reaper; depth++) {
        if (parent <= 1 || !comes_from(parent, prefix, env) || !dt_proc_look(parent, &look)) {
            return false;
        }
        parent = look.parent;
    }
    return parent == reaper;
}

int leftovers_kill(pid_t agent, pid_t reaper, int *killed)
{
    int count = 0;
    pid_t pid;
    char prefix[64], name[DT_PROC_NAME_BYTES];
    const char *page;
    struct dt_proc_look look;
    struct dt_text env;
    dt_text_init(&env);
    (void)snprintf(prefix, sizeof prefix, "/proc/%d/fd/", (int)agent);
    DIR *all = open_proc();
    while ((page = next_of_a_job(all, &env, &pid)) != NULL) {
        /* a job's within this one: it ends by itself */
        bool apart =
            strncmp(page, prefix, strlen(prefix)) != 0 || strcmp(dt_proc_name(pid, name), LEFTOVERS_SWEEPER) == 0;
        if (!apart && dt_proc_look(pid, &look) && look.state != 'Z' && is_below(look.parent, reaper, prefix, &env)) {
            count++;
            *killed += look.parent == reaper && kill(pid, SIGKILL) == 0;
        }
    }
    close_proc(all);
    dt_text_clear(&env);
    return count;
}

/* ---- one look for all jobs of this user ---- */

/* Opens the file in the folder of status sockets with the time when the newest look began that
 * found nothing. -1: none. */
static int open_looked(void)
{
    int fd = -1;
    char *folder;
    for (int i = 0; fd < 0 && (folder = runtime_folder(i)) != NULL; i++) {
        struct dt_error ignored;
        char *path = dt_format("%s/looked", folder);
        fd = runtime_folder_check(folder, false, &ignored) == 0
                 ? open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)
                 : -1;
        free(path);
        free(folder);
    }
    return fd;
}

/* Another PID namespace may share the folder. */
static unsigned long long namespace_number(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (unsigned long long)st.st_ino : 0;
}

static bool has_looked_since(int fd, double since_s)
{
    char text[64] = "";
    unsigned long long where = 0;
    double at_s = 0;
    /* a later time comes from another boot */
    return pread(fd, text, sizeof text - 1, 0) > 0 && sscanf(text, "%llu %lf", &where, &at_s) == 2 &&
           where == namespace_number() && at_s >= since_s && at_s <= dt_now_s();
}

static void note_looked(int fd, double at_s)
{
    char text[64];
    int size = snprintf(text, sizeof text, "%llu %.6f\n", namespace_number(), at_s);
    /* if it fails, other jobs look themselves */
    (void)!(ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)size, 0) == size);
}

/* ---- looks ---- */

/* Calls find. say: print the result. */
static int look(pid_t agent, bool say)
{
    struct dt_text line;
    dt_text_init(&line);
    int count = find(agent, &line);
    if (say && count > 0) {
        console_write(dt_text_str(&line), line.size);
    }
    dt_text_clear(&line);
    return count;
}

double leftovers_step(struct leftovers *l, pid_t agent, double now_s)
{
    if (l->done) {
        return INFINITY;
    }
    if (now_s < l->look_at_s) {
        return l->look_at_s - now_s;
    }
    int fd = l->seen ? -1 : open_looked();
    /* another job is looking, which may save us our look */
    bool waits = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
    l->look_at_s = now_s + again_s;
    if (!waits) {
        bool known = fd >= 0 && has_looked_since(fd, l->begun_s);
        int count = known ? 0 : look(agent, l->seen);
        l->done = l->seen || count <= 0;
        l->seen = true;
        /* without these conditions the look may have missed something */
        if (fd >= 0 && !known && count == 0 && getenv("DTRUN_PAGE") == NULL) {
            note_looked(fd, now_s);
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return l->done ? INFINITY : again_s;
}

void leftovers_end(struct leftovers *l, pid_t agent)
{
    double end_s = dt_now_s() + again_s;
    int count = l->done ? 0 : look(agent, false);
    while (count > 0 && dt_now_s() < end_s) {
        dt_sleep_s(soon_s);
        count = look(agent, false);
    }
    if (count > 0) {
        (void)look(agent, true);
    }
    l->done = true;
}
