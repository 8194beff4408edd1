/* Communicators with ranks as processes: many of them on few cores, and what the others are told when one is killed. Each
 * test forks a store and its ranks; what ranks find is in memory they share with the test. */
#include "base/clock.h"
#include "collectives/bench_collectives.h"
#include "collectives/comm.h"
#include "collectives/store.h"
#include "launcher/store_server.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
// clang-format off: needs the headers above
#include <cmocka.h>
// clang-format on

#define RANKS_MAX 16
#define PATIENCE_S 60.0

struct told {
    _Atomic int64_t count; /* collectives done */
    struct dt_error error;
};

static struct told *told; /* by rank */
static pid_t store_pid, pids[RANKS_MAX];
static int port;

#define NEED(x)                                                                                                                                      \
    do {                                                                                                                                             \
        if (!(x)) {                                                                                                                                  \
            (void)fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x);                                                                    \
            _exit(3);                                                                                                                                \
        }                                                                                                                                            \
    } while (0)

/* The child dies with the test. */
static pid_t fork_child(void)
{
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        NEED(getppid() == parent);
    }
    return pid;
}

static int setup(void **unused)
{
    (void)unused;
    int ends[2];
    told = mmap(NULL, sizeof(*told) * RANKS_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(told != MAP_FAILED);
    assert_int_equal(pipe(ends), 0);
    store_pid = fork_child();
    if (store_pid == 0) {
        struct dt_error err;
        struct store_server *server = NULL;
        uv_loop_t loop;
        NEED(uv_loop_init(&loop) == 0);
        NEED(store_server_open(&server, &loop, &(struct store_server_options){.host = "127.0.0.1"}, &err) == 0);
        port = store_server_port(server);
        NEED(write(ends[1], &port, sizeof(port)) == (ssize_t)sizeof(port));
        (void)uv_run(&loop, UV_RUN_DEFAULT);
        _exit(0);
    }
    (void)close(ends[1]);
    assert_int_equal(read(ends[0], &port, sizeof(port)), sizeof(port));
    (void)close(ends[0]);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    assert_int_equal(kill(store_pid, SIGKILL), 0);
    assert_int_equal(waitpid(store_pid, NULL, 0), store_pid);
    (void)munmap(told, sizeof(*told) * RANKS_MAX);
    return 0;
}

static struct dt_comm *world(int rank, int size)
{
    struct dt_error err = {0};
    struct dt_store *store = NULL;
    struct dt_comm *c = NULL;
    if (dt_store_open(&store, "127.0.0.1", port, PATIENCE_S, NULL, &err) != 0 ||
        dt_comm_open(&c, &(struct dt_comm_options){.rank = rank, .size = size, .store = store, .open_timeout_s = PATIENCE_S}, &err) != 0) {
        (void)fprintf(stderr, "rank %d: %s\n", rank, err.text);
        _exit(4);
    }
    dt_store_close(store);
    return c;
}

static void begin(int size, void (*body)(struct dt_comm *c))
{
    for (int r = 0; r < size; r++) {
        pids[r] = fork_child();
        if (pids[r] == 0) {
            struct dt_comm *c = world(r, size);
            body(c);
            dt_comm_close(c);
            _exit(0);
        }
    }
}

static int end(int rank)
{
    int status = 0;
    assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
    return status;
}

/* Sums of small integers are exact, so that any order gives them. */
static void sums(struct dt_comm *c)
{
    struct dt_error err;
    void *arena = NULL;
    const int64_t n = 12000;
    NEED(dt_comm_alloc(c, (size_t)n * 4, &arena, &err) == 0);
    float *x = arena, *heap = malloc((size_t)n * 4);
    struct dt_comm *half = NULL;
    NEED(heap != NULL && dt_comm_split(c, c->rank % 2, "half", &half, &err) == 0);
    for (int round = 0; round < 6; round++) {
        float *p = round % 2 == 0 ? x : heap;
        int64_t count = round < 2 ? 5 : n;
        struct dt_comm *in = round % 3 == 2 ? half : c;
        for (int64_t i = 0; i < count; i++) {
            p[i] = (float)(c->rank + i % 7);
        }
        dt_comm_start(in, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "sums", p, p, count, DT_F32, 0}, NULL);
        NEED(dt_comm_poll(in, &err) == 0);
        float ranks = 0;
        for (int r = 0; r < c->size; r++) {
            ranks += (float)(in == c || r % 2 == c->rank % 2 ? r : 0);
        }
        for (int64_t i = 0; i < count; i++) {
            NEED(p[i] == ranks + (float)(i % 7) * (float)in->size);
        }
    }
    dt_comm_close(half);
    free(heap);
}

static void many_processes_sum(void **unused)
{
    (void)unused;
    begin(RANKS_MAX, sums);
    for (int r = 0; r < RANKS_MAX; r++) {
        assert_int_equal(end(r), 0);
    }
}

/* All-reduces until it fails. Odd numbers are large, even ones small. */
static void work(struct dt_comm *c)
{
    void *arena = NULL;
    struct told *mine = &told[c->rank];
    const int64_t n = 50000;
    NEED(dt_comm_alloc(c, (size_t)n * 4, &arena, &mine->error) == 0);
    memset(arena, 0, (size_t)n * 4);
    for (int64_t i = 1; dt_comm_poll(c, &mine->error) == 0; i++) {
        atomic_store(&mine->count, i);
        dt_comm_start(c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "work", arena, arena, i % 2 == 0 ? 100 : n, DT_F32, 0}, NULL);
    }
}

static void wait_for_count(int rank, int64_t count)
{
    double end_s = dt_now_s() + PATIENCE_S;
    while (atomic_load(&told[rank].count) < count) {
        assert_true(dt_now_s() < end_s);
        dt_sleep_s(0.001);
    }
}

static void killed_rank_is_named(void **unused)
{
    (void)unused;
    for (int victim = 0; victim < 3; victim += 2) {
        begin(3, work);
        wait_for_count(victim, 20);
        assert_int_equal(kill(pids[victim], SIGKILL), 0);
        /* The others end by themselves while the victim is a zombie: nobody has waited for it. */
        for (int r = 0; r < 3; r++) {
            if (r != victim) {
                assert_int_equal(end(r), 0);
                char who[16];
                (void)snprintf(who, sizeof(who), "rank %d", victim);
                assert_int_equal(told[r].error.status, DT_PEER);
                assert_non_null(strstr(told[r].error.text, who));
                assert_non_null(strstr(told[r].error.text, "is gone"));
            }
        }
        assert_true(WIFSIGNALED(end(victim)));
        assert_int_equal(teardown(NULL), 0); /* a new round has a new store */
        assert_int_equal(setup(NULL), 0);
    }
}

/* In no collective: poll tells. */
static void idle(struct dt_comm *c)
{
    struct told *mine = &told[c->rank];
    atomic_store(&mine->count, 1);
    double end_s = dt_now_s() + PATIENCE_S;
    while (dt_comm_poll(c, &mine->error) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.001);
    }
}

static void poll_notices_a_killed_rank(void **unused)
{
    (void)unused;
    begin(2, idle);
    wait_for_count(0, 1);
    wait_for_count(1, 1);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    assert_int_equal(end(0), 0);
    assert_int_equal(told[0].error.status, DT_PEER);
    assert_non_null(strstr(told[0].error.text, "rank 1 is gone"));
    assert_true(WIFSIGNALED(end(1)));
}

/* The bench checks what it times; here as ranks of a launcher would run it, and alone. */
static void bench_finds_nothing_wrong(void **unused)
{
    (void)unused;
    char *args[] = {"collectives", "--max", "65536", "--seconds", "0.0001", "--ranks", "3", NULL};
    for (int ranks = 0; ranks <= 2; ranks += 2) { /* 0: alone */
        FILE *out = tmpfile();
        assert_non_null(out);
        for (int r = 0; r < (ranks > 0 ? ranks : 1); r++) {
            pids[r] = fork_child();
            if (pids[r] == 0) {
                char text[16];
                NEED(dup2(fileno(out), 1) == 1);
                if (ranks > 0) {
                    (void)snprintf(text, sizeof(text), "%d", r);
                    (void)setenv("RANK", text, 1);
                    (void)setenv("WORLD_SIZE", "2", 1);
                    (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
                    (void)snprintf(text, sizeof(text), "%d", port);
                    (void)setenv("MASTER_PORT", text, 1);
                } else {
                    (void)unsetenv("RANK");
                }
                _exit(bench_collectives(7, args));
            }
        }
        for (int r = 0; r < (ranks > 0 ? ranks : 1); r++) {
            assert_int_equal(end(r), 0);
        }
        char line[1024];
        int lines = 0;
        rewind(out);
        while (fgets(line, sizeof(line), out) != NULL) {
            assert_true(line[0] == '{' && strstr(line, "\"wrong\": 0") != NULL && strstr(line, "\"busbw\"") != NULL);
            lines++;
        }
        (void)fclose(out);
        assert_int_equal(lines, 4 * 2 + 1); /* 1 KiB and 64 KiB of each, and a barrier */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(many_processes_sum, setup, teardown),
        cmocka_unit_test_setup_teardown(killed_rank_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(poll_notices_a_killed_rank, setup, teardown),
        cmocka_unit_test_setup_teardown(bench_finds_nothing_wrong, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
