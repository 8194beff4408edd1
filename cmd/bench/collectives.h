/* The bench of collectives: a row of the bench program. */
#ifndef DT_CMD_BENCH_COLLECTIVES_H
#define DT_CMD_BENCH_COLLECTIVES_H

/* Under dtrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT) one rank of it, otherwise --ranks
 * threads of this process. One JSON line per size and operation on stdout, in nccl-tests' terms.
 * Returns an exit code. */
int bench_collectives(int argc, char **argv);

#endif
