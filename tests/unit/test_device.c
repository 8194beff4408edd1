/* Devices: streams as threads and inline run in order; events order streams and carry failures; waits have deadlines. */
#include "base/clock.h"
#include "kernels/cpu/pool.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONG_S 60.0

static const enum dt_streams modes[] = {DT_STREAMS_INLINE, DT_STREAMS_THREAD};

static void open_device(struct dt_device *d, enum dt_streams streams)
{
    struct dt_error err = {0};
    struct dt_device_options o = {.streams = streams, .thread_count = 1};
    if (dt_device_open(d, "cpu", &o, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

struct append_args {
    int *list, *count, value;
};

static int append(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    struct append_args *a = args;
    a->list[(*a->count)++] = a->value;
    return 0;
}

static void test_order(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < 2; m++) {
        struct dt_device d;
        open_device(&d, modes[m]);
        struct dt_stream *s = NULL;
        assert_int_equal(dt_stream_open(&d, 0, &s, NULL), 0);
        enum { COUNT = 1000 }; /* more than the queue holds */
        static int list[COUNT];
        int count = 0;
        for (int i = 0; i < COUNT; i++) {
            dt_stream_call(s, append, &(struct append_args){list, &count, i}, sizeof(struct append_args));
        }
        assert_int_equal(dt_stream_finish(s, LONG_S, NULL), 0);
        assert_int_equal(count, COUNT);
        for (int i = 0; i < COUNT; i++) {
            assert_int_equal(list[i], i);
        }
        dt_stream_close(s);
        dt_device_close(&d);
    }
}

struct gate_args {
    sem_t *gate;
    int *value;
};

static int pass_gate(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)err;
    struct gate_args *g = args;
    sem_wait(g->gate);
    *g->value = 7;
    return 0;
}

/* A: waits at the gate, writes 7.  B: waits for A's event, copies the value. Only then it is 7. */
static void test_event_orders_streams(void **unused)
{
    (void)unused;
    struct dt_device d;
    open_device(&d, DT_STREAMS_THREAD);
    struct dt_stream *a = NULL, *b = NULL;
    struct dt_event *written = NULL, *copied = NULL;
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, NULL), 0);
    assert_int_equal(dt_event_open(&d, &written, NULL), 0);
    assert_int_equal(dt_event_open(&d, &copied, NULL), 0);
    dt_event_wait(written, b); /* never recorded: does not wait */
    assert_int_equal(dt_stream_finish(b, LONG_S, NULL), 0);
    sem_t gate;
    sem_init(&gate, 0, 0);
    int value = 0, copy = 0;
    dt_stream_call(a, pass_gate, &(struct gate_args){&gate, &value}, sizeof(struct gate_args));
    dt_event_record(written, a);
    dt_event_wait(written, b);
    dt_stream_copy(b, &copy, &value, sizeof copy);
    dt_event_record(copied, b);
    struct dt_error err = {0};
    assert_int_equal(dt_event_sync(copied, 0.01, &err), -1); /* nobody opened the gate */
    assert_int_equal(err.status, DT_TIMEOUT);
    sem_post(&gate);
    assert_int_equal(dt_event_sync(copied, LONG_S, &err), 0);
    assert_int_equal(copy, 7);
    dt_event_close(written);
    dt_event_close(copied);
    dt_stream_close(a);
    dt_stream_close(b);
    sem_destroy(&gate);
    dt_device_close(&d);
}

static int refuse(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)args;
    return dt_fail(err, DT_PEER, "rank 3: gone");
}

static void test_failure_travels(void **unused)
{
    (void)unused;
    for (size_t m = 0; m < 2; m++) {
        struct dt_device d;
        open_device(&d, modes[m]);
        struct dt_stream *a = NULL, *b = NULL;
        struct dt_event *e = NULL;
        struct dt_error err = {0};
        assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
        assert_int_equal(dt_stream_open(&d, 0, &b, NULL), 0);
        assert_int_equal(dt_event_open(&d, &e, NULL), 0);
        dt_stream_call(a, refuse, NULL, 0);
        dt_stream_fail(a, DT_IO, "a later failure");
        int x = 0, y = 1;
        dt_stream_copy(a, &x, &y, sizeof x); /* does not run any more */
        dt_event_record(e, a);
        assert_int_equal(dt_event_sync(e, LONG_S, &err), -1);
        if (modes[m] == DT_STREAMS_INLINE) {
            assert_int_equal(err.status, DT_PEER);
            assert_string_equal(err.text, "rank 3: gone");
        } else {
            assert_true(err.status == DT_PEER || err.status == DT_IO); /* whichever came first */
        }
        dt_event_wait(e, b);
        dt_stream_copy(b, &x, &y, sizeof x);
        assert_int_equal(dt_stream_finish(b, LONG_S, &err), -1);
        assert_true(dt_stream_failed(b, &err));
        assert_int_equal(x, 0);
        dt_stream_close(a);
        dt_stream_close(b);
        dt_event_close(e);
        dt_device_close(&d);
    }
}

static void test_memory(void **unused)
{
    (void)unused;
    struct dt_device d;
    open_device(&d, DT_STREAMS_INLINE);
    size_t sizes[] = {0, 1, 1000, (2 << 20) - 1, 2 << 20, (5 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        void *p = NULL;
        assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, sizes[i], &p, NULL), 0);
        assert_int_equal((uintptr_t)p % 64, 0);
        for (size_t j = 0; j < sizes[i]; j += 997) {
            assert_int_equal(((char *)p)[j], 0);
        }
        memset(p, 1, sizes[i]);
        dt_device_free(&d, DT_MEMORY_DEVICE, p, sizes[i]);
    }
    struct dt_error err = {0};
    void *p = NULL;
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, (size_t)1 << 60, &p, &err), -1);
    assert_int_equal(err.status, DT_NO_MEMORY);
    dt_device_close(&d);
    dt_device_close(&d);
}

static void test_options(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_error err = {0};
    assert_int_equal(dt_device_open(&d, "abacus", NULL, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    setenv("DTRUN_STREAMS", "thread", 1);
    assert_int_equal(dt_device_open(&d, "twin64", NULL, &err), 0);
    assert_int_equal(d.options.streams, DT_STREAMS_THREAD);
    assert_int_equal(d.real, DT_F64);
    dt_device_close(&d);
    setenv("DTRUN_STREAMS", "pigeon", 1);
    assert_int_equal(dt_device_open(&d, "cpu", NULL, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    unsetenv("DTRUN_STREAMS");
    assert_int_equal(dt_device_open(&d, "cpu", &(struct dt_device_options){.local_rank_count = 1 << 20}, &err), 0);
    assert_int_equal(d.options.streams, DT_STREAMS_INLINE);
    dt_device_close(&d);
}

static void count_part(void *context, int64_t part)
{
    ((unsigned char *)context)[part]++;
}

static void test_pool(void **unused)
{
    (void)unused;
    static unsigned char seen[100];
    for (int threads = 1; threads <= 4; threads++) {
        struct dt_pool *p = NULL;
        assert_int_equal(dt_pool_open(&p, threads, NULL), 0);
        assert_int_equal(dt_pool_size(p), threads);
        for (int round = 0; round < 300; round++) {
            int parts = round % 100;
            memset(seen, 0, sizeof seen);
            dt_pool_run(p, parts, count_part, seen);
            for (int i = 0; i < 100; i++) {
                assert_int_equal(seen[i], i < parts);
            }
        }
        dt_pool_close(p);
    }
}

static void test_guard(void **unused)
{
    (void)unused;
    struct dt_device d;
    open_device(&d, DT_STREAMS_INLINE);
    struct dt_stream *s = NULL;
    assert_int_equal(dt_stream_open(&d, 0, &s, NULL), 0);
    setenv("DTRUN_GUARD", "1", 1);
    float x[3] = {1, 2, 3};
    dt_guard(s, x, 2 * sizeof x[0]);
    assert_true(x[0] != x[0] && x[1] != x[1] && x[2] == 3);
    unsetenv("DTRUN_GUARD");
    dt_stream_close(s);
    dt_device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),           cmocka_unit_test(test_event_orders_streams),
        cmocka_unit_test(test_failure_travels), cmocka_unit_test(test_memory),
        cmocka_unit_test(test_options),         cmocka_unit_test(test_pool),
        cmocka_unit_test(test_guard),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
