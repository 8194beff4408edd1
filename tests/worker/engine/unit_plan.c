/* covers: worker/engine/plan.c */
/* Sums and addresses of the plan; what the world says about surroundings that make no sense. */
#include "worker/engine/plan.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

static void test_pieces(void **state)
{
    (void)state;
    struct plan p;
    struct world w;
    struct dt_error err;
    assert_int_equal(world_open_thread(&w, &(struct world_options){.device = "cpu", .threads = 1}, NULL, 0, 1, &err),
                     0);
    plan_init(&p);
    int a = plan_add(&p, PLAN_WEIGHTS, PLAN_PEERS, 100), none = plan_add(&p, PLAN_GATHER_SLOTS, PLAN_PEERS, 0);
    int b = plan_add(&p, PLAN_WEIGHTS, PLAN_PEERS, 10000), c = plan_add(&p, PLAN_SCRATCH, PLAN_LOCAL, 64);
    assert_int_equal(p.bytes[PLAN_WEIGHTS], 10100);
    assert_int_equal(plan_total(&p), 10164);
    assert_int_equal(plan_open(&p, &w, &err), 0);
    assert_null(plan_at(&p, none));
    assert_int_equal((uintptr_t)plan_at(&p, b) % 4096, 0);
    /* a gap that nobody may use */
    assert_true((char *)plan_at(&p, a) + 100 + 256 <= (char *)plan_at(&p, b));
    for (size_t i = 0; i < 10000; i++) {
        assert_int_equal(((char *)plan_at(&p, b))[i], 0);
    }
    memset(plan_at(&p, c), 1, 64);
    plan_clear(&p);
    world_close(&w);
}

static void test_available(void **state)
{
    (void)state;
    char what[64];
    double have = plan_available(1, what, sizeof what);
    assert_true(have > 0);
    struct rlimit old, less;
    (void)less;
    assert_int_equal(getrlimit(RLIMIT_AS, &old), 0);
    less = old;
#ifndef DT_SANITIZED /* sanitizers reserve more than any limit */
    less.rlim_cur = (rlim_t)3 << 30;
    assert_int_equal(setrlimit(RLIMIT_AS, &less), 0);
    double limited = plan_available(1, what, sizeof what);
    assert_int_equal(setrlimit(RLIMIT_AS, &old), 0);
    assert_true(limited <= 3.0 * (1 << 30));
#endif
}

static void test_surroundings(void **state)
{
    (void)state;
    static const struct {
        const char *size, *rank, *said;
    } cases[] = {
        {"2", "2", "RANK 2, WORLD_SIZE 2: a rank is below the world size"},
        {"two", "0", "WORLD_SIZE: two: not a number of ranks"},
        {"2", "0", "MASTER_ADDR or MASTER_PORT is not set"},
    };
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    unsetenv("DTRUN_PAGE");
    unsetenv("LOCAL_WORLD_SIZE");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world w;
        struct dt_error err;
        setenv("WORLD_SIZE", cases[i].size, 1);
        setenv("RANK", cases[i].rank, 1);
        assert_int_equal(world_open(&w, &(struct world_options){.device = "cpu"}, &err), -1);
        if (!strstr(err.text, cases[i].said)) {
            print_error("%s\n", err.text);
        }
        assert_non_null(strstr(err.text, cases[i].said));
        world_close(&w);
    }
    unsetenv("WORLD_SIZE");
    unsetenv("RANK");
}

/* Ranks that are bound to CPUs of their own have these to themselves. */
static void test_threads(void **state)
{
    (void)state;
    struct world w;
    struct dt_error err;
    struct world_options o = {.device = "cpu"};
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int cores = CPU_COUNT(&set);
    char more[16];
    (void)snprintf(more, sizeof more, "%d", cores + 1);
    struct {
        const char *sharers;
        int threads;
    } rows[] = {{NULL, cores}, {"1", cores}, {more, 1}, {"0", cores}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        rows[i].sharers != NULL ? setenv("DTRUN_CPU_SHARERS", rows[i].sharers, 1) : unsetenv("DTRUN_CPU_SHARERS");
        assert_int_equal(world_open_thread(&w, &o, NULL, 0, 1, &err), 0);
        int threads = w.threads;
        world_close(&w);
        assert_int_equal(threads, rows[i].threads);
    }
    setenv("DTRUN_CPU_SHARERS", "some", 1);
    assert_int_equal(world_open_thread(&w, &o, NULL, 0, 1, &err), -1);
    assert_non_null(strstr(err.text, "DTRUN_CPU_SHARERS: some: not a number of ranks"));
    world_close(&w);
    unsetenv("DTRUN_CPU_SHARERS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pieces), cmocka_unit_test(test_available),
                                       cmocka_unit_test(test_surroundings), cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
