/* Two processes watch each other, and a third one both. The guard waits for signals and for the
 * agent; the agent asks for TERM when the guard dies and then sees that its parent is another
 * one. Both are child subreapers, so a worker's child that went into a session of its own comes
 * back to one of them and can be found among its descendants. The sweeper, a child of the guard,
 * sleeps until both are gone: then they were killed, and it ends what they cannot end any more.
 * Otherwise it ends with the guard's other descendants. */
#include "launcher/workers/guard.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/text.h"
#include "launcher/output/console.h"
#include "launcher/workers/leftovers.h"
#include "launcher/workers/process.h"
#include "launcher/workers/shared_files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONSOLE_S 0.2 /* a console that does not read is tried again */
/* the guard looks for what an earlier job has left, and the job is under way by then */
#define LOOK_S 0.2

static pid_t guard_pid; /* written once, before the agent does anything */
static struct lifetime {
    _Atomic int64_t until_ns; /* 0: no limit */
} * lifetime;                 /* shared by the two */

struct family {
    pid_t *list;
    size_t count, capacity;
};

/* Children that the guard was born with: of a shell that became dtrun by exec, as one that had
 * its output go through tee. They are not the job's. */
static struct family inherited;

static bool is_inherited(pid_t pid)
{
    bool found = false;
    for (size_t i = 0; i < inherited.count; i++) {
        found = found || inherited.list[i] == pid;
    }
    return found;
}

/* Its number may be another process's from now on. */
static void forget_inherited(pid_t pid)
{
    for (size_t i = 0; i < inherited.count; i++) {
        if (inherited.list[i] == pid) {
            inherited.list[i] = inherited.list[--inherited.count];
            return;
        }
    }
}

static pid_t agent_group, sweeper;

/* What these start comes to the guard when they end. Workers have sessions of their own, out of
 * which nobody comes back into ours; what else the agent starts is in its group. */
static bool is_of_the_shell(pid_t pid)
{
    return agent_group > 0 && pid != sweeper && getsid(pid) == getsid(0) && getpgid(pid) != agent_group;
}

static void family_add(struct family *f, pid_t pid)
{
    if (is_inherited(pid) || is_of_the_shell(pid)) {
        return;
    }
    if (f->count == f->capacity) {
        f->capacity = f->capacity > 0 ? f->capacity * 2 : 64;
        f->list = dt_realloc(f->list, f->capacity * sizeof *f->list);
    }
    f->list[f->count++] = pid;
}

/* Adds the children that one thread of pid has made. False: the kernel does not tell (no /proc,
 * or built without these files). */
static bool add_children_of_thread(struct family *f, pid_t pid, const char *thread)
{
    char path[128], text[4096];
    (void)snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)pid, thread);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    while (fscanf(file, "%32s", text) == 1) {
        family_add(f, (pid_t)atoi(text));
    }
    (void)fclose(file);
    return true;
}

static void add_children(struct family *f, pid_t pid)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    if (tasks == NULL) {
        return; /* it is gone */
    }
    for (struct dirent *e = readdir(tasks); e != NULL; e = readdir(tasks)) {
        if (isdigit((unsigned char)e->d_name[0])) {
            (void)add_children_of_thread(f, pid, e->d_name);
        }
    }
    (void)closedir(tasks);
}

static bool kernel_lists_children(void)
{
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    return access(path, R_OK) == 0;
}

/* The slow way: parents of all processes, again and again until no more belong to us. */
static void scan_all(struct family *f, pid_t root)
{
    size_t before;
    do {
        before = f->count;
        DIR *all = opendir("/proc");
        if (all == NULL) {
            return;
        }
        for (struct dirent *e = readdir(all); e != NULL; e = readdir(all)) {
            char path[300], text[512];
            int parent = 0;
            (void)snprintf(path, sizeof path, "/proc/%s/stat", e->d_name);
            FILE *file = isdigit((unsigned char)e->d_name[0]) ? fopen(path, "re") : NULL;
            if (file == NULL) {
                continue;
            }
            size_t size = fread(text, 1, sizeof text - 1, file);
            (void)fclose(file);
            text[size] = 0;
            char *name_end = strrchr(text, ')');
            pid_t pid = (pid_t)atoi(e->d_name);
            bool ours = false, known = false;
            if (name_end != NULL && sscanf(name_end + 1, " %*c %d", &parent) == 1) {
                ours = parent == root;
                for (size_t i = 0; i < f->count; i++) {
                    ours = ours || f->list[i] == parent;
                    known = known || f->list[i] == pid;
                }
            }
            if (ours && !known) {
                family_add(f, pid);
            }
        }
        (void)closedir(all);
    } while (f->count > before);
}

/* Without a /proc of our own nobody is found, rather than somebody else's processes of these
 * numbers. */
static void add_descendants(struct family *f, pid_t root)
{
    if (!process_numbers_are_ours()) {
        return;
    }
    if (!kernel_lists_children()) {
        scan_all(f, root);
        return;
    }
    add_children(f, root);
    for (size_t i = 0; i < f->count; i++) {
        add_children(f, f->list[i]);
    }
}

struct process_use guard_use(pid_t pid)
{
    struct family f = {0};
    struct process_use sum = {0};
    process_add_use(pid, &sum);
    add_descendants(&f, pid);
    for (size_t i = 0; i < f.count; i++) {
        process_add_use(f.list[i], &sum);
    }
    free(f.list);
    return sum;
}

static bool has_descendants(pid_t root)
{
    struct family f = {0};
    add_descendants(&f, root);
    free(f.list);
    return f.count > 0;
}

static int kill_descendants(pid_t root)
{
    struct family f = {0};
    int count = 0;
    add_descendants(&f, root);
    for (size_t i = 0; i < f.count; i++) {
        count += kill(f.list[i], SIGKILL) == 0;
    }
    free(f.list);
    return count;
}

int guard_descendants(pid_t *out, int max, bool *dying)
{
    struct family f = {0};
    struct process_look look;
    int count = 0;
    *dying = false;
    add_descendants(&f, getpid());
    for (size_t i = 0; i < f.count && count < max; i++) {
        if (kill(f.list[i], 0) != 0) {
            continue;
        }
        if (process_look(f.list[i], &look) && look.state != 'Z') {
            out[count++] = f.list[i];
        } else {
            *dying = true;
        }
    }
    free(f.list);
    return count;
}

int guard_kill_descendants(void)
{
    return kill_descendants(getpid());
}

bool guard_end_descendants(double timeout_s)
{
    double end_s = dt_now_s() + timeout_s;
    sigset_t child;
    (void)sigemptyset(&child);
    (void)sigaddset(&child, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &child, NULL);
    for (;;) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
            forget_inherited(pid);
        }
        if ((pid < 0 && errno == ECHILD) || (process_numbers_are_ours() && !has_descendants(getpid()))) {
            return true;
        }
        if (dt_now_s() > end_s) {
            return false;
        }
        (void)guard_kill_descendants();
        struct timespec wait = {.tv_nsec = 20 * 1000 * 1000}; /* a child of a killed child may
                                                               * come to us without a signal */
        (void)sigtimedwait(&child, NULL, &wait);
    }
}

bool guard_alive(void)
{
    return getppid() == guard_pid;
}

pid_t guard_group(void)
{
    return getpgid(guard_pid);
}

void guard_workers_until(double until_s)
{
    if (lifetime != NULL && atomic_exchange(&lifetime->until_ns, (int64_t)(until_s * 1e9)) == 0 && until_s > 0) {
        (void)kill(guard_pid, SIGCHLD); /* it sleeps without end while there is no limit */
    }
}

static double lifetime_left_s(void)
{
    int64_t until_ns = atomic_load(&lifetime->until_ns);
    return until_ns == 0 ? INFINITY : (double)until_ns / 1e9 - dt_now_s();
}

bool guard_workers_overdue(void)
{
    return lifetime != NULL && lifetime_left_s() <= 0;
}

/* Ends what the agent has started when its time is over. Returns for how long to wait for
 * signals now. */
static double end_overdue(pid_t agent)
{
    static bool apart;
    static int64_t said_ns; /* for this time it has been said; dead ones stay until the agent
                             * takes their status */
    double left_s = lifetime_left_s();
    if (left_s > 0) {
        return isinf(left_s) ? 3600 : fmin(left_s, 1);
    }
    if (!apart) { /* the agent may have taken every descriptor, and we need some */
        apart = true;
        shared_files_part();
    }
    int killed = kill_descendants(agent);
    if (killed > 0 && said_ns != atomic_load(&lifetime->until_ns)) {
        said_ns = atomic_load(&lifetime->until_ns);
        console_say("dtrun: agent (pid %d): no word from the other hosts for so long that they may go on without this "
                    "one: %d process%s killed\n",
                    (int)agent, killed, killed == 1 ? "" : "es");
    }
    return killed > 0 ? 0.05 : 1; /* some may just have forked */
}

/* Reaps; true when the agent is gone, with its status. An agent that stopped after Ctrl-Z stops
 * us too, so that the shell sees it. */
static bool reap(pid_t agent, bool *suspending, int *status)
{
    int s;
    pid_t pid;
    while ((pid = waitpid(-1, &s, WNOHANG | WUNTRACED)) > 0 || (pid < 0 && errno == EINTR)) {
        if (pid != agent) {
            if (pid > 0 && !WIFSTOPPED(s)) {
                forget_inherited(pid);
            }
            continue;
        }
        if (!WIFSTOPPED(s)) {
            *status = s;
            return true;
        }
        if (*suspending) {
            *suspending = false;
            (void)raise(SIGSTOP);
        }
    }
    return false;
}

static _Noreturn void keep(pid_t agent, const sigset_t *signals, void (*ending)(int code))
{
    int status = 0;
    bool suspending = false, gone = false;
    double begun_s = dt_now_s();
    struct leftovers before = {.begun_s = begun_s, .look_at_s = begun_s + LOOK_S};
    while (!gone) {
        double wait_s = fmin(end_overdue(agent), leftovers_step(&before, agent, dt_now_s()));
        struct timespec wait = dt_timespec(console_turn() ? fmin(wait_s, CONSOLE_S) : wait_s);
        int sig = sigtimedwait(signals, NULL, &wait);
        if (sig == SIGCHLD) {
            gone = reap(agent, &suspending, &status);
        } else if (sig > 0) {
            suspending = sig == SIGTSTP || (suspending && sig != SIGCONT);
            (void)kill(agent, sig);
        }
    }
    shared_files_trim();
    bool all_gone = guard_end_descendants(5);
    shared_files_end(1); /* not before: for the other hosts it means that nothing of ours runs
                          * any more */
    bool stopped = WIFSIGNALED(status) && (WTERMSIG(status) == SIGINT || WTERMSIG(status) == SIGTERM);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : stopped ? 128 + WTERMSIG(status) : DT_EXIT_TEMPORARY;
    if (WIFSIGNALED(status)) {
        console_say(
            "dtrun: agent (pid %d): killed by signal %d (%s): its workers were ended with it; start the job again\n",
            (int)agent, WTERMSIG(status), sigabbrev_np(WTERMSIG(status)));
    }
    if (code != 0) {
        leftovers_end(&before, agent);
    }
    if (!all_gone) {
        console_say("dtrun: guard: a process of this job does not die: %s\n",
                    !process_numbers_are_ours()
                        ? "without a /proc of this PID namespace it cannot be found; look for it in ps"
                    : guard_kill_descendants() > 0 ? "it hangs in the kernel; look for state D in ps"
                                                   : "it belongs to another user; look for it in ps");
    }
    console_close(CONSOLE_STALL_S);
    ending(code);
    _exit(code);
}

/* ---- the sweeper ---- */

#define SWEEP_S 5.0 /* what takes no KILL for so long hangs in the kernel, or is another user's */

/* A descriptor that is readable when the process has ended; -1: it is gone already, or the
 * kernel cannot. */
static int watch(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

static void await_end(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
}

static _Noreturn void sweep(pid_t agent)
{
    int killed = 0;
    (void)prctl(PR_SET_NAME, LEFTOVERS_SWEEPER);
    (void)close(0);
    (void)close(1);
    if (syscall(SYS_close_range, 3u, ~0u, 0u) != 0) { /* what the agent has opened by now would
                                                       * live on with us */
        _exit(0);
    }
    int fds[2] = {watch(guard_pid), watch(agent)};
    if (fds[0] < 0 || fds[1] < 0 || getppid() != guard_pid) { /* gone before we looked: their
                                                               * numbers prove nothing any more */
        _exit(0);
    }
    await_end(fds[0]);
    await_end(fds[1]);
    double end_s = dt_now_s() + SWEEP_S;
    /* our parent now is who gets all whose parents are gone */
    while (leftovers_kill(agent, getppid(), &killed) > 0 && dt_now_s() < end_s) {
        dt_sleep_s(0.02);
    }
    if (killed > 0) {
        (void)dprintf(2,
                      "dtrun: guard (pid %d) and agent (pid %d) were killed: what the workers had started was ended\n",
                      (int)guard_pid, (int)agent);
    }
    _exit(0);
}

/* Without one (no process to be had, a kernel before 5.9, no /proc by which to find anything)
 * the job is as good as others. */
static void start_sweeper(pid_t agent)
{
    sweeper = process_numbers_are_ours() ? fork() : -1;
    if (sweeper == 0) {
        sweep(agent);
    }
}

int guard_open(const bool handled[65], void (*ending)(int code), struct dt_error *err)
{
    sigset_t signals, before;
    process_wishes(handled, &signals);
    (void)sigaddset(&signals, SIGCONT);
    (void)sigaddset(&signals, SIGCHLD);
    struct sigaction plain = {.sa_handler = SIG_DFL}; /* an ignored CHLD, inherited, would hide
                                                       * exit codes */
    (void)sigaction(SIGCHLD, &plain, NULL);
    (void)sigprocmask(SIG_BLOCK, &signals, &before);
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    guard_pid = getpid();
    lifetime = mmap(NULL, sizeof *lifetime, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lifetime == MAP_FAILED) {
        lifetime = NULL;
        return dt_fail_errno(err, "a page of memory for the guard");
    }
    siginfo_t any;
    /* else there are no children, mostly */
    if (waitid(P_ALL, 0, &any, WEXITED | WNOHANG | WNOWAIT) == 0) {
        struct family born = {0};
        add_descendants(&born, getpid());
        inherited = born;
    }
    pid_t agent = shared_files_fork();
    if (agent < 0) {
        (void)sigprocmask(SIG_SETMASK, &before, NULL);
        return dt_fail_errno(err, "cannot start the agent process");
    }
    agent_group = agent > 0 ? agent : getpid();
    if (agent > 0) {
        (void)setpgid(agent, agent);
        start_sweeper(agent);
        (void)dt_file_raise_limit();    /* as the agent does: its descriptors are ours */
        (void)signal(SIGPIPE, SIG_IGN); /* our code comes to whoever waits for us, even if nobody
                                         * reads what we say */
        console_open_alone();           /* a thread would keep the agent's descriptors open */
        keep(agent, &signals, ending);
    }
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_NAME, "dtrun-agent");
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    inherited.count = 0; /* ours are others */
    /* The mask stays until the agent's handlers are there: a signal sent in between must not
     * kill it. */
    return guard_alive() ? 0 : dt_fail(err, DT_STOPPED, "the guard was killed at once");
}
