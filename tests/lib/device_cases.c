#include "tests/lib/device_cases.h"

#include "kernels/kernels.h"
#include "kernels/timer.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONG_S DEVICE_CASE_LONG_S

void device_case_open(struct dt_device *d, const struct device_case *c)
{
    struct dt_error err = {0};
    struct dt_device_options o = {.streams = c->streams, .thread_count = 1};
    if (dt_device_open(d, c->device, &o, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

/* Host memory that takes part in copies. */
static int *pinned_ints(struct dt_device *d, int count)
{
    void *p = NULL;
    assert_int_equal(dt_device_alloc(d, DT_MEMORY_PINNED, sizeof(int) * (size_t)count, &p, NULL), 0);
    return p;
}

static void free_ints(struct dt_device *d, int *p, int count)
{
    dt_device_free(d, DT_MEMORY_PINNED, p, sizeof(int) * (size_t)count);
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

void device_case_order(const struct device_case *c)
{
    struct dt_device d;
    device_case_open(&d, c);
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
void device_case_event_orders_streams(const struct device_case *c)
{
    struct dt_device d;
    device_case_open(&d, c);
    struct dt_stream *a = NULL, *b = NULL;
    struct dt_event *written = NULL, *copied = NULL;
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, NULL), 0);
    assert_int_equal(dt_event_open(&d, &written, NULL), 0);
    assert_int_equal(dt_event_open(&d, &copied, NULL), 0);
    dt_event_wait(written, b); /* never recorded: does not wait */
    assert_int_equal(dt_event_sync(written, LONG_S, NULL), 0);
    assert_int_equal(dt_stream_finish(b, LONG_S, NULL), 0);
    sem_t gate;
    sem_init(&gate, 0, 0);
    int *values = pinned_ints(&d, 2); /* value, copy */
    void *there = NULL;               /* between them: CUDA waits for a copy from host to host */
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, sizeof values[0], &there, NULL), 0);
    dt_stream_call(a, pass_gate, &(struct gate_args){&gate, &values[0]}, sizeof(struct gate_args));
    dt_event_record(written, a);
    dt_event_wait(written, b);
    dt_stream_copy(b, there, &values[0], sizeof values[0]);
    dt_stream_copy(b, &values[1], there, sizeof values[0]);
    dt_event_record(copied, b);
    struct dt_error err = {0};
    assert_int_equal(dt_event_sync(copied, 0.01, &err), -1); /* nobody opened the gate */
    assert_int_equal(err.status, DT_TIMEOUT);
    sem_post(&gate);
    assert_int_equal(dt_event_sync(copied, LONG_S, &err), 0);
    assert_int_equal(values[1], 7);
    dt_event_close(written);
    dt_event_close(copied);
    dt_stream_close(a);
    dt_stream_close(b);
    free_ints(&d, values, 2);
    dt_device_free(&d, DT_MEMORY_DEVICE, there, sizeof values[0]);
    sem_destroy(&gate);
    dt_device_close(&d);
}

static int refuse(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s, (void)args;
    return dt_fail(err, DT_PEER, "rank 3: gone");
}

void device_case_failure_travels(const struct device_case *c)
{
    struct dt_device d;
    device_case_open(&d, c);
    struct dt_stream *a = NULL, *b = NULL, *last = NULL;
    struct dt_event *e = NULL, *f = NULL;
    struct dt_error err = {0};
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 0, &last, NULL), 0);
    assert_int_equal(dt_event_open(&d, &e, NULL), 0);
    assert_int_equal(dt_event_open(&d, &f, NULL), 0);
    int *values = pinned_ints(&d, 2);
    values[1] = 1;
    dt_stream_call(a, refuse, NULL, 0);
    dt_stream_fail(a, DT_IO, "a later failure");
    dt_stream_copy(a, &values[0], &values[1], sizeof values[0]); /* does not run any more */
    dt_event_record(e, a);
    assert_int_equal(dt_event_sync(e, LONG_S, &err), -1);
    if (c->streams == DT_STREAMS_INLINE) {
        assert_int_equal(err.status, DT_PEER);
        assert_string_equal(err.text, "rank 3: gone");
    } else {
        assert_true(err.status == DT_PEER || err.status == DT_IO); /* whichever came first */
    }
    dt_event_wait(e, b);
    dt_stream_copy(b, &values[0], &values[1], sizeof values[0]);
    dt_event_record(f, b);
    dt_event_wait(f, last); /* through two streams */
    assert_int_equal(dt_stream_finish(last, LONG_S, &err), -1);
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), -1);
    assert_true(dt_stream_failed(b, &err));
    assert_true(dt_stream_failed(last, NULL));
    assert_int_equal(values[0], 0);
    dt_stream_close(a);
    assert_int_equal(dt_event_sync(e, LONG_S, &err), -1); /* the event still tells */
    dt_stream_close(b);
    dt_stream_close(last);
    dt_event_close(e);
    dt_event_close(f);
    free_ints(&d, values, 2);
    dt_device_close(&d);
}

/* What came before a failure, and who waited for that only, has not failed. */
void device_case_failures_stay_apart(const struct device_case *c)
{
    struct dt_device d;
    device_case_open(&d, c);
    struct dt_stream *a = NULL, *b = NULL;
    struct dt_event *before = NULL, *after = NULL;
    struct dt_error err = {0};
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, NULL), 0);
    assert_int_equal(dt_event_open(&d, &before, NULL), 0);
    assert_int_equal(dt_event_open(&d, &after, NULL), 0);
    int *values = pinned_ints(&d, 2);
    values[1] = 5;
    dt_event_record(before, a);
    dt_event_wait(before, b);
    dt_stream_call(a, refuse, NULL, 0);
    dt_event_record(after, a);
    assert_int_equal(dt_event_sync(after, LONG_S, &err), -1);
    assert_string_equal(err.text, "rank 3: gone");
    assert_int_equal(dt_event_sync(before, LONG_S, &err), 0);
    assert_false(dt_stream_failed(b, NULL));
    dt_stream_copy(b, &values[0], &values[1], sizeof values[0]);
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), 0);
    assert_int_equal(values[0], 5);
    dt_event_close(before);
    dt_event_close(after);
    dt_stream_close(a);
    dt_stream_close(b);
    free_ints(&d, values, 2);
    dt_device_close(&d);
}

/* Every 997th byte, as the host can see it. */
static void check_zeros(struct dt_device *d, struct dt_stream *s, const char *p, size_t size_bytes)
{
    char *seen = NULL;
    assert_int_equal(dt_device_alloc(d, DT_MEMORY_PINNED, size_bytes, (void **)&seen, NULL), 0);
    if (size_bytes > 0) {
        memset(seen, 1, size_bytes);
    }
    dt_stream_copy(s, seen, p, size_bytes);
    assert_int_equal(dt_stream_finish(s, LONG_S, NULL), 0);
    for (size_t j = 0; j < size_bytes; j += 997) {
        assert_int_equal(seen[j], 0);
    }
    dt_device_free(d, DT_MEMORY_PINNED, seen, size_bytes);
}

void device_case_memory(const struct device_case *c)
{
    struct dt_device d;
    device_case_open(&d, c);
    struct dt_stream *s = NULL;
    assert_int_equal(dt_stream_open(&d, 0, &s, NULL), 0);
    size_t sizes[] = {0, 1, 1000, (2 << 20) - 1, 2 << 20, (5 << 20) + 3};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int kind = DT_MEMORY_DEVICE; kind <= DT_MEMORY_PINNED; kind++) {
            char *p = NULL;
            assert_int_equal(dt_device_alloc(&d, (enum dt_memory)kind, sizes[i], (void **)&p, NULL), 0);
            assert_int_equal((uintptr_t)p % 64, 0);
            check_zeros(&d, s, p, sizes[i]);
            if (kind == DT_MEMORY_PINNED || d.host_memory) {
                memset(p, 1, sizes[i]);
            }
            dt_device_free(&d, (enum dt_memory)kind, p, sizes[i]);
        }
    }
    struct dt_error err = {0};
    void *p = NULL;
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, (size_t)1 << 60, &p, &err), -1);
    assert_int_equal(err.status, DT_NO_MEMORY);
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_PINNED, (size_t)1 << 60, &p, &err), -1);
    assert_int_equal(err.status, DT_NO_MEMORY);
    assert_int_equal(dt_stream_finish(s, LONG_S, &err), 0); /* which leaves no error behind */
    dt_stream_close(s);
    dt_device_close(&d);
    dt_device_close(&d);
}

void device_case_guard(const struct device_case *c)
{
    struct dt_device d;
    device_case_open(&d, c);
    struct dt_stream *s = NULL;
    assert_int_equal(dt_stream_open(&d, 0, &s, NULL), 0);
    float *x = NULL, *seen = NULL;
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, 3 * sizeof *x, (void **)&x, NULL), 0);
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_PINNED, 3 * sizeof *x, (void **)&seen, NULL), 0);
    setenv("DTRUN_GUARD", "1", 1); /* read once: no test of this program looks at it before */
    dt_guard(s, x, 2 * sizeof x[0]);
    dt_stream_copy(s, seen, x, 3 * sizeof *x);
    assert_int_equal(dt_stream_finish(s, LONG_S, NULL), 0);
    assert_true(seen[0] != seen[0] && seen[1] != seen[1] && seen[2] == 0);
    dt_stream_close(s);
    dt_device_free(&d, DT_MEMORY_DEVICE, x, 3 * sizeof *x);
    dt_device_free(&d, DT_MEMORY_PINNED, seen, 3 * sizeof *x);
    dt_device_close(&d);
}

/* The outer timer holds the inner one: no time is judged alone. */
void device_case_timer(const struct device_case *c)
{
    struct dt_device d;
    device_case_open(&d, c);
    struct dt_stream *s = NULL;
    struct dt_timer *outer = NULL, *inner = NULL;
    enum { COUNT = 1 << 16 };
    void *p = NULL;
    assert_int_equal(dt_stream_open(&d, 0, &s, NULL), 0);
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, COUNT * sizeof(float), &p, NULL), 0);
    assert_int_equal(dt_timer_open(&d, &outer, NULL), 0);
    assert_int_equal(dt_timer_open(&d, &inner, NULL), 0);
    assert_true(dt_timer_s(outer) == 0);
    assert_false(dt_timer_since(inner, outer, &(double){0}));
    for (int i = 0; i < 2; i++) { /* again: the last ones count */
        dt_timer_begin(outer, s);
        dt_timer_begin(inner, s);
        d.kernels->fill(s, &(struct dt_fill_args){.x = p, .count = COUNT, .value = 2, .type = DT_F32});
        dt_timer_end(inner, s);
        d.kernels->fill(s, &(struct dt_fill_args){.x = p, .count = COUNT, .value = 1, .type = DT_F32});
        dt_timer_end(outer, s);
        assert_int_equal(dt_stream_finish(s, LONG_S, NULL), 0);
        assert_true(dt_timer_s(inner) > 0 && dt_timer_s(outer) > dt_timer_s(inner));
        double seconds = -1;
        assert_true(dt_timer_since(inner, outer, &seconds) && seconds >= 0 && seconds < dt_timer_s(outer));
    }
    dt_timer_close(inner);
    dt_timer_close(outer);
    dt_timer_close(NULL);
    dt_device_free(&d, DT_MEMORY_DEVICE, p, COUNT * sizeof(float));
    dt_stream_close(s);
    dt_device_close(&d);
}
