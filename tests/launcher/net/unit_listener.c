/* covers: launcher/net/listener.c */
/* The listener when files run out: refused while it has its spare one, waiting without spinning
 * when it has lost that, and well again afterwards. */
#include "base/clock.h"
#include "launcher/net/listener.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int accepted;

static void on_connected(void *user, int fd)
{
    (void)user;
    accepted++;
    (void)close(fd);
}

static void on_closed(void *user)
{
    (void)user;
}

static int connect_to(const struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)address, sizeof *address), 0);
    return fd;
}

/* Turns of the loop within the time. */
static int run_for(uv_loop_t *loop, double seconds)
{
    int turns = 0;
    for (double end_s = dt_now_s() + seconds; dt_now_s() < end_s; turns++) {
        (void)uv_run(loop, UV_RUN_NOWAIT);
    }
    return turns;
}

static void files_run_out(void **state)
{
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    uv_loop_t loop;
    struct listener l;
    struct dt_error err;
    struct rlimit before, none;
    char byte;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(listener_open(&l, &loop, fd, 16, on_connected, NULL, &err), 0);
    int first = connect_to(&address), second = connect_to(&address);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0; /* those that are open stay */
    (void)close(l.spare_fd);
    l.spare_fd = -1; /* lost: another thread was faster */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int turns = run_for(&loop, 0.2);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(accepted, 0);
    assert_true(turns > 0 && turns <= 50);

    run_for(&loop, 0.1);
    assert_int_equal(accepted, 2);
    assert_true(l.spare_fd >= 0);
    assert_int_equal(read(first, &byte, 1), 0);

    int third = connect_to(&address); /* with the spare one: refused at once */
    none.rlim_cur = (rlim_t)l.spare_fd + 1;
    for (int last = -1; last <= third;) { /* all below it are taken */
        last = dup(first);
        assert_true(last >= 0);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    run_for(&loop, 0.1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(accepted, 2);
    assert_true(l.spare_fd >= 0);
    assert_int_equal(read(third, &byte, 1), 0);

    listener_close(&l, on_closed);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&loop), 0);
    (void)close(first);
    (void)close(second);
    (void)close(third);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_run_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
