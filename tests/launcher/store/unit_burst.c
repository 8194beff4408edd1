/* covers: launcher/store/burst.c */
/* Bursts of sends through a ring and one by one: the same results, also for sockets that are
 * full or broken, and a ring that breaks. */
#include "launcher/store/burst.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { FULL = 3, BROKEN = 5, CLOSED = 8 };

static int ends[BURST_MOST][2];
static char big[1 << 22];

/* How many io_urings this process has, or what an open one is called. */
static int find_ring(void)
{
    DIR *d = opendir("/proc/self/fd");
    struct dirent *e;
    int found = -1;
    while (d != NULL && (e = readdir(d)) != NULL) {
        char to[64] = "";
        if (readlinkat(dirfd(d), e->d_name, to, sizeof to - 1) > 0 && strstr(to, "io_uring") != NULL) {
            found = atoi(e->d_name);
        }
    }
    (void)closedir(d);
    return found;
}

static void open_ends(void)
{
    for (int i = 0; i < BURST_MOST; i++) {
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends[i]), 0);
    }
    while (send(ends[FULL][0], big, 4096, 0) > 0) {
    }
    (void)close(ends[BROKEN][1]);
}

static void close_ends(void)
{
    for (int i = 0; i < BURST_MOST; i++) {
        (void)close(ends[i][0]);
        (void)(i != BROKEN ? close(ends[i][1]) : 0);
    }
}

/* Each socket is sent its own number, thrice in one burst for one of them: orders are kept per
 * socket. */
static void expect_burst(struct burst *b, size_t count)
{
    struct burst_send sends[BURST_MOST];
    unsigned char numbers[BURST_MOST], got[8];
    for (size_t i = 0; i < count; i++) {
        numbers[i] = (unsigned char)i;
        int fd = i == CLOSED ? 1 << 20 : ends[i == 1 || i == 2 ? 0 : i][0];
        sends[i] = (struct burst_send){.fd = fd, .data = &numbers[i], .size = 1, .result = 77};
    }
    burst_run(b, sends, count);
    for (size_t i = 0; i < count; i++) {
        ssize_t want = i == FULL ? -EAGAIN : i == BROKEN ? -EPIPE : i == CLOSED ? -EBADF : 1;
        assert_int_equal(sends[i].result, want);
        if (want == 1 && i != 1 && i != 2) {
            ssize_t size = i == 0 ? (ssize_t)(count < 3 ? count : 3) : 1;
            assert_int_equal(recv(ends[i][1], got, sizeof got, MSG_DONTWAIT), size);
            assert_memory_equal(got, &numbers[i], (size_t)size);
        }
    }
}

static void expect_all(struct burst *b)
{
    open_ends();
    for (size_t count = 0; count <= BURST_MOST; count = count < 12 ? count + 1 : count + 61) {
        expect_burst(b, count);
    }
    for (int i = 0; i < 100; i++) { /* around the ring, more than once */
        expect_burst(b, 200);
    }
    struct burst_send part[20];
    for (size_t i = 0; i < 20; i++) { /* more than a socket takes */
        part[i] = (struct burst_send){.fd = ends[10 + i][0], .data = big, .size = sizeof big};
    }
    burst_run(b, part, 20);
    for (size_t i = 0; i < 20; i++) {
        assert_in_range(part[i].result, 1, sizeof big - 1);
    }
    close_ends();
}

static void one_by_one(void **state)
{
    (void)state;
    (void)setenv("UV_USE_IO_URING", "0", 1);
    struct burst *b = burst_open();
    expect_all(b);
    assert_int_equal(find_ring(), -1);
    burst_close(b);
    (void)unsetenv("UV_USE_IO_URING");
}

static void through_a_ring(void **state)
{
    (void)state;
    struct burst *b = burst_open();
    assert_int_equal(find_ring(), -1); /* not before it is needed */
    expect_all(b);
    bool has_ring = find_ring() >= 0;
    burst_close(b);
    assert_int_equal(find_ring(), -1);
    if (!has_ring) {
        skip(); /* this kernel gives us none */
    }
}

static void a_ring_that_breaks_costs_no_answer(void **state)
{
    (void)state;
    struct burst *b = burst_open();
    open_ends();
    expect_burst(b, 20);
    int ring = find_ring(), null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (ring >= 0) {
        assert_int_equal(dup3(null, ring, O_CLOEXEC), ring); /* every call to it fails from now
                                                              * on */
    }
    expect_burst(b, 20);
    expect_burst(b, 200);
    assert_int_equal(find_ring(), -1);
    (void)close(null);
    close_ends();
    burst_close(b);
    if (ring < 0) {
        skip();
    }
}

int main(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 1024) {
        files.rlim_cur = files.rlim_max < 1024 ? files.rlim_max : 1024;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_by_one),
        cmocka_unit_test(through_a_ring),
        cmocka_unit_test(a_ring_that_breaks_costs_no_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
