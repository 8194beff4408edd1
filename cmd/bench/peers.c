#include "cmd/bench/peers.h"

#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

static void open_one(struct bench_peers *p, const char *name, char *const *argv)
{
    struct dt_bench_peer *program = &p->programs[p->count];
    if (dt_bench_peer_open(program, argv) == 0 && dt_bench_peer_ask(program, "4096 1") > 0) {
        p->names[p->count++] = name;
        return;
    }
    (void)fprintf(stderr, "bench collectives: %s is not to be had: scripts/setup.sh --peers\n", name);
    dt_bench_peer_close(program);
}

void bench_peers_open(struct bench_peers *p, const char *folder, bool sockets)
{
    *p = (struct bench_peers){0};
    char *python = dt_bench_peer_program("python"), *script = dt_format("%s/allreduce.py", folder);
    open_one(p, "gloo", (char *[]){python != NULL ? python : (char *)"python3", script, NULL});
    free(python);
    free(script);
    char *command = dt_format("t=$(mktemp) && mpicc.mpich -O2 '%s/allreduce_mpi.c' -o $t && chmod +x $t && { %s "
                              "mpiexec.mpich -n 2 $t; rm $t; }",
                              folder, sockets ? "MPIR_CVAR_NOLOCAL=1" : "");
    open_one(p, "mpich", (char *[]){(char *)"/bin/sh", (char *)"-c", command, NULL});
    free(command);
}

double bench_peers_ask(struct bench_peers *p, int i, size_t bytes, long times)
{
    return dt_bench_peer_ask(&p->programs[i], "%zu %ld", bytes, times);
}

void bench_peers_close(struct bench_peers *p)
{
    for (int i = 0; i < p->count; i++) {
        dt_bench_peer_close(&p->programs[i]);
    }
    p->count = 0;
}
