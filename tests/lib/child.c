#include "tests/lib/child.h"

#include "base/clock.h"
#include "tests/softgpu/softgpu.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef DT_SANITIZED
#define LIMIT_S 600.0
#else
#define LIMIT_S 60.0
#endif

/* Until the child and what it started have closed their stderr; the child's own end ends the
 * others. */
static void read_all(int fd, pid_t pid, char *text)
{
    double end_s = dt_now_s() + LIMIT_S;
    size_t used = 0;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        double left_s = end_s - dt_now_s();
        if (left_s <= 0) {
            kill(-pid, SIGKILL);
            left_s = 1;
        }
        siginfo_t over = {0};
        if (waitid(P_PID, (id_t)pid, &over, WEXITED | WNOHANG | WNOWAIT) == 0 && over.si_pid == pid) {
            kill(-pid, SIGKILL);
        }
        if (poll(&p, 1, left_s < 0.1 ? (int)(left_s * 1e3) : 100) <= 0) {
            continue;
        }
        char more[512];
        ssize_t n = read(fd, more, sizeof more);
        if (n <= 0) {
            break;
        }
        for (ssize_t i = 0; i < n && used < CHILD_TEXT - 1; i++) {
            text[used++] = more[i];
        }
    }
    text[used] = '\0';
}

int child_run(int (*fn)(void), char *text)
{
    int ends[2];
    if (pipe(ends) != 0) {
        perror("pipe");
        abort();
    }
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        perror("fork");
        abort();
    }
    if (pid == 0) {
        setpgid(0, 0); /* what it starts ends with it */
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL); /* cmocka has one of its own */
        signal(SIGBUS, SIG_DFL);
        dup2(ends[1], 2);
        close(ends[0]);
        close(ends[1]);
        syscall(SYS_exit_group, fn()); /* _exit is the thread sanitizer's, which sleeps for a
                                        * second */
    }
    close(ends[1]);
    setpgid(pid, pid);
    read_all(ends[0], pid, text);
    close(ends[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void child_fail(int line, const char *what)
{
    int code = line % 255 + 1;
    dprintf(2, "line %d: %s\n", line, what);
    _exit(code == SOFTGPU_EXIT ? 1 : code);
}
