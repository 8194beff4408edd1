#include "launcher/workers/capture.h"

#include "base/clock.h"
#include "launcher/output/console.h"
#include "launcher/workers/process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_BYTES (16u << 20)
#define DEAF_S 10.0 /* after KILL: it hangs in the kernel */
#define LOOK_MS 100 /* at a process that must end, or has ended and left its pipe to another */

/* The exit code that a signal stands for, or CAPTURE_GOING_ON when it says nothing to us. */
static int take_signal(int signal_fd, pid_t pid)
{
    struct signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof info) != (ssize_t)sizeof info) {
        return CAPTURE_GOING_ON;
    }
    switch (info.ssi_signo) {
    case SIGCHLD:
    case SIGCONT:
    case SIGUSR2:
        return CAPTURE_GOING_ON;
    case SIGTSTP:
        (void)kill(-pid, SIGSTOP);
        (void)raise(SIGSTOP);
        (void)kill(-pid, SIGCONT);
        return CAPTURE_GOING_ON;
    default:
        (void)kill(-pid, SIGKILL);
        return 128 + (int)info.ssi_signo;
    }
}

/* A file server that hangs, or a file that is none, keeps a helper for good. */
static void say_where(const char *name, pid_t pid, double since_s)
{
    struct dt_text where;
    struct process_look look;
    dt_text_init(&where);
    (void)process_where(pid, &where);
    (void)process_look(pid, &look);
    console_say("dtrun: %s (pid %d): not done after %.0f s: %s%s%s\n", name, (int)pid, dt_now_s() - since_s,
                where.size > 0      ? "it waits in the kernel, in "
                : look.state == 'R' ? "it computes"
                                    : "it sleeps",
                where.size > 0 ? dt_text_str(&where) : "",
                look.state == 'D' ? " (state D: a disk or a file server)" : "");
    dt_text_clear(&where);
}

/* Reads until the process has ended and its output is taken (or a grandchild holds the pipe for
 * more than a second). */
int capture(int fd, int signal_fd, pid_t pid, double limit_s, const char *name, double line_s, struct dt_text *text,
            int *status)
{
    double begin_s = dt_now_s(), said_s = begin_s;
    bool open = fd >= 0, running = true, killed = false;
    int code = CAPTURE_GOING_ON;
    double late_s = limit_s > 0 ? dt_now_s() + limit_s : 0, end_s = 0;
    while (running || (open && dt_now_s() < end_s)) {
        struct pollfd p[2] = {{.fd = signal_fd, .events = POLLIN}, {.fd = open ? fd : -1, .events = POLLIN}};
        (void)poll(p, 2, !running || late_s > 0 ? LOOK_MS : name != NULL ? (int)(line_s * 1e3) : -1);
        if (running && name != NULL && dt_now_s() - said_s >= line_s) {
            said_s = dt_now_s();
            say_where(name, pid, begin_s);
        }
        if ((p[1].revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
            char part[65536];
            ssize_t size = read(fd, part, sizeof part);
            open = size > 0 || (size < 0 && (errno == EINTR || errno == EAGAIN));
            if (size > 0 && text->size + (size_t)size <= OUTPUT_BYTES) {
                dt_text_add(text, part, (size_t)size);
            }
        }
        if ((p[0].revents & POLLIN) != 0) {
            int wish = take_signal(signal_fd, pid);
            if (wish != CAPTURE_GOING_ON && !killed) {
                code = wish;
                killed = true;
                late_s = dt_now_s() + DEAF_S;
            }
        }
        if (running && waitpid(pid, status, WNOHANG) == pid) {
            running = false;
            end_s = dt_now_s() + 1;
        }
        if (running && late_s > 0 && dt_now_s() > late_s) {
            if (killed) {
                break;
            }
            (void)kill(-pid, SIGKILL);
            code = CAPTURE_LATE;
            killed = true;
            late_s = dt_now_s() + DEAF_S;
        }
    }
    return code;
}
