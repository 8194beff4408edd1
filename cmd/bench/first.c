/* See the header. */
#include "cmd/bench/first.h"

#include "base/bench.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/page.h"
#include "base/text.h"
#include "collectives/comm.h"
#include "collectives/store.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int number_of(const char *name)
{
    long long n;
    const char *s = getenv(name);
    return s != NULL && dt_parse_int64(s, &n) && n >= 0 && n < 1 << 30 ? (int)n : -1;
}

static void note(const char *file, const char *what, int round, double at_s)
{
    char line[96];
    int size = snprintf(line, sizeof line, "%s %d %.9f", what, round, at_s);
    if (file != NULL) {
        (void)dt_file_append_line(file, line, (size_t)size, NULL);
    }
}

static _Atomic double told_s; /* when our agent asked us to end; 0: not yet */

static void on_term(int number)
{
    (void)number;
    atomic_store(&told_s, dt_now_s());
}

int bench_first(int argc, char **argv)
{
    struct dt_error err;
    struct dt_page *page = NULL;
    struct dt_store *store = NULL;
    struct dt_comm *comm = NULL;
    const char *file = dt_bench_option(argc, argv, "file", NULL), *host = getenv("MASTER_ADDR");
    int rank = number_of("RANK"), size = number_of("WORLD_SIZE"), port = number_of("MASTER_PORT"),
        round = number_of("TORCHELASTIC_RESTART_COUNT");
    int64_t sum = rank + 1;
    if (rank < 0 || size < 1 || host == NULL || port < 0) {
        (void)fprintf(stderr, "bench first: runs under dtrun only: dtrun --nproc_per_node=2 bench first\n");
        return DT_EXIT_USAGE;
    }
    int code = DT_EXIT_TEMPORARY;
    if (dt_page_attach(&page, &err) != 0 || dt_store_open(&store, host, port, 60, page, &err) != 0 ||
        dt_comm_open(
            &comm, &(struct dt_comm_options){.rank = rank, .size = size, .store = store, .page = page, .timeout_s = 60},
            &err) != 0) {
        (void)fprintf(stderr, "bench first: %s\n", err.text);
        goto out;
    }
    dt_comm_start(
        comm,
        &(struct dt_collective){
            .kind = DT_ALL_REDUCE, .op = DT_SUM, .name = "first", .in = &sum, .out = &sum, .count = 1, .type = DT_I64},
        NULL);
    if (dt_comm_poll(comm, &err) != 0 || sum != (int64_t)size * (size + 1) / 2) {
        (void)fprintf(stderr, "bench first: the sum is %lld: %s\n", (long long)sum, err.text);
        goto out;
    }
    if (rank == 0) {
        note(file, "first", round, dt_now_s());
    }
    if (dt_bench_flag(argc, argv, "kill") && round == 0) {
        (void)signal(SIGTERM, on_term); /* our agent may know before the collective does */
        if (rank == 1) {
            dt_sleep_s(0.05); /* the others have left the sum and wait for something else */
            note(file, "kill", round, dt_now_s());
            (void)raise(SIGKILL);
        }
        dt_comm_start(comm,
                      &(struct dt_collective){.kind = DT_ALL_REDUCE,
                                              .op = DT_SUM,
                                              .name = "last",
                                              .in = &sum,
                                              .out = &sum,
                                              .count = 1,
                                              .type = DT_I64},
                      NULL);
        if (dt_comm_poll(comm, &err) != 0 && rank == 0) {
            double at_s = atomic_load(&told_s);
            note(file, "noticed", round, at_s > 0 ? at_s : dt_now_s());
        }
        code = DT_EXIT_TEMPORARY;
        goto out;
    }
    code = DT_EXIT_DONE;
out:
    dt_comm_close(comm);
    dt_store_close(store);
    dt_page_close(page, -1);
    return code;
}
