/* covers: kernels/device.c kernels/cpu/pool.c */
/* Devices: streams as threads and inline run in order; events order streams and carry failures;
 * waits have deadlines. */
#include "kernels/cpu/pool.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "tests/lib/device_cases.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct device_case cases[] = {
    {"cpu", DT_STREAMS_INLINE}, {"cpu", DT_STREAMS_THREAD}, {"apart", DT_STREAMS_THREAD}};

static void run_cases(void (*run)(const struct device_case *c))
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run(&cases[i]);
    }
}

static void test_order(void **unused)
{
    (void)unused;
    run_cases(device_case_order);
}

static void test_event_orders_streams(void **unused)
{
    (void)unused;
    device_case_event_orders_streams(&cases[1]);
}

static void test_failure_travels(void **unused)
{
    (void)unused;
    run_cases(device_case_failure_travels);
    run_cases(device_case_failures_stay_apart);
}

static void test_memory(void **unused)
{
    (void)unused;
    run_cases(device_case_memory);
}

static void test_guard(void **unused)
{
    (void)unused;
    run_cases(device_case_guard);
}

static void test_timer(void **unused)
{
    (void)unused;
    run_cases(device_case_timer);
}

/* A handle of this process is good for memory that was exported here, whole, until that is
 * freed; whatever its bytes say. */
static void test_handles_name_what_was_exported(void **unused)
{
    (void)unused;
    struct dt_device d;
    struct dt_error err = {0};
    char handle[DT_DEVICE_HANDLE_BYTES], forged[DT_DEVICE_HANDLE_BYTES];
    void *p = NULL, *other = NULL, *bait = NULL;
    device_case_open(&d, &cases[2]);
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, 4096, &p, &err), 0);
    assert_int_equal(dt_device_alloc(&d, DT_MEMORY_DEVICE, 4096, &bait, &err), 0);
    assert_int_equal(dt_device_export(&d, p, 4096, handle, &err), 0);
    assert_int_equal(dt_device_import(&d, handle, 4096, &other, &err), 0);
    assert_ptr_equal(other, p);
    assert_int_equal(dt_device_import(&d, handle, 8192, &other, &err), -1); /* larger than it is */
    /* another process, address or size */
    for (size_t at = 0; at < 32; at++) {
        memcpy(forged, handle, sizeof forged);
        forged[at] ^= 0x40;
        other = NULL;
        if (dt_device_import(&d, forged, 4096, &other, &err) == 0) {
            assert_ptr_equal(other, p); /* bytes between the parts say nothing */
        }
    }
    void *address = bait;
    memcpy(forged, handle, sizeof forged);
    char *where = memmem(forged, sizeof forged, &p, sizeof p);
    assert_non_null(where);
    memcpy(where, &address, sizeof address);
    assert_int_equal(dt_device_import(&d, forged, 4096, &other, &err), -1);
    dt_device_free(&d, DT_MEMORY_DEVICE, p, 4096);
    assert_int_equal(dt_device_import(&d, handle, 4096, &other, &err), -1);
    dt_device_free(&d, DT_MEMORY_DEVICE, bait, 4096);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_event_orders_streams),
        cmocka_unit_test(test_failure_travels),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_handles_name_what_was_exported),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_timer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
