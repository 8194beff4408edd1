#include "base/helper.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES ((size_t)16 << 20)
#define DEAF_S 1.0                  /* after KILL: it hangs in the kernel */
#define HELD_S 1.0                  /* after its end: another process holds its pipe */
enum { LOOK_MS = 100 };             /* at a process whose end nothing tells us */
enum { UNKNOWN_STATUS = 127 << 8 }; /* another thread of ours took the exit code */

/* ---- in the new process ---- */

static _Noreturn void child_main(const struct dt_helper_task *task, pid_t parent, int fd, int failed_fd)
{
    sigset_t none;
    (void)setsid();
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (getppid() != parent || (fd >= 0 && dup2(fd, 1) < 0)) {
        _exit(127);
    }
    if (task->run != NULL) {
        int code = task->run(task->user);
        _exit(fflush(stdout) == 0 ? code : 1);
    }
    for (int n = 1; n < 65; n++) {
        (void)signal(n, SIG_DFL);
    }
    int null = task->output == DT_HELPER_SILENT ? open("/dev/null", O_RDWR | O_CLOEXEC) : -1;
    if (null >= 0) {
        (void)dup2(null, 0);
        (void)dup2(null, 1);
    }
    (void)execvpe(task->path, task->argv, task->envp);
    _exit(write(failed_fd, &errno, sizeof errno) == (ssize_t)sizeof errno ? 127 : 126);
}

/* ---- in ours ---- */

static void close_pair(int pair[2])
{
    for (int i = 0; i < 2; i++) {
        if (pair[i] >= 0) {
            (void)close(pair[i]);
        }
        pair[i] = -1;
    }
}

int dt_helper_start(struct dt_helper *h, const struct dt_helper_task *task, struct dt_error *err)
{
    int answer[2] = {-1, -1}, failed[2] = {-1, -1}, cause = 0;
    bool is_read = task->run != NULL || task->output == DT_HELPER_READ;
    pid_t parent = getpid();
    *h = (struct dt_helper){.pid = -1, .fd = -1};
    if ((is_read && pipe2(answer, O_CLOEXEC) != 0) || (task->run == NULL && pipe2(failed, O_CLOEXEC) != 0)) {
        (void)dt_fail_errno(err, "no pipe");
        close_pair(answer);
        return -1;
    }
    struct sigaction children;
    if (sigaction(SIGCHLD, NULL, &children) == 0 && children.sa_handler == SIG_IGN) {
        (void)signal(SIGCHLD, SIG_DFL); /* inherited, it would hide the exit code */
    }
    (void)fflush(stdout); /* or a function would print it, too */
    h->pid = fork();
    if (h->pid == 0) {
        child_main(task, parent, answer[1], failed[1]);
    }
    if (h->pid < 0) {
        (void)dt_fail_errno(err, "cannot start a process");
        close_pair(answer);
        close_pair(failed);
        return -1;
    }
    h->fd = answer[0];
    answer[0] = -1;
    close_pair(answer);
    if (failed[1] >= 0) {
        (void)close(failed[1]);
        failed[1] = -1;
    }
    while (failed[0] >= 0 && read(failed[0], &cause, sizeof cause) < 0 && errno == EINTR) {
    }
    close_pair(failed);
    if (cause != 0) {
        while (waitpid(h->pid, NULL, 0) < 0 && errno == EINTR) {
        }
        if (h->fd >= 0) {
            (void)close(h->fd);
        }
        errno = cause;
        return dt_fail_errno(err, "%s", task->path);
    }
    return 0;
}

/* The exit code that a signal stands for, or DT_HELPER_ENDED when it says nothing to us. */
static int take_signal(int signal_fd, pid_t pid)
{
    struct signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof info) != (ssize_t)sizeof info) {
        return DT_HELPER_ENDED;
    }
    switch (info.ssi_signo) {
    case SIGCHLD:
    case SIGCONT:
    case SIGUSR2:
        return DT_HELPER_ENDED;
    case SIGTSTP:
        (void)kill(-pid, SIGSTOP);
        (void)raise(SIGSTOP);
        (void)kill(-pid, SIGCONT);
        return DT_HELPER_ENDED;
    default:
        return 128 + (int)info.ssi_signo;
    }
}

/* The end of the pipe closes it. */
static void read_part(struct dt_helper *h, struct dt_text *out)
{
    char part[65536];
    ssize_t size = read(h->fd, part, sizeof part);
    if (size > 0 && out->size + (size_t)size <= OUTPUT_BYTES) {
        dt_text_add(out, part, (size_t)size);
    }
    if (size == 0 || (size < 0 && errno != EINTR && errno != EAGAIN)) {
        (void)close(h->fd);
        h->fd = -1;
    }
}

/* Milliseconds until something is to be done although nobody wakes us; -1: never. */
static int patience_ms(double now_s, double next_s, bool told)
{
    int ms = next_s > 0 ? next_s > now_s ? (int)dt_milliseconds(next_s - now_s) : 0 : -1;
    return !told && (ms < 0 || ms > LOOK_MS) ? LOOK_MS : ms;
}

static double sooner(double a_s, double b_s)
{
    return a_s <= 0 || (b_s > 0 && b_s < a_s) ? b_s : a_s;
}

int dt_helper_wait(struct dt_helper *h, const struct dt_helper_wait *how, struct dt_text *out, int *status)
{
    double now_s = dt_now_s(), begin_s = now_s, line_s = how->on_line != NULL ? now_s + how->line_s : 0;
    double late_s = how->limit_s > 0 ? now_s + how->limit_s : 0, held_s = 0;
    bool running = true, killed = false;
    int code = DT_HELPER_ENDED, end_fd = (int)syscall(SYS_pidfd_open, h->pid, 0);
    while (running || (h->fd >= 0 && now_s < held_s)) {
        struct pollfd p[] = {{.fd = how->signal_fd, .events = POLLIN},
                             {.fd = h->fd, .events = POLLIN},
                             {.fd = running ? end_fd : -1, .events = POLLIN}};
        (void)poll(p, 3, patience_ms(now_s, running ? sooner(late_s, line_s) : held_s, !running || end_fd >= 0));
        now_s = dt_now_s();
        if ((p[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
            read_part(h, out);
        }
        int wish = (p[0].revents & POLLIN) != 0 ? take_signal(how->signal_fd, h->pid) : DT_HELPER_ENDED;
        pid_t ended = running ? waitpid(h->pid, status, WNOHANG) : 0;
        if (ended == h->pid || (ended < 0 && errno == ECHILD)) {
            *status = ended < 0 ? UNKNOWN_STATUS : *status;
            running = false;
            held_s = now_s + HELD_S;
        }
        bool late = running && late_s > 0 && now_s > late_s;
        if (late && killed) {
            break;
        }
        if (!killed && (late || wish != DT_HELPER_ENDED)) {
            (void)kill(-h->pid, SIGKILL);
            code = wish != DT_HELPER_ENDED ? wish : DT_HELPER_LATE;
            killed = true;
            late_s = now_s + DEAF_S;
        }
        if (running && line_s > 0 && now_s >= line_s) {
            line_s = now_s + how->line_s;
            how->on_line(h->pid, now_s - begin_s, how->user);
        }
    }
    for (int i = 0, fds[] = {end_fd, h->fd}; i < 2; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    h->fd = -1;
    return code;
}

int dt_helper_run(const struct dt_helper_task *task, double limit_s, struct dt_text *out, int *status,
                  struct dt_error *err)
{
    struct dt_helper h;
    if (dt_helper_start(&h, task, err) != 0) {
        return -1;
    }
    return dt_helper_wait(&h, &(struct dt_helper_wait){.limit_s = limit_s, .signal_fd = -1}, out, status) ==
                   DT_HELPER_LATE
               ? dt_fail(err, DT_TIMEOUT, "no answer in %g s", limit_s)
               : 0;
}
