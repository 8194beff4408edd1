/* covers: launcher/output/console.c */
/* The console with readers that read at once, slowly, late and not at all: own lines wait for
 * nobody, and none is lost to somebody who reads. */
#include "launcher/output/console.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { PIPE_BYTES = 65536 };

static struct dt_error err;

/* A pipe of 64 KiB, full of newlines if so wished. */
static void make_pipe(int ends[2], bool full)
{
    static char filler[4096];
    memset(filler, '\n', sizeof filler);
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES), PIPE_BYTES);
    for (size_t n = 0; full && n < PIPE_BYTES; n += sizeof filler) {
        assert_int_equal(write(ends[1], filler, sizeof filler), (ssize_t)sizeof filler);
    }
}

/* Appends what comes within timeout_s, at most `wanted` bytes, without newlines at its
 * beginning. */
static void take(int fd, size_t wanted, double timeout_s, struct dt_text *out)
{
    static char buffer[PIPE_BYTES];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (wanted > 0 && poll(&p, 1, (int)(timeout_s * 1e3)) > 0) {
        ssize_t n = read(fd, buffer, wanted < sizeof buffer ? wanted : sizeof buffer);
        if (n <= 0) {
            return;
        }
        wanted -= (size_t)n;
        size_t skip = 0;
        while (out->size == 0 && skip < (size_t)n && buffer[skip] == '\n') {
            skip++;
        }
        dt_text_add(out, buffer + skip, (size_t)n - skip);
    }
}

static void close_all(int out[2], int error[2])
{
    for (int i = 0; i < 2; i++) {
        (void)close(out[i]);
        if (error != out) {
            (void)close(error[i]);
        }
    }
}

/* Said lines are there when console_say returns, as after a crash in the next moment; those of
 * others on the same pipe stay before them. */
static void test_at_once_and_in_order(void **state)
{
    (void)state;
    int ends[2];
    char text[256] = "";
    make_pipe(ends, false);
    assert_int_equal(console_open(ends[1], ends[1], &err), 0);
    assert_true(console_is_one());
    console_put(0, "worker\n", 7);
    console_say("own %d\n", 1);
    dt_log(DT_LOG_ERROR, "test", "logged");
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    assert_memory_equal(text, "worker\nown 1\n", 13);
    assert_non_null(strstr(text, " error test: logged\n"));
    for (int i = 0; i < 200; i++) {
        int length = snprintf(text, sizeof text, "own %d\n", i);
        struct pollfd p = {.fd = ends[0], .events = POLLIN};
        console_write(text, (size_t)length);
        assert_int_equal(poll(&p, 1, 0), 1);
        assert_int_equal(read(ends[0], text, sizeof text), length);
    }
    console_close(1);
    close_all(ends, ends);
}

/* Who does not read holds up no line, neither here nor on the other side; they come when it is
 * read again, and dt_log's with them. */
static void test_full(void **state)
{
    (void)state;
    int out[2];
    int error[2];
    struct dt_text got;
    dt_text_init(&got);
    make_pipe(out, true);
    make_pipe(error, false);
    assert_int_equal(console_open(out[1], error[1], &err), 0);
    assert_false(console_is_one());
    console_put(0, "held\n", 5);
    dt_sleep_s(0.1);
    console_say("shown\n");
    take(error[0], 6, 10, &got);
    assert_string_equal(dt_text_str(&got), "shown\n");
    assert_true(console_stalled_s() > 0.05);
    dt_text_reset(&got);
    take(out[0], PIPE_BYTES + 5, 10, &got);
    assert_string_equal(dt_text_str(&got), "held\n");
    console_close(1);
    close_all(out, error);

    make_pipe(error, true);
    assert_int_equal(console_open(error[1], error[1], &err), 0);
    double begin_s = dt_now_s();
    for (int i = 0; i < 1000; i++) {
        console_say("line %d\n", i);
    }
    dt_log(DT_LOG_ERROR, "test", "last");
    assert_true(dt_now_s() - begin_s < 2);
    dt_text_reset(&got);
    take(error[0], SIZE_MAX, 0.5, &got);
    const char *at = dt_text_str(&got);
    for (int i = 0; i < 1000; i++) {
        char line[32];
        int length = snprintf(line, sizeof line, "line %d\n", i);
        assert_memory_equal(at, line, (size_t)length);
        at += length;
    }
    assert_non_null(strstr(at, " error test: last\n"));
    console_close(1);
    close_all(error, error);
    dt_text_clear(&got);
}

struct reader {
    int fd;
    _Atomic int slow_count; /* reads until it hurries */
    size_t bytes;           /* of each until then */
    struct dt_text got;
};

/* Every 0.1 s, until nothing more comes; of 256 bytes, a writer is told of room, which is a
 * page, every 1.6 s. */
static void *read_slowly(void *argument)
{
    struct reader *r = argument;
    static char buffer[PIPE_BYTES];
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    ssize_t n;
    for (int i = 0; (i < atomic_load(&r->slow_count) || poll(&p, 1, 500) > 0) &&
                    (n = read(r->fd, buffer, i < atomic_load(&r->slow_count) ? r->bytes : sizeof buffer)) > 0;
         i++) {
        dt_text_add(&r->got, buffer, (size_t)n);
        if (i < atomic_load(&r->slow_count)) {
            dt_sleep_s(0.1);
        }
    }
    return NULL;
}

/* Who reads one side slowly costs the other one a moment now and then, not one for each line. */
static void test_a_slow_side(void **state)
{
    (void)state;
    int out[2];
    int error[2];
    pthread_t thread;
    static char many[8 * PIPE_BYTES];
    struct reader r = {.slow_count = 600, .bytes = 8192};
    dt_text_init(&r.got);
    make_pipe(out, false);
    make_pipe(error, false);
    r.fd = out[0];
    assert_int_equal(console_open(out[1], error[1], &err), 0);
    memset(many, '\n', sizeof many);
    console_put(0, many, sizeof many);
    assert_int_equal(pthread_create(&thread, NULL, read_slowly, &r), 0);
    double waited_s = 0;
    for (int i = 0; i < 100; i++) {
        while (console_stalled_s() > 0.02 && console_size() > 0) { /* it has just been read from */
            dt_sleep_s(0.001);
        }
        double begin_s = dt_now_s();
        console_say("line %d\n", i);
        waited_s += dt_now_s() - begin_s;
    }
    assert_true(waited_s < 1.5);
    assert_true(console_size() > 0);
    atomic_store(&r.slow_count, 0);
    console_close(5);
    (void)close(out[1]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.got.size, sizeof many);
    (void)close(out[0]);
    close_all(error, error);
    dt_text_clear(&r.got);
}

static void test_slow_reader(void **state)
{
    (void)state;
    int ends[2];
    pthread_t thread;
    struct reader r;
    size_t size = 0;
    make_pipe(ends, false);
    r.fd = ends[0];
    r.slow_count = 25;
    r.bytes = 256;
    dt_text_init(&r.got);
    assert_int_equal(console_open(ends[1], ends[1], &err), 0);
    for (int i = 0; size < 2 * PIPE_BYTES; i++) {
        char line[64];
        int length = snprintf(line, sizeof line, "line %d\n", i);
        console_write(line, (size_t)length);
        size += (size_t)length;
    }
    assert_int_equal(pthread_create(&thread, NULL, read_slowly, &r), 0);
    console_close(0.5);
    (void)close(ends[1]);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(r.got.size, size);
    assert_int_equal(strncmp(dt_text_str(&r.got), "line 0\nline 1\n", 14), 0);
    dt_text_clear(&r.got);
    (void)close(ends[0]);
}

/* The end waits so long and no longer; what is said then waits for nobody either. With an INT
 * pending, a slow reader is not waited for without end. */
static void test_nobody_reads(void **state)
{
    (void)state;
    int ends[2];
    struct dt_text got;
    dt_text_init(&got);
    make_pipe(ends, true);
    assert_int_equal(console_open(ends[1], ends[1], &err), 0);
    console_say("lost\n");
    double begin_s = dt_now_s();
    console_close(0.5);
    assert_true(dt_now_s() - begin_s > 0.4 && dt_now_s() - begin_s < 10);
    take(ends[0], SIZE_MAX, 0.2, &got); /* the thread that hangs in its write comes free; when it
                                         * is done with ends[1] nobody knows */

    sigset_t set;
    sigset_t before;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGINT);
    make_pipe(ends, false);
    struct reader r = {.fd = ends[0], .slow_count = 600, .bytes = 256};
    pthread_t thread;
    dt_text_init(&r.got);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, &before), 0);
    assert_int_equal(console_open(ends[1], ends[1], &err), 0);
    static char many[16 * PIPE_BYTES];
    memset(many, '\n', sizeof many);
    console_put(1, many, sizeof many);
    assert_int_equal(pthread_create(&thread, NULL, read_slowly, &r), 0);
    (void)kill(getpid(), SIGINT);
    begin_s = dt_now_s();
    console_close(0.5);
    assert_true(dt_now_s() - begin_s > 0.4 && dt_now_s() - begin_s < 10);
    atomic_store(&r.slow_count, 0);
    assert_int_equal(sigwaitinfo(&set, NULL), SIGINT);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)close(ends[0]);
    dt_text_clear(&r.got);
    dt_text_clear(&got);
}

/* Without threads: held until there is room, and in order; the end waits for it. */
static void test_alone(void **state)
{
    (void)state;
    int ends[2];
    int own = dup(2);
    struct dt_text got;
    dt_text_init(&got);
    make_pipe(ends, true);
    assert_true(own >= 0 && dup2(ends[1], 2) == 2);
    console_open_alone();
    for (int i = 0; i < 20000; i++) {
        console_say("line %d\n", i);
    }
    bool waits = console_turn();
    take(ends[0], PIPE_BYTES, 10, &got);
    bool empty = got.size == 0, more = console_turn();
    take(ends[0], PIPE_BYTES, 0.1, &got);
    size_t first = got.size;
    struct reader r = {.fd = ends[0], .slow_count = 25, .bytes = 256, .got = got};
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, read_slowly, &r);
    console_close(0.5);
    (void)dup2(own, 2);
    (void)close(own);
    (void)close(ends[1]);
    assert_int_equal(failed, 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(waits && empty && more && first > 0);
    const char *at = dt_text_str(&r.got);
    for (int i = 0; i < 20000; i++) {
        char line[32];
        int length = snprintf(line, sizeof line, "line %d\n", i);
        assert_memory_equal(at, line, (size_t)length);
        at += length;
    }
    assert_int_equal(*at, 0);
    (void)close(ends[0]);
    dt_text_clear(&r.got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_once_and_in_order), cmocka_unit_test(test_full),
        cmocka_unit_test(test_a_slow_side),          cmocka_unit_test(test_slow_reader),
        cmocka_unit_test(test_nobody_reads),         cmocka_unit_test(test_alone),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
