/* covers: worker/engine/homes */
/* Homes outside of the device's memory against their contract (home.h): pieces of odd sizes, several at
 * a time and of two arrays, brought and given back in any order, beside a copy of what must be there; and
 * files that cannot be made, written or read. */
#include "tests/lib/folder.h"

#include "base/clock.h"
#include "base/file.h"
#include "worker/engine/homes/home.h"
#include "worker/engine/homes/transfer.h"
#include "worker/engine/homes/windows.h"
#include "worker/engine/strategy.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ARRAYS = 2, ELEMENTS = 50021, MOST = 9000, ROUNDS = 300 };

static const char *paths[2];

static struct job_offload settings_of(enum offload_engine engine, bool pipelined, int64_t portion)
{
    paths[0] = paths[1] = folder;
    return (struct job_offload){.optimizer = OFFLOAD_NVME,
                                .ratio = 1,
                                .nvme_path = {2, paths},
                                .portion = portion,
                                .buffer_count = 3,
                                .pipeline_read = pipelined,
                                .pipeline_write = pipelined,
                                .engine = engine,
                                .block_size = 8192,
                                .queue_depth = 3,
                                .intra_op_parallelism = 1,
                                .single_submit = !pipelined,
                                .overlap_events = pipelined};
}

struct array {
    struct home home;
    float now[ELEMENTS]; /* what must be there */
};

struct fixture {
    struct world world;
    struct plan plan;
    struct job_offload job;
    struct home_settings settings;
    struct array array[ARRAYS];
};

static int open_all(struct fixture *f, const char *device, const struct home_ops *ops, struct dt_error *err)
{
    assert_int_equal(
        world_open_thread(&f->world, &(struct world_options){.device = device, .threads = 1}, NULL, 0, 1, err), 0);
    bool own = !f->world.device->host_memory;
    residence_settings(&f->settings, &f->job, own, false);
    plan_init(&f->plan);
    for (int i = 0; i < ARRAYS; i++) {
        struct home *h = &f->array[i].home;
        *h = (struct home){.ops = ops, .settings = &f->settings};
        ops->plan(h, &f->plan, PLAN_OPTIMIZER, PLAN_LOCAL, sizeof f->array[i].now, MOST * sizeof(float));
    }
    assert_int_equal(plan_open(&f->plan, &f->world, err), 0);
    for (int i = 0; i < ARRAYS; i++) {
        if (ops->open(&f->array[i].home, &f->world, &f->plan, err) != 0) {
            return -1;
        }
    }
    return 0;
}

static void close_all(struct fixture *f)
{
    for (int i = 0; i < ARRAYS; i++) {
        home_close(&f->array[i].home);
        home_close(&f->array[i].home);
    }
    plan_clear(&f->plan);
    world_close(&f->world);
    free(f);
}

static uint64_t next_random(uint64_t *state, uint64_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

struct piece {
    struct array *array;
    int64_t first, count;
    enum home_use use;
    float *at;
};

/* What the user of a stream does with a piece: compares it, and changes it. */
struct use {
    const float *expected;
    float *at;
    int64_t count;
    enum home_use use;
    float value;
};

static int use_piece(struct dt_stream *s, void *args, struct dt_error *err)
{
    (void)s;
    const struct use *u = args;
    if (u->use != HOME_WRITE && memcmp(u->at, u->expected, (size_t)u->count * sizeof(float)) != 0) {
        return dt_fail(err, DT_INTERNAL, "test: other bytes than the last that were given back");
    }
    for (int64_t i = 0; i < u->count && u->use != HOME_READ; i++) {
        u->at[i] = u->value + (float)i;
    }
    return 0;
}

/* Up to three pieces of each array at a time, or a walk through it from start to end, as an update does. */
static void random_use(struct fixture *f, uint64_t seed)
{
    struct dt_stream *const streams[] = {f->world.compute, f->world.communication};
    struct dt_error err;
    int64_t walk = 0;
    for (int round = 0; round < ROUNDS; round++) {
        struct piece piece[3 * ARRAYS];
        int count = 0;
        bool walks = round % 3 != 0;
        int64_t step = 64 * (1 + (int64_t)next_random(&seed, 30));
        struct dt_stream *stream = streams[next_random(&seed, 2)];
        for (int i = 0; i < ARRAYS; i++) {
            int64_t at = walks ? walk : (int64_t)next_random(&seed, ELEMENTS - 3 * 2400);
            for (int k = 0; k < 3; k++) {
                int64_t n = walks ? step : 1 + (int64_t)next_random(&seed, 2000);
                n = at + n > ELEMENTS ? ELEMENTS - at : n;
                if (n <= 0) {
                    break;
                }
                struct piece *p = &piece[count++];
                *p = (struct piece){&f->array[i], at, n, (enum home_use)next_random(&seed, 3), NULL};
                p->at = home_bring((struct home_part){&p->array->home, (size_t)at * sizeof(float)},
                                   (size_t)n * sizeof(float), p->use, stream);
                at += n + (walks ? 0 : (int64_t)next_random(&seed, 400));
            }
        }
        for (int k = 0; k < count; k++) {
            const struct piece *p = &piece[k];
            struct use u = {p->array->now + p->first, p->at, p->count, p->use, (float)(round * 131 + k)};
            dt_stream_call(stream, use_piece, &u, sizeof u);
        }
        if (dt_stream_finish(stream, 60, &err) != 0) {
            fail_msg("round %d: %s", round, err.text);
        }
        for (int k = 0; k < count; k++) {
            const struct piece *p = &piece[k];
            for (int64_t i = 0; i < p->count && p->use != HOME_READ; i++) {
                p->array->now[p->first + i] = (float)(round * 131 + k) + (float)i;
            }
            home_back((struct home_part){&p->array->home, (size_t)p->first * sizeof(float)},
                      (size_t)p->count * sizeof(float), stream);
        }
        walk = walk + 3 * step >= ELEMENTS ? 0 : walk + 3 * step;
        for (int i = 0; i < ARRAYS; i++) { /* now and then what comes next is asked for, or all is forgotten */
            struct home *h = &f->array[i].home;
            if (next_random(&seed, 3) == 0) {
                size_t at = walks ? (size_t)walk * sizeof(float) : sizeof(float) * (size_t)next_random(&seed, ELEMENTS),
                       left = h->size_bytes - at;
                h->ops->ahead(h, at, left < 8192 ? left : 8192);
            } else if (next_random(&seed, 20) == 0) {
                float *room = h->ops->empty(h, stream);
                struct use u = {.at = room, .count = MOST, .use = HOME_WRITE, .value = -5};
                dt_stream_call(stream, use_piece, &u, sizeof u);
                assert_int_equal(dt_stream_finish(stream, 60, &err), 0);
            }
        }
    }
}

/* Spent bytes are written over once they rest: the last bytes that were given back do, whole. */
static void test_spent(void **state)
{
    (void)state;
    enum { COUNT = 2000 };
    static const struct {
        const char *device;
        const struct home_ops *ops;
    } cases[] = {{"cpu", &home_nvme}, {"separate", &home_host}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture *f = dt_alloc(sizeof *f);
        struct dt_error err;
        f->job = settings_of(OFFLOAD_ENGINE_THREADS, true, 2048);
        assert_int_equal(setenv("DTRUN_STREAMS", "thread", 1), 0);
        if (open_all(f, cases[i].device, cases[i].ops, &err) != 0) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(unsetenv("DTRUN_STREAMS"), 0);
        struct home *h = &f->array[0].home;
        struct dt_stream *stream = f->world.compute;
        const struct home_part part = {h, 0};
        for (int round = 0; round < 100; round++) {
            const enum home_use uses[] = {HOME_WRITE, HOME_SPEND, HOME_READ};
            float expected[COUNT];
            for (int k = 0; k < COUNT; k++) {
                expected[k] = (float)(round + k);
            }
            for (int k = 0; k < 3; k++) {
                float *at = home_bring(part, sizeof expected, uses[k], stream);
                struct use u = {expected, at, COUNT, uses[k], (float)(k == 0 ? round : -9)};
                dt_stream_call(stream, use_piece, &u, sizeof u);
                home_back(part, sizeof expected, stream);
                if (k == 1) {
                    (void)h->ops->empty(h, stream);
                } else if (k == 2 && dt_stream_finish(stream, 60, &err) != 0) {
                    fail_msg("round %d: %s", round, err.text);
                }
            }
        }
        close_all(f);
    }
}

static void test_contract(void **state)
{
    (void)state;
    static const struct {
        const char *device, *streams;
        const struct home_ops *ops;
        enum offload_engine engine;
        bool pipelined;
        int64_t portion;
    } cases[] = {{"cpu", "inline", &home_nvme, OFFLOAD_ENGINE_AUTO, true, 2048},
                 {"cpu", "thread", &home_nvme, OFFLOAD_ENGINE_THREADS, true, 1000},
                 {"cpu", "thread", &home_nvme, OFFLOAD_ENGINE_AUTO, false, 100},
                 {"cpu", "inline", &home_nvme, OFFLOAD_ENGINE_THREADS, false, 5000},
                 {"separate", "thread", &home_nvme, OFFLOAD_ENGINE_AUTO, true, 2048},
                 {"separate", "inline", &home_nvme, OFFLOAD_ENGINE_THREADS, true, 8192},
                 {"separate", "thread", &home_host, OFFLOAD_ENGINE_AUTO, true, 2048},
                 {"separate", "inline", &home_host, OFFLOAD_ENGINE_AUTO, false, 300}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture *f = dt_alloc(sizeof *f);
        struct dt_error err;
        f->job = settings_of(cases[i].engine, cases[i].pipelined, cases[i].portion);
        assert_int_equal(setenv("DTRUN_STREAMS", cases[i].streams, 1), 0);
        if (open_all(f, cases[i].device, cases[i].ops, &err) != 0) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(unsetenv("DTRUN_STREAMS"), 0);
        random_use(f, 7 + i);
        close_all(f);
    }
}

/* What is planned is what is there: files of whole pages, and nothing of them has a name. */
static void test_plan(void **state)
{
    (void)state;
    struct fixture *f = dt_alloc(sizeof *f);
    struct dt_error err;
    f->job = settings_of(OFFLOAD_ENGINE_AUTO, true, 2048);
    assert_int_equal(open_all(f, "cpu", &home_nvme, &err), 0);
    size_t array = ELEMENTS * sizeof(float), least = ARRAYS * array;
    assert_in_range(f->plan.file_bytes, least, least + ARRAYS * 2 * TRANSFER_PAGE_BYTES);
    assert_int_equal(f->plan.bytes[PLAN_HOST] + f->plan.bytes[PLAN_STAGING], 0);
    size_t room = windows_room_bytes(&f->settings, array, MOST * sizeof(float));
    assert_int_equal(f->plan.bytes[PLAN_OPTIMIZER], ARRAYS * room);
    size_t held = 0;
    for (int fd = 3; fd < 256; fd++) {
        char link[64], target[512];
        (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, target, sizeof target - 1);
        if (n > 0 && strncmp(target, folder, strlen(folder)) == 0) {
            held += (size_t)lseek(fd, 0, SEEK_END);
        }
    }
    assert_int_equal(held, 2 * f->plan.file_bytes); /* two descriptors of each */
    close_all(f);
    char *left = dt_format("ls -A %s | grep -c . | grep -qx 0", folder);
    assert_int_equal(system(left), 0);
    free(left);
}

/* The sentence of a rank that is not root where the limit of locked memory is below what is pinned. */
static void test_words(void **state)
{
    (void)state;
    struct plan plan = {.bytes = {[PLAN_HOST] = 3 << 20}, .size_bytes = {[PLAN_PINNED] = 3 << 20}};
    const struct job_offload job = {.activations = OFFLOAD_CPU};
    struct dt_text text;
    dt_text_init(&text);
    residence_words(&plan, &job, 2, false, &text);
    assert_string_equal(dt_text_str(&text), "offload: the CPU computes in the host's memory, so nothing moves for cpu");
    dt_text_reset(&text);
    pid_t pid = fork();
    if (pid == 0) {
        const struct rlimit limit = {4 << 20, 4 << 20};
        bool other = geteuid() != 0 || setuid(65534) == 0;
        bool limited = other && setrlimit(RLIMIT_MEMLOCK, &limit) == 0;
        residence_words(&plan, &job, 2, true, &text);
        bool said = strcmp(dt_text_str(&text), "offload: 3.0 MiB of each rank rest in the host's memory (6.0 MiB are "
                                               "pinned, ulimit -l is 4.0 MiB: raise it if the driver refuses)") == 0;
        dt_text_reset(&text);
        residence_words(&plan, &job, 1, true, &text);
        _exit(limited && !(said && strstr(dt_text_str(&text), "ulimit") == NULL));
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    dt_text_clear(&text);
}

/* ---- files that fail ---- */

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void test_no_room(void **state)
{
    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    static const struct {
        const char *path, *says;
        rlim_t limit;
    } cases[] = {{NULL, "no room for ", 16384},
                 {"/proc", "offload.nvme_path: /proc: ", RLIM_INFINITY},
                 {"/dev/null", "offload.nvme_path: /dev/null: ", RLIM_INFINITY},
                 {"/nowhere/at/all", "offload.nvme_path: /nowhere/at/all: ", RLIM_INFINITY}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fixture *f = dt_alloc(sizeof *f);
        struct dt_error err;
        f->job = settings_of(OFFLOAD_ENGINE_AUTO, true, 2048);
        paths[0] = cases[i].path != NULL ? cases[i].path : folder;
        limit_files(cases[i].limit);
        int rc = open_all(f, "cpu", &home_nvme, &err);
        limit_files(RLIM_INFINITY);
        assert_int_equal(rc, -1);
        assert_non_null(strstr(err.text, cases[i].says));
        assert_non_null(strstr(err.text, paths[0]));
        if (cases[i].path != NULL) { /* before anything is opened, too */
            struct dt_error early;
            bool first = residence_check(&f->plan, &f->job, 1, false, &early) != 0;
            assert_true(first || strcmp(cases[i].path, "/proc") == 0);
            assert_true(strcmp(cases[i].path, "/dev/null") != 0 || strstr(early.text, "is no folder; ") != NULL);
        }
        close_all(f);
    }
}

/* A write that fails becomes the failure of the stream that wants these bytes next. */
static void test_failed_write(void **state)
{
    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    static const enum offload_engine engines[] = {OFFLOAD_ENGINE_AUTO, OFFLOAD_ENGINE_THREADS};
    for (int i = 0; i < 2; i++) {
        struct fixture *f = dt_alloc(sizeof *f);
        struct dt_error err = {0};
        f->job = settings_of(engines[i], true, 2048);
        assert_int_equal(open_all(f, "cpu", &home_nvme, &err), 0);
        limit_files(4096);
        int rc = 0;
        for (int64_t at = 0; at + 2048 <= ELEMENTS && rc == 0; at += 2048) {
            struct home_part part = {&f->array[0].home, (size_t)at * sizeof(float)};
            float *x = home_bring(part, 2048 * sizeof(float), HOME_CHANGE, f->world.compute);
            rc = dt_stream_finish(f->world.compute, 60, &err);
            x[0] = rc == 0 ? 1 : x[0];
            home_back(part, 2048 * sizeof(float), f->world.compute);
        }
        /* As a checkpoint, again and again: what is in memory still is read before its write has failed. */
        double until_s = dt_now_s() + 60;
        for (int64_t at = 0; rc == 0 && dt_now_s() < until_s; at = at + 4096 <= ELEMENTS ? at + 2048 : 0) {
            struct home_part part = {&f->array[0].home, (size_t)at * sizeof(float)};
            (void)home_bring(part, 2048 * sizeof(float), HOME_READ, f->world.compute);
            rc = dt_stream_finish(f->world.compute, 60, &err);
            home_back(part, 2048 * sizeof(float), f->world.compute);
        }
        limit_files(RLIM_INFINITY);
        assert_int_equal(rc, -1);
        assert_non_null(strstr(err.text, "offload: "));
        assert_non_null(strstr(err.text, folder));
        assert_non_null(strstr(err.text, "the optimizer cannot be written: File too large"));
        close_all(f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_contract, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_spent, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_plan, folder_setup, folder_teardown),
        cmocka_unit_test(test_words),
        cmocka_unit_test_setup_teardown(test_no_room, folder_setup, folder_teardown),
        cmocka_unit_test_setup_teardown(test_failed_write, folder_setup, folder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
