/* Other systems' all_reduce beside ours: gloo (tests/peers/allreduce.py) and MPICH over sockets
 * (tests/peers/allreduce_mpi.c), two ranks each. */
#ifndef DT_CMD_BENCH_PEERS_H
#define DT_CMD_BENCH_PEERS_H

#include "base/bench.h"

enum { BENCH_PEERS_MAX = 2 };
struct bench_peers {
    int count;
    const char *names[BENCH_PEERS_MAX]; /* "gloo", "mpich" */
    struct dt_bench_peer programs[BENCH_PEERS_MAX];
};

/* Starts those that are installed; folder: of their programs. `sockets`: MPICH may not use
 * shared memory. */
void bench_peers_open(struct bench_peers *p, const char *folder, bool sockets);
/* Mean seconds of `times` sums of `bytes`, by peer i; negative when it failed. */
double bench_peers_ask(struct bench_peers *p, int i, size_t bytes, long times);
void bench_peers_close(struct bench_peers *p);

#endif
