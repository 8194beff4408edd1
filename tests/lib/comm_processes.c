#include "tests/lib/comm_processes.h"

#include "base/clock.h"
#include "launcher/store/store_server.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

struct told *told;
pid_t pids[PROCESSES_MAX];
int port;
static pid_t store_pid;

pid_t fork_child(void)
{
    pid_t parent = getpid(), pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        NEED(getppid() == parent);
    }
    return pid;
}

int processes_setup(void **unused)
{
    (void)unused;
    int ends[2];
    told = mmap(NULL, sizeof(*told) * PROCESSES_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
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

int processes_teardown(void **unused)
{
    (void)unused;
    assert_int_equal(kill(store_pid, SIGKILL), 0);
    assert_int_equal(waitpid(store_pid, NULL, 0), store_pid);
    (void)munmap(told, sizeof(*told) * PROCESSES_MAX);
    return 0;
}

void processes_renew(void)
{
    assert_int_equal(processes_teardown(NULL), 0);
    assert_int_equal(processes_setup(NULL), 0);
}

void processes_begin(int size, struct dt_comm *(*enter)(int rank, int size, const void *arg), const void *arg,
                     void (*body)(struct dt_comm *c), void (*leave)(struct dt_comm *c))
{
    for (int r = 0; r < size; r++) {
        pids[r] = fork_child();
        if (pids[r] == 0) {
            struct dt_comm *c = enter(r, size, arg);
            body(c);
            (leave != NULL ? leave : dt_comm_close)(c);
            _exit(0);
        }
    }
}

int end(int rank)
{
    int status = 0;
    assert_int_equal(waitpid(pids[rank], &status, 0), pids[rank]);
    return status;
}

void wait_for_count(int rank, int64_t count)
{
    double end_s = dt_now_s() + PATIENCE_S;
    while (atomic_load(&told[rank].count) < count) {
        assert_true(dt_now_s() < end_s);
        dt_sleep_s(0.001);
    }
}

void kill_and_check(int victim, int size, const char *who)
{
    assert_int_equal(kill(pids[victim], SIGKILL), 0);
    /* The others end by themselves while the victim is a zombie: nobody has waited for it. */
    for (int r = 0; r < size; r++) {
        if (r != victim) {
            assert_int_equal(end(r), 0);
            const struct dt_error *e = &told[r].error;
            if (e->status != DT_PEER || strstr(e->text, who) == NULL || strstr(e->text, "gone") == NULL) {
                fail_msg("victim %d, rank %d: %s", victim, r, e->text);
            }
        }
    }
    assert_true(WIFSIGNALED(end(victim)));
}

void sums(struct dt_comm *c)
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

void work(struct dt_comm *c)
{
    void *arena = NULL;
    struct told *mine = &told[c->rank];
    const int64_t n = 50000;
    NEED(dt_comm_alloc(c, (size_t)n * 4, &arena, &mine->error) == 0);
    memset(arena, 0, (size_t)n * 4);
    for (int64_t i = 1; dt_comm_poll(c, &mine->error) == 0; i++) {
        atomic_store(&mine->count, i);
        dt_comm_start(
            c, &(struct dt_collective){DT_ALL_REDUCE, DT_SUM, "work", arena, arena, i % 2 == 0 ? 100 : n, DT_F32, 0},
            NULL);
    }
}

void idle(struct dt_comm *c)
{
    struct told *mine = &told[c->rank];
    atomic_store(&mine->count, 1);
    double end_s = dt_now_s() + PATIENCE_S;
    while (dt_comm_poll(c, &mine->error) == 0) {
        NEED(dt_now_s() < end_s);
        dt_sleep_s(0.001);
    }
}
