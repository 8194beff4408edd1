/* The worker of `bench start`: one all_reduce, and the time of its end. */
#ifndef DT_CMD_BENCH_FIRST_H
#define DT_CMD_BENCH_FIRST_H

/* Under dtrun: opens the communicator, sums one number over all ranks, and rank 0 appends "first
 * ROUND TIME" (monotonic seconds) to the file --file. With --kill, rank 1 of the first round
 * then appends "kill 0 TIME" and ends itself with signal 9. Returns an exit code. */
int bench_first(int argc, char **argv);

#endif
