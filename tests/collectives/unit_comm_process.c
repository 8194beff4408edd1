/* covers: collectives cmd/bench/collectives.c */
/* Communicators with ranks as processes (tests/lib/comm_processes.h): many of them on few cores,
 * and what the others are told when one is killed. */
#include "tests/lib/comm_processes.h"

#include "cmd/bench/collectives.h"
#include "collectives/store.h"

#include <string.h>

static struct dt_comm *enter(int rank, int size, const void *arg)
{
    struct dt_error err = {0};
    struct dt_store *store = NULL;
    struct dt_comm *c = NULL;
    (void)arg;
    if (dt_store_open(&store, "127.0.0.1", port, PATIENCE_S, NULL, &err) != 0 ||
        dt_comm_open(
            &c, &(struct dt_comm_options){.rank = rank, .size = size, .store = store, .open_timeout_s = PATIENCE_S},
            &err) != 0) {
        (void)fprintf(stderr, "rank %d: %s\n", rank, err.text);
        _exit(4);
    }
    dt_store_close(store);
    return c;
}

static void begin(int size, void (*body)(struct dt_comm *c))
{
    processes_begin(size, enter, NULL, body, NULL);
}

static void many_processes_sum(void **unused)
{
    (void)unused;
    begin(PROCESSES_MAX, sums);
    for (int r = 0; r < PROCESSES_MAX; r++) {
        assert_int_equal(end(r), 0);
    }
}

static void killed_rank_is_named(void **unused)
{
    (void)unused;
    for (int victim = 0; victim < 3; victim += 2) {
        char who[16];
        (void)snprintf(who, sizeof(who), "rank %d", victim);
        begin(3, work);
        wait_for_count(victim, 20);
        kill_and_check(victim, 3, who);
        processes_renew();
    }
}

static void poll_notices_a_killed_rank(void **unused)
{
    (void)unused;
    begin(2, idle);
    wait_for_count(0, 1);
    wait_for_count(1, 1);
    kill_and_check(1, 2, "rank 1 is gone");
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
        cmocka_unit_test_setup_teardown(many_processes_sum, processes_setup, processes_teardown),
        cmocka_unit_test_setup_teardown(killed_rank_is_named, processes_setup, processes_teardown),
        cmocka_unit_test_setup_teardown(poll_notices_a_killed_rank, processes_setup, processes_teardown),
        cmocka_unit_test_setup_teardown(bench_finds_nothing_wrong, processes_setup, processes_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
