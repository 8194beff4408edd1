/* The spawned child runs in our memory until it executes the program, and the parent waits until
 * then. So a start copies no page tables, and the reason of a failure comes back in a variable. The
 * child makes only system calls. */
#include "launcher/workers/workers.h"

#include "base/clock.h"
#include "base/snapshots.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (64 * 1024)
#define FILES_PER_WORKER 6 /* page, two pipes, files of the logs, a connection to the store */

int workers_open(struct workers *w, int count, int hosts, struct dt_error *err)
{
    memset(w, 0, sizeof *w);
    if (getrlimit(RLIMIT_NOFILE, &w->files) != 0) {
        return dt_fail_errno(err, "limit of open files");
    }
    struct rlimit most = {.rlim_cur = w->files.rlim_max, .rlim_max = w->files.rlim_max};
    rlim_t needed = (rlim_t)count * FILES_PER_WORKER + (rlim_t)(hosts > 0 ? hosts : 0) + 32;
    (void)setrlimit(RLIMIT_NOFILE, &most);
    if (most.rlim_cur < needed) {
        char links[64] = "";
        if (hosts > 0) {
            (void)snprintf(links, sizeof links, " and links with %d other hosts", hosts);
        }
        return dt_fail(err, DT_INVALID,
                       "limit of open files: %llu, %d worker%s%s need%s %llu; raise it with ulimit -Hn",
                       (unsigned long long)most.rlim_cur, count, count == 1 ? "" : "s", links,
                       count == 1 && hosts <= 0 ? "s" : "", (unsigned long long)needed);
    }
    w->list = dt_alloc((size_t)count * sizeof *w->list);
    w->count = count;
    w->snapshot_fd = dt_snapshots_create(count);
    for (int i = 0; i < count; i++) {
        w->list[i].page_fd = -1;
    }
    return 0;
}

int workers_begin(struct workers *w, int round, struct dt_error *err)
{
    workers_end(w);
    for (int i = 0; i < w->count; i++) {
        if (dt_page_create(&w->list[i].page, &w->list[i].page_fd, (uint32_t)round, err) != 0) {
            return -1;
        }
    }
    return 0;
}

struct child {
    const struct spawn *s;
    const struct rlimit *files;
    pid_t parent;
    int error;        /* errno of the failed call */
    const char *what; /* the failed call */
};

#ifdef __SANITIZE_THREAD__
/* The sanitizer's own clone() takes the child for a copy of the process and lets its thread
 * synchronize nothing any more. But our child borrows its parent's thread, which would then report
 * races where there are locks. */
int __clone(int (*run)(void *), void *stack, int flags, void *arg, ...);
#define clone __clone
#endif

/* Sets the child's exit code. The child ends by returning to clone(). The alternative, _exit, never
 * returns, and makes the address sanitizer look for our stack, but this is another stack. */
static int give_up(struct child *c, const char *what)
{
    c->error = errno;
    c->what = what;
    return 127;
}

/* Signals that the user chose to ignore (nohup) stay ignored. PIPE, CHLD and XFSZ are ignored by
 * runtimes (ours, too), not by users. INT, QUIT and TERM that reach a worker are meant for it,
 * because no terminal sends them to its session. If we ignore these, that concerns only us; workers
 * get the defaults, as under torchrun. */
static bool may_stay_ignored(int n)
{
    return n != SIGPIPE && n != SIGCHLD && n != SIGXFSZ && n != SIGINT && n != SIGQUIT && n != SIGTERM && n != SIGTTOU;
}

/* A descriptor 1 or 2 that is also the source of the other must not be overwritten first. Our pipes
 * are always above 2. */
static int child_main(void *arg)
{
    struct child *c = arg;
    struct sigaction plain = {.sa_handler = SIG_DFL}, now;
    for (int n = 1; n < 65; n++) {
        if (n != SIGKILL && n != SIGSTOP && sigaction(n, NULL, &now) == 0 &&
            (now.sa_handler != SIG_IGN || !may_stay_ignored(n))) {
            (void)sigaction(n, &plain, NULL);
        }
    }
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != c->parent) {
        return 127;
    }
    if (c->s->stdin_fd >= 0 && dup2(c->s->stdin_fd, 0) < 0) {
        return give_up(c, "its input");
    }
    if ((c->s->stdout_fd >= 0 && dup2(c->s->stdout_fd, 1) < 0) ||
        (c->s->stderr_fd >= 0 && dup2(c->s->stderr_fd, 2) < 0)) {
        return give_up(c, "its output");
    }
    if (c->s->cpus != NULL && syscall(SYS_sched_setaffinity, 0, sizeof c->s->cpus->words, c->s->cpus->words) != 0) {
        return give_up(c, "its CPUs");
    }
    /* descriptors that we inherited ourselves; an old kernel leaves them open */
    (void)syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC);
    (void)setrlimit(RLIMIT_NOFILE, c->files);
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)execve(c->s->path, c->s->argv, c->s->envp);
    return give_up(c, "cannot be executed");
}

/* Whether a script's first line ends in CR LF. The kernel would look for an interpreter with a CR
 * in its name. */
static bool ends_in_crlf(const char *path)
{
    char line[256];
    dt_proc_read(path, line, sizeof line);
    const char *end = strchr(line, '\n');
    return strncmp(line, "#!", 2) == 0 && end != NULL && end[-1] == '\r';
}

int workers_spawn_plain(const struct workers *w, const struct spawn *s, pid_t *out, struct dt_error *err)
{
    void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        return dt_fail_errno(err, "%s: memory for the start", s->path);
    }
    struct child c = {.s = s, .files = &w->files, .parent = getpid()};
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &before); /* no handler of ours may run in the child */
    int cancelled;
    pid_t pid = clone(child_main, (char *)stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, &c);
    cancelled = errno;
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    (void)munmap(stack, STACK_BYTES);
    if (pid < 0) {
        errno = cancelled;
        return dt_fail_errno(err, "%s: cannot start a process", s->path);
    }
    if (c.what != NULL) {
        (void)waitpid(pid, NULL, 0);
        errno = c.error;
        (void)dt_fail_errno(err, "%s: %s", s->path, c.what);
        bool lasting = c.error == ENOENT || c.error == EACCES || c.error == E2BIG || c.error == ENOEXEC ||
                       c.error == ENOTDIR || c.error == ELOOP;
        if (err != NULL) {
            err->status = lasting ? DT_INVALID : DT_IO;
            const char *hint =
                c.error == ENOEXEC  ? "; a script needs #! and its interpreter in the first line"
                : c.error == EACCES ? "; chmod +x it"
                : ends_in_crlf(s->path)
                    ? "; its first line ends in CR LF, as on Windows; remove the CRs with sed -i 's/\\r$//'"
                : c.error == ENOENT ? "; the interpreter named in its first line, or the loader, is missing"
                : c.error == E2BIG  ? "; arguments and environment together are too long"
                : c.error == EAGAIN ? "; look at ulimit -u and the limit of the control group"
                                    : "";
            size_t used = strlen(err->text);
            (void)snprintf(err->text + used, sizeof err->text - used, "%s", hint);
        }
        return -1;
    }
    *out = pid;
    return 0;
}

int workers_spawn(struct workers *w, int local_rank, const struct spawn *s, struct dt_error *err)
{
    struct worker *one = &w->list[local_rank];
    if (workers_spawn_plain(w, s, &one->pid, err) != 0) {
        return -1;
    }
    one->running = true;
    one->contact_s = 0;
    /* the worker has used no time yet */
    one->start_s = one->seen_s = one->marks[0].at_s = one->marks[1].at_s = dt_now_s();
    w->running_count++;
    return 0;
}

int workers_reap(struct workers *w, pid_t *pid, int *status)
{
    struct rusage used;
    do {
        *pid = wait4(-1, status, WNOHANG, &used);
    } while (*pid < 0 && errno == EINTR);
    if (*pid <= 0) {
        *pid = *pid < 0 && errno == ECHILD ? -1 : 0;
        return -1;
    }
    for (int i = 0; i < w->count; i++) {
        struct worker *one = &w->list[i];
        if (one->running && one->pid == *pid) {
            one->running = false;
            one->status = *status;
            one->end_s = dt_now_s();
            one->cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                         (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
            w->running_count--;
            return i;
        }
    }
    return -1;
}

void workers_signal(struct workers *w, int n)
{
    for (int i = 0; i < w->count; i++) {
        if (w->list[i].running) {
            w->list[i].told = w->list[i].told || n != SIGCONT;
            (void)kill(-w->list[i].pid, n);
        }
    }
}

void workers_order(struct workers *w, enum dt_order order)
{
    for (int i = 0; i < w->count; i++) {
        struct worker *one = &w->list[i];
        if (one->running && one->page != NULL && atomic_load(&one->page->order) < (uint32_t)order) {
            atomic_store(&one->page->order, (uint32_t)order);
            (void)syscall(SYS_futex, &one->page->order, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        }
    }
}

void workers_end(struct workers *w)
{
    for (int i = 0; i < w->count; i++) {
        dt_page_close(w->list[i].page, w->list[i].page_fd);
        w->list[i] = (struct worker){.page_fd = -1};
    }
    w->running_count = 0;
}

void workers_close(struct workers *w)
{
    if (w->list != NULL) {
        workers_end(w);
        if (w->snapshot_fd >= 0) {
            (void)close(w->snapshot_fd);
        }
    }
    free(w->list);
    w->list = NULL;
    w->count = 0;
}

int workers_code(int status)
{
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
