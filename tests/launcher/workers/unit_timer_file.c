/* covers: launcher/workers/timer_file.c */
/* Requests for timers that come faster than they are read: a turn of the loop takes some of
 * them, and the others none is lost of. */
#include "launcher/workers/timer_file.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cmocka.h>

static int expired;

static bool is_ours(void *user, pid_t pid)
{
    (void)user;
    return pid == 4194000;
}

static void on_expired(void *user, pid_t pid, int number, const char *scope)
{
    (void)user;
    (void)pid;
    expired += number == 0 && strcmp(scope, "last") == 0;
}

static void a_turn_reads_a_bounded_part(void **state)
{
    static const char line[] =
        "{\"version\":1,\"pid\":4194000,\"scope_id\":\"x\",\"expiration_time\":-1,\"signal\":9}\n",
                      last[] =
                          "{\"version\":1,\"pid\":4194000,\"scope_id\":\"last\",\"expiration_time\":1,\"signal\":0}\n";
    (void)state;
    uv_loop_t loop;
    struct timer_file *t;
    struct dt_error err;
    struct timer_file_hooks hooks = {.is_ours = is_ours, .expired = on_expired};
    int waiting = 0;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(timer_file_open(&t, &loop, NULL, &hooks, &err), 0);
    int fd = open(timer_file_path(t), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    for (int i = 0; i < 500; i++) { /* some 35 KiB of the 64 that a pipe takes */
        assert_int_equal(write(fd, line, sizeof line - 1), (ssize_t)sizeof line - 1);
    }
    assert_int_equal(write(fd, last, sizeof last - 1), (ssize_t)sizeof last - 1);
    (void)uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(ioctl(fd, FIONREAD, &waiting), 0);
    /* others of the loop have their turn */
    assert_true(waiting > 0 && waiting < 500 * (int)sizeof line);
    for (int i = 0; i < 1000 && expired == 0; i++) {
        (void)uv_run(&loop, UV_RUN_ONCE);
    }
    assert_int_equal(expired, 1);
    assert_int_equal(ioctl(fd, FIONREAD, &waiting), 0);
    assert_int_equal(waiting, 0);
    for (int i = 0; i < 500; i++) {
        assert_int_equal(write(fd, last, sizeof last - 1), (ssize_t)sizeof last - 1);
    }
    timer_file_reset(t); /* a new round knows nothing of them */
    assert_int_equal(ioctl(fd, FIONREAD, &waiting), 0);
    assert_int_equal(waiting, 0);
    assert_int_equal(close(fd), 0);
    timer_file_close(t);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_reads_a_bounded_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
