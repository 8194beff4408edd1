/* covers: base/helper.c */
/* Helper processes: answers, deadlines, signals, and that nothing of them is left. */
#include "base/clock.h"
#include "base/helper.h"
#include "base/proc.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

static const double long_s = 60; /* no test waits for it */

static int greet(void *user)
{
    printf("hello %s", (const char *)user);
    return 7;
}

static _Noreturn int hang(void *user)
{
    (void)user;
    for (;;) {
        (void)pause();
    }
}

static int crash(void *user)
{
    (void)user;
    (void)signal(SIGUSR1, SIG_DFL);
    return raise(SIGUSR1);
}

/* Ends, but leaves a process that holds its pipe, in a group of its own; its number is the answer. */
static int leave_one(void *user)
{
    (void)user;
    pid_t pid = fork();
    if (pid == 0) {
        (void)setpgid(0, 0);
        dt_sleep_s(long_s);
        _exit(0);
    }
    printf("%d", (int)pid);
    return 0;
}

/* Hangs, with a child that does, too; the child's number is the answer. */
static _Noreturn int hang_together(void *user)
{
    pid_t pid = fork();
    if (pid > 0) {
        printf("%d", (int)pid);
        (void)fflush(stdout);
    }
    (void)hang(user);
}

static int run(const struct dt_helper_task *task, double limit_s, struct dt_text *out, int *status)
{
    struct dt_error err = {0};
    int rc = dt_helper_run(task, limit_s, out, status, &err);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* it was reaped */
    assert_int_equal(errno, ECHILD);
    return rc == 0 ? 0 : (int)err.status;
}

static void answers_are_read(void **state)
{
    (void)state;
    struct dt_text out;
    int status;
    char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, (char[]){"head -c 200000 /dev/zero; kill -0 $$; exit 3"}, NULL};
    dt_text_init(&out);
    assert_int_equal(run(&(struct dt_helper_task){.run = greet, .user = (char[]){"you"}}, long_s, &out, &status), 0);
    assert_string_equal(dt_text_str(&out), "hello you");
    assert_int_equal(WEXITSTATUS(status), 7);
    dt_text_reset(&out);
    assert_int_equal(run(&(struct dt_helper_task){.path = "sh", .argv = argv, .envp = environ}, 0, &out, &status), 0);
    assert_int_equal(out.size, 200000);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    dt_text_reset(&out);
    assert_int_equal(run(&(struct dt_helper_task){.run = crash}, long_s, &out, &status), 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1);
    assert_int_equal(
        run(&(struct dt_helper_task){.path = "sh", .argv = argv, .envp = environ, .output = DT_HELPER_SILENT}, long_s,
            NULL, &status),
        0);
    assert_int_equal(WEXITSTATUS(status), 3);
    dt_text_clear(&out);
}

static void output_is_bounded(void **state)
{
    (void)state;
    struct dt_text out;
    int status;
    char *argv[] = {(char[]){"head"}, (char[]){"-c"}, (char[]){"40000000"}, (char[]){"/dev/zero"}, NULL};
    dt_text_init(&out);
    assert_int_equal(
        run(&(struct dt_helper_task){.path = "head", .argv = argv, .envp = environ}, long_s, &out, &status), 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_true(out.size > 0 && out.size <= 16 << 20);
    dt_text_clear(&out);
}

static void a_missing_program_is_an_error(void **state)
{
    (void)state;
    struct dt_error err;
    struct dt_helper h;
    char *argv[] = {(char[]){"no-such-program"}, NULL};
    struct dt_helper_task task = {.path = "/no/such-program", .argv = argv, .envp = environ};
    assert_int_equal(dt_helper_start(&h, &task, &err), -1);
    assert_non_null(strstr(err.text, "/no/such-program: "));
    assert_non_null(strstr(err.text, strerror(ENOENT)));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void what_hangs_is_killed_in_time(void **state)
{
    (void)state;
    struct dt_text out;
    int status;
    dt_text_init(&out);
    double begin_s = dt_now_s();
    assert_int_equal(run(&(struct dt_helper_task){.run = hang}, 0.1, &out, &status), DT_TIMEOUT);
    assert_true(dt_now_s() - begin_s >= 0.1);
    assert_int_equal(run(&(struct dt_helper_task){.run = hang_together}, 0.1, &out, &status), DT_TIMEOUT);
    assert_true(dt_now_s() - begin_s < long_s / 2);
    struct dt_proc_look look;
    pid_t child = (pid_t)atoi(dt_text_str(&out));
    assert_true(child > 0);
    while (dt_proc_look(child, &look) && look.state != 'Z') {
        assert_true(dt_now_s() - begin_s < long_s / 2);
        dt_sleep_s(0.01);
    }
    dt_text_clear(&out);
}

static void who_holds_the_pipe_is_not_waited_for(void **state)
{
    (void)state;
    struct dt_text out;
    int status;
    dt_text_init(&out);
    double begin_s = dt_now_s();
    assert_int_equal(run(&(struct dt_helper_task){.run = leave_one}, long_s, &out, &status), 0);
    assert_true(dt_now_s() - begin_s < long_s / 2);
    assert_true(atoi(dt_text_str(&out)) > 0 && kill((pid_t)atoi(dt_text_str(&out)), SIGKILL) == 0);
    dt_text_clear(&out);
}

static void count_lines(pid_t pid, double since_s, void *user)
{
    assert_true(pid > 0 && since_s > 0);
    if (++*(int *)user == 2) {
        (void)raise(SIGTERM);
    }
}

static void a_signal_stops_it(void **state)
{
    (void)state;
    struct dt_error err;
    struct dt_helper h;
    sigset_t set, old;
    int status, lines = 0;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGUSR2); /* says nothing to us */
    assert_int_equal(sigprocmask(SIG_BLOCK, &set, &old), 0);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    assert_true(fd >= 0 && raise(SIGUSR2) == 0);
    struct dt_text out;
    dt_text_init(&out);
    assert_int_equal(dt_helper_start(&h, &(struct dt_helper_task){.run = hang}, &err), 0);
    struct dt_helper_wait how = {.signal_fd = fd, .on_line = count_lines, .user = &lines, .line_s = 0.02};
    assert_int_equal(dt_helper_wait(&h, &how, &out, &status), 128 + SIGTERM);
    assert_int_equal(lines, 2);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    dt_text_clear(&out);
    assert_int_equal(sigprocmask(SIG_SETMASK, &old, NULL), 0);
    assert_int_equal(close(fd), 0);
}

static int end_with_3(void *user)
{
    (void)user;
    return 3;
}

static void an_inherited_ignore_hides_no_exit_code(void **state)
{
    (void)state;
    struct dt_error err;
    struct dt_text out;
    int status = 0;
    double begin_s = dt_now_s();
    dt_text_init(&out);
    (void)signal(SIGCHLD, SIG_IGN);
    assert_int_equal(dt_helper_run(&(struct dt_helper_task){.run = end_with_3}, long_s, &out, &status, &err), 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    assert_true(dt_now_s() - begin_s < long_s / 2);
    (void)signal(SIGCHLD, SIG_DFL);
    dt_text_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_read),
        cmocka_unit_test(output_is_bounded),
        cmocka_unit_test(a_missing_program_is_an_error),
        cmocka_unit_test(what_hangs_is_killed_in_time),
        cmocka_unit_test(who_holds_the_pipe_is_not_waited_for),
        cmocka_unit_test(a_signal_stops_it),
        cmocka_unit_test(an_inherited_ignore_hides_no_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
