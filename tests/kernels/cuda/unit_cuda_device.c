/* covers: kernels/cuda kernels/device.c */
/* The device "cuda" on the software GPU or a real one: the cases of every device, and what only
 * a GPU has: work that a failure does not call back, faults that kernels write, and (of the
 * software GPU) the ways in which there is no GPU. */
#include "base/clock.h"
#include "kernels/cuda/cuda.h"
#include "tests/lib/child.h"
#include "tests/lib/device_cases.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LONG_S DEVICE_CASE_LONG_S

static const struct device_case gpu = {"cuda", DT_STREAMS_AUTO};

static void test_cases(void **unused)
{
    (void)unused;
    device_case_order(&gpu);
    device_case_event_orders_streams(&gpu);
    device_case_failure_travels(&gpu);
    device_case_failures_stay_apart(&gpu);
    device_case_memory(&gpu);
    device_case_guard(&gpu);
    device_case_timer(&gpu);
}

extern uint64_t softgpu_launch_count __attribute__((weak)); /* not on a real GPU */

static void test_peak(void **unused)
{
    (void)unused;
    struct dt_device d;
    if (&softgpu_launch_count == NULL) { /* another GPU has another one: unit_peak.c */
        skip();
    }
    device_case_open(&d, &gpu);
    /* per clock, multiprocessors, clock */
    assert_true(dt_device_peak(&d, DT_BF16) == 4096.0 * 4 * 1.98e9);
    assert_true(dt_device_peak(&d, DT_F32) == 256.0 * 4 * 1.98e9);
    dt_device_close(&d);
    device_case_open(&d, &(struct device_case){"separate", DT_STREAMS_AUTO});
    assert_true(dt_device_peak(&d, DT_F32) == 0);
    dt_device_close(&d);
}

struct gate {
    sem_t open;
    int rc;
};

static int pass_and_end(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    struct gate *g = *(struct gate **)args;
    sem_wait(&g->open);
    return g->rc == 0 ? 0 : dt_fail(err, DT_PEER, "rank 1: gone");
}

/* What is in the queue behind a function that fails does run; but no event behind it says that
 * all is well, and nothing more goes in. */
static void test_work_behind_a_failure(void **unused)
{
    (void)unused;
    struct dt_device d;
    device_case_open(&d, &gpu);
    struct dt_stream *a = NULL, *b = NULL;
    struct dt_event *before = NULL, *after = NULL, *there = NULL;
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 2, &b, NULL), 0);
    assert_int_equal(dt_event_open(&d, &before, NULL), 0);
    assert_int_equal(dt_event_open(&d, &after, NULL), 0);
    assert_int_equal(dt_event_open(&d, &there, NULL), 0);
    float *x = NULL, *seen = NULL;
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, 4 * sizeof *x, (void **)&x, NULL), 0);
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_PINNED, 4 * sizeof *x, (void **)&seen, NULL), 0);
    struct gate g = {.rc = -1}, *gate = &g;
    sem_init(&g.open, 0, 0);
    struct dt_fill_args fill = {.x = x, .count = 4, .value = 3, .type = DT_F32};
    dt_event_record(before, a);
    dt_stream_call(a, pass_and_end, &gate, sizeof gate);
    d.kernels->fill(a, &fill); /* goes in: nobody knows yet */
    dt_stream_copy(a, seen, x, 4 * sizeof *x);
    dt_event_record(after, a);
    dt_event_wait(after, b);
    dt_event_record(there, b);
    sem_post(&g.open);
    struct dt_error err = {0};
    assert_int_equal(dt_event_sync(there, LONG_S, &err), -1);
    assert_int_equal(err.status, DT_PEER);
    assert_string_equal(err.text, "rank 1: gone");
    assert_int_equal(dt_event_sync(after, LONG_S, &err), -1);
    assert_int_equal(dt_event_sync(before, LONG_S, &err), 0);
    assert_true(seen[0] == 3);
    fill.value = 4;
    d.kernels->fill(a, &fill);
    dt_stream_copy(b, seen, x, 4 * sizeof *x);
    assert_int_equal(dt_stream_finish(a, LONG_S, &err), -1);
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), -1);
    assert_true(seen[0] == 3);
    dt_stream_close(a);
    dt_stream_close(b);
    dt_event_close(before);
    dt_event_close(after);
    dt_event_close(there);
    dt_device_free(&d, DT_MEMORY_DEVICE, x, 4 * sizeof *x);
    dt_device_free(&d, DT_MEMORY_PINNED, seen, 4 * sizeof *x);
    dt_device_close(&d);
    sem_destroy(&g.open);
}

/* An event that the host has seen come through stays well when its stream is made to fail later;
 * one that it has not seen does not. */
static void test_failure_from_outside(void **unused)
{
    (void)unused;
    struct dt_device d;
    device_case_open(&d, &gpu);
    struct dt_stream *a = NULL;
    struct dt_event *known = NULL, *unknown = NULL;
    struct dt_error err = {0};
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_event_open(&d, &known, NULL), 0);
    assert_int_equal(dt_event_open(&d, &unknown, NULL), 0);
    dt_event_record(known, a);
    assert_int_equal(dt_event_sync(known, LONG_S, &err), 0);
    dt_event_record(unknown, a);
    dt_stream_fail(a, DT_TIMEOUT, "rank 2: nothing heard for %d s", 30);
    dt_stream_fail(a, DT_IO, "a later one");
    assert_int_equal(dt_event_sync(unknown, LONG_S, &err), -1);
    assert_string_equal(err.text, "rank 2: nothing heard for 30 s");
    assert_int_equal(dt_event_sync(known, LONG_S, &err), 0);
    dt_event_close(known);
    dt_event_close(unknown);
    dt_stream_close(a);
    dt_device_close(&d);
}

/* A target that is none: the kernel says it, the stream fails once it has run, and so does a
 * stream that waits for it. */
static void test_fault_of_a_kernel(void **unused)
{
    (void)unused;
    struct dt_device d;
    device_case_open(&d, &gpu);
    struct dt_stream *a = NULL, *b = NULL;
    struct dt_event *e = NULL;
    struct dt_error err = {0};
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, NULL), 0);
    assert_int_equal(dt_event_open(&d, &e, NULL), 0);
    enum { ROWS = 3, COLS = 64 };
    char *pinned = NULL, *memory = NULL;
    size_t size_bytes = ROWS * COLS * 4 + 256;
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_PINNED, size_bytes, (void **)&pinned, NULL), 0);
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, size_bytes, (void **)&memory, NULL), 0);
    ((int32_t *)pinned)[1] = COLS;
    dt_stream_copy(a, memory, pinned, 256);
    d.kernels->cross_entropy(a, &(struct dt_cross_entropy_args){.logits = memory + 256,
                                                                .targets = (int32_t *)memory,
                                                                .row_loss = (double *)(memory + 128),
                                                                .row_count = ROWS,
                                                                .col_count = COLS,
                                                                .grad_scale = 1,
                                                                .with_grad = true,
                                                                .type = DT_F32});
    dt_event_record(e, a);
    dt_event_wait(e, b);
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), -1);
    assert_int_equal(err.status, DT_INVALID);
    assert_non_null(strstr(err.text, "target 64"));
    assert_int_equal(dt_event_sync(e, LONG_S, &err), -1);
    assert_true(dt_stream_failed(a, NULL));
    dt_event_close(e);
    dt_stream_close(a);
    dt_stream_close(b);
    dt_device_free(&d, DT_MEMORY_PINNED, pinned, size_bytes);
    dt_device_free(&d, DT_MEMORY_DEVICE, memory, size_bytes);
    dt_device_close(&d);
}

/* A copy that the runtime refuses fails its stream, and no other. */
static void test_refused_work(void **unused)
{
    (void)unused;
    struct dt_device d;
    if (&softgpu_launch_count == NULL) { /* a real one takes pageable memory, and waits */
        skip();
    }
    device_case_open(&d, &gpu);
    struct dt_stream *a = NULL, *b = NULL;
    struct dt_error err = {0};
    assert_int_equal(dt_stream_open(&d, 0, &a, NULL), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, NULL), 0);
    char own[2] = {0};
    dt_stream_copy(a, &own[0], &own[1], 1);
    assert_int_equal(dt_stream_finish(a, LONG_S, &err), -1);
    assert_string_equal(err.text,
                        "copy: GPU 0 (software GPU, bus 0000:01:00.0): invalid argument (cudaErrorInvalidValue)");
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), 0);
    dt_stream_close(a);
    dt_stream_close(b);
    dt_device_close(&d);
}

/* Streams that were opened and closed, some of them failed, take no place for ever as long as
 * they ended well. */
static void test_many_streams(void **unused)
{
    (void)unused;
    struct dt_device d;
    device_case_open(&d, &gpu);
    struct dt_event *e = NULL;
    assert_int_equal(dt_event_open(&d, &e, NULL), 0);
    for (int i = 0; i < 100; i++) {
        struct dt_stream *s = NULL;
        assert_int_equal(dt_stream_open(&d, 0, &s, NULL), 0);
        assert_int_equal(dt_event_sync(e, LONG_S, NULL), 0); /* of the stream before, which had
                                                              * the same place */
        dt_event_record(e, s);
        if (i == 50) {
            dt_stream_fail(s, DT_IO, "one of them");
            assert_int_equal(dt_event_sync(e, LONG_S, NULL), -1);
            dt_event_record(e, s);
            dt_event_close(e);
            assert_int_equal(dt_event_open(&d, &e, NULL), 0);
        }
        dt_stream_close(s);
    }
    dt_event_close(e);
    dt_device_close(&d);
}

/* ---- no GPU; each in a process of its own, since a process asks once ---- */

static int index_asked;

static int say_open(void)
{
    struct dt_device d;
    struct dt_error err = {0};
    if (dt_device_open(&d, "cuda", &(struct dt_device_options){.index = index_asked}, &err) == 0) {
        dprintf(2, "opened");
        dt_device_close(&d);
        return 0;
    }
    dprintf(2, "%s", err.text);
    return 10 + (int)err.status;
}

static int say_alloc(enum dt_memory kind)
{
    struct dt_device d;
    struct dt_error err = {0};
    void *p = NULL;
    device_case_open(&d, &gpu);
    int rc = dt_device_alloc(&d, kind, (size_t)100 << 20, &p, &err);
    dprintf(2, "%s", err.text);
    return rc == 0 ? 0 : 10 + (int)err.status;
}

static int say_no_memory(void)
{
    return say_alloc(DT_MEMORY_DEVICE);
}

static int say_nothing_pinned(void)
{
    return say_alloc(DT_MEMORY_PINNED);
}

/* Ranks that are threads of one process: an import is the memory itself, and giving it back
 * closes nothing. Words are where the device says that they are. */
static int share(void)
{
    struct dt_device d;
    struct dt_error err = {0};
    struct dt_stream *s = NULL;
    void *p = NULL, *other = NULL;
    char handle[DT_DEVICE_HANDLE_BYTES];
    uint32_t *words = aligned_alloc(4096, 4096);
    memset(words, 0, 4096);
    device_case_open(&d, &gpu);
    int rc = dt_stream_open(&d, 0, &s, &err) != 0 || dt_device_alloc(&d, DT_MEMORY_DEVICE, 1000, &p, &err) != 0 ||
             dt_device_export(&d, p, 1000, handle, &err) != 0 ||
             dt_device_import(&d, handle, 1000, &other, &err) != 0 || other != p ||
             dt_device_pin(&d, words, 4096, &err) != 0;
    if (rc == 0) {
        dt_device_release(&d, other);
        dt_stream_write_word(s, words + 9, 7);
        dt_stream_wait_word(s, words + 9, 7);
        rc = dt_stream_finish(s, 10, &err) != 0 || words[9] != 7;
        dt_stream_close(s);
        dt_device_unpin(&d, words);
        dt_device_free(&d, DT_MEMORY_DEVICE, p, 1000);
        dt_device_close(&d);
    }
    free(words);
    dprintf(2, "%s", err.text);
    return rc;
}

static void test_sharing(void **unused)
{
    (void)unused;
    for (int alias = 0; alias < 2; alias++) {
        char text[CHILD_TEXT];
        setenv("SOFTGPU_ALIAS", alias ? "1" : "0", 1);
        int code = child_run(share, text);
        unsetenv("SOFTGPU_ALIAS");
        assert_string_equal(text, "");
        assert_int_equal(code, 0);
    }
}

struct no_gpu {
    const char *name, *value, *name2, *value2;
    int index, (*run)(void);
    enum dt_status status;
    const char *text;
};

static void test_no_gpu(void **unused)
{
    (void)unused;
    static const struct no_gpu rows[] = {
        {"SOFTGPU_DEVICES", "0", "CUDA_VISIBLE_DEVICES", "", 0, say_open, DT_NOT_FOUND,
         "device cuda: no GPU is visible (CUDA_VISIBLE_DEVICES=); correct or unset that, or use training.device=cpu"},
        {"SOFTGPU_DEVICES", "6", "CUDA_VISIBLE_DEVICES", "4,5", 2, say_open, DT_INVALID,
         "device cuda: GPU 2 was asked for, 2 are visible (CUDA_VISIBLE_DEVICES=4,5)"},
        {"SOFTGPU_DEVICES", "1", NULL, NULL, -1, say_open, DT_INVALID,
         "device cuda: GPU -1 was asked for, 1 is visible"},
        {"SOFTGPU_DEVICES", "2", NULL, NULL, 1, say_open, DT_OK, "opened"},
        {"SOFTGPU_DRIVER", "12080", NULL, NULL, 0, say_open, DT_INVALID,
         "device cuda: the driver is made for CUDA 12.8, this program for 13.0; install a newer driver"},
        {"SOFTGPU_DRIVER", "0", NULL, NULL, 0, say_open, DT_NOT_FOUND,
         "device cuda: no NVIDIA driver is here; install one, or use training.device=cpu"},
        {"SOFTGPU_MEMORY_MB", "64", NULL, NULL, 0, say_no_memory, DT_NO_MEMORY,
         "memory: GPU 0 (software GPU, bus 0000:01:00.0): cannot get 104857600 bytes; 67108864 of 67108864 are free"},
        {"SOFTGPU_FAIL", "cudaMallocHost:1", NULL, NULL, 0, say_nothing_pinned, DT_NO_MEMORY,
         "memory: cannot pin 104857600 bytes of the host"},
    };
    if (&softgpu_launch_count == NULL) {
        skip();
    }
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct no_gpu *r = &rows[i];
        char text[CHILD_TEXT];
        setenv(r->name, r->value, 1);
        if (r->name2 != NULL) {
            setenv(r->name2, r->value2, 1);
        }
        index_asked = r->index;
        int code = child_run(r->run, text);
        unsetenv(r->name);
        if (r->name2 != NULL) {
            unsetenv(r->name2);
        }
        assert_string_equal(text, r->text);
        assert_int_equal(code, r->status == DT_OK ? 0 : 10 + (int)r->status);
    }
}

/* ---- a device that breaks, as after a kernel's wild access: it shows at whatever is asked of the device next, in each call from then on ---- */

static const char *breaks_in;

static int break_down(void)
{
    struct dt_device d;
    struct dt_stream *s = NULL;
    struct dt_event *known = NULL, *before = NULL;
    struct dt_error err = {0};
    char *x = NULL;
    device_case_open(&d, &gpu);
    CHECK(dt_stream_open(&d, 0, &s, NULL) == 0);
    CHECK(dt_event_open(&d, &known, NULL) == 0);
    CHECK(dt_event_open(&d, &before, NULL) == 0);
    CHECK(dt_device_alloc(&d, DT_MEMORY_DEVICE, 4096, (void **)&x, NULL) == 0);
    const struct dt_matmul_args product = {
        .c = x, .a = x + 1024, .b = x + 2048, .m = 8, .n = 8, .k = 8, .type = DT_F32};
    struct dt_attention_args attention = {.out = x, .lse = x + 1024, .q = x + 2048, .k = x + 2064, .v = x + 2080};
    attention.shape = (struct dt_attention_shape){
        .batch = 1, .queries = 16, .keys = 16, .heads = 1, .head_size = 8, .causal = true, .type = DT_BF16};
    d.kernels->matmul(s, &product);
    d.kernels->attention(s, &attention);
    dt_event_record(known, s);
    CHECK(dt_event_sync(known, LONG_S, NULL) == 0);
    dt_event_record(before, s); /* behind it what broke the device may stand, or before it:
                                 * nobody knows */
    setenv("SOFTGPU_FAIL", breaks_in, 1);
    if (strcmp(breaks_in, "a kernel") == 0) { /* a real GPU */
        d.kernels->scale(
            s, &(struct dt_scale_args){.x = (void *)(uintptr_t)4096, .factor = 2, .count = 8, .type = DT_F32});
        CHECK(dt_stream_finish(s, LONG_S, NULL) == -1);
    } else if (strncmp(breaks_in, "cublasLt", 8) == 0) {
        d.kernels->matmul(s, &product);
    } else if (strncmp(breaks_in, "cudnn", 5) == 0) {
        d.kernels->attention(s, &attention);
    } else {
        dt_stream_copy(s, x, x + 2048, 1024);
        d.kernels->scale(s, &(struct dt_scale_args){.x = x, .factor = 2, .count = 8, .type = DT_F32});
    }
    CHECK(dt_stream_failed(s, NULL));
    CHECK(dt_event_sync(known, LONG_S, NULL) == 0);
    CHECK(dt_event_sync(before, LONG_S, &err) == -1);
    dprintf(2, "%s", err.text);
    return 10 + (int)err.status;
}

/* What was recorded before is nothing either, unless the host has seen it come through; and
 * whatever failed, the device is named with its own words. */
static void test_a_device_that_breaks(void **unused)
{
    (void)unused;
    static const char *const rows[] = {"a kernel", "cudaMemcpyAsync:700", "a launch:700", "cublasLtMatmul:700",
                                       "cudnnBackendExecute:700"};
    bool real = &softgpu_launch_count == NULL; /* breaks by an address that is nobody's, and only
                                                * so; the software one would not survive that */
    for (size_t i = real ? 0 : 1; i < (real ? 1 : sizeof rows / sizeof rows[0]); i++) {
        char text[CHILD_TEXT];
        breaks_in = rows[i];
        int code = child_run(break_down, text);
        if (code != 10 + DT_IO || strstr(text, real ? "GPU 0 (" : "GPU 0 (software GPU") == NULL ||
            strstr(text, "cudaErrorIllegalAddress") == NULL) {
            fail_msg("%s: ended with %d: %s", rows[i], code, text);
        }
    }
}

static int sleep_long(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    (void)args;
    (void)err;
    dt_sleep_s(0.1);
    return 0;
}

/* What a stream waits for another one is known when the host has waited for it; a stream that
 * brings data is no peer, and more waits at once than are taken down lose their times only. */
static void test_time_waited(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_error err;
    struct dt_stream *a = NULL, *b = NULL, *copies = NULL;
    struct dt_event *e = NULL;
    device_case_open(&d, &gpu);
    assert_int_equal(dt_stream_open(&d, 1, &a, &err), 0);
    assert_int_equal(dt_stream_open(&d, 0, &b, &err), 0);
    assert_int_equal(dt_stream_open(&d, -1, &copies, &err), 0);
    assert_int_equal(dt_event_open(&d, &e, &err), 0);
    dt_stream_call(copies, sleep_long, NULL, 0);
    dt_event_record(e, copies);
    dt_event_wait(e, b);
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), 0);
    assert_true(dt_stream_waited_s(b) < 0.05);
    double before_s = dt_stream_waited_s(b);
    for (int i = 0; i < 2; i++) {
        dt_stream_call(a, sleep_long, NULL, 0);
        dt_event_record(e, a);
        dt_event_wait(e, b);
    }
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), 0);
    assert_true(dt_stream_waited_s(b) - before_s > 0.15 && dt_stream_waited_s(b) - before_s < LONG_S);
    before_s = dt_stream_waited_s(b);
    dt_stream_call(a, sleep_long, NULL, 0);
    dt_event_record(e, a);
    for (int i = 0; i < 2000; i++) {
        dt_event_wait(e, b);
    }
    assert_int_equal(dt_stream_finish(b, LONG_S, &err), 0);
    assert_true(dt_stream_waited_s(b) - before_s > 0.05);
    assert_true(dt_stream_waited_s(a) == 0);
    dt_event_close(e);
    dt_stream_close(a);
    dt_stream_close(b);
    dt_stream_close(copies);
    dt_device_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_gpu), /* first: these fork */
        cmocka_unit_test(test_sharing),
        cmocka_unit_test(test_a_device_that_breaks),
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_peak),
        cmocka_unit_test(test_work_behind_a_failure),
        cmocka_unit_test(test_failure_from_outside),
        cmocka_unit_test(test_fault_of_a_kernel),
        cmocka_unit_test(test_refused_work),
        cmocka_unit_test(test_many_streams),
        cmocka_unit_test(test_time_waited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
