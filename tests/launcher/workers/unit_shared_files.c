/* covers: launcher/workers/shared_files.c */
/* A process that is killed with words unread: whoever has its descriptors, too, ends its
 * connections in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "launcher/workers/shared_files.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <linux/sockios.h>
#include <unistd.h>

#define PATIENCE_S 60.0

static int listen_here(struct sockaddr_in *at)
{
    socklen_t size = sizeof *at;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *at = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    assert_int_equal(bind(fd, (struct sockaddr *)at, sizeof *at), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)at, &size), 0);
    return fd;
}

/* Connects, says its number and never reads. */
static _Noreturn void child(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    pid_t self = getpid();
    clockid_t clock = 0;
    bool known = pthread_getcpuclockid(pthread_self(), &clock) == 0 &&
                 ~(clock >> 3) == gettid(); /* what the C library takes for the thread's number */
    if (!known || connect(fd, (const struct sockaddr *)to, sizeof *to) != 0 ||
        send(fd, &self, sizeof self, 0) != (ssize_t)sizeof self) {
        _exit(1);
    }
    for (;;) {
        (void)pause();
    }
}

static _Noreturn void parent(const struct sockaddr_in *to)
{
    int status;
    (void)alarm((unsigned)PATIENCE_S);
    pid_t pid = shared_files_fork();
    if (pid == 0) {
        child(to);
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    shared_files_trim();
    shared_files_end(5);
    _exit(WIFSIGNALED(status) ? 0 : 1);
}

static void the_end_comes_in_order(void **state)
{
    (void)state;
    struct sockaddr_in at;
    int listener = listen_here(&at), left = 1, status;
    pid_t guard = fork();
    if (guard == 0) {
        parent(&at);
    }
    int fd = accept(listener, NULL, NULL);
    assert_true(fd >= 0);
    pid_t killed = 0;
    assert_int_equal(recv(fd, &killed, sizeof killed, MSG_WAITALL), sizeof killed);
    char words[5000] = {0}, last;
    assert_int_equal(send(fd, words, sizeof words, 0), sizeof words);
    for (double end_s = dt_now_s() + PATIENCE_S; left > 0 && dt_now_s() < end_s;) {
        assert_int_equal(ioctl(fd, SIOCOUTQ, &left), 0);
    }
    assert_int_equal(left, 0);
    assert_int_equal(kill(killed, SIGKILL), 0);
    ssize_t n = recv(fd, &last, 1, 0);
    if (n != 0) {
        fail_msg("%s", n < 0 ? strerror(errno) : "words from a process that was killed");
    }
    assert_int_equal(waitpid(guard, &status, 0), guard);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)close(fd);
    (void)close(listener);
}

/* After parting the parent has nothing of it, and what the child has stays open. */
static void parted_tables_are_two(void **state)
{
    (void)state;
    int pipes[2], status, signal;
    sigset_t wish;
    (void)sigemptyset(&wish);
    (void)sigaddset(&wish, SIGUSR1);
    assert_int_equal(pipe(pipes), 0);
    pid_t guard = fork();
    if (guard == 0) {
        (void)alarm((unsigned)PATIENCE_S);
        (void)sigprocmask(SIG_BLOCK, &wish, NULL);
        pid_t pid = shared_files_fork();
        if (pid == 0) {
            _exit(sigwait(&wish, &signal) == 0 && write(pipes[1], "x", 1) == 1 ? 0 : 1);
        }
        shared_files_part();
        bool none = write(pipes[1], "y", 1) < 0 && errno == EBADF;
        (void)kill(pid, SIGUSR1);
        (void)waitpid(pid, &status, 0);
        _exit(none && WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : 1);
    }
    assert_int_equal(waitpid(guard, &status, 0), guard);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    (void)close(pipes[0]);
    (void)close(pipes[1]);
}

int main(void)
{
    (void)alarm((unsigned)PATIENCE_S); /* a child that fails before it connects leaves us at
                                        * accept */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_comes_in_order),
        cmocka_unit_test(parted_tables_are_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
