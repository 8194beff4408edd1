/* Communicators over several hosts, with ranks as processes: sums, and what the others are told when one is killed. Each test
 * forks a store and its ranks, which learn from the environment where they are, as those of a launcher do. */
#include "base/clock.h"
#include "collectives/comm.h"
#include "collectives/store.h"
#include "launcher/store_server.h"
#include "worker/world.h"

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

#define RANKS_MAX 6
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

static void set(const char *name, int value)
{
    char text[16];
    (void)snprintf(text, sizeof(text), "%d", value);
    (void)setenv(name, text, 1);
}

/* One digit per rank: its host. */
static void begin(const char *layout, void (*body)(struct dt_comm *c))
{
    int size = (int)strlen(layout);
    for (int r = 0; r < size; r++) {
        pids[r] = fork_child();
        if (pids[r] == 0) {
            int local = 0, before = 0;
            for (int i = 0; i < size; i++) {
                local += layout[i] == layout[r];
                before += i < r && layout[i] == layout[r];
            }
            set("RANK", r);
            set("WORLD_SIZE", size);
            set("LOCAL_RANK", before);
            set("LOCAL_WORLD_SIZE", local);
            set("GROUP_RANK", layout[r] - '0');
            set("GROUP_WORLD_SIZE", layout[size - 1] - '0' + 1);
            set("MASTER_PORT", port);
            (void)setenv("MASTER_ADDR", "127.0.0.1", 1);
            struct dt_error err = {0};
            struct world w;
            if (world_open(&w, &(struct world_options){.device = "cpu", .collective_timeout_s = PATIENCE_S, .threads = 1}, &err) != 0) {
                (void)fprintf(stderr, "rank %d: %s\n", r, err.text);
                _exit(4);
            }
            NEED(strcmp(w.comm->ops->name, "tcp") == 0);
            body(w.comm);
            world_close(&w);
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
    float *x = arena;
    struct dt_comm *half = NULL;
    NEED(dt_comm_split(c, c->rank % 2, "half", &half, &err) == 0);
    for (int round = 0; round < 6; round++) {
        int64_t count = round < 2 ? 5 : n;
        struct dt_comm *in = round % 3 == 2 ? half : c;
        for (int64_t i = 0; i < count; i++) {
            x[i] = (float)(c->rank + i % 7);
        }
        dt_comm_start(in, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "sums", x, x, count, DT_F32, 0}, NULL);
        NEED(dt_comm_poll(in, &err) == 0);
        float ranks = 0;
        for (int r = 0; r < c->size; r++) {
            ranks += (float)(in == c || r % 2 == c->rank % 2 ? r : 0);
        }
        for (int64_t i = 0; i < count; i++) {
            NEED(x[i] == ranks + (float)(i % 7) * (float)in->size);
        }
    }
    dt_comm_close(half);
}

static void processes_sum(void **unused)
{
    (void)unused;
    static const char *const layouts[] = {"01", "001", "011222"};
    for (int i = 0; i < 3; i++) {
        begin(layouts[i], sums);
        for (int r = 0; r < (int)strlen(layouts[i]); r++) {
            assert_int_equal(end(r), 0);
        }
        assert_int_equal(teardown(NULL), 0); /* a new round has a new store */
        assert_int_equal(setup(NULL), 0);
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

/* A leader and one that is none, of either host. */
static void killed_rank_is_named(void **unused)
{
    (void)unused;
    for (int victim = 0; victim < 4; victim++) {
        begin("0011", work);
        wait_for_count(victim, 20);
        assert_int_equal(kill(pids[victim], SIGKILL), 0);
        for (int r = 0; r < 4; r++) {
            if (r != victim) {
                assert_int_equal(end(r), 0);
                char who[16];
                (void)snprintf(who, sizeof(who), "rank %d", victim);
                if (told[r].error.status != DT_PEER || strstr(told[r].error.text, who) == NULL || strstr(told[r].error.text, "gone") == NULL) {
                    print_error("victim %d, rank %d: %s\n", victim, r, told[r].error.text);
                }
                assert_int_equal(told[r].error.status, DT_PEER);
                assert_non_null(strstr(told[r].error.text, who));
                assert_non_null(strstr(told[r].error.text, "gone"));
            }
        }
        assert_true(WIFSIGNALED(end(victim)));
        assert_int_equal(teardown(NULL), 0);
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
    begin("01", idle);
    wait_for_count(0, 1);
    wait_for_count(1, 1);
    assert_int_equal(kill(pids[1], SIGKILL), 0);
    assert_int_equal(end(0), 0);
    assert_int_equal(told[0].error.status, DT_PEER);
    assert_non_null(strstr(told[0].error.text, "rank 1 on host 1"));
    assert_true(WIFSIGNALED(end(1)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(processes_sum, setup, teardown),
        cmocka_unit_test_setup_teardown(killed_rank_is_named, setup, teardown),
        cmocka_unit_test_setup_teardown(poll_notices_a_killed_rank, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
